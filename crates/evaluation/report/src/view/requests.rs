//! Requests with replies: the latency of each number of clients, alone and loaded.

use doorbell_record::{PointRecord, Quantity};
use doorbell_study::experiment::Experiment;

use super::points::{label, ordered, run_cell};
use super::table::{Cell, Table};
use crate::format::bytes;
use crate::{Model, Run};

/// Figures of a row.
const FIGURES: [Quantity; 5] = [
    Quantity::MessageRate,
    Quantity::Throughput,
    Quantity::MeanLatency,
    Quantity::MedianLatency,
    Quantity::TailLatency,
];

/// Returns a row for each point of the experiment on requests, or `None` if no run has such points.
pub(super) fn table(runs: &[Run], experiment: &Experiment, model: Option<&dyn Model>) -> Option<Table> {
    let rows = |run: &Run| -> Vec<Vec<Cell>> {
        let records = ordered(run, experiment);
        records.iter().map(|record| row(runs, run, record, alone_us(&records, record), model)).collect()
    };
    Table::default()
        .texts((runs.len() > 1).then_some("run"))
        .numbers(["request", "reply"])
        .texts(["protocol"])
        .numbers(["clients"])
        .numbers(FIGURES.map(label))
        .numbers(["mean, times alone"])
        .numbers(model.map(|_| "mean of the model, us"))
        .with_rows(runs.iter().flat_map(rows))
}

fn row(runs: &[Run], run: &Run, record: &PointRecord, alone_us: Option<f64>, model: Option<&dyn Model>) -> Vec<Cell> {
    let parameters = &record.parameters;
    let at_most = if parameters.mix.is_some() { "up to " } else { "" };
    let size = |size: usize| Cell::shown(size as f64, format!("{at_most}{}", bytes(size as f64)));
    let mean_us = median(record, Quantity::MeanLatency);
    let mut cells: Vec<Cell> = run_cell(runs, run).collect();
    cells.extend([
        size(record.bytes()),
        match parameters.reply {
            Some(reply) => Cell::shown(reply as f64, bytes(reply as f64)),
            None => size(record.bytes()),
        },
        Cell::text(parameters.protocol.name()),
        Cell::count(parameters.connections as u64),
    ]);
    cells.extend(FIGURES.map(|quantity| Cell::number(median(record, quantity))));
    cells.push(Cell::number(mean_us.zip(alone_us).map(|(mean_us, alone_us)| mean_us / alone_us)));
    cells.extend(model.map(|model| {
        let predicted = model.predict(run, record, Quantity::MeanLatency);
        Cell::number(predicted.map(|prediction| prediction.value))
    }));
    cells
}

/// Returns the mean latency of a request alone, which is that of one client of the same curve.
fn alone_us(records: &[&PointRecord], record: &PointRecord) -> Option<f64> {
    let is_alone = |other: &&&PointRecord| other.series == record.series && other.parameters.connections == 1;
    median(records.iter().find(is_alone)?, Quantity::MeanLatency)
}

fn median(record: &PointRecord, quantity: Quantity) -> Option<f64> {
    Some(record.spread(quantity)?.median)
}
