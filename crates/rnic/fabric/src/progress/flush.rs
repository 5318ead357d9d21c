//! Requests to a port's thread to send held-back packets and to write the link's records, and the thread's answer.
//!
//! In `tests/flush.rs`, a model checker runs all interleavings of threads that ask and the thread that answers.

use super::sync::{AtomicU64, Ordering};

/// Number of requests, and number of requests that the thread has met.
#[derive(Debug)]
pub(super) struct Flushes {
    asked: AtomicU64,
    done: AtomicU64,
}

impl Flushes {
    pub(super) fn new() -> Self {
        Self { asked: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    /// Asks the thread, which must be kicked afterwards. Returns the number of the request.
    pub(super) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns whether the thread has met this request. If so, the caller sees everything that the thread wrote for
    /// it.
    pub(super) fn is_done(&self, request: u64) -> bool {
        self.done.load(Ordering::Acquire) >= request
    }

    /// Returns the newest request if it is not met. Only the thread calls this, with the engine's lock held. Then the
    /// thread sees everything that was held back when the caller asked.
    #[inline]
    pub(super) fn pending(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::Acquire);
        (asked != self.done.load(Ordering::Relaxed)).then_some(asked)
    }

    /// Marks this request and all before it as met.
    pub(super) fn meet(&self, request: u64) {
        self.done.store(request, Ordering::Release);
    }
}
