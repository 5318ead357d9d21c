//! What is read off a point.

use crate::far::Figure;
use crate::record::{Counted, PointResult};

/// Something that a point measured, in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Median latency, in microseconds.
    MedianLatency,
    /// The latency that 99 % do not exceed, in microseconds.
    TailLatency,
    /// Millions of messages per second.
    MessageRate,
    /// Payload, in Gb/s (10^9 bits).
    Throughput,
    /// RNR NAKs per second.
    RnrNaks,
    /// Packets per operation, from the end that asks to the other: messages and acknowledgements.
    RequestPackets,
    /// Packets per operation, from the other end to the one that asks.
    ResponsePackets,
    /// Bytes per packet, from the end that asks to the other: frames without FCS.
    RequestFrame,
    /// Bytes per packet, from the other end to the one that asks.
    ResponseFrame,
    /// CPU time of the end that asks per message, in microseconds.
    AskingCpu,
    /// CPU time of the other end per message, in microseconds.
    AnsweringCpu,
    /// CPU time of the end that asks per message without polls that find nothing, in microseconds.
    AskingWork,
    /// CPU time of the other end per message without polls that find nothing, in microseconds.
    AnsweringWork,
    /// Jain's fairness index of the connections: 1 is equal shares, 1/N is everything to one.
    Fairness,
    /// The mean time of an operation where as many as allowed are outstanding, in microseconds: their number divided by
    /// their rate (Little's law).
    MeanLatency,
    /// A figure of shared memory.
    Far(Figure),
}

impl Quantity {
    /// Its value, if the point has one.
    pub fn of(self, result: &PointResult) -> Option<f64> {
        let value = match self {
            Self::MedianLatency => result.latency_ns?.p50 as f64 / 1e3,
            Self::TailLatency => result.latency_ns?.p99 as f64 / 1e3,
            Self::MessageRate => result.messages_per_s / 1e6,
            Self::Throughput => result.bytes_per_s * 8.0 / 1e9,
            Self::RnrNaks => {
                result.counted.client.rnr_naks.saturating_add(result.counted.server.rnr_naks) as f64 / result.seconds
            }
            Self::RequestPackets => per_operation(result, &result.counted.client, &result.counted.server)?,
            Self::ResponsePackets => per_operation(result, &result.counted.server, &result.counted.client)?,
            Self::RequestFrame => result.rates.client.tx_bytes / result.rates.client.tx_packets,
            Self::ResponseFrame => result.rates.server.tx_bytes / result.rates.server.tx_packets,
            Self::AskingCpu => result.cpu_by_message().client.all_us?,
            Self::AnsweringCpu => result.cpu_by_message().server.all_us?,
            Self::AskingWork => result.cpu_by_message().client.useful_us?,
            Self::AnsweringWork => result.cpu_by_message().server.useful_us?,
            Self::Fairness => jain(&result.sent_by_connection)?,
            Self::MeanLatency => {
                let outstanding = result.fitted.window * result.sent_by_connection.len();
                outstanding as f64 * 1e6 / result.messages_per_s
            }
            Self::Far(figure) => *result.far.get(&figure)?,
        };
        value.is_finite().then_some(value)
    }

