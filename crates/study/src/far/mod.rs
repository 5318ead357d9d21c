//! Passive memory that several clients share: what points of the study about it measure.
//!
//! A [`FarPoint`] has parties that a session of two ends has not: a memory node, a metadata service, clients on several
//! hosts, a middlebox. Whoever has these runs it (`doorbell_sim::far` in virtual time, `doorbell study` on this machine),
//! and what comes out is a [`PointResult`](crate::record::PointResult) with [`Figure`]s. What clients post is here, written
//! once: [`words`] has operations on bare memory, `doorbell_farmem` the store.

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

/// The most addresses, queue pairs and clients of a point.
const MAX_ADDRESSES: u64 = 1 << 24;
const MAX_PAIRS: usize = 1024;
/// The most clients that have a host each.
const MAX_HOSTS: usize = 256;
/// The most bytes of an object.
const MAX_OBJECT: usize = 1 << 20;
/// The most operations of a point. Sequence numbers do not come twice within so many.
const MAX_OPERATIONS: u64 = 1 << 23;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarPoint {
    /// A workload of the store.
    Store(StorePoint),
    /// In which order requests of several queue pairs are answered.
    Order(OrderPoint),
    /// READs of an object beside WRITEs of it.
    Tearing(TearingPoint),
    /// An operation beside CASes on one address.
    Scope(ScopePoint),
    /// CASes of many clients on one address.
    Hot(HotPoint),
}

/// Requests on several queue pairs of one host to words of one memory, numbered by a middlebox as they pass.
///
/// The arrival process: each queue pair posts its next request when a pause has passed since it posted the last one, and
/// fewer than `outstanding` are not answered. Pauses are uniform between nothing and twice their mean, which is the
/// queue pairs' number divided by `rate_per_s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderPoint {
    /// READ, WRITE or CAS of 8 B.
    pub operation: Operation,
    /// Queue pairs, each with a thread.
    pub queue_pairs: usize,
    /// Words that requests go to.
    pub addresses: u64,
    /// The exponent of Zipf's law by which they are drawn.
    pub zipf: f64,
    /// Requests per second of all queue pairs.
    pub rate_per_s: f64,
    /// Requests of a queue pair without an answer at most.
    pub outstanding: usize,
    /// Requests of all queue pairs.
    pub requests: u64,
}

/// One queue pair WRITEs an object again and again, each time with another number in all its words, and another queue pair
/// READs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TearingPoint {
    /// Bytes of the object: a multiple of 8.
    pub bytes: usize,
    /// The path MTU in bytes.
    pub mtu: usize,
    /// READs.
    pub reads: u64,
}

/// One queue pair runs one operation at a time, beside others that CAS one word without a pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopePoint {
    /// What the queue pair runs, on 8 B.
    pub operation: Operation,
    /// Bytes from the word that the others CAS to that of the operation.
    pub distance: u64,
    /// Queue pairs beside it.
    pub others: usize,
    /// CASes that each of them has outstanding.
    pub outstanding: usize,
    /// Operations.
    pub operations: u64,
}

/// Clients CAS one word, each from a host of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotPoint {
    /// Clients.
    pub clients: usize,
    /// CASes that each has outstanding.
    pub outstanding: usize,
    /// CASes of all clients.
    pub operations: u64,
    /// How they reach the memory.
    pub way: Way,
}

/// How clients reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Each over a queue pair of its own.
    Straight,
    /// Through a middlebox, which has one queue pair for all.
    Box,
    /// Through a middlebox that turns CASes into WRITEs.
    BoxToWrite,
}

impl FarPoint {
    /// Checks that all of it can be.
    ///
    /// # Errors
    ///
    /// A number is out of its range. The error names it, and what is allowed.
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

    /// Does it take virtual time, since a machine lacks some of its parties?
    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Hot(_))
    }

    /// Threads that poll where one process has all parties: the clients', and those of memory node, metadata service and
    /// middlebox. That of a store is a process of its own, but one thread as well.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Self::Store(store) => store.clients + 2 + usize::from(store.strategy.is_steered()),
            Self::Order(_) => 2,
            Self::Tearing(_) | Self::Scope(_) | Self::Hot(_) => 1,
        }
    }

    /// The path MTU that it asks for, in bytes, if it asks for one.
    pub fn path_mtu(&self) -> Option<usize> {
        match self {
            Self::Tearing(tearing) => Some(tearing.mtu),
            Self::Store(_) | Self::Order(_) | Self::Scope(_) | Self::Hot(_) => None,
        }
    }

    /// The store's workload, if it is one.
    pub fn store(&self) -> Option<&StorePoint> {
        match self {
            Self::Store(store) => Some(store),
            _ => None,
        }
    }
}
