//! One host: its RNIC as a state machine, and the stations that decide when each thing happens to it.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use doorbell_rnic::{Config, Policy, Rnic, TransmitInfo};
use doorbell_verbs::raw::EventSignal;
use doorbell_verbs_core::{Notifier, QpKind, SrqId};
use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthRepr, BTH_LEN, Opcode, Outer, PacketOperation, PathMtu, Qpn, Transport, outer, scramble,
};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::network::Hop;
use super::stations::{ContextCache, Lane, PcieBus, Server};
use crate::simulation::NodeTimes;
use crate::testbed::{LockScope, Testbed};
use crate::time::Ps;

/// Addresses of nodes: 10.0.0.1 and up.
const FIRST_ADDRESS: u32 = 0x0a00_0001;

/// Where the memory of the first region lies, as work requests name it.
const FIRST_REGION: u64 = 1 << 44;

/// Between two regions lies at least one page that nothing is registered on.
const PAGE: u64 = 4096;

/// What a frame has on the line beside the packet: preamble, Ethernet, IPv4 and UDP headers, ICRC, FCS and gap.
const LINE_OVERHEAD: u64 = (outer::PREAMBLE_LEN
    + outer::ETHERNET_LEN
    + outer::IPV4_LEN
    + outer::UDP_LEN
    + doorbell_wire::ICRC_LEN
    + outer::FCS_LEN
    + outer::GAP_LEN) as u64;

/// What one access to memory is late by. Half of all accesses are not late at all, a quarter by the mean, an eighth by
/// twice the mean, and so on: a geometric distribution, whose draw time and queue pair decide.
fn late(mean: Ps, arrived: Ps, qpn: Qpn) -> Ps {
    let drawn = scramble(arrived.0 ^ u64::from(qpn.get()) << 40);
    Ps(mean.0 * u64::from(drawn.trailing_zeros().min(32)))
}

/// Bytes on the line of a packet of so many bytes, which is never shorter than the shortest frame.
pub(crate) fn line_bytes(packet: usize) -> u64 {
    let shortest = (outer::MIN_FRAME_LEN + outer::PREAMBLE_LEN + outer::FCS_LEN + outer::GAP_LEN) as u64;
    (packet as u64 + LINE_OVERHEAD).max(shortest)
}

/// The address of a node.
pub(crate) fn address_of(node: usize) -> IpAddr {
    Ipv4Addr::from_bits(FIRST_ADDRESS + node as u32).into()
}

/// The node of an address, if there may be one.
pub(crate) fn node_of(address: IpAddr) -> Option<usize> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_sub(FIRST_ADDRESS).map(|node| node as usize),
        IpAddr::V6(_) => None,
    }
}

/// Words whose locks are remembered at most. More than may be in flight, so what is forgotten was free long since.
const MOST_WORDS: usize = 1 << 20;

/// Sends that were posted together, and since when the NIC has them.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    upto: u64,
    at: Ps,
}

/// What the NIC's stations know of a queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpKind,
    pub(crate) unit: usize,
    pub(super) srq: Option<SrqId>,
    /// It stands in its unit's queue.
    pub(crate) is_queued: bool,
    fetched: VecDeque<Fetched>,
    /// When the payloads of work requests that are being fetched are there.
    payloads: VecDeque<Ps>,
    /// What arrives for one queue pair is handled in order.
    last_delivery: Ps,
    /// So are its peer's accesses to memory.
    last_access: Ps,
    /// The NIC answers more of a READ at this time.
    pub(crate) answers_at: Option<Ps>,
    lock: Server,
}

impl QueuePair {
    /// When the payload of another work request can be fetched, of so many at once.
    fn may_fetch_payload(&mut self, at: Ps, most: u64) -> Ps {
        let mut begins = at;
        while self.payloads.len() as u64 >= most {
            begins = begins.max(self.payloads.pop_front().unwrap_or_default());
        }
        while self.payloads.front().is_some_and(|&end| end <= begins) {
            self.payloads.pop_front();
        }
        begins
    }
}

