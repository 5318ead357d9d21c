//! Cost of a message in packets and bytes.
//!
//! # Sizes
//!
//! Counters of RDMA traffic count Ethernet frames without preamble, FCS and gap (*frame bytes*). Every packet over
//! IPv4 carries 58 bytes around its extension headers and payload: Ethernet 14, IPv4 20, UDP 8, BTH 12 and ICRC 4.
//! The table lists the resulting frames:
//!
//! | frame | bytes | sum |
//! |---|---|---|
//! | zero-length WRITE | 74 | 58 + RETH 16 |
//! | WRITE of 1 to 4 bytes | 78 | 74 + payload padded to 4 |
//! | WRITE of 5 to 8 bytes | 82 | 74 + payload padded to 8 |
//! | ACK | 62 | 58 + AETH 4 |
//! | SEND of 1 to 4 bytes | 62 | 58 + payload padded to 4: the same size as an ACK |
//! | middle packet at path MTU 4096 | 4154 | 58 + 4096 |
//!
//! Only the first packet of a WRITE carries the RETH, and only the last packet carries immediate data. A WRITE of 1
//! MiB at path MTU 4096 therefore has 4154 + 16/256 = 4154.0625 bytes per packet on average.
//!
//! On the line (*line bytes*), each frame also takes preamble 8, FCS 4 and gap 12. A frame below 60 bytes is padded
//! to 60. The goodput of long messages at path MTU 4096 is 4096/4178 = 98.04 % of the line rate.
//!
//! ```
//! use doorbell_wire::{MessageKind, OuterKind, PathMtu, Transport, message_cost};
//!
//! let (kind, outer) = (MessageKind::Write, OuterKind::IPV4);
//! let cost = message_cost(kind, Transport::Rc, 1 << 20, PathMtu::Mtu4096, outer)?;
//! assert_eq!(cost.request.packets, 256);
//! assert_eq!(cost.request.frame_bytes, 256 * 4154 + 16);
//! # Ok::<(), doorbell_wire::CostError>(())
//! ```

use core::cmp::Ordering;
use core::fmt;

use crate::{
    BTH_LEN, ETHERNET_LEN, FCS_LEN, GAP_LEN, ICRC_LEN, IPV4_LEN, IPV6_LEN, IpVersion, MIN_FRAME_LEN, Opcode,
    PREAMBLE_LEN, PathMtu, Transport, UDP_LEN, VLAN_LEN,
};

/// Maximum bytes of a message that IBTA allows.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// Bytes that an atomic operation reads and writes.
pub const ATOMIC_BYTES: u64 = 8;

/// Operation of a message, as in a work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MessageKind {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND with invalidate.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

impl MessageKind {
    /// All kinds.
    pub const ALL: [MessageKind; 8] = [
        MessageKind::Send,
        MessageKind::SendImm,
        MessageKind::SendInv,
        MessageKind::Write,
        MessageKind::WriteImm,
        MessageKind::Read,
        MessageKind::CompareSwap,
        MessageKind::FetchAdd,
    ];
}

/// Writes IBTA's name.
impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MessageKind::Send => "SEND",
            MessageKind::SendImm => "SEND with immediate",
            MessageKind::SendInv => "SEND with invalidate",
            MessageKind::Write => "WRITE",
            MessageKind::WriteImm => "WRITE with immediate",
            MessageKind::Read => "READ",
            MessageKind::CompareSwap => "CAS",
            MessageKind::FetchAdd => "FETCH_ADD",
        })
    }
}

/// Headers before the BTH of each packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OuterKind {
    /// Version of the IP header.
    pub ip: IpVersion,
    /// Whether the Ethernet header has a VLAN tag.
    pub vlan: bool,
}

impl OuterKind {
    /// IPv4 without VLAN tag.
    pub const IPV4: OuterKind = OuterKind { ip: IpVersion::V4, vlan: false };

    /// IPv6 without VLAN tag.
    pub const IPV6: OuterKind = OuterKind { ip: IpVersion::V6, vlan: false };

