//! `doorbell wire cost`: the arithmetic of packets.

use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use doorbell_analyze::cost::{CostRecord, OPERATIONS, SCHEMA, TRANSPORTS, side};
use doorbell_analyze::explain::sentences::{byte_rate, rate};
use doorbell_wire::cost::ATOMIC_BYTES;
use doorbell_wire::{CostError, Direction, LinkSide, MessageKind, OuterKind, PathMtu, Response, Transport};
use serde_json::json;

use super::parse_mtu;
use crate::failure::{Failure, Usage};
use crate::output::line;
use crate::quantity;

/// Show all figures for one size at one path MTU, or a table for several sizes or path MTUs.
#[derive(Args)]
pub(crate) struct Cost {
    /// Operation of the message
    #[arg(long, value_parser = one_of(&OPERATIONS))]
    op: MessageKind,
    /// Payload of the message in bytes, as in 4096 or 64K, or several payloads, as in 16,4096 [default: those of -a]
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = quantity::bytes)]
    size: Vec<u64>,
    /// Payloads of all powers of two from 2 B to 8 MiB
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Path MTU: 256, 512, 1024, 2048 or 4096, or several, as in 1024,4096 [default: 4096; with --efficiency all five]
    #[arg(short, long, value_name = "BYTES", value_delimiter = ',', value_parser = parse_mtu)]
    mtu: Vec<PathMtu>,
    /// Transport: reliable connection, unreliable connection or datagram
    #[arg(long, default_value = "rc", value_parser = one_of(&TRANSPORTS))]
    transport: Transport,
    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Use a VLAN tag
    #[arg(long)]
    vlan: bool,
    /// Show the share of the payload in the line bytes of its packets, with a row per size and a column per path MTU
    #[arg(long)]
    efficiency: bool,
    /// Also show the maximum messages per second on a full-duplex link of this rate in bit/s, as in 100G
    #[arg(long, value_name = "RATE", value_parser = quantity::link)]
    link: Option<f64>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Returns the parser of an option that takes one of these names.
fn one_of<T: Copy + Send + Sync + 'static>(known: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let value = move |chosen: String| {
        let found = known.iter().find(|(name, _)| *name == chosen);
        found.map(|(_, value)| *value).ok_or("a name that the table lacks")
    };
    PossibleValuesParser::new(known.iter().map(|(name, _)| *name)).try_map(value)
}

/// Exponents of two for the sizes of -a, the same as in perftest.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

impl Cost {
    fn outer(&self) -> OuterKind {
        let outer = if self.ipv6 { OuterKind::IPV6 } else { OuterKind::IPV4 };
        if self.vlan { outer.with_vlan() } else { outer }
    }

    fn mtus(&self) -> Vec<PathMtu> {
        match self.mtu.as_slice() {
            [] if self.efficiency => PathMtu::ALL.to_vec(),
            [] => vec![PathMtu::Mtu4096],
            given => given.to_vec(),
        }
    }

    /// Returns the sizes, and whether every size must be possible. This is `false` for the sizes of -a.
    fn sizes(&self) -> (Vec<u64>, bool) {
        match self.size.as_slice() {
            [] if matches!(self.op, MessageKind::CompareSwap | MessageKind::FetchAdd) => (vec![ATOMIC_BYTES], true),
            [] => (ALL_SIZES.map(|power| 1 << power).collect(), false),
            given => (given.to_vec(), true),
        }
    }

    fn rows(&self) -> Result<Vec<CostRecord>, Failure> {
        let (sizes, chosen) = self.sizes();
        let mut rows = Vec::new();
        for bytes in sizes {
            for mtu in self.mtus() {
                match CostRecord::new(self.op, self.transport, bytes, mtu, self.outer(), self.link) {
                    Ok(row) => rows.push(row),
                    // With -a, skip sizes that are impossible, such as datagrams longer than the path MTU.
                    Err(CostError::TooLong { .. }) if !chosen => {}
                    Err(error) => return Err(Usage(error.to_string()).into()),
                }
            }
        }
        Ok(rows)
    }
}

