//! Headers before the BTH: Ethernet, IP and UDP (Annex A17 for RoCE v2).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Error;

/// Destination UDP port of RoCE v2 packets (IBTA Vol 1, Annex A17).
pub const ROCE_UDP_PORT: u16 = 4791;

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_LEN: usize = 14;
/// Bytes of a VLAN tag.
pub const VLAN_LEN: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;
/// Bytes of the global routing header. It precedes the payload of a UD message in the receive buffer (IBTA Vol 1,
/// 11.4.1.2).
pub const GRH_LEN: usize = 40;
/// Bytes of Ethernet's preamble and start delimiter. They occupy the line, but no counter of RDMA traffic includes
/// them.
pub const PREAMBLE_LEN: usize = 8;
/// Bytes of Ethernet's frame check sequence. They occupy the line, but no counter of RDMA traffic includes them.
pub const FCS_LEN: usize = 4;
/// Bytes of the gap between Ethernet frames.
pub const GAP_LEN: usize = 12;
/// Minimum bytes of a frame on the line, without FCS. Shorter frames are padded.
pub const MIN_FRAME_LEN: usize = 60;

/// Version of the IP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpVersion {
    /// IPv4 without options.
    V4,
    /// IPv6 without extension headers.
    V6,
}

/// Fields of the IP header that the transport uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Outer {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family as the source address.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// IPv4 identification, if known. A UDP socket does not report the identification, and IPv6 has no such field.
    pub identification: Option<u16>,
    /// IPv4 flag DF (do not fragment), if known.
    pub dont_fragment: Option<bool>,
}

/// Fields of the Ethernet and UDP headers. [`Outer`] holds the fields of the IP header between them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Encapsulation {
    /// Source MAC address.
    pub src_mac: [u8; 6],
    /// Destination MAC address.
    pub dst_mac: [u8; 6],
    /// Control information of the VLAN tag, 16 bits; `None` without a tag.
    pub vlan: Option<u16>,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

impl Encapsulation {
    /// Returns the bytes that [`emit_frame_headers`](Encapsulation::emit_frame_headers) writes.
    pub fn header_len(&self, outer: &Outer) -> usize {
        let ip = match addresses(outer) {
            Addresses::V4(..) => IPV4_LEN,
            Addresses::V6(..) => IPV6_LEN,
        };
        ETHERNET_LEN + self.vlan.map_or(0, |_| VLAN_LEN) + ip + UDP_LEN
    }

    /// Writes the Ethernet, IP and UDP headers of a frame with `udp_payload_len` bytes of UDP payload (BTH to ICRC).
    /// Returns the bytes written.
    ///
    /// If the identification is unknown, writes 0. If DF is unknown, sets DF, as a UDP socket with path MTU discovery
    /// does.
    /// Writes the UDP checksum 0, which means that there is no checksum: Annex A17 leaves the protection of the packet
    /// to the ICRC. RFC 6935 permits a missing checksum over IPv6 for protocols with their own check.
    ///
    /// # Panics
    /// If `out` is shorter than [`header_len`](Encapsulation::header_len), or the payload does not fit into an IP
    /// packet.
    pub fn emit_frame_headers(&self, outer: &Outer, udp_payload_len: usize, out: &mut [u8]) -> usize {
        let udp_len = UDP_LEN + udp_payload_len;
        let addresses = addresses(outer);
        let mut out = Writer { out, at: 0 };
        out.put(&self.dst_mac);
        out.put(&self.src_mac);
        if let Some(control) = self.vlan {
            out.put_u16(ETHERTYPE_VLAN);
            out.put_u16(control);
        }
        match addresses {
            Addresses::V4(src, dst) => {
                out.put_u16(ETHERTYPE_IPV4);
                out.put(&ipv4_header(outer, src, dst, udp_len));
            }
            Addresses::V6(src, dst) => {
                let class = u32::from(outer.traffic_class);
                out.put_u16(ETHERTYPE_IPV6);
                out.put(&(6 << 28 | class << 20).to_be_bytes());
                out.put_u16(length_u16(udp_len));
                out.put(&[PROTOCOL_UDP, outer.hop_limit]);
                out.put(&src.octets());
                out.put(&dst.octets());
            }
        }
        out.put_u16(self.src_port);
        out.put_u16(self.dst_port);
        out.put_u16(length_u16(udp_len));
        out.put_u16(0);
        out.at
    }
}

