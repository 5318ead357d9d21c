//! What is to be measured, and what of it fits.

use doorbell_exchange::setup::MAX_ENDPOINTS;
use doorbell_exchange::{Config, MAX_BATCH, MAX_WINDOW};
use doorbell_protocols::Protocol;
use doorbell_verbs::PathMtu;
use doorbell_wire::cost::ATOMIC_BYTES;
use serde::{Deserialize, Serialize};

use crate::memory::{bytes_behind, receiving_bytes};
use crate::serving::Serving;

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
    /// Who serves the connections.
    #[serde(default)]
    pub serving: Serving,
}

/// Message memory of a process that default windows and depths stay within, for large messages.
const CACHED_BYTES: usize = 16 << 20;
/// The window that large messages get by default at least, if it is not less anyway.
const LEAST_DEFAULT_WINDOW: usize = 4;

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

/// The most sizes of one run.
const MAX_SIZES: usize = 1024;
/// Bytes of the longest message.
const MAX_MESSAGE: usize = 1 << 30;
/// The most messages per connection.
const MAX_MESSAGES: u64 = 1_000_000_000_000_000;
/// Windows of all connections together, and likewise their receive buffers: each takes a place in a
/// queue, however small the messages.
const MAX_QUEUED: usize = 1 << 20;

/// A parameter, as messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// [`Parameters::protocol`].
    Protocol,
    /// [`Parameters::replicate`].
    Replicate,
    /// [`Parameters::credits`].
    Credits,
    /// [`Parameters::events`].
    Events,
    /// [`Parameters::sizes`].
    Sizes,
    /// One of the sizes.
    Size,
    /// [`Extent::Messages`].
    Messages,
    /// [`Extent::Seconds`].
    Seconds,
    /// [`Parameters::window`].
    Window,
    /// [`Parameters::depth`].
    Depth,
    /// [`Parameters::batch`].
    Batch,
    /// [`Parameters::inline`].
    Inline,
    /// [`Parameters::connections`].
    Connections,
    /// [`Parameters::bidirectional`].
    Bidirectional,
    /// [`Parameters::mtu`].
    Mtu,
    /// [`Parameters::rate`].
    Rate,
    /// [`Parameters::slow_receiver_us`].
    SlowReceiver,
    /// [`Parameters::timeout`].
    Timeout,
    /// [`Parameters::retry_count`].
    RetryCount,
    /// [`Parameters::rnr_retry`].
    RnrRetry,
    /// [`Parameters::memory_bytes`].
    Memory,
    /// [`Serving::threads`].
    Threads,
    /// [`Serving::single_receiver`].
    SingleReceiver,
    /// [`Serving::shared_receives`].
    SharedReceives,
    /// [`Serving::poll_list`].
    PollList,
    /// [`Serving::repost_list`].
    RepostList,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Protocol => "the protocol",
            Self::Replicate => "one source for all connections",
            Self::Credits => "flow control by credits",
            Self::Events => "sleeping on events",
            Self::Sizes => "the number of message sizes",
            Self::Size => "the message size",
            Self::Messages => "the number of messages",
            Self::Seconds => "the duration",
            Self::Window => "the window",
            Self::Depth => "the receive depth",
            Self::Batch => "the batch",
            Self::Inline => "inline",
            Self::Connections => "the number of connections",
            Self::Bidirectional => "sending both ways",
            Self::Mtu => "the path MTU",
            Self::Rate => "the rate",
            Self::SlowReceiver => "the receiver's pause",
            Self::Timeout => "the timeout",
            Self::RetryCount => "the retry count",
            Self::RnrRetry => "the RNR retry count",
            Self::Memory => "the message memory",
            Self::Threads => "the number of threads",
            Self::SingleReceiver => "a single receiver",
            Self::SharedReceives => "sharing receive buffers",
            Self::PollList => "the completions of one poll",
            Self::RepostList => "the receives of one post",
        })
    }
}

