//! Two ends that measure together.
//!
//! The client says what is to be measured; then, point by point, both make fresh connections,
//! exchange their descriptions, perform their parts, and the server tells what it saw. The server trusts nothing
//! that it is told: it accepts the parameters and each point, or says why not and ends.
//!
//! What joins the ends is a [`Peer`], and what runs their connections' tasks is [`Threads`](crate::threads::Threads).
//! [`Client`] and [`serve`] are for processes joined by TCP, where everything is a line of JSON, bounded in length
//! and time. [`Asking`] and [`answer`] are for ends of any kind: those of a [`local_pair`] may be tasks of one thread.

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

/// Why a session ended early.
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
    #[error("at {bytes} B: {error}")]
    Connection {
        /// Size of the messages.
        bytes: usize,
        /// Why.
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
        /// Which.
        number: u32,
        /// Why.
        why: String,
    },
    /// The middlebox could not be made, or broke.
    #[error("the middlebox: {0}")]
    Middlebox(#[from] BoxError),
    /// What is to be measured cannot be.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The client wants more memory than this side gives.
    #[error("the client allows {asked} B of message memory, this side has {allowed} B for it")]
    Memory {
        /// What the client allows.
        asked: usize,
        /// What this side was started with.
        allowed: usize,
    },
    /// The client may not measure here.
    #[error("the client shows {0}")]
    Token(&'static str),
    /// A thread cannot run where it is to.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The client wants a point that it has not announced.
    #[error("messages of {0} B are not among the sizes that the client announced")]
    UnknownSize(usize),
    /// The peer says something unexpected.
    #[error("the peer sent what is not expected here: {0}")]
    Unexpected(String),
    /// Hosts that were to measure at the same time did not.
    #[error("it began {0:.3} s after another host had ended, so that they measured nothing at the same time")]
    Apart(f64),
    /// The peer failed.
    #[error("the peer failed: {0}")]
    Peer(String),
    /// Both ends have something to say.
    #[error("{own}; the peer says: {peer}")]
    Both {
        /// This end.
        own: String,
        /// The other.
        peer: String,
    },
}

impl SessionError {
    fn hung_up() -> Self {
        Self::Control(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up while a point ran"))
    }
}
