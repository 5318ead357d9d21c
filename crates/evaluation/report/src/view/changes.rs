//! Comparison of two runs, such as before and after a change: which figures differ, and whether by more than chance.

use doorbell_record::{Parameters, PointRecord, Quantity, Spread};
use doorbell_study::experiment::Experiment;

use super::environment;
use super::points::{label, ordered};
use super::table::{Cell, Table};
use crate::Run;
use crate::format::place;

/// Two runs that are comparable: both measured, or both simulated.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a> {
    before: &'a Run,
    after: &'a Run,
}

/// Difference between the figures of one point in two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Every figure of the second run is greater than every figure of the first.
    More,
    /// Every figure of the second run is less than every figure of the first.
    Less,
    /// The figures of the runs overlap.
    Within,
    /// A run has only one repetition of the point, so the spread of the figures is unknown.
    Unknown,
    /// The runs measured the point with different parameters.
    Other,
}

impl Change {
    fn words(self) -> &'static str {
        match self {
            Self::More => "more",
            Self::Less => "less",
            Self::Within => "within the spread",
            Self::Unknown => "one repetition: unknown",
            Self::Other => "other parameters",
        }
    }
}

/// Differences between two runs: their environments, and one row for each experiment.
#[derive(Debug)]
pub(crate) struct Overview {
    pub(crate) before: String,
    pub(crate) after: String,
    /// `None` if the environments are the same.
    pub(crate) environments: Option<Table>,
    pub(crate) experiments: Table,
}

/// Points of an experiment that both runs have.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) points: Option<Table>,
}

/// Figures of both runs for one point and one quantity.
struct Compared<'a> {
    record: &'a PointRecord,
    quantity: Quantity,
    before: Spread,
    after: Spread,
    /// Median of the second run divided by the median of the first. The spread is the range of the ratio over all pairs
    /// of repetitions.
    ratio: Option<Spread>,
    change: Change,
    /// Probability that all figures of a run are greater, or all are less, than those of an equal run.
    chance: f64,
}

/// Changes in the main quantity of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The experiment.
    pub experiment: String,
    /// The quantity's name.
    pub quantity: &'static str,
    /// Number of points that both runs have.
    pub points: usize,
    /// Number of points at which every figure of the second run is greater than every figure of the first.
    pub more: usize,
    /// Number of points at which every figure of the second run is less than every figure of the first.
    pub less: usize,
    /// Number of points expected in `more` and `less` by chance if the runs are equal.
    pub by_chance: f64,
    /// Geometric mean of the ratios of medians, second run over first.
    pub ratio: Option<f64>,
    /// Whether less of the quantity is better.
    pub less_is_better: bool,
}

/// Returns the pair if there are exactly two runs, and both runs were measured or both were simulated.
pub(crate) fn pair(runs: &[Run]) -> Option<Pair<'_>> {
    match runs {
        [before, after] if before.testbed().is_some() == after.testbed().is_some() => Some(Pair { before, after }),
        _ => None,
    }
}

/// Returns whether both parameters describe the same measurement. They may differ in duration and in memory limit.
fn are_alike(one: &Parameters, other: &Parameters) -> bool {
    let alike = |parameters: &Parameters| Parameters { extent: one.extent, memory_bytes: 0, ..parameters.clone() };
    alike(one) == alike(other)
}

/// Returns the probability that all of `one` figures are greater, or all are less, than all of `other` figures. Every
/// order of the figures counts as equally likely: 2 / C(one + other, one).
fn chance_to_lie_apart(one: usize, other: usize) -> f64 {
    let ways: f64 = (1..=one).map(|k| (other + k) as f64 / k as f64).product();
    (2.0 / ways).min(1.0)
}

