//! The published workload of the store.

use doorbell_record::{StorePoint, Strategy};

/// Number of clients of the store, unless varied.
pub(crate) const CLIENTS: usize = 64;
/// Time during which operations of the store are counted, in microseconds.
const MEASURE_US: f64 = 4000.0;

/// Returns the published workload of the store, with the duration of a simulation.
pub(crate) fn published_store(strategy: Strategy, clients: usize) -> StorePoint {
    StorePoint { warm_up_us: MEASURE_US / 10.0, measure_us: MEASURE_US, ..StorePoint::published(strategy, clients) }
}
