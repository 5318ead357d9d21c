//! The virtual-time kernel: events in order of time, hardware as arithmetic on stations, and threads whose turns run in
//! the order of their clocks.

mod cache;
pub(crate) mod capture;
mod events;
mod frames;
pub(crate) mod locks;
mod middlebox;
mod network;
mod node;
mod stations;
mod threads;
pub(crate) mod watch;

use std::net::IpAddr;
use std::sync::Arc;

use doorbell_rnic::{Budget, Part, TransmitBatch, TransmitInfo};
use doorbell_verbs_core::QpKind;
use doorbell_wire::Qpn;
use slab::Slab;

use cache::Caches;
use capture::Capture;
use events::{Event, Events, What};
use frames::Frames;
pub(crate) use middlebox::Middlebox;
use network::{Forwarded, Network, Paused};
pub(crate) use node::{Node, address_of};
use node::{dest_qpn, line_bytes, node_of, source_port};
pub(crate) use threads::{Suspension, Thread, ThreadState};
use watch::{Change, Changes, ThreadId};

use crate::testbed::Testbed;
use crate::time::Ps;
use crate::topology::Topology;

/// A doorbell on its way to a NIC: the sends up to `upto`, of which the NIC must fetch so many bytes.
#[derive(Clone, Copy, Debug)]
struct Doorbell {
    node: usize,
    qpn: Qpn,
    upto: u64,
    fetch: u64,
}

/// Sends up to `upto` have left, and nobody acknowledges them.
#[derive(Clone, Copy, Debug)]
struct Departure {
    node: usize,
    qpn: Qpn,
    upto: u64,
}

/// What the kernel counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events: doorbells, packets taken by units, departures, arrivals at switches, deliveries, timers and turns.
    pub events: u64,
    /// Packets that were delivered.
    pub packets: u64,
    /// Turns of threads.
    pub turns: u64,
    /// Turns that took longer than the least latency between two threads: what they did may have come too late for
    /// another thread's turn.
    pub long_turns: u64,
    /// The longest turn, in picoseconds.
    pub longest_turn_ps: u64,
    /// Frames that a switch dropped.
    pub dropped: u64,
    /// Frames that waited for a port longer than the switch's threshold of marking.
    pub marked: u64,
    /// Times that a switch had its senders pause.
    pub pauses: u64,
    /// How long ports had to pause, all together, in picoseconds.
    pub paused_ps: u64,
    /// Most bytes that waited for one port.
    pub longest_queue_bytes: u64,
}

/// How many packets a unit takes at once where nobody else waits for it. Another queue pair that comes meanwhile waits for
/// these.
const REQUESTS_AT_ONCE: usize = 4;

/// How many answers of a READ are sent before others have their turn.
const ANSWERS_AT_ONCE: usize = 8;

/// Room for the packets of one pull.
const BATCH_BYTES: usize = 64 << 10;

/// What an empty poll from outside any simulated thread lets pass: so little that one caller that plays two hosts can
/// act for both before a timer runs out.
const OUTSIDE_STEP: Ps = Ps(1_000_000);

/// What a caller from outside lets pass at most before it sleeps on a descriptor: longer than anything takes but timers.
const OUTSIDE_SLEEP: Ps = Ps(1_000_000_000);

/// What the next step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An event of the hardware has happened.
    Done,
    /// The turn of a thread has come.
    Turn(ThreadId),
    /// Nothing can happen any more.
    Idle,
}

/// Everything that is simulated, but the futures of the threads.
pub(crate) struct World {
    pub(crate) testbed: Testbed,
    now: Ps,
    events: Events,
    pub(crate) nodes: Vec<Node>,
    pub(crate) threads: Vec<Thread>,
    /// The thread whose turn it is.
    pub(crate) current: Option<ThreadId>,
    /// Threads that wait for what others of their host do.
    followers: Vec<ThreadId>,
    pub(crate) changes: Arc<Changes>,
    caches: Caches,
    taken: Vec<Change>,
    doorbells: Slab<Doorbell>,
    departures: Slab<Departure>,
    frames: Frames,
    /// Frames that leave the middlebox, while they are counted out.
    from_box: Vec<usize>,
    /// Taken while its packets are put on the line.
    batch: Option<TransmitBatch>,
    network: Network,
    pub(crate) middlebox: Option<Box<Middlebox>>,
    pub(crate) counts: Counts,
    pub(crate) capture: Option<Capture>,
    digest: u64,
    /// The least latency between two threads.
    pub(crate) least_latency: Ps,
    /// When a packet was delivered last.
    pub(crate) moved_at: Ps,
}

