//! Passive memory that several clients share, and the points of the study that measure it.
//!
//! A [`FarPoint`] has parties that a session of two ends lacks: a memory node, a metadata service, clients on several
//! hosts, a middlebox. `doorbell_sim::far` runs it in virtual time, `doorbell study` on this machine. The result is a
//! [`PointResult`](crate::record::PointResult) with [`Figure`]s. [`words`] has the operations of clients on bare
//! memory, `doorbell_farmem` those of the store.

pub mod choice;
mod figure;
mod here;
mod relays;
mod store;
pub mod words;

pub use doorbell_farmem::Strategy;
pub use figure::{Figure, Figures, order_figures};
pub use here::{HereError, measure};
pub(crate) use here::{Shape, run_pairs};
pub use relays::BoxError;
pub(crate) use relays::box_at;
pub use store::StorePoint;

use serde::{Deserialize, Serialize};

use crate::parameters::{Operation, ParametersError, Setting, within};

/// Maximum numbers of addresses of a point, and of its queue pairs or clients.
const MAX_ADDRESSES: u64 = 1 << 24;
const MAX_PAIRS: usize = 1024;
/// Maximum number of clients that have a host each.
const MAX_HOSTS: usize = 256;
/// Maximum size of an object in bytes.
const MAX_OBJECT: usize = 1 << 20;
/// Maximum number of operations of a point. No sequence number occurs twice among them.
const MAX_OPERATIONS: u64 = 1 << 23;

/// A point about shared memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarPoint {
    /// A workload of the store.
    Store(StorePoint),
    /// The order in which requests of several queue pairs are answered.
    Order(OrderPoint),
    /// READs of an object while another queue pair WRITEs it.
    Tearing(TearingPoint),
    /// An operation beside CASes on one address.
    Scope(ScopePoint),
    /// CASes of many clients on one address.
    Hot(HotPoint),
}

/// Requests on several queue pairs of one host to words of one memory. A middlebox numbers them as they pass.
///
/// The arrival process: each queue pair posts its next request once a pause has passed since its last post, and fewer
/// than `outstanding` requests lack an answer. Pauses are uniform between zero and twice their mean. The mean is the
/// number of queue pairs divided by `rate_per_s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderPoint {
    /// READ, WRITE or CAS of 8 B.
    pub operation: Operation,
    /// Number of queue pairs, each with a thread.
    pub queue_pairs: usize,
    /// Number of words that requests access.
    pub addresses: u64,
    /// Exponent of the Zipf distribution of words.
    pub zipf: f64,
    /// Requests per second of all queue pairs.
    pub rate_per_s: f64,
    /// Maximum number of outstanding requests of a queue pair.
    pub outstanding: usize,
    /// Requests of all queue pairs.
    pub requests: u64,
}

/// WRITEs and READs of one object. One queue pair WRITEs it repeatedly, each time with another number in all its
/// words. Another queue pair READs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TearingPoint {
    /// Bytes of the object: a multiple of 8.
    pub bytes: usize,
    /// The path MTU in bytes.
    pub mtu: usize,
    /// Number of READs.
    pub reads: u64,
}

/// An operation that one queue pair runs one at a time, beside others that CAS one word without a pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopePoint {
    /// The operation, on 8 B.
    pub operation: Operation,
    /// Bytes from the word of the CASes to the word of the operation.
    pub distance: u64,
    /// Number of queue pairs that CAS.
    pub others: usize,
    /// Outstanding CASes of each of them.
    pub outstanding: usize,
    /// Number of operations.
    pub operations: u64,
}

/// CASes of many clients on one word, each client on its own host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotPoint {
    /// Number of clients.
    pub clients: usize,
    /// Outstanding CASes of each client.
    pub outstanding: usize,
    /// CASes of all clients.
    pub operations: u64,
    /// The way from clients to the memory.
    pub way: Way,
}

