//! A key-value store on memory servers whose CPU takes no part.
//!
//! A [`MemoryNode`] is a region and its keys; none of its code runs while clients work. A [`Client`] that knows the
//! newest node of a key reads the value with one READ. To change the value, the client WRITEs a new node and links it
//! to the newest node with a CAS. A [`Metadata`] service hands out nodes, knows the first node of each key, and frees
//! replaced nodes for new values. Clients request nodes from the service in advance, so gets and puts do not wait for
//! the service.
//!
//! The memory node, the client and the metadata service are non-blocking state machines over verbs. The same code runs
//! on the software RNIC, on the machine's RNICs and in the simulator. [`assembly`] connects them: the program carries
//! its messages between the parties of a store.
//!
//! # Nodes
//!
//! A node consists of a word, its place and version, lengths, a CRC-32, the key and the value. A linked node never
//! changes, except for its word. The word of the last node has this node's own place and version; the word of any other
//! node has those of the next node. A place gets a new version each time it is used. Versions never wrap: a place that
//! has used all 2^34 versions is not used again. So a CAS on a node that was recycled fails, and a client that reads
//! such a node notices. The client compares place, version and key, and the CRC covers all of them and the value. A CRC
//! of 32 bits misses one damaged node in 2^32.
//!
//! # Guarantees
//!
//! Each key is a linearizable register that may be absent. A get takes effect when it reads the word of the newest
//! node. A put, a delete, and an insert after a tombstone take effect when their CAS succeeds. An insert of a new key
//! takes effect when the metadata service adds the key. A value is never torn. An operation that failed may have taken
//! effect; [`StoreError`] lists the errors for which it has not.
#![forbid(unsafe_code)]

pub mod assembly;
mod cache;
mod calls;
mod client;
mod client_core;
mod combining;
mod contents;
mod counts;
mod error;
mod lane;
mod layout;
mod lock_messages;
mod memory;
mod metadata;
mod methods;
mod nodes;
mod operation;
mod replication;
mod requests;
mod rpc;
mod server;
mod slots;
mod steering;
mod strategy;
mod worker;
pub mod workload;

pub use cache::HostCache;
pub use client::{Client, ClientEnd, ClientOptions, MAX_OUTSTANDING};
pub use counts::{Attempts, ClientCounts};
pub use error::{OpenError, StoreError};
pub use lane::VerbCounts;
pub use layout::{Geometry, MAX_KEY, MAX_NODES, MAX_VALUE, MAX_VERSION, NodeVersion, Word};
pub use memory::{ClientDescription, MemoryDescription, MemoryNode, NodeView};
pub use metadata::{Metadata, MetadataEnd, MetadataOptions, NodeCounts};
pub use methods::Strategy;
pub use operation::{Outcome, StoreOperation, Ticket};
pub use steering::{BOX, StoreControl, StoreLayout};
