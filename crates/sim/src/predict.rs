//! Predictions of experiments of which no number is known here, with intervals: *blind rows*.
//!
//! An interval says how far the number moves when values of the testbed's file do. Each value of [`doubts`] is set to the
//! least and to the greatest that it may have, one at a time: fitted values as far as the rows that they were fitted on
//! stay within their tolerance, assumed ones as far as anybody may assume. Another seed is one more such change. Changes
//! to one side are added as independent ones are, by the root of the sum of their squares.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use doorbell_protocols::Protocol;
use doorbell_study::parameters::{Kind, Operation, Parameters};

use crate::measure::Load;
use crate::reproduce::{Effort, Lack, Runs};
use crate::testbed::{self, Testbed, TestbedError};

/// What a blind row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Millions of messages or operations per second.
    MillionsPerS,
    /// Microseconds of half a round trip.
    Microseconds,
    /// Packets per operation, to the end that answers.
    PacketsPerOperation,
}

impl Unit {
    /// As tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MillionsPerS => "M/s",
            Self::Microseconds => "us",
            Self::PacketsPerOperation => "packets/operation",
        }
    }
}

/// An experiment of which no number is known here.
#[derive(Clone, Debug)]
pub struct BlindRow {
    /// The testbed's name.
    pub testbed: &'static str,
    /// What is measured, in words.
    pub experiment: &'static str,
    /// The protocol or operation.
    pub subject: &'static str,
    /// Bytes of each message.
    pub bytes: usize,
    /// What is varied, and its value.
    pub at: (&'static str, usize),
    /// What is counted.
    pub unit: Unit,
    load: Load,
    /// The rate is the highest that provokes no RNR NAK.
    is_paced: bool,
}

/// A blind row with what the simulation says.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The row.
    pub row: BlindRow,
    /// What comes out with the testbed's values.
    pub value: f64,
    /// What may come out, from the least to the greatest.
    pub interval: (f64, f64),
}

/// A value of a testbed that may be another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The parameter.
    pub path: &'static str,
    /// The least that it may be.
    pub least: &'static str,
    /// The greatest that it may be.
    pub greatest: &'static str,
    /// Why.
    pub why: &'static str,
}

const fn doubt(path: &'static str, least: &'static str, greatest: &'static str, why: &'static str) -> Doubt {
    Doubt { path, least, greatest, why }
}

const T1: &str = "connectx5-100g";
const T2: &str = "counters-100g";
const T3: &str = "connectx5-memory";

const DOUBTS: [(&str, &[Doubt]); 3] = [
    (
        T1,
        &[
            doubt("nic.unit_request", "74 ns", "82 ns", "batch-gain and batch-ceiling stay within 15 %"),
            doubt("nic.transmit", "300 ns", "590 ns", "base-latency stays within 15 %"),
            doubt("nic.receive", "300 ns", "590 ns", "base-latency stays within 15 %"),
            doubt("nic.receive_ack", "520 ns", "1600 ns", "gap-over-send stays within 15 %"),
            doubt("cpu.cache_miss", "0 ns", "33 ns", "assumed: no misses, or each to the shared cache (70 cycles)"),
            doubt("cpu.queue_pair", "2 KiB", "12 KiB", "assumed: without the buffers of receives, or with them"),
            doubt(
                "cpu.memory_access",
                "2 ns",
                "33 ns",
                "assumed: a word in the first-level cache, or in the shared one",
            ),
            doubt("pcie.read", "400 ns", "800 ns", "assumed: what measurements of PCIe show for Xeons"),
            doubt("nic.units", "4", "16", "assumed: no row shows the number"),
            doubt("nic.read", "10 ns", "60 ns", "assumed: no row shows it"),
        ],
    ),
    (
        T2,
        &[
            doubt("pcie.read", "290 ns", "320 ns", "the rows of WRITE of 1 B, eight outstanding, stay within 10 %"),
            doubt("nic.transmit", "120 ns", "200 ns", "the rows of WRITE stay within 10 %"),
            doubt("nic.receive", "120 ns", "200 ns", "the rows of WRITE stay within 10 %"),
            doubt("nic.take_receive", "450 ns", "650 ns", "the rows of request-response stay within 10 %"),
            doubt("nic.payload_fetches", "1", "8", "a reading of three rows, see open_points"),
            doubt("cpu.post_list", "60 ns", "180 ns", "assumed: the CPU is not named"),
        ],
    ),
    (
        T3,
        &[
            doubt("nic.unit_request", "65 ns", "110 ns", "taken from the other testbed with this NIC"),
            doubt("nic.send_packet", "12 ns", "25 ns", "taken from the other testbed with this NIC"),
            doubt("nic.receive_packet", "12 ns", "25 ns", "taken from the other testbed with this NIC"),
            doubt("nic.read", "10 ns", "60 ns", "assumed: no row shows it"),
            doubt("nic.units", "4", "20", "assumed: no row shows the number"),
            doubt("pcie.read", "400 ns", "800 ns", "assumed: what measurements of PCIe show for Xeons"),
            doubt("cpu.post_list", "60 ns", "180 ns", "assumed: the CPU is not named"),
        ],
    ),
];

