//! Table of experiments.

use doorbell_protocols::Protocol;

use super::quantity::Quantity::{self, Fairness, MedianLatency, MessageRate, RnrNaks, TailLatency, Throughput};
use super::sweep::{Effort, Experiment, Point};
use super::{far_memory, hosts, links, operations};
use crate::layout::Layout;
use crate::parameters::{Kind, Operation, Parameters};
use crate::serving::{Serving, SharedBy};

/// Sizes at which protocols are compared, in bytes.
pub const COMPARED_SIZES: [usize; 4] = [16, 512, 8192, 1 << 20];

/// Maximum bytes of a message for which, according to the publication, shared receives cost nothing.
const MOST_FREE_SHARED: usize = 32;

const LATENCY: &[Quantity] = &[MedianLatency, TailLatency];
const RATE: &[Quantity] = &[MessageRate, Throughput];
const THROUGHPUT: &[Quantity] = &[Throughput, MessageRate];
const GATHERED: &[Quantity] = &[MessageRate, Throughput, Fairness];
const REFUSED: &[Quantity] = &[MessageRate, RnrNaks];

/// Family of protocol variants, with the experiments that all families share.
pub(super) struct Family {
    /// Measured variants. Every experiment measures the first variant.
    pub(super) variants: &'static [Protocol],
    /// Number of variants in a quick study.
    quick: usize,
}

pub(super) const FAMILIES: [Family; 6] = [
    Family { variants: &[Protocol::SendReceive], quick: 1 },
    Family {
        variants: &[
            Protocol::DirectRead,
            Protocol::DirectReadFencedAwaited,
            Protocol::DirectReadSend,
            Protocol::DirectReadFenced,
            Protocol::DirectReadFencedSend,
        ],
        quick: 3,
    },
    Family { variants: &[Protocol::DirectWrite], quick: 1 },
    Family {
        variants: &[
            Protocol::BufferedWriteImmediateSend,
            Protocol::BufferedWriteTailSend,
            Protocol::BufferedWriteReverseRead,
            Protocol::BufferedWriteImmediateRead,
            Protocol::BufferedWriteTailRead,
            Protocol::BufferedWriteReverseSend,
        ],
        quick: 3,
    },
    Family { variants: &[Protocol::SharedWrite], quick: 1 },
    Family { variants: &[Protocol::BufferedRead], quick: 1 },
];

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
    table.extend(far_memory::experiments(effort));
    table.extend(hosts::experiments(effort));
    table.extend(links::experiments(effort));
    table
}

