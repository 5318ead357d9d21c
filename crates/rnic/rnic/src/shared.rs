//! Shared receive queues.
//!
//! In `tests/suite/shared.rs`, a model checker explores all interleavings of the threads that use a shared receive
//! queue.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_sync::IgnorePoison;

use super::sync::{ArrayQueue, AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::work::RecvWqe;
use doorbell_verbs_core::{AsyncEvent, EventQueue, PdId, PostErrorKind};

/// Queue from which several queue pairs take receives.
pub trait ReceiveSource: Send + Sync {
    /// Removes and returns the oldest receive.
    fn take(&self) -> Option<RecvWqe>;

    /// Returns a receive to the queue. A message has taken the receive, but will not use it.
    fn give_back(&self, wqe: RecvWqe);

    /// Records that a message uses a taken receive, so the receive will not return. May raise the limit event.
    fn used(&self);
}

/// A shared receive queue. Several threads post receives, and every engine takes receives.
pub struct SharedReceiveQueue {
    id: u32,
    pd: PdId,
    max_sges: usize,
    posted: ArrayQueue<RecvWqe>,
    /// The newest `unrung` receives are hidden from the device: their doorbell was not rung.
    unrung: AtomicUsize,
    /// Receives that came back because their messages were dropped, at most one per queue pair. Messages take these
    /// receives before the posted ones. An engine that takes a receive locks this list only if the list is not empty.
    returned: Mutex<VecDeque<RecvWqe>>,
    returned_len: AtomicUsize,
    /// The device raises the limit event when the number of receives falls below this limit; 0 means that the event is
    /// not armed. A program writes the limit and then reads the length. An engine lowers the length and then reads the
    /// limit. At least one of the two threads must see the change of the other, so all these accesses are `SeqCst`.
    limit: AtomicUsize,
    /// Whether the queue was destroyed. A destroyed queue raises no event, since another queue may have its number.
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

    /// Returns the number of the queue. Its events contain this number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the protection domain of the queue's receives.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Returns the maximum number of receives.
    pub fn depth(&self) -> usize {
        self.posted.capacity()
    }

    /// Returns the number of receives that no message has taken. The number can exceed the depth: a message takes a
    /// receive, the program posts another one in its place, and then the message returns its receive.
    pub fn len(&self) -> usize {
        self.posted.len() + self.returned_len.load(Ordering::SeqCst)
    }

    /// Returns whether the queue holds no receive.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of scatter-gather elements of a receive.
    pub fn max_sges(&self) -> usize {
        self.max_sges
    }

    /// Returns the armed limit; 0 if none is armed.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Acquire)
    }

    /// Arms the limit event (IBTA Vol 1, 10.2.9.3).
    pub fn arm_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::SeqCst);
        self.check_limit();
    }

    /// Posts one receive, whose memory the caller has checked.
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

    /// Makes the oldest `receives` of the hidden receives visible to the device.
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
            let mut returned = self.returned.lock().ignore_poison();
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
        let mut returned = self.returned.lock().ignore_poison();
        returned.push_back(wqe);
        self.returned_len.store(returned.len(), Ordering::Release);
    }

    fn used(&self) {
        if self.limit.load(Ordering::SeqCst) > 0 {
            self.check_limit();
        }
    }
}
