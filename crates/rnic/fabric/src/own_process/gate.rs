//! The order of threads that open descriptors and threads that fork. Each new descriptor is put on the list of
//! descriptors that forked children give up (`own_process.rs`). No thread should fork between the opening and the
//! listing.
//!
//! A thread first increments the counter of its own action, and then reads the counter of the other action. So of an
//! opening and a forking thread that race, at least one sees the other and waits. In `tests/suite/gate.rs`, a model
//! checker runs all interleavings.

use super::sync::{AtomicU32, Ordering};

/// Numbers of threads that open descriptors and of threads that fork.
pub(super) struct Gate {
    /// Number of threads that are opening a descriptor and have not yet put it on the list of `own_process.rs`.
    pub(super) opening: AtomicU32,
    /// Number of threads that are forking.
    pub(super) forking: AtomicU32,
}

impl Gate {
    /// Waits until no thread forks. Threads that begin to fork after this call must wait. Calls `nap` between two
    /// checks, and stops waiting once `nap` returns false.
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

    /// Records that the calling thread has put its new descriptor on the list of `own_process.rs`.
    pub(super) fn end_opening(&self) {
        // The counter may be 0 in a child that a signal handler forked during an opening. The child has called `reset`,
        // and then continues the opening.
        let _ = self.opening.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |opening| opening.checked_sub(1));
    }

    /// Waits until each thread that is opening a descriptor has put it on the list of `own_process.rs`. Calls `nap`
    /// between two checks, and stops waiting once `nap` returns false.
    pub(super) fn begin_forking(&self, mut nap: impl FnMut() -> bool) {
        self.forking.fetch_add(1, Ordering::SeqCst);
        while self.opening.load(Ordering::SeqCst) != 0 && nap() {}
    }

    /// Records that the parent continues after a fork.
    pub(super) fn end_forking(&self) {
        // The counter may be 0, if the fork began before the handlers were registered.
        let _ = self.forking.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |forking| forking.checked_sub(1));
    }

    /// Sets both counters to 0, in a forked child: the threads that were opening or forking exist only in the parent.
    pub(super) fn reset(&self) {
        self.opening.store(0, Ordering::SeqCst);
        self.forking.store(0, Ordering::SeqCst);
    }
}
