use doorbell_verbs::{Access, ModifyError, Overrun, PostError, Region, Status};

/// Why a connection is over; or, of [`Misuse`] alone, why a call was refused. Every message that was not done when
/// the connection ended is lost to its sender.
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
    /// A call asked for what cannot be. The connection goes on.
    #[error(transparent)]
    Misuse(#[from] Misuse),
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

/// Why a call was refused: what the program gave, and what is allowed. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A message is longer than this side copies, or than the peer takes.
    #[error("a message of {given} B does not fit: {allowed} B are allowed here")]
    TooLong {
        /// Bytes of the message.
        given: usize,
        /// Bytes of the longest one.
        allowed: usize,
    },
    /// A piece of memory reaches beyond its region.
    #[error("{length} B at offset {offset} are not inside a region of {region} B")]
    Outside {
        /// Bytes of the piece, with what the protocol puts behind a message.
        length: usize,
        /// Where it begins.
        offset: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// A region is not registered for what is to be done with it.
    #[error("the region is registered for {given:?}, needed is {needed:?}")]
    Access {
        /// What it is registered for.
        given: Access,
        /// What it has to be registered for.
        needed: Access,
    },
    /// More goes with a message than there is room for.
    #[error("{given} B are to go with a message, allowed are {allowed} B")]
    Application {
        /// Bytes.
        given: usize,
        /// Bytes at most.
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

    /// Checks that a region is registered for what is to be done with it.
    #[inline]
    pub(crate) fn check_access(region: &Region, needed: Access) -> Result<(), Self> {
        let given = region.access();
        if given.contains(needed) { Ok(()) } else { Err(Self::Access { given, needed }) }
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
        own: doorbell_protocols::WireId,
        /// There.
        peer: doorbell_protocols::WireId,
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
    /// A connection cannot become one of a hub or a replication.
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
