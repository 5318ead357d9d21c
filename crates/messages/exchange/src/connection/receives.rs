//! Receive buffers of one connection or of several connections, with flow control by credits.

pub(crate) mod credits;
pub(crate) mod pool;
mod reports;
mod returns;
pub(crate) mod shared;
/// Atomics, the lock and the queue that [`reports`] and [`returns`] use. `tests/suite/reports.rs` and
/// `tests/suite/pool.rs` replace them by the types of a model checker.
mod sync {
    pub(super) use crossbeam_queue::ArrayQueue;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard};
}
