//! The invariant CRC (IBTA Vol 1, Annex A17, for RoCE v2).
//!
//! It is Ethernet's CRC-32 over everything that stays the same on the way: 8 bytes of ones in
//! place of InfiniBand's local route header, the IP header, the UDP header and the packet up to
//! its padding, where ones stand for what a router may change: type of service, time to live and
//! header checksum (of IPv6 traffic class, flow label and hop limit), the UDP checksum, and the
//! BTH's fifth byte with the congestion bits. It follows the packet least significant byte first
//! (`u32::to_le_bytes`).
//!
//! Everything before the BTH depends on the flow, the packet's length and, of IPv4, the
//! identification and DF. CRC is linear, so [`Flow`] keeps the register of the flow alone, and
//! length and identification are added from tables.
//!
//! **A receiver behind a UDP socket does not know identification and DF.** Also because CRC is
//! linear, the difference between the ICRC received and the one expected, taken back by the bytes
//! between, *is* the difference in these 17 bits, if that is all there is:
//! [`explain_difference`]. A random error is taken for such a difference once in 2^15 times.

use core::net::IpAddr;

use crate::{BTH_LEN, ICRC_LEN, IPV4_LEN, UDP_LEN, crc};

/// Addresses and ports, prepared for computing ICRCs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The register behind the UDP header, with lengths, identification and DF zero.
    base: u32,
    ipv4: bool,
}

impl Flow {
    /// The flow between two UDP ports.
    ///
    /// IPv4-mapped addresses count as IPv4, which is what the wire then carries. Of two families
    /// the result is an IPv6 flow, of which no packet exists.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> Flow {
        let register = crc::update_short(crc::INITIAL, &[0xff; 8]);
        let (register, ipv4) = match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                // Version and header length, type of service, total length, identification,
                // flags and fragment offset, time to live, UDP, header checksum.
                let fixed = [0x45, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 17, 0xff, 0xff];
                let register = crc::update_short(register, &fixed);
                let register = crc::update_short(register, &src.octets());
                (crc::update_short(register, &dst.octets()), true)
            }
            (src, dst) => {
                // Version, traffic class and flow label, payload length, UDP, hop limit.
                let fixed = [0x6f, 0xff, 0xff, 0xff, 0, 0, 17, 0xff];
                let register = crc::update_short(register, &fixed);
                let register = crc::update_short(register, &v6_octets(src));
                (crc::update_short(register, &v6_octets(dst)), false)
            }
        };
        let register = crc::update_short(register, &src_port.to_be_bytes());
        let register = crc::update_short(register, &dst_port.to_be_bytes());
        // UDP length and checksum.
        let base = crc::update_short(register, &[0, 0, 0xff, 0xff]);
        Flow { base, ipv4 }
    }

    /// The ICRC of `packet`, which runs from the BTH to the padding. IPv6 flows ignore
    /// identification and DF.
    #[inline]
    pub fn icrc(&self, identification: u16, dont_fragment: bool, packet: &[u8]) -> u32 {
        let mut icrc = Icrc::new(self, identification, dont_fragment, packet.len());
        icrc.update(packet);
        icrc.finish()
    }

    /// Whether the ICRC at the end of `packet` is right for some identification and DF.
    ///
    /// Tries the assumed identification with DF set first (a socket with `IP_PMTUDISC_DO` sets
    /// it); only if that fails looks for others, at a few times the cost. IPv6 packets have
    /// neither: theirs is right or wrong, and the answer repeats what was assumed.
    #[inline]
    pub fn check(&self, assumed_identification: u16, packet: &[u8]) -> Check {
        let Some((packet, received)) = packet.split_last_chunk::<ICRC_LEN>() else {
            return Check::Invalid;
        };
        if packet.len() < BTH_LEN {
            return Check::Invalid;
        }
        let received = u32::from_le_bytes(*received);
        let expected = self.icrc(assumed_identification, true, packet);
        if received == expected {
            return Check::Valid { identification: assumed_identification, dont_fragment: true };
        }
        if !self.ipv4 {
            return Check::Invalid;
        }
        match explain_difference(received, expected, V4_AFTER_IDENTIFICATION + packet.len()) {
            Some((identification_xor, dont_fragment_differs)) => Check::Valid {
                identification: assumed_identification ^ identification_xor,
                dont_fragment: !dont_fragment_differs,
            },
            None => Check::Invalid,
        }
    }

    /// The register behind the UDP header.
    #[inline]
    fn register(&self, identification: u16, dont_fragment: bool, packet_len: usize) -> u32 {
        // Longer packets than the length fields can say do not exist; they get some ICRC.
        let udp_len = (UDP_LEN + packet_len + ICRC_LEN) as u16;
        let register = self.base ^ UDP_LENGTH.of(udp_len);
        if self.ipv4 {
            register
                ^ V4_LENGTH.of(udp_len.wrapping_add(IPV4_LEN as u16))
                ^ V4_IDENTIFICATION.of(identification)
                ^ if dont_fragment { V4_DONT_FRAGMENT } else { 0 }
        } else {
            register ^ V6_LENGTH.of(udp_len)
        }
    }
}