    /// Returns the same headers with a VLAN tag.
    pub const fn with_vlan(self) -> OuterKind {
        OuterKind { vlan: true, ..self }
    }

    /// Returns the frame bytes before the BTH.
    pub const fn header_len(self) -> usize {
        let ip = match self.ip {
            IpVersion::V4 => IPV4_LEN,
            IpVersion::V6 => IPV6_LEN,
        };
        let vlan = if self.vlan { VLAN_LEN } else { 0 };
        ETHERNET_LEN + vlan + ip + UDP_LEN
    }
}

/// Packets and bytes that a message sends in one direction of the link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Direction {
    /// Packets.
    pub packets: u64,
    /// Bytes of Ethernet frames as counters report them: without preamble, FCS and gap.
    pub frame_bytes: u64,
    /// Bytes that occupy the line: frames padded to 60 bytes, with preamble, FCS and gap.
    pub line_bytes: u64,
}

impl Direction {
    const fn frames(packets: u64, frame_len: u64) -> Direction {
        let on_line = if frame_len < MIN_FRAME_LEN as u64 { MIN_FRAME_LEN as u64 } else { frame_len };
        Direction {
            packets,
            frame_bytes: packets * frame_len,
            line_bytes: packets * (on_line + (PREAMBLE_LEN + FCS_LEN + GAP_LEN) as u64),
        }
    }

    const fn plus(self, other: Direction) -> Direction {
        Direction {
            packets: self.packets + other.packets,
            frame_bytes: self.frame_bytes + other.frame_bytes,
            line_bytes: self.line_bytes + other.line_bytes,
        }
    }
}

/// Response to a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Response {
    /// No response: the transport is unreliable.
    None,
    /// The response to a READ or an atomic operation. It carries the data and also acknowledges the request.
    Exact(Direction),
    /// Acknowledgements of a message whose packets are each sent once.
    ///
    /// The responder usually sends at most one ACK per message, since one ACK may cover many messages. But a responder
    /// may acknowledge any request packet, and a requester may set the AckReq bit of the BTH within a message. A
    /// measured NIC sent about 9 ACKs for a message of 1 MiB. The upper bound is therefore one ACK per request packet.
    Range {
        /// Minimum: no packet.
        min: Direction,
        /// Maximum: one ACK per request packet.
        max: Direction,
    },
}

/// Cost of a message on the link, without loss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MessageCost {
    /// Payload bytes of the work request.
    pub payload_bytes: u64,
    /// Packets and bytes from requester to responder.
    pub request: Direction,
    /// Packets and bytes from responder to requester.
    pub response: Response,
}

impl MessageCost {
    /// Returns the share of payload in the line bytes of the direction that carries the payload: the response for
    /// READs and atomic operations, the request for all others.
    pub fn goodput_share(&self) -> f64 {
        let carrier = match self.response {
            Response::Exact(response) => response,
            Response::None | Response::Range { .. } => self.request,
        };
        self.payload_bytes as f64 / carrier.line_bytes as f64
    }

    /// Returns the maximum messages per second on a full-duplex link of `link_bits_per_s`, if only the link limits the
    /// rate. The result holds one rate for the minimum and one for the maximum number of acknowledgements.
    pub fn link_limit(&self, link_bits_per_s: f64) -> LinkLimit {
        let (least, most) = match self.response {
            Response::None => (0, 0),
            Response::Exact(response) => (response.line_bytes, response.line_bytes),
            Response::Range { min, max } => (min.line_bytes, max.line_bytes),
        };
        let request = self.request.line_bytes;
        let messages_per_s = |line_bytes: u64| link_bits_per_s / 8.0 / line_bytes as f64;
        let binding = |response: u64| match request.cmp(&response) {
            Ordering::Less => LinkSide::Response,
            Ordering::Equal => LinkSide::Both,
            Ordering::Greater => LinkSide::Request,
        };
        LinkLimit {
            messages_per_s: messages_per_s(request.max(least)),
            binding: binding(least),
            messages_per_s_most_acknowledged: messages_per_s(request.max(most)),
            binding_most_acknowledged: binding(most),
        }
    }
}

