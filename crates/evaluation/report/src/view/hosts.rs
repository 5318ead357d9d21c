//! Hosts of runs, and their CPU time.

use std::collections::BTreeMap;

use doorbell_machine::cpu::{CpuPerMessage, CpuTime};
use doorbell_record::{Environment, HostResult, PointRecord, PointResult, Role, Spread};
use doorbell_study::experiment::Experiment;

use super::environment::{distinct, pinned, rnic};
use super::points::{ordered, run_cell};
use super::table::{Cell, Table};
use crate::Run;
use crate::format::place;

/// Returns the environment and the counters of each host, for runs on several hosts.
pub(super) fn hosts(runs: &[Run]) -> Option<Table> {
    let decimal = |figure: Option<f64>, decimals: usize| match figure {
        Some(figure) => Cell::shown(figure, format_args!("{figure:.decimals$}")),
        None => Cell::number(None),
    };
    let row = |run: &Run, row: HostRow<'_>| {
        let of = |line: fn(&Environment) -> String| Cell::Text(row.environment.map_or_else(String::new, line));
        vec![
            Cell::text(&run.name),
            Cell::text(row.number),
            of(|e| e.machine.host.clone()),
            of(|e| e.cpu.clone()),
            of(|e| e.cpus.to_string()),
            of(rnic),
            Cell::Text(host_pins(run, row.number)),
            Cell::count(row.repetitions as u64),
            Cell::count(row.sent),
            Cell::count(row.received),
            decimal(row.cpu_s, 2),
            decimal(row.clock_ns.map(|ns| ns as f64 / 1e3), 1),
        ]
    };
    Table::default()
        .texts(["run", "host", "name", "processor", "CPUs", "RNIC", "pinned threads"])
        .numbers(["repetitions", "messages sent", "received", "CPU time, s", "clock known within, us"])
        .with_rows(runs.iter().flat_map(|run| host_rows(run).into_iter().map(move |it| row(run, it))))
}

/// Returns the CPU time of each host per message, with a row per host and point, if several hosts took part.
pub(super) fn cpu_of_hosts(runs: &[Run], experiment: &Experiment) -> Option<Table> {
    let row = |run: &Run, row: CpuRow<'_>| {
        let host = host_environment(row.record, row.number).map_or("", |e| &e.machine.host);
        let mut cells: Vec<Cell> = run_cell(runs, run).collect();
        cells.extend([
            Cell::text(&row.record.series),
            Cell::shown(row.record.x, place(experiment.sweep, row.record.x)),
            Cell::count(row.number as u64),
            Cell::text(host),
            Cell::text(&row.role),
        ]);
        cells.extend([row.all_us, row.useful_us].into_iter().flat_map(Cell::spread));
        cells
    };
    let range = "least \u{2013} most";
    Table::default()
        .texts((runs.len() > 1).then_some("run"))
        .texts(["configuration"])
        .numbers([experiment.sweep, "host"])
        .texts(["name", "role"])
        .numbers(["CPU, us/message", range, "without empty polls, us/message", range])
        .with_rows(runs.iter().flat_map(|run| cpu_rows(run, experiment).into_iter().map(move |it| row(run, it))))
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
