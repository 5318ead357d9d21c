//! Results of all clients of a run.

use doorbell_verbs::PathMtu;
use doorbell_wire::{CostError, MessageKind, OuterKind, Response, Transport, message_cost};
use hdrhistogram::Histogram;

use super::{Load, Tally};
use crate::counts::{Attempts, ClientCounts};

/// Gets, or puts.
#[derive(Clone, Debug)]
pub struct Side {
    /// Nanoseconds that they took.
    pub latency_ns: Histogram<u64>,
    /// Attempts to complete them.
    pub attempts: Attempts,
}

impl Side {
    /// Attempts for each operation that made one itself.
    pub fn attempts_per_operation(&self) -> f64 {
        ratio(self.attempts.attempts, self.attempts.operations)
    }

    /// Returns the per cent of attempts that found the newest node.
    pub fn success_percent(&self) -> f64 {
        100.0 * ratio(self.attempts.successes, self.attempts.attempts)
    }

    /// Returns the per cent of operations whose first attempt found it.
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
    /// Operations that counted.
    pub operations: u64,
    /// Operations per second, of all clients.
    pub operations_per_s: f64,
    /// Gets.
    pub gets: Side,
    /// Puts.
    pub puts: Side,
    /// Bytes of Ethernet frames per operation that the clients' hosts sent and received, without FCS, as counters show
    /// them. `None` where the device counts none.
    pub bytes_per_operation: Option<f64>,
    /// The same if each operation's first try succeeds. For `server` these are two messages, else a READ of the node
    /// and one of the shortcut, or a WRITE, a CAS and a WRITE of the shortcut.
    pub least_bytes_per_operation: f64,
    /// Jain's index of the clients' operations: 1 if all had as many, 1/n if one of n had all.
    pub fairness: f64,
    /// Operations of the client that had fewest and of the one that had most, against the mean.
    pub fewest_and_most: [f64; 2],
    /// Operations that gave up, since others were faster each time.
    pub gave_up: u64,
    /// Operations of an open loop that were never begun.
    pub skipped: u64,
    /// Operations that found no such key, which a workload does not expect.
    pub absent: u64,
    /// Counters of all clients.
    pub counts: ClientCounts,
}

/// Results of the clients of one host, together.
#[derive(Clone, Debug)]
pub struct HostTally {
    /// Operations of each client that counted.
    pub operations: Vec<u64>,
    /// The same per second of the time in which that client's counted.
    pub operations_per_s: Vec<f64>,
    /// Nanoseconds that gets took.
    pub gets_ns: Histogram<u64>,
    /// Nanoseconds that puts took.
    pub puts_ns: Histogram<u64>,
    /// Counters of the clients.
    pub counts: ClientCounts,
    /// Operations that gave up.
    pub gave_up: u64,
    /// Operations of an open loop that were never begun.
    pub skipped: u64,
    /// Operations that found no such key.
    pub absent: u64,
    /// Bytes of frames that their device sent and received, on average over the clients' times. `None` if the device
    /// does not count them.
    pub wire_bytes: Option<f64>,
    /// The time at which the first of their counted operations may have begun, and the end of the last, on the
    /// device's clock.
    pub span_ns: (u64, u64),
}

impl HostTally {
    /// Returns the sum of these clients, which share a device.
    pub fn of(clients: &[Tally]) -> Self {
        let merge = |of: fn(&Tally) -> &Histogram<u64>| {
            let mut sum = Histogram::new_from(&Tally::new(0).gets_ns);
            // All have the same bounds.
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
    /// Returns the report of clients, host by host.
    pub fn new(load: &Load, path_mtu: PathMtu, is_served: bool, hosts: &[Vec<Tally>]) -> Self {
        let hosts: Vec<HostTally> = hosts.iter().map(|clients| HostTally::of(clients)).collect();
        Self::of_hosts(load, path_mtu, is_served, &hosts)
    }

    /// Returns the same for hosts that have summed up already.
    pub fn of_hosts(load: &Load, path_mtu: PathMtu, is_served: bool, hosts: &[HostTally]) -> Self {
        let merge = |of: fn(&HostTally) -> &Histogram<u64>| {
            let mut sum = Histogram::new_from(&Tally::new(0).gets_ns);
            // Values beyond its bounds were never recorded.
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

/// Bytes of frames, both ways, per operation of which each try succeeds. Each WRITE and SEND has an ACK of its own.
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
