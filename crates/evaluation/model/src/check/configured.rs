//! Conversion of published configurations into loads for a predictor.

use doorbell_claims::{
    Amount, Configuration, Pace, PathMtuSaid, PublishedOperation as Said, Quantity, Receivers, Relation, Repost, Row,
    Subject, Testbed,
};
use doorbell_protocols::Protocol;
use doorbell_wire::cost::ATOMIC_BYTES;

use super::{Lack, Manner, Ordered, Predictor, Stored};
use crate::observation::{Load, Observation};
use crate::operation::{Posted, PostedOperation};
use crate::workload::{Peers, Workload};

/// Returns the published latencies and rates of a testbed as measurements. The result skips rows whose workload the
/// model does not have, and rows that are bounds ("at least").
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

/// Quantity that a sweep varies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Swept {
    Bytes,
    Window,
    Batch,
}

impl Swept {
    pub(super) const fn by(quantity: Quantity) -> Option<Self> {
        match quantity {
            Quantity::LatencyPerSize | Quantity::LineFillingSize => Some(Self::Bytes),
            Quantity::SaturatingWindow | Quantity::GainOfWindow => Some(Self::Window),
            Quantity::SaturatingBatch => Some(Self::Batch),
            _ => None,
        }
    }

    /// Returns the smallest and the largest value of the sweep.
    pub(super) fn range(self, configuration: &Configuration) -> Result<(u64, u64), Lack> {
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

/// Returns the single number of a field.
fn amount(field: &'static str, given: Option<Amount>) -> Result<u64, Lack> {
    match given {
        Some(Amount::Is(number)) => Ok(number as u64),
        Some(amount @ Amount::Span(..)) => Err(Lack::Range { field, amount }),
        Some(Amount::Unknown) | None => Err(Lack::Unstated(field)),
    }
}

/// Returns the single number of a field that is a count. The reader of published files limits counts to 2^30.
pub(super) fn count(field: &'static str, given: Option<Amount>) -> Result<u32, Lack> {
    amount(field, given).map(|number| number as u32)
}

/// Returns the workload of a published configuration, with the largest value of the swept quantity.
pub(super) fn workload(
    protocol: Protocol,
    configuration: &Configuration,
    swept: Option<Swept>,
) -> Result<Workload, Lack> {
    let needed = |field, given: Option<Amount>, this: Option<Swept>| match (given, swept) {
        (_, Some(swept)) if this == Some(swept) => swept.range(configuration).map(|(_, most)| most),
        (other, _) => amount(field, other),
    };
    // The cast loses nothing, since the reader of published files limits fields to 2^30.
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
    let workload = match configuration.inline {
        Some(Amount::Is(inline)) => Workload { inline_bytes: inline as u64, ..workload },
        _ => workload,
    };
    workload.check()?;
    Ok(workload)
}

/// Returns the facts of a configuration for which [`Workload`] has no field.
pub(super) fn manner(configuration: &Configuration) -> Manner {
    Manner {
        is_paced: configuration.pace == Some(Pace::HighestWithoutRnr),
        one_queue: configuration.receivers == Some(Receivers::Single),
    }
}

/// Returns the operation of the model for a published operation.
pub(super) fn operation(said: Said) -> PostedOperation {
    match said {
        Said::Send => PostedOperation::Send,
        Said::UdSend => PostedOperation::UdSend,
        Said::Write => PostedOperation::Write,
        Said::Read => PostedOperation::Read,
        Said::Cas => PostedOperation::CompareSwap,
        Said::RequestResponse => PostedOperation::RequestResponse,
    }
}

/// Exponent of a Zipf distribution if a publication does not state it: that of YCSB.
const ZIPF: f64 = 0.99;

/// Returns the requests of a published configuration about order.
pub(super) fn ordered(
    operation: PostedOperation,
    configuration: &Configuration,
    by: &dyn Predictor,
) -> Result<Ordered, Lack> {
    Ok(Ordered {
        operation,
        connections: count("connections", configuration.connections)?,
        window: match configuration.window {
            Some(Amount::Is(window)) => window as u32,
            _ => by.unstated_window(operation)?,
        },
        addresses: amount("keys", configuration.keys)?,
        zipf: configuration.zipf.and_then(Amount::most).unwrap_or(ZIPF),
        rate_per_s: configuration.rate_per_s.and_then(Amount::most),
    })
}

/// Returns the workload of a published store, without a middlebox.
pub(super) fn stored(configuration: &Configuration) -> Result<Stored, Lack> {
    let share = |field, given: Option<Amount>| given.and_then(Amount::most).ok_or(Lack::Unstated(field));
    Ok(Stored {
        clients: count("clients", configuration.clients)?,
        keys: amount("keys", configuration.keys)?,
        zipf: share("zipf", configuration.zipf)?,
        write_percent: share("write_percent", configuration.write_percent)?,
        is_steered: false,
    })
}

/// Returns the operations of a published configuration, with the largest size of a range. Each queue pair has its own
/// thread, since no publication states another number of threads.
pub(super) fn posted(
    operation: PostedOperation,
    configuration: &Configuration,
    by: &dyn Predictor,
) -> Result<Posted, Lack> {
    let bytes = match configuration.bytes {
        _ if operation.is_atomic() => ATOMIC_BYTES,
        Some(Amount::Is(bytes) | Amount::Span(_, bytes)) => bytes as u64,
        Some(Amount::Unknown) | None => return Err(Lack::Unstated("bytes")),
    };
    let connections = count("connections", configuration.connections)?;
    if configuration.keys.is_some() {
        return Err(Lack::Feature("no predictor covers clients that choose keys by a distribution"));
    }
    let outstanding = match configuration.outstanding {
        Some(outstanding) => Some(amount("outstanding", Some(outstanding))? as u32),
        None => None,
    };
    let window = match (outstanding, configuration.window) {
        (Some(all), _) => all.div_ceil(connections),
        (_, Some(Amount::Is(window))) => window as u32,
        (_, Some(span @ Amount::Span(..))) => return Err(Lack::Range { field: "window", amount: span }),
        _ => by.unstated_window(operation)?,
    };
    let plain = Posted::new(operation, bytes, window);
    let batch = configuration.batch.map_or(Ok(plain.batch), |batch| count("batch", Some(batch)))?;
    let inline_bytes = configuration.inline.map_or(Ok(plain.inline_bytes), |inline| amount("inline", Some(inline)))?;
    Ok(Posted {
        outstanding,
        in_rounds: configuration.in_rounds == Some(true),
        batch,
        inline_bytes,
        signals_last: batch > 1,
        connections,
        threads: connections,
        addresses: match configuration.addresses {
            Some(addresses) => amount("addresses", Some(addresses))? as u32,
            None => connections,
        },
        immediate: configuration.immediate == Some(true),
        path_mtu: match configuration.path_mtu {
            Some(PathMtuSaid::Is(path_mtu)) => Some(path_mtu),
            Some(PathMtuSaid::Unknown) | None => None,
        },
        outer: if configuration.vlan == Some(true) { plain.outer.with_vlan() } else { plain.outer },
        ..plain
    })
}
