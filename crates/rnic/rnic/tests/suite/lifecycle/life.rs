//! State of one run: nodes, their programs, and the life of connections.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use doorbell_rnic::{Backlog, Objects};
use doorbell_verbs_core::{Access, QpAttributes, QpCapacities, QpKind, QpState};
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};

use super::model::Qp;
use super::model::{
    AREA_BYTES, AREAS, Conn, Cq, Direction, Fate, MEMORY_BYTES, Program, READ_AT, READ_BYTES, Reasons, SLOT_BYTES,
    SLOTS, Srq, WRITE_BYTES, Window, Wr,
};
use crate::common::tally::Hit;
use crate::common::trace::trace;
use crate::common::workload::pattern;
use crate::common::world::Watch;
use crate::common::{Acks, End, Link, Rng, World};

/// Options of a seed.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) nodes: usize,
    pub(crate) reliable: usize,
    pub(crate) unreliable: bool,
    pub(crate) posts: usize,
    /// Number of random operations on objects.
    pub(crate) operations: usize,
    pub(crate) link: Link,
    pub(crate) acks: Acks,
    /// Whether acknowledgements of received messages leave at once, without waiting for a reply of the program.
    pub(crate) strict: bool,
    /// Whether programs send messages that ask the peer to invalidate the key of a region, which every device must
    /// reject.
    pub(crate) takes_regions_back: bool,
}

/// Distance between the first sequence numbers of two connections. Because of it, no connection accepts a late packet
/// of another. The distance replaces the TIMEWAIT of IBTA (Vol 1, 12.9.8.4): this world reuses queue pair numbers
/// without waiting.
const PSN_RANGE: u32 = 1 << 16;
const PSN_RANGES: u32 = 254;
/// Number of ranges from the range of one connection to the range of the next connection. The sequence numbers of a
/// later connection are therefore sometimes above and sometimes below those of an earlier one.
const PSN_STRIDE: u32 = 101;

pub(crate) struct Life {
    pub(crate) world: World,
    pub(crate) rng: Rng,
    pub(crate) programs: Vec<Program>,
    pub(crate) qps: Vec<Qp>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) wrs: Vec<Wr>,
    /// Indices of the live queue pairs, by node and queue pair number.
    pub(crate) by_number: HashMap<(usize, Qpn), usize>,
    pub(crate) posts_left: usize,
    pub(crate) operations_left: usize,
    psn_range: u32,
    psn_ranges_left: u32,
    strict: bool,
    pub(crate) takes_regions_back: bool,
    /// Objects and backlog of each device when the program of its node began.
    pub(crate) at_start: Vec<(Objects, Backlog)>,
    /// Digest of all results that programs saw.
    pub(crate) print: u64,
    /// Owner of all regions that peers access. Each region holds a reference to the owner. If the run holds the only
    /// reference, all these regions are gone.
    pub(crate) owner: Arc<()>,
}

