//! The other end of a session, from the view of one end.

use doorbell_exchange::setup::{EndpointDescription, SetupError};
use doorbell_verbs::Device;
use serde::{Deserialize, Serialize};

use super::SessionError;
use super::introduction::{Introduced, Introduction};
use super::parties::{ClientsDone, Duties, End, Ends, Made};
use super::report::{Performed, Report};
use crate::one_sided::RemoteMemory;
use crate::parameters::Parameters;
use crate::record::PointResult;

/// Messages of the end that asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// Introduction of the asking end. It comes first, if the asking end wants an introduction or must show a token.
    Introduce(Box<Introduction>),
    /// Parameters of the session.
    Parameters(Box<Parameters>),
    /// Request to make the connections of the next point.
    Point {
        /// Size of the messages.
        bytes: usize,
        /// Number of connections of the answering part; `None` means all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<usize>,
    },
    /// Request to make the connections of the next point and to perform the asking part, in a session of many hosts.
    Ask {
        /// Size of the messages.
        bytes: usize,
        /// Number of connections.
        connections: usize,
    },
    /// Request for the time of the device's clock.
    Clock,
    /// Request to perform the asking part from this instant on.
    Go {
        /// One region for each connection of one-sided operations.
        memory: Vec<RemoteMemory>,
        /// Start on the clock of the receiving end's device.
        start_ns: u64,
    },
    /// Request to become these parties of a point about shared memory.
    Be(Box<Duties>),
    /// Request to a memory node, and before it to a middlebox: make an end for each of these numbered clients.
    Accept {
        /// For a middlebox: the memory node's end for it.
        node: Option<Ends>,
        /// Numbers and ends of the clients.
        clients: Vec<(u32, Ends)>,
    },
    /// Request to a middlebox: forward packets between these pairs of a client's end and the memory node's.
    Relay(Vec<[End; 2]>),
    /// Request to a metadata service: serve.
    Serve {
        /// The memory node's end for it.
        memory: Ends,
        /// Numbers and ends of the clients.
        clients: Vec<(u32, End)>,
    },
    /// Request to clients: connect with these ends of the memory node, and of the metadata service.
    Join(Vec<(Ends, Option<End>)>),
    /// One-sided operations are complete, or all unacknowledged messages have left. Parties of a point about shared
    /// memory receive this when clients have ended.
    Done {
        /// Number of messages of each connection.
        messages: Vec<u64>,
    },
    /// End of the session.
    End,
}

/// Messages of the end that answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromServer {
    /// Introduction of the answering end.
    Introduced(Box<Introduced>),
    /// Acceptance of the parameters, or of the point.
    Accepted,
    /// Permission to start: receives are posted, or memory is available for one-sided operations.
    Ready {
        /// One region for each connection of one-sided operations.
        memory: Vec<RemoteMemory>,
    },
    /// Report of this end at the end of the point.
    Report(Box<Report>),
    /// Time of the device's clock.
    Clock {
        /// Time in nanoseconds.
        now_ns: u64,
    },
    /// Report of the asking part.
    Performed(Box<Performed>),
    /// The parties that this end has made.
    Made(Box<Made>),
    /// Ends for the clients of an [`Accept`](ToServer::Accept).
    Taken(Vec<Ends>),
    /// Ends of the metadata service for clients.
    Serving(Vec<End>),
    /// Results of the clients of a store.
    Stored(Box<ClientsDone>),
    /// Result of queue pairs to bare memory.
    Asked(Box<PointResult>),
    /// Reason of a failure.
    Failed(String),
}

impl ToServer {
    /// Returns the error for this message in place of the expected one.
    pub(super) fn instead_of(self, expected: &str) -> SessionError {
        SessionError::Unexpected(format!("{self:?} instead of {expected}"))
    }
}

impl FromServer {
    /// Returns the error for this message in place of the expected one.
    pub(super) fn instead_of(self, expected: &str) -> SessionError {
        match self {
            Self::Failed(reason) => SessionError::Peer(reason),
            other => SessionError::Unexpected(format!("{other:?} instead of {expected}")),
        }
    }
}

/// The class of deadline for a control message. Each [`Peer`] defines the time in seconds. A peer that cannot keep
/// this end waiting has no deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The peer answers at once.
    Answer,
    /// If the peer knows a better reason for a failure, it has already sent it.
    Reason,
    /// The peer has work to do before it answers.
    Endless,
}

