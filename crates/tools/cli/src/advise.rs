//! `doorbell advise`: the protocol, window, batch and receive queue for a need, and the strategy for clients that
//! share memory.

mod print;
mod shared;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use doorbell_model::advise::{Advice, AdviseError, Answer, Goal, Need, answer, with_options};
use doorbell_model::parameters::Parameters;
use doorbell_model::workload::{Peers, WorkloadError};
use doorbell_sim::{Testbed, advise as simulate, testbed};
use doorbell_wire::{OuterKind, PathMtu};

use crate::bench::settings::read_histogram;
use crate::failure::{Failure, Usage};
use crate::model::{ParametersArgument, parse_peers, served};
use crate::output::note;
use crate::progress::Candidates;
use crate::quantity;
use crate::sim::arguments::Simulated;
use crate::wire::parse_mtu;

/// Number of recommendations that --simulate checks.
const SIMULATED: usize = 3;

const ONE_SIDED: &str = "\
One-sided operations on an index need no protocol:
  doorbell model predict --op read -s 64 --clients 24 -t 1     predict READs of 24 clients
  doorbell bench --op read -s 64 --clients 24                  measure them";

#[derive(Args)]
#[command(after_help = format!("{ONE_SIDED}\n\n{}", crate::bench::pages()))]
pub(crate) struct Advise {
    #[command(flatten)]
    parameters: ParametersArgument,
    /// Message sizes in bytes, separated by commas. A size may have a weight, its share of the messages, after a colon,
    /// as in 64:9,8K:1 [default weight: 1]
    #[arg(short, long, visible_aliases = ["request", "sizes"], value_name = "BYTES[:WEIGHT]", value_delimiter = ',',
          required_unless_present_any = ["shared_memory", "sizes_from"], value_parser = quantity::weighted_bytes)]
    size: Vec<(u64, f64)>,
    /// Message sizes from a histogram in CSV, with rows BYTES,WEIGHT
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    sizes_from: Option<PathBuf>,
    /// Answer each request with a reply of this size, as in 64K; 0 means one-way messages [default: 0]
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes, conflicts_with = "bidirectional")]
    reply: Option<u64>,
    /// Microseconds between a reply and the next request of the same slot of the window (closed loop)
    #[arg(long, value_name = "MICROSECONDS", default_value = "0", requires = "reply", conflicts_with = "rate",
          value_parser = quantity::count::<u64>)]
    think: u64,
    /// Number of clients, each a sending thread with its own connection. The default pattern is N:1, one thread that
    /// serves all clients; `doorbell bench --clients N` is N:N by default. With --shared-memory at most 1024 [default:
    /// 1, with --shared-memory 64]
    #[arg(long, value_name = "N", value_parser = quantity::count::<u32>, conflicts_with = "peers")]
    clients: Option<u32>,
    /// Number of threads that serve the clients: M of the pattern N:M [default: 1]
    #[arg(long, value_name = "N", value_parser = quantity::count::<u32>, requires = "clients")]
    server_threads: Option<u32>,
    /// Window of each connection: maximum number of requests without a reply, or of messages without an acknowledgement
    /// [default: `advise` chooses it]
    #[arg(short = 't', long, visible_alias = "window", value_name = "N", value_parser = quantity::count::<u32>)]
    outstanding: Option<u32>,
    /// Required messages per second over all connections, as in 2.5M (open loop). The latency of requests with this
    /// load counts from the time at which a request is due [default: unlimited]
    #[arg(long, value_name = "N", value_parser = quantity::rate)]
    rate: Option<f64>,
    /// Sending and receiving threads: SENDERS:RECEIVERS
    #[arg(long, value_name = "N:M", default_value = "1:1", value_parser = parse_peers)]
    peers: Peers,
    /// Connections between senders and receivers [default: the larger of N and M]
    #[arg(short = 'q', long, value_name = "N", value_parser = quantity::count::<u32>)]
    connections: Option<u32>,
    /// Both sides send
    #[arg(short, long)]
    bidirectional: bool,
    /// Goal by which the advice is ranked
    #[arg(long, value_name = "GOAL", value_enum, default_value = "latency")]
    first: First,
    /// The receiver learns the destination of a message from its first bytes, and needs the message at that destination
    #[arg(long)]
    place: bool,
    /// The receiver sleeps until a message comes
    #[arg(long)]
    sleep: bool,
    /// The receiver keeps some messages for a long time while it processes later messages
    #[arg(long)]
    hold: bool,
    /// Maximum message memory of a sending or receiving thread, in MiB; also as in 4G
    #[arg(long, value_name = "MIB", value_parser = quantity::mebibytes)]
    memory: Option<usize>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the path MTU of the parameters]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Check the first three recommendations by simulation, on --testbed or on the testbed of the parameters. Without
    /// this option, --testbed simulates all recommendations and ranks them by the simulated figures
    #[arg(long)]
    simulate: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shared: shared::SharedMemory,
    #[command(flatten)]
    simulated: Simulated,
}

