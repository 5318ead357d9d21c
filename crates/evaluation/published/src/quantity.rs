//! Numbers with units, and the quantities that they measure.

use serde::Deserialize;

/// Dimensions of units. Units of one dimension can be converted into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// Nanoseconds.
    Time,
    /// Nanoseconds per byte.
    TimePerSize,
    /// Events per second.
    Rate,
    /// Bytes per second.
    DataRate,
    /// Bytes.
    Size,
    /// A number without unit; 1 means the whole, or an equal amount.
    Ratio,
    /// Messages.
    Messages,
    /// Connections.
    Connections,
    /// Packets per operation.
    Packets,
}

/// Units as publications print them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Us,
    /// Microseconds per 1024 bytes.
    #[serde(rename = "us/KiB")]
    UsPerKib,
    /// Per second.
    #[serde(rename = "/s")]
    PerSecond,
    /// Thousands per second.
    #[serde(rename = "k/s")]
    Thousands,
    /// Millions per second.
    #[serde(rename = "M/s")]
    Millions,
    /// 2^30 bits per second, which T1 prints as Gbit/s.
    #[serde(rename = "Gibit/s")]
    Gibit,
    /// 10^9 bits per second.
    #[serde(rename = "Gb/s")]
    Gb,
    /// 10^9 bytes per second.
    #[serde(rename = "GB/s")]
    GigaBytes,
    /// Bytes per second.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Percent.
    #[serde(rename = "%")]
    Percent,
    /// Times as much.
    #[serde(rename = "times")]
    Times,
    /// Messages.
    #[serde(rename = "messages")]
    Messages,
    /// Connections.
    #[serde(rename = "connections")]
    Connections,
    /// Packets per operation.
    #[serde(rename = "packets/operation")]
    PacketsPerOperation,
}

impl Unit {
    /// Returns the unit as files and tables write it.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Us => "us",
            Unit::UsPerKib => "us/KiB",
            Unit::PerSecond => "/s",
            Unit::Thousands => "k/s",
            Unit::Millions => "M/s",
            Unit::Gibit => "Gibit/s",
            Unit::Gb => "Gb/s",
            Unit::GigaBytes => "GB/s",
            Unit::BytesPerSecond => "B/s",
            Unit::Bytes => "B",
            Unit::Percent => "%",
            Unit::Times => "times",
            Unit::Messages => "messages",
            Unit::Connections => "connections",
            Unit::PacketsPerOperation => "packets/operation",
        }
    }

    /// Returns the dimension of the unit.
    pub const fn dimension(self) -> Dimension {
        match self {
            Unit::Us => Dimension::Time,
            Unit::UsPerKib => Dimension::TimePerSize,
            Unit::PerSecond | Unit::Thousands | Unit::Millions => Dimension::Rate,
            Unit::Gibit | Unit::Gb | Unit::GigaBytes | Unit::BytesPerSecond => Dimension::DataRate,
            Unit::Bytes => Dimension::Size,
            Unit::Percent | Unit::Times => Dimension::Ratio,
            Unit::Messages => Dimension::Messages,
            Unit::Connections => Dimension::Connections,
            Unit::PacketsPerOperation => Dimension::Packets,
        }
    }

    /// Returns one of this unit in the base unit of its [`Dimension`].
    const fn base(self) -> f64 {
        match self {
            Unit::Us | Unit::Thousands => 1e3,
            Unit::UsPerKib => 1e3 / 1024.0,
            Unit::Millions => 1e6,
            Unit::Gibit => (1_u64 << 30) as f64 / 8.0,
            Unit::Gb => 1e9 / 8.0,
            Unit::GigaBytes => 1e9,
            Unit::Percent => 0.01,
            Unit::PerSecond
            | Unit::BytesPerSecond
            | Unit::Bytes
            | Unit::Times
            | Unit::Messages
            | Unit::Connections
            | Unit::PacketsPerOperation => 1.0,
        }
    }

    /// Converts `base`, a number in the base unit of the dimension, into this unit.
    pub fn from_base(self, base: f64) -> f64 {
        base / self.base()
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The number.
    pub number: f64,
    /// The unit of the number.
    pub unit: Unit,
}

impl Value {
    /// Returns the number in the base unit of the [`Dimension`]: nanoseconds, bytes per second, 1 for the whole.
    pub fn in_base(self) -> f64 {
        self.number * self.unit.base()
    }

    /// Returns the number in another unit of the same dimension.
    pub fn in_unit(self, unit: Unit) -> Option<f64> {
        (unit.dimension() == self.unit.dimension()).then(|| unit.from_base(self.in_base()))
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let space = if self.unit == Unit::PerSecond { "" } else { " " };
        write!(f, "{}{space}{}", self.number, self.unit)
    }
}

/// Precision with which a source states a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// Exactly, counted or computed.
    Is,
    /// About.
    About,
    /// A little over.
    Over,
    /// Nearly.
    Nearly,
    /// This or more.
    AtLeast,
    /// This or less.
    AtMost,
}

