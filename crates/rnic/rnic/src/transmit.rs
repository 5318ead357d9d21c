//! Packets that an RNIC hands to its driver, laid out as *runs*.
//!
//! A run is a sequence of packets to one destination. All packets have the same size, but the last may be shorter. A
//! UDP driver passes a run to the kernel in one call (UDP GSO). This makes millions of small packets per second
//! possible.

use core::net::IpAddr;

use doorbell_wire::{BTH_LEN, BthPacket, Opcode, Qpn};

use crate::memory::{LentMemory, Room};

/// Maximum number of packets in a run: the limit of Linux for one call with UDP GSO (`UDP_MAX_SEGMENTS`).
pub const MAX_RUN_PACKETS: usize = 64;

/// Maximum bytes of a run: the largest UDP payload over IPv4 (RFC 768, RFC 791).
pub const MAX_RUN_BYTES: usize = 65_507;

/// Minimum bytes of a payload that may lie in lent memory. For a shorter payload, the separate place costs more than a
/// second copy.
pub const LENT_PAYLOAD_BYTES_MIN: u32 = 1024;

/// Bits of a QPN below the engine identifier.
pub(crate) const ENGINE_SHIFT: u32 = 20;

/// Maximum number of engines of a device.
pub const ENGINES_MAX: usize = 16;

/// Identifier of one engine of a device: the upper four bits of its QPNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EngineId(pub u8);

impl EngineId {
    /// Returns the engine of the queue pair with this number.
    #[inline]
    pub fn of(qpn: Qpn) -> Self {
        Self((qpn.get() >> ENGINE_SHIFT) as u8)
    }
}

/// Destination of a packet and values of its outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Engine of the destination queue pair, as its QPN names it. The packets of one run have the same engine, so that
    /// the destination device can pass the run to that engine as a whole.
    pub engine: EngineId,
    /// The address of the destination device.
    pub destination: IpAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Hop limit (IPv6) or time to live (IPv4).
    pub hop_limit: u8,
}

/// Engine of a device, as the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathEnd {
    /// Address of the device.
    pub address: IpAddr,
    /// The engine.
    pub engine: EngineId,
}

impl Path {
    /// Returns the engine to which the path leads.
    #[inline]
    pub fn end(&self) -> PathEnd {
        PathEnd { address: self.destination, engine: self.engine }
    }
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

    /// Returns whether the payload of the packet lies in lent memory if its run is [lent](Run::is_lent).
    #[inline]
    pub fn has_long_payload(&self) -> bool {
        !self.inline && self.payload_bytes >= LENT_PAYLOAD_BYTES_MIN
    }
}