/// A parameter is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {given}, allowed is {allowed}")]
pub struct ParametersError {
    /// Which.
    pub setting: Setting,
    /// What was given, with its unit.
    pub given: String,
    /// What is allowed, with its unit.
    pub allowed: String,
}

impl Parameters {
    /// One connection of Send-Receive without anything special, for a second and messages of one size. Whoever
    /// measures something else changes what differs.
    pub fn plain(kind: Kind, operation: Operation, bytes: usize) -> Self {
        Self {
            kind,
            operation,
            protocol: Protocol::default(),
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
            serving: Serving::default(),
        }
    }

    /// Whether this can be measured, and within the memory that it allows itself: all sizes
    /// [`fit`](Self::fit). Either side checks it, since parameters come from the other.
    pub fn check(&self) -> Result<(), ParametersError> {
        within(Setting::Sizes, self.sizes.len(), 1, MAX_SIZES, "")?;
        within(Setting::Connections, self.connections, 1, MAX_ENDPOINTS, "")?;
        let most_queued = most_queued(self.connections);
        within(Setting::Window, self.window, 1, most_queued, "")?;
        within(Setting::Depth, self.depth, 1, most_queued, "")?;
        within(Setting::Batch, self.batch, 1, MAX_BATCH.min(self.window), "")?;
        within(Setting::Inline, self.inline, 0, 1024, " B")?;
        within(Setting::Timeout, self.timeout, 0, 31, "")?;
        within(Setting::RetryCount, self.retry_count, 0, 7, "")?;
        within(Setting::RnrRetry, self.rnr_retry, 0, 7, "")?;
        within(Setting::SlowReceiver, self.slow_receiver_us, 0, 1_000_000, " us")?;
        within(Setting::Memory, self.memory_bytes, 1 << 20, 1 << 40, " B")?;
        match self.extent {
            Extent::Messages(messages) => within(Setting::Messages, messages, 1, MAX_MESSAGES, "")?,
            Extent::Seconds(seconds) => within(Setting::Seconds, seconds, 0.01, 86_400.0, " s")?,
        }
        if let Some(rate) = self.rate {
            within(Setting::Rate, rate, 0.001, 1e9, " messages/s")?;
        }
        if let Some(mtu) = self.mtu
            && PathMtu::from_bytes(mtu).is_none()
        {
            let (given, allowed) = (format!("{mtu} B"), "256, 512, 1024, 2048 or 4096 B".to_owned());
            return Err(ParametersError { setting: Setting::Mtu, given, allowed });
        }
        if self.bidirectional
            && let Some(allowed) = match (self.kind, self.operation) {
                (Kind::Latency, Operation::Send) => Some("off for a ping-pong, which goes both ways already"),
                (_, Operation::RequestResponse) => Some("off for requests, which are answered already"),
                (_, operation) if operation.is_one_sided() => Some("off for one-sided operations"),
                _ => None,
            }
        {
            let (given, allowed) = ("on".to_owned(), allowed.to_owned());
            return Err(ParametersError { setting: Setting::Bidirectional, given, allowed });
        }
        if self.operation.is_one_sided() && self.slow_receiver_us > 0 {
            let given = format!("{} us", self.slow_receiver_us);
            let allowed = "0 us for one-sided operations, which nobody receives".to_owned();
            return Err(ParametersError { setting: Setting::SlowReceiver, given, allowed });
        }
        self.check_protocol()?;
        self.serving.check(self)?;
        for &size in &self.sizes {
            within(Setting::Size, size, 0, MAX_MESSAGE, " B")?;
            if self.operation.is_atomic() && size as u64 != ATOMIC_BYTES {
                let (given, allowed) = (format!("{size} B"), format!("{ATOMIC_BYTES} B for atomic operations"));
                return Err(ParametersError { setting: Setting::Size, given, allowed });
            }
            self.fit(size)?;
        }
        Ok(())
    }

