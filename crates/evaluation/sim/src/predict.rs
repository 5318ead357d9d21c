//! Predictions, with intervals, of published experiments whose results the authors of the simulator have not seen.
//! These experiments are called *blind rows*.
//!
//! An interval states how far the prediction moves when values of the testbed's file change.
//!
//! Each value of [`doubts`] is set to its minimum and to its maximum, one at a time. Fitted values move as far as
//! their rows stay within tolerance. Assumed values move over their plausible range. Another seed is one more change.
//! The changes are treated as independent. The distance from the prediction to an end of the interval is therefore the
//! root of the sum of the squares of all moves to this side.

mod page;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_protocols::Protocol;
use doorbell_record::{FarPoint, Figure, HotPoint, Kind, Operation, Parameters, StorePoint, Strategy, Way};
use doorbell_sync::IgnorePoison;

use crate::measure::Load;
use crate::reproduce::{Effort, Lack, Runs};
use crate::testbed::{self, Testbed, TestbedError};

pub use page::{cells, digits, heading, page, revision};

/// Quantity of a blind row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Millions of messages or operations per second.
    MillionsPerS,
    /// Microseconds of half a round trip.
    Microseconds,
    /// 99th percentile of a store's puts, in microseconds.
    MicrosecondsOfPuts,
    /// Packets per operation to the answering end.
    PacketsPerOperation,
}

impl Unit {
    /// Returns the name for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MillionsPerS => "M/s",
            Self::Microseconds => "us",
            Self::MicrosecondsOfPuts => "us, 99 % of puts",
            Self::PacketsPerOperation => "packets/operation",
        }
    }
}

/// An experiment whose published result the authors of the simulator have not seen.
#[derive(Clone, Debug)]
pub struct BlindRow {
    /// The testbed's name.
    pub testbed: &'static str,
    /// Name of the experiment.
    pub experiment: &'static str,
    /// The protocol or operation.
    pub subject: &'static str,
    /// Size of each message in bytes.
    pub bytes: usize,
    /// Name and value of the varied parameter.
    pub at: (&'static str, f64),
    /// Quantity of the result.
    pub unit: Unit,
    workload: RowWorkload,
    /// Whether the rate is the highest without RNR NAKs.
    is_paced: bool,
}

/// Workload of a blind row.
#[derive(Clone, Debug)]
enum RowWorkload {
    Load(Box<Load>),
    Far(FarPoint),
}

/// A blind row with its simulated result.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The row.
    pub row: BlindRow,
    /// The estimate, or the reason why there is none.
    pub outcome: Result<Estimate, Lack>,
    /// Changes of values whose simulations have no result. The interval does not include these changes.
    pub lacks: Vec<(String, Lack)>,
}

/// A number with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Result with the values of the testbed's file.
    pub value: f64,
    /// Minimum and maximum of the result.
    pub interval: (f64, f64),
}

/// An uncertain value of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Path of the parameter.
    pub path: &'static str,
    /// Minimum of the value.
    pub least: &'static str,
    /// Maximum of the value.
    pub greatest: &'static str,
    /// Reason for this range.
    pub why: &'static str,
}

const fn doubt(path: &'static str, least: &'static str, greatest: &'static str, why: &'static str) -> Doubt {
    Doubt { path, least, greatest, why }
}

const T1: &str = "connectx5-100g";
const T2: &str = "counters-100g";
const T3: &str = "connectx5-100g-far";

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
            doubt("switch.middlebox", "100 ns", "1000 ns", "assumed: no row shows it"),
            doubt("switch.middlebox_packet", "1 ns", "10 ns", "assumed: a pipeline, or one with memory behind it"),
        ],
    ),
];

/// Returns the uncertain values of a testbed, from which intervals are computed.
pub fn doubts(testbed: &str) -> &'static [Doubt] {
    DOUBTS.iter().find(|(name, _)| *name == testbed).map_or(&[], |(_, doubts)| *doubts)
}

