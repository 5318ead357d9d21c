//! The order of threads that open descriptors and threads that fork.
//!
//! Each thread announces its action before it checks the others, so that of two racing threads at least one waits. In
//! `tests/gate.rs`, a model checker runs all their interleavings.

use super::sync::{AtomicU32, Ordering};

/// Numbers of threads that open descriptors and of threads that fork.
pub(super) struct Gate {
    /// Number of threads that may have a descriptor which is not on the list yet.
    pub(super) opening: AtomicU32,
    /// Number of threads that fork.
    pub(super) forking: AtomicU32,
}

impl Gate {
    /// Waits until no thread forks, and keeps threads from forking. `nap` returns whether to go on waiting.
    pub(super) fn begin_opening(&self, mut nap: impl FnMut() -> bool) {
        let mut is_patient = true;
        loop {
            self.opening.fetch_add(1, Ordering::SeqCst);
            if self.forking.load(Ordering::SeqCst) == 0 || !is_patient {
                return;
            }
            self.opening.fetch_sub(1, Ordering::SeqCst);
            is_patient = nap();
        }
    }

    /// Records that a descriptor is on the list.
    pub(super) fn end_opening(&self) {
        // A forked child may continue in the midst of an opening. Its counter is zero by then.
        let _ = self.opening.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |opening| opening.checked_sub(1));
    }

    /// Waits until all descriptors that must not stay open are on the list. `nap` returns whether to go on waiting.
    pub(super) fn begin_forking(&self, mut nap: impl FnMut() -> bool) {
        self.forking.fetch_add(1, Ordering::SeqCst);
        while self.opening.load(Ordering::SeqCst) != 0 && nap() {}
    }

    /// Records that the parent continues after a fork.
    pub(super) fn end_forking(&self) {
        // A thread may have begun to fork before the handlers were registered.
        let _ = self.forking.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |forking| forking.checked_sub(1));
    }

    /// Clears both counts: a forked child has none of the threads that were opening or forking.
    pub(super) fn reset(&self) {
        self.opening.store(0, Ordering::SeqCst);
        self.forking.store(0, Ordering::SeqCst);
    }
}
