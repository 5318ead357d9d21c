//! A simulated host: its RNIC as a state machine, and the stations that determine when events reach the RNIC.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use doorbell_rnic::{Config, Policy, Rnic, TransmitInfo};
use doorbell_verbs::raw::EventSignal;
use doorbell_verbs_core::{Notifier, QpKind, SrqId};
use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthRepr, BTH_LEN, Opcode, Outer, PacketOperation, PathMtu, Qpn, RETH_LEN, RethRepr,
    Transport, outer, scramble,
};
use rustc_hash::FxHashMap;
use slab::Slab;

use super::counts::NodeTimes;
use super::hop::Hop;
use super::stations::{ContextCache, Lane, PcieBus, Server};
use super::stores::FutureStores;
use crate::testbed::{Acks, LockScope, Pcie, Testbed};
use crate::time::Ps;

/// Address of node 0, 10.0.0.1. The addresses of the other nodes follow it.
const FIRST_ADDRESS: u32 = 0x0a00_0001;

/// Virtual address of the first memory region.
const FIRST_REGION: u64 = 1 << 44;

/// Page size. At least one unregistered page lies between two regions.
const PAGE: u64 = 4096;

/// Bytes of a frame on the line around the packet: preamble, Ethernet, IPv4 and UDP headers, ICRC, FCS and gap.
const LINE_OVERHEAD: u64 = (outer::PREAMBLE_LEN
    + outer::ETHERNET_LEN
    + outer::IPV4_LEN
    + outer::UDP_LEN
    + doorbell_wire::ICRC_LEN
    + outer::FCS_LEN
    + outer::GAP_LEN) as u64;

/// Returns the delay of one access of a peer to memory: a uniform random time for a slow access, and zero for any
/// other. The random number is a hash of the time of arrival and the queue pair number.
fn late(pcie: &Pcie, arrived: Ps, qpn: Qpn) -> Ps {
    if pcie.slow_every == 0 {
        return Ps::ZERO;
    }
    let drawn = scramble(arrived.0 ^ u64::from(qpn.get()) << 40);
    if !drawn.is_multiple_of(pcie.slow_every) {
        return Ps::ZERO;
    }
    // The product of a time below 2^64 and a number below 2^32, divided by 2^32, fits into 64 bits.
    Ps(((u128::from(pcie.slow_access.0) * u128::from(drawn >> 32)) >> 32) as u64)
}

/// Returns the number of bytes that a packet takes on the line. It is at least that of the shortest Ethernet frame.
pub(crate) fn line_bytes(packet: usize) -> u64 {
    let shortest = (outer::MIN_FRAME_LEN + outer::PREAMBLE_LEN + outer::FCS_LEN + outer::GAP_LEN) as u64;
    (packet as u64 + LINE_OVERHEAD).max(shortest)
}

/// Returns the address of a node.
pub(crate) fn address_of(node: usize) -> IpAddr {
    Ipv4Addr::from_bits(FIRST_ADDRESS + node as u32).into()
}

/// Returns the index that belongs to an address. A node with this index need not exist.
pub(crate) fn node_of(address: IpAddr) -> Option<usize> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_sub(FIRST_ADDRESS).map(|node| node as usize),
        IpAddr::V6(_) => None,
    }
}

/// Maximum number of words whose locks a node stores. At this number, the node drops the stored locks. The number far
/// exceeds the number of operations in flight, so dropped locks are free.
const MOST_WORDS: usize = 1 << 20;

/// Sends of one doorbell, and the time at which the NIC has their work requests.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    upto: u64,
    at: Ps,
}

/// State of a queue pair in the NIC's stations.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpKind,
    pub(crate) unit: usize,
    pub(super) srq: Option<SrqId>,
    /// Whether the queue pair waits in the queue of its unit.
    pub(crate) is_queued: bool,
    fetched: VecDeque<Fetched>,
    /// Times at which the payload fetches in progress end.
    payloads: VecDeque<Ps>,
    /// Time of the last delivery. Packets of one queue pair are handled in order.
    last_delivery: Ps,
    /// Time of the last memory access that a request of the peer made. Such accesses of one queue pair happen in order.
    last_access: Ps,
    /// Time between the earliest response to the last packet and its delivery. The RNIC handles a packet at its
    /// delivery, so the acknowledgements that it holds leave earlier by this time.
    pub(crate) answers_before: Ps,
    /// Time at which the NIC sends more responses of a READ; `None` if no READ has remaining responses.
    pub(crate) answers_at: Option<Ps>,
    lock: Server,
}

