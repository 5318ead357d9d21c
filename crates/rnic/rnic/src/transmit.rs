//! Packets that an RNIC hands to its driver, laid out as *runs*.
//!
//! A run is a sequence of packets to one destination. All packets have the same size, but the last may be shorter. A
//! UDP driver passes a run to the kernel in one call (UDP GSO). This makes millions of small packets per second
//! possible.

use core::net::IpAddr;

use doorbell_wire::{BTH_LEN, BthPacket, Opcode, Qpn};

use crate::engine::EngineId;

/// Maximum number of packets in a run: the limit of Linux for one call with UDP GSO (`UDP_MAX_SEGMENTS`).
pub const MAX_RUN_PACKETS: usize = 64;

/// Maximum bytes of a run: the largest UDP payload over IPv4 (RFC 768, RFC 791).
pub const MAX_RUN_BYTES: usize = 65_507;

/// Destination of a packet and values of its outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Engine that sends the packet.
    pub engine: EngineId,
    /// The address of the destination device.
    pub destination: IpAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
}

/// Properties of a packet apart from its bytes. A simulator derives the times of its events from these properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitInfo {
    /// Queue pair that sends the packet.
    pub qpn: Qpn,
    /// The opcode.
    pub opcode: Opcode,
    /// Number (`wr_id`) of the work request that the packet belongs to; `None` for packets of a responder.
    pub work_request: Option<u64>,
    /// Whether the packet is the first of its message.
    pub first: bool,
    /// Whether the packet is the last of its message.
    pub last: bool,
    /// Whether the payload is inline data of the work request, not registered memory.
    pub inline: bool,
    /// Whether the packet is a retransmitted request packet. Always false for packets of a responder.
    pub retransmission: bool,
    /// Payload bytes, without padding.
    pub payload_bytes: u32,
}

impl TransmitInfo {
    /// Returns the properties that the bytes of a packet show (BTH to padding). A packet without a whole BTH has the
    /// default opcode and no payload.
    fn of_packet(packet: &[u8]) -> Self {
        let bth = (packet.len() >= BTH_LEN).then(|| BthPacket::new_unchecked(packet));
        let (opcode, padding) = bth.map_or((Opcode::default(), 0), |bth| (bth.opcode(), usize::from(bth.pad_count())));
        Self {
            qpn: Qpn::new(0),
            opcode,
            work_request: None,
            first: opcode.is_first(),
            last: opcode.is_last(),
            inline: false,
            retransmission: false,
            payload_bytes: packet.len().saturating_sub(BTH_LEN + opcode.extension_len() + padding) as u32,
        }
    }
}

/// Sequence of packets to one destination. All packets have the same size, but the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Path of all packets.
    pub path: Path,
    /// Offset of the first packet in the batch's bytes.
    pub start: usize,
    /// Bytes of each packet with its trailer. The last packet may have fewer.
    pub segment_bytes: usize,
    /// Bytes of all packets, with trailers.
    pub total_bytes: usize,
    /// Index of the first packet in [`TransmitBatch::infos`].
    pub first_packet: usize,
    /// Number of packets.
    pub packets: usize,
    open: bool,
}

impl Run {
    /// Returns the range of each packet in the bytes of the batch, in order.
    pub fn segments(&self) -> impl Iterator<Item = core::ops::Range<usize>> + use<> {
        let (start, end, segment) = (self.start, self.start + self.total_bytes, self.segment_bytes);
        (start..end).step_by(segment).map(move |at| at..(at + segment).min(end))
    }
}

/// Outgoing packets in one buffer. [`clear`](Self::clear) keeps the buffer for the next packets.
///
/// After each packet, the buffer has [`trailer_bytes`](Self::trailer_bytes) for the driver. Over UDP, the driver writes
/// the ICRC there.
#[derive(Debug)]
pub struct TransmitBatch {
    bytes: Box<[u8]>,
    used: usize,
    limit: usize,
    trailer_bytes: usize,
    runs: Vec<Run>,
    infos: Vec<TransmitInfo>,
}

