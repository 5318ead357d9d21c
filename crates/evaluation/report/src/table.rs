//! The table under a plot, and the environments of runs.

use std::collections::BTreeMap;
use std::fmt::Display;

use doorbell_machine::cpu::{CpuPerMessage, CpuTime};
use doorbell_study::environment::Environment;
use doorbell_study::experiment::{Experiment, PointRecord, Quantity, Spread, View};
use doorbell_study::link::CarriedBy;
use doorbell_study::record::{HostResult, PointResult};
use doorbell_study::roles::Role;
use maud::{Markup, display, html};

use crate::format::{NOTHING, date, number, place};
use crate::{Model, Run};

/// Renders a heading of a sortable table.
pub(crate) fn heading(text: &str, is_number: bool) -> Markup {
    html! { th scope="col" class=[is_number.then_some("number")] { button type="button" { (text) } } }
}

/// Renders a cell of a sortable table that is sorted by its text.
pub(crate) fn text(text: impl Display) -> Markup {
    html! { td { (display(text)) } }
}

/// Renders a cell of a sortable table that is sorted by a number. Cells without a finite number are sorted last.
pub(crate) fn value(value: f64, text: impl Display) -> Markup {
    html! { td.number data-value=(key(value)) { (display(text)) } }
}

/// Returns the key by which the script sorts a cell, or an empty text if the number is not finite.
pub(crate) fn key(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { String::new() }
}

pub(crate) fn nothing() -> Markup {
    value(f64::NAN, NOTHING)
}

/// Renders all points of an experiment.
pub(crate) fn points(runs: &[Run], experiment: &Experiment, model: Option<&dyn Model>) -> Markup {
    let are_several = runs.len() > 1;
    // Only software RNICs count which link carried packets. Hardware RNICs and simulations do not.
    let mut records = runs.iter().flat_map(|run| View::new(&run.records).of(&experiment.name));
    let is_counted = records.any(|record| record.carried().by().is_some());
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
                @if is_counted { (heading("carried by", false)) }
            } }
            tbody {
                @for run in runs {
                    @for record in ordered(run, experiment) {
                        tr {
                            @if are_several { (text(&run.name)) }
                            (row(run, record, experiment, model))
                            @if is_counted { (text(record.carried())) }
                        }
                    }
                }
            }
        } }
    }
}

/// Returns the points of a run in an experiment, sorted by curve and position. The curves have the order of the
/// experiment's points.
pub(crate) fn ordered<'a>(run: &'a Run, experiment: &Experiment) -> Vec<&'a PointRecord> {
    let mut records: Vec<&PointRecord> = View::new(&run.records).of(&experiment.name).collect();
    let order = |record: &PointRecord| experiment.points.iter().position(|point| point.series == record.series);
    records.sort_by(|a, b| (order(a), &a.series).cmp(&(order(b), &b.series)).then(a.x.total_cmp(&b.x)));
    records
}

pub(crate) fn label(quantity: Quantity) -> String {
    match quantity.unit() {
        "" => quantity.name().to_owned(),
        unit => format!("{}, {unit}", quantity.name()),
    }
}

