//! `cargo xtask compare`: how fast unmodified verbs programs are on the software RNIC, beside
//! `doorbell bench`, libfabric and UCX over TCP, UCX over verbs, and what the kernel gives for the same datagrams.
//!
//! Machines change from minute to minute, so everything runs once per round, and a ratio is made of two
//! figures of the same round.

mod read;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::ports::{on_free_port, wait_until_listening};
use super::{NO_CLOCK, OTHER_TRIES, build, doorbell, on_doorbell, start, ucx};
use crate::figures::{Goal, spread};
use crate::shell::{Running, command};
use crate::{network, peers, place};

/// Longer than any program takes here, be the machine busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Latency,
    LatencyAsleep,
    Rate,
    Bandwidth,
    BandwidthOfLong,
}

impl Quantity {
    const ALL: [Self; 5] = [Self::Latency, Self::LatencyAsleep, Self::Rate, Self::Bandwidth, Self::BandwidthOfLong];

    fn title(self) -> &'static str {
        match self {
            Self::Latency => "16 B, latency, us",
            Self::LatencyAsleep => "16 B, latency, sleeping while waiting, us",
            Self::Rate => "16 B, million messages per second",
            Self::Bandwidth => "64 KiB, GB/s",
            Self::BandwidthOfLong => "1 MiB, GB/s",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Latency | Self::LatencyAsleep | Self::Rate => 16,
            Self::Bandwidth => 1 << 16,
            Self::BandwidthOfLong => 1 << 20,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Latency | Self::LatencyAsleep => "us",
            Self::Rate => "M/s",
            Self::Bandwidth | Self::BandwidthOfLong => "GB/s",
        }
    }
}

/// Whose program it is: how it is started, and how it prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    Bench,
    Limit,
    Perftest,
    Libfabric,
    /// With this transport: UCX's own over TCP, or one of those over verbs.
    Ucx(&'static str),
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
struct Series {
    quantity: Quantity,
    name: &'static str,
    source: Source,
    arguments: &'static str,
    /// The series whose figures this one's are divided by.
    beside: Option<&'static str>,
    goal: Option<Goal>,
}

impl Series {
    const fn new(quantity: Quantity, name: &'static str, source: Source, arguments: &'static str) -> Self {
        Self { quantity, name, source, arguments, beside: None, goal: None }
    }

    const fn beside(mut self, name: &'static str) -> Self {
        self.beside = Some(name);
        self
    }

    const fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }
}

const BENCH_LAT: &str = "doorbell bench lat";
const BENCH_LAT_E: &str = "doorbell bench lat -e";
const BENCH_RATE: &str = "doorbell bench bw -s 16";
const BENCH_BW: &str = "doorbell bench bw";
const SEND_LAT: &str = "ib_send_lat";

/// The C path adds nothing that matters to a latency, and to a throughput.
const NEAR: Goal = Goal::AtMost(1.15);
const NEAR_FROM_BELOW: Goal = Goal::AtLeast(0.85);

/// What an RNIC that nobody drives may cost.
const PASSIVE: Goal = Goal::AtMost(3.0);

/// What UCX's transports over verbs may cost, beside its own over TCP.
const UCX_LATENCY: Goal = Goal::AtMost(1.3);
const UCX_RATE: Goal = Goal::AtLeast(3.0);
const UCX_BANDWIDTH: Goal = Goal::AtLeast(1.0);

const UCX_LAT: &str = "UCX tcp, tag_lat";
const UCX_TAG_RATE: &str = "UCX tcp, tag_bw of 16 B";
const UCX_LONG: &str = "UCX tcp, tag_bw of 1 MiB";

const TAG_LAT: &str = "-t tag_lat -s 16 -n 80000";
const TAG_RATE: &str = "-t tag_bw -s 16 -n 500000";
const TAG_LONG: &str = "-t tag_bw -s 1048576 -n 3000";

const LIMIT: &str = "limit --repetitions 1 -D 0.3";

