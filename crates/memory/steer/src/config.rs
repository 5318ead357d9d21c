//! Configuration of a box, and descriptions of its node, regions and clients.

use std::net::IpAddr;

use doorbell_verbs_core::Access;
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};

/// Configuration of a box.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The address that clients and node use for the box.
    pub address: IpAddr,
    /// Limits of the box's memory.
    pub limits: Limits,
    /// Seed of queue pair numbers and the first PSN. A restarted box gets another seed, so that packets for its
    /// predecessor match no queue pair.
    pub seed: u64,
}

impl Config {
    /// Returns the configuration of a box at this address, with the default limits and seed 0.
    pub fn at(address: IpAddr) -> Self {
        Self { address, limits: Limits::default(), seed: 0 }
    }
}

/// Limits of a box's memory, which no packet from the network can exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at one time, at most 32,768.
    pub clients: usize,
    /// Regions of the node.
    pub regions: usize,
    /// Bytes of the longest WRITE: the box holds a message until it is complete.
    pub message_bytes: u32,
    /// Requests of one client that wait or are in flight.
    pub client_requests: usize,
    /// Bytes of packets that the box holds for one client.
    pub client_bytes: usize,
    /// Bytes of packets that the box holds for all clients.
    pub held_bytes: usize,
    /// Keys whose newest node the box remembers, and three times as many nodes; 16,777,216 at most.
    pub keys: usize,
    /// Words whose value the box remembers, in regions that only the box accesses.
    pub words: usize,
    /// Bytes in flight to the node, and of READ responses from it, counted as the kernel counts datagrams in a
    /// socket's receive buffer.
    pub window_bytes: u64,
    /// Time after which a client that leaves a message incomplete loses its connection.
    pub incomplete_ns: u64,
}

impl Limits {
    /// Maximum number of clients: their index in the table is a part of their queue pair numbers.
    pub const MOST_CLIENTS: usize = 1 << 15;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 1024,
            regions: 64,
            message_bytes: 1 << 18,
            client_requests: 256,
            client_bytes: 1 << 20,
            held_bytes: 64 << 20,
            keys: 4096,
            words: 16_384,
            window_bytes: 53_248,
            incomplete_ns: 10_000_000_000,
        }
    }
}

/// The memory node's end of the shared queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEnd {
    /// The node's address.
    pub address: IpAddr,
    /// The node's queue pair.
    pub qpn: Qpn,
    /// The path MTU of this queue pair and of all clients: a message has the same packets on both sides.
    pub path_mtu: PathMtu,
    /// READs and atomics that the node accepts at one time on this queue pair (its `max_dest_rd_atomic`).
    pub max_rd_atomic: u8,
    /// Time to wait for an acknowledgement before a retransmission; doubles up to 64 times that.
    pub timeout_ns: u64,
    /// Number of retransmissions in a row before the box gives the node up.
    pub retries: u8,
}

impl NodeEnd {
    /// Returns a node at this address, with queue pair 0, 16 READs and atomics, 1 ms and 12 retries.
    pub fn at(address: IpAddr, path_mtu: PathMtu) -> Self {
        Self { address, qpn: Qpn::new(0), path_mtu, max_rd_atomic: 16, timeout_ns: 1_000_000, retries: 12 }
    }
}

/// A client's end of its queue pair with the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEnd {
    /// The client's address.
    pub address: IpAddr,
    /// The client's queue pair.
    pub qpn: Qpn,
    /// The PSN of its first request.
    pub first_psn: Psn,
    /// Its path MTU, the same as the node's.
    pub path_mtu: PathMtu,
}

/// A memory region of the node, as clients reach it through the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The key that clients use.
    pub rkey: RKey,
    /// The key that the node uses for the region.
    pub node_rkey: RKey,
    /// Address of the first byte, for clients and node alike.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access rights of clients.
    pub access: Access,
    /// Whether every access to the region passes this box, also the node's own. Only then a CAS may become a WRITE.
    pub exclusive: bool,
}

/// Errors of adding a node, a region or a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The table of clients is full.
    #[error("the box has no room for another client (maximum {0})")]
    TooManyClients(usize),
    /// The table of regions is full.
    #[error("the box has no room for another region (maximum {0})")]
    TooManyRegions(usize),
    /// Another region has this key.
    #[error("another region of the box has the key {:#x}", .0.get())]
    RegionKnown(RKey),
    /// The region ends beyond the address space.
    #[error("a region of {length} bytes at {address:#x} ends beyond the address space")]
    RegionBounds {
        /// The requested start address.
        address: u64,
        /// The requested length.
        length: u64,
    },
    /// No node is attached, or the box has given the node up.
    #[error("the box has no queue pair with a memory node: attach one first")]
    NoNode,
    /// The path MTUs of client and node differ.
    #[error("the client's path MTU is {} bytes, the memory node's {} bytes: both must be equal", .client.bytes(), .node.bytes())]
    PathMtu {
        /// The path MTU of the client.
        client: PathMtu,
        /// The path MTU of the node.
        node: PathMtu,
    },
    /// A client with this address and queue pair is already connected.
    #[error("queue pair {:#x} of this client is connected already", .0.get())]
    ClientKnown(Qpn),
    /// The node accepts no READs and atomics.
    #[error("the memory node must take at least one READ or atomic at a time (max_dest_rd_atomic is 0)")]
    NoReads,
}
