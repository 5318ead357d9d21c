//! Asynchronous events of a context, from the RNIC to the program.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use doorbell_fabric::EventIdentity;
use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::Notices;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::objects::answer::{Answer, Refused};
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::device::Device;
use crate::objects::handle::object;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::process::wait::{NUMBER, Sleep, Step, Unacknowledged, cancellation_point, expect_waiting, in_steps};

/// The object that an event refers to: its C pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Qp(*mut c::ibv_qp),
    Cq(*mut c::ibv_cq),
    Srq(*mut c::ibv_srq),
}

// SAFETY: the pointer is only carried here. The thread that retrieves the event uses it, and for that thread the
// object exists until the event is acknowledged.
unsafe impl Send for Element {}

/// Events of one context that the program has not retrieved, and the descriptor that signals them.
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

    fn take(&self) -> Option<(Element, c::ibv_event_type)> {
        let mut waiting = self.waiting.lock();
        let event = waiting.pop()?;
        // Under the lock, so that an object which is being destroyed either removes the event or waits for its
        // acknowledgement.
        // SAFETY: the object exists while its events wait.
        if let Ok(unacknowledged) = unsafe { unacknowledged(event.0) } {
            unacknowledged.add();
        }
        Some(event)
    }
}

/// Returns an empty list whose descriptor blocks reads until the program changes that, as verbs require.
pub(crate) fn blocking_notices<T>() -> Answer<Notices<T>> {
    let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)
        .map_err(|error| Refused::new(error as c_int, "an eventfd could not be created"))?;
    Ok(Notices::on(fd))
}

/// Returns the object if it is this process's own. In an inherited object any lock may be held by a thread that does
/// not exist in this process.
fn expect_own<T>(own: &T, device: impl FnOnce(&T) -> &Device) -> Answer<&T> {
    device(own).expect_own().map(|()| own)
}

/// # Safety
///
/// The object exists.
unsafe fn unacknowledged<'a>(element: Element) -> Answer<&'a Unacknowledged> {
    // SAFETY: passed on to our caller.
    unsafe {
        Ok(match element {
            Element::Qp(qp) => &expect_own(object::<Qp>(qp)?, |own| &own.device)?.unacknowledged,
            Element::Cq(cq) => &expect_own(object::<Cq>(cq)?, |own| &own.device)?.unacknowledged,
            Element::Srq(srq) => &expect_own(object::<Srq>(srq)?, |own| &own.device)?.unacknowledged,
        })
    }
}

/// Destination of the events of one object.
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
        self.events.waiting.lock().push((self.element, kind));
    }

    /// Removes the events that the program has not retrieved. Its object is about to be destroyed and was removed
    /// from the device's sources. Retrieved events must be acknowledged before that.
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
        // SAFETY: the C contract.
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
        };
        // SAFETY: the caller's place for the event.
        unsafe { event.write(c::ibv_async_event { element, event_type }) };
        Ok(Step::Done(0))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut c::ibv_async_event) {
    // SAFETY: the program retrieved the event, and its object exists until it is acknowledged.
    let _ = unsafe {
        event.as_ref().map(|event| {
            let element = match event.event_type {
                c::IBV_EVENT_CQ_ERR => Element::Cq(event.element.cq),
                c::IBV_EVENT_SRQ_LIMIT_REACHED | c::IBV_EVENT_SRQ_ERR => Element::Srq(event.element.srq),
                _ => Element::Qp(event.element.qp),
            };
            unacknowledged(element).map(|unacknowledged| unacknowledged.acknowledge(1))
        })
    };
}
