//! What a bench prints for people.

use std::io;

use doorbell_fabric::FaultPlan;
use doorbell_study::environment::Environment;
use doorbell_study::parameters::{Kind, Operation, Parameters, Timed};
use doorbell_study::record::{BothEnds, Counted, PointResult};

use crate::output::{line, us};

pub(crate) fn header(kind: Kind, environment: &Environment, parameters: &Parameters) -> io::Result<()> {
    let depth =
        if parameters.operation.is_one_sided() { String::new() } else { format!(", depth {}", parameters.depth) };
    eprintln!(
        "{} over {} ({} provider), MTU {}, window {}, batch {}{depth}, inline up to {} B, \
         {} connection{}{}{}; {} on {} CPUs, Linux {}",
        name(parameters.operation),
        environment.device,
        environment.provider,
        parameters.mtu.unwrap_or(environment.active_mtu),
        parameters.window,
        parameters.batch,
        parameters.inline,
        parameters.connections,
        if parameters.connections == 1 { "" } else { "s" },
        if parameters.credits { "" } else { ", no credits" },
        if parameters.events { ", sleeping on events" } else { "" },
        environment.cpu,
        environment.cpus,
        environment.kernel,
    );
    match kind {
        Kind::Latency => line(format_args!(
            "{:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}   {}, us",
            "bytes",
            "rounds",
            "min",
            "median",
            "mean",
            "99 %",
            "99.9 %",
            "max",
            match parameters.operation.timed() {
                Timed::HalfRoundTrip => "half round trip",
                Timed::RoundTrip => "whole round trip",
                Timed::Completion => "post to completion",
            }
        )),
        Kind::Bandwidth => {
            line(format_args!("{:>9} {:>12} {:>14} {:>12} {:>10}", "bytes", "messages", "messages/s", "MiB/s", "Gb/s"))
        }
    }
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Send => "Send-Receive",
        Operation::Write => "RDMA WRITE",
        Operation::Read => "RDMA READ",
        Operation::CompareSwap => "Compare-and-swap",
        Operation::FetchAdd => "Fetch-and-add",
        Operation::RequestResponse => "Request-response over Send-Receive",
    }
}

pub(crate) fn row(kind: Kind, result: &PointResult) -> io::Result<()> {
    for note in &result.fitted.notes {
        eprintln!("{} B: {note}", result.bytes);
    }
    match (kind, result.latency_ns) {
        (Kind::Latency, Some(latency)) => line(format_args!(
            "{:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            result.bytes,
            result.messages,
            us(latency.min as f64),
            us(latency.p50 as f64),
            us(latency.mean),
            us(latency.p99 as f64),
            us(latency.p999 as f64),
            us(latency.max as f64),
        )),
        _ => line(format_args!(
            "{:>9} {:>12} {:>14.0} {:>12.2} {:>10.3}",
            result.bytes,
            result.messages,
            result.messages_per_s,
            result.bytes_per_s / f64::from(1 << 20),
            result.bytes_per_s * 8.0 / 1e9,
        )),
    }
}

/// Do the packets that were counted match what was predicted, and is every payload intact?
pub(crate) fn is_sound(parameters: &Parameters, fault: &Option<FaultPlan>, result: &PointResult) -> bool {
    let mut sound = true;
    let mut complain = |what: String| {
        eprintln!("doorbell: {} B: {what}", result.bytes);
        sound = false;
    };
    if result.damaged > 0 {
        complain(format!("{} messages arrived damaged", result.damaged));
    }
    let ends = [
        ("this side", &result.counted.client, &result.predicted.client),
        ("the other side", &result.counted.server, &result.predicted.server),
    ];
    // Faults, losses and refusals at either end provoke acknowledgements and repetitions.
    let quiet = |counted: &Counted| counted.retransmitted_packets == 0 && counted.rnr_naks == 0;
    let undisturbed = fault.is_none() && parameters.credits && ends.iter().all(|(_, counted, _)| quiet(counted));
    for (name, counted, predicted) in ends {
        // A READ may be asked for in pieces, whose requests are all of one size.
        let whole = counted.data_bytes * predicted.data_packets == counted.data_packets * predicted.data_bytes;
        let packets = predicted.data_packets..=predicted.data_packets_max;
        if !(packets.contains(&counted.data_packets) && whole) {
            complain(format!(
                "{name} sent {} data packets of {} B in all, predicted are {} of {} B",
                counted.data_packets,
                counted.data_bytes,
                range(predicted.data_packets, predicted.data_packets_max),
                range(predicted.data_bytes, predicted.data_bytes_max),
            ));
        }
        // What is asked for again is answered again.
        let answers = predicted.response_packets..=if undisturbed { predicted.response_packets } else { u64::MAX };
        let bytes = predicted.response_bytes..=if undisturbed { predicted.response_bytes_max } else { u64::MAX };
        if !(answers.contains(&counted.response_packets) && bytes.contains(&counted.response_bytes)) {
            complain(format!(
                "{name} sent {} response packets of {} B in all, predicted are {} of {} B",
                counted.response_packets,
                counted.response_bytes,
                predicted.response_packets,
                range(predicted.response_bytes, predicted.response_bytes_max),
            ));
        }
        if undisturbed && counted.ack_packets > predicted.ack_packets_max {
            complain(format!(
                "{name} sent {} acknowledgements, predicted are {} at most",
                counted.ack_packets, predicted.ack_packets_max
            ));
        }
    }
    sound
}

