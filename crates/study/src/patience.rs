//! When a thread that polls gives its processor to others.
//!
//! Where there are fewer processors than threads that spin, two ends of a connection may share one: then the end that
//! is waited for gets none until the waiting one gives way. Where each has its own, to give way costs a system call
//! at the wrong moment, and where the other thread on this processor is some other program, a whole time slice. So a
//! thread learns from what came of it: whether the processor went to somebody, and whether a message was there
//! afterwards.
#![expect(clippy::disallowed_methods, reason = "the processor's own clock: how long others had it")]

use std::time::{Duration, Instant};

/// Rounds without anything before a thread gives way, while nothing is known: some tens of microseconds.
const ROUNDS: u32 = 100;

/// The same where giving way has cost time slices again and again.
const MOST_ROUNDS: u32 = 100 << 7;

/// A system call without another thread behind it takes less.
const SWITCHED: Duration = Duration::from_micros(1);

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
    fn of(took: Duration) -> Self {
        if took < SWITCHED {
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
    /// What came of giving way, if that was in the last round.
    last: Option<Outcome>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { rounds: ROUNDS, longest: ROUNDS, empty: 0, last: None }
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
    pub(crate) fn found_nothing(&mut self) {
        if self.is_over() {
            let begun = Instant::now();
            std::thread::yield_now();
            self.gave_way(Outcome::of(begun.elapsed()));
        }
    }

    fn is_over(&mut self) -> bool {
        self.last = None;
        self.empty = self.empty.saturating_add(1);
        self.empty > self.rounds
    }

    fn gave_way(&mut self, outcome: Outcome) {
        self.last = Some(outcome);
        if outcome == Outcome::LostSlice {
            self.longest = (2 * self.longest).min(MOST_ROUNDS);
            self.rounds = self.longest;
            self.empty = 0;
        }
    }

    fn grow(&mut self) {
        self.rounds = (2 * self.rounds + 1).min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds without anything until it gives way, and that this has this outcome.
    fn rounds_until(patience: &mut Patience, outcome: Outcome) -> u32 {
        let mut rounds = 1;
        while !patience.is_over() {
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
    fn time_tells_what_came_of_it() {
        assert_eq!(Outcome::of(Duration::from_nanos(400)), Outcome::Nobody);
        assert_eq!(Outcome::of(Duration::from_micros(3)), Outcome::Switched);
        assert_eq!(Outcome::of(Duration::from_millis(3)), Outcome::LostSlice);
    }
}
