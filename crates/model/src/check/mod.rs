//! The model held to what was published: each number of a testbed beside what the testbed's parameters predict.
//!
//! A row is compared in its configuration as published. A row that needs something the model does not have is
//! not compared, and a [`Lack`] says what is missing.
//!
//! ```
//! use doorbell_model::check::{Status, check};
//! use doorbell_model::parameters::Parameters;
//!
//! let testbed = doorbell_published::testbed("t1").ok_or("a testbed")?;
//! let checked = check(testbed, Parameters::of_testbed(&testbed.name).as_ref());
//! let latency = checked.iter().find(|checked| checked.row.id == "send-receive/base-latency").ok_or("a row")?;
//! assert_eq!(latency.status(), Status::Within);
//! # Ok::<(), &str>(())
//! ```

mod operations;
mod shapes;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use doorbell_protocols::Protocol;
use doorbell_published::{
    Amount, Configuration, Dimension, PathMtuSaid, Quantity, Receivers, Relation, Repost, Row, Subject, Testbed, Value,
};

use crate::observation::{Load, Observation, srq_slow_sizes};
use crate::parameters::Parameters;
use crate::predict::{BoundKind, Prediction, predict};
use crate::workload::{Peers, Workload, WorkloadError};

pub use shapes::{CheckedShape, Judged, check_shape};

/// What the model lacks for rows that it misses, by id: a sentence each.
const LACKS: &str = include_str!("../../data/lacks.toml");

/// A latency is within, if it deviates by this share at most.
pub const LATENCY_TOLERANCE: f64 = 0.15;
/// A throughput, or a number that follows from throughputs, is within, if it deviates by this share at most.
pub const THROUGHPUT_TOLERANCE: f64 = 0.20;
/// A rate of this share of the highest counts as the highest: in a sweep, the first one ends it.
const HIGHEST: f64 = 0.99;

/// A published number beside what the model says.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked<'a> {
    /// What was published.
    pub row: &'a Row,
    /// What the model says, or what it lacks to say something.
    pub outcome: Result<Compared, Lack>,
}

/// A prediction beside the published number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// What the model predicts, in the unit of the row.
    pub predicted: Value,
    /// How far it is off: 0.1 is a tenth too high. 0 where the row is a bound that the prediction keeps.
    pub deviation: f64,
    /// What binds the throughput. A latency has no such bound.
    pub binding: Option<BoundKind>,
    /// The row's tolerance holds.
    pub is_within: bool,
    /// A parameter was fitted to this row, so that the comparison is no test of the model.
    pub is_fitted: bool,
}

/// How a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The prediction is within the tolerance.
    Within,
    /// It is not.
    Beyond,
    /// There is no prediction.
    NoModel,
}

impl Status {
    /// All, in the order in which summaries have them.
    pub const ALL: [Self; 3] = [Self::Within, Self::Beyond, Self::NoModel];

