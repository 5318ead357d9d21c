//! Clock of an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A clock that stands still until the program moves it. A clone is the same clock.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// Returns the time in nanoseconds. A new clock is at 0.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Moves the clock forward to `at_ns`. A time in the past has no effect.
    pub fn advance_to(&self, at_ns: u64) {
        self.0.fetch_max(at_ns, Ordering::Relaxed);
    }
}

/// The clock of an engine.
pub(super) enum Clock {
    /// Time since this instant.
    Real(Instant),
    Virtual(VirtualClock),
}

impl Clock {
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        match self {
            Self::Real(epoch) => epoch.elapsed().as_nanos() as u64,
            Self::Virtual(clock) => clock.now_ns(),
        }
    }

    #[inline]
    pub(super) fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }
}
