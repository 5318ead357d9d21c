//! Decides which faults strike a packet. The engine does no IO, and time is an input.

use std::collections::VecDeque;
use std::hash::Hash;
use std::net::IpAddr;

use doorbell_wire::{BTH_LEN, BthRepr, Outer, Psn, Qpn};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use rustc_hash::FxHashMap;

use super::journal::Firing;
use super::plan::FaultPlan;
use super::rule::{Corruption, Direction, FaultAction, HoleEnd, PacketMatch};
use crate::link::PlannedOrder;
use crate::struck::RuleNumbers;

/// Maximum number of later packets that pass a packet, if the distance is drawn. Later packets that are held back too
/// do not count.
pub(super) const REORDER_DISTANCE_MAX: u32 = 4;

/// Maximum time that a reordered packet waits for later packets. Without this limit, the final packet of a burst could
/// wait forever.
pub(super) const REORDER_WAIT_NS: u64 = 50_000;

/// The same for a rule that names the distance. The wait is longer than the interval of packets of a slow sender.
const RULE_REORDER_WAIT_NS: u64 = 10_000_000;

/// Maximum numbers of flows, of queue pairs and of packets that the engine remembers. If there are more, it forgets the
/// oldest.
const FLOWS_MAX: usize = 4096;
const PACKETS_MAX: usize = 1 << 16;

/// First random stream of the rules. The shares of a plan have the streams before it.
pub(super) const RULE_STREAMS: u64 = 16;

/// Faults of one packet.
#[derive(Debug, Default)]
pub(super) struct Fate {
    pub(super) is_dropped: bool,
    /// Changes of the packet, each with a random number for its details.
    pub(super) corruptions: Vec<(Corruption, u64)>,
    pub(super) copies: u32,
    /// Time from the packet to its copies.
    pub(super) copy_delay_ns: u64,
    /// Number of other packets that have to pass this packet; 0 if the packet is not reordered.
    pub(super) distance: u32,
    /// Maximum time for which a reordered packet waits for others.
    pub(super) reorder_wait_ns: u64,
    pub(super) delay_ns: u64,
    pub(super) has_congestion: bool,
    /// Order to the port of the device.
    pub(super) order: Option<PlannedOrder>,
    /// Rules that decided on the fate.
    pub(super) rules: RuleNumbers,
}

impl Fate {
    /// Returns the fate of a packet that is lost without a rule.
    pub(super) fn lost() -> Self {
        Self { is_dropped: true, ..Self::default() }
    }

    pub(super) fn is_plain(&self) -> bool {
        let Self { is_dropped, corruptions, copies, distance, delay_ns, has_congestion, .. } = self;
        !(*is_dropped || *has_congestion) && corruptions.is_empty() && *copies == 0 && *distance == 0 && *delay_ns == 0
    }
}

/// The state machine that applies the rules of a plan to the packets of one link in one direction.
#[derive(Debug)]
pub(super) struct Engine {
    direction: Direction,
    /// Bytes of ICRC at the end of each packet.
    trailer_bytes: usize,
    armed: Vec<Armed>,
    reads_headers: bool,
    memory: Option<Memory>,
    /// Time of the first packet.
    begun_ns: Option<u64>,
    firings: Vec<Firing>,
    records: bool,
}

/// A rule, or a share of the plan, with its state.
#[derive(Debug)]
struct Armed {
    /// Number of the rule in the plan, from 1; `None` for a share.
    rule: Option<usize>,
    packets: PacketMatch,
    action: FaultAction,
    dice: Dice,
    /// Number of packets that met all conditions before `nth`.
    matched: u64,
    fired: u64,
    hole: Option<Hole>,
}

/// An open black hole.
#[derive(Clone, Copy, Debug)]
enum Hole {
    Until(u64),
    Packets(u64),
}