const N_TO_ONE: &str = "N:1";
const N_TO_N: &str = "N:N";
const BASE_LATENCY: &str = "base latency";
const STORE_PUTS: &str = "store, by the share of puts";
const STORE_SKEW: &str = "store, by skew";
const ONE_ADDRESS: &str = "CAS on one address";

/// Additional seeds for the intervals.
const SEEDS: [u64; 2] = [2, 3];
const SIZES: [usize; 3] = [16, 512, 8192];
const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const LATENCY_SIZES: [usize; 7] = [16, 64, 256, 512, 1024, 4096, 8192];
/// The protocols, with each variant that posts different operations for a message.
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

/// Returns the parameters of published message experiments. All lists have one entry, and credits are off if the
/// protocol works without credits.
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

/// Returns all blind rows.
pub fn rows() -> Vec<BlindRow> {
    let mut rows = Vec::new();
    let plain = |parameters: Parameters, bytes| Load { parameters, bytes, receiver_threads: None };
    for (experiment, is_single) in [(N_TO_ONE, true), (N_TO_N, false)] {
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
                        at: (if is_single { "senders" } else { "threads on each side" }, count as f64),
                        unit: Unit::MillionsPerS,
                        workload: RowWorkload::Load(Box::new(load)),
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
                experiment: BASE_LATENCY,
                subject: protocol.name(),
                bytes,
                at: ("window", 1.0),
                unit: Unit::Microseconds,
                workload: RowWorkload::Load(Box::new(load)),
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
                at: ("requests outstanding", window as f64),
                unit,
                workload: RowWorkload::Load(Box::new(plain(parameters, 1))),
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
                at: ("queue pairs", count as f64),
                unit: Unit::MillionsPerS,
                workload: RowWorkload::Load(Box::new(plain(parameters, 8))),
                is_paced: false,
            });
        }
    }
    rows.extend(far_rows());
    rows
}

/// Number of clients of the store, unless varied.
const CLIENTS: usize = 64;
/// Pause of a client between two operations, in microseconds. The pause is fitted on the published share of CASes that
/// succeed with 50 % puts and a Zipf exponent of 0.99.
const CLIENT_US: f64 = 15.0;
/// Delay of shortcut writes, in microseconds. The delay is fitted on the published share of READs that succeed.
const SHORTCUT_US: f64 = 7.1;
/// Assumed size of a value in bytes.
const VALUE: usize = 1024;
/// Time during which operations of the store are counted, in microseconds.
const MEASURE_US: f64 = 4000.0;
/// Number of CASes on one address, of all clients together.
const ON_ONE_ADDRESS: u64 = 4000;

/// Returns the blind rows about memory that several clients share.
fn far_rows() -> Vec<BlindRow> {
    let row = |experiment, subject, bytes, at, unit, far| BlindRow {
        testbed: T3,
        experiment,
        subject,
        bytes,
        at,
        unit,
        workload: RowWorkload::Far(far),
        is_paced: false,
    };
    let base = |strategy| StorePoint {
        strategy,
        clients: CLIENTS,
        client_us: CLIENT_US,
        shortcut_us: SHORTCUT_US,
        value_bytes: VALUE,
        warm_up_us: MEASURE_US / 10.0,
        measure_us: MEASURE_US,
        ..StorePoint::default()
    };
    let mut rows = Vec::new();
    let strategies = [Strategy::Optimistic, Strategy::Steered];
    let units = [Unit::MillionsPerS, Unit::MicrosecondsOfPuts];
    for strategy in strategies {
        for write_percent in [5.0, 100.0] {
            let far = || FarPoint::Store(StorePoint { write_percent, ..base(strategy) });
            let at = ("puts, %", write_percent);
            rows.extend(units.map(|unit| row(STORE_PUTS, strategy.name(), VALUE, at, unit, far())));
        }
    }
    for strategy in strategies {
        for zipf in [0.0, 0.6, 0.9, 1.2, 1.5] {
            let far = || FarPoint::Store(StorePoint { zipf, ..base(strategy) });
            let at = ("Zipf exponent", zipf);
            rows.extend(units.map(|unit| row(STORE_SKEW, strategy.name(), VALUE, at, unit, far())));
        }
    }
    for (subject, way) in
        [("straight", Way::Straight), ("middlebox", Way::Box), ("middlebox, as WRITEs", Way::BoxToWrite)]
    {
        for clients in [1, 4, 20] {
            let far = FarPoint::Hot(HotPoint { clients, outstanding: 16, operations: ON_ONE_ADDRESS, way });
            rows.push(row(ONE_ADDRESS, subject, 8, ("clients", clients as f64), Unit::MillionsPerS, far));
        }
    }
    rows
}

