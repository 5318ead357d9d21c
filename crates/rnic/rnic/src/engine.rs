//! One engine of a device. The documentation of [`Rnic`] states the order of calls of a driver.

mod faults;
mod multicast;
#[allow(unsafe_code)]
mod objects;
mod pull;
mod strays;
mod traffic;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use doorbell_verbs_core::{AsyncEvent, Counters, EventQueue, Notifier, QpDeath};
use doorbell_wire::{PathMtu, Qpn};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::commons::{Commons, Halt};
use crate::congestion::Window;
use crate::device::DeviceObjects;
use crate::limits::LIMITS;
use crate::memory::{Memory, RegionDirectory};
use crate::policy::Policy;
use crate::qp::Qp;
use crate::transmit::{ENGINE_SHIFT, EngineId};
use multicast::Group;

pub use pull::{Part, Pulled, Ready};
pub use strays::Stray;

/// Maximum average number of entries per queue pair in the timer list. When a queue pair gets an earlier deadline, its
/// old entry stays in the list. Above this average, the device removes such outdated entries.
const TIMERS_PER_QP: usize = 8;

const _: () = assert!(
    LIMITS.max_qps * 4 < 1 << ENGINE_SHIFT,
    "at most a quarter of the QPNs may be in use, so that a random QPN is usually free"
);

/// Options of a device.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Address of the device: its GID as an IP address. An IPv4-mapped GID is given as IPv4.
    pub address: IpAddr,
    /// Active MTU of the port: the maximum path MTU of its queue pairs.
    pub active_mtu: PathMtu,
    /// Size that the kernel has granted for the receive buffer of each engine. The device assumes that each peer has
    /// one buffer of the same size for the packets of all engines, until loss shows otherwise.
    pub receive_buffer_bytes: u64,
    /// Seed of the random keys, queue pair numbers and sequence numbers. On a network, the seed must come from the
    /// random number generator of the operating system, so that attackers cannot guess these numbers.
    pub seed: [u8; 32],
}

/// Lengths of the internal lists of a device. The number of objects and their capacities bound each length, so no list
/// grows without limit under traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Queue pairs that have packets to send.
    pub ready: usize,
    /// Queue pairs that wait for room in a window or in the link.
    pub waiting: usize,
    /// Queue pairs that wait for room in the window for READ responses. `waiting` counts them too.
    pub waiting_for_responses: usize,
    /// Queue pairs whose acknowledgement is held back.
    pub held_acks: usize,
    /// Deadlines, including outdated ones.
    pub timers: usize,
    /// Unsent answers to READs and atomics, unsent NAKs, and results of atomics that are stored for repeated requests.
    pub answers: usize,
    /// Unsent acknowledgements of queue pairs that were reset or destroyed.
    pub farewells: usize,
    /// Completions that the program cannot see yet. Either packets must leave before them, which the driver has not
    /// handed to the link, or an injected fault delays them.
    pub staged: usize,
}

/// Numbers of a device's objects and of the entries that the device keeps for them. After all objects are destroyed,
/// each number has the value that it had before their creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Protection domains.
    pub pds: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Entries for completion queues. Each engine has an entry for each completion queue that its queue pairs use.
    pub cq_ports: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Queue pair numbers in use.
    pub qpns: usize,
    /// Memory regions.
    pub regions: usize,
    /// Memory windows.
    pub windows: usize,
    /// Windows towards other devices.
    pub destinations: usize,
    /// Addresses in the index of the windows towards other devices.
    pub addresses: usize,
    /// Multicast groups that queue pairs of any engine are attached to.
    pub groups: usize,
    /// Keys of destroyed regions and invalidated windows that an engine still caches.
    pub stale_keys: usize,
    /// Asynchronous events that the program has not taken.
    pub events: usize,
}

impl Objects {
    /// Returns the numbers of these objects with those of another engine of the same device.
    pub fn with_engine(&self, other: &Self) -> Self {
        Self {
            cq_ports: self.cq_ports + other.cq_ports,
            qps: self.qps + other.qps,
            qpns: self.qpns + other.qpns,
            destinations: self.destinations + other.destinations,
            addresses: self.addresses + other.addresses,
            stale_keys: self.stale_keys + other.stale_keys,
            ..*self
        }
    }
}

