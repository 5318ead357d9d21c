//! Random work over RC between the RNICs of a world, beside a model of what it must do.
//!
//! Every SEND has bytes of its own, WRITEs overlap in an area that the model writes in the same
//! order, READs fetch bytes that nobody changes (or a snapshot that a fence protects), atomics
//! count. So a message that is lost, repeated, reordered or torn shows.

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell_rnic::{
    Attachment, Budget, Completion, CompletionOpcode, Payload, QpCapacities, QpKind, QpState, RecvRequest, Region,
    SendFlags, SendOperation, SendRequest, Sge, SrqId, Status,
};
use doorbell_wire::{PathMtu, Psn, Qpn};

use super::{Acks, End, Link, Rng, World};

const MEMORY_BYTES: usize = 8 << 20;
const AREA_BYTES: usize = 8 << 10;
const CQ_DEPTH: usize = 1 << 14;

/// What one seed runs.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    pub connections: usize,
    pub messages: usize,
    pub link: Link,
    pub acks: Acks,
    pub timeout: u8,
    pub retry_count: u8,
}

/// The message with this number: no two look alike.
pub fn pattern(tag: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(tag);
    let mut bytes = vec![0; length];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&rng.next().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[derive(Clone, Debug)]
enum Check {
    Nothing,
    /// The READ brought these bytes.
    Read {
        offset: usize,
        expected: Vec<u8>,
    },
    CompareSwap {
        offset: usize,
        old: u64,
    },
    FetchAdd {
        offset: usize,
    },
}

struct Posted {
    wr_id: u64,
    signaled: bool,
    opcode: CompletionOpcode,
    length: usize,
    check: Check,
}

/// What the peer's next receive completion must show.
struct Expected {
    tag: u64,
    length: usize,
    immediate_write: bool,
    attachment: Attachment,
    solicited: bool,
}

pub struct Side {
    pub node: usize,
    pub qpn: Qpn,
    pub peer_node: usize,
    peer: usize,
    end: End,
    mtu: usize,
    next: u64,
    pub to_post: usize,
    posted: VecDeque<Posted>,
    expected: VecDeque<Expected>,
    /// Receives of its own queue that are posted, in order: number and offset.
    receives: VecDeque<(u64, usize)>,
    slots: Vec<usize>,
    write_area: usize,
    write_model: Vec<u8>,
    source_area: usize,
    cas_offset: usize,
    cas_value: u64,
    last_count: Option<u64>,
    fence_next: bool,
    pub failed: bool,
}

struct SharedReceives {
    srq: SrqId,
    slots: Vec<usize>,
    posted: usize,
}

pub struct Workload {
    pub world: World,
    pub sides: Vec<Side>,
    shared: Vec<Option<SharedReceives>>,
    used: Vec<usize>,
    counters: Vec<usize>,
    counts: Vec<Vec<u64>>,
    /// Keeps regions that SENDs invalidate.
    regions: Vec<Arc<Region>>,
    slot_bytes: usize,
    rng: Rng,
}

fn take(used: &mut usize, bytes: usize) -> usize {
    let at = used.next_multiple_of(8);
    *used = at + bytes;
    assert!(*used <= MEMORY_BYTES, "the workload fits its memory");
    at
}

impl Workload {
    pub fn new(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ 0x776f_726b);
        let mut world = World::new(seed, options.nodes, MEMORY_BYTES, CQ_DEPTH, options.link.clone());
        world.acks = options.acks;
        if rng.chance(300) {
            let packets = rng.within(1, 40) as usize;
            world.budget = Budget { packets, bytes: rng.within(4200, 60_000) as usize };
        }
        let mtu = *rng.pick(&PathMtu::ALL);
        let slot_bytes = if rng.chance(200) { 64 } else { 4 * mtu.bytes() };
        let mut used = vec![0; options.nodes];
        let counters: Vec<usize> = used.iter_mut().map(|used| take(used, 8)).collect();
        let mut shared = Vec::new();
        for (node, used) in used.iter_mut().enumerate() {
            shared.push(rng.chance(300).then(|| {
                let depth = rng.within(1, 8) as usize;
                let pd = world.nodes[node].pd;
                let (srq, _) = world.nodes[node].rnic.create_srq(pd, depth, 3).expect("room for a queue");
                let slots = (0..depth).map(|_| take(used, slot_bytes)).collect();
                SharedReceives { srq, slots, posted: 0 }
            }));
        }
        let mut workload = Self {
            world,
            sides: Vec::new(),
            shared,
            counts: vec![Vec::new(); options.nodes],
            used,
            counters,
            regions: Vec::new(),
            slot_bytes,
            rng,
        };
        for _ in 0..options.connections {
            workload.add_connection(options, mtu);
        }
        workload
    }

    fn random_end(&mut self, node: usize, options: &Options, window: u8) -> End {
        let rng = &mut self.rng;
        let depth = |rng: &mut Rng| if rng.chance(300) { 1 } else { rng.within(1, 20) as usize };
        End {
            capacities: QpCapacities {
                max_send_wr: depth(rng),
                max_recv_wr: depth(rng),
                max_send_sge: 3,
                max_recv_sge: 3,
                max_inline: 100,
            },
            srq: self.shared[node].as_ref().filter(|_| rng.chance(600)).map(|shared| shared.srq),
            signal_all: rng.chance(200),
            timeout: options.timeout,
            retry_count: options.retry_count,
            max_rd_atomic: window,
            max_dest_rd_atomic: window,
            send_psn: Psn::new(if rng.chance(500) { rng.next() as u32 } else { Psn::MASK - rng.below(10) as u32 }),
            min_rnr_timer: rng.within(1, 6) as u8,
            ..End::default()
        }
    }

    fn add_connection(&mut self, options: &Options, mtu: PathMtu) {
        let a = self.rng.below(options.nodes as u64) as usize;
        // Now and then a device talks to itself.
        let distance = if self.rng.chance(100) { 0 } else { self.rng.within(1, options.nodes as u64 - 1) as usize };
        let b = (a + distance) % options.nodes;
        let window = self.rng.within(1, 16) as u8;
        let (end_a, end_b) = (self.random_end(a, options, window), self.random_end(b, options, window));
        let (qpn_a, qpn_b) = self.world.connect(QpKind::Rc, mtu, (a, &end_a), (b, &end_b));
        let first = self.sides.len();
        for (node, qpn, end, peer_node, peer) in [(a, qpn_a, end_a, b, first + 1), (b, qpn_b, end_b, a, first)] {
            let used = &mut self.used;
            let slots = match end.srq {
                Some(_) => Vec::new(),
                None => (0..end.capacities.max_recv_wr).map(|_| take(&mut used[node], self.slot_bytes)).collect(),
            };
            let source_area = take(&mut used[peer_node], AREA_BYTES);
            self.world.nodes[peer_node].memory.write(source_area, &pattern(qpn.get().into(), AREA_BYTES));
            let to_post = self.rng.below(options.messages as u64 + 1) as usize;
            self.sides.push(Side {
                node,
                qpn,
                peer_node,
                peer,
                end,
                mtu: mtu.bytes(),
                next: 0,
                to_post,
                posted: VecDeque::new(),
                expected: VecDeque::new(),
                receives: VecDeque::new(),
                slots,
                write_area: take(&mut used[peer_node], AREA_BYTES),
                write_model: vec![0; AREA_BYTES],
                source_area,
                cas_offset: take(&mut used[peer_node], 8),
                cas_value: 0,
                last_count: None,
                fence_next: false,
                failed: false,
            });
        }
    }

    /// A length that makes something of packet boundaries.
    fn length(&mut self, mtu: usize, most: usize) -> usize {
        let rng = &mut self.rng;
        let length = match rng.below(6) {
            0 => 0,
            1 => rng.within(1, 8) as usize,
            2 => mtu * rng.within(1, 3) as usize,
            3 => mtu * rng.within(1, 3) as usize + 1,
            _ => rng.below(4 * mtu as u64) as usize,
        };
        length.min(most)
    }

    /// The same bytes as one to three elements.
    fn elements(&mut self, node: usize, offset: usize, length: usize) -> Vec<Sge> {
        let mut cuts =
            [0, self.rng.below(length as u64 + 1) as usize, self.rng.below(length as u64 + 1) as usize, length];
        cuts.sort_unstable();
        let count = self.rng.within(1, 3) as usize;
        let node = &self.world.nodes[node];
        match count {
            1 => vec![node.sge(offset, length)],
            2 => vec![node.sge(offset, cuts[1]), node.sge(offset + cuts[1], length - cuts[1])],
            _ => cuts.windows(2).map(|w| node.sge(offset + w[0], w[1] - w[0])).collect(),
        }
    }

    fn post_one(&mut self, index: usize) {
        let (node, peer_node, qpn, mtu) = {
            let side = &self.sides[index];
            (side.node, side.peer_node, side.qpn, side.mtu)
        };
        let wr_id = self.sides[index].next;
        let tag = u64::from(qpn.get()) << 32 | wr_id;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.rng.chance(500));
        flags.set(SendFlags::SOLICITED, self.rng.chance(200));
        flags.set(SendFlags::FENCE, self.rng.chance(100) || self.sides[index].fence_next);
        self.sides[index].fence_next = false;
        let solicited = flags.contains(SendFlags::SOLICITED);
        let rkey = self.world.nodes[peer_node].region.rkey();
        let peer_base = self.world.nodes[peer_node].memory.address();
        let immediate = self.rng.next() as u32;
        let choice = self.rng.below(9);
        let most = if choice <= 2 { self.slot_bytes } else { AREA_BYTES };
        let length = self.length(mtu, most);
        let mut check = Check::Nothing;
        let mut expected = None;
        let (operation, opcode, length) = match choice {
            0..=2 => {
                let (operation, attachment) = match choice {
                    0 => (SendOperation::Send, Attachment::None),
                    1 => (SendOperation::SendImmediate(immediate), Attachment::Immediate(immediate)),
                    _ => {
                        let key = self.disposable_key(peer_node);
                        (SendOperation::SendInvalidate(key), Attachment::Invalidated(key))
                    }
                };
                expected = Some(Expected { tag, length, immediate_write: false, attachment, solicited });
                (operation, CompletionOpcode::Send, length)
            }
            3 | 4 => {
                let side = &mut self.sides[index];
                let at = self.rng.below((AREA_BYTES - length) as u64 + 1) as usize;
                side.write_model[at..at + length].copy_from_slice(&pattern(tag, length));
                let remote_address = peer_base + (side.write_area + at) as u64;
                let operation = if choice == 3 {
                    SendOperation::Write { remote_address, rkey }
                } else {
                    let attachment = Attachment::Immediate(immediate);
                    expected = Some(Expected { tag, length, immediate_write: true, attachment, solicited });
                    SendOperation::WriteImmediate { remote_address, rkey, immediate }
                };
                (operation, CompletionOpcode::Write, length)
            }
            5 | 6 => {
                let offset = take(&mut self.used[node], length);
                let side = &mut self.sides[index];
                let at = self.rng.below((AREA_BYTES - length) as u64 + 1) as usize;
                let (from, bytes) = if choice == 5 {
                    (side.source_area + at, pattern(qpn.get().into(), AREA_BYTES)[at..at + length].to_vec())
                } else {
                    side.fence_next = true;
                    (side.write_area + at, side.write_model[at..at + length].to_vec())
                };
                check = Check::Read { offset, expected: bytes };
                let remote_address = peer_base + from as u64;
                (SendOperation::Read { remote_address, rkey }, CompletionOpcode::Read, length)
            }
            7 => {
                let offset = take(&mut self.used[node], 8);
                let side = &mut self.sides[index];
                let compare = side.cas_value;
                side.cas_value += 1;
                check = Check::CompareSwap { offset, old: compare };
                let remote_address = peer_base + side.cas_offset as u64;
                let operation = SendOperation::CompareSwap { remote_address, rkey, compare, swap: compare + 1 };
                (operation, CompletionOpcode::CompareSwap, 8)
            }
            _ => {
                let offset = take(&mut self.used[node], 8);
                check = Check::FetchAdd { offset };
                let remote_address = peer_base + self.counters[peer_node] as u64;
                (SendOperation::FetchAdd { remote_address, rkey, add: 1 }, CompletionOpcode::FetchAdd, 8)
            }
        };
        let bytes = pattern(tag, length);
        let elements = match check {
            Check::Read { offset, .. } => self.elements(node, offset, length),
            Check::CompareSwap { offset, .. } | Check::FetchAdd { offset } => self.elements(node, offset, 8),
            Check::Nothing => {
                let offset = take(&mut self.used[node], length);
                self.world.nodes[node].memory.write(offset, &bytes);
                self.elements(node, offset, length)
            }
        };
        let inline = matches!(check, Check::Nothing) && length <= 100 && self.rng.chance(500);
        let payload = if inline { Payload::Inline(&bytes) } else { Payload::Sges(&elements) };
        let request = SendRequest { wr_id, operation, flags, payload, destination: None };
        let now_ns = self.world.now_ns;
        self.world.nodes[node].rnic.post_send(now_ns, qpn, &[request]).expect("there is room in the queue");
        let side = &mut self.sides[index];
        side.next += 1;
        side.to_post -= 1;
        let signaled = side.end.signal_all || flags.contains(SendFlags::SIGNALED);
        side.posted.push_back(Posted { wr_id, signaled, opcode, length, check });
        let peer = side.peer;
        if let Some(expected) = expected {
            self.sides[peer].expected.push_back(expected);
        }
    }

    fn disposable_key(&mut self, node: usize) -> doorbell_wire::RKey {
        let node = &mut self.world.nodes[node];
        let (base, address) = (node.memory.base(), node.memory.address());
        // SAFETY: the block lives as long as the node's RNIC.
        let region =
            unsafe { node.rnic.register(node.pd, base, 64, address, doorbell_rnic::Access::REMOTE_READ, None) }
                .expect("room for a region");
        let key = region.rkey();
        self.regions.push(region);
        key
    }

    fn outstanding(&self, side: &Side) -> usize {
        self.world.nodes[side.node].rnic.query_qp(side.qpn).expect("the queue pair exists").outstanding_sends
    }

    /// The programs do something, at random; if `eager`, all that they can.
    pub fn act(&mut self, eager: bool) {
        for node in 0..self.world.nodes.len() {
            if self.world.nodes[node].alive && (eager || self.rng.chance(700)) {
                for completion in self.world.nodes[node].reap() {
                    self.completed(node, &completion);
                }
            }
        }
        for index in 0..self.sides.len() {
            let side = &self.sides[index];
            if !self.world.nodes[side.node].alive {
                continue;
            }
            if side.to_post > 0 && !side.failed && (eager || self.rng.chance(300)) {
                let side = &self.sides[index];
                let room = side.end.capacities.max_send_wr - self.outstanding(side);
                let count = room.min(side.to_post).min(self.rng.within(1, 8) as usize);
                for _ in 0..count {
                    self.post_one(index);
                }
            }
            if !self.sides[index].failed && (eager || self.rng.chance(300)) {
                self.post_receives(index);
            }
        }
        for node in 0..self.world.nodes.len() {
            if self.world.nodes[node].alive && (eager || self.rng.chance(300)) {
                self.post_shared_receives(node);
            }
        }
    }

    fn post_receives(&mut self, index: usize) {
        let count = self.rng.below(self.sides[index].slots.len() as u64 + 1) as usize;
        for _ in 0..count {
            let Some(offset) = self.sides[index].slots.pop() else { return };
            let sges = self.elements(self.sides[index].node, offset, self.slot_bytes);
            let side = &mut self.sides[index];
            let wr_id = offset as u64;
            let rnic = &mut self.world.nodes[side.node].rnic;
            rnic.post_recv(side.qpn, &[RecvRequest { wr_id, sges: &sges }]).expect("there is room in the queue");
            side.receives.push_back((wr_id, offset));
        }
    }

    fn post_shared_receives(&mut self, node: usize) {
        let free = self.shared[node].as_ref().map_or(0, |shared| shared.slots.len());
        for _ in 0..self.rng.below(free as u64 + 1) {
            let Some(offset) = self.shared[node].as_mut().and_then(|shared| shared.slots.pop()) else { return };
            let sges = self.elements(node, offset, self.slot_bytes);
            let shared = self.shared[node].as_mut().expect("looked at above");
            let request = RecvRequest { wr_id: offset as u64, sges: &sges };
            let rnic = &mut self.world.nodes[node].rnic;
            rnic.post_srq_recv(shared.srq, &[request]).expect("there is room in the queue");
            shared.posted += 1;
        }
    }

    fn completed(&mut self, node: usize, completion: &Completion) {
        let index = self
            .sides
            .iter()
            .position(|side| side.node == node && side.qpn == completion.qpn)
            .expect("completions name a queue pair of the device");
        if completion.status != Status::Success {
            let peer_lives = self.world.nodes[self.sides[index].peer_node].alive;
            assert!(!peer_lives, "side {index} failed though its peer lives: {completion:?}");
            return self.failed(index, completion);
        }
        match completion.opcode {
            CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImmediate => self.received(index, completion),
            _ => self.sent(index, completion),
        }
    }

    /// A program cannot tell the completion of a failed send from that of a receive but by its
    /// number; here sends count from 0 and receives are offsets, so the side knows.
    fn failed(&mut self, index: usize, completion: &Completion) {
        let side = &mut self.sides[index];
        match completion.opcode {
            CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImmediate => {
                assert_eq!(completion.status, Status::WorkRequestFlushed, "a receive is flushed");
                if side.end.srq.is_none() {
                    let (wr_id, _) = side.receives.pop_front().expect("a receive that failed was posted");
                    assert_eq!(completion.wr_id, wr_id, "receives are flushed in order");
                }
            }
            _ => {
                // Those unsignalled before it were done.
                let before = side.posted.iter().position(|posted| posted.wr_id == completion.wr_id);
                let before = before.expect("a send that failed was posted");
                assert!(side.posted.drain(..before).all(|posted| !posted.signaled), "sends fail in order");
                side.posted.pop_front();
                let expected = if side.failed { Status::WorkRequestFlushed } else { Status::RetryExceeded };
                assert_eq!(completion.status, expected, "the first fails, the others are flushed");
                side.failed = true;
            }
        }
    }

    fn sent(&mut self, index: usize, completion: &Completion) {
        let side = &mut self.sides[index];
        assert!(!side.failed, "nothing succeeds behind a failure");
        loop {
            let posted = side.posted.pop_front().expect("what completes was posted");
            let (node, peer_node) = (&self.world.nodes[side.node], side.peer_node);
            match posted.check {
                Check::Nothing => {}
                Check::Read { offset, ref expected } => {
                    assert_eq!(
                        &node.memory.read(offset, expected.len()),
                        expected,
                        "READ {} of side {index}",
                        posted.wr_id
                    );
                }
                Check::CompareSwap { offset, old } => {
                    assert_eq!(
                        node.memory.word(offset),
                        old,
                        "the CAS {} of side {index} found its value",
                        posted.wr_id
                    );
                }
                Check::FetchAdd { offset } => {
                    let count = node.memory.word(offset);
                    assert!(side.last_count.is_none_or(|last| last < count), "counts grow: {count} on side {index}");
                    side.last_count = Some(count);
                    self.counts[peer_node].push(count);
                }
            }
            if posted.signaled {
                assert_eq!(completion.wr_id, posted.wr_id, "completions of side {index} come in order");
                assert_eq!(completion.opcode, posted.opcode, "the completion says what was done");
                assert_eq!(completion.byte_len as usize, posted.length, "the completion says how long it was");
                return;
            }
        }
    }

    fn received(&mut self, index: usize, completion: &Completion) {
        let side = &mut self.sides[index];
        let expected = side.expected.pop_front().expect("what arrives was sent, once");
        let offset = completion.wr_id as usize;
        match side.end.srq {
            Some(_) => {
                let shared = self.shared[side.node].as_mut().expect("it has a shared queue");
                shared.posted -= 1;
                shared.slots.push(offset);
            }
            None => {
                let (wr_id, _) = side.receives.pop_front().expect("a receive that completes was posted");
                assert_eq!(wr_id, completion.wr_id, "receives complete in order");
                side.slots.push(offset);
            }
        }
        let opcode = if expected.immediate_write {
            CompletionOpcode::ReceiveWriteImmediate
        } else {
            let bytes = self.world.nodes[side.node].memory.read(offset, expected.length);
            assert!(bytes == pattern(expected.tag, expected.length), "message {:#x} is intact", expected.tag);
            CompletionOpcode::Receive
        };
        assert_eq!(completion.opcode, opcode, "the right kind of message arrived");
        assert_eq!(completion.byte_len as usize, expected.length, "message {:#x} is whole", expected.tag);
        assert_eq!(completion.attachment, expected.attachment, "message {:#x} has its attachment", expected.tag);
        assert_eq!(completion.solicited, expected.solicited, "message {:#x} is solicited or not", expected.tag);
    }

    /// Is all work done?
    pub fn is_done(&self) -> bool {
        self.sides.iter().all(|side| {
            let gone = !self.world.nodes[side.node].alive || side.failed;
            let peer_gone = !self.world.nodes[side.peer_node].alive;
            (gone || side.to_post == 0 && self.outstanding(side) == 0)
                && (gone || peer_gone || side.expected.is_empty())
        })
    }

    /// One step of the programs and of the world.
    pub fn step(&mut self) {
        self.act(false);
        if !self.world.step() {
            self.act(true);
        }
    }

    /// Runs until all work is done, and checks what the programs cannot see on the way.
    pub fn finish(&mut self) {
        let mut steps = 0;
        while !self.is_done() {
            self.step();
            steps += 1;
            assert!(steps < 200_000, "the work is done some time; now {} ns", self.world.now_ns);
        }
        self.world.settle();
        self.act(true);
        self.world.settle();
        self.world.assert_at_rest();
    }

    /// When a node has vanished: whoever still wanted something of it knows, and has everything back.
    pub fn check_failures(&mut self) {
        for (index, side) in self.sides.iter().enumerate() {
            if !self.world.nodes[side.node].alive || !side.failed {
                continue;
            }
            assert_eq!(self.world.state_of(side.node, side.qpn), QpState::Error, "side {index} is in error");
            assert!(side.posted.is_empty(), "every send of side {index} ended");
            assert!(side.receives.is_empty(), "every receive of side {index} came back");
        }
    }

    /// What memory must hold when all work succeeded.
    pub fn check_memory(&mut self) {
        for (index, side) in self.sides.iter_mut().enumerate() {
            let node = &self.world.nodes[side.node];
            for posted in side.posted.drain(..) {
                assert!(!posted.signaled, "every signalled send of side {index} made its completion");
                match posted.check {
                    Check::Nothing => {}
                    Check::Read { offset, expected } => {
                        assert_eq!(
                            node.memory.read(offset, expected.len()),
                            expected,
                            "READ {} of side {index}",
                            posted.wr_id
                        );
                    }
                    Check::CompareSwap { offset, old } => {
                        assert_eq!(node.memory.word(offset), old, "the CAS {} of side {index}", posted.wr_id);
                    }
                    Check::FetchAdd { offset } => self.counts[side.peer_node].push(node.memory.word(offset)),
                }
            }
            let peer = &self.world.nodes[side.peer_node].memory;
            assert!(
                peer.read(side.write_area, AREA_BYTES) == side.write_model,
                "the WRITEs of side {index} are all there, in order"
            );
            assert_eq!(peer.word(side.cas_offset), side.cas_value, "each CAS of side {index} was carried out once");
        }
        for (node, counts) in self.counts.iter_mut().enumerate() {
            counts.sort_unstable();
            assert!(
                counts.iter().copied().eq(0..counts.len() as u64),
                "node {node} was added to once each: {counts:?}"
            );
            let total = self.world.nodes[node].memory.word(self.counters[node]);
            assert_eq!(total, counts.len() as u64, "node {node} counts every fetch-and-add");
        }
    }
}