impl QueuePair {
    /// Returns the first time, not before `at`, at which another payload fetch can begin. At most `most` fetches are in
    /// progress at once.
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

/// Receive queue to which a thread has posted receives that the NIC does not know yet.
#[derive(Clone, Copy, Debug)]
enum Posted {
    Own(Qpn),
    Shared(SrqId),
}

/// A packet in flight.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) opcode: Opcode,
    pub(crate) payload: u64,
    pub(crate) traffic_class: u8,
    /// UDP source port, which identifies the queue pair.
    pub(crate) source_port: u16,
    /// The next switch, and the port that sends the frame there.
    pub(crate) hop: Hop,
    /// Earliest time at which the response to this packet can leave. The response need not wait until the packet is
    /// written to memory.
    pub(crate) answer_at: Ps,
}

impl Frame {
    /// Returns the headers around the packet.
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
    /// Signal of asynchronous events. It is created only when a caller asks for its descriptor, because a network may
    /// have more nodes than a process may open descriptors.
    pub(crate) event_signal: Arc<OnceLock<EventSignal>>,
    pub(crate) queue_pairs: Slab<QueuePair>,
    pub(crate) by_number: FxHashMap<u32, usize>,
    pub(crate) units: Vec<Unit>,
    next_unit: usize,
    send: Server,
    gather: Server,
    pub(crate) port: Lane,
    receive: Server,
    bus: PcieBus,
    reads: Vec<Server>,
    next_read: usize,
    atomics: Server,
    /// Locks of words for atomic operations, by address of the word.
    words: FxHashMap<u64, Server>,
    contexts: ContextCache,
    last_of_shared: FxHashMap<u32, usize>,
    posted: VecDeque<(Ps, Posted, usize)>,
    /// Stores of the node's threads that the hardware has not reached.
    pub(crate) stores: FutureStores,
    /// Times of the kernel's events for the timers of the RNIC, the earliest last.
    pub(crate) timeouts: Vec<Ps>,
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
        let policy = Policy {
            ack_hold_ns: testbed.nic.ack_delay.as_ns(),
            completions_await_acks: false,
            acks_follow_requests: testbed.nic.acks == Acks::BehindRequests,
            ack_request_packets,
            waits_for_doorbells: true,
            waits_for_departures: true,
            ..Policy::UNBOUNDED
        };
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
            gather: Server::default(),
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
            stores: FutureStores::default(),
            timeouts: Vec::new(),
            next_region: FIRST_REGION,
            region_bytes: 0,
        }
    }

    /// Returns an unused address for a region of `length` bytes. Addresses are not reused.
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
            answers_before: Ps::ZERO,
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

    /// Records receives that the NIC knows from the time `at` on.
    pub(crate) fn post_receives(&mut self, at: Ps, qpn: Qpn, count: usize) {
        self.note_posted(at, Posted::Own(qpn), count);
    }

    /// Records receives of a shared receive queue, as [`Self::post_receives`].
    pub(crate) fn post_shared_receives(&mut self, at: Ps, srq: SrqId, count: usize) {
        self.note_posted(at, Posted::Shared(srq), count);
    }

    fn note_posted(&mut self, at: Ps, posted: Posted, count: usize) {
        // The new entry is nearly always the latest, since threads of one host post in turn.
        let place = self.posted.iter().rposition(|(other, ..)| *other <= at).map_or(0, |last| last + 1);
        self.posted.insert(place, (at, posted, count));
    }

    /// Passes the receives that were posted by `now` to the RNIC.
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

    /// Handles a doorbell for the sends up to `upto`. The NIC must fetch `fetch` bytes of work requests.
    pub(crate) fn doorbell(&mut self, now: Ps, slot: usize, upto: u64, fetch: u64) {
        let at = if fetch > 0 { self.bus.read(now, fetch) } else { now };
        let qp = &mut self.queue_pairs[slot];
        // The NIC handles the work requests of one queue pair in order.
        let at = qp.fetched.back().map_or(at, |before| at.max(before.at));
        qp.fetched.push_back(Fetched { upto, at });
    }

    /// Returns the time at which the NIC has the next work request of a queue pair.
    pub(crate) fn has_next_at(&mut self, slot: usize) -> Ps {
        let qp = &mut self.queue_pairs[slot];
        let Some((next, _)) = self.rnic.next_send(qp.qpn) else { return Ps::ZERO };
        while qp.fetched.front().is_some_and(|fetched| fetched.upto <= next) {
            qp.fetched.pop_front();
        }
        qp.fetched.front().map_or(Ps::ZERO, |fetched| fetched.at)
    }

    /// Returns the number of work requests that the NIC has fetched by now and has not sent.
    pub(crate) fn fetched_sends(&self, now: Ps, slot: usize) -> usize {
        let qp = &self.queue_pairs[slot];
        let Some((next, _)) = self.rnic.next_send(qp.qpn) else { return 0 };
        // A unit takes only a few requests at once, so the first two doorbells are enough.
        let has = qp.fetched.iter().take(2).take_while(|fetched| fetched.at <= now).last();
        has.map_or(0, |fetched| fetched.upto.saturating_sub(next) as usize)
    }

    /// Returns the time at which a unit can take the next packet.
    pub(crate) fn unit_free(&self, unit: usize) -> Ps {
        self.units[unit].server.free()
    }

    /// Sends a request packet through its unit. Returns the time at which its last bit is on the line.
    pub(crate) fn send_request(
        &mut self,
        now: Ps,
        testbed: &Testbed,
        slot: usize,
        info: &TransmitInfo,
        bytes: usize,
    ) -> Ps {
        let nic = &testbed.nic;
        let is_fetched = info.payload_bytes > 0 && !info.inline;
        let mut service = match (info.first, is_fetched) {
            (true, true) => nic.unit_request,
            (true, false) => nic.unit_inline,
            (false, _) => nic.unit_packet,
        };
        let mut miss = Ps::ZERO;
        if self.contexts.misses(slot as u32, self.queue_pairs.len()) {
            miss = nic.context_miss;
            service += miss;
        }
        let unit = self.queue_pairs[slot].unit;
        let mut at = self.units[unit].server.serve(now, service) + miss;
        at = self.send.serve(at, nic.send_packet);
        if is_fetched {
            if info.first {
                at = self.gather.serve(at, nic.gather);
                at = self.queue_pairs[slot].may_fetch_payload(at, nic.payload_fetches);
            }
            at = self.bus.read(at, info.payload_bytes.into());
            if info.first {
                self.queue_pairs[slot].payloads.push_back(at);
            }
        }
        self.port.carry(at + nic.transmit, line_bytes(bytes))
    }

    /// Writes the completion of an unacknowledged message whose last packet left at `left`. Returns the time at which a
    /// polling CPU sees the completion.
    pub(crate) fn complete_departure(&mut self, left: Ps, testbed: &Testbed) -> Ps {
        self.bus.write(left, testbed.nic.completion)
    }

    /// Sends a response packet. Returns the time at which its last bit is on the line.
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

    /// Handles an arrived packet and sets [`Frame::answer_at`]. Returns the time at which the packet is handled. If the
    /// NIC writes data or a completion to memory, this is the time at which a polling CPU sees the write.
    pub(crate) fn receive(&mut self, arrived: Ps, testbed: &Testbed, frame: &mut Frame) -> Ps {
        let nic = &testbed.nic;
        let slot = dest_qpn(&frame.bytes).and_then(|qpn| self.slot(qpn));
        let opcode = frame.opcode;
        let operation = opcode.operation();
        let sends = matches!(operation, Some(PacketOperation::Send));
        let takes_receive = opcode.is_last() && opcode.is_request() && (sends || opcode.has_imm());
        // The NIC writes the GRH of a datagram to memory, with the payload. mlx5 puts payloads into completions only
        // for connected queue pairs.
        let is_datagram = opcode.transport() == Transport::Ud;
        let into_completion = sends && opcode.is_only() && !is_datagram && frame.payload <= nic.inline_receive;
        let written = frame.payload + if is_datagram { outer::GRH_LEN as u64 } else { 0 };
        let mut service = nic.receive_packet;
        if takes_receive {
            service += nic.consume_receive;
        }
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
        let begins = self.receive.serve(arrived, service) + miss;
        let accesses_memory = matches!(
            operation,
            Some(
                PacketOperation::Write
                    | PacketOperation::ReadRequest
                    | PacketOperation::CompareSwap
                    | PacketOperation::FetchAdd
            )
        );
        // Other queue pairs do not wait for a slow access, so no station is busy meanwhile.
        let mut delay = Ps::ZERO;
        if accesses_memory && let Some(slot) = slot {
            let readable = match operation {
                Some(PacketOperation::ReadRequest) => self.stores.readable_at(&read_addresses(&frame.bytes), arrived),
                _ => Ps::ZERO,
            };
            let qp = &mut self.queue_pairs[slot];
            qp.last_access = (begins + late(&testbed.pcie, arrived, qp.qpn)).max(qp.last_access).max(readable);
            delay = qp.last_access.since(begins);
        }
        let handled = match operation {
            Some(PacketOperation::Acknowledge | PacketOperation::AtomicAcknowledge) => begins + nic.receive_ack,
            Some(PacketOperation::CompareSwap | PacketOperation::FetchAdd) => {
                self.lock(testbed, slot, &frame.bytes).serve(begins + nic.receive, nic.atomic) + nic.atomic
            }
            _ => begins + nic.receive,
        };
        frame.answer_at = handled + delay;
        // Taking a receive delays the message, but not the response.
        let placed = if takes_receive { handled + nic.take_receive } else { handled };
        let mut seen = placed;
        if written > 0 && !into_completion {
            seen = self.bus.write(placed, written);
        }
        let completes = takes_receive || (opcode.is_response() && opcode.is_last());
        if completes {
            seen = seen.max(self.bus.write(placed, nic.completion));
        }
        seen += delay;
        if let Some(slot) = slot {
            let qp = &mut self.queue_pairs[slot];
            seen = seen.max(qp.last_delivery);
            qp.last_delivery = seen;
            qp.answers_before = seen.since(frame.answer_at);
        }
        seen
    }

    /// Returns the lock that an atomic operation takes.
    fn lock(&mut self, testbed: &Testbed, slot: Option<usize>, packet: &[u8]) -> &mut Server {
        match (testbed.nic.atomic_lock, slot) {
            (LockScope::QueuePair, Some(slot)) => &mut self.queue_pairs[slot].lock,
            (LockScope::Address, _) => {
                let header = packet.get(BTH_LEN..).and_then(<[u8]>::first_chunk::<ATOMIC_ETH_LEN>);
                let address = header.map_or(0, |header| AtomicEthRepr::read(header).virtual_address);
                // `MOST_WORDS` exceeds the number of operations in flight, so dropping the locks is safe.
                if self.words.len() >= MOST_WORDS && !self.words.contains_key(&address) {
                    self.words.clear();
                }
                self.words.entry(address).or_default()
            }
            _ => &mut self.atomics,
        }
    }

    /// Returns the busy times of the stations.
    pub(crate) fn times(&self) -> NodeTimes {
        let (fetch, write) = self.bus.busy();
        NodeTimes {
            port: self.port.busy(),
            send: self.send.busy(),
            gather: self.gather.busy(),
            receive: self.receive.busy(),
            unit: self.units.iter().map(|unit| unit.server.busy()).max().unwrap_or_default(),
            fetch,
            write,
        }
    }
}

