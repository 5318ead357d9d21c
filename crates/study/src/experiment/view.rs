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
        self.curve_of(experiment, series, |record| Some(record.spread(quantity)?.median))
    }

    /// A curve of the best repetitions.
    pub(super) fn best_curve(self, experiment: &str, series: &str, quantity: Quantity) -> Vec<(f64, f64)> {
        self.curve_of(experiment, series, |record| best(record, quantity))
    }

    fn curve_of(self, experiment: &str, series: &str, value: impl Fn(&PointRecord) -> Option<f64>) -> Vec<(f64, f64)> {
        let records = self.of(experiment).filter(|record| record.series == series);
        let mut curve: Vec<(f64, f64)> = records.filter_map(|record| Some((record.x, value(record)?))).collect();
        curve.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        curve
    }

    /// The best repetition of one point.
    pub(super) fn best_at(self, experiment: &str, series: &str, quantity: Quantity, x: f64) -> Option<f64> {
        best(self.of(experiment).find(|record| record.series == series && record.x == x)?, quantity)
    }

    /// The median of one point.
    pub(super) fn median_at(self, experiment: &str, series: &str, quantity: Quantity, x: f64) -> Option<f64> {
        let record = self.of(experiment).find(|record| record.series == series && record.x == x)?;
        Some(record.spread(quantity)?.median)
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

    /// What the slowest link of all hosts carries, in Gb/s; `None` if one of them does not say.
    pub fn line_rate(self) -> Option<f64> {
        let environment = &self.records.first()?.environment;
        let rates = std::iter::once(environment).chain(environment.others()).map(|host| {
            host.adapter.as_ref()?.rate_bps.filter(|&rate_bps| rate_bps > 0).map(|rate_bps| rate_bps as f64 / 1e9)
        });
        rates.reduce(|one, other| Some(one?.min(other?)))?
    }

    /// Is it the software RNIC, over a network that has no rate of its own?
    pub fn is_soft(self) -> bool {
        self.records.first().is_some_and(|record| record.environment.provider == "soft")
    }
}

/// The best repetition of a rate or a latency: other programs only ever slow one down. Of what is no
/// measure of speed, the median. Where nothing went through, there is nothing to compare with.
pub(super) fn best(record: &PointRecord, quantity: Quantity) -> Option<f64> {
    let spread = record.spread(quantity)?;
    if !quantity.is_logarithmic() {
        return Some(spread.median);
    }
    let best = if quantity.less_is_better() { spread.least } else { spread.most };
    (best > 0.0).then_some(best)
}
