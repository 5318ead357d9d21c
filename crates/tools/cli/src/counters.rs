//! `doorbell counters`.

mod list;
mod prometheus;
mod table;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use doorbell_counters::export::json;
use doorbell_counters::{Look, Monitor, News, Pace, SYSFS};

use crate::failure::{Failure, Usage};
use crate::output::{line, note};
use crate::quantity;

const EXAMPLES: &str = "\
Examples:
  doorbell counters                         all devices, each second, until q is pressed
  doorbell counters mlx5_0 -n 10 --json     ten lines of JSON on one device
  doorbell counters 127.0.0.2 | tee log     a software RNIC by its address, as lines of text
  doorbell counters --list                  the devices, and the meaning of their counters
  doorbell counters --prometheus 9464       an exporter on 127.0.0.1, port 9464

The exporter also has the metrics of node_exporter's collector infiniband (docs/measuring.md).
The list has the kernel's devices, and the software RNICs that processes of this user have open.
A counter that a device lacks is shown as - (null in JSON), not as 0.";

/// Show rates of RDMA devices: bytes, packets, operations, retransmissions, RNR NAKs, packets out of sequence and
/// congestion notifications per second, transmitted (tx) and received (rx)
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Counters {
    /// Show only this device, given by its name (mlx5_0, mlx5_0/1, doorbell0@127.0.0.1), its address, or the ID of the
    /// process that has the device open
    #[arg(value_name = "DEVICE")]
    device: Option<String>,
    /// Same as DEVICE, for users of the other commands, which have this option
    #[arg(short = 'd', long = "device", value_name = "DEVICE", conflicts_with = "device")]
    device_option: Option<String>,
    /// Interval in seconds, 0.1 to 3600, or with a unit, as in 500ms
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = quantity::seconds)]
    interval: f64,
    /// End after this number of intervals
    #[arg(short = 'n', long, value_name = "N", value_parser = quantity::count::<u64>)]
    count: Option<u64>,
    /// Print one JSON object per interval and line
    #[arg(long)]
    json: bool,
    /// Print lines of text even if the output is a terminal, instead of the live view
    #[arg(long, conflicts_with = "json")]
    lines: bool,
    /// Print the devices and the sources of their counters, then end
    #[arg(long, conflicts_with_all = ["interval", "count", "lines"])]
    list: bool,
    /// Serve the counters to Prometheus at /metrics, on HOST:PORT or on a port of 127.0.0.1
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["interval", "count", "json", "lines", "list"])]
    prometheus: Option<String>,
    /// Sysfs directory with the kernel's devices.
    #[arg(long, hide = true, value_name = "ROOT", default_value = SYSFS)]
    sysfs: PathBuf,
}

impl Counters {
    /// Returns whether the command serves clients instead of printing.
    pub(crate) fn is_exporter(&self) -> bool {
        self.prometheus.is_some()
    }

    /// Returns whether the command draws on a terminal.
    pub(crate) fn is_live(&self) -> bool {
        let is_text = self.json || self.lines || self.list || self.is_exporter();
        !is_text && crate::output::stdout_is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }
}

/// Returns the time between two readings of the counters, which `--interval` sets.
pub(crate) fn interval(seconds: f64) -> Result<Duration, Usage> {
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(Usage(format!("--interval is {seconds} s, allowed is 0.1 to 3600"))),
    }
}

pub(crate) fn run(arguments: &Counters) -> Result<ExitCode, Failure> {
    let interval = interval(arguments.interval)?;
    if arguments.count == Some(0) {
        return Err(Usage("--count is 0, allowed is at least 1".to_owned()).into());
    }
    let mut monitor = Monitor::new(&arguments.sysfs);
    if let Some(device) = arguments.device.as_ref().or(arguments.device_option.as_ref()) {
        monitor.select(device)?;
    }
    if let Some(address) = &arguments.prometheus {
        return prometheus::serve(monitor, address);
    }
    if arguments.list {
        return list::run(monitor, arguments.json);
    }
    let mut pace = Pace::new(interval, arguments.count);
    if arguments.is_live() {
        return terminal::run(monitor, pace);
    }
    let mut news = News::default();
    let first = monitor.look();
    show_news(&mut news, &first);
    if first.devices.is_empty() {
        note!("{NO_DEVICE}; waiting for one");
    }
    let mut table = table::Table::default();
    while let Some(at) = pace.next_look() {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let look = monitor.look();
        show_news(&mut news, &look);
        if arguments.json {
            line(json::of(&look))?;
        } else {
            table.print(&look)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

const NO_DEVICE: &str = "no RDMA device: the kernel knows none, and no process of this user has a software RNIC open";

/// Prints the notes and remarks of a look that were not printed before.
fn show_news(news: &mut News, look: &Look) {
    news.of(look).iter().for_each(|sentence| note!("{sentence}"));
}

/// Formats a rate with two decimals below 1, one decimal below 100, and no decimals from 100 on.
fn short(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate >= 100.0 || rate.fract() == 0.0 => format!("{rate:.0}"),
        Some(rate) if rate >= 1.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.2}"),
    }
}

/// Formats bytes per second in MiB/s.
fn mib(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{:.2}", rate / f64::from(1 << 20)))
}

#[cfg(test)]
mod tests;
