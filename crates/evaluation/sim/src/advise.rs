//! Advice, tested on a simulated testbed.

use std::cmp::Ordering;

use doorbell_model::advise::{Advice, Goal, Need};
use doorbell_model::workload::Peers;
use doorbell_protocols::Protocol;
use doorbell_record::settings::{SERVER_THREADS, THREADS, Value};
use doorbell_record::{Extent, Kind, Operation, Parameters, Serving, SharedBy, SizeMix};
use doorbell_study::Usage;
use doorbell_wire::PathMtu;

use crate::reproduce::SEED;
use crate::session::{self, Point, PointError};
use crate::{Bottleneck, Testbed};

/// Maximum number of messages of a stream, which lasts much longer than a round trip.
const STREAM_MESSAGES: u64 = 20_000;
/// Maximum number of bytes of a stream.
const STREAM_BYTES: u64 = 16 << 20;

/// Maximum number of messages of a stream of several sizes: the period of the sequence of sizes.
const MIX_MESSAGES: u64 = 1 << 16;
/// Maximum number of bytes of a stream of several sizes. A mean latency depends on its long messages, which may be few.
const MIX_BYTES: u64 = 512 << 20;

/// Minimum number of windows that each connection sends, so that the stream is longer than its start.
const LEAST_WINDOWS: u64 = 4;

/// Number of times that the messages of a connection fill the receiver's space, if they have at most [`SPACE_BYTES`].
/// The RNIC has acknowledged the messages in this space when the stream ends, but the receiver has not received them.
const LEAST_SPACES: u64 = 8;

/// Maximum number of bytes of a stream that is longer than [`STREAM_BYTES`] for the sake of [`LEAST_SPACES`].
const SPACE_BYTES: u64 = 256 << 20;

/// Maximum number of packets of a stream. A stream that reaches it may be shorter than [`LEAST_WINDOWS`].
const STREAM_PACKETS: u64 = 1 << 20;

/// Maximum message memory of a simulated end, in bytes. A stream that needs more has a smaller window or depth.
const MOST_MEMORY: usize = 2 << 30;

/// Number of round trips of a ping-pong. In virtual time, round trips differ only by the effects of caches and timers.
const ROUND_TRIPS: u64 = 200;

/// Share of the required rate that suffices in a simulation, because the start and the end of a stream are slower.
const CARRIES: f64 = 0.98;

/// Ratio of two figures beyond which the model departs from a simulation.
const AGREES: f64 = 1.25;

/// Returns whether a figure of the model and a simulated figure differ by more than 25 %.
pub fn departs(model: f64, simulated: f64) -> bool {
    !(1.0 / AGREES..=AGREES).contains(&(model / simulated))
}

/// Simulated figures of an advice.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Mean latency of a single message. The latency of a request ends when its reply arrives.
    pub latency_ns: f64,
    /// Mean latency of requests with full windows, or with an offered rate from the time at which a request is due.
    /// `None` for messages without replies.
    pub loaded_ns: Option<f64>,
    /// Messages per second.
    pub messages_per_s: f64,
    /// Bottleneck of the stream of all sizes, or of the stream of the size that takes the most time. `None` for a need
    /// without sizes.
    pub bottleneck: Option<Bottleneck>,
    /// Notes about values of the advice that the simulation reduced, and about short streams.
    pub notes: Vec<String>,
}

/// Rejects a need that cannot be simulated.
///
/// # Errors
///
/// An end has too many threads. Senders and receivers differ in number, although both sides send or a receiver sleeps.
pub fn check(need: &Need) -> Result<(), Usage> {
    let Peers { senders, receivers, .. } = need.peers;
    for (setting, threads, what) in [(&THREADS, senders, "sending"), (&SERVER_THREADS, receivers, "receiving")] {
        if !setting.allows(Value::Whole(threads.into()), None) {
            let allowed = setting.allowed(None);
            return Err(Usage(format!("{threads} {what} threads cannot be simulated: must be {allowed}")));
        }
    }
    if senders != receivers && (need.bidirectional || need.receiver_sleeps) {
        return Err(Usage(format!(
            "{senders} sending and {receivers} receiving threads cannot be simulated if both sides send or the \
             receiver sleeps: give N:N"
        )));
    }
    Ok(())
}

