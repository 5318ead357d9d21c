//! Looks of a polling caller that read no clock.
//!
//! Reading the clock takes about as long as a look at a ring. While a caller polls in a tight loop and its link has
//! nothing, the driver therefore pumps only once per several looks. The deadlines of the driver wait for the next pump,
//! so the looks without a pump must take a few microseconds at most. A caller that begins to poll slowly would delay
//! them, so their number grows only while looks are fast.

/// Maximum number of looks between two pumps.
const LOOKS_MAX: u32 = 7;

/// Maximum average time between two looks of a tight loop.
const TIGHT_NS: u64 = 500;

/// Number of looks that the driver may take before its next pump.
#[derive(Debug, Default)]
pub(super) struct Looks {
    pumped_ns: u64,
    /// Looks since the last pump.
    taken: u32,
    /// Maximum of `taken`.
    allowed: u32,
}

impl Looks {
    /// Returns whether the next look need not be a pump.
    #[inline]
    pub(super) fn is_allowed(&self) -> bool {
        self.taken < self.allowed
    }

    /// Records a look without a pump.
    #[inline]
    pub(super) fn take(&mut self) {
        self.taken += 1;
    }

    /// Records that a caller's look is a pump.
    #[inline]
    pub(super) fn pumped(&mut self, now_ns: u64) {
        let looks = u64::from(self.taken) + 1;
        let is_tight = now_ns.saturating_sub(self.pumped_ns) <= looks * TIGHT_NS;
        self.allowed = if is_tight { (2 * self.allowed + 1).min(LOOKS_MAX) } else { 0 };
        (self.pumped_ns, self.taken) = (now_ns, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls once. Returns whether the poll was a pump.
    fn poll(looks: &mut Looks, now_ns: u64) -> bool {
        let is_pump = !looks.is_allowed();
        if is_pump {
            looks.pumped(now_ns);
        } else {
            looks.take();
        }
        is_pump
    }

    #[test]
    fn a_tight_loop_pumps_once_per_eight_looks() {
        let mut looks = Looks::default();
        let pumps: Vec<u64> = (100..140).filter(|&look| poll(&mut looks, look * TIGHT_NS)).collect();
        assert_eq!(pumps, [100, 101, 103, 107, 115, 123, 131, 139]);
        // The loop becomes slow. One pump shows that, and then each look is a pump again.
        let late_ns = |look: u64| 140 * TIGHT_NS + look * 100 * TIGHT_NS;
        let pumps: Vec<u64> = (1..20).filter(|&look| poll(&mut looks, late_ns(look))).collect();
        assert_eq!(pumps, (8..20).collect::<Vec<_>>());
    }

    #[test]
    fn pairs_of_polls_leave_out_at_most_one_pump() {
        let mut looks = Looks::default();
        let mut last_ns = 0;
        for pair in 1..100_u64 {
            for now_ns in [pair * 1_000_000, pair * 1_000_000 + 1] {
                if poll(&mut looks, now_ns) {
                    assert!(now_ns - last_ns <= 1_000_001, "no pump from {last_ns} to {now_ns}");
                    last_ns = now_ns;
                }
            }
        }
    }
}