/// A number, or two where they differ.
fn range(least: u64, most: u64) -> String {
    if least == most { least.to_string() } else { format!("{least}..{most}") }
}

/// Both ends of each result, with the size.
fn ends<'a, T>(
    results: &'a [PointResult],
    of: impl Fn(&'a PointResult) -> &'a BothEnds<T>,
) -> impl Iterator<Item = (usize, &'static str, &'a T)>
where
    T: 'a,
{
    results.iter().flat_map(move |result| {
        let ends = of(result);
        [(result.bytes, "this", &ends.client), (result.bytes, "other", &ends.server)]
    })
}

/// Packets counted beside packets predicted.
pub(crate) fn packets(parameters: &Parameters, results: &[PointResult]) -> io::Result<()> {
    line("")?;
    line("Packets sent, first transmissions; predicted by the arithmetic of packets (`doorbell wire cost`)")?;
    if matches!(parameters.operation, Operation::Read | Operation::CompareSwap | Operation::FetchAdd) {
        answered_packets(results)?;
    } else {
        acknowledged_packets(results)?;
    }
    rates(results)?;
    let rnr: u64 = results.iter().map(|r| r.counted.client.rnr_naks + r.counted.server.rnr_naks).sum();
    if !parameters.credits && rnr > 0 {
        line(format_args!(
            "{rnr} RNR NAKs: without credits the sender does not know how many receives are posted. Each one \
             stops the connection for a while, and with --rnr-retry below 7 it breaks. With credits there are none."
        ))?;
    }
    let stalled: u64 = results.iter().map(|result| result.stalled_on_credits).sum();
    if stalled > 0 {
        line(format_args!("{stalled} times a sender found no credit: the receiver is slower, and nothing was lost."))?;
    }
    Ok(())
}

/// Requests that are acknowledged: SENDs and WRITEs.
fn acknowledged_packets(results: &[PointResult]) -> io::Result<()> {
    line(format_args!(
        "{:>9} {:<6} {:>12} {:>12} {:>15} {:>15} {:>10} {:>21} {:>8} {:>7} {:>8}",
        "bytes",
        "side",
        "data",
        "predicted",
        "data bytes",
        "predicted",
        "ACKs",
        "predicted",
        "credits",
        "repeat",
        "RNR NAKs"
    ))?;
    let both = ends(results, |result| &result.counted).zip(ends(results, |result| &result.predicted));
    for ((bytes, name, counted), (_, _, predicted)) in both {
        line(format_args!(
            "{:>9} {:<6} {:>12} {:>12} {:>15} {:>15} {:>10} {:>21} {:>8} {:>7} {:>8}",
            bytes,
            name,
            counted.data_packets,
            predicted.data_packets,
            counted.data_bytes,
            predicted.data_bytes,
            counted.ack_packets,
            format!("{}..{}", predicted.ack_packets_min, predicted.ack_packets_max),
            counted.control_packets,
            counted.retransmitted_packets,
            counted.rnr_naks,
        ))?;
    }
    Ok(())
}

/// Requests that are answered: READs and atomics.
fn answered_packets(results: &[PointResult]) -> io::Result<()> {
    line(format_args!(
        "{:>9} {:<6} {:>12} {:>21} {:>15} {:>12} {:>12} {:>15} {:>25} {:>7}",
        "bytes",
        "side",
        "requests",
        "predicted",
        "request bytes",
        "responses",
        "predicted",
        "response bytes",
        "predicted",
        "repeat",
    ))?;
    let both = ends(results, |result| &result.counted).zip(ends(results, |result| &result.predicted));
    for ((bytes, name, counted), (_, _, predicted)) in both {
        line(format_args!(
            "{:>9} {:<6} {:>12} {:>21} {:>15} {:>12} {:>12} {:>15} {:>25} {:>7}",
            bytes,
            name,
            counted.data_packets,
            range(predicted.data_packets, predicted.data_packets_max),
            counted.data_bytes,
            counted.response_packets,
            predicted.response_packets,
            counted.response_bytes,
            range(predicted.response_bytes, predicted.response_bytes_max),
            counted.retransmitted_packets,
        ))?;
    }
    Ok(())
}

/// All packets per second at each end, as one sees them who has only the counters of its NIC.
fn rates(results: &[PointResult]) -> io::Result<()> {
    line("")?;
    line("All packets per second, as the counters of each side show them")?;
    line(format_args!(
        "{:>9} {:<6} {:>14} {:>12} {:>14} {:>12}",
        "bytes", "side", "packets in/s", "MB in/s", "packets out/s", "MB out/s"
    ))?;
    for (bytes, name, rates) in ends(results, |result| &result.rates) {
        line(format_args!(
            "{:>9} {:<6} {:>14.0} {:>12.2} {:>14.0} {:>12.2}",
            bytes,
            name,
            rates.rx_packets,
            rates.rx_bytes / 1e6,
            rates.tx_packets,
            rates.tx_bytes / 1e6,
        ))?;
    }
    Ok(())
}
