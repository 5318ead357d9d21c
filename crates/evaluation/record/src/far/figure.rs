//! Figures of points about shared memory, in addition to rates. Each figure is one number.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Values of a point by figure.
pub type Figures = BTreeMap<Figure, f64>;

/// Measured quantity of a point about shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Median time of a get.
    GetMedian,
    /// 99th percentile of the times of gets.
    GetP99,
    /// 99.9th percentile of the times of gets.
    GetP999,
    /// Median time of a put.
    PutMedian,
    /// 99th percentile of the times of puts.
    PutP99,
    /// 99.9th percentile of the times of puts.
    PutP999,
    /// Number of READs of a value per get.
    GetAttempts,
    /// Number of CASes per put.
    PutAttempts,
    /// Share of READs of a value that find the newest node.
    GetSuccess,
    /// Share of CASes that find the newest node.
    PutSuccess,
    /// Share of gets whose first READ finds the newest node.
    GetAtOnce,
    /// Share of puts whose first CAS finds the newest node.
    PutAtOnce,
    /// Frame bytes per operation, in both directions together.
    BytesPerOperation,
    /// Bytes per operation, divided by the bytes per operation if each first attempt succeeded.
    BytesOverLeast,
    /// Jain's fairness index of the numbers of operations of the clients.
    ClientFairness,
    /// CPU time of the memory node, in busy cores.
    MemoryCores,
    /// CPU time of a client, in busy cores.
    ClientCores,
    /// Share of answers whose request number follows the number of the previous answer.
    InOrder,
    /// Maximum difference between the request numbers of two consecutive answers.
    LargestGap,
    /// Mean difference between the request numbers of two consecutive answers.
    MeanGap,
    /// Share of requests that were answered after a later request to the same address.
    SameAddressOutOfOrder,
    /// Share of READs that returned words of different WRITEs.
    Torn,
    /// Share of torn READs in which the first word of another WRITE is at the beginning of a packet.
    TornAtPackets,
    /// Mean offset of the first word of another WRITE in torn READs.
    TornAt,
    /// Mean time of the timed operation while other queue pairs CAS.
    ProbeLatency,
    /// CASes per second of the other queue pairs together.
    OthersRate,
}

/// Presentation of a figure.
struct Shown {
    name: &'static str,
    unit: &'static str,
    /// Whether the values spread over orders of magnitude and are never zero.
    is_logarithmic: bool,
    less_is_better: bool,
}

impl Figure {
    fn shown(self) -> Shown {
        let time = |name| Shown { name, unit: "us", is_logarithmic: true, less_is_better: true };
        let cost = |name, unit| Shown { name, unit, is_logarithmic: false, less_is_better: true };
        let gain = |name, unit| Shown { name, unit, is_logarithmic: false, less_is_better: false };
        match self {
            Self::GetMedian => time("median of gets"),
            Self::GetP99 => time("99 % of gets"),
            Self::GetP999 => time("99.9 % of gets"),
            Self::PutMedian => time("median of puts"),
            Self::PutP99 => time("99 % of puts"),
            Self::PutP999 => time("99.9 % of puts"),
            Self::GetAttempts => cost("READs of a value per get", ""),
            Self::PutAttempts => cost("CASes per put", ""),
            Self::GetSuccess => gain("READs of a value that succeed", "%"),
            Self::PutSuccess => gain("CASes that succeed", "%"),
            Self::GetAtOnce => gain("gets that succeed at once", "%"),
            Self::PutAtOnce => gain("puts that succeed at once", "%"),
            Self::BytesPerOperation => cost("bytes on the wire", "B/operation"),
            Self::BytesOverLeast => cost("bytes, times the least", ""),
            Self::ClientFairness => gain("fairness between clients (Jain)", ""),
            Self::MemoryCores => cost("CPU of the memory node", "cores"),
            Self::ClientCores => cost("CPU of a client", "cores"),
            Self::InOrder => gain("answers in order", "%"),
            Self::LargestGap => cost("largest gap", "requests"),
            Self::MeanGap => cost("mean gap", "requests"),
            Self::SameAddressOutOfOrder => cost("served out of order, same address", "%"),
            Self::Torn => cost("torn READs", "%"),
            Self::TornAtPackets => gain("torn where a packet begins", "%"),
            Self::TornAt => gain("first foreign word", "B"),
            Self::ProbeLatency => time("mean latency of the operation"),
            Self::OthersRate => gain("CASes of the others", "M/s"),
        }
    }

    /// Returns the name of the figure.
    pub fn name(self) -> &'static str {
        self.shown().name
    }

    /// Returns the unit, or an empty text for a ratio.
    pub fn unit(self) -> &'static str {
        self.shown().unit
    }

    /// Returns whether the values spread over orders of magnitude and are never zero.
    pub fn is_logarithmic(self) -> bool {
        self.shown().is_logarithmic
    }

    /// Returns whether a lower value is better.
    pub fn less_is_better(self) -> bool {
        self.shown().less_is_better
    }
}