/// An RNIC: one engine of a device, and the only one unless the driver [adds](Self::add_engine) further engines.
///
/// The upper four bits of a queue pair number name the engine of the queue pair. Each engine handles the packets of its
/// own queue pairs, so the driver passes each packet to the engine that its destination QPN names. Any thread may call
/// an engine without a lock of the others. All other objects belong to the device, and each engine creates and destroys
/// them.
///
/// The device holds no socket, reads no clock and starts no thread. Each time is a number of nanoseconds that never
/// decreases. A driver calls the device in this order:
///
/// 1. **Input**: any number of calls in any order. The driver calls [`handle_packets`](Self::handle_packets) for
///    received packets, and [`handle_timeout`](Self::handle_timeout) once the time of
///    [`poll_timeout`](Self::poll_timeout) has come. If [`is_answer_overdue`](Self::is_answer_overdue) returns true
///    then, the driver first handles all packets that have arrived. Programs call the `post_*` functions.
/// 2. **Output**: the driver calls [`poll_transmit`](Self::poll_transmit) and sends the batch, until `poll_transmit`
///    adds no packet. Then it calls [`transmitted`](Self::transmitted). The device holds a due acknowledgement back for
///    up to [`Policy::ack_hold_ns`], so that the acknowledgement can leave together with other packets. A driver
///    without other work calls [`release_acks`](Self::release_acks) before `poll_transmit`.
/// 3. **Waiting** until a packet arrives or the time of [`poll_timeout`](Self::poll_timeout) has come. The driver must
///    call `poll_timeout` again after every input and output.
///
/// When a call returns, its completions are in their queues, with one exception. After a message on a reliable
/// connection has completed a receive, all completions stay invisible until the driver calls `transmitted`. The link
/// then has the acknowledgement of the message. A program that sees the completion may therefore end at once, and its
/// peer still gets the acknowledgement.
///
/// Programs reap completion queues ([`completion_queue`](Self::completion_queue)) without access to the RNIC.
/// [`poll_event`](Self::poll_event) returns asynchronous events, and [`take_deaths`](Self::take_deaths) the reasons for
/// which queue pairs failed.
pub struct Rnic {
    config: Config,
    core: Commons,
    engine: EngineId,
    device: Arc<DeviceObjects>,
    qps: Slab<Qp>,
    by_number: FxHashMap<u32, u32>,
    by_address: FxHashMap<IpAddr, usize>,
    /// Multicast groups with queue pairs of this engine.
    groups: FxHashMap<IpAddr, Group>,
    timers: BinaryHeap<Reverse<(u64, u32, Qpn)>>,
    /// Packets to queue pairs of other engines.
    strays: Vec<Stray>,
    /// Held acknowledgements, ordered by time: the time at which the acknowledgement became due, and the slot and the
    /// number of its queue pair.
    held_acks: VecDeque<(u64, u32, Qpn)>,
    qpn_rng: ChaCha12Rng,
    psn_rng: ChaCha12Rng,
}

impl std::fmt::Debug for Rnic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rnic").field("config", &self.config).field("qps", &self.qps.len()).finish_non_exhaustive()
    }
}

/// Numbers of the streams of random numbers: one for keys, and one for each engine's QPNs and PSNs.
const KEY_STREAM: u64 = 0;

fn qpn_stream(engine: EngineId) -> u64 {
    1 + 2 * u64::from(engine.0)
}

fn psn_stream(engine: EngineId) -> u64 {
    2 + 2 * u64::from(engine.0)
}

/// Returns a random number generator with the seed of the device. Different stream numbers give independent sequences.
fn stream_of(config: &Config, number: u64) -> ChaCha12Rng {
    let mut rng = ChaCha12Rng::from_seed(config.seed);
    rng.set_stream(number);
    rng
}

impl Rnic {
    /// Creates a device without objects. The device calls `notifier` for each asynchronous event.
    pub fn new(config: Config, notifier: Option<Notifier>) -> Self {
        Self::with_policy(config, Policy::default(), notifier)
    }

    /// Creates a device with a policy other than the default.
    pub fn with_policy(config: Config, policy: Policy, notifier: Option<Notifier>) -> Self {
        let device = DeviceObjects::new(EventQueue::new(notifier), stream_of(&config, KEY_STREAM));
        Self::of_device(config, policy, EngineId(0), Arc::new(device))
    }

    /// Adds an engine to the device, with the same options and policy. Returns `None` if the device has its maximum
    /// number of engines.
    pub fn add_engine(&self) -> Option<Self> {
        let engine = self.device.add_engine()?;
        let mut added = Self::of_device(self.config, self.core.policy, engine, Arc::clone(&self.device));
        added.core.acks_may_wait = self.core.acks_may_wait;
        added.core.memory.checks_late = self.core.memory.checks_late;
        Some(added)
    }

