//! Summaries of plots, in sentences computed from the data.

use doorbell_record::{Carried, CarriedBy, PointRecord, Quantity, Spread};
use doorbell_study::experiment::{Experiment, View};

use crate::Run;
use crate::format::{number, place, with_unit};

/// Returns the summary of one experiment in one run.
pub(super) fn summary(run: &Run, experiment: &Experiment) -> Option<String> {
    let records: Vec<&PointRecord> = run.records_of(&experiment.name).collect();
    let quantity =
        *experiment.quantities.iter().find(|quantity| records.iter().any(|r| r.spread(**quantity).is_some()))?;
    let points: Vec<(&PointRecord, Spread)> =
        records.iter().filter_map(|record| Some((*record, record.spread(quantity)?))).collect();
    let mut text = extremes(experiment, quantity, &points)?;
    if let Some(change) = steepest(run, experiment, quantity, &points) {
        text.push(' ');
        text.push_str(&change);
    }
    if let Some(spread) = widest(experiment, &points) {
        text.push(' ');
        text.push_str(&spread);
    }
    if let Some(carried) = carried(&records) {
        text.push(' ');
        text.push_str(&carried);
    }
    Some(text)
}

/// Returns a sentence on the link that carried the packets. Returns `None` if points have links of their own, since the
/// table lists these links.
fn carried(records: &[&PointRecord]) -> Option<String> {
    if records.iter().any(|record| record.parameters.link.is_some()) {
        return None;
    }
    let all = records.iter().fold(Carried::default(), |all, record| all.and(record.carried()));
    Some(match all.by()? {
        CarriedBy::Udp => "All packets went over UDP.".to_owned(),
        CarriedBy::SharedMemory => "All packets went through shared memory.".to_owned(),
        CarriedBy::Both => {
            let Carried { udp, shared_memory } = all;
            format!("Of the packets {shared_memory} went through shared memory and {udp} over UDP.")
        }
    })
}

fn extremes(experiment: &Experiment, quantity: Quantity, points: &[(&PointRecord, Spread)]) -> Option<String> {
    let by_median = |a: &&(&PointRecord, Spread), b: &&(&PointRecord, Spread)| a.1.median.total_cmp(&b.1.median);
    let least = points.iter().min_by(by_median)?;
    let most = points.iter().max_by(by_median)?;
    let (best, worst) = if quantity.less_is_better() { (least, most) } else { (most, least) };
    let at = |point: &(&PointRecord, Spread)| here(experiment, point.0);
    let value = |point: &(&PointRecord, Spread)| with_unit(point.1.median, quantity.unit());
    if points.len() == 1 {
        return Some(format!("One point: {} {} ({}).", quantity.name(), value(best), at(best)));
    }
    let extreme = if quantity.less_is_better() { "lowest" } else { "highest" };
    let opposite = if quantity.less_is_better() { "highest" } else { "lowest" };
    Some(format!(
        "The {extreme} {} is {} ({}), the {opposite} {} ({}).",
        quantity.name(),
        value(best),
        at(best),
        value(worst),
        at(worst)
    ))
}

fn axis(experiment: &Experiment) -> &str {
    experiment.sweep.trim_end_matches(", B")
}

/// Returns the configuration and position of a point as text.
fn here(experiment: &Experiment, record: &PointRecord) -> String {
    format!("{}; {} {}", record.series, axis(experiment), place(experiment.sweep, record.x))
}

/// Returns a sentence on the curve that changes most from its first to its last point.
fn steepest(
    run: &Run,
    experiment: &Experiment,
    quantity: Quantity,
    points: &[(&PointRecord, Spread)],
) -> Option<String> {
    let mut names: Vec<&str> = points.iter().map(|(record, _)| record.series.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let view = View::new(&run.records);
    let changes = names.into_iter().filter_map(|name| {
        let curve = view.curve(&experiment.name, name, quantity);
        let (first, last) = (*curve.first()?, *curve.last()?);
        let ratio = last.1 / first.1;
        (last.0 > first.0 && ratio.is_finite() && ratio > 0.0).then_some((name, first, last, ratio))
    });
    let (name, first, last, ratio) = changes.max_by(|a, b| a.3.ln().abs().total_cmp(&b.3.ln().abs()))?;
    let (from, to) = (place(experiment.sweep, first.0), place(experiment.sweep, last.0));
    let axis = axis(experiment);
    Some(format!(
        "Over the sweep ({axis} {from} to {to}) {name} changes by a factor of {}: from {} to {}.",
        number(ratio),
        number(first.1),
        with_unit(last.1, quantity.unit())
    ))
}

/// Returns a sentence on the spread of repetitions.
fn widest(experiment: &Experiment, points: &[(&PointRecord, Spread)]) -> Option<String> {
    let mut several: Vec<_> = points
        .iter()
        .filter(|(record, _)| record.repetitions.len() > 1)
        .filter_map(|(record, spread)| Some((spread.share()?, record)))
        .collect();
    several.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (typical, (most, widest)) = (several.get(several.len() / 2)?.0, several.last()?);
    Some(format!(
        "Repetitions of a point typically span {:.0} % of its median, at most {:.0} % ({}).",
        typical * 100.0,
        most * 100.0,
        here(experiment, widest)
    ))
}
