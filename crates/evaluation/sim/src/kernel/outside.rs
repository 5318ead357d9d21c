//! Time that passes for callers outside all simulated threads.

use super::World;
use crate::time::Ps;

/// Virtual time, shorter than any timer, that passes when a caller outside all simulated threads polls without result.
const OUTSIDE_STEP: Ps = Ps(1_000_000);

/// Maximum virtual time that passes when a caller outside all simulated threads is about to sleep on a descriptor. This
/// time is longer than any operation that does not wait for a timer.
const OUTSIDE_SLEEP: Ps = Ps(1_000_000_000);

impl World {
    /// Lets the hardware run for a short time after an empty poll from outside all simulated threads.
    pub(crate) fn step_from_outside(&mut self) {
        let latest = self.now + OUTSIDE_STEP;
        if self.run_hardware(latest, || false) {
            self.now = latest;
        }
    }

    /// Lets the hardware run before a caller from outside all simulated threads sleeps on a descriptor. Virtual time
    /// stops while the caller sleeps, so events that it may wait for have to happen first.
    pub(crate) fn settle_for_outside(&mut self, is_readable: impl Fn() -> bool) {
        if self.current.is_none() {
            self.run_hardware(self.now + OUTSIDE_SLEEP, is_readable);
        }
    }

    /// Handles events of the hardware up to the time `until`, or until `is_enough` returns true. Returns false if the
    /// next event is the turn of a simulated thread. Calls from outside do not run such turns.
    fn run_hardware(&mut self, until: Ps, is_enough: impl Fn() -> bool) -> bool {
        while let Some(event) = self.events.peek()
            && event.at <= until
            && !is_enough()
        {
            if self.turn_of(event).is_some() {
                return false;
            }
            self.step();
        }
        true
    }

    /// Lets the hardware run for a short time if the caller is not a simulated thread. The caller is about to read
    /// state that the hardware changes, such as counters.
    pub(crate) fn go_on_for_outside(&mut self) {
        if self.current.is_none() && !self.events.is_empty() {
            self.step_from_outside();
        }
    }
}
