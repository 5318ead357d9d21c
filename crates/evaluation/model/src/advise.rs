//! Advice on the protocol, window, batch and receive queue for a need.
//!
//! [`advise`] predicts each protocol that meets the need, with each window and batch of a grid. It keeps the best
//! setting of each protocol and ranks these settings. Values within 5 % of the best value count as equal, because
//! predictions are not more accurate. Among equal settings, the setting with less memory wins. The ranking ignores
//! costs for which the model has no parameter, mainly copies.

use doorbell_protocols::{End, Protocol, Store, ZeroCopy};
use doorbell_wire::{OuterKind, PathMtu};

use crate::observation::srq_slow_sizes;
use crate::parameters::Parameters;
use crate::predict::{BoundKind, predict_mix};
use crate::workload::{Peers, Workload, WorkloadError};

/// Quantity that decides the ranking first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Short latency; throughput decides among settings with equal latency.
    Latency,
    /// High throughput; latency decides among settings with equal throughput. If the need has an offered rate, higher
    /// throughput does not count.
    Throughput,
}

/// Requirements of an application.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// Message sizes, each with its share of the messages. The shares need not add up to one.
    pub sizes: Vec<(u64, f64)>,
    /// Offered messages per second over all connections; `None` means the maximum.
    pub messages_per_s: Option<f64>,
    /// Threads and connections of the workload.
    pub peers: Peers,
    /// Whether both ends send.
    pub bidirectional: bool,
    /// Whether the receiver chooses the final place of a message from the message's first bytes, and wants the payload
    /// to land in this place.
    pub receiver_places: bool,
    /// Whether the receiver sleeps until a message arrives.
    pub receiver_sleeps: bool,
    /// Whether the receiver keeps the buffer of a message in use while later messages arrive.
    pub receiver_holds: bool,
    /// Maximum bytes of message memory per thread at either end.
    pub memory_bytes: Option<u64>,
    /// Quantity that decides the ranking first.
    pub goal: Goal,
    /// Path MTU; `None` means the path MTU of the parameters.
    pub path_mtu: Option<PathMtu>,
    /// Encapsulation of the packets.
    pub outer: OuterKind,
}

impl Need {
    /// Returns the need for messages of one size from one sender to one receiver at the maximum rate.
    pub fn new(bytes: u64, goal: Goal) -> Self {
        Self {
            sizes: vec![(bytes, 1.0)],
            messages_per_s: None,
            peers: Peers::ONE_TO_ONE,
            bidirectional: false,
            receiver_places: false,
            receiver_sleeps: false,
            receiver_holds: false,
            memory_bytes: None,
            goal,
            path_mtu: None,
            outer: OuterKind::IPV4,
        }
    }
}

/// Proposal for a need.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Proposed protocol.
    pub protocol: Protocol,
    /// Maximum number of unacknowledged messages per connection.
    pub window: u32,
    /// Messages per post; for Buffered-Read, messages per READ.
    pub batch: u32,
    /// Receive buffers, granted buffers or slots of a ring, per connection. A shared queue or ring counts once per
    /// receiver.
    pub depth: u32,
    /// Whether the connections of a receiver share a receive queue.
    pub srq: bool,
    /// Mean latency of a message if no other message is in flight.
    pub latency_ns: f64,
    /// Predicted messages per second.
    pub messages_per_s: f64,
    /// Bytes of message memory of a sending thread.
    pub sender_bytes: u64,
    /// Bytes of message memory of a receiving thread, without the final places of messages.
    pub receiver_bytes: u64,
    /// Resource that limits the throughput.
    pub binding: BoundKind,
    /// Reason for the position in the ranking, in one line.
    pub reason: String,
}

impl Advice {
    /// Returns the message memory of the thread that needs more of it.
    pub fn memory_bytes(&self) -> u64 {
        self.sender_bytes.max(self.receiver_bytes)
    }
}

