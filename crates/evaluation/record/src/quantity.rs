//! Measured quantities of a point.

use crate::far::Figure;
use crate::result::{Counted, PointResult};

/// Measured quantity of a point, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Median latency, in microseconds.
    MedianLatency,
    /// 99th percentile of the latency, in microseconds.
    TailLatency,
    /// Millions of messages per second.
    MessageRate,
    /// Payload, in Gb/s (10^9 bits).
    Throughput,
    /// RNR NAKs per second.
    RnrNaks,
    /// Packets per operation from the asking end to the other end, including acknowledgements.
    RequestPackets,
    /// Packets per operation from the other end to the asking end.
    ResponsePackets,
    /// Frame bytes per packet from the asking end to the other end, without FCS.
    RequestFrame,
    /// Frame bytes per packet from the other end to the asking end, without FCS.
    ResponseFrame,
    /// CPU time of the asking end per message, in microseconds.
    AskingCpu,
    /// CPU time of the other end per message, in microseconds.
    AnsweringCpu,
    /// CPU time of the asking end per message without empty polls, in microseconds.
    AskingWork,
    /// CPU time of the other end per message without empty polls, in microseconds.
    AnsweringWork,
    /// Jain's fairness index of the connections. 1 means equal shares, and 1/N means that one of N connections has all
    /// messages.
    Fairness,
    /// Mean time of an operation in microseconds, by Little's law: maximum number of outstanding operations divided by
    /// their rate. [`PointRecord::values`](crate::PointRecord::values) has the measured mean instead if windows are not
    /// always full.
    MeanLatency,
    /// Figure of a point about shared memory.
    Far(Figure),
}

impl Quantity {
    /// Returns the value of the quantity, or `None` if the result lacks it.
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
            Self::Fairness => {
                let shares: Vec<f64> = result.sent_by_connection.iter().map(|&sent| sent as f64).collect();
                jain(&shares)?
            }
            Self::MeanLatency => {
                let outstanding = result.fitted.window * result.sent_by_connection.len();
                outstanding as f64 * 1e6 / result.messages_per_s
            }
            Self::Far(figure) => *result.far.get(&figure)?,
        };
        value.is_finite().then_some(value)
    }

    /// Returns the name of the quantity.
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

    /// Returns the unit of the quantity, or an empty text for a share.
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

    /// Returns whether the values spread over orders of magnitude and are never zero.
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

    /// Returns whether smaller values are better.
    pub fn less_is_better(self) -> bool {
        match self {
            Self::MessageRate | Self::Throughput | Self::Fairness => false,
            Self::Far(figure) => figure.less_is_better(),
            _ => true,
        }
    }
}

/// Returns the packets of one end per operation of the asking end. Retransmissions, and answers to retransmissions, do
/// not count. The result is `None` for a device without counters.
fn per_operation(result: &PointResult, counted: &Counted, peer: &Counted) -> Option<f64> {
    let operations: u64 = result.sent_by_connection.iter().sum();
    // On a busy machine, the peer may retransmit packets, and each retransmission causes an additional answer.
    let answers = counted.ack_packets.saturating_add(counted.response_packets);
    let packets = counted.data_packets.saturating_add(answers.saturating_sub(peer.retransmitted_packets));
    (operations > 0 && packets > 0).then(|| packets as f64 / operations as f64)
}

/// Returns Jain's fairness index of N shares, which is the square of their sum divided by N times the sum of their
/// squares. 1 means equal shares, and 1/N means that one share is everything. Returns `None` if there is nothing to
/// share.
///
/// Source: R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of Fairness, DEC-TR-301, 1984.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share.powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Spread of a quantity over several repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Minimum.
    pub least: f64,
    /// Median.
    pub median: f64,
    /// Maximum.
    pub most: f64,
}

impl Spread {
    /// Returns the spread of finite values, or `None` if there are no values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { least, median, most })
    }

    /// Returns the difference between maximum and minimum as a share of the median.
    pub fn share(&self) -> Option<f64> {
        (self.median > 0.0).then(|| (self.most - self.least) / self.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_index_ranges_from_one_to_one_nth() {
        assert_eq!(jain(&[7.0, 7.0, 7.0, 7.0]), Some(1.0));
        assert_eq!(jain(&[9.0, 0.0, 0.0]), Some(1.0 / 3.0));
        assert_eq!(jain(&[0.0, 0.0]), None);
        assert_eq!(jain(&[]), None);
    }

    #[test]
    fn answers_to_retransmissions_do_not_count() {
        let mut result = PointResult { sent_by_connection: vec![6, 4], ..PointResult::default() };
        assert_eq!(Quantity::RequestPackets.of(&result), None, "a device without counters");
        (result.counted.client.data_packets, result.counted.client.retransmitted_packets) = (10, 5);
        result.counted.server.ack_packets = 15;
        assert_eq!(Quantity::RequestPackets.of(&result), Some(1.0));
        assert_eq!(Quantity::ResponsePackets.of(&result), Some(1.0));
    }

    #[test]
    fn cpu_time_per_message_may_be_unknown() {
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
