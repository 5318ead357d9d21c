//! `cargo xtask compare`: speed of unmodified verbs programs on the software RNIC, over either link. The comparison
//! has `doorbell bench`, libfabric and UCX over TCP and through shared memory, UCX over verbs, and the limits of
//! kernel and memory for the same packets.
//!
//! The speed of a machine varies over minutes. Each round therefore runs every program once, and a ratio uses two
//! figures of the same round. Every second round runs the programs in reverse order, since a program may affect the
//! next one. Programs that are compared have the same number of messages in flight and the same buffers. The table
//! states the bytes of the buffers, because copies within the caches are faster.

mod busy;
mod read;
mod series;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use self::series::{Link, Quantity, Series, Source};
use super::ports::{on_free_port, wait_until_listening};
use super::{LINK_VARIABLE, NO_CLOCK, OTHER_TRIES, build, doorbell, on_doorbell, start, ucx};
use crate::figures::{Goal, Ratio, spread};
use crate::shell::{Running, command, output_of};
use crate::{network, peers, place};

/// Time after which a program counts as hanging. No program takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures all series, prints the table, and writes each figure to `out`. With `busy`, measures only a few series,
/// each without and with `busy` spinning programs.
pub(crate) fn compare(rounds: u32, busy: Option<u32>, out: Option<&Path>) -> Result<(), String> {
    // A tracked file that is written below would mark the revision as changed.
    let revision = revision();
    let failed = |path: &Path, error| format!("{} could not be written: {error}", path.display());
    // Report an unwritable file before the measurement begins.
    if let Some(path) = out {
        fs::write(path, "").map_err(|error| failed(path, error))?;
    }
    peers::install_for_comparison()?;
    build()?;
    let _alone = place::measuring()?;
    let load_before = load();
    let mut record = match busy {
        Some(spinners) => busy::compare(rounds, spinners)?,
        None => compare_quiet(rounds)?,
    };
    let Some(path) = out else { return Ok(()) };
    record["revision"] = revision.into();
    record["kernel"] = kernel().into();
    record["cpus"] = cpus().into();
    record["load_before"] = load_before.into();
    record["load_after"] = load().into();
    fs::write(path, format!("{record:#}\n")).map_err(|error| failed(path, error))
}

fn compare_quiet(rounds: u32) -> Result<Value, String> {
    let every = series::every();
    let mut figures = vec![Vec::new(); every.len()];
    in_rounds(rounds, |round| measure(&every, &mut figures, round))?;
    print(&every, &figures);
    Ok(record(&every, &figures))
}

fn in_rounds(rounds: u32, mut measure: impl FnMut(u32) -> Result<(), String> + Send) -> Result<(), String> {
    network::apart(|| {
        (1..=rounds).try_for_each(|round| {
            eprintln!("round {round} of {rounds}");
            measure(round)
        })
    })
}

/// Measures one round, and adds a figure to each series. Even rounds run the series in reverse order.
fn measure(every: &[Series], figures: &mut [Vec<f64>], round: u32) -> Result<(), String> {
    // One run of `doorbell bench limit` gives figures of several series.
    let mut outputs = HashMap::new();
    let mut in_turn: Vec<_> = every.iter().zip(figures).collect();
    if round.is_multiple_of(2) {
        in_turn.reverse();
    }
    for (series, figures) in in_turn {
        let program = match series.source {
            Source::LimitOfMemory => Source::Limit,
            other => other,
        };
        let output = match outputs.entry((program, series.name.link, series.arguments())) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(missing) => missing.insert(output(series)?),
        };
        let figure = read::figure(series.source, series.quantity, output);
        figures.push(figure.map_err(|why| format!("{} {}: {why}", series.name, series.arguments()))?);
    }
    Ok(())
}

