//! `doorbell bench`.

pub(crate) mod arguments;
mod limit;
pub(crate) mod peer;
mod report;
pub(crate) mod settings;

use std::cell::Cell;
use std::ffi::OsString;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Subcommand;
use doorbell_exchange::address;
use doorbell_machine::pinning::{Pinning, ProcessPosition};
use doorbell_protocols::Protocol;
use doorbell_record::{Environment, Extent, Kind, Parameters, PointResult, RunRecord};
use doorbell_sim::reproduce::SEED;
use doorbell_sim::{Bottleneck, Testbed, session as sim};
use doorbell_study::complaints;
use doorbell_study::session::{self, Client, Terms};
use doorbell_verbs::{Device, Psn};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::device::Chosen;
use crate::failure::Failure;
use crate::faults::FaultCheck;
use crate::output::{line, note, pretty, wrapped};
use arguments::{Exchange, Role};

const LAT_EXAMPLES: &str = "\
Examples:
  doorbell bench lat                        both sides here, five sizes, a second each
  doorbell bench lat -s 64 -n 100000 -e     100000 round trips of 64 B, sleeping while waiting
  doorbell bench lat --op read -s 64        from the post of a READ to its completion
  doorbell bench lat --testbed connectx5-100g
                                            simulated, on RNICs that this machine does not have
  DOORBELL_TOKEN=secret doorbell bench lat --listen       the other side, for another machine
  DOORBELL_TOKEN=secret doorbell bench lat 192.0.2.7      ... and that client";

const BW_EXAMPLES: &str = "\
Examples:
  doorbell bench bw                         both sides here, five sizes, a second each
  doorbell bench bw -s 16 --config batched  256 messages of 16 B unacknowledged, eight per post
  doorbell bench bw --op write -t 8 -s 1    8 WRITEs outstanding, on the other side's memory
  doorbell bench bw --verify --fault drop=0.01,seed=7
                                            check every message while packets are lost
  doorbell bench bw -s 4096 --no-credits --slow-receiver-us 20
                                            without flow control, for a slow receiver
  doorbell bench bw --testbed connectx5-100g --set link.rate=400Gb/s
                                            simulated, over a faster link
  DOORBELL_TOKEN=secret doorbell bench bw --listen        the other side, for another machine
  DOORBELL_TOKEN=secret doorbell bench bw 192.0.2.7       ... and that client";

const LOAD_EXAMPLES: &str = "\
Examples:
  doorbell bench --request 200 --reply 64K --clients 24 --testbed connectx5-100g
                                            24 clients that wait for each reply, simulated
  doorbell bench --request 200 --reply 64K --clients 24 --server-threads 1 --testbed connectx5-100g
                                            ... all answered by one server thread
  doorbell bench --request 64 --clients 2 --rate 20k
                                            20000 requests a second, answered or not (open loop)
  doorbell bench --request 64 --clients 2 --think 50
                                            50 us between a reply and the next request
  doorbell bench --op read -s 64 --clients 24
                                            READs of 24 clients, with the latency of each
  DOORBELL_TOKEN=secret doorbell bench load --listen      the other side, for another machine
  DOORBELL_TOKEN=secret doorbell bench load 192.0.2.7 --request 64 --clients 8
                                            ... and its clients";

/// Returns the end of the help: the pages about protocols.
pub(crate) fn pages() -> String {
    let mut pages = Protocol::ALL.map(Protocol::page).to_vec();
    pages.dedup();
    format!("Pages about the protocols, with their uses, variants and costs:\n  {}", pages.join("\n  "))
}

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Measure latency: half a round trip of a ping-pong, or the duration of a one-sided operation
    #[command(after_help = LAT_EXAMPLES)]
    Lat(Exchange),
    /// Measure bandwidth: messages per second, and the packets that they cost
    #[command(after_help = BW_EXAMPLES)]
    Bw(Exchange),
    /// Measure requests of clients: their rate, and the latency of each request with that load. `doorbell bench` with
    /// options but without a command is this command
    #[command(after_help = LOAD_EXAMPLES)]
    Load(Exchange),
    /// Measure the limit of this kernel: the datagrams of a software RNIC between two processes, without an RNIC
    Limit(limit::Limit),
}

