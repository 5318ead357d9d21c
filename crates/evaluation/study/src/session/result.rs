//! Result of a point, computed from the reports of both ends.

use std::collections::BTreeMap;

use doorbell_protocols::Protocol;
use doorbell_verbs::PathMtu;
use hdrhistogram::Histogram;

use super::report::Report;
use crate::workload::{self, Tally};
use doorbell_record::{
    BothEnds, Buckets, Conclusion, Counted, Figures, Fitted, Kind, Latency, Parameters, PointResult, Rates, Role,
    SizeMix, Transport, prediction::Path,
};

/// Point with the reports of both ends.
pub(super) struct Seen<'a> {
    pub(super) parameters: &'a Parameters,
    pub(super) bytes: usize,
    pub(super) fitted: Fitted,
    pub(super) mtu: PathMtu,
    pub(super) ipv6: bool,
    /// Tallies of the asking end, one for each connection.
    pub(super) tallies: &'a [Tally],
    pub(super) histogram: Option<Histogram<u64>>,
    /// Report of the asking end.
    pub(super) own: Report,
    /// Report of the answering end.
    pub(super) report: Report,
}

/// Properties of a point that determine its packets.
#[derive(Clone, Copy)]
pub(super) struct Ways<'a> {
    pub(super) parameters: &'a Parameters,
    pub(super) bytes: usize,
    pub(super) fitted: &'a Fitted,
    pub(super) mtu: PathMtu,
    pub(super) ipv6: bool,
}

impl Ways<'_> {
    /// Returns the packets that an end sent, by kind.
    pub(super) fn counted(&self, end: &Report) -> Counted {
        // Messages of Send-Receive without payload look like control messages. For such messages, use the connections'
        // own count of control messages.
        let mix = self.parameters.mix.as_ref();
        let has_empty = mix.map_or(self.bytes == 0, |mix| mix.0.iter().any(|&(bytes, _)| bytes == 0));
        let is_alike = has_empty && self.parameters.protocol == Protocol::SendReceive;
        Counted::of(&end.counters, end.keepalives, is_alike.then_some(end.control_sends), self.ipv6)
    }

    /// Returns the properties that determine the packets of an end with `connections` connections. The asking end sends
    /// requests, the other end sends replies.
    pub(super) fn path(&self, connections: usize, asks: bool) -> Path {
        let Self { parameters, bytes, fitted, mtu, ipv6 } = *self;
        let replied = parameters.reply_bytes(bytes);
        let (bytes, received_bytes) = if asks { (bytes, replied) } else { (replied, bytes) };
        Path {
            operation: parameters.operation,
            protocol: parameters.protocol,
            transport: parameters.transport,
            bytes,
            received_bytes,
            mtu,
            credits: parameters.credits,
            window: fitted.window,
            batch: fitted.batch,
            depth: fitted.depth * connections,
            ipv6,
        }
    }
}

/// Bytes and number of the messages of each size.
type Sizes = Vec<(u64, u64)>;

/// Returns the sizes of the messages that connections with these tallies sent, and of their replies. One-way messages
/// have no replies.
fn mixed(mix: &SizeMix, parameters: &Parameters, tallies: &[Tally]) -> (Sizes, Sizes) {
    let sequence = mix.sequence();
    let mut sum: BTreeMap<u64, u64> = BTreeMap::new();
    for (bytes, count) in tallies.iter().flat_map(|tally| sequence.counts(tally.sequence_from, tally.sent)) {
        let sum = sum.entry(bytes).or_default();
        *sum = sum.saturating_add(count);
    }
    let asked: Sizes = sum.into_iter().collect();
    let replied = match (parameters.cast().asking.role, parameters.reply) {
        (Role::Requester, Some(reply @ 1..)) => {
            vec![(reply as u64, asked.iter().fold(0, |sum: u64, &(_, count)| sum.saturating_add(count)))]
        }
        (Role::Requester, _) => asked.clone(),
        _ => Sizes::new(),
    };
    (asked, replied)
}

/// Returns the mean bytes of messages with these sizes.
fn mean(sizes: &[(u64, u64)]) -> f64 {
    let messages: f64 = sizes.iter().map(|&(_, count)| count as f64).sum();
    let bytes: f64 = sizes.iter().map(|&(bytes, count)| bytes as f64 * count as f64).sum();
    if messages > 0.0 { bytes / messages } else { 0.0 }
}

