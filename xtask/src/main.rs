//! Developer chores: `cargo xtask test` runs all tests with everything they need.

mod bindings;
mod browser;
mod dist;
mod end_to_end;
mod packets;
mod peers;
mod programs;
mod shell;
mod test;
mod two_machines;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks and tests everything. In CI (CI=true) nothing may be left out.
    Test {
        /// Leaves out the checks that need other programs (tshark, scapy, ip, ethtool, chromium).
        #[arg(long)]
        fast: bool,
    },
    /// Has other programs check captured packets, as `test` does with those that the tests write.
    Packets {
        /// Holds captures, and beside each what is expected of it.
        directory: PathBuf,
    },
    /// Only runs the command end to end, as `test` does.
    EndToEnd,
    /// Only opens a report in a browser, as `test` does.
    Report,
    /// Only runs unmodified verbs programs on the software RNIC, as `test` does.
    Programs,
    /// Makes an archive with the command and the library that it preloads.
    Dist {
        /// Where to [default: `dist` in the target directory]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Generates the C layouts of libibverbs and librdmacm anew from rdma-core's headers, with libclang.
    Bindings,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Test { fast } => test::everything(fast),
        Command::Packets { directory } => test::packets(&directory),
        Command::EndToEnd => test::end_to_end(),
        Command::Report => test::report(),
        Command::Programs => test::programs(),
        Command::Dist { out } => status(dist::build(out.as_deref()).map(|archive| println!("{}", archive.display()))),
        Command::Bindings => {
            peers::install_for_bindings();
            status(bindings::generate().and_then(|()| bindings::check_layout()))
        }
    }
}

fn status(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
