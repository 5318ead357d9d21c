//! Decision when a polling thread yields its processor.
//!
//! If there are fewer processors than spinning threads, the two ends of a connection may share a processor. In that
//! case, the peer cannot run until the waiting end yields. If each end has its own processor, a yield costs a system
//! call that may delay a message. If another program shares the processor, a yield costs a whole time slice. A thread
//! therefore adapts after each yield. It considers whether another thread took the processor, and whether a message had
//! arrived afterwards.
#![expect(clippy::disallowed_methods, reason = "yields are timed in real time")]

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Initial number of empty rounds before a thread yields. These rounds take some tens of microseconds.
const ROUNDS: u32 = 100;

/// Maximum number of empty rounds before a thread yields. A thread reaches this number after yields have repeatedly
/// cost time slices.
const MOST_ROUNDS: u32 = 100 << 7;

/// Maximum time that a thread waits before a yield. A peer that sends nothing for longer probably has no processor. If
/// the waiting thread spins until its time slice ends, it loses its processor just when the peer gets one. Thread and
/// peer may then alternate forever, and each message takes a time slice. A thread that yields early gets its next time
/// slice while the peer is still running.
const LONGEST_WAIT: Duration = Duration::from_micros(500);

/// Number of empty rounds between two clock reads.
const ROUNDS_BETWEEN_LOOKS: u32 = 64;

/// Minimum duration of a yield in which another thread ran. For longer yields, the kernel's count of context switches
/// decides, since a system call alone may take as long on some machines or under a tracer.
const SWITCHED: Duration = Duration::from_nanos(700);

/// Minimum duration of a yield in which another program ran for a time slice. A peer that shares the processor gives
/// the processor back sooner.
const TIME_SLICE: Duration = Duration::from_micros(300);

/// Outcome of a yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// No other thread wanted the processor.
    Kept,
    /// Another thread had the processor for a moment.
    Switched,
    /// Another thread had the processor for a time slice.
    LostSlice,
}

impl Outcome {
    fn of(took: Duration, is_switched: impl FnOnce() -> bool) -> Self {
        if took < SWITCHED || !is_switched() {
            Self::Kept
        } else if took < TIME_SLICE {
            Self::Switched
        } else {
            Self::LostSlice
        }
    }
}

/// Number of empty rounds before a thread yields, adapted to the outcomes of its yields.
#[derive(Debug)]
pub(crate) struct YieldPolicy {
    /// Empty rounds before the next yield.
    rounds: u32,
    /// Maximum of `rounds`.
    longest: u32,
    /// Number of consecutive empty rounds so far.
    empty: u32,
    /// Time at which the current wait had lasted for [`ROUNDS_BETWEEN_LOOKS`] rounds.
    waits_since: Option<Instant>,
    /// Outcome of the yield in the last round, or `None` if that round had no yield.
    last: Option<Outcome>,
    /// Number of the thread's involuntary context switches at the last query.
    switches: Option<i64>,
}

impl Default for YieldPolicy {
    fn default() -> Self {
        Self { rounds: ROUNDS, longest: ROUNDS, empty: 0, waits_since: None, last: None, switches: None }
    }
}

impl YieldPolicy {
    /// Records that a round found a completion.
    pub(crate) fn found(&mut self) {
        match self.last.take() {
            Some(Outcome::Switched) => {
                self.rounds /= 2;
                self.longest = (self.longest / 2).max(ROUNDS);
            }
            Some(Outcome::Kept) => self.grow(),
            None if self.empty > 0 => self.grow(),
            // Keep the number of rounds: a message may have arrived by chance during a lost time slice, or without a
            // wait.
            Some(Outcome::LostSlice) | None => {}
        }
        self.empty = 0;
    }