#[derive(Clone, Copy, ValueEnum)]
enum First {
    Latency,
    Throughput,
}

impl Advise {
    /// Returns the sizes of messages with their weights.
    fn sizes(&self) -> Result<Vec<(u64, f64)>, Usage> {
        let Some(file) = &self.sizes_from else { return Ok(self.size.clone()) };
        Ok(read_histogram(file)?.0.into_iter().map(|(bytes, weight)| (bytes as u64, weight)).collect())
    }

    /// Returns the threads and connections that --clients or --peers request.
    fn peers(&self) -> Peers {
        let threads = served(self.clients, self.server_threads).unwrap_or(self.peers);
        Peers { connections: self.connections.unwrap_or(threads.connections), ..threads }
    }
}

pub(crate) fn run(arguments: &Advise) -> Result<ExitCode, Failure> {
    if arguments.shared.shared_memory {
        let testbed = arguments.simulated.read(&[])?;
        let by_rate = matches!(arguments.first, First::Throughput);
        arguments.shared.advise(&arguments.size, arguments.clients, testbed, (by_rate, arguments.json))?;
        return Ok(ExitCode::SUCCESS);
    }
    let testbed = arguments.simulated.read(&[("--ipv6", arguments.ipv6)])?;
    if let Some(testbed) = testbed.as_ref().filter(|_| arguments.simulate && !arguments.parameters.is_given()) {
        check_parameters_of(testbed)?;
    }
    let parameters = arguments.parameters.read_for(testbed.as_ref().map(|testbed| testbed.name.as_str()))?;
    let need = Need {
        sizes: arguments.sizes()?,
        reply_bytes: arguments.reply.filter(|bytes| *bytes > 0),
        think_us: arguments.think,
        window: arguments.outstanding,
        messages_per_s: arguments.rate,
        peers: arguments.peers(),
        bidirectional: arguments.bidirectional,
        receiver_places: arguments.place,
        receiver_sleeps: arguments.sleep,
        receiver_holds: arguments.hold,
        memory_bytes: arguments.memory.map(|mib| (mib as u64).saturating_mul(1 << 20)),
        goal: match arguments.first {
            First::Latency => Goal::Latency,
            First::Throughput => Goal::Throughput,
        },
        path_mtu: arguments.mtu,
        outer: if arguments.ipv6 { OuterKind::IPV6 } else { OuterKind::IPV4 },
    };
    let answer = answer(&parameters, &need).map_err(|error| usage(arguments, error))?;
    match testbed {
        Some(testbed) if !arguments.simulate => rank_by_simulation(arguments, &testbed, &need, answer)?,
        testbed => print(arguments, &parameters, &need, &answer, testbed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Simulates all recommendations, and prints them in the order of their simulated figures.
fn rank_by_simulation(arguments: &Advise, testbed: &Testbed, need: &Need, answer: Answer) -> Result<(), Failure> {
    simulate::check(need)?;
    let Answer { rows, left_out, changes, .. } = answer;
    let all: Vec<Advice> = rows.into_iter().flat_map(|row| std::iter::once(row.best).chain(row.ties)).collect();
    note!("simulating {} recommendations on {}: {}", all.len(), testbed.name, testbed.about);
    let mut progress = Candidates::new(all.len());
    let simulated = all.into_iter().map(|advice| (tried(testbed, need, &advice, &mut progress), advice));
    let mut tried: Vec<_> = simulated.collect();
    tried.sort_by(|(one, _), (other, _)| simulate::compare(need, one, other));
    Ok(print::by_simulation(arguments.json, testbed, need, &tried, (&left_out, &changes))?)
}

/// Simulates an advice, and prints its progress and the notes about values that the simulation reduced.
fn tried(testbed: &Testbed, need: &Need, advice: &Advice, progress: &mut Candidates) -> print::Tried {
    let tried = simulate::simulate(testbed, need, advice);
    progress.finish(&with_options(advice));
    for note in tried.iter().flat_map(|simulated| &simulated.notes) {
        note!("{}, simulated: {note}", advice.protocol);
    }
    tried
}

/// Prints an answer of the model. If --simulate is given, simulates the first recommendations to check the answer.
fn print(
    arguments: &Advise,
    parameters: &Parameters,
    need: &Need,
    answer: &Answer,
    testbed: Option<Testbed>,
) -> Result<(), Failure> {
    let testbed = match testbed {
        None if arguments.simulate => Some(testbed_of(parameters, arguments.ipv6)?),
        testbed => testbed,
    };
    let mut checked = None;
    if let Some(testbed) = &testbed {
        simulate::check(need)?;
        let first: Vec<&Advice> = answer.rows.iter().take(SIMULATED).map(|row| &row.best).collect();
        note!("simulating {} recommendations on {}", first.len(), testbed.name);
        let mut progress = Candidates::new(first.len());
        let tried = first.into_iter().map(|advice| tried(testbed, need, advice, &mut progress)).collect();
        checked = Some((testbed, tried));
    }
    if arguments.json {
        print::json(parameters, need, answer, &checked)?;
    } else {
        print::text(parameters, need, answer, &checked)?;
    }
    Ok(())
}

/// Checks that the model has parameters of a testbed, which a simulation can check.
fn check_parameters_of(testbed: &Testbed) -> Result<(), Usage> {
    let is_known = testbed::by_name(&testbed.name).is_some_and(|known| known.digest() == testbed.digest());
    if is_known && Parameters::of_testbed(&testbed.name).is_some() {
        return Ok(());
    }
    Err(Usage(format!(
        "--simulate would compare {} with a model of another testbed, since the model has no parameters of a testbed \
         with --set or from a file: add --params, or drop --simulate",
        testbed.name
    )))
}

/// Returns the testbed that the parameters describe.
fn testbed_of(parameters: &Parameters, ipv6: bool) -> Result<Testbed, Usage> {
    if ipv6 {
        return Err(Usage("--ipv6 does not go with --simulate: drop one option".to_owned()));
    }
    testbed::by_name(&parameters.name)
        .cloned()
        .ok_or_else(|| Usage(format!("--simulate needs a testbed, and {} is none: add --testbed", parameters.name)))
}

/// Converts an error of an advice to [`Usage`], because only wrong arguments cause such errors.
fn usage(arguments: &Advise, error: AdviseError) -> Usage {
    let option = match &error {
        AdviseError::Need { what: "the rate", .. } => "--rate",
        AdviseError::Need { what: "the think time", .. }
        | AdviseError::Workload(WorkloadError { what: "the think time", .. }) => "--think",
        AdviseError::Need { what: "the number of outstanding messages", .. } => "--outstanding",
        AdviseError::Need { .. } if arguments.sizes_from.is_some() => "--sizes-from",
        AdviseError::Need { .. } => "-s",
        AdviseError::Memory { .. } => "--memory",
        AdviseError::Workload(WorkloadError { what: "the message size" | "an operation of the protocol", .. }) => "-s",
        AdviseError::Workload(WorkloadError { what: "the reply size", .. }) => "--reply",
        AdviseError::Workload(WorkloadError { what: "the number of connections", .. }) => "-q",
        AdviseError::Workload(WorkloadError { what: "the number of receivers", .. }) if arguments.clients.is_some() => {
            "--server-threads"
        }
        AdviseError::Workload(_) if arguments.clients.is_some() => "--clients",
        AdviseError::Workload(_) => "--peers",
        _ => return Usage(error.to_string()),
    };
    Usage(format!("{option}: {error}"))
}
