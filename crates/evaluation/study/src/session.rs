//! Two ends that measure together.
//!
//! The client sends the parameters. For each point, both ends then make new connections, exchange the descriptions of
//! these connections, and perform their parts. At the end of a point, the server sends its report. The server does not
//! trust the client, so it validates the parameters and each point. If the server rejects a request, it sends the
//! reason and ends the session.
//!
//! A [`Peer`] carries messages between the ends, and [`Threads`](crate::threads::Threads) run the tasks of their
//! connections. [`Client`] and [`serve`] are for two processes joined by TCP. Over TCP, each message is a line of JSON
//! with a maximum length and a deadline. [`Asking`] and [`answer`] support ends of any kind. For example, the ends of a
//! [`local_pair`] may be tasks of one thread.

mod calling;
mod client;
mod hosts;
mod introduction;
mod local;
mod messages;
mod opening;
mod parties;
mod peer;
mod point;
mod report;
mod result;
mod server;
mod tcp;
mod work;

use std::io;
use std::net::IpAddr;

use doorbell_exchange::setup::SetupError;
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_farmem::assembly::AssemblyError;
use doorbell_verbs::{Device, DeviceAttributes, PortError, PostError};

use crate::far::BoxError;
use doorbell_machine::pinning::PinError;
use doorbell_record::ParametersError;

pub use calling::{Call, CallOpening, Caller, call};
pub use client::{Asking, Client};
pub use hosts::{Dealt, HostError, measure_on};
pub use introduction::{Introduced, Introduction, Terms, Token};
pub use local::{LocalPeer, local_pair};
#[doc(hidden)]
pub use messages::judge_line;
pub use messages::{ClientsDone, Duties, FromServer, Seat, ToServer};
pub use opening::SessionOpening;
pub use parties::{Parties, measure_parties};
pub use peer::{Patience, Peer, Presence};
pub use point::{Point, Prepared};
pub use report::Report;
pub use server::{AdmittedClient, answer, refuse, serve};
use tcp::TcpPeer;
pub use work::{Done, End, Work, Worked};

/// Reason why a session ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The exchange of greetings or descriptions failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The connections of the two ends could not be joined.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection broke.
    #[error("with messages of {bytes} B: {error}")]
    Connection {
        /// Size of the messages.
        bytes: usize,
        /// Reason of the failure.
        error: ConnectionError,
    },
    /// The device of this end failed, which ended its connections.
    #[error(
        "the device {device} at {address} has failed (asynchronous event DEVICE_FATAL), which ended its connections"
    )]
    DeviceFailed {
        /// Name of the device.
        device: String,
        /// Address of the device.
        address: IpAddr,
    },
    /// Shared receives could not be posted again.
    #[error("shared receives could not be posted again: {0}")]
    Repost(#[source] PostError),
    /// A verbs object could not be made.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// The control connection broke.
    #[error("the peer is gone: {0}")]
    Control(#[source] io::Error),
    /// A memory node, metadata service or client of a store could not be made, or rejected a message of another party.
    #[error("the store: {0}")]
    Store(#[from] AssemblyError),
    /// A client of a store, or a queue pair to memory, failed.
    #[error("client {number}: {why}")]
    StoreClient {
        /// Number of the client.
        number: u32,
        /// Reason of the failure.
        why: String,
    },
    /// The middlebox could not be made, or failed later.
    #[error("the middlebox: {0}")]
    Middlebox(#[from] BoxError),
    /// The parameters are invalid.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The client's parameters allow more message memory than this end provides.
    #[error("the client requests {asked} B of message memory, but this side has {allowed} B: reduce --memory")]
    Memory {
        /// Bytes in the client's parameters.
        asked: usize,
        /// Maximum bytes that this end provides.
        allowed: usize,
    },
    /// The token of the client is missing or wrong.
    #[error("the client shows {0}")]
    Token(&'static str),
    /// A thread cannot be pinned to its CPU.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The client requested a point with a message size that its parameters do not contain.
    #[error("messages of {0} B are not among the sizes that the client announced")]
    UnknownSize(usize),
    /// The peer sent an unexpected message.
    #[error("the peer sent an unexpected message: {0}")]
    Unexpected(String),
    /// A host began to measure after another host had ended.
    #[error("this host began {0:.3} s after another host had ended, so the two hosts have no common measured time")]
    Apart(f64),
    /// The peer failed.
    #[error("the peer failed: {0}")]
    Peer(String),
    /// Both ends failed.
    #[error("{own}; the peer says: {peer}")]
    Both {
        /// Reason of this end.
        own: String,
        /// Reason of the other end.
        peer: String,
    },
}

impl SessionError {
    /// Returns the failure of the device as the reason, if the device of this end has failed. The completions show only
    /// that the requests were flushed.
    fn on(self, device: &Device) -> Self {
        if let Err(doorbell_verbs::Error::Port(PortError::DeviceFatal)) = device.port_state() {
            let DeviceAttributes { name, address, .. } = device.attributes();
            return Self::DeviceFailed { device: name, address };
        }
        self
    }

    fn hung_up() -> Self {
        Self::Control(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up while a point ran"))
    }
}
