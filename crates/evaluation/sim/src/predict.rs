//! Predictions, with intervals, of published experiments whose results the authors of the simulator have not seen.
//! These experiments are called *blind rows*.
//!
//! An interval states how far the prediction moves when values of the testbed's file change.
//!
//! Each value of [`doubts`] is set to its minimum and to its maximum, one at a time. Fitted values move as far as
//! their rows stay within tolerance. Assumed values move over their plausible range. Another seed is one more change.
//! The changes are treated as independent. The distance from the prediction to an end of the interval is therefore the
//! root of the sum of the squares of all moves to this side.
//!
//! One more move is the error of the simulator on published rows of the same kind ([`Similar`]).

mod page;
mod rows;
mod similar;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_record::{FarPoint, Figure, PointResult};
use doorbell_sync::IgnorePoison;

use crate::measure::Load;
use crate::reproduce::{Effort, Lack, Runs};
use crate::testbed::{self, Testbed, TestbedError};

pub use page::{PATH, cells, digits, heading, page, revision};
pub use rows::rows;
pub use similar::Similar;

/// Quantity of a blind row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Millions of messages or operations per second.
    MillionsPerS,
    /// Microseconds of half a round trip.
    Microseconds,
    /// 99th percentile of a store's puts, in microseconds.
    MicrosecondsOfPuts,
    /// 99th percentile of a store's gets, in microseconds.
    MicrosecondsOfGets,
    /// Quotient of two rates.
    Times,
    /// Bytes of a message.
    Bytes,
}

impl Unit {
    /// Returns the name for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MillionsPerS => "M/s",
            Self::Microseconds => "us",
            Self::MicrosecondsOfPuts => "us, 99 % of puts",
            Self::MicrosecondsOfGets => "us, 99 % of gets",
            Self::Times => "times",
            Self::Bytes => "B",
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
    /// Paths and values of the testbed that differ in this row.
    changes: &'static [(&'static str, &'static str)],
    /// Uncertain values of this row, in addition to those of its testbed.
    doubts: &'static [Doubt],
    /// Published rows whose error widens the interval.
    similar: Similar,
}

