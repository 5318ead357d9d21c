//! `doorbell sim sweep`: one traffic, simulated with several values of any parameter.

use std::io;
use std::path::PathBuf;

use clap::Args;
use doorbell_report::{SweepPoint, sweep_html, write_whole};
use doorbell_sim::captures::Captures;
use doorbell_sim::sweep::{Axis, Base, MANY_TO_ONE, Point, Sweep as Points, SweepError};
use doorbell_sim::traffic::Carried;
use serde_json::{Value, json};

use super::arguments::{Bounds, assignment, read_testbed};
use crate::failure::{Failure, Usage};
use crate::output::{line, note, widths};
use crate::progress::MessageBar;

const EXAMPLES: &str = "\
Examples:
  doorbell sim sweep --vary link.rate_gbps=25,100,400 --vary size=64,4096
  doorbell sim sweep --vary window=1,4,16,64 --vary protocol=send-receive,direct-read --out w.html
  doorbell sim sweep --set pattern=N:1 --set size=4096 --vary senders=1,4,16,64
  doorbell sim sweep --set reply=64 --set sizes=64:0.9,64K:0.1 --vary rate=1e4,1e5,1e6
  doorbell sim sweep --set network=clos --set pattern=N:N --set senders=32 \\
    --vary oversubscription=1,2,4
  doorbell sim sweep --many-to-one --out many-to-one.html
  doorbell sim sweep --many-to-one --vary senders=1023 --set total_messages=10000000";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sweep {
    /// A parameter of the testbed, of the traffic or of the network, with its values. If several parameters are given,
    /// every combination of their values is simulated
    #[arg(long, value_name = "NAME=VALUE,...")]
    vary: Vec<String>,
    /// A parameter with a value that applies to all points; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Begin with the settings of N:1 over a two-level Clos network: messages of 512 B from 1 to 1023 senders. The
    /// protocols are Send-Receive, Direct-Read and Shared-Write, and switches pause senders or drop frames. --set and
    /// --vary replace single settings and axes
    #[arg(long)]
    many_to_one: bool,
    /// Testbed: a name that `sim testbeds` lists, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "connectx5-100g")]
    testbed: String,
    /// List the parameters with their values and allowed values, and simulate nothing
    #[arg(long)]
    list: bool,
    /// Seed for random keys, queue pair numbers and packet sequence numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    bounds: Bounds,
    /// Write the plots and the table to this HTML file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(sweep: &Sweep) -> Result<(), Failure> {
    let refuse = |error: SweepError| Failure::from(Usage(error.to_string()));
    let mut base = Base::new(&read_testbed(&sweep.testbed)?);
    let axes: Vec<Axis> = sweep.vary.iter().map(|axis| axis.parse()).collect::<Result<_, _>>().map_err(refuse)?;
    let (set, axes) = if sweep.many_to_one { MANY_TO_ONE.with(&sweep.set, axes) } else { (sweep.set.clone(), axes) };
    set.iter().try_for_each(|(name, value)| base.set(name, value)).map_err(refuse)?;
    if sweep.list {
        return Ok(list(&base, sweep.json)?);
    }
    let memory = sweep.bounds.memory();
    let points = Points::new(&base, axes, memory).map_err(refuse)?;
    let captures = sweep.bounds.captures()?;
    let total: u64 = points.points().iter().map(Point::messages).sum();
    let bar = MessageBar::new(total);
    let mut before = 0;
    let mut found = Vec::new();
    for (index, point) in points.points().iter().enumerate() {
        let at = described(points.axes(), point);
        bar.show(&at);
        let capture = captures.as_ref().map(|captures| captures.open(index + 1)).transpose()?;
        let progress = |arrived: u64| bar.reach(before + arrived);
        match point.run(sweep.seed, memory, capture, Some(&progress)) {
            Ok(carried) => found.push(Ok(carried)),
            Err(error) if error.is_broken_connection() => found.push(Err(error.to_string())),
            Err(error) if at.is_empty() => return Err(error.to_string().into()),
            Err(error) => return Err(format!("at {at}: {error}").into()),
        }
        before += point.messages();
    }
    drop(bar);
    let mut replaced: Vec<(String, String)> = Vec::new();
    for (name, value) in set.into_iter().filter(|(name, _)| name.contains('.')) {
        replaced.retain(|(other, _)| *other != name);
        replaced.push((name, value));
    }
    if let Some(out) = &sweep.out {
        write_whole(out, &sweep_html(&page(sweep, &replaced, &base, &points, &found)))?;
    }
    if sweep.json {
        line(report(&base, &replaced, sweep.seed, captures.as_ref(), &points, &found))?;
    } else {
        if points.points().iter().any(Point::has_thread_per_sender) {
            note!("N:1 has a receiving thread for each sender; with server_threads=1, one thread serves all senders.");
        }
        print(&base, &points, &found)?;
        if let Some(out) = &sweep.out {
            line(format_args!("plots: {}", out.display()))?;
        }
    }
    Ok(())
}

