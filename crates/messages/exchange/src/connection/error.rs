use doorbell_verbs::{Access, ModifyError, Overrun, PostError, Region, Status};

/// Reason for which a connection ended. Only [`ConnectionError::Misuse`] does not end the connection: it rejects one
/// call. If a message was not done when the connection ended, its sender cannot know whether the message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer has sent its goodbye.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer does not answer any more, since the peer or the network has failed.
    #[error("the peer does not answer any more ({})", .0.text())]
    PeerUnreachable(Status),
    /// The peer's RNIC rejected an operation.
    #[error("the peer refused a message ({})", .0.describe())]
    PeerRefused(Status),
    /// An operation failed for a reason on this side.
    #[error("the connection failed on this side ({})", .0.describe())]
    Local(Status),
    /// This side closed the connection.
    #[error("the connection was closed on this side")]
    Closed,
    /// The peer has sent data that the protocol does not allow.
    #[error("the peer broke the protocol: it sent {0}")]
    Protocol(&'static str),
    /// The device has completed an atomic operation and has not written the operation's result.
    #[error("the device completed an atomic operation without its result")]
    NoResult,
    /// The peer has sent a message that is longer than this side's description allows.
    #[error("the peer broke the protocol: it sent a message of {length} B, but this side accepts at most {most} B")]
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
    /// The completion queue has lost completions.
    #[error(transparent)]
    Overrun(#[from] Overrun),
}

impl ConnectionError {
    /// Classifies the error status of a completed send request.
    pub fn from_send(status: Status) -> Self {
        match status {
            Status::RetryExceeded | Status::RnrRetryExceeded => Self::PeerUnreachable(status),
            Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => Self::PeerRefused(status),
            _ => Self::Local(status),
        }
    }
}

/// Reason for which a call was rejected, with the given and the allowed value. The call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A message is longer than the maximum that this side can copy, or longer than the peer accepts.
    #[error("a message of {given} B is too long: at most {allowed} B are allowed")]
    TooLong {
        /// Bytes of the message.
        given: usize,
        /// Bytes of the longest message that is allowed.
        allowed: usize,
    },
    /// A range of memory reaches beyond its region.
    #[error("{length} B at offset {offset} are not inside a region of {region} B")]
    Outside {
        /// Bytes of the range, including the bytes that the protocol adds after a message.
        length: usize,
        /// Offset of the range in the region.
        offset: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// A region lacks the access that a call needs.
    #[error("the region has the access {given:?}, but must have {needed:?}")]
    Access {
        /// Access of the region.
        given: Access,
        /// Access that the call needs.
        needed: Access,
    },
    /// A message has too many application bytes.
    #[error("a message has {given} application bytes, but at most {allowed} are allowed")]
    Application {
        /// Number of application bytes.
        given: usize,
        /// Maximum number of application bytes.
        allowed: usize,
    },
}

impl Misuse {
    /// Checks the length of a message.
    #[inline]
    pub(crate) fn check_length(given: usize, allowed: usize) -> Result<(), Self> {
        if given > allowed { Err(Self::TooLong { given, allowed }) } else { Ok(()) }
    }

    /// Checks that `length` bytes at `offset` lie inside the region.
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

/// Reason for which two endpoints cannot connect.
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
    /// The two ends use different protocols.
    #[error("this end uses the protocol {own}, but the peer uses {peer}")]
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
        /// Value of the setting.
        given: u64,
        /// Allowed values.
        allowed: &'static str,
    },
    /// The shared receive buffers are too short for the messages of the connection.
    #[error("messages of up to {longest} B do not fit the shared receive buffers of {shared} B")]
    TooLongForShared {
        /// Bytes of the longest message of the connection.
        longest: usize,
        /// Bytes of each shared buffer.
        shared: usize,
    },
    /// Too few shared receives are left, since other connections have reserved receives.
    #[error("the connection needs {wanted} shared receives, but only {left} are left")]
    NoShare {
        /// Number of receives that the connection needs.
        wanted: usize,
        /// Number of shared receives that no connection has reserved.
        left: usize,
    },
    /// A shared queue already serves its maximum number of connections.
    #[error("the {0} has no room for another connection: it already serves its maximum number")]
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