/// Runs the programs of a series, and returns the output.
fn output(series: &Series) -> Result<String, String> {
    let output_once = || on_free_port(|port| output_on(series, port));
    let mut result = output_once();
    for _ in 0..OTHER_TRIES {
        if !result.as_ref().is_err_and(|why| why.contains(NO_CLOCK)) {
            break;
        }
        result = output_once();
    }
    result.map_err(|why| format!("{} {}: {why}", series.name, series.arguments()))
}

fn output_on(series: &Series, port: &str) -> Result<String, String> {
    let arguments = series.arguments();
    let words: Vec<&str> = arguments.split(' ').collect();
    // Programs that do not run on the software RNIC ignore the variable.
    let over_link = |mut command: Command| {
        command.envs(series.name.link.map(|link| (LINK_VARIABLE, link.name())));
        command
    };
    match series.source {
        Source::Bench | Source::Limit | Source::LimitOfMemory => {
            let mut bench = over_link(command(doorbell(), &["bench"]));
            bench.args(words).arg("--json");
            if series.source == Source::Bench {
                bench.args(["-d", "doorbell0", "-p", port]);
            }
            Ok(Running::start(bench)?.finish(PATIENCE)?.0)
        }
        Source::Perftest => {
            let words = [&words[..], &["-F", "-p", port]].concat();
            let server = on_doorbell(&[], &words);
            let client = on_doorbell(&[], &[&words[..], &["127.0.0.1"]].concat());
            pair(over_link(server), over_link(client), port)
        }
        Source::Libfabric(provider) => {
            let of_provider: &[&str] = if provider == "tcp" { &["-p", "tcp", "-d", "lo"] } else { &["-p", provider] };
            let words = [of_provider, &words[..]].concat();
            let server = command("fi_pingpong", &[&words[..], &["-B", port]].concat());
            let client = command("fi_pingpong", &[&words[..], &["-P", port, "127.0.0.1"]].concat());
            pair(server, client, port)
        }
        Source::Ucx(transport) => {
            // The client sends the parameters of the measurement to the server.
            let client = [&words[..], &["-w", "1000", "-f", "-v", "-p", port, "127.0.0.1"]].concat();
            let (server, client) = (ucx::perftest(transport, &["-p", port]), ucx::perftest(transport, &client));
            pair(over_link(server), over_link(client), port)
        }
    }
}

/// Runs server and client, and returns the output of the client.
fn pair(server: Command, client: Command, port: &str) -> Result<String, String> {
    let mut server = start(server)?;
    wait_until_listening(port, &mut server)?;
    let client = start(client)?.finish(PATIENCE);
    match (client, server.finish(PATIENCE)) {
        (Ok(said), Ok(_)) => Ok(said),
        (Err(client), Err(server)) => Err(format!("{client}\nthe server: {server}")),
        (Err(why), Ok(_)) | (Ok(_), Err(why)) => Err(why),
    }
}

/// Returns median, minimum and maximum of the figures. There is at least one round.
fn spread_of(figures: &[f64]) -> (f64, f64, f64) {
    spread(figures.iter().copied()).expect("a round was measured")
}

/// Returns the ratio to the figure of `series.beside`.
fn ratio(every: &[Series], figures: &[Vec<f64>], series: &Series, own: &[f64]) -> Option<Ratio> {
    let at = every.iter().position(|other| Some(other.name) == series.beside)?;
    Ratio::of(own, &figures[at])
}

/// Line above each table.
const LEGEND: &str = "A ratio with ~ may be 1: its interval of 95 % holds 1, or there were fewer than 6 rounds.";

/// Returns a ratio with its mark and its interval.
fn shown(ratio: &Ratio) -> String {
    let interval = ratio.interval.map_or_else(String::new, |[low, high]| format!(" ({low:.2}-{high:.2})"));
    format!("{:>1}{:>5.2}{interval}", ratio.mark(), ratio.median)
}

