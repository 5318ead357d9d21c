//! Experiments for many hosts, which measure effects of the network between hosts.

use super::sweep::{Effort, Experiment, Point};
use crate::layout::Layout;
use doorbell_record::Quantity::{Fairness, MessageRate, Throughput};
use doorbell_record::{Kind, Operation, Parameters};

/// Sizes of messages in bytes. Messages of the second size reach line rate.
const SIZES: [usize; 2] = [16, 8192];

/// Returns the experiments for many hosts.
pub(super) fn experiments(effort: Effort) -> [Experiment; 2] {
    [pairs(effort), all_to_all(effort)]
}

fn stream(effort: Effort, bytes: usize, connections: usize) -> Parameters {
    Parameters { connections, ..Point::parameters(effort, Kind::Bandwidth, Operation::Send, bytes) }
}

fn pairs(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for bytes in SIZES {
        for pairs in effort.pick(vec![1, 4], vec![1, 2, 4], vec![1, 2, 4, 8, 16]) {
            points.push(Point::new(format!("{bytes} B"), pairs, stream(effort, bytes, pairs)));
        }
    }
    Experiment::new(
        "hosts/pairs",
        "Does the network carry the traffic of several pairs of hosts at the same time?",
        "a number of Send-Receive connections, 64 messages unacknowledged each, distributed over pairs of hosts. Every \
         second host sends, each in one thread. With two hosts, one sends on all connections",
        "pairs",
        &[Throughput, MessageRate, Fairness],
        points,
    )
    .laid_out(Layout::Pairs)
}

fn all_to_all(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for bytes in SIZES {
        for ends in effort.pick(vec![2, 4], vec![2, 4, 8], vec![2, 3, 4, 6, 8, 12, 16]) {
            let base = stream(effort, bytes, ends * (ends - 1) / 2);
            points.push(Point::new(format!("{bytes} B"), ends, Parameters { bidirectional: true, ..base }));
        }
    }
    Experiment::new(
        "hosts/all-to-all",
        "How much do all ends send together if each exchanges messages with every other?",
        "a Send-Receive connection between any two ends, 64 messages unacknowledged each way. Ends are distributed over \
         hosts, each with one thread. Two ends of one host use the next host, and with two hosts all connections are \
         between them",
        "ends",
        &[Throughput, MessageRate, Fairness],
        points,
    )
    .laid_out(Layout::AllToAll)
}
