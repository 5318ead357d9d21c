//! Advice, tested on a simulated testbed.

use std::cmp::Ordering;

use doorbell_model::advise::{Advice, Goal, Need};
use doorbell_record::{Extent, Kind, Operation, Parameters, Serving, SharedBy};
use doorbell_study::failure::Usage;

use crate::Testbed;
use crate::reproduce::SEED;
use crate::session::{self, PointError};

/// Maximum number of messages of a stream, which lasts much longer than a round trip.
const STREAM_MESSAGES: u64 = 20_000;
/// Maximum number of bytes of a stream.
const STREAM_BYTES: u64 = 16 << 20;

/// Minimum number of windows that each connection sends, so that the stream is longer than its start.
const LEAST_WINDOWS: u64 = 4;

/// Number of round trips of a ping-pong. In virtual time, round trips differ only by the effects of caches and timers.
const ROUND_TRIPS: u64 = 200;

/// Share of the required rate that suffices in a simulation, because the start and the end of a stream are slower.
const CARRIES: f64 = 0.98;

/// Simulated figures of an advice.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    /// Mean latency of a single message.
    pub latency_ns: f64,
    /// Messages per second.
    pub messages_per_s: f64,
}

/// Rejects a need that cannot be simulated: the two hosts of a simulated session have the same number of threads.
///
/// # Errors
///
/// The need has different numbers of senders and receivers.
pub fn check(need: &Need) -> Result<(), Usage> {
    let peers = &need.peers;
    if peers.senders == peers.receivers {
        return Ok(());
    }
    Err(Usage(format!(
        "--peers {}:{} does not go with --testbed, which needs equal numbers of senders and receivers: give N:N",
        peers.senders, peers.receivers
    )))
}

/// Simulates an advice for each size of the need.
///
/// # Errors
///
/// A point of the advice could not be simulated.
pub fn simulate(testbed: &Testbed, need: &Need, advice: &Advice) -> Result<Simulated, PointError> {
    let shares: f64 = need.sizes.iter().map(|(_, share)| share).sum();
    let (mut latency_ns, mut seconds) = (0.0, 0.0);
    for &(bytes, share) in &need.sizes {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let share = share / shares;
        let alone = session::simulate(testbed, &alone(need, advice, bytes), bytes, SEED)?.result;
        latency_ns += share * alone.latency_ns.ok_or(PointError::Unfinished)?.mean;
        let stream = session::simulate(testbed, &stream(need, advice, bytes), bytes, SEED)?.result;
        seconds += share / stream.messages_per_s;
    }
    Ok(Simulated { latency_ns, messages_per_s: 1.0 / seconds })
}

/// Returns the parameters of one message at a time between one sender and one receiver.
fn alone(need: &Need, advice: &Advice, bytes: usize) -> Parameters {
    Parameters {
        protocol: advice.protocol,
        extent: Extent::Messages(ROUND_TRIPS),
        events: need.receiver_sleeps,
        mtu: need.path_mtu.map(doorbell_wire::PathMtu::bytes),
        ..Parameters::plain(Kind::Latency, Operation::Send, bytes)
    }
}

/// Returns the parameters of a stream at the required rate, or at the maximum.
fn stream(need: &Need, advice: &Advice, bytes: usize) -> Parameters {
    let messages = (STREAM_BYTES / bytes.max(1) as u64).min(STREAM_MESSAGES) / u64::from(need.peers.connections).max(1);
    Parameters {
        extent: Extent::Messages(messages.max(LEAST_WINDOWS * u64::from(advice.window))),
        window: advice.window as usize,
        batch: advice.batch as usize,
        depth: advice.depth as usize,
        depths_are_defaults: false,
        connections: need.peers.connections as usize,
        bidirectional: need.bidirectional,
        rate: need.messages_per_s,
        serving: Serving {
            threads: need.peers.senders as usize,
            shared_receives: advice.srq.then_some(SharedBy::Lock),
            ..Serving::default()
        },
        kind: Kind::Bandwidth,
        ..alone(need, advice, bytes)
    }
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
        let all = all.iter().map(|&(latency_ns, messages_per_s)| Ok(Simulated { latency_ns, messages_per_s }));
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
    fn unequal_senders_and_receivers_are_rejected() {
        let need = Need::new(16, Goal::Latency);
        assert!(check(&need).is_ok());
        let peers = doorbell_model::workload::Peers { senders: 4, receivers: 1, connections: 4 };
        assert!(check(&Need { peers, ..need }).is_err());
    }
}