    /// What not every protocol has.
    fn check_protocol(&self) -> Result<(), ParametersError> {
        let refuse =
            |setting, given: &str, allowed: String| Err(ParametersError { setting, given: given.to_owned(), allowed });
        let protocol = self.protocol;
        if self.operation.is_one_sided() && protocol != Protocol::default() {
            let allowed = "send-receive for one-sided operations, which are no messages of any protocol";
            return refuse(Setting::Protocol, protocol.name(), allowed.to_owned());
        }
        if !self.credits && !protocol.is_possible_without_credits() {
            return refuse(Setting::Credits, "off", format!("on for {protocol}, which is nothing without"));
        }
        if self.events && !protocol.properties().receiver_sleeps && !self.operation.is_one_sided() {
            let allowed = format!("off for {protocol}, whose receiver looks at memory and is not woken");
            return refuse(Setting::Events, "on", allowed);
        }
        if self.replicate {
            if protocol != Protocol::DirectReadSend && protocol != Protocol::DirectReadFencedSend {
                let allowed = "off but for direct-read-send and direct-read-fenced-send: the message stays where it \
                               is, and each reader tells that it has read it";
                return refuse(Setting::Replicate, "on", allowed.to_owned());
            }
            let is_stream = self.kind == Kind::Bandwidth && self.operation == Operation::Send;
            if !is_stream || self.bidirectional || self.events || self.serving.threads > 1 {
                let allowed = "off unless one thread sends one way and polls".to_owned();
                return refuse(Setting::Replicate, "on", allowed);
            }
        }
        Ok(())
    }

    /// What a point of this size uses, so that the memory cap holds.
    ///
    /// # Errors
    ///
    /// Not even the smallest connections have room.
    pub fn fit(&self, size: usize) -> Result<Fitted, ParametersError> {
        let stride = self.stride(size);
        let connections = self.connections.max(1);
        let one_sided = self.operation.is_one_sided();
        let (fixed, each) = match one_sided {
            true => (0, 0),
            false => receiving_bytes(self.protocol, size, self.window),
        };
        // Inline data lies in the queues, for which as much is allowed again: a queue has up to
        // twice as many places as the window, each with room for it.
        let needed = connections * (stride + fixed + each).max(2 * self.window * self.inline);
        if needed > self.memory_bytes {
            return Err(ParametersError {
                setting: Setting::Memory,
                given: format!("{} B", self.memory_bytes),
                allowed: format!("{needed} B and more for messages of {size} B (connections: {connections})"),
            });
        }
        let (mut window, mut depth) = (self.window, self.depth);
        if self.serving.shared_receives.is_some() {
            depth = (depth / connections).max(1);
        }
        let mut notes = Vec::new();
        if self.depths_are_defaults {
            // More in flight than a cache holds only makes every copy slower.
            window = window.min((CACHED_BYTES / 4 / stride).max(LEAST_DEFAULT_WINDOW));
            depth = depth.min(2 * window.max(CACHED_BYTES / 4 / stride));
        }
        // Bidirectional or ping-pong, each side has both kinds of buffers; otherwise this is
        // generous by one kind.
        let share = self.memory_bytes / connections;
        let for_sending = match one_sided {
            true => share / stride,
            // A quarter, if that leaves room to receive.
            false => (share / 4 / stride).min((share - fixed - each) / stride).max(1),
        };
        if one_sided {
            depth = 0;
        } else {
            let left = share.saturating_sub(for_sending.min(window) * stride + fixed);
            let for_receiving = (left / each).max(1);
            if depth > for_receiving {
                notes.push(format!("receive depth cut from {depth} to {for_receiving} by the memory cap"));
                depth = for_receiving;
            }
        }
        let mut send_buffers = window;
        if send_buffers > for_sending {
            // What tells that a message was read, no other may use meanwhile.
            if self.verify || bytes_behind(self.protocol) > 0 {
                notes.push(format!("window cut from {window} to {for_sending} by the memory cap"));
                window = for_sending;
            } else {
                notes.push(format!("{window} window slots share {for_sending} send buffers by the memory cap"));
            }
            send_buffers = for_sending;
        }
        Ok(Fitted { window, batch: self.batch.min(window), depth, send_buffers, notes })
    }

