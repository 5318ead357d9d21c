//! What becomes of space that a dead sender has reserved: see the module above.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ring::Ring;

/// A sender that lives.
#[derive(Debug)]
pub(super) struct Member {
    id: u64,
    /// The last round that it has answered.
    answered: u64,
}

/// Nothing is to be found out.
const NEVER: u64 = u64::MAX;

#[derive(Debug, Default)]
struct State {
    next_member: u64,
    /// Who lives, and the last round that each has answered.
    members: Vec<(u64, u64)>,
    /// All that the dead have reserved lies before.
    limit: u64,
    /// Of this round's answers: the first reservation that is not written.
    unwritten: Option<u64>,
    is_open: bool,
}

/// Who lives, and what is being found out about the dead.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Counts the rounds of questions. Read without the lock.
    round: AtomicU64,
    /// When the head is here, another round is needed: not all holes could be found yet.
    again_at: AtomicU64,
    completed: AtomicU64,
    state: Mutex<State>,
}

impl Default for Recovery {
    fn default() -> Self {
        let (round, again_at, completed) = (AtomicU64::new(0), AtomicU64::new(NEVER), AtomicU64::new(0));
        Self { round, again_at, completed, state: Mutex::default() }
    }
}

impl Recovery {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Takes in a sender. What it reserves lies behind what any dead one has.
    pub(super) fn join(&self) -> Member {
        let mut state = self.state();
        let id = state.next_member;
        state.next_member += 1;
        let answered = self.round.load(Ordering::Relaxed);
        state.members.push((id, answered));
        Member { id, answered }
    }

    /// A sender is gone; without a goodbye it may have reserved what lies before `tail`. Nothing
    /// can be written by it any more.
    pub(super) fn leave(&self, member: Member, tail: Option<u64>, ring: &Ring) {
        let mut state = self.state();
        state.members.retain(|&(other, _)| other != member.id);
        if let Some(tail) = tail {
            state.limit = tail;
            self.ask(&mut state);
        }
        self.conclude(&mut state, ring);
    }

    fn ask(&self, state: &mut State) {
        self.again_at.store(NEVER, Ordering::Relaxed);
        state.unwritten = None;
        state.is_open = true;
        self.round.fetch_add(1, Ordering::Release);
    }

    /// Is another round due?
    #[inline]
    pub(super) fn look(&self, ring: &Ring) {
        if ring.head() >= self.again_at.load(Ordering::Relaxed) {
            let mut state = self.state();
            if ring.head() >= self.again_at.load(Ordering::Relaxed) {
                self.ask(&mut state);
            }
        }
    }

    /// The round that this sender is to be asked about, if there is one: no round ends before all
    /// have answered. Takes no lock, since every poll asks.
    #[inline]
    pub(super) fn question_for(&self, member: &Member) -> Option<u64> {
        let round = self.round.load(Ordering::Acquire);
        (member.answered < round).then_some(round)
    }

    /// A sender answers: all is written that fits, but for what begins here.
    pub(super) fn answered(&self, member: &mut Member, round: u64, unwritten: Option<u64>, ring: &Ring) {
        member.answered = round;
        let mut state = self.state();
        if let Some((_, answered)) = state.members.iter_mut().find(|(other, _)| *other == member.id) {
            *answered = round;
        }
        if round == self.round.load(Ordering::Relaxed) {
            state.unwritten = state.unwritten.into_iter().chain(unwritten).min();
        }
        self.conclude(&mut state, ring);
    }

    /// Frees the holes, once everybody has answered.
    fn conclude(&self, state: &mut State, ring: &Ring) {
        let round = self.round.load(Ordering::Relaxed);
        if !state.is_open || state.members.iter().any(|&(_, answered)| answered < round) {
            return;
        }
        state.is_open = false;
        // What does not fit into the ring yet lies where older messages are.
        let end = state.limit.min(ring.head() + ring.bytes() as u64);
        let (limit, again_at) = match state.unwritten {
            // Behind it there may be holes as well, but the head cannot pass it before it is written.
            Some(position) if position < end => (position, position + 1),
            _ => (end, end),
        };
        ring.skip(limit);
        if limit < state.limit {
            self.again_at.store(again_at, Ordering::Relaxed);
        } else {
            self.completed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