/// A processing unit.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    server: Server,
    pub(crate) waiting: VecDeque<usize>,
    pub(crate) is_scheduled: bool,
}

/// Receives of which the NIC learns at a time.
#[derive(Clone, Copy, Debug)]
enum Posted {
    Own(Qpn),
    Shared(SrqId),
}

/// A packet on its way.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) opcode: Opcode,
    pub(crate) payload: u64,
    pub(crate) traffic_class: u8,
    /// Its UDP source port, which is that of its queue pair.
    pub(crate) source_port: u16,
    /// The switch that it comes to, and how.
    pub(crate) hop: Hop,
    /// When its answer may leave: as soon as it has arrived, before it is written to memory.
    pub(crate) answer_at: Ps,
}

impl Frame {
    /// What stands around the packet.
    pub(crate) fn outer(&self) -> Outer {
        Outer {
            src: address_of(self.from),
            dst: address_of(self.to),
            traffic_class: self.traffic_class,
            hop_limit: 64,
            identification: None,
            dont_fragment: None,
        }
    }
}

/// A host.
pub(crate) struct Node {
    pub(crate) rnic: Rnic,
    /// Signalled for each asynchronous event, once somebody has asked for the descriptor: a network may have more nodes
    /// than a process may have descriptors.
    pub(crate) event_signal: Arc<OnceLock<EventSignal>>,
    pub(crate) queue_pairs: Slab<QueuePair>,
    pub(crate) by_number: FxHashMap<u32, usize>,
    pub(crate) units: Vec<Unit>,
    next_unit: usize,
    send: Server,
    pub(crate) port: Lane,
    receive: Server,
    bus: PcieBus,
    reads: Vec<Server>,
    next_read: usize,
    atomics: Server,
    /// The locks of words, by address.
    words: FxHashMap<u64, Server>,
    contexts: ContextCache,
    last_of_shared: FxHashMap<u32, usize>,
    posted: VecDeque<(Ps, Posted, usize)>,
    /// The kernel has an event for the RNIC's timers at this time.
    pub(crate) timeout_at: Ps,
    next_region: u64,
    pub(crate) region_bytes: u64,
}