impl Relation {
    /// Returns the words before a number.
    pub const fn words(self) -> &'static str {
        match self {
            Relation::Is => "",
            Relation::About => "about ",
            Relation::Over => "a little over ",
            Relation::Nearly => "nearly ",
            Relation::AtLeast => "at least ",
            Relation::AtMost => "at most ",
        }
    }

    /// Returns the relative error of `found` against the published number: 0.1 is a tenth too high. For a bound, only
    /// values on its wrong side are errors.
    pub fn deviation(self, published: f64, found: f64) -> f64 {
        let off = found / published - 1.0;
        match self {
            Relation::AtLeast => off.min(0.0),
            Relation::AtMost => off.max(0.0),
            Relation::Is | Relation::About | Relation::Over | Relation::Nearly => off,
        }
    }
}

/// Quantities of published numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Half a round trip of a ping-pong, median.
    Latency,
    /// The additional time of a message with a fence.
    LatencyOverUnfenced,
    /// The additional latency per byte.
    LatencyPerSize,
    /// Messages per second, all connections together.
    MessageRate,
    /// Operations per second, all queue pairs together.
    OperationRate,
    /// Payload bytes per second.
    Throughput,
    /// Payload that arrives, over what the line carries of such messages.
    LineShare,
    /// The least window that reaches the highest rate.
    SaturatingWindow,
    /// The least batch that reaches the highest rate.
    SaturatingBatch,
    /// The fewest connections that reach the highest rate.
    SaturatingConnections,
    /// The gap between sends at a window of one, over the CPU time of a send.
    GapOverSend,
    /// The highest rate of any window, over that of a window of one.
    GainOfWindow,
    /// The rate with this batch, over one per post.
    GainOfBatch,
    /// The rate with completions taken in lists, over one at a time.
    GainOfPollList,
    /// Messages per second, over those of 512 B.
    #[serde(rename = "rate-over-512")]
    RateOver512,
    /// Messages per second with a shared receive queue, over those with receives of each queue pair's own.
    SharedOverOwn,
    /// The shortest message that fills the line.
    LineFillingSize,
    /// The longest message that a NIC delivers in the completion.
    InlineReceiveSize,
    /// Packets per second that the target receives.
    PacketsIn,
    /// Packets per second that the target sends.
    PacketsOut,
    /// Frame bytes per second that the target receives.
    BytesIn,
    /// Frame bytes per packet in the direction of requests.
    RequestBytesPerPacket,
    /// Frame bytes per packet in the direction of answers.
    ResponseBytesPerPacket,
    /// Frame bytes of a packet in the middle of a long message.
    MiddlePacketBytes,
    /// Payload of a packet in the middle of a long message, over its line bytes.
    MiddlePacketEfficiency,
    /// Packets per operation in the direction of requests.
    RequestPacketsPerOperation,
    /// Packets per operation in the direction of answers.
    ResponsePacketsPerOperation,
    /// Share of write attempts that succeed.
    SuccessOfWrites,
    /// Share of read attempts that succeed.
    SuccessOfReads,
    /// Bytes per operation, over those of a run in which each try succeeds.
    BytesInflation,
    /// 99 % latency, over that of operations that are steered to the newest version.
    TailInflation,
    /// Operations in flight.
    InFlight,
    /// Share of requests that arrive in the order in which they were posted.
    InOrder,
    /// Share of requests that arrive out of order.
    OutOfOrder,
    /// Number of places by which a request is displaced.
    Displacement,
}

impl Quantity {
    /// Returns the dimension of its numbers.
    pub const fn dimension(self) -> Dimension {
        match self {
            Quantity::Latency | Quantity::LatencyOverUnfenced => Dimension::Time,
            Quantity::LatencyPerSize => Dimension::TimePerSize,
            Quantity::MessageRate | Quantity::OperationRate | Quantity::PacketsIn | Quantity::PacketsOut => {
                Dimension::Rate
            }
            Quantity::Throughput | Quantity::BytesIn => Dimension::DataRate,
            Quantity::LineFillingSize
            | Quantity::InlineReceiveSize
            | Quantity::RequestBytesPerPacket
            | Quantity::ResponseBytesPerPacket
            | Quantity::MiddlePacketBytes => Dimension::Size,
            Quantity::SaturatingWindow | Quantity::SaturatingBatch | Quantity::InFlight | Quantity::Displacement => {
                Dimension::Messages
            }
            Quantity::SaturatingConnections => Dimension::Connections,
            Quantity::RequestPacketsPerOperation | Quantity::ResponsePacketsPerOperation => Dimension::Packets,
            Quantity::LineShare
            | Quantity::GapOverSend
            | Quantity::GainOfWindow
            | Quantity::GainOfBatch
            | Quantity::GainOfPollList
            | Quantity::RateOver512
            | Quantity::SharedOverOwn
            | Quantity::MiddlePacketEfficiency
            | Quantity::SuccessOfWrites
            | Quantity::SuccessOfReads
            | Quantity::BytesInflation
            | Quantity::TailInflation
            | Quantity::InOrder
            | Quantity::OutOfOrder => Dimension::Ratio,
        }
    }
}
