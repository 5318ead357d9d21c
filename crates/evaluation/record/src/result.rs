//! Record of a run, and results of its points.

use std::collections::BTreeMap;

use doorbell_analyze::explain::{Explanation, Hints, Pattern, Range, Rates, Requester, Span, explain, sentences};
use doorbell_verbs::{Counters, LinkCounters};
use doorbell_wire::IpVersion;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::environment::Environment;
use crate::far::Figures;
use crate::link::{Carried, CarriedBy};
use crate::parameters::{Fitted, Parameters};
use crate::prediction::Predicted;
use crate::words::Timed;
use doorbell_machine::cpu::{CpuPerMessage, CpuTime};

/// Number of significant digits of a recorded value.
const SIGNIFICANT_DIGITS: u8 = 3;

described! {
    /// Record of one run.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    pub struct RunRecord {
        /// Format and version of the schema: `doorbell-bench/1`.
        pub schema: String,
        /// Machine and device.
        pub environment: Environment,
        /// Requested parameters.
        pub parameters: Parameters,
        /// Results, one per size.
        pub results: Vec<PointResult>,
    }
}

impl RunRecord {
    /// Schema of a record. Later releases may add fields to a schema, so a reader ignores unknown fields.
    pub const SCHEMA: &str = "doorbell-bench/1";
}

described! {
    /// Result of one point.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    pub struct PointResult {
        /// Bytes per message. Of request-response, bytes of a request.
        pub bytes: usize,
        /// Number of measured messages of all connections. In bidirectional measurements, messages of both directions
        /// count.
        pub messages: u64,
        /// Duration in seconds.
        pub seconds: f64,
        /// Messages per second.
        pub messages_per_s: f64,
        /// Payload bytes per second. Of requests and replies, only the longer one counts.
        pub bytes_per_s: f64,
        /// Latency figures of latency measurements, request-response and one-sided operations. [`timed`](Self::timed)
        /// names the measured interval. With a rate, the interval begins when the message was due.
        pub latency_ns: Option<Latency>,
        /// Interval that the latency measures.
        #[serde(default)]
        pub timed: Timed,
        /// All times from which `latency_ns` was computed, as pairs of nanoseconds and a count for each bucket.
        #[serde(default)]
        pub histogram_ns: Option<Buckets>,
        /// Window, depth and number of buffers after the fit into the memory cap.
        pub fitted: Fitted,
        /// Path MTU in use.
        pub mtu: usize,
        /// Counters of both ends, over the whole life of the connections.
        pub counters: BothEnds<BTreeMap<String, u64>>,
        /// For each end, packets lost below the RNIC and numbers of packets by link, over the whole life of the
        /// connections.
        #[serde(default)]
        pub link: BothEnds<BTreeMap<String, u64>>,
        /// Link that carried the packets of both ends. [`carried`](Self::carried) returns the numbers. The link of a
        /// hardware RNIC is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub carried_by: Option<CarriedBy>,
        /// Rates of packets and bytes that an observer of each end's NIC counters sees.
        #[serde(default)]
        pub rates: BothEnds<Rates>,
        /// Conclusions that an observer draws from `rates` alone.
        #[serde(default)]
        pub explained: BothEnds<Conclusion>,
        /// Packets that each end sent, by kind.
        pub counted: BothEnds<Counted>,
        /// Predicted packets of each end.
        pub predicted: BothEnds<Predicted>,
        /// CPU time of both ends.
        #[serde(default)]
        pub cpu: BothEnds<CpuTime>,
        /// CPU time per message. Records of earlier releases have none.
        #[serde(default)]
        pub cpu_per_message: BothEnds<CpuPerMessage>,
        /// Number of messages that did not arrive, or of unanswered ping-pongs, warm-up included. The number is 0 if
        /// messages are acknowledged.
        #[serde(default)]
        pub lost: u64,
        /// Number of messages with damaged payloads, if payloads were checked.
        pub damaged: u64,
        /// Number of attempts to send that failed for lack of credits.
        pub stalled_on_credits: u64,
        /// Number of messages that each connection of the asking end sent.
        #[serde(default)]
        pub sent_by_connection: Vec<u64>,
        /// Further figures of points on shared memory.
        #[serde(default, skip_serializing_if = "Figures::is_empty")]
        pub far: Figures,
        /// Results of each host, if there are more than two hosts. In [`counted`](Self::counted) and similar fields,
        /// `client` is the sum over the asking hosts, and `server` is the sum over the other hosts.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub hosts: Vec<HostResult>,
    }
}