impl BlindRow {
    /// Simulates the row with `runs` and returns its result in [`Self::unit`]. A search of the highest rate begins near
    /// `guess`.
    ///
    /// # Errors
    ///
    /// Returns an error if the run fails.
    pub fn simulate(&self, runs: &mut Runs<'_>, guess: Option<f64>) -> Result<f64, Lack> {
        let load = match &self.workload {
            RowWorkload::Load(load) => load,
            RowWorkload::Far(point) => {
                let result = runs.far(point)?;
                return match self.unit {
                    Unit::MillionsPerS => Ok(result.messages_per_s / 1e6),
                    Unit::MicrosecondsOfPuts => result
                        .far
                        .get(&Figure::PutP99)
                        .copied()
                        .ok_or(Lack::Quantity("the latency of puts, because the run had no puts")),
                    _ => Err(Lack::Quantity("this quantity for shared memory")),
                };
            }
        };
        match self.unit {
            Unit::MicrosecondsOfPuts => Err(Lack::Quantity("the latency of puts for messages")),
            Unit::Microseconds => runs.latency(load).map(|ns| ns / 1e3),
            Unit::MillionsPerS => {
                let guess = guess.map(|millions| millions * 1e6);
                runs.run_near(load, self.is_paced, guess).map(|measured| measured.messages_per_s / 1e6)
            }
            Unit::PacketsPerOperation => {
                let measured = runs.run(load, false)?;
                let counted = measured.counted[1].ok_or(Lack::Quantity("the counters of the answering host"))?;
                Ok(counted.rx_vport_rdma_unicast_packets as f64 / measured.messages as f64)
            }
        }
    }

    /// Returns whether quick checks simulate the row: latencies of a small and a large message, and rates of few
    /// threads.
    pub fn is_quick(&self) -> bool {
        match self.experiment {
            BASE_LATENCY => [16, 8192].contains(&self.bytes),
            N_TO_ONE | N_TO_N => self.bytes == 512 && self.at.1 == 4.0,
            STORE_PUTS => self.at.1 == 5.0 && self.subject == Strategy::Optimistic.name(),
            STORE_SKEW => false,
            _ => true,
        }
    }
}

/// A testbed with one change, and the seed of its runs.
struct Variant {
    testbed: Testbed,
    seed: Option<u64>,
    /// Description of the change.
    name: String,
    /// Index of the changed value. The two variants of one value have the same index.
    doubt: usize,
}

/// Returns the unchanged testbed, followed by a variant for each change.
fn variants(testbed: &Testbed) -> Result<Vec<Variant>, TestbedError> {
    let own = |seed: Option<u64>, name: String, doubt| Variant { testbed: testbed.clone(), seed, name, doubt };
    let mut variants = vec![own(None, String::new(), 0)];
    let doubts = doubts(&testbed.name);
    for (number, doubt) in doubts.iter().enumerate() {
        for value in [doubt.least, doubt.greatest] {
            let name = format!("{} of {value}", doubt.path);
            variants.push(Variant { testbed: testbed.with(doubt.path, value)?, seed: None, name, doubt: number });
        }
    }
    variants.extend(SEEDS.map(|seed| own(Some(seed), format!("seed {seed}"), doubts.len())));
    Ok(variants)
}

/// Returns the number of simulations that [`predict`] makes for `rows` rows of a testbed.
pub fn simulations(testbed: &Testbed, rows: usize) -> usize {
    rows * (1 + 2 * doubts(&testbed.name).len() + SEEDS.len())
}

