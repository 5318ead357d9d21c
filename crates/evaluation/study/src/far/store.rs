//! Workload of the store, as a point of a study.

use doorbell_farmem::workload::{Load, Report, Side};
use doorbell_farmem::{MAX_OUTSTANDING, MAX_VALUE, Strategy};
use serde::{Deserialize, Serialize};

use super::{Figure, Figures};
use crate::parameters::{ParametersError, Setting, within};
use crate::record::PointResult;

/// Maximum number of clients.
const MAX_CLIENTS: usize = 1024;
/// Maximum number of keys.
const MAX_KEYS: u64 = 1 << 27;
/// Maximum of all times of a point in microseconds. The value is an hour.
const LONGEST_US: f64 = 3.6e9;

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

impl StorePoint {
    pub(super) fn check(&self) -> Result<(), ParametersError> {
        within(Setting::Clients, self.clients, 1, MAX_CLIENTS, "")?;
        within(Setting::Hosts, self.hosts, 1, self.clients, "")?;
        within(Setting::Keys, self.keys, 1, MAX_KEYS, "")?;
        within(Setting::Skew, self.zipf, 0.0, 3.0, "")?;
        within(Setting::Puts, self.write_percent, 0.0, 100.0, " %")?;
        within(Setting::Size, self.value_bytes, 0, MAX_VALUE, " B")?;
        within(Setting::Window, self.outstanding, 1, MAX_OUTSTANDING, "")?;
        within(Setting::Rate, self.rate_per_s.unwrap_or(1.0), 1.0, 1e9, " operations/s")?;
        within(Setting::Seconds, self.client_us, 0.0, LONGEST_US, " us")?;
        within(Setting::Seconds, self.shortcut_us, 0.0, LONGEST_US, " us")?;
        within(Setting::Seconds, self.warm_up_us, 0.0, LONGEST_US, " us")?;
        within(Setting::Seconds, self.measure_us, 1.0, LONGEST_US, " us")
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

    /// Returns the result for a record. `cores` is the CPU time of the memory node and of a client in busy cores, if
    /// known.
    pub fn result(&self, report: &Report, cores: Option<[f64; 2]>) -> PointResult {
        let mut far = Figures::new();
        let mut side = |side: &Side, [p50, p99, p999, attempts, success, at_once]: [Figure; 6]| {
            if side.latency_ns.is_empty() {
                return;
            }
            let us = |quantile: f64| side.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
            far.extend([(p50, us(0.5)), (p99, us(0.99)), (p999, us(0.999))]);
            // If another client has combined the operation with one of its own operations, this client makes no
            // attempt.
            if side.attempts.attempts > 0 {
                far.extend([
                    (attempts, side.attempts_per_operation()),
                    (success, side.success_percent()),
                    (at_once, side.at_once_percent()),
                ]);
            }
        };
        use Figure::{GetAtOnce, GetAttempts, GetMedian, GetP99, GetP999, GetSuccess};
        use Figure::{PutAtOnce, PutAttempts, PutMedian, PutP99, PutP999, PutSuccess};
        side(&report.gets, [GetMedian, GetP99, GetP999, GetAttempts, GetSuccess, GetAtOnce]);
        side(&report.puts, [PutMedian, PutP99, PutP999, PutAttempts, PutSuccess, PutAtOnce]);
        if let Some(bytes) = report.bytes_per_operation {
            far.insert(Figure::BytesPerOperation, bytes);
            far.insert(Figure::BytesOverLeast, bytes / report.least_bytes_per_operation);
        }
        far.insert(Figure::ClientFairness, report.fairness);
        if let Some([memory, client]) = cores {
            far.extend([(Figure::MemoryCores, memory), (Figure::ClientCores, client)]);
        }
        far.retain(|_, value| value.is_finite());
        PointResult {
            bytes: self.value_bytes,
            messages: report.operations,
            seconds: self.measure_us / 1e6,
            messages_per_s: report.operations_per_s,
            bytes_per_s: report.operations_per_s * self.value_bytes as f64,
            far,
            ..PointResult::default()
        }
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
