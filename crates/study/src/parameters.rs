//! What is to be measured, and what of it fits.

mod check;
mod fit;
mod setting;

use doorbell_exchange::{Config, MAX_WINDOW};
use doorbell_protocols::Protocol;
use doorbell_verbs::PathMtu;
use serde::{Deserialize, Serialize};

use crate::far::FarPoint;
use crate::link::Link;
use crate::memory::bytes_behind;
use crate::serving::Serving;

pub(crate) use setting::within;
pub use setting::{ParametersError, Setting};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One message at a time, and how long each takes: see [`Timed`].
    Latency,
    /// As many messages as go.
    Bandwidth,
}

/// What a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A message of a connection.
    #[default]
    Send,
    /// RDMA WRITE into the other end's memory.
    Write,
    /// RDMA READ of the other end's memory.
    Read,
    /// Compare-and-swap of a word at the other end, one word per connection: each swap succeeds.
    CompareSwap,
    /// Fetch-and-add of 1 to a word at the other end, one word per connection.
    FetchAdd,
    /// A request, which the other end answers with a message of the same size.
    RequestResponse,
}

impl Operation {
    /// The other end's processor has no part in it.
    pub fn is_one_sided(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// It is about one word of eight bytes.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// What a latency of it is the time of.
    pub fn timed(self) -> Timed {
        match self {
            Self::Send => Timed::HalfRoundTrip,
            Self::RequestResponse => Timed::RoundTrip,
            Self::Write | Self::Read | Self::CompareSwap | Self::FetchAdd => Timed::Completion,
        }
    }
}

/// The kind of queue pair that carries messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: nothing is acknowledged, and what is lost stays lost.
    Uc,
    /// Unreliable datagram: the same, and a message is one packet.
    Ud,
}

impl Transport {
    /// As packets have it.
    pub fn of_packets(self) -> doorbell_wire::Transport {
        match self {
            Self::Rc => doorbell_wire::Transport::Rc,
            Self::Uc => doorbell_wire::Transport::Uc,
            Self::Ud => doorbell_wire::Transport::Ud,
        }
    }

    /// Bytes in front of a received message.
    pub(crate) fn bytes_before(self) -> usize {
        if self == Self::Ud { doorbell_wire::GRH_LEN } else { 0 }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        })
    }
}

/// What a latency is the time of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timed {
    /// Half a round trip of a ping-pong.
    #[default]
    HalfRoundTrip,
    /// From a request to its answer.
    RoundTrip,
    /// From the post of a one-sided operation to its completion, which is a round trip as well.
    Completion,
}

/// How long one point lasts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// So many messages (round trips), per connection.
    Messages(u64),
    /// So many seconds.
    Seconds(f64),
}

/// What one run measures. Both ends have the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// What is measured.
    pub kind: Kind,
    /// What a message is.
    #[serde(default)]
    pub operation: Operation,
    /// How messages travel. One-sided operations are none.
    #[serde(default)]
    pub protocol: Protocol,
    /// What carries messages. Protocols need the reliable kind: over others messages are bare SENDs.
    #[serde(default)]
    pub transport: Transport,
    /// Every message goes to all connections from one place: one source, many readers.
    #[serde(default)]
    pub replicate: bool,
    /// Message sizes, one point each.
    pub sizes: Vec<usize>,
    /// How long each point lasts.
    pub extent: Extent,
    /// Messages unacknowledged at most, per connection; requests not answered, operations not
    /// complete.
    pub window: usize,
    /// Messages per connection that may wait at the receiver: receive buffers, grants, space of a ring.
    pub depth: usize,
    /// Nobody asked for this window and depth: they may shrink for large messages.
    pub depths_are_defaults: bool,
    /// Messages per post.
    pub batch: usize,
    /// Messages up to this size go inline.
    pub inline: usize,
    /// Connections.
    pub connections: usize,
    /// Both sides send.
    pub bidirectional: bool,
    /// Sleep on completion events instead of polling.
    pub events: bool,
    /// Flow control by credits, of Send-Receive. Other protocols cannot do without theirs.
    pub credits: bool,
    /// Path MTU to ask for.
    pub mtu: Option<usize>,
    /// Messages per second offered, over all connections; `None` is as many as go.
    pub rate: Option<f64>,
    /// Pause of the receiver before it frees a message, in microseconds.
    pub slow_receiver_us: u64,
    /// Acknowledgement timeout exponent.
    pub timeout: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// Every payload is checked.
    pub verify: bool,
    /// Bytes of message memory per process at most.
    pub memory_bytes: usize,
    /// Every message has a completion of its own, as published evaluations have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub signal_each: bool,
    /// Who serves the connections.
    #[serde(default)]
    pub serving: Serving,
    /// Different words that atomic operations go to: connection `n` uses that of connection `n % addresses`. `None` is
    /// one for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<usize>,
    /// The link that both ends open their devices with for this, where it is a matter of what is measured: of two
    /// processes of one machine. `None` leaves it to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// What is measured instead, of memory that several clients share: then nothing else here counts but the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<Box<FarPoint>>,
}