/// The values of a testbed that intervals are made with.
pub fn doubts(testbed: &str) -> &'static [Doubt] {
    DOUBTS.iter().find(|(name, _)| *name == testbed).map_or(&[], |(_, doubts)| *doubts)
}

/// Seeds beside that of all runs.
const SEEDS: [u64; 2] = [2, 3];
const SIZES: [usize; 3] = [16, 512, 8192];
const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const LATENCY_SIZES: [usize; 7] = [16, 64, 256, 512, 1024, 4096, 8192];
/// Of each protocol the variants that differ in what they post for a message.
const PROTOCOLS: [Protocol; 9] = [
    Protocol::SendReceive,
    Protocol::DirectRead,
    Protocol::DirectReadFencedAwaited,
    Protocol::DirectWrite,
    Protocol::BufferedWriteImmediateSend,
    Protocol::BufferedWriteTailSend,
    Protocol::BufferedWriteReverseRead,
    Protocol::SharedWrite,
    Protocol::BufferedRead,
];
const LATENCIES: [Protocol; 8] = [
    Protocol::DirectWrite,
    Protocol::BufferedWriteImmediateSend,
    Protocol::BufferedWriteImmediateRead,
    Protocol::BufferedWriteTailSend,
    Protocol::BufferedWriteTailRead,
    Protocol::BufferedWriteReverseSend,
    Protocol::BufferedWriteReverseRead,
    Protocol::BufferedRead,
];

/// Messages of a protocol, as published: nothing in lists, no credits where the protocol can do without.
fn messages(protocol: Protocol, bytes: usize) -> Parameters {
    let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, bytes);
    parameters.protocol = protocol;
    parameters.depths_are_defaults = false;
    parameters.window =
        if matches!(protocol, Protocol::DirectRead | Protocol::DirectReadFencedAwaited) { 32 } else { 64 };
    parameters.depth = 2 * 64;
    parameters.credits = !protocol.is_possible_without_credits();
    parameters.signal_each = true;
    (parameters.serving.poll_list, parameters.serving.repost_list) = (1, 1);
    parameters
}

fn operations(operation: Operation, bytes: usize, window: usize, inline: usize) -> Parameters {
    let mut parameters = Parameters::plain(Kind::Bandwidth, operation, bytes);
    parameters.depths_are_defaults = false;
    (parameters.window, parameters.depth, parameters.inline) = (window, (2 * window).max(128), inline);
    parameters
}

