//! Recovery of space that a dead sender has reserved: see the module above.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use doorbell_sync::IgnorePoison;

use crate::ring::Ring;

/// A live sender.
#[derive(Debug)]
pub(super) struct Member {
    id: u64,
    /// Last round that it has answered.
    answered: u64,
}

/// No round is due.
const NEVER: u64 = u64::MAX;

#[derive(Debug, Default)]
struct State {
    next_member: u64,
    /// Live senders, with the last round that each has answered.
    members: Vec<(u64, u64)>,
    /// End of all reservations of dead senders.
    limit: u64,
    /// First unwritten reservation in the answers of this round.
    unwritten: Option<u64>,
    is_open: bool,
}

/// Live senders, and the state of the search for holes.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Number of rounds of questions. Threads read it without the lock.
    round: AtomicU64,
    /// Head at which another round is due, since not all holes could be found yet.
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
        self.state.lock().ignore_poison()
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Adds a sender. Its reservations lie after those of all dead senders.
    pub(super) fn join(&self) -> Member {
        let mut state = self.state();
        let id = state.next_member;
        state.next_member += 1;
        let answered = self.round.load(Ordering::Relaxed);
        state.members.push((id, answered));
        Member { id, answered }
    }

    /// Removes a sender, which can no longer write. Without a goodbye, its reservations may lie anywhere before
    /// `tail`.
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

    /// Starts another round if it is due.
    #[inline]
    pub(super) fn look(&self, ring: &Ring) {
        if ring.head() >= self.again_at.load(Ordering::Relaxed) {
            let mut state = self.state();
            if ring.head() >= self.again_at.load(Ordering::Relaxed) {
                self.ask(&mut state);
            }
        }
    }

    /// Returns the round that this sender must answer, if there is one. A round ends after all senders have answered.
    /// Takes no lock, since every poll calls it.
    #[inline]
    pub(super) fn question_for(&self, member: &Member) -> Option<u64> {
        let round = self.round.load(Ordering::Acquire);
        (member.answered < round).then_some(round)
    }

    /// Takes the answer of a sender: it has written all messages that fit, up to `unwritten`.
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

    /// Frees the holes after all senders have answered.
    fn conclude(&self, state: &mut State, ring: &Ring) {
        let round = self.round.load(Ordering::Relaxed);
        if !state.is_open || state.members.iter().any(|&(_, answered)| answered < round) {
            return;
        }
        state.is_open = false;
        // Reservations that do not fit into the ring yet overlap older messages.
        let end = state.limit.min(ring.head() + ring.bytes() as u64);
        let (limit, again_at) = match state.unwritten {
            // Later holes may exist, but the head cannot pass this position before it is written.
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