impl TransmitBatch {
    /// Creates a batch that holds up to `capacity_bytes`, with `trailer_bytes` after each packet.
    pub fn new(capacity_bytes: usize, trailer_bytes: usize) -> Self {
        Self {
            bytes: vec![0; capacity_bytes].into(),
            used: 0,
            limit: capacity_bytes,
            trailer_bytes,
            runs: Vec::with_capacity(MAX_RUN_PACKETS),
            infos: Vec::with_capacity(4 * MAX_RUN_PACKETS),
        }
    }

    /// Removes all packets and keeps the buffers.
    pub fn clear(&mut self) {
        self.used = 0;
        self.limit = self.bytes.len();
        self.runs.clear();
        self.infos.clear();
    }

    /// Returns whether the batch has no packets.
    pub fn is_empty(&self) -> bool {
        self.infos.is_empty()
    }

    /// Returns the runs, in the order in which they must leave.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the properties of each packet, in order.
    pub fn infos(&self) -> &[TransmitInfo] {
        &self.infos
    }

    /// Returns the bytes of all packets with their trailers.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Returns the runs and the bytes that the runs describe, so that the driver can write the trailers.
    pub fn runs_and_bytes_mut(&mut self) -> (&[Run], &mut [u8]) {
        (&self.runs, &mut self.bytes[..self.used])
    }

    /// Returns the number of bytes after each packet that are for the driver.
    pub fn trailer_bytes(&self) -> usize {
        self.trailer_bytes
    }

    /// Returns whether the batch has room for a packet of `len` bytes.
    pub fn has_room(&self, len: usize) -> bool {
        self.used + len + self.trailer_bytes <= self.limit
    }

    /// Allows at most `bytes` more bytes in the batch.
    pub(crate) fn limit_growth(&mut self, bytes: usize) {
        self.limit = self.used.saturating_add(bytes).min(self.bytes.len());
    }

    /// Adds a packet of `len` bytes (BTH to padding) and returns its place in the buffer. The place holds arbitrary old
    /// bytes, so the caller must write all of them.
    ///
    /// # Panics
    ///
    /// If the batch has no room for the packet: check [`has_room`](Self::has_room) first.
    #[inline(always)]
    pub fn push(&mut self, path: &Path, len: usize, info: TransmitInfo) -> &mut [u8] {
        let start = self.used;
        self.extend_runs(path, len + self.trailer_bytes);
        // Push `info` at once, so that its fields are written directly into the vector. A copy of a value that was just
        // written field by field would have to wait until these writes are done.
        self.infos.push(info);
        &mut self.bytes[start..start + len]
    }

    /// Adds a copy of a packet (BTH to padding) that has no queue pair at this driver, such as a forwarded packet. Its
    /// properties are those that its bytes show.
    ///
    /// # Panics
    ///
    /// If the batch has no room for the packet: check [`has_room`](Self::has_room) first.
    pub fn push_copy(&mut self, path: &Path, packet: &[u8]) {
        self.push(path, packet.len(), TransmitInfo::of_packet(packet)).copy_from_slice(packet);
    }

    /// Adds a packet to the newest run if the packet fits into that run, and to a new run otherwise. `segment` is the
    /// length of the packet with its trailer.
    #[inline]
    fn extend_runs(&mut self, path: &Path, segment: usize) {
        let start = self.used;
        self.used += segment;
        let joined = match self.runs.last_mut() {
            Some(run)
                if run.open
                    && segment <= run.segment_bytes
                    && run.packets < MAX_RUN_PACKETS
                    && run.total_bytes + segment <= MAX_RUN_BYTES
                    && run.path == *path =>
            {
                run.open = segment == run.segment_bytes;
                run.packets += 1;
                run.total_bytes += segment;
                true
            }
            _ => false,
        };
        if !joined {
            self.runs.push(Run {
                path: *path,
                start,
                segment_bytes: segment,
                total_bytes: segment,
                first_packet: self.infos.len(),
                packets: 1,
                open: true,
            });
        }
    }

    /// Removes the packet that was added most recently, because the caller could not write its payload.
    pub(crate) fn retract(&mut self, len: usize) {
        let segment = len + self.trailer_bytes;
        self.used -= segment;
        self.infos.pop();
        let run = self.runs.last_mut().expect("the batch must hold a packet");
        run.packets -= 1;
        run.total_bytes -= segment;
        run.open = true;
        if run.packets == 0 {
            self.runs.pop();
        }
    }
}

