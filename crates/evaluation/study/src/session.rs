//! Two ends that measure together.
//!
//! The client sends the parameters. Then, point by point, both ends make fresh connections, exchange their
//! descriptions and perform their parts, and the server sends its report. The server does not trust the client: it
//! accepts or rejects the parameters and each point. A rejection has a reason and ends the session.
//!
//! A [`Peer`] joins the ends, and [`Threads`](crate::threads::Threads) run the tasks of their connections. [`Client`]
//! and [`serve`] are for processes joined by TCP. There each message is a line of JSON, bounded in length and time.
//! [`Asking`] and [`answer`] are for ends of any kind: those of a [`local_pair`] may be tasks of one thread.

mod calling;
mod client;
mod hosts;
mod introduction;
mod local;
mod opening;
mod part;
mod parties;
mod peer;
mod point;
mod report;
mod result;
mod server;
mod tcp;

use std::io;

use doorbell_exchange::setup::SetupError;
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_farmem::OpenError;
use doorbell_verbs::PostError;

use crate::far::BoxError;
use crate::parameters::ParametersError;
use crate::pinning::PinError;

pub use calling::{Call, CallOpening, Caller, call};
pub use client::{Asking, Client};
pub use hosts::{Dealt, HostError, measure_on};
pub use introduction::{Introduced, Introduction, Terms, Token, TokenError};
pub use local::{LocalPeer, local_pair};
pub use opening::SessionOpening;
pub use parties::{ClientsDone, Duties, End, Ends, Made, Parties, Seat, measure_parties};
pub use peer::{FromServer, Patience, Peer, Presence, ToServer};
pub use report::Report;
pub use server::{AdmittedClient, answer, refuse, serve};
pub use tcp::TcpPeer;
#[doc(hidden)]
pub use tcp::judge_line;

/// A reason for which a session ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Set-up failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The ends do not connect.
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
    /// Shared receives could not be posted again.
    #[error("shared receives could not be posted again: {0}")]
    Repost(#[source] PostError),
    /// A verbs object could not be made.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// The control connection broke.
    #[error("the peer is gone: {0}")]
    Control(#[source] io::Error),
    /// A part of a store could not be made.
    #[error("the store: {0}")]
    Store(#[from] OpenError),
    /// A client of a store, or a queue pair to memory, failed.
    #[error("client {number}: {why}")]
    StoreClient {
        /// Number of the client.
        number: u32,
        /// Reason of the failure.
        why: String,
    },
    /// The middlebox could not be made, or broke.
    #[error("the middlebox: {0}")]
    Middlebox(#[from] BoxError),
    /// The parameters are invalid.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The client wants more memory than this end allows.
    #[error("the client allows {asked} B of message memory, this side has {allowed} B for it")]
    Memory {
        /// Bytes in the client's parameters.
        asked: usize,
        /// Bytes that this end allows.
        allowed: usize,
    },
    /// The token of the client is missing or wrong.
    #[error("the client shows {0}")]
    Token(&'static str),
    /// A thread cannot be pinned to its CPU.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The client wants a point with a size that it has not announced.
    #[error("messages of {0} B are not among the sizes that the client announced")]
    UnknownSize(usize),
    /// The peer sent an unexpected message.
    #[error("the peer sent what is not expected here: {0}")]
    Unexpected(String),
    /// Hosts of one point did not measure at the same time.
    #[error("it began {0:.3} s after another host had ended, so that they measured nothing at the same time")]
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
    fn hung_up() -> Self {
        Self::Control(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up while a point ran"))
    }
}
