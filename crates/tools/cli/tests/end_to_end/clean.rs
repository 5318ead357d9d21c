//! Captures of correct devices, in which `doorbell wire check` must find nothing.
//!
//! `DOORBELL_CLEAN_CAPTURES=100` sets the number of captures, and `DOORBELL_CLEAN_LOG=FILE` writes a line for each.

use std::io::Write;

use doorbell_analyze::check::{Limits, Report, check};
use doorbell_analyze::decode::Options;
use doorbell_analyze::decode::capture::CaptureReader;
use doorbell_protocols::Protocol;
use doorbell_testing::Rng;
use doorbell_wire::FaultMarks;

use crate::captures::Scratch;
use crate::command::{measuring, run};

/// Captures of a test run.
const CAPTURES: u64 = 5;
/// Minimum number of packets of a capture.
const PACKETS: u64 = 10_000;
const SIZES: [u64; 7] = [1, 16, 63, 250, 1000, 4096, 9001];
const FAULTS: [&str; 6] =
    ["", "drop=0.01", "reorder=0.01", "duplicate=0.01", "corrupt=0.005", "drop=0.02,reorder=0.02,duplicate=0.01"];

/// Returns the arguments of a measurement, the messages per connection for about [`PACKETS`] packets, and the faults.
fn workload(seed: u64) -> (String, u64, &'static str) {
    let mut rng = Rng::new(seed);
    let mtu = *rng.pick(&[256, 512, 1024, 2048, 4096]);
    let size = *rng.pick(&SIZES);
    let (kind, size) = match rng.below(8) {
        0..4 => (format!("bw --protocol {}", rng.pick(&Protocol::NAMES)), size),
        4 => (format!("lat --protocol {}", rng.pick(&Protocol::NAMES)), size),
        _ => match *rng.pick(&["write", "read", "request-response", "cas", "fetch-add"]) {
            atomic @ ("cas" | "fetch-add") => (format!("bw --op {atomic}"), 8),
            other => (format!("bw --op {other}"), size),
        },
    };
    let is_latency = kind.starts_with("lat");
    let connections = if is_latency { 1 } else { *rng.pick(&[1, 1, 2, 4]) };
    // A round trip has two messages.
    let messages = PACKETS.div_ceil(size.div_ceil(mtu) * if is_latency { 2 } else { 1 } * connections);
    let mut arguments = format!("{kind} -s {size} -m {mtu} -q {connections}");
    if !is_latency && rng.chance(500) {
        arguments += *rng.pick(&[" -t 2", " -t 8 -l 4", " -t 64 -l 4", " -t 64"]);
    }
    arguments += *rng.pick(&[" --link udp", " --link shm"]);
    let faults = *rng.pick(&FAULTS);
    if !faults.is_empty() {
        arguments += &format!(" --fault {faults},seed={seed}");
    }
    (arguments, messages, faults)
}

/// Returns a pcap file of Ethernet frames without marks of faults. Without `dropped`, frames that a fault dropped are
/// left out, as in a capture behind the loss.
fn without_marks(file: &[u8], dropped: bool) -> Vec<u8> {
    let mut plain = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    let mut reader = CaptureReader::new(file).expect("the file is a capture");
    while let Some(frame) = reader.next().expect("the file is whole") {
        if dropped || !frame.faults.has(FaultMarks::DROPPED) {
            let at_ns = frame.timestamp_ns.expect("our captures have times");
            let length = frame.bytes.len() as u32;
            let fields = [(at_ns / 1_000_000_000) as u32, (at_ns % 1_000_000_000) as u32, length, length];
            plain.extend(fields.map(u32::to_le_bytes).as_flattened());
            plain.extend(frame.bytes);
        }
    }
    plain
}

fn judge(file: &[u8], complete: bool) -> Report {
    let limits = Limits { complete, ..Limits::default() };
    check(file, &Options::default(), &limits).expect("the file is a capture")
}

#[test]
fn clean_captures_have_no_finding() {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let captures = variable("DOORBELL_CLEAN_CAPTURES").map_or(CAPTURES, |count| count.parse().expect("a number"));
    let mut log = variable("DOORBELL_CLEAN_LOG").map(|path| std::fs::File::create(path).expect("a file for the log"));
    let _one_at_a_time = measuring();
    let (mut retransmitted, mut judged) = (0, 0);
    for seed in 0..captures {
        let (arguments, mut messages, faults) = workload(seed);
        let scratch = Scratch::new("clean.pcap");
        let (marked, packets) = loop {
            run(&format!("bench {arguments} -n {messages} --json --pcap {}", scratch.path())).expect_status(0);
            let marked = std::fs::read(scratch.path()).expect("the capture was written");
            let packets = judge(&marked, false).packets;
            if packets >= PACKETS {
                break (marked, packets);
            }
            // Some protocols put several messages into a packet.
            messages *= 1 + PACKETS / packets;
        };
        let (reorders, duplicates) = (faults.contains("reorder"), faults.contains("duplicate"));
        let mut files = vec![("with marks", marked.clone(), !reorders)];
        // Without marks, a corrupted packet is a violation.
        if !faults.contains("corrupt") {
            let is_complete = !reorders && !duplicates;
            files.push(("before the loss", without_marks(&marked, true), is_complete));
            files.push(("behind the loss", without_marks(&marked, false), is_complete));
        }
        for (kind, file, may_be_complete) in &files {
            for complete in [false, true].into_iter().filter(|complete| *may_be_complete || !complete) {
                let report = judge(file, complete);
                let of = format!("seed {seed}, {kind}, complete: {complete}, bench {arguments} -n {messages}");
                if !report.findings.is_empty() {
                    let kept = std::env::temp_dir().join(format!("doorbell-clean-{seed}.pcap"));
                    std::fs::write(&kept, file).expect("the capture can be written");
                    panic!("{of}, kept as {}: {:#?}", kept.display(), report.findings);
                }
                retransmitted += report.queue_pairs.iter().map(|it| it.repeated).sum::<u64>();
                judged += report.rules.iter().map(|count| count.judged).sum::<u64>();
            }
        }
        if let Some(log) = &mut log {
            let line = format!("seed {seed}: no finding in {packets} packets: bench {arguments} -n {messages}");
            writeln!(log, "{line}").expect("the log can be written");
        }
    }
    assert!(retransmitted > 0 && judged > captures * PACKETS, "{retransmitted} retransmissions, {judged} judgements");
}