/// Returns the sizes of a sweep over message sizes: [`COMPARED_SIZES`] and some sizes between them. No size is below
/// `least`.
fn sizes(effort: Effort, least: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = match effort {
        Effort::Quick => vec![1, 64, 65_536],
        Effort::Usual => vec![1, 64, 256, 1024, 2048, 4096, 16_384, 65_536, 262_144],
        Effort::Full => (0..=20).map(|exponent| 1 << exponent).collect(),
    };
    sizes.extend(COMPARED_SIZES);
    sizes.retain(|&size| size >= least);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

pub(super) fn point(series: impl Into<String>, x: usize, parameters: Parameters) -> Point {
    Point { series: series.into(), x: x as f64, parameters }
}

impl Family {
    /// Returns whether the family is Send-Receive, which takes part in every experiment.
    fn is_send_receive(&self) -> bool {
        self.variants[0] == Protocol::SendReceive
    }

    pub(super) fn family(&self) -> &'static str {
        self.variants[0].description().family
    }

    fn variants(&self, effort: Effort) -> &'static [Protocol] {
        &self.variants[..effort.pick(self.quick, self.variants.len(), self.variants.len())]
    }

    fn is_direct_read(&self) -> bool {
        self.variants[0] == Protocol::DirectRead
    }

    /// Returns the window of experiments that do not sweep the window. According to its publication, Direct-Read gains
    /// nothing from a window above 32.
    pub(super) fn window(&self) -> usize {
        if self.is_direct_read() { 32 } else { 64 }
    }

    /// Returns the sizes of latency experiments. For Direct-Read, they include 1024 B. According to the publication,
    /// messages up to this size take as long as the shortest.
    fn latency_sizes(&self, effort: Effort) -> Vec<usize> {
        let mut sizes = self.sizes(effort, 1);
        if self.is_direct_read() && !sizes.contains(&1024) {
            sizes.push(1024);
            sizes.sort_unstable();
        }
        sizes
    }

    fn sizes(&self, effort: Effort, least: usize) -> Vec<usize> {
        match effort {
            Effort::Quick | Effort::Usual if !self.is_send_receive() => COMPARED_SIZES.to_vec(),
            _ => sizes(effort, least),
        }
    }

    /// Returns parameters for a protocol. Parameters of Direct-Read follow its publication: READs, acknowledgements and
    /// receives are posted one by one, and each message has a completion.
    pub(super) fn parameters(effort: Effort, kind: Kind, protocol: Protocol, bytes: usize) -> Parameters {
        let base = Parameters { protocol, ..Point::parameters(effort, kind, Operation::Send, bytes) };
        match protocol.description().family {
            "direct-read" => Parameters {
                signal_each: true,
                serving: Serving { poll_list: 1, repost_list: 1, ..base.serving },
                ..base
            },
            _ => base,
        }
    }

    fn latency(&self, effort: Effort) -> Experiment {
        let mut points = Vec::new();
        for bytes in self.latency_sizes(effort) {
            for &protocol in self.variants(effort) {
                let series = if self.is_send_receive() { "ping-pong" } else { protocol.variant() };
                points.push(point(series, bytes, Self::parameters(effort, Kind::Latency, protocol, bytes)));
            }
        }
        Experiment::new(
            format!("{}/latency", self.family()),
            "How long does one message take, by its size?",
            "one connection, one message at a time; half a round trip of a ping-pong, both sides polling",
            "message size, B",
            LATENCY,
            points,
        )
    }

    fn bandwidth(&self, effort: Effort) -> Experiment {
        let mut points = Vec::new();
        let configurations = [("sequential", 1, 1), ("unbatched", self.window(), 1), ("batched", 256, 8)];
        for bytes in self.sizes(effort, 16) {
            for (index, &protocol) in self.variants(effort).iter().enumerate() {
                let configurations = match effort {
                    _ if self.is_send_receive() => &configurations[..],
                    Effort::Full => &configurations[..],
                    Effort::Usual if index == 0 => &configurations[1..],
                    _ => &configurations[1..2],
                };
                for &(configuration, window, batch) in configurations {
                    let series = match self.is_send_receive() {
                        true => configuration.to_owned(),
                        false => format!("{}, {configuration}", protocol.variant()),
                    };
                    let base = Self::parameters(effort, Kind::Bandwidth, protocol, bytes);
                    points.push(point(
                        series,
                        bytes,
                        Parameters { window, batch, depth: (2 * window).max(64), ..base },
                    ));
                }
            }
        }
        Experiment::new(
            format!("{}/bandwidth", self.family()),
            "How much goes through, by message size and configuration?",
            match self.is_direct_read() {
                true => {
                    "one connection; sequential: 1 message unacknowledged, unbatched: 32, batched: 256 and eight per \
                     post. The receiver posts READs, acknowledgements and receives one by one. For large messages, \
                     window and depth shrink to the size of a cache"
                }
                false => {
                    "one connection; sequential: 1 message unacknowledged, unbatched: 64, batched: 256 and eight per \
                     post. For large messages, window and depth shrink to the size of a cache"
                }
            },
            "message size, B",
            THROUGHPUT,
            points,
        )
    }

    /// Returns the sizes of sweeps over the number of threads or senders.
    fn few_sizes(&self, effort: Effort) -> Vec<usize> {
        match self.is_send_receive() {
            true => vec![16, 512, 8192],
            false if self.is_direct_read() => effort.pick(vec![16], vec![16, 512, 8192], vec![16, 512, 8192]),
            false => effort.pick(vec![16], vec![16, 8192], vec![16, 512, 8192]),
        }
    }

    /// Returns the variants in sweeps over the number of threads or senders, each with its suffix for names of curves.
    /// A full study has all variants, other studies have only the first.
    fn swept(&self, effort: Effort) -> Vec<(String, Protocol)> {
        let count = effort.pick(1, 1, self.variants.len());
        let named = |(index, &protocol): (usize, &Protocol)| {
            (if index == 0 { String::new() } else { format!(", {}", protocol.variant()) }, protocol)
        };
        self.variants[..count].iter().enumerate().map(named).collect()
    }

    fn threads(&self, effort: Effort) -> Experiment {
        let mut points = Vec::new();
        for bytes in self.few_sizes(effort) {
            for (variant, protocol) in self.swept(effort) {
                for threads in thread_counts(effort) {
                    let base = Self::parameters(effort, Kind::Bandwidth, protocol, bytes);
                    let serving = Serving { threads, ..base.serving };
                    let parameters = Parameters { connections: threads, window: self.window(), serving, ..base };
                    points.push(point(format!("{bytes} B{variant}"), threads, parameters));
                }
            }
        }
        Experiment::new(
            format!("{}/threads", self.family()),
            "Do more threads send more?",
            match self.is_direct_read() {
                true => {
                    "the same number of threads on each side, one connection each, 32 messages unacknowledged, everything posted \
                     one by one; all threads of a side share one RNIC"
                }
                false => {
                    "the same number of threads on each side, one connection each, 64 messages unacknowledged, one per post; all \
                     threads of a side share one RNIC"
                }
            },
            "threads on each side",
            RATE,
            points,
        )
    }

    fn n_to_1(&self, effort: Effort) -> Experiment {
        let mut points = Vec::new();
        let ways: &[_] = match self.is_send_receive() {
            true => &[(", in turn", false), (", single receiver", true)],
            false => &[("", false)],
        };
        let mut sizes = self.few_sizes(effort);
        if self.is_send_receive() {
            sizes.insert(1, MOST_FREE_SHARED);
        }
        for bytes in sizes {
            // This size is only compared with shared receives, which have a single receiver.
            let ways = if bytes == MOST_FREE_SHARED { &ways[1..] } else { ways };
            for (variant, protocol) in self.swept(effort) {
                for &(how, single_receiver) in ways {
                    for senders in sender_counts(effort, bytes) {
                        let base = Self::parameters(effort, Kind::Bandwidth, protocol, bytes);
                        let serving = Serving { single_receiver, ..base.serving };
                        let parameters = Parameters { connections: senders, window: self.window(), serving, ..base };
                        points.push(point(format!("{bytes} B{variant}{how}"), senders, parameters));
                    }
                }
            }
        }
        let setting = match self.family() {
            "send-receive" => {
                "one connection per sender, 64 messages unacknowledged each, all receives in one thread; the senders take \
                 turns in one thread of the other process. In turn: each connection has a completion queue; single \
                 receiver: one queue for all"
            }
            "shared-write" => {
                "one connection per sender, 64 messages unacknowledged each, into one ring that one thread receives from; \
                 the senders take turns in one thread of the other process"
            }
            "direct-read" => {
                "one connection per sender, 32 messages unacknowledged each, all receives in one thread, which polls \
                 them in turn and posts everything one by one. The senders take turns in one thread of the other process"
            }
            _ => {
                "one connection per sender, 64 messages unacknowledged each, all receives in one thread, which polls \
                 them in turn. The senders take turns in one thread of the other process"
            }
        };
        Experiment::new(
            format!("{}/n-to-1", self.family()),
            "How much does one receiver take from many senders, and is it fair?",
            setting,
            "senders",
            GATHERED,
            points,
        )
        .laid_out(Layout::ManyToOne)
    }
}