/// Error of a request for advice.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AdviseError {
    /// A value of the need is out of its range.
    #[error("{what} is {given}, allowed is {allowed}")]
    Need {
        /// Name of the value.
        what: &'static str,
        /// Given value.
        given: String,
        /// Allowed values.
        allowed: &'static str,
    },
    /// A workload is impossible.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The memory is too small for any protocol, even with a window of one message.
    #[error("the memory of a thread is {given} B, and the least that any protocol needs is {least} B")]
    Memory {
        /// Given memory, in bytes.
        given: u64,
        /// Smallest memory, in bytes, that suffices for a protocol.
        least: u64,
    },
}

/// Candidate windows.
const WINDOWS: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// Candidate batches.
const BATCHES: [u32; 3] = [1, 8, 32];
/// Number of connections for whose windows a shared queue or ring has space.
const SHARED_BY: u32 = 4;
/// Minimum depth of a connection, so that messages can arrive while the receiver processes another message.
const LEAST_DEPTH: u32 = 8;
/// Maximum number of message sizes in [`Need::sizes`].
const MOST_SIZES: usize = 1024;
/// Bytes of a receive buffer for a read request.
const REQUEST_SLOT_BYTES: u64 = 64;
/// Granularity of the size of rings, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Ratio below which two values count as equal.
const SAME: f64 = 1.05;

/// Ranks protocols, each with its best window, batch and receive queue.
///
/// # Errors
///
/// A value of the need is out of its range, or no candidate fits into the memory of the need.
pub fn advise(parameters: &Parameters, need: &Need) -> Result<Vec<Advice>, AdviseError> {
    check(need)?;
    let mut candidates: Vec<Advice> = Vec::new();
    for protocol in Protocol::ALL.into_iter().filter(|&protocol| suits(protocol, need)) {
        for (window, batch, shares) in settings(protocol, need) {
            candidates.push(candidate(parameters, need, protocol, window, batch, shares)?);
        }
    }
    if let Some(given) = need.memory_bytes {
        let least = candidates.iter().map(Advice::memory_bytes).min().unwrap_or(0);
        candidates.retain(|advice| advice.memory_bytes() <= given);
        if candidates.is_empty() {
            return Err(AdviseError::Memory { given, least });
        }
    }
    let yardstick = Yardstick::of(need, &candidates);
    candidates.sort_by_cached_key(|advice| yardstick.rank(need, advice));
    let mut all: Vec<Advice> = Vec::new();
    for advice in candidates {
        if all.iter().all(|better| better.protocol != advice.protocol) {
            all.push(advice);
        }
    }
    if let Some(first) = all.first().cloned() {
        all.iter_mut().for_each(|advice| advice.reason = reason(parameters, need, advice, &first));
    }
    Ok(all)
}

fn check(need: &Need) -> Result<(), AdviseError> {
    let refuse = |what, given: String, allowed| Err(AdviseError::Need { what, given, allowed });
    if !(1..=MOST_SIZES).contains(&need.sizes.len()) {
        return refuse("the number of message sizes", need.sizes.len().to_string(), "1 to 1024");
    }
    for &(_, share) in &need.sizes {
        if !(1e-9..=1e9).contains(&share) {
            return refuse("the share of a message size", share.to_string(), "0.000000001 to 1000000000");
        }
    }
    match need.messages_per_s {
        Some(rate) if !(1e-3..=1e12).contains(&rate) => {
            refuse("the rate", format!("{rate} messages/s"), "0.001 to 1000000000000 messages/s")
        }
        _ => Ok(()),
    }
}

/// Returns whether the protocol can meet the need.
fn suits(protocol: Protocol, need: &Need) -> bool {
    let properties = protocol.properties();
    let several = need.peers.connections > need.peers.receivers;
    // Protocols that deliver into the final place need a receiver that chooses the place.
    (!places(protocol) || need.receiver_places)
        && (!need.receiver_sleeps || properties.receiver_sleeps)
        && (!need.receiver_holds || !properties.slow_message_blocks)
        && (protocol != Protocol::SharedWrite || several)
        // These variants are never better than the other variant of their family; they exist for comparison.
        && !protocol.is_fenced()
        && !matches!(protocol, Protocol::DirectWriteEach | Protocol::SharedWriteEach)
}

