//! The headers of a frame from the link to the UDP datagram, through VLAN tags and tunnels.

use doorbell_wire::{Datagram, ETHERNET_LEN, IpPacket, VLAN_LEN, is_vlan_tag, parse_ip};

use super::assigned::{
    ETHERTYPE_BRIDGED, ETHERTYPE_ERSPAN_2, ETHERTYPE_ERSPAN_3, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FIRST_ETHERTYPE,
    PROTOCOL_GRE, PROTOCOL_IPV4, PROTOCOL_IPV6, PROTOCOL_UDP,
};
use super::capture::{CapturedFrame, LinkType};
use super::reasons::{MAX_LAYERS, OtherFrame};

const PORT_VXLAN: u16 = 4789;
const PORT_VXLAN_GPE: u16 = 4790;
/// Linux's VXLAN port before IANA assigned 4789; Linux still uses this port if no port is configured.
const PORT_VXLAN_LINUX: u16 = 8472;
const PORT_GENEVE: u16 = 6081;
const PORT_GRE: u16 = 4754;

/// A VLAN tag or a tunnel around a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Layer {
    /// The identifier of a VLAN tag.
    Vlan(u16),
    /// An outer IP packet.
    Tunnel {
        /// The kind of tunnel.
        kind: TunnelKind,
        /// Network identifier of VXLAN and GENEVE, key of GRE, or session of ERSPAN; 0 if there is none.
        id: u32,
        /// Hop limit of the outer IP packet.
        hop_limit: u8,
    },
}

/// Kinds of tunnels that are decoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum TunnelKind {
    Vxlan,
    Geneve,
    /// GRE with IP or Ethernet in it, NVGRE included.
    Gre,
    Erspan1,
    Erspan2,
    Erspan3,
    /// IPv4 or IPv6 directly in IP.
    Ip,
}

impl TunnelKind {
    pub(crate) const ALL: [TunnelKind; 7] = [
        TunnelKind::Vxlan,
        TunnelKind::Geneve,
        TunnelKind::Gre,
        TunnelKind::Erspan1,
        TunnelKind::Erspan2,
        TunnelKind::Erspan3,
        TunnelKind::Ip,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            TunnelKind::Vxlan => "VXLAN",
            TunnelKind::Geneve => "GENEVE",
            TunnelKind::Gre => "GRE",
            TunnelKind::Erspan1 => "ERSPAN I",
            TunnelKind::Erspan2 => "ERSPAN II",
            TunnelKind::Erspan3 => "ERSPAN III",
            TunnelKind::Ip => "IP in IP",
        }
    }
}

/// VLAN tags and tunnels of a frame, the outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Layers {
    list: [Layer; MAX_LAYERS],
    count: u8,
}

impl Layers {
    const NONE: Layers = Layers { list: [Layer::Vlan(0); MAX_LAYERS], count: 0 };

    pub(crate) fn as_slice(&self) -> &[Layer] {
        &self.list[..usize::from(self.count)]
    }

    fn push(&mut self, layer: Layer) -> Result<(), OtherFrame> {
        *self.list.get_mut(usize::from(self.count)).ok_or(OtherFrame::TooDeep)? = layer;
        self.count += 1;
        Ok(())
    }
}

/// A frame that carries UDP to the port of RoCE v2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdpFrame<'a> {
    /// The innermost datagram; its `outer` has the hop limit.
    pub(crate) datagram: Datagram<'a>,
    /// Bytes of the innermost Ethernet frame, as counters of a NIC show them.
    pub(crate) frame_bytes: usize,
    /// VLAN tags and tunnels around the innermost datagram.
    pub(crate) layers: Layers,
}

