//! `doorbell sim`: testbeds in virtual time.

mod arguments;
mod testbeds;

use std::process::ExitCode;

use clap::Subcommand;

use crate::Failure;

#[derive(Subcommand)]
pub(crate) enum Sim {
    /// List the testbeds, or print what each part of one needs, and where each value is from
    Testbeds(testbeds::Testbeds),
}

pub(crate) fn run(sim: Sim) -> Result<ExitCode, Failure> {
    match sim {
        Sim::Testbeds(arguments) => testbeds::run(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
