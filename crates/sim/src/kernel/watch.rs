//! Who looked at what, and who is to look again because it changed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A simulated thread, by its number.
pub(crate) type ThreadId = usize;

/// A mutex whose holder never panics half-way.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that a thread looked at has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) thread: ThreadId,
    /// The turn in which it looked. A thread that has had another turn since has looked again.
    pub(crate) turn: u64,
    /// It is a notification, which wakes a thread that sleeps.
    pub(crate) notifies: bool,
}

impl Change {
    /// Whatever turn the thread has had: its waker was called.
    pub(crate) const ANY_TURN: u64 = u64::MAX;
}

/// Changes that the kernel has not acted on. They are collected while hardware is at work, which has the kernel's
/// state, so they lie outside it.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    any: AtomicBool,
    list: Mutex<Vec<Change>>,
}

impl Changes {
    pub(crate) fn push(&self, change: Change) {
        self.any.store(true, Ordering::Relaxed);
        lock(&self.list).push(change);
    }

    /// Moves all changes to `out`.
    pub(crate) fn take(&self, out: &mut Vec<Change>) {
        if self.any.load(Ordering::Relaxed) {
            self.any.store(false, Ordering::Relaxed);
            out.append(&mut lock(&self.list));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Looker {
    thread: ThreadId,
    turn: u64,
    from: usize,
    to: usize,
}

/// One thing that threads look at: a completion queue, a channel, or a region of memory by byte ranges.
#[derive(Debug)]
pub(crate) struct Watch {
    is_watched: AtomicBool,
    lookers: Mutex<Vec<Looker>>,
    changes: Arc<Changes>,
    notifies: bool,
}

impl Watch {
    pub(crate) fn new(changes: &Arc<Changes>, notifies: bool) -> Self {
        Self { is_watched: AtomicBool::new(false), lookers: Mutex::default(), changes: Arc::clone(changes), notifies }
    }

    /// A thread looks at bytes `from..to` in this turn.
    pub(crate) fn look(&self, thread: ThreadId, turn: u64, from: usize, to: usize) {
        let mut lookers = lock(&self.lookers);
        let looker = Looker { thread, turn, from, to };
        if lookers.contains(&looker) {
            return;
        }
        lookers.retain(|other| other.thread != thread || other.turn == turn);
        lookers.push(looker);
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// Bytes `from..to` changed.
    #[inline]
    pub(crate) fn changed(&self, from: usize, to: usize) {
        if self.is_watched.load(Ordering::Relaxed) {
            self.tell(from, to);
        }
    }

    fn tell(&self, from: usize, to: usize) {
        let mut lookers = lock(&self.lookers);
        lookers.retain(|looker| {
            let concerns = from < looker.to && looker.from < to;
            if concerns {
                self.changes.push(Change { thread: looker.thread, turn: looker.turn, notifies: self.notifies });
            }
            !concerns
        });
        self.is_watched.store(!lookers.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(changes: &Changes) -> Vec<(ThreadId, u64)> {
        let mut out = Vec::new();
        changes.take(&mut out);
        out.iter().map(|change| (change.thread, change.turn)).collect()
    }

    #[test]
    fn whoever_looked_at_the_range_is_told_once() {
        let changes = Arc::new(Changes::default());
        let watch = Watch::new(&changes, false);
        watch.changed(0, 8);
        assert_eq!(taken(&changes), []);
        watch.look(1, 5, 0, 8);
        watch.look(1, 5, 16, 24);
        watch.look(2, 9, 4, 6);
        watch.changed(8, 16);
        assert_eq!(taken(&changes), [], "nobody looked there");
        watch.changed(5, 17);
        assert_eq!(taken(&changes), [(1, 5), (1, 5), (2, 9)]);
        watch.changed(0, 64);
        assert_eq!(taken(&changes), [], "nobody has looked since");
    }

    #[test]
    fn what_was_looked_at_in_an_earlier_turn_is_forgotten() {
        let changes = Arc::new(Changes::default());
        let watch = Watch::new(&changes, false);
        watch.look(1, 5, 0, 8);
        watch.look(1, 6, 32, 40);
        watch.changed(0, 8);
        assert_eq!(taken(&changes), []);
        watch.changed(32, 33);
        assert_eq!(taken(&changes), [(1, 6)]);
    }
}
