//! A peer: an engine of a device that shares memory with this engine. This file writes and reads the records of the two
//! rings.

use std::net::{IpAddr, SocketAddr};

use doorbell_rnic::{HEADERS_BYTES_MAX, LentMemory, MAX_RUN_BYTES, PathEnd, Run, TransmitBatch};
use doorbell_wire::{Flow, ICRC_LEN, Outer};

use super::held::Held;
use super::ring::{Header, Memory as _, Reader, Record, Writer};
use super::sys::{Mapping, RING_BYTES, Ring};
use crate::link::{ReceivedRun, SharedRun, Sink};

/// Maximum number of records that one call of `Peer::read` reads, so that other rings get their turn and
/// acknowledgements are sent.
const RECORDS_PER_RING: usize = 8;
const BYTES_PER_RING: usize = 64 << 10;

/// Maximum memory in bytes that an idle ring keeps. A pair of idle rings with their control page takes less than 64
/// KiB.
const KEPT_BYTES: u64 = 16 << 10;

/// Packets of a peer that must be read before the first record of its new ring, so that the record does not overtake
/// them.
///
/// Before the peer writes the first record of a ring, it sends its last packet over UDP, and its last record through
/// any older ring. So when the reader sees the first record, all earlier packets are read, or wait in the UDP socket or
/// in an older ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Predecessors {
    /// The ring has no record yet. The peer may still send over UDP or through an older ring.
    Unknown,
    /// The ring has a record, which waits for earlier packets.
    Others {
        /// Maximum number of earlier datagrams that are still unread. It begins with the number that fits into the
        /// socket's receive buffer.
        datagrams: usize,
        /// Maximum number of earlier bytes that are still unread in other rings of the peer's address. It begins with
        /// the total size of these rings.
        ring_bytes: u64,
        /// Total bytes that had been read from the other rings of the peer's address at the last check.
        taken: u64,
    },
    /// All earlier packets were read, or there were none.
    Nothing,
}

/// An engine of a device that shares memory with this engine.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) end: PathEnd,
    /// Time at which the peer connected.
    pub(super) since_ns: u64,
    pub(super) writer: Writer<Ring>,
    pub(super) reader: Reader<Ring>,
    /// Whether the current call of transmit has written a record to the peer's ring, so that the peer may have to be
    /// woken.
    pub(super) is_touched: bool,
    pub(super) behind: Predecessors,
    /// Maximum number of bytes that are still read from the ring of a peer that has closed or died. It begins with the
    /// size of a ring, so that a hostile peer cannot write forever. `None` while the peer is connected.
    left_bytes: Option<usize>,
    /// Position of the writer at the time of the most recent pass that looked for idle rings.
    looked_at: u64,
    /// Runs that wait for room in the ring to the peer.
    pub(super) held: Held,
}

/// Result of writing a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The run is in the ring.
    Sent,
    /// The run waits for room in the ring.
    Held,
    /// The run was dropped, since the ring is full and its reader has stopped, or too many bytes wait already.
    Dropped,
}

impl Peer {
    /// Creates a peer. `made_here` states whether this device created the memory.
    pub(super) fn new(id: u64, end: PathEnd, since_ns: u64, mapping: Mapping, made_here: bool) -> Self {
        let [first, second] = Ring::both(mapping);
        let (written, read) = if made_here { (first, second) } else { (second, first) };
        Self {
            id,
            end,
            since_ns,
            writer: Writer::new(written),
            reader: Reader::new(read),
            is_touched: false,
            behind: Predecessors::Unknown,
            left_bytes: None,
            looked_at: 0,
            held: Held::default(),
        }
    }

    /// Records that the peer has closed or died.
    pub(super) fn depart(&mut self) {
        self.left_bytes = Some(RING_BYTES);
    }

    /// Returns whether the peer has closed or died.
    #[inline]
    pub(super) fn has_departed(&self) -> bool {
        self.left_bytes.is_some()
    }

