//! Experiments that want many hosts: what only a network between them can show.

use super::quantity::Quantity::{Fairness, MessageRate, Throughput};
use super::sweep::{Effort, Experiment, Point};
use super::sweeps::point;
use crate::layout::Layout;
use crate::parameters::{Kind, Operation, Parameters};

/// The family of these experiments.
pub const FAMILY: &str = "hosts";

/// Sizes of messages, in bytes: a small one, and one that a line rate shows with.
const SIZES: [usize; 2] = [16, 8192];

/// The experiments on many hosts.
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
            points.push(point(format!("{bytes} B"), pairs, stream(effort, bytes, pairs)));
        }
    }
    Experiment::new(
        "hosts/pairs",
        "Pairs of hosts at the same time: does the network between them carry all of it?",
        "so many connections of Send-Receive, 64 messages unacknowledged each, dealt to pairs of hosts: every second \
                  host sends, each in one thread; of two hosts one sends on all of them",
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
            points.push(point(format!("{bytes} B"), ends, Parameters { bidirectional: true, ..base }));
        }
    }
    Experiment::new(
        "hosts/all-to-all",
        "Every end with every other, both ways: what do all of them together send?",
        "a connection of Send-Receive between any two of so many ends, 64 messages unacknowledged each way; ends are \
                  dealt to hosts, each with one thread; two ends of one host meet on the next host, and between two \
                  hosts are all connections",
        "ends",
        &[Throughput, MessageRate, Fairness],
        points,
    )
    .laid_out(Layout::AllToAll)
}
