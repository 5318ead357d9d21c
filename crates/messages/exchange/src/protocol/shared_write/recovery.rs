//! Recovery of space that a dead sender has reserved: see the documentation of `shared_write`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use doorbell_sync::IgnorePoison;

use crate::connection::ring::Ring;

/// Registration of a live sender.
#[derive(Debug)]
pub(super) struct Member {
    id: u64,
    /// Number of the latest round that the sender has answered.
    answered: u64,
}

/// Value of `Recovery::again_at` if no further round is due.
const NEVER: u64 = u64::MAX;

#[derive(Debug, Default)]
struct State {
    next_member: u64,
    /// Live senders: the id of each sender, and the number of the latest round that the sender has answered.
    members: Vec<(u64, u64)>,
    /// Position before which all reservations of dead senders lie.
    limit: u64,
    /// Smallest position of an unwritten reservation in the answers of the current round.
    unwritten: Option<u64>,
    is_open: bool,
}

/// Live senders, and the state of the search for holes: space that dead senders have reserved and not written.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Number of the current round of questions. Threads read the number without the lock.
    round: AtomicU64,
    /// Position of the head at which another round is due, since the current round could not free all holes.
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

    /// Adds a sender. All its reservations lie after the reservations of senders that have already died.
    pub(super) fn join(&self) -> Member {
        let mut state = self.state();
        let id = state.next_member;
        state.next_member += 1;
        let answered = self.round.load(Ordering::Relaxed);
        state.members.push((id, answered));
        Member { id, answered }
    }

    /// Removes a sender, which can no longer write. `tail` is `None` after a goodbye. Otherwise the sender may have
    /// unwritten reservations before `tail`.
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

    /// Returns the number of the round that this sender must answer, if any. Takes no lock, since every poll calls this
    /// function.
    #[inline]
    pub(super) fn question_for(&self, member: &Member) -> Option<u64> {
        let round = self.round.load(Ordering::Acquire);
        (member.answered < round).then_some(round)
    }

    /// Takes the answer of a sender. `unwritten` is the position of the sender's first unwritten reservation, if any.
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

    /// Frees the holes if all senders have answered the current round.
    fn conclude(&self, state: &mut State, ring: &Ring) {
        let round = self.round.load(Ordering::Relaxed);
        if !state.is_open || state.members.iter().any(|&(_, answered)| answered < round) {
            return;
        }
        state.is_open = false;
        // A reservation beyond `head + bytes` shares its memory with older messages, so holes are searched only before
        // this position.
        let end = state.limit.min(ring.head() + ring.bytes() as u64);
        let (limit, again_at) = match state.unwritten {
            // Holes after this position must wait: the head cannot pass the position before the live sender has written
            // there.
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
