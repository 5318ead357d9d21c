//! Asynchronous events of a context, which the RNIC raises and the program retrieves.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use doorbell_fabric::EventIdentity;
use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::Notices;

use crate::objects::answer::{Answer, Refused};
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::device::Device;
use crate::objects::handle::object;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::process::wait::{NUMBER, Sleep, Step, Unacknowledged, cancellation_point, expect_waiting, in_steps};

/// C pointer of the object to which an event refers, or the number of the port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Qp(*mut c::ibv_qp),
    Cq(*mut c::ibv_cq),
    Srq(*mut c::ibv_srq),
    Port(c_int),
    Device,
}

// SAFETY: this module passes on the pointer without using it. Only the thread that retrieves the event uses the
// pointer. The object exists until that thread acknowledges the event.
unsafe impl Send for Element {}

/// Events of one context that the program has not retrieved, and the descriptor that signals such events.
pub(crate) struct Events {
    waiting: Notices<(Element, c::ibv_event_type)>,
    identity: EventIdentity,
}

impl Events {
    pub(crate) fn new() -> Answer<Self> {
        let waiting = blocking_notices()?;
        let identity = EventIdentity::of(waiting.fd());
        Ok(Self { waiting, identity })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.waiting.fd().as_raw_fd()
    }

    /// Adds an event.
    pub(crate) fn raise(&self, element: Element, kind: c::ibv_event_type) {
        self.waiting.lock().push((element, kind));
    }

    fn take(&self) -> Option<(Element, c::ibv_event_type)> {
        let mut waiting = self.waiting.lock();
        let event = waiting.pop()?;
        // Increment under the lock. A call that destroys the object therefore either removes the event or waits for its
        // acknowledgement.
        // SAFETY: the object exists while the list contains events of it.
        if let Ok(Some(unacknowledged)) = unsafe { unacknowledged(event.0) } {
            unacknowledged.add();
        }
        Some(event)
    }
}

/// Returns an empty list. As verbs require, a call that waits for an entry blocks, unless the program makes the list's
/// descriptor nonblocking.
pub(crate) fn blocking_notices<T>() -> Answer<Notices<T>> {
    Notices::new().map_err(|error| {
        Refused::new(error as c_int, format!("a descriptor that signals events could not be created: {error}"))
    })
}

/// Returns the object if this process created it. The locks of an inherited object may be held by threads that do not
/// exist in this process.
fn expect_own<T>(own: &T, device: impl FnOnce(&T) -> &Device) -> Answer<&T> {
    device(own).expect_own().map(|()| own)
}

/// Returns the count of retrieved events of an object. Returns `None` for a port or device, which outlives its events.
///
/// # Safety
///
/// The object to which `element` refers exists.
unsafe fn unacknowledged<'a>(element: Element) -> Answer<Option<&'a Unacknowledged>> {
    // SAFETY: the caller guarantees that the object exists.
    unsafe {
        Ok(match element {
            Element::Qp(qp) => Some(&expect_own(object::<Qp>(qp)?, |own| &own.device)?.unacknowledged),
            Element::Cq(cq) => Some(&expect_own(object::<Cq>(cq)?, |own| &own.device)?.unacknowledged),
            Element::Srq(srq) => Some(&expect_own(object::<Srq>(srq)?, |own| &own.device)?.unacknowledged),
            Element::Port(_) | Element::Device => None,
        })
    }
}

/// An object that raises events, and the list that receives its events.
#[derive(Clone)]
pub(crate) struct Source {
    element: Element,
    events: Arc<Events>,
}

impl Source {
    pub(crate) fn new(element: Element, context: &Context) -> Self {
        Self { element, events: Arc::clone(&context.events) }
    }

    pub(crate) fn raise(&self, kind: c::ibv_event_type) {
        self.events.raise(self.element, kind);
    }

    /// Removes the events of this source's object that the program has not retrieved. Before this call, the caller has
    /// removed the object from the device's sources, and the program has acknowledged the retrieved events. The caller
    /// then destroys the object.
    pub(crate) fn close(&self) {
        self.events.waiting.lock().remove(|&(element, _)| element == self.element);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut c::ibv_context,
    event: *mut c::ibv_async_event,
) -> c_int {
    cancellation_point();
    in_steps("ibv_get_async_event", NUMBER, move |turn| {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let context = unsafe { Context::of(context) }?;
        context.device.expect_own()?;
        let sleepers = context.events.waiting.sleepers();
        let added = sleepers.added();
        let Some((element, event_type)) = context.events.take() else {
            expect_waiting(context.events.fd(), context.events.identity, turn)?;
            return Ok(Step::Sleep(Sleep::new(sleepers, added)));
        };
        let element = match element {
            Element::Qp(qp) => c::ibv_async_event__bindgen_ty_1 { qp },
            Element::Cq(cq) => c::ibv_async_event__bindgen_ty_1 { cq },
            Element::Srq(srq) => c::ibv_async_event__bindgen_ty_1 { srq },
            Element::Port(port_num) => c::ibv_async_event__bindgen_ty_1 { port_num },
            Element::Device => c::ibv_async_event__bindgen_ty_1::default(),
        };
        // SAFETY: the caller provides memory for the event.
        unsafe { event.write(c::ibv_async_event { element, event_type }) };
        Ok(Step::Done(0))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut c::ibv_async_event) {
    // SAFETY: the program has retrieved the event. The object of the event exists until the event is acknowledged.
    let _ = unsafe {
        event.as_ref().map(|event| {
            let element = match event.event_type {
                c::IBV_EVENT_CQ_ERR => Element::Cq(event.element.cq),
                c::IBV_EVENT_SRQ_LIMIT_REACHED | c::IBV_EVENT_SRQ_ERR => Element::Srq(event.element.srq),
                c::IBV_EVENT_PORT_ERR | c::IBV_EVENT_PORT_ACTIVE | c::IBV_EVENT_GID_CHANGE => {
                    Element::Port(event.element.port_num)
                }
                c::IBV_EVENT_DEVICE_FATAL => Element::Device,
                _ => Element::Qp(event.element.qp),
            };
            unacknowledged(element).map(|unacknowledged| unacknowledged.map(|own| own.acknowledge(1)))
        })
    };
}
