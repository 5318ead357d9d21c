use doorbell_verbs::{Access, ModifyError, Overrun, PostError, Region, Status};

/// Reason for which a connection is over. [`Misuse`] alone only refuses a call. Each message that was not done when
/// the connection ended is lost to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer has said goodbye.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer no longer answers: the peer or the network is dead.
    #[error("the peer does not answer any more ({})", .0.describe())]
    PeerUnreachable(Status),
    /// The peer refused a message.
    #[error("the peer refused a message ({})", .0.describe())]
    PeerRefused(Status),
    /// An operation failed on this side.
    #[error("the connection failed on this side ({})", .0.describe())]
    Local(Status),
    /// This side closed the connection.
    #[error("the connection was closed on this side")]
    Closed,
    /// The peer has sent data that the protocol does not allow.
    #[error("the peer broke the protocol: it sent {0}")]
    Protocol(&'static str),
    /// The peer has sent a message that is longer than this side's description allows.
    #[error("the peer broke the protocol: it sent a message of {length} B, this side takes {most} B at most")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Bytes of the longest message that this side accepts.
        most: usize,
    },
    /// The arguments of a call are invalid. The connection stays usable.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The device rejected a work request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Completions were lost.
    #[error(transparent)]
    Overrun(#[from] Overrun),
}

impl ConnectionError {
    /// Classifies an unsuccessful completion of a send.
    pub fn from_send(status: Status) -> Self {
        match status {
            Status::RetryExceeded | Status::RnrRetryExceeded => Self::PeerUnreachable(status),
            Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => Self::PeerRefused(status),
            _ => Self::Local(status),
        }
    }
}

/// Reason for which a call was refused, with the given and the allowed value. The call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A message is longer than this side copies, or than the peer accepts.
    #[error("a message of {given} B does not fit: {allowed} B are allowed here")]
    TooLong {
        /// Bytes of the message.
        given: usize,
        /// Bytes of the longest message that is allowed.
        allowed: usize,
    },
    /// A piece of memory reaches beyond its region.
    #[error("{length} B at offset {offset} are not inside a region of {region} B")]
    Outside {
        /// Bytes of the piece, including the bytes that the protocol adds after a message.
        length: usize,
        /// Offset of the piece in its region.
        offset: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// A region lacks the access that a call needs.
    #[error("the region is registered for {given:?}, needed is {needed:?}")]
    Access {
        /// Access of the region.
        given: Access,
        /// Access that the call needs.
        needed: Access,
    },
    /// The application bytes of a message are too long.
    #[error("{given} B are to go with a message, allowed are {allowed} B")]
    Application {
        /// Application bytes.
        given: usize,
        /// Maximum application bytes.
        allowed: usize,
    },
}

impl Misuse {
    /// Checks the length of a message.
    #[inline]
    pub(crate) fn check_length(given: usize, allowed: usize) -> Result<(), Self> {
        if given > allowed { Err(Self::TooLong { given, allowed }) } else { Ok(()) }
    }

    /// Checks that a piece lies inside its region.
    #[inline]
    pub(crate) fn check_inside(region: &Region, offset: usize, length: usize) -> Result<(), Self> {
        let whole = region.len();
        if offset > whole || length > whole - offset {
            return Err(Self::Outside { length, offset, region: whole });
        }
        Ok(())
    }

    /// Checks that a region has the access that a call needs.
    #[inline]
    pub(crate) fn check_access(region: &Region, needed: Access) -> Result<(), Self> {
        let given = region.access();
        if given.contains(needed) { Ok(()) } else { Err(Self::Access { given, needed }) }
    }
}

/// Reason for which two endpoints do not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting differs between the two ends.
    #[error("{what} differs: {own} here, {peer} at the peer")]
    Mismatch {
        /// Name of the setting.
        what: &'static str,
        /// Value at this end.
        own: u64,
        /// Value at the peer.
        peer: u64,
    },
    /// The two ends speak different protocols.
    #[error("this end speaks {own}, the peer {peer}")]
    Protocol {
        /// Protocol of this end.
        own: doorbell_protocols::WireId,
        /// Protocol of the peer.
        peer: doorbell_protocols::WireId,
    },
    /// A setting is out of range.
    #[error("{what} is {given}, allowed is {allowed}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// Given value.
        given: u64,
        /// Allowed values.
        allowed: &'static str,
    },
    /// The shared receive buffers are too short.
    #[error("messages of up to {longest} B do not fit the shared receive buffers of {shared} B")]
    TooLongForShared {
        /// Bytes of the longest message of the connection.
        longest: usize,
        /// Length of the buffers.
        shared: usize,
    },
    /// The shared receives are granted to other connections.
    #[error("{wanted} receives are wanted, {left} of the shared ones are not granted to others")]
    NoShare {
        /// Number of receives that the connection needs.
        wanted: usize,
        /// Number of receives that are left.
        left: usize,
    },
    /// The maximum number of connections exists.
    #[error("the {0} already has as many connections as it was made for")]
    Crowded(&'static str),
    /// A connection cannot be added to a hub or a replication.
    #[error("the connection cannot be added: {0}")]
    Unfit(&'static str),
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
