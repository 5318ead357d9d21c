//! The published workload of the store.

use doorbell_record::{StorePoint, Strategy};

/// Number of clients of the store, unless varied.
pub(super) const CLIENTS: usize = 64;
/// Pause of a client between two operations, in microseconds for each client. The pause is fitted to the published
/// shares of CASes that succeed, as in the experiment `far-memory/contention`.
const US_PER_CLIENT: f64 = 0.2;
/// Assumed size of a value in bytes.
pub(super) const VALUE: usize = 1024;
/// Time during which operations of the store are counted, in microseconds.
const MEASURE_US: f64 = 4000.0;

/// Returns the published workload of the store, with the fitted pauses of clients.
pub(super) fn published_store(strategy: Strategy, clients: usize) -> StorePoint {
    StorePoint {
        strategy,
        clients,
        client_us: US_PER_CLIENT * clients as f64,
        value_bytes: VALUE,
        warm_up_us: MEASURE_US / 10.0,
        measure_us: MEASURE_US,
        ..StorePoint::default()
    }
}
