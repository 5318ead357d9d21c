//! Options of a connection.

use std::time::Duration;

use doorbell_verbs::PathMtu;
use doorbell_wire::{ack_timeout_ns, rnr_timer_code_at_least};

use crate::connection::error::ConnectError;

/// Maximum number of messages in one post.
pub const MAX_BATCH: usize = 64;
/// Maximum value of [`Config::window`] and of [`Config::depth`].
pub const MAX_WINDOW: usize = 1 << 14;
/// Maximum number of completions that one poll takes.
pub const MAX_POLL_LIST: usize = 32;
/// Maximum number of receives in one post.
pub const MAX_REPOST_LIST: usize = 64;
/// Number of receives that each side posts in addition to the granted receives. The additional receives are for credit
/// messages and the goodbye. At most one credit message is unanswered at a time.
pub const CREDIT_RECEIVES: usize = 3;
/// Maximum exponent of an acknowledgement timeout. The exponent has five bits (IBTA Vol 1, 11.2.4.2).
const MAX_TIMEOUT: u8 = 31;

/// Bytes of the longest message that one work request carries (IBTA Vol 1, 9.4.1).
pub(crate) const LONGEST_TRANSFER: usize = 1 << 31;

/// Options of a connection. The defaults suit most programs. For each option, a method of the same name changes the
/// value.
///
/// ```
/// use std::time::Duration;
///
/// use doorbell_exchange::Config;
///
/// let config = Config::default().window(16).max_message(64 << 10).keepalive(Duration::from_millis(100));
/// assert_eq!(config.send_buffers, 16);
/// ```
///
/// The constructor of an endpoint checks the values. Its error names the value and the allowed range.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Maximum number of unacknowledged messages: 1 to 16384.
    pub window: usize,
    /// Number of messages in one post: 1 to 64, and at most the window. [`flush`](crate::MessageConnection::flush) and
    /// the next poll also post an incomplete batch.
    pub batch: usize,
    /// Number of receive buffers for messages of the peer: 1 to 16384.
    pub depth: usize,
    /// Number of buffers into which all messages of the peer go, 1 to 16384, or `None` for a buffer for each receive.
    /// Messages overwrite each other in these buffers, so the program receives empty messages. The option is for
    /// measurements with buffers that stay in a cache. Only Send-Receive with receives of its own uses these buffers.
    pub discard_into: Option<usize>,
    /// Maximum number of completions that one poll takes: 1 to 32.
    pub poll_list: usize,
    /// Maximum number of receives in one post: 1 to 64. With 1, each receive is posted separately when the program
    /// gives its buffer back.
    pub repost_list: usize,
    /// Whether each posted message has its own completion, as in published evaluations. Otherwise only the last message
    /// of a post has a completion, which covers all messages of the post. Only Send-Receive and Direct-Read use this
    /// option.
    pub signal_each: bool,
    /// Maximum bytes of an inline message. A value above the device's limit is reduced to the limit.
    pub inline: usize,
    /// Bytes of the longest message that this side can receive, or can send by copying: 0 to 1 GiB.
    pub max_message: usize,
    /// Number of send buffers for copied messages: from the window to 16384. 0 is also allowed, and suits programs that
    /// send all messages from their own regions.
    pub send_buffers: usize,
    /// Whether credits control the flow. Without credits, a slow receiver causes RNR NAKs.
    pub credits: bool,
    /// Maximum path MTU of this end. The connection uses the smaller path MTU of both ends. `None` means the path MTU
    /// of the device.
    pub path_mtu: Option<PathMtu>,
    /// Exponent of the acknowledgement timeout, 0 to 31: the timeout is 4.096 us times two to this power. 0 means that
    /// the timeout never expires.
    pub timeout: u8,
    /// Maximum number of acknowledgement timeouts in a row: 0 to 7. The default is 6, since Linux's rdma_rxe treats 7
    /// as unlimited and then never detects a dead peer.
    pub retry_count: u8,
    /// Maximum number of RNR NAKs in a row: 0 to 7. 7 means unlimited.
    pub rnr_retry: u8,
    /// Code of the minimum time that the peer waits after an RNR NAK before it retransmits: 0 to 31 (IBTA Vol 1,
    /// 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// Time in nanoseconds without an answer of the peer after which this side sends a keepalive. 0 disables
    /// keepalives. If neither an answer nor an error follows within ten times this time, this side logs a warning. If
    /// it only waits for the acknowledgement of its goodbye, and the peer has sent its own, the connection is closed. A
    /// peer that is alive then, but had no receive for the goodbye until then, gets an error instead of the goodbye.
    pub keepalive_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64,
            batch: 1,
            depth: 128,
            discard_into: None,
            poll_list: MAX_POLL_LIST,
            repost_list: MAX_REPOST_LIST,
            signal_each: false,
            inline: 64,
            max_message: 4096,
            send_buffers: 64,
            credits: true,
            path_mtu: None,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 7,
            min_rnr_timer: 12,
            keepalive_ns: 1_000_000_000,
        }
    }
}

