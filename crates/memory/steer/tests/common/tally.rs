//! Counts of events in simulation runs, so that a test can check that each kind of event happened.

use std::collections::BTreeMap;

use doorbell_steer::Counters;

/// Number of occurrences of each event, by the event's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub fn hit(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    pub fn counters(&mut self, counters: &Counters) {
        counters.sentences().for_each(|(count, sentence)| self.add(sentence, count));
    }

    pub fn table(&self) -> String {
        self.0.iter().map(|(what, count)| format!("{count:>12}  {what}\n")).collect()
    }

    /// Panics unless each of these events happened.
    pub fn assert_met(&self, wanted: &[&str]) {
        let missing: Vec<_> = wanted.iter().filter(|what| !self.0.contains_key(*what)).collect();
        assert!(missing.is_empty(), "these never happened: {missing:#?}\nthese did:\n{}", self.table());
    }
}

impl doorbell_testing::seeds::Tally for Tally {
    fn plus(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }
}
