//! The clock by which a listener bounds the time of its visitors.

use std::time::Duration;

/// Maximum time that counts between two steps of a listener. The owner may serve a client for minutes between two
/// steps, or its process may be stopped, and visitors cannot proceed meanwhile. But an owner that never waits for its
/// visitors must still bound their number of steps.
const ABSENCE_MAX: Duration = Duration::from_millis(100);

/// Time of a listener. It counts the time between two steps, up to a tenth of a second. A listener that waits for
/// visitors steps at [`wake`](Self::wake) at the latest, so its waits count in full unless its process was stopped. All
/// real times are relative to one instant that the caller chooses.
#[derive(Debug, Default)]
pub struct Clock {
    /// Real time at the last call.
    seen: Duration,
    counted: Duration,
}

impl Clock {
    /// Counts the time since the last call. Returns the counted time.
    pub fn return_at(&mut self, real: Duration) -> Duration {
        let absence = real.saturating_sub(self.seen).min(ABSENCE_MAX);
        (self.seen, self.counted) = (real, self.counted.saturating_add(absence));
        self.counted
    }

    /// Returns the time that the last call counted.
    pub fn counted(&self) -> Duration {
        self.counted
    }

    /// Returns the real time at which the counted time becomes `counted`, if the listener waits for visitors until
    /// then.
    pub fn real(&self, counted: Duration) -> Duration {
        self.seen.saturating_add(counted.saturating_sub(self.counted))
    }

    /// Returns the real time at which a listener must step that waits until the counted time is `counted`. A longer
    /// wait would not count in full.
    pub fn wake(&self, counted: Duration) -> Duration {
        self.real(counted).min(self.seen.saturating_add(ABSENCE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, Limits, Progress};

    const SECOND: Duration = Duration::from_secs(1);

    /// After each part of the opening, the owner serves another client for ten seconds, which is the total time.
    #[test]
    fn time_of_an_absent_owner_is_no_time_of_a_visitor() {
        let (mut clock, mut admission) = (Clock::default(), Admission::new(Limits::default()));
        let number = admission.arrive(clock.return_at(SECOND));
        for part in 1..=5 {
            let now = clock.return_at(SECOND + part * 10 * SECOND);
            assert!(!admission.is_over(number, now), "part {part}");
            admission.heard(number, now, Progress::Bytes);
        }
        // The visitor has the remaining time for its next part, and no more.
        let until = clock.real(admission.deadline().unwrap());
        assert_eq!(until, 61 * SECOND - 5 * ABSENCE_MAX);
        wait(&mut clock, until - Duration::from_nanos(1));
        assert!(!admission.is_over(number, clock.counted()));
        wait(&mut clock, until);
        assert!(admission.is_over(number, clock.counted()));
    }

    /// Waits for visitors until the real time `until`.
    fn wait(clock: &mut Clock, until: Duration) {
        while clock.seen < until {
            clock.return_at(clock.wake(Duration::MAX).min(until));
        }
    }

    /// The process of the listener is stopped for an hour while it waits for a visitor.
    #[test]
    fn a_stop_during_a_wait_costs_a_visitor_a_tenth_of_a_second() {
        let (mut clock, mut admission) = (Clock::default(), Admission::new(Limits::default()));
        let number = admission.arrive(clock.return_at(SECOND));
        wait(&mut clock, 5 * SECOND);
        let woken = clock.wake(admission.deadline().unwrap()) + 3600 * SECOND;
        assert!(!admission.is_over(number, clock.return_at(woken)));
        assert_eq!(clock.real(admission.deadline().unwrap()), woken + 6 * SECOND - ABSENCE_MAX);
    }

    /// The owner never waits for visitors, and looks at them once per second.
    #[test]
    fn the_number_of_steps_of_a_visitor_is_bounded_without_waits() {
        let (mut clock, mut admission) = (Clock::default(), Admission::new(Limits::default()));
        let number = admission.arrive(clock.counted());
        let steps = (1..1000).take_while(|&step| !admission.is_over(number, clock.return_at(step * SECOND)));
        assert_eq!(steps.count(), 99);
    }
}
