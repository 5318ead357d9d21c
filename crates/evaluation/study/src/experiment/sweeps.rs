//! Table of experiments.

use doorbell_protocols::Protocol;

use super::families::{
    FAMILIES, Family, GATHERED, LATENCY, MOST_FREE_SHARED, RATE, THROUGHPUT, sender_counts, thread_counts,
};
use super::sweep::{Effort, Experiment, Point, doubling};
use super::{far_memory, hosts, links, operations, requests};
use crate::layout::Layout;
use doorbell_record::Quantity::{self, MessageRate, RnrNaks, Throughput};
use doorbell_record::{Kind, Operation, Parameters, Serving, SharedBy};

const REFUSED: &[Quantity] = &[MessageRate, RnrNaks];

/// Returns all experiments with the points for this effort.
pub fn all(effort: Effort) -> Vec<Experiment> {
    let mut table: Vec<Experiment> = Vec::new();
    for family in &FAMILIES {
        if !family.is_send_receive() {
            table.extend([
                family.latency(effort),
                family.bandwidth(effort),
                family.threads(effort),
                family.n_to_1(effort),
            ]);
            if family.family() == "direct-read" {
                table.extend([direct_read_window(effort), one_to_n(effort)]);
            }
            continue;
        }
        table.extend([family.latency(effort), window(effort), batch(effort), family.bandwidth(effort)]);
        table.extend([large_or_batch(effort), receive_batching(effort), inline(effort), events(effort)]);
        table.extend([family.threads(effort), threads_srq(effort)]);
        table.extend([family.n_to_1(effort), n_to_1_srq(effort), rnr(effort)]);
    }
    table.extend(operations::experiments(effort));
    table.push(requests::experiment(effort));
    table.extend(far_memory::experiments(effort));
    table.extend(hosts::experiments(effort));
    table.extend(links::experiments(effort));
    table
}

fn direct_read_window(effort: Effort) -> Experiment {
    let windows = effort.pick(vec![1, 8, 32, 64], doubling(128), doubling(1024));
    let point_of = |window: usize| {
        let base = Family::parameters(effort, Kind::Bandwidth, Protocol::DirectRead, 16);
        let parameters =
            Parameters { window, batch: 1, depth: (2 * window).max(64), depths_are_defaults: false, ..base };
        Point::new(Protocol::DirectRead.variant(), window, parameters)
    };
    Experiment::new(
        "direct-read/window",
        "How many messages should be unacknowledged?",
        "16 B, one connection, everything posted one by one; 32 READs are in flight at most",
        "messages unacknowledged at most",
        RATE,
        windows.into_iter().map(point_of).collect(),
    )
}

fn one_to_n(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    let ways = [
        ("Direct-Read from one place", Protocol::DirectReadSend, true),
        ("Send-Receive", Protocol::SendReceive, false),
    ];
    for bytes in effort.pick(vec![65_536], vec![512, 65_536], vec![16, 512, 8192, 65_536, 1 << 20]) {
        for (way, protocol, replicate) in ways {
            for readers in effort.pick(vec![1, 16], vec![1, 2, 4, 8, 16], vec![1, 2, 4, 8, 16, 32]) {
                // Both protocols use lists here, since no publication has this experiment.
                let base = Point::parameters(effort, Kind::Bandwidth, Operation::Send, bytes);
                let parameters = Parameters { protocol, connections: readers, replicate, ..base };
                points.push(Point::new(format!("{bytes} B, {way}"), readers, parameters));
            }
        }
    }
    Experiment::new(
        "direct-read/one-to-n",
        "How much do many readers of one source take in together?",
        "every message goes to each reader. One thread on each side serves the connections in turn. Direct-Read, \
         acknowledged by SEND, reads from the same memory at the pace of the slowest reader. For comparison, Send-Receive \
         sends to each reader. Every copy counts as a message",
        "readers",
        THROUGHPUT,
        points,
    )
    .laid_out(Layout::OneToMany)
}

/// Returns parameters for a stream of small messages over one Send-Receive connection.
fn small(effort: Effort, window: usize, batch: usize) -> Parameters {
    let base = Point::parameters(effort, Kind::Bandwidth, Operation::Send, 16);
    Parameters { window, batch, depth: (2 * window).max(64), depths_are_defaults: false, ..base }
}

fn window(effort: Effort) -> Experiment {
    let windows = effort.pick(vec![1, 4, 16, 32, 64, 256], doubling(256), doubling(1024));
    Experiment::new(
        "send-receive/window",
        "How many messages should be unacknowledged?",
        "16 B, one connection, one message per post",
        "messages unacknowledged at most",
        RATE,
        windows.into_iter().map(|window| Point::new("one per post", window, small(effort, window, 1))).collect(),
    )
}

fn batch(effort: Effort) -> Experiment {
    let batches = effort.pick(vec![1, 4, 8, 64], doubling(64), doubling(64));
    let windows = effort.pick(vec![64, 256], vec![64, 256], vec![64, 256, 1024]);
    let mut points = Vec::new();
    for window in windows {
        for &batch in &batches {
            points.push(Point::new(format!("window {window}"), batch, small(effort, window, batch)));
        }
    }
    for batch in effort.pick(vec![1, 8], doubling(8), doubling(8)) {
        points.push(Point::new("4 posts in flight", batch, small(effort, 4 * batch, batch)));
    }
    Experiment::new(
        "send-receive/batch",
        "How many messages should go in one post?",
        "16 B, one connection (doorbell batching): a fixed window, or a window of four posts",
        "messages per post",
        RATE,
        points,
    )
}