fn described(axes: &[Axis], point: &Point) -> String {
    let named = axes.iter().zip(&point.values).map(|(axis, value)| format!("{}={value}", axis.name));
    named.collect::<Vec<_>>().join(", ")
}

fn list(base: &Base, is_json: bool) -> io::Result<()> {
    let settings = base.settings();
    if is_json {
        let of_traffic = settings.iter().map(|setting| {
            json!({ "name": setting.name, "about": setting.about, "value": setting.value, "allowed": setting.allowed })
        });
        let of_testbed = base.testbed().parameters().map(|parameter| {
            json!({
                "name": parameter.path,
                "about": parameter.about,
                "value": parameter.value,
                "unit": parameter.unit,
                "allowed": parameter.allowed,
            })
        });
        let parameters: Vec<Value> = of_traffic.chain(of_testbed).collect();
        return line(json!({ "schema": "doorbell-sim-parameters/1", "parameters": parameters }));
    }
    for setting in settings {
        line(format_args!("{:<28} {:>16}   {} ({})", setting.name, setting.value, setting.about, setting.allowed))?;
    }
    for parameter in base.testbed().parameters() {
        let value = format!("{} {}", parameter.value, parameter.unit);
        let (path, about, allowed) = (&parameter.path, parameter.about, &parameter.allowed);
        line(format_args!("{path:<28} {:>16}   {about} ({allowed})", value.trim_end()))?;
    }
    Ok(())
}

/// Results of a point, or the reason for which a connection broke.
type Found = Result<Carried, String>;

/// Names and units of the results of a point.
const QUANTITIES: [(&str, &str); 12] = [
    ("message rate", "M messages/s"),
    ("throughput", "Gb/s"),
    ("latency", "us"),
    ("frames dropped", ""),
    ("packets sent again", ""),
    ("pauses", ""),
    ("time in pauses, all ports", "us"),
    ("frames marked", ""),
    ("longest queue", "KiB"),
    ("RNR NAKs", ""),
    ("messages lost", ""),
    ("fairness (Jain)", ""),
];

fn results(point: &Point, found: &Found) -> [Option<f64>; QUANTITIES.len()] {
    let Ok(carried) = found else { return [None; QUANTITIES.len()] };
    let counts = &carried.summary.counts;
    [
        Some(carried.messages_per_s / 1e6),
        Some(carried.messages_per_s * point.mean_bytes() * 8.0 / 1e9),
        carried.latency_ns.map(|ns| ns as f64 / 1000.0),
        Some(counts.dropped as f64),
        Some(carried.retransmitted as f64),
        Some(counts.pauses as f64),
        Some(counts.paused_ps as f64 / 1e6),
        Some(counts.marked as f64),
        Some(counts.longest_queue_bytes() as f64 / 1024.0),
        Some(carried.rnr_naks as f64),
        Some(carried.lost as f64),
        carried.fairness,
    ]
}

/// Returns the station that was busy longest, or the reason for which a connection broke.
fn busy_longest(found: &Found) -> String {
    match found {
        Ok(carried) => carried.bottleneck.to_string(),
        Err(reason) => reason.clone(),
    }
}

fn print(base: &Base, points: &Points, found: &[Found]) -> io::Result<()> {
    line(format_args!("simulated on {}; the same seed and program give the same numbers", base.testbed().name))?;
    let mut head: Vec<String> = points.axes().iter().map(|axis| axis.name.clone()).collect();
    head.extend(
        [
            "M messages/s",
            "Gb/s",
            "latency us",
            "dropped",
            "again",
            "pauses",
            "paused us",
            "marked",
            "queue KiB",
            "RNR NAKs",
            "lost",
            "fairness",
        ]
        .map(str::to_owned),
    );
    head.push("busy longest".to_owned());
    let mut rows = vec![head];
    for (point, found) in points.points().iter().zip(found) {
        let mut row = point.values.clone();
        let decimals = [3, 3, 3, 0, 0, 0, 1, 0, 1, 0, 0, 3];
        let numbers = results(point, found).into_iter().zip(decimals);
        row.extend(
            numbers.map(|(value, decimals)| value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))),
        );
        row.push(busy_longest(found));
        rows.push(row);
    }
    let widths = widths(&rows);
    for row in rows {
        let (last, numbers) = row.split_last().map_or(("", &[][..]), |(last, numbers)| (last, numbers));
        let cells: Vec<String> = numbers.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        line(format_args!("{}   {last}", cells.join("  ")))?;
    }
    for (point, found) in points.points().iter().zip(found) {
        if let Some(long_turns) = found.as_ref().ok().and_then(|carried| carried.summary.long_turns()) {
            let at = described(points.axes(), point);
            line(format_args!("{at}{}{long_turns}", if at.is_empty() { "" } else { ": " }))?;
        }
    }
    Ok(())
}

