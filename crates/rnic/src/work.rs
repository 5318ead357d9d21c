//! Work requests as programs post them, and the queues that hold them.

use std::net::IpAddr;

use doorbell_wire::{Psn, QKey, Qpn, RKey};
use smallvec::SmallVec;

use crate::memory::{MemoryError, PdId, Sge, WindowBinding};
use crate::qp::{MAX_MESSAGE_BYTES, QpState};

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOperation {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImmediate(u32),
    /// SEND that invalidates a remote key of the peer.
    SendInvalidate(RKey),
    /// RDMA WRITE.
    Write {
        /// Where to.
        remote_address: u64,
        /// The peer's region.
        rkey: RKey,
    },
    /// RDMA WRITE that takes a receive of the peer to hand over immediate data.
    WriteImmediate {
        /// Where to.
        remote_address: u64,
        /// The peer's region.
        rkey: RKey,
        /// Immediate data.
        immediate: u32,
    },
    /// RDMA READ.
    Read {
        /// Where from.
        remote_address: u64,
        /// The peer's region.
        rkey: RKey,
    },
    /// Compare-and-swap of an aligned u64; the old value lands in the scatter-gather element.
    CompareSwap {
        /// Which word.
        remote_address: u64,
        /// The peer's region.
        rkey: RKey,
        /// Swap only if the word has this value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch-and-add of an aligned u64; the old value lands in the scatter-gather element.
    FetchAdd {
        /// Which word.
        remote_address: u64,
        /// The peer's region.
        rkey: RKey,
        /// What to add.
        add: u64,
    },
    /// Binds a memory window of this device (IBTA Vol 1, 10.6.7.2). Nothing is sent.
    BindWindow(WindowBinding),
    /// Takes the key of a bound memory window of this device back. Nothing is sent.
    LocalInvalidate(RKey),
}

impl SendOperation {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImmediate(_) => "SEND with immediate",
            Self::SendInvalidate(_) => "SEND with invalidate",
            Self::Write { .. } => "RDMA WRITE",
            Self::WriteImmediate { .. } => "RDMA WRITE with immediate",
            Self::Read { .. } => "RDMA READ",
            Self::CompareSwap { .. } => "compare-and-swap",
            Self::FetchAdd { .. } => "fetch-and-add",
            Self::BindWindow(_) => "binding a memory window",
            Self::LocalInvalidate(_) => "local invalidate",
        }
    }
}

bitflags::bitflags! {
    /// How a send work request is treated.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Make a completion when it is done.
        const SIGNALED = 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 2;
        /// Wait until all earlier READs and atomics are done (IBTA Vol 1, 10.8.3.3).
        const FENCE = 4;
    }
}

/// Where the bytes of a send work request are.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory (or, for READs and atomics, where they are to go).
    Sges(&'a [Sge]),
    /// Here: they are copied when the request is posted.
    Inline(&'a [u8]),
}

/// Where a UD work request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The device.
    pub address: AddressVector,
    /// The queue pair.
    pub qpn: Qpn,
    /// The Q_Key that the receiver checks. One with its highest bit set stands for the Q_Key that the sending
    /// queue pair has when the datagram leaves (IBTA Vol 1, 10.2.5).
    pub qkey: QKey,
}

/// How to reach a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// Its address (the GID, unmapped).
    pub destination: IpAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
}

