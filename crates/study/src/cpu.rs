//! CPU time: how much of it an end takes, and how much of that for looking in vain.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// CPU time of one end over a point, from its first message to its last, those to warm up included. What is not known
/// is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Of all threads of the process, in nanoseconds: a software RNIC's own thread and the kernel's work for them
    /// included.
    pub all_ns: Option<u64>,
    /// Of that, rounds of polling in which all connections of a thread found nothing, in nanoseconds: counted, and
    /// timed now and then.
    pub empty_ns: Option<u64>,
}

impl CpuTime {
    /// What was used since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        let used = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let all_ns = used(self.all_ns, before.all_ns);
        // A sample of few rounds may be far off.
        let empty_ns = used(self.empty_ns, before.empty_ns).map(|empty| empty.min(all_ns.unwrap_or(empty)));
        Self { all_ns, empty_ns }
    }

    /// Of two ends together; what is not known of one is not known of both.
    pub(crate) fn and(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Self { all_ns: sum(self.all_ns, other.all_ns), empty_ns: sum(self.empty_ns, other.empty_ns) }
    }

    /// Per message of so many; nothing of none.
    pub fn per_message(self, messages: u64) -> CpuPerMessage {
        let us = |ns: u64| (messages > 0).then(|| ns as f64 / 1e3 / messages as f64);
        CpuPerMessage { all_us: self.all_ns.and_then(us), useful_us: self.useful_ns().and_then(us) }
    }

    /// Without the rounds in which nothing was found.
    pub fn useful_ns(self) -> Option<u64> {
        Some(self.all_ns?.saturating_sub(self.empty_ns?))
    }
}

/// [`CpuTime`] per message that the end that asks has sent, those to warm up included. Where each message is answered,
/// this is for the message and the one that came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuPerMessage {
    /// All of it, in microseconds.
    pub all_us: Option<f64>,
    /// Without rounds of polling that found nothing, in microseconds.
    pub useful_us: Option<f64>,
}

fn read(clock: ClockId) -> Option<u64> {
    let now = Duration::from(clock_gettime(clock).ok()?);
    u64::try_from(now.as_nanos()).ok()
}

/// CPU time that this process has used.
pub(crate) fn of_process() -> Option<u64> {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// One of so many rounds in vain is timed. That takes two system calls, which take longer than a message through shared
/// memory, so few messages may meet one.
const ROUNDS_PER_SAMPLE: u32 = 1024;

/// Looks at the clock that tell what one look costs.
const LOOKS: usize = 15;

/// Rounds of one thread that found nothing, and what they cost.
#[derive(Debug, Default)]
pub(crate) struct EmptyRounds {
    count: u64,
    samples: u64,
    sampled_ns: u64,
    countdown: u32,
    began_ns: Option<u64>,
    /// What a look at the clock adds to each sample.
    look_ns: Option<u64>,
}

/// CPU time between two looks at a thread's clock with nothing between them: the median of several.
fn cost_of_a_look() -> Option<u64> {
    let looks: Vec<u64> = (0..=LOOKS).filter_map(|_| read(ClockId::CLOCK_THREAD_CPUTIME_ID)).collect();
    let mut costs: Vec<u64> = looks.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied()
}

impl EmptyRounds {
    /// A round found nothing.
    pub(crate) fn empty(&mut self) {
        self.count += 1;
        if let Some(began_ns) = self.began_ns.take() {
            if let Some(ended_ns) = read(ClockId::CLOCK_THREAD_CPUTIME_ID) {
                self.samples += 1;
                // A round takes as long as a look or less, so that a look counted in would be most of it.
                let look_ns = *self.look_ns.get_or_insert_with(|| cost_of_a_look().unwrap_or(0));
                self.sampled_ns += ended_ns.saturating_sub(began_ns).saturating_sub(look_ns);
            }
            self.countdown = ROUNDS_PER_SAMPLE;
        }
        match self.countdown.checked_sub(1) {
            Some(left) => self.countdown = left,
            // The round that comes now: if it finds nothing either, it is one of many.
            None => self.began_ns = read(ClockId::CLOCK_THREAD_CPUTIME_ID),
        }
    }

    /// A round found something, so it is no sample of those that find nothing.
    pub(crate) fn busy(&mut self) {
        if self.began_ns.take().is_some() {
            // Where messages come in every other round, each would else meet a look at the clock.
            self.countdown = ROUNDS_PER_SAMPLE;
        }
    }

    /// How many there were.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// CPU time of all of them.
    pub(crate) fn ns(&self) -> u64 {
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
    fn rounds_in_vain_are_counted_and_some_of_them_timed() {
        let mut rounds = EmptyRounds::default();
        for _ in 0..100_000 {
            rounds.empty();
        }
        assert_eq!(rounds.count, 100_000);
        assert!((90..=100).contains(&rounds.samples), "{}", rounds.samples);
        assert!(rounds.ns() >= rounds.sampled_ns);
    }

    /// Rounds that do nothing would else take a system call each.
    #[test]
    fn a_look_at_the_clock_is_no_part_of_a_round() {
        let rounds = || {
            let mut rounds = EmptyRounds::default();
            (0..100_000).for_each(|_| rounds.empty());
            assert!(rounds.look_ns.is_some_and(|look_ns| look_ns > 0), "some rounds were timed: {rounds:?}");
            rounds
        };
        // Interrupts of a busy machine are in some samples, and in few of the looks that tell what one costs.
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
    fn what_is_not_known_is_not_made_up() {
        let [before, after] =
            [(1, 1), (11, 4)].map(|(all, empty)| CpuTime { all_ns: Some(all), empty_ns: Some(empty) });
        assert_eq!(after.since(before), CpuTime { all_ns: Some(10), empty_ns: Some(3) });
        assert_eq!(after.since(before).useful_ns(), Some(7));
        assert_eq!(after.since(CpuTime::default()), CpuTime::default());
        assert_eq!(CpuTime { all_ns: Some(1), empty_ns: None }.useful_ns(), None);
        assert!(of_process().is_some());
    }
}
