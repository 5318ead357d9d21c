//! Send-Receive: messages over RC SEND, into buffers that the receiver has posted.
//!
//! ```text
//! sender                                  receiver
//!   send -> id    SEND (with immediate: credits)  ->   receive -> Message
//!                 <-  ACK                               ... dropped: reposted
//!   is_done(id)   <-  SEND of 0 B with immediate: credits, every quarter of the depth
//! ```
//!
//! One message costs one SEND and one receive; a credit message is spent per quarter of the depth
//! unless data goes the other way too. Ids rise; RC completes in order, so one number, the last
//! completed id, answers every wait. The window of unacknowledged messages decides throughput;
//! several messages in one post (*doorbell batching*) save CPU on the sending side.

mod config;
mod connection;
mod credits;
mod endpoint;
mod hub;
mod pool;
mod sending;
mod shared;
#[cfg(test)]
mod tests;

pub use config::{Config, MAX_BATCH, MAX_WINDOW};
pub use connection::Connection;
pub use credits::CREDIT_RECEIVES;
pub use endpoint::Endpoint;
pub use hub::{Hub, Key};
pub use pool::{Message, Reposting};
pub use sending::{Backpressure, Outcome, Submit};
pub use shared::{SharedOptions, SharedReceives};

/// Names a message of a connection. Ids rise by one.
pub type MessageId = u64;
