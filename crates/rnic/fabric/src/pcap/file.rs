//! The file of a capture, in the format pcapng, with one section and one interface. Times have a resolution of
//! nanoseconds.
//!
//! The older format pcap cannot store the direction of a frame or a comment. Programs recognise the format by the first
//! bytes of the file, so the file's name may end in `.pcap`.

use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use doorbell_wire::{Encapsulation, FaultMarks, Outer};

use crate::struck::{PlanTexts, RuleNumbers};

/// Number of buffered bytes from which on the buffer is written to the file.
const BUFFER_BYTES: usize = 1 << 20;

/// Maximum frame length that the file's header states. All frames are shorter.
const SNAP_LEN: u32 = 1 << 18;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINK_TYPE_ETHERNET: u16 = 1;

/// Codes of options.
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const FLAGS: u16 = 2;
const USER_APPLICATION: u16 = 4;
const TIME_RESOLUTION: u16 = 9;

/// Direction of a frame. The values are those of the flags in pcapng.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameDirection {
    /// The direction is unknown, for example because a third machine between the two devices captured the frame.
    Unknown = 0,
    /// The device received the frame.
    Inbound = 1,
    /// The device sent the frame.
    Outbound = 2,
}

/// Metadata of a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameNotes {
    /// Time of the frame, since 1970.
    pub at: Duration,
    /// Direction of the frame.
    pub direction: FrameDirection,
    /// Injected faults that struck the frame.
    pub faults: FaultMarks,
    /// Rules of the file's fault plan that struck the frame.
    pub rules: RuleNumbers,
}

/// A file of RoCE v2 packets as Ethernet frames. The MAC addresses are locally administered and derived from the IP
/// addresses.
///
/// Up to 1 MiB of the file is buffered in memory. [`flush`](Self::flush) writes the buffer. Dropping the value does
/// not.
pub struct PcapFile {
    to: Box<dyn Write + Send>,
    buffer: Vec<u8>,
    /// Text about each rule of the fault plan, in the order of the plan.
    rules: Vec<String>,
}

impl PcapFile {
    /// Begins a file: adds its header to the buffer.
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self::of_plan(to, None)
    }

    /// Begins a file with packets that suffer the faults of a plan. The comment of the header has the plan.
    pub fn of_plan(to: impl Write + Send + 'static, texts: Option<PlanTexts>) -> Self {
        let (plan, rules) = texts.map(|texts| (texts.plan, texts.rules)).unzip();
        let rules = rules.unwrap_or_default();
        let mut file = Self { to: Box::new(to), buffer: Vec::new(), rules };
        file.block(SECTION_HEADER, |file| {
            file.put(&BYTE_ORDER_MAGIC.to_le_bytes());
            // Version 1.0, and a section of unspecified length.
            file.put(&1_u16.to_le_bytes());
            file.put(&0_u16.to_le_bytes());
            file.put(&u64::MAX.to_le_bytes());
            if let Some(plan) = plan {
                file.comment(&format!("doorbell fault plan: {plan}"));
            }
            file.option(USER_APPLICATION, concat!("doorbell ", env!("CARGO_PKG_VERSION")).as_bytes());
            file.option(END_OF_OPTIONS, &[]);
        });
        file.block(INTERFACE_DESCRIPTION, |file| {
            file.put(&u32::from(LINK_TYPE_ETHERNET).to_le_bytes());
            file.put(&SNAP_LEN.to_le_bytes());
            file.option(TIME_RESOLUTION, &[9]);
            file.option(END_OF_OPTIONS, &[]);
        });
        file
    }

    /// Adds a packet, which begins with its BTH, as a frame. The ports are the UDP source and destination port. `icrc`
    /// is appended to the packet; it is empty if the packet ends in an ICRC.
    ///
    /// # Errors
    ///
    /// The buffer was full and could not be written to the file.
    ///
    /// # Panics
    ///
    /// Panics if the packet is too long for an IP packet.
    pub fn add(
        &mut self,
        notes: &FrameNotes,
        outer: &Outer,
        [src_port, dst_port]: [u16; 2],
        packet: &[u8],
        icrc: &[u8],
    ) -> io::Result<()> {
        let (src_mac, dst_mac) = (mac_of(outer.src), mac_of(outer.dst));
        let encapsulation = Encapsulation { src_mac, dst_mac, vlan: None, src_port, dst_port };
        let header_len = encapsulation.header_len(outer);
        let frame_len = (header_len + packet.len() + icrc.len()) as u32;
        let time = notes.at.as_nanos() as u64;
        self.block(ENHANCED_PACKET, |file| {
            // The index of the interface, the time, and the frame's length as captured and on the network.
            for field in [0, (time >> 32) as u32, time as u32, frame_len, frame_len] {
                file.put(&field.to_le_bytes());
            }
            let at = file.buffer.len();
            file.buffer.resize(at + header_len, 0);
            encapsulation.emit_frame_headers(outer, packet.len() + icrc.len(), &mut file.buffer[at..]);
            file.put(packet);
            file.put(icrc);
            file.pad();
            let flags = notes.direction as u32;
            if flags != 0 {
                file.option(FLAGS, &flags.to_le_bytes());
            }
            if !notes.faults.is_empty() {
                let mut comment = notes.faults.to_string();
                for rule in notes.rules.numbers().filter_map(|number| file.rules.get(number - 1)) {
                    comment.push_str(", ");
                    comment.push_str(rule);
                }
                file.comment(&comment);
            }
            if flags != 0 || !notes.faults.is_empty() {
                file.option(END_OF_OPTIONS, &[]);
            }
        });
        if self.buffer.len() < BUFFER_BYTES { Ok(()) } else { self.flush() }
    }

    /// Writes the buffered part of the file.
    ///
    /// # Errors
    ///
    /// The write failed. The buffered part is lost, and the file may contain a fragment of it.
    pub fn flush(&mut self) -> io::Result<()> {
        let written = self.to.write_all(&self.buffer).and_then(|()| self.to.flush());
        self.buffer.clear();
        written
    }

    /// Adds a block, whose length precedes and follows the body.
    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let at = self.buffer.len();
        self.put(&kind.to_le_bytes());
        self.put(&[0; 4]);
        body(self);
        let length = ((self.buffer.len() - at + 4) as u32).to_le_bytes();
        self.put(&length);
        self.buffer[at + 4..at + 8].copy_from_slice(&length);
    }

    /// Adds a comment. The length of an option has 16 bits, so a longer text is cut.
    fn comment(&mut self, text: &str) {
        let most = text.len().min(usize::from(u16::MAX));
        let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        self.option(COMMENT, &text.as_bytes()[..end]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Pads the buffer to a multiple of four bytes, since blocks and options begin there.
    fn pad(&mut self) {
        self.buffer.resize(self.buffer.len().next_multiple_of(4), 0);
    }
}

impl std::fmt::Debug for PcapFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PcapFile").field("buffered_bytes", &self.buffer.len()).finish_non_exhaustive()
    }
}

/// Returns a locally administered unicast MAC address that contains the bytes of an IPv4 address, or the last five
/// bytes of an IPv6 address. For a multicast group, returns the group's MAC address (RFC 1112, 6.4, and RFC 2464, 7).
pub(super) fn mac_of(address: IpAddr) -> [u8; 6] {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let [.., a, b, c, d] = v6.octets();
            [0x33, 0x33, a, b, c, d]
        }
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x02, 0, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d, e] = v6.octets();
            [0x06, a, b, c, d, e]
        }
    }
}
