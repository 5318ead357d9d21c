//! What is learned from what came of it: whether naps and lingering are worth it here.

/// No nap for so long once one was a mistake.
const FIRST_PENALTY_NS: u64 = 10_000_000;

/// Penalties grow up to this while naps stay mistakes.
const LONGEST_PENALTY_NS: u64 = 100_000_000;

/// Vain attempts are followed by up to 2 to this power, less one, opportunities that are let pass.
const MOST_DOUBLINGS: u32 = 8;

/// Whether the thread may leave the packets to callers.
///
/// A caller that polls for a while and then looks at memory alone (a WRITE ping-pong does) looks
/// as if it were coming back. Its packets lie there for a whole nap, which is how it is known.
#[derive(Debug, Default)]
pub(super) struct Naps {
    forbidden_until_ns: u64,
    penalty_ns: u64,
    /// So was the last one.
    was_wrong: bool,
}

impl Naps {
    pub(super) fn are_allowed(&self, now_ns: u64) -> bool {
        now_ns >= self.forbidden_until_ns
    }

    /// Somebody polled during a nap.
    pub(super) fn was_right(&mut self) {
        self.was_wrong = false;
    }

    /// Packets lay there for a whole nap, and nobody polled. Once may be chance: the caller lost its
    /// processor, or was busy.
    pub(super) fn was_wrong(&mut self, now_ns: u64) {
        if !std::mem::replace(&mut self.was_wrong, true) {
            return;
        }
        let again = self.penalty_ns > 0 && now_ns < self.forbidden_until_ns + self.penalty_ns;
        self.penalty_ns = if again { (2 * self.penalty_ns).min(LONGEST_PENALTY_NS) } else { FIRST_PENALTY_NS };
        self.forbidden_until_ns = now_ns + self.penalty_ns;
    }
}

/// Whether to look again and again for as long as going to sleep and being woken would take.
///
/// Where that is in vain, because the next packet is far or its sender waits for this very
/// processor, opportunities are let pass, twice as many each time.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    doublings: u32,
    to_let_pass: u32,
}

impl Lingering {
    /// Is this opportunity one to take? What came of it is told by [`ended`](Self::ended).
    pub(super) fn begins(&mut self) -> bool {
        let begins = self.to_let_pass == 0;
        self.to_let_pass = self.to_let_pass.saturating_sub(1);
        begins
    }

    pub(super) fn ended(&mut self, in_vain: bool) {
        self.doublings = if in_vain { (self.doublings + 1).min(MOST_DOUBLINGS) } else { 0 };
        self.to_let_pass = (1 << self.doublings) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_that_stay_mistakes_are_rarer_and_rarer() {
        let mut naps = Naps::default();
        assert!(naps.are_allowed(0));
        let mut now_ns = 5;
        naps.was_wrong(now_ns);
        naps.was_right();
        naps.was_wrong(now_ns);
        assert!(naps.are_allowed(now_ns), "it was not twice in a row");
        for penalty_ns in [10_000_000, 20_000_000, 40_000_000] {
            naps.was_wrong(now_ns);
            assert!(!naps.are_allowed(now_ns + penalty_ns - 1));
            now_ns += penalty_ns;
            assert!(naps.are_allowed(now_ns));
        }
        for _ in 0..20 {
            naps.was_wrong(now_ns);
            now_ns = naps.forbidden_until_ns;
        }
        assert_eq!(naps.penalty_ns, LONGEST_PENALTY_NS);
        // A mistake long after the last is the first of its kind.
        naps.was_wrong(now_ns + 2 * LONGEST_PENALTY_NS);
        assert_eq!(naps.penalty_ns, FIRST_PENALTY_NS);
    }

    #[test]
    fn lingering_in_vain_is_rarer_and_rarer_and_success_forgets_it() {
        let mut lingering = Lingering::default();
        let mut passed = Vec::new();
        for _ in 0..10 {
            let mut count = 0;
            while !lingering.begins() {
                count += 1;
            }
            passed.push(count);
            lingering.ended(true);
        }
        assert_eq!(passed, [0, 1, 3, 7, 15, 31, 63, 127, 255, 255]);
        while !lingering.begins() {}
        lingering.ended(false);
        assert!(lingering.begins());
    }
}