/// Direction of a link that is the bottleneck.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkSide {
    /// From requester to responder.
    Request,
    /// From responder to requester.
    Response,
    /// Both directions carry the same number of bytes.
    Both,
}

/// Maximum message rates of a link: see [`MessageCost::link_limit`]. The two rates are equal if the response is
/// [`Response::None`] or [`Response::Exact`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkLimit {
    /// Messages per second if the responder sends the minimum number of acknowledgements.
    pub messages_per_s: f64,
    /// Bottleneck at `messages_per_s`.
    pub binding: LinkSide,
    /// Messages per second if the responder acknowledges every request packet separately.
    pub messages_per_s_most_acknowledged: f64,
    /// Bottleneck at `messages_per_s_most_acknowledged`.
    pub binding_most_acknowledged: LinkSide,
}

/// Error of [`message_cost`]: no such message can exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// The transport does not offer the operation.
    #[error("{transport} has no {kind}")]
    NotOffered {
        /// Requested operation.
        kind: MessageKind,
        /// Requested transport.
        transport: Transport,
    },
    /// The message is longer than the maximum: the path MTU for UD, 2^31 bytes for other transports.
    #[error("message length {bytes} bytes: must be at most {limit} bytes")]
    TooLong {
        /// Requested length.
        bytes: u64,
        /// Maximum length.
        limit: u64,
    },
    /// The length of an atomic operation is not 8 bytes.
    #[error("atomic operation of {0} bytes: must have {ATOMIC_BYTES} bytes")]
    AtomicLength(u64),
}

/// Returns the cost of a message of `bytes` bytes without loss.
///
/// The cost of a request is exact, and so is the cost of the response to a READ or an atomic operation. For all other
/// operations, the result holds the minimum and the maximum cost of the acknowledgements.
///
/// # Errors
///
/// The transport does not offer the operation, the message is too long, or an atomic operation does not have 8 bytes.
pub fn message_cost(
    kind: MessageKind,
    transport: Transport,
    bytes: u64,
    path_mtu: PathMtu,
    outer: OuterKind,
) -> Result<MessageCost, CostError> {
    let opcodes = request_opcodes(kind, transport).ok_or(CostError::NotOffered { kind, transport })?;
    let limit = match transport {
        Transport::Ud => path_mtu.bytes() as u64,
        _ => MAX_MESSAGE_BYTES,
    };
    if bytes > limit {
        return Err(CostError::TooLong { bytes, limit });
    }
    let packetise = |opcodes: &Opcodes, bytes| opcodes.packetise(bytes, path_mtu, outer);
    let (request, response) = match kind {
        MessageKind::Read => (packetise(&opcodes, 0), Response::Exact(packetise(&READ_RESPONSE, bytes))),
        MessageKind::CompareSwap | MessageKind::FetchAdd => {
            if bytes != ATOMIC_BYTES {
                return Err(CostError::AtomicLength(bytes));
            }
            // Neither the request nor the response has a payload: extension headers carry the operands and the result.
            (packetise(&opcodes, 0), Response::Exact(packetise(&ATOMIC_ACKNOWLEDGE, 0)))
        }
        _ => {
            let request = packetise(&opcodes, bytes);
            let response = match transport {
                Transport::Rc => Response::Range {
                    min: Direction::default(),
                    max: Direction::frames(request.packets, frame_len(Opcode::RC_ACKNOWLEDGE, 0, outer)),
                },
                _ => Response::None,
            };
            (request, response)
        }
    };
    Ok(MessageCost { payload_bytes: bytes, request, response })
}

/// Returns the frame bytes of one packet.
const fn frame_len(opcode: Opcode, payload: u64, outer: OuterKind) -> u64 {
    let headers = outer.header_len() + BTH_LEN + opcode.extension_len() + ICRC_LEN;
    headers as u64 + payload.next_multiple_of(4)
}

/// Opcodes of the packets of a message.
struct Opcodes {
    first: Opcode,
    middle: Opcode,
    last: Opcode,
    only: Opcode,
}