    /// Records an empty round, and yields after enough empty rounds.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        if self.is_over(Instant::now) {
            let begun = Instant::now();
            std::thread::yield_now();
            let outcome = Outcome::of(begun.elapsed(), || self.was_switched());
            self.gave_way(outcome);
        }
    }

    /// Returns whether another thread has had the processor since the last query. Returns `true` if the kernel does not
    /// count context switches.
    fn was_switched(&mut self) -> bool {
        let now = getrusage(UsageWho::RUSAGE_THREAD).ok().map(|usage| usage.involuntary_context_switches());
        let before = std::mem::replace(&mut self.switches, now);
        now.is_none() || now != before
    }

    #[inline]
    fn is_over(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.last = None;
        self.empty = self.empty.saturating_add(1);
        self.empty > self.rounds || self.empty.is_multiple_of(ROUNDS_BETWEEN_LOOKS) && self.waits_long(now())
    }

    #[cold]
    fn waits_long(&mut self, now: Instant) -> bool {
        if self.empty == ROUNDS_BETWEEN_LOOKS {
            self.waits_since = Some(now);
        }
        self.waits_since.is_some_and(|since| now.saturating_duration_since(since) >= LONGEST_WAIT)
    }

    fn gave_way(&mut self, outcome: Outcome) {
        self.last = Some(outcome);
        if outcome == Outcome::LostSlice {
            self.longest = (2 * self.longest).min(MOST_ROUNDS);
            // Grow by one step instead of growing to the limit. If the peer shares the processor too, most switches go
            // to the peer.
            self.grow();
            self.empty = 0;
        }
    }

    fn grow(&mut self) {
        self.rounds = (2 * self.rounds + 1).min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Returns the number of empty rounds until a yield, and records `outcome` for that yield. The rounds take no time.
    fn rounds_until(policy: &mut YieldPolicy, outcome: Outcome) -> u32 {
        rounds_that_take(Duration::ZERO, policy, outcome)
    }

    /// Returns the number of empty rounds until a yield, and records `outcome` for that yield. Each round takes `each`.
    fn rounds_that_take(each: Duration, policy: &mut YieldPolicy, outcome: Outcome) -> u32 {
        let begun = Instant::now();
        let mut rounds = 1;
        while !policy.is_over(|| begun + each * rounds) {
            rounds += 1;
        }
        policy.gave_way(outcome);
        rounds
    }

    #[test]
    fn threads_that_share_a_processor_give_way_at_once() {
        let mut policy = YieldPolicy::default();
        let mut rounds = Vec::new();
        for _ in 0..9 {
            rounds.push(rounds_until(&mut policy, Outcome::Switched));
            policy.found();
        }
        assert_eq!(rounds, [101, 51, 26, 13, 7, 4, 2, 1, 1]);
        // From here on, no other thread wants the processor.
        for _ in 0..8 {
            rounds_until(&mut policy, Outcome::Kept);
            policy.found();
        }
        assert_eq!(rounds_until(&mut policy, Outcome::Kept), 101);
    }

    #[test]
    fn messages_without_a_yield_teach_patience() {
        let mut policy = YieldPolicy { rounds: 0, ..YieldPolicy::default() };
        policy.found();
        assert_eq!(policy.rounds, 0, "no other thread waited for the processor");
        for _ in 0..8 {
            policy.empty = 1;
            policy.found();
        }
        assert_eq!(policy.rounds, ROUNDS);
    }

    #[test]
    fn lost_time_slices_double_the_rounds() {
        let mut policy = YieldPolicy::default();
        let mut rounds = Vec::new();
        for _ in 0..9 {
            rounds.push(rounds_until(&mut policy, Outcome::LostSlice));
        }
        assert_eq!(rounds, [101, 201, 401, 801, 1601, 3201, 6401, 12_801, 12_801]);
        // From here on, the peer shares this processor.
        for _ in 0..20 {
            rounds_until(&mut policy, Outcome::Switched);
            policy.found();
        }
        assert_eq!(rounds_until(&mut policy, Outcome::Switched), 1);
    }

    #[test]
    fn a_peer_and_a_spinning_program_may_share_the_processor() {
        let mut policy = YieldPolicy::default();
        for _ in 0..8 {
            rounds_until(&mut policy, Outcome::Switched);
            policy.found();
        }
        for _ in 0..10 {
            let waits = (0..10).map(|turn| {
                let outcome = if turn == 0 { Outcome::LostSlice } else { Outcome::Switched };
                let rounds = rounds_until(&mut policy, outcome);
                policy.found();
                rounds
            });
            assert!(waits.max().unwrap() <= 2, "the program's turn does not prolong the wait for the peer");
        }
    }

    #[test]
    fn a_thread_yields_before_its_time_slice_ends() {
        let mut policy = YieldPolicy::default();
        let rounds = |policy: &mut _| rounds_that_take(Duration::from_micros(1), policy, Outcome::LostSlice);
        for _ in 0..20 {
            rounds(&mut policy);
        }
        // The first clock read comes after 64 rounds, and the wait is measured from there.
        assert_eq!(rounds(&mut policy), 576);
        policy.found();
        assert_eq!(rounds(&mut policy), 576, "an earlier wait does not shorten a later one");
    }

    #[test]
    fn duration_and_kernel_count_decide_the_outcome() {
        let asked = |took, is_switched| Outcome::of(took, || is_switched);
        assert_eq!(
            Outcome::of(Duration::from_nanos(400), || unreachable!("a short yield needs no kernel count")),
            Outcome::Kept
        );
        assert_eq!(asked(Duration::from_micros(3), true), Outcome::Switched);
        assert_eq!(asked(Duration::from_micros(3), false), Outcome::Kept, "a slow system call");
        assert_eq!(asked(Duration::from_millis(3), true), Outcome::LostSlice);
    }

    #[test]
    fn the_kernel_counts_involuntary_switches() {
        let mut policy = YieldPolicy::default();
        assert!(policy.was_switched(), "nothing is known at first");
        assert!((0..1000).any(|_| !policy.was_switched()), "this thread has the processor for a moment");
        let cpu = nix::sched::sched_getcpu().unwrap();
        let over = AtomicBool::new(false);
        let gives_way = || {
            let _pinned = doorbell_machine::pinning::Pinned::to(cpu).unwrap();
            while !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(gives_way);
            let _pinned = doorbell_machine::pinning::Pinned::to(cpu).unwrap();
            let begun = Instant::now();
            let mut is_switched = false;
            while !is_switched && begun.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
                is_switched = policy.was_switched();
            }
            over.store(true, Ordering::Relaxed);
            assert!(is_switched);
        });
    }
}
