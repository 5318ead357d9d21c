//! Asynchronous events of the machine's RNICs. Each poll for events takes all waiting events from the kernel. Some
//! polls of an empty completion queue also take them, to detect an overrun of that queue. No thread waits for events:
//! the program decides about its threads, and system calls on descriptors are cheaper in a single-threaded process.

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
    /// Events taken from the kernel that the program has not polled yet.
    queue: EventQueue,
    /// Descriptor that is readable while `queue` has events.
    queued: EventSignal,
    /// Descriptor that is readable while `queue` or the kernel has events.
    either: Epoll,
    completions: Mutex<HashMap<CqId, Weak<Completions>>>,
}

impl Events {
    pub(super) fn of(context: Arc<Context>) -> Result<Arc<Self>, SystemError> {
        let failed = |error: nix::Error| SystemError::refused("waiting for asynchronous events", error.into());
        let queued = EventSignal::new().map_err(failed)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        either.add(&queued, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        // SAFETY: the context is borrowed, so the context and its descriptor are open.
        let of_kernel = unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) };
        either.add(of_kernel, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
        fcntl(of_kernel, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(failed)?;
        Ok(Arc::new(Self { context, queue: EventQueue::new(None), queued, either, completions: Mutex::default() }))
    }

    /// Adds a completion queue under its number, so that an overrun event can mark the queue.
    pub(super) fn watch(&self, queue: &Arc<Completions>) {
        let mut completions = lock(&self.completions);
        completions.retain(|_, queue| queue.strong_count() > 0);
        completions.insert(queue.id, Arc::downgrade(queue));
    }

    /// Returns the completion queue with the number `id`, if the queue still lives.
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

    /// Drops the queued events of a destroyed object. The kernel has no further event of the object: the destruction
    /// waits until each event is acknowledged, and `take_one` queues an event before it acknowledges the event.
    pub(super) fn forget(&self, gone: EventSource) {
        self.queue.purge(gone);
    }

    /// Takes all events from the kernel.
    pub(super) fn take(&self) {
        while self.take_one() {}
    }

    /// Takes one event from the kernel, if there is one. An object cannot be destroyed before its event is
    /// acknowledged. So this function uses the object only before the acknowledgement.
    fn take_one(&self) -> bool {
        let context = &*self.context;
        let mut event = ibv_async_event::default();
        // SAFETY: the device is open, and `event` has room for the result.
        if unsafe { (context.library().get_async_event)(context.raw(), &mut event) } != 0 {
            return false;
        }
        // Each of the closures below reads a field of the union. They are called only for event types for which that
        // field is valid. The object lives until the event is acknowledged.
        // SAFETY: see above.
        let qpn = |event: &ibv_async_event| unsafe { Qpn::new((*event.element.qp).qp_num) };
        // SAFETY: as above.
        let cq = |event: &ibv_async_event| unsafe { (*event.element.cq).cq_context as usize as u32 };
        // SAFETY: as above.
        let srq = |event: &ibv_async_event| unsafe { (*event.element.srq).srq_context as usize as u32 };
        // SAFETY: as above.
        let port = |event: &ibv_async_event| unsafe { event.element.port_num } as u8;
        // This handle of the queue is declared outside the match, so that it is dropped after the acknowledgement. If
        // it is the last handle, the drop destroys the queue, which waits for the acknowledgement.
        let overrun;
        let known = match event.event_type {
            IBV_EVENT_CQ_ERR => {
                let id = cq(&event);
                overrun = self.completions(CqId(id));
                // rdma_rxe reports an overrun for each dropped completion, but the program gets only the first event of
                // a queue.
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
            IBV_EVENT_PORT_ERR => Some(AsyncEvent::PortError(port(&event))),
            IBV_EVENT_PORT_ACTIVE => Some(AsyncEvent::PortActive(port(&event))),
            IBV_EVENT_GID_CHANGE => Some(AsyncEvent::GidChange(port(&event))),
            IBV_EVENT_DEVICE_FATAL => Some(AsyncEvent::DeviceFatal),
            other => {
                // Other events are only logged: if they matter, work requests end with errors.
                tracing::warn!(event = other, "an asynchronous event of the device or its port");
                None
            }
        };
        if let Some(event) = known {
            self.queue.push(event);
            self.queued.signal();
        }
        // SAFETY: `event` was taken above, and is acknowledged exactly once.
        unsafe { (context.library().ack_async_event)(&mut event) };
        true
    }
}
