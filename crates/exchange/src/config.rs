//! What a connection is made with.

use doorbell_verbs::PathMtu;

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

/// Bytes of the longest message that one work request carries (IBTA Vol 1, 9.4.1).
pub(crate) const LONGEST_TRANSFER: usize = 1 << 31;

/// What a connection is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Messages unacknowledged at most.
    pub window: usize,
    /// Messages per post; fewer are posted by [`flush`](crate::MessageConnection::flush) or the next poll.
    pub batch: usize,
    /// Receive buffers that the peer may fill.
    pub depth: usize,
    /// Completions taken by one poll at most.
    pub poll_list: usize,
    /// Receives that are posted again in one list at most; 1 is each by itself, as it is given back.
    pub repost_list: usize,
    /// Messages up to this many bytes go inline.
    pub inline: usize,
    /// Bytes of the longest message that can be received, and of the longest sent by copying.
    pub max_message: usize,
    /// Send buffers for messages that are copied. As many as the window, or none, if all messages
    /// are sent from regions of the program.
    pub send_buffers: usize,
    /// Flow control by credits. Without it a slow receiver provokes RNR NAKs.
    pub credits: bool,
    /// The path MTU to ask for; `None` takes the largest that both ends carry.
    pub path_mtu: Option<PathMtu>,
    /// Acknowledgement timeout exponent: 4.096 us times two to it.
    pub timeout: u8,
    /// Times that the timeout may expire in a row, up to 7. Linux's rdma_rxe takes 7 as without end, so
    /// that a peer's death is never noticed; hence the default of 6.
    pub retry_count: u8,
    /// Times that an RNR NAK may come in a row; 7 is without end.
    pub rnr_retry: u8,
    /// Code of the least time that the peer is to wait after an RNR NAK.
    pub min_rnr_timer: u8,
    /// A peer from which nothing was heard for so long is asked whether it lives; 0 is never. If neither an answer
    /// comes nor an error, a warning says so after ten times as long.
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