    /// Returns whether the peer has closed or died, or has written an invalid record. The link sends nothing more to
    /// such a peer, and removes the peer once its ring has no more records.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.has_departed() || self.reader.is_broken()
    }

    /// Writes a run to the peer's ring, after the runs that wait for room.
    #[inline]
    pub(super) fn write(&mut self, now_ns: u64, run: &Run, batch: &TransmitBatch) -> Written {
        let trailer_bytes = batch.trailer_bytes();
        let header = header_of(run, trailer_bytes);
        let packets = || run.segments().map(move |segment| &batch.bytes()[segment.start..segment.end - trailer_bytes]);
        if self.held.is_empty() && self.writer.push(header, packets()) {
            self.is_touched = true;
            self.held.note_room();
            Written::Sent
        } else if self.held.push(now_ns, header, packets()) {
            Written::Held
        } else {
            Written::Dropped
        }
    }

    /// Lends the free memory of the ring to the peer for the records of the next batch. Returns `None` if the ring may
    /// not have room for a run of maximum length.
    pub(super) fn lend(&mut self) -> Option<LentMemory> {
        if self.has_ended() || !self.held.is_empty() {
            return None;
        }
        let (at, length) = self.writer.free_memory();
        (length > MAX_RUN_BYTES).then(|| self.writer.memory().lend(at, length))
    }

    /// Writes a run whose long payloads lie in the ring already, in memory that [`lend`](Self::lend) returned. The
    /// writer must be at the position of the run's record.
    pub(super) fn publish(&mut self, run: &Run, batch: &TransmitBatch) {
        let trailer_bytes = batch.trailer_bytes();
        let infos = &batch.infos()[run.first_packet..run.first_packet + run.packets];
        let mut at = 0;
        let parts = run.segments().zip(infos).flat_map(|(segment, info)| {
            let packet = &batch.bytes()[segment.start..segment.end - trailer_bytes];
            let from = at;
            at += packet.len();
            // Bytes of headers before a payload in the ring, and of padding after it.
            let lent = if info.has_long_payload() { info.payload_bytes as usize } else { 0 };
            let padding = lent.wrapping_neg() & 3;
            let headers = packet.len() - lent - padding;
            [(from, &packet[..headers]), (at - padding, &packet[packet.len() - padding..])]
        });
        self.writer.publish(header_of(run, trailer_bytes), parts);
        self.is_touched = true;
        self.held.note_room();
    }

    /// Writes runs that wait for room to the peer's ring. Returns the number of packets written, and the number of
    /// packets dropped because the peer has stopped reading.
    pub(super) fn flush(&mut self, now_ns: u64) -> (u64, u64) {
        let (written, dropped) = self.held.flush(now_ns, &mut self.writer);
        self.is_touched |= written > 0;
        (written, dropped)
    }

    /// Returns whether the peer has written its first record while [`behind`](Self::behind) is still unknown.
    #[inline]
    pub(super) fn is_newcomer(&self) -> bool {
        self.behind == Predecessors::Unknown && self.reader.has_record()
    }

    /// Returns whether the ring may be read. If a departed peer never wrote a record, its ring may be read too, so that
    /// the link removes the peer.
    #[inline]
    pub(super) fn may_be_read(&self) -> bool {
        match self.behind {
            Predecessors::Nothing => true,
            Predecessors::Unknown => self.has_departed() && !self.reader.has_record(),
            Predecessors::Others { .. } => false,
        }
    }

    /// Returns whether the ring may contain packets that are older than those in the ring of `other`, a peer with the
    /// same end. A device moves to another ring when its current ring ends. The order of rings is strict, so no two
    /// rings wait for each other.
    pub(super) fn precedes(&self, other: &Self) -> bool {
        let place = |peer: &Self| (peer.behind != Predecessors::Nothing, !peer.has_departed(), peer.id);
        self.reader.has_record() && place(self) < place(other)
    }

    /// Passes the next records of the ring to a sink. Returns the number of packets in these records.
    #[inline]
    pub(super) fn read(&mut self, buffers: &mut RunBuffers, sink: &mut dyn Sink) -> usize {
        let (mut packets, mut bytes) = (0, 0);
        for _ in 0..RECORDS_PER_RING {
            let Some(record) = self.reader.pop().filter(|_| self.left_bytes != Some(0)) else { break };
            let header = record.header;
            if let Some(left) = &mut self.left_bytes {
                *left = left.saturating_sub(header.record_bytes() as usize);
            }
            packets += header.packets();
            bytes += header.total_bytes;
            buffers.hand_over(self.end.address, &self.reader, &record, sink);
            self.reader.release();
            if bytes >= BYTES_PER_RING {
                break;
            }
        }
        packets
    }

    /// Returns whether the ring to the peer has more memory than an idle ring should keep.
    #[inline]
    pub(super) fn keeps_memory(&self) -> bool {
        self.writer.kept_bytes() > KEPT_BYTES && !self.has_departed()
    }

    /// Gives back the memory of the ring to the peer if no record was written since the last call. Returns true if
    /// memory was given back.
    pub(super) fn give_back_if_idle(&mut self) -> bool {
        let position = self.writer.position();
        self.keeps_memory() && std::mem::replace(&mut self.looked_at, position) == position && self.writer.give_back()
    }
}

