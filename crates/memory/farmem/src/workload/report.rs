//! Combined results of all clients of a run.

use doorbell_verbs::PathMtu;
use doorbell_wire::{CostError, MessageKind, OuterKind, Response, Transport, message_cost};
use hdrhistogram::Histogram;

use super::{Load, Tally};
use crate::counts::{Attempts, ClientCounts};

/// Results of all gets, or of all puts.
#[derive(Clone, Debug)]
pub struct Side {
    /// Durations in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Attempts to complete the operations.
    pub attempts: Attempts,
}

impl Side {
    /// Returns the number of attempts per operation.
    pub fn attempts_per_operation(&self) -> f64 {
        ratio(self.attempts.attempts, self.attempts.operations)
    }

    /// Returns the percentage of attempts that found the newest node.
    pub fn success_percent(&self) -> f64 {
        100.0 * ratio(self.attempts.successes, self.attempts.attempts)
    }

    /// Returns the percentage of operations whose first attempt found the newest node.
    pub fn at_once_percent(&self) -> f64 {
        100.0 * ratio(self.attempts.at_once, self.attempts.operations)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Number of counted operations.
    pub operations: u64,
    /// Operations per second of all clients together.
    pub operations_per_s: f64,
    /// Gets.
    pub gets: Side,
    /// Puts.
    pub puts: Side,
    /// Bytes of Ethernet frames per operation, without FCS, that the clients' hosts sent and received according to
    /// their counters. `None` if the device does not count them.
    pub bytes_per_operation: Option<f64>,
    /// Minimum of `bytes_per_operation`, for operations whose first attempt succeeds. With `server` these are the bytes
    /// of two messages. Otherwise a get costs a READ of the node and a READ of the shortcut, and a put costs a WRITE, a
    /// CAS and a WRITE of the shortcut.
    pub least_bytes_per_operation: f64,
    /// Jain's fairness index of the clients' operations: 1 if all clients completed the same number, 1/n if only one of
    /// n clients completed any.
    pub fairness: f64,
    /// The smallest and the largest number of operations of a client, each divided by the mean.
    pub fewest_and_most: [f64; 2],
    /// Operations that failed because other clients were faster in each attempt.
    pub gave_up: u64,
    /// Operations of an open loop that never began.
    pub skipped: u64,
    /// Operations whose key did not exist. A workload expects none.
    pub absent: u64,
    /// Sum of the counters of all clients.
    pub counts: ClientCounts,
}

/// Combined results of the clients of one host.
#[derive(Clone, Debug)]
pub struct HostTally {
    /// Number of counted operations of each client.
    pub operations: Vec<u64>,
    /// Counted operations per second of each client, over the duration of that client's measurement.
    pub operations_per_s: Vec<f64>,
    /// Durations of gets in nanoseconds.
    pub gets_ns: Histogram<u64>,
    /// Durations of puts in nanoseconds.
    pub puts_ns: Histogram<u64>,
    /// Sum of the counters of the clients.
    pub counts: ClientCounts,
    /// Operations that failed because other clients were faster in each attempt.
    pub gave_up: u64,
    /// Operations of an open loop that never began.
    pub skipped: u64,
    /// Operations whose key did not exist.
    pub absent: u64,
    /// Bytes of frames that the host's device sent and received, as the mean over the clients' measurements. `None` if
    /// the device does not count them.
    pub wire_bytes: Option<f64>,
    /// The time at which the first counted operation may have begun, and the end of the last one, on the device's
    /// clock.
    pub span_ns: (u64, u64),
}

impl HostTally {
    /// Returns the combined results of clients that share a device.
    pub fn of(clients: &[Tally]) -> Self {
        let merge = |of: fn(&Tally) -> &Histogram<u64>| {
            let mut sum = Histogram::new_from(&Tally::new(0).gets_ns);
            // All histograms have the same bounds, so the addition cannot fail.
            clients.iter().for_each(|tally| sum.add(of(tally)).unwrap_or_default());
            sum
        };
        let sum = |of: fn(&Tally) -> u64| clients.iter().map(of).sum();
        let bytes: Option<u64> = clients.iter().map(|tally| tally.wire_bytes).sum();
        Self {
            operations: clients.iter().map(Tally::operations).collect(),
            operations_per_s: clients
                .iter()
                .map(|tally| tally.operations() as f64 * 1e9 / tally.lasted_ns() as f64)
                .collect(),
            gets_ns: merge(|tally| &tally.gets_ns),
            puts_ns: merge(|tally| &tally.puts_ns),
            counts: clients.iter().fold(ClientCounts::default(), |sum, tally| sum.and(&tally.counts)),
            gave_up: sum(|tally| tally.gave_up),
            skipped: sum(|tally| tally.skipped),
            absent: sum(|tally| tally.absent),
            wire_bytes: bytes.map(|bytes| bytes as f64 / clients.len().max(1) as f64),
            span_ns: (
                clients.iter().map(|tally| tally.span_ns.0).min().unwrap_or(0),
                clients.iter().map(|tally| tally.span_ns.1).max().unwrap_or(0),
            ),
        }
    }
}

impl Report {
    /// Returns the report of all clients, grouped by host.
    pub fn new(load: &Load, path_mtu: PathMtu, is_served: bool, hosts: &[Vec<Tally>]) -> Self {
        let hosts: Vec<HostTally> = hosts.iter().map(|clients| HostTally::of(clients)).collect();
        Self::of_hosts(load, path_mtu, is_served, &hosts)
    }

