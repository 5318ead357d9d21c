//! When a thread that polls gives its processor to others.
//!
//! Where there are fewer processors than threads that spin, two ends of a connection may share one: then the end that
//! is waited for gets none until the waiting one gives way. Where each has its own, to give way costs a system call
//! at the wrong moment, and where the other thread on this processor is some other program, a whole time slice. So a
//! thread learns from what came of it: whether the processor went to somebody, and whether a message was there
//! afterwards.
#![expect(clippy::disallowed_methods, reason = "the processor's own clock: how long others had it")]

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Rounds without anything before a thread gives way, while nothing is known: some tens of microseconds.
const ROUNDS: u32 = 100;

/// The same where giving way has cost time slices again and again.
const MOST_ROUNDS: u32 = 100 << 7;

/// Nobody waits for longer than this: a peer that is silent for so long has no processor itself. A thread that spins until
/// its own time slice ends loses the processor just when the peer gets one: then the two may take turns for ever, and each
/// message takes a time slice. A thread that gives way early gets its next time slice while the peer still has its own.
const LONGEST_WAIT: Duration = Duration::from_micros(500);

/// After so many rounds the clock is looked at.
const ROUNDS_BETWEEN_LOOKS: u32 = 64;

/// Another thread's turn takes longer. Whatever takes longer was one only if the kernel counted a switch: system calls
/// are slow on some machines, and while they are traced.
const SWITCHED: Duration = Duration::from_nanos(700);

/// A peer that shares the processor gives it back sooner: whoever takes longer is some other program.
const TIME_SLICE: Duration = Duration::from_micros(300);

/// What came of giving way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nobody else wanted the processor.
    Nobody,
    /// Somebody had it for a moment.
    Switched,
    /// Somebody had it for a time slice.
    LostSlice,
}

impl Outcome {
    fn of(took: Duration, is_switched: impl FnOnce() -> bool) -> Self {
        if took < SWITCHED || !is_switched() {
            Self::Nobody
        } else if took < TIME_SLICE {
            Self::Switched
        } else {
            Self::LostSlice
        }
    }
}

/// How many rounds without anything a thread goes through before it gives way.
#[derive(Debug)]
pub(crate) struct Patience {
    /// After so many rounds.
    rounds: u32,
    /// It grows to this.
    longest: u32,
    /// Rounds in which nothing was found.
    empty: u32,
    /// When it was first known that a wait is a long one.
    waits_since: Option<Instant>,
    /// What came of giving way, if that was in the last round.
    last: Option<Outcome>,
    /// How often the kernel has taken the processor from the thread, when that was asked last.
    switches: Option<i64>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { rounds: ROUNDS, longest: ROUNDS, empty: 0, waits_since: None, last: None, switches: None }
    }
}

impl Patience {
    /// A round found something.
    pub(crate) fn found(&mut self) {
        match self.last.take() {
            Some(Outcome::Switched) => {
                self.rounds /= 2;
                self.longest = (self.longest / 2).max(ROUNDS);
            }
            Some(Outcome::Nobody) => self.grow(),
            None if self.empty > 0 => self.grow(),
            // It came after a time slice in which anything may have come, or without a wait.
            Some(Outcome::LostSlice) | None => {}
        }
        self.empty = 0;
    }

    /// A round found nothing: gives way if that is worth it.
    #[inline]
    pub(crate) fn found_nothing(&mut self) {
        if self.is_over(Instant::now) {
            let begun = Instant::now();
            std::thread::yield_now();
            let outcome = Outcome::of(begun.elapsed(), || self.was_switched());
            self.gave_way(outcome);
        }
    }

    /// Has another thread had the processor since this was asked last? Where the kernel does not say, it has.
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
            // Not at once: the peer may share the processor too, and then most turns are its own.
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

    /// Rounds without anything, which take no time, until it gives way, and that this has this outcome.
    fn rounds_until(patience: &mut Patience, outcome: Outcome) -> u32 {
        rounds_that_take(Duration::ZERO, patience, outcome)
    }

    /// The same of rounds that take this long.
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
        // One has a processor of its own again.
        for _ in 0..8 {
            rounds_until(&mut patience, Outcome::Nobody);
            patience.found();
        }
        assert_eq!(rounds_until(&mut patience, Outcome::Nobody), 101);
    }

    #[test]
    fn what_comes_without_giving_way_teaches_patience() {
        let mut patience = Patience { rounds: 0, ..Patience::default() };
        patience.found();
        assert_eq!(patience.rounds, 0, "nobody had to wait for it");
        for _ in 0..8 {
            patience.empty = 1;
            patience.found();
        }
        assert_eq!(patience.rounds, ROUNDS);
    }

    #[test]
    fn time_slices_of_other_programs_are_not_given_away_again_and_again() {
        let mut patience = Patience::default();
        let mut rounds = Vec::new();
        for _ in 0..9 {
            rounds.push(rounds_until(&mut patience, Outcome::LostSlice));
        }
        assert_eq!(rounds, [101, 201, 401, 801, 1601, 3201, 6401, 12_801, 12_801]);
        // The peer came to this processor.
        for _ in 0..20 {
            rounds_until(&mut patience, Outcome::Switched);
            patience.found();
        }
        assert_eq!(rounds_until(&mut patience, Outcome::Switched), 1);
    }

    #[test]
    fn a_peer_and_a_program_that_spins_may_share_the_processor_both() {
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
            assert!(waits.max().unwrap() <= 2, "the program's turn makes nobody wait longer for the peer");
        }
    }

    #[test]
    fn nobody_spins_for_as_long_as_a_time_slice() {
        let mut patience = Patience::default();
        let rounds = |patience: &mut _| rounds_that_take(Duration::from_micros(1), patience, Outcome::LostSlice);
        for _ in 0..20 {
            rounds(&mut patience);
        }
        // The first look at the clock is after the first 64.
        assert_eq!(rounds(&mut patience), 576);
        patience.found();
        assert_eq!(rounds(&mut patience), 576, "a wait that is over counts for none later");
    }

    #[test]
    fn time_and_the_kernel_tell_what_came_of_it() {
        let asked = |took, is_switched| Outcome::of(took, || is_switched);
        assert_eq!(Outcome::of(Duration::from_nanos(400), || unreachable!("it was too short")), Outcome::Nobody);
        assert_eq!(asked(Duration::from_micros(3), true), Outcome::Switched);
        assert_eq!(asked(Duration::from_micros(3), false), Outcome::Nobody, "a slow system call");
        assert_eq!(asked(Duration::from_millis(3), true), Outcome::LostSlice);
    }

    #[test]
    fn the_kernel_counts_what_others_took() {
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
