//! Message connections over RDMA verbs.
//!
//! ```
//! use doorbell_exchange::{Config, Connector, MessageConnection, SendReceive};
//! use doorbell_verbs::soft::{self, SoftOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let protocol = SendReceive; // for another protocol, change only this line
//! let config = Config::default().window(16).max_message(1024);
//! let end = || -> Result<_, Box<dyn std::error::Error>> {
//!     let pd = soft::open(&SoftOptions::default())?.create_pd()?;
//!     Ok(protocol.endpoint(&pd, &config, None)?)
//! };
//! let (one, other) = (end()?, end()?);
//! // Programs on two machines exchange the descriptions over TCP: see `setup`.
//! let (of_one, of_other) = (protocol.describe(&one), protocol.describe(&other));
//! let (mut one, mut other) = (protocol.connect(one, &of_other)?, protocol.connect(other, &of_one)?);
//!
//! one.send(b"hello")?;
//! let message = loop {
//!     one.poll()?;
//!     if let Some(message) = other.receive()? {
//!         break message;
//!     }
//! };
//! assert_eq!(&*message, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! Every connection is a non-blocking state machine. `send` of a [`MessageConnection`] accepts a message and returns
//! its id at once. `receive` returns the next message, if one has arrived, and `poll` advances the connection.
//! [`blocking`] and [`asynchronous`] are thin adapters whose calls wait.
//!
//! The connections read no wall clock, do not sleep, start no threads and touch no socket. Each end makes an endpoint
//! description, and connects by the description of the peer. [`setup`] exchanges descriptions over TCP. [`admission`]
//! decides which peers of a TCP listener may set up a connection.
#![deny(unsafe_code)]

pub mod address;
pub mod admission;
pub mod asynchronous;
pub mod blocking;
mod connection;
mod protocol;
pub mod setup;
#[cfg(feature = "tokio")]
#[allow(unsafe_code)]
mod tokio;

pub use connection::config::{Config, MAX_BATCH, MAX_POLL_LIST, MAX_REPOST_LIST, MAX_WINDOW};
pub use connection::error::{ConnectError, ConnectionError, Misuse};
pub use connection::rc;
pub use connection::replication::Replication;
pub use connection::{Backpressure, Connector, Group, MessageConnection, MessageId, Outcome, Received, Submit};
pub use protocol::buffered_read::{self, BufferedRead};
pub use protocol::buffered_write::{self, BufferedWrite};
pub use protocol::direct_read::{self, DirectRead};
pub use protocol::direct_write::{self, DirectWrite};
pub use protocol::send_receive::{self, SendReceive};
pub use protocol::shared_write::{self, SharedWrite};
#[cfg(feature = "tokio")]
pub use tokio::{TokioLobby, TokioWaiter};

pub use doorbell_protocols as protocols;
pub use protocol::AnyConnector;
