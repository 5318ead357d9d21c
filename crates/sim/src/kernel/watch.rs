//! Who looked at what, and who is to look again because it changed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
///
/// Hardware works under the kernel's lock, so what it changes needs no other: the first change, which is nearly always
/// the only one, lies beside the list.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    has_first: AtomicBool,
    first: [AtomicU64; 2],
    any: AtomicBool,
    list: Mutex<Vec<Change>>,
}

impl Changes {
    /// A change from anywhere.
    pub(crate) fn push(&self, change: Change) {
        lock(&self.list).push(change);
        self.any.store(true, Ordering::Release);
    }

    /// A change by whoever has the kernel's lock.
    fn push_locked(&self, change: Change) {
        if self.has_first.load(Ordering::Relaxed) {
            return self.push(change);
        }
        self.first[0].store((change.thread as u64) << 1 | u64::from(change.notifies), Ordering::Relaxed);
        self.first[1].store(change.turn, Ordering::Relaxed);
        self.has_first.store(true, Ordering::Relaxed);
    }

    /// Are there none?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_first.load(Ordering::Relaxed) && !self.any.load(Ordering::Acquire)
    }

    /// Moves all changes to `out`.
    #[inline]
    pub(crate) fn take(&self, out: &mut Vec<Change>) {
        if self.has_first.load(Ordering::Relaxed) {
            self.has_first.store(false, Ordering::Relaxed);
            let [first, turn] = self.first.each_ref().map(|word| word.load(Ordering::Relaxed));
            out.push(Change { thread: (first >> 1) as usize, turn, notifies: first & 1 == 1 });
        }
        if self.any.load(Ordering::Acquire) {
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

/// A looker, or none. Whoever reads or writes it has the kernel's lock.
#[derive(Debug, Default)]
struct OneLooker {
    is_there: AtomicBool,
    thread: AtomicUsize,
    turn: AtomicU64,
    from: AtomicUsize,
    to: AtomicUsize,
}

impl OneLooker {
    #[inline]
    fn get(&self) -> Option<Looker> {
        self.is_there.load(Ordering::Relaxed).then(|| Looker {
            thread: self.thread.load(Ordering::Relaxed),
            turn: self.turn.load(Ordering::Relaxed),
            from: self.from.load(Ordering::Relaxed),
            to: self.to.load(Ordering::Relaxed),
        })
    }

    #[inline]
    fn set(&self, looker: Option<Looker>) {
        self.is_there.store(looker.is_some(), Ordering::Relaxed);
        if let Some(Looker { thread, turn, from, to }) = looker {
            self.thread.store(thread, Ordering::Relaxed);
            self.turn.store(turn, Ordering::Relaxed);
            self.from.store(from, Ordering::Relaxed);
            self.to.store(to, Ordering::Relaxed);
        }
    }
}

/// One thing that threads look at: a completion queue, a channel, or a region of memory by byte ranges.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The only looker, which is what nearly everything has.
    one: OneLooker,
    /// There are several, and they are in the list.
    are_several: AtomicBool,
    several: Mutex<Vec<Looker>>,
    changes: Arc<Changes>,
    notifies: bool,
}

impl Watch {
    pub(crate) fn new(changes: &Arc<Changes>, notifies: bool) -> Self {
        Self {
            one: OneLooker::default(),
            are_several: AtomicBool::new(false),
            several: Mutex::default(),
            changes: Arc::clone(changes),
            notifies,
        }
    }

    /// A thread looks at bytes `from..to` in this turn. The caller has the kernel's lock.
    pub(crate) fn look(&self, thread: ThreadId, turn: u64, from: usize, to: usize) {
        let looker = Looker { thread, turn, from, to };
        if !self.are_several.load(Ordering::Relaxed) {
            match self.one.get() {
                Some(one) if one == looker => return,
                // What a thread looked at in an earlier turn it has forgotten.
                Some(one) if one.thread != thread || one.turn == turn => {}
                _ => return self.one.set(Some(looker)),
            }
        }
        self.look_too(looker);
    }

    #[cold]
    fn look_too(&self, looker: Looker) {
        let mut lookers = lock(&self.several);
        lookers.extend(self.one.get());
        self.one.set(None);
        if lookers.contains(&looker) {
            return;
        }
        lookers.retain(|other| other.thread != looker.thread || other.turn == looker.turn);
        lookers.push(looker);
        self.are_several.store(true, Ordering::Relaxed);
    }

    /// Bytes `from..to` changed. The caller has the kernel's lock.
    #[inline]
    pub(crate) fn changed(&self, from: usize, to: usize) {
        if let Some(one) = self.one.get() {
            if self.tell(one, from, to) {
                self.one.set(None);
            }
        } else if self.are_several.load(Ordering::Relaxed) {
            self.tell_several(from, to);
        }
    }

    /// Tells a looker, if it looked there.
    #[inline]
    fn tell(&self, looker: Looker, from: usize, to: usize) -> bool {
        let concerns = from < looker.to && looker.from < to;
        if concerns {
            let Looker { thread, turn, .. } = looker;
            self.changes.push_locked(Change { thread, turn, notifies: self.notifies });
        }
        concerns
    }

    #[cold]
    fn tell_several(&self, from: usize, to: usize) {
        let mut lookers = lock(&self.several);
        lookers.retain(|looker| !self.tell(*looker, from, to));
        self.are_several.store(!lookers.is_empty(), Ordering::Relaxed);
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
