//! `doorbell bench limit`: the packets of a software RNIC, sent without an RNIC.

use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use doorbell_machine::limit::{CopyResult, LimitOptions, LimitReport, LinkLimit, RateResult, child_main, measure};
use serde_json::{Value, json};

use crate::device::UdpPort;
use crate::failure::{Failure, Usage};
use crate::output::{line, pretty, us};
use crate::quantity;

/// Measure the limit of an RNIC over UDP sockets: two processes exchange datagrams over loopback as software RNICs do.
/// The sockets are unconnected, have the buffers of the software RNIC, and carry runs of segments. Then measure the
/// same packets through memory that both processes share, and the memory itself.
#[derive(Args)]
pub(crate) struct Limit {
    /// Number of repetitions; the output shows the median of all repetitions
    #[arg(long, value_name = "N", default_value = "5", value_parser = quantity::count::<usize>)]
    repetitions: usize,
    /// Seconds per repetition, or a time with a unit, as in 500ms
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "0.3", value_parser = quantity::seconds)]
    duration: f64,
    #[command(flatten)]
    udp: UdpPort,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Argument of the second process.
    #[arg(long, hide = true)]
    child: Option<String>,
}

impl Limit {
    pub(crate) fn is_second(&self) -> bool {
        self.child.is_some()
    }
}

pub(crate) fn run(limit: &Limit) -> Result<ExitCode, Failure> {
    if let Some(mode) = &limit.child {
        child_main(mode)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !(1..=1000).contains(&limit.repetitions) {
        return Err(Usage(format!("--repetitions is {}, allowed is 1 to 1000", limit.repetitions)).into());
    }
    if !(0.01..=60.0).contains(&limit.duration) {
        return Err(Usage(format!("the duration (-D) is {} s, allowed is 0.01 to 60", limit.duration)).into());
    }
    let program = std::env::current_exe()?;
    let second = |mode: &str| {
        let mut command = Command::new(&program);
        command.args(["bench", "limit", "--child", mode]);
        command
    };
    let report = measure(
        second,
        &LimitOptions {
            port: limit.udp.port,
            repetitions: limit.repetitions,
            repetition: Duration::from_secs_f64(limit.duration),
            ..LimitOptions::default()
        },
    )?;
    if limit.json {
        print_json(&report)?
    } else {
        print_text(&report)?
    }
    Ok(ExitCode::SUCCESS)
}

fn json_of(link: &LinkLimit) -> Value {
    let of_rate = |result: &RateResult| {
        json!({
            "frame_bytes": result.frame_bytes,
            "datagrams_per_s": result.datagrams_per_s,
            "datagrams_per_s_spread": [result.datagrams_per_s_spread.0, result.datagrams_per_s_spread.1],
            "bytes_per_s": result.bytes_per_s,
            "segments": result.segments,
            "received_share": result.received_share,
        })
    };
    json!({
        "ping_pong_ns": link.ping_pong_ns,
        "ping_pong_blocking_ns": link.ping_pong_blocking_ns,
        "results": link.results.iter().map(of_rate).collect::<Vec<_>>(),
    })
}

fn print_json(report: &LimitReport) -> Result<(), Failure> {
    let mut record = json_of(&report.udp);
    let of_copy = |copy: &CopyResult| json!({ "bytes": copy.bytes, "bytes_per_s": copy.bytes_per_s });
    record["schema"] = "doorbell-limit/1".into();
    record["receive_buffer_bytes"] = report.receive_buffer_bytes.into();
    record["shared_memory"] = match &report.shared_memory {
        Ok(link) => json_of(link),
        Err(why) => json!({ "error": why }),
    };
    record["cache_line_ns"] = report.memory.line_ns.into();
    record["copies"] = report.memory.copies.iter().map(of_copy).collect();
    pretty(&record)?;
    Ok(())
}

fn print_text(report: &LimitReport) -> Result<(), Failure> {
    line(format_args!("UDP over loopback; receive buffer {} B", report.receive_buffer_bytes))?;
    print_link(&report.udp)?;
    match &report.shared_memory {
        Ok(link) => {
            line("\nmemory that both processes share, copied on both sides")?;
            print_link(link)?;
        }
        Err(why) => line(format_args!("\nmemory that both processes share: {why}"))?,
    }
    line(format_args!("\na cache line takes {:.3} us from one thread to another", report.memory.line_ns / 1e3))?;
    for copy in &report.memory.copies {
        line(format_args!("a thread copies {} KiB at {:.1} GB/s", copy.bytes >> 10, copy.bytes_per_s / 1e9))?;
    }
    Ok(())
}

fn print_link(link: &LinkLimit) -> Result<(), Failure> {
    line(format_args!(
        "half a round trip: {} us spinning, {} us sleeping",
        us(link.ping_pong_ns as f64),
        us(link.ping_pong_blocking_ns as f64),
    ))?;
    line(format_args!(
        "{:>12} {:>9} {:>14} {:>14} {:>14} {:>12} {:>10}",
        "frame bytes", "segments", "packets/s", "slowest", "fastest", "MB/s", "received"
    ))?;
    for result in &link.results {
        line(format_args!(
            "{:>12} {:>9} {:>14.0} {:>14.0} {:>14.0} {:>12.1} {:>8.1} %",
            result.frame_bytes,
            result.segments,
            result.datagrams_per_s,
            result.datagrams_per_s_spread.0,
            result.datagrams_per_s_spread.1,
            result.bytes_per_s / 1e6,
            100.0 * result.received_share,
        ))?;
    }
    Ok(())
}
