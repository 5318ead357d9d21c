//! State of the reports of grants to the peer. At most one credit message may be unanswered at a time.
//!
//! The connection counts arrivals while other threads drop messages. In `tests/suite/reports.rs`, a model checker runs
//! all interleavings of these threads.

use super::sync::{AtomicU64, Ordering};

/// Grants that a receiver has reported to its peer. The connection and the threads that drop messages use this state at
/// the same time.
#[derive(Debug)]
pub(crate) struct ReceiveCredits {
    depth: u64,
    /// Number of data messages that have arrived. Only the thread that polls the connection writes this field.
    received: AtomicU64,
    /// Largest grant that was sent to the peer.
    reported: AtomicU64,
    /// Grant that the peer knew when this side sent its latest credit message. If more data messages than this grant
    /// arrive, the peer has received the credit message, and the field becomes [`ANSWERED`].
    unanswered: AtomicU64,
}

const ANSWERED: u64 = u64::MAX;

impl ReceiveCredits {
    pub(crate) fn new(depth: u64) -> Self {
        Self {
            depth,
            received: AtomicU64::new(0),
            reported: AtomicU64::new(depth),
            unanswered: AtomicU64::new(ANSWERED),
        }
    }

    /// Counts a data message that has arrived. Returns the number of all data messages that have arrived.
    #[inline]
    pub(crate) fn received(&self) -> u64 {
        let received = self.received.load(Ordering::Relaxed) + 1;
        self.received.store(received, Ordering::Relaxed);
        let known = self.unanswered.load(Ordering::Acquire);
        if known != ANSWERED && received > known {
            self.unanswered.store(ANSWERED, Ordering::Release);
        }
        received
    }

    /// Records that a data message or the goodbye carries this grant to the peer.
    #[inline]
    pub(crate) fn rides(&self, granted: u64) {
        if self.reported.load(Ordering::Relaxed) < granted {
            self.reported.fetch_max(granted, Ordering::AcqRel);
        }
    }

    /// Returns whether a credit message is due: a quarter of the depth is unreported, or the peer has no credit left.
    /// If a credit message is due, it counts as sent, and the caller must send it.
    #[inline]
    pub(crate) fn take_due(&self, granted: u64) -> bool {
        loop {
            let reported = self.reported.load(Ordering::Acquire);
            let news = granted.saturating_sub(reported);
            let due =
                news > 0 && (news >= (self.depth / 4).max(1) || self.received.load(Ordering::Relaxed) >= reported);
            let mark = || self.unanswered.compare_exchange(ANSWERED, reported, Ordering::AcqRel, Ordering::Relaxed);
            if !due || mark().is_err() {
                return false;
            }
            // If `reported` has changed, another thread sent a newer grant before `mark` set `unanswered`. The peer may
            // have used up that grant and then sends no message that resets `unanswered`, so reset it and try again.
            if self.reported.load(Ordering::Acquire) == reported {
                self.reported.fetch_max(granted, Ordering::AcqRel);
                return true;
            }
            self.unanswered.store(ANSWERED, Ordering::Release);
        }
    }
}