fn row(run: &Run, record: &PointRecord, experiment: &Experiment, model: Option<&dyn Model>) -> Markup {
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

/// Line of the environment: the name of the line, and a function that returns the text of a run.
type Row = (&'static str, fn(&Run) -> String);

/// Lines on the environment of a run.
fn environment() -> [Row; 19] {
    [
        ("measured or simulated", |run| of(run, doorbell_study::environment::Environment::substrate)),
        ("host", |run| of(run, |e| e.machine.host.clone())),
        ("other hosts", |run| of(run, |e| e.others().map(about).collect::<Vec<_>>().join("; "))),
        ("processor", |run| of(run, |e| e.cpu.clone())),
        ("CPUs", |run| of(run, |e| e.cpus.to_string())),
        ("frequency governor", |run| of_hosts(run, |e| e.machine.governors.join(", "))),
        ("NUMA nodes", |run| of(run, |e| e.machine.nodes.len().to_string())),
        ("Linux", |run| of(run, |e| e.kernel.clone())),
        ("provider", |run| of(run, |e| e.provider.clone())),
        ("RNIC", |run| of(run, |e| e.adapter.as_ref().map_or_else(String::new, ToString::to_string))),
        ("UDP port", |run| of(run, |e| e.udp_port.to_string())),
        ("largest path MTU", |run| of_hosts(run, |e| format!("{} B", e.active_mtu))),
        ("receive buffer granted", |run| of_hosts(run, |e| format!("{} B", e.receive_buffer_bytes))),
        ("receive buffer, net.core.rmem_max", |run| {
            of_hosts(run, |e| e.machine.receive_buffer_max_bytes.map_or_else(String::new, |bytes| format!("{bytes} B")))
        }),
        ("memory that may be locked", |run| of_hosts(run, lockable)),
        ("link of software RNICs", link),
        ("pinned threads", |run| of(run, pinned)),
        ("Doorbell", |run| of(run, |e| e.doorbell.clone())),
        ("seconds of a repetition", |run| {
            let seconds = run.records.iter().flat_map(|record| &record.repetitions).map(|result| result.seconds);
            Spread::of(seconds.collect()).map_or_else(String::new, |seconds| format!("{:.1}", seconds.median))
        }),
    ]
}

/// Returns the link that carried packets between software RNICs. If the link differs between points, returns each link
/// with its number of points.
fn link(run: &Run) -> String {
    let all = [
        (CarriedBy::SharedMemory, "shared memory"),
        (CarriedBy::Udp, "UDP"),
        (CarriedBy::Both, "both, as their tables say"),
    ];
    let count = |by| run.records.iter().filter(|record| record.carried().by() == Some(by)).count();
    let found: Vec<_> = all.into_iter().map(|(by, name)| (name, count(by))).filter(|(_, count)| *count > 0).collect();
    match found[..] {
        [(name, _)] => name.to_owned(),
        _ => found.iter().map(|(name, count)| format!("{name} ({count} points)")).collect::<Vec<_>>().join(", "),
    }
}

/// Lines on the extent of a run.
fn extent() -> [Row; 3] {
    [
        ("begun", |run| of(run, |e| date(e.unix_time_s))),
        ("points", |run| run.records.len().to_string()),
        ("seconds measured", |run| {
            let results = run.records.iter().flat_map(|record| &record.repetitions);
            format!("{:.0}", results.map(|result| result.seconds).sum::<f64>())
        }),
    ]
}

/// Returns the lines in which the environments of two runs differ, each with its name and the text of each run.
pub(crate) fn differences(one: &Run, other: &Run) -> Vec<(&'static str, [String; 2])> {
    let lines = environment().map(|(name, line)| (name, [line(one), line(other)]));
    lines.into_iter().filter(|(_, [one, other])| one != other).collect()
}

/// Renders the environment of each run.
pub(crate) fn environments(runs: &[Run]) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            thead { tr {
                th scope="col" { "run" }
                @for run in runs { th scope="col" { (run.name) } }
            } }
            tbody {
                @for (name, line) in environment().into_iter().chain(extent()) {
                    tr {
                        th scope="row" { (name) }
                        @for run in runs { (text(line(run))) }
                    }
                }
            }
        } }
    }
}

/// Renders the environment and the counters of each host, for runs on several hosts.
pub(crate) fn hosts(runs: &[Run]) -> Markup {
    let runs: Vec<(&Run, Vec<HostRow<'_>>)> = runs.iter().map(|run| (run, host_rows(run))).collect();
    let whole = |count: Option<u64>| match count {
        Some(count) => value(count as f64, count),
        None => nothing(),
    };
    let decimal = |figure: Option<f64>, decimals: usize| match figure {
        Some(figure) => value(figure, format_args!("{figure:.decimals$}")),
        None => nothing(),
    };
    html! {
        @if runs.iter().any(|(_, rows)| !rows.is_empty()) {
            h2 #hosts { "Hosts" }
            div.scroll tabindex="0" { table.sortable {
                thead { tr {
                    @for name in ["run", "host", "name", "processor", "CPUs", "RNIC", "pinned threads"] { (heading(name, false)) }
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
                                (text(host_pins(run, row.number)))
                                (value(row.repetitions as f64, row.repetitions))
                                (whole(row.sent)) (whole(row.received)) (decimal(row.cpu_s, 2))
                                (decimal(row.clock_ns.map(|ns| ns as f64 / 1e3), 1))
                            }
                        }
                    }
                }
            } }
        }
    }
}

