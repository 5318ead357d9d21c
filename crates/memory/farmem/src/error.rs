use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::{ModifyError, PostError, Status};

/// Error of an operation of the store. A failed operation may have taken effect, unless the variant says that it had no
/// effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is empty or too long. The operation had no effect.
    #[error("the key has {given} B: must have 1 to {allowed} B")]
    KeyLength {
        /// Length of the given key.
        given: usize,
        /// Maximum length of a key.
        allowed: usize,
    },
    /// The value is too long. The operation had no effect.
    #[error("the value has {given} B: must have at most {allowed} B")]
    ValueLength {
        /// Length of the given value.
        given: usize,
        /// Maximum length of a value.
        allowed: usize,
    },
    /// The store has no free node for a new value. The operation had no effect.
    #[error("the memory node has no free node for a new value: delete keys, or create the store with more nodes")]
    Full,
    /// The store has the maximum number of keys. The operation had no effect.
    #[error("the store has its maximum number of keys: delete keys, or create the store for more keys")]
    TooManyKeys,
    /// The operation has used all attempts of its retry budget. The operation had no effect.
    #[error("other clients were faster in all {attempts} attempts of the operation: try again later")]
    GaveUp {
        /// Number of attempts.
        attempts: u32,
    },
    /// The operation needs the metadata service, and the connection with the service is over. The operation had no
    /// effect, unless it was an insert.
    #[error(
        "the metadata service does not answer ({0}): clients can only read keys that they know, and write them while \
         they have nodes left"
    )]
    MetadataGone(ConnectionError),
    /// The connection with the memory node's CPU is over. This CPU executes the operations of strategy `server`.
    #[error("the connection with the memory node's CPU is over ({0})")]
    ServerGone(ConnectionError),
    /// The metadata service, or the memory node's CPU, sent a message that the protocol does not allow.
    #[error("a service of the store broke the protocol: {0}")]
    Protocol(&'static str),
    /// The content of a node is wrong, and no client is writing the node.
    #[error("node {index} in the store's memory is corrupted: all READs of this node returned wrong content")]
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
    /// The client reached its limit of verbs
    /// ([`ClientOptions::verbs_until_death`](crate::ClientOptions::verbs_until_death)).
    #[error("the client stopped, since it has executed the maximum number of verbs that its options allow")]
    Dead,
}

/// Error of opening a store, a client or a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A size is out of range.
    #[error("{what} is {given}, allowed is {least} to {most}")]
    Geometry {
        /// The name of the size.
        what: &'static str,
        /// The given value.
        given: usize,
        /// The minimum.
        least: usize,
        /// The maximum.
        most: usize,
    },
    /// The memory node's region is too short for the geometry in its description.
    #[error("the memory node's region has {given} B: the store's geometry needs {needed} B")]
    Region {
        /// Bytes of the region.
        given: u64,
        /// Bytes that the geometry needs.
        needed: u64,
    },
    /// A client with this number is already connected.
    #[error("client {0} is connected already")]
    Duplicate(u32),
    /// The memory node did not open the connection for the requests of a client of strategy `server`.
    #[error("strategy server needs a connection for calls: use a memory node of the same release")]
    NoCalls,
    /// Two parts of one store have different geometries.
    #[error("the memory node's geometry must be the store's geometry: use a memory node of this store")]
    OtherStore,
    /// The memory node has stopped.
    #[error("the metadata service has given up this memory node: use the other memory node")]
    Stopped,
    /// The description of the second memory node is missing.
    #[error("the store has two memory nodes: the description of the second one is missing")]
    NoReplica,
    /// A party was connected before all other parties had answered it.
    #[error("the store is not set up yet: carry messages between its parties until this party is ready")]
    Unanswered,
    /// A store of this strategy can have only one memory node.
    #[error("strategy {0} works with one memory node: use one memory node or another strategy")]
    NotReplicated(&'static str),
    /// The middlebox in front of the memory node accepts no further node, region or client.
    #[error("the middlebox before the memory node refuses: {0}")]
    Box(#[source] doorbell_steer::SetupError),
    /// A verbs object could not be created.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// A queue pair could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A queue pair could not be moved to another state.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}
