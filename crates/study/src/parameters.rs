//! What is to be measured, and what of it fits.

use doorbell_exchange::send_receive::Config;
use doorbell_verbs::PathMtu;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ping-pong: half a round trip.
    Latency,
    /// Messages one way (or both), as many as go.
    Bandwidth,
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
    /// Message sizes, one point each.
    pub sizes: Vec<usize>,
    /// How long each point lasts.
    pub extent: Extent,
    /// Messages unacknowledged at most, per connection.
    pub window: usize,
    /// Receive buffers per connection.
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
    /// Flow control by credits.
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
}

/// Message memory of a process that default windows and depths stay within, for large messages.
const CACHED_BYTES: usize = 16 << 20;
/// The window that large messages get by default at least, if it is not less anyway.
const LEAST_DEFAULT_WINDOW: usize = 4;

/// What one point uses, after everything was made to fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fitted {
    /// Messages unacknowledged at most.
    pub window: usize,
    /// Messages per post.
    pub batch: usize,
    /// Receive buffers.
    pub depth: usize,
    /// Send buffers, shared between window slots if fewer than the window.
    pub send_buffers: usize,
    /// What was cut to fit, for people.
    pub notes: Vec<String>,
}

impl Parameters {
    /// What a point of this size uses, so that the memory cap holds.
    pub fn fit(&self, size: usize) -> Fitted {
        let stride = size.next_multiple_of(64).max(64);
        let (mut window, mut depth) = (self.window, self.depth);
        let mut notes = Vec::new();
        if self.depths_are_defaults {
            // More in flight than a cache holds only makes every copy slower.
            window = window.min((CACHED_BYTES / 4 / stride).max(LEAST_DEFAULT_WINDOW));
            depth = depth.min(2 * window.max(CACHED_BYTES / 4 / stride));
        }
        // Bidirectional or ping-pong, each side has both kinds of buffers; otherwise this is
        // generous by one kind.
        let share = self.memory_bytes / self.connections.max(1);
        let for_sending = (share / 4 / stride).max(1);
        let for_receiving = (share.saturating_sub(for_sending.min(window) * stride) / stride).saturating_sub(3).max(1);
        if depth > for_receiving {
            notes.push(format!("receive depth cut from {depth} to {for_receiving} by the memory cap"));
            depth = for_receiving;
        }
        let mut send_buffers = window;
        if send_buffers > for_sending {
            if self.verify {
                notes.push(format!("window cut from {window} to {for_sending} by the memory cap"));
                window = for_sending;
            } else {
                notes.push(format!("{window} window slots share {for_sending} send buffers by the memory cap"));
            }
            send_buffers = for_sending;
        }
        Fitted { window, batch: self.batch.min(window), depth, send_buffers, notes }
    }

    /// The configuration of the connections of one point.
    pub fn config(&self, size: usize, fitted: &Fitted) -> Config {
        Config {
            window: fitted.window,
            batch: fitted.batch,
            depth: fitted.depth,
            inline: self.inline,
            max_message: size,
            send_buffers: 0, // workloads send from memory of their own
            credits: self.credits,
            path_mtu: self.mtu.and_then(PathMtu::from_bytes),
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            ..Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(verify: bool) -> Parameters {
        Parameters {
            kind: Kind::Bandwidth,
            sizes: vec![],
            extent: Extent::Seconds(1.0),
            window: 64,
            depth: 128,
            depths_are_defaults: false,
            batch: 8,
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
            verify,
            memory_bytes: 256 << 20,
        }
    }

    #[test]
    fn what_fits_is_left_alone_and_what_does_not_is_said() {
        let fitted = parameters(false).fit(16);
        assert_eq!((fitted.window, fitted.depth, fitted.send_buffers, fitted.notes.len()), (64, 128, 64, 0));
        for verify in [false, true] {
            let parameters = parameters(verify);
            let fitted = parameters.fit(8 << 20);
            assert!((fitted.depth + 3 + fitted.send_buffers) << 23 <= parameters.memory_bytes);
            assert_eq!(fitted.notes.len(), 2);
            assert_eq!(fitted.window < 64, verify, "only checked payloads need a buffer each");
        }
    }
}
