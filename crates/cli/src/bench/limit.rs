//! `doorbell bench limit`: the same datagrams without an RNIC.

use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use doorbell_study::limit::{LimitOptions, child_main, measure};
use serde_json::json;

use crate::device::UdpPort;
use crate::output::{line, us};
use crate::{Failure, Usage, quantity};

/// Two processes, unconnected UDP sockets over loopback with the software RNIC's own buffers,
/// runs of segments, nothing computed: what an RNIC over such sockets can at most reach.
#[derive(Args)]
pub(crate) struct Limit {
    /// Repetitions, of which the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = quantity::count::<usize>)]
    repetitions: usize,
    /// Seconds per repetition; also as in 500ms
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "0.3", value_parser = quantity::seconds)]
    duration: f64,
    #[command(flatten)]
    udp: UdpPort,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// The second process: how it is started.
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
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "limit", "--child", &limit.udp.port.to_string()]);
    let report = measure(
        command,
        &LimitOptions {
            port: limit.udp.port,
            repetitions: limit.repetitions,
            repetition: Duration::from_secs_f64(limit.duration),
            ..LimitOptions::default()
        },
    )?;
    if limit.json {
        let results: Vec<_> = report
            .results
            .iter()
            .map(|result| {
                json!({
                    "frame_bytes": result.frame_bytes,
                    "datagrams_per_s": result.datagrams_per_s,
                    "datagrams_per_s_spread": [result.datagrams_per_s_spread.0, result.datagrams_per_s_spread.1],
                    "bytes_per_s": result.bytes_per_s,
                    "segments": result.segments,
                    "received_share": result.received_share,
                })
            })
            .collect();
        line(serde_json::to_string_pretty(&json!({
            "schema": "doorbell-limit/1",
            "ping_pong_ns": report.ping_pong_ns,
            "ping_pong_blocking_ns": report.ping_pong_blocking_ns,
            "receive_buffer_bytes": report.receive_buffer_bytes,
            "results": results,
        }))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    line(format_args!(
        "half a round trip: {} us spinning, {} us sleeping; receive buffer {} B",
        us(report.ping_pong_ns as f64),
        us(report.ping_pong_blocking_ns as f64),
        report.receive_buffer_bytes,
    ))?;
    line(format_args!(
        "{:>12} {:>9} {:>14} {:>14} {:>14} {:>12} {:>10}",
        "frame bytes", "segments", "datagrams/s", "slowest", "fastest", "MB/s", "received"
    ))?;
    for result in &report.results {
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
    Ok(ExitCode::SUCCESS)
}