impl AddressVector {
    /// The address with default traffic class and hop limit.
    pub fn to(destination: IpAddr) -> Self {
        Self { destination, traffic_class: 0, hop_limit: 64 }
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// How.
    pub flags: SendFlags,
    /// With which bytes.
    pub payload: Payload<'a>,
    /// Where to, on a UD queue pair.
    pub destination: Option<UdDestination>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: &'a [Sge],
}

/// Why a work request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    UnknownQp(Qpn),
    /// The state does not allow posting.
    #[error("a queue pair in state {state:?} does not take {what}: it needs {allowed}")]
    WrongState {
        /// The state.
        state: QpState,
        /// What was posted.
        what: &'static str,
        /// States that do.
        allowed: &'static str,
    },
    /// The queue is full.
    #[error("the {queue} is full: it was created for {depth} outstanding work requests")]
    QueueFull {
        /// Which queue.
        queue: &'static str,
        /// How many it holds.
        depth: usize,
    },
    /// Too many scatter-gather elements.
    #[error("{given} scatter-gather elements were given, the queue was created for at most {allowed}")]
    TooManySges {
        /// How many were given.
        given: usize,
        /// How many are allowed.
        allowed: usize,
    },
    /// Too much inline data.
    #[error("{given} B of inline data were given, the queue pair was created for at most {allowed} B")]
    InlineTooLong {
        /// How much was given.
        given: usize,
        /// How much is allowed.
        allowed: usize,
    },
    /// The message is longer than the transport allows.
    #[error("a message of {given} B is longer than the {allowed} B that this queue pair may send")]
    MessageTooLong {
        /// How long it is.
        given: u64,
        /// How long it may be.
        allowed: u64,
    },
    /// The transport does not have the operation.
    #[error("a {transport} queue pair does not do {operation}")]
    UnsupportedOperation {
        /// RC, UC or UD.
        transport: &'static str,
        /// What was asked for.
        operation: &'static str,
    },
    /// A UD request without destination, or a connected one with.
    #[error("{0}")]
    Destination(&'static str),
    /// An atomic needs exactly eight bytes of room for the old value.
    #[error("an atomic operation needs room for exactly 8 B, got {0} B")]
    AtomicLength(u64),
    /// READs and atomics need somewhere to put the answer.
    #[error("inline data makes no sense for {0}: it brings bytes, it does not take them")]
    InlineRead(&'static str),
    /// Memory windows are bound and invalidated without bytes.
    #[error("{0} moves no bytes, so it takes none: neither scatter-gather elements nor inline data")]
    NoPayload(&'static str),
    /// READs and atomics on a queue pair with `max_rd_atomic` 0.
    #[error("the queue pair was set up with max_rd_atomic 0, so it may not issue READs or atomics")]
    NoReadResources,
    /// The queue pair takes its receives from a shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue: post there")]
    UsesSharedReceiveQueue,
    /// An RNIC that is not ours does not take it.
    #[error("the RNIC refuses it: {}", refusal(*errno))]
    Refused {
        /// What it says.
        errno: i32,
    },
    /// A scatter-gather element may not be used so.
    #[error("scatter-gather element {index}: {error}")]
    Memory {
        /// Which element.
        index: usize,
        /// Why.
        error: MemoryError,
    },
}

/// What an error number means, and what is to be done about it where that is known.
pub(crate) fn refusal(errno: i32) -> String {
    use std::io::{Error, ErrorKind};
    let error = Error::from_raw_os_error(errno);
    let advice = match error.kind() {
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            "; from this GID there is no way to the peer's: give the network interface an address, or choose another GID"
        }
        _ => "",
    };
    format!("{error}{advice}")
}

/// A list of work requests was accepted up to, and not including, `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the list was not accepted: {kind}")]
pub struct PostError {
    /// The first that was not accepted; those before it were.
    pub index: usize,
    /// Why.
    pub kind: PostErrorKind,
}

/// A send work request as the queue holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) flags: SendFlags,
    pub(crate) inline: bool,
    pub(crate) sges: u8,
    pub(crate) length: u32,
    /// Sequence numbers that it takes: request packets, or response packets of a READ; none if it
    /// concerns only this device.
    pub(crate) packets: u32,
    /// Valid once the first packet was sent.
    pub(crate) first_psn: Psn,
    /// READ: response packets that arrived.
    pub(crate) received: u32,
}

/// The send queue: a ring with places for exactly as many requests as were asked for.
#[derive(Debug)]
pub(crate) struct SendQueue {
    wqes: Box<[Option<SendWqe>]>,
    mask: usize,
    depth: usize,
    sges: Box<[Sge]>,
    pub(crate) max_sges: usize,
    inline: Box<[u8]>,
    pub(crate) max_inline: usize,
    destinations: Box<[Option<UdDestination>]>,
    /// The oldest request that is not done.
    pub(crate) head: u64,
    /// Where the next request goes.
    pub(crate) tail: u64,
}

impl SendQueue {
    pub(crate) fn new(depth: usize, max_sges: usize, max_inline: usize, ud: bool) -> Self {
        let slots = depth.next_power_of_two();
        Self {
            wqes: vec![None; slots].into(),
            mask: slots - 1,
            depth,
            sges: vec![Sge::default(); slots * max_sges].into(),
            max_sges,
            inline: vec![0; slots * max_inline].into(),
            max_inline,
            destinations: vec![None; if ud { slots } else { 0 }].into(),
            head: 0,
            tail: 0,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.depth
    }

    fn slot(&self, index: u64) -> usize {
        index as usize & self.mask
    }

    #[inline]
    pub(crate) fn push(&mut self, wqe: SendWqe, payload: Payload<'_>, destination: Option<UdDestination>) {
        let slot = self.slot(self.tail);
        match payload {
            Payload::Sges(sges) => {
                let start = slot * self.max_sges;
                self.sges[start..start + sges.len()].copy_from_slice(sges);
            }
            Payload::Inline(bytes) => {
                let start = slot * self.max_inline;
                self.inline[start..start + bytes.len()].copy_from_slice(bytes);
            }
        }
        if let Some(place) = self.destinations.get_mut(slot) {
            *place = destination;
        }
        self.wqes[slot] = Some(wqe);
        self.tail += 1;
    }

    /// Takes back the requests that were pushed last.
    pub(crate) fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            self.tail -= 1;
            let slot = self.slot(self.tail);
            self.wqes[slot] = None;
        }
    }

