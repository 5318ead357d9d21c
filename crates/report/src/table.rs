//! The table under a plot, and the environment of runs.

use std::fmt::Display;

use doorbell_study::environment::Environment;
use doorbell_study::experiment::{Experiment, PointRecord, Quantity, View};
use doorbell_study::record::PointResult;
use maud::{Markup, display, html};

use crate::format::{NOTHING, date, number, place};
use crate::{Model, Run};

/// One heading of a table that sorts.
pub(crate) fn heading(text: &str, is_number: bool) -> Markup {
    html! { th scope="col" class=[is_number.then_some("number")] { button type="button" { (text) } } }
}

/// A cell that sorts by its text.
pub(crate) fn text(text: impl Display) -> Markup {
    html! { td { (display(text)) } }
}

/// A cell that sorts by a number; behind all others if it is none.
pub(crate) fn value(value: f64, text: impl Display) -> Markup {
    html! { td.number data-value=(key(value)) { (display(text)) } }
}

/// What the script sorts a cell by: nothing where there is no number.
pub(crate) fn key(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { String::new() }
}

fn nothing() -> Markup {
    value(f64::NAN, NOTHING)
}

/// All points of an experiment.
pub(crate) fn points(runs: &[Run], experiment: &Experiment, model: Option<&dyn Model>) -> Markup {
    let are_several = runs.len() > 1;
    html! {
        div.scroll tabindex="0" { table.sortable {
            thead { tr {
                @if are_several { (heading("run", false)) }
                (heading("configuration", false))
                (heading(experiment.sweep, true))
                @for quantity in &experiment.quantities {
                    (heading(&label(*quantity), true))
                    (heading("least \u{2013} most", true))
                }
                @if model.is_some() {
                    (heading("model", true))
                    (heading("bottleneck", false))
                }
                @for name in ["times", "data packets", "predicted", "repeated", "RNR NAKs"] { (heading(name, true)) }
            } }
            tbody {
                @for run in runs {
                    @for record in ordered(run, experiment) {
                        tr {
                            @if are_several { (text(&run.name)) }
                            (row(run, record, experiment, model))
                        }
                    }
                }
            }
        } }
    }
}

/// A run's points of an experiment, curve by curve, in the order of the experiment's table.
fn ordered<'a>(run: &'a Run, experiment: &Experiment) -> Vec<&'a PointRecord> {
    let mut records: Vec<&PointRecord> = View::new(&run.records).of(&experiment.name).collect();
    let order = |record: &PointRecord| experiment.points.iter().position(|point| point.series == record.series);
    records.sort_by(|a, b| (order(a), &a.series).cmp(&(order(b), &b.series)).then(a.x.total_cmp(&b.x)));
    records
}

fn label(quantity: Quantity) -> String {
    match quantity.unit() {
        "" => quantity.name().to_owned(),
        unit => format!("{}, {unit}", quantity.name()),
    }
}

fn row(run: &Run, record: &PointRecord, experiment: &Experiment, model: Option<&dyn Model>) -> Markup {
    let sum = |of: fn(&PointResult) -> u64| -> u64 { record.repetitions.iter().map(of).fold(0, u64::saturating_add) };
    let counted = sum(|r| r.counted.client.data_packets.saturating_add(r.counted.server.data_packets));
    let least = sum(|r| r.predicted.client.data_packets.saturating_add(r.predicted.server.data_packets));
    // One end may ask the other by READ, as often as it likes.
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
    html! {
        (text(&record.series))
        (value(record.x, place(experiment.sweep, record.x)))
        @for quantity in &experiment.quantities {
            @if let Some(spread) = record.spread(*quantity) {
                (value(spread.median, number(spread.median)))
                (value(spread.most - spread.least,
                    format_args!("{} \u{2013} {}", number(spread.least), number(spread.most))))
            } @else {
                (nothing()) (nothing())
            }
        }
        @if let Some(model) = model {
            @if let Some(prediction) =
                experiment.quantities.first().and_then(|quantity| model.predict(run, record, *quantity)) {
                (value(prediction.value, number(prediction.value)))
                (text(prediction.bottleneck))
            } @else {
                (nothing()) (nothing())
            }
        }
        (value(record.repetitions.len() as f64, record.repetitions.len()))
        (value(counted as f64, format_args!("{counted}{differs}")))
        (value(least as f64, predicted))
        (value(repeated as f64, repeated))
        (value(naks as f64, naks))
    }
}

/// Where each run was measured.
pub(crate) fn environments(runs: &[Run]) -> Markup {
    type Row = (&'static str, fn(&Run) -> String);
    let lines: [Row; 17] = [
        ("measured or simulated", |run| of(run, doorbell_study::environment::Environment::substrate)),
        ("host", |run| of(run, |e| e.machine.host.clone())),
        ("other host", |run| of(run, |e| e.peer.as_deref().map_or_else(String::new, about))),
        ("processor", |run| of(run, |e| e.cpu.clone())),
        ("CPUs", |run| of(run, |e| e.cpus.to_string())),
        ("frequency governor", |run| of(run, |e| e.machine.governors.join(", "))),
        ("NUMA nodes", |run| of(run, |e| e.machine.nodes.len().to_string())),
        ("Linux", |run| of(run, |e| e.kernel.clone())),
        ("provider", |run| of(run, |e| e.provider.clone())),
        ("RNIC", |run| of(run, |e| e.adapter.as_ref().map_or_else(String::new, ToString::to_string))),
        ("UDP port", |run| of(run, |e| e.udp_port.to_string())),
        ("largest path MTU", |run| of(run, |e| format!("{} B", e.active_mtu))),
        ("receive buffer granted", |run| of(run, |e| format!("{} B", e.receive_buffer_bytes))),
        ("Doorbell", |run| of(run, |e| e.doorbell.clone())),
        ("begun", |run| of(run, |e| date(e.unix_time_s))),
        ("points", |run| run.records.len().to_string()),
        ("seconds measured", |run| {
            let results = run.records.iter().flat_map(|record| &record.repetitions);
            format!("{:.0}", results.map(|result| result.seconds).sum::<f64>())
        }),
    ];
    html! {
        div.scroll tabindex="0" { table {
            thead { tr {
                th scope="col" { "run" }
                @for run in runs { th scope="col" { (run.name) } }
            } }
            tbody {
                @for (name, line) in lines {
                    tr {
                        th scope="row" { (name) }
                        @for run in runs { (text(line(run))) }
                    }
                }
            }
        } }
    }
}

/// The other machine of a run, in a line.
fn about(peer: &Environment) -> String {
    let rnic = peer.adapter.as_ref().map_or_else(|| peer.device.clone(), ToString::to_string);
    format!("{}: {}, {} CPUs, Linux {}, {rnic}", peer.machine.host, peer.cpu, peer.cpus, peer.kernel)
}

/// What the records of a run say of their environment, each different answer once.
pub(crate) fn of(run: &Run, line: impl Fn(&Environment) -> String) -> String {
    let mut all: Vec<String> = run.records.iter().map(|record| line(&record.environment)).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(4);
    all.join(" / ")
}
