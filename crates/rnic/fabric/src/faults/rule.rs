//! Rules of fault plans: the packets that a rule matches, and the action on them.

mod calls;
mod fields;
mod text;

use std::net::IpAddr;

use doorbell_wire::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, AethRepr, BTH_LEN, DETH_LEN, ICRC_LEN, IMM_DT_LEN, Opcode,
    PacketOperation, RETH_LEN, SyndromeKind, XRCETH_LEN,
};

use crate::link::PlannedOrder;

pub use calls::VerbsCall;
pub(super) use calls::{VerbsFault, operation_name, status_name};
pub use fields::FAULT_FIELDS;
pub(super) use fields::RuleProblem;
pub(super) use text::RuleParser;

/// One rule of a [`FaultPlan`](super::FaultPlan): a match and an action. The text form is
/// `ACTION FIELD=VALUE...`, such as `drop opcode=ack nth=1`.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    pub(super) name: Option<String>,
    pub(super) packets: PacketMatch,
    pub(super) action: FaultAction,
    /// Whether the plan is also fulfilled if the rule never fires.
    pub(super) optional: bool,
}

impl FaultRule {
    /// Returns the name of the rule, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns whether the rule may remain without an effect.
    pub fn is_optional(&self) -> bool {
        self.optional
    }

    /// Returns whether the rule gives an order to the port of the device.
    pub(super) fn orders_port(&self) -> bool {
        matches!(self.action, FaultAction::Port(_))
    }

    /// Returns whether the rule strikes packets of this direction.
    pub(super) fn strikes(&self, direction: Direction) -> bool {
        self.verbs_fault().is_none() && self.packets.direction == direction
    }

    /// Returns the fault of a rule at the boundary between the program and the device.
    pub(super) fn verbs_fault(&self) -> Option<VerbsFault> {
        match self.action {
            FaultAction::Verbs(fault) => Some(fault),
            _ => None,
        }
    }

    /// Returns whether the rule may have an effect although `to_drop` drops all packets that both rules count.
    pub(super) fn acts_on_dropped(&self, to_drop: &Self) -> bool {
        match self.action {
            FaultAction::Verbs(_) => true,
            // A dropped packet opens a black hole and gives an order to the port all the same.
            FaultAction::BlackHole(_) | FaultAction::Port(_) => {
                std::mem::discriminant(&self.action) != std::mem::discriminant(&to_drop.action)
            }
            // Unlike `to_drop`, the rule counts only packets that have the changed place, so the ranks differ.
            FaultAction::Corrupt(corruption) if corruption.place != Place::AnyBit => {
                to_drop.packets.nth.is_some() || to_drop.packets.every.is_some()
            }
            _ => false,
        }
    }

    /// Returns whether the rule adds copies of packets.
    pub(super) fn duplicates(&self) -> bool {
        matches!(self.action, FaultAction::Duplicate { .. })
    }
}

/// Conditions of a rule. A packet must meet all of them. Rules of calls and completions use those of queue pairs, times
/// and ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PacketMatch {
    pub(super) direction: Direction,
    /// Sender of an arriving packet, or destination of a leaving packet.
    pub(super) peer: Option<IpAddr>,
    pub(super) opcode: Option<PacketKind>,
    pub(super) position: Option<Position>,
    /// Number of the destination queue pair.
    pub(super) qp: Option<u32>,
    /// Rank of the destination queue pair, in the order of their first packets. The first has rank 1.
    pub(super) qp_order: Option<Span>,
    pub(super) psn: Option<Span>,
    /// PSN minus the first PSN of the flow.
    pub(super) psn_offset: Option<Span>,
    /// Number of earlier packets with the same flow, opcode and PSN.
    pub(super) retransmission: Option<Span>,
    /// Offset of the packet's payload in its message, in bytes.
    pub(super) message_offset: Option<Span>,
    /// Time from the first packet on, in nanoseconds.
    pub(super) after_ns: Option<u64>,
    pub(super) before_ns: Option<u64>,
    /// Rank of the packet among the packets that meet all conditions above.
    pub(super) nth: Option<Span>,
    pub(super) every: Option<u64>,
    /// Probability with which a packet that meets all other conditions is struck.
    pub(super) share: Option<f64>,
}

impl PacketMatch {
    /// Returns whether the conditions read the headers of packets.
    pub(super) fn reads_headers(&self) -> bool {
        self.opcode.is_some() || self.position.is_some() || self.qp.is_some() || self.psn.is_some() || self.tracks()
    }

