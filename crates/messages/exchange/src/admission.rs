//! Admission of visitors to a TCP listener. The listener serves a visitor only after the visitor has sent a valid
//! opening.
//!
//! A visitor is a peer that has connected and has not completed its opening yet. [`Admission`] decides without IO which
//! visitor is handled next, and which one is evicted; [`Lobby`] does the IO. An [`Opening`] checks the first bytes of
//! one visitor: a token, or the beginning of the service's protocol if the service has no token.
//!
//! A visitor cannot delay other visitors. Arrivals and visitors take turns, one at a time. Reads from a visitor and
//! writes to a visitor do not block. The input of a visitor and its total time are bounded, even if the visitor keeps
//! sending bytes.

mod clients;
mod lobby;
mod openings;

use std::io;

pub use clients::{Client, Clients, Note, Notes};
pub use doorbell_admission::{Admission, Limits, Number, Progress};
pub use lobby::{Event, Lobby, Step, Why};
pub use openings::{Hello, Line, LineError};

/// Result of checking the next bytes of an opening.
#[derive(Debug)]
pub enum Verdict<T, R> {
    /// The opening needs more bytes.
    Continue,
    /// The visitor has completed a step of its opening, and the listener sends these bytes to the visitor.
    Reply(Vec<u8>),
    /// The visitor has completed its opening, and the listener will serve the visitor.
    Admit(T),
    /// The listener sends the bytes of `reply` to the visitor, and does not serve the visitor.
    Dismiss {
        /// Last bytes that the listener sends to the visitor.
        reply: Vec<u8>,
        /// Reason for which the visitor is dismissed.
        why: Option<R>,
    },
}

/// Parser of the bytes that a visitor must send before the listener serves it. Each visitor has its own copy of the
/// parser.
pub trait Opening: Clone {
    /// Contents of a completed opening.
    type Admitted;
    /// Reason for which an opening dismisses a visitor.
    type Refusal;

    /// Checks the next bytes of `peer`. Returns the number of bytes that belong to the opening. The protocol after the
    /// opening reads the remaining bytes. With [`Verdict::Continue`], all bytes belong to the opening.
    ///
    /// An implementation must bound the number of bytes that it stores.
    fn hear(&mut self, peer: &str, bytes: &[u8]) -> (usize, Verdict<Self::Admitted, Self::Refusal>);

    /// Returns the reason for which a peer is not admitted after its connection has ended.
    ///
    /// # Errors
    ///
    /// The opening has no reason other than `error`, which is the default.
    fn ended(&self, _peer: &str, error: io::Error) -> Result<Self::Refusal, io::Error> {
        Err(error)
    }
}
