//! `doorbell wire`: the arithmetic of packets.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use doorbell_wire::{Direction, MessageKind, OuterKind, PathMtu, Response, Transport, message_cost};
use serde_json::json;

use crate::output::line;
use crate::{Failure, Usage};

#[derive(Subcommand)]
pub(crate) enum Wire {
    /// What a message costs in packets and bytes, request and response
    Cost(Cost),
}

#[derive(Args)]
pub(crate) struct Cost {
    /// What the message does
    #[arg(long, value_enum)]
    op: Op,
    /// Payload of the message
    #[arg(short, long, value_name = "BYTES")]
    size: u64,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "BYTES", default_value = "4096", value_parser = parse_mtu)]
    mtu: PathMtu,
    /// How it travels: reliable connection, unreliable connection or datagram
    #[arg(long, value_enum, default_value = "rc")]
    transport: TransportName,
    /// Over IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// With a VLAN tag
    #[arg(long)]
    vlan: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Op {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TransportName {
    Rc,
    Uc,
    Ud,
}

/// Parses a path MTU.
pub(crate) fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    text.parse()
        .ok()
        .and_then(PathMtu::from_bytes)
        .ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned())
}

fn directions(direction: Direction) -> serde_json::Value {
    json!({
        "packets": direction.packets,
        "frame_bytes": direction.frame_bytes,
        "line_bytes": direction.line_bytes,
    })
}

pub(crate) fn run(Wire::Cost(cost): Wire) -> Result<ExitCode, Failure> {
    let kind = match cost.op {
        Op::Send => MessageKind::Send,
        Op::SendImm => MessageKind::SendImm,
        Op::SendInv => MessageKind::SendInv,
        Op::Write => MessageKind::Write,
        Op::WriteImm => MessageKind::WriteImm,
        Op::Read => MessageKind::Read,
        Op::CompareSwap => MessageKind::CompareSwap,
        Op::FetchAdd => MessageKind::FetchAdd,
    };
    let transport = match cost.transport {
        TransportName::Rc => Transport::Rc,
        TransportName::Uc => Transport::Uc,
        TransportName::Ud => Transport::Ud,
    };
    let mut outer = if cost.ipv6 { OuterKind::IPV6 } else { OuterKind::IPV4 };
    if cost.vlan {
        outer = outer.with_vlan();
    }
    let result = message_cost(kind, transport, cost.size, cost.mtu, outer).map_err(|error| Usage(error.to_string()))?;
    if cost.json {
        let response = match result.response {
            Response::None => json!(null),
            Response::Exact(direction) => json!({ "exact": directions(direction) }),
            Response::Range { min, max } => json!({ "min": directions(min), "max": directions(max) }),
        };
        let goodput_share = result.goodput_share();
        let object = json!({
            "schema": "doorbell-wire-cost/1",
            "bytes": cost.size,
            "mtu": cost.mtu.bytes(),
            "request": directions(result.request),
            "response": response,
            "goodput_share": if goodput_share.is_finite() { json!(goodput_share) } else { json!(null) },
        });
        line(object)?;
        return Ok(ExitCode::SUCCESS);
    }
    line(format_args!("{:<28} {:>12} {:>16} {:>16}", "", "packets", "frame bytes", "line bytes"))?;
    let row = |name: &str, d: Direction| {
        line(format_args!("{name:<28} {:>12} {:>16} {:>16}", d.packets, d.frame_bytes, d.line_bytes))
    };
    row("request", result.request)?;
    match result.response {
        Response::None => line("response                     none: the transport is unreliable")?,
        Response::Exact(direction) => row("response", direction)?,
        Response::Range { min, max } => {
            row("acknowledgements, at least", min)?;
            row("acknowledgements, at most", max)?;
        }
    }
    if cost.size > 0 {
        line(format_args!("goodput {:.2} % of the line bytes that carry it", 100.0 * result.goodput_share()))?;
    }
    line(
        "Frame bytes are what vendors' counters show: without FCS (4), preamble (8) and gap (12), which line bytes have.",
    )?;
    Ok(ExitCode::SUCCESS)
}
