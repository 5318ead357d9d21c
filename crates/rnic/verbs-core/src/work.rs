//! Work requests as programs post them, and checks that need no device.

use doorbell_wire::cost::{ATOMIC_BYTES, MAX_MESSAGE_BYTES};
use doorbell_wire::{PathMtu, QKey, Qpn, RKey};

use crate::address::AddressVector;
use crate::completion::CompletionOpcode;
use crate::memory::{Access, MemoryError, Sge, WindowBinding};
use crate::object::{SrqId, refusal};
use crate::qp::{QpKind, QpState};

/// Operation of a send work request.
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
        /// Address at the peer.
        remote_address: u64,
        /// Key of the peer's region.
        rkey: RKey,
    },
    /// RDMA WRITE with immediate data, which consumes a receive of the peer.
    WriteImmediate {
        /// Address at the peer.
        remote_address: u64,
        /// Key of the peer's region.
        rkey: RKey,
        /// Immediate data.
        immediate: u32,
    },
    /// RDMA READ.
    Read {
        /// Address at the peer.
        remote_address: u64,
        /// Key of the peer's region.
        rkey: RKey,
    },
    /// Compare-and-swap of an aligned u64. The scatter-gather element receives the old value.
    CompareSwap {
        /// Address of the word at the peer.
        remote_address: u64,
        /// Key of the peer's region.
        rkey: RKey,
        /// Value that the word must have for the swap.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Fetch-and-add of an aligned u64. The scatter-gather element receives the old value.
    FetchAdd {
        /// Address of the word at the peer.
        remote_address: u64,
        /// Key of the peer's region.
        rkey: RKey,
        /// Value to add.
        add: u64,
    },
    /// Binding of a memory window of this device (IBTA Vol 1, 10.6.7.2). Sends no packet.
    BindWindow(WindowBinding),
    /// Invalidation of the key of a bound memory window of this device. Sends no packet.
    LocalInvalidate(RKey),
}

impl SendOperation {
    /// Returns the name of the operation.
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

    /// Returns the kind of the completion of the operation.
    #[inline]
    pub fn completion_opcode(self) -> CompletionOpcode {
        match self {
            Self::Send | Self::SendImmediate(_) | Self::SendInvalidate(_) => CompletionOpcode::Send,
            Self::Write { .. } | Self::WriteImmediate { .. } => CompletionOpcode::Write,
            Self::Read { .. } => CompletionOpcode::Read,
            Self::CompareSwap { .. } => CompletionOpcode::CompareSwap,
            Self::FetchAdd { .. } => CompletionOpcode::FetchAdd,
            Self::BindWindow(_) => CompletionOpcode::BindWindow,
            Self::LocalInvalidate(_) => CompletionOpcode::LocalInvalidate,
        }
    }

    /// Returns whether the response of the peer carries data: the operation is a READ or an atomic operation.
    #[inline]
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Returns whether the operation concerns only this device and sends no packet.
    #[inline]
    pub fn is_local(self) -> bool {
        matches!(self, Self::BindWindow(_) | Self::LocalInvalidate(_))
    }

    /// Returns whether queue pairs of this transport support the operation.
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
    /// Flags of a send work request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Generate a completion.
        const SIGNALED = 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 2;
        /// Wait until all earlier READs and atomics are complete (IBTA Vol 1, 10.8.3.3).
        const FENCE = 4;
    }
}

/// Local data of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory. A READ or an atomic operation writes to this memory, all other operations read from it.
    Sges(&'a [Sge]),
    /// Inline data, which the device copies when the request is posted.
    Inline(&'a [u8]),
}

/// Destination of a UD work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// Path to the destination device.
    pub address: AddressVector,
    /// Number of the destination queue pair.
    pub qpn: Qpn,
    /// Q_Key that the receiver checks. A value with the highest bit set stands for the Q_Key of the sending queue
    /// pair at the time of sending (IBTA Vol 1, 10.2.5).
    pub qkey: QKey,
}

/// Send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Number that the program chooses. The completion contains it.
    pub wr_id: u64,
    /// Operation.
    pub operation: SendOperation,
    /// Flags.
    pub flags: SendFlags,
    /// Data to send; for a READ or an atomic operation, the memory for the response.
    pub payload: Payload<'a>,
    /// Destination of a UD work request; `None` for a connected queue pair.
    pub destination: Option<UdDestination>,
}

/// Receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Number that the program chooses. The completion contains it.
    pub wr_id: u64,
    /// Memory for the received bytes.
    pub sges: &'a [Sge],
}