    /// Returns the report of hosts whose clients' results were already combined.
    pub fn of_hosts(load: &Load, path_mtu: PathMtu, is_served: bool, hosts: &[HostTally]) -> Self {
        let merge = |of: fn(&HostTally) -> &Histogram<u64>| {
            let mut sum = Histogram::new_from(&Tally::new(0).gets_ns);
            // No host records values beyond the bounds of the histogram, so the addition cannot fail.
            hosts.iter().for_each(|host| sum.add(of(host)).unwrap_or_default());
            sum
        };
        let sum = |of: fn(&HostTally) -> u64| hosts.iter().fold(0, |sum: u64, host| sum.saturating_add(of(host)));
        let counts = hosts.iter().fold(ClientCounts::default(), |sum, host| sum.and(&host.counts));
        let done: Vec<u64> = hosts.iter().flat_map(|host| &host.operations).copied().collect();
        let operations = done.iter().fold(0, |sum: u64, &done| sum.saturating_add(done));
        let bytes: Option<Vec<f64>> =
            hosts.iter().filter(|host| !host.operations.is_empty()).map(|host| host.wire_bytes).collect();
        let mean = operations as f64 / done.len().max(1) as f64;
        let squares: f64 = done.iter().map(|&done| (done as f64).powi(2)).sum();
        let against_mean = |done: Option<&u64>| done.map_or(0.0, |&done| done as f64 / mean.max(f64::MIN_POSITIVE));
        Self {
            operations,
            operations_per_s: hosts.iter().flat_map(|host| &host.operations_per_s).sum(),
            gets: Side { latency_ns: merge(|host| &host.gets_ns), attempts: counts.gets },
            puts: Side { latency_ns: merge(|host| &host.puts_ns), attempts: counts.writes },
            bytes_per_operation: bytes.map(|bytes| bytes.iter().sum::<f64>() / operations.max(1) as f64),
            least_bytes_per_operation: least_bytes(load, path_mtu, is_served).unwrap_or(f64::NAN),
            fairness: if squares > 0.0 { mean * mean * done.len() as f64 / squares } else { 0.0 },
            fewest_and_most: [against_mean(done.iter().min()), against_mean(done.iter().max())],
            gave_up: sum(|host| host.gave_up),
            skipped: sum(|host| host.skipped),
            absent: sum(|host| host.absent),
            counts,
        }
    }
}

/// Returns the bytes of frames, in both directions, per operation whose first attempt succeeds. Each WRITE and each
/// SEND has its own ACK.
fn least_bytes(load: &Load, path_mtu: PathMtu, is_served: bool) -> Result<f64, CostError> {
    let cost = |kind, bytes: u64| {
        let cost = message_cost(kind, Transport::Rc, bytes, path_mtu, OuterKind::IPV4)?;
        let back = match cost.response {
            Response::None => 0,
            Response::Exact(back) => back.frame_bytes,
            Response::Range { min, .. } => min.frame_bytes,
        };
        Ok::<f64, CostError>((cost.request.frame_bytes + back) as f64)
    };
    let (head, key, value) = (crate::calls::HEAD_BYTES as u64, 8, load.value_bytes as u64);
    let (get, put) = if is_served {
        let both = |asked, answered| Ok(cost(MessageKind::Send, asked)? + cost(MessageKind::Send, answered)?);
        (both(head + key, head + value)?, both(head + key + value, head)?)
    } else {
        let node = load.node_bytes();
        let written = cost(MessageKind::Write, node)? + cost(MessageKind::Write, 8)?;
        (cost(MessageKind::Read, node)? + cost(MessageKind::Read, 8)?, written + cost(MessageKind::CompareSwap, 8)?)
    };
    let puts = load.write_percent / 100.0;
    Ok(get * (1.0 - puts) + put * puts)
}
