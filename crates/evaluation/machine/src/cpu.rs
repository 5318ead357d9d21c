//! CPU time of an end, and the share of it that polls without a completion take.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// CPU time of one end over a point, from its first message to its last, warm-up included. An unknown value is
/// `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// CPU time of all threads of the process, in nanoseconds. It includes the thread of a software RNIC and the
    /// kernel's work for these threads.
    pub all_ns: Option<u64>,
    /// Part of `all_ns` spent in rounds of polling in which all connections of a thread found nothing, in
    /// nanoseconds. All such rounds are counted, and a sample of them is timed.
    pub empty_ns: Option<u64>,
}

impl CpuTime {
    /// Returns the CPU time used since `before`.
    pub fn since(self, before: Self) -> Self {
        let used = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let all_ns = used(self.all_ns, before.all_ns);
        // A sample of few rounds may be inaccurate.
        let empty_ns = used(self.empty_ns, before.empty_ns).map(|empty| empty.min(all_ns.unwrap_or(empty)));
        Self { all_ns, empty_ns }
    }

    /// Returns the sum of two ends. A sum with an unknown part is unknown.
    pub fn and(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Self { all_ns: sum(self.all_ns, other.all_ns), empty_ns: sum(self.empty_ns, other.empty_ns) }
    }

    /// Divides the times by a number of messages. The result is `None` for zero messages.
    pub fn per_message(self, messages: u64) -> CpuPerMessage {
        let us = |ns: u64| (messages > 0).then(|| ns as f64 / 1e3 / messages as f64);
        CpuPerMessage { all_us: self.all_ns.and_then(us), useful_us: self.useful_ns().and_then(us) }
    }

    /// Returns the CPU time without rounds that found nothing.
    pub fn useful_ns(self) -> Option<u64> {
        Some(self.all_ns?.saturating_sub(self.empty_ns?))
    }
}

/// [`CpuTime`] per message that the asking end sent, warm-up included. If each message is answered, the time covers
/// the message and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuPerMessage {
    /// Total, in microseconds.
    pub all_us: Option<f64>,
    /// Total without rounds of polling that found nothing, in microseconds.
    pub useful_us: Option<f64>,
}

fn read(clock: ClockId) -> Option<u64> {
    let now = Duration::from(clock_gettime(clock).ok()?);
    u64::try_from(now.as_nanos()).ok()
}

/// Returns the CPU time that this process has used.
pub fn of_process() -> Option<u64> {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Interval of timed rounds among those that find nothing. Timing takes two system calls, which take longer than a
/// message through shared memory, so only few messages may meet a timed round.
const ROUNDS_PER_SAMPLE: u32 = 1024;

/// Number of clock reads from which the cost of one is determined.
const LOOKS: usize = 15;

/// Count and cost of the rounds of one thread that found nothing.
#[derive(Debug, Default)]
pub struct EmptyRounds {
    count: u64,
    samples: u64,
    sampled_ns: u64,
    countdown: u32,
    began_ns: Option<u64>,
    /// Time that a clock read adds to each sample.
    look_ns: Option<u64>,
}

/// Returns the CPU time between two consecutive reads of a thread's clock: the median of several.
fn cost_of_a_look() -> Option<u64> {
    let looks: Vec<u64> = (0..=LOOKS).filter_map(|_| read(ClockId::CLOCK_THREAD_CPUTIME_ID)).collect();
    let mut costs: Vec<u64> = looks.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied()
}

impl EmptyRounds {
    /// Counts a round that found nothing.
    pub fn empty(&mut self) {
        self.count += 1;
        if let Some(began_ns) = self.began_ns.take() {
            if let Some(ended_ns) = read(ClockId::CLOCK_THREAD_CPUTIME_ID) {
                self.samples += 1;
                // A round takes no longer than a clock read. The read would dominate the sample, so its cost is
                // subtracted.
                let look_ns = *self.look_ns.get_or_insert_with(|| cost_of_a_look().unwrap_or(0));
                self.sampled_ns += ended_ns.saturating_sub(began_ns).saturating_sub(look_ns);
            }
            self.countdown = ROUNDS_PER_SAMPLE;
        }
        match self.countdown.checked_sub(1) {
            Some(left) => self.countdown = left,
            // The next round is timed: if it finds nothing either, it becomes a sample.
            None => self.began_ns = read(ClockId::CLOCK_THREAD_CPUTIME_ID),
        }
    }

    /// Ends a round that found something. Such a round is not a sample.
    pub fn busy(&mut self) {
        if self.began_ns.take().is_some() {
            // If every other round finds messages, each message would otherwise meet a clock read.
            self.countdown = ROUNDS_PER_SAMPLE;
        }
    }

    /// Returns the number of rounds that found nothing.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the estimated CPU time of all rounds that found nothing.
    pub fn ns(&self) -> u64 {
        if self.samples == 0 {
            return 0;
        }
        (self.count as f64 * (self.sampled_ns as f64 / self.samples as f64)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_rounds_are_counted_and_sampled() {
        let mut rounds = EmptyRounds::default();
        for _ in 0..100_000 {
            rounds.empty();
        }
        assert_eq!(rounds.count, 100_000);
        assert!((90..=100).contains(&rounds.samples), "{}", rounds.samples);
        assert!(rounds.ns() >= rounds.sampled_ns);
    }

    /// If the cost of the clock counted, each empty round would seem to take a system call.
    #[test]
    fn clock_cost_is_subtracted_from_samples() {
        let rounds = || {
            let mut rounds = EmptyRounds::default();
            (0..100_000).for_each(|_| rounds.empty());
            assert!(rounds.look_ns.is_some_and(|look_ns| look_ns > 0), "some rounds were timed: {rounds:?}");
            rounds
        };
        // Interrupts of a busy machine affect some samples, but few of the reads that determine the clock's cost.
        let is_small = |rounds: &EmptyRounds| rounds.sampled_ns < rounds.samples * rounds.look_ns.unwrap_or(0);
        assert!((0..10).any(|_| is_small(&rounds())), "{:?}", rounds());
    }

    #[test]
    fn a_round_that_found_something_is_no_sample() {
        let mut rounds = EmptyRounds::default();
        for _ in 0..1000 {
            rounds.empty();
            rounds.busy();
        }
        assert_eq!((rounds.count, rounds.samples, rounds.ns()), (1000, 0, 0));
    }

    #[test]
    fn unknown_cpu_times_stay_unknown() {
        let [before, after] =
            [(1, 1), (11, 4)].map(|(all, empty)| CpuTime { all_ns: Some(all), empty_ns: Some(empty) });
        assert_eq!(after.since(before), CpuTime { all_ns: Some(10), empty_ns: Some(3) });
        assert_eq!(after.since(before).useful_ns(), Some(7));
        assert_eq!(after.since(CpuTime::default()), CpuTime::default());
        assert_eq!(CpuTime { all_ns: Some(1), empty_ns: None }.useful_ns(), None);
        assert!(of_process().is_some());
    }
}
