//! Limit of the bytes in flight to one device.
//!
//! On a software path the receive buffer of the socket overflows. So the window counts bytes as the kernel counts
//! them in that buffer. The limit moves as that of TCP does (RFC 5681): it grows additively and halves on loss. So N
//! senders to one receiver settle without knowledge of each other.

use std::collections::VecDeque;
use std::net::IpAddr;

/// Bytes that the kernel charges for a datagram beside its payload: its bookkeeping (`struct sk_buff` and shared
/// info) and the headers before the BTH. Measured: a buffer of 212,992 B holds about 250 datagrams of 36 B and 43 of
/// 4112 B.
pub(crate) const DATAGRAM_OVERHEAD_BYTES: u64 = 832;

/// Headers within the datagram, rounded up: BTH, RETH, ICRC.
const HEADERS_BYTES: u64 = 32;

/// Returns the cost of packets with `payload_bytes` of payload in total.
pub(crate) fn in_flight_cost(packets: u64, payload_bytes: u64) -> u64 {
    packets * (DATAGRAM_OVERHEAD_BYTES + HEADERS_BYTES) + payload_bytes
}

/// The window towards one destination device (or, for READ responses, towards ourselves).
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) in_flight: u64,
    limit: u64,
    threshold: u64,
    most: u64,
    recover_until_ns: u64,
    /// Queue pairs (slots) that wait for room, and the room that each needs.
    pub(crate) waiting: VecDeque<(u32, u64)>,
}

/// Minimum of the limit: one packet of the largest size.
const LEAST_BYTES: u64 = 4096 + DATAGRAM_OVERHEAD_BYTES + HEADERS_BYTES;

impl Window {
    /// Creates a window into a receive buffer of `buffer_bytes` that never grows beyond `largest_bytes`. [`u64::MAX`]
    /// means unlimited.
    pub(crate) fn new(buffer_bytes: u64, largest_bytes: u64) -> Self {
        if largest_bytes == u64::MAX {
            let all = u64::MAX;
            return Self {
                in_flight: 0,
                limit: all,
                threshold: all,
                most: all,
                recover_until_ns: 0,
                waiting: VecDeque::new(),
            };
        }
        let most = buffer_bytes.min(largest_bytes).max(LEAST_BYTES);
        let limit = (buffer_bytes / 4).clamp(LEAST_BYTES, most);
        Self { in_flight: 0, limit, threshold: most, most, recover_until_ns: 0, waiting: VecDeque::new() }
    }

    /// Returns whether `cost` more may be sent. One packet always may, whatever its size.
    #[inline]
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        self.in_flight == 0 || self.in_flight + cost <= self.limit
    }

    /// Returns whether a queue pair with `own` in flight has used up its share of the window. One queue pair does not
    /// take all of a wide window, so that another finds room at once. It may take all of a narrow one, because no
    /// packet follows the last packet of a window and would show its loss.
    #[inline]
    pub(crate) fn exceeds_share(&self, own: u64, cost: u64) -> bool {
        let kept_back = if self.limit >= WIDE_BYTES { self.limit / 4 } else { 0 };
        own > 0 && own + cost > self.limit - kept_back
    }

    /// Returns whether a packet of this cost would leave no room for a second one.
    #[inline]
    pub(crate) fn is_nearly_full(&self, cost: u64) -> bool {
        self.in_flight + 2 * cost > self.limit
    }

    #[inline]
    pub(crate) fn charge(&mut self, cost: u64) {
        self.in_flight += cost;
    }

    /// Takes back a charge without growth, after a loss or before a retransmission.
    pub(crate) fn refund(&mut self, cost: u64) {
        self.in_flight -= cost;
    }

    /// Takes back the charge of packets that arrived.
    #[inline]
    pub(crate) fn delivered(&mut self, cost: u64) {
        // Grow only if the window is the limit (RFC 7661 in spirit).
        if self.limit < self.most && 2 * self.in_flight >= self.limit {
            let step = if self.limit < self.threshold { cost } else { cost * LEAST_BYTES / self.limit };
            self.limit = (self.limit + step).min(self.most);
        }
        self.in_flight -= cost;
    }

    /// Shrinks the window after a loss. Losses within one round trip are one event.
    pub(crate) fn lost(&mut self, now_ns: u64, round_trip_ns: u64) {
        if now_ns < self.recover_until_ns || self.most == u64::MAX {
            return;
        }
        self.recover_until_ns = now_ns + round_trip_ns;
        self.threshold = (self.limit / 2).max(LEAST_BYTES);
        self.limit = self.threshold;
    }

    /// Returns the next waiting queue pair, if the window has the room that it needs.
    #[inline]
    pub(crate) fn next_waiting(&mut self) -> Option<u32> {
        let &(slot, cost) = self.waiting.front()?;
        if !self.has_room(cost) {
            return None;
        }
        self.waiting.pop_front();
        Some(slot)
    }

    /// Removes a queue pair from the waiting ones.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.waiting.retain(|&(waiting, _)| waiting != slot);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

/// Minimum limit at which one queue pair leaves a part of the window to others.
const WIDE_BYTES: u64 = 8 * LEAST_BYTES;

/// One device that queue pairs send to.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) address: IpAddr,
    pub(crate) users: u32,
    pub(crate) window: Window,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_flight_cost_matches_the_kernel() {
        let holds = |payload: u64| 212_992 / in_flight_cost(1, payload);
        assert!((240..=255).contains(&holds(4)), "{}", holds(4));
        assert!((42..=44).contains(&holds(4096)), "{}", holds(4096));
    }

    #[test]
    fn a_window_halves_on_loss_once_a_round_trip_and_grows_back() {
        let mut window = Window::new(1 << 20, 1 << 20);
        let start = window.limit();
        window.lost(1000, 500);
        window.lost(1200, 500);
        assert_eq!(window.limit(), start / 2);
        window.lost(1600, 500);
        assert_eq!(window.limit(), start / 4);
        for _ in 0..1_000_000 {
            while window.has_room(1000) {
                window.charge(1000);
            }
            window.delivered(1000);
        }
        assert_eq!(window.limit(), 1 << 20);
    }
}
