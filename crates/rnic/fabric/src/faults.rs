//! Injection of network faults into inbound packets. With the same plan, which includes a seed, the same packets suffer
//! the same faults.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;

use doorbell_rnic::TransmitBatch;
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{FaultMarks, Outer};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub use plan::{FaultPlan, FaultPlanError};

use crate::link::{Link, LinkProperties, ReceivedRun, Sink};

/// Maximum number of later packets that pass a reordered packet. Later packets that are held back too do not count.
const REORDER_DISTANCE_MAX: u32 = 4;

/// Maximum time that a reordered packet waits for later packets. Without this limit, the final packet of a burst could
/// wait forever.
const REORDER_WAIT_NS: u64 = 50_000;

/// Maximum total bytes of packets that are held back. If there are more, the oldest packet passes early.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Maximum number of packets that are held back. If there are more, the oldest packet passes early.
const HELD_PACKETS_MAX: usize = 1 << 17;

/// Number of occurrences of each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Packets that arrived.
    pub packets: u64,
    /// Packets dropped on purpose.
    pub dropped: u64,
    /// Packets that were passed on twice.
    pub duplicated: u64,
    /// Packets that were held back until later packets had passed.
    pub reordered: u64,
    /// Packets with a flipped bit. If the link has no ICRC that would reveal the change, these packets are also
    /// dropped.
    pub corrupted: u64,
    /// Packets delayed.
    pub delayed: u64,
    /// Packets that passed early because too many were held back.
    pub overfull: u64,
}

/// A link that injects faults into its inbound packets.
///
/// The link first drops, corrupts or duplicates a packet. Packets that were not dropped then wait for the delay. After
/// the delay, reordered packets wait until later packets have passed them. Packets without a fault stay in their runs.
/// For each kind of fault, the link draws once per packet from a separate random stream. So each kind strikes the same
/// packets, whatever the plan says about other kinds.
#[derive(Debug)]
pub struct Faults<L> {
    inner: L,
    state: State,
}

impl<L: Link> Faults<L> {
    /// Injects the faults of a plan into the packets that `inner` receives.
    pub fn new(inner: L, plan: FaultPlan) -> Self {
        let sealed = inner.properties().sealed;
        Self { inner, state: State::new(plan, sealed) }
    }

    /// Returns the plan.
    pub fn plan(&self) -> &FaultPlan {
        &self.state.plan
    }

    /// Returns the number of occurrences of each fault.
    pub fn counters(&self) -> FaultCounters {
        self.state.counters
    }

    /// Returns the wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }
}

impl<L: Link> Link for Faults<L> {
    fn inner(&self) -> Option<&dyn Link> {
        Some(&self.inner)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        Some(&mut self.inner)
    }

    fn properties(&self) -> LinkProperties {
        self.inner.properties()
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        self.inner.transmit(now_ns, batch, next)
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { inner, state } = self;
        let mut out = Out { sink, packets: 0 };
        state.release_due(now_ns, &mut out);
        inner.receive(now_ns, &mut |run: ReceivedRun<'_>| state.take(now_ns, run, &mut out))?;
        Ok(out.packets)
    }

    fn poll_timeout(&self) -> Option<u64> {
        let own = self.state.next_due();
        own.into_iter().chain(self.inner.poll_timeout()).min()
    }

    fn link_counters(&self) -> LinkCounters {
        let counted = &self.state.counters;
        self.inner.link_counters().plus(&LinkCounters {
            fault_dropped: counted.dropped,
            fault_duplicated: counted.duplicated,
            fault_reordered: counted.reordered,
            fault_corrupted: counted.corrupted,
            fault_delayed: counted.delayed,
            ..LinkCounters::default()
        })
    }
}

/// The sink to which packets are passed, and the number of packets passed so far.
struct Out<'a> {
    sink: &'a mut dyn Sink,
    packets: usize,
}

impl Out<'_> {
    fn give(&mut self, run: ReceivedRun<'_>) {
        self.packets += run.bytes.len().div_ceil(run.segment_bytes.max(1));
        self.sink.receive(run);
    }

    /// Passes a packet to the sink, with marks for the faults that struck it.
    fn give_marked(&mut self, run: ReceivedRun<'_>, marks: FaultMarks) {
        if marks.is_empty() {
            return self.give(run);
        }
        self.packets += usize::from(!marks.has(FaultMarks::DROPPED));
        self.sink.receive_faulty(run, marks);
    }
}

