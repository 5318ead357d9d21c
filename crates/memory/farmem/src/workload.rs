//! Workloads of the store: the operations of each client, their times, and their results. The same code runs in
//! programs and in the simulator, which differ in their [`Waiter`](doorbell_exchange::asynchronous::Waiter).

mod driver;
pub mod history;
mod report;
mod zipf;

pub use crate::contents::{first_number, key};
pub use driver::{Tally, Witness, close, drive};
pub use report::{HostTally, Report, Side};
pub use zipf::{Random, Zipf};

use crate::layout::{self, Geometry};

/// Parameters of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Number of keys in the store. All of them exist.
    pub keys: u64,
    /// Skew of the keys: the exponent of Zipf's law. 0 means a uniform distribution.
    pub zipf: f64,
    /// Percentage of puts. The other operations are gets.
    pub write_percent: f64,
    /// Length of each value in bytes.
    pub value_bytes: usize,
    /// Number of operations that each client runs at a time.
    pub outstanding: usize,
    /// Operations per second that each client begins in an open loop, as a Poisson process. A client does not wait for
    /// earlier operations to end. `None` means a closed loop: the next operation begins `client_ns` after the previous
    /// one has ended.
    pub rate_per_client: Option<f64>,
    /// Time in a closed loop between the end of an operation and the beginning of the next one, in nanoseconds.
    pub client_ns: u64,
    /// Duration of the warm-up, whose operations are not counted, in nanoseconds.
    pub warm_up_ns: u64,
    /// Duration of the measurement after the warm-up, in nanoseconds.
    pub measure_ns: u64,
    /// Whether the client waits for running operations at the end of the measurement. Otherwise the client abandons
    /// them, and must not be used any more.
    pub drains: bool,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            keys: 1024,
            zipf: 0.99,
            write_percent: 50.0,
            value_bytes: 128,
            outstanding: 1,
            rate_per_client: None,
            client_ns: 0,
            warm_up_ns: 1_000_000,
            measure_ns: 10_000_000,
            drains: true,
        }
    }
}

/// Named mixes of gets and puts: name, percentage of puts, and description.
pub const MIXES: [(&str, f64, &str); 4] = [
    ("a", 50.0, "YCSB A: half gets, half puts"),
    ("b", 5.0, "YCSB B: 95 % gets, 5 % puts"),
    ("c", 0.0, "YCSB C: gets alone"),
    ("writes", 100.0, "puts alone"),
];

/// Returns the maximum number of clients on a machine with `cpus` processors. Each client polls in a thread of its own.
/// With two clients per processor, every client and the store's own threads run often enough for the timeouts of their
/// queue pairs. With 32 per processor, queue pairs exceed their retries.
pub fn most_clients(cpus: usize) -> usize {
    2 * cpus.max(1)
}

impl Load {
    /// Returns the sizes of a store for this number of clients. The store has spare nodes, since each write needs an
    /// additional node for a while.
    pub fn geometry(&self, clients: usize) -> Geometry {
        let spare = 64 * (clients as u64 + 1) * self.outstanding as u64 + 1024;
        let nodes = (self.keys + spare).min(u64::from(layout::MAX_NODES)) as u32;
        Geometry { nodes, keys: self.keys.min(u64::from(u32::MAX)) as u32, max_key: 8, max_value: self.value_bytes }
    }

    /// Returns the length of a node in bytes.
    pub fn node_bytes(&self) -> u64 {
        layout::node_length(8, self.value_bytes) as u64
    }
}
