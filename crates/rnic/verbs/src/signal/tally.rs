//! Decides for each entry of a list whether to wake a sleeping thread or to count the entry in the list's eventfd.
//!
//! A model checker in `tests/suite/sleepers.rs` checks all interleavings of the threads that use a [`Tally`].

use super::sync::{AtomicU32, Ordering};

/// Operations on the eventfd of a list, and on the threads that sleep on a word in memory.
pub(super) trait Signals {
    /// Increments the count of the eventfd.
    fn signal(&self);
    /// Decrements the count of the eventfd, if the count is above 0.
    fn take(&self);
    /// Wakes one thread that sleeps on `word`.
    fn wake(&self, word: &AtomicU32);
}

/// Counts that decide whether a new entry wakes a thread or is counted by the eventfd.
#[derive(Debug)]
pub(super) struct Tally<S> {
    pub(super) signals: S,
    /// Number of all entries ever added to the list, modulo 2^32. Threads sleep on this word.
    added: AtomicU32,
    asleep: AtomicU32,
    /// Number of listed entries that the eventfd does not count, since a thread was woken for each of them.
    uncounted: AtomicU32,
}

impl<S: Signals> Tally<S> {
    pub(super) fn new(signals: S) -> Self {
        Self { signals, added: AtomicU32::new(0), asleep: AtomicU32::new(0), uncounted: AtomicU32::new(0) }
    }

    /// Returns the number of all entries ever added to the list.
    pub(super) fn added(&self) -> u32 {
        self.added.load(Ordering::SeqCst)
    }

    /// Begins a sleep of the calling thread. The thread sleeps while the returned word has the value that
    /// [`added`](Self::added) returned.
    pub(super) fn begin(&self) -> &AtomicU32 {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        &self.added
    }

    /// Ends a sleep of the calling thread, which then looks for an entry.
    pub(super) fn end(&self) {
        self.asleep.fetch_sub(1, Ordering::SeqCst);
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
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.signals.wake(&self.added);
        }
    }

    /// Records that the caller has added an entry to the list. The caller holds the lock of the list.
    pub(super) fn add(&self) {
        self.added.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > self.uncounted.load(Ordering::SeqCst) {
            self.uncounted.fetch_add(1, Ordering::SeqCst);
            self.count(); // the sleeping thread may have ended its sleep meanwhile
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

    /// Lets the eventfd count uncounted entries, until their number is at most the number of sleeping threads.
    fn count(&self) {
        let less = |uncounted: u32| (uncounted > self.asleep.load(Ordering::SeqCst)).then(|| uncounted - 1);
        while self.uncounted.load(Ordering::SeqCst) > self.asleep.load(Ordering::SeqCst) {
            // Call `signal` before decrementing `uncounted`. In the reverse order, a thread that removes the entry in
            // between would find no count to take.
            self.signals.signal();
            if self.uncounted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
                self.signals.take();
            }
        }
    }
}