    /// How it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::MedianLatency => "median latency",
            Self::TailLatency => "99 % latency",
            Self::MessageRate => "message rate",
            Self::Throughput => "throughput",
            Self::RnrNaks => "RNR NAKs",
            Self::RequestPackets => "request packets",
            Self::ResponsePackets => "response packets",
            Self::RequestFrame => "request frame",
            Self::ResponseFrame => "response frame",
            Self::AskingCpu => "CPU, asking end",
            Self::AnsweringCpu => "CPU, other end",
            Self::AskingWork => "CPU without empty polls, asking end",
            Self::AnsweringWork => "CPU without empty polls, other end",
            Self::Fairness => "fairness (Jain)",
            Self::MeanLatency => "mean latency",
            Self::Far(figure) => figure.name(),
        }
    }

    /// Its unit; a share has none.
    pub fn unit(self) -> &'static str {
        match self {
            Self::MedianLatency | Self::TailLatency | Self::MeanLatency => "us",
            Self::MessageRate => "M messages/s",
            Self::Throughput => "Gb/s",
            Self::RnrNaks => "per second",
            Self::RequestPackets | Self::ResponsePackets => "packets/operation",
            Self::RequestFrame | Self::ResponseFrame => "B/packet",
            Self::AskingCpu | Self::AnsweringCpu | Self::AskingWork | Self::AnsweringWork => "us/message",
            Self::Fairness => "",
            Self::Far(figure) => figure.unit(),
        }
    }

    /// Does it spread over orders of magnitude, and is never nothing?
    pub fn is_logarithmic(self) -> bool {
        match self {
            Self::MedianLatency
            | Self::TailLatency
            | Self::MeanLatency
            | Self::MessageRate
            | Self::Throughput
            | Self::AskingCpu
            | Self::AnsweringCpu => true,
            Self::Far(figure) => figure.is_logarithmic(),
            _ => false,
        }
    }

    /// Is less of it better?
    pub fn less_is_better(self) -> bool {
        match self {
            Self::MessageRate | Self::Throughput | Self::Fairness => false,
            Self::Far(figure) => figure.less_is_better(),
            _ => true,
        }
    }
}

/// First transmissions of an end, and what answers the first transmissions of its peer, by the operations of the end that
/// asked. A device without counters has counted none.
fn per_operation(result: &PointResult, counted: &Counted, peer: &Counted) -> Option<f64> {
    let operations: u64 = result.sent_by_connection.iter().sum();
    // Each packet that is sent again is answered once more, where the machine is busy.
    let answers = counted.ack_packets.saturating_add(counted.response_packets);
    let packets = counted.data_packets.saturating_add(answers.saturating_sub(peer.retransmitted_packets));
    (operations > 0 && packets > 0).then(|| packets as f64 / operations as f64)
}

/// Jain's fairness index: the square of the sum over N times the sum of squares.
fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// What several repetitions measured of one quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Least.
    pub least: f64,
    /// Median.
    pub median: f64,
    /// Most.
    pub most: f64,
}

impl Spread {
    /// Of values that are numbers; `None` of no values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { least, median, most })
    }

    /// The share of the median that it spans.
    pub fn share(&self) -> Option<f64> {
        (self.median > 0.0).then(|| (self.most - self.least) / self.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair_and_one_that_has_all_is_not() {
        assert_eq!(jain(&[7, 7, 7, 7]), Some(1.0));
        assert_eq!(jain(&[9, 0, 0]), Some(1.0 / 3.0));
        assert_eq!(jain(&[0, 0]), None);
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn what_answers_packets_that_were_sent_again_is_no_part_of_an_operation() {
        let mut result = PointResult { sent_by_connection: vec![6, 4], ..PointResult::default() };
        assert_eq!(Quantity::RequestPackets.of(&result), None, "a device without counters");
        (result.counted.client.data_packets, result.counted.client.retransmitted_packets) = (10, 5);
        result.counted.server.ack_packets = 15;
        assert_eq!(Quantity::RequestPackets.of(&result), Some(1.0));
        assert_eq!(Quantity::ResponsePackets.of(&result), Some(1.0));
    }

    #[test]
    fn cpu_time_is_per_message_and_unknown_where_nobody_measured_it() {
        let mut result = PointResult { sent_by_connection: vec![6, 4], ..PointResult::default() };
        let all = [Quantity::AskingCpu, Quantity::AnsweringCpu, Quantity::AskingWork, Quantity::AnsweringWork];
        assert_eq!(all.map(|quantity| quantity.of(&result)), [None; 4]);
        (result.cpu.client.all_ns, result.cpu.client.empty_ns) = (Some(50_000), Some(20_000));
        result.cpu.server.all_ns = Some(10_000);
        assert_eq!(all.map(|quantity| quantity.of(&result)), [Some(5.0), Some(1.0), Some(3.0), None]);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { least: 1.0, median: 2.0, most: 3.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0]), Some(Spread { least: 1.0, median: 2.5, most: 4.0 }));
        assert_eq!(Spread::of(vec![]), None);
    }
}