/// All blind rows.
pub fn rows() -> Vec<BlindRow> {
    let mut rows = Vec::new();
    let plain = |parameters: Parameters, bytes| Load { parameters, bytes, receiver_threads: None, addresses: None };
    for (experiment, is_single) in [("N:1", true), ("N:N", false)] {
        for protocol in PROTOCOLS {
            for bytes in SIZES {
                for count in COUNTS {
                    let mut load = plain(messages(protocol, bytes), bytes);
                    load.parameters.connections = count;
                    load.parameters.serving.threads = count;
                    let is_hub = is_single && protocol == Protocol::SendReceive;
                    load.parameters.serving.single_receiver = is_hub;
                    load.receiver_threads = (is_single && !is_hub).then_some(1);
                    rows.push(BlindRow {
                        testbed: T1,
                        experiment,
                        subject: protocol.name(),
                        bytes,
                        at: (if is_single { "senders" } else { "threads on each side" }, count),
                        unit: Unit::MillionsPerS,
                        load,
                        is_paced: is_single,
                    });
                }
            }
        }
    }
    for protocol in LATENCIES {
        for bytes in LATENCY_SIZES {
            let mut load = plain(messages(protocol, bytes), bytes);
            load.parameters.kind = Kind::Latency;
            (load.parameters.window, load.parameters.batch) = (1, 1);
            rows.push(BlindRow {
                testbed: T1,
                experiment: "base latency",
                subject: protocol.name(),
                bytes,
                at: ("window", 1),
                unit: Unit::Microseconds,
                load,
                is_paced: false,
            });
        }
    }
    for window in [8, 32, 64] {
        for unit in [Unit::MillionsPerS, Unit::PacketsPerOperation] {
            let mut parameters = operations(Operation::RequestResponse, 1, window, 0);
            parameters.credits = false;
            rows.push(BlindRow {
                testbed: T2,
                experiment: "request-response",
                subject: "request-response",
                bytes: 1,
                at: ("requests outstanding", window),
                unit,
                load: plain(parameters, 1),
                is_paced: false,
            });
        }
    }
    for (experiment, subject, operation, inline) in [
        ("inline WRITEs", "write, inline", Operation::Write, 64),
        ("plateau", "write", Operation::Write, 0),
        ("plateau", "read", Operation::Read, 0),
    ] {
        for count in [1, 2, 4, 8, 16, 20] {
            let mut parameters = operations(operation, 8, if operation == Operation::Read { 16 } else { 64 }, inline);
            parameters.connections = count;
            rows.push(BlindRow {
                testbed: T3,
                experiment,
                subject,
                bytes: 8,
                at: ("queue pairs", count),
                unit: Unit::MillionsPerS,
                load: plain(parameters, 8),
                is_paced: false,
            });
        }
    }
    rows
}

impl BlindRow {
    /// What comes out in these runs, in [`Self::unit`].
    ///
    /// # Errors
    ///
    /// The run fails.
    pub fn simulate(&self, runs: &mut Runs<'_>) -> Result<f64, Lack> {
        match self.unit {
            Unit::Microseconds => runs.latency(&self.load).map(|ns| ns / 1e3),
            Unit::MillionsPerS => runs.run(&self.load, self.is_paced).map(|measured| measured.messages_per_s / 1e6),
            Unit::PacketsPerOperation => {
                let measured = runs.run(&self.load, false)?;
                let counted = measured.counted[1].ok_or(Lack::Feature("counters"))?;
                Ok(counted.rx_vport_rdma_unicast_packets as f64 / measured.messages as f64)
            }
        }
    }
}

/// A testbed with one change, and the seed of its runs.
struct Variant {
    testbed: Testbed,
    seed: Option<u64>,
    /// Of two variants that differ in one value the number of that value.
    doubt: usize,
}

/// Simulates these rows of one testbed, with all changes, on so many threads of this machine.
///
/// # Errors
///
/// A run fails, or the testbed's file has no value of this name.
pub fn predict(
    rows: Vec<BlindRow>,
    testbed: &Testbed,
    effort: Effort,
    threads: usize,
) -> Result<Vec<Predicted>, PredictError> {
    let mut variants = vec![Variant { testbed: testbed.clone(), seed: None, doubt: 0 }];
    for (number, doubt) in doubts(&testbed.name).iter().enumerate() {
        for value in [doubt.least, doubt.greatest] {
            variants.push(Variant { testbed: testbed.with(doubt.path, value)?, seed: None, doubt: number });
        }
    }
    let last = doubts(&testbed.name).len();
    variants.extend(SEEDS.map(|seed| Variant { testbed: testbed.clone(), seed: Some(seed), doubt: last }));

    let found: Vec<Mutex<Option<Result<Vec<f64>, Lack>>>> = variants.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|it| *it < variants.len()) {
                    let Variant { testbed, seed, .. } = &variants[number];
                    let mut runs = Runs::new(testbed, effort).with_seed(*seed);
                    let values = rows.iter().map(|row| row.simulate(&mut runs)).collect();
                    *found[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(values);
                }
            });
        }
    });
    let mut values = Vec::new();
    for place in found {
        let found = place.into_inner().unwrap_or_else(PoisonError::into_inner);
        values.push(found.ok_or(PredictError::Unfinished)??);
    }
    let predicted = rows.into_iter().enumerate().map(|(index, row)| {
        let value = values[0][index];
        let of = |doubt| {
            let changed = variants.iter().zip(&values).skip(1).filter(move |(variant, _)| variant.doubt == doubt);
            changed
                .map(|(_, values)| values[index] - value)
                .fold((0.0_f64, 0.0_f64), |(down, up), off| (down.min(off), up.max(off)))
        };
        let (down, up) =
            (0..=last).map(of).fold((0.0, 0.0), |(down, up), (less, more)| (down + less * less, up + more * more));
        let interval = ((value - f64::sqrt(down)).max(0.0), value + f64::sqrt(up));
        Predicted { row, value, interval }
    });
    Ok(predicted.collect())
}

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// A run failed.
    #[error(transparent)]
    Run(#[from] Lack),
    /// A value cannot be changed.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A thread ended without a result.
    #[error("a thread of this machine has not ended")]
    Unfinished,
}

