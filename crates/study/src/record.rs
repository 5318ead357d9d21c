//! The record of a run: JSON, versioned.

use std::collections::BTreeMap;

pub use doorbell_analyze::explain::Rates;
use doorbell_analyze::explain::{Explanation, Hints, Pattern, Range, Requester, Span, explain, sentences};
use doorbell_verbs::{Counters, LinkCounters};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::cpu::{CpuPerMessage, CpuTime};
use crate::environment::Environment;
use crate::far::Figures;
use crate::link::{Carried, CarriedBy};
use crate::parameters::{Fitted, Parameters, Timed};
pub use crate::prediction::Predicted;

/// Digits of a recorded value that count.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Names the layout of a record. Fields may be added under one name; a reader leaves those alone that
/// it does not know.
pub const SCHEMA: &str = "doorbell-bench/1";

/// The record of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// Where it was measured.
    pub environment: Environment,
    /// What was asked for.
    pub parameters: Parameters,
    /// One per size.
    pub results: Vec<PointResult>,
}

/// What one point measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PointResult {
    /// Bytes per message.
    pub bytes: usize,
    /// Messages that were measured: all connections, both directions if both send.
    pub messages: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Messages per second.
    pub messages_per_s: f64,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
    /// What [`timed`](Self::timed) says (latency only).
    pub latency_ns: Option<Latency>,
    /// What a latency is the time of.
    #[serde(default)]
    pub timed: Timed,
    /// All that these figures were made from (latency only).
    #[serde(default)]
    pub histogram_ns: Option<Buckets>,
    /// What window, depth and buffers were made of.
    pub fitted: Fitted,
    /// Path MTU in use.
    pub mtu: usize,
    /// Counters of both ends, over the whole life of the connections.
    pub counters: BothEnds<BTreeMap<String, u64>>,
    /// What was lost below the RNIC of each end in that time, and how many packets went which way.
    #[serde(default)]
    pub link: BothEnds<BTreeMap<String, u64>>,
    /// What carried these packets: [`carried`](Self::carried) has the numbers. Of an RNIC of the machine it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried_by: Option<CarriedBy>,
    /// Packets and bytes among them, per second: what somebody sees of each end who has nothing but
    /// the counters of its NIC.
    #[serde(default)]
    pub rates: BothEnds<Rates>,
    /// What these rates alone would let one conclude.
    #[serde(default)]
    pub explained: BothEnds<Conclusion>,
    /// What each end sent, told apart.
    pub counted: BothEnds<Counted>,
    /// What the arithmetic of packets says of it.
    pub predicted: BothEnds<Predicted>,
    /// CPU time of both ends.
    #[serde(default)]
    pub cpu: BothEnds<CpuTime>,
    /// The same per message. Records that were written before it was there have none.
    #[serde(default)]
    pub cpu_per_message: BothEnds<CpuPerMessage>,
    /// Messages that did not arrive, or, of ping-pongs, that nobody has answered, those to warm up included. Where
    /// messages are acknowledged there are none.
    #[serde(default)]
    pub lost: u64,
    /// Messages found damaged, where payloads were checked.
    pub damaged: u64,
    /// Times that a sender found no credit.
    pub stalled_on_credits: u64,
    /// Messages that each connection of the end that asked has sent.
    #[serde(default)]
    pub sent_by_connection: Vec<u64>,
    /// What points about shared memory measure beside rates.
    #[serde(default, skip_serializing_if = "Figures::is_empty")]
    pub far: Figures,
    /// What each host did, where there are more than two: [`counted`](Self::counted) and the like are sums of those
    /// that asked, and of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostResult>,
}

/// What one host of several did in a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostResult {
    /// Its number: 0 is the environment's own machine, and others follow in the order of its `hosts`.
    pub number: usize,
    /// The name that it was given.
    pub name: String,
    /// What it did with each of its connections.
    pub role: String,
    /// It performed the asking part.
    pub asks: bool,
    /// Ends of connections that it had.
    pub connections: usize,
    /// Messages sent, those to warm up included.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Packets that it sent.
    pub counted: Counted,
    /// What the arithmetic of packets says of them.
    pub predicted: Predicted,
    /// CPU time.
    pub cpu: CpuTime,
    /// The same per message that it sent, or, of a host that does not ask, received. Records that were written before it
    /// was there have none.
    #[serde(default)]
    pub cpu_per_message: CpuPerMessage,
    /// What was lost below its RNIC.
    pub link: BTreeMap<String, u64>,
    /// Of a host that asks: when its first message that counts was sent after the instant that was agreed on, in
    /// nanoseconds. Others begin when something comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_ns: Option<u64>,
    /// How far the coordinator may be wrong about its clock: half of the shortest round trip, in nanoseconds.
    pub clock_ns: u64,
}

impl HostResult {
    /// Its CPU time per message that it sent, or, of a host that does not ask, received; also of a record that holds only
    /// sums.
    pub fn cpu_by_message(&self) -> CpuPerMessage {
        self.cpu.per_message(if self.asks { self.sent } else { self.received })
    }
}