/// Simulates an advice: each size alone, and a stream. At an offered rate, one stream has all sizes, so that short
/// messages wait for long ones. At the maximum rate, and if messages of the advice have one size only, each size has a
/// stream of its own.
///
/// # Errors
///
/// A point of the advice could not be simulated.
pub fn simulate(testbed: &Testbed, need: &Need, advice: &Advice) -> Result<Simulated, PointError> {
    let shares: f64 = need.sizes.iter().map(|(_, share)| share).sum();
    let mut latency_ns = 0.0;
    for &(bytes, share) in &need.sizes {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let alone = session::simulate(testbed, &with_memory(alone(need, advice, bytes), bytes), bytes, SEED)?.result;
        latency_ns += share / shares * alone.latency_ns.ok_or(PointError::Unfinished)?.mean;
    }
    let Some((parameters, note)) = mixed(need, advice) else {
        return apart(testbed, need, advice, latency_ns);
    };
    let longest = parameters.sizes.first().copied().unwrap_or(0);
    let Point { result, summary } = session::simulate(testbed, &parameters, longest, SEED)?;
    Ok(Simulated {
        latency_ns,
        loaded_ns: result.latency_ns.filter(|_| need.reply_bytes.is_some()).map(|latency| latency.mean),
        messages_per_s: result.messages_per_s,
        bottleneck: Some(Bottleneck::of(&summary)),
        notes: result.fitted.notes.into_iter().chain(note).map(|note| format!("all sizes: {note}")).collect(),
    })
}

/// Simulates a stream of each size, for a need with the given latency alone. Several sizes share an offered rate, so
/// their streams have the maximum rate and no latency with load.
fn apart(testbed: &Testbed, need: &Need, advice: &Advice, latency_ns: f64) -> Result<Simulated, PointError> {
    let shared_rate = need.messages_per_s.filter(|_| need.sizes.len() > 1);
    let unlimited = Need { messages_per_s: None, ..need.clone() };
    let need = if shared_rate.is_some() { &unlimited } else { need };
    let shares: f64 = need.sizes.iter().map(|(_, share)| share).sum();
    let mut loaded_ns = need.reply_bytes.filter(|_| shared_rate.is_none()).map(|_| 0.0);
    let (mut seconds, mut notes) = (0.0, Vec::new());
    let mut longest: Option<(f64, Bottleneck)> = None;
    for &(bytes, share) in &need.sizes {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let share = share / shares;
        let (messages, note) = messages(need, advice, bytes, (STREAM_BYTES, STREAM_MESSAGES));
        let stream = Parameters { extent: Extent::Messages(messages), ..stream(need, advice, bytes) };
        let Point { result: stream, summary } = session::simulate(testbed, &with_memory(stream, bytes), bytes, SEED)?;
        let taken = share / stream.messages_per_s;
        if longest.is_none_or(|(most, _)| taken > most) {
            longest = Some((taken, Bottleneck::of(&summary)));
        }
        notes.extend(stream.fitted.notes.iter().cloned().chain(note).map(|note| format!("{bytes} B: {note}")));
        seconds += taken;
        loaded_ns = loaded_ns.zip(stream.latency_ns).map(|(sum, latency)| sum + share * latency.mean);
    }
    let bottleneck = longest.map(|(_, bottleneck)| bottleneck);
    let messages_per_s = shared_rate.unwrap_or(f64::INFINITY).min(1.0 / seconds);
    Ok(Simulated { latency_ns, loaded_ns, messages_per_s, bottleneck, notes })
}