/// Returns text that states whether a figure or ratio meets its goal.
fn judged(goal: Goal, figure: f64) -> String {
    let outcome = if goal.is_met(figure) { "is" } else { "is not" };
    format!(", {outcome} {goal}")
}

fn print(every: &[Series], figures: &[Vec<f64>]) {
    println!("{LEGEND}");
    for quantity in Quantity::ALL {
        let title = quantity.title();
        println!("\n{title:<50} {:>8} {:>8} {:>8} {:>9}  {:>6}", "median", "least", "most", "buffers", "ratio");
        for (series, own) in every.iter().zip(figures).filter(|(series, _)| series.quantity == quantity) {
            let (median, least, most) = spread_of(own);
            let buffers = series.buffer_bytes().map_or("-".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
            let mut line = format!("{:<50} {median:>8.2} {least:>8.2} {most:>8.2} {buffers:>9}", series.name);
            if let (Some(ratio), Some(other)) = (ratio(every, figures, series, own), series.beside) {
                line.push_str(&format!("  {} of {other}", shown(&ratio)));
                line.extend(series.goal.map(|goal| judged(goal, ratio.median)));
            }
            line.extend(series.bound.map(|bound| judged(bound, median)));
            println!("{line}");
        }
    }
    for (series, own) in every.iter().zip(figures) {
        if let Some(seconds) = least_seconds(series, own).filter(|seconds| *seconds < series::LEAST_SECONDS) {
            println!("\n{} took only {seconds:.2} s: its number of iterations must rise", series.name);
        }
    }
}

/// Returns the duration of the shortest run in seconds. Returns `None` if the program runs for a time.
fn least_seconds(series: &Series, figures: &[f64]) -> Option<f64> {
    figures.iter().filter_map(|figure| series.seconds(*figure)).min_by(f64::total_cmp)
}

fn record(every: &[Series], figures: &[Vec<f64>]) -> Value {
    let series = every.iter().zip(figures).map(|(series, own)| {
        let (median, least, most) = spread_of(own);
        let ratio = ratio(every, figures, series, own);
        json!({
            "quantity": series.quantity.title(), "name": series.name.name, "link": series.name.link.map(Link::name),
            "unit": series.quantity.unit(), "arguments": series.arguments(), "least_seconds": least_seconds(series, own),
            "figures": own, "median": median, "least": least, "most": most,
            "buffer_bytes": series.buffer_bytes(),
            "beside": series.beside.map(|other| other.to_string()), "ratio": ratio.map(|ratio| ratio.median),
            "interval": ratio.and_then(|ratio| ratio.interval),
            "goal": series.goal.map(|goal| goal.to_string()), "bound": series.bound.map(|bound| bound.to_string()),
        })
    });
    json!({ "schema": "doorbell-compare/4", "series": series.collect::<Vec<_>>() })
}

/// Returns the load of the machine, in the format of `/proc/loadavg`.
pub(super) fn load() -> String {
    text_of("/proc/loadavg")
}

/// Returns the revision of the measured files, as `git describe` prints it. `-dirty` marks files that differ from it.
pub(super) fn revision() -> String {
    let described = output_of(command("git", &["describe", "--always", "--dirty", "--abbrev=12"]));
    described.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

pub(crate) fn kernel() -> String {
    text_of("/proc/sys/kernel/osrelease")
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

fn text_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_use_figures_of_the_same_round() {
        let every = series::every();
        let figures: Vec<Vec<f64>> = every.iter().map(|_| vec![2.0, 4.0, 1.0]).collect();
        let with = every.iter().find(|series| series.beside.is_some()).unwrap();
        // The ratios of the three rounds are 3, 2 and 1.
        let found = ratio(&every, &figures, with, &[6.0, 8.0, 1.0]);
        assert_eq!(found, Some(Ratio { median: 2.0, interval: None }));
        let without = every.iter().find(|series| series.beside.is_none()).unwrap();
        assert_eq!(ratio(&every, &figures, without, &[6.0]), None);
    }
}
