//! The records of one run, as judges and reports look at them.

use super::quantity::{Quantity, Spread};
use super::record::PointRecord;

/// The records of one run.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    records: &'a [PointRecord],
}

impl<'a> View<'a> {
    /// Looks at these.
    pub fn new(records: &'a [PointRecord]) -> Self {
        Self { records }
    }

    /// Those of one experiment.
    pub fn of(self, experiment: &str) -> impl Iterator<Item = &'a PointRecord> {
        self.records.iter().filter(move |record| record.experiment == experiment)
    }

    /// A curve: medians by x, rising.
    pub fn curve(self, experiment: &str, series: &str, quantity: Quantity) -> Vec<(f64, f64)> {
        let mut curve: Vec<(f64, f64)> = self
            .of(experiment)
            .filter(|record| record.series == series)
            .filter_map(|record| Some((record.x, median(record, quantity)?)))
            .collect();
        curve.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        curve
    }

    /// A median.
    pub fn at(self, experiment: &str, series: &str, quantity: Quantity, x: f64) -> Option<f64> {
        let record = self.of(experiment).find(|record| record.series == series && record.x == x)?;
        median(record, quantity)
    }

    /// The share of its median that the repetitions of a point typically span.
    pub fn span(self, experiment: &str, quantity: Quantity) -> Option<f64> {
        let spreads = self.of(experiment).filter(|record| record.repetitions.len() > 1);
        let shares = spreads.filter_map(|record| record.spread(quantity)?.share()).collect();
        Some(Spread::of(shares)?.median)
    }

    /// Processors of the machine.
    pub fn cpus(self) -> usize {
        self.records.first().map_or(0, |record| record.environment.cpus)
    }

    /// Is it the software RNIC, over a network that has no rate of its own?
    pub fn is_soft(self) -> bool {
        self.records.first().is_some_and(|record| record.environment.provider == "soft")
    }
}

/// Where nothing went through, there is nothing to compare with.
fn median(record: &PointRecord, quantity: Quantity) -> Option<f64> {
    let median = record.spread(quantity)?.median;
    (median > 0.0 || !quantity.is_logarithmic()).then_some(median)
}
