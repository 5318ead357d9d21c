//! Invariant CRC (IBTA Vol 1, Annex A17, for RoCE v2).
//!
//! The ICRC is Ethernet's CRC-32 over all fields that stay the same on the path. Its input is:
//!
//! - 8 bytes of ones in place of InfiniBand's local route header,
//! - the IP header, the UDP header and the packet up to its padding.
//!
//! Ones replace the fields that a router may change:
//!
//! - of IPv4, the type of service, time to live and header checksum,
//! - of IPv6, the traffic class, flow label and hop limit,
//! - the UDP checksum,
//! - the fifth byte of the BTH, which holds the congestion bits.
//!
//! The ICRC follows the packet least significant byte first (`u32::to_le_bytes`).
//!
//! The bytes before the BTH depend on the flow, on the length of the packet and, over IPv4, on identification and DF.
//! [`Flow`] stores the register after these bytes, computed with length, identification and DF zero. CRC is linear, so
//! [`Flow`] adds the contributions of the actual length, identification and DF to this register for each packet. It
//! takes the contributions from tables.
//!
//! **A receiver behind a UDP socket does not know identification and DF.** The receiver therefore computes the expected
//! ICRC with assumed values. A valid packet differs from the assumption at most in the 16 bits of the identification
//! and in DF. [`explain_difference`] computes the differing bits from the received and the expected ICRC. An ICRC is
//! valid if such bits exist. This weakens the check: a damaged packet passes with a probability of 2^-15.

use core::net::IpAddr;

use crate::{BTH_LEN, ICRC_LEN, IPV4_LEN, UDP_LEN, crc};

/// Addresses and ports, prepared for the computation of ICRCs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Register after the UDP header, computed with the IP length, the UDP length, identification and DF zero.
    base: u32,
    ipv4: bool,
}

impl Flow {
    /// Creates the flow between two UDP ports.
    ///
    /// IPv4-mapped addresses count as IPv4, since their packets are IPv4. If one address is IPv4 and the other IPv6,
    /// the result is an IPv6 flow, to which no real packet belongs.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> Flow {
        let register = crc::update_short(crc::INITIAL, &[0xff; 8]);
        let (register, ipv4) = match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                // Bytes 0 to 11 of an IPv4 header: version and header length, type of service, total length,
                // identification, flags and fragment offset, time to live, protocol UDP, header checksum. Fields that
                // a router may change are 0xff; `register` adds the fields that are 0.
                let fixed = [0x45, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 17, 0xff, 0xff];
                let register = crc::update_short(register, &fixed);
                let register = crc::update_short(register, &src.octets());
                (crc::update_short(register, &dst.octets()), true)
            }
            (src, dst) => {
                // Bytes 0 to 7 of an IPv6 header: version, traffic class and flow label, payload length, next header
                // UDP, hop limit. Fields that a router may change are ones; `register` adds the payload length.
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

    /// Returns the ICRC of `packet`, which extends from the BTH to the padding. An IPv6 flow ignores the arguments
    /// `identification` and `dont_fragment`.
    #[inline]
    pub fn icrc(&self, identification: u16, dont_fragment: bool, packet: &[u8]) -> u32 {
        let mut icrc = Icrc::new(self, identification, dont_fragment, packet.len());
        icrc.update(packet);
        icrc.finish()
    }

    /// Returns whether the ICRC at the end of `packet` is valid for some identification and some value of DF.
    ///
    /// First tries `assumed_identification` with DF set, since a socket with `IP_PMTUDISC_DO` sets DF. If the ICRC does
    /// not match, computes the values that would match, which takes several times as long. An IPv6 packet has neither
    /// field. If its ICRC is valid, the result holds `assumed_identification` and a set DF.
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

    /// Returns the register after the UDP header.
    #[inline]
    fn register(&self, identification: u16, dont_fragment: bool, packet_len: usize) -> u32 {
        // A packet that is longer than its UDP length field can express does not exist. For such a length, the register
        // is meaningless.
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

/// Result of [`Flow::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// The ICRC is valid for this identification and this DF.
    Valid {
        /// IPv4 identification for which the ICRC is valid.
        identification: u16,
        /// DF flag for which the ICRC is valid.
        dont_fragment: bool,
    },
    /// The packet was changed on its path, or is shorter than a BTH and an ICRC.
    Invalid,
}

/// Incremental computation of an ICRC, for packets in several buffers.
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
    /// Number of bytes that were processed. Only the masked byte of the BTH needs its position, so the number stops
    /// being exact after that byte.
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

    /// Returns the ICRC, which follows the packet as `to_le_bytes`.
    #[inline]
    pub fn finish(self) -> u32 {
        !self.register
    }

    /// Does the same as [`update`](Icrc::update) for a BTH in several parts.
    #[cold]
    fn update_split_bth(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let byte = if self.position == BTH_MASKED { 0xff } else { byte };
            self.register = crc::update_short(self.register, &[byte]);
            self.position += 1;
        }
    }
}

/// Returns the change of identification and DF that turns the expected ICRC into the received one: the exclusive or of
/// both identifications, and whether DF differs. Returns `None` if no such change exists.
///
/// `bytes_after_identification` counts the bytes that the ICRC covers after the identification, from the flags to the
/// end of the padding.
pub fn explain_difference(received: u32, expected: u32, bytes_after_identification: usize) -> Option<(u16, bool)> {
    // The CRC adds each input byte to the lowest byte of the register. Different values of the next four input bytes
    // therefore have the same effect as a register with the same difference. `rewind` computes this difference for the
    // register before the identification. Its bytes are the differences of the identification (two bytes), of the flags
    // and of the byte after the flags.
    let before = crc::rewind(received ^ expected, bytes_after_identification + 2)?;
    match before.to_le_bytes() {
        [high, low, flags, 0] if flags & !DONT_FRAGMENT == 0 => Some((u16::from_be_bytes([high, low]), flags != 0)),
        _ => None,
    }
}

/// Masked byte of the BTH: congestion bits and reserved bits.
const BTH_MASKED: usize = 4;

/// Bit of DF in the byte after the identification.
const DONT_FRAGMENT: u8 = 0x40;

/// Bytes between the identification and the BTH: the rest of the IPv4 header, and the UDP header.
const V4_AFTER_IDENTIFICATION: usize = 14 + UDP_LEN;

/// The ICRC's register after the UDP header is the XOR of contributions of the header's bytes. These tables have the
/// contributions of the two bytes of a 16-bit field, for each value of a byte.
struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

impl Field {
    /// Creates the tables of a field. `bytes_after` is the number of bytes between the field and the BTH.
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