impl Life {
    pub(crate) fn new(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ 0x6c69_6665);
        let mut world = World::new(seed, options.nodes, MEMORY_BYTES, 1 << 10, options.link.clone());
        world.acks = options.acks;
        world.watch = Some(Watch::default());
        let programs = (0..options.nodes).map(|_| Program::new([0; 32])).collect();
        let at_start = Vec::new();
        let psn_range = rng.below(u64::from(PSN_RANGES)) as u32;
        let mut life = Self {
            world,
            rng,
            programs,
            qps: Vec::new(),
            conns: Vec::new(),
            wrs: Vec::new(),
            by_number: HashMap::new(),
            posts_left: options.posts,
            operations_left: options.operations,
            psn_range,
            psn_ranges_left: PSN_RANGES,
            strict: options.strict,
            takes_regions_back: options.takes_regions_back,
            at_start,
            print: 0,
            owner: Arc::new(()),
        };
        for node in 0..options.nodes {
            life.programs[node].seed = life.world.nodes[node].rnic.config().seed;
            let rnic = &life.world.nodes[node].rnic;
            life.at_start.push((rnic.objects(), rnic.backlog()));
            life.start_program(node);
        }
        for index in 0..options.reliable + usize::from(options.unreliable) {
            let kind = if index < options.reliable { QpKind::Rc } else { QpKind::Uc };
            let a = life.rng.below(options.nodes as u64) as usize;
            // Sometimes a device connects to itself.
            let distance = if life.rng.chance(70) { 0 } else { life.rng.within(1, options.nodes as u64 - 1) };
            life.make_connection(kind, [a, (a + distance as usize) % options.nodes]);
        }
        life
    }

    /// Creates the first objects of a program.
    pub(crate) fn start_program(&mut self, node: usize) {
        self.world.nodes[node].rnic.let_acks_wait(!self.strict);
        self.make_buffers(node);
        if self.rng.chance(700) {
            self.make_srq(node);
        }
        let cq = self.make_cq(node, false);
        debug_assert!(self.programs[node].cqs[cq].live);
        self.make_datagram_qp(node);
    }

    pub(crate) fn is_alive(&self, node: usize) -> bool {
        self.world.nodes[node].alive
    }

    /// Registers all memory of the node a second time.
    pub(crate) fn make_buffers(&mut self, node: usize) {
        let at = &mut self.world.nodes[node];
        // SAFETY: the block lives as long as the node, and no reference to it is made.
        let region = unsafe {
            at.rnic.register(
                at.pd,
                at.memory.base(),
                at.memory.len(),
                at.memory.address(),
                Access::LOCAL_WRITE,
                Some(Arc::clone(&self.owner) as _),
            )
        }
        .expect("the device has room for a region");
        self.note_key(node, region.rkey());
        self.programs[node].buffers = Some(region);
    }

    pub(crate) fn note_key(&mut self, node: usize, key: RKey) {
        if self.programs[node].dead_keys.remove(&(key.get() >> 8)) {
            self.world.tally.hit(Hit::KeyReused);
        }
    }

    pub(crate) fn make_srq(&mut self, node: usize) {
        let depth = self.rng.within(1, 24) as usize;
        let at = &mut self.world.nodes[node];
        let (id, queue) = at.rnic.create_srq(at.pd, depth, 3).expect("the device has room for a shared receive queue");
        let program = &mut self.programs[node];
        if program.dead_srqs.remove(&id.0) {
            self.world.tally.hit(Hit::SrqReused);
        }
        trace(|| format!("{:>10} node {node}: SRQ {} of {depth}", self.world.now_ns, id.0));
        program.srq = Some(Srq { id, queue, open: BTreeSet::new(), may_reach_limit: 0, unseen: 0 });
    }

    pub(crate) fn make_cq(&mut self, node: usize, tiny: bool) -> usize {
        let depth = if tiny { 1 } else { 300 };
        let (id, queue) =
            self.world.nodes[node].rnic.create_cq(depth, None).expect("the device has room for a completion queue");
        let program = &mut self.programs[node];
        if program.dead_cqs.remove(&id.0) {
            self.world.tally.hit(Hit::CqReused);
        }
        trace(|| format!("{:>10} node {node}: CQ {} of {depth}", self.world.now_ns, id.0));
        program.cqs.push(Cq { id, queue, live: true, tiny, overran: false, reserved: 0 });
        program.cqs.len() - 1
    }

    /// Returns the index of a completion queue with room for `room` work requests. Creates the queue if necessary.
    fn pick_cq(&mut self, node: usize, room: usize) -> usize {
        let cqs = &self.programs[node].cqs;
        let fits: Vec<usize> =
            (0..cqs.len()).filter(|&at| cqs[at].live && !cqs[at].tiny && cqs[at].reserved + room <= 300).collect();
        if fits.is_empty() || self.rng.chance(250) {
            return self.make_cq(node, false);
        }
        *self.rng.pick(&fits)
    }

    /// Creates a queue pair with a receive queue of its own or with a shared receive queue.
    pub(crate) fn make_qp(&mut self, node: usize, kind: QpKind) -> usize {
        let rng = &mut self.rng;
        let capacities = QpCapacities {
            max_send_wr: rng.within(1, 12) as usize,
            max_recv_wr: rng.within(1, 12) as usize,
            max_send_sge: 3,
            max_recv_sge: 3,
            max_inline: 64,
        };
        let overruns = rng.chance(25);
        let shares = !overruns && self.programs[node].srq.is_some() && rng.chance(600);
        let own = capacities.max_send_wr + capacities.max_recv_wr;
        let (send_cq, recv_cq) = if overruns {
            let cq = self.make_cq(node, true);
            (cq, cq)
        } else {
            // All receives of the shared receive queue may complete in this completion queue.
            let room = own + 24;
            let send = self.pick_cq(node, room);
            self.programs[node].cqs[send].reserved += room;
            let recv = self.pick_cq(node, room);
            self.programs[node].cqs[recv].reserved += room;
            (send, recv)
        };
        let program = &self.programs[node];
        let window = self.rng.within(1, 6) as u8;
        let end = End {
            capacities,
            srq: program.srq.as_ref().filter(|_| shares).map(|srq| srq.id),
            send_cq: Some(program.cqs[send_cq].id),
            recv_cq: Some(program.cqs[recv_cq].id),
            signal_all: self.rng.chance(200),
            timeout: self.rng.within(11, 12) as u8,
            retry_count: self.rng.within(6, 7) as u8,
            max_rd_atomic: window,
            max_dest_rd_atomic: 6,
            min_rnr_timer: self.rng.within(1, 6) as u8,
            ..End::default()
        };
        let qpn = self.world.create_qp(node, kind, &end);
        if self.programs[node].dead_qpns.remove(&qpn.get()) {
            self.world.tally.hit(Hit::QpnReused);
        }
        trace(|| format!("{:>10} node {node}: {kind:?} QP {:#x} created", self.world.now_ns, qpn.get()));
        self.qps.push(Qp {
            node,
            qpn,
            kind,
            live: true,
            end,
            shares,
            send_cq,
            recv_cq,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            conn: None,
            may_establish: 0,
            may_drain: 0,
            errors: 0,
            drained_at: None,
            was_sq_error: false,
            moved_to_error: false,
            first_failure: None,
            overruns,
        });
        let index = self.qps.len() - 1;
        let before = self.by_number.insert((node, qpn), index);
        assert_eq!(before, None, "two queue pairs have the same number");
        index
    }

    pub(crate) fn make_datagram_qp(&mut self, node: usize) {
        let index = self.make_qp(node, QpKind::Ud);
        self.raise_datagram_qp(index);
    }

    pub(crate) fn raise_datagram_qp(&mut self, index: usize) {
        let (node, qpn, end) = self.named(index);
        self.world.bring_to_init(node, qpn, QpKind::Ud, &end);
        self.world.bring_to_rtr(node, qpn, QpKind::Ud, PathMtu::Mtu4096, &end, (node, qpn, Psn::new(0)));
        self.world.bring_to_rts(node, qpn, QpKind::Ud, &end);
        self.programs[node].datagram_qp = Some(index);
    }

    pub(crate) fn named(&self, index: usize) -> (usize, Qpn, End) {
        let qp = &self.qps[index];
        (qp.node, qp.qpn, qp.end.clone())
    }

    pub(crate) fn state(&self, index: usize) -> QpState {
        self.world.state_of(self.qps[index].node, self.qps[index].qpn)
    }

    /// Returns the start of a range of sequence numbers that no connection of this run has used.
    fn next_psn(&mut self) -> Option<Psn> {
        if self.psn_ranges_left == 0 {
            return None;
        }
        self.psn_ranges_left -= 1;
        self.psn_range = (self.psn_range + PSN_STRIDE) % PSN_RANGES;
        let range = self.psn_range + 1;
        // The last range wraps around the end of the number space into range 0, which no connection uses.
        let start = if range == PSN_RANGES { Psn::MASK - 3 } else { range * PSN_RANGE };
        Some(Psn::new(start + self.rng.below(4) as u32))
    }

    /// Creates two queue pairs and connects them.
    pub(crate) fn make_connection(&mut self, kind: QpKind, nodes: [usize; 2]) {
        let ends = nodes.map(|node| self.make_qp(node, kind));
        self.connect(kind, ends);
    }

    /// Returns whether the nodes have the objects that a connection needs.
    pub(crate) fn may_connect(&self, nodes: [usize; 2]) -> bool {
        self.psn_ranges_left >= 2
            && nodes.iter().all(|&node| self.is_alive(node) && self.programs[node].next_area + 2 <= AREAS)
    }

    /// Connects two queue pairs in RESET. The second queue pair moves to RTS only later.
    pub(crate) fn connect(&mut self, kind: QpKind, ends: [usize; 2]) {
        let mtu = *self.rng.pick(&[PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu512]);
        let Some(first_psns) = self.next_psn().zip(self.next_psn()).map(<[Psn; 2]>::from) else { return };
        let limited = self.rng.chance(150);
        let index = self.conns.len();
        for end in 0..2 {
            let qp = &mut self.qps[ends[end]];
            qp.end.send_psn = first_psns[end];
            qp.end.rnr_retry = if limited { 2 } else { 7 };
            qp.conn = Some((index, end));
            qp.was_sq_error = false;
            qp.moved_to_error = false;
            qp.first_failure = None;
            qp.may_establish += 1;
        }
        let directions = [0, 1].map(|from: usize| self.open_area(self.qps[ends[1 - from]].node));
        let overrun = ends.iter().any(|&end| self.qps[end].overruns);
        let buffer_dead = ends.iter().any(|&end| self.programs[self.qps[end].node].lost_buffers);
        let reasons = Reasons { rnr: limited, overrun, buffer_dead, ..Reasons::default() };
        if let Some(watch) = &mut self.world.watch {
            for &end in &ends {
                watch.lost_responses.remove(&(self.qps[end].node, self.qps[end].qpn));
            }
        }
        for end in 0..2 {
            let ((node, qpn, own), (peer_node, peer_qpn, _)) = (self.named(ends[end]), self.named(ends[1 - end]));
            trace(|| {
                let (at, number, peer) = (self.world.now_ns, qpn.get(), peer_qpn.get());
                format!(
                    "{at:>10} node {node}: {kind:?} QP {number:#x} connected to {peer_node}/{peer:#x}, conn {index}"
                )
            });
            self.world.bring_to_init(node, qpn, kind, &own);
            self.world.bring_to_rtr(node, qpn, kind, mtu, &own, (peer_node, peer_qpn, first_psns[1 - end]));
        }
        let (node, qpn, own) = self.named(ends[0]);
        self.world.bring_to_rts(node, qpn, kind, &own);
        self.conns.push(Conn {
            kind,
            mtu,
            ends,
            alive: [true; 2],
            ready: [true, false],
            closed: false,
            died: false,
            reasons,
            directions,
        });
        if index > 0 {
            self.world.tally.hit(Hit::Reconnected);
        }
    }

    /// Brings the second end of a connection to RTS.
    pub(crate) fn complete_connection(&mut self, conn: usize) {
        let c = &mut self.conns[conn];
        if c.ready[1] || !c.alive[1] {
            return;
        }
        c.ready[1] = true;
        let (kind, end) = (c.kind, c.ends[1]);
        if self.state(end) == QpState::ReadyToReceive {
            let (node, qpn, own) = self.named(end);
            self.world.bring_to_rts(node, qpn, kind, &own);
        }
    }

    /// Registers an area of a node for one peer.
    fn open_area(&mut self, node: usize) -> Direction {
        let area = SLOTS * SLOT_BYTES + self.programs[node].next_area * AREA_BYTES;
        self.programs[node].next_area += 1;
        let at = &mut self.world.nodes[node];
        at.memory.write(area + READ_AT, &pattern(area as u64, READ_BYTES));
        // SAFETY: the block lives as long as the node, and no reference to it is made.
        let region = unsafe {
            at.rnic.register(
                at.pd,
                at.memory.base().wrapping_add(area),
                AREA_BYTES,
                at.memory.address() + area as u64,
                Access::all(),
                Some(Arc::clone(&self.owner) as _),
            )
        }
        .expect("the device has room for a region");
        let rkey = region.rkey();
        self.note_key(node, rkey);
        let window = self.rng.chance(400).then(|| {
            let at = &mut self.world.nodes[node];
            at.rnic
                .create_window(at.pd, doorbell_verbs_core::WindowKind::Type2)
                .expect("the device has room for a window")
        });
        if let Some(name) = window {
            self.note_key(node, name);
        }
        Direction {
            expected: VecDeque::new(),
            area,
            region: Some(region),
            rkey,
            window: window.map(|name| Window { name, bound: None }),
            window_keys: BTreeSet::new(),
            frozen: None,
            written: vec![0; WRITE_BYTES],
            counted: None,
            adds: 0,
        }
    }

    /// Takes a queue pair out of its connection, and gives its outstanding work the fate [`Fate::Dropped`]. Such work
    /// gets no completion.
    pub(crate) fn forget_work(&mut self, index: usize) {
        let qp = &mut self.qps[index];
        let open: Vec<u64> = qp.sends.drain(..).chain(qp.receives.drain(..)).collect();
        for wr in open {
            self.end_work(wr, Fate::Dropped);
        }
        if let Some((conn, end)) = self.qps[index].conn.take() {
            let c = &mut self.conns[conn];
            c.alive[end] = false;
            c.reasons.peer_gone = true;
        }
        self.qps[index].was_sq_error = false;
        self.qps[index].drained_at = None;
    }

    /// Ends a work request and frees its buffer.
    pub(crate) fn end_work(&mut self, wr: u64, fate: Fate) {
        let work = &mut self.wrs[wr as usize];
        assert_eq!(work.fate, Fate::Open, "work request {wr} ended twice");
        work.fate = fate;
        if let Some(slot) = work.slot.take() {
            self.programs[work.node].free_slots.push(slot);
        }
    }

    fn has_work(&self, index: usize) -> bool {
        !self.qps[index].sends.is_empty() || !self.qps[index].receives.is_empty()
    }

    /// Counts the work that a reset or destruction interrupts, and lowers the numbers of events that may still come.
    fn note_end(&mut self, index: usize, destroyed: bool) {
        let busy = self.has_work(index);
        let peer_busy = self.qps[index].conn.is_some_and(|(conn, end)| {
            let peer = self.conns[conn].ends[1 - end];
            self.conns[conn].alive[1 - end] && !self.qps[peer].sends.is_empty()
        });
        if self.state(index) == QpState::Error {
            self.qps[index].errors += 1;
        }
        let tally = &mut self.world.tally;
        match destroyed {
            true => {
                tally.hit(Hit::Destroyed);
                tally.add(Hit::DestroyedBusy, busy.into());
                tally.add(Hit::DestroyedPeerBusy, peer_busy.into());
            }
            false => {
                tally.hit(Hit::Reset);
                tally.add(Hit::ResetBusy, busy.into());
            }
        }
    }

    fn shared_length(&self, node: usize) -> usize {
        self.programs[node].srq.as_ref().map_or(0, |srq| srq.queue.len())
    }

    pub(crate) fn reset_qp(&mut self, index: usize) {
        self.end_life(index, false);
    }

    pub(crate) fn destroy_qp(&mut self, index: usize) {
        self.end_life(index, true);
        self.bury_qp(index);
    }

    /// Resets or destroys a queue pair.
    fn end_life(&mut self, index: usize, destroyed: bool) {
        let (node, qpn, _) = self.named(index);
        // Unreaped completions vanish with the queue pair, so some programs poll first.
        if self.rng.chance(500) {
            self.reap(node);
        }
        self.note_end(index, destroyed);
        trace(|| {
            let what = if destroyed { "destroyed" } else { "reset" };
            format!("{:>10} node {node}: QP {:#x} {what}", self.world.now_ns, qpn.get())
        });
        let cq = self.programs[node].cqs[self.qps[index].recv_cq].queue.clone();
        let staged = |life: &Self| life.world.nodes[node].rnic.backlog().staged;
        let (shared, waiting) = (self.shared_length(node), cq.len() + staged(self));
        match destroyed {
            true => self.world.nodes[node].rnic.destroy_qp(qpn).expect("the queue pair exists"),
            false => self.world.bring_to(node, qpn, QpState::Reset),
        }
        self.world.tally.add(Hit::SrqHeldAtReset, (self.shared_length(node) > shared).into());
        let still = cq.len() + staged(self);
        if let Some(srq) = self.programs[node].srq.as_mut().filter(|_| self.qps[index].shares) {
            srq.unseen += waiting.saturating_sub(still);
        }
        self.forget_work(index);
    }

    /// Records that a device dies while acknowledgements in it wait for answers of the program.
    pub(crate) fn note_death(&mut self, node: usize) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].ends.iter().any(|&end| self.qps[end].node == node) {
                self.conns[conn].reasons.peer_gone = true;
                self.conns[conn].died |= !self.strict;
            }
        }
    }

    /// Removes a queue pair from the records of its program.
    pub(crate) fn bury_qp(&mut self, index: usize) {
        let room = self.qps[index].end.capacities.max_send_wr + self.qps[index].end.capacities.max_recv_wr + 24;
        let qp = &mut self.qps[index];
        qp.live = false;
        self.by_number.remove(&(qp.node, qp.qpn));
        let program = &mut self.programs[qp.node];
        program.dead_qpns.insert(qp.qpn.get());
        if program.datagram_qp == Some(index) {
            program.datagram_qp = None;
        }
        if !qp.overruns {
            for cq in [qp.send_cq, qp.recv_cq] {
                program.cqs[cq].reserved -= room;
            }
        }
    }

    /// Stores the contents of an area whose region or key is being removed. No peer may change the area after that.
    pub(crate) fn freeze(&mut self, conn: usize, from: usize) {
        let node = self.qps[self.conns[conn].ends[1 - from]].node;
        let direction = &mut self.conns[conn].directions[from];
        direction.frozen.get_or_insert_with(|| self.world.nodes[node].memory.read(direction.area, AREA_BYTES));
    }

    pub(crate) fn modify(&mut self, index: usize, attributes: QpAttributes) {
        let (node, qpn, _) = self.named(index);
        self.world.modify(node, qpn, attributes);
    }

    pub(crate) fn mix(&mut self, value: u64) {
        self.print = Rng::new(self.print ^ value).next();
    }
}

impl Program {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            free_slots: (0..SLOTS).collect(),
            next_area: 0,
            cqs: Vec::new(),
            srq: None,
            buffers: None,
            lost_buffers: false,
            datagram_qp: None,
            dead_qpns: BTreeSet::new(),
            dead_keys: BTreeSet::new(),
            dead_cqs: BTreeSet::new(),
            dead_srqs: BTreeSet::new(),
        }
    }
}
