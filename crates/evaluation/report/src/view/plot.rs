//! Data for the script that draws the plots.

use std::collections::BTreeMap;

use doorbell_claims::Testbed;
use doorbell_record::{Link, PointRecord, Quantity};
use doorbell_study::experiment::{Experiment, Layout, View, subject_and_link};
use serde_json::{Value, json};

use super::published;
use crate::format::{is_in_bytes, number};
use crate::{Model, Run};

/// Curve of a plot.
pub(super) struct Curve<'a> {
    /// Name in the legend.
    pub(super) name: String,
    /// Index of the name of the run, which determines the style of the line.
    pub(super) style: usize,
    /// The run.
    pub(super) run: &'a Run,
    /// Points in the order of the axis.
    pub(super) records: Vec<&'a PointRecord>,
    /// Whether the reader has to choose the curve to see it.
    pub(super) is_hidden: bool,
}

/// Returns the data of one experiment's plot. At first, the plot shows the curves of the best variant of each protocol.
pub(super) fn data(
    runs: &[Run],
    experiment: &Experiment,
    model: Option<&dyn Model>,
    published: Option<&Testbed>,
) -> Value {
    let mut all = Vec::new();
    let by_link = runs
        .iter()
        .flat_map(|run| &run.records)
        .any(|it| it.experiment == experiment.name && subject_and_link(it).is_some());
    for (index, run) in runs.iter().enumerate() {
        let records: Vec<&PointRecord> = run.records_of(&experiment.name).collect();
        for name in curves(experiment, &records) {
            let mut of_it: Vec<&PointRecord> = records.iter().copied().filter(|record| record.series == name).collect();
            of_it.sort_by(|a, b| a.x.total_cmp(&b.x));
            // Curves of one protocol share a colour. Each link has its own line style, as if the link were a run.
            let (name, style) = match of_it.first().and_then(|record| subject_and_link(record)) {
                Some((subject, link)) => (subject, Link::ALL.len() * index + usize::from(link != Link::ALL[0])),
                None if by_link => (name, Link::ALL.len() * index),
                None => (name, index),
            };
            all.push(Curve { name: name.to_owned(), style, run, records: of_it, is_hidden: false });
        }
    }
    hide_variants(&mut all, experiment);
    let drawn_as = |run: &Run| match by_link {
        false => vec![run.name.clone()],
        true if runs.len() > 1 => Link::ALL.map(|link| format!("{}, {}", run.name, link.name())).to_vec(),
        true => Link::ALL.map(|link| link.name().to_owned()).to_vec(),
    };
    let names: Vec<(String, bool)> =
        runs.iter().flat_map(|run| drawn_as(run).into_iter().map(|name| (name, run.testbed().is_some()))).collect();
    let mut plot = plot(runs, experiment, &names, all, model);
    if let Some(testbed) = published {
        let drawn = published::series(testbed, experiment, runs);
        if !drawn.is_empty() {
            for (field, more) in [("runs", vec![json!(published::name(testbed))]), ("series", drawn)] {
                if let Some(all) = plot[field].as_array_mut() {
                    all.extend(more);
                }
            }
        }
    }
    plot
}

/// Returns the data of a plot with these curves. Hidden curves come last. `names` has the names of runs, each with
/// whether the run was simulated.
pub(super) fn plot(
    runs: &[Run],
    experiment: &Experiment,
    names: &[(String, bool)],
    mut curves: Vec<Curve<'_>>,
    model: Option<&dyn Model>,
) -> Value {
    curves.sort_by_key(|curve| curve.is_hidden);
    let series = |curve: &Curve<'_>| {
        let points = curve.records.iter().map(|record| point(curve.run, record, experiment, model));
        let points: Vec<Value> = points.collect();
        json!({ "name": curve.name, "run": curve.style, "hidden": curve.is_hidden, "points": points })
    };
    let quantities: Vec<Value> = experiment
        .quantities
        .iter()
        .map(|quantity| json!({ "name": quantity.name(), "unit": quantity.unit(), "log": quantity.is_logarithmic() }))
        .collect();
    json!({
        "limits": limits(runs, experiment),
        "sweep": experiment.sweep,
        "bytes": is_in_bytes(experiment.sweep),
        "quantities": quantities,
        "runs": names.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "simulated": names.iter().map(|(_, is_simulated)| is_simulated).collect::<Vec<_>>(),
        "series": curves.iter().map(series).collect::<Vec<_>>(),
    })
}

/// Returns the family of protocols of a record.
pub(super) fn family(record: &PointRecord) -> &'static str {
    record.parameters.protocol.description().family
}

/// Returns the median of a quantity, or its inverse, so that less is better. Returns `None` if nothing was transferred.
pub(super) fn cost(record: &PointRecord, quantity: Quantity) -> Option<f64> {
    let median = record.spread(quantity)?.median;
    (median > 0.0).then_some(if quantity.less_is_better() { median } else { 1.0 / median })
}