impl Bench {
    /// Returns whether this is the second process of a measurement on one machine.
    pub(crate) fn is_second(&self) -> bool {
        match self {
            Bench::Lat(exchange) | Bench::Bw(exchange) | Bench::Load(exchange) => {
                matches!(exchange.role(), Role::ServeBack(_))
            }
            Bench::Limit(limit) => limit.is_second(),
        }
    }
}

pub(crate) fn run(bench: Bench) -> Result<ExitCode, Failure> {
    match bench {
        Bench::Lat(exchange) => run_exchange(Kind::Latency, &exchange),
        Bench::Bw(exchange) => run_exchange(Kind::Bandwidth, &exchange),
        Bench::Load(mut exchange) => {
            exchange.is_load = true;
            run_exchange(Kind::Bandwidth, &exchange)
        }
        Bench::Limit(limit) => limit::run(&limit),
    }
}

/// Returns the arguments of the process, with the command `load` if `bench` has options but no command.
pub(crate) fn with_command(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let is_option = |text: &str| text.starts_with('-') && !["-h", "--help"].contains(&text);
    let text = |index: usize| arguments.get(index).and_then(|argument| argument.to_str());
    if text(1) == Some("bench") && text(2).is_some_and(is_option) {
        arguments.insert(2, "load".into());
    }
    arguments
}

fn open(exchange: &Exchange, chosen: &Chosen, toward: Option<IpAddr>) -> Result<Device, Failure> {
    let is_second = matches!(exchange.role(), Role::ServeBack(_));
    let device = chosen.open(|| exchange.device.soft_options(chosen, is_second, toward))?;
    Ok(match exchange.device.first_psn {
        Some(psn) => device.with_first_psn(Psn::new(psn)),
        None => device,
    })
}

fn run_exchange(kind: Kind, exchange: &Exchange) -> Result<ExitCode, Failure> {
    exchange.meeting.check()?;
    if let Some(testbed) = exchange.testbed()? {
        return simulate(kind, exchange, &testbed);
    }
    if matches!(exchange.role(), Role::ServeBack(_)) {
        return run_role(kind, exchange); // the first process checks which rules fired on both sides
    }
    let mut exchange = exchange.clone();
    let device = &mut exchange.device;
    let check = FaultCheck::begin(device.faults(), device.fault_files.fault_journal.as_deref())?;
    device.fault_files.fault_journal = check.as_ref().map(|check| check.journal().to_owned());
    let status = run_role(kind, &exchange)?;
    let all_fired = check.map_or(Ok(true), FaultCheck::finish)?;
    Ok(if all_fired { status } else { ExitCode::FAILURE })
}

