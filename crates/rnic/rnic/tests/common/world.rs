//! RNICs on one virtual clock, and the link between them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use doorbell_rnic::{
    Budget, CompletionQueue, Config, Filter, MAX_RUN_BYTES, MAX_RUN_PACKETS, Region, Rnic, TransmitBatch, TransmitInfo,
};
use doorbell_verbs_core::{Access, Completion, CqId, PdId, Sge};
use doorbell_wire::{
    AethPacket, BTH_LEN, BthPacket, ICRC_LEN, NakCode, Opcode, Outer, PathMtu, Psn, Qpn, SyndromeKind,
};

use super::tally::{Hit, Tally};
use super::trace::trace;
use super::{Block, Rng};

/// Size of the default socket receive buffer of Linux.
pub const DEFAULT_BUFFER_BYTES: u64 = 212_992;

/// Bytes that the kernel charges for a datagram in addition to its contents.
pub const DATAGRAM_COST_BYTES: u64 = 832;

/// Faults and delays of the link. Rates are per mille of packets, times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Link {
    pub latency_ns: u64,
    /// Random additional delay, which reorders packets.
    pub jitter_ns: u64,
    pub loss: u64,
    pub duplicate: u64,
    /// Rate of packets that arrive `delay_ns` later.
    pub delay: u64,
    pub delay_ns: u64,
    /// Rate of packets with flipped bytes. The packets have no ICRC, so the receiver processes them.
    pub flip: u64,
    /// Maximum time that packets wait in the receive buffer.
    pub service_ns: u64,
    pub buffer_bytes: u64,
    /// Rate of batches after which the link accepts no packets for some time.
    pub full: u64,
    /// Maximum time for which the link then accepts no packets.
    pub full_ns: u64,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            latency_ns: 2_000,
            jitter_ns: 0,
            loss: 0,
            duplicate: 0,
            delay: 0,
            delay_ns: 0,
            flip: 0,
            service_ns: 0,
            buffer_bytes: DEFAULT_BUFFER_BYTES,
            full: 0,
            full_ns: 0,
        }
    }
}

/// Release of due acknowledgements before their hold time ends: always, never or at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    Released,
    Held,
    AtRandom,
}

/// A packet in flight, or a packet in the log.
#[derive(Clone, Debug)]
pub struct Sent {
    pub at_ns: u64,
    pub from: usize,
    pub to: usize,
    pub info: TransmitInfo,
    pub bytes: Vec<u8>,
}

impl Sent {
    pub fn bth(&self) -> BthPacket<&[u8]> {
        BthPacket::new_checked(&self.bytes[..]).expect("an RNIC sends whole packets")
    }

    pub fn opcode(&self) -> Opcode {
        self.bth().opcode()
    }

    pub fn psn(&self) -> Psn {
        self.bth().psn()
    }
}

pub struct Node {
    pub rnic: Rnic,
    pub address: IpAddr,
    pub pd: PdId,
    pub memory: Block,
    pub region: Arc<Region>,
    pub cq: CqId,
    pub queue: Arc<CompletionQueue>,
    pub alive: bool,
    /// Time until which the link of the node accepts no packets.
    full_until_ns: u64,
    received: VecDeque<(usize, Vec<u8>)>,
    received_cost: u64,
    service_due: bool,
}

impl Node {
    fn new(index: usize, memory: Block, cq_depth: usize, receive_buffer_bytes: u64, seed: [u8; 32]) -> Self {
        let config = Config { address: address_of(index), active_mtu: PathMtu::Mtu4096, receive_buffer_bytes, seed };
        let mut rnic = Rnic::new(config, None);
        let pd = rnic.create_pd();
        // SAFETY: the block lives as long as the node, and no reference to it is made.
        let region = unsafe { rnic.register(pd, memory.base(), memory.len(), memory.address(), full_access(), None) }
            .expect("a new device has room for a region");
        let (cq, queue) = rnic.create_cq(cq_depth, None).expect("a new device has room for a queue");
        Self {
            rnic,
            address: config.address,
            pd,
            memory,
            region,
            cq,
            queue,
            alive: true,
            full_until_ns: 0,
            received: VecDeque::new(),
            received_cost: 0,
            service_due: false,
        }
    }