/// An Ethernet frame that carries UDP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Frame<'a> {
    /// MAC addresses, outermost VLAN tag and ports.
    pub encapsulation: Encapsulation,
    /// Fields of the IP header.
    pub outer: Outer,
    /// UDP payload; for RoCE, from the BTH to the ICRC.
    pub payload: &'a [u8],
}

/// IP packet that a capture may have cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpPacket<'a> {
    /// Fields of the IP header that the transport uses.
    pub outer: Outer,
    /// Protocol of the payload; for IPv6, the protocol after the extension headers.
    pub protocol: u8,
    /// Whether the header has options (IPv4) or extension headers (IPv6), which the definition of the ICRC does not
    /// cover.
    pub has_options: bool,
    /// Bytes of the whole IP packet, according to its header.
    pub ip_len: usize,
    /// Captured bytes of the payload after the IP header, without bytes beyond the length in the header.
    pub payload: &'a [u8],
    /// Bytes of the whole payload, according to the header.
    pub payload_len: usize,
}

/// IP packet with a UDP datagram. A capture may hold only the beginning of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Datagram<'a> {
    /// Fields of the IP header.
    pub outer: Outer,
    /// Whether the IP header has options or extension headers: see [`IpPacket::has_options`].
    pub has_options: bool,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// Bytes of the whole IP packet, according to its header.
    pub ip_len: usize,
    /// Captured bytes of the UDP payload.
    pub payload: &'a [u8],
    /// Bytes of the whole UDP payload, according to the UDP header.
    pub payload_len: usize,
}

/// Reads an Ethernet frame without FCS. Skips VLAN tags and keeps the outermost one.
///
/// Does not check the IPv4 header checksum and the UDP checksum. Capture files often hold frames for which the NIC
/// has not computed the checksums yet.
///
/// # Errors
///
/// The frame carries neither IPv4 nor IPv6, the frame is shorter than the length in the IP header states, or
/// [`parse_datagram`] rejects the IP packet.
pub fn parse_frame(frame: &[u8]) -> Result<Frame<'_>, Error> {
    let mut rest = Reader { bytes: frame, taken: 0 };
    let dst_mac = rest.take()?;
    let src_mac = rest.take()?;
    let mut vlan = None;
    let mut ethertype = rest.take_u16()?;
    while is_vlan_tag(ethertype) {
        let control = rest.take_u16()?;
        vlan = vlan.or(Some(control));
        ethertype = rest.take_u16()?;
    }
    let version = version_of(ethertype)?;
    let at = rest.taken;
    let datagram = take_ip(&mut rest, version)?.datagram()?;
    let needed = at + datagram.ip_len;
    if frame.len() < needed {
        return Err(Error::Truncated { needed, found: frame.len() });
    }
    let Datagram { outer, src_port, dst_port, payload, .. } = datagram;
    Ok(Frame { encapsulation: Encapsulation { src_mac, dst_mac, vlan, src_port, dst_port }, outer, payload })
}

/// Reads an IPv4 or IPv6 packet. The packet may end early, but not within its headers. Skips IPv6 extension headers.
///
/// Does not check checksums, like [`parse_frame`].
///
/// # Errors
///
/// The packet ends within its headers, is malformed, or is an IP fragment.
pub fn parse_ip(packet: &[u8]) -> Result<IpPacket<'_>, Error> {
    let version = match packet.first().map(|first| first >> 4) {
        Some(4) => IpVersion::V4,
        Some(6) => IpVersion::V6,
        Some(_) => return Err(Error::IpHeader),
        None => return Err(Error::Truncated { needed: IPV4_LEN, found: 0 }),
    };
    take_ip(&mut Reader { bytes: packet, taken: 0 }, version)
}

