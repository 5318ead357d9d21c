//! Entries of a list, the threads that sleep until one is added, and the count of the list's descriptor.
//!
//! `tests/sleepers.rs` checks all interleavings of the threads that use them with a model checker.

use super::sync::{AtomicU32, Ordering};

/// A descriptor that counts, and the threads that sleep on a word.
pub(super) trait Signals {
    /// Increments the count.
    fn signal(&self);
    /// Decrements the count, if it is above 0.
    fn take(&self);
    /// Wakes one thread that sleeps on the word.
    fn wake(&self, word: &AtomicU32);
}

/// Numbers that decide for which entries of a list a thread is woken, and which entries the descriptor counts.
#[derive(Debug)]
pub(super) struct Tally<S> {
    pub(super) signals: S,
    /// Number of all entries that were added, modulo 2^32.
    added: AtomicU32,
    asleep: AtomicU32,
    /// Entries that the descriptor does not count. Every other entry of the list is counted.
    uncounted: AtomicU32,
}

impl<S: Signals> Tally<S> {
    pub(super) fn new(signals: S) -> Self {
        Self { signals, added: AtomicU32::new(0), asleep: AtomicU32::new(0), uncounted: AtomicU32::new(0) }
    }

    /// Returns the number of all entries that were added.
    pub(super) fn added(&self) -> u32 {
        self.added.load(Ordering::SeqCst)
    }

    /// Begins a sleep, which lasts while the returned word has the value that [`added`](Self::added) returned.
    pub(super) fn begin(&self) -> &AtomicU32 {
        self.asleep.fetch_add(1, Ordering::SeqCst);
        &self.added
    }

    /// Ends a sleep after which the thread looks for an entry.
    pub(super) fn end(&self) {
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends a sleep after which the thread looks for no entry. If the thread was woken for an entry, another thread
    /// takes that entry.
    pub(super) fn end_in_vain(&self) {
        self.end();
        self.count();
        self.wake();
    }

    /// Wakes one thread, if any sleeps.
    fn wake(&self) {
        // A thread that begins its sleep after this load sees that the word has changed.
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.signals.wake(&self.added);
        }
    }

    /// Records that an entry is in the list. The caller holds the lock of the list.
    pub(super) fn add(&self) {
        self.added.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > self.uncounted.load(Ordering::SeqCst) {
            self.uncounted.fetch_add(1, Ordering::SeqCst);
            self.count(); // the thread may have ended its sleep meanwhile
        } else {
            self.signals.signal();
        }
        self.wake();
    }

    /// Records that an entry is no longer in the list. The caller holds the lock of the list.
    pub(super) fn remove(&self) {
        let less = |uncounted: u32| uncounted.checked_sub(1);
        if self.uncounted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            self.signals.take();
        }
    }

    /// Makes the descriptor count the entries for which no thread sleeps.
    fn count(&self) {
        let less = |uncounted: u32| (uncounted > self.asleep.load(Ordering::SeqCst)).then(|| uncounted - 1);
        while self.uncounted.load(Ordering::SeqCst) > self.asleep.load(Ordering::SeqCst) {
            // The signal comes first: a thread that removes the entry meanwhile would otherwise find no count to take.
            self.signals.signal();
            if self.uncounted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
                self.signals.take();
            }
        }
    }
}
