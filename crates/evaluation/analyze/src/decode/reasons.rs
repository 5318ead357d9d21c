//! Reasons for which frames hold no RoCE v2 packet, and for which packets are malformed.

use std::collections::BTreeMap;

use doorbell_wire::{Error, Opcode, Transport};

use super::assigned::{
    ETHERTYPE_ERSPAN_2, ETHERTYPE_ERSPAN_3, ETHERTYPE_MACSEC, ETHERTYPE_MPLS, ETHERTYPE_MPLS_MULTICAST,
    ETHERTYPE_ROCE_V1, PROTOCOL_ESP, PROTOCOL_GRE,
};
use super::capture::LinkType;

/// Maximum number of VLAN tags and tunnels of a decoded frame.
pub(crate) const MAX_LAYERS: usize = 8;

const PORT_MPLS: u16 = 6635;

/// Kinds of frames without a RoCE v2 packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum OtherFrame {
    /// Link type that is not decoded.
    LinkType(u16),
    EtherType(u16),
    /// IEEE 802.3 with a length instead of an EtherType.
    Ieee8023,
    IpProtocol(u8),
    Fragment,
    UdpPort(u16),
    /// End of the frame within a header, because of the snap length or damage.
    Cut,
    /// Impossible lengths or versions in the headers.
    Damaged,
    /// More than [`MAX_LAYERS`] tags and tunnels.
    TooDeep,
}

impl OtherFrame {
    /// Returns whether such a frame may hold RDMA that is not decoded.
    pub(crate) fn may_be_rdma(self) -> bool {
        match self {
            OtherFrame::EtherType(ethertype) => matches!(
                ethertype,
                ETHERTYPE_ROCE_V1 | ETHERTYPE_MPLS | ETHERTYPE_MPLS_MULTICAST | ETHERTYPE_MACSEC | 0x88e7 | 0x894f
            ),
            OtherFrame::IpProtocol(protocol) => protocol == PROTOCOL_ESP,
            OtherFrame::UdpPort(port) => port == PORT_MPLS,
            OtherFrame::LinkType(_) | OtherFrame::Fragment | OtherFrame::TooDeep => true,
            OtherFrame::Ieee8023 | OtherFrame::Cut | OtherFrame::Damaged => false,
        }
    }
}

impl std::fmt::Display for OtherFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            OtherFrame::LinkType(link_type) => write!(f, "link type {}", LinkType(link_type)),
            OtherFrame::EtherType(ethertype) => match ethertype_name(ethertype) {
                Some(name) => write!(f, "{name} (EtherType 0x{ethertype:04x})"),
                None => write!(f, "EtherType 0x{ethertype:04x}"),
            },
            OtherFrame::Ieee8023 => f.write_str("IEEE 802.3 without EtherType"),
            OtherFrame::IpProtocol(protocol) => match protocol_name(protocol) {
                Some(name) => write!(f, "{name} (IP protocol {protocol})"),
                None => write!(f, "IP protocol {protocol}"),
            },
            OtherFrame::Fragment => f.write_str("IP fragments"),
            OtherFrame::UdpPort(PORT_MPLS) => write!(f, "MPLS in UDP (port {PORT_MPLS})"),
            OtherFrame::UdpPort(port) => write!(f, "UDP to port {port}"),
            OtherFrame::Cut => f.write_str("cut within the headers"),
            OtherFrame::Damaged => f.write_str("impossible headers"),
            OtherFrame::TooDeep => write!(f, "more than {MAX_LAYERS} VLAN tags and tunnels"),
        }
    }
}