/// Returns whether the protocol delivers messages directly into their final place.
fn places(protocol: Protocol) -> bool {
    protocol.properties().zero_copy == ZeroCopy::Yes
}

/// Returns the candidates: window, batch, and whether the connections share the receive buffers.
fn settings(protocol: Protocol, need: &Need) -> Vec<(u32, u32, bool)> {
    let sharing: &[bool] = match protocol {
        Protocol::SharedWrite => &[true],
        Protocol::SendReceive if need.peers.connections > SHARED_BY * need.peers.receivers => &[false, true],
        _ => &[false],
    };
    let longest = need.sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    let fits = |batch: u32| Workload { protocol, ..Workload::new(longest, batch, batch) }.check().is_ok();
    let mut settings = Vec::new();
    for window in WINDOWS {
        for batch in BATCHES.into_iter().filter(|&batch| batch == 1 || batch <= window && fits(batch)) {
            settings.extend(sharing.iter().map(|&shares| (window, batch, shares)));
        }
    }
    settings
}

fn candidate(
    parameters: &Parameters,
    need: &Need,
    protocol: Protocol,
    window: u32,
    batch: u32,
    shares: bool,
) -> Result<Advice, AdviseError> {
    let Peers { senders, receivers, connections } = need.peers;
    // If the connections share a queue, the depth of a connection is its part of the queue.
    let (pool, depth) = match ((2 * window).max(LEAST_DEPTH), shares) {
        (depth, true) => {
            (depth * SHARED_BY, (depth * SHARED_BY / connections.div_ceil(receivers.max(1)).max(1)).max(1))
        }
        (depth, false) => (depth, depth),
    };
    let srq = shares && protocol == Protocol::SendReceive;
    let workload = |bytes| Workload {
        protocol,
        depth,
        srq,
        bidirectional: need.bidirectional,
        path_mtu: need.path_mtu,
        outer: need.outer,
        peers: need.peers,
        ..Workload::new(bytes, window, batch)
    };
    let mix: Vec<(f64, Workload)> = need.sizes.iter().map(|&(bytes, share)| (share, workload(bytes))).collect();
    let prediction = predict_mix(parameters, &mix)?;
    let per_thread = |threads: u32| u64::from(connections.div_ceil(threads.max(1)));
    let [sending, receiving] = memory(protocol, need, window.into(), pool.into());
    let sending = sending.saturating_mul(per_thread(senders));
    let receiving = receiving.saturating_mul(if shares { 1 } else { per_thread(receivers) });
    let (sender_bytes, receiver_bytes) = if need.bidirectional {
        (sending.saturating_add(receiving), sending.saturating_add(receiving))
    } else {
        (sending, receiving)
    };
    Ok(Advice {
        protocol,
        window,
        batch,
        depth: pool,
        srq,
        latency_ns: prediction.latency_ns,
        messages_per_s: prediction.messages_per_s,
        sender_bytes,
        receiver_bytes,
        binding: prediction.bottleneck().binding.kind,
        reason: String::new(),
    })
}

/// Returns the bytes of message memory that a connection needs at the sender and at the receiver.
fn memory(protocol: Protocol, need: &Need, window: u64, depth: u64) -> [u64; 2] {
    let longest = need.sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    let slot = longest.next_multiple_of(REQUEST_SLOT_BYTES).max(REQUEST_SLOT_BYTES);
    let shares: f64 = need.sizes.iter().map(|(_, share)| share).sum();
    let mean = need.sizes.iter().map(|(bytes, share)| *bytes as f64 * share).sum::<f64>() / shares;
    // A ring has space for `depth` messages of the mean size, and at least for two messages of the largest size.
    let ring = (depth.saturating_mul(mean.ceil() as u64 + 16)).max(2 * slot).next_multiple_of(PAGE_BYTES);
    let of = |store, slots| match store {
        Store::Slots => slots * slot,
        Store::Announcements => slots * REQUEST_SLOT_BYTES,
        Store::Ring => ring,
    };
    let description = protocol.description();
    [of(description.sent_from, window), of(description.received_into, depth)]
}

