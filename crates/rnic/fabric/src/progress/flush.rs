//! Requests of callers to a port's thread: to send held-back packets and to write the link's records. The thread
//! reports when it has met a request.
//!
//! In `tests/suite/flush.rs`, a model checker runs all interleavings of requesting threads and the port's thread.

use super::sync::{AtomicU64, Ordering};

/// Number of requests that callers have made, and number of the newest request that the port's thread has met.
#[derive(Debug)]
pub(super) struct Flushes {
    asked: AtomicU64,
    done: AtomicU64,
}

impl Flushes {
    pub(super) fn new() -> Self {
        Self { asked: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    /// Makes a request. The caller must kick the port's thread afterwards. Returns the number of the request.
    pub(super) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns whether the port's thread has met this request. If so, the caller sees all memory that the thread wrote
    /// while it met the request.
    pub(super) fn is_done(&self, request: u64) -> bool {
        self.done.load(Ordering::Acquire) >= request
    }

    /// Returns the newest request if the port's thread has not met it. Only that thread calls this, while it holds the
    /// engine's lock. Then the thread sees all packets that were held back when the request was made.
    #[inline]
    pub(super) fn pending(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::Acquire);
        (asked != self.done.load(Ordering::Relaxed)).then_some(asked)
    }

    /// Marks this request and all earlier requests as met.
    pub(super) fn meet(&self, request: u64) {
        self.done.store(request, Ordering::Release);
    }
}