described! {
    /// Result of one of several hosts in a point.
    #[derive(Clone, Debug, Default, Serialize, Deserialize)]
    pub struct HostResult {
        /// Number of the host. Host 0 is the machine of the record's environment. Other hosts follow in the order of
        /// [`Environment::hosts`].
        pub number: usize,
        /// Name of the host that the user gave.
        pub name: String,
        /// Role of the host in each of its connections.
        pub role: String,
        /// Whether the host had an asking end.
        pub asks: bool,
        /// Number of connections with an end on the host.
        pub connections: usize,
        /// Messages sent, warm-up included.
        pub sent: u64,
        /// Messages received.
        pub received: u64,
        /// Packets that the host sent.
        pub counted: Counted,
        /// Predicted packets.
        pub predicted: Predicted,
        /// CPU time of the host.
        pub cpu: CpuTime,
        /// CPU time per sent message, or per received message on a host that does not ask. Records of earlier releases
        /// have none.
        #[serde(default)]
        pub cpu_per_message: CpuPerMessage,
        /// Packets lost below the host's RNIC.
        pub link: BTreeMap<String, u64>,
        /// Time from the agreed start to the first counted message of an asking host, in nanoseconds. Other hosts start
        /// with the first arriving message and have no value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub late_ns: Option<u64>,
        /// Maximum error of the coordinator's estimate of the host's clock: half of the shortest round trip, in
        /// nanoseconds.
        pub clock_ns: u64,
    }
}

impl HostResult {
    /// Returns the CPU time per sent message, or per received message on a host that does not ask. Records without
    /// `cpu_per_message` are supported too.
    pub fn cpu_by_message(&self) -> CpuPerMessage {
        self.cpu.per_message(if self.asks { self.sent } else { self.received })
    }
}

impl PointResult {
    /// Returns the CPU time of both ends per message that the asking end sent. Records without
    /// `cpu_per_message` are supported too.
    pub fn cpu_by_message(&self) -> BothEnds<CpuPerMessage> {
        let messages = self.sent_by_connection.iter().sum();
        let BothEnds { client, server } = &self.cpu;
        BothEnds { client: client.per_message(messages), server: server.per_message(messages) }
    }

    /// Returns the number of packets of both ends by link. Records without numbers by link are supported too.
    pub fn carried(&self) -> Carried {
        let own = Carried::of(&self.link.client, &self.counters.client);
        own.and(Carried::of(&self.link.server, &self.counters.server))
    }
}

/// Values of the asking end and of the other end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BothEnds<T> {
    /// Value of the asking end.
    pub client: T,
    /// Value of the other end.
    pub server: T,
}

described! {
    /// Figures of a histogram.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    pub struct Latency {
        /// Minimum.
        pub min: u64,
        /// Median.
        pub p50: u64,
        /// Mean.
        pub mean: f64,
        /// 99th percentile.
        pub p99: u64,
        /// 99.9th percentile.
        pub p999: u64,
        /// Maximum.
        pub max: u64,
    }
}

impl Latency {
    /// Returns the figures of a histogram.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            min: histogram.min(),
            p50: histogram.value_at_quantile(0.5),
            mean: histogram.mean(),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// Complete histogram: a pair `[value, count]` for each bucket that is not empty, in the order of values.
///
/// Buckets have a resolution of three significant digits, and `value` is the greatest value in the bucket. For example,
/// 2,048 and 2,049 share a bucket, while 1,999 has its own bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Buckets(pub Vec<(u64, u64)>);

impl Buckets {
    /// Returns an empty histogram with the resolution of records. The histogram grows automatically.
    pub fn empty_histogram() -> Histogram<u64> {
        Histogram::new(SIGNIFICANT_DIGITS).unwrap_or_else(|_| unreachable!("three digits are allowed"))
    }

    /// Returns the buckets of a histogram.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self(histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }

    /// Rebuilds the histogram from the buckets.
    pub fn to_histogram(&self) -> Histogram<u64> {
        let mut histogram = Self::empty_histogram();
        for &(value, count) in &self.0 {
            // The histogram grows automatically, so recording a value cannot fail.
            let _ = histogram.record_n(value, count);
        }
        histogram
    }
}

/// Conclusion of an observer who knows only the [`Rates`] of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// Verdict as a sentence.
    pub verdict: String,
    /// Explanations in the verdict, the most plausible first.
    pub named: Vec<Named>,
}

/// Explanation that a verdict names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// IBTA names of the operations that may carry the messages. There are several if the byte rates do not distinguish
    /// the operations.
    pub operations: Vec<String>,
    /// Pattern of the messages.
    pub pattern: Pattern,
    /// End that posts the messages.
    pub requester: Requester,
    /// Payload bytes per message.
    pub payload_bytes: Span,
    /// Payload bytes per received message in request-response.
    pub received_payload_bytes: Option<Span>,
    /// Operations per second.
    pub operations_per_s: Range,
}