/// Best value of each quantity among all candidates, to which a candidate is compared.
struct Yardstick {
    latency_ns: f64,
    messages_per_s: f64,
}

impl Yardstick {
    fn of(need: &Need, candidates: &[Advice]) -> Self {
        let reaching = |advice: &&Advice| need.messages_per_s.is_none_or(|rate| advice.messages_per_s >= rate);
        let latencies =
            |all: &mut dyn Iterator<Item = &Advice>| all.map(|advice| advice.latency_ns).fold(f64::INFINITY, f64::min);
        let mut latency_ns = latencies(&mut candidates.iter().filter(reaching));
        if latency_ns.is_infinite() {
            latency_ns = latencies(&mut candidates.iter());
        }
        Self { latency_ns, messages_per_s: candidates.iter().map(|advice| useful(need, advice)).fold(0.0, f64::max) }
    }

    /// Returns the sort key; smaller is better. Values are rounded to steps of 5 % from the best.
    fn rank(&self, need: &Need, advice: &Advice) -> impl Ord + use<> {
        let steps = |times_worse: f64| (times_worse.max(1e-9).ln() / SAME.ln()).floor() as i64;
        let slow = steps(advice.latency_ns / self.latency_ns).max(0);
        let little = steps(self.messages_per_s / useful(need, advice));
        let fails = need.messages_per_s.is_some_and(|rate| advice.messages_per_s < rate);
        let copies = need.receiver_places && !places(advice.protocol);
        // A sender that posts a batch waits until the batch is full. A READ from a ring takes the messages that are
        // there, without waiting.
        let waits = if advice.protocol.description().sent_from == Store::Ring { 1 } else { advice.batch };
        let order = match need.goal {
            Goal::Latency => (slow, i64::from(waits), i64::from(copies), little),
            Goal::Throughput => (little, i64::from(copies), slow, 0),
        };
        (fails, if fails { little } else { 0 }, order, advice.memory_bytes(), advice.window, advice.batch)
    }
}

/// Returns the predicted messages per second, limited to the offered rate.
fn useful(need: &Need, advice: &Advice) -> f64 {
    need.messages_per_s.map_or(advice.messages_per_s, |rate| rate.min(advice.messages_per_s))
}

fn reason(parameters: &Parameters, need: &Need, advice: &Advice, first: &Advice) -> String {
    let mut parts = Vec::new();
    if let Some(rate) = need.messages_per_s {
        let share = advice.messages_per_s / rate;
        parts.push(if share < 1.0 {
            format!("reaches only {:.0} % of the rate: {} binds", 100.0 * share, advice.binding)
        } else {
            format!("{} would bind at {share:.2} times the rate", advice.binding)
        });
    } else {
        parts.push(format!("{} binds", advice.binding));
    }
    let times = |what: &str, value: f64, other: f64| {
        let factor = value / other;
        if !(1.0 / SAME..=SAME).contains(&factor) {
            format!("{factor:.2} times the {what} of the first")
        } else {
            format!("the same {what}")
        }
    };
    if advice.protocol == first.protocol {
        parts.push(match need.goal {
            Goal::Latency => "the shortest latency, or within 5 % of it".to_owned(),
            Goal::Throughput if need.messages_per_s.is_some() => "the rate at the least cost".to_owned(),
            Goal::Throughput => "the highest throughput, or within 5 % of it".to_owned(),
        });
    } else {
        parts.push(times("latency", advice.latency_ns, first.latency_ns));
        parts.push(times("throughput", advice.messages_per_s, first.messages_per_s));
    }
    if need.receiver_places {
        let copies = !places(advice.protocol);
        parts.push(if copies { "and a copy at the receiver" } else { "lands where it belongs" }.to_owned());
    }
    if advice.srq || advice.protocol == Protocol::SharedWrite {
        parts.push("memory of the receiver does not grow with connections".to_owned());
    }
    if advice.protocol == Protocol::SendReceive
        && let Some(rate) = held_by_sharing(parameters, need)
    {
        let rate = crate::explain::millions(rate);
        parts.push(match advice.srq {
            true => format!("the shared receive queue holds messages of this size to {rate} M/s"),
            false => format!("no shared receive queue: it would hold messages of this size to {rate} M/s"),
        });
    }
    if advice.protocol.properties().passive == Some(End::Sender) {
        parts.push("the sender's CPU takes no part in the transfer".to_owned());
    }
    parts.join("; ")
}

