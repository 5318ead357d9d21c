//! Data for the script that draws the plots.

use doorbell_claims::Testbed;
use doorbell_record::{Link, PointRecord, Quantity};
use doorbell_study::experiment::{Experiment, View, subject_and_link};
use doorbell_study::layout::Layout;
use serde_json::{Value, json};

use super::published;
use crate::format::{is_in_bytes, number};
use crate::{Model, Run};

/// Returns the data of one experiment's plot.
pub(super) fn data(
    runs: &[Run],
    experiment: &Experiment,
    model: Option<&dyn Model>,
    published: Option<&Testbed>,
) -> Value {
    let mut series = Vec::new();
    let by_link = runs
        .iter()
        .flat_map(|run| &run.records)
        .any(|it| it.experiment == experiment.name && subject_and_link(it).is_some());
    for (index, run) in runs.iter().enumerate() {
        let records: Vec<&PointRecord> = run.records_of(&experiment.name).collect();
        for name in curves(experiment, &records) {
            let mut of_it: Vec<&PointRecord> = records.iter().copied().filter(|record| record.series == name).collect();
            of_it.sort_by(|a, b| a.x.total_cmp(&b.x));
            let points: Vec<Value> = of_it.iter().map(|record| point(run, record, experiment, model)).collect();
            // Curves of one protocol share a colour. Each link has its own line style, as if the link were a run.
            let (name, index) = match of_it.first().and_then(|record| subject_and_link(record)) {
                Some((subject, link)) => (subject, Link::ALL.len() * index + usize::from(link != Link::ALL[0])),
                None if by_link => (name, Link::ALL.len() * index),
                None => (name, index),
            };
            series.push(json!({ "name": name, "run": index, "points": points }));
        }
    }
    let drawn_as = |run: &Run| match by_link {
        false => vec![run.name.clone()],
        true if runs.len() > 1 => Link::ALL.map(|link| format!("{}, {}", run.name, link.name())).to_vec(),
        true => Link::ALL.map(|link| link.name().to_owned()).to_vec(),
    };
    let simulated: Vec<bool> =
        runs.iter().flat_map(|run| drawn_as(run).into_iter().map(|_| run.testbed().is_some())).collect();
    let mut names: Vec<String> = runs.iter().flat_map(drawn_as).collect();
    if let Some(testbed) = published {
        let drawn = published::series(testbed, experiment, runs);
        if !drawn.is_empty() {
            series.extend(drawn);
            names.push(published::name(testbed));
        }
    }
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
        "runs": names,
        "simulated": simulated,
        "series": series,
    })
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