/// The unread rest of a frame.
#[derive(Clone, Copy)]
enum Next<'a> {
    Ethernet(&'a [u8]),
    /// A header of this EtherType.
    Typed(u16, &'a [u8]),
    Ip(&'a [u8]),
}

/// Finds the datagram to the UDP port `roce_port` in a frame. If the frame has none, `Err` names the frame's content.
pub(crate) fn udp_frame<'a>(frame: &CapturedFrame<'a>, roce_port: u16) -> Result<UdpFrame<'a>, OtherFrame> {
    let mut layers = Layers::NONE;
    // Bytes of VLAN tags in the innermost Ethernet frame.
    let mut tag_bytes = 0;
    let mut next = after_link(frame.link_type, frame.bytes)?;
    loop {
        next = match next {
            Next::Ethernet(bytes) => {
                tag_bytes = 0;
                let (header, rest) = take::<ETHERNET_LEN>(bytes)?;
                Next::Typed(u16::from_be_bytes([header[12], header[13]]), rest)
            }
            Next::Typed(ethertype, bytes) if is_vlan_tag(ethertype) => {
                let ([control_high, control_low, type_high, type_low], rest) = take::<VLAN_LEN>(bytes)?;
                layers.push(Layer::Vlan(u16::from_be_bytes([control_high & 0x0f, *control_low])))?;
                tag_bytes += VLAN_LEN;
                Next::Typed(u16::from_be_bytes([*type_high, *type_low]), rest)
            }
            Next::Typed(ETHERTYPE_IPV4 | ETHERTYPE_IPV6, bytes) => Next::Ip(bytes),
            Next::Typed(ETHERTYPE_BRIDGED, bytes) => Next::Ethernet(bytes),
            Next::Typed(ethertype, _) if ethertype < FIRST_ETHERTYPE => return Err(OtherFrame::Ieee8023),
            Next::Typed(ethertype, _) => return Err(OtherFrame::EtherType(ethertype)),
            Next::Ip(bytes) => {
                let ip = parse_ip(bytes)?;
                if ip.protocol == PROTOCOL_UDP {
                    let datagram = ip.datagram()?;
                    if datagram.dst_port == roce_port {
                        let frame_bytes = ETHERNET_LEN + tag_bytes + datagram.ip_len;
                        return Ok(UdpFrame { datagram, frame_bytes, layers });
                    }
                }
                let tunnel = tunnel(&ip)?;
                tag_bytes = 0;
                let hop_limit = ip.outer.hop_limit;
                layers.push(Layer::Tunnel { kind: tunnel.kind, id: tunnel.id, hop_limit })?;
                tunnel.next
            }
        };
    }
}

fn take<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), OtherFrame> {
    bytes.split_first_chunk().ok_or(OtherFrame::Cut)
}

fn after_link(link_type: LinkType, bytes: &[u8]) -> Result<Next<'_>, OtherFrame> {
    Ok(match link_type {
        LinkType::ETHERNET => Next::Ethernet(bytes),
        // The EtherType is the last field of a cooked v1 header, and the first field of a cooked v2 header.
        LinkType::LINUX_SLL => {
            let (header, rest) = take::<16>(bytes)?;
            Next::Typed(u16::from_be_bytes([header[14], header[15]]), rest)
        }
        LinkType::LINUX_SLL2 => {
            let (header, rest) = take::<20>(bytes)?;
            Next::Typed(u16::from_be_bytes([header[0], header[1]]), rest)
        }
        LinkType::NULL | LinkType::LOOP => Next::Ip(take::<4>(bytes)?.1),
        _ if link_type.is_known() => Next::Ip(bytes),
        _ => return Err(OtherFrame::LinkType(link_type.0)),
    })
}

struct Tunnel<'a> {
    kind: TunnelKind,
    id: u32,
    next: Next<'a>,
}

/// Returns the tunnel in an IP packet. If the packet has none, `Err` names the content of the packet.
fn tunnel<'a>(ip: &IpPacket<'a>) -> Result<Tunnel<'a>, OtherFrame> {
    match ip.protocol {
        PROTOCOL_IPV4 | PROTOCOL_IPV6 => Ok(Tunnel { kind: TunnelKind::Ip, id: 0, next: Next::Ip(ip.payload) }),
        PROTOCOL_GRE => gre(ip.payload, OtherFrame::IpProtocol(PROTOCOL_GRE)),
        _ => {
            let datagram = ip.datagram()?;
            let other = OtherFrame::UdpPort(datagram.dst_port);
            match datagram.dst_port {
                PORT_VXLAN | PORT_VXLAN_LINUX | PORT_VXLAN_GPE => vxlan(datagram.payload, other),
                PORT_GENEVE => geneve(datagram.payload, other),
                PORT_GRE => gre(datagram.payload, other),
                _ => Err(other),
            }
        }
    }
}

