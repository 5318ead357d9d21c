//! Environments of runs.

use super::table::{Cell, Table};
use crate::Run;
use crate::format::date;
use doorbell_record::{CarriedBy, Environment, Spread};

/// Line of the environment: the name of the line, and a function that returns the text of a run.
type Row = (&'static str, fn(&Run) -> String);

/// Lines on the environment of a run.
fn environment() -> [Row; 19] {
    [
        ("measured or simulated", |run| of(run, Environment::substrate)),
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

/// Returns the lines in which the environments of two runs differ, or `None` if all are the same.
pub(crate) fn differences(one: &Run, other: &Run) -> Option<Table> {
    let lines = environment().map(|(name, line)| (name, [line(one), line(other)]));
    let differing = lines.into_iter().filter(|(_, [one, other])| one != other);
    let rows =
        differing.map(|(name, [one, other])| vec![Cell::Head(name.to_owned()), Cell::Text(one), Cell::Text(other)]);
    Table::default().texts(["environment", &one.name, &other.name]).with_rows(rows)
}

/// Returns the environment of each run.
pub(super) fn environments(runs: &[Run]) -> Table {
    let line = |(name, line): Row| {
        std::iter::once(Cell::Head(name.to_owned())).chain(runs.iter().map(|run| Cell::Text(line(run)))).collect()
    };
    Table {
        rows: environment().into_iter().chain(extent()).map(line).collect(),
        ..Table::default().texts(std::iter::once("run").chain(runs.iter().map(|run| run.name.as_str())))
    }
}

/// Returns the pinned CPUs of a host as text.
pub(super) fn pinned(environment: &Environment) -> String {
    environment.pinning.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string)
}

pub(super) fn rnic(environment: &Environment) -> String {
    environment.adapter.as_ref().map_or_else(|| environment.device.clone(), ToString::to_string)
}

/// Returns a line on another machine of a run.
fn about(peer: &Environment) -> String {
    format!("{}: {}, {} CPUs, Linux {}, {}", peer.machine.host, peer.cpu, peer.cpus, peer.kernel, rnic(peer))
}

/// Returns the different texts of a line in the records of a run.
pub(super) fn of(run: &Run, line: impl Fn(&Environment) -> String) -> String {
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
        None => "unlimited".to_owned(),
    }
}

/// Joins the different texts, but at most four.
pub(super) fn distinct(mut all: Vec<String>) -> String {
    all.sort_unstable();
    all.dedup();
    all.truncate(4);
    all.join(" / ")
}
