//! Messages of a session, and the answers to requests.
//!
//! Two processes, a coordinator with hosts, and a coordinator with the parties of shared memory use the same messages.
//! A request and its answer are defined once: a function of the answer returns the content of the expected message.

mod parties;

use doorbell_farmem::assembly::Message;
use doorbell_verbs::Device;
use serde::{Deserialize, Serialize};

use super::SessionError;
use super::introduction::{Introduced, Introduction};
use super::report::{Performed, Report};
use super::tcp::parse;
use crate::one_sided::RemoteMemory;
use doorbell_record::{Parameters, PointResult};

pub use parties::{ClientsDone, Duties, Seat};

/// Maximum time from the request to start a point until the start, in nanoseconds.
const LONGEST_WAIT_NS: u64 = 1_000_000_000;

/// Messages from the asking end, or from a coordinator, to the answering end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// Introduction of the asking end. The asking end sends this message first if it wants an introduction in return or
    /// must show a token.
    Introduce(Box<Introduction>),
    /// Parameters of the session.
    Parameters(Box<Parameters>),
    /// Request to make the connections of the next point.
    Point {
        /// Size of the messages.
        bytes: usize,
        /// Number of connections of the answering part. `None` means all connections.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<usize>,
    },
    /// Request to make the connections of the next point and to perform the asking part, in a session of many hosts.
    Ask {
        /// Size of the messages.
        bytes: usize,
        /// Number of connections.
        connections: usize,
        /// Numbers of these connections among those of all hosts. Empty means 0, 1, and so on.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        numbers: Vec<usize>,
    },
    /// Request for the time of the device's clock.
    Clock,
    /// Request to start the asking part at the instant `start_ns`.
    Go {
        /// For one-sided operations, one region for each connection.
        memory: Vec<RemoteMemory>,
        /// Start time on the clock of the message receiver's device.
        start_ns: u64,
    },
    /// Request to act as these parties of a point about shared memory.
    Be(Box<Duties>),
    /// Messages for the parties of the receiver.
    Carry(Vec<Message>),
    /// Report that all one-sided operations are complete, or that all unacknowledged messages were sent. In a point
    /// about shared memory, the coordinator sends this message when all clients have ended.
    Done {
        /// Number of messages of each connection.
        messages: Vec<u64>,
    },
    /// End of the session.
    End,
}

/// Messages from the answering end to the asking end or to a coordinator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromServer {
    /// Introduction of the answering end.
    Introduced(Box<Introduced>),
    /// Acceptance of the parameters or of the point.
    Accepted,
    /// Permission to start the point. Receives are posted, or memory is available for one-sided operations.
    Ready {
        /// For one-sided operations, one region for each connection.
        memory: Vec<RemoteMemory>,
    },
    /// Report of the answering end after a point.
    Report(Box<Report>),
    /// Time of the device's clock.
    Clock {
        /// Time in nanoseconds.
        now_ns: u64,
    },
    /// Report of a host that performed the asking part, after a point.
    Performed(Box<Performed>),
    /// Answer to [`Be`](ToServer::Be) and to [`Carry`](ToServer::Carry).
    Carried {
        /// Messages from the parties of the sender.
        messages: Vec<Message>,
        /// Whether all clients of the sender are connected.
        are_ready: bool,
    },
    /// Results of the clients of a store.
    Stored(Box<ClientsDone>),
    /// Result of the clients of bare memory.
    Asked(Box<PointResult>),
    /// Reason of a failure.
    Failed(String),
}

impl ToServer {
    /// Returns the error about this message, which arrived instead of the expected message.
    pub(super) fn instead_of(self, expected: &str) -> SessionError {
        SessionError::Unexpected(format!("{self:?} instead of {expected}"))
    }

    /// Returns the memory and the start time of a [`Go`](Self::Go). Rejects a start that is too far in the future.
    pub(super) fn go(self, device: &Device) -> Result<(Vec<RemoteMemory>, u64), SessionError> {
        let Self::Go { memory, start_ns } = self else { return Err(self.instead_of("go")) };
        match start_ns.saturating_sub(device.now_ns()) {
            0..=LONGEST_WAIT_NS => Ok((memory, start_ns)),
            ahead_ns => {
                Err(SessionError::Unexpected(format!("a start in {ahead_ns} ns: must be at most {LONGEST_WAIT_NS} ns")))
            }
        }
    }

    /// Returns the numbers of messages of a [`Done`](Self::Done) about `connections` connections.
    pub(super) fn done(self, connections: usize) -> Result<Vec<u64>, SessionError> {
        match self {
            Self::Done { messages } if messages.len() == connections => Ok(messages),
            Self::Done { messages } => {
                Err(SessionError::Unexpected(format!("{} connections done of {connections}", messages.len())))
            }
            other => Err(other.instead_of("done")),
        }
    }
}

impl FromServer {
    /// Returns the error about this message, which arrived instead of the expected message.
    pub(super) fn instead_of(self, expected: &str) -> SessionError {
        match self {
            Self::Failed(reason) => SessionError::Peer(reason),
            other => SessionError::Unexpected(format!("{other:?} instead of {expected}")),
        }
    }
}

/// Defines functions that return the content of the expected answer, or the error about another answer.
macro_rules! answers {
    ($($name:ident($($count:ident)?): $answer:pat $(if $guard:expr)? => $content:expr, $of:ty, $expected:literal;)*) => {
        impl FromServer {
            $(pub(super) fn $name(self $(, $count: usize)?) -> Result<$of, SessionError> {
                match self {
                    $answer $(if $guard)? => Ok($content),
                    other => Err(other.instead_of($expected)),
                }
            })*
        }
    };
}

answers! {
    introduced(): Self::Introduced(introduced) => *introduced, Introduced, "an introduction";
    accepted(): Self::Accepted => (), (), "accepted";
    ready(): Self::Ready { memory } => memory, Vec<RemoteMemory>, "ready";
    clock(): Self::Clock { now_ns } => now_ns, u64, "its time";
    report(): Self::Report(report) => *report, Report, "a report";
    performed(): Self::Performed(performed) => *performed, Performed, "a report";
}

/// Parses a line as a message of either end, and validates the parameters in the line. Tests call this function with
/// messages of untrusted peers.
pub fn judge_line(line: &[u8]) {
    if let Ok(ToServer::Parameters(parameters)) = parse(line)
        && parameters.check().is_ok()
    {
        // Parameters that pass the check must be usable.
        parameters.sizes.iter().for_each(|&size| drop(parameters.fit(size)));
    }
    drop(parse::<FromServer>(line).map(|answer| answer.instead_of("anything")));
}
