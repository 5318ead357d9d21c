//! Two samples of a device make rates. Nothing here reads anything.

use std::collections::BTreeMap;

use crate::common::{COMMON, Common, Name, Raw, Rule, Set, bits, is_gauge};
use crate::sample::Sample;

/// What became of a counter between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It grew by so much, or wrapped on the way.
    Grew(u64),
    /// It went back, and no wrap explains that: what it counted in between is not known.
    WentBack,
    /// It has reached its maximum and stays there, as counters of ports do (IBTA 16.1.3.5).
    Saturated,
}

/// The change of a counter of `bits` (32 or 64) bits.
///
/// A counter that went back has wrapped if it came from the upper half of its range and so
/// advanced by less than half of it; otherwise it was reset.
pub fn change(bits: u32, earlier: u64, later: u64) -> Change {
    if later >= earlier {
        return Change::Grew(later - earlier);
    }
    let half = 1 << (bits - 1);
    let forward = later.wrapping_sub(earlier) & (u64::MAX >> (64 - bits));
    let fits = earlier <= u64::MAX >> (64 - bits);
    if fits && earlier >= half && forward < half { Change::Grew(forward) } else { Change::WentBack }
}

fn change_of(name: &Name, earlier: &Raw, later: &Raw) -> Option<Change> {
    let (before, now) = (*earlier.get(name)?, *later.get(name)?);
    let at_maximum = name.set == Set::Port && (now == u64::from(u32::MAX) || now == u64::MAX);
    if at_maximum && before == now {
        return Some(Change::Saturated);
    }
    Some(change(bits(name, later), before, now))
}

/// What a device did between two samples. What is not known is `None`, never zero.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Seconds between the samples; 0 if there are no rates.
    pub seconds: f64,
    /// What each common counter grew by, in the order of [`Common::ALL`].
    pub deltas: [Option<u64>; COMMON],
    /// What the vendor's other counters grew by.
    pub others: BTreeMap<Name, u64>,
    /// What must be known to understand the figures, as sentences.
    pub remarks: Vec<String>,
}

impl Rates {
    /// What a common counter grew by.
    pub fn delta(&self, common: Common) -> Option<u64> {
        self.deltas[common as usize]
    }

    /// What it grew by per second.
    pub fn per_second(&self, common: Common) -> Option<f64> {
        self.delta(common).map(|delta| self.over_time(delta))
    }

    /// The other counters, per second.
    pub fn others_per_second(&self) -> impl Iterator<Item = (&Name, f64)> {
        self.others.iter().map(|(name, &delta)| (name, self.over_time(delta)))
    }

    fn over_time(&self, delta: u64) -> f64 {
        delta as f64 / self.seconds
    }

    /// The rates between two samples of one device.
    pub fn between(earlier: &Sample, later: &Sample) -> Self {
        let mut rates = Self::default();
        if later.at_ns <= earlier.at_ns {
            rates.remarks.push("no time has passed since the sample before".to_owned());
            return rates;
        }
        rates.seconds = (later.at_ns - earlier.at_ns) as f64 / 1e9;
        let (before, now) = (&earlier.raw, &later.raw);
        let mut was_reset = false;
        let rules: Vec<&Rule> = Common::ALL.iter().filter_map(|common| common.rule(now)).collect();
        for rule in &rules {
            // A part that has disappeared is missing in the sum.
            let is_whole = rule.present(before).all(|(name, _)| now.contains_key(name));
            let mut sum = is_whole.then_some(0_u64);
            for (name, _) in rule.present(now) {
                let part = match change_of(name, before, now) {
                    Some(Change::Grew(delta)) => Some(delta),
                    Some(Change::WentBack) => {
                        was_reset = true;
                        None
                    }
                    Some(Change::Saturated) => {
                        rates.remarks.push(format!("{name} has reached its maximum and stays there"));
                        None
                    }
                    None => None, // it has only just appeared
                };
                sum = sum.zip(part).map(|(sum, part)| sum.saturating_add(part));
            }
            rates.deltas[rule.common as usize] = sum.map(|sum| sum.saturating_mul(rule.scale));
        }
        let is_common =
            |name: &Name| rules.iter().any(|rule| rule.set == name.set && rule.names.contains(&name.name.as_str()));
        for name in now.keys().filter(|name| !is_gauge(name) && !is_common(name)) {
            match change_of(name, before, now) {
                Some(Change::Grew(delta)) => drop(rates.others.insert(name.clone(), delta)),
                Some(Change::WentBack) => rates.remarks.push(format!("{name} went back: it has no rate here")),
                Some(Change::Saturated) | None => {}
            }
        }
        if was_reset {
            // What has not gone back was reset just as well, or is of another time.
            rates.deltas = [None; COMMON];
            rates.others.clear();
            rates.remarks.push("its counters went back, so it was reset: this interval has no rates".to_owned());
        }
        rates
    }
}

#[cfg(test)]
#[path = "rate_tests.rs"]
mod tests;
