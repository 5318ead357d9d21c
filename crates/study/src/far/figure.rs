//! What points about shared memory measure beside rates: one number each.

use std::collections::BTreeMap;

use doorbell_steer::Order;
use serde::{Deserialize, Serialize};

/// Figures of a point, by what they are.
pub type Figures = BTreeMap<Figure, f64>;

/// One number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Half of the gets take no longer.
    GetMedian,
    /// 99 % of the gets take no longer.
    GetP99,
    /// 99.9 % of the gets take no longer.
    GetP999,
    /// Half of the puts take no longer.
    PutMedian,
    /// 99 % of the puts take no longer.
    PutP99,
    /// 99.9 % of the puts take no longer.
    PutP999,
    /// READs of a value per get.
    GetAttempts,
    /// CASes per put.
    PutAttempts,
    /// READs of a value that find the newest node.
    GetSuccess,
    /// CASes that find the newest node.
    PutSuccess,
    /// Gets whose first READ finds the newest node.
    GetAtOnce,
    /// Puts whose first CAS finds the newest node.
    PutAtOnce,
    /// Bytes of frames per operation, both ways.
    BytesPerOperation,
    /// The same against what it would be if each first try succeeded.
    BytesOverLeast,
    /// Jain's index of the clients' operations.
    ClientFairness,
    /// Cores of the memory node that were busy.
    MemoryCores,
    /// Cores of a client that were busy.
    ClientCores,
    /// Answers whose number follows that of the answer before.
    InOrder,
    /// The greatest difference between the numbers of two consecutive answers.
    LargestGap,
    /// The mean difference between the numbers of two consecutive answers.
    MeanGap,
    /// Requests answered after a later one to the same address.
    SameAddressOutOfOrder,
    /// READs that brought words of different WRITEs.
    Torn,
    /// Torn READs whose first foreign word begins a packet.
    TornAtPackets,
    /// Where the first foreign word of a torn READ lies on average.
    TornAt,
    /// An operation's mean time beside the others.
    ProbeLatency,
    /// CASes of the others.
    OthersRate,
}

/// How a figure is shown.
struct Shown {
    name: &'static str,
    unit: &'static str,
    /// It spreads over orders of magnitude, and is never nothing.
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

    /// How it is called.
    pub fn name(self) -> &'static str {
        self.shown().name
    }

    /// Its unit; a number of times or a share of one has none.
    pub fn unit(self) -> &'static str {
        self.shown().unit
    }

    /// Does it spread over orders of magnitude, and is never nothing?
    pub fn is_logarithmic(self) -> bool {
        self.shown().is_logarithmic
    }

    /// Is less of it better?
    pub fn less_is_better(self) -> bool {
        self.shown().less_is_better
    }
}

/// In which order a middlebox saw requests answered, as records have it.
pub fn order_figures(order: &Order) -> Figures {
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    Figures::from([
        (Figure::InOrder, percent(order.in_order, order.answers)),
        (Figure::LargestGap, order.largest_gap as f64),
        (Figure::MeanGap, order.gaps as f64 / order.answers.max(1) as f64),
        (Figure::SameAddressOutOfOrder, percent(order.late, order.answered)),
    ])
}