fn run_role(kind: Kind, exchange: &Exchange) -> Result<ExitCode, Failure> {
    let role = exchange.role();
    if !matches!(role, Role::ServeBack(_)) {
        exchange.device.udp.note_if_other();
    }
    // Validate before opening devices.
    if matches!(role, Role::Connect(_) | Role::Both) {
        exchange.parameters(kind)?;
    }
    let chosen = exchange.device.chosen()?;
    match role {
        Role::Listen => {
            // Open the device before a client connects, so that errors appear at once.
            let mut device = Some(open(exchange, &chosen, None)?);
            let pinning = |device: &Device| pinning_if_given(exchange, device);
            exchange.meeting.serve_one(exchange.memory_bytes(), pinning, |toward| {
                if chosen.is_soft() && exchange.device.address(&chosen).is_none() && toward.is_some() {
                    device = None; // a rejected client may have left the device open at this address
                }
                match &device {
                    Some(device) => Ok(device.clone()),
                    None => Ok(device.insert(open(exchange, &chosen, toward)?).clone()),
                }
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Role::ServeBack(address) => {
            let device = open(exchange, &chosen, None)?;
            let pinning = exchange.cpus.pinning(&device)?;
            let terms = Terms { pinning, is_known: true, ..Terms::open(exchange.memory_bytes()) };
            let served = session::serve(device, peer::call_back(&address, exchange.meeting.token())?, &terms);
            // The first process reports the failure: it has failed itself, or has received the reason of this process.
            Ok(served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
        }
        Role::Connect(address) => {
            let stream = address::connect(&address, "doorbell bench ... --listen")?;
            let device = open(exchange, &chosen, address::address_toward(&stream))?;
            let pinning = pinning_if_given(exchange, &device)?;
            let (introduction, parameters) = (exchange.meeting.introduction(false), exchange.parameters(kind)?);
            let client = Client::introduced(&device, stream, introduction, parameters)?.0;
            measure(kind, exchange, &device, client, (&pinning, ProcessPosition::default()))
        }
        Role::Both => {
            exchange.check_both_here(&chosen)?;
            let device = open(exchange, &chosen, None)?;
            let pinning = match exchange.cpus.is_given() {
                true => exchange.cpus.pinning_of_both_ends(&device)?,
                false => unpinned(),
            };
            let [own, other] = [0, 1].map(|number| ProcessPosition { number, of: 2 });
            let other = pinning.share(other);
            let (stream, child) = peer::spawn(kind, &exchange.device, &chosen, exchange.memory_mib(), &other)?;
            let client = Client::new(&device, stream, exchange.parameters(kind)?).map_err(Failure::from);
            let status = client.and_then(|client| measure(kind, exchange, &device, client, (&pinning, own)));
            child.finish(status.is_ok())?;
            status
        }
    }
}

/// Returns the default pinning, which pins no thread. Two sides that were started separately do not know whether they
/// share a machine, and a pinned thread cannot leave a CPU that another thread keeps busy.
fn unpinned() -> Pinning {
    Pinning::none("--cpus says where")
}

/// Returns the pinning of this side if the user has started the two sides separately.
fn pinning_if_given(exchange: &Exchange, device: &Device) -> Result<Pinning, Failure> {
    match exchange.cpus.is_given() {
        true => Ok(exchange.cpus.pinning(device)?),
        false => Ok(unpinned()),
    }
}

/// Measures all sizes. `pinning` has the CPUs of all processes of the measurement on this machine; `place` is the
/// position of this process among those processes.
fn measure(
    kind: Kind,
    exchange: &Exchange,
    device: &Device,
    client: Client,
    (pinning, place): (&Pinning, ProcessPosition),
) -> Result<ExitCode, Failure> {
    let parameters = exchange.parameters(kind)?;
    let threads = parameters.cast().asking.threads;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if threads > cpus {
        let text = format!(
            "{threads} threads of this side share {cpus} processor{}, so latencies include waits for a processor. \
             --threads limits the threads, and --testbed simulates a machine with enough processors",
            if cpus == 1 { "" } else { "s" }
        );
        note!("{}", wrapped(&text));
    }
    let recorded = Some(parameters.pinning(pinning));
    let fault_plan = exchange.device.faults().map(ToString::to_string);
    let environment = Environment { pinning: recorded, fault_plan, ..Environment::of(&device.attributes()) };
    let mut client = client.pinned(pinning.share(place));
    let measured = Sizes { kind, exchange, environment, parameters }
        .measure(|bytes, bar| Ok(client.measure(bytes, |done| bar.show(done))?))?;
    client.finish()?;
    measured.print(&[])
}

/// Runs both ends in this process, in virtual time.
fn simulate(kind: Kind, exchange: &Exchange, testbed: &Testbed) -> Result<ExitCode, Failure> {
    let parameters = exchange.parameters(kind)?;
    let faults = exchange.device.faults();
    let journal = exchange.device.fault_files.simulated_journal(faults)?;
    let fault_plan = faults.map(ToString::to_string);
    let environment = Environment { fault_plan, ..sim::environment(testbed)? };
    let mut busiest = Vec::new();
    let mut fired = Vec::new();
    let mut remarks = Vec::new();
    let sizes = Sizes { kind, exchange, environment, parameters: parameters.clone() };
    let measured = sizes.measure(|bytes, _| {
        let (point, of_size) = sim::simulate_under(testbed, &parameters, bytes, SEED, faults, journal.as_ref())?;
        fired.extend((1..).zip(of_size).filter(|(_, count)| *count > 0).map(|(rule, _)| rule));
        remarks.extend(point.summary.long_turns().map(|long_turns| format!("{bytes} B: {long_turns}")));
        busiest.push(Bottleneck::of(&point.summary));
        Ok(point.result)
    })?;
    let status = measured.print(&busiest)?;
    // Between the rows, the remarks would tear the table apart.
    for remark in &remarks {
        note!("{}", wrapped(remark));
    }
    let unfired = faults.map(|plan| plan.unfired_by(|rule| fired.contains(&rule))).unwrap_or_default();
    for sentence in &unfired {
        note!("{}", wrapped(&format!("doorbell: {sentence}")));
    }
    Ok(if unfired.is_empty() { status } else { ExitCode::FAILURE })
}

/// Sizes to measure.
struct Sizes<'a> {
    kind: Kind,
    exchange: &'a Exchange,
    environment: Environment,
    parameters: Parameters,
}

/// Results of a measurement, and whether packets and payloads are as expected.
struct Measured<'a> {
    sizes: Sizes<'a>,
    results: Vec<PointResult>,
    sound: bool,
}

impl<'a> Sizes<'a> {
    fn measure(
        self,
        mut measure: impl FnMut(usize, &Bar) -> Result<PointResult, Failure>,
    ) -> Result<Measured<'a>, Failure> {
        let Self { kind, exchange, environment, parameters } = &self;
        if !exchange.json {
            match exchange.verbose {
                true => report::description(environment, parameters),
                false => note!("{}", report::short::heading(environment, parameters)),
            }
            report::header(*kind, parameters)?;
        }
        let (mut results, mut sound) = (Vec::new(), true);
        for &bytes in &parameters.sizes {
            let bar = progress_bar(bytes, &parameters.extent);
            let result = measure(bytes, &bar);
            bar.finish();
            let result = result?;
            for complaint in complaints(parameters, exchange.device.faults(), &result) {
                note!("{}", wrapped(&format!("doorbell: {bytes} B: {complaint}")));
                sound = false;
            }
            if !exchange.json {
                report::row(parameters, &result)?;
            }
            results.push(result);
        }
        Ok(Measured { sizes: self, results, sound })
    }
}

impl Measured<'_> {
    /// Prints everything after the rows of the sizes. `busiest` has the busiest station of each simulated size.
    fn print(self, busiest: &[Bottleneck]) -> Result<ExitCode, Failure> {
        let Self { sizes: Sizes { exchange, environment, parameters, .. }, results, sound } = self;
        if exchange.json {
            let record = RunRecord { schema: RunRecord::SCHEMA.to_owned(), environment, parameters, results };
            pretty(&record)?;
        } else {
            let shared_cpus = matches!(exchange.role(), Role::Both).then_some(environment.cpus);
            if exchange.verbose {
                report::lost_messages(&parameters, &results)?;
                report::cpu(&parameters, &results)?;
                report::packets(&parameters, &results)?;
                line("")?;
            }
            let facts = report::short::Facts { busiest, shared_cpus, sound, verbose: exchange.verbose };
            line(report::short::sentence(&parameters, &results, &facts))?;
        }
        Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Progress bar on stderr, if stderr is a terminal.
struct Bar {
    bar: ProgressBar,
    started: std::time::Instant,
    last: Cell<u64>,
    seconds: Option<f64>,
}

fn progress_bar(bytes: usize, extent: &Extent) -> Bar {
    let (length, seconds) = match *extent {
        Extent::Messages(messages) => (messages, None),
        Extent::Seconds(seconds) => ((seconds * 1000.0) as u64, Some(seconds)),
    };
    let bar = if crate::output::stderr_is_terminal() {
        ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr_with_hz(10))
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("{prefix:>12} [{bar:40}] {percent} %")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = bar.with_style(style).with_prefix(format!("{bytes} B"));
    Bar { bar, started: std::time::Instant::now(), last: Cell::new(0), seconds }
}

impl Bar {
    fn show(&self, done: u64) {
        if self.bar.is_hidden() || done < self.last.get() + 256 {
            return;
        }
        self.last.set(done);
        match self.seconds {
            None => self.bar.set_position(done),
            Some(_) => self.bar.set_position(self.started.elapsed().as_millis() as u64),
        }
    }

    fn finish(self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_a_command_belong_to_load() {
        let given = |text: &str| {
            let arguments = with_command(text.split_whitespace().map(OsString::from));
            let words: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
            words.join(" ")
        };
        assert_eq!(given("doorbell bench --request 200"), "doorbell bench load --request 200");
        assert_eq!(given("doorbell bench -s 64"), "doorbell bench load -s 64");
        for same in ["doorbell bench bw -s 64", "doorbell bench", "doorbell bench --help", "doorbell sim --help"] {
            assert_eq!(given(same), same);
        }
    }
}
