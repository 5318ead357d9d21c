//! The virtual-time kernel.
//!
//! The kernel handles events in the order of time, and threads have their turns in the order of their clocks. Each part
//! of the hardware is a station: the kernel computes the time at which a station serves a request.

mod cache;
pub(crate) mod capture;
mod counts;
mod events;
mod faults;
mod frames;
mod hop;
pub(crate) mod locks;
mod middlebox;
mod network;
mod node;
mod outside;
mod stations;
mod stores;
mod threads;
pub(crate) mod watch;

use std::net::IpAddr;
use std::sync::Arc;

use doorbell_fabric::{VerbsFaults, log_deaths};
use doorbell_rnic::{Budget, Part, TransmitBatch, TransmitInfo};
use doorbell_verbs_core::QpKind;
use doorbell_wire::Qpn;
use slab::Slab;

use cache::Caches;
use capture::Capture;
pub use counts::{Counts, NodeTimes};
use events::{Event, EventKind, Events};
pub(crate) use faults::InjectedFaults;
use frames::Frames;
pub(crate) use middlebox::Middlebox;
use network::{Arrival, Forwarded, Network, Paused};
pub(crate) use node::{Node, address_of};
use node::{dest_qpn, line_bytes, node_of, source_port};
use stores::FutureStores;
pub(crate) use threads::{Suspension, Thread, ThreadState};

use watch::{Change, Changes, ThreadId};

use crate::testbed::Testbed;
use crate::time::Ps;
use crate::topology::Topology;

/// A doorbell on its way to a NIC. The doorbell covers the sends up to the number `upto`. The NIC must fetch `fetch`
/// bytes for the work requests of these sends.
#[derive(Clone, Copy, Debug)]
struct Doorbell {
    node: usize,
    qpn: Qpn,
    upto: u64,
    fetch: u64,
}

/// Departure of sends on an unacknowledged transport, up to the send with the number `upto`.
#[derive(Clone, Copy, Debug)]
struct Departure {
    node: usize,
    qpn: Qpn,
    upto: u64,
}

/// Time at which responses leave an RNIC.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaves {
    Now,
    /// At this time, which may be in the past.
    At(Ps),
    /// Before now by the time that the last packet of the queue pair took from its earliest response to its delivery.
    BeforeDelivery,
}

/// Maximum number of packets that a unit takes at once from a queue pair while no other queue pair waits for the unit.
const REQUESTS_AT_ONCE: usize = 4;

/// Maximum number of response packets of a READ that a NIC sends before other queue pairs have their turn.
const ANSWERS_AT_ONCE: usize = 8;

/// Size in bytes of the buffer for the packets of one `Rnic::pull`.
const BATCH_BYTES: usize = 64 << 10;

/// Result of a step of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The kernel has handled an event of the hardware.
    Done,
    /// The turn of a thread has begun.
    Turn(ThreadId),
    /// No event is left.
    Idle,
}

/// State of the whole simulation, except for the futures of the threads.
pub(crate) struct World {
    pub(crate) testbed: Testbed,
    now: Ps,
    events: Events,
    pub(crate) nodes: Vec<Node>,
    pub(crate) threads: Vec<Thread>,
    /// The running thread, which has its turn.
    pub(crate) current: Option<ThreadId>,
    /// Threads that wait for results of other threads of their host.
    followers: Vec<ThreadId>,
    pub(crate) changes: Arc<Changes>,
    caches: Caches,
    taken: Vec<Change>,
    doorbells: Slab<Doorbell>,
    departures: Slab<Departure>,
    frames: Frames,
    /// Buffer for the frames that leave the middlebox.
    from_box: Vec<usize>,
    /// Reusable batch; `None` while its packets are put on the line.
    batch: Option<TransmitBatch>,
    network: Network,
    pub(crate) middlebox: Option<Box<Middlebox>>,
    pub(crate) counts: Counts,
    pub(crate) capture: Option<Capture>,
    /// Injected faults of each node; empty without a plan.
    pub(crate) faults: Vec<InjectedFaults>,
    /// Injected faults of the calls and completions of each node; empty without rules for them.
    pub(crate) verbs_faults: Vec<VerbsFaults>,
    digest: u64,
    /// Least latency between two threads.
    pub(crate) least_latency: Ps,
    /// Time at which a node or the middlebox received the last packet.
    pub(crate) moved_at: Ps,
}

