//! The table under a plot, and the environment of runs.

use std::collections::BTreeMap;
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
        ("other hosts", |run| of(run, |e| e.others().map(about).collect::<Vec<_>>().join("; "))),
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

/// The hosts of each run that has more than two: what they are, and what they did in it.
pub(crate) fn hosts(runs: &[Run]) -> Markup {
    let runs: Vec<(&Run, Vec<HostRow<'_>>)> = runs.iter().map(|run| (run, host_rows(run))).collect();
    html! {
        @if runs.iter().any(|(_, rows)| !rows.is_empty()) {
            h2 #hosts { "Hosts" }
            div.scroll tabindex="0" { table.sortable {
                thead { tr {
                    @for name in ["run", "host", "name", "processor", "CPUs", "RNIC"] { (heading(name, false)) }
                    @for name in ["repetitions", "messages sent", "received", "CPU time, s", "clock known within, us"] {
                        (heading(name, true))
                    }
                } }
                tbody {
                    @for (run, rows) in &runs {
                        @for row in rows {
                            tr {
                                (text(&run.name)) (text(row.number)) (text(row.environment.map_or("", |e| &e.machine.host)))
                                (text(row.environment.map_or("", |e| &e.cpu)))
                                (text(row.environment.map_or_else(String::new, |e| e.cpus.to_string())))
                                (text(row.environment.map_or_else(String::new, rnic)))
                                (value(row.repetitions as f64, row.repetitions))
                                (value(row.sent as f64, row.sent)) (value(row.received as f64, row.received))
                                @match row.cpu_s {
                                    Some(cpu_s) => { (value(cpu_s, format_args!("{cpu_s:.2}"))) }
                                    None => { (nothing()) }
                                }
                                (value(row.clock_ns as f64, format_args!("{:.1}", row.clock_ns as f64 / 1e3)))
                            }
                        }
                    }
                }
            } }
        }
    }
}

/// One host of a run, over all points that it had a part in.
#[derive(Default)]
struct HostRow<'a> {
    number: usize,
    environment: Option<&'a Environment>,
    repetitions: usize,
    sent: u64,
    received: u64,
    /// `None` if a repetition does not say.
    cpu_s: Option<f64>,
    clock_ns: u64,
}

fn host_rows(run: &Run) -> Vec<HostRow<'_>> {
    let mut rows: BTreeMap<usize, HostRow<'_>> = BTreeMap::new();
    for record in &run.records {
        for host in record.repetitions.iter().flat_map(|result| &result.hosts) {
            let environment = match host.number.checked_sub(1) {
                None => Some(&record.environment),
                Some(index) => record.environment.hosts.get(index),
            };
            let number = host.number;
            let new = || HostRow { number, environment, cpu_s: Some(0.0), ..HostRow::default() };
            let row = rows.entry(number).or_insert_with(new);
            row.repetitions += 1;
            row.sent = row.sent.saturating_add(host.sent);
            row.received = row.received.saturating_add(host.received);
            row.cpu_s = row.cpu_s.zip(host.cpu.all_ns).map(|(sum, ns)| sum + ns as f64 / 1e9);
            row.clock_ns = row.clock_ns.max(host.clock_ns);
        }
    }
    rows.into_values().collect()
}

fn rnic(environment: &Environment) -> String {
    environment.adapter.as_ref().map_or_else(|| environment.device.clone(), ToString::to_string)
}

/// Another machine of a run, in a line.
fn about(peer: &Environment) -> String {
    format!("{}: {}, {} CPUs, Linux {}, {}", peer.machine.host, peer.cpu, peer.cpus, peer.kernel, rnic(peer))
}

/// What the records of a run say of their environment, each different answer once.
pub(crate) fn of(run: &Run, line: impl Fn(&Environment) -> String) -> String {
    let mut all: Vec<String> = run.records.iter().map(|record| line(&record.environment)).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(4);
    all.join(" / ")
}
