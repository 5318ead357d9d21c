//! Asynchronous events. A poll for events takes them from the kernel. A poll of an empty completion queue also takes
//! them now and then, to detect an overrun of the queue. No thread waits for them: the program controls its threads,
//! and system calls on descriptors are cheaper in a process with a single thread.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use doorbell_ibverbs_sys::*;
use doorbell_verbs_core::{AsyncEvent, CqId, EventQueue, EventSource};
use doorbell_wire::Qpn;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::queues::Completions;
use super::{Context, SystemError, lock};
use crate::signal::EventSignal;

pub(super) struct Events {
    context: Arc<Context>,
    /// Events taken from the kernel but not yet from here.
    queue: EventQueue,
    /// Descriptor that is readable while the queue has events.
    queued: EventSignal,
    /// Descriptor that is readable while the queue or the kernel has events.
    either: Epoll,
    completions: Mutex<HashMap<CqId, Weak<Completions>>>,
}

impl Events {
    pub(super) fn of(context: Arc<Context>) -> Result<Arc<Self>, SystemError> {
        let failed = |error: nix::Error| SystemError::refused("asynchronous events to be waited for", error.into());
        let queued = EventSignal::new().map_err(failed)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        either.add(&queued, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        // SAFETY: the context is borrowed, so it and its descriptor are open.
        let of_kernel = unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) };
        either.add(of_kernel, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        fcntl(of_kernel, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(Arc::new(Self { context, queue: EventQueue::new(None), queued, either, completions: Mutex::default() }))
    }

    /// Enters a queue under its number, so that events of its overrun reach it.
    pub(super) fn watch(&self, queue: &Arc<Completions>) {
        let mut completions = lock(&self.completions);
        completions.retain(|_, queue| queue.strong_count() > 0);
        completions.insert(queue.id, Arc::downgrade(queue));
    }

    /// Returns the queue of this number, if it still lives.
    pub(super) fn completions(&self, id: CqId) -> Option<Arc<Completions>> {
        lock(&self.completions).get(&id).and_then(Weak::upgrade)
    }

    /// Takes the oldest event.
    pub(super) fn poll(&self) -> Option<AsyncEvent> {
        self.take();
        self.queued.next(&self.queue)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }

    /// Drops the events of a destroyed object. The kernel has no further event of it: `take_one` queues each event
    /// before it acknowledges it, and the destruction waits for the acknowledgement.
    pub(super) fn forget(&self, gone: EventSource) {
        self.queue.purge(gone);
    }

    /// Takes all events of the kernel.
    pub(super) fn take(&self) {
        while self.take_one() {}
    }

    /// Takes one event, if any. Destroying its object waits for the acknowledgement, so every use of the object comes
    /// before that.
    fn take_one(&self) -> bool {
        let context = &*self.context;
        let mut event = ibv_async_event::default();
        // SAFETY: an open device and room for the event.
        if unsafe { (context.library().get_async_event)(context.raw(), &mut event) } != 0 {
            return false;
        }
        // Each closure is called only for events whose type makes that field of the union valid. The object lives
        // until the event is acknowledged.
        // SAFETY: see above.
        let qpn = |event: &ibv_async_event| unsafe { Qpn::new((*event.element.qp).qp_num) };
        // SAFETY: as above.
        let cq = |event: &ibv_async_event| unsafe { (*event.element.cq).cq_context as usize as u32 };
        // SAFETY: as above.
        let srq = |event: &ibv_async_event| unsafe { (*event.element.srq).srq_context as usize as u32 };
        // If this becomes the last handle, the queue is destroyed only after the acknowledgement.
        let overrun;
        let known = match event.event_type {
            IBV_EVENT_CQ_ERR => {
                let id = cq(&event);
                overrun = self.completions(CqId(id));
                // rxe reports an overrun for each dropped completion; one event is enough.
                let is_news = overrun.as_ref().is_none_or(|queue| !queue.overrun.swap(true, Ordering::AcqRel));
                is_news.then_some(AsyncEvent::CqError(id))
            }
            IBV_EVENT_QP_FATAL => Some(AsyncEvent::QpFatal(qpn(&event))),
            IBV_EVENT_QP_REQ_ERR => Some(AsyncEvent::QpRequestError(qpn(&event))),
            IBV_EVENT_QP_ACCESS_ERR => Some(AsyncEvent::QpAccessError(qpn(&event))),
            IBV_EVENT_COMM_EST => Some(AsyncEvent::CommunicationEstablished(qpn(&event))),
            IBV_EVENT_SQ_DRAINED => Some(AsyncEvent::SqDrained(qpn(&event))),
            IBV_EVENT_QP_LAST_WQE_REACHED => Some(AsyncEvent::QpLastWqeReached(qpn(&event))),
            IBV_EVENT_SRQ_LIMIT_REACHED => Some(AsyncEvent::SrqLimitReached(srq(&event))),
            other => {
                // Events of the port or the device: if they matter, work requests end with errors.
                tracing::warn!(event = other, "an asynchronous event of the device or its port");
                None
            }
        };
        if let Some(event) = known {
            self.queue.push(event);
            self.queued.signal();
        }
        // SAFETY: the event from above, acknowledged once.
        unsafe { (context.library().ack_async_event)(&mut event) };
        true
    }
}
