use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::{ModifyError, PostError, Status};

/// Error of an operation of the store. An operation that failed on the way may have taken effect, unless the variant
/// says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is empty or too long. Nothing was done.
    #[error("a key of {given} B was given, this store takes keys of 1 to {allowed} B")]
    KeyLength {
        /// Its length.
        given: usize,
        /// Bytes of the longest key.
        allowed: usize,
    },
    /// The value is too long. Nothing was done.
    #[error("a value of {given} B was given, this store takes values of at most {allowed} B")]
    ValueLength {
        /// Its length.
        given: usize,
        /// Bytes of the longest value.
        allowed: usize,
    },
    /// There is no node left for a new value. Nothing was done.
    #[error(
        "the memory node is full: none of its nodes is free for a write: delete keys, or make the store with more nodes"
    )]
    Full,
    /// There is no room for another key. Nothing was done.
    #[error("the store has as many keys as it was made for: delete keys, or make it for more")]
    TooManyKeys,
    /// The retry budget is spent. Nothing was done.
    #[error("other clients were faster {attempts} times in a row, which is the retry budget: try again later")]
    GaveUp {
        /// Attempts that were made.
        attempts: u32,
    },
    /// The metadata service is needed for this, and its connection is over. Nothing was done, unless it was an insert.
    #[error(
        "the metadata service does not answer ({0}): keys that this client knows can still be read and, while it has nodes left, written"
    )]
    MetadataGone(ConnectionError),
    /// The memory node's CPU, which carries operations out, does not answer any more.
    #[error("the connection with the memory node's CPU is over ({0})")]
    ServerGone(ConnectionError),
    /// The metadata service, or the memory node's CPU, answered what it may not.
    #[error("a service of the store broke the protocol: {0}")]
    Protocol(&'static str),
    /// A node is neither what its writer wrote nor being written.
    #[error("node {index} of the memory node is corrupted: its CRC is wrong each time it is read")]
    Corrupted {
        /// Index of the node.
        index: u32,
    },
    /// The queue pair to the memory node failed: the memory node refuses this client or does not answer.
    #[error("the connection to the memory node is over ({})", .0.describe())]
    Memory(Status),
    /// The device refused a work request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The client stopped on purpose ([`ClientOptions::verbs_until_death`](crate::ClientOptions::verbs_until_death)).
    #[error("the client stopped after its limit of verbs")]
    Dead,
}

/// Error of opening a store, a client or a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A size is out of its range.
    #[error("{what} is {given}, allowed is {least} to {most}")]
    Geometry {
        /// Name of the size.
        what: &'static str,
        /// The given value.
        given: usize,
        /// The minimum.
        least: usize,
        /// The maximum.
        most: usize,
    },
    /// The memory node's region is too short for the sizes that it names.
    #[error("the memory node has {given} B, a store of these sizes needs {needed} B")]
    Region {
        /// Bytes of the region.
        given: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// There is a client of this number already.
    #[error("client {0} is connected already")]
    Duplicate(u32),
    /// The memory node did not open the connection on which a client of strategy `server` asks.
    #[error("the memory node gives no connection for calls, which strategy server needs: use the same release on both")]
    NoCalls,
    /// Two parts of one store have other sizes.
    #[error("this memory node has a store of other sizes than the one that is known already")]
    OtherStore,
    /// The memory node has stopped.
    #[error("this memory node serves no client any more: the metadata service has given it up")]
    Stopped,
    /// The store has two memory nodes, and the second one is missing.
    #[error("two memory nodes were asked for, and only one was given")]
    NoReplica,
    /// This strategy has one memory node.
    #[error(
        "strategy {0} works with one memory node: take one, or a strategy whose clients write themselves and without a middlebox"
    )]
    NotReplicated(&'static str),
    /// A middlebox before the memory node takes no further node, region or client.
    #[error("the middlebox before the memory node refuses: {0}")]
    Box(#[source] doorbell_steer::SetupError),
    /// A verbs object could not be made.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// A queue pair could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A queue pair could not be brought up.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}
