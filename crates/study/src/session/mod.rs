//! Two processes that measure together, coordinated over TCP.
//!
//! The client says what is to be measured; then, point by point, both make fresh connections,
//! exchange their descriptions, run the workload, and the server tells what it saw. Everything is
//! a line of JSON, bounded in length and time. The server trusts nothing that it is told: it
//! accepts the parameters and each point, or says why not and ends.

mod client;
mod control;
mod point;
mod server;

use std::io;
use std::time::Duration;

use doorbell_exchange::setup::SetupError;
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::PostError;

use crate::parameters::ParametersError;

pub use client::Client;
#[doc(hidden)]
pub use control::judge_line;
pub use server::serve;

/// How long one side waits for the other to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

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
    /// The client wants a point that it has not announced.
    #[error("messages of {0} B are not among the sizes that the client announced")]
    UnknownSize(usize),
    /// The peer says something unexpected.
    #[error("the peer sent what is not expected here: {0}")]
    Unexpected(String),
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