impl<'a> Pair<'a> {
    /// Returns all points that both runs have, in the order of the experiment's table, with each common quantity.
    fn compared(self, experiment: &'a Experiment) -> Vec<Compared<'a>> {
        let are_simulated = self.before.testbed().is_some();
        let mut all = Vec::new();
        for record in ordered(self.before, experiment) {
            let is_it = |other: &&PointRecord| other.series == record.series && other.x == record.x;
            let Some(other) = self.after.records_of(&experiment.name).find(is_it) else { continue };
            for &quantity in &experiment.quantities {
                if let (Some(before), Some(after)) = (record.spread(quantity), other.spread(quantity)) {
                    let counts = (record.values(quantity).len(), other.values(quantity).len());
                    let chance = if are_simulated { 0.0 } else { chance_to_lie_apart(counts.0, counts.1) };
                    let change = match () {
                        () if !are_alike(&record.parameters, &other.parameters) => Change::Other,
                        () if !are_simulated && counts.0.min(counts.1) < 2 => Change::Unknown,
                        () if after.least > before.most => Change::More,
                        () if after.most < before.least => Change::Less,
                        () => Change::Within,
                    };
                    let ratio = (before.least > 0.0).then(|| Spread {
                        least: after.least / before.most,
                        median: after.median / before.median,
                        most: after.most / before.least,
                    });
                    all.push(Compared { record, quantity, before, after, ratio, change, chance });
                }
            }
        }
        all
    }

    /// Returns the changes in an experiment, or `None` if the runs have no point in common.
    pub(crate) fn changed(self, experiment: &Experiment) -> Option<Changed> {
        let compared = self.compared(experiment);
        let quantity = compared.first()?.quantity;
        let of_it: Vec<_> =
            compared.iter().filter(|it| it.quantity == quantity && it.change != Change::Other).collect();
        let count = |change| of_it.iter().filter(|it| it.change == change).count();
        let logarithms: Vec<f64> =
            of_it.iter().filter_map(|it| it.ratio).map(|ratio| ratio.median.ln()).filter(|it| it.is_finite()).collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        Some(Changed {
            experiment: experiment.name.clone(),
            quantity: quantity.name(),
            points: of_it.len(),
            more: count(Change::More),
            less: count(Change::Less),
            by_chance: of_it.iter().filter(|it| it.change != Change::Unknown).map(|it| it.chance).sum(),
            ratio: (!logarithms.is_empty()).then(|| mean.exp()),
            less_is_better: quantity.less_is_better(),
        })
    }

    /// Returns the differences between the environments of the runs, and one line for each experiment.
    pub(super) fn overview(self, experiments: &[Experiment]) -> Overview {
        let row = |it: Changed| {
            vec![
                Cell::Experiment(it.experiment),
                Cell::text(it.quantity),
                Cell::count(it.points as u64),
                Cell::number(it.ratio),
                Cell::count(it.more as u64),
                Cell::count(it.less as u64),
                Cell::shown(it.by_chance, format_args!("{:.1}", it.by_chance)),
                Cell::text(if it.less_is_better { "less" } else { "more" }),
            ]
        };
        Overview {
            before: self.before.name.clone(),
            after: self.after.name.clone(),
            environments: environment::differences(self.before, self.after),
            experiments: Table {
                rows: experiments.iter().filter_map(|experiment| self.changed(experiment)).map(row).collect(),
                ..Table::default()
                    .texts(["experiment", "quantity"])
                    .numbers(["points", "mean ratio", "more", "less", "apart by chance"])
                    .texts(["better is"])
            },
        }
    }

    /// Returns the points of an experiment that both runs have.
    pub(super) fn common(self, experiment: &Experiment) -> Common {
        let (before, after) = (self.before.name.clone(), self.after.name.clone());
        let row = |it: Compared<'_>| {
            let mut cells = vec![
                Cell::text(&it.record.series),
                Cell::shown(it.record.x, place(experiment.sweep, it.record.x)),
                Cell::Text(label(it.quantity)),
            ];
            cells.extend(Cell::spread(it.ratio));
            cells.push(Cell::text(it.change.words()));
            cells.extend([it.before, it.after].into_iter().flat_map(|figures| Cell::spread(Some(figures))));
            cells
        };
        let range = "least \u{2013} most";
        let points = Table::default()
            .texts(["configuration"])
            .numbers([experiment.sweep])
            .texts(["quantity"])
            .numbers(["ratio", range])
            .texts(["difference"])
            .numbers([&before, range, &after, range])
            .with_rows(self.compared(experiment).into_iter().map(row));
        Common { before, after, points }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_matches_the_share_of_orders() {
        for (one, other, chance) in
            [(1, 1, 1.0), (2, 1, 2.0 / 3.0), (3, 3, 0.1), (4, 4, 2.0 / 70.0), (10, 3, 2.0 / 286.0)]
        {
            assert!((chance_to_lie_apart(one, other) - chance).abs() < 1e-12, "{one} and {other}");
        }
    }
}