    fn of_device(config: Config, policy: Policy, engine: EngineId, device: Arc<DeviceObjects>) -> Self {
        let inbound = Window::new(config.receive_buffer_bytes, policy.max_window_bytes);
        let read_piece_cost = match policy.read_pieces_per_window {
            0 => u64::MAX,
            pieces => inbound.limit() / pieces,
        };
        let memory = Memory::new(Arc::clone(&device.regions) as Arc<dyn RegionDirectory>);
        let core = Commons::new(policy, memory, Arc::clone(&device.events), inbound, read_piece_cost);
        Self {
            config,
            core,
            engine,
            device,
            qps: Slab::new(),
            by_number: FxHashMap::default(),
            by_address: FxHashMap::default(),
            groups: FxHashMap::default(),
            timers: BinaryHeap::new(),
            strays: Vec::new(),
            held_acks: VecDeque::new(),
            qpn_rng: stream_of(&config, qpn_stream(engine)),
            psn_rng: stream_of(&config, psn_stream(engine)),
        }
    }

    /// Returns the options of the device.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the identifier of this engine.
    pub fn engine(&self) -> EngineId {
        self.engine
    }

    /// Returns the policy of the device.
    pub fn policy(&self) -> &Policy {
        &self.core.policy
    }

    /// Removes and returns the oldest asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.core.events.pop()
    }

    /// Returns the queue of asynchronous events, from which a program reads without access to the RNIC.
    pub fn events(&self) -> &Arc<EventQueue> {
        &self.core.events
    }

    /// Returns whether the device has deaths of queue pairs for [`take_deaths`](Self::take_deaths).
    #[inline]
    pub fn has_deaths(&self) -> bool {
        !self.core.deaths.is_empty()
    }

    /// Removes and returns the deaths of queue pairs, oldest first. The device keeps at most 1,024 deaths until the
    /// next call. It only counts the later ones, and their number follows the deaths.
    pub fn take_deaths(&mut self) -> (Vec<QpDeath>, u64) {
        (std::mem::take(&mut self.core.deaths), std::mem::take(&mut self.core.omitted_deaths))
    }

    /// Returns the counters of the device.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Returns the lengths of the internal lists.
    pub fn backlog(&self) -> Backlog {
        let destinations = self.core.destinations.iter().map(|(_, destination)| destination.window.waiting.len());
        Backlog {
            ready: self.core.ready.len(),
            waiting: destinations.sum::<usize>() + self.core.inbound.waiting.len() + self.core.awaiting_link.len(),
            waiting_for_responses: self.core.inbound.waiting.len(),
            held_acks: self.held_acks.len(),
            timers: self.timers.len(),
            answers: self.qps.iter().map(|(_, qp)| qp.resp.backlog()).sum(),
            farewells: self.core.farewells.len(),
            staged: self.core.staged_count(),
        }
    }

    /// Returns the numbers of the device's objects. Queue pairs and the entries for them are those of this engine. The
    /// first engine counts the stale keys of the device's objects.
    pub fn objects(&self) -> Objects {
        let (regions, windows) = self.device.regions.counts();
        let counts = self.device.counts();
        let of_device = if self.engine == EngineId(0) { self.device.stale_keys() } else { 0 };
        Objects {
            pds: counts.pds,
            cqs: counts.cqs,
            cq_ports: self.core.cq_count(),
            srqs: counts.srqs,
            qps: self.qps.len(),
            qpns: self.by_number.len(),
            regions,
            windows,
            destinations: self.core.destinations.len(),
            addresses: self.by_address.len(),
            groups: counts.groups,
            stale_keys: self.core.memory.stale_keys() + of_device,
            events: self.core.events.waiting(),
        }
    }

    /// Restarts the generators of queue pair numbers and keys, so that the next objects get the numbers and keys of
    /// destroyed objects. Only for tests of state that outlives its object: on a network, the numbers would be
    /// guessable.
    #[doc(hidden)]
    pub fn repeat_numbers(&mut self) {
        self.device.replace_key_rng(stream_of(&self.config, KEY_STREAM));
        self.qpn_rng = stream_of(&self.config, qpn_stream(self.engine));
    }

    /// Raises [`AsyncEvent::DeviceFatal`] (IBTA Vol 1, 11.6.3), and puts the queue pairs of this engine into the error
    /// state. The caller then calls [`fail_queue_pairs`](Self::fail_queue_pairs) of the other engines.
    pub fn fail(&mut self) {
        self.core.events.push(AsyncEvent::DeviceFatal);
        self.fail_queue_pairs();
    }

    /// Puts the queue pairs of this engine into the error state, since the device has failed.
    pub fn fail_queue_pairs(&mut self) {
        let slots: Vec<u32> = self.qps.iter().map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            self.qps[slot as usize].enter_error(&mut self.core);
            self.settle(slot);
        }
        self.publish();
    }

    fn slot(&self, qpn: Qpn) -> Option<u32> {
        self.by_number.get(&qpn.get()).copied()
    }

    /// Updates the device's lists of ready queue pairs, deadlines and waiting queue pairs after a change of a queue
    /// pair.
    #[inline]
    fn settle(&mut self, slot: u32) {
        let qp = &mut self.qps[slot as usize];
        let policy = &self.core.policy;
        let ack_is_held = policy.ack_hold_ns > 0;
        let waits = ack_is_held || policy.acks_follow_requests && qp.has_request_to_send();
        if !waits {
            qp.resp.release_ack();
        }
        let ready = qp.resp.has_answers() || qp.has_request_to_send();
        if ready && !qp.queued {
            qp.queued = true;
            self.core.ready.push_back(slot);
        }
        if ack_is_held
            && let Some(since) = qp.resp.held_ack_since_ns()
            && !qp.ack_held
        {
            qp.ack_held = true;
            // The list is ordered by time, and nearly always the new entry is the latest one. It is not if the list
            // contained an outdated entry of this queue pair until now: then the current acknowledgement may have
            // become due before others in the list.
            let place = self.held_acks.iter().rposition(|&(other, ..)| other <= since).map_or(0, |at| at + 1);
            self.held_acks.insert(place, (since, slot, qp.qpn));
        }
        self.arm_timer(slot);
        self.wake_waiters_of(slot);
    }

    #[inline]
    fn arm_timer(&mut self, slot: u32) {
        let qp = &mut self.qps[slot as usize];
        if let Some(deadline) = qp.requester_deadline_ns()
            && deadline < qp.timer_queued_ns
        {
            qp.timer_queued_ns = deadline;
            self.timers.push(Reverse((deadline, slot, qp.qpn)));
            if self.timers.len() > TIMERS_PER_QP * self.qps.len() + TIMERS_PER_QP {
                let qps = &self.qps;
                self.timers.retain(|&Reverse((at, slot, qpn))| {
                    let is_valid = |qp: &Qp| qp.qpn == qpn && qp.timer_queued_ns == at;
                    slot == faults::NO_SLOT || qps.get(slot as usize).is_some_and(is_valid)
                });
            }
        }
    }

    /// If the windows that this queue pair uses have room, wakes the next queue pair that waits for each of them.
    #[inline]
    fn wake_waiters_of(&mut self, slot: u32) {
        if let Some(destination) = self.qps[slot as usize].destination {
            let next = self.core.destinations[destination].window.next_waiting();
            self.wake(next);
        }
        let next = self.core.inbound.next_waiting();
        self.wake(next);
    }

    fn wake(&mut self, slot: Option<u32>) {
        let Some(slot) = slot else { return };
        let qp = &mut self.qps[slot as usize];
        qp.blocked = false;
        if !qp.queued {
            qp.queued = true;
            self.core.ready.push_back(slot);
        }
    }

    /// Moves completions to their queues. If a queue overruns, puts the queue pairs that use it into the error state
    /// (IBTA Vol 1, 11.6.3.1).
    #[inline]
    fn publish(&mut self) {
        let mut is_struck = false;
        while let Some(halt) = self.core.publish(is_struck) {
            let Halt::Overrun { port, id } = halt else {
                self.strike();
                is_struck = true;
                continue;
            };
            if self.core.claim_overrun(port) {
                self.core.events.push(AsyncEvent::CqError(id));
            }
            let users: Vec<u32> = self
                .qps
                .iter()
                .filter(|(_, qp)| qp.send_cq == port || qp.recv_cq == port)
                .map(|(slot, _)| slot as u32)
                .collect();
            for slot in users {
                self.qps[slot as usize].enter_error(&mut self.core);
                self.settle(slot);
            }
        }
    }
}
