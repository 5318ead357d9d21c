//! Operations that the two ends of a connection post, as data.

use doorbell_wire::MessageKind;

/// End of a connection, from the view of messages in one direction.
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
    /// Bytes of one message, and a constant number of additional bytes.
    Message {
        /// Additional bytes, such as the encoded length of the message or a signal byte.
        beside: u64,
    },
    /// Constant number of bytes.
    Fixed(u64),
    /// Bytes of all messages that are new since the previous operation of this step.
    AllNew {
        /// Additional bytes for each message.
        beside: u64,
        /// Alignment: each message with its additional bytes is padded to a multiple of this number.
        unit: u64,
    },
    /// This number of bytes for each buffer that the operation reports. The operation reports from one buffer to all
    /// free buffers.
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
    /// Once for each message.
    Message,
    /// Once for all messages of one post, which has from one message to a whole batch.
    Post,
    /// Once for all waiting messages, as soon as a post is full and fewer operations than the maximum are in flight.
    /// An operation is for at least one message and at most a whole window.
    Waiting {
        /// Maximum number of operations of the step in flight.
        in_flight: u32,
    },
    /// Once for all new messages for which the receiver has space: from a part of one message to a whole window.
    Pulled,
    /// Once for all completions of messages that one poll returns.
    Reap,
    /// Once for each group of messages that the program has freed, if the group is large enough. A smaller group is
    /// also enough if the sender knows of no free space.
    Freed {
        /// Divisor: a group is large enough if its messages fill the receiver's space divided by this number.
        parts: u32,
        /// Number of messages with which a group is always large enough, even if `parts` would require more messages.
        most: u32,
    },
    /// Repeatedly, with one operation in flight, while at least a certain part of the receiver's space is in use.
    Short {
        /// Divisor: the part is the receiver's space divided by this number. With 2, the sender asks before it needs
        /// the space. With 1, the sender asks when a message does not fit.
        parts: u32,
    },
    /// Repeatedly, with one operation in flight, even if no message is sent.
    Polled,
}

impl When {
    /// Returns the number of messages whose space one operation reports, if the receiver has space for `depth` messages
    /// and the program frees all messages in time. Returns `None` if the operation reports no space, or reports all
    /// free space on request.
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
            Self::Post | Self::Waiting { .. } | Self::Pulled | Self::Reap | Self::Polled => {
                1.0 / f64::from(batch.max(1))
            }
            Self::Freed { .. } => 1.0 / f64::from(self.freed_at_once(depth).unwrap_or(1)),
            Self::Short { parts } => (f64::from(parts) / f64::from(depth.max(1))).min(1.0),
        }
    }
}

/// Relation of an operation to the step before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// Posted separately, or together with operations of the same step.
    Alone,
    /// Posted together with the step before, as the next work request. RC keeps WRITEs and SENDs in order (IBTA Vol 1,
    /// 10.8.3.3).
    Chained,
    /// Posted together with the step before, with the fence flag. The step before is a READ or an atomic, and the
    /// fenced operation begins when the step before is complete.
    Fenced {
        /// If true, the posting end waits for the completion of the fenced operation, which comes after the completion
        /// of the step before. If false, the posting end waits only for the step before.
        awaited: bool,
    },
}

/// Way in which the other end notices an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The operation completes a receive of the other end.
    Completion,
    /// The operation changes memory that the other end polls.
    Memory,
    /// The other end does not notice the operation.
    Nothing,
}

/// Purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Delivery of the message to the receiver.
    Delivery,
    /// Report to the sender: buffers that the sender may reuse, or free space at the receiver.
    Release,
}

/// Dependence of an operation on flow control by credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credits {
    /// Posted with and without flow control by credits.
    Any,
    /// Posted only with flow control by credits. The operation carries or reports credits.
    With,
    /// Posted only without flow control by credits, in place of the [`With`](Self::With) operation.
    Without,
}

/// Step of a protocol: one operation that an end posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// End that posts the operation.
    pub by: End,
    /// Kind of the operation.
    pub operation: MessageKind,
    /// Payload of the operation.
    pub size: Size,
    /// Time at which the operation is posted.
    pub when: When,
    /// Relation of the operation to the step before.
    pub joined: Joined,
    /// Way in which the other end notices the operation.
    pub noticed: Noticed,
    /// Purpose of the operation.
    pub role: Role,
    /// Dependence of the operation on flow control by credits.
    pub credits: Credits,
}

impl Step {
    /// Creates a step that is posted separately, for delivery, with and without credits. If the operation consumes a
    /// receive, the other end notices the completion of the receive. Otherwise the other end does not notice the
    /// operation.
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

    /// Returns whether the step is part of the protocol if flow control by credits is on or off, as `credits` says.
    pub const fn is_part(&self, credits: bool) -> bool {
        match self.credits {
            Credits::Any => true,
            Credits::With => credits,
            Credits::Without => !credits,
        }
    }

    /// Returns whether the response to the operation carries data and not only an acknowledgement.
    pub const fn is_two_way(&self) -> bool {
        matches!(self.operation, MessageKind::Read) || self.is_atomic()
    }

    /// Returns whether the operation is atomic.
    pub const fn is_atomic(&self) -> bool {
        matches!(self.operation, MessageKind::CompareSwap | MessageKind::FetchAdd)
    }
}
