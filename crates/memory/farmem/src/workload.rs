//! Workloads of the store: which operations a client runs, when, and what came out. The same code runs wherever
//! there are clients, and waits as its [`Waiter`](doorbell_exchange::asynchronous::Waiter) does.

mod driver;
pub mod history;
mod report;
mod zipf;

pub use driver::{Tally, Witness, close, drive};
pub use report::{HostTally, Report, Side};
pub use zipf::{Random, Zipf};

use crate::layout::{self, Geometry, NodeVersion};

/// Load of the clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Keys of the store: all exist.
    pub keys: u64,
    /// Skew of the keys: the exponent of Zipf's law, 0 for a uniform distribution.
    pub zipf: f64,
    /// Per cent of operations that are puts; the others are gets.
    pub write_percent: f64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Operations that each client has running at a time.
    pub outstanding: usize,
    /// Operations per second that each client begins, whether the last ones have ended or not: they arrive as a Poisson
    /// process does. `None`: the next one
    /// begins when one has ended, after `client_ns`.
    pub rate_per_client: Option<f64>,
    /// Time of a client between the end of an operation and the beginning of the next one, in nanoseconds.
    pub client_ns: u64,
    /// Time at the start in which operations are not counted, in nanoseconds.
    pub warm_up_ns: u64,
    /// Time after that in which operations are counted, in nanoseconds.
    pub measure_ns: u64,
    /// The client waits at the end of that time for running operations. Otherwise it abandons them, and is of no use
    /// any more.
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

/// A mix of gets and puts that has a name.
pub const MIXES: [(&str, f64, &str); 4] = [
    ("a", 50.0, "YCSB A: half gets, half puts"),
    ("b", 5.0, "YCSB B: 95 % gets, 5 % puts"),
    ("c", 0.0, "YCSB C: gets alone"),
    ("writes", 100.0, "puts alone"),
];

impl Load {
    /// Returns the sizes of a store for this number of clients, with spare nodes, since each write needs one for a
    /// while.
    pub fn geometry(&self, clients: usize) -> Geometry {
        let spare = 64 * (clients as u64 + 1) * self.outstanding as u64 + 1024;
        let nodes = (self.keys + spare).min(u64::from(layout::MAX_NODES)) as u32;
        Geometry { nodes, keys: self.keys.min(u64::from(u32::MAX)) as u32, max_key: 8, max_value: self.value_bytes }
    }

    /// Bytes of a node.
    pub fn node_bytes(&self) -> u64 {
        layout::node_length(8, self.value_bytes) as u64
    }
}

/// Returns key number `rank` of a workload.
pub fn key(rank: u64) -> [u8; 8] {
    rank.to_le_bytes()
}

/// Returns the number that the value of key `rank` repeats before its first write.
pub fn first_number(rank: u64) -> u64 {
    number_of(u64::MAX, rank)
}

/// Returns the number of a value. It identifies writer and operation, in each word of the value.
fn number_of(writer: u64, operation: u64) -> u64 {
    writer.rotate_left(40) ^ operation
}

/// Writes the value that key `rank` has before its first write.
pub(crate) fn first_value(rank: u64, out: &mut Vec<u8>, bytes: usize) {
    value(u64::MAX, rank, out, bytes);
}

/// Writes the value of a client's operation.
pub(crate) fn value(writer: u64, operation: u64, out: &mut Vec<u8>, bytes: usize) {
    out.clear();
    let word = number_of(writer, operation).to_le_bytes();
    out.extend(word.iter().cycle().take(bytes));
}

/// Returns the place of the node of key `rank` in a store that was filled before its clients came.
pub(crate) fn first_place(rank: u64) -> NodeVersion {
    NodeVersion::new(rank as u32, 1)
}