/// Returns the header of a run's record. The packets of a record have no trailers.
#[inline]
fn header_of(run: &Run, trailer_bytes: usize) -> Header {
    Header {
        total_bytes: run.total_bytes - run.packets * trailer_bytes,
        segment_bytes: run.segment_bytes - trailer_bytes,
        traffic_class: run.path.traffic_class,
        hop_limit: run.path.hop_limit,
    }
}

#[cfg(test)]
impl Peer {
    /// Returns the number of bytes of the peer's two rings for which the kernel has allocated memory.
    pub(super) fn resident_bytes(&self) -> usize {
        self.writer.memory().resident_bytes() + self.reader.memory().resident_bytes()
    }
}

/// Buffers in which runs from rings are prepared for sinks.
#[derive(Debug)]
pub(super) struct RunBuffers {
    local: SocketAddr,
    buffer: Box<[u8]>,
    sealed: Vec<u8>,
}

impl RunBuffers {
    /// Creates the buffers. `local` is the address and port of this device.
    pub(super) fn new(local: SocketAddr) -> Self {
        Self { local, buffer: vec![0; MAX_RUN_BYTES].into(), sealed: Vec::new() }
    }

    /// Passes a record from the device at `src` to a sink.
    #[inline]
    fn hand_over(&mut self, src: IpAddr, reader: &Reader<Ring>, record: &Record, sink: &mut dyn Sink) {
        let Record { header, at } = *record;
        let Header { total_bytes, segment_bytes, traffic_class, hop_limit } = header;
        let dst = self.local.ip();
        let outer = Outer { src, dst, traffic_class, hop_limit, identification: None, dont_fragment: None };
        let shared = if segment_bytes <= HEADERS_BYTES_MAX {
            // A sink needs private copies of the first `HEADERS_BYTES_MAX` bytes of each packet. No packet in this
            // record is longer, so copy all packets at once.
            reader.copy_out(record, &mut self.buffer);
            let private = &self.buffer[..total_bytes];
            SharedRun { outer, headers: private, bytes: private.into(), segment_bytes }
        } else {
            let ring = reader.memory();
            let mut copied = 0;
            for from in (0..total_bytes).step_by(segment_bytes) {
                let length = HEADERS_BYTES_MAX.min(total_bytes - from);
                ring.copy_out(at + from, &mut self.buffer[copied..copied + length]);
                copied += length;
            }
            let bytes = ring.payload(at, total_bytes);
            SharedRun { outer, headers: &self.buffer[..copied], bytes, segment_bytes }
        };
        if !sink.receive_shared(&shared) {
            reader.copy_out(record, &mut self.buffer);
            let source_port = self.local.port();
            let run = ReceivedRun { outer, source_port, bytes: &self.buffer[..total_bytes], segment_bytes };
            seal(&run, &mut self.sealed);
            let segment_bytes = segment_bytes + ICRC_LEN;
            sink.receive(ReceivedRun { bytes: &self.sealed, segment_bytes, ..run });
        }
    }
}

/// Appends to each packet of a run the ICRC that the packet would have if a socket sent the run with segmentation.
fn seal(run: &ReceivedRun<'_>, sealed: &mut Vec<u8>) {
    let flow = Flow::new(run.outer.src, run.outer.dst, run.source_port, run.source_port);
    sealed.clear();
    for (index, packet) in run.segments().enumerate() {
        sealed.extend_from_slice(packet);
        sealed.extend_from_slice(&flow.icrc(index as u16, true, packet).to_le_bytes());
    }
}
