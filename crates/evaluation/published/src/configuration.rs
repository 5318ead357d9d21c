//! Configurations of measurements.

use doorbell_wire::PathMtu;
use serde::Deserialize;

/// Subjects of measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Messages of a protocol.
    Protocol(String),
    /// Operations of RDMA.
    Operation(PublishedOperation),
    /// A store on passive memory.
    Store(Store),
}

impl Subject {
    /// Returns the name as files write it.
    pub fn name(&self) -> &str {
        match self {
            Subject::Protocol(name) => name,
            Subject::Operation(operation) => operation.name(),
            Subject::Store(Store::VersionChain) => "version-chain",
        }
    }
}

/// An operation of RDMA, or an exchange of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PublishedOperation {
    /// SEND.
    Send,
    /// SEND over an unreliable datagram queue pair.
    UdSend,
    /// WRITE.
    Write,
    /// READ.
    Read,
    /// Compare and swap.
    Cas,
    /// A SEND, answered by a SEND of the same length.
    RequestResponse,
}

impl PublishedOperation {
    /// Returns the name as files write it.
    pub const fn name(self) -> &'static str {
        match self {
            PublishedOperation::Send => "send",
            PublishedOperation::UdSend => "ud-send",
            PublishedOperation::Write => "write",
            PublishedOperation::Read => "read",
            PublishedOperation::Cas => "cas",
            PublishedOperation::RequestResponse => "request-response",
        }
    }
}

/// A store on passive memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// A chain of versions per key; clients remember its tail and swing the next pointer by CAS.
    VersionChain,
}

/// A number, a range of them, or "unknown".
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(from = "AnyAmount")]
pub enum Amount {
    /// The publication does not state it.
    Unknown,
    /// One.
    Is(f64),
    /// From the first to the second.
    Span(f64, f64),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "allowed is a number, [least, most] or \"unknown\"")]
enum AnyAmount {
    One(f64),
    Span([f64; 2]),
    Unknown(Unknown),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Unknown {
    Unknown,
}

impl From<AnyAmount> for Amount {
    fn from(any: AnyAmount) -> Self {
        match any {
            AnyAmount::One(number) => Self::Is(number),
            AnyAmount::Span([least, most]) => Self::Span(least, most),
            AnyAmount::Unknown(Unknown::Unknown) => Self::Unknown,
        }
    }
}

impl Amount {
    /// Returns the number, or the largest of a range.
    pub fn most(self) -> Option<f64> {
        match self {
            Self::Unknown => None,
            Self::Is(number) | Self::Span(_, number) => Some(number),
        }
    }

    /// Returns the number, or the smallest of a range.
    pub fn least(self) -> Option<f64> {
        match self {
            Self::Unknown => None,
            Self::Is(number) | Self::Span(number, _) => Some(number),
        }
    }
}

impl std::fmt::Display for Amount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Is(number) => write!(f, "{number}"),
            Self::Span(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

/// The path MTU, as far as the publication states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "AnyPathMtu")]
pub enum PathMtuSaid {
    /// The publication does not state the path MTU.
    Unknown,
    /// The publication states this path MTU.
    Is(PathMtu),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "allowed is 256, 512, 1024, 2048, 4096 or \"unknown\"")]
enum AnyPathMtu {
    Bytes(u16),
    Unknown(Unknown),
}

impl TryFrom<AnyPathMtu> for PathMtuSaid {
    type Error = String;

    fn try_from(any: AnyPathMtu) -> Result<Self, String> {
        match any {
            AnyPathMtu::Unknown(Unknown::Unknown) => Ok(Self::Unknown),
            AnyPathMtu::Bytes(bytes) => PathMtu::from_bytes(bytes.into())
                .map(Self::Is)
                .ok_or_else(|| format!("it is {bytes}, allowed is 256, 512, 1024, 2048, 4096 or \"unknown\"")),
        }
    }
}

/// Threads that receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Receivers {
    /// A thread for each connection.
    Own,
    /// One thread with one completion queue for all connections.
    Single,
}

/// Pace of the senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// As fast as they can.
    Unlimited,
    /// At the highest rate that provokes no RNR NAK.
    HighestWithoutRnr,
}

/// Threads that repost shared receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repost {
    /// Each thread that returns a receive, under a lock.
    Lock,
    /// One thread for all.
    Thread,
}

/// The completion for which the receiver of Direct-Read waits before it owns a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fence {
    /// There is no fence: the READ's completion.
    Nothing,
    /// READ and a fenced WRITE are posted together: the completion of the READ.
    ReadCompletion,
    /// The same: the completion of the WRITE.
    WriteCompletion,
}

