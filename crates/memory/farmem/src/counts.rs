//! Counters of a client.

use serde::{Deserialize, Serialize};

use crate::lane::VerbCounts;

/// Attempts to complete operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// Operations that ended without an error.
    pub operations: u64,
    /// Attempts: the READs of a node with its value for gets, and the CASes on a node for puts, inserts and deletes.
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
    /// Node headers read in search of the newest node.
    pub hops: u64,
    /// Requests to the metadata service that need an answer.
    pub questions: u64,
    /// Nodes that turned out to be recycled, or that were damaged since they were being recycled.
    pub recycled: u64,
    /// CASes on locks.
    pub lock_attempts: u64,
    /// Locks that another client handed over to this client.
    pub handovers: u64,
    /// Operations that another client of the host completed for this client.
    pub shared: u64,
    /// Messages to other clients and requests to the memory node's CPU.
    pub messages: u64,
    /// Bytes of these messages and of the answers to the requests.
    pub message_bytes: u64,
    /// Clients that this client had shut out because they did not release a lock.
    pub suspects: u64,
    /// Verbs posted to the memory nodes.
    pub verbs: VerbCounts,
}

impl ClientCounts {
    /// Applies `change` to each counter of `self` and the same counter of `other`.
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

    /// Returns the increase of each counter since `before`.
    pub fn since(self, before: &Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    /// Returns the sum of the counters of two clients.
    pub fn and(self, other: &Self) -> Self {
        self.each(other, u64::saturating_add)
    }
}