    /// Kills the device and creates another device with the same address. Only the memory and the packets in the
    /// network remain.
    pub fn restart(&mut self, seed: [u8; 32]) {
        let index = match self.address {
            IpAddr::V4(address) => usize::from(address.octets()[3]) - 1,
            IpAddr::V6(_) => unreachable!("the world's addresses are IPv4"),
        };
        let (depth, buffer_bytes) = (self.queue.depth(), self.rnic.config().receive_buffer_bytes);
        let memory = std::mem::replace(&mut self.memory, Block::new(1));
        // The packets in the receive buffer remain: they belong to the address, not to the device that is replaced.
        let received = std::mem::take(&mut self.received);
        let (cost, due) = (self.received_cost, self.service_due);
        *self = Self::new(index, memory, depth, buffer_bytes, seed);
        (self.received, self.received_cost, self.service_due) = (received, cost, due);
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        assert!(offset + length <= self.memory.len(), "the element must lie inside the memory of the node");
        Sge { address: self.memory.address() + offset as u64, length: length as u32, lkey: self.region.lkey() }
    }

    pub fn reap(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 64];
        let mut all = Vec::new();
        loop {
            let count = self.queue.poll(&mut out).expect("the queue is deep enough");
            if count == 0 {
                return all;
            }
            all.extend_from_slice(&out[..count]);
        }
    }
}

/// Function that decides for each packet whether it arrives.
pub type Gate = Box<dyn FnMut(&Sent) -> bool>;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrive {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    Serve(usize),
    /// The link accepts packets again.
    Drained,
}

/// A response that did not arrive in order.
#[derive(Debug, Clone, Copy)]
pub struct LostResponse {
    pub psn: Psn,
    pub opcode: Opcode,
    /// Whether the response is a NAK after which the responder answers no more requests.
    pub is_last: bool,
}

impl LostResponse {
    fn of(bth: &BthPacket<&[u8]>, bytes: &[u8]) -> Self {
        let opcode = bth.opcode();
        let syndrome = bytes.get(BTH_LEN..).filter(|_| opcode.has_aeth()).and_then(|aeth| {
            let aeth = AethPacket::new_checked(aeth).ok()?;
            Some(aeth.syndrome().kind())
        });
        let is_last = matches!(syndrome, Some(SyndromeKind::Nak(code)) if code != NakCode::PSN_SEQUENCE_ERROR);
        Self { psn: bth.psn(), opcode, is_last }
    }
}

/// Records of packets for the check that a send succeeds if its receive has completed.
#[derive(Default)]
pub struct Watch {
    /// Lowest sequence number that was sent of each work request.
    pub first_psns: HashMap<u64, Psn>,
    /// Highest sequence number that was sent of each work request.
    pub last_psns: HashMap<u64, Psn>,
    /// Responses that the network lost, or that overtook other responses, by node and queue pair of their destination.
    pub lost_responses: HashMap<(usize, Qpn), Vec<LostResponse>>,
    /// Requests that the network lost or that other requests overtook. A copy of such a request may still arrive.
    pub late_requests: HashMap<(usize, Qpn), Vec<Psn>>,
    /// Number of times that each packet of a work request was sent, including copies that the network made.
    pub tries: HashMap<(u64, Psn), u32>,
    /// Responses that the network copied.
    pub copied_responses: HashMap<(usize, Qpn), Vec<Psn>>,
}

/// Returns every access that a region can grant.
pub fn full_access() -> Access {
    Access::all()
}

pub struct World {
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    pub link: Link,
    pub acks: Acks,
    pub budget: Budget,
    pub rng: Rng,
    /// All packets that were sent, if `recording`.
    pub log: Vec<Sent>,
    pub recording: bool,
    /// Function that the world calls for each packet, to decide whether the packet arrives.
    pub gate: Option<Gate>,
    pub tally: Tally,
    pub watch: Option<Watch>,
    /// Latest arrival time of a packet, by the indices of the sending and the receiving node.
    latest_ns: HashMap<(usize, usize), u64>,
    agenda: BinaryHeap<Reverse<(u64, u64, What)>>,
    order: u64,
    batch: TransmitBatch,
}

