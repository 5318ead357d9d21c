//! Injection of network faults into the packets of a device. With the same plan, which includes a seed, the same
//! packets suffer the same faults.
//!
//! [`engine`] decides which faults strike a packet. This module carries them out, and [`journal`] writes down the rules
//! that fired. [`outbound`] sends the packets of a device that the faults left over.

mod boundary;
mod engine;
mod error;
mod file;
mod journal;
mod outbound;
mod plan;
mod rule;
mod shares;
#[cfg(test)]
mod tests;
mod time;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};

use doorbell_rnic::TransmitBatch;
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{FaultMarks, Flow, ICRC_LEN, Outer, ROCE_UDP_PORT};

pub use boundary::VerbsFaults;
pub use error::FaultPlanError;
pub use plan::FaultPlan;
pub use rule::{FAULT_FIELDS, FaultRule, VerbsCall};
pub use shares::FaultShares;

use engine::{Engine, Fate};
use journal::Journal;
use outbound::Outbound;
use rule::Direction;

use crate::link::{Link, LinkProperties, PlannedOrder, ReceivedRun, SentPacket, Sink};
use crate::struck::{PlanTexts, RuleNumbers};

/// Maximum total bytes of packets that are held back. If there are more, the oldest packet passes early.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Maximum number of packets that are held back. If there are more, the oldest packet passes early.
const HELD_PACKETS_MAX: usize = 1 << 17;

/// ECN field of a traffic class: "congestion experienced" (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Number of occurrences of each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Packets that arrived, and packets that left under a plan with rules for them.
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
    /// Packets whose IP header was marked with "congestion experienced".
    pub ecn_marked: u64,
    /// Packets that passed early because too many were held back.
    pub overfull: u64,
}

impl FaultCounters {
    /// Returns the sums of these counters and those of `other`.
    #[must_use]
    fn plus(&self, other: &Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            corrupted: self.corrupted + other.corrupted,
            delayed: self.delayed + other.delayed,
            ecn_marked: self.ecn_marked + other.ecn_marked,
            overfull: self.overfull + other.overfull,
        }
    }
}

/// A link that injects faults into its packets: those that arrive, and those that leave if a rule has `direction=out`.
///
/// The link first drops, corrupts or duplicates a packet. Packets that were not dropped then wait for the delay. After
/// the delay, reordered packets wait until later packets have passed them. Packets without a fault stay in their runs.
/// For each kind of fault and each rule, the link draws once per packet from a separate random stream. So each kind
/// strikes the same packets, independent of the other kinds.
#[derive(Debug)]
pub struct Faults<L> {
    inner: L,
    /// Address and UDP port of the device.
    local: (IpAddr, u16),
    filter: FaultFilter,
    /// Faults of the packets that leave; `None` without rules for them.
    outbound: Option<Outbound>,
    journal: Option<Journal>,
}

impl<L: Link> Faults<L> {
    /// Injects the faults of a plan into the packets of `inner`.
    pub fn new(inner: L, plan: FaultPlan) -> Self {
        let sealed = inner.properties().sealed;
        let outbound = FaultFilter::outbound(&plan, sealed).map(|filter| Outbound::new(filter, sealed));
        let local = (Ipv4Addr::UNSPECIFIED.into(), ROCE_UDP_PORT);
        Self { inner, local, filter: FaultFilter::new(plan, sealed), outbound, journal: None }
    }

    /// Sets the address and UDP port of the device, as the sender of packets that leave.
    #[must_use]
    pub fn of_device(mut self, address: IpAddr, port: u16) -> Self {
        self.local = (address, port);
        self
    }

    /// Writes one line of JSON to `to` for each rule that fires.
    #[must_use]
    pub fn with_journal(mut self, to: impl Write + Send + 'static) -> Self {
        let outbound = self.outbound.as_mut().map(|outbound| &mut outbound.filter);
        [Some(&mut self.filter), outbound].into_iter().flatten().for_each(|filter| filter.engine.record());
        self.journal = Some(Journal::new(to));
        self
    }

    /// Returns a sentence for each rule of packets that has not fired on this link, unless the rule is optional.
    pub fn unfired(&self) -> Vec<String> {
        let outbound = self.outbound.as_ref().map(|outbound| &outbound.filter);
        let fired = || [Some(&self.filter), outbound].into_iter().flatten().flat_map(FaultFilter::fired);
        let is_of_calls = |rule: usize| self.filter.plan.rules[rule - 1].verbs_fault().is_some();
        let has_fired = |rule| is_of_calls(rule) || fired().any(|(number, count)| number == rule && count > 0);
        self.filter.plan.unfired_by(has_fired)
    }

