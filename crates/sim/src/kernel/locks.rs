//! Locks that threads of a host share: a program's verbs take one for each queue that they work on.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::watch::{ThreadId, lock};
use super::{ThreadState, World};
use crate::time::Ps;

/// The lock of a queue: a station with the times in which it is taken.
///
/// Turns of threads run one after the other, and each takes locks at times within its own, so one that is asked later
/// may be meant earlier: it gets the lock before the others, if it is done by then.
#[derive(Debug, Default)]
pub(crate) struct QueueLock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The only thread that works on the queue so far: nobody waits then, and nothing is noted.
    owner: Option<ThreadId>,
    is_shared: bool,
    taken: Taken,
}

/// When a lock is taken: from and to, in order of time.
#[derive(Debug, Default)]
struct Taken(VecDeque<(Ps, Ps)>);

impl Taken {
    /// Takes it for `service`, from `at` on at the earliest: when that begins. Nobody asks for a time before `now` any more.
    fn take(&mut self, now: Ps, at: Ps, service: Ps) -> Ps {
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
        match place.checked_sub(1).and_then(|before| self.0.get_mut(before)) {
            Some((_, to)) if *to == begins => *to = begins + service,
            _ => self.0.insert(place, (begins, begins + service)),
        }
        begins
    }
}

impl World {
    /// The running thread is about to work on a queue for `service`: it waits until no other does.
    #[inline]
    pub(crate) fn wait_for(&mut self, queue: &QueueLock, service: Ps) {
        let Some(thread) = self.current else { return };
        let mut state = lock(&queue.0);
        if !state.is_shared {
            match state.owner {
                Some(owner) if owner == thread => return,
                // It has made the queue for others, and waits for them.
                owner if owner.is_none_or(|owner| self.is_away(owner)) => {
                    state.owner = Some(thread);
                    return;
                }
                _ => state.is_shared = true,
            }
        }
        let clock = self.clock();
        let begins = state.taken.take(self.now(), clock, service);
        drop(state);
        self.charge(begins.since(clock));
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
