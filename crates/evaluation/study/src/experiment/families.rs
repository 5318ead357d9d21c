//! Families of protocols, with the experiments that all families have.

use doorbell_protocols::Protocol;

use super::sweep::{Effort, Experiment, Point};
use crate::layout::Layout;
use doorbell_record::Quantity::{self, Fairness, MedianLatency, MessageRate, TailLatency, Throughput};
use doorbell_record::{Kind, Operation, Parameters, Serving};

/// Sizes at which every study measures latency and throughput of every protocol, in bytes. Reports answer for these.
pub const COMPARED_SIZES: [usize; 5] = [64, 512, 4096, 64 << 10, 1 << 20];

/// Sizes of the further variants of a protocol in a study that is not full, in bytes. A quick study has two of them.
const VARIANT_SIZES: [usize; 3] = [64, 4096, 1 << 20];

/// Maximum bytes of a message for which, according to the publication, shared receives cost nothing.
pub(super) const MOST_FREE_SHARED: usize = 32;

pub(super) const LATENCY: &[Quantity] = &[MedianLatency, TailLatency];
pub(super) const RATE: &[Quantity] = &[MessageRate, Throughput];
pub(super) const THROUGHPUT: &[Quantity] = &[Throughput, MessageRate];
pub(super) const GATHERED: &[Quantity] = &[MessageRate, Throughput, Fairness];

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

impl Family {
    /// Returns whether the family is Send-Receive, which takes part in every experiment.
    pub(super) fn is_send_receive(&self) -> bool {
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

    /// Returns the sizes of latency experiments for the variant with this index. For Direct-Read, they include 16 B, at
    /// which its variants are published. They also include 1024 B for the first variant. According to the publication,
    /// its messages up to this size take as long as the shortest.
    fn latency_sizes(&self, effort: Effort, variant: usize) -> Vec<usize> {
        let mut sizes = self.sizes(effort, 1, variant);
        if self.is_direct_read() {
            sizes.push(16);
            sizes.extend((variant == 0).then_some(1024));
            sizes.sort_unstable();
            sizes.dedup();
        }
        sizes
    }

    fn sizes(&self, effort: Effort, least: usize, variant: usize) -> Vec<usize> {
        match effort {
            Effort::Full => sizes(effort, least),
            _ if self.is_send_receive() => sizes(effort, least),
            _ if variant == 0 => COMPARED_SIZES.to_vec(),
            _ => VARIANT_SIZES[..effort.pick(2, 3, 3)].to_vec(),
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

    pub(super) fn latency(&self, effort: Effort) -> Experiment {
        let mut points = Vec::new();
        for (index, &protocol) in self.variants(effort).iter().enumerate() {
            let series = if self.is_send_receive() { "ping-pong" } else { protocol.variant() };
            for bytes in self.latency_sizes(effort, index) {
                points.push(Point::new(series, bytes, Self::parameters(effort, Kind::Latency, protocol, bytes)));
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

    pub(super) fn bandwidth(&self, effort: Effort) -> Experiment {
        let mut points = Vec::new();
        let configurations = [("sequential", 1, 1), ("unbatched", self.window(), 1), ("batched", 256, 8)];
        for (index, &protocol) in self.variants(effort).iter().enumerate() {
            let configurations = match effort {
                _ if self.is_send_receive() => &configurations[..],
                Effort::Full => &configurations[..],
                Effort::Usual if index == 0 => &configurations[1..],
                _ => &configurations[1..2],
            };
            for bytes in self.sizes(effort, 16, index) {
                for &(configuration, window, batch) in configurations {
                    let series = match self.is_send_receive() {
                        true => configuration.to_owned(),
                        false => format!("{}, {configuration}", protocol.variant()),
                    };
                    let base = Self::parameters(effort, Kind::Bandwidth, protocol, bytes);
                    points.push(Point::new(
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

    pub(super) fn threads(&self, effort: Effort) -> Experiment {
        let mut points = Vec::new();
        for bytes in self.few_sizes(effort) {
            for (variant, protocol) in self.swept(effort) {
                for threads in thread_counts(effort) {
                    let base = Self::parameters(effort, Kind::Bandwidth, protocol, bytes);
                    let serving = Serving { threads, ..base.serving };
                    let parameters = Parameters { connections: threads, window: self.window(), serving, ..base };
                    points.push(Point::new(format!("{bytes} B{variant}"), threads, parameters));
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

    pub(super) fn n_to_1(&self, effort: Effort) -> Experiment {
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
                        points.push(Point::new(format!("{bytes} B{variant}{how}"), senders, parameters));
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

/// Returns the sizes of a sweep over message sizes: [`COMPARED_SIZES`] and some sizes between them. No size is below
/// `least`.
fn sizes(effort: Effort, least: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = match effort {
        Effort::Quick => vec![1, 16, 8192],
        Effort::Usual => vec![1, 16, 256, 1024, 2048, 8192, 16_384, 262_144],
        Effort::Full => (0..=20).map(|exponent| 1 << exponent).collect(),
    };
    sizes.extend(COMPARED_SIZES);
    sizes.retain(|&size| size >= least);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

pub(super) fn thread_counts(effort: Effort) -> Vec<usize> {
    effort.pick(vec![1, 2, 4], vec![1, 2, 3, 4], vec![1, 2, 3, 4, 6, 8, 16])
}

pub(super) fn sender_counts(effort: Effort, bytes: usize) -> Vec<usize> {
    if bytes == MOST_FREE_SHARED && effort != Effort::Full {
        return vec![16];
    }
    effort.pick(vec![1, 4, 16], vec![1, 2, 4, 8, 16], vec![1, 2, 4, 8, 16, 32, 64])
}
