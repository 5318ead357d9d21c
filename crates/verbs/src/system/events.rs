//! Asynchronous events: a thread waits for them, so that a completion queue that overruns is known
//! to be so by whoever polls it next.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

use doorbell_ibverbs_sys::*;
use doorbell_rnic::{AsyncEvent, CqId, EventQueue, Notifier};
use doorbell_wire::Qpn;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::queues::Completions;
use super::{Context, SystemError};

pub(super) struct Events {
    shared: Arc<Waiting>,
    stop: Arc<EventFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Waiting {
    queue: EventQueue,
    readable: Arc<EventFd>,
    listener: Arc<OnceLock<Notifier>>,
    completions: Mutex<HashMap<CqId, Weak<Completions>>>,
}

fn failed(error: nix::Error) -> SystemError {
    SystemError::refused("asynchronous events to be waited for", error.into())
}

fn event_fd(flags: EfdFlags) -> Result<EventFd, SystemError> {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | flags).map_err(failed)
}

impl Events {
    pub(super) fn start(context: Arc<Context>) -> Result<Arc<Self>, SystemError> {
        // A semaphore: each event is taken by one read.
        let readable = Arc::new(event_fd(EfdFlags::EFD_SEMAPHORE)?);
        let listener = Arc::new(OnceLock::<Notifier>::new());
        let notifier: Notifier = {
            let (readable, listener) = (Arc::clone(&readable), Arc::clone(&listener));
            Arc::new(move || match listener.get() {
                Some(listener) => listener(),
                // It can only fail when 2^64 - 2 events wait.
                None => drop(readable.write(1)),
            })
        };
        let queue = EventQueue::new(Some(notifier));
        let shared = Arc::new(Waiting { queue, readable, listener, completions: Mutex::default() });
        let stop = Arc::new(event_fd(EfdFlags::empty())?);
        // An event goes with its object, perhaps after the descriptor was found readable.
        fcntl(descriptor(&context), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(failed)?;
        let thread = {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            std::thread::Builder::new()
                .name("doorbell-events".to_owned())
                .spawn(move || wait(&context, &shared, &stop))
                .map_err(|error| SystemError::refused("a thread for asynchronous events", error))?
        };
        Ok(Arc::new(Self { shared, stop, thread: Mutex::new(Some(thread)) }))
    }

    /// From now on a queue is told that it has overrun.
    pub(super) fn watch(&self, queue: &Arc<Completions>) {
        let mut completions = self.shared.completions.lock().unwrap_or_else(PoisonError::into_inner);
        completions.retain(|_, queue| queue.strong_count() > 0);
        completions.insert(queue.id, Arc::downgrade(queue));
    }

    pub(super) fn poll(&self) -> Option<AsyncEvent> {
        if let Some(event) = self.shared.queue.pop() {
            let _ = self.shared.readable.read();
            return Some(event);
        }
        // What went with its queue pair has left the descriptor readable.
        while self.shared.readable.read().is_ok() {}
        self.shared.queue.pop()
    }

    pub(super) fn listen(&self, notifier: Notifier) {
        let _ = self.shared.listener.set(notifier);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.readable.as_fd()
    }

    /// Drops the events of a queue pair that is destroyed.
    pub(super) fn forget(&self, qpn: Qpn) {
        self.shared.queue.purge(qpn);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Readable while the kernel has events.
fn descriptor(context: &Context) -> BorrowedFd<'_> {
    // SAFETY: the context is open for as long as it is borrowed, and its descriptor with it.
    unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) }
}

/// Takes events until it is told to stop.
fn wait(context: &Context, shared: &Waiting, stop: &EventFd) {
    // Signals are for the program's own threads.
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let events = descriptor(context);
    loop {
        let mut fds = [PollFd::new(events, PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) if fds[1].any() == Some(true) => return,
            Ok(_) if fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN)) => take(context, shared),
            Ok(_) => return tracing::error!("the device tells of no more asynchronous events"),
            Err(nix::Error::EINTR) => {}
            Err(error) => return tracing::error!(%error, "asynchronous events cannot be waited for"),
        }
    }
}

/// Takes one event. Whoever destroys its object waits until it is acknowledged, so all that is made
/// of it is made before.
fn take(context: &Context, shared: &Waiting) {
    let mut event = ibv_async_event::default();
    // SAFETY: an open device and a place for the event.
    if unsafe { (context.library().get_async_event)(context.raw(), &mut event) } != 0 {
        return;
    }
    // Each is called only for events whose type says that the union's field is valid; its object lives
    // until the event is acknowledged.
    // SAFETY: as just said.
    let qpn = |event: &ibv_async_event| unsafe { Qpn::new((*event.element.qp).qp_num) };
    // SAFETY: as above.
    let cq = |event: &ibv_async_event| unsafe { (*event.element.cq).cq_context as usize as u32 };
    // SAFETY: as above.
    let srq = |event: &ibv_async_event| unsafe { (*event.element.srq).srq_context as usize as u32 };
    // If this turns out to be its last handle, it is destroyed only once the event is acknowledged.
    let mut overrun = None;
    let known = match event.event_type {
        IBV_EVENT_CQ_ERR => {
            let id = cq(&event);
            let queues = shared.completions.lock().unwrap_or_else(PoisonError::into_inner);
            overrun = queues.get(&CqId(id)).and_then(Weak::upgrade);
            Some(AsyncEvent::CqError(id))
        }
        IBV_EVENT_QP_FATAL => Some(AsyncEvent::QpFatal(qpn(&event))),
        IBV_EVENT_QP_REQ_ERR => Some(AsyncEvent::QpRequestError(qpn(&event))),
        IBV_EVENT_QP_ACCESS_ERR => Some(AsyncEvent::QpAccessError(qpn(&event))),
        IBV_EVENT_COMM_EST => Some(AsyncEvent::CommunicationEstablished(qpn(&event))),
        IBV_EVENT_SQ_DRAINED => Some(AsyncEvent::SqDrained(qpn(&event))),
        IBV_EVENT_QP_LAST_WQE_REACHED => Some(AsyncEvent::QpLastWqeReached(qpn(&event))),
        IBV_EVENT_SRQ_LIMIT_REACHED => Some(AsyncEvent::SrqLimitReached(srq(&event))),
        other => {
            // Of the port or the device: their work requests end with errors if it matters.
            tracing::warn!(event = other, "an asynchronous event of the device or its port");
            None
        }
    };
    if let Some(queue) = &overrun {
        queue.has_overrun();
    }
    if let Some(event) = known {
        shared.queue.push(event);
    }
    // SAFETY: the event from above, acknowledged once.
    unsafe { (context.library().ack_async_event)(&mut event) };
}
