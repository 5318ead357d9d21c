//! Message connections over RDMA verbs.
//!
//! Every connection is a non-blocking state machine: a [`MessageConnection`] sends with
//! `send`, which returns an id at once, and hands out messages with `receive`; `poll` moves it
//! along. [`blocking`] and [`asynchronous`] are thin adapters for those who want to wait.
//!
//! Nothing here reads a clock, sleeps, starts threads or touches a socket: set-up takes the
//! peer's endpoint description in and gives one's own out. Carrying them over TCP is the business
//! of [`setup`].
#![deny(unsafe_code)]

pub mod asynchronous;
pub mod blocking;
pub mod buffered_read;
pub mod buffered_write;
mod config;
mod connection;
pub mod direct_read;
pub mod direct_write;
mod duplex;
mod error;
mod line;
mod outbox;
pub mod rc;
mod ring;
pub mod send_receive;
pub mod setup;
pub mod shared_write;
mod sleep;
mod slots;

pub use buffered_read::BufferedRead;
pub use buffered_write::BufferedWrite;
pub use config::{Config, MAX_BATCH, MAX_POLL_LIST, MAX_REPOST_LIST, MAX_WINDOW};
pub use connection::{
    Backpressure, MessageConnection, MessageId, Outcome, Properties, Protocol, Received, Side, Submit, ZeroCopy,
};
pub use direct_read::DirectRead;
pub use direct_write::DirectWrite;
pub use error::{ConnectError, ConnectionError, Misuse};
pub use send_receive::SendReceive;
pub use shared_write::SharedWrite;
