//! CPU time of an end, and the part of that time spent in polls that find no completion.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// CPU time of one end during a point, from the end's first message to its last, warm-up included. An unknown value is
/// `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// CPU time of all threads of the process, in nanoseconds. The time includes the thread of a software RNIC and the
    /// kernel's work for all these threads.
    pub all_ns: Option<u64>,
    /// Part of `all_ns` spent in empty rounds, in nanoseconds. In an empty round, a thread polls all its connections
    /// and finds nothing. Each empty round is counted, and a sample of the empty rounds is timed.
    pub empty_ns: Option<u64>,
}

impl CpuTime {
    /// Returns the CPU time used since `before`.
    pub fn since(self, before: Self) -> Self {
        let used = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let all_ns = used(self.all_ns, before.all_ns);
        // `empty_ns` is an estimate from a sample and may exceed the total, so limit it to the total.
        let empty_ns = used(self.empty_ns, before.empty_ns).map(|empty| empty.min(all_ns.unwrap_or(empty)));
        Self { all_ns, empty_ns }
    }

    /// Adds the CPU times of two ends. If a value of either end is unknown, its sum is unknown.
    pub fn and(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Self { all_ns: sum(self.all_ns, other.all_ns), empty_ns: sum(self.empty_ns, other.empty_ns) }
    }

    /// Divides the times by a number of messages. The result is `None` for zero messages.
    pub fn per_message(self, messages: u64) -> CpuPerMessage {
        let us = |ns: u64| (messages > 0).then(|| ns as f64 / 1e3 / messages as f64);
        CpuPerMessage { all_us: self.all_ns.and_then(us), useful_us: self.useful_ns().and_then(us) }
    }

    /// Returns the CPU time without empty rounds.
    pub fn useful_ns(self) -> Option<u64> {
        Some(self.all_ns?.saturating_sub(self.empty_ns?))
    }
}

/// [`CpuTime`] per message that the asking end sent, warm-up included. In request-response, the time covers a request
/// and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuPerMessage {
    /// Total, in microseconds.
    pub all_us: Option<f64>,
    /// Total without empty rounds of polling, in microseconds.
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

/// Number of empty rounds after which one round is timed. Timing needs two system calls, which take longer than a
/// message through shared memory. Therefore only few rounds are timed.
const ROUNDS_PER_SAMPLE: u32 = 1024;

/// Number of clock reads whose median duration is the cost of one clock read.
const LOOKS: usize = 15;

/// Count and CPU time of the empty rounds of one thread. An empty round finds no completion.
#[derive(Debug, Default)]
pub struct EmptyRounds {
    count: u64,
    samples: u64,
    sampled_ns: u64,
    countdown: u32,
    began_ns: Option<u64>,
    /// CPU time that a clock read adds to each sample.
    look_ns: Option<u64>,
}

/// Returns the median CPU time between two consecutive reads of the thread's clock.
fn cost_of_a_look() -> Option<u64> {
    let looks: Vec<u64> = (0..=LOOKS).filter_map(|_| read(ClockId::CLOCK_THREAD_CPUTIME_ID)).collect();
    let mut costs: Vec<u64> = looks.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied()
}

impl EmptyRounds {
    /// Counts an empty round.
    pub fn empty(&mut self) {
        self.count += 1;
        if let Some(began_ns) = self.began_ns.take() {
            if let Some(ended_ns) = read(ClockId::CLOCK_THREAD_CPUTIME_ID) {
                self.samples += 1;
                // A round is at most as long as a clock read. The clock read would dominate the sample, so its cost is
                // subtracted.
                let look_ns = *self.look_ns.get_or_insert_with(|| cost_of_a_look().unwrap_or(0));
                self.sampled_ns += ended_ns.saturating_sub(began_ns).saturating_sub(look_ns);
            }
            self.countdown = ROUNDS_PER_SAMPLE;
        }
        match self.countdown.checked_sub(1) {
            Some(left) => self.countdown = left,
            // Time the next round. If that round is empty too, it becomes a sample.
            None => self.began_ns = read(ClockId::CLOCK_THREAD_CPUTIME_ID),
        }
    }

    /// Ends a round that found a completion. Such a round is not a sample.
    pub fn busy(&mut self) {
        if self.began_ns.take().is_some() {
            // Restart the countdown. Otherwise, if every second round finds a message, each message would be delayed by
            // a clock read.
            self.countdown = ROUNDS_PER_SAMPLE;
        }
    }

    /// Returns the number of empty rounds.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the estimated CPU time of all empty rounds, in nanoseconds.
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

    /// Without the subtraction, each empty round would appear as long as the clock's system call.
    #[test]
    fn clock_cost_is_subtracted_from_samples() {
        let rounds = || {
            let mut rounds = EmptyRounds::default();
            (0..100_000).for_each(|_| rounds.empty());
            assert!(rounds.look_ns.is_some_and(|look_ns| look_ns > 0), "some rounds were timed: {rounds:?}");
            rounds
        };
        // Interrupts may lengthen some samples, so one of ten attempts has to succeed. The clock's cost is a median,
        // which few interrupts change.
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
