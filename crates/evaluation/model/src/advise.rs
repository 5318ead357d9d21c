//! Advice on the protocol, window, batch and receive queue for a need.
//!
//! [`advise`] predicts each protocol that meets the need, with each window and batch of a grid. It keeps the best
//! setting of each protocol and ranks these settings. Values within 5 % of the best value count as equal, because
//! predictions are not more accurate. Among equal settings, the setting with less memory wins. The ranking ignores
//! costs for which the model has no parameter, mainly copies of the program.

mod answer;
#[cfg(test)]
mod tests;

use doorbell_protocols::{End, Protocol, Store, ZeroCopy};
use doorbell_record::SizeMix;
use doorbell_record::settings::{RATE, Value};
use doorbell_wire::{OuterKind, PathMtu};

use crate::observation::srq_slow_sizes;
use crate::parameters::Parameters;
use crate::predict::{BoundKind, Prediction, Requests, predict, predict_offered, predict_requests};
use crate::workload::{Peers, Workload, WorkloadError};

pub use answer::{Answer, Change, LeftOut, Row, answer, grouped, next_best, with_options};

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
    /// Message sizes, each with its weight. The weights are shares of the messages, and need not add up to one.
    pub sizes: Vec<(u64, f64)>,
    /// Bytes of the reply to each message, in a closed loop. `None` means that messages have no replies.
    pub reply_bytes: Option<u64>,
    /// Microseconds between a reply and the next request in its place of the window. 0 without replies, and
    /// with an offered rate.
    pub think_us: u64,
    /// Number of messages without acknowledgement, or of requests without reply, of each connection. `None` means that
    /// the advice chooses the window.
    pub window: Option<u32>,
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
            reply_bytes: None,
            think_us: 0,
            window: None,
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

    /// Returns the size of the longest message, replies included.
    fn longest(&self) -> u64 {
        self.sizes.iter().map(|(bytes, _)| *bytes).chain(self.reply_bytes).max().unwrap_or(0)
    }
}

/// Proposal for a need.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Proposed protocol.
    pub protocol: Protocol,
    /// Maximum number of messages without acknowledgement, or of requests without reply, per connection.
    pub window: u32,
    /// Messages per post; for Buffered-Read, messages per READ.
    pub batch: u32,
    /// Receive buffers, granted buffers or slots of a ring, per connection. A shared queue or ring counts once per
    /// receiver.
    pub depth: u32,
    /// Whether the connections of a receiver share a receive queue.
    pub srq: bool,
    /// Mean latency of a message if no other message is in flight. The latency of a request ends when its reply
    /// arrives.
    pub latency_ns: f64,
    /// Mean latency while all windows are full ([`Prediction::loaded_ns`]). With an offered rate, the mean latency of
    /// requests from the time at which they are due ([`predict_offered`]). `None` for messages without replies at an
    /// offered rate, and if the rate is not reached.
    pub loaded_ns: Option<f64>,
    /// Predicted messages per second. A request counts together with its reply.
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
        allowed: String,
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
/// Maximum of [`Need::window`] and of the depth of a connection: the maximum window of Doorbell's connections.
const MOST_WINDOW: u32 = 1 << 14;
/// Candidate batches.
const BATCHES: [u32; 3] = [1, 8, 32];
/// Number of connections for whose windows a shared queue or ring has space.
const SHARED_BY: u32 = 4;
/// Minimum depth of a connection, so that messages can arrive while the receiver processes another message.
const LEAST_DEPTH: u32 = 8;
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
    ranked(parameters, need, candidates(parameters, need, Receives::Any)?)
}

/// Receive buffers of candidates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receives {
    /// Buffers of each connection, or a shared queue where it may pay.
    Any,
    /// Only a shared receive queue, which Send-Receive alone has.
    Shared,
}

/// Returns all settings of the protocols that suit the need, each with its prediction.
fn candidates(parameters: &Parameters, need: &Need, receives: Receives) -> Result<Vec<Advice>, AdviseError> {
    let is_meant = |protocol: &Protocol| receives == Receives::Any || *protocol == Protocol::SendReceive;
    let mut candidates = Vec::new();
    for protocol in Protocol::ALL.into_iter().filter(is_meant) {
        if misfit(protocol, need).is_some() {
            continue;
        }
        for (window, batch, shares) in settings(protocol, need, receives) {
            candidates.push(candidate(parameters, need, protocol, window, batch, shares)?);
        }
    }
    Ok(candidates)
}