pub(crate) fn run(cost: &Cost) -> Result<ExitCode, Failure> {
    let rows = cost.rows()?;
    match rows.as_slice() {
        [row] if !cost.efficiency => one(cost, row)?,
        rows if cost.json => {
            line(json!({ "schema": "doorbell-wire-cost-table/1", "op": cost.op.to_string(), "rows": rows }))?;
        }
        rows if cost.efficiency => efficiency(cost, rows)?,
        rows => table(cost, rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn one(cost: &Cost, row: &CostRecord) -> Result<(), Failure> {
    if cost.json {
        let mut object = serde_json::to_value(row)?;
        object["schema"] = json!(SCHEMA);
        line(object)?;
        return Ok(());
    }
    line(format_args!("{:<28} {:>12} {:>16} {:>16}", "", "packets", "frame bytes", "line bytes"))?;
    let print = |name: &str, d: Direction| {
        line(format_args!("{name:<28} {:>12} {:>16} {:>16}", d.packets, d.frame_bytes, d.line_bytes))
    };
    print("request", row.cost.request)?;
    match row.cost.response {
        Response::None => line("response                     none: the transport is unreliable")?,
        Response::Exact(direction) => print("response", direction)?,
        Response::Range { min, max } => {
            print("acknowledgements, at least", min)?;
            print("acknowledgements, at most", max)?;
        }
    }
    if row.bytes > 0 {
        line(format_args!("goodput {:.2} % of the line bytes that carry it", 100.0 * row.cost.goodput_share()))?;
    }
    if let Some(link) = cost.link {
        let limit = row.cost.link_limit(link);
        let bound = |messages_per_s: f64, binding| {
            let full = match binding {
                LinkSide::Request => "the direction of requests is full",
                LinkSide::Response => "the direction of responses is full",
                LinkSide::Both => "both directions are full",
            };
            let goodput = byte_rate(messages_per_s * row.bytes as f64);
            format!("{} messages/s at most, {goodput} of payload: {full}", rate(messages_per_s))
        };
        let link = rate(link);
        line(format_args!("a link of {link}b/s: {}", bound(limit.messages_per_s, limit.binding)))?;
        if limit.binding_most_acknowledged != limit.binding {
            let (most, binding) = (limit.messages_per_s_most_acknowledged, limit.binding_most_acknowledged);
            line(format_args!("if each packet is acknowledged by itself: {}", bound(most, binding)))?;
        }
    }
    line(
        "Frame bytes are what vendors' counters show: without FCS (4), preamble (8) and gap (12), which line bytes have.",
    )?;
    Ok(())
}

fn table(cost: &Cost, rows: &[CostRecord]) -> Result<(), Failure> {
    let link = |text: String| if cost.link.is_some() { text } else { String::new() };
    line(format_args!(
        "{:>10} {:>5} {:>9} {:>14} {:>14} {:>13} {:>14} {:>9}{}",
        "bytes",
        "mtu",
        "packets",
        "frame bytes",
        "line bytes",
        "packets back",
        "line bytes",
        "goodput",
        link(format!(" {:>12} {:>9}", "messages/s", "full"))
    ))?;
    for row in rows {
        let back = match row.cost.response {
            Response::None => ("0".to_owned(), "0".to_owned()),
            Response::Exact(d) => (d.packets.to_string(), d.line_bytes.to_string()),
            Response::Range { min, max } => {
                (format!("{}-{}", min.packets, max.packets), format!("{}-{}", min.line_bytes, max.line_bytes))
            }
        };
        let limit = cost.link.map(|link| row.cost.link_limit(link));
        let limit = limit.map(|limit| format!(" {:>12} {:>9}", rate(limit.messages_per_s), side(limit.binding)));
        line(format_args!(
            "{:>10} {:>5} {:>9} {:>14} {:>14} {:>13} {:>14} {:>7.2} %{}",
            row.bytes,
            row.mtu,
            row.cost.request.packets,
            row.cost.request.frame_bytes,
            row.cost.request.line_bytes,
            back.0,
            back.1,
            100.0 * row.cost.goodput_share(),
            limit.unwrap_or_default()
        ))?;
    }
    Ok(())
}

fn efficiency(cost: &Cost, rows: &[CostRecord]) -> Result<(), Failure> {
    let mtus = cost.mtus();
    let header: String = mtus.iter().map(|mtu| format!(" {:>9}", format!("MTU {mtu}"))).collect();
    line(format_args!("{:>10}{header}", "bytes"))?;
    let (sizes, _) = cost.sizes();
    for bytes in sizes {
        let share = |mtu: &PathMtu| {
            let row = rows.iter().find(|row| row.bytes == bytes && row.mtu == mtu.bytes());
            let text = row.map_or("-".to_owned(), |row| format!("{:.2} %", 100.0 * row.cost.goodput_share()));
            format!(" {text:>9}")
        };
        line(format_args!("{bytes:>10}{}", mtus.iter().map(share).collect::<String>()))?;
    }
    Ok(())
}
