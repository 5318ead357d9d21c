//! A key-value store on memory servers whose CPU takes no part.
//!
//! A [`MemoryNode`] is a region and its keys; none of its code runs while clients work. A [`Client`] reads a key's
//! value by one READ if it knows the newest node. It changes the value by a WRITE of a new node and a CAS on the one
//! before. A [`Metadata`] service hands out nodes, knows the first node of each key, and recycles nodes. Clients ask
//! it in advance, so it is not on the path of gets and puts.
//!
//! All three are non-blocking state machines over verbs: the same code runs on the software RNIC, on the machine's
//! RNICs and in the simulator. Descriptions that the ends need of each other go in and out as values, as with
//! connections of `doorbell-exchange`; how they travel is up to the program.
//!
//! # Nodes
//!
//! A node is a word, its place and version, lengths, a CRC-32, the key and the value. A linked node never changes,
//! except for its word. The word states that no node follows (with the node's own place and version), or it has the
//! place and version of the next node. A place has another version each time it is used, which never wraps: a place
//! that had all 2^34 is not used any more. So a CAS on a recycled node fails, and a client that reads a recycled node
//! notices. The client compares place, version and key, and the CRC covers all of them and the value. A CRC of 32
//! bits misses one damaged node in 2^32.
//!
//! # Guarantees
//!
//! Each key is a linearizable register that may be absent. A get takes effect when it reads the word of the newest
//! node. A put, a delete, and an insert after a tombstone take effect when their CAS succeeds; an insert of a new key
//! takes effect when the metadata service enters it. A value is never torn. An operation that failed on the way may
//! have taken effect; [`StoreError`] lists the errors for which it has not.
#![forbid(unsafe_code)]

mod cache;
mod calls;
mod client;
mod combining;
mod counts;
mod error;
mod lane;
mod layout;
mod lock_messages;
mod memory;
mod metadata;
mod nodes;
mod replication;
mod requests;
mod rpc;
mod server;
mod steering;
mod strategy;
mod worker;
pub mod workload;

pub use cache::HostCache;
pub use client::{Client, ClientEnd, ClientOptions, MAX_OUTSTANDING, Outcome, StoreOperation, Ticket};
pub use counts::{Attempts, ClientCounts};
pub use error::{OpenError, StoreError};
pub use lane::VerbCounts;
pub use layout::{Geometry, MAX_KEY, MAX_NODES, MAX_VALUE, MAX_VERSION, NodeVersion, Word};
pub use memory::{ClientDescription, MemoryDescription, MemoryNode, NodeView};
pub use metadata::{Metadata, MetadataEnd, MetadataOptions, NodeCounts};
pub use steering::{BOX, StoreControl, StoreLayout};
pub use strategy::Strategy;
