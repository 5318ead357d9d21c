//! Results of a workload, as a table or JSON.

use std::collections::BTreeMap;
use std::io;

use doorbell_farmem::Strategy;
use doorbell_farmem::workload::{Load, Report, Side};
use doorbell_record::link_by_name;
use doorbell_verbs::LinkCounters;
use serde_json::{Value, json};

use super::arguments::Workload;
use crate::output::{line, us, wrapped};

/// Result of a run.
pub(super) struct Row {
    pub(super) strategy: Strategy,
    pub(super) clients: usize,
    pub(super) load: Load,
    pub(super) report: Report,
    /// Mean number of busy cores, first of the memory node, then of a client.
    pub(super) cpu: Option<[f64; 2]>,
    pub(super) digest: Option<u64>,
    /// Counters of the links of the clients' devices, with lost packets; `None` for a simulation.
    pub(super) link: Option<LinkCounters>,
}

impl Row {
    /// Returns the counters of the link by their names.
    pub(super) fn link_by_name(&self) -> BTreeMap<String, u64> {
        self.link.map(|link| link_by_name(&link, &LinkCounters::default())).unwrap_or_default()
    }
}

pub(super) fn print_head() -> io::Result<()> {
    line(format_args!(
        "{:<10} {:>7} {:>9}  {:>6} {:>6} {:>8} {:>8} {:>8}  {:>6} {:>6} {:>8} {:>8} {:>8}  {:>7} {:>6}  {:>5}",
        "strategy",
        "clients",
        "M ops/s",
        "get/op",
        "ok %",
        "p50 us",
        "p99 us",
        "p99.9",
        "put/op",
        "ok %",
        "p50 us",
        "p99 us",
        "p99.9",
        "B/op",
        "x",
        "fair"
    ))
}

/// Columns of the table with their meanings.
const LEGEND: [(&str, &str); 5] = [
    ("get/op, put/op", "attempts per get and per put; each READ of a value and each CAS is an attempt"),
    ("ok %", "share of the attempts that found the newest node of their key"),
    ("p50, p99, p99.9", "latency of gets, then of puts, in microseconds"),
    ("B/op, x", "frame bytes per operation, and their ratio to those of first attempts that succeed"),
    ("fair", "Jain's index: 1 if all clients complete equally many operations"),
];

/// Reason for the results of optimistic clients, and the effect of a middlebox.
const REASON: &str = "Each successful put fails the CASes of all other writers of its key, which try again at once. \
                      This makes many optimistic clients collapse. A middlebox (--strategy steered) redirects READs and CASes to \
                      the newest node.";

/// Prints the meaning of each column, and why strategies differ.
pub(super) fn print_legend() -> io::Result<()> {
    line("")?;
    for (columns, meaning) in LEGEND {
        line(format_args!("{columns:<15} {meaning}"))?;
    }
    line(wrapped(REASON))
}

fn side(side: &Side) -> String {
    let at = |quantile: f64| us(side.latency_ns.value_at_quantile(quantile) as f64);
    format!(
        "{:>6.2} {:>6.1} {:>8} {:>8} {:>8}",
        side.attempts_per_operation(),
        side.success_percent(),
        at(0.5),
        at(0.99),
        at(0.999)
    )
}

pub(super) fn print_row(row: &Row) -> io::Result<()> {
    let Row { strategy, clients, report, .. } = row;
    let bytes = report.bytes_per_operation;
    line(format_args!(
        "{:<10} {clients:>7} {:>9.3}  {}  {}  {:>7} {:>6}  {:>5.2}",
        strategy.name(),
        report.operations_per_s / 1e6,
        side(&report.gets),
        side(&report.puts),
        bytes.map_or("-".to_owned(), |bytes| format!("{bytes:.0}")),
        bytes.map_or("-".to_owned(), |bytes| format!("{:.2}", bytes / report.least_bytes_per_operation)),
        report.fairness,
    ))
}

fn side_json(side: &Side) -> Value {
    let at = |quantile: f64| side.latency_ns.value_at_quantile(quantile);
    json!({
        "operations": side.latency_ns.len(),
        "attempts": side.attempts.attempts,
        "attempts_per_operation": side.attempts_per_operation(),
        "successful_attempts_percent": side.success_percent(),
        "successful_at_once_percent": side.at_once_percent(),
        "latency_ns": { "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": side.latency_ns.max() },
    })
}

fn row_json(row: &Row) -> Value {
    let Row { strategy, clients, load, report, cpu, digest, link: _ } = row;
    let counts = &report.counts;
    json!({
        "strategy": strategy.name(),
        "clients": clients,
        "outstanding": load.outstanding,
        "operations": report.operations,
        "operations_per_s": report.operations_per_s,
        "gets": side_json(&report.gets),
        "puts": side_json(&report.puts),
        "bytes_per_operation": report.bytes_per_operation,
        "least_bytes_per_operation": report.least_bytes_per_operation,
        "fairness": report.fairness,
        "fewest_and_most": report.fewest_and_most,
        "gave_up": report.gave_up,
        "skipped": report.skipped,
        "absent": report.absent,
        "memory_cores": cpu.map(|[memory, _]| memory),
        "cores_per_client": cpu.map(|[_, client]| client),
        "counts": {
            "hops": counts.hops,
            "questions": counts.questions,
            "recycled": counts.recycled,
            "lock_attempts": counts.lock_attempts,
            "handovers": counts.handovers,
            "shared": counts.shared,
            "messages": counts.messages,
            "message_bytes": counts.message_bytes,
            "suspects": counts.suspects,
            "reads": counts.verbs.reads,
            "read_bytes": counts.verbs.read_bytes,
            "writes": counts.verbs.writes,
            "written_bytes": counts.verbs.written_bytes,
            "compare_swaps": counts.verbs.compare_swaps,
        },
        "link": row.link_by_name(),
        "digest": digest.map(|digest| format!("{digest:016x}")),
    })
}

pub(super) fn as_json(testbed: Option<&str>, workload: &Workload, rows: &[Row]) -> Value {
    let load = rows.first().map(|row| row.load).unwrap_or_default();
    json!({
        "schema": "doorbell-far/1",
        "simulated": testbed.is_some(),
        "testbed": testbed,
        "seed": workload.seed,
        "keys": load.keys,
        "zipf": load.zipf,
        "write_percent": load.write_percent,
        "value_bytes": load.value_bytes,
        "hosts": workload.hosts,
        "replicas": workload.replicas,
        "client_ns": load.client_ns,
        "measured_ns": load.measure_ns,
        "runs": rows.iter().map(row_json).collect::<Vec<_>>(),
    })
}