/// A copy of a packet that is held back or was changed.
#[derive(Debug)]
struct Held {
    outer: Outer,
    source_port: u16,
    bytes: Vec<u8>,
    /// Time at which the packet is passed on at the latest.
    due_ns: u64,
    /// Number of other packets that still have to pass this packet.
    distance: u32,
    marks: FaultMarks,
}

impl Held {
    fn give(&self, out: &mut Out<'_>) {
        let (outer, source_port) = (self.outer, self.source_port);
        let run = ReceivedRun { outer, source_port, bytes: &self.bytes, segment_bytes: self.bytes.len() };
        out.give_marked(run, self.marks);
    }
}

/// Faults of one packet.
struct Fate {
    dropped: bool,
    corrupted_bit: Option<u64>,
    duplicated: bool,
    /// Number of other packets that have to pass this packet; 0 if the packet is not reordered.
    distance: u32,
}

impl Fate {
    fn is_plain(&self) -> bool {
        !self.dropped && self.corrupted_bit.is_none() && !self.duplicated && self.distance == 0
    }
}

#[derive(Debug)]
struct State {
    plan: FaultPlan,
    sealed: bool,
    drop: Dice,
    corrupt: Dice,
    duplicate: Dice,
    reorder: Dice,
    /// Packets that wait for the delay, in the order in which they are due.
    delayed: VecDeque<Held>,
    /// Reordered packets that wait until later packets have passed them.
    waiting: Vec<Held>,
    held_bytes: usize,
    counters: FaultCounters,
}

impl State {
    fn new(plan: FaultPlan, sealed: bool) -> Self {
        Self {
            plan,
            sealed,
            drop: Dice::new(plan.seed, 0, plan.drop),
            corrupt: Dice::new(plan.seed, 1, plan.corrupt),
            duplicate: Dice::new(plan.seed, 2, plan.duplicate),
            reorder: Dice::new(plan.seed, 3, plan.reorder),
            delayed: VecDeque::new(),
            waiting: Vec::new(),
            held_bytes: 0,
            counters: FaultCounters::default(),
        }
    }

    fn next_due(&self) -> Option<u64> {
        let waiting = self.waiting.iter().map(|held| held.due_ns).min();
        waiting.into_iter().chain(self.delayed.front().map(|held| held.due_ns)).min()
    }

    /// Handles a run that has just arrived.
    fn take(&mut self, now_ns: u64, run: ReceivedRun<'_>, out: &mut Out<'_>) {
        // Offset of the first packet that has not been passed on. The packets from there to `at` have no fault and are
        // passed on together.
        let mut plain_from = 0;
        let mut at = 0;
        for packet in run.segments() {
            self.counters.packets += 1;
            let fate = self.decide();
            let from = at;
            at += packet.len();
            // If reordered packets wait, each packet is passed on separately, since a waiting packet may have to follow
            // it.
            if fate.is_plain() && self.plan.delay_ns == 0 && self.waiting.is_empty() {
                continue;
            }
            if plain_from < from {
                out.give(ReceivedRun { bytes: &run.bytes[plain_from..from], ..run });
            }
            plain_from = at;
            self.suffer(now_ns, &run, packet, &fate, out);
        }
        if plain_from < at {
            out.give(ReceivedRun { bytes: &run.bytes[plain_from..at], ..run });
        }
    }

    fn decide(&mut self) -> Fate {
        Fate {
            dropped: self.drop.roll().is_some(),
            corrupted_bit: self.corrupt.roll(),
            duplicated: self.duplicate.roll().is_some(),
            distance: match self.reorder.roll() {
                Some(random) => 1 + (random % u64::from(REORDER_DISTANCE_MAX)) as u32,
                None => 0,
            },
        }
    }