/// Parses VXLAN (RFC 7348) and VXLAN-GPE, its extension for protocols other than Ethernet. Returns the error `other` if
/// `bytes` hold neither.
fn vxlan(bytes: &[u8], other: OtherFrame) -> Result<Tunnel<'_>, OtherFrame> {
    const HAS_ID: u8 = 0x08;
    const HAS_PROTOCOL: u8 = 0x04;
    let ([flags, _, _, protocol, id @ .., _], rest) = take::<8>(bytes)?;
    let next = match protocol {
        _ if flags & HAS_ID == 0 => return Err(other),
        _ if flags & HAS_PROTOCOL == 0 => Next::Ethernet(rest),
        1 | 2 => Next::Ip(rest),
        3 => Next::Ethernet(rest),
        _ => return Err(other),
    };
    Ok(Tunnel { kind: TunnelKind::Vxlan, id: id_of_24_bits(*id), next })
}

/// Parses GENEVE (RFC 8926).
fn geneve(bytes: &[u8], other: OtherFrame) -> Result<Tunnel<'_>, OtherFrame> {
    let ([version_and_options, _, type_high, type_low, id @ .., _], rest) = take::<8>(bytes)?;
    if version_and_options >> 6 != 0 {
        return Err(other);
    }
    let options = usize::from(version_and_options & 0x3f) * 4;
    let rest = rest.get(options..).ok_or(OtherFrame::Cut)?;
    let next = Next::Typed(u16::from_be_bytes([*type_high, *type_low]), rest);
    Ok(Tunnel { kind: TunnelKind::Geneve, id: id_of_24_bits(*id), next })
}

/// Parses GRE (RFC 2784, RFC 2890), NVGRE (RFC 7637) and ERSPAN.
fn gre(bytes: &[u8], other: OtherFrame) -> Result<Tunnel<'_>, OtherFrame> {
    const CHECKSUM: u8 = 0x80;
    const ROUTING: u8 = 0x40;
    const KEY: u8 = 0x20;
    const SEQUENCE: u8 = 0x10;
    let ([flags, version, type_high, type_low], mut rest) = take::<4>(bytes)?;
    if flags & ROUTING != 0 || version & 0x07 != 0 {
        return Err(other);
    }
    let mut key = 0;
    for field in [CHECKSUM, KEY, SEQUENCE] {
        if flags & field != 0 {
            let (value, behind) = take::<4>(rest)?;
            rest = behind;
            if field == KEY {
                key = u32::from_be_bytes(*value);
            }
        }
    }
    match u16::from_be_bytes([*type_high, *type_low]) {
        // ERSPAN version I has no header of its own, and its GRE header has no sequence number.
        ETHERTYPE_ERSPAN_2 if flags & SEQUENCE == 0 => {
            Ok(Tunnel { kind: TunnelKind::Erspan1, id: 0, next: Next::Ethernet(rest) })
        }
        ETHERTYPE_ERSPAN_2 => {
            let (header, rest) = take::<8>(rest)?;
            let id = erspan_session(header, 1).ok_or(OtherFrame::EtherType(ETHERTYPE_ERSPAN_2))?;
            Ok(Tunnel { kind: TunnelKind::Erspan2, id, next: Next::Ethernet(rest) })
        }
        ETHERTYPE_ERSPAN_3 => erspan_3(rest),
        ethertype => Ok(Tunnel { kind: TunnelKind::Gre, id: key, next: Next::Typed(ethertype, rest) }),
    }
}

/// Returns the session of an ERSPAN header, or `None` if the header has another version.
fn erspan_session(header: &[u8], version: u8) -> Option<u32> {
    (header[0] >> 4 == version).then(|| u32::from(u16::from_be_bytes([header[2] & 0x03, header[3]])))
}

fn erspan_3(bytes: &[u8]) -> Result<Tunnel<'_>, OtherFrame> {
    const SUBHEADER_LEN: usize = 8;
    let (header, rest) = take::<12>(bytes)?;
    let other = OtherFrame::EtherType(ETHERTYPE_ERSPAN_3);
    let id = erspan_session(header, 2).ok_or(other)?;
    let has_subheader = header[11] & 1 != 0;
    let rest = rest.get(if has_subheader { SUBHEADER_LEN } else { 0 }..).ok_or(OtherFrame::Cut)?;
    let next = match header[10] >> 2 & 0x1f {
        0 => Next::Ethernet(rest),
        2 => Next::Ip(rest),
        _ => return Err(other),
    };
    Ok(Tunnel { kind: TunnelKind::Erspan3, id, next })
}

fn id_of_24_bits([high, middle, low]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, high, middle, low])
}