impl Conclusion {
    /// Returns the conclusion that [`explain`] draws from these rates.
    pub fn of(rates: &Rates, ipv6: bool) -> Self {
        match explain(rates, &Hints { ip: ipv6.then_some(IpVersion::V6), ..Hints::default() }) {
            Ok(answer) => {
                let named = |it: &Explanation| Named {
                    operations: it.operations.iter().map(ToString::to_string).collect(),
                    pattern: it.pattern,
                    requester: it.requester,
                    payload_bytes: it.payload_bytes,
                    received_payload_bytes: it.received_payload_bytes,
                    operations_per_s: it.operations_per_s,
                };
                Self { verdict: sentences::conclusion(&answer), named: answer.named().iter().map(named).collect() }
            }
            Err(error) => Self { verdict: error.to_string(), named: Vec::new() },
        }
    }
}

described! {
    /// Packets that one end sent, by kind. Data packets are first transmissions, without messages that carry only
    /// credits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Counted {
        /// Request packets of data messages.
        pub data_packets: u64,
        /// Frame bytes of the request packets of data messages.
        pub data_bytes: u64,
        /// Packets that carry credits or a goodbye, or check whether the peer is alive.
        pub control_packets: u64,
        /// ACKs and NAKs.
        pub ack_packets: u64,
        /// Retransmitted packets.
        pub retransmitted_packets: u64,
        /// RNR NAKs sent.
        pub rnr_naks: u64,
        /// Packets that answer READs and atomics, including answers to retransmitted requests.
        #[serde(default)]
        pub response_packets: u64,
        /// Frame bytes of the packets that answer READs and atomics.
        #[serde(default)]
        pub response_bytes: u64,
    }
}

/// Frame bytes of a keepalive: a WRITE without payload that checks whether the peer is alive.
const KEEPALIVE_FRAME_BYTES: u64 = 74;

impl Counted {
    /// Splits the counters of a device by kind of packet. For messages without payload, the counters do not distinguish
    /// data from control SENDs. The caller then passes the number of control SENDs that the connections counted as
    /// `control_sends`.
    pub fn of(counters: &BTreeMap<String, u64>, keepalives: u64, control_sends: Option<u64>, ipv6: bool) -> Self {
        let get = |name: &str| counters.get(name).copied().unwrap_or(0);
        let keepalive_bytes = KEEPALIVE_FRAME_BYTES + if ipv6 { 20 } else { 0 };
        // A SEND with immediate data and without payload is a control message, unless data messages have no payload
        // either.
        let (control, control_bytes) = match control_sends {
            Some(sends) => (sends, sends * (14 + 20 + 8 + 12 + 4 + 4 + if ipv6 { 20 } else { 0 })),
            None => (get("tx_word_packets"), get("tx_word_bytes")),
        };
        Self {
            data_packets: get("tx_data_packets").saturating_sub(control + keepalives),
            data_bytes: get("tx_data_bytes").saturating_sub(control_bytes + keepalives * keepalive_bytes),
            control_packets: control + keepalives,
            ack_packets: get("tx_ack_packets"),
            retransmitted_packets: get("tx_retransmitted_packets"),
            rnr_naks: get("rnr_nak_sent"),
            response_packets: get("tx_response_packets"),
            response_bytes: get("tx_response_bytes"),
        }
    }
}

/// Returns counters by name.
pub fn counters_by_name(counters: &Counters) -> BTreeMap<String, u64> {
    Counters::NAMES.iter().map(|name| (*name).to_owned()).zip(counters.values()).collect()
}

/// Returns the increase of each counter of a link, by name.
pub fn link_by_name(counters: &LinkCounters, before: &LinkCounters) -> BTreeMap<String, u64> {
    let deltas = counters.values().into_iter().zip(before.values()).map(|(now, before)| now.saturating_sub(before));
    LinkCounters::NAMES.iter().map(|name| (*name).to_owned()).zip(deltas).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_round_trips_through_a_record() {
        let mut histogram = Buckets::empty_histogram();
        for (index, value) in [0, 1, 1999, 2048, 2049, 3141, 3141, 1 << 20, u64::MAX >> 8].into_iter().enumerate() {
            histogram.record_n(value, index as u64 + 1).unwrap();
        }
        let buckets = Buckets::of(&histogram);
        assert_eq!(buckets.0[..4], [(0, 1), (1, 2), (1999, 3), (2049, 9)]);
        let json = serde_json::to_string(&buckets).unwrap();
        assert!(json.starts_with("[[0,1],[1,2],[1999,3],[2049,9],"), "{json}");
        let read: Buckets = serde_json::from_str(&json).unwrap();
        assert!(read.to_histogram() == histogram);
        assert_eq!(Latency::of(&read.to_histogram()), Latency::of(&histogram));
    }

    #[test]
    fn record_without_histogram_is_readable() {
        let result = PointResult { histogram_ns: Some(Buckets(vec![(1, 1)])), ..PointResult::default() };
        let mut value = serde_json::to_value(&result).unwrap();
        value.as_object_mut().unwrap().remove("histogram_ns").unwrap();
        assert_eq!(serde_json::from_value::<PointResult>(value).unwrap().histogram_ns, None);
    }
}
