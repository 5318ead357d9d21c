//! Computes rates from two samples of a device. This module does no IO.

use std::collections::BTreeMap;

use crate::common::{COMMON, Common, Name, Raw, Rule, Set, bits, is_gauge};
use crate::sample::Sample;

/// Change of a counter between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The counter increased by this number, and may have wrapped.
    Grew(u64),
    /// The counter decreased without a wrap, so its increase is unknown.
    WentBack,
    /// The counter has reached its maximum and stays there, as counters of ports do (IBTA 16.1.3.5).
    Saturated,
}

/// Returns the change of a counter that is 32 or 64 bits wide (`bits`).
///
/// A smaller later value means a wrap if the earlier value was in the upper half of the range, and the increase is less
/// than half of the range. Otherwise a smaller later value means a reset.
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

/// Rates of a device between two samples. An unknown rate is `None`, never zero.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Seconds between the samples; 0 if no rates could be computed.
    pub seconds: f64,
    /// Increase of each common counter, in the order of [`Common::ALL`].
    pub deltas: [Option<u64>; COMMON],
    /// Increases of the vendor's counters that no common counter uses.
    pub others: BTreeMap<Name, u64>,
    /// Remarks on the rates, as sentences.
    pub remarks: Vec<String>,
}

impl Rates {
    /// Returns the increase of a common counter.
    pub fn delta(&self, common: Common) -> Option<u64> {
        self.deltas[common as usize]
    }

    /// Returns the increase per second of a common counter.
    pub fn per_second(&self, common: Common) -> Option<f64> {
        self.delta(common).map(|delta| self.over_time(delta))
    }

    /// Returns the increases per second of the counters in `others`.
    pub fn others_per_second(&self) -> impl Iterator<Item = (&Name, f64)> {
        self.others.iter().map(|(name, &delta)| (name, self.over_time(delta)))
    }

    fn over_time(&self, delta: u64) -> f64 {
        delta as f64 / self.seconds
    }

    /// Returns the rates between two samples of one device.
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
            // If one of the summed counters has disappeared, the sum is incomplete, and the common counter gets no
            // rate.
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
                    None => None, // the counter did not exist in the earlier sample
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
                Some(Change::WentBack) => rates.remarks.push(format!("{name} decreased: no rate in this interval")),
                Some(Change::Saturated) | None => {}
            }
        }
        if was_reset {
            // The other counters were also reset, or were read after the reset, so none of them has a known increase.
            rates.deltas = [None; COMMON];
            rates.others.clear();
            rates
                .remarks
                .push("the counters decreased, so the device was reset: this interval has no rates".to_owned());
        }
        rates
    }
}

#[cfg(test)]
mod tests;
