//! The decision when a thread that polls yields its processor.
//!
//! If fewer processors exist than threads that spin, two ends of a connection may share one. Then the peer cannot run
//! until the waiting end yields. If each end has its own processor, a yield costs a system call at the wrong moment.
//! If another program shares the processor, a yield costs a whole time slice. So a thread learns from each yield:
//! whether another thread took the processor, and whether a message was there afterwards.
#![expect(clippy::disallowed_methods, reason = "the processor's own clock: how long others had it")]

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Empty rounds before a thread yields, until it has learned: some tens of microseconds.
const ROUNDS: u32 = 100;

/// Maximum number of empty rounds, after yields have cost time slices repeatedly.
const MOST_ROUNDS: u32 = 100 << 7;

/// The longest wait before a yield: a peer that is silent for longer has no processor itself. A thread that spins
/// until its own time slice ends loses the processor just when the peer gets one. Then the two may alternate forever,
/// and each message takes a time slice. A thread that yields early gets its next time slice while the peer still has
/// its own.
const LONGEST_WAIT: Duration = Duration::from_micros(500);

/// Empty rounds between two looks at the clock.
const ROUNDS_BETWEEN_LOOKS: u32 = 64;

/// The shortest turn of another thread. A longer yield counts as a switch only if the kernel counted one: system calls
/// are slow on some machines, and while they are traced.
const SWITCHED: Duration = Duration::from_nanos(700);

/// The shortest turn of another program. A peer that shares the processor gives it back sooner.
const TIME_SLICE: Duration = Duration::from_micros(300);

/// The outcome of a yield.
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

/// The number of empty rounds before a thread yields.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Empty rounds before the next yield.
    rounds: u32,
    /// Limit to which `rounds` grows.
    longest: u32,
    /// Rounds in which nothing was found.
    empty: u32,
    /// The time at which the current wait was first found to be long.
    waits_since: Option<Instant>,
    /// The outcome of the yield in the last round, if it had one.
    last: Option<Outcome>,
    /// The thread's involuntary context switches at the last query.
    switches: Option<i64>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { rounds: ROUNDS, longest: ROUNDS, empty: 0, waits_since: None, last: None, switches: None }
    }
}

impl Patience {
    /// Records that a round found something.
    pub(crate) fn found(&mut self) {
        match self.last.take() {
            Some(Outcome::Switched) => {
                self.rounds /= 2;
                self.longest = (self.longest / 2).max(ROUNDS);
            }
            Some(Outcome::Kept) => self.grow(),
            None if self.empty > 0 => self.grow(),
            // A message may arrive during a time slice by chance, or without a wait: neither case teaches anything.
            Some(Outcome::LostSlice) | None => {}
        }
        self.empty = 0;
    }

