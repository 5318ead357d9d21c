//! The published workload of the store.

use doorbell_record::{StorePoint, Strategy};

/// Number of clients of the store, unless varied.
const CLIENTS: usize = 64;
/// Pause of a client between two operations, in microseconds. The pause is fitted on the published share of CASes that
/// succeed with 50 % puts and a Zipf exponent of 0.99.
const CLIENT_US: f64 = 15.0;
/// Delay of shortcut writes, in microseconds. The delay is fitted on the published share of READs that succeed.
const SHORTCUT_US: f64 = 7.1;
/// Assumed size of a value in bytes.
pub(super) const VALUE: usize = 1024;
/// Time during which operations of the store are counted, in microseconds.
const MEASURE_US: f64 = 4000.0;

/// Returns the published workload of the store, with the fitted pauses of clients.
pub(super) fn published_store(strategy: Strategy) -> StorePoint {
    StorePoint {
        strategy,
        clients: CLIENTS,
        client_us: CLIENT_US,
        shortcut_us: SHORTCUT_US,
        value_bytes: VALUE,
        warm_up_us: MEASURE_US / 10.0,
        measure_us: MEASURE_US,
        ..StorePoint::default()
    }
}