    /// Bytes from one send buffer to the next.
    pub(crate) fn stride(&self, size: usize) -> usize {
        stride(size + bytes_behind(self.protocol))
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

pub(crate) fn within<T: PartialOrd + std::fmt::Display>(
    setting: Setting,
    given: T,
    least: T,
    most: T,
    unit: &str,
) -> Result<(), ParametersError> {
    if given >= least && given <= most {
        return Ok(()); // which no NaN is
    }
    Err(ParametersError { setting, given: format!("{given}{unit}"), allowed: format!("{least} to {most}{unit}") })
}

#[cfg(test)]
mod tests {
    use doorbell_exchange::send_receive::CREDIT_RECEIVES;

    use super::*;
    use crate::serving::SharedBy;

    fn parameters() -> Parameters {
        Parameters { batch: 8, depths_are_defaults: false, ..Parameters::plain(Kind::Bandwidth, Operation::Send, 16) }
    }

    #[test]
    fn what_fits_is_left_alone_and_what_does_not_is_said() {
        let fitted = parameters().fit(16).unwrap();
        assert_eq!((fitted.window, fitted.depth, fitted.send_buffers, fitted.notes.len()), (64, 128, 64, 0));
        for verify in [false, true] {
            let parameters = Parameters { verify, ..parameters() };
            let fitted = parameters.fit(8 << 20).unwrap();
            assert!((fitted.depth + CREDIT_RECEIVES + fitted.send_buffers) << 23 <= parameters.memory_bytes);
            assert_eq!(fitted.notes.len(), 2);
            assert_eq!(fitted.window < 64, verify, "only checked payloads need a buffer each");
        }
        // A quarter of the memory is there to send from.
        let fitted = Parameters { verify: true, ..parameters() }.fit(1 << 20).unwrap();
        assert_eq!((fitted.window, fitted.send_buffers), (64, 64));
    }

    #[test]
    fn the_memory_cap_holds_or_it_is_said_that_it_cannot() {
        let mut fits = 0;
        for connections in [1, 2, 16, 4096] {
            for size in [0, 1, 4096, 1 << 20, 1 << 30] {
                for (window, inline) in [(1, 0), (64, 64), (256, 1024)] {
                    let given = Parameters { connections, window, inline, batch: 1, sizes: vec![size], ..parameters() };
                    let Ok(fitted) = given.fit(size) else {
                        assert_eq!(given.check().unwrap_err().setting, Setting::Memory);
                        continue;
                    };
                    fits += 1;
                    assert!(fitted.depth >= 1 && fitted.send_buffers >= 1 && fitted.window >= 1);
                    let buffers = fitted.depth + CREDIT_RECEIVES + fitted.send_buffers;
                    for bytes in [buffers * stride(size), 2 * window * inline] {
                        assert!(connections * bytes <= given.memory_bytes, "{connections} {size} {window} {inline}");
                    }
                }
            }
        }
        assert!(fits > 20, "{fits}");
    }

    #[test]
    fn each_setting_has_bounds() {
        let good = parameters;
        good().check().unwrap();
        let served = |serving| Parameters { serving, ..good() };
        let threads = Serving { threads: 2, ..Serving::default() };
        let single = Serving { single_receiver: true, ..Serving::default() };
        let shared = Serving { shared_receives: Some(SharedBy::Lock), ..Serving::default() };
        use Setting::*;
        use doorbell_protocols::Protocol;
        for (wrong, setting) in [
            (Parameters { sizes: vec![], ..good() }, Sizes),
            (Parameters { sizes: vec![1; 2000], ..good() }, Sizes),
            (Parameters { sizes: vec![16, usize::MAX], ..good() }, Size),
            (Parameters { extent: Extent::Messages(0), ..good() }, Messages),
            (Parameters { extent: Extent::Messages(u64::MAX), ..good() }, Messages),
            (Parameters { extent: Extent::Seconds(-1.0), ..good() }, Seconds),
            (Parameters { extent: Extent::Seconds(f64::NAN), ..good() }, Seconds),
            (Parameters { extent: Extent::Seconds(1e300), ..good() }, Seconds),
            (Parameters { window: 0, ..good() }, Window),
            (Parameters { window: usize::MAX, ..good() }, Window),
            (Parameters { depth: 0, ..good() }, Depth),
            (Parameters { depth: 16_384, connections: 100, ..good() }, Depth),
            (Parameters { batch: 0, ..good() }, Batch),
            (Parameters { batch: 8, window: 4, ..good() }, Batch),
            (Parameters { inline: usize::MAX, ..good() }, Inline),
            (Parameters { connections: 0, ..good() }, Connections),
            (Parameters { connections: usize::MAX, ..good() }, Connections),
            (Parameters { bidirectional: true, kind: Kind::Latency, ..good() }, Bidirectional),
            (Parameters { bidirectional: true, operation: Operation::Read, ..good() }, Bidirectional),
            (Parameters { bidirectional: true, operation: Operation::RequestResponse, ..good() }, Bidirectional),
            (Parameters { operation: Operation::FetchAdd, ..good() }, Size),
            (Parameters { operation: Operation::Write, slow_receiver_us: 1, ..good() }, SlowReceiver),
            (Parameters { protocol: Protocol::DirectRead, operation: Operation::Write, ..good() }, Setting::Protocol),
            (Parameters { protocol: Protocol::SharedWrite, credits: false, ..good() }, Credits),
            (Parameters { protocol: Protocol::DirectWrite, events: true, ..good() }, Events),
            (Parameters { protocol: Protocol::DirectWrite, ..served(single) }, SingleReceiver),
            (Parameters { protocol: Protocol::DirectRead, ..served(shared) }, SharedReceives),
            (Parameters { protocol: Protocol::DirectRead, replicate: true, ..good() }, Replicate),
            (Parameters { replicate: true, ..good() }, Replicate),
            (
                Parameters { protocol: Protocol::DirectReadSend, replicate: true, kind: Kind::Latency, ..good() },
                Replicate,
            ),
            (Parameters { mtu: Some(1500), ..good() }, Mtu),
            (Parameters { rate: Some(0.0), ..good() }, Rate),
            (Parameters { rate: Some(f64::INFINITY), ..good() }, Rate),
            (Parameters { slow_receiver_us: u64::MAX, ..good() }, SlowReceiver),
            (Parameters { timeout: 32, ..good() }, Timeout),
            (Parameters { retry_count: 8, ..good() }, RetryCount),
            (Parameters { rnr_retry: 8, ..good() }, RnrRetry),
            (Parameters { memory_bytes: 0, ..good() }, Memory),
            (Parameters { memory_bytes: usize::MAX, ..good() }, Memory),
            (Parameters { sizes: vec![1 << 30], ..good() }, Memory),
            (served(Serving { threads: 0, ..Serving::default() }), Threads),
            (served(Serving { threads: 2, ..Serving::default() }), Threads),
            (Parameters { bidirectional: true, connections: 2, ..served(threads) }, Threads),
            (Parameters { events: true, ..served(single) }, SingleReceiver),
            (Parameters { operation: Operation::Write, ..served(shared) }, SharedReceives),
            (Parameters { connections: 200, ..served(shared) }, Depth),
            (served(Serving { poll_list: 33, ..Serving::default() }), PollList),
            (served(Serving { repost_list: 0, ..Serving::default() }), RepostList),
        ] {
            let error = wrong.check().expect_err("it is out of range");
            assert_eq!(error.setting, setting, "{error}");
        }
    }
}