    /// Returns the plan.
    pub fn plan(&self) -> &FaultPlan {
        &self.filter.plan
    }

    /// Returns the number of occurrences of each fault.
    pub fn counters(&self) -> FaultCounters {
        let outbound = self.outbound.as_ref().map(|outbound| outbound.filter.counters);
        self.filter.counters.plus(&outbound.unwrap_or_default())
    }

    /// Returns the wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    fn write_journal(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        let outbound = self.outbound.as_mut().map(|outbound| &mut outbound.filter);
        for filter in [Some(&mut self.filter), outbound].into_iter().flatten() {
            write_firings(&mut filter.engine, &filter.plan, journal);
        }
    }
}

/// Writes the firings since the last call to a journal.
fn write_firings(engine: &mut Engine, plan: &FaultPlan, journal: &mut Journal) {
    let firings = engine.take_firings();
    if !firings.is_empty() {
        let rules = plan.rules();
        let named: Vec<_> = firings.into_iter().map(|firing| (firing, &rules[firing.rule - 1])).collect();
        journal.write(&named);
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
        let Some(outbound) = &mut self.outbound else { return self.inner.transmit(now_ns, batch, next) };
        let result = outbound.transmit(now_ns, self.local, &mut self.inner, batch, next);
        self.write_journal();
        result
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { inner, filter, .. } = self;
        let mut out = Out { sink, packets: 0 };
        filter.release_due(now_ns, &mut out);
        let received = inner.receive(now_ns, &mut |run: ReceivedRun<'_>| filter.take(now_ns, run, &mut out));
        let packets = out.packets;
        let released = match &mut self.outbound {
            Some(outbound) => outbound.release(now_ns, self.local, inner),
            None => Ok(()),
        };
        self.write_journal();
        received.and(released)?;
        Ok(packets)
    }

    fn forget_batch(&mut self) {
        if let Some(outbound) = &mut self.outbound {
            outbound.forget();
        }
        self.inner.forget_batch();
    }

    fn orders_port(&self) -> bool {
        self.filter.plan.orders_port() || self.inner.orders_port()
    }

    fn take_port_order(&mut self) -> Option<PlannedOrder> {
        let outbound = self.outbound.as_mut().map(|outbound| &mut outbound.filter);
        let mut filters = [Some(&mut self.filter), outbound].into_iter().flatten();
        filters.find_map(FaultFilter::take_order).or_else(|| self.inner.take_port_order())
    }

    fn plan_texts(&self) -> Option<PlanTexts> {
        self.plan().texts()
    }

    fn poll_timeout(&self) -> Option<u64> {
        let outbound = self.outbound.as_ref().and_then(Outbound::poll_timeout);
        let own = self.filter.next_due().into_iter().chain(outbound);
        own.chain(self.inner.poll_timeout()).min()
    }

    fn report_sent(&mut self) -> bool {
        match &mut self.outbound {
            Some(outbound) => {
                outbound.report();
                true
            }
            None => self.inner.report_sent(),
        }
    }

    fn take_sent(&mut self) -> Vec<SentPacket> {
        match &mut self.outbound {
            Some(outbound) => outbound.take_sent(),
            None => self.inner.take_sent(),
        }
    }

    fn link_counters(&self) -> LinkCounters {
        let counted = self.counters();
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

    /// Passes a packet to the sink, with marks for the faults that struck it, and their rules.
    fn give_marked(&mut self, run: ReceivedRun<'_>, marks: FaultMarks, rules: RuleNumbers) {
        if marks.is_empty() {
            return self.give(run);
        }
        self.packets += usize::from(!marks.has(FaultMarks::DROPPED));
        self.sink.receive_faulty(run, marks, rules);
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
    /// Maximum time for which a reordered packet waits for others.
    wait_ns: u64,
    /// Number of other packets that still have to pass this packet.
    distance: u32,
    marks: FaultMarks,
    rules: RuleNumbers,
}

impl Held {
    fn give(&self, out: &mut Out<'_>) {
        let (outer, source_port) = (self.outer, self.source_port);
        let run = ReceivedRun { outer, source_port, bytes: &self.bytes, segment_bytes: self.bytes.len() };
        out.give_marked(run, self.marks, self.rules);
    }
}

/// The faults of one device in one direction, without a link: for a network that a simulator runs. The caller passes
/// each run to [`pass`](Self::pass), and calls [`release`](Self::release) at [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct FaultFilter {
    plan: FaultPlan,
    sealed: bool,
    /// Mark of every struck packet.
    marks: FaultMarks,
    engine: Engine,
    /// Packets that wait for their delay, in the order in which they are due.
    delayed: VecDeque<Held>,
    /// Reordered packets that wait until later packets have passed them.
    waiting: Vec<Held>,
    held_bytes: usize,
    /// Orders that the driver has not taken yet. Until it has, packets that arrive are lost.
    orders: VecDeque<PlannedOrder>,
    counters: FaultCounters,
    /// Journal of a filter without a link.
    journal: Option<Journal>,
}

impl FaultFilter {
    /// Creates the filter of the packets that arrive at a device. `sealed` says whether packets end in an ICRC.
    pub fn new(plan: FaultPlan, sealed: bool) -> Self {
        Self::of(plan, sealed, Direction::In)
    }

    /// Creates the filter of the packets that leave a device, if the plan has rules for them.
    pub fn outbound(plan: &FaultPlan, sealed: bool) -> Option<Self> {
        let strikes = plan.rules.iter().any(|rule| rule.strikes(Direction::Out));
        strikes.then(|| Self::of(plan.clone(), sealed, Direction::Out))
    }

    fn of(plan: FaultPlan, sealed: bool, direction: Direction) -> Self {
        let marks = FaultMarks::OUTBOUND.when(direction == Direction::Out);
        Self {
            engine: Engine::new(&plan, direction, if sealed { ICRC_LEN } else { 0 }),
            plan,
            sealed,
            marks,
            delayed: VecDeque::new(),
            waiting: Vec::new(),
            held_bytes: 0,
            orders: VecDeque::new(),
            counters: FaultCounters::default(),
            journal: None,
        }
    }

    /// Writes one line of JSON to `to` for each rule that fires in [`pass`](Self::pass).
    #[must_use]
    pub fn with_journal(mut self, to: impl Write + Send + 'static) -> Self {
        self.engine.record();
        self.journal = Some(Journal::new(to));
        self
    }

    /// Takes the oldest order of the plan to the port of the device.
    pub fn take_order(&mut self) -> Option<PlannedOrder> {
        self.orders.pop_front()
    }

    /// Takes a run at `now_ns`, and passes the packets that are not lost or held back to the sink.
    pub fn pass(&mut self, now_ns: u64, run: ReceivedRun<'_>, sink: &mut dyn Sink) {
        self.take(now_ns, run, &mut Out { sink, packets: 0 });
        if let Some(journal) = &mut self.journal {
            write_firings(&mut self.engine, &self.plan, journal);
        }
    }

    /// Passes the packets to the sink that were held back until `now_ns`.
    pub fn release(&mut self, now_ns: u64, sink: &mut dyn Sink) {
        self.release_due(now_ns, &mut Out { sink, packets: 0 });
    }

    /// Returns the time of the next call of [`release`](Self::release). `None` if no packet is held back.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.next_due()
    }

    /// Returns the number of firings of each rule of this direction, with the number of the rule in the plan, from 1.
    pub fn fired(&self) -> impl Iterator<Item = (usize, u64)> {
        self.engine.fired()
    }

    fn next_due(&self) -> Option<u64> {
        let waiting = self.waiting.iter().map(|held| held.due_ns).min();
        waiting.into_iter().chain(self.delayed.front().map(|held| held.due_ns)).min()
    }

    /// Handles a run that has just arrived, or is about to leave.
    fn take(&mut self, now_ns: u64, run: ReceivedRun<'_>, out: &mut Out<'_>) {
        // Offset of the first packet that has not been passed on. The packets from there to `at` have no fault and are
        // passed on together.
        let mut plain_from = 0;
        let mut at = 0;
        for packet in run.segments() {
            self.counters.packets += 1;
            // The port is down from the packet on that took it down.
            let fate = match self.orders.is_empty() {
                true => self.engine.judge(now_ns, &run.outer, packet),
                false => Fate::lost(),
            };
            self.orders.extend(fate.order);
            let from = at;
            at += packet.len();
            // If reordered packets wait, each packet is passed on separately, since a waiting packet may have to follow
            // it.
            if fate.is_plain() && self.waiting.is_empty() {
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

    fn suffer(&mut self, now_ns: u64, run: &ReceivedRun<'_>, packet: &[u8], fate: &Fate, out: &mut Out<'_>) {
        let own_marks = self.marks;
        let lost = |marks: FaultMarks| {
            let run = ReceivedRun { bytes: packet, segment_bytes: packet.len(), ..*run };
            (run, marks.and(FaultMarks::DROPPED).and(own_marks))
        };
        if fate.is_dropped {
            self.counters.dropped += 1;
            let (run, marks) = lost(FaultMarks::NONE);
            return out.give_marked(run, marks, fate.rules);
        }
        let mut bytes = packet.to_vec();
        let Some(is_corrupted) = self.corrupt(&run.outer, &mut bytes, fate) else {
            let (run, marks) = lost(FaultMarks::CORRUPTED);
            return out.give_marked(run, marks, fate.rules);
        };
        self.counters.duplicated += u64::from(fate.copies);
        self.counters.reordered += u64::from(fate.distance > 0);
        self.counters.ecn_marked += u64::from(fate.has_congestion);
        let due_ns = now_ns.saturating_add(fate.delay_ns);
        let (mut outer, source_port, wait_ns) = (run.outer, run.source_port, fate.reorder_wait_ns);
        if fate.has_congestion {
            outer.traffic_class |= CONGESTION_EXPERIENCED;
        }
        let corrupted = FaultMarks::CORRUPTED.when(is_corrupted);
        let delayed = FaultMarks::DELAYED.when(fate.delay_ns > 0);
        let common = corrupted.and(delayed).and(FaultMarks::ECN_MARKED.when(fate.has_congestion));
        let copy = (fate.copies > 0).then(|| bytes.clone());
        let marks = common.and(FaultMarks::REORDERED.when(fate.distance > 0));
        let marks = if marks.is_empty() { marks } else { marks.and(own_marks) };
        let rules = fate.rules;
        let held = Held { outer, source_port, bytes, due_ns, wait_ns, distance: fate.distance, marks, rules };
        self.delay(now_ns, held, out);
        // A copy is not reordered, even if the original is.
        for bytes in copy.iter().cycle().take(fate.copies as usize) {
            let (bytes, marks) = (bytes.clone(), common.and(FaultMarks::DUPLICATE).and(own_marks));
            let due_ns = due_ns.saturating_add(fate.copy_delay_ns);
            self.delay(now_ns, Held { outer, source_port, bytes, due_ns, wait_ns, distance: 0, marks, rules }, out);
        }
    }

    /// Corrupts a packet. Returns whether a byte has changed, or `None` if the packet is lost: without an ICRC, the
    /// RNIC would accept the altered packet, which a real RNIC would reject.
    fn corrupt(&mut self, outer: &Outer, bytes: &mut [u8], fate: &Fate) -> Option<bool> {
        let trailer_bytes = if self.sealed { ICRC_LEN } else { 0 };
        let mut is_corrupted = false;
        for (corruption, random) in &fate.corruptions {
            let old = corruption.reseals.then(|| bytes.to_vec());
            let has_changed = corruption.apply(bytes, trailer_bytes, *random);
            let is_lost = bytes.is_empty() || (!self.sealed && !corruption.reseals);
            self.counters.corrupted += u64::from(has_changed || is_lost);
            if is_lost {
                return None;
            }
            if let Some(old) = old.filter(|_| self.sealed) {
                reseal(outer, &old, bytes);
            }
            is_corrupted |= has_changed;
        }
        Some(is_corrupted)
    }

    fn delay(&mut self, now_ns: u64, held: Held, out: &mut Out<'_>) {
        if held.due_ns <= now_ns {
            return self.reorder(now_ns, held, out);
        }
        self.counters.delayed += 1;
        self.held_bytes += held.bytes.len();
        let at = self.delayed.partition_point(|earlier| earlier.due_ns <= held.due_ns);
        self.delayed.insert(at, held);
        self.keep_bounded(now_ns, out);
    }

    /// Runs the last stage: passes a packet to the sink, or holds the packet back until later packets have passed it.
    fn reorder(&mut self, now_ns: u64, mut held: Held, out: &mut Out<'_>) {
        if held.distance > 0 {
            held.due_ns = now_ns.saturating_add(held.wait_ns);
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

/// Corrects the ICRC of a changed packet. The CRC is linear: the difference of two CRCs depends only on the difference
/// of the packets. So the correction needs neither the IPv4 identification nor the ports, and a wrong ICRC stays wrong.
fn reseal(outer: &Outer, old: &[u8], new: &mut [u8]) {
    let flow = Flow::new(outer.src, outer.dst, 0, 0);
    if let (Some((old, _)), Some((new, icrc))) =
        (old.split_last_chunk::<ICRC_LEN>(), new.split_last_chunk_mut::<ICRC_LEN>())
    {
        let difference = flow.icrc(0, true, old) ^ flow.icrc(0, true, new);
        *icrc = (u32::from_le_bytes(*icrc) ^ difference).to_le_bytes();
    }
}
