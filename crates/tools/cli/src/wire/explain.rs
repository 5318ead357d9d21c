//! `doorbell wire explain`: the probable application, derived from counters.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use doorbell_analyze::decode;
use doorbell_analyze::explain::sentences::{byte_rate, rate};
use doorbell_analyze::explain::{Answer, Captured, Explanation, Hints, Rates, explain};
use doorbell_counters::{Monitor, SYSFS};
use doorbell_wire::{IpVersion, PathMtu, ROCE_UDP_PORT};

use super::decode::read;
use super::parse_mtu;
use crate::counters::interval;
use crate::failure::{Failure, Usage};
use crate::output::{line, note};
use crate::quantity;

/// Give the growth per second of the observed host's counters of RDMA traffic. On many NICs, these counters are named
/// {rx,tx}_vport_rdma_unicast_{bytes,packets}. They count Ethernet frames without FCS. Numbers may end in k, M, G or
/// T.
#[derive(Args)]
pub(crate) struct Explain {
    /// Bytes received per second
    #[arg(long, value_name = "RATE", value_parser = quantity::rate, allow_negative_numbers = true)]
    rx_bytes: Option<f64>,
    /// Packets received per second
    #[arg(long, value_name = "RATE", value_parser = quantity::rate, allow_negative_numbers = true)]
    rx_packets: Option<f64>,
    /// Bytes sent per second
    #[arg(long, value_name = "RATE", value_parser = quantity::rate, allow_negative_numbers = true)]
    tx_bytes: Option<f64>,
    /// Packets sent per second
    #[arg(long, value_name = "RATE", value_parser = quantity::rate, allow_negative_numbers = true)]
    tx_packets: Option<f64>,
    /// Take the rates, the version of IP and the operations from a capture instead of numbers; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rx_bytes", "rx_packets", "tx_bytes", "tx_packets"])]
    pcap: Option<PathBuf>,
    /// Take the rates from the counters of this device, given by its name in `doorbell counters`, its address, or the
    /// ID of the process that has the device open
    #[arg(
        short,
        long,
        value_name = "NAME",
        conflicts_with_all = ["rx_bytes", "rx_packets", "tx_bytes", "tx_packets", "pcap"]
    )]
    device: Option<String>,
    /// With --device: seconds to observe, 0.1 to 3600, or a time with a unit, as in 500ms
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        requires = "device",
        default_value = "1",
        value_parser = quantity::seconds
    )]
    interval: f64,
    /// Sysfs directory with the kernel's devices.
    #[arg(long, hide = true, value_name = "ROOT", requires = "device", default_value = SYSFS)]
    sysfs: PathBuf,
    /// With --pcap: address of the observed host
    #[arg(long, value_name = "ADDRESS", requires = "pcap", value_parser = quantity::address)]
    host: Option<IpAddr>,
    /// With --pcap: UDP port of RoCE v2
    #[arg(long, value_name = "PORT", requires = "pcap", default_value_t = ROCE_UDP_PORT,
          value_parser = quantity::udp_port)]
    udp_port: u16,
    /// Path MTU, if known; excludes explanations with another path MTU
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu)]
    mtu: Option<PathMtu>,
    /// The traffic is IPv6; a capture shows the version of IP by itself
    #[arg(long, conflicts_with = "pcap")]
    ipv6: bool,
    /// Frames have a VLAN tag
    #[arg(long)]
    vlan: bool,
    /// Also show the used share of a full-duplex link of this rate in bit/s, as in 100G
    #[arg(long, value_name = "RATE", value_parser = quantity::link)]
    link: Option<f64>,
    /// Tolerance of a packet's mean length, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    tolerance: f64,
    /// Show every explanation that fits, with its reason
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Maximum distance in plausibility from the best explanation. Explanations beyond this distance are shown only with
/// -v.
const FAR_LESS_PLAUSIBLE: f64 = 2.0;

pub(crate) fn run(arguments: &Explain) -> Result<ExitCode, Failure> {
    let hints = Hints {
        mtu: arguments.mtu,
        ip: arguments.ipv6.then_some(IpVersion::V6),
        seen: None,
        vlan: arguments.vlan,
        link_bits_per_s: arguments.link,
        tolerance: arguments.tolerance / 100.0,
    };
    if let Some(device) = &arguments.device {
        return print(&explain(&counted(device, arguments)?, &hints)?, arguments);
    }
    let Some(path) = &arguments.pcap else {
        let rates = given(arguments)?;
        // The numbers are from the command line, so an error about them is wrong usage.
        let answer = explain(&rates, &hints).map_err(|error| Usage(error.to_string()))?;
        return print(&answer, arguments);
    };
    let options = decode::Options { udp_port: arguments.udp_port, ..decode::Options::default() };
    let summary = read(path, &options)?;
    let captured = Captured::of(&summary, arguments.host).map_err(|why| format!("{} {why}", path.display()))?;
    let address = captured.host.address;
    note!("{} packets in {:.3} s, as {address} sees them", summary.packets, summary.duration_ns as f64 / 1e9);
    print(&explain(&captured.rates, &captured.hints(&summary, hints))?, arguments)
}