impl Engine {
    /// Creates the engine for one direction of a link whose packets end in `trailer_bytes` of ICRC. The shares of a
    /// plan strike arriving packets.
    pub(super) fn new(plan: &FaultPlan, direction: Direction, trailer_bytes: usize) -> Self {
        let shares = plan.shares.actions().filter(|_| direction == Direction::In);
        let shares = shares.map(|(stream, share, action)| Armed {
            rule: None,
            packets: PacketMatch { share, ..PacketMatch::default() },
            action,
            dice: Dice::new(plan.shares.seed, stream, share),
            matched: 0,
            fired: 0,
            hole: None,
        });
        // The random stream of a rule depends on its place in the plan, not on the rules of the other direction.
        let numbered = plan.rules.iter().enumerate();
        let own: Vec<_> = numbered.filter(|(_, rule)| rule.strikes(direction)).collect();
        let rules = own.iter().map(|&(index, rule)| Armed {
            rule: Some(index + 1),
            packets: rule.packets.clone(),
            action: rule.action,
            dice: Dice::new(plan.shares.seed, RULE_STREAMS + index as u64, rule.packets.share),
            matched: 0,
            fired: 0,
            hole: None,
        });
        Self {
            direction,
            trailer_bytes,
            armed: shares.chain(rules).collect(),
            reads_headers: !own.is_empty(),
            memory: own.iter().any(|(_, rule)| rule.packets.tracks()).then(|| Memory::new(trailer_bytes)),
            begun_ns: None,
            firings: Vec::new(),
            records: false,
        }
    }

    /// Records firings from now on, for [`take_firings`](Self::take_firings).
    pub(super) fn record(&mut self) {
        self.records = true;
    }

    /// Returns the firings since the last call, and forgets them.
    pub(super) fn take_firings(&mut self) -> Vec<Firing> {
        std::mem::take(&mut self.firings)
    }

    /// Returns the number of firings of each rule of this direction, in the order of the plan.
    pub(super) fn fired(&self) -> impl Iterator<Item = (usize, u64)> {
        self.armed.iter().filter_map(|armed| Some((armed.rule?, armed.fired)))
    }

    /// Decides on the faults of a packet that crosses the link at `now_ns`.
    pub(super) fn judge(&mut self, now_ns: u64, outer: &Outer, packet: &[u8]) -> Fate {
        let since_ns = now_ns.saturating_sub(*self.begun_ns.get_or_insert(now_ns));
        let peer = match self.direction {
            Direction::In => outer.src,
            Direction::Out => outer.dst,
        };
        let bth = if self.reads_headers { packet.first_chunk::<BTH_LEN>().map(BthRepr::read) } else { None };
        let past = match (&mut self.memory, &bth) {
            (Some(memory), Some(bth)) => memory.note(peer, bth, packet),
            _ => Past::default(),
        };
        let mut fate = Fate::default();
        let mut fired = Vec::new();
        // A packet that vanishes in a black hole meets no other rule.
        let hole = self.armed.iter_mut().position(|armed| armed.is_in_hole(now_ns));
        if let Some(index) = hole {
            let armed = &mut self.armed[index];
            fate.is_dropped = true;
            armed.fired += 1;
            fired.extend(armed.rule.map(|rule| (rule, armed.fired)));
        } else {
            let body = &packet[..packet.len().saturating_sub(self.trailer_bytes)];
            let seen = Seen { since_ns, peer, bth, packet, body, past };
            for armed in &mut self.armed {
                if !armed.packets_match(&seen) {
                    continue;
                }
                let Some(random) = armed.dice.roll() else { continue };
                armed.strike(now_ns, random, &mut fate);
                armed.fired += 1;
                fired.extend(armed.rule.map(|rule| (rule, armed.fired)));
            }
        }
        fired.iter().for_each(|&(rule, _)| fate.rules.insert(rule));
        if self.records {
            let (direction, from, to) = (self.direction, outer.src, outer.dst);
            let firing = |(rule, count)| Firing { rule, at_ns: now_ns, direction, from, to, bth, count };
            self.firings.extend(fired.into_iter().map(firing));
        }
        fate
    }
}