/// Reason why a work request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue pair does not exist.
    #[error("there is no queue pair {0}")]
    UnknownQp(Qpn),
    /// The shared receive queue does not exist.
    #[error("there is no shared receive queue {}", .0.0)]
    UnknownSrq(SrqId),
    /// The state of the queue pair does not accept the request.
    #[error("a queue pair in state {state:?} does not accept {what}: the state must be {allowed}")]
    WrongState {
        /// Current state.
        state: QpState,
        /// Kind of the request.
        what: &'static str,
        /// States that accept the request.
        allowed: &'static str,
    },
    /// The queue is full.
    #[error("the {queue} is full: it was created for {depth} outstanding work requests")]
    QueueFull {
        /// Name of the queue.
        queue: &'static str,
        /// Depth of the queue.
        depth: usize,
    },
    /// The request has too many scatter-gather elements.
    #[error("{given} scatter-gather elements were given, but the queue was created for at most {allowed}")]
    TooManySges {
        /// Given number.
        given: usize,
        /// Maximum.
        allowed: usize,
    },
    /// The request has too much inline data.
    #[error("{given} B or more of inline data were given, but the queue pair was created for at most {allowed} B")]
    InlineTooLong {
        /// Bytes of inline data that were counted. Counting stops at the piece that exceeds the limit, so further
        /// pieces may exist.
        given: usize,
        /// Maximum.
        allowed: usize,
    },
    /// The message is longer than the transport permits.
    #[error("a message of {given} B is longer than the {allowed} B that this queue pair may send")]
    MessageTooLong {
        /// Given length.
        given: u64,
        /// Maximum.
        allowed: u64,
    },
    /// The transport does not support the operation.
    #[error("a {transport} queue pair does not support {operation}")]
    UnsupportedOperation {
        /// RC, UC or UD.
        transport: &'static str,
        /// Requested operation.
        operation: &'static str,
    },
    /// A UD request has no destination, or a request of a connected queue pair has one.
    #[error("{0}")]
    Destination(&'static str),
    /// The memory for the old value of an atomic operation does not have eight bytes.
    #[error(
        "the scatter-gather elements of an atomic operation have {0} B, but must have exactly 8 B for the old value"
    )]
    AtomicLength(u64),
    /// A READ or an atomic operation has inline data instead of memory for the response.
    #[error("inline data is not allowed for {0}: the response needs registered memory")]
    InlineRead(&'static str),
    /// A memory window operation has a payload.
    #[error("{0} has no payload: neither scatter-gather elements nor inline data are allowed")]
    NoPayload(&'static str),
    /// A READ or an atomic operation was posted on a queue pair with `max_rd_atomic` 0.
    #[error("max_rd_atomic of the queue pair is 0, but READs and atomics need at least 1")]
    NoReadResources,
    /// The queue pair uses a shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue: post receives to that queue")]
    UsesSharedReceiveQueue,
    /// A hardware RNIC rejected the request.
    #[error("the RNIC refuses the work request: {}", refusal(*errno))]
    Refused {
        /// Error number from the RNIC.
        errno: i32,
    },
    /// The memory of a scatter-gather element does not permit the access.
    #[error("scatter-gather element {index}: {error}")]
    Memory {
        /// Index of the element.
        index: usize,
        /// Reason.
        error: MemoryError,
    },
}

/// Rejection of one work request of a list. The device accepted the requests before `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the list was not accepted: {kind}")]
pub struct PostError {
    /// Index of the first rejected request.
    pub index: usize,
    /// Reason.
    pub kind: PostErrorKind,
}

/// Properties of a queue pair that decide which send work requests it accepts. The state of the queue pair and the
/// registered memory are checked elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct SendRules {
    /// Transport.
    pub kind: QpKind,
    /// Maximum number of scatter-gather elements of a request.
    pub max_sges: usize,
    /// Maximum bytes of inline data.
    pub max_inline: usize,
    /// Maximum number of outstanding READs and atomics.
    pub max_rd_atomic: usize,
    /// Path MTU of a connected queue pair; for UD, the active MTU of the port.
    pub mtu: PathMtu,
    /// Whether the address of the device is IPv4. UD destinations must have the same address family.
    pub is_ipv4: bool,
}

impl SendRules {
    /// Checks a request and returns the number of bytes that the request transfers. `memory` is called for each
    /// scatter-gather element and checks that the element's memory permits the access.
    ///
    /// # Errors
    ///
    /// The request is rejected if:
    ///
    /// - the transport does not support the operation,
    /// - a UD request has no destination, or a destination of another address family,
    /// - a request of a connected queue pair has a destination,
    /// - the payload has too many elements, is too long for the queue pair or the transport, or does not match the
    ///   operation,
    /// - the queue pair does not permit READs and atomics,
    /// - `memory` rejects an element.
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
                    "the address families of the destination and of this device differ",
                ));
            }
            (QpKind::Ud, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                return Err(PostErrorKind::Destination(
                    "a work request of a connected queue pair must have no destination",
                ));
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

/// Adds the lengths of the pieces of inline data and returns their sum. Stops when the sum exceeds `allowed`. The
/// function needs only lengths, so the caller can reject a request before it reads any data.
///
/// # Errors
///
/// The operation is a READ or an atomic operation, which must not have inline data, or the sum of the pieces exceeds
/// `allowed`.
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

/// Checks the scatter-gather elements of a work request and returns the sum of their lengths.
///
/// # Errors
///
/// The number of elements exceeds `allowed`, or `memory` rejects an element ([`PostErrorKind::Memory`] with its
/// index).
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
    fn check_returns_the_length_of_a_request_or_its_error() {
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