    /// As tables and JSON have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Beyond => "beyond",
            Self::NoModel => "no model",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What is missing for a prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Lack {
    /// The row is neither about messages of a protocol nor about single operations.
    #[error("the model predicts messages of protocols and single operations, not {0}")]
    Subject(&'static str),
    /// The row is about a protocol that Doorbell does not have.
    #[error("the model has no protocol {0}")]
    Protocol(String),
    /// The row's number is none of latency or throughput.
    #[error("the model has no {0}")]
    Quantity(&'static str),
    /// There is no parameter set.
    #[error("the model has no parameters of the testbed")]
    Parameters,
    /// A field of the row's configuration has no number.
    #[error("the publication does not state `{0}`, which the model needs")]
    Unstated(&'static str),
    /// A field has a range where the model needs one number.
    #[error("`{field}` is {amount}, and the model needs one number")]
    Range {
        /// Which field.
        field: &'static str,
        /// The range.
        amount: Amount,
    },
    /// A field has one number, and the row's quantity needs a range.
    #[error("`{field}` is {amount}, and the quantity needs a range")]
    NoRange {
        /// Which field.
        field: &'static str,
        /// The number.
        amount: Amount,
    },
    /// The configuration has a feature that the model does not have.
    #[error("{0}")]
    Feature(&'static str),
    /// The parameter set has no number for something that the row is about.
    #[error("the parameters have no {0}")]
    Parameter(&'static str),
    /// The configuration cannot be.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl Checked<'_> {
    /// How the row compares.
    pub fn status(&self) -> Status {
        match &self.outcome {
            Ok(compared) if compared.is_within => Status::Within,
            Ok(_) => Status::Beyond,
            Err(_) => Status::NoModel,
        }
    }
}

/// All numbers of a testbed beside what its parameters predict.
pub fn check<'a>(testbed: &'a Testbed, parameters: Option<&Parameters>) -> Vec<Checked<'a>> {
    testbed.rows.iter().map(|row| Checked { row, outcome: check_row(row, parameters) }).collect()
}

/// One number beside what the parameters predict.
///
/// # Errors
///
/// The model lacks something that the row needs.
pub fn check_row(row: &Row, parameters: Option<&Parameters>) -> Result<Compared, Lack> {
    let parameters = parameters.ok_or(Lack::Parameters)?;
    let (found, binding) = match (&row.subject, row.quantity) {
        (Subject::Store(_), _) => return Err(Lack::Subject("stores on passive memory")),
        (Subject::Operation(operation), _) => operations::found(row, *operation, parameters)?,
        (Subject::Protocol(_), Quantity::InlineReceiveSize) => match parameters.limits.inline_receive_up_to_bytes {
            0 => return Err(Lack::Parameter("size up to which messages arrive in the completion")),
            bytes => (bytes as f64, None),
        },
        (Subject::Protocol(name), _) => {
            let protocol = Protocol::by_name(name).ok_or_else(|| Lack::Protocol(name.clone()))?;
            found(row, parameters, &workload(protocol, &row.configuration, Swept::by(row.quantity))?)?
        }
    };
    let deviation = row.relation.deviation(row.value.in_base(), found);
    let tolerance = match row.quantity.dimension() {
        Dimension::Time | Dimension::TimePerSize => LATENCY_TOLERANCE,
        _ => THROUGHPUT_TOLERANCE,
    };
    let predicted = Value { number: row.value.unit.from_base(found), unit: row.value.unit };
    let is_fitted = parameters.origins.iter().any(|origin| origin.fitted_to.contains(&row.id));
    Ok(Compared { predicted, deviation, binding, is_within: deviation.abs() <= tolerance, is_fitted })
}

/// What the model lacks, in a sentence, for a row that it misses.
pub fn lack_of(id: &str) -> Option<&'static str> {
    static ALL: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
        toml::from_str(LACKS).unwrap_or_else(|error| unreachable!("the file is part of the crate: {error}"))
    });
    ALL.get(id).map(String::as_str)
}

/// All sentences of a testbed beside what its parameters predict.
pub fn check_shapes<'a>(testbed: &'a Testbed, parameters: Option<&Parameters>) -> Vec<CheckedShape<'a>> {
    testbed.shapes.iter().map(|shape| CheckedShape { shape, outcome: check_shape(shape, parameters) }).collect()
}

/// The latencies and rates of a testbed as measurements, as far as the model has a workload for them. Published bounds
/// ("at least") are no measurements.
pub fn observations(testbed: &Testbed) -> Vec<Observation> {
    let observation = |row: &Row| {
        let Subject::Protocol(name) = &row.subject else { return None };
        let workload = workload(Protocol::by_name(name)?, &row.configuration, None).ok()?;
        let published = row.value.in_base();
        let (latency_ns, messages_per_s) = match row.quantity {
            Quantity::Latency => (Some(published), None),
            Quantity::MessageRate => (None, Some(published)),
            Quantity::Throughput => (None, Some(published / workload.bytes.max(1) as f64)),
            _ => return None,
        };
        let name = format!("{}: {}", row.id, row.says);
        Some(Observation { name, load: Load::Messages(workload), latency_ns, messages_per_s, weight: 1.0 })
    };
    let is_bound = |row: &&Row| matches!(row.relation, Relation::AtLeast | Relation::AtMost);
    testbed.rows.iter().filter(|row| !is_bound(row)).filter_map(observation).collect()
}