/// Returns the number of packets other than data packets that the peer may acknowledge.
pub(super) fn acknowledged_besides(counted: &Counted) -> u64 {
    counted.control_packets + counted.retransmitted_packets
}

impl Seen<'_> {
    pub(super) fn result(self) -> PointResult {
        let Self { parameters, bytes, fitted, mtu, ipv6, tallies, histogram, own, report } = self;
        let ended_ns = tallies.iter().map(|tally| tally.ended_ns).max().unwrap_or(0);
        let seconds_since = |began_ns: fn(&Tally) -> u64| {
            let began_ns = tallies.iter().map(began_ns).min().unwrap_or(0);
            ended_ns.saturating_sub(began_ns).max(1) as f64 / 1e9
        };
        let seconds = seconds_since(|tally| tally.began_ns);
        // Counters include the warm-up, so their rates refer to the time with warm-up.
        let counted_seconds = seconds_since(|tally| tally.first_ns);
        let is_acknowledged = parameters.transport == Transport::Rc;
        let lost = match parameters.kind {
            _ if is_acknowledged => 0,
            Kind::Latency => own.sent.saturating_sub(own.received),
            Kind::Bandwidth => own.sent.saturating_sub(report.received),
        };
        let messages = match parameters.kind {
            Kind::Latency if !is_acknowledged => histogram.as_ref().map_or(0, Histogram::len),
            Kind::Bandwidth if !is_acknowledged => report.received,
            Kind::Latency => own.sent - workload::WARM_UP_ROUNDS * parameters.connections as u64,
            Kind::Bandwidth if parameters.bidirectional => own.sent + report.sent,
            Kind::Bandwidth => own.sent,
        };
        let ways = Ways { parameters, bytes, fitted: &fitted, mtu, ipv6 };
        let counted = BothEnds { client: ways.counted(&own), server: ways.counted(&report) };
        let mixed = parameters.mix.as_ref().map(|mix| mixed(mix, parameters, tallies));
        let path = |asks| ways.path(parameters.connections, asks);
        let mut predicted = match &mixed {
            Some((asked, replied)) => BothEnds {
                client: path(true).predict_sizes(asked, replied, counted.server.data_packets),
                server: path(false).predict_sizes(replied, asked, counted.client.data_packets),
            },
            None => BothEnds {
                client: path(true).predict(own.sent, own.received, counted.server.data_packets),
                server: path(false).predict(report.sent, report.received, counted.client.data_packets),
            },
        };
        let longest = parameters.longest(bytes) as f64;
        let payload = mixed.as_ref().map_or(longest, |(asked, replied)| mean(asked).max(mean(replied)));
        // The peer may also acknowledge each control message and each retransmitted packet.
        predicted.client.ack_packets_max += acknowledged_besides(&counted.server);
        predicted.server.ack_packets_max += acknowledged_besides(&counted.client);
        let rates = BothEnds {
            client: Rates::of(&own.counters, counted_seconds),
            server: Rates::of(&report.counters, counted_seconds),
        };
        let result = PointResult {
            bytes,
            messages,
            seconds,
            messages_per_s: messages as f64 / seconds,
            bytes_per_s: messages as f64 * payload / seconds,
            latency_ns: histogram.as_ref().map(Latency::of),
            timed: parameters.operation.timed(),
            histogram_ns: histogram.as_ref().map(Buckets::of),
            fitted,
            mtu: mtu.bytes(),
            explained: BothEnds {
                client: Conclusion::of(&rates.client, ipv6),
                server: Conclusion::of(&rates.server, ipv6),
            },
            rates,
            counted,
            predicted,
            lost,
            damaged: own.damaged + report.damaged,
            stalled_on_credits: own.stalled_on_credits + report.stalled_on_credits,
            sent_by_connection: tallies.iter().map(|tally| tally.sent).collect(),
            cpu: BothEnds { client: own.cpu, server: report.cpu },
            counters: BothEnds { client: own.counters, server: report.counters },
            link: BothEnds { client: own.link, server: report.link },
            carried_by: None,
            cpu_per_message: BothEnds::default(),
            far: Figures::new(),
            hosts: Vec::new(),
        };
        PointResult { carried_by: result.carried().by(), cpu_per_message: result.cpu_by_message(), ..result }
    }
}
