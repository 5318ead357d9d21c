//! Selection of records of one run, for claims and reports.

use doorbell_record::{PointRecord, Quantity, Spread};

use super::sweep::Experiment;

/// Maximum spread of the repetitions of a typical point, as a share of their median, on a quiet machine. Beyond it, a
/// verdict states that the machine was not quiet.
pub const QUIET_SPAN: f64 = 0.5;

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
    pub(super) fn of(self, experiment: &str) -> impl Iterator<Item = &'a PointRecord> {
        self.records.iter().filter(move |record| record.experiment == experiment)
    }

    /// Returns a curve of medians: pairs of x and median, in the order of x.
    pub fn curve(self, experiment: &str, series: &str, quantity: Quantity) -> Vec<(f64, f64)> {
        let records = self.of(experiment).filter(|record| record.series == series);
        let mut curve: Vec<(f64, f64)> =
            records.filter_map(|record| Some((record.x, record.spread(quantity)?.median))).collect();
        curve.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        curve
    }

    /// Returns the spread of the repetitions of a typical point, as a share of their median.
    pub fn span(self, experiment: &str, quantity: Quantity) -> Option<f64> {
        let spreads = self.of(experiment).filter(|record| record.repetitions.len() > 1);
        let shares = spreads.filter_map(|record| record.spread(quantity)?.share()).collect();
        Some(Spread::of(shares)?.median)
    }

    /// Returns the spread of a typical point's repetitions in the first quantity of an experiment, as a share of their
    /// median, if it exceeds [`QUIET_SPAN`]. The machine was then not quiet.
    pub fn restlessness(self, experiment: &Experiment) -> Option<f64> {
        self.span(&experiment.name, *experiment.quantities.first()?).filter(|span| *span > QUIET_SPAN)
    }

    /// Returns the number of usable processors of the machine.
    pub(super) fn cpus(self) -> usize {
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

    /// Returns the faults that were injected while the records were measured.
    pub fn fault_plan(self) -> Option<&'a str> {
        self.records.iter().find_map(|record| record.environment.injected_faults())
    }

    /// Returns whether the records were simulated in virtual time.
    pub(super) fn is_simulated(self) -> bool {
        self.records.first().is_some_and(|record| record.environment.testbed.is_some())
    }

    /// Returns whether the provider is the software RNIC, which has no line rate.
    pub(super) fn is_soft(self) -> bool {
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