/// The state of a peer while connections work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The peer is present, and has sent nothing.
    Silent,
    /// The peer has sent a message that was not received yet. Until then, the end of the connection may be invisible.
    Spoke,
}

/// The other end of a session, with the connection to it.
///
/// The ends may be processes, threads, or tasks of one thread. A future that blocks its thread, such as that of
/// [`TcpPeer`](super::TcpPeer), requires a thread for each end. A future that gives way to other tasks, such as that
/// of [`LocalPeer`](super::LocalPeer), runs anywhere. Several threads of one end may look at the peer at once.
pub trait Peer: Sync {
    /// Messages that this end sends.
    type Says;
    /// Messages that this end receives.
    type Hears;

    /// Sends descriptions of this end's connections. Returns the same number of descriptions of the peer.
    ///
    /// # Errors
    ///
    /// The peer is gone, does not answer in time, or sends something other than this number of descriptions.
    fn exchange(
        &mut self,
        own: &[EndpointDescription],
    ) -> impl Future<Output = Result<Vec<EndpointDescription>, SetupError>>;

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// The peer is gone, or does not take the message in time ([`SessionError::Control`]).
    fn send(&mut self, message: Self::Says) -> impl Future<Output = Result<(), SessionError>>;

    /// Receives the next message.
    ///
    /// # Errors
    ///
    /// The peer is gone or does not answer in time ([`SessionError::Control`]), or sends an invalid message
    /// ([`SessionError::Unexpected`]).
    fn receive(&mut self, patience: Patience) -> impl Future<Output = Result<Self::Hears, SessionError>>;

    /// Calls `busy` repeatedly until a message arrives or the peer is gone.
    ///
    /// # Errors
    ///
    /// The connection to the peer is broken ([`SessionError::Control`]). A peer that has hung up is no error here; the
    /// next [`receive`](Self::receive) reports it.
    fn until_heard(&mut self, busy: impl FnMut()) -> impl Future<Output = Result<(), SessionError>>;

    /// Runs `body` while the ends exchange no messages. Threads of this end may [look](Self::look) at the peer
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// The error of `body`, or the connection to the peer is broken ([`SessionError::Control`]).
    fn watched<T>(
        &self,
        body: impl Future<Output = Result<T, SessionError>>,
    ) -> impl Future<Output = Result<T, SessionError>>;

    /// Returns whether the peer is silent or has sent something. Valid only while the peer is
    /// [watched](Self::watched).
    ///
    /// # Errors
    ///
    /// The peer is gone ([`SessionError::Control`]).
    fn look(&self) -> Result<Presence, SessionError>;
}

/// Polls of working connections between two looks at the clock, while the peer is watched.
const ROUNDS_BETWEEN: u32 = 15;

/// Interval at which a watched peer is looked at, which may be a system call.
const LOOK_NS: u64 = 100_000_000;

/// The watch on a peer while connections work.
pub(super) struct Watch<'a> {
    /// One look at the peer ([`Peer::look`]). It is no type parameter, since the code of both ends would be compiled
    /// for each.
    pub(super) look: &'a (dyn Fn() -> Result<Presence, SessionError> + Sync),
    pub(super) device: &'a Device,
    /// Whether the peer must send nothing before this end has performed its part.
    pub(super) is_to_be_silent: bool,
    /// Whether a round lasts as long as a receiver pauses.
    pub(super) rounds_are_long: bool,
}

impl Watch<'_> {
    /// Returns the check for each round of a thread, which fails when the peer has gone. Without it, only the RNIC
    /// would give up, possibly hours later.
    pub(super) fn check(&self) -> impl FnMut() -> Result<(), SessionError> {
        let (mut countdown, mut next_ns) = (0, 0);
        move || {
            if countdown > 0 {
                countdown -= 1;
                return Ok(());
            }
            countdown = if self.rounds_are_long { 0 } else { ROUNDS_BETWEEN };
            let now_ns = self.device.now_ns();
            if now_ns < next_ns {
                return Ok(());
            }
            next_ns = now_ns + LOOK_NS;
            match (self.look)()? {
                Presence::Spoke if self.is_to_be_silent => {
                    Err(SessionError::Unexpected("something while a point ran".to_owned()))
                }
                Presence::Spoke | Presence::Silent => Ok(()),
            }
        }
    }
}
