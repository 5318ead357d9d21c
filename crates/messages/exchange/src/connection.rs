//! Connections of all protocols: their traits, the engine, memory for messages, and waiting.
//!
//! No module of this folder names a protocol. The folder `protocol` has one module for each protocol.

pub(crate) mod carrier;
pub(crate) mod config;
pub(crate) mod duplex;
pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod lent;
pub(crate) mod outbox;
pub mod rc;
pub(crate) mod receives;
pub(crate) mod replication;
pub(crate) mod ring;
pub(crate) mod slots;
pub(crate) mod split;
pub(crate) mod traits;
pub(crate) mod waiting;

pub use traits::{Backpressure, Connector, Group, MessageConnection, MessageId, Outcome, Received, Submit};
