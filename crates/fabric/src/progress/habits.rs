//! How long the thread naps, watches and lingers, how long posts and acknowledgements may wait for callers, and what the
//! thread learns from naps and lingering that were in vain.

use doorbell_rnic::MAX_RUN_PACKETS;

/// The numbers of a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// How long the thread leaves the packets to a caller that polls.
    pub(super) nap_ns: u64,
    /// Naps grow up to this while polls keep coming. The thread sleeps no longer on the socket either while callers are
    /// active.
    pub(super) brief_ns: u64,
    /// Naps grow up to this while callers poll all the time.
    pub(super) longest_nap_ns: u64,
    /// A caller that polls at least once in this time counts as one that polls all the time.
    pub(super) polls_all_the_time_ns: u64,
    /// A program that has armed a notification, and is going to sleep, polls fewer times than this before it does.
    pub(super) polls_before_sleep: u64,
    /// How long the thread, or a caller that waits for a notification, looks for packets before it sleeps.
    pub(super) linger_ns: u64,
    /// How long a post may wait at most for the caller's next poll or an inbound packet.
    pub(super) longest_deferral_ns: u64,
    /// A post sends at once if at least this many requests wait, where fewer packets are in flight than two runs have.
    pub(super) short_run_packets: usize,
    /// After an acknowledgement was held back for too long, this many polls that receive something hold none back
    /// beyond a brief sleep of the thread.
    pub(super) wary_polls: usize,
    /// How long the thread takes no nap after a second nap in a row was a mistake.
    pub(super) first_penalty_ns: u64,
    /// Penalties grow up to this while naps stay mistakes.
    pub(super) longest_penalty_ns: u64,
    /// Vain lingering is followed by up to 2 to this power, less one, opportunities that are let pass.
    pub(super) most_doublings: u32,
}

/// For a link through the kernel, where to wake a thread costs several microseconds, and on virtual machines as much as
/// many messages. A link that needs no system call will want others.
pub(super) const HABITS: Habits = Habits {
    nap_ns: 100_000,
    // Less than peers wait for an acknowledgement, and soon enough for the deadlines that callers leave, so that they
    // need not wake the thread.
    brief_ns: 300_000,
    // On some machines to be woken by a timer costs as much as many messages.
    longest_nap_ns: 3_000_000,
    polls_all_the_time_ns: 100_000,
    // Programs look once more at each of their queues, and at what came meanwhile.
    polls_before_sleep: 64,
    // What a processor that idles takes to wake up, on virtual machines.
    linger_ns: 100_000,
    longest_deferral_ns: 1_000_000,
    // The peer might be idle before a whole run is posted.
    short_run_packets: MAX_RUN_PACKETS / 2,
    wary_polls: 64,
    first_penalty_ns: 10_000_000,
    longest_penalty_ns: 100_000_000,
    most_doublings: 8,
};

impl Habits {
    /// Is what was just posted sent at once (rule (a))?
    #[inline]
    pub(super) fn sends_at_once(&self, in_flight: usize, waiting: usize) -> bool {
        let run = if in_flight < 2 * MAX_RUN_PACKETS { self.short_run_packets } else { MAX_RUN_PACKETS };
        in_flight == 0 || waiting >= run
    }
}

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
        self.penalty_ns =
            if again { (2 * self.penalty_ns).min(HABITS.longest_penalty_ns) } else { HABITS.first_penalty_ns };
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
        self.doublings = if in_vain { (self.doublings + 1).min(HABITS.most_doublings) } else { 0 };
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
        assert_eq!(naps.penalty_ns, HABITS.longest_penalty_ns);
        // A mistake long after the last is the first of its kind.
        naps.was_wrong(now_ns + 2 * HABITS.longest_penalty_ns);
        assert_eq!(naps.penalty_ns, HABITS.first_penalty_ns);
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
