//! Packets from one address to one queue pair of another address. They are requests, and answers to requests of the
//! other direction.

use std::collections::VecDeque;

use doorbell_wire::cost::MAX_MESSAGE_BYTES;
use doorbell_wire::{
    AethRepr, MessageKind, NakCode, Opcode, PacketOperation, PathMtu, Psn, RethRepr, SyndromeKind, Transport,
};
use hdrhistogram::Histogram;

use super::acknowledged::Acknowledged;
use super::directions::Span;
use super::silence::Silence;
use super::summary::{NakCount, OperationCount, SizeCount, Times};

/// Maximum number of message sizes with separate counters per operation.
const MAX_SIZES: usize = 8;
/// Maximum number of messages whose last packet is awaited.
const MAX_OPEN: usize = 4;
/// Maximum number of requests whose acknowledgement is awaited. If more requests are waiting, the
/// decoder measures the times of only these requests.
const MAX_AWAITED: usize = 1024;
/// Maximum number of ranges of skipped sequence numbers that may still arrive.
const MAX_HOLES: usize = 16;
/// Maximum jump of a sequence number. A larger jump means that another queue pair has the same number.
const MAX_STRIDE: u32 = 1 << 17;
/// Maximum number of sequence numbers in flight. An answer to an older sequence number belongs to another stream.
const MAX_IN_FLIGHT: u32 = 1 << 13;
/// Path MTU with which a READ response has the most packets.
const SHORTEST_MTU: u32 = PathMtu::Mtu256.bytes() as u32;
/// Maximum time to acknowledgement in the histogram: one minute.
const MAX_TIME_NS: u64 = 60_000_000_000;

/// One parsed packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    pub(super) payload_bytes: u64,
    pub(super) reth: Option<RethRepr>,
    pub(super) aeth: Option<AethRepr>,
    pub(super) timestamp_ns: Option<u64>,
}

pub(super) type TimeHistogram = Histogram<u32>;

pub(super) fn time_histogram() -> TimeHistogram {
    Histogram::new_with_bounds(1, MAX_TIME_NS, 2).expect("these bounds are allowed")
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) packets: u64,
    pub(super) frame_bytes: u64,
    pub(super) bad_icrc_packets: u64,
    pub(super) requests: Requests,
    pub(super) answers: Answers,
}

/// Request packets of a stream.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) packets: u64,
    /// Number of request packets that ask for no data. Responders answer these packets with ACKs.
    pub(super) plain_packets: u64,
    operations: Vec<Counted>,
    pub(super) retransmitted: u64,
    pub(super) incomplete: u64,
    /// The first sequence number seen, and the sequence number expected next.
    seen: Option<(Psn, Psn)>,
    /// Number of sequence numbers beyond the expected one that a READ request may have used. The path MTU determines
    /// the number of response packets, and the request does not contain the path MTU. A request whose RETH was not
    /// captured may have used any number.
    slack: u32,
    /// End address of the last READ in memory, and its length.
    last_read: Option<(u64, u32)>,
    open: Vec<Open>,
    holes: Vec<(Psn, u32)>,
    missing: u64,
    awaited: VecDeque<(Psn, u64)>,
    times: Option<Box<TimeHistogram>>,
    pub(super) silence: Silence,
}

#[derive(Debug)]
struct Counted {
    transport: Transport,
    kind: MessageKind,
    messages: u64,
    payload_bytes: u64,
    /// Shortest and longest known length.
    extremes: Option<(u64, u64)>,
    sizes: Vec<SizeCount>,
    other_sizes: u64,
    unknown_sizes: u64,
}

/// A message whose last packet has not arrived.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: Psn,
    mtu_bytes: u64,
}