/// Counters of one host in one repetition.
struct HostPart {
    number: usize,
    role: String,
    sent: Option<u64>,
    received: Option<u64>,
    cpu: CpuTime,
    per_message: CpuPerMessage,
    clock_ns: Option<u64>,
}

/// Returns the counters of all hosts in a repetition. The result is empty if the repetition ran on one machine.
fn parts(record: &PointRecord, result: &PointResult) -> Vec<HostPart> {
    let of_many = |host: &HostResult| HostPart {
        number: host.number,
        role: host.role.clone(),
        sent: Some(host.sent),
        received: Some(host.received),
        cpu: host.cpu,
        per_message: host.cpu_by_message(),
        clock_ns: Some(host.clock_ns),
    };
    if record.environment.peer.is_none() || !result.hosts.is_empty() {
        return result.hosts.iter().map(of_many).collect();
    }
    let (cast, per_message) = (record.parameters.cast(), result.cpu_by_message());
    let of_two = |number, role: Role, cpu, per_message| HostPart {
        number,
        role: role.to_string(),
        sent: None,
        received: None,
        cpu,
        per_message,
        clock_ns: None,
    };
    let asking = of_two(0, cast.asking.role, result.cpu.client, per_message.client);
    let sent = result.sent_by_connection.iter().fold(0, |sum: u64, sent| sum.saturating_add(*sent));
    let answering = of_two(1, cast.answering.role, result.cpu.server, per_message.server);
    vec![HostPart { sent: Some(sent), ..asking }, answering]
}

/// Returns the environment of a host by its number.
fn host_environment(record: &PointRecord, number: usize) -> Option<&Environment> {
    match number.checked_sub(1) {
        None => Some(&record.environment),
        Some(index) => record.environment.others().nth(index),
    }
}

/// Returns the sets of CPUs to which a host pinned its threads in the points of a run, each different set once.
fn host_pins(run: &Run, number: usize) -> String {
    let hosts = run.records.iter().filter_map(|record| host_environment(record, number)).map(pinned).collect();
    distinct(hosts)
}

/// Sums of the counters of a host over all points of a run in which the host took part.
#[derive(Default)]
struct HostRow<'a> {
    number: usize,
    environment: Option<&'a Environment>,
    repetitions: usize,
    /// Messages sent. This field and the following ones are `None` if a repetition lacks the counter.
    sent: Option<u64>,
    received: Option<u64>,
    cpu_s: Option<f64>,
    clock_ns: Option<u64>,
}

fn host_rows(run: &Run) -> Vec<HostRow<'_>> {
    let mut rows: BTreeMap<usize, HostRow<'_>> = BTreeMap::new();
    for record in &run.records {
        for host in record.repetitions.iter().flat_map(|result| parts(record, result)) {
            let number = host.number;
            let row = rows.entry(number).or_insert_with(|| HostRow {
                number,
                environment: host_environment(record, number),
                repetitions: 0,
                sent: Some(0),
                received: Some(0),
                cpu_s: Some(0.0),
                clock_ns: Some(0),
            });
            row.repetitions += 1;
            row.sent = row.sent.zip(host.sent).map(|(sum, sent)| sum.saturating_add(sent));
            row.received = row.received.zip(host.received).map(|(sum, received)| sum.saturating_add(received));
            row.cpu_s = row.cpu_s.zip(host.cpu.all_ns).map(|(sum, ns)| sum + ns as f64 / 1e9);
            row.clock_ns = row.clock_ns.zip(host.clock_ns).map(|(most, ns)| most.max(ns));
        }
    }
    rows.into_values().collect()
}

