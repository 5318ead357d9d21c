//! Locks that threads of a host share.
//!
//! Each verbs call takes the lock of the queue on which it works. The two halves of a connection share the lock of the
//! connection.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::watch::{ThreadId, lock};
use super::{ThreadState, World};
use crate::time::Ps;

/// A lock between simulated threads, with the times at which threads hold it.
///
/// The kernel runs the turns of threads one after the other, and each turn takes locks at times within the turn. A
/// later call may therefore ask for an earlier time. Such a call gets the lock before the holds of earlier calls if its
/// own hold ends before these holds begin.
#[derive(Debug, Default)]
pub(crate) struct Lock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The only thread that has taken the lock so far. While only one thread takes the lock, no thread waits.
    owner: Option<ThreadId>,
    is_shared: bool,
    /// Begin and end of the last hold.
    last: (Ps, Ps),
    /// Holds that a later call may overlap. The list is used once several threads take the lock.
    taken: Taken,
    /// Begin of a hold whose end is not yet known.
    held_since: Option<Ps>,
}

impl State {
    fn take(&mut self, now: Ps, at: Ps, service: Ps) -> Ps {
        let begins = if self.is_shared { self.taken.take(now, at, service) } else { at };
        self.last = (begins, begins + service);
        begins
    }
}

/// Begin and end of each hold of a lock, in order of time.
#[derive(Debug, Default)]
struct Taken(VecDeque<(Ps, Ps)>);

impl Taken {
    /// Finds the first time, not before `at`, at which the lock is free for `service`. Returns that time and the
    /// number of earlier holds. Holds that end by `now` are removed, since no caller asks for a time before `now`.
    fn find(&mut self, now: Ps, at: Ps, service: Ps) -> (Ps, usize) {
        while self.0.front().is_some_and(|&(_, to)| to <= now) {
            self.0.pop_front();
        }
        let (mut begins, mut place) = (at, 0_usize);
        for &(from, to) in &self.0 {
            if begins + service <= from {
                break;
            }
            begins = begins.max(to);
            place += 1;
        }
        (begins, place)
    }

    /// Takes the lock for `service`, not before `at`. Returns the time at which the hold begins.
    fn take(&mut self, now: Ps, at: Ps, service: Ps) -> Ps {
        let (begins, place) = self.find(now, at, service);
        match place.checked_sub(1).and_then(|before| self.0.get_mut(before)) {
            Some((_, to)) if *to == begins => *to = begins + service,
            _ => self.0.insert(place, (begins, begins + service)),
        }
        begins
    }
}

impl World {
    /// Makes the running thread wait until it can take a lock for the time `service`. The caller charges the time
    /// `service` to the thread.
    #[inline]
    pub(crate) fn wait_for(&mut self, taken: &Lock, service: Ps) {
        let Some(thread) = self.current else { return };
        let mut state = lock(&taken.0);
        self.contend(&mut state, thread);
        let clock = self.clock();
        let begins = state.take(self.now(), clock, service);
        drop(state);
        self.charge(begins.since(clock));
    }

    /// Makes the running thread wait for a lock, and takes the lock until [`release`](Self::release). The length of the
    /// new hold is not known yet, so the kernel assumes the length of the last hold. If a hold of this length ends
    /// before a later hold begins, the thread gets the lock first.
    pub(crate) fn hold(&mut self, held: &Lock) {
        let Some(thread) = self.current else { return };
        let mut state = lock(&held.0);
        let clock = self.clock();
        let mut begins = clock;
        self.contend(&mut state, thread);
        if state.is_shared {
            let (from, to) = state.last;
            (begins, _) = state.taken.find(self.now(), clock, to.since(from));
        }
        state.held_since = Some(begins);
        drop(state);
        self.charge(begins.since(clock));
    }

    /// Releases a lock of the running thread.
    pub(crate) fn release(&mut self, held: &Lock) {
        let mut state = lock(&held.0);
        let Some(since) = state.held_since.take() else { return };
        let service = self.clock().since(since);
        let begins = state.take(self.now(), since, service);
        drop(state);
        // If the hold was too long to end before the next hold begins, it moves after the next hold. The thread pays
        // for the delay.
        self.charge(begins.since(since));
    }

    /// Records that a thread takes the lock, and marks the lock as shared once two threads use it.
    #[inline]
    fn contend(&self, state: &mut State, thread: ThreadId) {
        if state.is_shared || state.owner == Some(thread) {
            return;
        }
        match state.owner {
            // The lock has another active user. An owner that has ended or sleeps, and whose last hold is over, only
            // created the queue for this thread.
            Some(owner) if !self.is_away(owner) || state.last.1 > self.clock() => {
                state.is_shared = true;
                state.taken.0.push_back(state.last);
            }
            _ => state.owner = Some(thread),
        }
    }

    fn is_away(&self, thread: ThreadId) -> bool {
        matches!(self.threads[thread].state, ThreadState::Over | ThreadState::Waiting { sleeps: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_queues_overlapping_holds_and_lets_earlier_ones_in() {
        let mut taken = Taken::default();
        assert_eq!(taken.take(Ps(0), Ps(100), Ps(10)), Ps(100));
        assert_eq!(taken.take(Ps(0), Ps(105), Ps(10)), Ps(110));
        assert_eq!(taken.take(Ps(0), Ps(90), Ps(10)), Ps(90), "a later call may ask for an earlier time");
        assert_eq!(taken.take(Ps(0), Ps(50), Ps(41)), Ps(120), "a hold of 41 does not fit before 90");
        assert_eq!(taken.take(Ps(0), Ps(50), Ps(40)), Ps(50));
        assert_eq!(taken.take(Ps(200), Ps(200), Ps(5)), Ps(200));
        assert_eq!(taken.0.len(), 1, "past holds are removed: {taken:?}");
    }
}
