//! Times at which devices are read.

use std::time::{Duration, Instant};

/// Times at which the devices are read: in equal steps from the start, regardless of the time that a reading takes.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    step: Duration,
    steps: u32,
    left: Option<u64>,
}

impl Pace {
    /// Returns the length of a step.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// Returns the times from now on, in steps of this length. There are `count` times, or no end.
    pub fn new(step: Duration, count: Option<u64>) -> Self {
        Self { start: Instant::now(), step, steps: 0, left: count }
    }

    /// Returns the time of the next look at the devices, or `None` after the last look.
    pub fn next_look(&mut self) -> Option<Instant> {
        self.left = match self.left {
            Some(0) => return None,
            left => left.map(|left| left - 1),
        };
        // Skip the steps that were missed, such as while the machine was suspended.
        let passed = self.start.elapsed().as_nanos() / self.step.as_nanos();
        self.steps = u32::try_from(passed.saturating_add(1)).unwrap_or(u32::MAX).max(self.steps.saturating_add(1));
        self.start.checked_add(self.step.checked_mul(self.steps)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_in_equal_steps_up_to_the_count() {
        let mut pace = Pace::new(Duration::from_secs(10), Some(2));
        let start = pace.start;
        assert_eq!(pace.next_look(), Some(start + Duration::from_secs(10)));
        assert_eq!(pace.next_look(), Some(start + Duration::from_secs(20)));
        assert_eq!(pace.next_look(), None);
        assert!(Pace::new(Duration::from_secs(3600), None).next_look().is_some());
    }
}
