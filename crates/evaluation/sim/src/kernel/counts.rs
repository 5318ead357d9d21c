//! Counters of the kernel, and busy times of nodes.

use crate::time::Ps;

/// Counters of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handled events: doorbells, packets taken by units, departures, arrivals at switches, deliveries, timers and
    /// turns.
    pub events: u64,
    /// Delivered packets.
    pub packets: u64,
    /// Turns of threads.
    pub turns: u64,
    /// Turns that took longer than the least latency between two threads. The effects of such a turn may have come too
    /// late for the turn of another thread.
    pub long_turns: u64,
    /// Length of the longest turn, in picoseconds.
    pub longest_turn_ps: u64,
    /// Frames that a switch dropped.
    pub dropped: u64,
    /// Frames marked because the queue had reached the switch's marking threshold.
    pub marked: u64,
    /// Number of pauses that switches requested from senders.
    pub pauses: u64,
    /// Sum of the pauses of all ports, in picoseconds.
    pub paused_ps: u64,
    /// Length of the longest queue in bytes: of all ports of switches to nodes, of leaves to spines, and of spines to
    /// leaves.
    pub longest_queues: [u64; 3],
}

impl Counts {
    /// Returns the length of the longest queue of a port, in bytes.
    pub fn longest_queue_bytes(&self) -> u64 {
        self.longest_queues.into_iter().max().unwrap_or_default()
    }
}

/// Busy times of the stations of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTimes {
    /// Busy time of the port.
    pub port: Ps,
    /// Busy time of the send stage that all units of the NIC share.
    pub send: Ps,
    /// Busy time of the stage at which the NIC begins to fetch payloads.
    pub gather: Ps,
    /// Busy time of the NIC with arriving packets.
    pub receive: Ps,
    /// Busy time of the busiest processing unit.
    pub unit: Ps,
    /// Busy time of PCIe with data that the NIC fetched from memory.
    pub fetch: Ps,
    /// Busy time of PCIe with data that the NIC wrote to memory.
    pub write: Ps,
}