    /// Returns whether no field but the direction is a condition.
    pub(super) fn has_only_direction(&self) -> bool {
        Self { direction: self.direction, ..Self::default() } == *self
    }

    /// Returns whether the rule strikes the packet or call that meets all other conditions as number `matched`.
    pub(super) fn counts(&self, matched: u64) -> bool {
        let first = self.nth.map_or(1, |nth| nth.from);
        self.nth.is_none_or(|nth| nth.has(matched))
            && self.every.is_none_or(|every| (matched - first + 1).is_multiple_of(every))
    }

    /// Returns whether the conditions depend on earlier packets of the flow.
    pub(super) fn tracks(&self) -> bool {
        self.qp_order.is_some()
            || self.psn_offset.is_some()
            || self.retransmission.is_some()
            || self.message_offset.is_some()
    }

    /// Returns whether packets with this opcode can meet the conditions.
    pub(super) fn allows(&self, opcode: Opcode) -> bool {
        self.opcode.is_none_or(|kind| kind.allows(opcode))
            && self.position.is_none_or(|position| {
                (opcode.is_request() || opcode.is_response()) && position == Position::of(opcode)
            })
            && self.message_offset.is_none_or(|offset| {
                let has_offset = if opcode.is_first() { offset.from == 0 } else { offset.to > 0 };
                opcode.has_payload() && has_offset
            })
    }

    /// Returns whether a rule with these conditions strikes each packet that `other` strikes, as the ranks show.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let unranked = |packets: &Self| Self { nth: None, every: None, share: None, ..packets.clone() };
        let has_ranks = |own: Span| other.nth.is_some_and(|nth| own.from <= nth.from && nth.to <= own.to);
        let strikes_all = self.share.is_none() && self.every.is_none_or(|every| every == 1);
        strikes_all && self.nth.is_none_or(has_ranks) && unranked(self) == unranked(other)
    }
}

/// Direction of packets, as the device sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Direction {
    /// The packet arrives at the device.
    #[default]
    In,
    /// The packet leaves the device.
    Out,
}

