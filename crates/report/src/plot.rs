//! What the page's script draws, as data.

use doorbell_published::Testbed;
use doorbell_study::experiment::{Experiment, PointRecord, Quantity, View};
use serde_json::{Value, json};

use crate::format::is_in_bytes;
use crate::{Model, Run, published};

/// The data of one experiment's plot.
pub(crate) fn data(
    runs: &[Run],
    experiment: &Experiment,
    model: Option<&dyn Model>,
    published: Option<&Testbed>,
) -> Value {
    let mut series = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let records: Vec<&PointRecord> = View::new(&run.records).of(&experiment.name).collect();
        for name in curves(experiment, &records) {
            let mut of_it: Vec<&PointRecord> = records.iter().copied().filter(|record| record.series == name).collect();
            of_it.sort_by(|a, b| a.x.total_cmp(&b.x));
            let points: Vec<Value> = of_it.iter().map(|record| point(run, record, experiment, model)).collect();
            series.push(json!({ "name": name, "run": index, "points": points }));
        }
    }
    let mut names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    let simulated: Vec<bool> = runs.iter().map(|run| run.testbed().is_some()).collect();
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
        "sweep": experiment.sweep,
        "bytes": is_in_bytes(experiment.sweep),
        "quantities": quantities,
        "runs": names,
        "simulated": simulated,
        "series": series,
    })
}

/// The names of an experiment's curves, in the order of its table; others follow by name.
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