/// Simulates rows of one testbed with all changes, on `threads` threads of this machine. The result does not depend on
/// the number of threads or on the order in which the threads take rows. `predict` calls `done` at the end of each
/// simulation.
///
/// # Errors
///
/// Returns an error if the testbed has no value with a name in [`doubts`], or does not allow a changed value.
pub fn predict(
    rows: Vec<BlindRow>,
    testbed: &Testbed,
    effort: Effort,
    threads: usize,
    done: impl Fn() + Sync,
) -> Result<Vec<Predicted>, TestbedError> {
    let variants = variants(testbed)?;
    let simulate = |row: &BlindRow, Variant { testbed, seed, .. }: &Variant, guess| {
        let mut runs = Runs::new(testbed, effort).with_seed(*seed);
        let found = row.simulate(&mut runs, guess);
        done();
        found
    };
    // Begin with the rows that simulate the most threads, because these rows take longest. Otherwise one thread of this
    // machine would still work on such a row while the other threads are idle.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| {
        let [a, b] = [a, b].map(|index| &rows[index]);
        b.at.1.total_cmp(&a.at.1).then(b.bytes.cmp(&a.bytes))
    });
    let mut outcomes = in_parallel(threads, &order, |&index| (index, simulate(&rows[index], &variants[0], None)));
    outcomes.sort_by_key(|(index, _)| *index);
    let own: Vec<Result<f64, Lack>> = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    let pairs: Vec<(usize, usize)> =
        order.iter().flat_map(|&index| (1..variants.len()).map(move |variant| (index, variant))).collect();
    let changed = in_parallel(threads, &pairs, |&(index, variant)| {
        (index, variant, simulate(&rows[index], &variants[variant], own[index].as_ref().ok().copied()))
    });
    let mut of_rows: Vec<Vec<(usize, Result<f64, Lack>)>> = rows.iter().map(|_| Vec::new()).collect();
    for (index, variant, outcome) in changed {
        of_rows[index].push((variant, outcome));
    }
    let rows = rows.into_iter().zip(own).zip(of_rows);
    Ok(rows.map(|((row, own), changed)| estimate(row, own, changed, &variants)).collect())
}

/// Combines the prediction of a row with the results of its changes. `changed` has the index of each variant, and the
/// result with this variant.
fn estimate(
    row: BlindRow,
    own: Result<f64, Lack>,
    mut changed: Vec<(usize, Result<f64, Lack>)>,
    variants: &[Variant],
) -> Predicted {
    changed.sort_by_key(|(variant, _)| *variant);
    let value = match own {
        Ok(value) => value,
        Err(lack) => return Predicted { row, outcome: Err(lack), lacks: Vec::new() },
    };
    let doubts = variants.iter().map(|variant| variant.doubt).max().unwrap_or(0);
    // For each changed value, the largest moves of the prediction down and up.
    let mut moves = vec![(0.0_f64, 0.0_f64); doubts + 1];
    let mut lacks = Vec::new();
    for (variant, outcome) in changed {
        let Variant { name, doubt, .. } = &variants[variant];
        match outcome {
            Ok(other) => {
                let (down, up) = &mut moves[*doubt];
                (*down, *up) = (down.min(other - value), up.max(other - value));
            }
            Err(lack) => lacks.push((name.clone(), lack)),
        }
    }
    let (down, up) =
        moves.into_iter().fold((0.0, 0.0), |(down, up), (less, more)| (down + less * less, up + more * more));
    let interval = ((value - f64::sqrt(down)).max(0.0), value + f64::sqrt(up));
    Predicted { row, outcome: Ok(Estimate { value, interval }), lacks }
}

/// Runs `work` for each item on `threads` threads. Returns the results in any order.
fn in_parallel<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(item);
                    found.lock().ignore_poison().push(result);
                }
            });
        }
    });
    found.into_inner().ignore_poison()
}

/// Returns the testbeds of the blind rows.
pub fn testbeds() -> impl Iterator<Item = &'static Testbed> {
    [T1, T2, T3].into_iter().filter_map(testbed::by_name)
}
