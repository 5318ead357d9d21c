//! `doorbell sim`: testbeds in virtual time.

pub(crate) mod arguments;
mod predict;
mod reproduce;
mod sweep;
mod testbeds;

use std::process::ExitCode;

use clap::Subcommand;

use crate::Failure;

#[derive(Subcommand)]
pub(crate) enum Sim {
    /// List the testbeds, or print what each part of one needs, and where each value is from
    Testbeds(testbeds::Testbeds),
    /// Simulate what was published, number by number and sentence by sentence, in the configuration as published
    ///
    /// A row is `within` if the simulation is at most 15 % off, 10 % for rates of operations and packets; otherwise it
    /// is `beyond`. A sentence, such as "linear up to 32", holds or does not. Rows that values of the testbed were fitted on are `fitted`, all others `predicted`.
    Reproduce(reproduce::Reproduce),
    /// Simulate the same traffic with other values of any parameter, with a table and plots
    ///
    /// Parameters are those of the testbed (link.rate, nic.units, switch.queue ...), of the traffic (pattern, senders,
    /// size, window, batch, protocol ...) and of the network (network, leaf_nodes, oversubscription); --list lists them.
    Sweep(sweep::Sweep),
    /// Predict what was measured elsewhere and is not known here, with intervals: the page docs/blind-predictions.md
    Predict(predict::Predict),
}

pub(crate) fn run(sim: Sim) -> Result<ExitCode, Failure> {
    match sim {
        Sim::Testbeds(arguments) => testbeds::run(&arguments)?,
        Sim::Reproduce(arguments) => reproduce::run(&arguments)?,
        Sim::Sweep(arguments) => sweep::run(&arguments)?,
        Sim::Predict(arguments) => predict::run(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
