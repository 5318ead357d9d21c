//! Random work over RC between the RNICs of a world, and a model of the effects of this work.
//!
//! Each SEND has different bytes, and atomics increment a counter. WRITEs to one area overlap. The model keeps a copy
//! of the area, and applies the WRITEs to the copy in the order in which they are posted. READs fetch constant bytes,
//! or a snapshot that a fence protects. The checks therefore detect a lost, repeated, reordered or torn message.
//! `post.rs` creates the work, and `check.rs` compares its results with the model.

mod check;
mod post;

use std::collections::VecDeque;

use doorbell_rnic::Budget;
use doorbell_verbs_core::{Attachment, CompletionOpcode, QpCapacities, QpKind, SrqId};
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};

use super::{Acks, End, Link, Rng, World};

const MEMORY_BYTES: usize = 8 << 20;
const AREA_BYTES: usize = 8 << 10;
const CQ_DEPTH: usize = 1 << 14;
/// Maximum number of memory windows on each side of a connection. The other side may invalidate their keys.
const WINDOWS: usize = 6;

/// Options of one seed.
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

/// Returns the bytes of the message with number `tag`. All messages differ.
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
    /// A READ that must return `expected`.
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

/// Expected contents of the receive completion that a message causes at the peer.
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
    /// Receives in the receive queue of this queue pair, in order: number and offset in memory.
    receives: VecDeque<(u64, usize)>,
    slots: Vec<usize>,
    write_area: usize,
    write_model: Vec<u8>,
    source_area: usize,
    /// Keys of windows of the peer. No SEND of this queue pair has invalidated them yet.
    peer_windows: Vec<RKey>,
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
    slot_bytes: usize,
    rng: Rng,
}

fn take(used: &mut usize, bytes: usize) -> usize {
    let at = used.next_multiple_of(8);
    *used = at + bytes;
    assert!(*used <= MEMORY_BYTES, "the workload exceeds its memory");
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
                let (srq, _) =
                    world.nodes[node].rnic.create_srq(pd, depth, 3).expect("the device has room for a queue");
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
        // Sometimes a device connects to itself.
        let distance = if self.rng.chance(100) { 0 } else { self.rng.within(1, options.nodes as u64 - 1) as usize };
        let b = (a + distance) % options.nodes;
        let window = self.rng.within(1, 16) as u8;
        let (end_a, end_b) = (self.random_end(a, options, window), self.random_end(b, options, window));
        let (qpn_a, qpn_b) = self.world.connect(QpKind::Rc, mtu, (a, &end_a), (b, &end_b));
        let first = self.sides.len();
        for (node, qpn, end, peer_node, peer) in [(a, qpn_a, end_a, b, first + 1), (b, qpn_b, end_b, a, first)] {
            let slots = match end.srq {
                Some(_) => Vec::new(),
                None => (0..end.capacities.max_recv_wr).map(|_| take(&mut self.used[node], self.slot_bytes)).collect(),
            };
            let source_area = take(&mut self.used[peer_node], AREA_BYTES);
            self.world.nodes[peer_node].memory.write(source_area, &pattern(qpn.get().into(), AREA_BYTES));
            let to_post = self.rng.below(options.messages as u64 + 1) as usize;
            let peer_qpn = if qpn == qpn_a && node == a { qpn_b } else { qpn_a };
            let peer_windows = (0..to_post.min(WINDOWS)).map(|_| self.bind_window(peer_node, peer_qpn)).collect();
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
                write_area: take(&mut self.used[peer_node], AREA_BYTES),
                write_model: vec![0; AREA_BYTES],
                source_area,
                peer_windows,
                cas_offset: take(&mut self.used[peer_node], 8),
                cas_value: 0,
                last_count: None,
                fence_next: false,
                failed: false,
            });
        }
    }

    fn outstanding(&self, side: &Side) -> usize {
        self.world.nodes[side.node].rnic.query_qp(side.qpn).expect("the queue pair exists").outstanding_sends
    }

    /// Performs random actions of the programs. With `eager`, performs all possible actions.
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

    /// Returns whether all work is done.
    pub fn is_done(&self) -> bool {
        self.sides.iter().all(|side| {
            let gone = !self.world.nodes[side.node].alive || side.failed;
            let peer_gone = !self.world.nodes[side.peer_node].alive;
            (gone || side.to_post == 0 && self.outstanding(side) == 0)
                && (gone || peer_gone || side.expected.is_empty())
        })
    }

    /// Runs one step of the programs and of the world.
    pub fn step(&mut self) {
        self.act(false);
        if !self.world.step() {
            self.act(true);
        }
    }

    /// Runs until all work is done. After each step, checks state that the programs cannot see.
    pub fn finish(&mut self) {
        let mut steps = 0;
        while !self.is_done() {
            self.step();
            steps += 1;
            assert!(steps < 200_000, "the work did not end by {} ns", self.world.now_ns);
        }
        self.world.settle();
        self.act(true);
        self.world.settle();
        self.world.assert_at_rest();
    }
}
