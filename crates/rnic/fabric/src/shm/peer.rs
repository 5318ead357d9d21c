//! A device that shares memory with this one, and the records in its two rings.

use std::net::{IpAddr, SocketAddr};

use doorbell_rnic::{HEADERS_BYTES_MAX, MAX_RUN_BYTES, Run, TransmitBatch};
use doorbell_wire::{Flow, ICRC_LEN, Outer};

use super::ring::{Header, Memory as _, Reader, Record, Writer};
use super::sys::{Mapping, RING_BYTES, Ring};
use crate::link::{ReceivedRun, SharedRun, Sink};

/// Maximum number of records read from a ring at a time, so that other rings have their turn and acknowledgements
/// leave.
const RECORDS_PER_RING: usize = 8;
const BYTES_PER_RING: usize = 64 << 10;

/// A ring with at most this number of written bytes keeps its memory. With the other ring, and the page before both,
/// that is less than 64 KiB.
const KEPT_BYTES: u64 = 16 << 10;

/// Packets that must be read before the first record of a ring, which must not overtake them.
///
/// The writer puts its first record into the ring after its last packet over UDP, or after its last record in another
/// ring that both share. So once the reader has seen the first record, it has read all earlier packets, or they are
/// in its socket or in that other ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Predecessors {
    /// The ring holds no record yet, and the writer may still send by another way.
    Unknown,
    /// The ring holds a record.
    Others {
        /// Maximum number of earlier datagrams: the receive buffer cannot have held more when the record was seen.
        datagrams: usize,
        /// Maximum number of bytes in other rings of that device: they cannot have held more.
        ring_bytes: u64,
        /// Total bytes that had been read from them when they were checked last.
        taken: u64,
    },
    /// No packets: all earlier ones were read, or there were none.
    Nothing,
}

/// A device that shares memory with this one.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) address: IpAddr,
    /// Time at which it connected.
    pub(super) since_ns: u64,
    pub(super) writer: Writer<Ring>,
    pub(super) reader: Reader<Ring>,
    /// Whether a record was written in this call. The peer may sleep.
    pub(super) is_touched: bool,
    pub(super) behind: Predecessors,
    /// Bytes of its ring that are still read after it closed or died. A hostile peer cannot extend this beyond the
    /// size of a ring. `None` while the peer is connected.
    left_bytes: Option<usize>,
    /// The writer's position in the last pass over idle rings.
    looked_at: u64,
}

impl Peer {
    /// Creates a peer. `made_here` states whether this side created the memory.
    pub(super) fn new(id: u64, address: IpAddr, since_ns: u64, mapping: Mapping, made_here: bool) -> Self {
        let [first, second] = Ring::both(mapping);
        let (written, read) = if made_here { (first, second) } else { (second, first) };
        Self {
            id,
            address,
            since_ns,
            writer: Writer::new(written),
            reader: Reader::new(read),
            is_touched: false,
            behind: Predecessors::Unknown,
            left_bytes: None,
            looked_at: 0,
        }
    }

    /// Records that the peer closed or died.
    pub(super) fn depart(&mut self) {
        self.left_bytes = Some(RING_BYTES);
    }

    /// Returns whether the peer closed or died.
    #[inline]
    pub(super) fn has_departed(&self) -> bool {
        self.left_bytes.is_some()
    }