/// What [`Flow::check`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// The packet is as it was sent, with this identification and this DF.
    Valid {
        /// The IPv4 identification that explains the ICRC.
        identification: u16,
        /// The DF flag that does.
        dont_fragment: bool,
    },
    /// The packet was altered on the way, or is none.
    Invalid,
}

/// An ICRC in the making, for packets whose parts lie apart.
///
/// ```
/// use doorbell_wire::{Flow, Icrc, ROCE_UDP_PORT};
///
/// let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 49152, ROCE_UDP_PORT);
/// let (headers, payload) = ([0; 28], [1, 2, 3, 4]);
/// let mut icrc = Icrc::new(&flow, 0, true, headers.len() + payload.len());
/// icrc.update(&headers);
/// icrc.update(&payload);
/// let trailer = icrc.finish().to_le_bytes();
/// # assert_eq!(trailer, flow.icrc(0, true, &[&headers[..], &payload].concat()).to_le_bytes());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Icrc {
    register: u32,
    /// Bytes taken in, exact until the BTH's masked byte has passed.
    position: usize,
}

impl Icrc {
    /// Begins the ICRC of a packet of `packet_len` bytes from the BTH to the padding.
    #[inline]
    pub fn new(flow: &Flow, identification: u16, dont_fragment: bool, packet_len: usize) -> Icrc {
        Icrc { register: flow.register(identification, dont_fragment, packet_len), position: 0 }
    }

    /// Adds the packet's next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        match bytes.split_first_chunk::<BTH_LEN>() {
            Some((bth, rest)) if self.position == 0 => {
                let mut bth = *bth;
                bth[BTH_MASKED] = 0xff;
                self.register = crc::update(crc::step(self.register, &bth), rest);
                self.position = BTH_LEN;
            }
            _ if self.position > BTH_MASKED => self.register = crc::update(self.register, bytes),
            _ => self.update_split_bth(bytes),
        }
    }

    /// The ICRC. It follows the packet as `to_le_bytes`.
    #[inline]
    pub fn finish(self) -> u32 {
        !self.register
    }

    /// As [`update`](Icrc::update), where the BTH itself comes in parts.
    #[cold]
    fn update_split_bth(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let byte = if self.position == BTH_MASKED { 0xff } else { byte };
            self.register = crc::update_short(self.register, &[byte]);
            self.position += 1;
        }
    }
}

/// Which change of identification and DF turns one ICRC into another: the exclusive-or of the
/// identifications, and whether DF differs. `None` if no such change does, that is, if the packets
/// differ otherwise.
///
/// `bytes_after_identification` counts what the ICRC covers behind the identification: flags,
/// time to live and so on, up to the padding.
pub fn explain_difference(received: u32, expected: u32, bytes_after_identification: usize) -> Option<(u16, bool)> {
    // The register takes a byte in at its lower end and moves down. Taken back to the moment
    // before the identification, a difference in the next four bytes is those bytes themselves.
    let before = crc::rewind(received ^ expected, bytes_after_identification + 2)?;
    match before.to_le_bytes() {
        [high, low, flags, 0] if flags & !DONT_FRAGMENT == 0 => Some((u16::from_be_bytes([high, low]), flags != 0)),
        _ => None,
    }
}

/// The BTH's byte that is left out: congestion bits and reserved ones.
const BTH_MASKED: usize = 4;

/// DF in the byte behind the identification.
const DONT_FRAGMENT: u8 = 0x40;

/// IPv4 header behind the identification, and UDP header.
const V4_AFTER_IDENTIFICATION: usize = 14 + UDP_LEN;

/// What a 16-bit field adds to the register behind the UDP header.
struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

impl Field {
    /// The field that has this many bytes between itself and the BTH.
    const fn new(bytes_after: usize) -> Field {
        Field { high: crc::contributions(bytes_after + 1), low: crc::contributions(bytes_after) }
    }

    #[inline]
    fn of(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[high as usize] ^ self.low[low as usize]
    }
}

static UDP_LENGTH: Field = Field::new(2);
static V4_LENGTH: Field = Field::new(16 + UDP_LEN);
static V4_IDENTIFICATION: Field = Field::new(V4_AFTER_IDENTIFICATION);
const V4_DONT_FRAGMENT: u32 = crc::contributions(V4_AFTER_IDENTIFICATION - 1)[DONT_FRAGMENT as usize];
static V6_LENGTH: Field = Field::new(34 + UDP_LEN);

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
