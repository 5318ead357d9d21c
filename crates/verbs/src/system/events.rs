//! Asynchronous events. They are taken from the kernel by whoever asks for one, and now and then by whoever polls an
//! empty completion queue, so that one which has overrun is known to be so. No thread waits for them: a program has
//! those that it started, and in a process with one alone system calls on descriptors are cheaper.

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
    /// Taken from the kernel, and asked for by nobody yet.
    queue: EventQueue,
    /// Readable while the queue has events.
    queued: EventSignal,
    /// Readable while the queue or the kernel has events.
    either: Epoll,
    completions: Mutex<HashMap<CqId, Weak<Completions>>>,
}

impl Events {
    pub(super) fn of(context: Arc<Context>) -> Result<Arc<Self>, SystemError> {
        let failed = |error: nix::Error| SystemError::refused("asynchronous events to be waited for", error.into());
        let queued = EventSignal::new().map_err(failed)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        either.add(&queued, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        // SAFETY: the context is open for as long as it is borrowed, and its descriptor with it.
        let of_kernel = unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) };
        either.add(of_kernel, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        fcntl(of_kernel, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(Arc::new(Self { context, queue: EventQueue::new(None), queued, either, completions: Mutex::default() }))
    }

    /// From now on a queue is known by its number, and told that it has overrun.
    pub(super) fn watch(&self, queue: &Arc<Completions>) {
        let mut completions = lock(&self.completions);
        completions.retain(|_, queue| queue.strong_count() > 0);
        completions.insert(queue.id, Arc::downgrade(queue));
    }

    /// The queue of this number, if it still lives.
    pub(super) fn completions(&self, id: CqId) -> Option<Arc<Completions>> {
        lock(&self.completions).get(&id).and_then(Weak::upgrade)
    }

    /// The oldest event.
    pub(super) fn poll(&self) -> Option<AsyncEvent> {
        self.take();
        self.queued.next(&self.queue)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }

    /// Drops the events of an object that is destroyed. The kernel has none of it any more: those that it gave out
    /// were queued here before they were acknowledged, and destroying waits for that.
    pub(super) fn forget(&self, gone: EventSource) {
        self.queue.purge(gone);
    }

    /// Takes what the kernel has.
    pub(super) fn take(&self) {
        while self.take_one() {}
    }

    /// Takes one event, if there is one. Whoever destroys its object waits until it is acknowledged, so all that is
    /// made of it is made before.
    fn take_one(&self) -> bool {
        let context = &*self.context;
        let mut event = ibv_async_event::default();
        // SAFETY: an open device and a place for the event.
        if unsafe { (context.library().get_async_event)(context.raw(), &mut event) } != 0 {
            return false;
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
        let overrun;
        let known = match event.event_type {
            IBV_EVENT_CQ_ERR => {
                let id = cq(&event);
                overrun = self.completions(CqId(id));
                // rxe says it for each completion that it drops: once is enough.
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
                // Of the port or the device: their work requests end with errors if it matters.
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