    /// The request with this index, which must lie between head and tail.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> &SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        self.wqes[self.slot(index)].as_ref().expect("requests between head and tail are there")
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u64) -> &mut SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        let slot = self.slot(index);
        self.wqes[slot].as_mut().expect("requests between head and tail are there")
    }

    pub(crate) fn sges_of(&self, index: u64) -> &[Sge] {
        let slot = self.slot(index);
        let start = slot * self.max_sges;
        &self.sges[start..start + usize::from(self.get(index).sges)]
    }

    pub(crate) fn inline_of(&self, index: u64) -> &[u8] {
        let slot = self.slot(index);
        let start = slot * self.max_inline;
        &self.inline[start..start + self.get(index).length as usize]
    }

    pub(crate) fn destination_of(&self, index: u64) -> Option<UdDestination> {
        self.destinations.get(self.slot(index)).copied().flatten()
    }

    pub(crate) fn pop(&mut self) -> SendWqe {
        let slot = self.slot(self.head);
        self.head += 1;
        self.wqes[slot].take().expect("requests between head and tail are there")
    }
}

/// Scatter-gather elements of a receive. More than two are kept on the heap.
pub(crate) type SgeList = SmallVec<[Sge; 2]>;

/// A receive work request as a queue holds it.
#[derive(Clone, Debug)]
pub struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) pd: PdId,
    pub(crate) length: u64,
    pub(crate) sges: SgeList,
}

impl RecvWqe {
    pub(crate) fn new(pd: PdId, request: &RecvRequest<'_>) -> Self {
        Self {
            wr_id: request.wr_id,
            pd,
            // No message is longer, whatever room there is (IBTA Vol 1, 9.4.1).
            length: request.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>().min(MAX_MESSAGE_BYTES),
            sges: SgeList::from_slice(request.sges),
        }
    }
}