    /// Records an empty round, and yields if that is worthwhile.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        if self.is_over(Instant::now) {
            let begun = Instant::now();
            std::thread::yield_now();
            let outcome = Outcome::of(begun.elapsed(), || self.was_switched());
            self.gave_way(outcome);
        }
    }

    /// Returns whether another thread has had the processor since the last query. If the kernel does not tell, returns
    /// `true`.
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
            // Do not grow to the limit at once: the peer may share the processor too, and then most turns are its own.
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

    /// Returns the number of empty rounds, which take no time, until a yield, and gives that yield this outcome.
    fn rounds_until(patience: &mut Patience, outcome: Outcome) -> u32 {
        rounds_that_take(Duration::ZERO, patience, outcome)
    }

    /// Does the same with rounds that take `each`.
    fn rounds_that_take(each: Duration, patience: &mut Patience, outcome: Outcome) -> u32 {
        let begun = Instant::now();
        let mut rounds = 1;
        while !patience.is_over(|| begun + each * rounds) {
            rounds += 1;
        }
        patience.gave_way(outcome);
        rounds
    }

    #[test]
    fn threads_that_share_a_processor_give_way_at_once() {
        let mut patience = Patience::default();
        let mut rounds = Vec::new();
        for _ in 0..9 {
            rounds.push(rounds_until(&mut patience, Outcome::Switched));
            patience.found();
        }
        assert_eq!(rounds, [101, 51, 26, 13, 7, 4, 2, 1, 1]);
        // One of the two has a processor of its own again.
        for _ in 0..8 {
            rounds_until(&mut patience, Outcome::Kept);
            patience.found();
        }
        assert_eq!(rounds_until(&mut patience, Outcome::Kept), 101);
    }

    #[test]
    fn messages_without_a_yield_teach_patience() {
        let mut patience = Patience { rounds: 0, ..Patience::default() };
        patience.found();
        assert_eq!(patience.rounds, 0, "no thread had to wait for it");
        for _ in 0..8 {
            patience.empty = 1;
            patience.found();
        }
        assert_eq!(patience.rounds, ROUNDS);
    }

    #[test]
    fn lost_time_slices_double_the_rounds() {
        let mut patience = Patience::default();
        let mut rounds = Vec::new();
        for _ in 0..9 {
            rounds.push(rounds_until(&mut patience, Outcome::LostSlice));
        }
        assert_eq!(rounds, [101, 201, 401, 801, 1601, 3201, 6401, 12_801, 12_801]);
        // The peer moved to this processor.
        for _ in 0..20 {
            rounds_until(&mut patience, Outcome::Switched);
            patience.found();
        }
        assert_eq!(rounds_until(&mut patience, Outcome::Switched), 1);
    }

    #[test]
    fn a_peer_and_a_spinning_program_may_share_the_processor() {
        let mut patience = Patience::default();
        for _ in 0..8 {
            rounds_until(&mut patience, Outcome::Switched);
            patience.found();
        }
        for _ in 0..10 {
            let waits = (0..10).map(|turn| {
                let outcome = if turn == 0 { Outcome::LostSlice } else { Outcome::Switched };
                let rounds = rounds_until(&mut patience, outcome);
                patience.found();
                rounds
            });
            assert!(waits.max().unwrap() <= 2, "the program's turn does not prolong the wait for the peer");
        }
    }

    #[test]
    fn a_thread_yields_before_its_time_slice_ends() {
        let mut patience = Patience::default();
        let rounds = |patience: &mut _| rounds_that_take(Duration::from_micros(1), patience, Outcome::LostSlice);
        for _ in 0..20 {
            rounds(&mut patience);
        }
        // The first look at the clock comes after 64 rounds.
        assert_eq!(rounds(&mut patience), 576);
        patience.found();
        assert_eq!(rounds(&mut patience), 576, "an earlier wait does not shorten a later one");
    }

    #[test]
    fn duration_and_kernel_count_decide_the_outcome() {
        let asked = |took, is_switched| Outcome::of(took, || is_switched);
        assert_eq!(Outcome::of(Duration::from_nanos(400), || unreachable!("it was too short")), Outcome::Kept);
        assert_eq!(asked(Duration::from_micros(3), true), Outcome::Switched);
        assert_eq!(asked(Duration::from_micros(3), false), Outcome::Kept, "a slow system call");
        assert_eq!(asked(Duration::from_millis(3), true), Outcome::LostSlice);
    }

    #[test]
    fn the_kernel_counts_involuntary_switches() {
        let mut patience = Patience::default();
        assert!(patience.was_switched(), "nothing is known at first");
        assert!((0..1000).any(|_| !patience.was_switched()), "this thread has the processor for a moment");
        let cpu = nix::sched::sched_getcpu().unwrap();
        let over = AtomicBool::new(false);
        let gives_way = || {
            let _pinned = crate::pinning::Pinned::to(cpu).unwrap();
            while !over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(gives_way);
            let _pinned = crate::pinning::Pinned::to(cpu).unwrap();
            let begun = Instant::now();
            let mut is_switched = false;
            while !is_switched && begun.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
                is_switched = patience.was_switched();
            }
            over.store(true, Ordering::Relaxed);
            assert!(is_switched);
        });
    }
}
