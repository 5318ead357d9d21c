//! Figures of points about shared memory in addition to rates, one number each.

use std::collections::BTreeMap;

use doorbell_steer::Order;
use serde::{Deserialize, Serialize};

/// Values of a point by figure.
pub type Figures = BTreeMap<Figure, f64>;

/// A measured quantity.
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
    /// READs of a value per get.
    GetAttempts,
    /// CASes per put.
    PutAttempts,
    /// Share of READs of a value that find the newest node.
    GetSuccess,
    /// Share of CASes that find the newest node.
    PutSuccess,
    /// Share of gets whose first READ finds the newest node.
    GetAtOnce,
    /// Share of puts whose first CAS finds the newest node.
    PutAtOnce,
    /// Bytes of frames per operation, in both directions.
    BytesPerOperation,
    /// Bytes per operation, divided by the bytes needed if each first attempt succeeded.
    BytesOverLeast,
    /// Jain's fairness index of the clients' operations.
    ClientFairness,
    /// Busy cores of the memory node.
    MemoryCores,
    /// Busy cores of a client.
    ClientCores,
    /// Share of answers whose number follows that of the answer before.
    InOrder,
    /// The greatest difference between the numbers of two consecutive answers.
    LargestGap,
    /// The mean difference between the numbers of two consecutive answers.
    MeanGap,
    /// Share of requests answered after a later one to the same address.
    SameAddressOutOfOrder,
    /// Share of READs that brought words of different WRITEs.
    Torn,
    /// Share of torn READs whose first foreign word begins a packet.
    TornAtPackets,
    /// Mean offset of the first foreign word of a torn READ.
    TornAt,
    /// Mean time of an operation that runs beside the others.
    ProbeLatency,
    /// CASes per second of the others.
    OthersRate,
}

/// The presentation of a figure.
struct Shown {
    name: &'static str,
    unit: &'static str,
    /// The values spread over orders of magnitude, and are never zero.
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

    /// Returns the unit; empty for ratios.
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

/// Returns the order in which a middlebox saw requests answered, as figures of a record.
pub fn order_figures(order: &Order) -> Figures {
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    Figures::from([
        (Figure::InOrder, percent(order.in_order, order.answers)),
        (Figure::LargestGap, order.largest_gap as f64),
        (Figure::MeanGap, order.gaps as f64 / order.answers.max(1) as f64),
        (Figure::SameAddressOutOfOrder, percent(order.late, order.answered)),
    ])
}