/// Returns the parameters of one stream of all sizes at an offered rate, and a note if the stream is short. Returns
/// `None` for one size, for the maximum rate, and if messages of the advice have one size only.
fn mixed(need: &Need, advice: &Advice) -> Option<(Parameters, Option<String>)> {
    need.messages_per_s?;
    let parameters = of_all_sizes(need, advice);
    let mean = parameters.mix.as_ref()?.mean();
    parameters.check().ok()?;
    let (messages, note) = messages(need, advice, mean as usize, (MIX_BYTES, MIX_MESSAGES));
    Some((Parameters { extent: Extent::Messages(messages), ..parameters }, note))
}

/// Returns the parameters with enough memory for their window and depth, or with [`MOST_MEMORY`].
fn with_memory(mut parameters: Parameters, bytes: usize) -> Parameters {
    let has_enough = |parameters: &Parameters| parameters.fit(bytes).is_ok_and(|fitted| fitted.notes.is_empty());
    while parameters.memory_bytes < MOST_MEMORY && !has_enough(&parameters) {
        parameters.memory_bytes = parameters.memory_bytes.saturating_mul(2).min(MOST_MEMORY);
    }
    parameters
}

/// Returns the number of messages of each connection in a stream, and a note if they are less than [`LEAST_WINDOWS`].
/// The messages have a mean size of `bytes`. `most` has the maximum numbers of bytes and messages of the stream.
fn messages(need: &Need, advice: &Advice, bytes: usize, most: (u64, u64)) -> (u64, Option<String>) {
    let (most_bytes, most_messages) = most;
    let (bytes, reply_bytes) = (bytes as u64, need.reply_bytes.unwrap_or(0));
    let connections = u64::from(need.peers.connections).max(1);
    let longest = reply_bytes.max(bytes).max(1);
    let long = (most_bytes / longest).min(most_messages) / connections;
    let spaces = (LEAST_SPACES * depth(need, advice) as u64).min(SPACE_BYTES / longest / connections);
    let least = LEAST_WINDOWS * u64::from(advice.window);
    let mtu = need.path_mtu.unwrap_or(PathMtu::Mtu4096).bytes() as u64;
    let packets = bytes.div_ceil(mtu).max(1) + reply_bytes.div_ceil(mtu);
    let most = (STREAM_PACKETS / packets / connections).max(1);
    let note = format!(
        "the simulation has {most} messages per connection instead of {least}, which would be more than \
         {STREAM_PACKETS} packets, so the start and the end of the stream lower its rate"
    );
    (long.max(spaces).max(least).min(most), (least > most).then_some(note))
}

/// Returns the parameters of one message at a time between one sender and one receiver.
fn alone(need: &Need, advice: &Advice, bytes: usize) -> Parameters {
    let operation = if need.reply_bytes.is_some() { Operation::RequestResponse } else { Operation::Send };
    Parameters {
        reply: need.reply_bytes.map(|reply| usize::try_from(reply).unwrap_or(usize::MAX)),
        protocol: advice.protocol,
        extent: Extent::Messages(ROUND_TRIPS),
        events: need.receiver_sleeps,
        mtu: need.path_mtu.map(PathMtu::bytes),
        ..Parameters::plain(Kind::Latency, operation, bytes)
    }
}

/// Returns the number of messages of each connection for which the receiver has space. The advice has the depth of the
/// queue or ring that the connections of a receiver share.
fn depth(need: &Need, advice: &Advice) -> usize {
    let Peers { receivers, connections, .. } = need.peers;
    let shares = advice.srq || advice.protocol == Protocol::SharedWrite;
    let sharing = if shares { connections.div_ceil(receivers.max(1)).max(1) } else { 1 };
    (advice.depth / sharing).max(1) as usize
}