/// The way from clients to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Each client over its own queue pair.
    Straight,
    /// Through a middlebox, which has one queue pair for all.
    Box,
    /// Through a middlebox that turns CASes into WRITEs.
    BoxToWrite,
}

impl FarPoint {
    /// Validates all parameters of the point.
    ///
    /// # Errors
    ///
    /// A number is out of its range. The error names it, and the allowed range.
    pub fn check(&self) -> Result<(), ParametersError> {
        let one_word = |operation| match operation {
            Operation::Read | Operation::Write | Operation::CompareSwap => Ok(()),
            other => {
                let given = format!("{other:?}");
                let allowed = "READ, WRITE or CAS".to_owned();
                Err(ParametersError { setting: Setting::SharedOperation, given, allowed })
            }
        };
        match self {
            Self::Store(store) => store.check(),
            Self::Order(order) => {
                one_word(order.operation)?;
                within(Setting::QueuePairs, order.queue_pairs, 1, MAX_PAIRS, "")?;
                within(Setting::Addresses, order.addresses, 1, MAX_ADDRESSES, "")?;
                within(Setting::Skew, order.zipf, 0.0, 3.0, "")?;
                within(Setting::Rate, order.rate_per_s, 1.0, 1e9, " requests/s")?;
                within(Setting::Window, order.outstanding, 1, 1024, "")?;
                within(Setting::Messages, order.requests, 1, MAX_OPERATIONS, "")
            }
            Self::Tearing(tearing) => {
                within(Setting::Size, tearing.bytes, 8, MAX_OBJECT, " B")?;
                if !tearing.bytes.is_multiple_of(8) {
                    let (given, allowed) = (format!("{} B", tearing.bytes), "a multiple of 8 B".to_owned());
                    return Err(ParametersError { setting: Setting::Size, given, allowed });
                }
                if doorbell_verbs::PathMtu::from_bytes(tearing.mtu).is_none() {
                    let (given, allowed) = (format!("{} B", tearing.mtu), "256, 512, 1024, 2048 or 4096 B".to_owned());
                    return Err(ParametersError { setting: Setting::Mtu, given, allowed });
                }
                within(Setting::Messages, tearing.reads, 1, MAX_OPERATIONS, "")
            }
            Self::Scope(scope) => {
                one_word(scope.operation)?;
                within(Setting::Distance, scope.distance, 0, MAX_OBJECT as u64, " B")?;
                within(Setting::QueuePairs, scope.others, 0, MAX_PAIRS, "")?;
                within(Setting::Window, scope.outstanding, 1, 1024, "")?;
                within(Setting::Messages, scope.operations, 1, MAX_OPERATIONS, "")
            }
            Self::Hot(hot) => {
                within(Setting::Clients, hot.clients, 1, MAX_HOSTS, "")?;
                within(Setting::Window, hot.outstanding, 1, 1024, "")?;
                within(Setting::Messages, hot.operations, 1, MAX_OPERATIONS, "")
            }
        }
    }

    /// Returns whether the point needs virtual time, since a machine lacks some of its parties.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Hot(_))
    }

    /// Returns the number of polling threads if one process has all parties: those of the clients, the memory node,
    /// the metadata service and the middlebox. The middlebox of a store is a separate process, but also one thread.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Self::Store(store) => store.clients + 2 + usize::from(store.strategy.is_steered()),
            Self::Order(_) => 2,
            Self::Tearing(_) | Self::Scope(_) | Self::Hot(_) => 1,
        }
    }

    /// Returns the requested path MTU in bytes, if any.
    pub fn path_mtu(&self) -> Option<usize> {
        match self {
            Self::Tearing(tearing) => Some(tearing.mtu),
            Self::Store(_) | Self::Order(_) | Self::Scope(_) | Self::Hot(_) => None,
        }
    }

    /// Returns the workload of the store, if the point is one.
    pub fn store(&self) -> Option<&StorePoint> {
        match self {
            Self::Store(store) => Some(store),
            _ => None,
        }
    }
}