/// perftest without a known vendor's ids sends nothing inline; its queues hold 128 requests and 512
/// receives. `doorbell bench` is given the same.
const SERIES: &[Series] = &{
    use Quantity::{Bandwidth, BandwidthOfLong, Latency, LatencyAsleep, Rate};
    use Source::{Bench, Libfabric, Limit, Perftest, Ucx};
    const TCP: Source = Ucx("tcp");
    // With `ud_verbs` for connecting.
    const RC: Source = Ucx("rc_v");
    const UD: Source = Ucx("ud_verbs");
    [
        Series::new(Latency, BENCH_LAT, Bench, "lat -s 16 -I 0 -D 0.5"),
        Series::new(Latency, SEND_LAT, Perftest, "ib_send_lat -s 16 -n 80000").beside(BENCH_LAT).goal(NEAR),
        Series::new(Latency, "ib_write_lat", Perftest, "ib_write_lat -s 16 -n 10000").beside(SEND_LAT).goal(PASSIVE),
        Series::new(Latency, "ib_read_lat", Perftest, "ib_read_lat -s 16 -n 20000").beside(SEND_LAT).goal(PASSIVE),
        Series::new(Latency, "fi_pingpong -e msg (mean)", Libfabric, "-e msg -S 16 -I 50000").beside(BENCH_LAT),
        Series::new(Latency, "fi_pingpong -e rdm (mean)", Libfabric, "-e rdm -S 16 -I 20000").beside(BENCH_LAT),
        Series::new(Latency, UCX_LAT, TCP, TAG_LAT).beside(BENCH_LAT),
        Series::new(Latency, "UCX rc_verbs, tag_lat", RC, TAG_LAT).beside(UCX_LAT).goal(UCX_LATENCY),
        Series::new(Latency, "UCX ud_verbs, tag_lat", UD, TAG_LAT).beside(UCX_LAT),
        Series::new(Latency, "UCX tcp, ucp_put_lat", TCP, "-t ucp_put_lat -s 16 -n 50000").beside(BENCH_LAT),
        Series::new(Latency, "UDP ping-pong, spinning", Limit, LIMIT).beside(BENCH_LAT),
        Series::new(LatencyAsleep, BENCH_LAT_E, Bench, "lat -s 16 -I 0 -e -D 0.5"),
        Series::new(LatencyAsleep, "ib_send_lat -e", Perftest, "ib_send_lat -e -s 16 -n 10000")
            .beside(SEND_LAT)
            .goal(PASSIVE),
        Series::new(LatencyAsleep, "UDP ping-pong, blocking", Limit, LIMIT).beside(SEND_LAT),
        Series::new(Rate, BENCH_RATE, Bench, "bw -s 16 -I 0 -t 128 -r 512 -D 0.5"),
        Series::new(Rate, "ib_send_bw -s 16", Perftest, "ib_send_bw -s 16 -N -n 1000000")
            .beside(BENCH_RATE)
            .goal(NEAR_FROM_BELOW),
        Series::new(Rate, UCX_TAG_RATE, TCP, TAG_RATE).beside(BENCH_RATE),
        Series::new(Rate, "UCX rc_verbs, tag_bw of 16 B", RC, TAG_RATE).beside(UCX_TAG_RATE).goal(UCX_RATE),
        Series::new(Rate, "UCX ud_verbs, tag_bw of 16 B", UD, TAG_RATE).beside(UCX_TAG_RATE),
        Series::new(Rate, "UDP datagrams of 78 B", Limit, LIMIT).beside(BENCH_RATE),
        Series::new(Bandwidth, BENCH_BW, Bench, "bw -s 65536 -t 128 -r 512 -D 0.5"),
        Series::new(Bandwidth, "ib_send_bw", Perftest, "ib_send_bw -s 65536 -N -n 20000")
            .beside(BENCH_BW)
            .goal(NEAR_FROM_BELOW),
        Series::new(Bandwidth, "ib_write_bw", Perftest, "ib_write_bw -s 65536 -N -n 20000").beside(BENCH_BW),
        Series::new(Bandwidth, "ib_read_bw", Perftest, "ib_read_bw -s 65536 -N -n 20000").beside(BENCH_BW),
        Series::new(Bandwidth, "fi_pingpong -e msg", Libfabric, "-e msg -S 65536 -I 10000").beside(BENCH_BW),
        Series::new(Bandwidth, "fi_pingpong -e rdm", Libfabric, "-e rdm -S 65536 -I 5000").beside(BENCH_BW),
        Series::new(Bandwidth, "UCX tcp, tag_bw of 64 KiB", TCP, "-t tag_bw -s 65536 -n 10000").beside(BENCH_BW),
        Series::new(Bandwidth, "UDP datagrams of 4154 B", Limit, LIMIT).beside(BENCH_BW),
        Series::new(BandwidthOfLong, "ib_send_bw -s 1048576", Perftest, "ib_send_bw -s 1048576 -N -n 2000")
            .beside(UCX_LONG),
        Series::new(BandwidthOfLong, "ib_read_bw -s 1048576", Perftest, "ib_read_bw -s 1048576 -N -n 2000")
            .beside(UCX_LONG),
        Series::new(BandwidthOfLong, UCX_LONG, TCP, TAG_LONG),
        Series::new(BandwidthOfLong, "UCX rc_verbs, tag_bw of 1 MiB", RC, TAG_LONG)
            .beside(UCX_LONG)
            .goal(UCX_BANDWIDTH),
        Series::new(BandwidthOfLong, "UCX ud_verbs, tag_bw of 1 MiB", UD, TAG_LONG).beside(UCX_LONG),
    ]
};