/// What one point uses, after everything was made to fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fitted {
    /// Messages unacknowledged at most.
    pub window: usize,
    /// Messages per post.
    pub batch: usize,
    /// Receive buffers; of one-sided operations none, of shared ones each connection's part.
    pub depth: usize,
    /// Send buffers, shared between window slots if fewer than the window. Of one-sided operations
    /// there are as many at the other end, where messages go to or come from.
    pub send_buffers: usize,
    /// What was cut to fit, for people.
    pub notes: Vec<String>,
}

/// Windows of all connections together, and likewise their receive buffers: each takes a place in a
/// queue, however small the messages.
const MAX_QUEUED: usize = 1 << 20;

impl Parameters {
    /// One connection of Send-Receive without anything special, for a second and messages of one size. Whoever
    /// measures something else changes what differs.
    pub fn plain(kind: Kind, operation: Operation, bytes: usize) -> Self {
        Self {
            kind,
            operation,
            protocol: Protocol::default(),
            transport: Transport::Rc,
            replicate: false,
            sizes: vec![bytes],
            extent: Extent::Seconds(1.0),
            window: if kind == Kind::Latency { 1 } else { 64 },
            depth: 128,
            depths_are_defaults: true,
            batch: 1,
            inline: 64,
            connections: 1,
            bidirectional: false,
            events: false,
            credits: true,
            mtu: None,
            rate: None,
            slow_receiver_us: 0,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            verify: false,
            memory_bytes: 256 << 20,
            signal_each: false,
            serving: Serving::default(),
            addresses: None,
            link: None,
            far: None,
        }
    }

    /// Bytes from one send buffer to the next.
    pub(crate) fn stride(&self, size: usize) -> usize {
        stride(size + bytes_behind(self.protocol) + self.transport.bytes_before())
    }

    /// The path MTU to ask for.
    pub fn path_mtu(&self) -> Option<PathMtu> {
        self.mtu.and_then(PathMtu::from_bytes)
    }

    /// The configuration of the connections of one point.
    pub fn config(&self, size: usize, fitted: &Fitted) -> Config {
        Config::default()
            .window(fitted.window)
            .batch(fitted.batch)
            .depth(fitted.depth)
            .poll_list(self.serving.poll_list)
            .repost_list(self.serving.repost_list)
            .signal_each(self.signal_each)
            .inline(self.inline)
            .max_message(size)
            .send_buffers(0) // workloads send from memory of their own
            .credits(self.credits)
            .path_mtu(self.path_mtu())
            .timeout_exponent(self.timeout)
            .retry_count(self.retry_count)
            .rnr_retry(self.rnr_retry)
    }
}

/// Bytes from one buffer to the next.
pub fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(64).max(64)
}

/// The largest window and the greatest depth that each of so many connections may have.
pub fn most_queued(connections: usize) -> usize {
    MAX_WINDOW.min(MAX_QUEUED / connections.max(1))
}

#[cfg(test)]
mod tests;