/// Memory that a link lends to a batch for the runs to one engine of a device. The link sends these runs as records.
/// Each record begins at a multiple of `align_bytes`, with `before_bytes` of the link, and the packets follow without
/// trailers. So long payloads are copied once, from the region to the record.
#[derive(Debug)]
pub struct Loan {
    /// Destination of the runs.
    pub destination: PathEnd,
    /// Memory for the records. Its length is a multiple of `align_bytes`.
    pub memory: LentMemory,
    /// Bytes of a record before its packets.
    pub before_bytes: usize,
    /// Alignment of records in the memory, in bytes.
    pub align_bytes: usize,
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
    /// Offset of the record of this run in the memory of the [`Loan`]; `None` if the run has no place there.
    pub record_at: Option<usize>,
    /// Whether the [long payloads](TransmitInfo::has_long_payload) of this run lie in the record, and not in the batch.
    /// The headers and all other payloads lie in the batch.
    pub is_lent: bool,
    open: bool,
    /// Maximum of `total_bytes`.
    limit_bytes: usize,
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
    loan: Option<Loan>,
    /// Whether the loan has no place for further runs.
    is_loan_full: bool,
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
            loan: None,
            is_loan_full: false,
        }
    }

    /// Lends memory to an empty batch until [`end_loan`](Self::end_loan).
    ///
    /// # Panics
    ///
    /// If the batch has packets.
    pub fn lend(&mut self, loan: Loan) {
        assert!(self.is_empty(), "records begin at the start of the loan");
        self.loan = Some(loan);
        self.is_loan_full = false;
    }

    /// Ends the loan. The batch no longer accesses its memory, and no packet joins a run that lies there.
    #[inline]
    pub fn end_loan(&mut self) {
        if self.loan.take().is_some()
            && let Some(run) = self.runs.last_mut()
        {
            run.open &= !run.is_lent;
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
        self.extend_runs(path, len + self.trailer_bytes, info.has_long_payload());
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
    /// If the batch has no room for the packet: check [`has_room`](Self::has_room) first. If memory is lent to the
    /// batch, which would have no place for a payload in `packet`.
    pub fn push_copy(&mut self, path: &Path, packet: &[u8]) {
        assert!(self.loan.is_none(), "a copied packet lies in the batch as a whole");
        self.push(path, packet.len(), TransmitInfo::of_packet(packet)).copy_from_slice(packet);
    }

    /// Adds a packet to the newest run if the packet fits into that run, and to a new run otherwise. `segment` is the
    /// length of the packet with its trailer.
    #[inline]
    fn extend_runs(&mut self, path: &Path, segment: usize, is_long: bool) {
        let start = self.used;
        self.used += segment;
        let joined = match self.runs.last_mut() {
            Some(run)
                if run.open
                    && segment <= run.segment_bytes
                    && run.packets < MAX_RUN_PACKETS
                    && run.total_bytes + segment <= run.limit_bytes
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
            let is_to_lender = self.loan.as_ref().is_some_and(|loan| loan.destination == path.end());
            let (record_at, limit_bytes) = if is_to_lender { self.find_record(segment) } else { (None, MAX_RUN_BYTES) };
            self.runs.push(Run {
                path: *path,
                start,
                segment_bytes: segment,
                total_bytes: segment,
                first_packet: self.infos.len(),
                packets: 1,
                record_at,
                is_lent: record_at.is_some() && is_long,
                open: true,
                limit_bytes,
            });
        }
    }

    /// Finds a place in the lent memory for the record of a new run, whose first packet has `segment` bytes. Returns
    /// the place and the maximum length of the run. Each run to the destination of the loan needs a place, since the
    /// link writes their records one after the other.
    #[inline(never)]
    fn find_record(&mut self, segment: usize) -> (Option<usize>, usize) {
        let Some(loan) = &self.loan else { return (None, MAX_RUN_BYTES) };
        let end = |run: &Run| {
            let bytes = run.total_bytes - run.packets * self.trailer_bytes;
            run.record_at.map(|at| (at + loan.before_bytes + bytes).next_multiple_of(loan.align_bytes))
        };
        let at = self.runs.iter().rev().find_map(end).unwrap_or(0);
        // The trailers count too, although the record has none: the result is a lower bound.
        let room = loan.memory.len().saturating_sub(at + loan.before_bytes);
        if self.is_loan_full || segment > room {
            self.is_loan_full = true;
            return (None, MAX_RUN_BYTES);
        }
        (Some(at), room.min(MAX_RUN_BYTES))
    }

    /// Returns the place of the payload of the packet that was added most recently. The payload has `payload` bytes and
    /// is no inline data, and `pad` bytes of padding follow it.
    #[inline]
    pub(crate) fn payload_room(&mut self, payload: usize, pad: usize) -> Room<'_> {
        let end = self.used - self.trailer_bytes - pad;
        let start = end - payload;
        if let Some(loan) = &mut self.loan
            && payload >= LENT_PAYLOAD_BYTES_MIN as usize
            && let Some(run) = self.runs.last()
            && run.is_lent
            && let Some(record_at) = run.record_at
        {
            let trailers = (run.packets - 1) * self.trailer_bytes;
            let at = record_at + loan.before_bytes + (start - run.start) - trailers;
            return loan.memory.room(at, payload);
        }
        (&mut self.bytes[start..end]).into()
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
}

impl Filter {
    /// Returns whether the filter selects this queue pair.
    pub(crate) fn wants(self, qpn: Qpn) -> bool {
        match self {
            Self::All => true,
            Self::QueuePair(wanted) => wanted == qpn,
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

    /// Adds a packet with a payload of one byte value. Returns the bytes of its headers, which lie in the batch.
    fn push_payload(batch: &mut TransmitBatch, last: u8, header: usize, payload: usize, value: u8) {
        let info = TransmitInfo { payload_bytes: payload as u32, ..info() };
        batch.push(&path(last), header + payload, info)[..header].fill(0xaa);
        let mut room = batch.payload_room(payload, 0);
        for _ in 0..payload / 8 {
            room.take(8).put(u64::from_ne_bytes([value; 8]));
        }
        assert!(room.is_empty());
    }

    #[allow(unsafe_code, reason = "only a test lends memory without a link")]
    fn loan(memory: &mut [u8]) -> Loan {
        // SAFETY: the tests use the memory only through the loan, until the loan has ended.
        let memory = unsafe { LentMemory::new(memory.as_mut_ptr(), memory.len(), std::sync::Arc::new(())) };
        Loan { destination: path(1).end(), memory, before_bytes: 8, align_bytes: 64 }
    }

    #[test]
    fn long_payloads_to_the_destination_of_a_loan_lie_in_records() {
        let mut memory = vec![0; 8192];
        let mut batch = TransmitBatch::new(1 << 16, 4);
        batch.lend(loan(&mut memory));
        push_payload(&mut batch, 1, 12, 16, 1); // short, but it has a record, since the link writes it first
        push_payload(&mut batch, 1, 12, 2048, 2);
        push_payload(&mut batch, 1, 12, 2048, 3);
        push_payload(&mut batch, 2, 12, 2048, 4); // to another device
        push_payload(&mut batch, 1, 12, 1024, 5);
        push_payload(&mut batch, 1, 12, 16, 6);
        batch.end_loan();
        let records: Vec<_> = batch.runs().iter().map(|run| (run.record_at, run.is_lent, run.packets)).collect();
        let second = 64 + (8_usize + 2 * 2060).next_multiple_of(64);
        let expected = [(Some(0), false, 1), (Some(64), true, 2), (None, false, 1), (Some(second), true, 2)];
        assert_eq!(records, expected);
        for (at, value) in [(64 + 8 + 12, 2), (64 + 8 + 2060 + 12, 3), (second + 8 + 12, 5)] {
            let length = if value == 5 { 1024 } else { 2048 };
            assert_eq!(memory[at..at + length], vec![value; length], "payload {value}");
        }
        assert!(memory[second + 8 + 12 + 1024..].iter().all(|&byte| byte == 0), "a short payload was lent");
        assert_eq!(&batch.bytes()[12..28], [1; 16]);
        let other = batch.runs()[2];
        assert_eq!(batch.bytes()[other.start + 12..other.start + 12 + 2048], [4; 2048]);
    }

    #[test]
    fn runs_leave_a_full_loan_for_good_and_a_retracted_run_returns_its_place() {
        let mut memory = vec![0; 4096];
        let mut batch = TransmitBatch::new(1 << 16, 0);
        batch.lend(loan(&mut memory));
        push_payload(&mut batch, 1, 12, 1024, 1);
        push_payload(&mut batch, 1, 20, 2048, 2); // a longer packet begins a run
        batch.retract(2068);
        assert_eq!(batch.runs().len(), 1);
        push_payload(&mut batch, 1, 12, 1024, 3); // the first run goes on in its record
        push_payload(&mut batch, 1, 12, 1024, 4);
        push_payload(&mut batch, 1, 12, 1024, 5); // no room
        push_payload(&mut batch, 1, 12, 16, 6);
        batch.end_loan();
        let records: Vec<_> = batch.runs().iter().map(|run| (run.record_at, run.is_lent, run.packets)).collect();
        assert_eq!(records, [(Some(0), true, 3), (None, false, 2)]);
        for (index, value) in [1, 3, 4].into_iter().enumerate() {
            let at = 8 + index * 1036 + 12;
            assert_eq!(memory[at..at + 1024], [value; 1024]);
        }
    }

    #[test]
    fn packets_after_the_end_of_a_loan_lie_in_the_batch() {
        let mut memory = vec![0; 8192];
        let mut batch = TransmitBatch::new(1 << 16, 4);
        batch.lend(loan(&mut memory));
        push_payload(&mut batch, 1, 12, 2048, 1);
        batch.end_loan();
        push_payload(&mut batch, 1, 12, 2048, 2);
        batch.push_copy(&path(1), &[3; 2060]);
        let records: Vec<_> = batch.runs().iter().map(|run| (run.record_at, run.is_lent, run.packets)).collect();
        assert_eq!(records, [(Some(0), true, 1), (None, false, 2)]);
        assert!(memory[8 + 12 + 2048..].iter().all(|&byte| byte == 0), "a payload was lent after the loan");
        let other = batch.runs()[1];
        assert_eq!(batch.bytes()[other.start + 12..other.start + 12 + 2048], [2; 2048]);
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
