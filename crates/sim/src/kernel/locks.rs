//! Locks that threads of a host share: a program's verbs take one for each queue that they work on, and the two halves of
//! a connection take one for the connection.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::watch::{ThreadId, lock};
use super::{ThreadState, World};
use crate::time::Ps;

/// A lock: a station with the times in which it is taken.
///
/// Turns of threads run one after the other, and each takes locks at times within its own, so one that is asked later
/// may be meant earlier: it gets the lock before the others, if it is done by then.
#[derive(Debug, Default)]
pub(crate) struct Lock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The only thread that has taken it so far: nobody waits then.
    owner: Option<ThreadId>,
    is_shared: bool,
    /// From when to when it was held the last time.
    last: (Ps, Ps),
    /// Once it is shared: all times that matter still.
    taken: Taken,
    /// Since when it is held, by a thread that will say when it lets go of it.
    held_since: Option<Ps>,
}

impl State {
    fn take(&mut self, now: Ps, at: Ps, service: Ps) -> Ps {
        let begins = if self.is_shared { self.taken.take(now, at, service) } else { at };
        self.last = (begins, begins + service);
        begins
    }
}

/// When a lock is taken: from and to, in order of time.
#[derive(Debug, Default)]
struct Taken(VecDeque<(Ps, Ps)>);

impl Taken {
    /// When it can be taken for `service`, from `at` on at the earliest, and behind how many others. Nobody asks for a time
    /// before `now` any more.
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

    /// Takes it for `service`, from `at` on at the earliest: when that begins.
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
    /// The running thread takes a lock for `service`, which it is about to spend: it waits until no other has it.
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

    /// The running thread takes a lock, until it [releases](Self::release) it: it waits until no other has it. How long it
    /// will hold it, nobody knows: it goes before one that takes the lock later if it is done by then should it hold it
    /// as long as the last holder did.
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

    /// The running thread lets go of a lock.
    pub(crate) fn release(&mut self, held: &Lock) {
        let mut state = lock(&held.0);
        let Some(since) = state.held_since.take() else { return };
        let service = self.clock().since(since);
        let begins = state.take(self.now(), since, service);
        drop(state);
        // If it held the lock longer than the last holder did, into the time of the next one, that one was first.
        self.charge(begins.since(since));
    }

    /// A thread takes a lock: is it the only one to do so?
    #[inline]
    fn contend(&self, state: &mut State, thread: ThreadId) {
        if state.is_shared || state.owner == Some(thread) {
            return;
        }
        match state.owner {
            // It has made the queue for others, and waits for them.
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
    fn who_comes_while_a_lock_is_taken_waits_and_who_is_done_before_does_not() {
        let mut taken = Taken::default();
        assert_eq!(taken.take(Ps(0), Ps(100), Ps(10)), Ps(100));
        assert_eq!(taken.take(Ps(0), Ps(105), Ps(10)), Ps(110));
        assert_eq!(taken.take(Ps(0), Ps(90), Ps(10)), Ps(90), "it asks later for an earlier time");
        assert_eq!(taken.take(Ps(0), Ps(50), Ps(41)), Ps(120), "there is no room of 41 before");
        assert_eq!(taken.take(Ps(0), Ps(50), Ps(40)), Ps(50));
        assert_eq!(taken.take(Ps(200), Ps(200), Ps(5)), Ps(200));
        assert_eq!(taken.0.len(), 1, "what is over is forgotten: {taken:?}");
    }
}