impl Armed {
    /// Returns whether a packet vanishes in the black hole of the rule. Closes the hole at its end.
    fn is_in_hole(&mut self, now_ns: u64) -> bool {
        match &mut self.hole {
            Some(Hole::Until(until_ns)) if now_ns < *until_ns => true,
            Some(Hole::Packets(left)) if *left > 0 => {
                *left -= 1;
                true
            }
            hole => {
                *hole = None;
                false
            }
        }
    }

    /// Returns whether a packet meets all conditions but the share.
    fn packets_match(&mut self, seen: &Seen<'_>) -> bool {
        let packets = &self.packets;
        if !seen.meets(packets) || !seen.has_place_of(self.action) {
            return false;
        }
        self.matched += 1;
        packets.counts(self.matched)
    }

    fn strike(&mut self, now_ns: u64, random: u64, fate: &mut Fate) {
        match self.action {
            FaultAction::Drop => fate.is_dropped = true,
            FaultAction::Duplicate { copies, delay_ns } => {
                fate.copies += copies;
                fate.copy_delay_ns = fate.copy_delay_ns.max(delay_ns);
            }
            FaultAction::Delay { delay_ns } => fate.delay_ns = fate.delay_ns.saturating_add(delay_ns),
            FaultAction::Reorder { behind } => {
                let drawn = || 1 + (random % u64::from(REORDER_DISTANCE_MAX)) as u32;
                fate.distance = fate.distance.max(behind.unwrap_or_else(drawn));
                let wait_ns = if behind.is_some() { RULE_REORDER_WAIT_NS } else { REORDER_WAIT_NS };
                fate.reorder_wait_ns = fate.reorder_wait_ns.max(wait_ns);
            }
            FaultAction::Corrupt(corruption) => fate.corruptions.push((corruption, random)),
            FaultAction::BlackHole(end) => {
                fate.is_dropped = true;
                self.hole = Some(match end {
                    HoleEnd::After(for_ns) => Hole::Until(now_ns.saturating_add(for_ns)),
                    HoleEnd::Packets(count) => Hole::Packets(count - 1),
                });
            }
            FaultAction::MarkEcn => fate.has_congestion = true,
            FaultAction::Port(order) => {
                fate.is_dropped = true;
                fate.order = Some(order);
            }
            FaultAction::Verbs(_) => {} // the engine has no such rule
        }
    }
}

/// A packet and the facts that rules ask for.
struct Seen<'a> {
    since_ns: u64,
    peer: IpAddr,
    bth: Option<BthRepr>,
    packet: &'a [u8],
    /// The packet without its ICRC.
    body: &'a [u8],
    past: Past,
}

impl Seen<'_> {
    /// Returns whether the packet has the field or byte that an action changes.
    fn has_place_of(&self, action: FaultAction) -> bool {
        match action {
            FaultAction::Corrupt(Corruption { place, .. }) => place.is_within(self.body),
            _ => true,
        }
    }

    /// Returns whether the packet meets all conditions that do not count packets.
    fn meets(&self, packets: &PacketMatch) -> bool {
        if packets.peer.is_some_and(|peer| peer.to_canonical() != self.peer.to_canonical())
            || packets.after_ns.is_some_and(|after_ns| self.since_ns < after_ns)
            || packets.before_ns.is_some_and(|before_ns| self.since_ns >= before_ns)
        {
            return false;
        }
        if !packets.reads_headers() {
            return true;
        }
        let Some(bth) = &self.bth else { return false };
        let past = &self.past;
        packets.allows(bth.opcode)
            && packets.opcode.is_none_or(|kind| kind.has(bth.opcode, self.packet))
            && packets.qp.is_none_or(|qp| bth.dest_qpn.get() == qp)
            && packets.psn.is_none_or(|psn| psn.has(bth.psn.get().into()))
            && packets.qp_order.is_none_or(|order| past.qp_order.is_some_and(|own| order.has(own)))
            && packets.psn_offset.is_none_or(|offset| past.psn_offset.is_some_and(|own| offset.has(own)))
            && packets.retransmission.is_none_or(|times| times.has(past.repeats))
            && packets.message_offset.is_none_or(|offset| past.message_offset.is_some_and(|own| offset.has(own)))
    }
}

