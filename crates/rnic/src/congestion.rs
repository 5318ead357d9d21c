//! How much may be in flight to one device.
//!
//! What overflows on a software path is the receiving socket's buffer, so bytes are counted as
//! the kernel counts them there, and the bound moves as TCP's does (RFC 5681): additive growth,
//! halved on loss. So N senders to one receiver settle without knowing of each other.

use std::collections::VecDeque;
use std::net::IpAddr;

/// What the kernel charges for a datagram beside its payload: its bookkeeping (`struct sk_buff`
/// and shared info) and the headers before the BTH. Measured: a buffer of 212,992 B holds about
/// 250 datagrams of 36 B and 43 of 4112 B.
pub(crate) const DATAGRAM_OVERHEAD_BYTES: u64 = 832;

/// Headers within the datagram, rounded up: BTH, RETH, ICRC.
const HEADERS_BYTES: u64 = 32;

/// What packets with `payload_bytes` of payload in all count for.
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
    /// Queue pairs (slots) that wait for room, and for how much.
    pub(crate) waiting: VecDeque<(u32, u64)>,
}

/// Never below one packet of the largest size.
const LEAST_BYTES: u64 = 4096 + DATAGRAM_OVERHEAD_BYTES + HEADERS_BYTES;

impl Window {
    /// A window into a receive buffer of `buffer_bytes`, which never grows beyond `largest_bytes`; without bound if that
    /// is [`u64::MAX`].
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

    /// May `cost` more be sent? One packet always may, whatever its size.
    #[inline]
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        self.in_flight == 0 || self.in_flight + cost <= self.limit
    }

    /// Has a queue pair with `own` in flight used up its part of the window? One alone does not
    /// take all of a wide window, so that another finds room at once. A narrow one it may take:
    /// the last packet of a window has none behind it that would show its loss.
    #[inline]
    pub(crate) fn exceeds_share(&self, own: u64, cost: u64) -> bool {
        let kept_back = if self.limit >= WIDE_BYTES { self.limit / 4 } else { 0 };
        own > 0 && own + cost > self.limit - kept_back
    }

    /// Would a packet of this cost leave no room for another like it?
    #[inline]
    pub(crate) fn is_nearly_full(&self, cost: u64) -> bool {
        self.in_flight + 2 * cost > self.limit
    }

    #[inline]
    pub(crate) fn charge(&mut self, cost: u64) {
        self.in_flight += cost;
    }

    /// Takes back what was charged, without growth: it was lost or is to be sent again.
    pub(crate) fn refund(&mut self, cost: u64) {
        self.in_flight -= cost;
    }

    /// `cost` arrived.
    #[inline]
    pub(crate) fn delivered(&mut self, cost: u64) {
        // Growth only where the window is what limits (RFC 7661 in spirit).
        if self.limit < self.most && 2 * self.in_flight >= self.limit {
            let step = if self.limit < self.threshold { cost } else { cost * LEAST_BYTES / self.limit };
            self.limit = (self.limit + step).min(self.most);
        }
        self.in_flight -= cost;
    }

    /// Something was lost. Losses within one round trip are one event.
    pub(crate) fn lost(&mut self, now_ns: u64, round_trip_ns: u64) {
        if now_ns < self.recover_until_ns || self.most == u64::MAX {
            return;
        }
        self.recover_until_ns = now_ns + round_trip_ns;
        self.threshold = (self.limit / 2).max(LEAST_BYTES);
        self.limit = self.threshold;
    }

    /// The next that waits, if there is room for what it waits for.
    #[inline]
    pub(crate) fn next_waiting(&mut self) -> Option<u32> {
        let &(slot, cost) = self.waiting.front()?;
        if !self.has_room(cost) {
            return None;
        }
        self.waiting.pop_front();
        Some(slot)
    }

    /// Strikes a queue pair off those that wait.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.waiting.retain(|&(waiting, _)| waiting != slot);
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

/// From here on a window is wide enough that one queue pair leaves some of it to others.
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
    fn cost_is_what_the_kernel_charges() {
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