/// Renders the CPU time of each host per message, with a row per host and point, if several hosts took part.
pub(crate) fn cpu_of_hosts(runs: &[Run], experiment: &Experiment) -> Markup {
    let rows: Vec<(&Run, CpuRow<'_>)> =
        runs.iter().flat_map(|run| cpu_rows(run, experiment).into_iter().map(move |row| (run, row))).collect();
    let cell = |spread: Option<Spread>| {
        html! {
            @match spread {
                Some(it) => { (value(it.median, number(it.median)))
                    (value(it.most - it.least, format_args!("{} \u{2013} {}", number(it.least), number(it.most)))) }
                None => { (nothing()) (nothing()) }
            }
        }
    };
    html! {
        @if !rows.is_empty() {
            p.setting { "CPU time of each host per sent message, or per received message on a host that only answers:" }
            div.scroll tabindex="0" { table.sortable.hosts {
                thead { tr {
                    @if runs.len() > 1 { (heading("run", false)) }
                    (heading("configuration", false)) (heading(experiment.sweep, true)) (heading("host", true))
                    (heading("name", false)) (heading("role", false))
                    @for name in ["CPU, us/message", "without empty polls, us/message"] {
                        (heading(name, true)) (heading("least \u{2013} most", true))
                    }
                } }
                tbody {
                    @for (run, row) in &rows {
                        tr {
                            @if runs.len() > 1 { (text(&run.name)) }
                            (text(&row.record.series)) (value(row.record.x, place(experiment.sweep, row.record.x)))
                            (value(row.number as f64, row.number))
                            (text(host_environment(row.record, row.number).map_or("", |e| &e.machine.host)))
                            (text(&row.role)) (cell(row.all_us)) (cell(row.useful_us))
                        }
                    }
                }
            } }
        }
    }
}

/// One host in one point.
struct CpuRow<'a> {
    record: &'a PointRecord,
    number: usize,
    role: String,
    all_us: Option<Spread>,
    useful_us: Option<Spread>,
}

fn cpu_rows<'a>(run: &'a Run, experiment: &Experiment) -> Vec<CpuRow<'a>> {
    let mut rows = Vec::new();
    for record in ordered(run, experiment) {
        let mut hosts: BTreeMap<usize, Vec<HostPart>> = BTreeMap::new();
        for part in record.repetitions.iter().flat_map(|result| parts(record, result)) {
            hosts.entry(part.number).or_default().push(part);
        }
        rows.extend(hosts.into_iter().map(|(number, parts)| {
            let spread = |of: fn(CpuPerMessage) -> Option<f64>| {
                Spread::of(parts.iter().filter_map(|part| of(part.per_message)).collect())
            };
            let role = parts.first().map_or_else(String::new, |part| part.role.clone());
            CpuRow { record, number, role, all_us: spread(|it| it.all_us), useful_us: spread(|it| it.useful_us) }
        }));
    }
    rows
}

/// Returns the pinned CPUs of a host as text.
fn pinned(environment: &Environment) -> String {
    environment.pinning.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string)
}

fn rnic(environment: &Environment) -> String {
    environment.adapter.as_ref().map_or_else(|| environment.device.clone(), ToString::to_string)
}

/// Returns a line on another machine of a run.
fn about(peer: &Environment) -> String {
    format!("{}: {}, {} CPUs, Linux {}, {}", peer.machine.host, peer.cpu, peer.cpus, peer.kernel, rnic(peer))
}

/// Returns the different texts of a line in the records of a run.
pub(crate) fn of(run: &Run, line: impl Fn(&Environment) -> String) -> String {
    distinct(run.records.iter().map(|record| line(&record.environment)).collect())
}

/// Returns the text of a line if all hosts have the same text, else a text for each host.
fn of_hosts(run: &Run, line: impl Fn(&Environment) -> String) -> String {
    of(run, |own| {
        let all: Vec<&Environment> = std::iter::once(own).chain(own.others()).collect();
        let lines: Vec<String> = all.iter().map(|host| line(host)).collect();
        if lines.iter().all(|other| *other == lines[0]) {
            return line(own);
        }
        let named = |(number, (host, said)): (usize, (&&Environment, &String))| {
            let said = if said.is_empty() { "not said" } else { said };
            format!("host {number} ({}): {said}", host.machine.host)
        };
        all.iter().zip(&lines).enumerate().map(named).collect::<Vec<_>>().join("; ")
    })
}

/// Returns the amount of memory that a process may lock. The result is empty for records of earlier releases, which
/// have no data about the machine.
fn lockable(environment: &Environment) -> String {
    match environment.machine.memlock_bytes {
        Some(bytes) => format!("{bytes} B"),
        None if environment.machine.host.is_empty() => String::new(),
        None => "without limit".to_owned(),
    }
}

/// Joins the different texts, but at most four.
fn distinct(mut all: Vec<String>) -> String {
    all.sort_unstable();
    all.dedup();
    all.truncate(4);
    all.join(" / ")
}