fn direct_read_window(effort: Effort) -> Experiment {
    let windows = effort.pick(vec![1, 8, 32, 64], doubling(128), doubling(1024));
    let point_of = |window: usize| {
        let base = Family::parameters(effort, Kind::Bandwidth, Protocol::DirectRead, 16);
        let parameters =
            Parameters { window, batch: 1, depth: (2 * window).max(64), depths_are_defaults: false, ..base };
        point(Protocol::DirectRead.variant(), window, parameters)
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
                points.push(point(format!("{bytes} B, {way}"), readers, parameters));
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

fn thread_counts(effort: Effort) -> Vec<usize> {
    effort.pick(vec![1, 2, 4], vec![1, 2, 3, 4], vec![1, 2, 3, 4, 6, 8, 16])
}

fn sender_counts(effort: Effort, bytes: usize) -> Vec<usize> {
    if bytes == MOST_FREE_SHARED && effort != Effort::Full {
        return vec![16];
    }
    effort.pick(vec![1, 4, 16], vec![1, 2, 4, 8, 16], vec![1, 2, 4, 8, 16, 32, 64])
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
        windows.into_iter().map(|window| point("one per post", window, small(effort, window, 1))).collect(),
    )
}

fn batch(effort: Effort) -> Experiment {
    let batches = effort.pick(vec![1, 4, 8, 64], doubling(64), doubling(64));
    let windows = effort.pick(vec![64, 256], vec![64, 256], vec![64, 256, 1024]);
    let mut points = Vec::new();
    for window in windows {
        for &batch in &batches {
            points.push(point(format!("window {window}"), batch, small(effort, window, batch)));
        }
    }
    for batch in effort.pick(vec![1, 8], doubling(8), doubling(8)) {
        points.push(point("4 posts in flight", batch, small(effort, 4 * batch, batch)));
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
        points.push(point("one message", bytes, stream(bytes, 32, 1)));
        points.push(point("list of 8", bytes, stream(bytes / 8, 256, 8)));
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
            points.push(point(series, poll_list, Parameters { serving, ..small(effort, 256, 8) }));
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
            points.push(point(series, bytes, Parameters { inline, ..base }));
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
                points.push(point(format!("{bytes} B, {policy}"), threads, parameters));
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
            points.push(point(format!("{bytes} B, shared"), senders, parameters));
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

/// Returns 1, 2, 4, ... up to `most`.
pub(super) fn doubling(most: usize) -> Vec<usize> {
    std::iter::successors(Some(1), |count| Some(2 * count)).take_while(|&count| count <= most).collect()
}
