//! Methods by which clients handle conflicting writes.

/// Method by which clients handle conflicting writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// The client WRITEs the node, waits for the completion, and links the node to the tail by CAS. If another client
    /// was faster, the client follows the chain and tries again at once.
    Optimistic,
    /// As `optimistic`, but the client posts WRITE and CAS together on one queue pair, which executes them in order.
    Chained,
    /// As `optimistic`, but the client waits for a random time before each further attempt. The upper bound of this
    /// time doubles with each attempt. After 64 attempts the operation fails.
    Backoff,
    /// The client spins for a lock of the key before it writes. A client breaks a lock that has not changed for a
    /// lease, after the metadata service has shut out the lock's holder.
    Lock,
    /// Clients queue for a key's lock. Each holder hands the lock over to the next client by a datagram, which contains
    /// the place of the newest node. A client that hears nothing from the client ahead for a lease has that client shut
    /// out, and continues.
    QueueLock,
    /// Concurrent puts of one key by clients of one host are combined: one put is executed, and the other puts share
    /// its result. Concurrent gets of one key are combined in the same way. Inserts and deletes run as in `optimistic`.
    Combine,
    /// The memory node's CPU executes requests that clients send in messages. This CPU has its own table, which clients
    /// of other strategies cannot access.
    Server,
    /// A middlebox ([`StoreControl`]) steers READs and CASes to the newest node of the key, whichever node of the key a
    /// client names.
    ///
    /// [`StoreControl`]: crate::StoreControl
    Steered,
    /// As `steered`, but the middlebox steers only CASes. Readers follow chains and shortcuts.
    SteeredWrite,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 9] = [
        Self::Optimistic,
        Self::Chained,
        Self::Backoff,
        Self::Lock,
        Self::QueueLock,
        Self::Combine,
        Self::Server,
        Self::Steered,
        Self::SteeredWrite,
    ];

    /// Returns the strategy's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimistic => "optimistic",
            Self::Chained => "chained",
            Self::Backoff => "backoff",
            Self::Lock => "lock",
            Self::QueueLock => "queue-lock",
            Self::Combine => "combine",
            Self::Server => "server",
            Self::Steered => "steered",
            Self::SteeredWrite => "steered-write",
        }
    }

    /// Returns whether the strategy relies on a middlebox to find newest nodes. Without a middlebox the strategy is
    /// correct but has no advantage.
    pub fn is_steered(self) -> bool {
        matches!(self, Self::Steered | Self::SteeredWrite)
    }

    /// Returns whether a store of this strategy can have two memory nodes. This requires that clients write the memory
    /// themselves and that no middlebox changes the target of a request.
    pub fn is_replicable(self) -> bool {
        self != Self::Server && !self.is_steered()
    }

    /// Returns whether the middlebox steers READs.
    pub fn steers_reads(self) -> bool {
        self == Self::Steered
    }

    /// Returns the strategy with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name)
    }
}
