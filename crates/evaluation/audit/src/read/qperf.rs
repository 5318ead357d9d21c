//! Output of qperf: the name of a test, then a line for each value.

use doorbell_wire::{MessageKind, Transport};

use super::{figure, found, is_cut};
use crate::claim::{Claim, Figure, Output, Tool};

/// Units of bandwidth. qperf's prefixes are decimal.
const BANDWIDTHS: [(&str, f64); 10] = [
    ("bytes/sec", 1.0),
    ("KB/sec", 1e3),
    ("MB/sec", 1e6),
    ("GB/sec", 1e9),
    ("TB/sec", 1e12),
    ("bits/sec", 0.125),
    ("Kb/sec", 125.0),
    ("Mb/sec", 125e3),
    ("Gb/sec", 125e6),
    ("Tb/sec", 125e9),
];
const RATES: [(&str, f64); 4] = [("/sec", 1.0), ("K/sec", 1e3), ("M/sec", 1e6), ("G/sec", 1e9)];
const LATENCIES: [(&str, f64); 4] = [("ns", 1e-3), ("us", 1.0), ("ms", 1e3), ("sec", 1e6)];

fn factor(units: &[(&str, f64)], unit: &str) -> Option<f64> {
    units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
}

pub(super) fn results(text: &str, output: &mut Output) {
    let last = text.lines().count();
    let mut claim: Option<Claim> = None;
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = test(line) {
            finish(claim.take(), output);
            set_up(name, output);
            claim = Some(Claim { name: Some(name.to_owned()), ..Claim::default() });
        } else if let Some(claim) = &mut claim
            && let Some((key, value)) = line.split_once('=')
        {
            if index + 1 == last && is_cut(text) {
                output.note("the output ends within a line, which is not used".to_owned());
                continue;
            }
            read_value(key.trim(), value, claim, output);
        }
    }
    finish(claim, output);
}

/// Returns the name of a test, such as `rc_rdma_write_bw`, if the line is its heading.
fn test(line: &str) -> Option<&str> {
    let name = line.strip_suffix(':')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let is_test = ["_bw", "_lat", "_mr", "_poll"].iter().any(|end| name.contains(end));
    (is_name && is_test).then_some(name)
}

fn set_up(name: &str, output: &mut Output) {
    let setup = &mut output.setup;
    setup.transport = match name.split('_').next() {
        Some("rc") => Some(Transport::Rc),
        Some("uc") => Some(Transport::Uc),
        Some("ud") => Some(Transport::Ud),
        _ => None,
    };
    setup.is_bidirectional = name.contains("_bi_");
    setup.operation = match name {
        name if name.contains("rdma_write") => Some(MessageKind::Write),
        name if name.contains("rdma_read") => Some(MessageKind::Read),
        name if name.contains("compare_swap") => Some(MessageKind::CompareSwap),
        name if name.contains("fetch_add") => Some(MessageKind::FetchAdd),
        _ => setup.transport.map(|_| MessageKind::Send),
    };
}

fn read_value(key: &str, value: &str, claim: &mut Claim, output: &mut Output) {
    let mut tokens = value.split_whitespace();
    let (Some(number), Some(unit)) = (tokens.next(), tokens.next()) else { return };
    let is_rate = matches!(key, "bw" | "send_bw" | "recv_bw" | "msg_rate" | "latency" | "msg_size");
    let Some(number) = is_rate.then(|| figure(number, output)).flatten() else { return };
    match key {
        // The receiver's rate is the rate of messages that arrived.
        "bw" | "recv_bw" | "send_bw" if key != "send_bw" || claim.average.is_none() => {
            claim.average = factor(&BANDWIDTHS, unit).map(|unit_bytes_per_s| Figure {
                printed: number.value,
                unit: unit.to_owned(),
                unit_bytes_per_s,
                resolution: number.resolution,
            });
        }
        "msg_rate" => {
            claim.messages_per_s = factor(&RATES, unit).map(|factor| factor * number.value);
            claim.messages_error_per_s = factor(&RATES, unit).map_or(0.0, |factor| factor * number.resolution);
        }
        "latency" => claim.latency_us = factor(&LATENCIES, unit).map(|factor| factor * number.value),
        "msg_size" => {
            let factor = match unit {
                "bytes" => Some(1.0),
                "KB" | "KiB" => Some(1024.0),
                "MB" | "MiB" => Some(1_048_576.0),
                _ => None,
            };
            claim.bytes = factor.map(|factor| (factor * number.value) as u64);
        }
        _ => {}
    }
}

fn finish(claim: Option<Claim>, output: &mut Output) {
    let Some(claim) = claim else { return };
    found(output, Tool::Qperf);
    if claim.average.is_some() || claim.messages_per_s.is_some() || claim.latency_us.is_some() {
        output.claims.push(claim);
    }
}