impl Direction {
    /// Directions and their names.
    pub(super) const NAMES: [(&'static str, Self); 2] = [("in", Self::In), ("out", Self::Out)];

    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// Inclusive range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Span {
    pub(super) fn has(self, number: u64) -> bool {
        (self.from..=self.to).contains(&number)
    }
}

/// An opcode, or a class of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketKind {
    Ack,
    Nak,
    RnrNak,
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    AtomicRequest,
    AtomicResponse,
    Cnp,
    Request,
    Response,
    Exactly(Opcode),
}

impl PacketKind {
    /// Classes of packets and their names.
    pub(super) const CLASSES: [(&'static str, Self); 12] = [
        ("ack", Self::Ack),
        ("nak", Self::Nak),
        ("rnr-nak", Self::RnrNak),
        ("send", Self::Send),
        ("write", Self::Write),
        ("read-request", Self::ReadRequest),
        ("read-response", Self::ReadResponse),
        ("atomic-request", Self::AtomicRequest),
        ("atomic-response", Self::AtomicResponse),
        ("cnp", Self::Cnp),
        ("request", Self::Request),
        ("response", Self::Response),
    ];

    /// Returns whether packets with this opcode can be of the kind. ACKs and NAKs have the same opcode.
    fn allows(self, opcode: Opcode) -> bool {
        let is = |operation| opcode.operation() == Some(operation);
        match self {
            Self::Ack | Self::Nak | Self::RnrNak => is(PacketOperation::Acknowledge),
            Self::Send => is(PacketOperation::Send),
            Self::Write => is(PacketOperation::Write),
            Self::ReadRequest => is(PacketOperation::ReadRequest),
            Self::ReadResponse => is(PacketOperation::ReadResponse),
            Self::AtomicRequest => is(PacketOperation::CompareSwap) || is(PacketOperation::FetchAdd),
            Self::AtomicResponse => is(PacketOperation::AtomicAcknowledge),
            Self::Cnp => is(PacketOperation::Cnp),
            Self::Request => opcode.is_request(),
            Self::Response => opcode.is_response(),
            Self::Exactly(exact) => opcode == exact,
        }
    }

    /// Returns whether a packet is of the kind.
    pub(super) fn has(self, opcode: Opcode, packet: &[u8]) -> bool {
        let syndrome = || {
            let aeth = packet.get(BTH_LEN..)?.first_chunk::<AETH_LEN>()?;
            Some(AethRepr::read(aeth).syndrome.kind())
        };
        self.allows(opcode)
            && match self {
                Self::Ack => matches!(syndrome(), Some(SyndromeKind::Ack { .. })),
                Self::Nak => matches!(syndrome(), Some(SyndromeKind::Nak(_))),
                Self::RnrNak => matches!(syndrome(), Some(SyndromeKind::RnrNak { .. })),
                _ => true,
            }
    }
}

/// Position of a packet in its message, by its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// Positions and their names.
    pub(super) const NAMES: [(&'static str, Self); 4] =
        [("first", Self::First), ("middle", Self::Middle), ("last", Self::Last), ("only", Self::Only)];

    pub(super) fn of(opcode: Opcode) -> Self {
        match (opcode.is_first(), opcode.is_last()) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// Action of a rule on a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FaultAction {
    Drop,
    /// Passes on additional copies, which arrive `delay_ns` after the packet.
    Duplicate {
        copies: u32,
        delay_ns: u64,
    },
    Delay {
        delay_ns: u64,
    },
    /// Holds the packet back until `behind` later packets have passed; `None` draws one to four.
    Reorder {
        behind: Option<u32>,
    },
    Corrupt(Corruption),
    /// Drops this packet, and all later packets until the end, even if they do not match.
    BlackHole(HoleEnd),
    /// Sets the ECN field of the IP header to "congestion experienced" (RFC 3168).
    MarkEcn,
    /// Drops the packet, and gives an order to the port of the device.
    Port(PlannedOrder),
    /// Strikes a call or a completion instead of a packet.
    Verbs(VerbsFault),
}

/// End of a black hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoleEnd {
    /// Time after the first dropped packet, in nanoseconds.
    After(u64),
    /// Number of dropped packets.
    Packets(u64),
}

/// Change of a packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corruption {
    pub(super) place: Place,
    /// New value; `None` inverts the lowest bit.
    pub(super) value: Option<u64>,
    /// Whether the ICRC covers the changed bytes, so that the receiver accepts the packet.
    pub(super) reseals: bool,
}

/// Changed part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One bit of the packet, which is drawn.
    AnyBit,
    /// A field of a header, by its index in [`PacketField::ALL`].
    Field(usize),
    /// A byte of the payload, by its offset in the packet's payload.
    PayloadByte(u64),
}

/// Header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    Bth,
    Reth,
    Aeth,
    Imm,
    Icrc,
}

/// Field of a header that a rule can change.
#[derive(Debug)]
pub(super) struct PacketField {
    pub(super) name: &'static str,
    header: Header,
    /// Offset in the header, in bytes.
    at: usize,
    len: usize,
    /// Bits of the field in its bytes, as a big-endian number.
    mask: u64,
}

impl PacketField {
    const fn new(name: &'static str, header: Header, at: usize, len: usize, mask: u64) -> Self {
        Self { name, header, at, len, mask }
    }

    /// All fields (IBTA Vol 1, chapter 9).
    pub(super) const ALL: [Self; 15] = [
        Self::new("opcode", Header::Bth, 0, 1, 0xff),
        Self::new("solicited", Header::Bth, 1, 1, 0x80),
        Self::new("pad-count", Header::Bth, 1, 1, 0x30),
        Self::new("version", Header::Bth, 1, 1, 0x0f),
        Self::new("pkey", Header::Bth, 2, 2, 0xffff),
        Self::new("dest-qp", Header::Bth, 5, 3, 0xff_ffff),
        Self::new("ack-request", Header::Bth, 8, 1, 0x80),
        Self::new("psn", Header::Bth, 9, 3, 0xff_ffff),
        Self::new("syndrome", Header::Aeth, 0, 1, 0xff),
        Self::new("msn", Header::Aeth, 1, 3, 0xff_ffff),
        Self::new("remote-address", Header::Reth, 0, 8, u64::MAX),
        Self::new("rkey", Header::Reth, 8, 4, 0xffff_ffff),
        Self::new("length", Header::Reth, 12, 4, 0xffff_ffff),
        Self::new("immediate", Header::Imm, 0, 4, 0xffff_ffff),
        Self::new("icrc", Header::Icrc, 0, ICRC_LEN, 0xffff_ffff),
    ];

