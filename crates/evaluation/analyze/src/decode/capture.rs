//! Reads capture files, pcap and pcapng, one frame at a time.
//!
//! The module does not use a crate, because existing readers fail on captures of RDMA. Such captures can have packets
//! cut by the snap length, files that end within a packet, and pcapng timestamps in units that each interface chooses.

use std::io::{self, Read};

use doorbell_wire::FaultMarks;

/// Maximum number of bytes of a captured frame. If a length is larger, the file is damaged.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// Maximum number of interfaces of a capture.
const MAX_INTERFACES: usize = 4096;

const BUFFER_BYTES: usize = 4 << 20;

/// Link type of the frames of a capture: a number from the LINKTYPE registry of tcpdump.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: the protocol family in the byte order of the machine.
    pub const NULL: LinkType = LinkType(0);
    /// Ethernet, with or without VLAN tags.
    pub const ETHERNET: LinkType = LinkType(1);
    /// IPv4 or IPv6 without a link header.
    pub const RAW: LinkType = LinkType(101);
    /// OpenBSD loopback.
    pub const LOOP: LinkType = LinkType(108);
    /// Linux "cooked", version 1.
    pub const LINUX_SLL: LinkType = LinkType(113);
    /// IPv4.
    pub const IPV4: LinkType = LinkType(228);
    /// IPv6.
    pub const IPV6: LinkType = LinkType(229);
    /// Linux "cooked", version 2.
    pub const LINUX_SLL2: LinkType = LinkType(276);

    /// Returns whether the reader supports frames of this link type.
    pub fn is_known(self) -> bool {
        // 12 and 14 are the numbers of raw IP on some systems.
        matches!(self.0, 0 | 1 | 12 | 14 | 101 | 108 | 113 | 228 | 229 | 276)
    }
}

impl std::fmt::Display for LinkType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.0 {
            0 => "BSD loopback",
            1 => "Ethernet",
            9 => "PPP",
            12 | 14 | 101 => "raw IP",
            105 => "IEEE 802.11",
            108 => "OpenBSD loopback",
            113 => "Linux cooked v1",
            127 => "IEEE 802.11 with radiotap",
            147..=162 => "for private use",
            189 | 220 => "Linux USB",
            197 => "ERF, which ibdump writes for InfiniBand",
            228 => "IPv4",
            229 => "IPv6",
            242 => "IP over InfiniBand",
            247 => "InfiniBand",
            253 => "Linux netlink",
            276 => "Linux cooked v2",
            _ => return write!(f, "{}", self.0),
        };
        write!(f, "{} ({name})", self.0)
    }
}

/// Errors of reading a capture. The texts are sentences whose subject is the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error("is empty: a capture begins with a header")]
    Empty,
    /// The file has another format.
    #[error("is no pcap or pcapng file: it begins with {first_bytes:02x?}{hint}")]
    NotACapture {
        /// Up to four bytes of the file.
        first_bytes: Vec<u8>,
        /// Probable format of the file.
        hint: &'static str,
    },
    /// The reader does not support the link type.
    #[error(
        "has frames of link type {0}; known are Ethernet (1), raw IP (101, 228, 229), Linux cooked (113, 276) and \
         loopback (0, 108)"
    )]
    LinkType(LinkType),
    /// The file ends within a packet or block.
    #[error("ends in the midst of a {what}, {at_byte} bytes from the start")]
    Truncated {
        /// Name of the incomplete part.
        what: &'static str,
        /// Offset of the incomplete part in the file.
        at_byte: u64,
    },
    /// Lengths in the file contradict each other.
    #[error("is damaged {at_byte} bytes from the start: {what}")]
    Damaged {
        /// Description of the defect.
        what: String,
        /// Offset of the packet or block in the file.
        at_byte: u64,
    },
}

/// One captured frame.
#[derive(Clone, Copy, Debug)]
pub struct CapturedFrame<'a> {
    /// Time of capture in nanoseconds since 1970; `None` for pcapng's simple packets.
    pub timestamp_ns: Option<u64>,
    /// Link type of the frame.
    pub link_type: LinkType,
    /// Number of the interface in the file, counted over all sections.
    pub interface: u32,
    /// Direction of the frame, encoded as in pcapng's flags: 0 unknown, 1 inbound, 2 outbound.
    pub direction: u8,
    /// Injected faults that struck the frame, if a software RNIC wrote the capture.
    pub faults: FaultMarks,
    /// Length of the frame on the link.
    pub original_bytes: usize,
    /// Captured bytes.
    pub bytes: &'a [u8],
}