impl Config {
    /// Returns a configuration with one unacknowledged message.
    pub fn sequential() -> Self {
        Self { window: 1, batch: 1, send_buffers: 1, ..Self::default() }
    }

    /// Returns a configuration with 64 unacknowledged messages and one message per post.
    pub fn unbatched() -> Self {
        Self { window: 64, batch: 1, send_buffers: 64, ..Self::default() }
    }

    /// Returns a configuration with 256 unacknowledged messages and eight messages per post.
    pub fn batched() -> Self {
        Self { window: 256, batch: 8, depth: 512, send_buffers: 256, ..Self::default() }
    }

    /// Names that [`by_name`](Self::by_name) accepts.
    pub const NAMES: [&str; 3] = ["sequential", "unbatched", "batched"];

    /// Returns the configuration with this name, as published evaluations use it.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "sequential" => Some(Self::sequential()),
            "unbatched" => Some(Self::unbatched()),
            "batched" => Some(Self::batched()),
            _ => None,
        }
    }

    /// Sets the maximum number of unacknowledged messages, 1 to 16384. Also sets
    /// [`send_buffers`](Self#structfield.send_buffers) to the same number, unless the number of send buffers is 0.
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages;
        if self.send_buffers != 0 {
            self.send_buffers = messages;
        }
        self
    }

    /// Sets the number of messages in one post: 1 to 64, and at most the window.
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages;
        self
    }

    /// Sets the number of receive buffers for messages of the peer: 1 to 16384.
    pub fn depth(mut self, receives: usize) -> Self {
        self.depth = receives;
        self
    }

    /// Sets the number of buffers into which all messages of the peer go, so that the program receives empty messages
    /// ([`discard_into`](Self#structfield.discard_into)): 1 to 16384. `None` gives each receive a buffer.
    pub fn discard_into(mut self, buffers: impl Into<Option<usize>>) -> Self {
        self.discard_into = buffers.into();
        self
    }

    /// Sets the maximum number of completions that one poll takes: 1 to 32.
    pub fn poll_list(mut self, completions: usize) -> Self {
        self.poll_list = completions;
        self
    }

    /// Sets the maximum number of receives in one post: 1 to 64.
    pub fn repost_list(mut self, receives: usize) -> Self {
        self.repost_list = receives;
        self
    }

    /// Sets whether each posted message has its own completion ([`signal_each`](Self#structfield.signal_each)).
    pub fn signal_each(mut self, on: bool) -> Self {
        self.signal_each = on;
        self
    }

    /// Sets the maximum bytes of an inline message. A value above the device's limit is reduced to the limit.
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = bytes;
        self
    }

    /// Sets the bytes of the longest message that this side can receive, or can send by copying: 0 to 1 GiB.
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Sets the number of send buffers for copied messages: 0, or from the window to 16384. With 0, the program can
    /// send only from its own regions. Call this method after [`window`](Self::window), which may change the number.
    pub fn send_buffers(mut self, buffers: usize) -> Self {
        self.send_buffers = buffers;
        self
    }

    /// Enables or disables flow control by credits. Without credits, a slow receiver causes RNR NAKs.
    pub fn credits(mut self, on: bool) -> Self {
        self.credits = on;
        self
    }

    /// Sets the maximum path MTU of this end. `None` means the path MTU of the device.
    pub fn path_mtu(mut self, mtu: impl Into<Option<PathMtu>>) -> Self {
        self.path_mtu = mtu.into();
        self
    }

    /// Sets the acknowledgement timeout, up to 8796 s. Rounds the time up to 8.192 us times a power of two.
    pub fn timeout(self, time: Duration) -> Self {
        let wanted = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let reaches = |exponent: &u8| ack_timeout_ns(*exponent).is_some_and(|ns| ns >= wanted);
        self.timeout_exponent((1..=MAX_TIMEOUT).find(reaches).unwrap_or(MAX_TIMEOUT + 1))
    }

    /// Sets the exponent of the acknowledgement timeout, 0 to 31: the timeout is 4.096 us times two to this power. 0
    /// means that the timeout never expires.
    pub fn timeout_exponent(mut self, exponent: u8) -> Self {
        self.timeout = exponent;
        self
    }

    /// Sets the maximum number of acknowledgement timeouts in a row: 0 to 7.
    pub fn retry_count(mut self, times: u8) -> Self {
        self.retry_count = times;
        self
    }

    /// Sets the maximum number of RNR NAKs in a row: 0 to 7. 7 means unlimited.
    pub fn rnr_retry(mut self, times: u8) -> Self {
        self.rnr_retry = times;
        self
    }

    /// Sets the minimum time that the peer waits after an RNR NAK. Rounds the time up to the next value that verbs can
    /// express, from 10 us to 655.36 ms. Longer times become 655.36 ms.
    pub fn min_rnr_timer(self, time: Duration) -> Self {
        self.min_rnr_timer_code(rnr_timer_code_at_least(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Sets the minimum time that the peer waits after an RNR NAK, as a verbs code: 0 to 31.
    pub fn min_rnr_timer_code(mut self, code: u8) -> Self {
        self.min_rnr_timer = code;
        self
    }

    /// Sets the time without an answer of the peer after which this side sends a keepalive. Zero disables keepalives.
    /// Times above 584 years become 584 years.
    pub fn keepalive(mut self, silence: Duration) -> Self {
        self.keepalive_ns = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let within = |what, given: usize, range: std::ops::RangeInclusive<usize>, allowed| {
            if range.contains(&given) {
                Ok(())
            } else {
                Err(ConnectError::Setting { what, given: given as u64, allowed })
            }
        };
        within("the window", self.window, 1..=MAX_WINDOW, "1 to 16384")?;
        within("the batch", self.batch, 1..=MAX_BATCH.min(self.window), "1 to 64, and no more than the window")?;
        within("the receive depth", self.depth, 1..=MAX_WINDOW, "1 to 16384")?;
        if let Some(buffers) = self.discard_into {
            within("the number of buffers for discarded messages", buffers, 1..=MAX_WINDOW, "1 to 16384")?;
        }
        within("the completions of one poll", self.poll_list, 1..=MAX_POLL_LIST, "1 to 32")?;
        within("the receives of one post", self.repost_list, 1..=MAX_REPOST_LIST, "1 to 64")?;
        within("the longest message", self.max_message, 0..=1 << 30, "0 to 1073741824 B")?;
        let allowed = "0 (never expires) to 31 (8796 s)";
        within("the exponent of the acknowledgement timeout", self.timeout.into(), 0..=MAX_TIMEOUT.into(), allowed)?;
        within("the retry count", self.retry_count.into(), 0..=7, "0 to 7")?;
        within("the RNR retry count", self.rnr_retry.into(), 0..=7, "0 to 7, where 7 is unlimited")?;
        within("the code of the RNR timer", self.min_rnr_timer.into(), 0..=31, "0 to 31")?;
        if self.send_buffers != 0 && !(self.window..=MAX_WINDOW).contains(&self.send_buffers) {
            return Err(ConnectError::Setting {
                what: "the number of send buffers",
                given: self.send_buffers as u64,
                allowed: "0, or from the window to 16384",
            });
        }
        Ok(())
    }

    pub(crate) fn stride(&self) -> usize {
        self.max_message.checked_next_multiple_of(64).unwrap_or(usize::MAX).max(64)
    }

    /// Returns the bytes of message memory that an endpoint of this configuration allocates.
    pub fn memory_bytes(&self) -> usize {
        self.receive_buffers().saturating_add(self.send_buffers).saturating_mul(self.stride())
    }

    /// Returns the number of receive buffers of Send-Receive.
    pub(crate) fn receive_buffers(&self) -> usize {
        let receives = self.depth.saturating_add(CREDIT_RECEIVES);
        self.discard_into.map_or(receives, |buffers| receives.min(buffers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_become_verbs_exponents() {
        let exponent = |time| Config::default().timeout(time).timeout;
        assert_eq!(exponent(Duration::ZERO), 1);
        assert_eq!(exponent(Duration::from_nanos(8192)), 1);
        assert_eq!(exponent(Duration::from_nanos(8193)), 2);
        assert_eq!(exponent(Duration::from_millis(67)), 14);
        assert_eq!(exponent(Duration::from_secs(8796)), 31);
        let error = Config::default().timeout(Duration::MAX).check().unwrap_err().to_string();
        assert_eq!(
            error,
            "the exponent of the acknowledgement timeout is 32, allowed is 0 (never expires) to 31 (8796 s)"
        );
        assert_eq!(Config::default().min_rnr_timer(Duration::from_micros(640)).min_rnr_timer, 12);
        assert_eq!(Config::default().min_rnr_timer(Duration::MAX).min_rnr_timer, 0);
        assert_eq!(Config::default().keepalive(Duration::from_millis(3)).keepalive_ns, 3_000_000);
    }

    #[test]
    fn window_sets_send_buffers_unless_they_are_zero() {
        assert_eq!(Config::default().window(300).send_buffers, 300);
        assert_eq!(Config::default().send_buffers(0).window(300).send_buffers, 0);
        assert!(Config::default().window(300).check().is_ok());
    }
}
