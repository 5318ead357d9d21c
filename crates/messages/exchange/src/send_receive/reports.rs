//! Grants that were reported to the peer, and the one credit message that may be unanswered.
//!
//! The connection counts arrivals while other threads drop messages. `tests/reports.rs` has a model checker go
//! through all their interleavings.

use super::sync::{AtomicU64, Ordering};

/// Grants that a receiver has reported to its peer. The connection and the threads that drop messages use it at the
/// same time.
#[derive(Debug)]
pub(crate) struct ReceiveCredits {
    depth: u64,
    /// Data messages that arrived. Only the connection writes it.
    received: AtomicU64,
    /// Last grant that was sent.
    reported: AtomicU64,
    /// Grant that the peer knew when the last credit message was sent. A data message beyond it shows that the peer
    /// received the credit message. [`ANSWERED`] after that.
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

    /// Counts a data message that has arrived. Returns the number of all that have.
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

    /// Records that a grant leaves with a data message.
    #[inline]
    pub(crate) fn rides(&self, granted: u64) {
        if self.reported.load(Ordering::Relaxed) < granted {
            self.reported.fetch_max(granted, Ordering::AcqRel);
        }
    }

    /// Returns whether a credit message is due: a quarter of the depth is unreported, or the peer has no credit left.
    /// The message then counts as sent, and the caller has to send it.
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
            // Meanwhile another thread may have sent a newer grant, and the peer may have used it up. Then no message
            // would ever answer this mark.
            if self.reported.load(Ordering::Acquire) == reported {
                self.reported.fetch_max(granted, Ordering::AcqRel);
                return true;
            }
            self.unanswered.store(ANSWERED, Ordering::Release);
        }
    }
}
