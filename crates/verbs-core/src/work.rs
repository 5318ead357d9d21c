//! Work requests as programs post them, and the checks that need no device.

use std::net::IpAddr;

use doorbell_wire::cost::{ATOMIC_BYTES, MAX_MESSAGE_BYTES};
use doorbell_wire::{PathMtu, QKey, Qpn, RKey};

use crate::memory::{Access, MemoryError, Sge, WindowBinding};
use crate::object::SrqId;
use crate::qp::{QpKind, QpState};

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

    /// Does it bring bytes from the peer?
    #[inline]
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Does it concern this device alone, so that nothing is sent?
    #[inline]
    pub fn is_local(self) -> bool {
        matches!(self, Self::BindWindow(_) | Self::LocalInvalidate(_))
    }

    /// Does a queue pair of this transport do it?
    #[inline]
    pub fn is_offered_by(self, kind: QpKind) -> bool {
        match kind {
            QpKind::Rc => true,
            QpKind::Uc => !self.is_read() && !matches!(self, Self::SendInvalidate(_)),
            QpKind::Ud => matches!(self, Self::Send | Self::SendImmediate(_)),
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
    /// Returns the address with default traffic class and hop limit.
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
    /// No such shared receive queue.
    #[error("there is no shared receive queue {}", .0.0)]
    UnknownSrq(SrqId),
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
    #[error("{given} B or more of inline data were given, the queue pair was created for at most {allowed} B")]
    InlineTooLong {
        /// Bytes up to and including the first piece that exceeded the limit.
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

/// What decides whether a queue pair takes a send work request, apart from its state and memory.
#[derive(Clone, Copy, Debug)]
pub struct SendRules {
    /// Transport.
    pub kind: QpKind,
    /// Scatter-gather elements of a request at most.
    pub max_sges: usize,
    /// Bytes of inline data at most.
    pub max_inline: usize,
    /// READs and atomics that it may have outstanding.
    pub max_rd_atomic: usize,
    /// The path MTU of a connection; of UD, the MTU of the port.
    pub mtu: PathMtu,
    /// Its device has an IPv4 address.
    pub is_ipv4: bool,
}

impl SendRules {
    /// Checks a request, and says how many bytes it moves. `memory` checks an element for what the request needs of
    /// it.
    ///
    /// # Errors
    ///
    /// The transport does not offer the operation; a UD request has no destination, or one of another address family; a
    /// request of a connected queue pair has one; the payload has too many elements, is too long for the queue pair or
    /// the transport, or does not suit the operation; READs and atomics are not allowed on this queue pair; or `memory`
    /// refuses an element.
    #[inline]
    pub fn check(
        &self,
        request: &SendRequest<'_>,
        memory: impl FnMut(&Sge, Access) -> Result<(), MemoryError>,
    ) -> Result<u64, PostErrorKind> {
        let operation = request.operation;
        if !operation.is_offered_by(self.kind) {
            return Err(PostErrorKind::UnsupportedOperation {
                transport: self.kind.name(),
                operation: operation.name(),
            });
        }
        match (self.kind, &request.destination) {
            (QpKind::Ud, None) => return Err(PostErrorKind::Destination("a UD work request needs a destination")),
            (QpKind::Ud, Some(to)) if to.address.destination.is_ipv4() != self.is_ipv4 => {
                return Err(PostErrorKind::Destination(
                    "the destination's address is of another family than this device's",
                ));
            }
            (QpKind::Ud, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                return Err(PostErrorKind::Destination("a connected queue pair has its destination already"));
            }
        }
        let length = match request.payload {
            Payload::Sges(sges) => {
                let needed = if operation.is_read() { Access::LOCAL_WRITE } else { Access::empty() };
                check_sges(sges, self.max_sges, needed, memory)?
            }
            Payload::Inline(bytes) => check_inline(operation, [bytes.len()], self.max_inline)? as u64,
        };
        if operation.is_local() && length > 0 {
            return Err(PostErrorKind::NoPayload(operation.name()));
        }
        let allowed = if self.kind == QpKind::Ud { self.mtu.bytes() as u64 } else { MAX_MESSAGE_BYTES };
        if length > allowed {
            return Err(PostErrorKind::MessageTooLong { given: length, allowed });
        }
        if operation.is_read() && self.max_rd_atomic == 0 {
            return Err(PostErrorKind::NoReadResources);
        }
        if matches!(operation, SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. })
            && length != ATOMIC_BYTES
        {
            return Err(PostErrorKind::AtomicLength(length));
        }
        Ok(length)
    }
}

/// Checks inline data by the lengths of its pieces, and returns their total. It stops at the first piece that exceeds the
/// limit, so no byte of data has to be read before.
///
/// # Errors
///
/// The operation returns bytes instead of sending them, or the pieces together are longer than `allowed`.
#[inline]
pub fn check_inline(
    operation: SendOperation,
    pieces: impl IntoIterator<Item = usize>,
    allowed: usize,
) -> Result<usize, PostErrorKind> {
    if operation.is_read() {
        return Err(PostErrorKind::InlineRead(operation.name()));
    }
    let mut given = 0_usize;
    for piece in pieces {
        given = given.saturating_add(piece);
        if given > allowed {
            return Err(PostErrorKind::InlineTooLong { given, allowed });
        }
    }
    Ok(given)
}

/// Checks the scatter-gather elements of a work request, and says how many bytes they have together.
///
/// # Errors
///
/// There are more elements than `allowed`, or `memory` refuses one ([`PostErrorKind::Memory`], which says which one).
#[inline]
pub fn check_sges(
    sges: &[Sge],
    allowed: usize,
    needed: Access,
    mut memory: impl FnMut(&Sge, Access) -> Result<(), MemoryError>,
) -> Result<u64, PostErrorKind> {
    if sges.len() > allowed {
        return Err(PostErrorKind::TooManySges { given: sges.len(), allowed });
    }
    let mut length = 0;
    for (index, sge) in sges.iter().enumerate() {
        memory(sge, needed).map_err(|error| PostErrorKind::Memory { index, error })?;
        length += u64::from(sge.length);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RC: SendRules = SendRules {
        kind: QpKind::Rc,
        max_sges: 2,
        max_inline: 8,
        max_rd_atomic: 1,
        mtu: PathMtu::Mtu1024,
        is_ipv4: true,
    };

    fn request(operation: SendOperation, payload: Payload<'_>) -> SendRequest<'_> {
        SendRequest { wr_id: 0, operation, flags: SendFlags::empty(), payload, destination: None }
    }

    #[test]
    fn each_transport_takes_its_operations_and_refuses_the_others() {
        let (remote_address, rkey) = (0, RKey::new(1));
        let all = [
            SendOperation::Send,
            SendOperation::SendImmediate(1),
            SendOperation::SendInvalidate(rkey),
            SendOperation::Write { remote_address, rkey },
            SendOperation::WriteImmediate { remote_address, rkey, immediate: 1 },
            SendOperation::Read { remote_address, rkey },
            SendOperation::CompareSwap { remote_address, rkey, compare: 0, swap: 1 },
            SendOperation::FetchAdd { remote_address, rkey, add: 1 },
            SendOperation::LocalInvalidate(rkey),
        ];
        let offered = |kind| all.map(|operation| if operation.is_offered_by(kind) { 'x' } else { '.' });
        assert_eq!(String::from_iter(offered(QpKind::Rc)), "xxxxxxxxx");
        assert_eq!(String::from_iter(offered(QpKind::Uc)), "xx.xx...x");
        assert_eq!(String::from_iter(offered(QpKind::Ud)), "xx.......");
    }

    #[test]
    fn a_check_says_how_long_a_request_is_or_what_is_wrong_with_it() {
        let sge = |length| Sge { address: 0, length, lkey: crate::LKey(1) };
        let good = |_: &Sge, _: Access| Ok(());
        let (two, three) = ([sge(3), sge(4)], [sge(1); 3]);
        assert_eq!(RC.check(&request(SendOperation::Send, Payload::Sges(&two)), good), Ok(7));
        assert_eq!(
            RC.check(&request(SendOperation::Send, Payload::Sges(&three)), good),
            Err(PostErrorKind::TooManySges { given: 3, allowed: 2 })
        );
        assert_eq!(
            RC.check(&request(SendOperation::Send, Payload::Inline(&[0; 9])), good),
            Err(PostErrorKind::InlineTooLong { given: 9, allowed: 8 })
        );
        let read = SendOperation::Read { remote_address: 0, rkey: RKey::new(1) };
        let error = MemoryError::UnknownKey { key: 1 };
        let mut needed = Access::empty();
        let bad = |_: &Sge, access| {
            needed = access;
            Err(error)
        };
        let refused = RC.check(&request(read, Payload::Sges(&two)), bad);
        assert_eq!(refused, Err(PostErrorKind::Memory { index: 0, error }));
        assert_eq!(needed, Access::LOCAL_WRITE, "a READ writes local memory");
        let add = SendOperation::FetchAdd { remote_address: 0, rkey: RKey::new(1), add: 1 };
        assert_eq!(RC.check(&request(add, Payload::Sges(&two)), good), Err(PostErrorKind::AtomicLength(7)));
        let none = SendRules { max_rd_atomic: 0, ..RC };
        assert_eq!(none.check(&request(read, Payload::Sges(&two)), good), Err(PostErrorKind::NoReadResources));
        let datagrams = SendRules { kind: QpKind::Ud, ..RC };
        let to = UdDestination {
            address: AddressVector::to(std::net::Ipv4Addr::LOCALHOST.into()),
            qpn: Qpn::new(2),
            qkey: QKey::new(0),
        };
        let datagram = |payload| SendRequest { destination: Some(to), ..request(SendOperation::Send, payload) };
        assert_eq!(datagrams.check(&datagram(Payload::Sges(&two)), good), Ok(7));
        assert_eq!(
            datagrams.check(&datagram(Payload::Sges(&[sge(1025)])), good),
            Err(PostErrorKind::MessageTooLong { given: 1025, allowed: 1024 })
        );
    }
}