fn ethertype_name(ethertype: u16) -> Option<&'static str> {
    Some(match ethertype {
        0x0806 => "ARP",
        ETHERTYPE_ERSPAN_2 => "ERSPAN of another version",
        ETHERTYPE_ERSPAN_3 => "ERSPAN III of other frames",
        ETHERTYPE_ROCE_V1 => "RoCE v1",
        ETHERTYPE_MPLS => "MPLS",
        ETHERTYPE_MPLS_MULTICAST => "MPLS multicast",
        ETHERTYPE_MACSEC => "MACsec",
        0x8808 => "Ethernet flow control",
        0x8809 => "LACP",
        0x8863 | 0x8864 => "PPPoE",
        0x88cc => "LLDP",
        0x88e7 => "provider backbone bridging",
        0x88f7 => "PTP",
        0x8906 => "FCoE",
        0x894f => "NSH",
        _ => return None,
    })
}

fn protocol_name(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        1 => "ICMP",
        2 => "IGMP",
        6 => "TCP",
        PROTOCOL_GRE => "GRE of another kind",
        PROTOCOL_ESP => "IPsec ESP",
        58 => "ICMPv6",
        89 => "OSPF",
        103 => "PIM",
        112 => "VRRP",
        132 => "SCTP",
        _ => return None,
    })
}

impl From<Error> for OtherFrame {
    fn from(error: Error) -> Self {
        match error {
            Error::Truncated { .. } => OtherFrame::Cut,
            Error::EtherType(ethertype) => OtherFrame::EtherType(ethertype),
            Error::Fragment => OtherFrame::Fragment,
            Error::IpProtocol(protocol) => OtherFrame::IpProtocol(protocol),
            _ => OtherFrame::Damaged,
        }
    }
}

/// Reasons for which a datagram to the port of RoCE v2 holds no packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Malformed {
    /// Datagram shorter than a BTH.
    ShortBth,
    /// Transport header version other than 0.
    Version(u8),
    /// Datagram shorter than the headers, padding and ICRC of its opcode.
    Short(Opcode),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::ShortBth => f.write_str("shorter than a BTH"),
            Malformed::Version(version) => write!(f, "of transport header version {version}"),
            Malformed::Short(opcode) => write!(f, "too short for {}", opcode_name(*opcode)),
        }
    }
}

/// Returns the counts by reason, the most frequent first.
pub(crate) fn by_count<T: Copy + Ord>(counts: &BTreeMap<T, u64>) -> Vec<(T, u64)> {
    let mut counts: Vec<_> = counts.iter().map(|(reason, count)| (*reason, *count)).collect();
    counts.sort_by_key(|(reason, count)| (std::cmp::Reverse(*count), *reason));
    counts
}

/// Returns the first counts as words of a sentence.
pub(crate) fn listed(counts: impl ExactSizeIterator<Item = (String, u64)>) -> String {
    const SHOWN: usize = 6;
    let more = counts.len().saturating_sub(SHOWN);
    let mut words: Vec<_> = counts.take(SHOWN).map(|(what, count)| format!("{count} {what}")).collect();
    if more > 0 {
        words.push(format!("and {more} other kinds"));
    }
    words.join(", ")
}

/// Lower five bits of the opcodes of FLUSH and ATOMIC WRITE, the memory placement extensions (IBTA Vol 1, Annex A19).
const FLUSH: u8 = 0x1c;
const ATOMIC_WRITE: u8 = 0x1d;

/// Returns whether the opcode is a request that takes a sequence number, but whose contents are not followed.
pub(crate) fn is_unfollowed_request(opcode: Opcode) -> bool {
    matches!(opcode.transport(), Transport::Rc | Transport::Xrc) && matches!(opcode.0 & 0x1f, FLUSH | ATOMIC_WRITE)
}

/// Returns the name of an opcode, also of one that is not followed.
pub(crate) fn opcode_name(opcode: Opcode) -> String {
    let extension = match opcode.0 & 0x1f {
        _ if !is_unfollowed_request(opcode) => return opcode.to_string(),
        FLUSH => "FLUSH",
        _ => "ATOMIC WRITE",
    };
    format!("{} {extension} (opcode 0x{:02x})", opcode.transport(), opcode.0)
}
