//! Entries of a list, the threads that sleep until one is added, and the count of the list's descriptor.
//!
//! `tests/sleepers.rs` has a model checker go through all interleavings of the threads that use them.

use super::sync::{AtomicU32, Ordering};

/// A descriptor that counts, and threads that sleep on a word.
pub(super) trait Signals {
    /// Counts one more.
    fn signal(&self);
    /// Counts one less, if the descriptor counts any.
    fn take(&self);
    /// Wakes one thread that sleeps on the word.
    fn wake(&self, word: &AtomicU32);
}

/// Numbers that say for which entries of a list a thread is woken, and which ones the descriptor counts.
#[derive(Debug)]
pub(super) struct Tally<S> {
    pub(super) signals: S,
    /// Number of entries that were ever added, modulo 2^32.
    added: AtomicU32,
    asleep: AtomicU32,
    /// Entries that the descriptor does not count. Each entry is either counted or one of these.
    uncounted: AtomicU32,
}

impl<S: Signals> Tally<S> {
    pub(super) fn new(signals: S) -> Self {
        Self { signals, added: AtomicU32::new(0), asleep: AtomicU32::new(0), uncounted: AtomicU32::new(0) }
    }

    /// Returns the number of entries that were ever added.
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

    /// Ends a sleep after which the thread looks for no entry. One for which it was woken is another thread's to take.
    pub(super) fn end_in_vain(&self) {
        self.end();
        self.count();
        self.wake();
    }

    /// Wakes one thread, if any sleeps.
    fn wake(&self) {
        // A thread that begins after this look finds that the word has changed.
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.signals.wake(&self.added);
        }
    }

    /// An entry is in the list. Called while the list is locked.
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

    /// An entry is no longer in the list. Called while the list is locked.
    pub(super) fn remove(&self) {
        let less = |uncounted: u32| uncounted.checked_sub(1);
        if self.uncounted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            self.signals.take();
        }
    }

    /// Has the descriptor count the entries for which no thread sleeps.
    fn count(&self) {
        let less = |uncounted: u32| (uncounted > self.asleep.load(Ordering::SeqCst)).then(|| uncounted - 1);
        while self.uncounted.load(Ordering::SeqCst) > self.asleep.load(Ordering::SeqCst) {
            // Counted first: a thread that removes the entry meanwhile would find no count to take.
            self.signals.signal();
            if self.uncounted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
                self.signals.take();
            }
        }
    }
}
