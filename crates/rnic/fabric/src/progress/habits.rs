//! Durations of naps, watching and lingering of the thread, limits for waiting posts and acknowledgements, and the
//! lessons from unsuccessful naps and lingering.

use doorbell_rnic::MAX_RUN_PACKETS;

/// The numbers of a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// How long the thread leaves the packets to a caller that polls.
    pub(super) nap_ns: u64,
    /// Longest nap while polls keep coming. While callers are active, the thread sleeps no longer on the socket
    /// either.
    pub(super) brief_ns: u64,
    /// Longest nap while callers poll all the time.
    pub(super) longest_nap_ns: u64,
    /// A caller that polls at least once in this time counts as one that polls all the time.
    pub(super) polls_all_the_time_ns: u64,
    /// A program that has armed a notification polls fewer times than this before it sleeps.
    pub(super) polls_before_sleep: u64,
    /// How long the thread, or a caller that waits for a notification, looks for packets before it sleeps.
    pub(super) linger_ns: u64,
    /// Maximum time that a post waits for the caller's next poll or an inbound packet.
    pub(super) longest_deferral_ns: u64,
    /// If fewer packets are in flight than two runs have, a post sends once at least this many requests wait.
    pub(super) short_run_packets: usize,
    /// After an acknowledgement was held back for too long, this many polls that receive something hold none back
    /// beyond a brief sleep of the thread.
    pub(super) wary_polls: usize,
    /// How long the thread takes no nap after two mistaken naps in a row.
    pub(super) first_penalty_ns: u64,
    /// Longest penalty while naps stay mistakes.
    pub(super) longest_penalty_ns: u64,
    /// Unsuccessful lingering skips up to 2 to this power, less one, later opportunities.
    pub(super) most_doublings: u32,
}

/// Values for a link through the kernel, where waking a thread costs several microseconds, and on virtual machines as
/// much as many messages. A link without system calls will need other values.
pub(super) const HABITS: Habits = Habits {
    nap_ns: 100_000,
    // Less than peers wait for an acknowledgement. Also soon enough for the deadlines that callers leave, so that
    // they need not wake the thread.
    brief_ns: 300_000,
    // On some machines, a wake-up by a timer costs as much as many messages.
    longest_nap_ns: 3_000_000,
    polls_all_the_time_ns: 100_000,
    // Programs poll each of their queues once more, and the messages that arrived meanwhile.
    polls_before_sleep: 64,
    // Time that an idle processor of a virtual machine needs to wake up.
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
    /// Returns whether posted requests are sent at once (rule (a)).
    #[inline]
    pub(super) fn sends_at_once(&self, in_flight: usize, waiting: usize) -> bool {
        let run = if in_flight < 2 * MAX_RUN_PACKETS { self.short_run_packets } else { MAX_RUN_PACKETS };
        in_flight == 0 || waiting >= run
    }
}

/// Permission of the thread to leave the packets to callers.
///
/// A caller that polls for a while and then only looks at memory (a WRITE ping-pong does) looks as if it would poll
/// again. Its packets wait for a whole nap, which reveals such a caller.
#[derive(Debug, Default)]
pub(super) struct Naps {
    forbidden_until_ns: u64,
    penalty_ns: u64,
    /// Whether the last nap was a mistake.
    was_wrong: bool,
}

impl Naps {
    pub(super) fn are_allowed(&self, now_ns: u64) -> bool {
        now_ns >= self.forbidden_until_ns
    }

    /// Records that a caller polled during a nap.
    pub(super) fn was_right(&mut self) {
        self.was_wrong = false;
    }

    /// Records that packets waited for a whole nap in which no caller polled. The first time may be chance: the
    /// caller lost its processor, or was busy.
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

/// Permission to look again and again for as long as sleeping and waking up would take.
///
/// Lingering fails if the next packet is far away or its sender waits for this processor. Then later opportunities
/// are skipped, twice as many after each failure.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    doublings: u32,
    to_let_pass: u32,
}

impl Lingering {
    /// Returns whether to use this opportunity. If so, the caller reports the result to [`ended`](Self::ended).
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
    fn repeatedly_wrong_naps_become_rarer() {
        let mut naps = Naps::default();
        assert!(naps.are_allowed(0));
        let mut now_ns = 5;
        naps.was_wrong(now_ns);
        naps.was_right();
        naps.was_wrong(now_ns);
        assert!(naps.are_allowed(now_ns), "a single mistake forbids naps");
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
        // A mistake long after the last one counts as a first one.
        naps.was_wrong(now_ns + 2 * HABITS.longest_penalty_ns);
        assert_eq!(naps.penalty_ns, HABITS.first_penalty_ns);
    }

    #[test]
    fn lingering_backs_off_and_success_resets_it() {
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
