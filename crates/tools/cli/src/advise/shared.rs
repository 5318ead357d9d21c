//! Advice on memory that clients share: the strategy for a workload, simulated or from the records of a study.

use std::path::{Path, PathBuf};

use clap::Args;
use doorbell_record::settings::{SIZE, Setting};
use doorbell_record::{FarPoint, Figure, PointRecord, PointResult, StorePoint, Strategy};
use doorbell_report::choice::{Candidate, choices, most_like, needs};
use doorbell_sim::reproduce::SEED;
use doorbell_sim::{Testbed, far, testbed};
use doorbell_study::experiment::{COMPARING, RunDirectory};
use serde_json::{Value, json};

use crate::failure::{Failure, Usage};
use crate::far::arguments::{clients as far_clients, percent, skew};
use crate::output::{line, note, us};
use crate::progress::{self, Candidates};
use crate::quantity;

/// Default testbed of a simulation.
const TESTBED: &str = "connectx5-100g-far";

/// Default number of clients.
const CLIENTS: usize = 64;

/// Options of messages, which no shared memory has. Clap demands no option that a given option excludes, so each option
/// of shared memory excludes them too.
const OF_MESSAGES: [&str; 17] = [
    "name", // --params
    "sizes_from",
    "reply",
    "think",
    "server_threads",
    "outstanding",
    "rate",
    "peers",
    "connections",
    "bidirectional",
    "place",
    "sleep",
    "hold",
    "memory",
    "mtu",
    "ipv6",
    "simulate",
];

/// Workload of memory that clients share.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Shared memory")]
pub(super) struct SharedMemory {
    /// Advise on clients that share passive memory: rank the strategies for values of -s bytes [default: 128],
    /// simulated on --testbed [default: connectx5-100g-far]
    #[arg(long, conflicts_with_all = OF_MESSAGES)]
    pub(super) shared_memory: bool,
    /// Take the figures from the records of `doorbell study far-memory` in DIR instead of simulating. The figures are
    /// those of the recorded workload that is closest to the given workload
    #[arg(long, value_name = "DIR", requires = "shared_memory",
          conflicts_with_all = OF_MESSAGES, conflicts_with = "testbed")]
    records: Option<PathBuf>,
    /// Percentage of operations that are puts
    #[arg(long, value_name = "PERCENT", default_value = "50", requires = "shared_memory",
          conflicts_with_all = OF_MESSAGES, value_parser = percent)]
    writes: f64,
    /// Skew of the keys: the exponent of Zipf's law; 0 means uniform
    #[arg(long, value_name = "EXPONENT", default_value = "0.99", requires = "shared_memory",
          conflicts_with_all = OF_MESSAGES, value_parser = skew)]
    zipf: f64,
    /// Number of keys; all of them exist
    #[arg(long, value_name = "N", default_value = "1024", requires = "shared_memory",
          conflicts_with_all = OF_MESSAGES, value_parser = quantity::count::<u64>)]
    keys: u64,
    /// Number of hosts among which the clients are distributed
    #[arg(long, value_name = "N", default_value = "2", requires = "shared_memory",
          conflicts_with_all = OF_MESSAGES, value_parser = far_clients)]
    hosts: usize,
}

impl SharedMemory {
    fn workload(&self, sizes: &[(u64, f64)], clients: Option<u32>) -> Result<StorePoint, Failure> {
        let clients = match clients {
            Some(clients) => far_clients(&clients.to_string()).map_err(|error| Usage(format!("--clients: {error}")))?,
            None => CLIENTS,
        };
        let value_bytes = match sizes {
            [] => StorePoint::default().value_bytes,
            [(bytes, _)] => usize::try_from(*bytes).unwrap_or(usize::MAX),
            _ => return Err(Usage("-s: with --shared-memory all values have one size".to_owned()).into()),
        };
        let workload = StorePoint {
            clients,
            hosts: self.hosts.min(clients),
            keys: self.keys,
            zipf: self.zipf,
            write_percent: self.writes,
            value_bytes,
            ..StorePoint::default()
        };
        // The parsers of all other options have checked their values.
        let option = |setting: &Setting| if *setting == SIZE { "-s" } else { "--keys" };
        let checked = FarPoint::Store(workload.clone()).check();
        checked.map_err(|error| Usage(error.in_option(option(error.setting))))?;
        Ok(workload)
    }

