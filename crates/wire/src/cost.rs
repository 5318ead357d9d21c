//! What a message costs in packets and bytes.
//!
//! # How the sizes come about
//!
//! Counters of RDMA traffic count Ethernet frames without preamble, FCS and gap (*frame bytes*).
//! Every packet over IPv4 carries 58 bytes around its extension headers and payload: Ethernet 14,
//! IPv4 20, UDP 8, BTH 12 and ICRC 4. So
//!
//! | frame | bytes | is |
//! |---|---|---|
//! | zero-length WRITE | 74 | 58 + RETH 16 |
//! | WRITE of 1 to 4 bytes | 78 | 74 + payload padded to 4 |
//! | WRITE of 5 to 8 bytes | 82 | 74 + payload padded to 8 |
//! | ACK | 62 | 58 + AETH 4 |
//! | SEND of 1 to 4 bytes | 62 | 58 + payload padded to 4: bytes cannot tell it from an ACK |
//! | middle packet at path MTU 4096 | 4154 | 58 + 4096 |
//!
//! Only the first packet of a WRITE carries the RETH and only the last one immediate data, so a
//! WRITE of 1 MiB at path MTU 4096 shows 4154 + 16/256 = 4154.0625 bytes per packet on average.
//!
//! On the line (*line bytes*) each frame takes preamble 8, FCS 4 and gap 12 more, and a frame
//! below 60 bytes is padded to 60. Long messages at path MTU 4096 reach 4096/4178 = 98.04 % of
//! the line rate as goodput.
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
    BTH_LEN, ETHERNET_LEN, FCS_LEN, GAP_LEN, ICRC_LEN, IPV4_LEN, IPV6_LEN, MIN_FRAME_LEN, Opcode, PREAMBLE_LEN,
    PathMtu, Transport, UDP_LEN, VLAN_LEN,
};

/// The longest message that IBTA allows.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// Bytes that an atomic operation reads and writes.
pub const ATOMIC_BYTES: u64 = 8;

/// What a message does, as a work request says it.
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
    /// Every kind.
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

/// IBTA's name.
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

/// The version of the IP header around packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpVersion {
    /// IPv4 without options.
    V4,
    /// IPv6 without extension headers.
    V6,
}

/// Which headers stand around packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OuterKind {
    /// The IP header.
    pub ip: IpVersion,
    /// Whether there is a VLAN tag.
    pub vlan: bool,
}

impl OuterKind {
    /// IPv4 without VLAN tag.
    pub const IPV4: OuterKind = OuterKind { ip: IpVersion::V4, vlan: false };

    /// IPv6 without VLAN tag.
    pub const IPV6: OuterKind = OuterKind { ip: IpVersion::V6, vlan: false };

    /// The same with a VLAN tag.
    pub const fn with_vlan(self) -> OuterKind {
        OuterKind { vlan: true, ..self }
    }

    /// Frame bytes before the BTH.
    pub const fn header_len(self) -> usize {
        let ip = match self.ip {
            IpVersion::V4 => IPV4_LEN,
            IpVersion::V6 => IPV6_LEN,
        };
        let vlan = if self.vlan { VLAN_LEN } else { 0 };
        ETHERNET_LEN + vlan + ip + UDP_LEN
    }
}

/// Packets and bytes that go in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Direction {
    /// Packets.
    pub packets: u64,
    /// Bytes of Ethernet frames as counters show them: no preamble, FCS or gap.
    pub frame_bytes: u64,
    /// Bytes that the line is busy for: frames padded to their minimum, with preamble, FCS, gap.
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

/// What comes back for a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Response {
    /// Nothing: the transport is unreliable.
    None,
    /// Just this: the data of a READ or an atomic operation, which acknowledges too.
    Exact(Direction),
    /// Acknowledgements, without retransmission.
    ///
    /// Mostly none to one per message: one ACK may cover many messages, so a message can go
    /// without one of its own. But a responder is free to acknowledge any request packet, and a
    /// requester may ask for it by the BTH's bit in the midst of a message: NICs have sent some 9
    /// ACKs for a message of 1 MiB. So the upper bound is one per request packet.
    Range {
        /// The least: nothing.
        min: Direction,
        /// The most: an ACK for each request packet.
        max: Direction,
    },
}

/// What a message puts on the link, without loss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MessageCost {
    /// Bytes of payload: those asked for.
    pub payload_bytes: u64,
    /// From requester to responder.
    pub request: Direction,
    /// From responder to requester.
    pub response: Response,
}

impl MessageCost {
    /// The share of payload in the line bytes of the direction that carries it: that of the
    /// response for READs and atomic operations, else that of the request.
    pub fn goodput_share(&self) -> f64 {
        let carrier = match self.response {
            Response::Exact(response) => response,
            Response::None | Response::Range { .. } => self.request,
        };
        self.payload_bytes as f64 / carrier.line_bytes as f64
    }

    /// How many such messages per second a full-duplex link of `link_bits_per_s` carries at most,
    /// if nothing but the link limits them: once with the fewest acknowledgements, once with the
    /// most.
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

/// Which direction of a link is full first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkSide {
    /// From requester to responder.
    Request,
    /// From responder to requester.
    Response,
    /// Both carry as much.
    Both,
}

/// What a link allows: see [`MessageCost::link_limit`]. Without acknowledgements, or where what
/// comes back is exact, both halves are the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkLimit {
    /// Messages per second, if the fewest acknowledgements come back.
    pub messages_per_s: f64,
    /// The direction that is then full.
    pub binding: LinkSide,
    /// Messages per second, if every request packet is acknowledged by itself.
    pub messages_per_s_most_acknowledged: f64,
    /// The direction that is then full.
    pub binding_most_acknowledged: LinkSide,
}

/// Why a message cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// The transport does not have the operation.
    #[error("{transport} has no {kind}")]
    NotOffered {
        /// The operation asked for.
        kind: MessageKind,
        /// The transport asked for.
        transport: Transport,
    },
    /// The message is longer than the transport allows: 2^31 bytes, of UD the path MTU.
    #[error("a message of {bytes} bytes is longer than {limit}")]
    TooLong {
        /// The length asked for.
        bytes: u64,
        /// The longest possible.
        limit: u64,
    },
    /// Atomic operations are about 8 bytes.
    #[error("an atomic operation of {0} bytes; they have {ATOMIC_BYTES}")]
    AtomicLength(u64),
}

/// What a message of `bytes` bytes costs, if nothing is lost.
///
/// The request direction is exact; so is the response of READs and atomic operations. What
/// acknowledges other operations is a range.
///
/// # Errors
///
/// The transport does not offer the operation, the message is longer than the transport allows, or it is an atomic
/// operation that is not about 8 bytes.
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
            // The operands travel in headers.
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

/// Frame bytes of one packet.
const fn frame_len(opcode: Opcode, payload: u64, outer: OuterKind) -> u64 {
    let headers = outer.header_len() + BTH_LEN + opcode.extension_len() + ICRC_LEN;
    headers as u64 + payload.next_multiple_of(4)
}

/// The opcodes that the packets of a message have.
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
    /// Of a message that is always one packet.
    const fn single(opcode: Opcode) -> Opcodes {
        Opcodes { first: opcode, middle: opcode, last: opcode, only: opcode }
    }

    /// All packets but the last are full, and a message without payload is one packet.
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

/// The opcodes of a request, or `None` if the transport does not have it
/// (IBTA Vol 1, chapter 9).
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