/// Returns the parameters of a stream at the required rate, or at the maximum. The caller sets the number of messages.
fn stream(need: &Need, advice: &Advice, bytes: usize) -> Parameters {
    let Peers { senders, receivers, .. } = need.peers;
    let depth = match advice.srq {
        // The advice has the depth of the queue of one receiver, and the parameters that of all queues together.
        true => (advice.depth as usize).saturating_mul(receivers as usize),
        false => depth(need, advice),
    };
    Parameters {
        window: advice.window as usize,
        batch: advice.batch as usize,
        depth,
        depths_are_defaults: false,
        connections: need.peers.connections as usize,
        bidirectional: need.bidirectional,
        rate: need.messages_per_s,
        think_us: need.think_us,
        serving: Serving {
            threads: senders as usize,
            // 0 means the number of senders.
            server_threads: if senders == receivers { 0 } else { receivers as usize },
            // One completion queue serves all connections of a single thread.
            single_receiver: is_single_receiver(need, advice.protocol),
            shared_receives: advice.srq.then_some(SharedBy::Lock),
            ..Serving::default()
        },
        kind: Kind::Bandwidth,
        ..alone(need, advice, bytes)
    }
}

/// Returns the parameters of one stream of all sizes. The caller sets the number of messages.
fn of_all_sizes(need: &Need, advice: &Advice) -> Parameters {
    let mix = SizeMix::from(&need.sizes[..]);
    let longest = mix.longest();
    let parameters = with_memory(stream(need, advice, longest), longest);
    Parameters { mix: (mix.0.len() > 1).then_some(mix), ..parameters }
}

/// Returns the parameters of a measurement of an advice, or `None` if `bench` cannot measure it, for example with more
/// than 64 threads. The caller sets the number of messages.
pub fn measured(need: &Need, advice: &Advice) -> Option<Parameters> {
    let mut parameters = of_all_sizes(need, advice);
    parameters.serving.single_receiver = false;
    parameters.check().is_ok().then_some(parameters)
}

/// Returns whether one completion queue serves all connections: if one thread receives from several senders by
/// Send-Receive, without replies.
fn is_single_receiver(need: &Need, protocol: Protocol) -> bool {
    let is_many_to_one = need.peers.receivers == 1 && need.peers.senders > 1;
    is_many_to_one && need.reply_bytes.is_none() && protocol == Protocol::SendReceive
}

