//! Published figures next to the figures of the runs.

use doorbell_claims::{Amount, Configuration, Quantity as PublishedQuantity, Row, Shape, Testbed, Unit};
use doorbell_record::Quantity;
use doorbell_study::experiment::Experiment;
use serde_json::{Value, json};

use super::curves::{self, Curve};
use super::table::{Cell, Table};
use crate::Run;

/// Published figures of an experiment.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) testbed: String,
    pub(crate) hardware: String,
    /// The numbers, or `None` without numbers.
    pub(crate) numbers: Option<Table>,
    pub(crate) sentences: Vec<Sentence>,
}

/// Published sentence.
#[derive(Debug)]
pub(crate) struct Sentence {
    pub(crate) says: String,
    /// Whether the plot has a curve of the sentence.
    pub(crate) is_drawn: bool,
    pub(crate) uncertain: Vec<String>,
}

/// Returns the name of the published testbed, which the page lists like a run.
pub(super) fn name(testbed: &Testbed) -> String {
    format!("{} (published)", testbed.name)
}

/// Returns the quantity of a published number, and the number in the unit of that quantity. Returns `None` if no plot
/// shows the quantity.
pub(crate) fn drawn(row: &Row) -> Option<(Quantity, f64)> {
    drawn_value(row, row.value)
}

/// Returns the quantity of a published number, and `value`, a measured or simulated value of it, in the unit of that
/// quantity.
pub(crate) fn drawn_value(row: &Row, value: doorbell_claims::Value) -> Option<(Quantity, f64)> {
    let (quantity, unit) = match row.quantity {
        PublishedQuantity::Latency => (Quantity::MedianLatency, Unit::Us),
        PublishedQuantity::MessageRate | PublishedQuantity::OperationRate => (Quantity::MessageRate, Unit::Millions),
        PublishedQuantity::Throughput => (Quantity::Throughput, Unit::Gb),
        PublishedQuantity::RequestPacketsPerOperation => (Quantity::RequestPackets, Unit::PacketsPerOperation),
        PublishedQuantity::ResponsePacketsPerOperation => (Quantity::ResponsePackets, Unit::PacketsPerOperation),
        PublishedQuantity::RequestBytesPerPacket => (Quantity::RequestFrame, Unit::Bytes),
        PublishedQuantity::ResponseBytesPerPacket => (Quantity::ResponseFrame, Unit::Bytes),
        _ => return None,
    };
    Some((quantity, value.in_unit(unit)?))
}

/// Returns the position of a published configuration on the axis of an experiment. The name of the axis determines the
/// parameter.
fn place(experiment: &Experiment, configuration: &Configuration) -> Option<f64> {
    let one = |amount: Option<Amount>| match amount {
        Some(Amount::Is(number)) => Some(number),
        _ => None,
    };
    match experiment.sweep {
        "message size, B" | "payload per post, B" => one(configuration.bytes),
        // Short frames are padded to one length. For a range of payloads, take the longest one.
        "payload, B" => configuration.bytes?.most(),
        "messages per post" => one(configuration.batch),
        "completions per poll at most" => one(configuration.poll_list),
        "threads on each side" => one(configuration.threads),
        "senders" | "queue pairs" => one(configuration.connections),
        sweep
            if sweep.contains("unacknowledged")
                || sweep.contains("outstanding")
                || sweep.contains("without answer") =>
        {
            one(configuration.window)
        }
        _ => None,
    }
}

fn rows<'a>(testbed: &'a Testbed, experiment: &'a Experiment) -> impl Iterator<Item = &'a Row> {
    testbed.rows.iter().filter(|row| row.experiment == experiment.name)
}

fn shapes<'a>(testbed: &'a Testbed, experiment: &'a Experiment) -> impl Iterator<Item = &'a Shape> {
    testbed.shapes.iter().filter(|shape| shape.experiment == experiment.name)
}

/// Returns the published curves of an experiment's plot: a curve of one point for each number, and the curve of each
/// sentence that has one. All curves belong to an additional run with the index after the last of `runs`.
pub(super) fn series(testbed: &Testbed, experiment: &Experiment, runs: &[Run]) -> Vec<Value> {
    let point = |quantity: Quantity, (x, value): (f64, f64)| {
        let of = |of: &Quantity| match *of == quantity {
            true => json!({ "least": value, "median": value, "most": value, "values": [value], "model": null }),
            false => Value::Null,
        };
        json!({ "x": x, "y": experiment.quantities.iter().map(of).collect::<Vec<_>>() })
    };
    let of_row = |row: &Row| {
        let ((quantity, value), x) = (drawn(row)?, place(experiment, &row.configuration)?);
        Some((row.id.clone(), quantity, vec![(x, value)]))
    };
    let of_shape = |shape: &Shape| {
        curves::curve(testbed, shape, runs).map(|Curve { name, quantity, points }| (name, quantity, points))
    };
    rows(testbed, experiment)
        .filter_map(of_row)
        .chain(shapes(testbed, experiment).filter_map(of_shape))
        .filter(|(_, quantity, _)| experiment.quantities.contains(quantity))
        .map(|(name, quantity, points)| {
            let points: Vec<Value> = points.into_iter().map(|at| point(quantity, at)).collect();
            json!({ "name": name, "run": runs.len(), "points": points })
        })
        .collect()
}

/// Returns the published numbers and sentences of an experiment, or `None` if there are none.
pub(super) fn section(testbed: &Testbed, experiment: &Experiment, runs: &[Run]) -> Option<Published> {
    let row = |row: &Row| {
        let is_drawn = drawn(row).and(place(experiment, &row.configuration)).is_some();
        vec![
            Cell::text(&row.says),
            Cell::shown(row.value.number, format_args!("{}{}", row.relation.words(), row.value.number)),
            Cell::text(row.value.unit),
            Cell::text(if is_drawn { "yes" } else { "no" }),
            Cell::text(testbed.sources.get(&row.source).map_or("", String::as_str)),
            Cell::Text(row.uncertain.join(" ")),
        ]
    };
    let sentence = |shape: &Shape| Sentence {
        says: shape.says.clone(),
        is_drawn: curves::curve(testbed, shape, runs).is_some(),
        uncertain: shape.uncertain.clone(),
    };
    let numbers = Table::default()
        .texts(["published number"])
        .numbers(["value"])
        .texts(["unit", "drawn", "source", "uncertain"])
        .with_rows(rows(testbed, experiment).map(row));
    let sentences: Vec<Sentence> = shapes(testbed, experiment).map(sentence).collect();
    let (name, hardware) = (testbed.name.clone(), testbed.hardware.clone());
    let is_there = numbers.is_some() || !sentences.is_empty();
    is_there.then_some(Published { testbed: name, hardware, numbers, sentences })
}
