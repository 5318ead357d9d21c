//! Decides for each entry of a list whether to leave it to a waiting thread or to count it in the list's eventfd.
//!
//! A model checker in `tests/suite/sleepers.rs` checks all interleavings of the threads that use a [`Tally`].

use super::sync::{AtomicU32, AtomicUsize, Ordering};

/// Number that a lingering thread adds to [`Tally::takers`]. A sleeping thread adds 1.
const LINGERER: usize = 1 << (usize::BITS / 2);

/// Operations on the eventfd of a list, and on the threads that sleep on a word in memory.
pub(super) trait Signals {
    /// Increments the count of the eventfd.
    fn signal(&self);
    /// Decrements the count of the eventfd, if the count is above 0.
    fn take(&self);
    /// Wakes one thread that sleeps on `word`.
    fn wake(&self, word: &AtomicU32);
}

/// Counts that decide whether a new entry is left to a waiting thread or is counted by the eventfd.
#[derive(Debug)]
pub(super) struct Tally<S> {
    pub(super) signals: S,
    /// Number of all entries ever added to the list, modulo 2^32. Threads sleep on this word.
    added: AtomicU32,
    /// Threads that will look for an entry: the low half of the word counts those that sleep, and the high half those
    /// that linger. A lingering thread looks for entries without pause, so no wake-up is needed.
    takers: AtomicUsize,
    /// Number of listed entries that the eventfd does not count, since a thread will look for each of them.
    uncounted: AtomicU32,
}

impl<S: Signals> Tally<S> {
    pub(super) fn new(signals: S) -> Self {
        Self { signals, added: AtomicU32::new(0), takers: AtomicUsize::new(0), uncounted: AtomicU32::new(0) }
    }

    /// Returns the number of all entries ever added to the list.
    pub(super) fn added(&self) -> u32 {
        self.added.load(Ordering::SeqCst)
    }

    /// Begins a sleep of the calling thread. The thread sleeps while the returned word has the value that
    /// [`added`](Self::added) returned.
    pub(super) fn begin(&self) -> &AtomicU32 {
        self.takers.fetch_add(1, Ordering::SeqCst);
        &self.added
    }

    /// Ends a sleep of the calling thread, which then looks for an entry.
    pub(super) fn end(&self) {
        self.takers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends a sleep of the calling thread, which then does not look for an entry. If an entry woke this thread, the
    /// entry is left to another thread.
    pub(super) fn end_in_vain(&self) {
        self.end();
        self.count();
        self.wake();
    }

    /// Wakes one thread, if any thread sleeps.
    fn wake(&self) {
        // A thread that begins its sleep after this load sees that `added` has changed.
        if !self.takers.load(Ordering::SeqCst).is_multiple_of(LINGERER) {
            self.signals.wake(&self.added);
        }
    }

    /// Begins a time in which the calling thread looks for an entry again and again.
    pub(super) fn linger(&self) {
        self.takers.fetch_add(LINGERER, Ordering::SeqCst);
    }

    /// Ends the lingering of the calling thread, which then looks for an entry.
    pub(super) fn end_lingering(&self) {
        self.takers.fetch_sub(LINGERER, Ordering::SeqCst);
    }

    /// Ends the lingering of the calling thread, which then does not look for an entry. An entry that arrived after its
    /// last look is left to the descriptor.
    pub(super) fn end_lingering_in_vain(&self) {
        self.end_lingering();
        self.count();
    }

    /// Returns the number of threads that will look for an entry.
    fn takers(&self) -> usize {
        let takers = self.takers.load(Ordering::SeqCst);
        takers % LINGERER + takers / LINGERER
    }

    /// Returns whether more entries are uncounted than threads will look for one.
    fn exceeds_takers(&self, uncounted: u32) -> bool {
        uncounted as usize > self.takers()
    }

    /// Records that the caller has added an entry to the list. The caller holds the lock of the list.
    pub(super) fn add(&self) {
        self.added.fetch_add(1, Ordering::SeqCst);
        if self.takers() > self.uncounted.load(Ordering::SeqCst) as usize {
            self.uncounted.fetch_add(1, Ordering::SeqCst);
            self.count(); // the waiting thread may have ended its wait meanwhile
        } else {
            self.signals.signal();
        }
        self.wake();
    }

    /// Records that the caller has removed an entry from the list. The caller holds the lock of the list.
    pub(super) fn remove(&self) {
        let less = |uncounted: u32| uncounted.checked_sub(1);
        if self.uncounted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            self.signals.take();
        }
    }

    /// Lets the eventfd count uncounted entries, until their number is at most the number of waiting threads.
    fn count(&self) {
        let less = |uncounted: u32| self.exceeds_takers(uncounted).then(|| uncounted - 1);
        while self.exceeds_takers(self.uncounted.load(Ordering::SeqCst)) {
            // Call `signal` before decrementing `uncounted`. In the reverse order, a thread that removes the entry in
            // between would find no count to take.
            self.signals.signal();
            if self.uncounted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
                self.signals.take();
            }
        }
    }
}
