//! Parameters of points about passive memory that several clients share.

mod figure;
mod store;

pub use doorbell_farmem::Strategy;
pub use figure::{Figure, Figures};
pub use store::StorePoint;

use serde::{Deserialize, Serialize};

use crate::words::Operation;

/// Point about shared memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarPoint {
    /// Workload of the store.
    Store(StorePoint),
    /// Order in which requests of several queue pairs are answered.
    Order(OrderPoint),
    /// READs of an object while another queue pair WRITEs the object.
    Tearing(TearingPoint),
    /// Latency of an operation while other queue pairs CAS one address.
    Scope(ScopePoint),
    /// CASes of many clients on one address.
    Hot(HotPoint),
}

/// Requests on several queue pairs of one host to words of one memory. A middlebox numbers the requests as they pass.
///
/// Each queue pair pauses after a post. It then posts its next request as soon as fewer than `outstanding` requests are
/// unanswered. Pauses are uniformly distributed between zero and twice their mean. The mean is the number of queue
/// pairs divided by `rate_per_s`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderPoint {
    /// Operation of each request: READ, WRITE or CAS of 8 B.
    pub operation: Operation,
    /// Number of queue pairs, each with a thread.
    pub queue_pairs: usize,
    /// Number of different words that requests access.
    pub addresses: u64,
    /// Exponent of the Zipf distribution of words.
    pub zipf: f64,
    /// Requests per second of all queue pairs.
    pub rate_per_s: f64,
    /// Maximum number of outstanding requests of a queue pair.
    pub outstanding: usize,
    /// Number of requests of all queue pairs together.
    pub requests: u64,
}

/// WRITEs and READs of one object. One queue pair WRITEs the object repeatedly. Each WRITE stores a new number in all
/// words of the object. Another queue pair READs the object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TearingPoint {
    /// Bytes of the object. Must be a multiple of 8.
    pub bytes: usize,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// Number of READs.
    pub reads: u64,
}

/// Timed operation on one queue pair, one at a time, while other queue pairs CAS one word without a pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopePoint {
    /// Timed operation, of 8 B.
    pub operation: Operation,
    /// Bytes from the word of the CASes to the word of the timed operation.
    pub distance: u64,
    /// Number of other queue pairs, which CAS.
    pub others: usize,
    /// Number of outstanding CASes on each of the other queue pairs.
    pub outstanding: usize,
    /// Number of timed operations.
    pub operations: u64,
}

/// CASes of many clients on one word. Each client has its own host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HotPoint {
    /// Number of clients.
    pub clients: usize,
    /// Number of outstanding CASes of each client.
    pub outstanding: usize,
    /// Number of CASes of all clients together.
    pub operations: u64,
    /// Path from clients to the memory.
    pub way: Way,
}

/// Path from clients to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Directly: each client has a queue pair with the memory node.
    Straight,
    /// Through a middlebox, which has one queue pair with the memory node for all clients.
    Box,
    /// Through a middlebox that turns CASes into WRITEs.
    BoxToWrite,
}

impl FarPoint {
    /// Returns whether the point can only run in virtual time. Each client of such a point needs its own host.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Self::Hot(_))
    }

    /// Returns the number of polling threads if one machine has all parties: clients, memory node, metadata service and
    /// middlebox. The middlebox of a store runs in a separate process, but its thread needs a CPU too.
    pub fn threads(&self) -> usize {
        match self {
            Self::Store(store) => store.clients + 2 + usize::from(store.strategy.is_steered()),
            Self::Order(_) => 2,
            Self::Tearing(_) | Self::Scope(_) | Self::Hot(_) => 1,
        }
    }

    /// Returns the requested path MTU in bytes, or `None` if the point does not request a path MTU.
    pub fn path_mtu(&self) -> Option<usize> {
        match self {
            Self::Tearing(tearing) => Some(tearing.mtu),
            Self::Store(_) | Self::Order(_) | Self::Scope(_) | Self::Hot(_) => None,
        }
    }

    /// Returns the workload of the store, or `None` for points about bare memory.
    pub fn store(&self) -> Option<&StorePoint> {
        match self {
            Self::Store(store) => Some(store),
            _ => None,
        }
    }
}
