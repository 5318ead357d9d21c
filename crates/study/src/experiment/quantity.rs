//! What is read off a point.

use crate::record::PointResult;

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
    /// Jain's fairness index of the connections: 1 is equal shares, 1/N is everything to one.
    Fairness,
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
            Self::Fairness => jain(&result.sent_by_connection)?,
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
            Self::Fairness => "fairness (Jain)",
        }
    }

    /// Its unit; a share has none.
    pub fn unit(self) -> &'static str {
        match self {
            Self::MedianLatency | Self::TailLatency => "us",
            Self::MessageRate => "M messages/s",
            Self::Throughput => "Gb/s",
            Self::RnrNaks => "per second",
            Self::Fairness => "",
        }
    }

    /// Does it spread over orders of magnitude, and is never nothing?
    pub fn is_logarithmic(self) -> bool {
        !matches!(self, Self::RnrNaks | Self::Fairness)
    }

    /// Is less of it better?
    pub fn less_is_better(self) -> bool {
        matches!(self, Self::MedianLatency | Self::TailLatency | Self::RnrNaks)
    }
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
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { least: 1.0, median: 2.0, most: 3.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0]), Some(Spread { least: 1.0, median: 2.5, most: 4.0 }));
        assert_eq!(Spread::of(vec![]), None);
    }
}
