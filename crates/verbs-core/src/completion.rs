//! Completions.

use std::sync::Arc;

use doorbell_wire::{Qpn, RKey};

/// How a work request ended (IBTA Vol 1, 10.10.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    #[default]
    Success,
    /// A message is longer than the receive, or than the path allows.
    LocalLength,
    /// An inconsistency inside the queue pair.
    LocalQpOperation,
    /// A scatter-gather element names memory that may not be used so.
    LocalProtection,
    /// The queue pair left its working states before the request was carried out.
    WorkRequestFlushed,
    /// The peer answered with something that the request does not allow.
    BadResponse,
    /// A memory window could not be bound or invalidated.
    MemoryWindowBind,
    /// A local access error on the responder's side.
    LocalAccess,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer refused access to its memory.
    RemoteAccess,
    /// The peer could not carry the request out.
    RemoteOperation,
    /// The peer did not answer within the configured retries.
    RetryExceeded,
    /// The peer had no receive posted within the configured RNR retries.
    RnrRetryExceeded,
}

impl Status {
    /// Returns a sentence for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error: the message is longer than the receive posted for it",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error: a scatter-gather element may not be used so",
            Self::WorkRequestFlushed => "flushed: the queue pair went to the error state first",
            Self::BadResponse => "bad response: the peer answered what the request does not allow",
            Self::MemoryWindowBind => "memory window error: it may not be bound or invalidated so",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request: the peer found the request invalid",
            Self::RemoteAccess => "remote access error: the peer refused access to its memory",
            Self::RemoteOperation => "remote operation error: the peer could not carry the request out",
            Self::RetryExceeded => "retry count exceeded: the peer does not answer",
            Self::RnrRetryExceeded => "RNR retry count exceeded: the peer has no receive posted",
        }
    }
}

/// What a completion tells of.
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
    /// A memory window that was bound.
    BindWindow,
    /// A memory window whose key was taken back.
    LocalInvalidate,
    /// A receive that took a SEND.
    Receive,
    /// A receive that took the immediate of an RDMA WRITE.
    ReceiveWriteImmediate,
}

/// What came with a message beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Immediate(u32),
    /// The remote key that the message invalidated.
    Invalidated(RKey),
}

/// A work completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The number that the program gave the work request.
    pub wr_id: u64,
    /// How it ended. If not success, only `wr_id`, `qpn` and this are meaningful.
    pub status: Status,
    /// What it was.
    pub opcode: CompletionOpcode,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The first 40 bytes of the receive are a global routing header (UD).
    pub has_grh: bool,
    /// Bytes transferred.
    pub byte_len: u32,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair (UD).
    pub source_qpn: Qpn,
    /// Immediate data or an invalidated key.
    pub attachment: Attachment,
    /// When it came about, on the device's clock.
    pub timestamp_ns: u64,
}

/// Which completions raise the next notification (IBTA Vol 1, 11.4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next one.
    Next,
    /// The next that is solicited or an error.
    Solicited,
}

impl Notify {
    /// Does this completion raise it?
    #[inline]
    pub fn asks_for(self, completion: &Completion) -> bool {
        self == Self::Next || completion.solicited || completion.status != Status::Success
    }
}

/// Called when a notification is due. It must not call back into the RNIC.
pub type Notifier = Arc<dyn Fn() + Send + Sync>;

/// The completion queue is full, and a completion had to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue overran: more completions than its depth were not reaped in time")]
pub struct Overrun;
