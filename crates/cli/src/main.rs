//! The `doorbell` command.
#![forbid(unsafe_code)]
// `println` and `eprintln` panic where nobody reads any more: `output` has what does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod address;
mod admission;
mod advise;
mod bench;
mod control;
mod counters;
mod cpus;
mod device;
mod doctor;
mod ending;
mod far;
mod links;
mod model;
mod output;
mod progress;
mod quantity;
mod report;
mod run;
mod shell;
mod sim;
mod steer;
mod study;
mod wire;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Moves messages over RDMA, predicts how fast, and proves it on the wire.
#[derive(Parser)]
#[command(name = "doorbell", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
enum Command {
    /// Measure message exchange between two processes, or what the kernel allows
    #[command(subcommand)]
    Bench(Box<bench::Bench>),
    /// The RDMA devices of this machine, and the embedded one: ports, GIDs, limits
    Devices(device::Devices),
    /// What would spoil a measurement here, or between this machine and others, and what to do about it
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Doctor),
    /// What RDMA devices do: packets, bytes, retransmissions, RNR, congestion, per second
    Counters(counters::Counters),
    /// Rank protocols, windows and batches for a need
    Advise(advise::Advise),
    /// Predict what message exchange costs, say what binds, and fit the model's parameters
    #[command(subcommand)]
    Model(Box<model::Model>),
    /// Testbeds in virtual time: what each part of them needs
    #[command(subcommand)]
    Sim(Box<sim::Sim>),
    /// Run a middlebox between clients and a memory node, whose CPU takes no part
    #[command(after_help = steer::EXAMPLES)]
    Steer(steer::Steer),
    /// Workloads on a store in passive memory: what clients do about each other, and what it costs
    #[command(subcommand)]
    Far(Box<far::Far>),
    /// Measure the whole evaluation on this machine, and write the report of it
    Study(study::Study),
    /// Write a report, one HTML file, from the records of studies
    Report(report::Report),
    /// Run an unmodified verbs program on the software RNIC
    #[command(after_help = run::EXAMPLES)]
    Run(run::Run),
    /// Print the variables with which programs run on the software RNIC, for a shell or a container
    Env(run::Env),
    /// Explain what goes over the wire
    #[command(subcommand)]
    Wire(wire::Wire),
    /// Print what makes a shell complete the options of doorbell
    #[command(after_help = shell::COMPLETIONS)]
    Completions(shell::Completions),
    /// Print the manual page of a command, or write those of all commands
    #[command(after_help = shell::MAN)]
    Man(shell::Man),
}

impl Command {
    /// Has whatever makes this command pointless end it.
    fn watch(&self) -> std::io::Result<()> {
        match self {
            // It becomes another program.
            Command::Run(_) => Ok(()),
            Command::Bench(bench) if bench.is_second() => ending::with_input(),
            Command::Counters(counters) if counters.is_exporter() => ending::with_terminal(),
            Command::Doctor(doctor) if doctor.listens() => ending::with_terminal(),
            Command::Steer(_) => ending::with_terminal(),
            Command::Study(study) if study.listens() => ending::with_terminal(),
            Command::Study(study) if study.is_launched() => ending::with_parent(),
            // Its screen looks after itself.
            Command::Counters(counters) if counters.is_live() => Ok(()),
            _ => ending::with_output(),
        }
    }
}

/// Why a command did not succeed: a sentence for people.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Arguments that make no sense, alone or together: not a failure but wrong usage.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What wrong usage ends with, as clap has it.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Arguments may be names of files of others. Help and the version are the program's own text.
        Err(error) if error.use_stderr() => {
            output::write_note(format_args!("{}", error.to_string().trim_end()));
            return ExitCode::from(WRONG_USAGE);
        }
        Err(error) => error.exit(),
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("DOORBELL_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_ansi(false) // the writer would escape the colours
        .with_writer(|| output::Log)
        .log_internal_errors(false) // that would panic where nobody reads standard error any more
        .init();
    let result = cli.command.watch().map_err(Failure::from).and_then(|()| match cli.command {
        Command::Bench(bench) => bench::run(*bench),
        Command::Devices(devices) => device::run(&devices),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Counters(counters) => counters::run(&counters),
        Command::Advise(advise) => advise::run(&advise),
        Command::Model(model) => model::run(*model),
        Command::Sim(sim) => sim::run(*sim),
        Command::Steer(steer) => steer::run(&steer),
        Command::Far(far) => far::run(*far),
        Command::Study(study) => study::run(&study),
        Command::Report(report) => report::run(&report),
        Command::Run(arguments) => run::run(&arguments),
        Command::Env(arguments) => run::print_env(&arguments),
        Command::Wire(wire) => wire::run(wire),
        Command::Completions(arguments) => shell::completions(&arguments, Cli::command()),
        Command::Man(arguments) => shell::man(&arguments, Cli::command()),
    });
    match result {
        Ok(status) => status,
        // Whoever reads our output has enough of it: not an error.
        Err(error) if output::is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note!("doorbell: {error}");
            if error.is::<Usage>() { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
        }
    }
}
