//! `doorbell sim`: testbeds in virtual time.

pub(crate) mod arguments;
mod predict;
mod reproduce;
mod sweep;
mod testbeds;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum Sim {
    /// List the testbeds, or print the parameters of each part of one testbed, with the sources of the parameters
    Testbeds(testbeds::Testbeds),
    /// Simulate published results, number by number and sentence by sentence, in the published configuration
    ///
    /// A row is `within` if the simulation is at most 15 % off, 10 % for rates of operations and packets; otherwise
    /// it is `beyond`. A sentence, such as "linear up to 32", holds or does not. Rows to which values of the testbed
    /// were fitted are `fitted`, all others `predicted`.
    Reproduce(reproduce::Reproduce),
    /// Simulate one traffic with several values of any parameter, and show a table and plots
    ///
    /// Parameters belong to the testbed (link.rate, nic.units, switch.queue, ...), to the traffic (pattern, senders,
    /// size, window, batch, protocol, ...), or to the network (network, leaf_nodes, oversubscription). --list lists
    /// them.
    Sweep(sweep::Sweep),
    /// Predict results that others have measured and this project does not know, with intervals. Prints the page
    /// docs/blind-predictions-2.md
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