/// Workload of a blind row.
#[derive(Clone, Debug)]
enum RowWorkload {
    Load(Box<Load>),
    Far(FarPoint),
    /// Smallest of these messages, in ascending order, with which the line is full.
    FillingLine(Vec<Load>),
    /// Rate of the first point, divided by the rate of the second one.
    Quotient(Box<[FarPoint; 2]>),
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
    /// Relative error of the simulator on similar published rows. `None` if no row is similar.
    pub error: Option<f64>,
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
const T3: &str = "connectx5-100g-far";

const DOUBTS: [(&str, &[Doubt]); 2] = [
    (
        T1,
        &[
            doubt("nic.unit_request", "72.5 ns", "84 ns", "batch-gain and batch-ceiling stay within 15 %"),
            doubt("nic.transmit", "0 ns", "165 ns", "base-latency stays within 15 %"),
            doubt("nic.receive", "0 ns", "165 ns", "base-latency stays within 15 %"),
            doubt("nic.receive_ack", "40 ns", "1150 ns", "gap-over-send stays within 15 %"),
            doubt("nic.gather", "17 ns", "23 ns", "the published o_nsnd of 20 ns, within 15 %"),
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
        T3,
        &[
            doubt("nic.unit_inline", "48 ns", "63 ns", "the row of one queue pair stays within 15 %"),
            doubt("nic.send_packet", "2 ns", "8.4 ns", "at most the line's time of a WRITE of 8 B"),
            doubt("nic.receive_packet", "2 ns", "8.4 ns", "at most the line's time of a WRITE of 8 B"),
            doubt("nic.read", "10 ns", "60 ns", "assumed: no row shows it"),
            doubt("nic.units", "4", "20", "assumed: no row shows the number"),
            doubt("pcie.read", "400 ns", "800 ns", "assumed: what measurements of PCIe show for Xeons"),
            doubt("pcie.slow_every", "60", "200", "in-order stays within 2 points"),
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

/// Additional seeds for the intervals.
const SEEDS: [u64; 2] = [2, 3];

impl BlindRow {
    /// Simulates the row with `runs` and returns its result in [`Self::unit`].
    ///
    /// # Errors
    ///
    /// Returns an error if the run fails.
    pub fn simulate(&self, runs: &mut Runs<'_>) -> Result<f64, Lack> {
        let load = match &self.workload {
            RowWorkload::Load(load) => load,
            RowWorkload::Far(point) => return self.of_point(&runs.far(point)?),
            RowWorkload::FillingLine(loads) => return rows::filling_line(runs, loads),
            RowWorkload::Quotient(points) => {
                let [one, other] = &**points;
                return Ok(runs.far(one)?.messages_per_s / runs.far(other)?.messages_per_s);
            }
        };
        match self.unit {
            Unit::MicrosecondsOfPuts | Unit::MicrosecondsOfGets | Unit::Times | Unit::Bytes => {
                Err(Lack::Quantity("this quantity for messages of one size"))
            }
            Unit::Microseconds => runs.latency(load).map(|ns| ns / 1e3),
            Unit::MillionsPerS => runs.run(load, false).map(|measured| measured.messages_per_s / 1e6),
        }
    }

    /// Returns the quantity of the row in the result of its point.
    fn of_point(&self, result: &PointResult) -> Result<f64, Lack> {
        let figure = |figure, lack| result.far.get(&figure).copied().ok_or(Lack::Quantity(lack));
        match self.unit {
            Unit::MillionsPerS => Ok(result.messages_per_s / 1e6),
            Unit::MicrosecondsOfPuts => figure(Figure::PutP99, "the latency of puts, because the run had no puts"),
            Unit::MicrosecondsOfGets => figure(Figure::GetP99, "the latency of gets, because the run had no gets"),
            _ => Err(Lack::Quantity("this quantity for shared memory")),
        }
    }

    /// Returns the testbed with the values that differ in this row.
    ///
    /// # Errors
    ///
    /// Returns an error if the testbed has no such value, or does not allow it.
    pub fn on<'a>(&self, testbed: &'a Testbed) -> Result<Cow<'a, Testbed>, TestbedError> {
        self.changes
            .iter()
            .try_fold(Cow::Borrowed(testbed), |testbed, (path, value)| testbed.with(path, value).map(Cow::Owned))
    }

    /// Returns the number of simulations that [`predict`] makes for the row. Rows that share simulations count them
    /// separately.
    pub fn simulations(&self) -> usize {
        1 + 2 * (doubts(self.testbed).len() + self.doubts.len()) + SEEDS.len()
    }

    /// Returns a key of rows whose quantities come from the same simulations, or `None` if the row has its own.
    fn shared_by(&self) -> Option<(&'static str, usize, u64)> {
        match self.workload {
            RowWorkload::Far(FarPoint::Store(_)) | RowWorkload::Quotient(_) => {
                Some((self.experiment, self.bytes, self.at.1.to_bits()))
            }
            _ => None,
        }
    }

    /// Returns whether quick checks simulate the row.
    pub fn is_quick(&self) -> bool {
        rows::is_quick(self)
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

/// Returns the unchanged testbed of a row, followed by a variant for each change.
fn variants(row: &BlindRow, testbed: &Testbed) -> Result<Vec<Variant>, TestbedError> {
    let testbed = row.on(testbed)?;
    let own =
        |seed: Option<u64>, name: String, doubt| Variant { testbed: testbed.clone().into_owned(), seed, name, doubt };
    let mut variants = vec![own(None, String::new(), 0)];
    let doubts: Vec<&Doubt> = doubts(&testbed.name).iter().chain(row.doubts).collect();
    for (number, doubt) in doubts.iter().enumerate() {
        for value in [doubt.least, doubt.greatest] {
            let name = format!("{} of {value}", doubt.path);
            variants.push(Variant { testbed: testbed.with(doubt.path, value)?, seed: None, name, doubt: number });
        }
    }
    variants.extend(SEEDS.map(|seed| own(Some(seed), format!("seed {seed}"), doubts.len())));
    Ok(variants)
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
    let variants: Vec<Vec<Variant>> =
        rows.iter().map(|row| variants(row, testbed)).collect::<Result<_, TestbedError>>()?;
    // Simulates a variant of rows that share simulations.
    let simulate = |indices: &[usize], variant: usize| {
        let Variant { testbed, seed, .. } = &variants[indices[0]][variant];
        let mut runs = Runs::new(testbed, effort).with_seed(*seed);
        let found = indices.iter().map(|&index| {
            let outcome = rows[index].simulate(&mut runs);
            done();
            (index, outcome)
        });
        found.collect::<Vec<_>>()
    };
    // Begin with the rows that simulate the most threads, because these rows take longest. Otherwise one thread of this
    // machine would still work on such a row while the other threads are idle.
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| {
        let [a, b] = [a, b].map(|index| &rows[index]);
        b.at.1.total_cmp(&a.at.1).then(b.bytes.cmp(&a.bytes))
    });
    let groups = groups(&rows, &order);
    let outcomes = in_parallel(threads, &groups, |indices| simulate(indices.as_slice(), 0));
    let mut outcomes: Vec<(usize, Result<f64, Lack>)> = outcomes.into_iter().flatten().collect();
    outcomes.sort_by_key(|(index, _)| *index);
    let own: Vec<Result<f64, Lack>> = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    let pairs: Vec<(&[usize], usize)> = groups
        .iter()
        .flat_map(|indices| (1..variants[indices[0]].len()).map(move |variant| (indices.as_slice(), variant)))
        .collect();
    let changed = in_parallel(threads, &pairs, |&(indices, variant)| (variant, simulate(indices, variant)));
    let mut of_rows: Vec<Vec<(usize, Result<f64, Lack>)>> = rows.iter().map(|_| Vec::new()).collect();
    for (variant, found) in changed {
        for (index, outcome) in found {
            of_rows[index].push((variant, outcome));
        }
    }
    let errors = similar::errors(&rows, testbed, effort);
    let rows = rows.into_iter().zip(own).zip(of_rows).zip(&variants).zip(errors);
    Ok(rows.map(|((((row, own), changed), variants), error)| estimate(row, own, changed, variants, error)).collect())
}

/// Returns the rows as groups that share simulations, in the order of the first row of each group.
fn groups(rows: &[BlindRow], order: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut places = HashMap::new();
    for &index in order {
        let place = match rows[index].shared_by() {
            Some(key) => *places.entry(key).or_insert(groups.len()),
            None => groups.len(),
        };
        match groups.get_mut(place) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Combines the prediction of a row with the results of its changes. `changed` has the index of each variant, and the
/// result with this variant. `error` is the relative error on similar published rows.
fn estimate(
    row: BlindRow,
    own: Result<f64, Lack>,
    mut changed: Vec<(usize, Result<f64, Lack>)>,
    variants: &[Variant],
    error: Option<f64>,
) -> Predicted {
    changed.sort_by_key(|(variant, _)| *variant);
    let value = match own {
        Ok(value) => value,
        Err(lack) => return Predicted { row, outcome: Err(lack), lacks: Vec::new(), error },
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
    if let Some(error) = error {
        moves.push((-error * value, error * value));
    }
    let (down, up) =
        moves.into_iter().fold((0.0, 0.0), |(down, up), (less, more)| (down + less * less, up + more * more));
    let interval = ((value - f64::sqrt(down)).max(0.0), value + f64::sqrt(up));
    Predicted { row, outcome: Ok(Estimate { value, interval }), lacks, error }
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
    [T1, T3].into_iter().filter_map(testbed::by_name)
}