/// The testbeds that blind rows are about.
pub fn testbeds() -> impl Iterator<Item = &'static Testbed> {
    [T1, T2, T3].into_iter().filter_map(testbed::by_name)
}

/// How the page begins.
const HEAD: &str = "\
# Blind predictions

What the simulator says of experiments of which nobody here knows the published number, in the configuration as published.
The last column is empty: it is for what was published, to be filled in later, by somebody else.

`doorbell sim predict > docs/blind-predictions.md` makes this page.

An interval says how far a number moves when values of the testbed's file do. Each value below is set to the least and to
the greatest that it may have, one at a time: fitted values as far as the rows that they were fitted on stay within their
tolerance, assumed ones as far as anybody may assume. Two more seeds are one more such change. Changes to one side are
added as independent ones are, by the root of the sum of their squares. What no value stands for, such as a mechanism that
the simulator does not have, is not in the interval.

As published means: lists of one work request, receive and completion; 64 messages unacknowledged, 32 of Direct-Read; no
credits in Send-Receive, whose N:1 rates are the highest that provoke no RNR NAK; N:1 is N threads on one host that share
its NIC, and one thread that receives; READs have 16 in flight for each queue pair.";

/// The page of Markdown with all predictions.
pub fn page(all: &[(&Testbed, Vec<Predicted>)]) -> String {
    use std::fmt::Write;
    let mut text = format!("{HEAD}\n");
    // To write to a string does not fail.
    for (testbed, predicted) in all {
        let _ = writeln!(text, "\n## {}: {}\n", testbed.name, testbed.about);
        text.push_str("| value | in the file | from | to | why |\n|---|---|---|---|---|\n");
        for Doubt { path, least, greatest, why } in doubts(&testbed.name) {
            let of_file = testbed.parameters().find(|parameter| parameter.path == *path);
            let value = of_file.map_or_else(String::new, |it| format!("{} {}", it.value, it.unit));
            let _ = writeln!(text, "| `{path}` | {} | {least} | {greatest} | {why} |", value.trim_end());
        }
        let mut experiment = "";
        for one in predicted {
            if std::mem::replace(&mut experiment, one.row.experiment) != one.row.experiment {
                let (what, varied) = (one.row.experiment, one.row.at.0);
                let _ = writeln!(text, "\n### {}: {what}\n", testbed.name);
                let _ = writeln!(
                    text,
                    "| protocol or operation | bytes | {varied} | unit | predicted | interval | published |"
                );
                text.push_str("|---|---|---|---|---|---|---|\n");
            }
            let (value, least, greatest) = (digits(one.value), digits(one.interval.0), digits(one.interval.1));
            let _ = writeln!(text, "{} {value} | {least} to {greatest} | |", cells(&one.row));
        }
    }
    text
}

/// A row's cells in the document, without what was predicted: by these it is found again.
pub fn cells(row: &BlindRow) -> String {
    format!("| {} | {} | {} | {} |", row.subject, row.bytes, row.at.1, row.unit.name())
}

/// A number with three digits.
pub fn digits(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