pub fn address_of(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + index as u8).into()
}

impl World {
    pub fn new(seed: u64, nodes: usize, memory_bytes: usize, cq_depth: usize, link: Link) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = (0..nodes)
            .map(|index| Node::new(index, Block::new(memory_bytes), cq_depth, link.buffer_bytes, rng.bytes32()))
            .collect();
        Self {
            now_ns: 1,
            nodes,
            link,
            acks: Acks::Released,
            budget: Budget::UNLIMITED,
            rng,
            log: Vec::new(),
            recording: false,
            gate: None,
            tally: Tally::default(),
            watch: None,
            latest_ns: HashMap::new(),
            agenda: BinaryHeap::new(),
            order: 0,
            batch: TransmitBatch::new(1 << 16, ICRC_LEN),
        }
    }

    pub fn outer(&self, from: usize, to: usize) -> Outer {
        Outer {
            src: self.nodes[from].address,
            dst: self.nodes[to].address,
            traffic_class: 0,
            hop_limit: 64,
            identification: Some(0),
            dont_fragment: Some(true),
        }
    }

    fn schedule(&mut self, at_ns: u64, what: What) {
        self.order += 1;
        self.agenda.push(Reverse((at_ns, self.order, what)));
    }

    /// Lets all nodes send their packets.
    pub fn transmit(&mut self) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].alive && self.nodes[index].full_until_ns <= self.now_ns {
                self.transmit_from(index);
            }
        }
    }

    /// Makes the link of the node accept no packets for `for_ns`.
    pub fn fill_link(&mut self, index: usize, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        let node = &mut self.nodes[index];
        node.full_until_ns = node.full_until_ns.max(until_ns);
        self.tally.hit(Hit::LinkFull);
        trace(|| format!("{:>10} node {index}: its link is full for {for_ns} ns", self.now_ns));
        self.schedule(until_ns, What::Drained);
    }

    fn transmit_from(&mut self, index: usize) {
        let release = match self.acks {
            Acks::Released => true,
            Acks::Held => false,
            Acks::AtRandom => self.rng.chance(500),
        };
        if release {
            self.nodes[index].rnic.release_acks();
        }
        let mut rounds = 0;
        loop {
            let mut batch = std::mem::replace(&mut self.batch, TransmitBatch::new(0, 0));
            batch.clear();
            let added = self.nodes[index].rnic.poll_transmit(self.now_ns, self.budget, Filter::All, &mut batch);
            assert_eq!(added, batch.infos().len(), "poll_transmit returned another number of packets than it added");
            assert!(added <= self.budget.packets, "the budget of {} packets was exceeded", self.budget.packets);
            self.carry(index, &batch);
            self.batch = batch;
            if added == 0 {
                self.nodes[index].rnic.transmitted();
                return;
            }
            if self.link.full > 0 && self.rng.chance(self.link.full) {
                let full_ns = self.rng.within(1, self.link.full_ns.max(1));
                return self.fill_link(index, full_ns);
            }
            rounds += 1;
            assert!(rounds < 100_000, "a node does not stop sending");
        }
    }

    fn carry(&mut self, from: usize, batch: &TransmitBatch) {
        let mut count = 0;
        for run in batch.runs() {
            assert!(
                run.packets <= MAX_RUN_PACKETS && run.total_bytes <= MAX_RUN_BYTES,
                "a run exceeds one segmented send"
            );
            assert_eq!(run.first_packet, count, "a run does not begin where the run before ended");
            assert_eq!(run.segments().count(), run.packets, "a run has another number of segments than packets");
            let to = self.nodes.iter().position(|node| node.address == run.path.destination);
            for (segment, info) in run.segments().zip(&batch.infos()[run.first_packet..]) {
                let bytes = batch.bytes()[segment.start..segment.end - ICRC_LEN].to_vec();
                count += 1;
                let Some(to) = to else { continue };
                let sent = Sent { at_ns: self.now_ns, from, to, info: *info, bytes };
                assert_eq!(sent.opcode(), info.opcode, "the properties of the packet have another opcode");
                assert_eq!(sent.bytes.len() % 4, 0, "a packet is not padded");
                trace(|| {
                    let (psn, dest) = (sent.psn().get(), sent.bth().dest_qpn().get());
                    let wr = info.work_request.map_or(String::new(), |wr| format!(" of work request {wr}"));
                    let (at, opcode) = (self.now_ns, info.opcode);
                    format!("{at:>10} node {from} -> {to}: {opcode:?} psn {psn:#x} to QP {dest:#x}{wr}")
                });
                if let (Some(watch), Some(wr_id)) = (&mut self.watch, info.work_request) {
                    *watch.tries.entry((wr_id, sent.psn())).or_default() += 1;
                    if info.first {
                        watch.first_psns.insert(wr_id, sent.psn());
                    }
                    if info.last {
                        watch.last_psns.insert(wr_id, sent.psn());
                    }
                }
                let is_piece = info.opcode == Opcode::RC_READ_REQUEST && !(info.first && info.last);
                self.tally.add(Hit::ReadPiece, is_piece.into());
                let arrives = self.gate.as_mut().is_none_or(|gate| gate(&sent));
                if self.recording {
                    self.log.push(sent.clone());
                }
                if arrives {
                    self.travel(sent);
                }
            }
        }
        assert_eq!(count, batch.infos().len(), "a packet belongs to no run");
    }

    fn travel(&mut self, sent: Sent) {
        let link = self.link.clone();
        if self.rng.chance(link.loss) {
            self.tally.hit(Hit::Lost);
            return self.note_lost(sent.to, &sent.bytes);
        }
        let copies = if self.rng.chance(link.duplicate) { 2 } else { 1 };
        self.tally.add(Hit::Duplicated, copies - 1);
        if copies > 1 {
            self.note_copied(&sent);
        }
        for _ in 0..copies {
            let mut bytes = sent.bytes.clone();
            if self.rng.chance(link.flip) {
                let at = self.rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.rng.below(8);
            }
            let mut at_ns = self.now_ns + link.latency_ns + self.rng.below(link.jitter_ns + 1);
            if self.rng.chance(link.delay) {
                self.tally.hit(Hit::Delayed);
                at_ns += self.rng.below(link.delay_ns + 1);
            }
            let latest_ns = self.latest_ns.entry((sent.from, sent.to)).or_default();
            let overtakes = at_ns < *latest_ns;
            *latest_ns = at_ns.max(*latest_ns);
            if overtakes {
                self.tally.hit(Hit::Reordered);
                // The requester ignores a READ response that arrives before an earlier response. Record such a response
                // as lost.
                self.note_lost(sent.to, &sent.bytes);
            }
            self.schedule(at_ns, What::Arrive { from: sent.from, to: sent.to, bytes });
        }
    }

    fn note_copied(&mut self, sent: &Sent) {
        let Some(watch) = &mut self.watch else { return };
        let bth = sent.bth();
        if let Some(wr_id) = sent.info.work_request {
            *watch.tries.entry((wr_id, bth.psn())).or_default() += 1;
        } else {
            watch.copied_responses.entry((sent.to, bth.dest_qpn())).or_default().push(bth.psn());
        }
    }

    fn note_lost(&mut self, to: usize, bytes: &[u8]) {
        let Ok(bth) = BthPacket::new_checked(bytes) else { return };
        let (at, psn) = (self.now_ns, bth.psn().get());
        trace(|| format!("{at:>10} lost, or out of order, on its way to node {to}: psn {psn:#x}"));
        if let Some(watch) = &mut self.watch {
            let at = (to, bth.dest_qpn());
            match bth.opcode().is_response() {
                true => watch.lost_responses.entry(at).or_default().push(LostResponse::of(&bth, bytes)),
                false => watch.late_requests.entry(at).or_default().push(bth.psn()),
            }
        }
    }

    /// Sends a packet over the link, which delivers the packet at once.
    pub fn inject(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let outer = self.outer(from, to);
        self.nodes[to].rnic.handle_packet(self.now_ns, &outer, bytes);
    }

    fn arrive(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let cost = DATAGRAM_COST_BYTES + bytes.len() as u64;
        let service_ns = self.rng.below(self.link.service_ns + 1);
        let limit = self.link.buffer_bytes;
        let node = &mut self.nodes[to];
        if node.received_cost + cost > limit {
            self.tally.hit(Hit::Overflow);
            return self.note_lost(to, &bytes);
        }
        node.received_cost += cost;
        node.received.push_back((from, bytes));
        if !node.service_due {
            node.service_due = true;
            self.schedule(self.now_ns + service_ns, What::Serve(to));
        }
    }

    fn serve(&mut self, index: usize) {
        let received = std::mem::take(&mut self.nodes[index].received);
        self.nodes[index].received_cost = 0;
        self.nodes[index].service_due = false;
        if !self.nodes[index].alive {
            return;
        }
        let mut at = 0;
        while at < received.len() {
            let from = received[at].0;
            let upto = (at..received.len()).find(|&other| received[other].0 != from).unwrap_or(received.len());
            let outer = self.outer(from, index);
            let packets = received.range(at..upto).map(|(_, bytes)| &bytes[..]);
            self.nodes[index].rnic.handle_packets(self.now_ns, &outer, packets);
            at = upto;
        }
    }

    /// Returns the time of the next event.
    pub fn next_event_ns(&self) -> Option<u64> {
        let timeouts = self.nodes.iter().filter(|node| node.alive).filter_map(|node| node.rnic.poll_timeout());
        timeouts.chain(self.agenda.peek().map(|Reverse((at_ns, ..))| *at_ns)).min()
    }

    /// Sends all waiting packets and advances the clock to the next event. Returns false if there is no event.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let Some(next_ns) = self.next_event_ns() else { return false };
        self.now_ns = self.now_ns.max(next_ns);
        while let Some(Reverse((at_ns, ..))) = self.agenda.peek()
            && *at_ns <= self.now_ns
        {
            let Some(Reverse((.., what))) = self.agenda.pop() else { break };
            match what {
                What::Arrive { from, to, bytes } => self.arrive(from, to, bytes),
                What::Serve(index) => self.serve(index),
                What::Drained => {}
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.alive) {
            if node.rnic.poll_timeout().is_some_and(|at_ns| at_ns <= self.now_ns) {
                node.rnic.handle_timeout(self.now_ns);
            }
        }
        true
    }

    /// Runs until no events remain.
    pub fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 1_000_000, "the world does not come to rest");
        }
    }

    /// Runs until exactly `until_ns`.
    pub fn run_until(&mut self, until_ns: u64) {
        loop {
            self.transmit();
            if self.next_event_ns().is_none_or(|at_ns| at_ns > until_ns) {
                break;
            }
            self.step();
        }
        self.now_ns = until_ns;
    }

    /// Asserts that the world is at rest: no packets in flight, no timers, and no packets to send.
    pub fn assert_at_rest(&self) {
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            assert_eq!(node.rnic.in_flight_packets(), 0, "node {index} has packets in flight");
            assert_eq!(node.rnic.poll_timeout(), None, "node {index} has a timer");
            assert!(!node.rnic.wants_transmit(), "node {index} has packets to send");
        }
    }

    /// Returns the recorded packets of one direction.
    pub fn sent(&self, from: usize, to: usize) -> impl Iterator<Item = &Sent> {
        self.log.iter().filter(move |sent| sent.from == from && sent.to == to)
    }

    pub fn state_of(&self, node: usize, qpn: Qpn) -> doorbell_verbs_core::QpState {
        self.nodes[node].rnic.query_qp(qpn).expect("the queue pair exists").state
    }
}
