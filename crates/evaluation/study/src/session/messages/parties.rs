//! Messages about the parties of shared memory.

use doorbell_farmem::ClientCounts;
use doorbell_farmem::workload::HostTally;
use doorbell_record::Buckets;
use serde::{Deserialize, Serialize};

/// Client on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Number of the client, counted from 1.
    pub number: u32,
    /// Number of the workload's host that the client belongs to. Clients of a store with the same place share a cache.
    pub place: usize,
}

/// Parties that one host acts as in a point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duties {
    /// Whether the host is the memory node.
    pub memory: bool,
    /// Whether the host is the metadata service.
    pub metadata: bool,
    /// Whether the host is the middlebox, which takes over the address of the host's device.
    pub middlebox: bool,
    /// Clients of a store, or queue pairs to bare memory, that the host runs.
    pub clients: Vec<Seat>,
}

/// Results of the clients of one host, as a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientsDone {
    pub(in crate::session) operations: Vec<u64>,
    operations_per_s: Vec<f64>,
    gets_ns: Buckets,
    puts_ns: Buckets,
    counts: ClientCounts,
    gave_up: u64,
    skipped: u64,
    absent: u64,
    wire_bytes: Option<f64>,
    /// Beginning and end of the clients' work, on the clock of the host's device.
    pub(in crate::session) span_ns: (u64, u64),
}

impl From<HostTally> for ClientsDone {
    fn from(tally: HostTally) -> Self {
        let HostTally {
            operations,
            operations_per_s,
            gets_ns,
            puts_ns,
            counts,
            gave_up,
            skipped,
            absent,
            wire_bytes,
            span_ns,
        } = tally;
        let (gets_ns, puts_ns) = (Buckets::of(&gets_ns), Buckets::of(&puts_ns));
        Self { operations, operations_per_s, gets_ns, puts_ns, counts, gave_up, skipped, absent, wire_bytes, span_ns }
    }
}

impl From<&ClientsDone> for HostTally {
    fn from(done: &ClientsDone) -> Self {
        Self {
            operations: done.operations.clone(),
            operations_per_s: done.operations_per_s.clone(),
            gets_ns: done.gets_ns.to_histogram(),
            puts_ns: done.puts_ns.to_histogram(),
            counts: done.counts,
            gave_up: done.gave_up,
            skipped: done.skipped,
            absent: done.absent,
            wire_bytes: done.wire_bytes,
            span_ns: done.span_ns,
        }
    }
}
