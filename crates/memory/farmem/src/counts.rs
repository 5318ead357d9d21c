//! Counters of a client.

use serde::{Deserialize, Serialize};

use crate::lane::VerbCounts;

/// Attempts to complete operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// Operations that ended without an error.
    pub operations: u64,
    /// Attempts: of gets each READ of a node with its value, of the others each CAS.
    pub attempts: u64,
    /// Attempts that found the newest node.
    pub successes: u64,
    /// Operations whose first attempt found the newest node.
    pub at_once: u64,
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCounts {
    /// Gets.
    pub gets: Attempts,
    /// Puts, inserts and deletes.
    pub writes: Attempts,
    /// Nodes whose header was read while looking for the newest one.
    pub hops: u64,
    /// Questions to the metadata service.
    pub questions: u64,
    /// Nodes that turned out to be recycled, or damaged in the middle of being recycled.
    pub recycled: u64,
    /// CASes on locks.
    pub lock_attempts: u64,
    /// Locks that were handed over by another client.
    pub handovers: u64,
    /// Operations in which another client of the host took part for this one.
    pub shared: u64,
    /// Messages to other clients and to the memory node's CPU, and their bytes both ways.
    pub messages: u64,
    /// Bytes of these, and of their answers.
    pub message_bytes: u64,
    /// Clients that this one had shut out because a lock of theirs did not move.
    pub suspects: u64,
    /// Verbs on the memory node.
    pub verbs: VerbCounts,
}

impl ClientCounts {
    /// Applies `change` to each number of `self` and the same number of `other`.
    fn each(mut self, other: &Self, change: impl Fn(u64, u64) -> u64) -> Self {
        let Self {
            gets,
            writes,
            hops,
            questions,
            recycled,
            lock_attempts,
            handovers,
            shared,
            messages,
            message_bytes,
            suspects,
            verbs,
        } = &mut self;
        let attempts = [(gets, other.gets), (writes, other.writes)].into_iter().flat_map(|(own, other)| {
            let Attempts { operations, attempts, successes, at_once } = own;
            [
                (operations, other.operations),
                (attempts, other.attempts),
                (successes, other.successes),
                (at_once, other.at_once),
            ]
        });
        let verbs = [
            (&mut verbs.reads, other.verbs.reads),
            (&mut verbs.read_bytes, other.verbs.read_bytes),
            (&mut verbs.writes, other.verbs.writes),
            (&mut verbs.written_bytes, other.verbs.written_bytes),
            (&mut verbs.compare_swaps, other.verbs.compare_swaps),
            (&mut verbs.awaited_posts, other.verbs.awaited_posts),
        ];
        let own = [
            (hops, other.hops),
            (questions, other.questions),
            (recycled, other.recycled),
            (lock_attempts, other.lock_attempts),
            (handovers, other.handovers),
            (shared, other.shared),
            (messages, other.messages),
            (message_bytes, other.message_bytes),
            (suspects, other.suspects),
        ];
        attempts.chain(verbs).chain(own).for_each(|(own, other)| *own = change(*own, other));
        self
    }

    /// Returns the increase since `before`.
    pub fn since(self, before: &Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    /// Returns the sum of the counters of two clients.
    pub fn and(self, other: &Self) -> Self {
        self.each(other, u64::saturating_add)
    }
}