/// Compares how well two simulations suit the need. Failed simulations come last.
pub fn compare<E>(need: &Need, one: &Result<Simulated, E>, other: &Result<Simulated, E>) -> Ordering {
    let (one, other) = match (one, other) {
        (Ok(one), Ok(other)) => (one, other),
        _ => return one.is_err().cmp(&other.is_err()),
    };
    let misses =
        |simulated: &Simulated| need.messages_per_s.is_some_and(|wanted| simulated.messages_per_s < CARRIES * wanted);
    let by_latency = one.latency_ns.total_cmp(&other.latency_ns);
    let by_rate = other.messages_per_s.total_cmp(&one.messages_per_s);
    misses(one).cmp(&misses(other)).then(match need.goal {
        Goal::Latency => by_latency.then(by_rate),
        Goal::Throughput => by_rate.then(by_latency),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(need: &Need, all: &[(f64, f64)]) -> usize {
        let all = all.iter().map(|&(latency_ns, messages_per_s)| {
            Ok(Simulated { latency_ns, loaded_ns: None, messages_per_s, bottleneck: None, notes: Vec::new() })
        });
        let mut all: Vec<(usize, Result<Simulated, ()>)> = all.chain([Err(())]).enumerate().collect();
        all.sort_by(|(_, one), (_, other)| compare(need, one, other));
        assert!(all.last().is_some_and(|(_, last)| last.is_err()), "failed simulations come last");
        all[0].0
    }

    #[test]
    fn goal_ranks_simulations_that_carry_the_rate() {
        let all = [(5.0, 1e6), (2.0, 1e5), (9.0, 3e6)];
        let latency = Need::new(16, Goal::Latency);
        assert_eq!(best(&latency, &all), 1);
        assert_eq!(best(&Need { messages_per_s: Some(1e6), ..latency }, &all), 0);
        assert_eq!(best(&Need::new(16, Goal::Throughput), &all), 2);
    }

    #[test]
    fn needs_without_a_simulation_are_rejected() {
        let need = Need { peers: Peers::many_to_one(4), ..Need::new(16, Goal::Latency) };
        assert!(check(&need).is_ok());
        assert!(check(&Need { reply_bytes: Some(16), ..need.clone() }).is_ok());
        assert!(check(&Need { bidirectional: true, ..need.clone() }).is_err());
        let refused = check(&Need { peers: Peers::many_to_one(100), ..need }).expect_err("too many threads");
        assert_eq!(refused.0, "100 sending threads cannot be simulated: must be 1 to 64");
    }

    /// Returns the advice on Send-Receive for a need.
    fn send_receive(need: &Need) -> Advice {
        let parameters = doorbell_model::parameters::Parameters::t1();
        let all = doorbell_model::advise::advise(&parameters, need).expect("advice");
        all.into_iter().find(|advice| advice.protocol == Protocol::SendReceive).expect("Send-Receive")
    }

    #[test]
    fn a_stream_has_the_window_and_depth_of_its_advice() {
        let need = Need {
            peers: Peers::many_to_one(4),
            window: Some(32),
            receiver_holds: true,
            ..Need::new(1 << 20, Goal::Throughput)
        };
        let advice = send_receive(&need);
        let plain = stream(&need, &advice, 1 << 20);
        assert!(!plain.fit(1 << 20).expect("space for a message").notes.is_empty(), "{plain:?}");
        let fitted = with_memory(plain, 1 << 20).fit(1 << 20).expect("space for all messages");
        assert_eq!((fitted.window, fitted.depth, fitted.notes), (32, advice.depth as usize, vec![]));
    }

    #[test]
    fn measurements_have_the_threads_of_the_need() {
        let need = Need { peers: Peers::many_to_one(8), receiver_holds: true, ..Need::new(64, Goal::Throughput) };
        let advice = send_receive(&need);
        let measured = |need: &Need| super::measured(need, &advice);
        let serving = measured(&need).expect("parameters").serving;
        assert_eq!((serving.threads, serving.server_threads, serving.single_receiver), (8, 1, false));
        let mixed = Need { sizes: vec![(64, 9.0), (512, 1.0)], ..need.clone() };
        assert_eq!(measured(&mixed).expect("parameters").sizes, [512]);
        assert_eq!(measured(&Need { peers: Peers::many_to_one(65), ..need }), None);
    }

    #[test]
    fn long_streams_are_cut_with_a_note() {
        let need = Need { window: Some(16), receiver_holds: true, ..Need::new(64, Goal::Throughput) };
        let messages = |need: &Need| messages(need, &send_receive(need), 64, (STREAM_BYTES, STREAM_MESSAGES));
        assert_eq!(messages(&need), (STREAM_MESSAGES, None));
        let many = Need { window: Some(1 << 14), peers: Peers::many_to_one(32), ..need };
        let (each, note) = messages(&many);
        assert_eq!(each, STREAM_PACKETS / 32);
        let note = note.expect("a note about the short stream");
        assert!(note.starts_with("the simulation has 32768 messages per connection instead of 65536"), "{note}");
    }

    #[test]
    fn only_sizes_of_one_stream_are_mixed() {
        let plain = Need { sizes: vec![(64, 1.0), (4096, 1.0)], ..Need::new(64, Goal::Latency) };
        let need = Need { messages_per_s: Some(1e4), ..plain.clone() };
        let advice = send_receive(&need);
        assert!(mixed(&need, &advice).is_some() && mixed(&plain, &advice).is_none());
        assert!(mixed(&need, &Advice { protocol: Protocol::BufferedRead, ..advice }).is_none());
    }
}
