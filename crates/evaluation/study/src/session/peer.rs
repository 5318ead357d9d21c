//! Peer of an end of a session, and the messages between the two ends.

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
    /// Request to make an end for each of these clients. The coordinator sends this request to the middlebox of a
    /// store, if there is one, and then to the memory node.
    Accept {
        /// The memory node's end for the middlebox, in a request to a middlebox.
        node: Option<Ends>,
        /// Numbers and ends of the clients.
        clients: Vec<(u32, Ends)>,
    },
    /// Request to a middlebox to forward packets between these pairs of ends. Each pair is the end of a client and the
    /// end of the memory node.
    Relay(Vec<[End; 2]>),
    /// Request to a metadata service to serve clients.
    Serve {
        /// The memory node's end for the metadata service.
        memory: Ends,
        /// Numbers and ends of the clients.
        clients: Vec<(u32, End)>,
    },
    /// Request to clients to connect with these ends of the memory node and of the metadata service.
    Join(Vec<(Ends, Option<End>)>),
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
    /// Ends of the parties that the host has made.
    Made(Box<Made>),
    /// Ends for the clients of an [`Accept`](ToServer::Accept).
    Taken(Vec<Ends>),
    /// Ends of the metadata service for clients.
    Serving(Vec<End>),
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

/// Class of deadline for a control message. Each [`Peer`] implementation defines the time of each class.
/// [`LocalPeer`](super::LocalPeer) has no deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The peer answers at once.
    Answer,
    /// The connection has failed. If the peer knows a better reason for the failure, the reason arrives soon.
    Reason,
    /// The peer has work to do before it answers, so there is no deadline.
    Endless,
}

/// State of a peer while a point is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The peer is present, and has sent nothing.
    Silent,
    /// The peer has sent a message that was not received yet. Until this end receives the message, it may not notice
    /// that the peer has closed the connection.
    Spoke,
}

/// Other end of a session, with the control connection to that end.
///
/// The ends may be processes, threads, or tasks of one thread. Futures of [`TcpPeer`](super::TcpPeer) block their
/// thread, so each end requires its own thread. Futures of [`LocalPeer`](super::LocalPeer) let other tasks run, so both
/// ends may share a thread. Several threads of one end may call [`look`](Self::look) at the same time.
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
    /// The peer is gone, or does not accept the message in time ([`SessionError::Control`]).
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
    /// The connection to the peer is broken ([`SessionError::Control`]). If the peer has closed the connection, this
    /// function succeeds and the next [`receive`](Self::receive) fails.
    fn until_heard(&mut self, busy: impl FnMut()) -> impl Future<Output = Result<(), SessionError>>;

    /// Runs `body` while the ends exchange no messages. During this time, threads of this end may call
    /// [`look`](Self::look).
    ///
    /// # Errors
    ///
    /// `body` fails, or the connection to the peer is broken ([`SessionError::Control`]).
    fn watched<T>(
        &self,
        body: impl Future<Output = Result<T, SessionError>>,
    ) -> impl Future<Output = Result<T, SessionError>>;

    /// Returns whether the peer has sent something. Call this function only while [`watched`](Self::watched) runs.
    ///
    /// # Errors
    ///
    /// The peer is gone ([`SessionError::Control`]).
    fn look(&self) -> Result<Presence, SessionError>;
}

/// Number of rounds of polling between two reads of the clock, while the peer is watched.
const ROUNDS_BETWEEN: u32 = 15;

/// Interval between two checks of a watched peer. A check may be a system call.
const LOOK_NS: u64 = 100_000_000;

/// Check of the peer's presence while a point is measured.
pub(super) struct Watch<'a> {
    /// Calls [`Peer::look`]. A type parameter instead of this trait object would instantiate the code of both ends for
    /// each type of peer.
    pub(super) look: &'a (dyn Fn() -> Result<Presence, SessionError> + Sync),
    pub(super) device: &'a Device,
    /// Whether the peer must not send anything until this end has performed its part.
    pub(super) is_to_be_silent: bool,
    /// Whether a round of polling is long since the receiver pauses for each message.
    pub(super) rounds_are_long: bool,
}

impl Watch<'_> {
    /// Returns a check that a thread calls in each round of polling. The check fails when the peer is gone. Without the
    /// check, the thread would wait until the RNIC gives up, possibly for hours.
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