impl World {
    pub(crate) fn new(testbed: Testbed, topology: Topology, seed: [u8; 32]) -> Self {
        let nodes: Vec<_> = (0..topology.nodes()).map(|index| Node::new(index, &testbed, seed)).collect();
        let (pcie, nic, link) = (&testbed.pcie, &testbed.nic, &testbed.link);
        let least_latency = pcie.doorbell + nic.transmit + link.propagation + nic.receive + pcie.write;
        Self {
            network: Network::new(topology, link),
            middlebox: None,
            least_latency,
            now: Ps::ZERO,
            events: Events::default(),
            nodes,
            threads: Vec::new(),
            current: None,
            followers: Vec::new(),
            changes: Arc::default(),
            caches: Caches::default(),
            taken: Vec::new(),
            doorbells: Slab::new(),
            departures: Slab::new(),
            frames: Frames::default(),
            from_box: Vec::new(),
            batch: None,
            counts: Counts::default(),
            capture: None,
            digest: 0xcbf2_9ce4_8422_2325,
            moved_at: Ps::ZERO,
            testbed,
        }
    }

    /// The clock of the thread whose turn it is, or that of the hardware.
    pub(crate) fn clock(&self) -> Ps {
        self.current.map_or(self.now, |thread| self.threads[thread].clock)
    }

    /// The time of the hardware.
    pub(crate) fn now(&self) -> Ps {
        self.now
    }

    /// Is no packet on its way?
    pub(crate) fn is_quiet(&self) -> bool {
        self.frames.is_empty()
    }