fn large_or_batch(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for bytes in effort.pick(vec![512, 4096, 32_768], vec![128, 512, 2048, 8192, 32_768, 131_072], doubling(1 << 20)) {
        if bytes < 64 {
            continue; // each of the eight messages shall have at least eight bytes
        }
        let stream = |bytes, window, batch| {
            let base = Point::parameters(effort, Kind::Bandwidth, Operation::Send, bytes);
            Parameters { window, batch, depth: 2 * window, ..base }
        };
        points.push(Point::new("one message", bytes, stream(bytes, 32, 1)));
        points.push(Point::new("list of 8", bytes, stream(bytes / 8, 256, 8)));
    }
    Experiment::new(
        "send-receive/large-or-batch",
        "One large message, or the same bytes as eight in one post?",
        "one connection; per post as many bytes either way, and as many unacknowledged",
        "payload per post, B",
        &[Throughput],
        points,
    )
}

fn receive_batching(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for (series, repost_list) in [("reposted one by one", 1), ("reposted in lists", 64)] {
        for poll_list in effort.pick(vec![1, 4, 32], doubling(32), doubling(32)) {
            let serving = Serving { poll_list, repost_list, ..Serving::default() };
            points.push(Point::new(series, poll_list, Parameters { serving, ..small(effort, 256, 8) }));
        }
    }
    Experiment::new(
        "send-receive/receive-batching",
        "How much do lists gain on the receiving side?",
        "16 B, 256 unacknowledged, eight per post, so that the sender is not the bottleneck",
        "completions per poll at most",
        RATE,
        points,
    )
}

fn inline(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for bytes in effort.pick(vec![16, 256], vec![1, 16, 64, 128, 256, 512], doubling(512)) {
        for (series, inline) in [("inline", 512), ("not inline", 0)] {
            let base = Point::parameters(effort, Kind::Latency, Operation::Send, bytes);
            points.push(Point::new(series, bytes, Parameters { inline, ..base }));
        }
    }
    Experiment::new(
        "send-receive/inline",
        "Do inline data shorten latency?",
        "one connection, ping-pong; the payload is copied into the work request, or read from memory",
        "message size, B",
        LATENCY,
        points,
    )
}

fn events(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for rate in effort.pick(vec![1000], vec![1000, 10_000, 50_000], vec![100, 1000, 10_000, 50_000, 100_000]) {
        for (series, events) in [("polling", false), ("sleeping", true)] {
            let parameters = Parameters { events, rate: Some(f64::from(rate)), ..small(effort, 64, 1) };
            points.push(Point { series: series.to_owned(), x: f64::from(rate) / 1000.0, parameters });
        }
    }
    Experiment::new(
        "send-receive/events",
        "How much does a receiver save that sleeps until a message arrives?",
        "16 B, one connection, messages offered at a given rate; both ends poll, or sleep until a completion event",
        "thousand messages/s offered",
        RATE,
        points,
    )
}

fn threads_srq(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for bytes in effort.pick(vec![16, 8192], vec![16, 512, 8192], vec![16, 512, 8192]) {
        for (policy, by) in [("lock", SharedBy::Lock), ("thread", SharedBy::Thread)] {
            for threads in thread_counts(effort) {
                let serving = Serving { threads, shared_receives: Some(by), ..Serving::default() };
                let base = Point::parameters(effort, Kind::Bandwidth, Operation::Send, bytes);
                let parameters = Parameters { connections: threads, depth: 512, serving, ..base };
                points.push(Point::new(format!("{bytes} B, {policy}"), threads, parameters));
            }
        }
    }
    Experiment::new(
        "send-receive/threads-srq",
        "How much do shared receive buffers cost, and which thread should post them again?",
        "as threads, with 512 receive buffers that all connections share: posted again under a lock by the thread \
         that frees one, or by one dedicated thread",
        "threads on each side",
        &[MessageRate, Throughput, RnrNaks],
        points,
    )
}

fn n_to_1_srq(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for bytes in [16, MOST_FREE_SHARED, 512, 8192] {
        for senders in sender_counts(effort, bytes) {
            let shared_receives = Some(SharedBy::Lock);
            let serving = Serving { single_receiver: true, shared_receives, ..Serving::default() };
            let base = Point::parameters(effort, Kind::Bandwidth, Operation::Send, bytes);
            let parameters = Parameters { connections: senders, depth: 512, serving, ..base };
            points.push(Point::new(format!("{bytes} B, shared"), senders, parameters));
        }
    }
    Experiment::new(
        "send-receive/n-to-1-srq",
        "How much does the constant memory of shared receive buffers cost with many senders?",
        "as n-to-1 with a single receiver, and 512 receive buffers for all senders together",
        "senders",
        GATHERED,
        points,
    )
    .laid_out(Layout::ManyToOne)
}

fn rnr(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    let rates = effort.pick(
        vec![25_000, 400_000],
        vec![25_000, 50_000, 100_000, 200_000, 400_000],
        vec![12_500, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 400_000, 800_000],
    );
    for (senders, name) in [(1, "1 sender"), (8, "8 senders")] {
        for (flow, credits) in [("credits", true), ("none", false)] {
            for &rate in &rates {
                let serving = Serving { single_receiver: true, ..Serving::default() };
                let parameters = Parameters {
                    connections: senders,
                    depth: 16,
                    rate: Some(rate as f64),
                    slow_receiver_us: 10,
                    credits,
                    serving,
                    ..small(effort, 64, 1)
                };
                let x = rate as f64 / 1000.0;
                points.push(Point { series: format!("{name}, {flow}"), x, parameters });
            }
        }
    }
    Experiment::new(
        "send-receive/rnr",
        "How do senders behave that are faster than the receiver?",
        "16 B to one receiver that takes 10 us for each message, so about 100,000 per second; 16 receive \
         buffers per sender; with flow control by credits, and without",
        "thousand messages/s offered",
        REFUSED,
        points,
    )
    .laid_out(Layout::ManyToOne)
}