/// Measures the rates of a device during the interval.
fn counted(device: &str, arguments: &Explain) -> Result<Rates, Failure> {
    let during = interval(arguments.interval)?;
    let traffic = doorbell_counters::traffic(Monitor::new(&arguments.sysfs), device, during)?;
    let all = [
        ("bytes received", traffic.rx_bytes_per_s),
        ("packets received", traffic.rx_packets_per_s),
        ("bytes sent", traffic.tx_bytes_per_s),
        ("packets sent", traffic.tx_packets_per_s),
    ];
    let [Some(rx_bytes), Some(rx_packets), Some(tx_bytes), Some(tx_packets)] = all.map(|(_, rate)| rate) else {
        let absent: Vec<_> = all.iter().filter(|(_, rate)| rate.is_none()).map(|(name, _)| *name).collect();
        let why = match traffic.remarks.as_slice() {
            [] => "the device does not count them".to_owned(),
            remarks => remarks.join("; "),
        };
        return Err(format!("{} has no rate of {}: {why}", traffic.device, absent.join(", ")).into());
    };
    let remarks = traffic.remarks.iter().map(|remark| format!("; {remark}")).collect::<String>();
    note!(
        "{} for {:.3} s; its bytes are {}, taken here as those of Ethernet frames without FCS{remarks}",
        traffic.device,
        traffic.seconds,
        traffic.bytes_are.unwrap_or("unknown"),
    );
    Ok(Rates { rx_bytes, rx_packets, tx_bytes, tx_packets })
}

/// Returns the four rates on the command line.
fn given(arguments: &Explain) -> Result<Rates, Usage> {
    let all = [
        ("--rx-bytes", arguments.rx_bytes),
        ("--rx-packets", arguments.rx_packets),
        ("--tx-bytes", arguments.tx_bytes),
        ("--tx-packets", arguments.tx_packets),
    ];
    let missing: Vec<_> = all.iter().filter(|(_, rate)| rate.is_none()).map(|(name, _)| *name).collect();
    match all.map(|(_, rate)| rate) {
        [Some(rx_bytes), Some(rx_packets), Some(tx_bytes), Some(tx_packets)] => {
            Ok(Rates { rx_bytes, rx_packets, tx_bytes, tx_packets })
        }
        _ => {
            Err(Usage(format!("{} missing: give all four rates (0 for none), --device or --pcap", missing.join(", "))))
        }
    }
}

/// Prints the explanations, whatever the source of the rates is.
fn print(answer: &Answer, arguments: &Explain) -> Result<ExitCode, Failure> {
    if arguments.json {
        line(serde_json::to_string(answer)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rates = &answer.rates;
    for (name, packets, bytes, mean) in [
        ("in", rates.rx_packets, rates.rx_bytes, answer.rx_bytes_per_packet),
        ("out", rates.tx_packets, rates.tx_bytes, answer.tx_bytes_per_packet),
    ] {
        let mean = mean.map_or("-".to_owned(), |mean| format!("{mean:.2}"));
        line(format_args!("{name:<4} {:>9} packets/s {:>12} {mean:>9} B per packet", rate(packets), byte_rate(bytes)))?;
    }
    if let Some(link) = answer.link {
        let goodput = link.goodput_share_of_used.map_or(String::new(), |share| match (share.min, share.max) {
            (min, max) if max - min < 0.002 => format!("; {:.1} % of what is used is payload", max * 100.0),
            (min, max) => format!("; {:.1} to {:.1} % of what is used is payload", min * 100.0, max * 100.0),
        });
        line(format_args!(
            "of {}b/s {:.2} % are used in, {:.2} % out{goodput}",
            rate(link.link_bits_per_s),
            link.rx_share * 100.0,
            link.tx_share * 100.0
        ))?;
    }
    match answer.named {
        0 => line(&answer.verdict)?,
        1 => line("Explanations that fit, the most plausible first:")?,
        named => line(format_args!(
            "Explanations that fit, the most plausible first; counters cannot distinguish them, and the first {named} are likely:"
        ))?,
    }
    let shown = |explanation: &&Explanation| {
        let best = answer.explanations.first().map_or(0.0, |best| best.implausibility);
        arguments.verbose || explanation.implausibility <= best + FAR_LESS_PLAUSIBLE
    };
    for (index, explanation) in answer.explanations.iter().filter(shown).enumerate() {
        line(format_args!("{:>2}. {}", index + 1, explanation.summary))?;
        if index == 0 || arguments.verbose {
            for reason in &explanation.reasons {
                line(format_args!("    - {reason}"))?;
            }
        }
    }
    let hidden = answer.explanations.iter().filter(|explanation| !shown(explanation)).count();
    if hidden > 0 {
        line(format_args!("{hidden} far less plausible explanations fit as well; -v shows them."))?;
    }
    for note in &answer.notes {
        line(note)?;
    }
    Ok(ExitCode::SUCCESS)
}