/// Measures everything and prints the table; `out` gets each figure.
pub(crate) fn compare(rounds: u32, out: Option<&Path>) -> Result<(), String> {
    let failed = |path: &Path, error| format!("{} could not be written: {error}", path.display());
    // Better known now than after all has been measured.
    if let Some(path) = out {
        fs::write(path, "").map_err(|error| failed(path, error))?;
    }
    peers::install_for_comparison()?;
    build()?;
    let _alone = place::measuring()?;
    let load_before = load();
    let mut figures = vec![Vec::new(); SERIES.len()];
    network::apart(|| {
        (1..=rounds).try_for_each(|round| {
            eprintln!("round {round} of {rounds}");
            measure(&mut figures)
        })
    })?;
    print(&figures);
    let Some(path) = out else { return Ok(()) };
    let text = format!("{:#}\n", record(&figures, &load_before));
    fs::write(path, text).map_err(|error| failed(path, error))
}

/// A round.
fn measure(figures: &mut [Vec<f64>]) -> Result<(), String> {
    // One run of the limit gives several figures.
    let mut outputs = HashMap::new();
    for (series, figures) in SERIES.iter().zip(figures) {
        let output = match outputs.entry((series.source, series.arguments)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(missing) => missing.insert(output(series)?),
        };
        let figure = read::figure(series.source, series.quantity, output);
        figures.push(figure.map_err(|why| format!("{} {}: {why}", series.name, series.arguments))?);
    }
    Ok(())
}

/// Runs what a series needs, and returns what it printed.
fn output(series: &Series) -> Result<String, String> {
    let output_once = || on_free_port(|port| output_on(series, port));
    let mut result = output_once();
    for _ in 0..OTHER_TRIES {
        if !result.as_ref().is_err_and(|why| why.contains(NO_CLOCK)) {
            break;
        }
        result = output_once();
    }
    result.map_err(|why| format!("{} {}: {why}", series.name, series.arguments))
}