/// Returns the addresses that a READ request asks for.
fn read_addresses(packet: &[u8]) -> std::ops::Range<u64> {
    let header = packet.get(BTH_LEN..).and_then(<[u8]>::first_chunk::<RETH_LEN>);
    header.map_or(0..0, |header| {
        let RethRepr { virtual_address, dma_length, .. } = RethRepr::read(header);
        virtual_address..virtual_address.saturating_add(dma_length.into())
    })
}

/// Returns the destination queue pair of a packet.
pub(crate) fn dest_qpn(packet: &[u8]) -> Option<Qpn> {
    packet.first_chunk().map(|header| doorbell_wire::BthRepr::read(header).dest_qpn)
}

/// Returns the UDP source port of all packets between two queue pairs, as Linux computes it (`rdma_calc_flow_label`
/// and `rdma_flow_label_to_udp_sport`). Switches identify flows by this port.
pub(crate) fn source_port(own: Qpn, peer: Qpn) -> u16 {
    let product = u64::from(own.get()) * u64::from(peer.get());
    let label = (product ^ (product >> 20) ^ (product >> 40)) & 0xf_ffff;
    ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) as u16 | 0xc000
}

/// Returns the seed of a node: the seed of the run, mixed with the node's index.
fn seed_of(index: usize, mut seed: [u8; 32]) -> [u8; 32] {
    for (place, byte) in seed.iter_mut().zip((index as u64 + 1).to_le_bytes()) {
        *place ^= byte;
    }
    seed
}