/// Returns the results of a point as JSON.
fn carried_as_json(point: &Point, carried: &Carried) -> Value {
    let (counts, bottleneck) = (&carried.summary.counts, carried.bottleneck);
    let [to_nodes, to_spines, to_leaves] = counts.longest_queues;
    json!({
        "messages": carried.messages,
        "messages_per_s": carried.messages_per_s,
        "bytes_per_s": carried.messages_per_s * point.mean_bytes(),
        "latency_ns": carried.latency_ns,
        "lasted_ps": carried.lasted.0,
        "fairness": carried.fairness,
        "bottleneck": {
            "station": bottleneck.station.name(),
            "share": bottleneck.share,
            "binds": bottleneck.binds(),
        },
        "packets": counts.packets,
        "dropped": counts.dropped,
        "retransmitted": carried.retransmitted,
        "pauses": counts.pauses,
        "paused_ps": counts.paused_ps,
        "marked": counts.marked,
        "longest_queues_bytes": { "to_nodes": to_nodes, "to_spines": to_spines, "to_leaves": to_leaves },
        "rnr_naks": carried.rnr_naks,
        "messages_lost": carried.lost,
        "long_turns": counts.long_turns,
        "digest": format!("{:016x}", carried.summary.digest),
    })
}

fn report(
    base: &Base,
    replaced: &[(String, String)],
    seed: u64,
    captures: Option<&Captures>,
    points: &Points,
    found: &[Found],
) -> Value {
    let one = |(index, (point, found)): (usize, (&Point, &Found))| {
        let values: serde_json::Map<String, Value> =
            points.axes().iter().zip(&point.values).map(|(axis, value)| (axis.name.clone(), json!(value))).collect();
        let mut one = found.as_ref().map_or_else(|_| json!({}), |carried| carried_as_json(point, carried));
        one["values"] = Value::Object(values);
        one["topology"] = json!(point.topology().to_string());
        one["broke"] = json!(found.as_ref().err());
        one["capture"] = json!(captures.map(|captures| captures.path(index + 1)));
        one
    };
    let replaced: serde_json::Map<String, Value> =
        replaced.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let settings: serde_json::Map<String, Value> =
        base.settings().into_iter().map(|setting| (setting.name.to_owned(), json!(setting.value))).collect();
    json!({
        "schema": "doorbell-sim-sweep/1",
        "simulated": true,
        "testbed": base.testbed().name,
        "seed": seed,
        "settings": settings,
        "replaced": replaced,
        "points": points.points().iter().zip(found).enumerate().map(one).collect::<Vec<_>>(),
    })
}

fn page(
    sweep: &Sweep,
    replaced: &[(String, String)],
    base: &Base,
    points: &Points,
    found: &[Found],
) -> doorbell_report::Sweep {
    let is_varied = |name: &str| points.axes().iter().any(|axis| axis.name == name);
    let settings = base.settings();
    let fixed = settings.iter().filter(|setting| !is_varied(setting.name));
    let fixed: Vec<String> = fixed.map(|setting| format!("{} {}", setting.name, setting.value)).collect();
    let mut setting = vec![format!("At all points: {}; seed {}.", fixed.join(", "), sweep.seed)];
    let replaced: Vec<String> = replaced.iter().map(|(name, value)| format!("{name} {value}")).collect();
    if !replaced.is_empty() {
        setting.push(format!("Other than in the testbed's file: {}.", replaced.join(", ")));
    }
    doorbell_report::Sweep {
        testbed: base.testbed().name.clone(),
        setting,
        axes: points.axes().iter().map(|axis| axis.name.clone()).collect(),
        quantities: QUANTITIES.to_vec(),
        points: points
            .points()
            .iter()
            .zip(found)
            .map(|(point, found)| SweepPoint {
                values: point.values.clone(),
                numbers: point.numbers.clone(),
                results: results(point, found).to_vec(),
                bottleneck: busy_longest(found),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Cli;

    /// A pattern with N has one sender by default. No link between switches is then shared.
    #[test]
    fn examples_are_valid_commands_and_patterns_have_senders() {
        let examples = EXAMPLES.replace("\\\n", "");
        let commands: Vec<&str> = examples.lines().filter(|line| line.starts_with("  doorbell ")).collect();
        assert_eq!(commands.len(), 7);
        for command in commands {
            assert!(Cli::try_parse_from(command.split_whitespace()).is_ok(), "{command}");
            assert!(!command.contains("pattern=N") || command.contains("senders="), "{command}");
        }
    }
}
