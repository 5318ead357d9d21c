//! Published figures next to the figures of the runs.

use doorbell_published::{Amount, Configuration, Quantity as Published, Row, Shape, Testbed, Unit};
use doorbell_study::experiment::{Experiment, Quantity};
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::Run;
use crate::curves::{self, Curve};
use crate::table::{heading, text, value};

/// Returns the name of the published testbed, which the page lists like a run.
pub(crate) fn name(testbed: &Testbed) -> String {
    format!("{} (published)", testbed.name)
}

/// Returns the quantity of a published number, and the number in the unit of that quantity. Returns `None` if no plot
/// shows the quantity.
pub(crate) fn drawn(row: &Row) -> Option<(Quantity, f64)> {
    let (quantity, unit) = match row.quantity {
        Published::Latency => (Quantity::MedianLatency, Unit::Us),
        Published::MessageRate | Published::OperationRate => (Quantity::MessageRate, Unit::Millions),
        Published::Throughput => (Quantity::Throughput, Unit::Gb),
        Published::RequestPacketsPerOperation => (Quantity::RequestPackets, Unit::PacketsPerOperation),
        Published::ResponsePacketsPerOperation => (Quantity::ResponsePackets, Unit::PacketsPerOperation),
        Published::RequestBytesPerPacket => (Quantity::RequestFrame, Unit::Bytes),
        Published::ResponseBytesPerPacket => (Quantity::ResponseFrame, Unit::Bytes),
        _ => return None,
    };
    Some((quantity, row.value.in_unit(unit)?))
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
pub(crate) fn series(testbed: &Testbed, experiment: &Experiment, runs: &[Run]) -> Vec<Value> {
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

/// Renders the published numbers and sentences of an experiment, with their uncertainty.
pub(crate) fn section(testbed: &Testbed, experiment: &Experiment, runs: &[Run]) -> Markup {
    let shapes: Vec<&Shape> = shapes(testbed, experiment).collect();
    let rows: Vec<&Row> = rows(testbed, experiment).collect();
    if shapes.is_empty() && rows.is_empty() {
        return Markup::default();
    }
    html! {
        h4 { "Published: " (testbed.name) ", " (testbed.hardware) }
        @if !rows.is_empty() {
            div.scroll tabindex="0" { table.sortable {
                thead { tr {
                    (heading("published number", false)) (heading("value", true)) (heading("unit", false))
                    (heading("drawn", false)) (heading("source", false)) (heading("uncertain", false))
                } }
                tbody {
                    @for row in rows {
                        tr {
                            (text(&row.says))
                            (value(row.value.number, format_args!("{}{}", row.relation.words(), row.value.number)))
                            (text(row.value.unit))
                            (text(if drawn(row).and(place(experiment, &row.configuration)).is_some() { "yes" } else { "no" }))
                            (text(testbed.sources.get(&row.source).map_or("", String::as_str)))
                            (text(row.uncertain.join(" ")))
                        }
                    }
                }
            } }
        }
        @if !shapes.is_empty() {
            ul.reading {
                @for shape in shapes {
                    li {
                        (shape.says)
                        @if curves::curve(testbed, shape, runs).is_some() { " (drawn)" }
                        @for doubt in &shape.uncertain { " " i { (doubt) } }
                    }
                }
            }
        }
    }
}
