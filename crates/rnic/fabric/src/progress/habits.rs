//! Parameters of the policy of a port's thread: durations of naps, watching and lingering, and limits for deferred
//! posts and acknowledgements. Also bursts of posts, and the back-off after unsuccessful naps and unsuccessful
//! lingering.

use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_rnic::MAX_RUN_PACKETS;

/// Parameters of a policy. The rules (a) to (f) are in `progress.rs`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// Duration of the thread's first nap, during which polling callers receive the packets.
    pub(super) nap_ns: u64,
    /// Maximum duration of a nap while callers poll. Also the maximum time that the thread watches the socket while
    /// callers are active.
    pub(super) brief_ns: u64,
    /// Maximum duration of a nap while callers poll all the time.
    pub(super) longest_nap_ns: u64,
    /// Maximum average time between two polls of callers that poll all the time.
    pub(super) polls_all_the_time_ns: u64,
    /// A program that has polled this many times since it armed a notification is assumed to go on polling rather than
    /// to sleep.
    pub(super) polls_before_sleep: u64,
    /// Time that the thread, or a caller that waits for a notification, lingers before it sleeps.
    pub(super) linger_ns: u64,
    /// Maximum time that a deferred post waits for the caller's next poll or an inbound packet.
    pub(super) longest_deferral_ns: u64,
    /// A post sends immediately if at least this number of packets wait, and fewer packets than two full runs are in
    /// flight.
    pub(super) short_run_packets: usize,
    /// Number of posts of datagrams in a row that send immediately. Further posts form full runs.
    pub(super) burst_posts: u64,
    /// Maximum time between two posts in a row.
    pub(super) burst_gap_ns: u64,
    /// Number of polls during which callers are not trusted to answer soon, after an acknowledgement was held back for
    /// too long. Only polls that receive packets count. During these polls, acknowledgements are held back only if the
    /// thread looks again soon.
    pub(super) wary_polls: usize,
    /// Time without naps after two mistaken naps in a row.
    pub(super) first_penalty_ns: u64,
    /// Maximum time without naps, if naps continue to be mistakes.
    pub(super) longest_penalty_ns: u64,
    /// Maximum number of looks between two yields of a lingering caller.
    pub(super) most_looks_per_yield: u32,
    /// Maximum time between two yields of a lingering caller.
    pub(super) longest_without_yield_ns: u64,
    /// A yield that takes less time than this ran no other thread.
    pub(super) idle_yield_ns: u64,
    /// Maximum number of doublings in the back-off of lingering. After `n` doublings, the next 2^n - 1 opportunities to
    /// linger are skipped.
    pub(super) most_doublings: u32,
}

/// Parameters for links through the kernel. Waking a thread takes several microseconds. On virtual machines, it takes
/// as long as the exchange of many messages.
pub(super) const HABITS: Habits = Habits {
    nap_ns: 100_000,
    // Peers retransmit after a longer time than this, and callers leave only later deadlines. So callers need not wake
    // the thread for deadlines.
    brief_ns: 300_000,
    // The thread takes long naps, because on some machines each wake-up by a timer costs as much as many messages.
    longest_nap_ns: 3_000_000,
    polls_all_the_time_ns: 100_000,
    // After arming a notification, a program that will sleep still polls each of its queues once, and receives the
    // messages that have arrived by then. These polls are fewer than 64.
    polls_before_sleep: 64,
    // An idle processor of a virtual machine needs about this time to wake up.
    linger_ns: 100_000,
    longest_deferral_ns: 1_000_000,
    // Posts do not wait for a full run, since the peer might be idle until then.
    short_run_packets: MAX_RUN_PACKETS / 2,
    // Few datagrams may be all that a program sends before it waits for something else than this device.
    burst_posts: 4,
    // The system call that sends a datagram of 4 KiB takes 10 us on a slow machine.
    burst_gap_ns: 50_000,
    wary_polls: 64,
    first_penalty_ns: 10_000_000,
    longest_penalty_ns: 100_000_000,
    // A look at rings takes less than 0.1 us, so a peer that waits for this processor waits as briefly as for a switch
    // between threads. A look at a socket takes longer, so the time limits the wait there.
    most_looks_per_yield: 64,
    longest_without_yield_ns: 5_000,
    // Two switches between threads take more than this, and a system call without a switch less.
    idle_yield_ns: 1_500,
    most_doublings: 8,
};

impl Habits {
    /// Returns whether a post sends immediately (rule (a)), given the number of packets in flight and the number that
    /// wait.
    #[inline]
    pub(super) fn sends_at_once(&self, in_flight: usize, waiting: usize) -> bool {
        let run = if in_flight < 2 * MAX_RUN_PACKETS { self.short_run_packets } else { MAX_RUN_PACKETS };
        in_flight == 0 || waiting >= run
    }
}

/// Posts of datagrams in a row.
///
/// Datagrams are not acknowledged, so they are never in flight, and each post would send by itself, with a system call.
/// A caller that posts again and again without a poll can wait for a run: it polls next. If a packet has arrived, the
/// caller may have seen its message without a poll, so the burst ends. All calls of [`note`](Self::note) happen below
/// the engine's lock.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Number of polls and received packets at the last post.
    events: AtomicU64,
    /// Time of the last post.
    at_ns: AtomicU64,
    posts: AtomicU64,
}