impl Requests {
    pub(super) fn add(&mut self, packet: &Packet) {
        self.packets += 1;
        let Some(operation) = packet.opcode.operation() else {
            self.advance(packet);
            return;
        };
        let transport = packet.opcode.transport();
        if matches!(operation, PacketOperation::Send | PacketOperation::Write) {
            self.plain_packets += 1;
        }
        // One queue pair receives datagrams of many senders, each with its own sequence numbers.
        if transport != Transport::Ud && !self.advance(packet) {
            return;
        }
        self.assemble(packet, operation, transport);
        let awaits = matches!(transport, Transport::Rc | Transport::Xrc) && packet.opcode.is_last();
        if let (true, Some(now_ns)) = (awaits && self.awaited.len() < MAX_AWAITED, packet.timestamp_ns) {
            self.awaited.push_back((packet.psn, now_ns));
        }
    }

    /// Returns whether the packet is seen for the first time.
    fn advance(&mut self, packet: &Packet) -> bool {
        let psn = packet.psn;
        let (first, next) = *self.seen.get_or_insert((psn, psn));
        let (ahead, behind) = (psn.distance_from(next), next.distance_from(psn));
        let mut first = first;
        if ahead <= self.slack {
            if self.slack > 0 && self.is_rest_of_read(packet) {
                self.repeated(packet);
                return false;
            }
        } else if ahead < MAX_STRIDE {
            self.skip(next.add(self.slack), ahead - self.slack);
        } else if behind < MAX_STRIDE {
            return match self.holes.iter().position(|&(from, length)| psn.distance_from(from) < length) {
                Some(at) => {
                    self.fill_hole(at, psn);
                    true
                }
                None => {
                    self.repeated(packet);
                    false
                }
            };
        } else {
            self.start_anew();
            first = psn;
        }
        self.seen = Some((first, psn.next()));
        self.slack = 0;
        if packet.opcode.operation() == Some(PacketOperation::ReadRequest) {
            let most = packet.reth.map_or(u32::MAX, |reth| reth.dma_length);
            self.slack = most.div_ceil(SHORTEST_MTU).saturating_sub(1).min(MAX_STRIDE - 1);
            let end = |reth: RethRepr| reth.virtual_address.wrapping_add(u64::from(reth.dma_length));
            self.last_read = packet.reth.map(|reth| (end(reth), reth.dma_length));
        }
        true
    }

    fn skip(&mut self, from: Psn, length: u32) {
        self.missing += u64::from(length);
        if self.holes.len() == MAX_HOLES {
            self.holes.remove(0);
        }
        self.holes.push((from, length));
    }

    /// Returns whether this request asks for the rest of the previous READ, whose response was lost in part.
    fn is_rest_of_read(&self, packet: &Packet) -> bool {
        let (Some((end, length)), Some(reth)) = (self.last_read, packet.reth) else { return false };
        packet.opcode.operation() == Some(PacketOperation::ReadRequest)
            && reth.dma_length < length
            && reth.virtual_address.wrapping_add(u64::from(reth.dma_length)) == end
    }

    fn repeated(&mut self, packet: &Packet) {
        self.retransmitted += 1;
        self.silence.repeat(packet.psn, packet.timestamp_ns);
        // An ACK does not show which copy of a packet it acknowledges (Karn and Partridge, 1987).
        self.awaited.clear();
    }

    fn fill_hole(&mut self, at: usize, psn: Psn) {
        let (from, length) = self.holes[at];
        self.missing = self.missing.saturating_sub(1);
        let before = psn.distance_from(from);
        self.holes.swap_remove(at);
        for (from, length) in [(from, before), (psn.next(), length - before - 1)] {
            if length > 0 && self.holes.len() < MAX_HOLES {
                self.holes.push((from, length));
            }
        }
    }

    /// Restarts the sequence numbers for a new queue pair with the same number, without a reset of the counts.
    fn start_anew(&mut self) {
        self.incomplete += self.open.len() as u64;
        self.open.clear();
        self.holes.clear();
        self.awaited.clear();
        self.silence.start_anew();
        self.slack = 0;
        self.last_read = None;
    }