impl PointResult {
    /// The CPU time of both ends per message that the end that asked has sent, also of a record that holds only sums.
    pub fn cpu_by_message(&self) -> BothEnds<CpuPerMessage> {
        let messages = self.sent_by_connection.iter().sum();
        let BothEnds { client, server } = &self.cpu;
        BothEnds { client: client.per_message(messages), server: server.per_message(messages) }
    }

    /// How many packets of both ends went which way, also of a record that holds only counters.
    pub fn carried(&self) -> Carried {
        let own = Carried::of(&self.link.client, &self.counters.client);
        own.and(Carried::of(&self.link.server, &self.counters.server))
    }
}

/// The end that asked for the run, and the other.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BothEnds<T> {
    /// The end that asked.
    pub client: T,
    /// The other.
    pub server: T,
}

/// Figures of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Least.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// Mean.
    pub mean: f64,
    /// 99 % are no longer.
    pub p99: u64,
    /// 99.9 % are no longer.
    pub p999: u64,
    /// Longest.
    pub max: u64,
}

impl Latency {
    /// The figures of what was recorded.
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

/// A whole histogram: `[value, count]` of each bucket that is not empty, values rising.
///
/// A bucket's value is the greatest that falls into it, of three significant digits:
/// 2,048 and 2,049 share one, and 1,999 has one of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Buckets(pub Vec<(u64, u64)>);

impl Buckets {
    /// An empty histogram of the resolution that records have. It grows by itself.
    pub fn empty_histogram() -> Histogram<u64> {
        Histogram::new(SIGNIFICANT_DIGITS).unwrap_or_else(|_| unreachable!("three digits are allowed"))
    }

    /// What was recorded.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self(histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }

    /// The histogram again, with every count in its place.
    pub fn to_histogram(&self) -> Histogram<u64> {
        let mut histogram = Self::empty_histogram();
        for &(value, count) in &self.0 {
            // It grows by itself, so there is nothing that it cannot record.
            let _ = histogram.record_n(value, count);
        }
        histogram
    }
}

/// What somebody concludes of one end who has nothing but its [`Rates`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// In a sentence.
    pub verdict: String,
    /// What is named in it, the most plausible first.
    pub named: Vec<Named>,
}

/// An explanation that a verdict names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// What the messages are, by IBTA's names; several where bytes cannot tell them apart.
    pub operations: Vec<String>,
    /// How they flow.
    pub pattern: Pattern,
    /// Who posts them.
    pub requester: Requester,
    /// Payload bytes per message.
    pub payload_bytes: Span,
    /// Of request-response: those of messages that arrive.
    pub received_payload_bytes: Option<Span>,
    /// Operations per second.
    pub operations_per_s: Range,
}

impl Conclusion {
    /// What [`explain`] says of these rates.
    pub fn of(rates: &Rates, ipv6: bool) -> Self {
        match explain(rates, &Hints { ipv6, ..Hints::default() }) {
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

/// What one end sent, told apart: first transmissions of data, without what carries only credits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Request packets of data messages.
    pub data_packets: u64,
    /// Their frame bytes.
    pub data_bytes: u64,
    /// Packets that carry credits or a goodbye, or ask whether the peer lives.
    pub control_packets: u64,
    /// ACKs and NAKs.
    pub ack_packets: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
    /// RNR NAKs sent.
    pub rnr_naks: u64,
    /// Packets that answer READs and atomics, those for requests sent again among them.
    #[serde(default)]
    pub response_packets: u64,
    /// Their frame bytes.
    #[serde(default)]
    pub response_bytes: u64,
}

/// Frame bytes of a WRITE without payload, which asks whether the peer lives.
const KEEPALIVE_FRAME_BYTES: u64 = 74;

impl Counted {
    /// Tells apart what a device counted. Where messages have no bytes, SENDs of words look like
    /// them, and the connections' own count of `control_sends` is taken.
    pub fn of(counters: &BTreeMap<String, u64>, keepalives: u64, control_sends: Option<u64>, ipv6: bool) -> Self {
        let get = |name: &str| counters.get(name).copied().unwrap_or(0);
        let keepalive_bytes = KEEPALIVE_FRAME_BYTES + if ipv6 { 20 } else { 0 };
        // A SEND of no bytes with immediate is a control message, unless data has no bytes too.
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

/// Counters by name.
pub fn by_name(counters: &Counters) -> BTreeMap<String, u64> {
    Counters::NAMES.iter().map(|name| (*name).to_owned()).zip(counters.values()).collect()
}

/// What each counter of a link has advanced by, by name.
pub fn link_by_name(counters: &LinkCounters, before: &LinkCounters) -> BTreeMap<String, u64> {
    let deltas = counters.values().into_iter().zip(before.values()).map(|(now, before)| now.saturating_sub(before));
    LinkCounters::NAMES.iter().map(|name| (*name).to_owned()).zip(deltas).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_comes_back_from_a_record_as_it_was() {
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
    fn a_record_of_before_histograms_is_still_read() {
        let result = PointResult { histogram_ns: Some(Buckets(vec![(1, 1)])), ..PointResult::default() };
        let mut value = serde_json::to_value(&result).unwrap();
        value.as_object_mut().unwrap().remove("histogram_ns").unwrap();
        assert_eq!(serde_json::from_value::<PointResult>(value).unwrap().histogram_ns, None);
    }
}