impl Node {
    pub(crate) fn new(index: usize, testbed: &Testbed, seed: [u8; 32]) -> Self {
        let config = Config {
            address: address_of(index),
            active_mtu: PathMtu::Mtu4096,
            receive_buffer_bytes: 0,
            seed: seed_of(index, seed),
        };
        let ack_request_packets = u32::try_from(testbed.nic.ack_every).unwrap_or(u32::MAX);
        let policy =
            Policy { ack_request_packets, waits_for_doorbells: true, waits_for_departures: true, ..Policy::UNBOUNDED };
        let event_signal = Arc::new(OnceLock::<EventSignal>::new());
        let notifier: Notifier = {
            let event_signal = Arc::clone(&event_signal);
            Arc::new(move || {
                if let Some(signal) = event_signal.get() {
                    signal.signal();
                }
            })
        };
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).clamp(1, 1 << 16);
        Self {
            rnic: Rnic::with_policy(config, policy, Some(notifier)),
            event_signal,
            queue_pairs: Slab::new(),
            by_number: FxHashMap::default(),
            units: (0..count(testbed.nic.units)).map(|_| Unit::default()).collect(),
            next_unit: 0,
            send: Server::default(),
            port: Lane::new(testbed.link.rate),
            receive: Server::default(),
            bus: PcieBus::new(&testbed.pcie),
            reads: vec![Server::default(); count(testbed.nic.read_units)],
            next_read: 0,
            atomics: Server::default(),
            words: FxHashMap::default(),
            contexts: ContextCache::new(&testbed.nic),
            last_of_shared: FxHashMap::default(),
            posted: VecDeque::new(),
            timeout_at: Ps::MAX,
            next_region: FIRST_REGION,
            region_bytes: 0,
        }
    }

    /// An address for a region of so many bytes. Addresses are not given twice.
    pub(crate) fn place(&mut self, length: usize) -> u64 {
        let address = self.next_region;
        let pages = (length as u64).div_ceil(PAGE).max(1) + 1;
        self.next_region += pages * PAGE;
        address
    }

    pub(crate) fn add_queue_pair(&mut self, qpn: Qpn, kind: QpKind, srq: Option<SrqId>) {
        let unit = self.next_unit;
        self.next_unit = (unit + 1) % self.units.len();
        let slot = self.queue_pairs.insert(QueuePair {
            qpn,
            kind,
            unit,
            srq,
            is_queued: false,
            fetched: VecDeque::new(),
            payloads: VecDeque::new(),
            last_delivery: Ps::ZERO,
            last_access: Ps::ZERO,
            answers_at: None,
            lock: Server::default(),
        });
        self.by_number.insert(qpn.get(), slot);
    }

    pub(crate) fn remove_queue_pair(&mut self, qpn: Qpn) {
        if let Some(slot) = self.by_number.remove(&qpn.get()) {
            let unit = self.queue_pairs.remove(slot).unit;
            self.units[unit].waiting.retain(|&waiting| waiting != slot);
        }
        self.posted.retain(|(_, posted, _)| !matches!(posted, Posted::Own(other) if *other == qpn));
    }

    pub(crate) fn slot(&self, qpn: Qpn) -> Option<usize> {
        self.by_number.get(&qpn.get()).copied()
    }

    /// Receives are posted: the NIC knows of them from `at` on.
    pub(crate) fn post_receives(&mut self, at: Ps, qpn: Qpn, count: usize) {
        self.note_posted(at, Posted::Own(qpn), count);
    }

    /// The same, of a shared receive queue.
    pub(crate) fn post_shared_receives(&mut self, at: Ps, srq: SrqId, count: usize) {
        self.note_posted(at, Posted::Shared(srq), count);
    }

    fn note_posted(&mut self, at: Ps, posted: Posted, count: usize) {
        // Nearly always the latest: threads of one host post in turn.
        let place = self.posted.iter().rposition(|(other, ..)| *other <= at).map_or(0, |last| last + 1);
        self.posted.insert(place, (at, posted, count));
    }

    /// Tells the RNIC of the receives that were posted by now.
    #[inline]
    pub(crate) fn ring_receives(&mut self, now: Ps) {
        while let Some(&(at, posted, count)) = self.posted.front()
            && at <= now
        {
            self.posted.pop_front();
            match posted {
                Posted::Own(qpn) => self.rnic.ring_receives(qpn, count),
                Posted::Shared(srq) => self.rnic.ring_shared_receives(srq, count),
            }
        }
    }

    /// A doorbell arrives for the sends up to `upto`, of which the NIC must fetch so many bytes.
    pub(crate) fn doorbell(&mut self, now: Ps, slot: usize, upto: u64, fetch: u64) {
        let at = if fetch > 0 { self.bus.read(now, fetch) } else { now };
        let qp = &mut self.queue_pairs[slot];
        // Work requests of one queue pair are handled in order.
        let at = qp.fetched.back().map_or(at, |before| at.max(before.at));
        qp.fetched.push_back(Fetched { upto, at });
    }

    /// When the NIC has the work request that a queue pair sends from next.
    pub(crate) fn has_next_at(&mut self, slot: usize) -> Ps {
        let qp = &mut self.queue_pairs[slot];
        let Some((next, _)) = self.rnic.next_send(qp.qpn) else { return Ps::ZERO };
        while qp.fetched.front().is_some_and(|fetched| fetched.upto <= next) {
            qp.fetched.pop_front();
        }
        qp.fetched.front().map_or(Ps::ZERO, |fetched| fetched.at)
    }

    /// How many work requests of a queue pair the NIC has by now and has not sent.
    pub(crate) fn fetched_sends(&self, now: Ps, slot: usize) -> usize {
        let qp = &self.queue_pairs[slot];
        let Some((next, _)) = self.rnic.next_send(qp.qpn) else { return 0 };
        // Two lists are more than is taken at once.
        let has = qp.fetched.iter().take(2).take_while(|fetched| fetched.at <= now).last();
        has.map_or(0, |fetched| fetched.upto.saturating_sub(next) as usize)
    }

    /// When a unit can take the next packet.
    pub(crate) fn unit_free(&self, unit: usize) -> Ps {
        self.units[unit].server.free()
    }

    /// A request packet goes through its unit: when its last bit is on the line.
    pub(crate) fn send_request(
        &mut self,
        now: Ps,
        testbed: &Testbed,
        slot: usize,
        info: &TransmitInfo,
        bytes: usize,
    ) -> Ps {
        let nic = &testbed.nic;
        let mut service = if info.first { nic.unit_request } else { nic.unit_packet };
        let mut miss = Ps::ZERO;
        if self.contexts.misses(slot as u32, self.queue_pairs.len()) {
            miss = nic.context_miss;
            service += miss;
        }
        let unit = self.queue_pairs[slot].unit;
        let mut at = self.units[unit].server.serve(now, service) + miss;
        at = self.send.serve(at, nic.send_packet);
        if info.payload_bytes > 0 && !info.inline {
            if info.first {
                at = self.queue_pairs[slot].may_fetch_payload(at, nic.payload_fetches);
            }
            at = self.bus.read(at, info.payload_bytes.into());
            if info.first {
                self.queue_pairs[slot].payloads.push_back(at);
            }
        }
        self.port.carry(at + nic.transmit, line_bytes(bytes))
    }

    /// A message that nobody acknowledges has left: when a polling CPU sees its completion.
    pub(crate) fn complete_departure(&mut self, left: Ps, testbed: &Testbed) -> Ps {
        self.bus.write(left, testbed.nic.completion)
    }

    /// An answer to what arrived leaves: when its last bit is on the line.
    pub(crate) fn send_answer(&mut self, at: Ps, testbed: &Testbed, info: &TransmitInfo, bytes: usize) -> Ps {
        let nic = &testbed.nic;
        let mut at = at;
        if let Some(PacketOperation::ReadResponse) = info.opcode.operation() {
            if info.first {
                let unit = self.next_read;
                self.next_read = (unit + 1) % self.reads.len();
                at = self.reads[unit].serve(at, nic.read) + nic.read;
            }
            if info.payload_bytes > 0 {
                at = self.bus.read(at, info.payload_bytes.into());
            }
        }
        at = self.send.serve(at, nic.send_packet);
        self.port.carry(at, line_bytes(bytes))
    }

    /// A packet has come off the line: when it is handled, which for what goes to memory is when a polling CPU sees it
    /// there. Sets when its answer may leave.
    pub(crate) fn receive(&mut self, arrived: Ps, testbed: &Testbed, frame: &mut Frame) -> Ps {
        let nic = &testbed.nic;
        let slot = dest_qpn(&frame.bytes).and_then(|qpn| self.slot(qpn));
        let opcode = frame.opcode;
        let operation = opcode.operation();
        let sends = matches!(operation, Some(PacketOperation::Send));
        let takes_receive = opcode.is_last() && opcode.is_request() && (sends || opcode.has_imm());
        // A datagram comes with a header, and both go to memory (mlx5 scatters into completions of connections alone).
        let is_datagram = opcode.transport() == Transport::Ud;
        let into_completion = sends && opcode.is_only() && !is_datagram && frame.payload <= nic.inline_receive;
        let written = frame.payload + if is_datagram { outer::GRH_LEN as u64 } else { 0 };
        let mut service = nic.receive_packet;
        if takes_receive
            && let Some(slot) = slot
            && let Some(srq) = self.queue_pairs[slot].srq
        {
            let last = self.last_of_shared.insert(srq.0, slot);
            if last.is_some_and(|last| last != slot) && !into_completion {
                service += nic.shared_receive;
            }
        }
        let mut miss = Ps::ZERO;
        if let Some(slot) = slot
            && self.contexts.misses(slot as u32, self.queue_pairs.len())
        {
            miss = nic.context_miss;
            service += miss;
        }
        let mut begins = self.receive.serve(arrived, service) + miss;
        let accesses_memory = matches!(
            operation,
            Some(
                PacketOperation::Write
                    | PacketOperation::ReadRequest
                    | PacketOperation::CompareSwap
                    | PacketOperation::FetchAdd
            )
        );
        if accesses_memory && let Some(slot) = slot {
            let qp = &mut self.queue_pairs[slot];
            begins = (begins + late(nic.access_jitter, arrived, qp.qpn)).max(qp.last_access);
            qp.last_access = begins;
        }
        let handled = match operation {
            Some(PacketOperation::Acknowledge | PacketOperation::AtomicAcknowledge) => begins + nic.receive_ack,
            Some(PacketOperation::CompareSwap | PacketOperation::FetchAdd) => {
                self.lock(testbed, slot, &frame.bytes).serve(begins + nic.receive, nic.atomic) + nic.atomic
            }
            _ => begins + nic.receive,
        };
        frame.answer_at = handled;
        // The answer leaves before the receive is taken.
        let placed = if takes_receive { handled + nic.take_receive } else { handled };
        let mut seen = placed;
        if written > 0 && !into_completion {
            seen = self.bus.write(placed, written);
        }
        let completes = takes_receive || (opcode.is_response() && opcode.is_last());
        if completes {
            seen = seen.max(self.bus.write(placed, nic.completion));
        }
        if let Some(slot) = slot {
            let qp = &mut self.queue_pairs[slot];
            seen = seen.max(qp.last_delivery);
            qp.last_delivery = seen;
        }
        seen
    }

    /// The lock that an atomic operation takes.
    fn lock(&mut self, testbed: &Testbed, slot: Option<usize>, packet: &[u8]) -> &mut Server {
        match (testbed.nic.atomic_lock, slot) {
            (LockScope::QueuePair, Some(slot)) => &mut self.queue_pairs[slot].lock,
            (LockScope::Address, _) => {
                let header = packet.get(BTH_LEN..).and_then(<[u8]>::first_chunk::<ATOMIC_ETH_LEN>);
                let address = header.map_or(0, |header| AtomicEthRepr::read(header).virtual_address);
                // So many words that are not locked are never asked for again.
                if self.words.len() >= MOST_WORDS && !self.words.contains_key(&address) {
                    self.words.clear();
                }
                self.words.entry(address).or_default()
            }
            _ => &mut self.atomics,
        }
    }

    /// What its stations did.
    pub(crate) fn times(&self) -> NodeTimes {
        let (fetch, write) = self.bus.busy();
        NodeTimes {
            port: self.port.busy(),
            send: self.send.busy(),
            receive: self.receive.busy(),
            unit: self.units.iter().map(|unit| unit.server.busy()).max().unwrap_or_default(),
            fetch,
            write,
        }
    }
}

/// The queue pair that a packet is for.
pub(crate) fn dest_qpn(packet: &[u8]) -> Option<Qpn> {
    packet.first_chunk().map(|header| doorbell_wire::BthRepr::read(header).dest_qpn)
}

/// The UDP source port of all packets between two queue pairs, as Linux computes it (`rdma_calc_flow_label` and
/// `rdma_flow_label_to_udp_sport`): switches tell flows apart by it.
pub(crate) fn source_port(own: Qpn, peer: Qpn) -> u16 {
    let product = u64::from(own.get()) * u64::from(peer.get());
    let label = (product ^ (product >> 20) ^ (product >> 40)) & 0xf_ffff;
    ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) as u16 | 0xc000
}

/// A node's own randomness: the run's, with its number.
fn seed_of(index: usize, mut seed: [u8; 32]) -> [u8; 32] {
    for (place, byte) in seed.iter_mut().zip((index as u64 + 1).to_le_bytes()) {
        *place ^= byte;
    }
    seed
}
