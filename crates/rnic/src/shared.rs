//! Shared receive queues.
//!
//! `tests/shared.rs` has a model checker go through all interleavings of the threads that use a queue.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use super::sync::{ArrayQueue, AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::work::RecvWqe;
use doorbell_verbs_core::{AsyncEvent, EventQueue, PdId, PostErrorKind};

/// Where queue pairs that share receives take them from.
pub trait ReceiveSource: Send + Sync {
    /// The oldest receive.
    fn take(&self) -> Option<RecvWqe>;

    /// Puts a receive back that a message took and did not use.
    fn give_back(&self, wqe: RecvWqe);

    /// A message uses the receive that was taken: from now on it does not count any more.
    fn used(&self);
}

/// A shared receive queue. Several threads fill it, every engine takes from it.
pub struct SharedReceiveQueue {
    id: u32,
    pd: PdId,
    max_sges: usize,
    posted: ArrayQueue<RecvWqe>,
    /// This many of the newest are posted, but the device has not been told of them.
    unrung: AtomicUsize,
    /// Receives that came back from messages which were dropped, and go before those that were posted. One
    /// for each queue pair at most; the lock is only taken where there are some.
    returned: Mutex<VecDeque<RecvWqe>>,
    returned_len: AtomicUsize,
    /// Number of remaining receives below which the limit event is raised; 0 is disarmed. A program writes the limit and
    /// then reads the length; an engine lowers the length and then reads the limit. One of the two must see the other's
    /// change, so these accesses have one order (`SeqCst`).
    limit: AtomicUsize,
    /// It was destroyed, and its number may be another's: it raises no event any more.
    retired: AtomicBool,
    events: Arc<EventQueue>,
}

impl std::fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("id", &self.id).field("length", &self.len()).finish_non_exhaustive()
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(id: u32, pd: PdId, depth: usize, max_sges: usize, events: Arc<EventQueue>) -> Self {
        Self {
            id,
            pd,
            max_sges,
            posted: ArrayQueue::new(depth),
            unrung: AtomicUsize::new(0),
            returned: Mutex::default(),
            returned_len: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            events,
        }
    }

    /// The number that its events carry.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The protection domain of its receives.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Receives it holds at most.
    pub fn depth(&self) -> usize {
        self.posted.capacity()
    }

    /// Receives that wait for messages. More than the depth only if the program posted into the room of
    /// receives that then came back.
    pub fn len(&self) -> usize {
        self.posted.len() + self.returned_len.load(Ordering::SeqCst)
    }

    /// Does no receive wait?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scatter-gather elements a receive may have.
    pub fn max_sges(&self) -> usize {
        self.max_sges
    }

    /// The limit that is armed; 0 if none is.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Acquire)
    }

    /// Arms the limit event (IBTA Vol 1, 10.2.9.3).
    pub fn arm_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::SeqCst);
        self.check_limit();
    }

    /// Posts receives; memory was checked by the caller.
    pub(crate) fn push(&self, wqe: RecvWqe, unrung: bool) -> Result<(), PostErrorKind> {
        let full = PostErrorKind::QueueFull { queue: "shared receive queue", depth: self.depth() };
        if self.len() >= self.depth() {
            return Err(full);
        }
        if unrung {
            self.unrung.fetch_add(1, Ordering::Relaxed);
        }
        self.posted.push(wqe).map_err(|_| full)
    }

    /// The device is told of so many more of the receives that were posted.
    pub(crate) fn ring(&self, receives: usize) {
        let rung = |unrung: usize| Some(unrung.saturating_sub(receives));
        let _ = self.unrung.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rung);
    }

    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    fn check_limit(&self) {
        let limit = self.limit.load(Ordering::Acquire);
        if limit > 0
            && !self.retired.load(Ordering::Acquire)
            && self.len() < limit
            && self.limit.compare_exchange(limit, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.events.push(AsyncEvent::SrqLimitReached(self.id));
        }
    }
}

impl ReceiveSource for SharedReceiveQueue {
    fn take(&self) -> Option<RecvWqe> {
        if self.returned_len.load(Ordering::Acquire) > 0 {
            let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(wqe) = returned.pop_front() {
                self.returned_len.store(returned.len(), Ordering::SeqCst);
                return Some(wqe);
            }
        }
        let unrung = self.unrung.load(Ordering::Relaxed);
        if unrung > 0 && self.posted.len() <= unrung {
            return None;
        }
        self.posted.pop()
    }

    fn give_back(&self, wqe: RecvWqe) {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.push_back(wqe);
        self.returned_len.store(returned.len(), Ordering::Release);
    }

    fn used(&self) {
        if self.limit.load(Ordering::SeqCst) > 0 {
            self.check_limit();
        }
    }
}
