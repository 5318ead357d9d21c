//! Points of an experiment as a table.

use doorbell_record::{PointRecord, PointResult, Quantity};
use doorbell_study::experiment::Experiment;

use super::table::{Cell, Table};
use crate::format::place;
use crate::{Model, Run};

/// Returns a cell with the name of the run if the page shows several runs.
pub(super) fn run_cell(runs: &[Run], run: &Run) -> impl Iterator<Item = Cell> {
    (runs.len() > 1).then(|| Cell::text(&run.name)).into_iter()
}

/// Returns all points of an experiment.
pub(super) fn points(runs: &[Run], experiment: &Experiment, model: Option<&dyn Model>) -> Table {
    // Only software RNICs count which link carried packets. Hardware RNICs and simulations do not.
    let mut records = runs.iter().flat_map(|run| run.records_of(&experiment.name));
    let is_counted = records.any(|record| record.carried().by().is_some());
    let quantities =
        experiment.quantities.iter().flat_map(|quantity| [label(*quantity), "least \u{2013} most".to_owned()]);
    let row = |run: &Run, record: &PointRecord| {
        let mut cells: Vec<Cell> = run_cell(runs, run).collect();
        cells.extend([Cell::text(&record.series), Cell::shown(record.x, place(experiment.sweep, record.x))]);
        cells.extend(experiment.quantities.iter().flat_map(|quantity| Cell::spread(record.spread(*quantity))));
        if let Some(model) = model {
            let quantity = experiment.quantities.first();
            cells.extend(match quantity.and_then(|quantity| model.predict(run, record, *quantity)) {
                Some(prediction) => [Cell::number(prediction.value), Cell::Text(prediction.bottleneck)],
                None => [Cell::number(None), Cell::number(None)],
            });
        }
        cells.extend(counts(record));
        cells.extend(is_counted.then(|| Cell::text(record.carried())));
        cells
    };
    Table {
        rows: runs
            .iter()
            .flat_map(|run| ordered(run, experiment).into_iter().map(move |record| row(run, record)))
            .collect(),
        ..Table::default()
            .texts((runs.len() > 1).then_some("run"))
            .texts(["configuration"])
            .numbers([experiment.sweep])
            .numbers(quantities)
            .numbers(model.map(|_| "model"))
            .texts(model.map(|_| "bottleneck"))
            .numbers(["times", "data packets", "predicted", "repeated", "RNR NAKs"])
            .texts(is_counted.then_some("carried by"))
    }
}

/// Returns the points of a run in an experiment, sorted by curve and position. The curves have the order of the
/// experiment's points.
pub(crate) fn ordered<'a>(run: &'a Run, experiment: &Experiment) -> Vec<&'a PointRecord> {
    let mut records: Vec<&PointRecord> = run.records_of(&experiment.name).collect();
    let order = |record: &PointRecord| experiment.points.iter().position(|point| point.series == record.series);
    records.sort_by(|a, b| (order(a), &a.series).cmp(&(order(b), &b.series)).then(a.x.total_cmp(&b.x)));
    records
}

pub(super) fn label(quantity: Quantity) -> String {
    match quantity.unit() {
        "" => quantity.name().to_owned(),
        unit => format!("{}, {unit}", quantity.name()),
    }
}

/// Returns the number of repetitions, and the packets of all repetitions: counted, predicted, retransmitted, RNR NAKs.
fn counts(record: &PointRecord) -> [Cell; 5] {
    let sum = |of: fn(&PointResult) -> u64| -> u64 { record.repetitions.iter().map(of).fold(0, u64::saturating_add) };
    let counted = sum(|r| r.counted.client.data_packets.saturating_add(r.counted.server.data_packets));
    let least = sum(|r| r.predicted.client.data_packets.saturating_add(r.predicted.server.data_packets));
    // An end that polls the other end by READ sends any number of requests, so the count has no upper bound.
    let asks = record.repetitions.iter().any(|r| r.predicted.client.asks || r.predicted.server.asks);
    let most = sum(|r| r.predicted.client.data_packets_max.saturating_add(r.predicted.server.data_packets_max));
    let most = if asks { u64::MAX } else { most };
    let differs = if (least..=most).contains(&counted) { "" } else { " \u{2260}" };
    let predicted = match most {
        u64::MAX => format!("{least} or more"),
        most if most == least => least.to_string(),
        most => format!("{least} \u{2013} {most}"),
    };
    let repeated =
        sum(|r| r.counted.client.retransmitted_packets.saturating_add(r.counted.server.retransmitted_packets));
    let naks = sum(|r| r.counted.client.rnr_naks.saturating_add(r.counted.server.rnr_naks));
    [
        Cell::count(record.repetitions.len() as u64),
        Cell::shown(counted as f64, format_args!("{counted}{differs}")),
        Cell::shown(least as f64, predicted),
        Cell::count(repeated),
        Cell::count(naks),
    ]
}
