//! Completions.

use std::sync::Arc;

use doorbell_wire::{Qpn, RKey};

/// Result of a work request (IBTA Vol 1, 10.10.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The work request succeeded.
    #[default]
    Success,
    /// The message is longer than the posted receive, or longer than the queue pair may send.
    LocalLength,
    /// The queue pair found an inconsistency in its own state.
    LocalQpOperation,
    /// The memory of a scatter-gather element does not permit the access.
    LocalProtection,
    /// The queue pair entered the error state before it executed the request.
    WorkRequestFlushed,
    /// The response of the peer does not match the request.
    BadResponse,
    /// The binding or invalidation of a memory window failed.
    MemoryWindowBind,
    /// The responder had no access to its own memory for an RDMA WRITE with immediate, or could not invalidate the key
    /// in a SEND with invalidate.
    LocalAccess,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer denied access to its memory.
    RemoteAccess,
    /// The peer failed to execute the request.
    RemoteOperation,
    /// The peer did not answer within the configured retries.
    RetryExceeded,
    /// The peer had no posted receive within the configured RNR retries.
    RnrRetryExceeded,
}

impl Status {
    /// Returns a description for users.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error: the message is longer than the receive posted for it",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => {
                "local protection error: the memory of a scatter-gather element does not permit the access"
            }
            Self::WorkRequestFlushed => {
                "flushed: the queue pair entered the error state before it executed the request"
            }
            Self::BadResponse => "bad response: the response of the peer does not match the request",
            Self::MemoryWindowBind => "memory window error: the binding or invalidation of the window failed",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request: the peer found the request invalid",
            Self::RemoteAccess => "remote access error: the peer denied access to its memory",
            Self::RemoteOperation => "remote operation error: the peer failed to execute the request",
            Self::RetryExceeded => "retry count exceeded: the peer does not answer",
            Self::RnrRetryExceeded => "RNR retry count exceeded: the peer has no receive posted",
        }
    }
}

/// Kind of a completed work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CompletionOpcode {
    /// A SEND, with or without immediate.
    #[default]
    Send,
    /// An RDMA WRITE, with or without immediate.
    Write,
    /// An RDMA READ.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// Binding of a memory window.
    BindWindow,
    /// Local invalidation of the key of a memory window.
    LocalInvalidate,
    /// A receive of a SEND.
    Receive,
    /// A receive of the immediate data of an RDMA WRITE.
    ReceiveWriteImmediate,
}

/// Data that a message carries in addition to its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// No data.
    #[default]
    None,
    /// Immediate data.
    Immediate(u32),
    /// Remote key that the message invalidated.
    Invalidated(RKey),
}

/// Work completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Number that the program assigned to the work request.
    pub wr_id: u64,
    /// Result. If it is not [`Status::Success`], only `wr_id`, `qpn` and `status` are valid.
    pub status: Status,
    /// Kind of the work request.
    pub opcode: CompletionOpcode,
    /// Whether the sender set the flag for a solicited event.
    pub solicited: bool,
    /// Whether the first 40 bytes of the receive are a global routing header (UD).
    pub has_grh: bool,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Local queue pair.
    pub qpn: Qpn,
    /// Sender's queue pair (UD).
    pub source_qpn: Qpn,
    /// Immediate data or invalidated key.
    pub attachment: Attachment,
    /// Time of the completion on the device's clock.
    pub timestamp_ns: u64,
}

/// Completions that raise the next notification (IBTA Vol 1, 11.4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next completion that is solicited or an error.
    Solicited,
}

impl Notify {
    /// Returns whether this completion raises the notification.
    #[inline]
    pub fn asks_for(self, completion: &Completion) -> bool {
        self == Self::Next || completion.solicited || completion.status != Status::Success
    }
}

/// Function that the RNIC calls when a notification is due. The function must not call back into the RNIC.
pub type Notifier = Arc<dyn Fn() + Send + Sync>;

/// The completion queue was full and lost at least one completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overran: the program must reap completions before they exceed the depth of the queue")]
pub struct Overrun;