/// What a quantity is found by varying.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Swept {
    Bytes,
    Window,
    Batch,
}

impl Swept {
    const fn by(quantity: Quantity) -> Option<Self> {
        match quantity {
            Quantity::LatencyPerSize | Quantity::LineFillingSize => Some(Self::Bytes),
            Quantity::SaturatingWindow | Quantity::GainOfWindow => Some(Self::Window),
            Quantity::SaturatingBatch => Some(Self::Batch),
            _ => None,
        }
    }

    /// The first and the last value.
    fn range(self, configuration: &Configuration) -> Result<(u64, u64), Lack> {
        let (field, amount) = match self {
            Self::Bytes => ("bytes", configuration.bytes),
            Self::Window => ("window", configuration.window),
            Self::Batch => ("batch", configuration.batch),
        };
        match amount {
            Some(Amount::Span(least, most)) => Ok((least as u64, most as u64)),
            Some(amount @ Amount::Is(_)) => Err(Lack::NoRange { field, amount }),
            Some(Amount::Unknown) | None => Err(Lack::Unstated(field)),
        }
    }
}

/// The one number of a field.
fn amount(field: &'static str, given: Option<Amount>) -> Result<u64, Lack> {
    match given {
        Some(Amount::Is(number)) => Ok(number as u64),
        Some(amount @ Amount::Span(..)) => Err(Lack::Range { field, amount }),
        Some(Amount::Unknown) | None => Err(Lack::Unstated(field)),
    }
}

/// The same of a field that counts, which is 2^30 at most.
fn count(field: &'static str, given: Option<Amount>) -> Result<u32, Lack> {
    amount(field, given).map(|number| number as u32)
}

/// The workload of a configuration as published. Of what is swept it has the largest value.
fn workload(protocol: Protocol, configuration: &Configuration, swept: Option<Swept>) -> Result<Workload, Lack> {
    let needed = |field, given: Option<Amount>, this: Option<Swept>| match (given, swept) {
        (_, Some(swept)) if this == Some(swept) => swept.range(configuration).map(|(_, most)| most),
        (other, _) => amount(field, other),
    };
    // Fields are 2^30 at most.
    let count = |field, given, this| needed(field, given, this).map(|number| number as u32);
    let Configuration { bytes, window, batch, poll_list, repost_list, threads, connections, .. } = *configuration;

    let threads = count("threads", threads, None)?;
    let peers = Peers {
        senders: threads,
        receivers: match configuration.receivers.ok_or(Lack::Unstated("receivers"))? {
            Receivers::Own => threads,
            Receivers::Single => 1,
        },
        connections: count("connections", connections, None)?,
    };
    // A pace needs nothing here: the model's rate is the highest that all of its bounds sustain, so also the highest
    // at which receives do not run out.
    let window = count("window", window, Some(Swept::Window))?;
    let workload = Workload {
        protocol,
        receive_batch: count("poll_list", poll_list, None)?,
        repost_batch: count("repost_list", repost_list, None)?,
        credits: configuration.credits.ok_or(Lack::Unstated("credits"))?,
        srq: configuration.shared_receives.ok_or(Lack::Unstated("shared_receives"))?,
        repost_thread: configuration.repost_by == Some(Repost::Thread),
        path_mtu: match configuration.path_mtu {
            Some(PathMtuSaid::Is(path_mtu)) => Some(path_mtu),
            Some(PathMtuSaid::Unknown) | None => None,
        },
        peers,
        ..Workload::new(needed("bytes", bytes, Some(Swept::Bytes))?, window, count("batch", batch, Some(Swept::Batch))?)
    };
    workload.check()?;
    Ok(workload)
}