/// Reader of the frames of a capture file.
#[derive(Debug)]
pub struct CaptureReader<R> {
    input: Input<R>,
    format: Format,
}

#[derive(Debug)]
enum Format {
    Pcap {
        big_endian: bool,
        nanoseconds: bool,
        link_type: LinkType,
    },
    PcapNg {
        big_endian: bool,
        interfaces: Vec<Interface>,
        /// Number of interfaces in earlier sections.
        earlier_interfaces: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: LinkType,
    snap_bytes: u32,
    unit: TimeUnit,
    offset_s: i64,
}

#[derive(Clone, Copy, Debug)]
enum TimeUnit {
    /// Time unit of 10^-n s.
    Decimal(u32),
    /// Time unit of 2^-n s.
    Binary(u32),
}

impl TimeUnit {
    fn to_ns(self, ticks: u64) -> u64 {
        let ticks = u128::from(ticks);
        let ns = match self {
            TimeUnit::Decimal(digits @ 0..=9) => ticks * 10_u128.pow(9 - digits),
            TimeUnit::Decimal(digits) => 10_u128.checked_pow(digits - 9).map_or(0, |divisor| ticks / divisor),
            TimeUnit::Binary(bits) => (ticks * 1_000_000_000) >> bits.min(127),
        };
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

impl<R: Read> CaptureReader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is empty, is no pcap or pcapng file, ends within its header, or is a pcap file whose
    /// link type is not known.
    pub fn new(from: R) -> Result<Self, CaptureError> {
        let mut input = Input { from, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, taken: 0 };
        if !input.fill(4)? {
            let first_bytes = input.available().to_vec();
            return Err(match first_bytes.as_slice() {
                [] => CaptureError::Empty,
                _ => CaptureError::NotACapture { first_bytes, hint: "" },
            });
        }
        let magic = array(input.available(), 0);
        let (big_endian, nanoseconds) = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (true, false),
            0xd4c3_b2a1 => (false, false),
            0xa1b2_3c4d => (true, true),
            0x4d3c_b2a1 => (false, true),
            SECTION_HEADER => {
                // `next` reads the first block in the same way as the other blocks.
                return Ok(Self {
                    input,
                    format: Format::PcapNg { big_endian: false, interfaces: Vec::new(), earlier_interfaces: 0 },
                });
            }
            other => {
                let hint = match other {
                    0x1f8b_0000..=0x1f8b_ffff => " (gzip: decompress it first, for example through a pipe)",
                    0x28b5_2ffd => " (zstd: decompress it first, for example through a pipe)",
                    0xa1b2_cd34 | 0x34cd_b2a1 => " (a modified pcap format that is not known here)",
                    _ => "",
                };
                return Err(CaptureError::NotACapture { first_bytes: magic.to_vec(), hint });
            }
        };
        if !input.fill(PCAP_HEADER_BYTES)? {
            return Err(CaptureError::Truncated { what: "file header", at_byte: 0 });
        }
        // The upper half of the field describes frame check sequences.
        let link_type = LinkType(u32_at(input.available(), 20, big_endian) as u16);
        input.take(PCAP_HEADER_BYTES);
        if !link_type.is_known() {
            return Err(CaptureError::LinkType(link_type));
        }
        Ok(Self { input, format: Format::Pcap { big_endian, nanoseconds, link_type } })
    }

    /// Returns the format of the file: `pcap` or `pcapng`.
    pub fn format(&self) -> &'static str {
        match self.format {
            Format::Pcap { .. } => "pcap",
            Format::PcapNg { .. } => "pcapng",
        }
    }

