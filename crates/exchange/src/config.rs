//! What a connection is made with.

use std::time::Duration;

use doorbell_verbs::PathMtu;
use doorbell_wire::{ack_timeout_ns, rnr_timer_code_at_least};

use crate::error::ConnectError;
use crate::send_receive::CREDIT_RECEIVES;

/// The most messages in one post.
pub const MAX_BATCH: usize = 64;
/// The largest window and the greatest depth.
pub const MAX_WINDOW: usize = 1 << 14;
/// The most completions taken by one poll.
pub const MAX_POLL_LIST: usize = 32;
/// The most receives in one post.
pub const MAX_REPOST_LIST: usize = 64;
/// The largest exponent of an acknowledgement timeout: it has five bits (IBTA Vol 1, 11.2.4.2).
const MAX_TIMEOUT: u8 = 31;

/// Bytes of the longest message that one work request carries (IBTA Vol 1, 9.4.1).
pub(crate) const LONGEST_TRANSFER: usize = 1 << 31;

/// What a connection is made with: values that suit most programs, which methods of the same name change.
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
/// Values are checked when an endpoint is made of them; the error names the value and what is allowed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Messages unacknowledged at most: 1 to 16384.
    pub window: usize,
    /// Messages per post: 1 to 64, and no more than the window. Fewer are posted by
    /// [`flush`](crate::MessageConnection::flush) or the next poll.
    pub batch: usize,
    /// Receive buffers that the peer may fill: 1 to 16384.
    pub depth: usize,
    /// Completions taken by one poll at most: 1 to 32.
    pub poll_list: usize,
    /// Receives that are posted again in one list at most: 1 to 64; 1 posts each by itself, as it is given back.
    pub repost_list: usize,
    /// Every message posted has a completion of its own, as in published evaluations; otherwise the last of a list
    /// tells of all before it. Of Send-Receive and Direct-Read alone.
    pub signal_each: bool,
    /// Messages up to this many bytes go inline. More than the device takes is the same as the most that it takes.
    pub inline: usize,
    /// Bytes of the longest message that can be received, and of the longest sent by copying: 0 to 1 GiB.
    pub max_message: usize,
    /// Send buffers for messages that are copied. As many as the window or more, up to 16384; or none, if all messages
    /// are sent from regions of the program.
    pub send_buffers: usize,
    /// Flow control by credits. Without it a slow receiver provokes RNR NAKs.
    pub credits: bool,
    /// The path MTU to ask for; `None` takes the largest that both ends carry.
    pub path_mtu: Option<PathMtu>,
    /// Acknowledgement timeout exponent: 4.096 us times two to it, 0 to 31; 0 never expires.
    pub timeout: u8,
    /// Times that the timeout may expire in a row: 0 to 7. Linux's rdma_rxe treats 7 as unlimited, so
    /// that a peer's death is never noticed; hence the default of 6.
    pub retry_count: u8,
    /// Times that an RNR NAK may come in a row: 0 to 7; 7 is unlimited.
    pub rnr_retry: u8,
    /// Code of the least time that the peer is to wait after an RNR NAK (IBTA Vol 1, 9.7.5.2.8): 0 to 31.
    pub min_rnr_timer: u8,
    /// When this side has heard nothing from the peer for so many nanoseconds, it asks whether the peer lives; 0: it
    /// never asks. If neither an answer nor an error has come after ten times as long, the log has a warning.
    pub keepalive_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64,
            batch: 1,
            depth: 128,
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
    /// One message unacknowledged at a time.
    pub fn sequential() -> Self {
        Self { window: 1, batch: 1, send_buffers: 1, ..Self::default() }
    }

    /// 64 unacknowledged, posted one by one.
    pub fn unbatched() -> Self {
        Self { window: 64, batch: 1, send_buffers: 64, ..Self::default() }
    }

    /// 256 unacknowledged, eight per post.
    pub fn batched() -> Self {
        Self { window: 256, batch: 8, depth: 512, send_buffers: 256, ..Self::default() }
    }

    /// The names that [`by_name`](Self::by_name) knows.
    pub const NAMES: [&str; 3] = ["sequential", "unbatched", "batched"];

    /// The configuration of this name, as published evaluations use them.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "sequential" => Some(Self::sequential()),
            "unbatched" => Some(Self::unbatched()),
            "batched" => Some(Self::batched()),
            _ => None,
        }
    }

    /// Sets how many messages may be unacknowledged, 1 to 16384; and as many send buffers, unless the program does
    /// without ([`send_buffers`](Self::send_buffers)).
    pub fn window(mut self, messages: usize) -> Self {
        self.window = messages;
        if self.send_buffers != 0 {
            self.send_buffers = messages;
        }
        self
    }

    /// Sets how many messages are posted at once: 1 to 64, and no more than the window.
    pub fn batch(mut self, messages: usize) -> Self {
        self.batch = messages;
        self
    }

    /// Sets how many receive buffers the peer may fill: 1 to 16384.
    pub fn depth(mut self, receives: usize) -> Self {
        self.depth = receives;
        self
    }

    /// Sets how many completions one poll takes at most: 1 to 32.
    pub fn poll_list(mut self, completions: usize) -> Self {
        self.poll_list = completions;
        self
    }

    /// Sets how many receives are posted again in one list at most: 1 to 64.
    pub fn repost_list(mut self, receives: usize) -> Self {
        self.repost_list = receives;
        self
    }

    /// Sets whether every message posted has a completion of its own ([`signal_each`](Self#structfield.signal_each)).
    pub fn signal_each(mut self, on: bool) -> Self {
        self.signal_each = on;
        self
    }

    /// Sets up to how many bytes messages go inline. The device's own limit applies too.
    pub fn inline(mut self, bytes: usize) -> Self {
        self.inline = bytes;
        self
    }

    /// Sets the bytes of the longest message that can be received, and of the longest sent by copying: 0 to 1 GiB.
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Sets how many send buffers messages are copied to: as many as the window or more, up to 16384; or 0, for
    /// programs that send from regions of their own alone. To be called after [`window`](Self::window).
    pub fn send_buffers(mut self, buffers: usize) -> Self {
        self.send_buffers = buffers;
        self
    }

    /// Switches flow control on or off. Without it a slow receiver provokes RNR NAKs.
    pub fn credits(mut self, on: bool) -> Self {
        self.credits = on;
        self
    }

    /// Sets the path MTU to ask for; `None` takes the largest that both ends carry.
    pub fn path_mtu(mut self, mtu: impl Into<Option<PathMtu>>) -> Self {
        self.path_mtu = mtu.into();
        self
    }

    /// Sets the acknowledgement timeout: up to 8796 s, rounded up to the next of 8.192 us, 16.384 us, and so on.
    pub fn timeout(self, time: Duration) -> Self {
        let wanted = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let reaches = |exponent: &u8| ack_timeout_ns(*exponent).is_some_and(|ns| ns >= wanted);
        self.timeout_exponent((1..=MAX_TIMEOUT).find(reaches).unwrap_or(MAX_TIMEOUT + 1))
    }

    /// Sets the acknowledgement timeout as verbs write it: 4.096 us times two to this exponent, 0 to 31; 0 never
    /// expires.
    pub fn timeout_exponent(mut self, exponent: u8) -> Self {
        self.timeout = exponent;
        self
    }

    /// Sets how many times the timeout may expire in a row: 0 to 7.
    pub fn retry_count(mut self, times: u8) -> Self {
        self.retry_count = times;
        self
    }

    /// Sets how many times an RNR NAK may come in a row: 0 to 7; 7 is unlimited.
    pub fn rnr_retry(mut self, times: u8) -> Self {
        self.rnr_retry = times;
        self
    }

    /// Sets the least time that the peer is to wait after an RNR NAK: rounded up to the next that verbs can express, of
    /// 10 us to 655.36 ms; longer times become 655.36 ms.
    pub fn min_rnr_timer(self, time: Duration) -> Self {
        self.min_rnr_timer_code(rnr_timer_code_at_least(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Sets that time by the code that verbs have for it: 0 to 31.
    pub fn min_rnr_timer_code(mut self, code: u8) -> Self {
        self.min_rnr_timer = code;
        self
    }

    /// Sets after which silence the peer is asked whether it lives; zero is never, and more than 584 years are 584.
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

    /// Bytes of message memory that an endpoint of this configuration allocates.
    pub fn memory_bytes(&self) -> usize {
        let buffers = self.depth.saturating_add(CREDIT_RECEIVES).saturating_add(self.send_buffers);
        buffers.saturating_mul(self.stride())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_what_verbs_can_express() {
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
    fn a_window_brings_its_send_buffers_unless_there_are_none() {
        assert_eq!(Config::default().window(300).send_buffers, 300);
        assert_eq!(Config::default().send_buffers(0).window(300).send_buffers, 0);
        assert!(Config::default().window(300).check().is_ok());
    }
}