/// Ranks candidates, and keeps the best one of each protocol.
fn ranked(parameters: &Parameters, need: &Need, mut candidates: Vec<Advice>) -> Result<Vec<Advice>, AdviseError> {
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
    let refuse =
        |what, given: String, allowed: &str| Err(AdviseError::Need { what, given, allowed: allowed.to_owned() });
    if !(1..=SizeMix::MAX_SIZES).contains(&need.sizes.len()) {
        let allowed = format!("1 to {}", SizeMix::MAX_SIZES);
        return refuse("the number of message sizes", need.sizes.len().to_string(), &allowed);
    }
    for &(_, weight) in &need.sizes {
        if !SizeMix::WEIGHTS.contains(&weight) {
            let (least, most) = SizeMix::WEIGHTS.into_inner();
            return refuse("the weight of a message size", weight.to_string(), &format!("{least} to {most}"));
        }
    }
    if need.reply_bytes.is_some() && need.bidirectional {
        return refuse("sending from both sides", "on".to_owned(), "off for messages with replies");
    }
    if let Some(window) = need.window
        && !(1..=MOST_WINDOW).contains(&window)
    {
        return refuse("the number of outstanding messages", window.to_string(), "1 to 16384");
    }
    if need.think_us > 0 && (need.reply_bytes.is_none() || need.messages_per_s.is_some()) {
        let allowed = "0 us for messages without replies, and for requests with a rate";
        return refuse("the think time", format!("{} us", need.think_us), allowed);
    }
    let Some(rate) = need.messages_per_s else { return Ok(()) };
    RATE.check_value(Value::Real(rate)).or_else(|error| refuse("the rate", error.given, &error.allowed))
}

/// Returns the reason for which the protocol does not suit the need, as a clause; `None` if it suits. Words in
/// parentheses are options of `doorbell advise`.
fn misfit(protocol: Protocol, need: &Need) -> Option<&'static str> {
    let properties = protocol.properties();
    let is_shared = matches!(protocol, Protocol::SharedWrite | Protocol::SharedWriteEach);
    let several = need.peers.connections > need.peers.receivers;
    [
        // These variants are never better than the other variant of their family; they exist for comparison.
        (protocol.is_fenced(), "its fence lets one READ wait for another, so the variant without a fence is better"),
        (protocol == Protocol::DirectWriteEach, "it grants buffers one by one, so direct-write is better"),
        (protocol == Protocol::SharedWriteEach, "it reserves space message by message, so shared-write is better"),
        (places(protocol) && !need.receiver_places, "its receiver must choose the place of each message (--place)"),
        (need.receiver_sleeps && !properties.receiver_sleeps, "its receiver polls memory and cannot sleep (--sleep)"),
        (need.receiver_holds && properties.slow_message_blocks, "a message that is kept blocks later ones (--hold)"),
        (is_shared && !several, "senders share a ring, and each receiving thread has one sender"),
    ]
    .into_iter()
    .find_map(|(is_misfit, reason)| is_misfit.then_some(reason))
}

/// Returns whether the protocol delivers messages directly into their final place.
fn places(protocol: Protocol) -> bool {
    protocol.properties().zero_copy == ZeroCopy::Yes
}

/// Returns whether the connections of a receiver can share a receive queue. Doorbell shares the receives of one-way
/// messages only.
fn may_share(need: &Need) -> bool {
    need.reply_bytes.is_none() && need.peers.connections > need.peers.receivers
}