/// Hides the curves of all variants of a protocol but the best one in the first measured quantity.
fn hide_variants(curves: &mut [Curve<'_>], experiment: &Experiment) {
    let is_measured = |quantity: &&Quantity| {
        curves.iter().flat_map(|curve| &curve.records).any(|record| cost(record, **quantity).is_some())
    };
    let Some(&quantity) = experiment.quantities.iter().find(is_measured) else { return };
    let mut families: BTreeMap<&str, Vec<&PointRecord>> = BTreeMap::new();
    for record in curves.iter().flat_map(|curve| &curve.records).copied() {
        families.entry(family(record)).or_default().push(record);
    }
    let best: BTreeMap<&str, &str> = families
        .into_iter()
        .filter_map(|(family, records)| Some((family, best_variant(&records, quantity)?)))
        .collect();
    for curve in curves {
        curve.is_hidden = curve.records.first().is_some_and(|record| {
            best.get(family(record)).is_some_and(|best| *best != record.parameters.protocol.name())
        });
    }
}

/// Returns the variant with the lowest geometric mean of its costs at the positions that all variants have. Returns
/// `None` if they have no common position.
fn best_variant(records: &[&PointRecord], quantity: Quantity) -> Option<&'static str> {
    // Of each variant, the logarithm of the lowest cost at each position.
    let mut costs: BTreeMap<&'static str, BTreeMap<u64, f64>> = BTreeMap::new();
    for record in records {
        let Some(cost) = cost(record, quantity) else { continue };
        let own = costs.entry(record.parameters.protocol.name()).or_default();
        let least = own.entry(record.x.to_bits()).or_insert(f64::INFINITY);
        *least = least.min(cost.ln());
    }
    let common: Vec<u64> =
        costs.values().next()?.keys().copied().filter(|x| costs.values().all(|own| own.contains_key(x))).collect();
    let sum = |own: &BTreeMap<u64, f64>| common.iter().filter_map(|x| own.get(x)).sum::<f64>();
    let best = costs.iter().min_by(|a, b| sum(a.1).total_cmp(&sum(b.1)))?;
    (!common.is_empty()).then_some(*best.0)
}

/// Returns horizontal lines at the line rate of each run's link, if all hosts of the run report a line rate. The lines
/// belong to the plot of throughput, which the link limits.
fn limits(runs: &[Run], experiment: &Experiment) -> Vec<Value> {
    let Some(quantity) = experiment.quantities.iter().position(|quantity| *quantity == Quantity::Throughput) else {
        return Vec::new();
    };
    // With several links at a time, the throughput may exceed the line rate of one link: name the line so.
    let of_one = match experiment.layout {
        Layout::Pairs | Layout::AllToAll => " of one link",
        _ => "",
    };
    let is_there = |run: &&Run| run.records_of(&experiment.name).next().is_some();
    let rate = |run: &Run| Some((View::new(&run.records).line_rate()?, run.name.clone()));
    let rates: Vec<(f64, String)> = runs.iter().filter(is_there).filter_map(rate).collect();
    let are_one = rates.iter().all(|(rate, _)| *rate == rates[0].0);
    let line = |(rate, run): &(f64, String)| {
        let of_run = if runs.len() > 1 && !are_one { format!(", {run}") } else { String::new() };
        json!({ "quantity": quantity, "value": rate, "name": format!("line rate{of_one}: {} Gb/s{of_run}", number(*rate)) })
    };
    rates.iter().take(if are_one { 1 } else { rates.len() }).map(line).collect()
}

/// Returns the names of an experiment's curves in the order of the experiment's points, followed by the names of
/// unknown curves in alphabetical order.
fn curves<'a>(experiment: &Experiment, records: &[&'a PointRecord]) -> Vec<&'a str> {
    let place = |name: &str| experiment.points.iter().position(|point| point.series == name).unwrap_or(usize::MAX);
    let mut names: Vec<&str> = records.iter().map(|record| record.series.as_str()).collect();
    names.sort_unstable_by_key(|name| (place(name), *name));
    names.dedup();
    names
}

fn point(run: &Run, record: &PointRecord, experiment: &Experiment, model: Option<&dyn Model>) -> Value {
    let of = |quantity: &Quantity| match record.spread(*quantity) {
        None => Value::Null,
        Some(spread) => json!({
            "least": spread.least,
            "median": spread.median,
            "most": spread.most,
            "values": record.values(*quantity),
            "model": model.and_then(|model| model.predict(run, record, *quantity)).map(|prediction| prediction.value),
        }),
    };
    json!({ "x": record.x, "y": experiment.quantities.iter().map(of).collect::<Vec<_>>() })
}
