//! Records which threads looked at which objects, and notifies those threads of changes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_sync::IgnorePoison;

/// Number of a simulated thread.
pub(crate) type ThreadId = usize;

/// Locks a mutex and ignores poison, since no holder panics while the guarded data is inconsistent.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

/// Change of an object that a thread looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) thread: ThreadId,
    /// The turn in which the thread looked. The change is ignored if the thread has had another turn since then,
    /// because the thread has looked again.
    pub(crate) turn: u64,
    /// Whether the change is a notification, which wakes a sleeping thread.
    pub(crate) notifies: bool,
}

impl Change {
    /// Value of `turn` for a call of the thread's waker, which is not tied to a turn.
    pub(crate) const ANY_TURN: u64 = u64::MAX;
}

/// Changes that the kernel has not handled yet. The hardware adds changes while it borrows the state of the kernel, so
/// the changes are not part of that state.
///
/// The hardware runs under the lock of the kernel. Its first change, which is nearly always the only one, is stored in
/// `first` and needs no other lock.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    has_first: AtomicBool,
    first: [AtomicU64; 2],
    any: AtomicBool,
    list: Mutex<Vec<Change>>,
}

impl Changes {
    /// Adds a change, from any thread.
    pub(crate) fn push(&self, change: Change) {
        lock(&self.list).push(change);
        self.any.store(true, Ordering::Release);
    }

    /// Adds a change. The caller holds the kernel's lock.
    fn push_locked(&self, change: Change) {
        if self.has_first.load(Ordering::Relaxed) {
            return self.push(change);
        }
        self.first[0].store((change.thread as u64) << 1 | u64::from(change.notifies), Ordering::Relaxed);
        self.first[1].store(change.turn, Ordering::Relaxed);
        self.has_first.store(true, Ordering::Relaxed);
    }

    /// Returns whether there are no changes.
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

/// An optional looker. Each reader and writer holds the kernel's lock.
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

/// An object that threads look at: a completion queue, a channel, or a region of memory by byte ranges.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The looker of an object with a single looker. Nearly all objects have at most one.
    one: OneLooker,
    /// Whether there are several lookers, which are all in `several`.
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

    /// Records that a thread looks at bytes `from..to` in this turn. The caller holds the kernel's lock.
    pub(crate) fn look(&self, thread: ThreadId, turn: u64, from: usize, to: usize) {
        let looker = Looker { thread, turn, from, to };
        if !self.are_several.load(Ordering::Relaxed) {
            match self.one.get() {
                Some(one) if one == looker => return,
                // Another thread looks at the object, or the same thread at another range in the same turn. Both
                // lookers are kept. A look of an earlier turn of the same thread is replaced below.
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

    /// Reports a change of bytes `from..to`. The caller holds the kernel's lock.
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

    /// Notifies a looker if its range overlaps `from..to`. Returns whether the ranges overlap.
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
    fn each_looker_at_a_changed_range_is_notified_once() {
        let changes = Arc::new(Changes::default());
        let watch = Watch::new(&changes, false);
        watch.changed(0, 8);
        assert_eq!(taken(&changes), []);
        watch.look(1, 5, 0, 8);
        watch.look(1, 5, 16, 24);
        watch.look(2, 9, 4, 6);
        watch.changed(8, 16);
        assert_eq!(taken(&changes), [], "no thread looked at this range");
        watch.changed(5, 17);
        assert_eq!(taken(&changes), [(1, 5), (1, 5), (2, 9)]);
        watch.changed(0, 64);
        assert_eq!(taken(&changes), [], "no thread has looked since the last change");
    }

    #[test]
    fn a_watch_forgets_looks_of_earlier_turns() {
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