const READ_RESPONSE: Opcodes = Opcodes {
    first: Opcode::RC_READ_RESPONSE_FIRST,
    middle: Opcode::RC_READ_RESPONSE_MIDDLE,
    last: Opcode::RC_READ_RESPONSE_LAST,
    only: Opcode::RC_READ_RESPONSE_ONLY,
};

const ATOMIC_ACKNOWLEDGE: Opcodes = Opcodes::single(Opcode::RC_ATOMIC_ACKNOWLEDGE);

impl Opcodes {
    /// Returns the opcodes of a message that is always one packet.
    const fn single(opcode: Opcode) -> Opcodes {
        Opcodes { first: opcode, middle: opcode, last: opcode, only: opcode }
    }

    /// Splits a message into packets. All packets but the last are full. A message without payload is one packet.
    fn packetise(&self, bytes: u64, path_mtu: PathMtu, outer: OuterKind) -> Direction {
        let mtu = path_mtu.bytes() as u64;
        if bytes <= mtu {
            return Direction::frames(1, frame_len(self.only, bytes, outer));
        }
        let packets = bytes.div_ceil(mtu);
        let last = bytes - (packets - 1) * mtu;
        Direction::frames(1, frame_len(self.first, mtu, outer))
            .plus(Direction::frames(packets - 2, frame_len(self.middle, mtu, outer)))
            .plus(Direction::frames(1, frame_len(self.last, last, outer)))
    }
}

/// Returns the opcodes of a request, or `None` if the transport does not offer the operation (IBTA Vol 1, chapter 9).
fn request_opcodes(kind: MessageKind, transport: Transport) -> Option<Opcodes> {
    use MessageKind::*;
    let [first, middle, last, only] = match (transport, kind) {
        (Transport::Rc, Send) => {
            [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY]
        }
        (Transport::Rc, SendImm) => {
            [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST_IMM, Opcode::RC_SEND_ONLY_IMM]
        }
        (Transport::Rc, SendInv) => {
            [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST_INV, Opcode::RC_SEND_ONLY_INV]
        }
        (Transport::Rc, Write) => {
            [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST, Opcode::RC_WRITE_ONLY]
        }
        (Transport::Rc, WriteImm) => {
            [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST_IMM, Opcode::RC_WRITE_ONLY_IMM]
        }
        (Transport::Rc, Read) => return Some(Opcodes::single(Opcode::RC_READ_REQUEST)),
        (Transport::Rc, CompareSwap) => return Some(Opcodes::single(Opcode::RC_COMPARE_SWAP)),
        (Transport::Rc, FetchAdd) => return Some(Opcodes::single(Opcode::RC_FETCH_ADD)),
        (Transport::Uc, Send) => {
            [Opcode::UC_SEND_FIRST, Opcode::UC_SEND_MIDDLE, Opcode::UC_SEND_LAST, Opcode::UC_SEND_ONLY]
        }
        (Transport::Uc, SendImm) => {
            [Opcode::UC_SEND_FIRST, Opcode::UC_SEND_MIDDLE, Opcode::UC_SEND_LAST_IMM, Opcode::UC_SEND_ONLY_IMM]
        }
        (Transport::Uc, Write) => {
            [Opcode::UC_WRITE_FIRST, Opcode::UC_WRITE_MIDDLE, Opcode::UC_WRITE_LAST, Opcode::UC_WRITE_ONLY]
        }
        (Transport::Uc, WriteImm) => {
            [Opcode::UC_WRITE_FIRST, Opcode::UC_WRITE_MIDDLE, Opcode::UC_WRITE_LAST_IMM, Opcode::UC_WRITE_ONLY_IMM]
        }
        (Transport::Ud, Send) => return Some(Opcodes::single(Opcode::UD_SEND_ONLY)),
        (Transport::Ud, SendImm) => return Some(Opcodes::single(Opcode::UD_SEND_ONLY_IMM)),
        _ => return None,
    };
    Some(Opcodes { first, middle, last, only })
}
