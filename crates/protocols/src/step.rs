//! What ends post, as data.

use doorbell_wire::MessageKind;

/// An end of a connection, for messages of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// It sends messages.
    Sender,
    /// It receives them.
    Receiver,
}

impl End {
    /// Returns the other one.
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
    /// The message.
    Message {
        /// Bytes that travel beside it: its length, a signal byte.
        beside: u64,
    },
    /// This many bytes, whatever the message.
    Fixed(u64),
    /// All messages that are new.
    AllNew {
        /// Bytes beside each of them.
        beside: u64,
        /// Each message, with what is beside it, takes a multiple of this.
        unit: u64,
    },
    /// This many bytes for each buffer that the operation tells of: for one, or for all that are free.
    Entries(u64),
}

impl Size {
    /// Returns the bytes of one operation that carries or tells of `count` messages of `bytes` each.
    pub const fn bytes(self, bytes: u64, count: u64) -> u64 {
        match self {
            Self::Message { beside } => bytes + beside,
            Self::Fixed(fixed) => fixed,
            Self::AllNew { beside, unit } => count * (bytes + beside).next_multiple_of(unit),
            Self::Entries(entry) => count * entry,
        }
    }

    /// Does the operation carry messages?
    pub const fn carries_messages(self) -> bool {
        matches!(self, Self::Message { .. } | Self::AllNew { .. })
    }
}

/// When an operation is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// With each message.
    Message,
    /// Once for all messages of one post: from one to a batch.
    Post,
    /// Once for all messages that wait: from one to a window.
    Waiting,
    /// Once for all new messages for which the receiver has room: from a part of one to a window.
    Pulled,
    /// Once for all completions of messages that one poll takes.
    Reap,
    /// When enough messages were freed, or the other end has no space left.
    Freed {
        /// Enough is one of so many parts of the receiver's space,
        parts: u32,
        /// or this many messages, if that is less.
        most: u32,
    },
    /// By polling, one operation at a time, while one of so many parts of the receiver's space is used.
    Short {
        /// 2 asks ahead of need, 1 asks once a message does not fit.
        parts: u32,
    },
    /// By polling, one operation at a time, also when nothing happens.
    Polled,
}

impl When {
    /// Messages whose space is reported at once, where the receiver has space for `depth` messages and all are freed
    /// in time. `None` if the operation reports no space, or reports whatever is free when the sender asks.
    pub fn freed_at_once(self, depth: u32) -> Option<u32> {
        match self {
            Self::Freed { parts, most } => Some((depth / parts.max(1)).min(most).max(1)),
            _ => None,
        }
    }

    /// How often the operation is to be expected per message, where messages flow in full batches and the receiver has
    /// space for `depth` of them.
    pub fn per_message(self, batch: u32, depth: u32) -> f64 {
        match self {
            Self::Message => 1.0,
            Self::Post | Self::Waiting | Self::Pulled | Self::Reap | Self::Polled => 1.0 / f64::from(batch.max(1)),
            Self::Freed { .. } => 1.0 / f64::from(self.freed_at_once(depth).unwrap_or(1)),
            Self::Short { parts } => (f64::from(parts) / f64::from(depth.max(1))).min(1.0),
        }
    }
}

/// How an operation is posted with respect to the step before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// By itself, or with others of its kind.
    Alone,
    /// In the same post, right behind it. RC keeps WRITEs and SENDs in order (IBTA Vol 1, 10.8.3.3).
    Chained,
    /// In the same post, with the fence flag: it begins once the READ or atomic before it is complete.
    Fenced {
        /// The end that posts both waits for the completion of this operation, which says that the one before is
        /// complete too. Otherwise it waits for the one before.
        awaited: bool,
    },
}

/// How the other end notices an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// It completes a receive there.
    Completion,
    /// The other end polls memory.
    Memory,
    /// It does not notice the operation.
    Nothing,
}

/// What an operation is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Without it the receiver does not have the message.
    Delivery,
    /// It tells the sender which buffers it may use again, or that the receiver has space.
    Release,
}

/// Whether an operation depends on flow control by credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credits {
    /// It is posted with credits or without.
    Any,
    /// It needs credits: it carries them, or reports them.
    With,
    /// It takes the place of one that needs credits.
    Without,
}

/// One operation of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The end that posts it.
    pub by: End,
    /// The operation.
    pub operation: MessageKind,
    /// Its payload.
    pub size: Size,
    /// When it is posted.
    pub when: When,
    /// How it is posted with respect to the step before.
    pub joined: Joined,
    /// How the other end notices it.
    pub noticed: Noticed,
    /// What it is there for.
    pub role: Role,
    /// Whether it depends on credits.
    pub credits: Credits,
}

impl Step {
    /// Alone, for delivery, whatever the credits; noticed by a completion if it takes a receive, and not at all
    /// otherwise.
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

    /// Is it posted at all, with or without credits?
    pub const fn is_part(&self, credits: bool) -> bool {
        match self.credits {
            Credits::Any => true,
            Credits::With => credits,
            Credits::Without => !credits,
        }
    }

    /// Does data come back, instead of an acknowledgement?
    pub const fn is_two_way(&self) -> bool {
        matches!(self.operation, MessageKind::Read) || self.is_atomic()
    }

    /// Is it an atomic operation?
    pub const fn is_atomic(&self) -> bool {
        matches!(self.operation, MessageKind::CompareSwap | MessageKind::FetchAdd)
    }
}