/// Relation of a packet to earlier packets.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// Rank of the destination queue pair, from 1.
    qp_order: Option<u64>,
    psn_offset: Option<u64>,
    message_offset: Option<u64>,
    /// Number of earlier packets with the same flow, opcode and PSN.
    repeats: u64,
}

/// Packets of one kind, to one queue pair, from or to one peer. Requests and responses have separate sequences of PSNs.
type FlowKey = (IpAddr, Qpn, bool);

/// State of a flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    first_psn: Psn,
    /// PSN of the first packet of the newest message, and the payload bytes of that packet.
    message: Option<(Psn, u64)>,
}

/// Facts about earlier packets.
#[derive(Debug)]
struct Memory {
    trailer_bytes: usize,
    qps: Bounded<Qpn, u64>,
    qp_count: u64,
    flows: Bounded<FlowKey, Flow>,
    packets: Bounded<(FlowKey, u8, Psn), u64>,
}

impl Memory {
    fn new(trailer_bytes: usize) -> Self {
        let (qps, flows, packets) = (Bounded::default(), Bounded::default(), Bounded::default());
        Self { trailer_bytes, qps, qp_count: 0, flows, packets }
    }

    fn note(&mut self, peer: IpAddr, bth: &BthRepr, packet: &[u8]) -> Past {
        let key = (peer, bth.dest_qpn, bth.opcode.is_response());
        let qp_count = &mut self.qp_count;
        let qp_order = *self.qps.entry(bth.dest_qpn, FLOWS_MAX, || {
            *qp_count += 1;
            *qp_count
        });
        let flow = self.flows.entry(key, FLOWS_MAX, || Flow { first_psn: bth.psn, message: None });
        // A first packet that was retransmitted does not change the message.
        if bth.opcode.is_first() && bth.opcode.has_payload() {
            let others = BTH_LEN + bth.opcode.extension_len() + self.trailer_bytes;
            flow.message = Some((bth.psn, packet.len().saturating_sub(others) as u64));
        }
        let message_offset = flow
            .message
            .filter(|_| bth.opcode.has_payload())
            .map(|(first_psn, payload_bytes)| u64::from(bth.psn.distance_from(first_psn)) * payload_bytes);
        let psn_offset = Some(u64::from(bth.psn.distance_from(flow.first_psn)));
        let times = self.packets.entry((key, bth.opcode.0, bth.psn), PACKETS_MAX, || 0);
        let repeats = *times;
        *times += 1;
        Past { qp_order: Some(qp_order), psn_offset, message_offset, repeats }
    }
}

/// A map that forgets its oldest entry when it is full.
#[derive(Debug)]
struct Bounded<K, V> {
    entries: FxHashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Self { entries: FxHashMap::default(), order: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, V> Bounded<K, V> {
    /// Returns the value of a key, which `make` makes for a new key.
    fn entry(&mut self, key: K, max: usize, make: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(&key) {
            if self.order.len() == max
                && let Some(oldest) = self.order.pop_front()
            {
                self.entries.remove(&oldest);
            }
            self.order.push_back(key);
        }
        self.entries.entry(key).or_insert_with(make)
    }
}

/// Random generator that decides for each packet or call whether one fault strikes it.
#[derive(Debug)]
pub(super) struct Dice {
    random: ChaCha8Rng,
    /// The fault strikes a packet if a random number of 64 bits is below this threshold. At 2^64, the fault strikes
    /// every packet. `None` means that the fault needs no draw.
    threshold: Option<u128>,
}

impl Dice {
    pub(super) fn new(seed: u64, stream: u64, share: Option<f64>) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Self { random, threshold: share.map(|share| (share.clamp(0.0, 1.0) * 2_f64.powi(64)) as u128) }
    }

    /// Decides whether the fault strikes the next packet. If so, returns a random number for the details of the fault,
    /// such as which bit to flip.
    pub(super) fn roll(&mut self) -> Option<u64> {
        let strikes = self.threshold.is_none_or(|threshold| u128::from(self.random.next_u64()) < threshold);
        strikes.then(|| self.random.next_u64())
    }
}
