//! Published claims and goals of experiments, and the functions that judge whether they hold in the data.
//!
//! Sentences and numbers come from `data/published/`. Functions in this module decide whether the data have a published
//! shape. The figures of testbed T1 were measured with ConnectX-5 RNICs over 100 Gb/s Ethernet. Loopback has no line
//! rate, so the highest throughput of any configuration replaces the line rate. Rates and latencies are those of each
//! point's best repetition, since other programs can only slow a measurement down.

mod direct_read;
mod far_memory;
mod links;
mod operations;
mod send_receive;
mod shared;

use doorbell_published::Shape;

pub(super) use super::judge::Claim;
use super::judge::{Judgement, cannot, holds_if, knee, line};
use super::quantity::Quantity::{self, MedianLatency};
use super::view::View;

/// Ratio up to which two values count as equal, since values of equal runs differ by such factors.
const NOISE: f64 = 1.1;

/// Ids of shapes, each with the function that judges the shape.
type Judges = &'static [(&'static str, fn(View<'_>, &Shape) -> Option<Judgement>)];

/// Returns all claims and goals of an experiment.
pub(super) fn of(experiment: &str) -> Vec<Claim> {
    let shapes =
        [send_receive::SHAPES, shared::SHAPES, direct_read::SHAPES, operations::SHAPES, far_memory::SHAPES].concat();
    let shapes = shapes.into_iter().map(|(id, judge)| {
        let shape = doorbell_published::shape(id).unwrap_or_else(|| unreachable!("{id} is published"));
        (shape.experiment.as_str(), Claim::of_shape(shape, judge))
    });
    let rows = operations::ROWS.iter().map(|id| {
        let row = doorbell_published::row(id).unwrap_or_else(|| unreachable!("{id} is published"));
        (row.experiment.as_str(), Claim::of_row(row, operations::judge_row))
    });
    let numbers = far_memory::rows().map(|id| {
        let row = doorbell_published::row(id).unwrap_or_else(|| unreachable!("{id} is published"));
        (row.experiment.as_str(), Claim::of_row(row, far_memory::judge_row))
    });
    let published = shapes.chain(rows).chain(numbers);
    published.chain(links::goals()).filter(|(of, _)| *of == experiment).map(|(_, claim)| claim).collect()
}

/// Returns the judgement of a shape whose cause, `missing`, does not exist in a software RNIC. A software RNIC without
/// the shape gets no negative verdict.
fn unless_soft(view: View<'_>, holds: bool, because: String, missing: &str) -> Option<Judgement> {
    match holds {
        false if view.is_soft() => cannot(format!("{because}; {missing}")),
        holds => holds_if(holds, because),
    }
}

/// Judges whether a straight line fits the latencies of all sizes up to `to_bytes`.
fn straight(view: View<'_>, experiment: &str, series: &str, to_bytes: f64) -> Option<Judgement> {
    let mut curve = view.best_curve(experiment, series, MedianLatency);
    curve.retain(|point| point.0 <= to_bytes);
    let (base, slope, worst) = line(&curve)?;
    let because = format!(
        "a line of {base:.1} us + {:.2} us/KiB fits all {} sizes up to {to_bytes:.0} B within {:.0} %",
        slope * 1024.0,
        curve.len(),
        worst * 100.0
    );
    holds_if(worst <= 0.35 && slope > 0.0, because)
}

/// Returns whether a curve first rises in proportion to x and is then flat, with a sentence that states the numbers.
fn linear_then_flat(curve: &[(f64, f64)], of: &str) -> Option<(bool, String)> {
    let ((first, one), (last, _)) = (*curve.first()?, *curve.last()?);
    let most = knee(curve, 1.0)?.1;
    if last <= first {
        return None;
    }
    let is_on = |&(x, y): &(f64, f64)| y >= 0.6 * one * x / first || y * 1.2 >= most;
    let because = format!("up to {last:.0} {of} give {:.2} times the rate of {first:.0}", most / one);
    Some((curve.iter().all(is_on) && most >= 1.4 * one, because))
}

/// Returns the quotient, or `None` if the divisor is zero since the values were too small to measure.
fn quotient(one: f64, other: f64) -> Option<f64> {
    (other > 0.0).then(|| one / other)
}

/// Returns the value of the first curve at `x`, divided by that of the second.
fn ratio(view: View<'_>, experiment: &str, series: [&str; 2], quantity: Quantity, x: f64) -> Option<f64> {
    let [one, other] = series.map(|series| view.best_at(experiment, series, quantity, x));
    quotient(one?, other?)
}

/// Returns the value of a curve at `x`, if that position was measured.
fn at(curve: &[(f64, f64)], x: f64) -> Option<f64> {
    curve.iter().find(|point| point.0 == x).map(|point| point.1)
}

/// Returns the first and the last point of a curve, or `None` if the curve has fewer than two points.
fn ends(curve: &[(f64, f64)]) -> Option<((f64, f64), (f64, f64))> {
    let (first, last) = (*curve.first()?, *curve.last()?);
    (last.0 > first.0).then_some((first, last))
}

/// Returns a judgement if the machine has too few processors to double the number of threads on each side. Returns
/// `None` if there are enough processors.
fn too_few_cpus(view: View<'_>, first: f64, because: &str) -> Option<Judgement> {
    let cpus = view.cpus();
    if cpus as f64 >= 4.0 * first {
        return None;
    }
    cannot(format!(
        "{because}; twice as many threads take {:.0} CPUs, since both sides poll, and this machine has {cpus}",
        4.0 * first
    ))
}

/// Judges whether the rate of each of these curves grows in proportion to the number of threads, up to a ceiling.
fn grows_with_threads(view: View<'_>, experiment: &str, series: &[&str]) -> Option<Judgement> {
    let (mut all, mut sentences, mut first) = (true, Vec::new(), 1.0);
    for &series in series {
        let curve = view.best_curve(experiment, series, Quantity::MessageRate);
        let (is_linear, because) = linear_then_flat(&curve, "threads")?;
        (all, first) = (all && is_linear, curve.first()?.0);
        sentences.push(format!("{series}: {because}"));
    }
    let because = sentences.join("; ");
    if let Some(judgement) = too_few_cpus(view, first, &because) {
        return Some(judgement);
    }
    holds_if(all, because)
}

/// Judges whether a curve comes near the line rate of the link. If the link reports no rate, `ceiling` replaces the
/// line rate: the highest throughput of any configuration.
fn line_rate(view: View<'_>, experiment: &str, series: &str, ceiling: Option<f64>) -> Option<Judgement> {
    let most = knee(&view.best_curve(experiment, series, Quantity::Throughput), 1.0)?.1;
    if view.is_soft() {
        return cannot(format!(
            "{most:.1} Gb/s at best; the software RNIC has no line rate, and the CPUs copy every byte"
        ));
    }
    let (rate, of) = match view.line_rate() {
        Some(rate) => (rate, format!("the link's {rate:.0} Gb/s")),
        None => (ceiling?, "the highest throughput of any configuration".to_owned()),
    };
    let share = most / rate;
    holds_if(share >= 0.9, format!("{most:.1} Gb/s at best, {:.0} % of {of}", share * 100.0))
}

/// Returns the highest throughput of all points of these experiments.
fn highest(view: View<'_>, experiments: &[&str]) -> Option<f64> {
    let records = experiments.iter().flat_map(|experiment| view.of(experiment));
    records.filter_map(|record| super::view::best(record, Quantity::Throughput)).reduce(f64::max)
}