/// Limits of one call of `poll_transmit`.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Maximum number of packets.
    pub packets: usize,
    /// Maximum bytes, with trailers.
    pub bytes: usize,
}

impl Budget {
    /// Budget without limits. Only the room in the batch limits the call.
    pub const UNLIMITED: Budget = Budget { packets: usize::MAX, bytes: usize::MAX };
}

/// Queue pairs that one call of `poll_transmit` serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All queue pairs.
    All,
    /// One queue pair.
    QueuePair(Qpn),
    /// The queue pairs of one engine.
    Engine(EngineId),
}

impl Filter {
    /// Returns whether the filter selects this queue pair.
    pub(crate) fn wants(self, qpn: Qpn, engine: EngineId) -> bool {
        match self {
            Self::All => true,
            Self::QueuePair(wanted) => wanted == qpn,
            Self::Engine(wanted) => wanted == engine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn path(last: u8) -> Path {
        Path {
            engine: EngineId(0),
            destination: Ipv4Addr::new(127, 0, 0, last).into(),
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    fn info() -> TransmitInfo {
        TransmitInfo {
            qpn: Qpn::new(1),
            opcode: Opcode::RC_SEND_ONLY,
            work_request: None,
            first: true,
            last: true,
            inline: false,
            retransmission: false,
            payload_bytes: 0,
        }
    }

    #[test]
    fn equal_packets_form_a_run_that_a_shorter_one_ends() {
        let mut batch = TransmitBatch::new(1 << 16, 4);
        for len in [32, 32, 16, 32, 32] {
            batch.push(&path(1), len, info()).fill(7);
        }
        batch.push(&path(2), 32, info());
        batch.push(&path(2), 40, info());
        let shapes: Vec<_> = batch.runs().iter().map(|r| (r.packets, r.segment_bytes, r.total_bytes)).collect();
        assert_eq!(shapes, [(3, 36, 92), (2, 36, 72), (1, 36, 36), (1, 44, 44)]);
        let lengths: Vec<_> = batch.runs()[0].segments().map(|s| s.len()).collect();
        assert_eq!(lengths, [36, 36, 20]);
    }

    #[test]
    fn a_copied_packet_has_the_properties_of_its_bytes() {
        let mut packet = [7; BTH_LEN + 8];
        (packet[0], packet[1]) = (Opcode::RC_SEND_FIRST.0, 3 << 4); // three bytes of padding
        let mut batch = TransmitBatch::new(1 << 10, 4);
        batch.push_copy(&path(1), &packet);
        batch.push_copy(&path(1), &packet[..BTH_LEN - 1]);
        let expected =
            TransmitInfo { qpn: Qpn::new(0), opcode: Opcode::RC_SEND_FIRST, last: false, payload_bytes: 5, ..info() };
        assert_eq!(batch.infos()[0], expected);
        assert_eq!((batch.infos()[1].opcode, batch.infos()[1].payload_bytes), (Opcode::default(), 0));
        let segments: Vec<_> = batch.runs().iter().flat_map(Run::segments).collect();
        assert_eq!(batch.bytes()[segments[0].clone()][..packet.len()], packet);
        assert_eq!(batch.bytes()[segments[1].clone()][..BTH_LEN - 1], packet[..BTH_LEN - 1]);
    }

    #[test]
    fn a_run_ends_at_64_packets_and_at_the_largest_udp_payload() {
        let mut batch = TransmitBatch::new(1 << 20, 4);
        for _ in 0..65 {
            batch.push(&path(1), 20, info());
        }
        assert_eq!(batch.runs().iter().map(|r| r.packets).collect::<Vec<_>>(), [64, 1]);
        batch.clear();
        for _ in 0..16 {
            batch.push(&path(1), 4108, info());
        }
        assert_eq!(batch.runs().iter().map(|r| r.packets).collect::<Vec<_>>(), [15, 1]);
        assert!(batch.runs().iter().all(|r| r.total_bytes <= MAX_RUN_BYTES));
    }
}