    /// A number that differs wherever anything happened otherwise: at another time, in another order, or to others.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    fn mix(&mut self, value: u64) {
        self.digest = (self.digest.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn push(&mut self, at: Ps, what: What) {
        self.events.push(at.max(self.now), what);
    }

    /// A doorbell is rung at the clock of the call, for all sends that are posted.
    pub(crate) fn ring(&mut self, node: usize, qpn: Qpn, fetch: u64) {
        let at = self.clock() + self.testbed.pcie.doorbell;
        let upto = self.nodes[node].rnic.posted_sends(qpn);
        let doorbell = self.doorbells.insert(Doorbell { node, qpn, upto, fetch }) as u32;
        self.push(at, What::Doorbell { doorbell });
    }

    /// The next event.
    pub(crate) fn step(&mut self) -> Step {
        let Some(event) = self.events.pop() else { return Step::Idle };
        self.happen(event)
    }

    fn happen(&mut self, event: Event) -> Step {
        self.now = event.at;
        if let Some(thread) = self.turn_of(event) {
            self.counts.events += 1;
            self.begin_turn(thread);
            return Step::Turn(thread);
        }
        match event.what {
            What::Turn { .. } => return Step::Done,
            What::Alarm { thread } => {
                self.set_alarm_again(thread as usize);
                return Step::Done;
            }
            What::Doorbell { doorbell } => self.doorbell(doorbell as usize),
            What::Transmit { node, unit } => {
                self.nodes[node as usize].units[unit as usize].is_scheduled = false;
                self.transmit(node as usize, unit as usize);
            }
            What::Departure { departure } => {
                let Departure { node, qpn, upto } = self.departures.remove(departure as usize);
                self.nodes[node].rnic.sends_departed(self.now.as_ns(), qpn, upto);
                self.pump(node, self.now);
            }
            What::Answer { node, qpn } => {
                if let Some(slot) = self.nodes[node as usize].slot(qpn) {
                    self.nodes[node as usize].queue_pairs[slot].answers_at = None;
                    self.answer(node as usize, qpn, self.now);
                }
            }
            What::Switch { frame } => self.forward(frame as usize),
            What::Pause { check } => {
                let paused = self.network.check(self.now, &self.testbed.switch, check, &mut self.counts);
                self.pause(paused);
            }
            What::Steer { frame } => self.steer(frame as usize),
            What::SteerTimeout => self.time_out_box(),
            What::Delivery { frame } => self.deliver(frame as usize),
            What::Timeout { node } => self.time_out(node as usize),
        }
        self.counts.events += 1;
        self.wake();
        Step::Done
    }

    /// A caller that is no simulated thread found nothing: the hardware goes on.
    pub(crate) fn step_from_outside(&mut self) {
        let latest = self.now + OUTSIDE_STEP;
        if self.run_hardware(latest, || false) {
            self.now = latest;
        }
    }

    /// A caller that is no simulated thread is about to sleep until a descriptor is readable. Nothing happens in virtual
    /// time while it sleeps, so what it may be waiting for happens before.
    pub(crate) fn settle_for_outside(&mut self, is_readable: impl Fn() -> bool) {
        if self.current.is_none() {
            self.run_hardware(self.now + OUTSIDE_SLEEP, is_readable);
        }
    }

    /// Events of the hardware until a time, or until something holds. False if the turn of a simulated thread is first,
    /// which does not come as long as others call.
    fn run_hardware(&mut self, until: Ps, is_enough: impl Fn() -> bool) -> bool {
        while let Some(event) = self.events.peek()
            && event.at <= until
            && !is_enough()
        {
            if self.turn_of(event).is_some() {
                return false;
            }
            self.step();
        }
        true
    }

    /// A caller looks at something that changes by itself: if it is no simulated thread, what is under way goes on.
    pub(crate) fn go_on_for_outside(&mut self) {
        if self.current.is_none() && !self.events.is_empty() {
            self.step_from_outside();
        }
    }

    /// The running thread lets the time pass that it has used. True if it may go on at once, since no other thread's
    /// turn comes first.
    pub(crate) fn breathe(&mut self) -> bool {
        let Some(thread) = self.current else { return true };
        let clock = self.threads[thread].clock;
        while let Some(event) = self.events.peek()
            && event.at <= clock
        {
            if self.turn_of(event).is_some() {
                return false;
            }
            self.events.pop();
            self.happen(event);
        }
        self.end_of_turn_length(thread, true);
        self.now = clock;
        self.begin_turn(thread);
        if self.threads[thread].has_tasks {
            // What its other tasks looked at may have changed meanwhile: they look again before it waits.
            self.threads[thread].poke();
        }
        true
    }

    fn doorbell(&mut self, number: usize) {
        let Doorbell { node, qpn, upto, fetch } = self.doorbells.remove(number);
        let now = self.now;
        let host = &mut self.nodes[node];
        let Some(slot) = host.slot(qpn) else { return };
        host.doorbell(now, slot, upto, fetch);
        host.rnic.ring_sends(now.as_ns(), qpn, upto);
        self.pump(node, now);
    }

    /// Takes from an RNIC what it has to send. Answers leave `answer_at` some time, which may have passed.
    pub(crate) fn pump(&mut self, node: usize, answer_at: Ps) {
        while let Some(ready) = self.nodes[node].rnic.take_ready() {
            if ready.answers {
                self.answer(node, ready.qpn, answer_at);
            }
            if ready.requests
                && let Some(slot) = self.nodes[node].slot(ready.qpn)
                && !self.nodes[node].queue_pairs[slot].is_queued
            {
                let host = &mut self.nodes[node];
                host.queue_pairs[slot].is_queued = true;
                let unit = host.queue_pairs[slot].unit;
                host.units[unit].waiting.push_back(slot);
                if !host.units[unit].is_scheduled {
                    self.transmit(node, unit);
                }
            }
        }
        let host = &mut self.nodes[node];
        host.rnic.transmitted();
        if let Some(at_ns) = host.rnic.poll_timeout() {
            let at = Ps::from_ns(at_ns);
            if at < host.timeout_at {
                host.timeout_at = at;
                self.push(at, What::Timeout { node: node as u32 });
            }
        }
    }

    /// Sends what queue pairs that were destroyed or reset have left.
    pub(crate) fn say_farewells(&mut self, node: usize) {
        let mut batch = self.take_batch();
        if self.nodes[node].rnic.pull_farewells(&mut batch) > 0 {
            self.send_batch(&batch, node, self.now, |host, testbed, info, bytes, at| {
                host.send_answer(at, testbed, info, bytes)
            });
        }
        self.batch = Some(batch);
    }

    fn take_batch(&mut self) -> TransmitBatch {
        let mut batch = self.batch.take().unwrap_or_else(|| TransmitBatch::new(BATCH_BYTES, 0));
        batch.clear();
        batch
    }

    /// A unit takes packets, for as long as it is free.
    fn transmit(&mut self, node: usize, unit: usize) {
        loop {
            let host = &mut self.nodes[node];
            // The first that waits and whose work request the NIC has.
            let mut earliest = Ps::MAX;
            let mut next = None;
            for place in 0..host.units[unit].waiting.len() {
                let slot = host.units[unit].waiting[place];
                let has_at = host.has_next_at(slot);
                if has_at <= self.now {
                    next = Some((place, slot));
                    break;
                }
                earliest = earliest.min(has_at);
            }
            let Some((place, slot)) = next else {
                if earliest < Ps::MAX {
                    self.schedule(node, unit, earliest);
                }
                return;
            };
            let free = host.unit_free(unit);
            if free > self.now {
                return self.schedule(node, unit, free);
            }
            host.units[unit].waiting.remove(place);
            let qpn = host.queue_pairs[slot].qpn;
            // One by one where queue pairs take turns.
            let is_alone = host.units[unit].waiting.is_empty();
            let packets = if is_alone { host.fetched_sends(self.now, slot).clamp(1, REQUESTS_AT_ONCE) } else { 1 };
            let budget = Budget { packets, ..Budget::UNLIMITED };
            let mut batch = self.batch.take().unwrap_or_else(|| TransmitBatch::new(BATCH_BYTES, 0));
            batch.clear();
            let pulled = host.rnic.pull(self.now.as_ns(), qpn, Part::Requests, budget, &mut batch);
            if pulled.more {
                host.units[unit].waiting.push_back(slot);
            } else {
                host.queue_pairs[slot].is_queued = false;
            }
            if pulled.packets > 0 {
                let (mut left, mut is_whole) = (Ps::ZERO, false);
                self.send_batch(&batch, node, self.now, |host, testbed, info, bytes, at| {
                    is_whole |= info.last;
                    left = host.send_request(at, testbed, slot, info, bytes);
                    left
                });
                if is_whole && self.nodes[node].queue_pairs[slot].kind != QpKind::Rc {
                    self.depart(node, qpn, left);
                }
            }
            self.batch = Some(batch);
        }
    }

    /// The last packets that a queue pair has sent have left at this time: messages of theirs that nobody acknowledges
    /// complete.
    fn depart(&mut self, node: usize, qpn: Qpn, left: Ps) {
        let Some((upto, _)) = self.nodes[node].rnic.next_send(qpn) else { return };
        let seen = self.nodes[node].complete_departure(left, &self.testbed);
        let departure = self.departures.insert(Departure { node, qpn, upto }) as u32;
        self.push(seen, What::Departure { departure });
    }

    fn schedule(&mut self, node: usize, unit: usize, at: Ps) {
        let place = &mut self.nodes[node].units[unit];
        if !place.is_scheduled {
            place.is_scheduled = true;
            self.push(at, What::Transmit { node: node as u32, unit: unit as u32 });
        }
    }

    fn answer(&mut self, node: usize, qpn: Qpn, at: Ps) {
        let slot = self.nodes[node].slot(qpn);
        if slot.is_some_and(|slot| self.nodes[node].queue_pairs[slot].answers_at.is_some()) {
            return; // behind what is being answered
        }
        let mut batch = self.take_batch();
        let budget = Budget { packets: ANSWERS_AT_ONCE, ..Budget::UNLIMITED };
        let pulled = self.nodes[node].rnic.pull(self.now.as_ns(), qpn, Part::Answers, budget, &mut batch);
        if pulled.packets > 0 {
            self.send_batch(&batch, node, at, |host, testbed, info, bytes, at| {
                host.send_answer(at, testbed, info, bytes)
            });
        }
        self.batch = Some(batch);
        if pulled.more
            && let Some(slot) = slot
        {
            let free = self.nodes[node].port.free().max(self.now);
            self.nodes[node].queue_pairs[slot].answers_at = Some(free);
            self.push(free, What::Answer { node: node as u32, qpn });
        }
    }

    /// Puts the packets of a batch on the line; `send` says when the last bit of each is there.
    fn send_batch(
        &mut self,
        batch: &TransmitBatch,
        from: usize,
        at: Ps,
        mut send: impl FnMut(&mut Node, &Testbed, &TransmitInfo, usize, Ps) -> Ps,
    ) {
        for run in batch.runs() {
            let infos = &batch.infos()[run.first_packet..];
            for (range, info) in run.segments().zip(infos) {
                let bytes = &batch.bytes()[range];
                let leaves = send(&mut self.nodes[from], &self.testbed, info, bytes.len(), at);
                let places = self.nodes.len() + usize::from(self.middlebox.is_some());
                let to = node_of(run.path.destination).filter(|&to| to < places);
                let Some(to) = to else { continue }; // nobody is there: it is lost, as on any network
                let number = self.frames.take(bytes);
                let frame = &mut self.frames[number];
                (frame.from, frame.to, frame.opcode) = (from, to, info.opcode);
                (frame.payload, frame.traffic_class) = (info.payload_bytes.into(), run.path.traffic_class);
                frame.source_port = dest_qpn(bytes).map_or(0, |peer| source_port(info.qpn, peer));
                self.launch(number, leaves);
            }
        }
    }

    /// A frame's last bit is on the line: it goes to a switch, or straight to the other end.
    fn launch(&mut self, number: usize, leaves: Ps) {
        let at = leaves + self.testbed.link.propagation;
        let frame = &mut self.frames[number];
        if self.network.has_switch() && frame.from != frame.to {
            let service = self.nodes[frame.from].port.time_of(line_bytes(frame.bytes.len()));
            self.network.enter(frame, leaves.since(service));
            self.push(at, What::Switch { frame: number as u32 });
        } else {
            self.arrive(number, at);
        }
    }

    /// A switch sends a frame on, or gives it to its middlebox.
    fn forward(&mut self, number: usize) {
        if self.frames[number].to == self.nodes.len() {
            return self.enter_box(number);
        }
        let frame = &mut self.frames[number];
        let (forwarded, paused) = self.network.forward(self.now, &self.testbed.switch, frame, &mut self.counts);
        self.pause(paused);
        match forwarded {
            Forwarded::Later(at) | Forwarded::AtSwitch(at) => self.push(at, What::Switch { frame: number as u32 }),
            Forwarded::AtNode(at) => self.arrive(number, at),
            Forwarded::Dropped => self.frames.give_back(number),
        }
    }

    fn pause(&mut self, paused: Option<Paused>) {
        let Some(Paused { node, from, by, check, check_at }) = paused else { return };
        if let Some(node) = node {
            self.nodes[node].port.pause(from, by);
        }
        self.push(check_at, What::Pause { check });
    }

    /// A frame's last bit comes off the line: from here to memory it is arithmetic.
    fn arrive(&mut self, number: usize, at: Ps) {
        let frame = &mut self.frames[number];
        if let Some(capture) = &mut self.capture {
            capture.arrived(self.now, at, frame);
        }
        let seen = self.nodes[frame.to].receive(at, &self.testbed, frame);
        self.push(seen, What::Delivery { frame: number as u32 });
    }

    fn deliver(&mut self, number: usize) {
        let now = self.now;
        self.counts.packets += 1;
        self.moved_at = now;
        let frame = &self.frames[number];
        let (to, answer_at) = (frame.to, frame.answer_at);
        let qpn = dest_qpn(&frame.bytes).map_or(0, Qpn::get);
        let what = (frame.bytes.len() as u64) << 32 | u64::from(qpn);
        let host = &mut self.nodes[to];
        host.ring_receives(now);
        host.rnic.handle_packet(now.as_ns(), &frame.outer(), &frame.bytes);
        self.frames.give_back(number);
        self.mix(now.0);
        self.mix(what);
        self.pump(to, answer_at);
    }

    fn time_out(&mut self, node: usize) {
        let now = self.now;
        let host = &mut self.nodes[node];
        host.timeout_at = Ps::MAX;
        host.ring_receives(now);
        host.rnic.handle_timeout(now.as_ns());
        self.pump(node, now);
    }

    /// How many switches there are.
    pub(crate) fn switches(&self) -> usize {
        self.network.switches()
    }

    /// How long the busiest port of a switch sent.
    pub(crate) fn switch_port_busy(&self) -> Ps {
        self.network.busy()
    }

    /// The address of a node.
    pub(crate) fn address(&self, node: usize) -> IpAddr {
        address_of(node)
    }
}