    fn suffer(&mut self, now_ns: u64, run: &ReceivedRun<'_>, packet: &[u8], fate: &Fate, out: &mut Out<'_>) {
        let lost = |marks: FaultMarks| {
            let run = ReceivedRun { bytes: packet, segment_bytes: packet.len(), ..*run };
            (run, marks.and(FaultMarks::DROPPED))
        };
        if fate.dropped {
            self.counters.dropped += 1;
            let (run, marks) = lost(FaultMarks::NONE);
            return out.give_marked(run, marks);
        }
        let mut bytes = packet.to_vec();
        if let Some(random) = fate.corrupted_bit {
            self.counters.corrupted += 1;
            // Without an ICRC, the RNIC would accept the altered packet, which a real RNIC would reject. So the packet
            // is dropped.
            if !self.sealed || bytes.is_empty() {
                let (run, marks) = lost(FaultMarks::CORRUPTED);
                return out.give_marked(run, marks);
            }
            let bit = (random % (bytes.len() as u64 * 8)) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let copy = fate.duplicated.then(|| bytes.clone());
        self.counters.duplicated += u64::from(fate.duplicated);
        self.counters.reordered += u64::from(fate.distance > 0);
        let due_ns = now_ns.saturating_add(self.plan.delay_ns);
        let (outer, source_port) = (run.outer, run.source_port);
        let corrupted = FaultMarks::CORRUPTED.when(fate.corrupted_bit.is_some());
        let marks = corrupted.and(FaultMarks::DELAYED.when(self.plan.delay_ns > 0));
        let reordered = FaultMarks::REORDERED.when(fate.distance > 0);
        let held = Held { outer, source_port, bytes, due_ns, distance: fate.distance, marks: marks.and(reordered) };
        self.delay(now_ns, held, out);
        // The copy is not reordered, even if the original is.
        if let Some(bytes) = copy {
            let marks = marks.and(FaultMarks::DUPLICATE);
            self.delay(now_ns, Held { outer, source_port, bytes, due_ns, distance: 0, marks }, out);
        }
    }

    fn delay(&mut self, now_ns: u64, held: Held, out: &mut Out<'_>) {
        if self.plan.delay_ns == 0 {
            return self.reorder(now_ns, held, out);
        }
        self.counters.delayed += 1;
        self.held_bytes += held.bytes.len();
        self.delayed.push_back(held);
        self.keep_bounded(now_ns, out);
    }

    /// Runs the last stage: passes a packet to the sink, or holds the packet back until later packets have passed it.
    fn reorder(&mut self, now_ns: u64, mut held: Held, out: &mut Out<'_>) {
        if held.distance > 0 {
            held.due_ns = now_ns.saturating_add(REORDER_WAIT_NS);
            self.held_bytes += held.bytes.len();
            self.waiting.push(held);
            return self.keep_bounded(now_ns, out);
        }
        held.give(out);
        let held_bytes = &mut self.held_bytes;
        self.waiting.retain_mut(|waiting| {
            waiting.distance -= 1;
            if waiting.distance == 0 {
                *held_bytes -= waiting.bytes.len();
                waiting.give(out);
            }
            waiting.distance > 0
        });
    }

    fn release_due(&mut self, now_ns: u64, out: &mut Out<'_>) {
        let held_bytes = &mut self.held_bytes;
        self.waiting.retain(|waiting| {
            let waits = waiting.due_ns > now_ns;
            if !waits {
                *held_bytes -= waiting.bytes.len();
                waiting.give(out);
            }
            waits
        });
        while self.delayed.front().is_some_and(|held| held.due_ns <= now_ns) {
            self.release_oldest(now_ns, out);
        }
    }

    fn keep_bounded(&mut self, now_ns: u64, out: &mut Out<'_>) {
        while self.held_bytes > HELD_BYTES_MAX || self.delayed.len() + self.waiting.len() > HELD_PACKETS_MAX {
            self.counters.overfull += 1;
            if self.waiting.is_empty() {
                self.release_oldest(now_ns, out);
            } else {
                let held = self.waiting.remove(0);
                self.held_bytes -= held.bytes.len();
                held.give(out);
            }
        }
    }

    fn release_oldest(&mut self, now_ns: u64, out: &mut Out<'_>) {
        if let Some(held) = self.delayed.pop_front() {
            self.held_bytes -= held.bytes.len();
            self.reorder(now_ns, held, out);
        }
    }
}

/// Random generator that decides for each packet whether one kind of fault strikes it.
#[derive(Debug)]
struct Dice {
    random: ChaCha8Rng,
    /// The fault strikes a packet if a random number of 64 bits is below this threshold. At 2^64, the fault strikes
    /// every packet.
    threshold: u128,
}

impl Dice {
    fn new(seed: u64, stream: u64, probability: f64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Self { random, threshold: (probability.clamp(0.0, 1.0) * 2_f64.powi(64)) as u128 }
    }

    /// Decides whether the fault strikes the next packet. If so, returns a random number for the details of the fault,
    /// such as which bit to flip.
    fn roll(&mut self) -> Option<u64> {
        if self.threshold == 0 {
            return None;
        }
        (u128::from(self.random.next_u64()) < self.threshold).then(|| self.random.next_u64())
    }
}
