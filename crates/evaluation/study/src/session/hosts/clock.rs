//! Clocks of hosts relative to the clock of the coordinator.

use std::time::{Duration, Instant};

/// Offset of a host's clock from the coordinator's clock, and the maximum error of the offset.
#[derive(Clone, Copy, Debug)]
pub(in crate::session) struct Clock {
    ahead_ns: i128,
    pub(in crate::session) error_ns: u64,
}

impl Clock {
    /// Computes the offset from the clock read with the shortest round trip. Each element of `looks` is the host's
    /// time, and the coordinator's time before and after the request.
    pub(super) fn of(looks: impl IntoIterator<Item = (u64, u64, u64)>) -> Self {
        let clock = |(shown, before, after): (u64, u64, u64)| {
            let (before, error_ns) = (i128::from(before), after.saturating_sub(before) / 2);
            Self { ahead_ns: i128::from(shown) - before - i128::from(error_ns), error_ns }
        };
        let none = Self { ahead_ns: 0, error_ns: u64::MAX };
        looks.into_iter().map(clock).min_by_key(|clock| clock.error_ns).unwrap_or(none)
    }

    /// Returns the host's time when the coordinator's clock shows `coordinator_ns`.
    pub(in crate::session) fn at(self, coordinator_ns: u64) -> u64 {
        clamped(i128::from(coordinator_ns) + self.ahead_ns)
    }

    /// Returns the coordinator's time when the host's clock shows `shown_ns`.
    pub(in crate::session) fn back(self, shown_ns: u64) -> u64 {
        clamped(i128::from(shown_ns) - self.ahead_ns)
    }
}

fn clamped(ns: i128) -> u64 {
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

/// Clock that starts with a point. The coordinator and a middlebox use it, since they have no device.
#[derive(Clone, Copy)]
pub(in crate::session) struct Watch(Instant);

impl Watch {
    #[expect(clippy::disallowed_methods, reason = "the owner of the clock has no device and waits in real time")]
    pub(in crate::session) fn start() -> Self {
        Self(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "the owner of the clock has no device and waits in real time")]
    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    pub(in crate::session) fn ns(self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_decides_the_clock() {
        // The host's clock is 1000 ahead. The host reads the clock in the middle of a round trip of 10, and at the end
        // of longer round trips.
        let clock = Clock::of([(1400, 0, 400), (1505, 500, 510), (2000, 600, 1000)]);
        assert_eq!((clock.ahead_ns, clock.error_ns), (1000, 5));
        assert_eq!((clock.at(7), clock.back(1007)), (1007, 7));
        // The host's clock started long after the coordinator's clock. The instant 0 lies before that start.
        let behind = Clock::of([(5, 1000, 1000)]);
        assert_eq!((behind.at(0), behind.at(1000), behind.back(5)), (0, 5, 1000));
    }
}