    /// Returns whether the peer closed or died, or wrote something that is no record. Then nothing more is sent to
    /// it, and the link removes it once its ring has no more records.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.has_departed() || self.reader.is_broken()
    }

    /// Writes a run to the ring. Returns false if the ring has no room.
    #[inline]
    pub(super) fn write(&mut self, run: &Run, batch: &TransmitBatch) -> bool {
        let trailer_bytes = batch.trailer_bytes();
        let header = Header {
            total_bytes: run.total_bytes - run.packets * trailer_bytes,
            segment_bytes: run.segment_bytes - trailer_bytes,
            traffic_class: run.path.traffic_class,
            hop_limit: run.path.hop_limit,
        };
        let packets = run.segments().map(|segment| &batch.bytes()[segment.start..segment.end - trailer_bytes]);
        let is_written = self.writer.push(header, packets);
        self.is_touched |= is_written;
        is_written
    }

    /// Returns whether the peer has written its first record while [`behind`](Self::behind) is still unknown.
    #[inline]
    pub(super) fn is_newcomer(&self) -> bool {
        self.behind == Predecessors::Unknown && self.reader.has_record()
    }

    /// Returns whether the ring may be read. The ring of a departed peer without records may, so that the peer is
    /// removed.
    #[inline]
    pub(super) fn may_be_read(&self) -> bool {
        match self.behind {
            Predecessors::Nothing => true,
            Predecessors::Unknown => self.has_departed() && !self.reader.has_record(),
            Predecessors::Others { .. } => false,
        }
    }

    /// Returns whether the ring may hold packets that its writer wrote before those in the other ring. A writer moves
    /// to another ring when its current one ends. This is a strict order, so no two rings wait for each other.
    pub(super) fn precedes(&self, other: &Self) -> bool {
        let place = |peer: &Self| (peer.behind != Predecessors::Nothing, !peer.has_departed(), peer.id);
        self.reader.has_record() && place(self) < place(other)
    }

    /// Passes the next records of the ring to a sink. Returns the number of their packets.
    #[inline]
    pub(super) fn read(&mut self, buffers: &mut RunBuffers, sink: &mut dyn Sink) -> usize {
        let (mut packets, mut bytes) = (0, 0);
        for _ in 0..RECORDS_PER_RING {
            let Some(record) = self.reader.pop().filter(|_| self.left_bytes != Some(0)) else { break };
            let header = record.header;
            if let Some(left) = &mut self.left_bytes {
                *left = left.saturating_sub(header.record_bytes() as usize);
            }
            packets += header.total_bytes.div_ceil(header.segment_bytes);
            bytes += header.total_bytes;
            buffers.hand_over(self.address, &self.reader, &record, sink);
            self.reader.release();
            if bytes >= BYTES_PER_RING {
                break;
            }
        }
        packets
    }

    /// Returns whether the writer's ring keeps more memory than an idle one should.
    #[inline]
    pub(super) fn keeps_memory(&self) -> bool {
        self.writer.kept_bytes() > KEPT_BYTES && !self.has_departed()
    }

    /// Gives back the memory of the ring if it was idle since the last call. Returns true if memory was given back.
    pub(super) fn give_back_if_idle(&mut self) -> bool {
        let position = self.writer.position();
        self.keeps_memory() && std::mem::replace(&mut self.looked_at, position) == position && self.writer.give_back()
    }
}

#[cfg(test)]
impl Peer {
    /// Returns the bytes of its rings that have memory.
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
    /// Creates the buffers of the device with this address and port.
    pub(super) fn new(local: SocketAddr) -> Self {
        Self { local, buffer: vec![0; MAX_RUN_BYTES].into(), sealed: Vec::new() }
    }

    /// Passes a record from this address to a sink.
    #[inline]
    fn hand_over(&mut self, src: IpAddr, reader: &Reader<Ring>, record: &Record, sink: &mut dyn Sink) {
        let Record { header, at } = *record;
        let Header { total_bytes, segment_bytes, traffic_class, hop_limit } = header;
        let dst = self.local.ip();
        let outer = Outer { src, dst, traffic_class, hop_limit, identification: None, dont_fragment: None };
        let shared = if segment_bytes <= HEADERS_BYTES_MAX {
            // The headers of short packets are the whole packets.
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

/// Appends an ICRC to each packet of a run: the one that a socket's segmented send would have.
fn seal(run: &ReceivedRun<'_>, sealed: &mut Vec<u8>) {
    let flow = Flow::new(run.outer.src, run.outer.dst, run.source_port, run.source_port);
    sealed.clear();
    for (index, packet) in run.segments().enumerate() {
        sealed.extend_from_slice(packet);
        sealed.extend_from_slice(&flow.icrc(index as u16, true, packet).to_le_bytes());
    }
}