/// Returns the messages per second to which a shared receive queue would limit the need. Returns `None` if the line
/// carries no more messages.
fn held_by_sharing(parameters: &Parameters, need: &Need) -> Option<f64> {
    let (above, below) = srq_slow_sizes(parameters)?;
    let is_slow = |bytes: u64| above < bytes && bytes < below;
    let several = need.peers.connections > need.peers.receivers;
    (several && need.sizes.iter().all(|(bytes, _)| is_slow(*bytes))).then_some(1e9 / parameters.o_srq_ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::workload::MAX_BYTES;

    fn names(all: &[Advice]) -> Vec<&str> {
        all.iter().map(|advice| advice.protocol.name()).collect()
    }

    fn on_t1(need: &Need) -> Vec<Advice> {
        advise(&Parameters::t1(), need).unwrap()
    }

    #[test]
    fn only_large_messages_are_placed_by_the_receiver() {
        let small = on_t1(&Need { receiver_places: true, ..Need::new(16, Goal::Latency) });
        assert!(!places(small[0].protocol), "{small:#?}");
        let direct = small.iter().find(|advice| advice.protocol.name() == "direct-read").unwrap();
        assert!(direct.latency_ns > 2.0 * small[0].latency_ns);
        assert!(direct.reason.contains("times the latency of the first"), "{}", direct.reason);

        let large = on_t1(&Need { receiver_places: true, ..Need::new(1 << 20, Goal::Throughput) });
        assert!(places(large[0].protocol), "{:?}", names(&large));
        assert_eq!(large[0].binding, BoundKind::Link);
        assert!(large[0].reason.contains("lands where it belongs"), "{}", large[0].reason);
        assert!(large[0].receiver_bytes < 1 << 20, "requests only");
        // A receiver that chooses no destinations cannot use Direct-Read.
        assert!(
            !names(&on_t1(&Need::new(1 << 20, Goal::Throughput))).iter().any(|name| name.starts_with("direct-read"))
        );
    }

    #[test]
    fn throughput_advice_uses_batches_and_latency_advice_none() {
        let of = |goal| {
            let all = on_t1(&Need { receiver_holds: true, receiver_sleeps: true, ..Need::new(64, goal) });
            assert_eq!(names(&all), ["send-receive"]);
            all[0].clone()
        };
        let (fast, quick) = (of(Goal::Throughput), of(Goal::Latency));
        assert!(fast.batch > 1 && fast.window >= 32, "{fast:?}");
        assert_eq!(quick.batch, 1);
        assert!(fast.messages_per_s > 1.5 * quick.messages_per_s);
        // A window of one message suffices for the offered rate, since 100 k messages/s are one message per 10 us.
        let need = Need {
            messages_per_s: Some(1e5),
            receiver_holds: true,
            receiver_sleeps: true,
            ..Need::new(64, Goal::Throughput)
        };
        let slow = &on_t1(&need)[0];
        assert_eq!((slow.window, slow.batch), (1, 1), "{slow:?}");
        assert!(slow.reason.contains("times the rate"), "{}", slow.reason);
    }

    #[test]
    fn protocols_below_the_rate_come_last_with_the_reason() {
        let all =
            on_t1(&Need { messages_per_s: Some(30e6), peers: Peers::many_to_one(16), ..Need::new(64, Goal::Latency) });
        let fails: Vec<bool> = all.iter().map(|advice| advice.messages_per_s < 30e6).collect();
        assert!(fails.is_sorted() && fails.contains(&true) && !fails[0], "{fails:?}");
        let last = all.last().unwrap();
        let share = format!("reaches only {:.0} % of the rate: {} binds", last.messages_per_s / 3e5, last.binding);
        assert!(last.reason.contains(&share), "{}", last.reason);
    }

    #[test]
    fn slow_shared_receive_queues_are_not_advised() {
        let of = |bytes, connections, memory_bytes| {
            let peers = Peers { senders: 16, receivers: 1, connections };
            let need = Need { peers, memory_bytes, receiver_holds: true, ..Need::new(bytes, Goal::Throughput) };
            on_t1(&need).into_iter().find(|advice| advice.protocol == Protocol::SendReceive).unwrap()
        };
        for bytes in [33, 512, 4096] {
            let advice = of(bytes, 16, None);
            assert!(!advice.srq, "{bytes}: {advice:?}");
            assert!(advice.reason.contains("it would hold messages of this size to 2.00 M/s"), "{}", advice.reason);
        }
        for bytes in [16, 32, 6085, 65_536] {
            assert!(!of(bytes, 16, None).reason.contains("messages of this size"), "{bytes}");
        }
        // If the memory suffices only for a shared queue, the reason states the rate limit of the queue.
        let forced = of(4096, 1024, Some(1 << 20));
        assert!(forced.srq && forced.messages_per_s <= 2e6 * 1.001, "{forced:?}");
        assert!(forced.reason.contains("the shared receive queue holds messages of this size"), "{}", forced.reason);
    }

    #[test]
    fn small_messages_in_batches_are_bound_by_the_nic() {
        let of = |peers| {
            let need = Need { peers, receiver_holds: true, receiver_sleeps: true, ..Need::new(16, Goal::Throughput) };
            on_t1(&need)[0].clone()
        };
        let one = of(Peers::ONE_TO_ONE);
        assert_eq!((one.protocol, one.binding), (Protocol::SendReceive, BoundKind::SendingUnits), "{one:?}");
        let many = of(Peers::pairs(16));
        assert_eq!((many.protocol, many.binding), (Protocol::SendReceive, BoundKind::SendingCeiling), "{many:?}");
        assert!(many.reason.contains("sending NIC's ceiling binds"), "{}", many.reason);
    }

    #[test]
    fn little_memory_shares_receive_queues_or_shrinks_windows() {
        let need = Need { receiver_holds: true, peers: Peers::many_to_one(64), ..Need::new(16_384, Goal::Throughput) };
        let plenty = on_t1(&need);
        let of = |all: &[Advice]| all.iter().find(|advice| advice.protocol == Protocol::SendReceive).unwrap().clone();
        let largest = plenty.iter().map(|advice| advice.receiver_bytes).max().unwrap();
        // Without a shared queue, 64 receives of 16 KiB for each of 64 senders would need 64 MiB.
        let little = on_t1(&Need { memory_bytes: Some(8 << 20), ..need.clone() });
        assert!(of(&little).srq && of(&little).reason.contains("does not grow with connections"), "{little:#?}");
        assert!(little.iter().all(|advice| advice.sender_bytes.max(advice.receiver_bytes) <= 8 << 20));
        assert!(largest > 4 << 20);
        let none = advise(&Parameters::t1(), &Need { memory_bytes: Some(1 << 10), ..need });
        let text = none.expect_err("1 KiB is too little").to_string();
        assert!(
            text.starts_with("the memory of a thread is 1024 B, and the least that any protocol needs is "),
            "{text}"
        );
    }

    #[test]
    fn a_mix_of_sizes_lies_between_them() {
        let rate = |sizes: Vec<(u64, f64)>| {
            let need = Need { sizes, receiver_holds: true, ..Need::new(0, Goal::Throughput) };
            let advice = on_t1(&need).into_iter().find(|advice| advice.protocol == Protocol::SendReceive).unwrap();
            (advice.latency_ns, advice.messages_per_s)
        };
        let (small, mixed, large) =
            (rate(vec![(64, 1.0)]), rate(vec![(64, 9.0), (8192, 1.0)]), rate(vec![(8192, 3.0)]));
        assert!(small.0 < mixed.0 && mixed.0 < large.0);
        assert!(small.1 > mixed.1 && mixed.1 > large.1);
        assert!((mixed.0 - (0.9 * small.0 + 0.1 * large.0)).abs() < 1e-6);
    }

    #[test]
    fn zero_copy_protocols_come_first_among_equals() {
        for goal in [Goal::Latency, Goal::Throughput] {
            let all = on_t1(&Need { receiver_places: true, ..Need::new(1 << 20, goal) });
            let copies: Vec<bool> = all.iter().map(|advice| !places(advice.protocol)).collect();
            assert!(copies.is_sorted() && !copies[0], "{:?}", names(&all));
            assert!(all[0].window <= 4, "consecutive READs of 1 MiB need no window: {:?}", all[0]);
        }
    }

    #[test]
    fn the_longest_messages_have_protocols_too() {
        let all = on_t1(&Need { receiver_places: true, ..Need::new(MAX_BYTES, Goal::Throughput) });
        assert!(names(&all).contains(&"buffered-read"));
        // Such a message takes so long that one at a time nearly fills the link.
        let most = all.iter().map(|advice| advice.messages_per_s).fold(0.0, f64::max);
        let fills = |advice: &Advice| {
            (advice.binding == BoundKind::Link || advice.window == 1) && advice.messages_per_s > 0.999 * most
        };
        assert!(all.iter().all(fills), "{all:#?}");
    }

    #[test]
    fn needs_that_make_no_sense_are_refused() {
        let refused = |need: &Need| advise(&Parameters::t1(), need).expect_err("no sense").to_string();
        let good = Need::new(16, Goal::Latency);
        assert_eq!(
            refused(&Need { sizes: vec![], ..good.clone() }),
            "the number of message sizes is 0, allowed is 1 to 1024"
        );
        assert!(
            refused(&Need { sizes: vec![(1, f64::NAN)], ..good.clone() }).contains("share of a message size is NaN")
        );
        assert!(refused(&Need { messages_per_s: Some(-1.0), ..good.clone() }).contains("the rate is -1 messages/s"));
        assert!(
            refused(&Need { sizes: vec![(1 << 40, 1.0)], ..good.clone() })
                .contains("the message size is 1099511627776")
        );
        let peers = Peers { senders: 0, receivers: 0, connections: 0 };
        assert!(refused(&Need { peers, ..good }).contains("the number of senders is 0"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any need has a ranking within its memory, or an error.
        #[test]
        fn any_need_is_answered(
            sizes in prop::collection::vec((0..=MAX_BYTES, 0.01..100.0_f64), 1..4),
            rate in prop::option::of(1.0..1e9_f64),
            (senders, receivers, more) in (1..300_u32, 1..300_u32, 0..300_u32),
            (both, places, sleeps, holds, throughput) in any::<(bool, bool, bool, bool, bool)>(),
            memory in prop::option::of(0..1_u64 << 34),
        ) {
            let goal = if throughput { Goal::Throughput } else { Goal::Latency };
            let need = Need {
                sizes,
                messages_per_s: rate,
                peers: Peers { senders, receivers, connections: senders.max(receivers) + more },
                bidirectional: both,
                receiver_places: places,
                receiver_sleeps: sleeps,
                receiver_holds: holds,
                memory_bytes: memory,
                ..Need::new(0, goal)
            };
            match advise(&Parameters::t1(), &need) {
                Ok(all) => {
                    prop_assert!(!all.is_empty());
                    for advice in &all {
                        prop_assert!(memory.is_none_or(|most| advice.memory_bytes() <= most));
                        prop_assert!(advice.latency_ns > 0.0 && advice.messages_per_s > 0.0 && !advice.reason.is_empty());
                        prop_assert!(advice.batch <= advice.window);
                    }
                }
                Err(AdviseError::Memory { given, least }) => prop_assert!(given < least),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}