fn output_on(series: &Series, port: &str) -> Result<String, String> {
    let words: Vec<&str> = series.arguments.split(' ').collect();
    match series.source {
        Source::Bench | Source::Limit => {
            let mut bench = command(doorbell(), &["bench"]);
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
            pair(server, client, port)
        }
        Source::Libfabric => {
            let words = [&["-p", "tcp", "-d", "lo"], &words[..]].concat();
            let server = command("fi_pingpong", &[&words[..], &["-B", port]].concat());
            let client = command("fi_pingpong", &[&words[..], &["-P", port, "127.0.0.1"]].concat());
            pair(server, client, port)
        }
        Source::Ucx(transport) => {
            // The server is told by the client what is measured.
            let client = [&words[..], &["-w", "1000", "-f", "-v", "-p", port, "127.0.0.1"]].concat();
            pair(ucx::perftest(transport, &["-p", port]), ucx::perftest(transport, &client), port)
        }
    }
}

/// What the client prints.
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

/// There is a figure for each round, of which there is one at least.
fn spread_of(figures: &[f64]) -> (f64, f64, f64) {
    spread(figures.iter().copied()).expect("a round was measured")
}

/// The median of the ratios to the figures of the same rounds.
fn ratio(series: &Series, figures: &[Vec<f64>], own: &[f64]) -> Option<f64> {
    let at = SERIES.iter().position(|other| Some(other.name) == series.beside)?;
    let ratios = own.iter().zip(&figures[at]).map(|(own, other)| own / other);
    spread(ratios).map(|(median, ..)| median)
}

fn print(figures: &[Vec<f64>]) {
    for quantity in Quantity::ALL {
        println!("\n{:<42} {:>8} {:>8} {:>8}  {:>5}", quantity.title(), "median", "least", "most", "ratio");
        for (series, own) in SERIES.iter().zip(figures).filter(|(series, _)| series.quantity == quantity) {
            let (median, least, most) = spread_of(own);
            let mut line = format!("{:<42} {median:>8.2} {least:>8.2} {most:>8.2}", series.name);
            if let (Some(ratio), Some(other)) = (ratio(series, figures, own), series.beside) {
                line.push_str(&format!("  {ratio:>5.2} of {other}"));
                if let Some(goal) = series.goal {
                    let outcome = if goal.is_met(ratio) { "is" } else { "is not" };
                    line.push_str(&format!(", {outcome} {goal}"));
                }
            }
            println!("{line}");
        }
    }
}

fn record(figures: &[Vec<f64>], load_before: &str) -> Value {
    let series = SERIES.iter().zip(figures).map(|(series, own)| {
        let (median, least, most) = spread_of(own);
        json!({
            "quantity": series.quantity.title(), "name": series.name, "unit": series.quantity.unit(),
            "arguments": series.arguments, "figures": own, "median": median, "least": least, "most": most,
            "beside": series.beside, "ratio": ratio(series, figures, own), "goal": series.goal.map(|goal| goal.to_string()),
        })
    });
    json!({
        "schema": "doorbell-compare/1",
        "kernel": kernel(),
        "cpus": cpus(),
        "load_before": load_before,
        "load_after": load(),
        "series": series.collect::<Vec<_>>(),
    })
}

/// What else the machine does.
pub(super) fn load() -> String {
    text_of("/proc/loadavg")
}

pub(super) fn kernel() -> String {
    text_of("/proc/sys/kernel/osrelease")
}

pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

fn text_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_stands_beside_one_that_exists_and_is_named_once() {
        for series in SERIES {
            let named = |name: &str| SERIES.iter().filter(|other| other.name == name).count();
            if let Some(beside) = series.beside {
                assert_eq!(named(beside), 1, "{beside}");
            }
            assert!(series.goal.is_none() || series.beside.is_some(), "{}", series.name);
        }
    }

    #[test]
    fn ratios_are_those_of_the_rounds() {
        let figures: Vec<Vec<f64>> = SERIES.iter().map(|_| vec![2.0, 4.0, 1.0]).collect();
        let send_lat = SERIES.iter().find(|series| series.name == SEND_LAT).unwrap();
        // Round by round: 3, 2 and 1.
        assert_eq!(ratio(send_lat, &figures, &[6.0, 8.0, 1.0]), Some(2.0));
        assert_eq!(ratio(&SERIES[0], &figures, &[6.0]), None);
    }
}
