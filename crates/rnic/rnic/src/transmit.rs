//! Packets that an RNIC hands to its driver, laid out as *runs*.
//!
//! A run is a row of equal-sized packets to one destination, of which only the last may be shorter. A UDP driver
//! hands a run to the kernel as one segmented send. Only so can it send millions of small packets a second.

use core::net::IpAddr;

use doorbell_wire::{Opcode, Qpn};

use crate::engine::EngineId;

/// Maximum packets in one run: the limit of Linux for one segmented send (`UDP_MAX_SEGMENTS`).
pub const MAX_RUN_PACKETS: usize = 64;

/// Maximum bytes in one run: the largest UDP payload over IPv4 (RFC 768, RFC 791).
pub const MAX_RUN_BYTES: usize = 65_507;

/// Destination of a packet and values of its outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The engine that sends.
    pub engine: EngineId,
    /// The address of the destination device.
    pub destination: IpAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
}

/// Facts about a packet beside its bytes. A simulator derives the times of its events from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitInfo {
    /// The queue pair that sends.
    pub qpn: Qpn,
    /// The opcode.
    pub opcode: Opcode,
    /// The work request that the packet belongs to; `None` for packets of a responder.
    pub work_request: Option<u64>,
    /// First packet of its message.
    pub first: bool,
    /// Last packet of its message.
    pub last: bool,
    /// The payload came from the work request itself, not from registered memory.
    pub inline: bool,
    /// The packet was sent before.
    pub retransmission: bool,
    /// Payload bytes, without padding.
    pub payload_bytes: u32,
}

/// A row of equal-sized packets to one destination; the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Path of all packets.
    pub path: Path,
    /// Offset of the first packet in the batch's bytes.
    pub start: usize,
    /// Bytes of each packet but the last, trailer included.
    pub segment_bytes: usize,
    /// Bytes of all packets, trailers included.
    pub total_bytes: usize,
    /// Index of the first packet in [`TransmitBatch::infos`].
    pub first_packet: usize,
    /// Number of packets.
    pub packets: usize,
    open: bool,
}

impl Run {
    /// Returns the byte ranges of the packets, in order, relative to the batch's bytes.
    pub fn segments(&self) -> impl Iterator<Item = core::ops::Range<usize>> + use<> {
        let (start, end, segment) = (self.start, self.start + self.total_bytes, self.segment_bytes);
        (start..end).step_by(segment).map(move |at| at..(at + segment).min(end))
    }
}

/// Outgoing packets, in one buffer that is reused.
///
/// After each packet lie [`trailer_bytes`](Self::trailer_bytes) that belong to the encapsulation: over UDP the driver
/// seals the ICRC into them in place.
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

    /// Returns the facts about each packet, in order.
    pub fn infos(&self) -> &[TransmitInfo] {
        &self.infos
    }

    /// Returns the bytes of all packets with their trailers.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Returns the bytes of all packets with their trailers, for sealing in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.used]
    }

    /// Returns the runs and the bytes that they describe, for sealing in place.
    pub fn runs_and_bytes_mut(&mut self) -> (&[Run], &mut [u8]) {
        (&self.runs, &mut self.bytes[..self.used])
    }

    /// Returns the number of bytes after each packet that belong to the encapsulation.
    pub fn trailer_bytes(&self) -> usize {
        self.trailer_bytes
    }

    /// Returns whether a packet of `len` bytes fits.
    pub fn has_room(&self, len: usize) -> bool {
        self.used + len + self.trailer_bytes <= self.limit
    }

    /// Limits further growth of the batch to `bytes`.
    pub(crate) fn limit_growth(&mut self, bytes: usize) {
        self.limit = self.used.saturating_add(bytes).min(self.bytes.len());
    }

    /// Adds a packet of `len` bytes (BTH to padding) and returns its place in the buffer. The place holds arbitrary
    /// old bytes: the caller must write all of it.
    ///
    /// # Panics
    ///
    /// If there is no room: check [`has_room`](Self::has_room) first.
    #[inline(always)]
    pub fn push(&mut self, path: &Path, len: usize, info: TransmitInfo) -> &mut [u8] {
        let start = self.used;
        self.extend_runs(path, len + self.trailer_bytes);
        // Push the value here, where it stays. A copy of a value that was just written in pieces would wait for these
        // writes.
        self.infos.push(info);
        &mut self.bytes[start..start + len]
    }

    /// Adds a packet of `segment` bytes, trailer included, to the last run, or to a new one.
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

    /// Removes the packet that was pushed last, because it could not be filled.
    pub(crate) fn retract(&mut self, len: usize) {
        let segment = len + self.trailer_bytes;
        self.used -= segment;
        self.infos.pop();
        let run = self.runs.last_mut().expect("a packet was pushed");
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
    /// Maximum packets.
    pub packets: usize,
    /// Maximum bytes, trailers included.
    pub bytes: usize,
}

impl Budget {
    /// Limited only by the room of the batch.
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
