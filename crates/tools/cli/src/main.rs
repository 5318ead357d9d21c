//! The `doorbell` command.
#![forbid(unsafe_code)]
// `println` and `eprintln` panic if their output has no reader. The functions of `output` do not panic.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod advise;
mod audit;
mod bench;
mod control;
mod counters;
mod cpus;
mod device;
mod doctor;
mod drop_ins;
mod ending;
mod failure;
mod far;
mod faults;
mod forwarding;
mod links;
mod model;
mod output;
mod port;
mod progress;
mod qualify;
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

use failure::{Failure, Usage, WRONG_USAGE};

/// Move messages over RDMA, predict their speed, and prove it on the wire.
#[derive(Parser)]
#[command(name = "doorbell", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
enum Command {
    /// Measure message exchange between two processes, or the limit of the kernel
    #[command(subcommand, after_help = bench::pages())]
    Bench(Box<bench::Bench>),
    /// List the RDMA devices of this machine and the embedded software RNIC: ports, GIDs, limits
    Devices(device::Devices),
    /// Find conditions on this machine, or between this machine and others, that would spoil a measurement
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Doctor),
    /// Test an RDMA device, and write its deviations and measurements into one archive without addresses and names
    #[command(after_help = qualify::EXAMPLES)]
    Qualify(qualify::Qualify),
    /// Show rates of RDMA devices: packets, bytes, retransmissions, RNR and congestion per second
    Counters(counters::Counters),
    /// Take the port of a running program's software RNIC down or up, or let the device fail
    #[command(after_help = port::EXAMPLES)]
    Port(port::Port),
    /// Rank protocols, windows and batches for a need
    Advise(advise::Advise),
    /// Compare the figures of another benchmark with packets, counters, link and model
    #[command(after_help = audit::EXAMPLES)]
    Audit(audit::Audit),
    /// Predict the cost and the bottleneck of message exchange, and fit the model's parameters
    #[command(subcommand)]
    Model(Box<model::Model>),
    /// Simulate testbeds in virtual time, from the parameters of their parts
    #[command(subcommand)]
    Sim(Box<sim::Sim>),
    /// Run a middlebox between clients and a passive memory node
    #[command(after_help = steer::EXAMPLES)]
    Steer(steer::Steer),
    /// Run workloads on a store in passive memory, and show the cost of strategies for concurrent access
    #[command(subcommand)]
    Far(Box<far::Far>),
    /// Measure the whole evaluation on this machine, and write its report
    Study(study::Study),
    /// Write a report, one HTML file, from the records of studies
    Report(report::Report),
    /// Run an unmodified verbs program on the software RNIC
    #[command(after_help = run::EXAMPLES)]
    Run(run::Run),
    /// Print the variables with which programs run on the software RNIC, for a shell or a container
    Env(run::Env),
    /// Explain packets on the wire
    #[command(subcommand)]
    Wire(wire::Wire),
    /// Print the script with which a shell completes the options of doorbell
    #[command(after_help = shell::COMPLETIONS)]
    Completions(shell::Completions),
    /// Print the manual page of a command, or write those of all commands
    #[command(after_help = shell::MAN)]
    Man(shell::Man),
}

impl Command {
    /// Starts to watch for events that make this command pointless, such as a closed terminal. Such an event ends the
    /// process.
    fn watch(&self) -> std::io::Result<()> {
        match self {
            // `doorbell run` replaces this process with another program.
            Command::Run(_) => Ok(()),
            Command::Bench(bench) if bench.is_second() => ending::with_input(),
            Command::Counters(counters) if counters.is_exporter() => ending::with_terminal(),
            Command::Doctor(doctor) if doctor.listens() => ending::with_terminal(),
            Command::Qualify(qualify) if qualify.runs_cases() => ending::with_input(),
            Command::Steer(_) => ending::with_terminal(),
            Command::Study(study) if study.listens() => ending::with_terminal(),
            Command::Study(study) if study.is_launched() => ending::with_parent(),
            // The live view watches its terminal itself.
            Command::Counters(counters) if counters.is_live() => Ok(()),
            _ => ending::with_output(),
        }
    }
}

/// Text of `doorbell` without arguments: the commands that most users need first.
const FIRST_STEPS: &str = "\
Doorbell moves messages over RDMA, predicts their speed, and proves it on the wire.

First steps:
  doorbell devices              list the RDMA devices: doorbell0, the software RNIC, is always there
  doorbell bench lat -s 16      send messages between two processes of this machine
  doorbell run -- ibv_devinfo   run a program that uses libibverbs on the software RNIC
  doorbell advise -s 64         ask which protocol suits messages of 64 bytes
  doorbell study                measure all protocols in at most three minutes, and write a report

doorbell --help lists all commands, and doorbell COMMAND --help explains one.
";

fn main() -> ExitCode {
    if std::env::args_os().len() <= 1 {
        return ended(output::write_text(FIRST_STEPS).map(|()| ExitCode::SUCCESS).map_err(Failure::from));
    }
    let cli = match Cli::try_parse_from(bench::with_command(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) if faults::is_request_for_names(&error) => {
            return ended(output::write_text(&faults::names()).map(|()| ExitCode::SUCCESS).map_err(Failure::from));
        }
        // The error may quote untrusted file names, which `write_note` escapes. Texts of help and version contain none.
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
        .log_internal_errors(false) // it would panic without a reader of standard error
        .init();
    let result = cli.command.watch().map_err(Failure::from).and_then(|()| match cli.command {
        Command::Bench(bench) => bench::run(*bench),
        Command::Devices(devices) => device::run(&devices),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Counters(counters) => counters::run(&counters),
        Command::Port(port) => port::run(&port),
        Command::Qualify(qualify) => qualify::run(&qualify),
        Command::Advise(advise) => advise::run(&advise),
        Command::Audit(audit) => audit::run(&audit),
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
    ended(result)
}

/// Reports the error of a command, and returns the exit status.
fn ended(result: Result<ExitCode, Failure>) -> ExitCode {
    match result {
        Ok(status) => status,
        // It is no error that the reader of the output has closed the pipe.
        Err(error) if output::is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note!("doorbell: {error}");
            if error.is::<Usage>() { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_after_the_options_fit_the_width() {
        fn check(command: &clap::Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn first_steps_are_valid_commands() {
        let steps: Vec<&str> = FIRST_STEPS.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        assert_eq!(steps.len(), 5);
        for step in steps {
            let (command, _) = step.split_once("  ").expect("an explanation follows the command");
            assert!(Cli::try_parse_from(command.split(' ')).is_ok(), "{command}");
        }
    }
}