    /// Returns the next frame, or `None` at the end of the file and after an error.
    ///
    /// # Errors
    ///
    /// The file cannot be read, ends within a packet or block, or is damaged. [`CaptureError`] holds the offset from
    /// the start of the file.
    #[allow(clippy::should_implement_trait, reason = "the frame borrows the reader")]
    pub fn next(&mut self) -> Result<Option<CapturedFrame<'_>>, CaptureError> {
        match self.format {
            Format::Pcap { big_endian, nanoseconds, link_type } => {
                next_pcap(&mut self.input, big_endian, nanoseconds, link_type)
            }
            Format::PcapNg { .. } => self.next_block(),
        }
    }

    fn next_block(&mut self) -> Result<Option<CapturedFrame<'_>>, CaptureError> {
        let Self { input, format: Format::PcapNg { big_endian, interfaces, earlier_interfaces } } = self else {
            return Ok(None);
        };
        loop {
            let at_byte = input.taken;
            let damaged = |what: String| CaptureError::Damaged { what, at_byte };
            let truncated = CaptureError::Truncated { what: "block", at_byte };
            if !input.fill(12)? {
                return if input.available().is_empty() { Ok(None) } else { Err(truncated) };
            }
            let head = input.available();
            let kind = u32_at(head, 0, *big_endian);
            if kind == SECTION_HEADER {
                *big_endian = match u32_at(head, 8, true) {
                    0x1a2b_3c4d => true,
                    0x4d3c_2b1a => false,
                    other => return Err(damaged(format!("a section's byte order mark is 0x{other:08x}"))),
                };
                *earlier_interfaces = earlier_interfaces.saturating_add(interfaces.len() as u32);
                interfaces.clear();
            }
            let total = u32_at(head, 4, *big_endian) as usize;
            if total < 12 || !total.is_multiple_of(4) {
                return Err(damaged(format!("a block claims a length of {total}")));
            }
            let is_packet = matches!(kind, ENHANCED_PACKET | SIMPLE_PACKET | OBSOLETE_PACKET);
            if !is_packet && kind != INTERFACE_DESCRIPTION {
                if !input.skip(total as u64)? {
                    return Err(truncated);
                }
                continue;
            }
            if total > MAX_FRAME_BYTES {
                return Err(damaged(format!("a packet of {total} bytes, the longest allowed is {MAX_FRAME_BYTES}")));
            }
            if !input.fill(total)? {
                return Err(truncated);
            }
            let big_endian = *big_endian;
            let end = u32_at(input.available(), total - 4, big_endian) as usize;
            if end != total {
                return Err(damaged(format!("a block has {total} bytes at its start and {end} at its end")));
            }
            if kind == INTERFACE_DESCRIPTION {
                let block = input.take(total);
                let interface = interface(&block[8..total - 4], big_endian)
                    .ok_or_else(|| damaged("an interface's description is too short".to_owned()))?;
                if interfaces.len() == MAX_INTERFACES {
                    return Err(damaged(format!("more than {MAX_INTERFACES} interfaces")));
                }
                interfaces.push(interface);
                continue;
            }
            let body = &input.take(total)[8..total - 4];
            return match packet(kind, body, interfaces, big_endian) {
                Ok(frame) => {
                    let interface = frame.interface.saturating_add(*earlier_interfaces);
                    Ok(Some(CapturedFrame { interface, ..frame }))
                }
                Err(what) => Err(CaptureError::Damaged { what, at_byte }),
            };
        }
    }
}

const PCAP_HEADER_BYTES: usize = 24;
const PCAP_RECORD_BYTES: usize = 16;

fn next_pcap<R: Read>(
    input: &mut Input<R>,
    big_endian: bool,
    nanoseconds: bool,
    link_type: LinkType,
) -> Result<Option<CapturedFrame<'_>>, CaptureError> {
    let at_byte = input.taken;
    let truncated = || CaptureError::Truncated { what: "packet", at_byte };
    if !input.fill(PCAP_RECORD_BYTES)? {
        return if input.available().is_empty() { Ok(None) } else { Err(truncated()) };
    }
    let field = |at| u32_at(input.available(), at, big_endian);
    let (seconds, fraction, captured, original) = (field(0), field(4), field(8) as usize, field(12) as usize);
    if captured > MAX_FRAME_BYTES {
        let what = format!("a packet of {captured} bytes, the longest allowed is {MAX_FRAME_BYTES}");
        return Err(CaptureError::Damaged { what, at_byte });
    }
    if !input.fill(PCAP_RECORD_BYTES + captured)? {
        return Err(truncated());
    }
    let fraction_ns = u64::from(fraction) * if nanoseconds { 1 } else { 1000 };
    Ok(Some(CapturedFrame {
        timestamp_ns: Some(u64::from(seconds) * 1_000_000_000 + fraction_ns),
        link_type,
        interface: 0,
        direction: 0,
        faults: FaultMarks::NONE,
        original_bytes: original.max(captured),
        bytes: &input.take(PCAP_RECORD_BYTES + captured)[PCAP_RECORD_BYTES..],
    }))
}

