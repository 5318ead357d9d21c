//! Parameters of a measurement, and the fitted sizes of its queues and buffers.

use doorbell_exchange::{Config, MAX_WINDOW};
use doorbell_protocols::Protocol;
use doorbell_verbs::PathMtu;
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::far::FarPoint;
use crate::link::Link;
use crate::memory::{bytes_behind, stride};
use crate::mix::SizeMix;
use crate::serving::Serving;
use crate::words::{Extent, Kind, Operation, Transport};

/// Parameters of one run. Both ends use the same parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Kind of measurement.
    pub kind: Kind,
    /// Operation that a message consists of.
    #[serde(default)]
    pub operation: Operation,
    /// Protocol that carries messages. One-sided operations use none.
    #[serde(default)]
    pub protocol: Protocol,
    /// Transport that carries messages. Protocols need the reliable transport. On other transports, messages are bare
    /// SENDs.
    #[serde(default)]
    pub transport: Transport,
    /// Whether one source publishes every message from one buffer to the readers on all connections.
    #[serde(default)]
    pub replicate: bool,
    /// Message sizes in bytes. Each size is one point.
    pub sizes: Vec<usize>,
    /// Mix of message sizes. With a mix, [`sizes`](Self::sizes) has the longest of its sizes alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<SizeMix>,
    /// Bytes of a reply. `None` means that a reply has the size of its request. 0 means that messages have no reply,
    /// as [`Operation::Send`] requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<usize>,
    /// Time between a reply and the next request of the same slot of the window, in microseconds.
    #[serde(default)]
    pub think_us: u64,
    /// Extent of each point.
    pub extent: Extent,
    /// Maximum number of unacknowledged messages, unanswered requests or incomplete operations per connection.
    pub window: usize,
    /// Maximum number of messages per connection that wait at the receiver. Depending on the protocol, this is the
    /// number of receive buffers or grants, or the space of a ring.
    pub depth: usize,
    /// Number of buffers of each connection and side, which messages use in turn. Received messages overwrite each
    /// other, and nothing reads them. `None` gives each message of the window and each receive a buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffers: Option<usize>,
    /// Whether window and depth have default values. Only default values shrink for large messages.
    pub depths_are_defaults: bool,
    /// Messages per post.
    pub batch: usize,
    /// Maximum bytes of an inline message.
    pub inline: usize,
    /// Number of connections.
    pub connections: usize,
    /// Whether both ends send messages.
    pub bidirectional: bool,
    /// Whether both ends sleep until a completion event instead of polling.
    pub events: bool,
    /// Whether Send-Receive uses flow control by credits. Other protocols always have flow control.
    pub credits: bool,
    /// Requested path MTU in bytes. `None` means the largest path MTU that both devices support.
    pub mtu: Option<usize>,
    /// Offered messages per second over all connections. `None` means the maximum rate.
    pub rate: Option<f64>,
    /// Pause of the receiver before it frees a message, in microseconds.
    pub slow_receiver_us: u64,
    /// Exponent of the acknowledgement timeout.
    pub timeout: u8,
    /// Retry count.
    pub retry_count: u8,
    /// RNR retry count.
    pub rnr_retry: u8,
    /// Whether every payload is checked.
    pub verify: bool,
    /// Maximum bytes of message memory per process.
    pub memory_bytes: usize,
    /// Whether every message has its own completion, as in published evaluations.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub signal_each: bool,
    /// Threads and receive buffers that serve the connections.
    #[serde(default)]
    pub serving: Serving,
    /// Number of different words that atomic operations access. Connection `n` uses word `n % addresses`. `None` means
    /// one word for each connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<usize>,
    /// Link that both ends must use, if the point compares links between two processes of one machine. `None` leaves
    /// the choice to the ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Point on memory that several clients share. With such a point, only [`sizes`](Self::sizes) of the other
    /// parameters matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<Box<FarPoint>>,
}

described! {
    /// Sizes of queues and buffers of one point, after fitting.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Fitted {
        /// Maximum number of unacknowledged messages.
        pub window: usize,
        /// Messages per post.
        pub batch: usize,
        /// Receive buffers per connection. One-sided operations have none. With shared buffers, the number is the share
        /// of one connection.
        pub depth: usize,
        /// Send buffers: at most [`Parameters::buffers`]. If there are fewer buffers than window slots, several slots
        /// share a buffer. For one-sided operations, the other end has the same number of buffers as sources or
        /// targets.
        pub send_buffers: usize,
        /// Notes for the user about reduced values.
        pub notes: Vec<String>,
    }
}

/// Maximum sum of the windows of all connections, and maximum sum of their depths. Each message of a window and each
/// receive buffer occupies a queue slot, even if messages are small.
const MAX_QUEUED: usize = 1 << 20;

impl Parameters {
    /// Returns parameters of one plain Send-Receive connection, for one second and one message size. The caller then
    /// changes the fields that shall differ.
    pub fn plain(kind: Kind, operation: Operation, bytes: usize) -> Self {
        Self {
            kind,
            operation,
            protocol: Protocol::default(),
            transport: Transport::Rc,
            replicate: false,
            sizes: vec![bytes],
            mix: None,
            reply: None,
            think_us: 0,
            extent: Extent::Seconds(1.0),
            window: if kind == Kind::Latency { 1 } else { 64 },
            depth: 128,
            buffers: None,
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

    /// Returns the bytes of the reply to a message of `size` bytes. The replies of a ping-pong have the size of its
    /// messages.
    pub fn reply_bytes(&self, size: usize) -> usize {
        match self.reply {
            Some(reply) if self.operation == Operation::RequestResponse => reply,
            _ => size,
        }
    }

    /// Returns the loop of requests as text: open with the offered rate, or closed with the think time.
    pub fn request_loop(&self) -> String {
        match (self.rate, self.think_us) {
            (Some(rate), _) => format!("open loop of {rate} requests/s"),
            (None, 0) => "closed loop".to_owned(),
            (None, think_us) => format!("closed loop with {think_us} us of think time"),
        }
    }

    /// Returns the bytes of the longer one of a message of `size` bytes and its reply. All buffers have space for it.
    pub fn longest(&self, size: usize) -> usize {
        size.max(self.reply_bytes(size))
    }

    /// Returns the distance in bytes from one send buffer to the next, if messages have `size` bytes.
    pub fn stride(&self, size: usize) -> usize {
        stride(self.longest(size) + bytes_behind(self.protocol) + self.transport.bytes_before())
    }

    /// Returns the requested path MTU.
    pub fn path_mtu(&self) -> Option<PathMtu> {
        self.mtu.and_then(PathMtu::from_bytes)
    }

    /// Returns the configuration of the connections of one point.
    pub fn config(&self, size: usize, fitted: &Fitted) -> Config {
        Config::default()
            .window(fitted.window)
            .batch(fitted.batch)
            .depth(fitted.depth)
            .discard_into(self.buffers)
            .poll_list(self.serving.poll_list)
            .repost_list(self.serving.repost_list)
            .signal_each(self.signal_each)
            .inline(self.inline)
            .max_message(self.longest(size))
            .send_buffers(0) // workloads send from memory that they register themselves
            .credits(self.credits)
            .path_mtu(self.path_mtu())
            .timeout_exponent(self.timeout)
            .retry_count(self.retry_count)
            .rnr_retry(self.rnr_retry)
    }
}

/// Returns the maximum window and depth of each of `connections` connections.
pub fn most_queued(connections: usize) -> usize {
    MAX_WINDOW.min(MAX_QUEUED / connections.max(1))
}

#[cfg(test)]
mod tests;