impl Burst {
    /// Records a post, with the number of polls of the engine and of packets received until now. Returns the number of
    /// packets that count as in flight: none, or enough that posts wait for a full run. No answer triggers the send, so
    /// there is no reason to send less.
    #[inline]
    pub(super) fn note(&self, events: u64, now_ns: u64) -> usize {
        let before_ns = self.at_ns.load(Ordering::Relaxed);
        let goes_on =
            events == self.events.load(Ordering::Relaxed) && now_ns.saturating_sub(before_ns) <= HABITS.burst_gap_ns;
        let posts = if goes_on { self.posts.load(Ordering::Relaxed) + 1 } else { 1 };
        self.events.store(events, Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
        self.posts.store(posts, Ordering::Relaxed);
        if posts > HABITS.burst_posts { 2 * MAX_RUN_PACKETS } else { 0 }
    }
}

/// State that decides whether the thread may nap, and leave the packets to callers.
///
/// Some callers poll for a while and then only read memory, as in a WRITE ping-pong. The thread expects them to poll
/// again and naps. If packets waited for the whole nap, the nap was a mistake.
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

    /// Records that a caller polled during the nap.
    pub(super) fn was_right(&mut self) {
        self.was_wrong = false;
    }

    /// Records that packets waited for a whole nap in which no caller polled. A single mistake has no effect: the
    /// caller may have been busy or without a processor.
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

/// State that decides whether to linger: to look for packets again and again for about the time of a wake-up.
///
/// Lingering fails if the next packet arrives late, or if its sender waits for this processor. After each failure,
/// about twice as many opportunities to linger are skipped.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    doublings: u32,
    to_let_pass: u32,
}

impl Lingering {
    /// Returns whether to linger now. If so, the caller reports the result to [`ended`](Self::ended).
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

/// Schedule of the yields of a caller that lingers.
///
/// The peer may wait for this processor, so a lingering caller must yield it. But a yield takes as long as several
/// looks. If it returns at once, no other thread waits for this processor, so the peer runs on another one. Each such
/// yield doubles the number of looks until the next yield. After a yield that ran another thread, the caller yields
/// after each look.
///
/// The yields become rare, but they do not end while the peer runs on another processor. The scheduler may move the
/// peer to this processor at any time. Only a system call can show that, since the kernel alone knows which threads
/// wait for a processor. A yield is such a call, and also lets the peer run.
/// Without yields, a peer that was moved here would wait until the caller stops lingering ([`Habits::linger_ns`]), and
/// the lingering would fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yields {
    looks: u32,
    looks_per_yield: u32,
}

impl Default for Yields {
    fn default() -> Self {
        Self { looks: 0, looks_per_yield: 1 }
    }
}

impl Yields {
    /// Records a look that found nothing. Returns whether the caller must yield now. If so, the caller reports the
    /// duration of the yield to [`yielded`](Self::yielded). `since_ns` is the time since the previous yield.
    #[inline]
    pub(super) fn is_due(&mut self, since_ns: u64) -> bool {
        self.looks += 1;
        self.looks >= self.looks_per_yield || since_ns >= HABITS.longest_without_yield_ns
    }

    pub(super) fn yielded(&mut self, took_ns: u64) {
        self.looks = 0;
        let is_idle = took_ns < HABITS.idle_yield_ns;
        self.looks_per_yield = if is_idle { (2 * self.looks_per_yield).min(HABITS.most_looks_per_yield) } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of looks until the next yield.
    fn looks_until_yield(yields: &mut Yields) -> u32 {
        (1..).find(|_| yields.is_due(0)).unwrap()
    }

    #[test]
    fn yields_become_rare_while_no_other_thread_wants_the_processor() {
        let mut yields = Yields::default();
        let mut looks = Vec::new();
        for _ in 0..8 {
            looks.push(looks_until_yield(&mut yields));
            yields.yielded(HABITS.idle_yield_ns - 1);
        }
        assert_eq!(looks, [1, 2, 4, 8, 16, 32, 64, 64]);
        // The looks of the next wait count together with those of this one.
        assert!((1..40).all(|_| !yields.is_due(0)));
        assert_eq!(looks_until_yield(&mut yields), 25);
        yields.yielded(HABITS.idle_yield_ns);
        assert_eq!(looks_until_yield(&mut yields), 1, "another thread shares the processor");
    }

    #[test]
    fn slow_looks_yield_by_the_clock() {
        let mut yields = Yields { looks: 0, looks_per_yield: HABITS.most_looks_per_yield };
        assert!(!yields.is_due(HABITS.longest_without_yield_ns - 1));
        assert!(yields.is_due(HABITS.longest_without_yield_ns));
    }

    #[test]
    fn a_burst_of_datagrams_counts_as_in_flight_until_a_poll_a_packet_or_a_pause() {
        let burst = Burst::default();
        let mut at_ns = 0;
        let mut note = |events, after_ns| {
            at_ns += after_ns;
            burst.note(events, at_ns)
        };
        for (events, first_gap_ns) in [(7, 1_000_000), (8, 100), (8, HABITS.burst_gap_ns + 1)] {
            let noted: Vec<_> = [first_gap_ns, 100, HABITS.burst_gap_ns, 0, 0, 100].map(|gap| note(events, gap)).into();
            assert_eq!(
                noted,
                [0, 0, 0, 0, 2 * MAX_RUN_PACKETS, 2 * MAX_RUN_PACKETS],
                "from {events} events and {first_gap_ns} ns on"
            );
        }
    }

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
        // If the last mistake was long ago, the penalty begins with its first value again.
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