impl<'a> IpPacket<'a> {
    /// Reads the UDP header after the IP header.
    ///
    /// # Errors
    ///
    /// The packet carries another protocol than UDP, ends before the end of the UDP ports, or has an impossible UDP
    /// length.
    pub fn datagram(&self) -> Result<Datagram<'a>, Error> {
        if self.protocol != PROTOCOL_UDP {
            return Err(Error::IpProtocol(self.protocol));
        }
        let mut rest = Reader { bytes: self.payload, taken: self.ip_len - self.payload_len };
        let src_port = rest.take_u16()?;
        let dst_port = rest.take_u16()?;
        // A capture may have cut the UDP header after the ports, and then the UDP length is missing. The parser derives
        // it from the length in the IP header.
        let is_cut = self.payload.len() < UDP_LEN.min(self.payload_len);
        let (udp_len, rest) = if is_cut {
            (self.payload_len, Reader { bytes: &[], taken: self.ip_len })
        } else {
            let udp_len = usize::from(rest.take_u16()?);
            let _checksum = rest.take_u16()?;
            (udp_len, rest)
        };
        let payload_len = udp_len.checked_sub(UDP_LEN).ok_or(Error::UdpHeader)?;
        if udp_len > self.payload_len {
            return Err(Error::UdpHeader);
        }
        let payload = &rest.bytes[..payload_len.min(rest.bytes.len())];
        let IpPacket { outer, has_options, ip_len, .. } = *self;
        Ok(Datagram { outer, has_options, src_port, dst_port, ip_len, payload, payload_len })
    }
}

/// Reads an IPv4 or IPv6 packet with a UDP datagram. The packet may end early, but not before the end of the UDP
/// ports. Ignores bytes after the packet.
///
/// # Errors
///
/// The errors of [`parse_ip`] and [`IpPacket::datagram`].
pub fn parse_datagram(packet: &[u8]) -> Result<Datagram<'_>, Error> {
    parse_ip(packet)?.datagram()
}

/// Returns whether this EtherType announces a VLAN tag (IEEE 802.1Q): 2 bytes of control information, then another
/// EtherType. For outer tags, 802.1ad assigned 0x88a8, and older switches use 0x9100 to 0x9300.
pub const fn is_vlan_tag(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ | 0x9100 | 0x9200 | 0x9300)
}

fn version_of(ethertype: u16) -> Result<IpVersion, Error> {
    match ethertype {
        ETHERTYPE_IPV4 => Ok(IpVersion::V4),
        ETHERTYPE_IPV6 => Ok(IpVersion::V6),
        other => Err(Error::EtherType(other)),
    }
}

/// Reads the IP header and the payload of the IP packet.
fn take_ip<'a>(rest: &mut Reader<'a>, version: IpVersion) -> Result<IpPacket<'a>, Error> {
    let at = rest.taken;
    let header = match version {
        IpVersion::V4 => take_ipv4(rest)?,
        IpVersion::V6 => take_ipv6(rest)?,
    };
    let IpHeader { outer, protocol, has_options, payload_len } = header;
    let payload = &rest.bytes[..payload_len.min(rest.bytes.len())];
    Ok(IpPacket { outer, protocol, has_options, ip_len: rest.taken - at + payload_len, payload, payload_len })
}

