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

pub mod admission;
pub mod asynchronous;
pub mod blocking;
pub mod buffered_read;
pub mod buffered_write;
mod carrier;
mod config;
mod connection;
pub mod direct_read;
pub mod direct_write;
mod duplex;
mod engine;
mod error;
mod lent;
mod outbox;
pub mod rc;
mod ring;
pub mod send_receive;
pub mod setup;
pub mod shared_write;
mod slots;
mod split;
#[cfg(feature = "tokio")]
#[allow(unsafe_code)]
mod tokio;
mod waiting;

pub use buffered_read::BufferedRead;
pub use buffered_write::BufferedWrite;
pub use config::{Config, MAX_BATCH, MAX_POLL_LIST, MAX_REPOST_LIST, MAX_WINDOW};
pub use connection::{Backpressure, Connector, Group, MessageConnection, MessageId, Outcome, Received, Submit};
pub use direct_read::DirectRead;
pub use direct_write::DirectWrite;
pub use error::{ConnectError, ConnectionError, Misuse};
pub use send_receive::SendReceive;
pub use shared_write::SharedWrite;
#[cfg(feature = "tokio")]
pub use tokio::{TokioLobby, TokioWaiter};

pub use doorbell_protocols as protocols;
use doorbell_protocols::Protocol;

/// The connector of a protocol that the program chooses at run time. [`with_connector!`] runs generic code with the
/// connector that the enum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each variant has the name of its protocol
pub enum AnyConnector {
    SendReceive(SendReceive),
    DirectRead(DirectRead),
    DirectWrite(DirectWrite),
    BufferedWrite(BufferedWrite),
    SharedWrite(SharedWrite),
    BufferedRead(BufferedRead),
}

impl From<Protocol> for AnyConnector {
    fn from(protocol: Protocol) -> Self {
        use buffered_write::Acknowledge::{Read, Send};
        use buffered_write::Notification::{Immediate, Reverse, TailOffset};
        use direct_read::{Acknowledge as Reported, Fence};
        let read = |fence, acknowledge| Self::DirectRead(DirectRead { fence, acknowledge, ..DirectRead::default() });
        let written = |notification, acknowledge| Self::BufferedWrite(BufferedWrite { notification, acknowledge });
        match protocol {
            Protocol::SendReceive => Self::SendReceive(SendReceive),
            Protocol::DirectRead => read(Fence::Nothing, Reported::SignalByte),
            Protocol::DirectReadFenced => read(Fence::ReadCompletion, Reported::SignalByte),
            Protocol::DirectReadFencedAwaited => read(Fence::AcknowledgementCompletion, Reported::SignalByte),
            Protocol::DirectReadSend => read(Fence::Nothing, Reported::Send),
            Protocol::DirectReadFencedSend => read(Fence::ReadCompletion, Reported::Send),
            Protocol::DirectWrite => Self::DirectWrite(DirectWrite),
            Protocol::BufferedWriteImmediateSend => written(Immediate, Send),
            Protocol::BufferedWriteImmediateRead => written(Immediate, Read),
            Protocol::BufferedWriteTailSend => written(TailOffset, Send),
            Protocol::BufferedWriteTailRead => written(TailOffset, Read),
            Protocol::BufferedWriteReverseSend => written(Reverse, Send),
            Protocol::BufferedWriteReverseRead => written(Reverse, Read),
            Protocol::SharedWrite => Self::SharedWrite(SharedWrite),
            Protocol::BufferedRead => Self::BufferedRead(BufferedRead),
        }
    }
}

/// Runs code that is generic over [`Connector`]s with the connector of a [`Protocol`]. The dispatch happens once, so
/// the code of each protocol is compiled separately.
///
/// ```
/// use doorbell_exchange::protocols::Protocol;
/// use doorbell_exchange::{Connector, with_connector};
///
/// fn bytes_behind(protocol: Protocol) -> usize {
///     with_connector!(protocol, connector => connector.bytes_behind())
/// }
/// assert_eq!(bytes_behind(Protocol::DirectRead), 1);
/// ```
#[macro_export]
macro_rules! with_connector {
    ($protocol:expr, $connector:ident => $body:expr) => {
        match $crate::AnyConnector::from($protocol) {
            $crate::AnyConnector::SendReceive($connector) => $body,
            $crate::AnyConnector::DirectRead($connector) => $body,
            $crate::AnyConnector::DirectWrite($connector) => $body,
            $crate::AnyConnector::BufferedWrite($connector) => $body,
            $crate::AnyConnector::SharedWrite($connector) => $body,
            $crate::AnyConnector::BufferedRead($connector) => $body,
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_has_a_connector_of_its_own() {
        for protocol in Protocol::ALL {
            assert_eq!(with_connector!(protocol, connector => connector.protocol()), protocol);
        }
    }
}
