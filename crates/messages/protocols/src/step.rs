//! Operations that the ends post, as data.

use doorbell_wire::MessageKind;

/// End of a connection, for messages of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The end that sends messages.
    Sender,
    /// The end that receives messages.
    Receiver,
}

impl End {
    /// Returns the other end.
    pub const fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

/// Payload bytes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// One message.
    Message {
        /// Additional bytes, such as the length of the message or a signal byte.
        beside: u64,
    },
    /// Fixed number of bytes.
    Fixed(u64),
    /// All new messages.
    AllNew {
        /// Additional bytes for each message.
        beside: u64,
        /// Unit to whose multiple each message is padded, including its additional bytes.
        unit: u64,
    },
    /// Bytes for each buffer that the operation reports: for one buffer, or for all free buffers.
    Entries(u64),
}

impl Size {
    /// Returns the bytes of one operation for `count` messages of `bytes` each.
    pub const fn bytes(self, bytes: u64, count: u64) -> u64 {
        match self {
            Self::Message { beside } => bytes + beside,
            Self::Fixed(fixed) => fixed,
            Self::AllNew { beside, unit } => count * (bytes + beside).next_multiple_of(unit),
            Self::Entries(entry) => count * entry,
        }
    }

    /// Returns whether the operation carries messages.
    pub const fn carries_messages(self) -> bool {
        matches!(self, Self::Message { .. } | Self::AllNew { .. })
    }
}

/// Time at which an operation is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Once per message.
    Message,
    /// Once for all messages of one post: from one to a batch.
    Post,
    /// Once for all waiting messages: from one to a window.
    Waiting,
    /// Once for all new messages for which the receiver has space: from a part of one to a window.
    Pulled,
    /// Once for all message completions of one poll.
    Reap,
    /// Once enough messages were freed, or the other end has no space left.
    Freed {
        /// Divisor of the receiver's space; that part of the space is enough.
        parts: u32,
        /// Number of messages that is enough if it is smaller.
        most: u32,
    },
    /// By polling, one operation at a time, while a certain part of the receiver's space is in use.
    Short {
        /// Divisor of the receiver's space. 2 asks before the space is needed, 1 asks once a message does not fit.
        parts: u32,
    },
    /// By polling, one operation at a time, even if no message is sent.
    Polled,
}

impl When {
    /// Returns the number of messages whose space is reported at once, if the receiver has space for `depth` messages
    /// and all are freed in time. Returns `None` if the operation reports no space, or reports all free space on
    /// request.
    pub fn freed_at_once(self, depth: u32) -> Option<u32> {
        match self {
            Self::Freed { parts, most } => Some((depth / parts.max(1)).min(most).max(1)),
            _ => None,
        }
    }

    /// Returns the expected number of posts per message, if messages flow in full batches and the receiver has space
    /// for `depth` messages.
    pub fn per_message(self, batch: u32, depth: u32) -> f64 {
        match self {
            Self::Message => 1.0,
            Self::Post | Self::Waiting | Self::Pulled | Self::Reap | Self::Polled => 1.0 / f64::from(batch.max(1)),
            Self::Freed { .. } => 1.0 / f64::from(self.freed_at_once(depth).unwrap_or(1)),
            Self::Short { parts } => (f64::from(parts) / f64::from(depth.max(1))).min(1.0),
        }
    }
}

/// Relation of an operation to the step before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// Posted separately, or with others of its kind.
    Alone,
    /// Posted together with the step before, directly after it. RC keeps WRITEs and SENDs in order (IBTA Vol 1,
    /// 10.8.3.3).
    Chained,
    /// Posted together with the step before, with the fence flag. The operation begins once that READ or atomic is
    /// complete.
    Fenced {
        /// Whether the posting end waits for the completion of this operation, which implies that of the step before.
        /// Otherwise it waits for the step before.
        awaited: bool,
    },
}

/// Way in which the other end notices an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The operation completes a receive of the other end.
    Completion,
    /// The other end polls memory.
    Memory,
    /// The other end does not notice the operation.
    Nothing,
}

/// Purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Delivery of the message to the receiver.
    Delivery,
    /// Report to the sender of buffers that it may reuse, or of space at the receiver.
    Release,
}

/// Dependence of an operation on flow control by credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credits {
    /// Posted with and without credits.
    Any,
    /// Posted only with credits, which it carries or reports.
    With,
    /// Posted only without credits, in place of an operation that needs them.
    Without,
}

/// Operation of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// End that posts the operation.
    pub by: End,
    /// Kind of the operation.
    pub operation: MessageKind,
    /// Payload of the operation.
    pub size: Size,
    /// Time of the post.
    pub when: When,
    /// Relation to the step before.
    pub joined: Joined,
    /// Way in which the other end notices the operation.
    pub noticed: Noticed,
    /// Purpose of the operation.
    pub role: Role,
    /// Dependence on credits.
    pub credits: Credits,
}

impl Step {
    /// Creates a step that is posted separately, for delivery, with and without credits. An operation that takes a
    /// receive is noticed by its completion, any other operation is not noticed.
    pub(crate) const fn new(by: End, operation: MessageKind, size: Size, when: When) -> Self {
        let takes_receive = matches!(operation, MessageKind::Send | MessageKind::SendImm | MessageKind::WriteImm);
        Self {
            by,
            operation,
            size,
            when,
            joined: Joined::Alone,
            noticed: if takes_receive { Noticed::Completion } else { Noticed::Nothing },
            role: Role::Delivery,
            credits: Credits::Any,
        }
    }

    pub(crate) const fn joined(self, joined: Joined) -> Self {
        Self { joined, ..self }
    }

    pub(crate) const fn seen_in_memory(self) -> Self {
        Self { noticed: Noticed::Memory, ..self }
    }

    pub(crate) const fn release(self) -> Self {
        Self { role: Role::Release, ..self }
    }

    pub(crate) const fn credits(self, credits: Credits) -> Self {
        Self { credits, ..self }
    }

    /// Returns whether the step is posted with this setting of credits.
    pub const fn is_part(&self, credits: bool) -> bool {
        match self.credits {
            Credits::Any => true,
            Credits::With => credits,
            Credits::Without => !credits,
        }
    }

    /// Returns whether the response carries data, instead of an acknowledgement only.
    pub const fn is_two_way(&self) -> bool {
        matches!(self.operation, MessageKind::Read) || self.is_atomic()
    }

    /// Returns whether the operation is atomic.
    pub const fn is_atomic(&self) -> bool {
        matches!(self.operation, MessageKind::CompareSwap | MessageKind::FetchAdd)
    }
}