/// Parses the body of an interface description block.
fn interface(body: &[u8], big_endian: bool) -> Option<Interface> {
    if body.len() < 8 {
        return None;
    }
    let mut interface = Interface {
        link_type: LinkType(u16_at(body, 0, big_endian)),
        snap_bytes: u32_at(body, 4, big_endian),
        unit: TimeUnit::Decimal(6),
        offset_s: 0,
    };
    for (code, value) in options(&body[8..], big_endian) {
        match (code, value) {
            (9, [unit, ..]) if unit & 0x80 == 0 => interface.unit = TimeUnit::Decimal(u32::from(*unit)),
            (9, [unit, ..]) => interface.unit = TimeUnit::Binary(u32::from(unit & 0x7f)),
            (14, value) if value.len() == 8 => {
                let bytes = array(value, 0);
                interface.offset_s = if big_endian { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) };
            }
            _ => {}
        }
    }
    Some(interface)
}

/// Returns the options at the end of a block, up to the first damaged option.
fn options(mut bytes: &[u8], big_endian: bool) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..4)?;
        let (code, length) = (u16_at(header, 0, big_endian), usize::from(u16_at(header, 2, big_endian)));
        let value = bytes.get(4..4 + length).filter(|_| code != 0)?;
        bytes = bytes.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    })
}

/// Parses the body of a block that holds a packet.
fn packet<'a>(
    kind: u32,
    body: &'a [u8],
    interfaces: &[Interface],
    big_endian: bool,
) -> Result<CapturedFrame<'a>, String> {
    let header_bytes = if kind == SIMPLE_PACKET { 4 } else { 20 };
    let Some((header, data)) = body.split_at_checked(header_bytes) else {
        return Err(format!("a packet's block has {} bytes", body.len()));
    };
    let field = |at| u32_at(header, at, big_endian);
    let number = match kind {
        SIMPLE_PACKET => 0,
        OBSOLETE_PACKET => usize::from(u16_at(header, 0, big_endian)),
        _ => field(0) as usize,
    };
    let Some(interface) = interfaces.get(number) else {
        return Err(format!("a packet of interface {number}, of which there are {}", interfaces.len()));
    };
    let (timestamp_ns, captured, original) = if kind == SIMPLE_PACKET {
        let original = field(0) as usize;
        let snap = if interface.snap_bytes == 0 { usize::MAX } else { interface.snap_bytes as usize };
        (None, original.min(snap).min(data.len()), original)
    } else {
        let ns = interface.unit.to_ns(u64::from(field(4)) << 32 | u64::from(field(8)));
        let offset_ns = interface.offset_s.saturating_mul(1_000_000_000);
        (Some(ns.saturating_add_signed(offset_ns)), field(12) as usize, field(16) as usize)
    };
    let Some(bytes) = data.get(..captured) else {
        return Err(format!("a packet of {captured} bytes in a block that has room for {}", data.len()));
    };
    let (mut direction, mut faults) = (0, FaultMarks::NONE);
    let behind = data.get(captured.next_multiple_of(4)..).filter(|_| kind != SIMPLE_PACKET).unwrap_or_default();
    for (code, value) in options(behind, big_endian) {
        match (code, value) {
            (1, comment) => faults = faults.and(FaultMarks::parse(comment).unwrap_or_default()),
            (2, flags) if flags.len() == 4 => direction = (u32_at(flags, 0, big_endian) & 0b11) as u8,
            _ => {}
        }
    }
    Ok(CapturedFrame {
        timestamp_ns,
        link_type: interface.link_type,
        interface: number as u32,
        direction,
        faults,
        original_bytes: original.max(captured),
        bytes,
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u16_at(bytes: &[u8], at: usize, big_endian: bool) -> u16 {
    let bytes = array(bytes, at);
    if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
}

fn u32_at(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let bytes = array(bytes, at);
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

/// A reader with a buffer of fixed size.
#[derive(Debug)]
struct Input<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Number of bytes consumed since the start of the file.
    taken: u64,
}

impl<R: Read> Input<R> {
    fn available(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads until `bytes` bytes are available. `bytes` must not exceed the size of the buffer. Returns `false` if the
    /// file ends earlier.
    fn fill(&mut self, bytes: usize) -> io::Result<bool> {
        if self.end - self.start >= bytes {
            return Ok(true);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < bytes {
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns and consumes available bytes.
    fn take(&mut self, bytes: usize) -> &[u8] {
        let at = self.start;
        self.start += bytes;
        self.taken += bytes as u64;
        &self.buffer[at..at + bytes]
    }

    /// Skips `bytes` bytes. Returns `false` if the file ends earlier.
    fn skip(&mut self, mut bytes: u64) -> io::Result<bool> {
        while bytes > 0 {
            if !self.fill(1)? {
                return Ok(false);
            }
            let now = (self.available().len() as u64).min(bytes);
            self.take(now as usize);
            bytes -= now;
        }
        Ok(true)
    }
}
