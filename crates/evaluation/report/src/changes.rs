//! Comparison of two runs, such as before and after a change: which figures differ, and whether by more than chance.

use doorbell_study::experiment::{Experiment, PointRecord, Quantity, Spread, View};
use doorbell_study::parameters::Parameters;
use maud::{Markup, html};

use crate::Run;
use crate::format::{number, place};
use crate::page::anchor;
use crate::table::{self, heading, label, nothing, text, value};

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
        for record in table::ordered(self.before, experiment) {
            let is_it = |other: &&PointRecord| other.series == record.series && other.x == record.x;
            let Some(other) = View::new(&self.after.records).of(&experiment.name).find(is_it) else { continue };
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

    /// Renders the differences between the environments of the runs, and one line for each experiment.
    pub(crate) fn overview(self, experiments: &[Experiment]) -> Markup {
        let (before, after) = (&self.before.name, &self.after.name);
        let differences = table::differences(self.before, self.after);
        let changed: Vec<Changed> = experiments.iter().filter_map(|experiment| self.changed(experiment)).collect();
        html! {
            h2 #changes { "Changes from " (before) " to " (after) }
            @if differences.is_empty() {
                p { "The environments of both are the same, as far as records say." }
            } @else {
                div.scroll tabindex="0" { table #differences {
                    thead { tr {
                        @for name in ["environment", before, after] { th scope="col" { (name) } }
                    } }
                    tbody {
                        @for (name, values) in &differences {
                            tr { th scope="row" { (name) } @for value in values { (text(value)) } }
                        }
                    }
                } }
            }
            p {
                "A point counts as more or less if all repetitions of " b { (after) } " lie on one side of all repetitions of "
                b { (before) } ". With three repetitions each, one point in ten does so by chance; the table has the expected "
                "number. The mean ratio is the geometric mean of the ratios of medians."
            }
            div.scroll.cards tabindex="0" { table.sortable #changed {
                thead { tr {
                    @for (name, is_number) in [
                        ("experiment", false), ("quantity", false), ("points", true), ("mean ratio", true),
                        ("more", true), ("less", true), ("apart by chance", true), ("better is", false),
                    ] { (heading(name, is_number)) }
                } }
                tbody {
                    @for it in &changed {
                        tr {
                            td { a href={ "#" (anchor(&it.experiment)) } { (it.experiment) } }
                            (text(it.quantity))
                            (value(it.points as f64, it.points))
                            @match it.ratio {
                                Some(ratio) => (value(ratio, number(ratio))),
                                None => (nothing()),
                            }
                            (value(it.more as f64, it.more))
                            (value(it.less as f64, it.less))
                            (value(it.by_chance, format_args!("{:.1}", it.by_chance)))
                            (text(if it.less_is_better { "less" } else { "more" }))
                        }
                    }
                }
            } }
        }
    }

    /// Renders the points of an experiment that both runs have.
    pub(crate) fn points(self, experiment: &Experiment) -> Markup {
        let compared = self.compared(experiment);
        if compared.is_empty() {
            return html! { p.setting { "The two runs have no point of this experiment in common." } };
        }
        let spread = |spread: Spread| format!("{} \u{2013} {}", number(spread.least), number(spread.most));
        html! {
            p.setting {
                "The ratio is the median of " b { (self.after.name) } " divided by that of " b { (self.before.name) } ". Its range "
                "covers every repetition of the first divided by every repetition of the second."
            }
            div.scroll tabindex="0" { table.sortable.changes {
                thead { tr {
                    (heading("configuration", false)) (heading(experiment.sweep, true)) (heading("quantity", false))
                    (heading("ratio", true)) (heading("least \u{2013} most", true)) (heading("difference", false))
                    @for run in [self.before, self.after] {
                        (heading(&run.name, true)) (heading("least \u{2013} most", true))
                    }
                } }
                tbody {
                    @for it in &compared {
                        tr {
                            (text(&it.record.series))
                            (value(it.record.x, place(experiment.sweep, it.record.x)))
                            (text(label(it.quantity)))
                            @match it.ratio {
                                Some(ratio) => {
                                    (value(ratio.median, number(ratio.median))) (value(ratio.most - ratio.least, spread(ratio)))
                                }
                                None => { (nothing()) (nothing()) }
                            }
                            (text(it.change.words()))
                            @for of in [it.before, it.after] {
                                (value(of.median, number(of.median))) (value(of.most - of.least, spread(of)))
                            }
                        }
                    }
                }
            } }
        }
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
