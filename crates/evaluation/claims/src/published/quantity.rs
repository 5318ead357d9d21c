//! Numbers with units, and the quantities that the numbers measure.

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
    /// A number without unit. As a share, 1 means the whole; as a factor, 1 means equality.
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
    /// Events per second.
    #[serde(rename = "/s")]
    PerSecond,
    /// Thousands of events per second.
    #[serde(rename = "k/s")]
    Thousands,
    /// Millions of events per second.
    #[serde(rename = "M/s")]
    Millions,
    /// 2^30 bits per second. The source of T1 prints this unit as Gbit/s.
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
    /// Factor relative to another value.
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
    /// Returns the name, the dimension, and the value of one unit in the base unit of the dimension.
    const fn row(self) -> (&'static str, Dimension, f64) {
        match self {
            Unit::Us => ("us", Dimension::Time, 1e3),
            Unit::UsPerKib => ("us/KiB", Dimension::TimePerSize, 1e3 / 1024.0),
            Unit::PerSecond => ("/s", Dimension::Rate, 1.0),
            Unit::Thousands => ("k/s", Dimension::Rate, 1e3),
            Unit::Millions => ("M/s", Dimension::Rate, 1e6),
            Unit::Gibit => ("Gibit/s", Dimension::DataRate, (1_u64 << 30) as f64 / 8.0),
            Unit::Gb => ("Gb/s", Dimension::DataRate, 1e9 / 8.0),
            Unit::GigaBytes => ("GB/s", Dimension::DataRate, 1e9),
            Unit::BytesPerSecond => ("B/s", Dimension::DataRate, 1.0),
            Unit::Bytes => ("B", Dimension::Size, 1.0),
            Unit::Percent => ("%", Dimension::Ratio, 0.01),
            Unit::Times => ("times", Dimension::Ratio, 1.0),
            Unit::Messages => ("messages", Dimension::Messages, 1.0),
            Unit::Connections => ("connections", Dimension::Connections, 1.0),
            Unit::PacketsPerOperation => ("packets/operation", Dimension::Packets, 1.0),
        }
    }

    /// Returns the name of the unit in files and tables.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the dimension of the unit.
    pub const fn dimension(self) -> Dimension {
        self.row().1
    }

    /// Returns the value of one unit in the base unit of its [`Dimension`].
    const fn base(self) -> f64 {
        self.row().2
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
    /// Returns the number in the base unit of its [`Dimension`], for example in nanoseconds or bytes per second.
    pub fn in_base(self) -> f64 {
        self.number * self.unit.base()
    }

    /// Returns the number in another unit, or `None` if the unit has another dimension.
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
    /// The number is exact, since it was counted or computed.
    Is,
    /// The measured value is about the number.
    About,
    /// The measured value is a little over the number.
    Over,
    /// The measured value is nearly the number.
    Nearly,
    /// The measured value is the number or more.
    AtLeast,
    /// The measured value is the number or less.
    AtMost,
}

impl Relation {
    /// Returns the words that stand before a number in a sentence.
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

    /// Returns the relative error of `found` against the published number: 0.1 means 10 % too high. For a bound, the
    /// error is 0 if `found` keeps the bound.
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
    /// Median of half of the round trip of a ping-pong.
    Latency,
    /// Latency of a message with a fence, minus the latency without a fence.
    LatencyOverUnfenced,
    /// Additional latency per byte of payload.
    LatencyPerSize,
    /// Messages per second of all connections together.
    MessageRate,
    /// Operations per second of all queue pairs together.
    OperationRate,
    /// Payload bytes per second.
    Throughput,
    /// Payload rate that arrives, divided by the payload rate of such messages that the line can carry.
    LineShare,
    /// Smallest window that reaches the highest rate.
    SaturatingWindow,
    /// Smallest batch that reaches the highest rate.
    SaturatingBatch,
    /// Smallest number of connections that reaches the highest rate.
    SaturatingConnections,
    /// Gap between sends at a window of one, divided by the CPU time of a send.
    GapOverSend,
    /// Highest rate of all windows, divided by the rate at a window of one.
    GainOfWindow,
    /// Rate with the batch of the configuration, divided by the rate with one message per post.
    GainOfBatch,
    /// Rate with the `poll_list` of the configuration, divided by the rate with one completion per poll.
    GainOfPollList,
    /// Messages per second, divided by the messages per second of 512 B messages.
    #[serde(rename = "rate-over-512")]
    RateOver512,
    /// Messages per second with a shared receive queue, divided by the messages per second if each queue pair has its
    /// own receives.
    SharedOverOwn,
    /// Size of the shortest message that fills the line.
    LineFillingSize,
    /// Size of the longest message that a NIC delivers in the completion.
    InlineReceiveSize,
    /// Packets per second that the target receives.
    PacketsIn,
    /// Packets per second that the target sends.
    PacketsOut,
    /// Frame bytes per second that the target receives.
    BytesIn,
    /// Frame bytes per packet in the direction of requests.
    RequestBytesPerPacket,
    /// Frame bytes per packet in the direction of responses.
    ResponseBytesPerPacket,
    /// Frame bytes of a packet in the middle of a long message.
    MiddlePacketBytes,
    /// Payload of a packet in the middle of a long message, divided by the line bytes of the packet.
    MiddlePacketEfficiency,
    /// Packets per operation in the direction of requests.
    RequestPacketsPerOperation,
    /// Packets per operation in the direction of responses.
    ResponsePacketsPerOperation,
    /// Share of write attempts that succeed.
    SuccessOfWrites,
    /// Share of read attempts that succeed.
    SuccessOfReads,
    /// Bytes per operation, divided by the bytes per operation if each attempt succeeds.
    BytesInflation,
    /// 99th percentile of the latency, divided by the 99th percentile for clients that always start at the newest
    /// version.
    TailInflation,
    /// Number of operations in flight.
    InFlight,
    /// Share of requests that arrive in the order in which they were posted.
    InOrder,
    /// Share of requests that arrive out of order.
    OutOfOrder,
    /// Number of places by which a request is displaced.
    Displacement,
    /// CPU time of the sending end per message. Polls that find no completion do not count.
    SendingCpu,
    /// CPU time of the receiving end per message.
    ReceivingCpu,
    /// RNR NAKs per second.
    RnrNaks,
    /// Share of READs that return words of different WRITEs.
    Torn,
}

impl Quantity {
    /// Returns the dimension of the numbers of this quantity.
    pub const fn dimension(self) -> Dimension {
        match self {
            Quantity::Latency | Quantity::LatencyOverUnfenced | Quantity::SendingCpu | Quantity::ReceivingCpu => {
                Dimension::Time
            }
            Quantity::LatencyPerSize => Dimension::TimePerSize,
            Quantity::MessageRate
            | Quantity::OperationRate
            | Quantity::PacketsIn
            | Quantity::PacketsOut
            | Quantity::RnrNaks => Dimension::Rate,
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
            | Quantity::OutOfOrder
            | Quantity::Torn => Dimension::Ratio,
        }
    }
}
