//! Asynchronous events of a context, on their way from the RNIC to the program.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_ibverbs_sys as c;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::context::Context;
use crate::cq::Cq;
use crate::handle::{Unacknowledged, object};
use crate::outcome::{Outcome, Refused, number};
use crate::qp::Qp;
use crate::srq::Srq;

/// Which object an event is about: its C pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Qp(*mut c::ibv_qp),
    Cq(*mut c::ibv_cq),
    Srq(*mut c::ibv_srq),
}

// SAFETY: the pointer is only carried here; it is used by who retrieves the event, for whom the
// object exists until the event is acknowledged.
unsafe impl Send for Element {}

/// Events of one context that wait to be retrieved, and the descriptor that says so.
pub(crate) struct Events {
    fd: EventFd,
    waiting: Mutex<VecDeque<(Element, c::ibv_event_type)>>,
}

impl Events {
    pub(crate) fn new() -> Outcome<Self> {
        // It blocks, unless the program makes it not to, as verbs have it.
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)
            .map_err(|error| Refused::new(error as c_int, "an eventfd could not be created"))?;
        Ok(Self { fd, waiting: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Element, c::ibv_event_type)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queue and descriptor change together, so neither tells of what is not in the other.
    fn push(&self, element: Element, kind: c::ibv_event_type) {
        let mut waiting = self.waiting();
        waiting.push_back((element, kind));
        let _ = self.fd.write(1);
    }

    fn pop(&self) -> Option<(Element, c::ibv_event_type)> {
        let mut waiting = self.waiting();
        let event = waiting.pop_front()?;
        let _ = self.fd.read();
        // Under the lock, so that an object which is being destroyed either takes the event back
        // or waits for its acknowledgement.
        // SAFETY: its object exists while its events wait.
        if let Ok(unacknowledged) = unsafe { unacknowledged(event.0) } {
            unacknowledged.add();
        }
        Some(event)
    }

    /// Takes back the events of an object that is destroyed.
    fn forget(&self, gone: Element) {
        let mut waiting = self.waiting();
        let before = waiting.len();
        waiting.retain(|&(element, _)| element != gone);
        for _ in waiting.len()..before {
            let _ = self.fd.read();
        }
    }
}

/// # Safety
///
/// The object exists.
unsafe fn unacknowledged<'a>(element: Element) -> Outcome<&'a Unacknowledged> {
    // SAFETY: passed on to our caller.
    unsafe {
        Ok(match element {
            Element::Qp(qp) => &object::<Qp>(qp)?.unacknowledged,
            Element::Cq(cq) => &object::<Cq>(cq)?.unacknowledged,
            Element::Srq(srq) => &object::<Srq>(srq)?.unacknowledged,
        })
    }
}

/// Where the events of one object go.
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
        self.events.push(self.element, kind);
    }

    /// Its object is about to be destroyed, and was taken out of the device's sources: what was not
    /// retrieved is taken back, what was must be acknowledged first.
    pub(crate) fn close(&self) {
        self.events.forget(self.element);
        // SAFETY: the object is destroyed after this.
        if let Ok(unacknowledged) = unsafe { unacknowledged(self.element) } {
            unacknowledged.wait();
        }
    }
}

/// Waits until `fd` is readable, unless the program made it non-blocking.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) -> Outcome<()> {
    expect_blocking(fd)?;
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE).map(drop).map_err(interrupted)
}

pub(crate) fn expect_blocking(fd: BorrowedFd<'_>) -> Outcome<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = fcntl(fd, FcntlArg::F_GETFL).unwrap_or(0);
    if OFlag::from_bits_truncate(flags).contains(OFlag::O_NONBLOCK) {
        return Err(Refused::new(libc::EAGAIN, "no event waits"));
    }
    Ok(())
}

pub(crate) fn interrupted(error: impl Into<io::Error>) -> Refused {
    let errno = error.into().raw_os_error().unwrap_or(libc::EINTR);
    Refused::new(errno, "waiting for an event was interrupted")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut c::ibv_context, event: *mut c::ibv_async_event) -> c_int {
    number("ibv_get_async_event", || {
        // SAFETY: the C contract.
        let context = unsafe { Context::of(context) }?;
        loop {
            context.device.expect_own()?;
            if let Some((element, event_type)) = context.events.pop() {
                let element = match element {
                    Element::Qp(qp) => c::ibv_async_event__bindgen_ty_1 { qp },
                    Element::Cq(cq) => c::ibv_async_event__bindgen_ty_1 { cq },
                    Element::Srq(srq) => c::ibv_async_event__bindgen_ty_1 { srq },
                };
                // SAFETY: the caller's place for the event.
                unsafe { event.write(c::ibv_async_event { element, event_type }) };
                return Ok(0);
            }
            wait_readable(context.events.fd.as_fd())?;
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut c::ibv_async_event) {
    // SAFETY: an event that was retrieved, whose object exists until this is done.
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