/// Configuration of a measurement, as published. Fields that the subject does not have are `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Bytes of payload per message or operation.
    pub bytes: Option<Amount>,
    /// Messages unacknowledged, or operations outstanding, per connection.
    pub window: Option<Amount>,
    /// Messages per post.
    pub batch: Option<Amount>,
    /// Completions that a poll takes at most.
    pub poll_list: Option<Amount>,
    /// Receives that are posted in one list.
    pub repost_list: Option<Amount>,
    /// Flow control by credits.
    pub credits: Option<bool>,
    /// Sending threads, which share one NIC.
    pub threads: Option<Amount>,
    /// Connections or queue pairs.
    pub connections: Option<Amount>,
    /// Threads that receive.
    pub receivers: Option<Receivers>,
    /// Connections share a receive queue.
    pub shared_receives: Option<bool>,
    /// Threads that repost shared receives, if the publication states them.
    pub repost_by: Option<Repost>,
    /// The path MTU.
    pub path_mtu: Option<PathMtuSaid>,
    /// Pace of the senders.
    pub pace: Option<Pace>,
    /// For Direct-Read, the completion for which its receiver waits.
    pub fence_waits_for: Option<Fence>,
    /// Frames have a VLAN tag.
    pub vlan: Option<bool>,
    /// Messages carry immediate data.
    pub immediate: Option<bool>,
    /// Different addresses that operations go to.
    pub addresses: Option<Amount>,
    /// Client threads of a store.
    pub clients: Option<Amount>,
    /// Keys of a store, or addresses that requests are drawn from.
    pub keys: Option<Amount>,
    /// Skew of the Zipf distribution that keys are drawn from.
    pub zipf: Option<Amount>,
    /// Share of operations that write, in percent.
    pub write_percent: Option<Amount>,
    /// Requests per second.
    pub rate_per_s: Option<Amount>,
}

/// A field of a configuration, and its allowed values.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) is_there: fn(&Configuration) -> bool,
    /// The range, if the field is an amount.
    pub(crate) amount: Option<Range>,
}

/// Allowed values of an amount.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) of: fn(&Configuration) -> Option<Amount>,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) is_whole: bool,
}

/// Upper limit of counts.
const MANY: f64 = (1_u64 << 30) as f64;

macro_rules! field {
    ($name:ident) => {
        Field { name: stringify!($name), is_there: |it| it.$name.is_some(), amount: None }
    };
    ($name:ident, $least:expr, $most:expr, $whole:expr) => {
        Field {
            name: stringify!($name),
            is_there: |it| it.$name.is_some(),
            amount: Some(Range { of: |it| it.$name, least: $least, most: $most, is_whole: $whole }),
        }
    };
}

/// All fields.
pub(crate) const FIELDS: [Field; 22] = [
    field!(bytes, 0.0, MANY, true),
    field!(window, 1.0, MANY, true),
    field!(batch, 1.0, MANY, true),
    field!(poll_list, 1.0, MANY, true),
    field!(repost_list, 1.0, MANY, true),
    field!(credits),
    field!(threads, 1.0, MANY, true),
    field!(connections, 1.0, MANY, true),
    field!(receivers),
    field!(shared_receives),
    field!(repost_by),
    field!(path_mtu),
    field!(pace),
    field!(fence_waits_for),
    field!(vlan),
    field!(immediate),
    field!(addresses, 1.0, MANY, true),
    field!(clients, 1.0, MANY, true),
    field!(keys, 1.0, MANY, true),
    field!(zipf, 0.0, 10.0, false),
    field!(write_percent, 0.0, 100.0, false),
    field!(rate_per_s, 1.0, 1e12, false),
];

impl Subject {
    /// Returns the required and the optional fields of its configuration.
    pub(crate) fn fields(&self) -> (&'static [&'static str], &'static [&'static str]) {
        const MESSAGES: [&str; 12] = [
            "bytes",
            "window",
            "batch",
            "poll_list",
            "repost_list",
            "credits",
            "threads",
            "connections",
            "receivers",
            "shared_receives",
            "path_mtu",
            "pace",
        ];
        const READS: [&str; 13] = [
            "bytes",
            "window",
            "batch",
            "poll_list",
            "repost_list",
            "credits",
            "threads",
            "connections",
            "receivers",
            "shared_receives",
            "path_mtu",
            "pace",
            "fence_waits_for",
        ];
        const OPERATIONS: [&str; 4] = ["bytes", "window", "connections", "path_mtu"];
        match self {
            Subject::Protocol(name) if name.starts_with("direct-read") => (&READS, &[]),
            Subject::Protocol(_) => (&MESSAGES, &["repost_by"]),
            Subject::Operation(_) => (&OPERATIONS, &["vlan", "immediate", "addresses", "keys", "zipf", "rate_per_s"]),
            Subject::Store(_) => (&["clients", "keys", "zipf", "write_percent"], &[]),
        }
    }
}