    /// Reassembles messages. All packets except the last are as long as the first, so the first packet, the last
    /// packet and the distance of their sequence numbers determine the length.
    fn assemble(&mut self, packet: &Packet, operation: PacketOperation, transport: Transport) {
        let opcode = packet.opcode;
        if opcode.is_first() && !opcode.is_last() {
            if self.open.len() == MAX_OPEN {
                self.open.remove(0);
                self.incomplete += 1;
            }
            self.open.push(Open { first: packet.psn, mtu_bytes: packet.payload_bytes });
            return;
        }
        if !opcode.is_last() {
            return;
        }
        let bytes = if opcode.is_first() {
            match operation {
                // The snap length may have cut the RETH.
                PacketOperation::ReadRequest => packet.reth.map(|reth| u64::from(reth.dma_length)),
                PacketOperation::CompareSwap | PacketOperation::FetchAdd => Some(doorbell_wire::cost::ATOMIC_BYTES),
                _ => Some(packet.payload_bytes),
            }
        } else {
            let distance = |open: &Open| packet.psn.distance_from(open.first);
            let length = |open: &Open| u64::from(distance(open)) * open.mtu_bytes + packet.payload_bytes;
            let nearest = (0..self.open.len()).min_by_key(|&at| distance(&self.open[at]));
            // A last packet whose first packet is missing may come after the first packet of a later message.
            let Some(at) = nearest.filter(|&at| length(&self.open[at]) <= MAX_MESSAGE_BYTES) else {
                self.incomplete += 1;
                return;
            };
            Some(length(&self.open.swap_remove(at)))
        };
        let kind = match operation {
            PacketOperation::Send if opcode.has_imm() => MessageKind::SendImm,
            PacketOperation::Send if opcode.has_ieth() => MessageKind::SendInv,
            PacketOperation::Send => MessageKind::Send,
            PacketOperation::Write if opcode.has_imm() => MessageKind::WriteImm,
            PacketOperation::Write => MessageKind::Write,
            PacketOperation::ReadRequest => MessageKind::Read,
            PacketOperation::CompareSwap => MessageKind::CompareSwap,
            PacketOperation::FetchAdd => MessageKind::FetchAdd,
            _ => return,
        };
        self.count(transport, kind, bytes);
    }

    /// Counts a message, whose `bytes` may be unknown.
    fn count(&mut self, transport: Transport, kind: MessageKind, bytes: Option<u64>) {
        let at = self.operations.iter().position(|counted| counted.transport == transport && counted.kind == kind);
        let at = at.unwrap_or_else(|| {
            self.operations.push(Counted {
                transport,
                kind,
                messages: 0,
                payload_bytes: 0,
                extremes: None,
                sizes: Vec::new(),
                other_sizes: 0,
                unknown_sizes: 0,
            });
            self.operations.len() - 1
        });
        let counted = &mut self.operations[at];
        counted.messages += 1;
        let Some(bytes) = bytes else {
            counted.unknown_sizes += 1;
            return;
        };
        counted.payload_bytes += bytes;
        let (shortest, longest) = counted.extremes.unwrap_or((bytes, bytes));
        counted.extremes = Some((shortest.min(bytes), longest.max(bytes)));
        if let Some(size) = counted.sizes.iter_mut().find(|size| size.bytes == bytes) {
            size.messages += 1;
        } else if counted.sizes.len() < MAX_SIZES {
            counted.sizes.push(SizeCount { bytes, messages: 1 });
        } else {
            counted.other_sizes += 1;
        }
    }

    /// Returns the newest sequence numbers of sent requests and of responses to sent READs.
    pub(super) fn sent(&self) -> Option<Span> {
        self.seen.map(|(first, next)| {
            let sent = next.distance_from(first).min(MAX_IN_FLIGHT);
            Span { first: next.sub(sent), length: sent + self.slack }
        })
    }

    /// Records the times to acknowledgement of the requests that `up_to` acknowledges.
    pub(super) fn acknowledged(&mut self, up_to: Acknowledged, now_ns: Option<u64>, all: &mut TimeHistogram) {
        self.silence.answer(up_to, now_ns);
        while let Some(&(psn, sent_ns)) = self.awaited.front() {
            if !up_to.covers(psn) {
                break;
            }
            self.awaited.pop_front();
            if let Some(now_ns) = now_ns {
                let took_ns = now_ns.saturating_sub(sent_ns);
                self.times.get_or_insert_with(|| Box::new(time_histogram())).saturating_record(took_ns);
                all.saturating_record(took_ns);
            }
        }
    }

