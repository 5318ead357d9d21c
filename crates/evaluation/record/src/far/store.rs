//! Workload of the store.

use doorbell_farmem::Strategy;
use doorbell_farmem::workload::Load;
use serde::{Deserialize, Serialize};

/// Workload of the store, with its clients and their strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorePoint {
    /// Strategy that coordinates the clients.
    #[serde(with = "by_name")]
    pub strategy: Strategy,
    /// Number of clients. Each client is a thread.
    pub clients: usize,
    /// Number of hosts over which the clients are distributed. Clients of one host share a cache.
    pub hosts: usize,
    /// Number of keys. All keys have a value from the beginning.
    pub keys: u64,
    /// Exponent of the Zipf distribution of keys.
    pub zipf: f64,
    /// Percentage of operations that are puts.
    pub write_percent: f64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Maximum number of concurrent operations of a client.
    pub outstanding: usize,
    /// Pause of a client between two operations, in microseconds.
    pub client_us: f64,
    /// Operations per second of all clients together, which arrive by a Poisson process. `None` means that a client
    /// begins the next operation when an operation has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Delay from a put to the write of the key's shortcut, in microseconds. The delay models a background thread that
    /// writes shortcuts.
    #[serde(default)]
    pub shortcut_us: f64,
    /// Duration of the warm-up in microseconds. Operations during the warm-up are not counted.
    pub warm_up_us: f64,
    /// Duration of the measurement after the warm-up in microseconds.
    pub measure_us: f64,
}

impl Default for StorePoint {
    /// Returns the published workload, with 64 clients that do not pause between operations.
    fn default() -> Self {
        let load = Load::default();
        Self {
            strategy: Strategy::Optimistic,
            clients: 64,
            hosts: 2,
            keys: load.keys,
            zipf: load.zipf,
            write_percent: load.write_percent,
            value_bytes: load.value_bytes,
            outstanding: load.outstanding,
            client_us: 0.0,
            rate_per_s: None,
            shortcut_us: 0.0,
            warm_up_us: 200.0,
            measure_us: 1000.0,
        }
    }
}

/// Pause of a client between two operations in the published runs, in microseconds for each client: the threads of a
/// host share its processors. The pause is fitted to the published shares of CASes that succeed.
const FITTED_US_PER_CLIENT: f64 = 0.2;

impl StorePoint {
    /// Assumed bytes of a value in the published runs.
    pub const PUBLISHED_VALUE: usize = 1024;

    /// Id of the published row on which the pause of [`published`](Self::published) was fitted.
    pub const FITTED_ON: &str = "far-memory/write-success";

    /// Returns the published workload of `clients` clients, with the pauses that are fitted to it.
    pub fn published(strategy: Strategy, clients: usize) -> Self {
        Self {
            strategy,
            clients,
            client_us: FITTED_US_PER_CLIENT * clients as f64,
            value_bytes: Self::PUBLISHED_VALUE,
            ..Self::default()
        }
    }

    /// Returns the load of each client.
    pub fn load(&self) -> Load {
        let ns = |us: f64| (us * 1e3) as u64;
        Load {
            keys: self.keys,
            zipf: self.zipf,
            write_percent: self.write_percent,
            value_bytes: self.value_bytes,
            outstanding: self.outstanding,
            rate_per_client: self.rate_per_s.map(|rate| rate / self.clients as f64),
            client_ns: ns(self.client_us),
            warm_up_ns: ns(self.warm_up_us),
            measure_ns: ns(self.measure_us),
            // Do not wait for begun operations. Clients that queue for a lock would need many times the measured time.
            drains: false,
        }
    }

    /// Returns the delay of shortcuts in nanoseconds.
    pub fn shortcut_delay_ns(&self) -> u64 {
        (self.shortcut_us * 1e3) as u64
    }
}

/// Serialization of strategies by name.
mod by_name {
    use doorbell_farmem::Strategy;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(strategy: &Strategy, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(strategy.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Strategy, D::Error> {
        let name = String::deserialize(from)?;
        let names = || Strategy::ALL.map(Strategy::name).join(", ");
        Strategy::by_name(&name)
            .ok_or_else(|| D::Error::custom(format!("{name:?} is not a strategy: must be one of {}", names())))
    }
}