    /// Returns whether packets with this opcode have the field.
    fn is_in(&self, opcode: Opcode) -> bool {
        match self.header {
            Header::Bth | Header::Icrc => true,
            header => header_at(opcode, header).is_some(),
        }
    }

    /// Returns the maximum value of the field.
    pub(super) fn max(&self) -> u64 {
        self.mask >> self.mask.trailing_zeros()
    }

    fn write(&self, bytes: &mut [u8], value: Option<u64>) -> bool {
        let end = bytes.len();
        let start = match self.header {
            Header::Bth => Some(0),
            Header::Icrc => end.checked_sub(ICRC_LEN),
            header => bytes.first().and_then(|&opcode| header_at(Opcode(opcode), header)),
        };
        let Some(field) = start.and_then(|start| bytes.get_mut(start + self.at..start + self.at + self.len)) else {
            return false;
        };
        let old = field.iter().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        let shift = self.mask.trailing_zeros();
        let new = match value {
            Some(value) => old & !self.mask | value << shift & self.mask,
            None => old ^ 1 << shift,
        };
        let big_endian = new.to_be_bytes();
        field.copy_from_slice(&big_endian[big_endian.len() - self.len..]);
        new != old
    }
}

/// Returns the offset of an extension header in packets with this opcode.
fn header_at(opcode: Opcode, header: Header) -> Option<usize> {
    let extensions = [
        (None, opcode.has_xrceth(), XRCETH_LEN),
        (Some(Header::Reth), opcode.has_reth(), RETH_LEN),
        (Some(Header::Aeth), opcode.has_aeth(), AETH_LEN),
        (None, opcode.has_deth(), DETH_LEN),
        (None, opcode.has_atomic_eth(), ATOMIC_ETH_LEN),
        (None, opcode.has_atomic_ack_eth(), ATOMIC_ACK_ETH_LEN),
        (Some(Header::Imm), opcode.has_imm(), IMM_DT_LEN),
    ];
    let mut at = BTH_LEN;
    for (own, is_present, len) in extensions {
        if is_present && own == Some(header) {
            return Some(at);
        }
        at += if is_present { len } else { 0 };
    }
    None
}

impl Place {
    /// Returns whether packets with this opcode have the place.
    pub(super) fn is_in(self, opcode: Opcode) -> bool {
        match self {
            Self::AnyBit => true,
            Self::Field(index) => PacketField::ALL[index].is_in(opcode),
            Self::PayloadByte(_) => opcode.has_payload(),
        }
    }

    /// Returns whether a packet, given without its ICRC, has the place.
    pub(super) fn is_within(self, body: &[u8]) -> bool {
        let opcode = body.first().map(|&opcode| Opcode(opcode));
        match self {
            Self::AnyBit => true,
            Self::Field(index) => opcode.is_some_and(|opcode| PacketField::ALL[index].is_in(opcode)),
            Self::PayloadByte(offset) => {
                let header_bytes = opcode.map_or(BTH_LEN, |opcode| BTH_LEN + opcode.extension_len());
                offset < body.len().saturating_sub(header_bytes) as u64
            }
        }
    }
}

impl Corruption {
    /// Changes a packet, whose last `trailer_bytes` are its ICRC. Returns whether a byte has changed.
    pub(super) fn apply(&self, bytes: &mut [u8], trailer_bytes: usize, random: u64) -> bool {
        match self.place {
            Place::AnyBit if bytes.is_empty() => false,
            Place::AnyBit => {
                let bit = (random % (bytes.len() as u64 * 8)) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                true
            }
            Place::Field(index) => {
                let field = &PacketField::ALL[index];
                // Packets without an ICRC end before it.
                (field.header != Header::Icrc || trailer_bytes == ICRC_LEN) && field.write(bytes, self.value)
            }
            Place::PayloadByte(offset) => {
                let Some(&opcode) = bytes.first() else { return false };
                let start = BTH_LEN + Opcode(opcode).extension_len();
                let end = bytes.len().saturating_sub(trailer_bytes);
                let at = usize::try_from(offset).ok().and_then(|offset| start.checked_add(offset));
                let Some(at) = at.filter(|at| *at < end) else { return false };
                let old = bytes[at];
                bytes[at] = self.value.map_or(old ^ 1, |value| value as u8);
                bytes[at] != old
            }
        }
    }
}
