//! The `doorbell` command.
#![forbid(unsafe_code)]

mod bench;
mod output;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Moves messages over RDMA, predicts how fast, and proves it on the wire.
#[derive(Parser)]
#[command(name = "doorbell", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure message exchange between two processes, or what this machine allows.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// What goes over the wire.
    #[command(subcommand)]
    Wire(wire::Wire),
}

/// Why a command did not succeed: a sentence for people.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let cli = Cli::parse(); // ends with status 2 on wrong usage
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("DOORBELL_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        .init();
    let result = match cli.command {
        Command::Bench(bench) => bench::run(bench),
        Command::Wire(wire) => wire::run(wire),
    };
    match result {
        Ok(status) => status,
        // Whoever reads our output has enough of it: not an error.
        Err(error) if output::is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("doorbell: {error}");
            ExitCode::FAILURE
        }
    }
}
