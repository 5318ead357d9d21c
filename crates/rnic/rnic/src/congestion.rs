//! Limit of the bytes in flight to one device.
//!
//! Over UDP, packets wait in the receive buffer of a socket, which can overflow. The window therefore counts bytes as
//! the kernel counts them in that buffer. The limit changes like the congestion window of TCP (RFC 5681): after slow
//! start it grows additively, and it halves on loss. Several senders can therefore share the buffer of one receiver
//! without knowing each other.

use std::collections::VecDeque;
use std::net::IpAddr;

/// Bytes that the kernel charges for a datagram in addition to the UDP payload: its bookkeeping (`struct sk_buff` and
/// shared info) and the headers before the BTH. Derived from measurements: a buffer of 212,992 B holds about 250
/// datagrams of 36 B, or 43 datagrams of 4112 B.
pub(crate) const DATAGRAM_OVERHEAD_BYTES: u64 = 832;

/// Bytes of a UDP payload around the RDMA payload, assumed for every packet: BTH 12, RETH 16 and ICRC 4. Packets
/// without a RETH have fewer.
const HEADERS_BYTES: u64 = 32;

/// Returns the bytes that the kernel charges for `packets` packets with `payload_bytes` of payload in total.
pub(crate) fn in_flight_cost(packets: u64, payload_bytes: u64) -> u64 {
    packets * (DATAGRAM_OVERHEAD_BYTES + HEADERS_BYTES) + payload_bytes
}

/// Window of packets to one destination device. One more window is for READ responses: their destination is this
/// device.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) in_flight: u64,
    limit: u64,
    threshold: u64,
    most: u64,
    recover_until_ns: u64,
    /// Slots of the queue pairs that wait for room, and the room that each of them needs.
    pub(crate) waiting: VecDeque<(u32, u64)>,
}

/// Minimum limit of a window: the cost of one packet with the maximum payload.
const LEAST_BYTES: u64 = 4096 + DATAGRAM_OVERHEAD_BYTES + HEADERS_BYTES;

impl Window {
    /// Creates a window for packets into a receive buffer of `buffer_bytes`. The window never grows beyond
    /// `largest_bytes`. If that is [`u64::MAX`], the window is unlimited.
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

    /// Returns whether `cost` more bytes may be in flight. If nothing is in flight, one packet of any size is allowed.
    #[inline]
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        self.in_flight == 0 || self.in_flight + cost <= self.limit
    }

    /// Returns whether a queue pair with `own` bytes in flight would exceed its share of the window if it sent `cost`
    /// more bytes.
    ///
    /// In a wide window, the share is three quarters, so that another queue pair finds room at once. In a narrow
    /// window, the share is the whole window. After the final packet of a share, the queue pair must pause. If that
    /// packet is lost, no later packet reveals the loss. Smaller shares would cause more such pauses.
    #[inline]
    pub(crate) fn exceeds_share(&self, own: u64, cost: u64) -> bool {
        let kept_back = if self.limit >= WIDE_BYTES { self.limit / 4 } else { 0 };
        own > 0 && own + cost > self.limit - kept_back
    }

    /// Returns whether the window has no room for two more packets of this cost.
    #[inline]
    pub(crate) fn is_nearly_full(&self, cost: u64) -> bool {
        self.in_flight + 2 * cost > self.limit
    }

    #[inline]
    pub(crate) fn charge(&mut self, cost: u64) {
        self.in_flight += cost;
    }

    /// Removes `cost` from the bytes in flight and keeps the limit: the packets were lost or will be sent again.
    pub(crate) fn refund(&mut self, cost: u64) {
        self.in_flight -= cost;
    }

    /// Removes `cost` from the bytes in flight and may grow the limit: the packets have arrived at their destination.
    #[inline]
    pub(crate) fn delivered(&mut self, cost: u64) {
        // Grow the limit only if at least half of it is in use, in the spirit of RFC 7661.
        if self.limit < self.most && 2 * self.in_flight >= self.limit {
            let step = if self.limit < self.threshold { cost } else { cost * LEAST_BYTES / self.limit };
            self.limit = (self.limit + step).min(self.most);
        }
        self.in_flight -= cost;
    }

    /// Halves the limit after a loss. Further losses within one round trip do not halve it again.
    pub(crate) fn lost(&mut self, now_ns: u64, round_trip_ns: u64) {
        if now_ns < self.recover_until_ns || self.most == u64::MAX {
            return;
        }
        self.recover_until_ns = now_ns + round_trip_ns;
        self.threshold = (self.limit / 2).max(LEAST_BYTES);
        self.limit = self.threshold;
    }

    /// Removes and returns the next waiting queue pair, if the window has the room that this queue pair needs.
    #[inline]
    pub(crate) fn next_waiting(&mut self) -> Option<u32> {
        let &(slot, cost) = self.waiting.front()?;
        if !self.has_room(cost) {
            return None;
        }
        self.waiting.pop_front();
        Some(slot)
    }

    /// Removes a queue pair from the list of waiting queue pairs.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.waiting.retain(|&(waiting, _)| waiting != slot);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

/// A window is wide if its limit is at least this: see [`Window::exceeds_share`].
const WIDE_BYTES: u64 = 8 * LEAST_BYTES;

/// Device to which queue pairs of this engine send.
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