/// Returns the candidates: window, batch, and whether the connections share the receive buffers.
fn settings(protocol: Protocol, need: &Need, receives: Receives) -> Vec<(u32, u32, bool)> {
    let sharing: &[bool] = match protocol {
        _ if receives == Receives::Shared => &[true],
        Protocol::SharedWrite => &[true],
        Protocol::SendReceive
            if may_share(need) && need.peers.connections > SHARED_BY.saturating_mul(need.peers.receivers) =>
        {
            &[false, true]
        }
        _ => &[false],
    };
    let fits = |batch: u32| Workload { protocol, ..Workload::new(need.longest(), batch, batch) }.check().is_ok();
    let windows = need.window.map_or_else(|| WINDOWS.to_vec(), |window| vec![window]);
    let mut settings = Vec::new();
    for window in windows {
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
    let own_depth = window.saturating_mul(2).clamp(LEAST_DEPTH, MOST_WINDOW);
    // If the connections share a queue, the depth of a connection is its part of the queue, and at least one buffer.
    let (pool, depth) = if shares {
        let sharing = connections.div_ceil(receivers.max(1)).max(1);
        let pool = own_depth.saturating_mul(SHARED_BY).min(MOST_WINDOW).max(sharing);
        (pool, pool / sharing)
    } else {
        (own_depth, own_depth)
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
    let prediction = Prediction::mean(predictions(parameters, need, workload)?);
    let directions = if need.bidirectional { 2.0 } else { 1.0 };
    let in_flight = directions * f64::from(connections) * f64::from(window);
    let per_thread = |threads: u32| u64::from(connections.div_ceil(threads.max(1)));
    // The memory of messages in one direction, at the thread that sends them and at the thread that receives them.
    let of = |sizes: &[(u64, f64)], [from, to]: [u32; 2], depth: u32, shares: bool| {
        let [sending, receiving] = memory(protocol, sizes, window.into(), depth.into());
        let receiving = receiving.saturating_mul(if shares { 1 } else { per_thread(to) });
        [sending.saturating_mul(per_thread(from)), receiving]
    };
    let [sending, receiving] = of(&need.sizes, [senders, receivers], pool, shares);
    let (sender_bytes, receiver_bytes) = match need.reply_bytes {
        Some(reply_bytes) => {
            // A client shares no buffers for replies.
            let [replying, hearing] = of(&[(reply_bytes, 1.0)], [receivers, senders], own_depth, false);
            (sending.saturating_add(hearing), receiving.saturating_add(replying))
        }
        None if need.bidirectional => (sending.saturating_add(receiving), sending.saturating_add(receiving)),
        None => (sending, receiving),
    };
    Ok(Advice {
        protocol,
        window,
        batch,
        depth: pool,
        srq,
        latency_ns: prediction.latency_ns,
        loaded_ns: match need.messages_per_s {
            None => Some(prediction.loaded_ns(in_flight) - need.think_us as f64 * 1e3),
            Some(rate) => offered_ns(parameters, need, workload, rate / prediction.messages_per_s)?,
        },
        messages_per_s: prediction.messages_per_s,
        sender_bytes,
        receiver_bytes,
        binding: prediction.bottleneck().binding.kind,
        reason: String::new(),
    })
}

/// Predicts the messages of each size of a need, or its requests with their replies, with their shares.
fn predictions(
    parameters: &Parameters,
    need: &Need,
    workload: impl Fn(u64) -> Workload,
) -> Result<Vec<(f64, Prediction)>, WorkloadError> {
    let of = |&(bytes, share): &(u64, f64)| {
        let request = workload(bytes);
        let prediction = match need.reply_bytes {
            Some(reply_bytes) => {
                predict_requests(parameters, &Requests { request, reply_bytes, think_us: need.think_us })?
            }
            None => predict(parameters, &request)?,
        };
        Ok((share, prediction))
    };
    need.sizes.iter().map(of).collect()
}

/// Predicts the mean latency of requests that are due at the share `busy` of the predicted throughput. Returns `None`
/// for messages without replies, and for a share of 1 or more, with which ever more requests wait.
fn offered_ns(
    parameters: &Parameters,
    need: &Need,
    workload: impl Fn(u64) -> Workload,
    busy: f64,
) -> Result<Option<f64>, WorkloadError> {
    let Some(reply_bytes) = need.reply_bytes.filter(|_| busy < 1.0) else { return Ok(None) };
    let sizes = need.sizes.iter();
    let sizes = sizes.map(|&(bytes, share)| (Requests { request: workload(bytes), reply_bytes, think_us: 0 }, share));
    Ok(Some(predict_offered(parameters, &sizes.collect::<Vec<_>>(), busy)?))
}

/// Returns the bytes of message memory that a connection needs at the sender and at the receiver, for messages of these
/// sizes with their shares.
fn memory(protocol: Protocol, sizes: &[(u64, f64)], window: u64, depth: u64) -> [u64; 2] {
    let longest = sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    let slot = longest.next_multiple_of(REQUEST_SLOT_BYTES).max(REQUEST_SLOT_BYTES);
    let shares: f64 = sizes.iter().map(|(_, share)| share).sum();
    let mean = sizes.iter().map(|(bytes, share)| *bytes as f64 * share).sum::<f64>() / shares;
    // A ring has space for `depth` messages of the mean size, and at least for two messages of the largest size.
    let ring = (depth.saturating_mul(mean.ceil() as u64 + 16)).max(2 * slot).next_multiple_of(PAGE_BYTES);
    let of = |store, slots: u64| match store {
        Store::Slots => slots.saturating_mul(slot),
        Store::Announcements => slots.saturating_mul(REQUEST_SLOT_BYTES),
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
pub fn useful(need: &Need, advice: &Advice) -> f64 {
    need.messages_per_s.map_or(advice.messages_per_s, |rate| rate.min(advice.messages_per_s))
}

fn reason(parameters: &Parameters, need: &Need, advice: &Advice, first: &Advice) -> String {
    let mut parts = Vec::new();
    if let Some(rate) = need.messages_per_s {
        let share = advice.messages_per_s / rate;
        parts.push(if share < 1.0 {
            let digits = if share < 0.01 { 2 } else { 0 };
            format!("reaches only {:.digits$} % of the rate: {}", 100.0 * share, answer::binds(advice.binding))
        } else {
            format!("{} would bind at {share:.2} times the rate", advice.binding)
        });
    } else {
        parts.push(answer::binds(advice.binding));
    }
    let times = |what: &str, value: f64, other: f64| {
        let factor = value / other;
        if !(1.0 / SAME..=SAME).contains(&factor) {
            format!("{factor:.2} times the {what} of the first")
        } else {
            format!("the same {what}")
        }
    };
    let fails = need.messages_per_s.is_some_and(|rate| advice.messages_per_s < rate);
    if advice.protocol == first.protocol {
        parts.push(match need.goal {
            // Without a protocol that reaches the rate, the fastest one is first.
            _ if fails => "the highest throughput, or within 5 % of it".to_owned(),
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
        let rate = crate::explain::per_second(rate);
        parts.push(match advice.srq {
            true => format!("the shared receive queue holds messages of this size to {rate}/s"),
            false => format!("no shared receive queue: it would hold messages of this size to {rate}/s"),
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
    (may_share(need) && need.sizes.iter().all(|(bytes, _)| is_slow(*bytes))).then_some(1e9 / parameters.o_srq_ns)
}
