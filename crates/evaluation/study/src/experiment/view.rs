//! Selection of records of one run, for claims and reports.

use super::quantity::{Quantity, Spread};
use super::record::PointRecord;

/// Records of one run.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    records: &'a [PointRecord],
}

impl<'a> View<'a> {
    /// Creates a view of these records.
    pub fn new(records: &'a [PointRecord]) -> Self {
        Self { records }
    }

    /// Returns the records of one experiment.
    pub fn of(self, experiment: &str) -> impl Iterator<Item = &'a PointRecord> {
        self.records.iter().filter(move |record| record.experiment == experiment)
    }

    /// Returns a curve of medians: pairs of x and median, in the order of x.
    pub fn curve(self, experiment: &str, series: &str, quantity: Quantity) -> Vec<(f64, f64)> {
        self.curve_of(experiment, series, |record| Some(record.spread(quantity)?.median))
    }

    /// Returns a curve of the best repetitions: pairs of x and value, in the order of x.
    pub(super) fn best_curve(self, experiment: &str, series: &str, quantity: Quantity) -> Vec<(f64, f64)> {
        self.curve_of(experiment, series, |record| best(record, quantity))
    }

    fn curve_of(self, experiment: &str, series: &str, value: impl Fn(&PointRecord) -> Option<f64>) -> Vec<(f64, f64)> {
        let records = self.of(experiment).filter(|record| record.series == series);
        let mut curve: Vec<(f64, f64)> = records.filter_map(|record| Some((record.x, value(record)?))).collect();
        curve.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        curve
    }

    /// Returns the value of one point's best repetition.
    pub(super) fn best_at(self, experiment: &str, series: &str, quantity: Quantity, x: f64) -> Option<f64> {
        best(self.of(experiment).find(|record| record.series == series && record.x == x)?, quantity)
    }

    /// Returns the median of one point's repetitions.
    pub(super) fn median_at(self, experiment: &str, series: &str, quantity: Quantity, x: f64) -> Option<f64> {
        let record = self.of(experiment).find(|record| record.series == series && record.x == x)?;
        Some(record.spread(quantity)?.median)
    }

    /// Returns the spread of the repetitions of a typical point, as a share of their median.
    pub fn span(self, experiment: &str, quantity: Quantity) -> Option<f64> {
        let spreads = self.of(experiment).filter(|record| record.repetitions.len() > 1);
        let shares = spreads.filter_map(|record| record.spread(quantity)?.share()).collect();
        Some(Spread::of(shares)?.median)
    }

    /// Returns the number of usable processors of the machine.
    pub fn cpus(self) -> usize {
        self.records.first().map_or(0, |record| record.environment.cpus)
    }

    /// Returns the rate of the slowest link of all hosts in Gb/s, or `None` if a host does not report the rate of its
    /// link.
    pub fn line_rate(self) -> Option<f64> {
        let environment = &self.records.first()?.environment;
        let rates = std::iter::once(environment).chain(environment.others()).map(|host| {
            host.adapter.as_ref()?.rate_bps.filter(|&rate_bps| rate_bps > 0).map(|rate_bps| rate_bps as f64 / 1e9)
        });
        rates.reduce(|one, other| Some(one?.min(other?)))?
    }

    /// Returns whether the provider is the software RNIC, which has no line rate.
    pub fn is_soft(self) -> bool {
        self.records.first().is_some_and(|record| record.environment.provider == "soft")
    }
}

/// Returns the best repetition of a rate or a latency, since other programs can only slow a measurement down. For other
/// quantities, returns the median. Returns `None` if nothing was transferred.
pub(super) fn best(record: &PointRecord, quantity: Quantity) -> Option<f64> {
    let spread = record.spread(quantity)?;
    if !quantity.is_logarithmic() {
        return Some(spread.median);
    }
    let best = if quantity.less_is_better() { spread.least } else { spread.most };
    (best > 0.0).then_some(best)
}