/// What the model says of a row, in the unit that its dimension names, and what binds there.
fn found(row: &Row, parameters: &Parameters, workload: &Workload) -> Result<(f64, Option<BoundKind>), Lack> {
    let prediction = predict(parameters, workload)?;
    let rate = |workload: &Workload| predict(parameters, workload).map(|prediction| prediction.messages_per_s);
    let over = |other: Workload| Ok::<f64, Lack>(prediction.messages_per_s / rate(&other)?);
    let range = || Swept::by(row.quantity).ok_or(Lack::Quantity("such number"))?.range(&row.configuration);
    let with_window = |window: u64| Workload { window: window as u32, ..*workload };
    let with_batch = |batch: u64| Workload { batch: batch as u32, ..*workload };

    let found = match row.quantity {
        Quantity::Latency => return Ok((prediction.latency_ns, None)),
        Quantity::LatencyOverUnfenced => {
            let protocol = match workload.protocol {
                Protocol::DirectReadFenced | Protocol::DirectReadFencedAwaited => Protocol::DirectRead,
                _ => return Err(Lack::Quantity("form of the protocol without a fence")),
            };
            let unfenced = predict(parameters, &Workload { protocol, ..*workload })?;
            return Ok((prediction.latency_ns - unfenced.latency_ns, None));
        }
        Quantity::LatencyPerSize => {
            let (bytes, most) = range()?;
            let least = predict(parameters, &Workload { bytes, ..*workload })?;
            return Ok(((prediction.latency_ns - least.latency_ns) / (most - bytes) as f64, None));
        }
        Quantity::MessageRate => prediction.messages_per_s,
        Quantity::Throughput => prediction.bytes_per_s,
        Quantity::LineShare => {
            prediction.messages_per_s / bound(&prediction, BoundKind::Link, "link")?.messages_per_s()
        }
        Quantity::GapOverSend => {
            let gap = bound(&prediction, BoundKind::RoundTrip, "round trip")?.ns_per_message;
            gap / bound(&prediction, BoundKind::SendingCpu, "CPU time of a send")?.ns_per_message
        }
        Quantity::GainOfWindow => over(with_window(1))?,
        Quantity::GainOfBatch => over(with_batch(1))?,
        Quantity::GainOfPollList => over(Workload { receive_batch: 1, ..*workload })?,
        Quantity::RateOver512 => over(Workload { bytes: 512, ..*workload })?,
        Quantity::SharedOverOwn => over(Workload { srq: false, ..*workload })?,
        Quantity::SaturatingWindow => saturating(range()?, |window| rate(&with_window(window)))?,
        Quantity::SaturatingBatch => saturating(range()?, |batch| rate(&with_batch(batch)))?,
        Quantity::LineFillingSize => {
            let mtu_bytes = workload.path_mtu.unwrap_or(parameters.path_mtu()).bytes() as u64;
            let (_, fills) =
                srq_slow_sizes(&Parameters { mtu_bytes, ..parameters.clone() })
                    .filter(|_| workload.srq)
                    .ok_or(Lack::Parameter("limit that holds messages of this configuration below the line"))?;
            fills as f64
        }
        _ => return Err(Lack::Quantity("such number")),
    };
    Ok((found, Some(prediction.bottleneck().binding.kind)))
}

fn bound(prediction: &Prediction, kind: BoundKind, name: &'static str) -> Result<crate::predict::Bound, Lack> {
    prediction.bound(kind).ok_or(Lack::Parameter(name))
}

/// The least value that reaches the highest rate, of values that double, as in the published sweeps.
fn saturating(
    (least, most): (u64, u64),
    rate: impl Fn(u64) -> Result<f64, WorkloadError>,
) -> Result<f64, WorkloadError> {
    let values =
        std::iter::successors(Some(least.max(1)), |value| value.checked_mul(2)).take_while(|value| *value <= most);
    let rates = values.map(|value| Ok((value, rate(value)?))).collect::<Result<Vec<_>, WorkloadError>>()?;
    let highest = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let first = rates.iter().find(|(_, rate)| *rate >= highest * HIGHEST);
    Ok(first.map_or(most, |(value, _)| *value) as f64)
}