    /// Prints the strategies, the best first: by the 99th percentile of puts, or by operations per second.
    pub(super) fn advise(
        &self,
        sizes: &[(u64, f64)],
        clients: Option<u32>,
        testbed: Option<Testbed>,
        (by_rate, as_json): (bool, bool),
    ) -> Result<(), Failure> {
        let workload = self.workload(sizes, clients)?;
        let (workload, source, found) = match &self.records {
            Some(directory) => from_records(directory, &workload)?,
            None => simulated(testbed, workload)?,
        };
        let mut ranked: Vec<Candidate<'_>> =
            found.iter().map(|(strategy, result)| Candidate { strategy: *strategy, result }).collect();
        let tail = |one: &Candidate<'_>| one.tail_us().unwrap_or(f64::INFINITY);
        ranked.sort_by(|a, b| {
            let (rate, time) = (b.rate().total_cmp(&a.rate()), tail(a).total_cmp(&tail(b)));
            if by_rate { rate.then(time) } else { time.then(rate) }
        });
        let answer = sentence(&source, &ranked);
        if as_json {
            let ranked: Vec<Value> = ranked.iter().map(object).collect();
            return Ok(line(json!({
                "schema": "doorbell-advise/1",
                "answer": answer,
                "workload": workload,
                "source": source,
                "ranked": ranked,
            }))?);
        }
        line(&answer)?;
        line("")?;
        print(&workload, &source, &ranked)
    }
}

type Found = (StorePoint, String, Vec<(Strategy, PointResult)>);

fn simulated(testbed: Option<Testbed>, workload: StorePoint) -> Result<Found, Failure> {
    let testbed = match testbed {
        Some(testbed) => testbed,
        None => testbed::by_name(TESTBED).ok_or("doorbell has no default testbed for shared memory")?.clone(),
    };
    let bar = progress::bar(Strategy::ALL.len() as u64, 0);
    let mut lines = Candidates::new(Strategy::ALL.len());
    let mut found = Vec::new();
    for strategy in Strategy::ALL {
        progress::show(&bar, strategy.name());
        let point = FarPoint::Store(StorePoint { strategy, ..workload.clone() });
        found.push((strategy, far::simulate(&testbed, &point, SEED)?.result));
        bar.inc(1);
        if bar.is_hidden() {
            lines.finish(strategy.name());
        }
    }
    bar.finish_and_clear();
    Ok((workload, format!("simulated on {}", testbed.name), found))
}

fn from_records(directory: &Path, wanted: &StorePoint) -> Result<Found, Failure> {
    let records = RunDirectory::read(directory)?;
    let compares = |record: &&PointRecord| COMPARING.iter().any(|(name, _)| *name == record.experiment);
    let choices = choices(records.iter().filter(compares));
    let Some(choice) = most_like(&choices, wanted) else {
        let shown = directory.display();
        let why = format!("{shown} has no records of strategies: `doorbell study far-memory --out {shown}` makes them");
        return Err(why.into());
    };
    let substrate = records.first().map_or_else(String::new, |record| record.environment.substrate());
    let found = choice.candidates.iter().map(|one| (one.strategy, one.result.clone())).collect();
    Ok((choice.workload.clone(), format!("records of {}, {substrate}", directory.display()), found))
}

/// Returns the sentence that answers the question: the first strategy with its rate and its tail.
fn sentence(source: &str, ranked: &[Candidate<'_>]) -> String {
    let Some(first) = ranked.first() else { return format!("No strategy has results: {source}.") };
    let timed = if first.figure(Figure::PutP99).is_some() { "puts" } else { "gets" };
    let tail =
        first.tail_us().map_or_else(String::new, |time| format!(", 99 % of {timed} within {} us", us(time * 1e3)));
    let (strategy, rate) = (first.strategy.name(), first.rate());
    format!("Take {strategy}: {rate:.3} M operations/s{tail}, {source}.")
}

fn print(workload: &StorePoint, source: &str, ranked: &[Candidate<'_>]) -> Result<(), Failure> {
    let StorePoint { clients, hosts, keys, zipf, write_percent, value_bytes, .. } = workload;
    note!("{source}; a run of {:.1} ms, without time between a client's operations", workload.measure_us / 1e3);
    line(format_args!(
        "{clients} clients on {hosts} hosts, {keys} keys, Zipf {zipf}, {write_percent} % puts, values of {value_bytes} B"
    ))?;
    line(format_args!(
        "{:<14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>6} {:>8}   takes",
        "strategy", "M ops/s", "get p50", "get p99", "put p50", "put p99", "CAS/put", "bytes x", "fair", "node CPU"
    ))?;
    for one in ranked {
        let time = |figure| one.figure(figure).map_or("-".to_owned(), |value| us(value * 1e3));
        let plain = |figure| one.figure(figure).map_or("-".to_owned(), |value| format!("{value:.2}"));
        line(format_args!(
            "{:<14} {:>9.3} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>6} {:>8}   {}",
            one.strategy.name(),
            one.rate(),
            time(Figure::GetMedian),
            time(Figure::GetP99),
            time(Figure::PutMedian),
            time(Figure::PutP99),
            plain(Figure::PutAttempts),
            plain(Figure::BytesOverLeast),
            plain(Figure::ClientFairness),
            plain(Figure::MemoryCores),
            needs(one.strategy)
        ))?;
    }
    Ok(())
}

fn object(one: &Candidate<'_>) -> Value {
    json!({
        "strategy": one.strategy.name(),
        "operations_per_s": one.result.messages_per_s,
        "figures": one.result.far,
        "needs": needs(one.strategy),
    })
}
