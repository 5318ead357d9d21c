use doorbell_verbs::{ModifyError, Overrun, PostError, Status};

/// Why a connection is over. Every message that was not done by then is lost to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer said goodbye.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer does not answer any more: it is dead, or the network between is.
    #[error("the peer does not answer any more ({})", .0.describe())]
    PeerUnreachable(Status),
    /// The peer refused a message.
    #[error("the peer refused a message ({})", .0.describe())]
    PeerRefused(Status),
    /// Something is wrong on this side.
    #[error("the connection failed on this side ({})", .0.describe())]
    Local(Status),
    /// This side closed it.
    #[error("the connection was closed on this side")]
    Closed,
    /// The peer sent what the protocol does not allow.
    #[error("the peer broke the protocol: it sent {0}")]
    Protocol(&'static str),
    /// The peer sent a message that is longer than the description of this side allows.
    #[error("the peer broke the protocol: it sent a message of {length} B, this side takes {most} B at most")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Bytes of the longest message that this side takes.
        most: usize,
    },
    /// A work request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Completions were lost.
    #[error(transparent)]
    Overrun(#[from] Overrun),
}

impl ConnectionError {
    /// What an unsuccessful completion of a send means.
    pub fn from_send(status: Status) -> Self {
        match status {
            Status::RetryExceeded | Status::RnrRetryExceeded => Self::PeerUnreachable(status),
            Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => Self::PeerRefused(status),
            _ => Self::Local(status),
        }
    }
}

/// Why two endpoints do not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The two ends want different things.
    #[error("{what} differs: {own} here, {peer} at the peer")]
    Mismatch {
        /// What.
        what: &'static str,
        /// Here.
        own: u64,
        /// There.
        peer: u64,
    },
    /// The two ends speak different protocols.
    #[error("this end speaks {own}, the peer {peer}")]
    Protocol {
        /// Here.
        own: crate::setup::ProtocolId,
        /// There.
        peer: crate::setup::ProtocolId,
    },
    /// A setting is out of range.
    #[error("{what} is {given}, allowed is {allowed}")]
    Setting {
        /// Which setting.
        what: &'static str,
        /// What was given.
        given: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The shared receive buffers are too short.
    #[error("messages of up to {longest} B do not fit the shared receive buffers of {shared} B")]
    TooLongForShared {
        /// The longest message of the connection.
        longest: usize,
        /// The length of the buffers.
        shared: usize,
    },
    /// The shared receives are granted to other connections.
    #[error("{wanted} receives are wanted, {left} of the shared ones are not granted to others")]
    NoShare {
        /// What was asked for.
        wanted: usize,
        /// What there is.
        left: usize,
    },
    /// There are as many connections as was asked for.
    #[error("the {0} already has as many connections as it was made for")]
    Crowded(&'static str),
    /// A verbs object could not be made.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// The queue pair could not be connected.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The first receives could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
}