impl World {
    pub(crate) fn new(testbed: Testbed, topology: Topology, seed: [u8; 32]) -> Self {
        let mut nodes: Vec<_> = (0..topology.nodes()).map(|index| Node::new(index, &testbed, seed)).collect();
        let (pcie, nic, link) = (&testbed.pcie, &testbed.nic, &testbed.link);
        let switched = if topology.switches() > 0 { testbed.switch.latency + link.propagation } else { Ps::ZERO };
        let least_latency = pcie.doorbell + nic.transmit + link.propagation + switched + nic.receive + pcie.write;
        nodes.iter_mut().for_each(|node| node.stores = FutureStores::new(least_latency.times(2)));
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
            faults: Vec::new(),
            verbs_faults: Vec::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            moved_at: Ps::ZERO,
            testbed,
        }
    }

    /// Returns the clock of the running thread, or the time of the hardware if no thread runs.
    pub(crate) fn clock(&self) -> Ps {
        self.current.map_or(self.now, |thread| self.threads[thread].clock)
    }

    /// Returns the time of the hardware.
    pub(crate) fn now(&self) -> Ps {
        self.now
    }

    /// Returns whether no packet is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.frames.is_empty() && self.faults.iter().all(InjectedFaults::is_empty)
    }

    /// Returns a digest of all events. A change of the time, order or target of any event changes the digest.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    fn mix(&mut self, value: u64) {
        self.digest = (self.digest.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn push(&mut self, at: Ps, kind: EventKind) {
        self.events.push(at.max(self.now), kind);
    }

    /// Rings the doorbell of a queue pair for all posted sends, at the clock of the running thread.
    pub(crate) fn ring(&mut self, node: usize, qpn: Qpn, fetch: u64) {
        let at = self.clock() + self.testbed.pcie.doorbell;
        let upto = self.nodes[node].rnic.posted_sends(qpn);
        let doorbell = self.doorbells.insert(Doorbell { node, qpn, upto, fetch }) as u32;
        self.push(at, EventKind::Doorbell { doorbell });
    }

    /// Handles the next event.
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
        match event.kind {
            EventKind::Turn { .. } => return Step::Done,
            EventKind::Alarm { thread } => {
                self.set_alarm_again(thread as usize);
                return Step::Done;
            }
            EventKind::Doorbell { doorbell } => self.doorbell(doorbell as usize),
            EventKind::Transmit { node, unit } => {
                self.nodes[node as usize].units[unit as usize].is_scheduled = false;
                self.transmit(node as usize, unit as usize);
            }
            EventKind::Departure { departure } => {
                let Departure { node, qpn, upto } = self.departures.remove(departure as usize);
                self.nodes[node].rnic.sends_departed(self.now.as_ns(), qpn, upto);
                self.pump(node, Leaves::Now);
            }
            EventKind::Answer { node, qpn } => {
                if let Some(slot) = self.nodes[node as usize].slot(qpn) {
                    self.nodes[node as usize].queue_pairs[slot].answers_at = None;
                    self.answer(node as usize, qpn, self.now);
                }
            }
            EventKind::Switch { frame } => self.forward(frame as usize),
            EventKind::Pause { check } => {
                let paused = self.network.check(self.now, &self.testbed.switch, check, &mut self.counts);
                self.pause(paused);
            }
            EventKind::Steer { frame } => self.steer(frame as usize),
            EventKind::SteerTimeout => self.time_out_box(),
            EventKind::Delivery { frame } => self.deliver(frame as usize),
            EventKind::Released { node } => self.release_delayed(node as usize),
            EventKind::Timeout { node } => self.time_out(node as usize),
        }
        self.counts.events += 1;
        self.wake();
        Step::Done
    }

    /// Advances the hardware to the clock of the running thread. Returns true if the thread may continue at once,
    /// since no other thread has an earlier turn.
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
            // The state for which the other tasks of the thread wait may have changed. Let these tasks poll again
            // before the thread waits.
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
        self.pump(node, Leaves::Now);
    }

    /// Sends the pending packets of an RNIC.
    pub(crate) fn pump(&mut self, node: usize, answers: Leaves) {
        while let Some(ready) = self.nodes[node].rnic.take_ready() {
            if ready.answers {
                let host = &self.nodes[node];
                let at = match answers {
                    Leaves::Now => self.now,
                    Leaves::At(at) => at,
                    Leaves::BeforeDelivery => {
                        let before =
                            host.slot(ready.qpn).map_or(Ps::ZERO, |slot| host.queue_pairs[slot].answers_before);
                        self.now.since(before)
                    }
                };
                self.answer(node, ready.qpn, at);
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
        if host.rnic.has_deaths() {
            let (deaths, omitted) = host.rnic.take_deaths();
            log_deaths(&deaths, omitted);
        }
        if let Some(at_ns) = host.rnic.poll_timeout() {
            let at = Ps::from_ns(at_ns);
            if host.timeouts.last().is_none_or(|&earliest| at < earliest) {
                host.timeouts.push(at);
                self.push(at, EventKind::Timeout { node: node as u32 });
            }
        }
    }

    /// Sends the last packets of queue pairs that were destroyed or reset.
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

    /// Lets a processing unit send packets until the unit is busy or has no work.
    fn transmit(&mut self, node: usize, unit: usize) {
        loop {
            let host = &mut self.nodes[node];
            // Find the first waiting queue pair whose next work request the NIC has fetched.
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
            // Queue pairs that share the unit take turns with one packet each.
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
            if pulled.answers {
                self.answer(node, qpn, self.nodes[node].unit_free(unit).max(self.now));
            }
        }
    }

    /// Schedules the completion of the sent messages of a queue pair with an unacknowledged transport. The last packet
    /// of these messages left at the time `left`.
    fn depart(&mut self, node: usize, qpn: Qpn, left: Ps) {
        let Some((upto, _)) = self.nodes[node].rnic.next_send(qpn) else { return };
        let seen = self.nodes[node].complete_departure(left, &self.testbed);
        let departure = self.departures.insert(Departure { node, qpn, upto }) as u32;
        self.push(seen, EventKind::Departure { departure });
    }

    fn schedule(&mut self, node: usize, unit: usize, at: Ps) {
        let place = &mut self.nodes[node].units[unit];
        if !place.is_scheduled {
            place.is_scheduled = true;
            self.push(at, EventKind::Transmit { node: node as u32, unit: unit as u32 });
        }
    }

    fn answer(&mut self, node: usize, qpn: Qpn, at: Ps) {
        let slot = self.nodes[node].slot(qpn);
        if slot.is_some_and(|slot| self.nodes[node].queue_pairs[slot].answers_at.is_some()) {
            return; // the NIC first sends the remaining responses of the current READ
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
            self.push(free, EventKind::Answer { node: node as u32, qpn });
        }
    }

    /// Puts the packets of a batch on the line. `send` returns the time at which the last bit of a packet is on the
    /// line.
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
                let Some(to) = to else { continue }; // no such node: the packet is lost
                if self.faults.get(from).is_some_and(|faults| !faults.is_up()) {
                    continue; // the port of the node is down: the packet is lost
                }
                let source_port = dest_qpn(bytes).map_or(0, |peer| source_port(info.qpn, peer));
                if self.faults.get(from).is_some_and(InjectedFaults::strike_leaving) {
                    self.send_under_faults(from, leaves, &run.path, source_port, bytes);
                    continue;
                }
                let number = self.frames.take(bytes);
                let frame = &mut self.frames[number];
                (frame.from, frame.to, frame.opcode) = (from, to, info.opcode);
                (frame.payload, frame.traffic_class) = (info.payload_bytes.into(), run.path.traffic_class);
                frame.source_port = source_port;
                self.launch(number, leaves);
            }
        }
    }

    /// Sends a frame to a switch or directly to the other node. The last bit of the frame is on the line at `leaves`.
    fn launch(&mut self, number: usize, leaves: Ps) {
        let at = leaves + self.testbed.link.propagation;
        let frame = &mut self.frames[number];
        if self.network.has_switch() && frame.from != frame.to {
            let service = self.nodes[frame.from].port.time_of(line_bytes(frame.bytes.len()));
            self.network.enter(frame, leaves.since(service));
            self.push(at, EventKind::Switch { frame: number as u32 });
        } else {
            self.arrive(number, at);
        }
    }

    /// Forwards a frame at a switch, or gives the frame to the middlebox, unless a pause has delayed its arrival.
    fn forward(&mut self, number: usize) {
        match self.network.arrive(self.now, number as u32, &mut self.frames[number].hop) {
            Arrival::Behind => return,
            Arrival::Later(at) => return self.push(at, EventKind::Switch { frame: number as u32 }),
            Arrival::Now(None) => {}
            Arrival::Now(Some((next, at))) => {
                let later = self.network.held_up(&mut self.frames[next as usize].hop);
                self.push(at + later, EventKind::Switch { frame: next });
            }
        }
        if self.frames[number].to == self.nodes.len() {
            return self.enter_box(number);
        }
        let frame = &mut self.frames[number];
        let (forwarded, paused) = self.network.forward(self.now, &self.testbed.switch, frame, &mut self.counts);
        self.pause(paused);
        match forwarded {
            Forwarded::AtSwitch(at) => self.push(at, EventKind::Switch { frame: number as u32 }),
            Forwarded::AtNode(at) => self.arrive(number, at),
            Forwarded::Dropped => self.frames.give_back(number),
        }
    }

    fn pause(&mut self, paused: Option<Paused>) {
        let Some(Paused { node, from, by, check, check_at }) = paused else { return };
        if let Some(node) = node {
            self.nodes[node].port.pause(from, by);
        }
        self.push(check_at, EventKind::Pause { check });
    }

    /// Computes the time at which an arriving frame is handled or visible in memory. Schedules the delivery of the
    /// frame for this time.
    fn arrive(&mut self, number: usize, at: Ps) {
        let frame = &mut self.frames[number];
        if let Some(capture) = &mut self.capture {
            capture.arrived(self.now, at, frame);
        }
        let seen = self.nodes[frame.to].receive(at, &self.testbed, frame);
        self.push(seen, EventKind::Delivery { frame: number as u32 });
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
        let due = match self.faults.get_mut(to) {
            None => {
                host.rnic.handle_packet(now.as_ns(), &frame.outer(), &frame.bytes);
                None
            }
            Some(faults) => faults.receive(now, frame, &mut host.rnic),
        };
        if let Some(due) = due {
            self.push(due, EventKind::Released { node: to as u32 });
        }
        self.frames.give_back(number);
        self.mix(now.0);
        self.mix(what);
        self.pump(to, Leaves::At(answer_at));
    }

    fn time_out(&mut self, node: usize) {
        let now = self.now;
        let host = &mut self.nodes[node];
        host.timeouts.pop();
        host.ring_receives(now);
        host.rnic.handle_timeout(now.as_ns());
        self.pump(node, Leaves::BeforeDelivery);
    }

    /// Returns the number of switches.
    pub(crate) fn switches(&self) -> usize {
        self.network.switches()
    }

    /// Returns the busy time of the busiest switch port.
    pub(crate) fn switch_port_busy(&self) -> Ps {
        self.network.busy()
    }

    /// Returns the address of a node.
    pub(crate) fn address(&self, node: usize) -> IpAddr {
        address_of(node)
    }
}