struct IpHeader {
    outer: Outer,
    protocol: u8,
    has_options: bool,
    payload_len: usize,
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;
const FRAGMENT_HEADER: u8 = 44;
const AUTHENTICATION_HEADER: u8 = 51;
/// Reserved bits of an IPv6 fragment header, between the offset and the More Fragments flag.
const IPV6_FRAGMENT_RESERVED: u16 = 0x0006;

enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// Returns both addresses in one family: IPv4 if each address is IPv4 or IPv4-mapped, and IPv6 otherwise.
fn addresses(outer: &Outer) -> Addresses {
    match (outer.src.to_canonical(), outer.dst.to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4(src, dst),
        (src, dst) => Addresses::V6(to_gid(src), to_gid(dst)),
    }
}

/// Returns the GID of RoCE v2 for an IP address (IBTA Annex A17). An IPv4 address is mapped to IPv6.
pub fn to_gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Returns an IPv4 header without options (RFC 791).
fn ipv4_header(outer: &Outer, src: Ipv4Addr, dst: Ipv4Addr, udp_len: usize) -> [u8; IPV4_LEN] {
    let dont_fragment = outer.dont_fragment.unwrap_or(true);
    let mut header = [0; IPV4_LEN];
    let mut out = Writer { out: &mut header, at: 0 };
    out.put(&[0x45, outer.traffic_class]);
    out.put_u16(length_u16(IPV4_LEN + udp_len));
    out.put_u16(outer.identification.unwrap_or(0));
    out.put_u16(if dont_fragment { DONT_FRAGMENT } else { 0 });
    out.put(&[outer.hop_limit, PROTOCOL_UDP]);
    out.put_u16(0);
    out.put(&src.octets());
    out.put(&dst.octets());
    let checksum = internet_checksum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// Returns the complement of the ones' complement sum (RFC 1071).
fn internet_checksum(bytes: &[u8; IPV4_LEN]) -> u16 {
    let (pairs, _) = bytes.as_chunks::<2>();
    let mut sum: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn length_u16(length: usize) -> u16 {
    u16::try_from(length).expect("the payload fits an IP packet")
}

/// Reads an IPv4 header.
fn take_ipv4(rest: &mut Reader<'_>) -> Result<IpHeader, Error> {
    let [version_ihl, traffic_class] = rest.take()?;
    let header_len = usize::from(version_ihl & 0x0f) * 4;
    if version_ihl >> 4 != 4 || header_len < IPV4_LEN {
        return Err(Error::IpHeader);
    }
    let total_len = usize::from(rest.take_u16()?);
    let identification = rest.take_u16()?;
    let fragment = rest.take_u16()?;
    let [hop_limit, protocol] = rest.take()?;
    let _checksum = rest.take_u16()?;
    let src = rest.take::<4>()?;
    let dst = rest.take::<4>()?;
    let _options = rest.take_slice(header_len - IPV4_LEN)?;
    if fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
        return Err(Error::Fragment);
    }
    let outer = Outer {
        src: IpAddr::from(src),
        dst: IpAddr::from(dst),
        traffic_class,
        hop_limit,
        identification: Some(identification),
        dont_fragment: Some(fragment & DONT_FRAGMENT != 0),
    };
    let payload_len = total_len.checked_sub(header_len).ok_or(Error::IpHeader)?;
    Ok(IpHeader { outer, protocol, has_options: header_len > IPV4_LEN, payload_len })
}

/// Reads an IPv6 header and its extension headers (RFC 8200).
fn take_ipv6(rest: &mut Reader<'_>) -> Result<IpHeader, Error> {
    let first = u32::from_be_bytes(rest.take()?);
    if first >> 28 != 6 {
        return Err(Error::IpHeader);
    }
    let mut payload_len = usize::from(rest.take_u16()?);
    let [mut protocol, hop_limit] = rest.take()?;
    let src = rest.take::<16>()?;
    let dst = rest.take::<16>()?;
    let mut has_options = false;
    while is_extension_header(protocol) {
        let [next, length, fragment @ ..] = rest.take::<4>()?;
        // Most extension headers state their length in units of 8 B and do not count the first 8 B.
        let header_len = match protocol {
            FRAGMENT_HEADER if u16::from_be_bytes(fragment) & !IPV6_FRAGMENT_RESERVED != 0 => {
                return Err(Error::Fragment);
            }
            FRAGMENT_HEADER => 8,
            AUTHENTICATION_HEADER => (usize::from(length) + 2) * 4,
            _ => (usize::from(length) + 1) * 8,
        };
        let _rest_of_header = rest.take_slice(header_len - 4)?;
        payload_len = payload_len.checked_sub(header_len).ok_or(Error::IpHeader)?;
        has_options = true;
        protocol = next;
    }
    let outer = Outer {
        src: IpAddr::from(src),
        dst: IpAddr::from(dst),
        traffic_class: (first >> 20) as u8,
        hop_limit,
        identification: None,
        dont_fragment: None,
    };
    Ok(IpHeader { outer, protocol, has_options, payload_len })
}

/// Returns whether this protocol is an IPv6 extension header, which names the next protocol: hop-by-hop options,
/// routing, fragment, authentication, destination options, mobility, HIP and Shim6.
const fn is_extension_header(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | FRAGMENT_HEADER | AUTHENTICATION_HEADER | 60 | 135 | 139 | 140)
}

/// Reader that takes bytes from the front of a slice.
struct Reader<'a> {
    bytes: &'a [u8],
    taken: usize,
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take_slice(N)?);
        Ok(bytes)
    }

    fn take_u16(&mut self) -> Result<u16, Error> {
        self.take().map(u16::from_be_bytes)
    }

    fn take_slice(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let Some((bytes, rest)) = self.bytes.split_at_checked(n) else {
            return Err(Error::Truncated { needed: self.taken + n, found: self.taken + self.bytes.len() });
        };
        self.bytes = rest;
        self.taken += n;
        Ok(bytes)
    }
}

/// Writer that appends bytes to a slice.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }
}
