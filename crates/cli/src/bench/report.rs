//! What a bench prints for people.

use std::io;

use doorbell_fabric::FaultPlan;
use doorbell_study::environment::Environment;
use doorbell_study::parameters::{Kind, Parameters};
use doorbell_study::record::{Counted, PointResult};

use crate::output::{line, us};

pub(crate) fn header(kind: Kind, environment: &Environment, parameters: &Parameters) -> io::Result<()> {
    eprintln!(
        "Send-Receive over {} ({} provider), MTU {}, window {}, batch {}, depth {}, inline up to {} B, \
         {} connection{}{}{}; {} on {} CPUs, Linux {}",
        environment.device,
        environment.provider,
        parameters.mtu.unwrap_or(environment.active_mtu),
        parameters.window,
        parameters.batch,
        parameters.depth,
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
            "{:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}   half round trip, us",
            "bytes", "rounds", "min", "median", "mean", "99 %", "99.9 %", "max"
        )),
        Kind::Bandwidth => {
            line(format_args!("{:>9} {:>12} {:>14} {:>12} {:>10}", "bytes", "messages", "messages/s", "MiB/s", "Gb/s"))
        }
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
        if (counted.data_packets, counted.data_bytes) != (predicted.data_packets, predicted.data_bytes) {
            complain(format!(
                "{name} sent {} data packets of {} B in all, predicted are {} of {} B",
                counted.data_packets, counted.data_bytes, predicted.data_packets, predicted.data_bytes
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

/// Packets counted beside packets predicted.
pub(crate) fn packets(parameters: &Parameters, results: &[PointResult]) -> io::Result<()> {
    line("")?;
    line("Packets sent, first transmissions; predicted by the arithmetic of packets (`doorbell wire cost`)")?;
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
    for result in results {
        for (name, counted, predicted) in [
            ("this", &result.counted.client, &result.predicted.client),
            ("other", &result.counted.server, &result.predicted.server),
        ] {
            line(format_args!(
                "{:>9} {:<6} {:>12} {:>12} {:>15} {:>15} {:>10} {:>21} {:>8} {:>7} {:>8}",
                result.bytes,
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
    }
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
