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
    /// Returns the name in published files.
    pub fn name(&self) -> &str {
        match self {
            Subject::Protocol(name) => name,
            Subject::Operation(operation) => operation.name(),
            Subject::Store(Store::VersionChain) => "version-chain",
        }
    }
}

/// An operation of RDMA, or an exchange of two operations.
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
    /// A SEND with a SEND of the same length as response.
    RequestResponse,
}

impl PublishedOperation {
    /// Returns the name in published files.
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
    /// A chain of versions per key. Clients remember the tail of the chain and append a version by CAS on the next
    /// pointer of the tail.
    VersionChain,
}

/// A number, a range of numbers, or "unknown".
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(from = "AnyAmount")]
pub enum Amount {
    /// The publication does not state the number.
    Unknown,
    /// One number.
    Is(f64),
    /// Range from the first to the second number, both included.
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

/// The path MTU, if the publication states the path MTU.
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

/// Assignment of receiving threads to connections.
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
    /// Senders send as fast as possible.
    Unlimited,
    /// Senders send at the highest rate that causes no RNR NAK.
    HighestWithoutRnr,
}

/// Threads that repost shared receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repost {
    /// Each thread reposts the receives that it frees, under a lock.
    Lock,
    /// One thread reposts the receives of all threads.
    Thread,
}

/// Completion for which the receiver of Direct-Read waits before it processes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fence {
    /// Completion of the READ, in a protocol without a fence.
    Nothing,
    /// Completion of the READ, which is posted together with a fenced WRITE.
    ReadCompletion,
    /// Completion of the fenced WRITE, which is posted together with the READ.
    WriteCompletion,
}

/// Configuration of a measurement, as published. Fields that do not apply to the subject are `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Bytes of payload per message or operation.
    pub bytes: Option<Amount>,
    /// Maximum number of unacknowledged messages, or of outstanding operations, per connection.
    pub window: Option<Amount>,
    /// Messages per post.
    pub batch: Option<Amount>,
    /// Maximum number of completions per poll.
    pub poll_list: Option<Amount>,
    /// Number of receives in one posted list.
    pub repost_list: Option<Amount>,
    /// Whether messages have flow control by credits.
    pub credits: Option<bool>,
    /// Sending threads, which share one NIC.
    pub threads: Option<Amount>,
    /// Connections or queue pairs.
    pub connections: Option<Amount>,
    /// Assignment of receiving threads to connections.
    pub receivers: Option<Receivers>,
    /// Whether connections share a receive queue.
    pub shared_receives: Option<bool>,
    /// Threads that repost shared receives, if the publication states these threads.
    pub repost_by: Option<Repost>,
    /// The path MTU.
    pub path_mtu: Option<PathMtuSaid>,
    /// Pace of the senders.
    pub pace: Option<Pace>,
    /// For Direct-Read, the completion for which the receiver waits.
    pub fence_waits_for: Option<Fence>,
    /// Whether frames have a VLAN tag.
    pub vlan: Option<bool>,
    /// Whether messages carry immediate data.
    pub immediate: Option<bool>,
    /// Maximum bytes of a payload that is sent inline.
    pub inline: Option<Amount>,
    /// Whether requests are posted in rounds: a window of requests once the window before is answered.
    pub in_rounds: Option<bool>,
    /// Maximum number of outstanding operations of all queue pairs together. Some queue pairs have one more than the
    /// others.
    pub outstanding: Option<Amount>,
    /// Number of distinct addresses that the operations access.
    pub addresses: Option<Amount>,
    /// Number of client threads of a store.
    pub clients: Option<Amount>,
    /// Number of keys of a store, or of addresses from which requests choose.
    pub keys: Option<Amount>,
    /// Exponent of the Zipf distribution of the keys.
    pub zipf: Option<Amount>,
    /// Share of operations that write, in percent.
    pub write_percent: Option<Amount>,
    /// Requests per second.
    pub rate_per_s: Option<Amount>,
}

impl Configuration {
    /// Returns the fields that are amounts, each with its name. Fields that do not apply to the subject are left out.
    pub fn amounts(&self) -> impl Iterator<Item = (&'static str, Amount)> {
        FIELDS.iter().filter_map(move |field| Some((field.name, (field.amount?.of)(self)?)))
    }

    /// Returns the names of the fields in which two configurations differ.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        FIELDS.iter().filter(|field| !(field.is_equal)(self, other)).map(|field| field.name).collect()
    }
}

/// A field of a configuration, and its allowed values.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) is_there: fn(&Configuration) -> bool,
    is_equal: fn(&Configuration, &Configuration) -> bool,
    /// Allowed range, if the field is an amount.
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

/// Maximum value of counts.
const MANY: f64 = (1_u64 << 30) as f64;

macro_rules! field {
    ($name:ident) => {
        Field {
            name: stringify!($name),
            is_there: |it| it.$name.is_some(),
            is_equal: |one, other| one.$name == other.$name,
            amount: None,
        }
    };
    ($name:ident, $least:expr, $most:expr, $whole:expr) => {
        Field {
            name: stringify!($name),
            is_there: |it| it.$name.is_some(),
            is_equal: |one, other| one.$name == other.$name,
            amount: Some(Range { of: |it| it.$name, least: $least, most: $most, is_whole: $whole }),
        }
    };
}

/// All fields of a configuration.
pub(crate) const FIELDS: [Field; 25] = [
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
    field!(inline, 0.0, MANY, true),
    field!(in_rounds),
    field!(outstanding, 1.0, MANY, true),
    field!(addresses, 1.0, MANY, true),
    field!(clients, 1.0, MANY, true),
    field!(keys, 1.0, MANY, true),
    field!(zipf, 0.0, 10.0, false),
    field!(write_percent, 0.0, 100.0, false),
    field!(rate_per_s, 1.0, 1e12, false),
];

impl Subject {
    /// Returns the required and the optional fields of a configuration with this subject.
    pub(crate) fn fields(&self) -> (&'static [&'static str], &'static [&'static str]) {
        const READS: &[&str] = &[
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
        // All fields but `fence_waits_for`.
        const MESSAGES: &[&str] = READS.split_at(READS.len() - 1).0;
        const OPERATIONS: [&str; 4] = ["bytes", "window", "connections", "path_mtu"];
        match self {
            Subject::Protocol(name) if name.starts_with("direct-read") => (READS, &["inline"]),
            Subject::Protocol(_) => (MESSAGES, &["repost_by", "inline"]),
            Subject::Operation(_) => (
                &OPERATIONS,
                &[
                    "batch",
                    "inline",
                    "in_rounds",
                    "outstanding",
                    "vlan",
                    "immediate",
                    "addresses",
                    "keys",
                    "zipf",
                    "rate_per_s",
                ],
            ),
            Subject::Store(_) => (&["clients", "keys", "zipf", "write_percent"], &[]),
        }
    }
}
