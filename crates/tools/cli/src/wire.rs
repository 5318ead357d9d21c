//! `doorbell wire`: packets of given messages, probable messages of given packets, and the contents and the
//! judgement of captures.

mod check;
mod cost;
mod decode;
mod explain;

use std::process::ExitCode;

use clap::Subcommand;
use doorbell_wire::PathMtu;

use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum Wire {
    /// Compute the packets and bytes of a message, and the maximum rate of messages on a link
    Cost(cost::Cost),
    /// Explain counters of packets and bytes by a probable application
    Explain(explain::Explain),
    /// Summarize RoCE v2 in a capture: conversations, operations, retransmissions, times
    Decode(decode::Decode),
    /// Judge the packets of captures by the rules of IBTA
    Check(check::Check),
}

pub(crate) fn run(wire: Wire) -> Result<ExitCode, Failure> {
    match wire {
        Wire::Cost(cost) => cost::run(&cost),
        Wire::Explain(explain) => explain::run(&explain),
        Wire::Decode(decode) => decode::run(&decode),
        Wire::Check(check) => check::run(&check),
    }
}

/// Parses a path MTU.
pub(crate) fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    text.parse()
        .ok()
        .and_then(PathMtu::from_bytes)
        .ok_or_else(|| "must be a path MTU of 256, 512, 1024, 2048 or 4096 bytes".to_owned())
}