    pub(super) fn unknown_sizes(&self) -> u64 {
        self.operations.iter().map(|counted| counted.unknown_sizes).sum()
    }

    pub(super) fn incomplete_messages(&self) -> u64 {
        self.incomplete + self.open.len() as u64
    }

    pub(super) fn missing_packets(&self) -> u64 {
        self.missing
    }

    pub(super) fn times(&self) -> Option<Times> {
        self.times.as_deref().and_then(Times::of)
    }

    pub(super) fn operations(&self) -> Vec<OperationCount> {
        let count = |counted: &Counted| {
            let mut sizes = counted.sizes.clone();
            sizes.sort_by_key(|size| size.bytes);
            OperationCount {
                transport: counted.transport.to_string(),
                operation: counted.kind.to_string(),
                messages: counted.messages,
                payload_bytes: counted.payload_bytes,
                min_bytes: counted.extremes.map(|(shortest, _)| shortest),
                max_bytes: counted.extremes.map(|(_, longest)| longest),
                sizes,
                other_sizes: counted.other_sizes,
                unknown_sizes: counted.unknown_sizes,
            }
        };
        self.operations.iter().map(count).collect()
    }
}

/// Answers in a stream.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) acks: u64,
    /// Number of ACKs and NAKs whose kind is unknown, because their AETH was not captured.
    pub(super) cut_acks: u64,
    pub(super) read_response_packets: u64,
    pub(super) atomic_responses: u64,
    naks: [u64; 32],
    pub(super) rnr_naks: u64,
}

impl Answers {
    /// Counts an answer. Returns the sequence numbers that it acknowledges.
    pub(super) fn add(&mut self, packet: &Packet) -> Acknowledged {
        match packet.opcode.operation() {
            Some(PacketOperation::Acknowledge) => match packet.aeth.map(|aeth| aeth.syndrome.kind()) {
                Some(SyndromeKind::Ack { .. }) => {
                    self.acks += 1;
                    Acknowledged::UpTo(packet.psn)
                }
                Some(SyndromeKind::RnrNak { .. }) => {
                    self.rnr_naks += 1;
                    Acknowledged::NotReady(packet.psn)
                }
                Some(SyndromeKind::Nak(NakCode(code))) => {
                    self.naks[usize::from(code) % 32] += 1;
                    Acknowledged::Before(packet.psn)
                }
                Some(_) => Acknowledged::Nothing,
                None => {
                    self.cut_acks += 1;
                    Acknowledged::Nothing
                }
            },
            Some(PacketOperation::AtomicAcknowledge) => {
                self.atomic_responses += 1;
                Acknowledged::UpTo(packet.psn)
            }
            Some(PacketOperation::ReadResponse) => {
                self.read_response_packets += 1;
                match (packet.opcode.is_first(), packet.opcode.is_last()) {
                    (_, true) => Acknowledged::UpTo(packet.psn),
                    // The packet acknowledges all requests before the READ, but the READ itself is incomplete.
                    (true, _) => Acknowledged::Before(packet.psn),
                    _ => Acknowledged::Nothing,
                }
            }
            _ => Acknowledged::Nothing,
        }
    }

    pub(super) fn naks(&self) -> Vec<NakCount> {
        let count = |(code, &naks): (usize, &u64)| {
            let code = code as u8;
            (naks > 0).then(|| NakCount { code, name: NakCode(code).to_string(), naks })
        };
        self.naks.iter().enumerate().filter_map(count).collect()
    }

    /// Returns the number of ACKs, NAKs and RNR NAKs.
    pub(super) fn all_acknowledgements(&self) -> u64 {
        self.acks + self.cut_acks + self.all_naks() + self.rnr_naks
    }

    pub(super) fn all_naks(&self) -> u64 {
        self.naks.iter().sum()
    }
}
