//! Configuration of a box, and descriptions of its node, regions and clients.

use std::net::IpAddr;

use doorbell_verbs_core::Access;
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};

/// Configuration of a box.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The address of the box, to which clients and the memory node send their packets.
    pub address: IpAddr,
    /// Limits of the memory that the box uses.
    pub limits: Limits,
    /// Seed for queue pair numbers and the first PSN. A restarted box needs another seed. Otherwise packets for the box
    /// before the restart could match a queue pair of the new box.
    pub seed: u64,
}

impl Config {
    /// Returns the configuration of a box at this address, with default limits and seed 0.
    pub fn at(address: IpAddr) -> Self {
        Self { address, limits: Limits::default(), seed: 0 }
    }
}

/// Limits of the memory that a box uses. Packets from the network cannot make the box exceed these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of clients at one time, at most 32,768.
    pub clients: usize,
    /// Maximum number of regions of the node.
    pub regions: usize,
    /// Maximum length of a WRITE in bytes. The box holds each WRITE until it is complete.
    pub message_bytes: u32,
    /// Maximum number of a client's requests that wait or are outstanding at the node.
    pub client_requests: usize,
    /// Maximum number of packet bytes that the box holds for one client.
    pub client_bytes: usize,
    /// Maximum number of packet bytes that the box holds for all clients together.
    pub held_bytes: usize,
    /// Number of a store's keys whose newest node the box remembers, at most 16,777,216. The box remembers three times
    /// as many nodes of the store.
    pub keys: usize,
    /// Number of words whose value the box remembers, in regions that only the box accesses.
    pub words: usize,
    /// Maximum number of bytes in flight to the node, and of READ responses in flight from the node. A packet counts
    /// with the bytes that the kernel charges for a datagram in a socket's receive buffer.
    pub window_bytes: u64,
    /// Time after which the box disconnects a client that leaves a WRITE incomplete.
    pub incomplete_ns: u64,
}

impl Limits {
    /// Largest allowed value of `clients`. The client's index must fit into a part of the queue pair number.
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

/// The memory node's end of the queue pair that all clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEnd {
    /// The node's address.
    pub address: IpAddr,
    /// The node's queue pair number.
    pub qpn: Qpn,
    /// The path MTU of this queue pair and of all clients' queue pairs. All must be equal, since the box forwards each
    /// message in packets of unchanged size.
    pub path_mtu: PathMtu,
    /// Maximum number of outstanding READs and atomics that the node accepts on this queue pair (its
    /// `max_dest_rd_atomic`).
    pub max_rd_atomic: u8,
    /// Time without an acknowledgement after which the box retransmits. The time doubles with each retransmission, up
    /// to 64 times this value.
    pub timeout_ns: u64,
    /// Maximum number of retransmissions in a row. After them, the box considers the node failed.
    pub retries: u8,
}

impl NodeEnd {
    /// Returns a node at this address with queue pair 0, up to 16 READs and atomics, a timeout of 1 ms and 12 retries.
    pub fn at(address: IpAddr, path_mtu: PathMtu) -> Self {
        Self { address, qpn: Qpn::new(0), path_mtu, max_rd_atomic: 16, timeout_ns: 1_000_000, retries: 12 }
    }
}

/// A client's end of its queue pair with the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEnd {
    /// The client's address.
    pub address: IpAddr,
    /// The client's queue pair number.
    pub qpn: Qpn,
    /// The PSN of the client's first request.
    pub first_psn: Psn,
    /// The client's path MTU, which must equal the node's path MTU.
    pub path_mtu: PathMtu,
}

/// A memory region of the node that clients access through the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The remote key that clients use for the region.
    pub rkey: RKey,
    /// The remote key that the node uses for the region.
    pub node_rkey: RKey,
    /// Address of the first byte, the same for clients and node.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access rights of clients.
    pub access: Access,
    /// Whether all accesses to the region pass the box, including those of the node itself. Only then the box may turn
    /// a CAS into a WRITE.
    pub exclusive: bool,
}

/// Errors of attaching a node, adding a region or connecting a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The box has the maximum number of clients, or of relayed connections.
    #[error("the box has no room for another client (maximum {0})")]
    TooManyClients(usize),
    /// The box has the maximum number of regions.
    #[error("the box has no room for another region (maximum {0})")]
    TooManyRegions(usize),
    /// Another region has the same remote key.
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
    /// No node is attached, or the queue pair with the node has failed.
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
    /// A client with the same address and queue pair is already connected.
    #[error("queue pair {:#x} of this client is connected already", .0.get())]
    ClientKnown(Qpn),
    /// The node accepts no READs and atomics.
    #[error("the memory node must take at least one READ or atomic at a time (max_dest_rd_atomic is 0)")]
    NoReads,
}
