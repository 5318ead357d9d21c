//! The other end of a session, as one end reaches it.

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

/// What the end that asks says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// Who asks. Whoever wants to know the other end, or has to show a token, says this first.
    Introduce(Box<Introduction>),
    /// What is to be measured.
    Parameters(Box<Parameters>),
    /// Make the connections of the next point.
    Point {
        /// Of messages of this size.
        bytes: usize,
        /// The answering part of so many connections; without a number of all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<usize>,
    },
    /// Make this end's connections of the next point, and perform the asking part: of a session of many hosts.
    Ask {
        /// Of messages of this size.
        bytes: usize,
        /// So many connections.
        connections: usize,
    },
    /// What does the clock of this end's device say?
    Clock,
    /// Perform the asking part, from this instant on.
    Go {
        /// Of one-sided operations one region for each connection.
        memory: Vec<RemoteMemory>,
        /// On the clock of this end's device.
        start_ns: u64,
    },
    /// Be these parties of a point about shared memory.
    Be(Box<Duties>),
    /// To a memory node, and to a middlebox before it: make an end for each of these, who have numbers.
    Accept {
        /// To a middlebox: the memory node's end for it.
        node: Option<Ends>,
        /// Those who come.
        clients: Vec<(u32, Ends)>,
    },
    /// To a middlebox: pass on what these send to each other, each a client's end and the memory node's.
    Relay(Vec<[End; 2]>),
    /// To a metadata service: serve.
    Serve {
        /// The memory node's end for it.
        memory: Ends,
        /// Clients' ends, with their numbers.
        clients: Vec<(u32, End)>,
    },
    /// To clients: connect with these ends of the memory node, and of the metadata service.
    Join(Vec<(Ends, Option<End>)>),
    /// One-sided operations are complete, or all messages have left that nobody acknowledges. Parties of a point about shared
    /// memory hear it when clients have ended.
    Done {
        /// How many of each connection.
        messages: Vec<u64>,
    },
    /// That was all.
    End,
}

/// What the other end says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromServer {
    /// Who answers.
    Introduced(Box<Introduced>),
    /// The parameters, or the point, are acceptable.
    Accepted,
    /// Receives are posted, or memory is there for one-sided operations: go.
    Ready {
        /// Of one-sided operations one region for each connection.
        memory: Vec<RemoteMemory>,
    },
    /// The point is over.
    Report(Box<Report>),
    /// What the device's clock says.
    Clock {
        /// In nanoseconds.
        now_ns: u64,
    },
    /// The asking part was performed.
    Performed(Box<Performed>),
    /// The parties are made.
    Made(Box<Made>),
    /// These are their ends for those who were to be accepted.
    Taken(Vec<Ends>),
    /// The metadata service's ends for clients.
    Serving(Vec<End>),
    /// What clients of a store did.
    Stored(Box<ClientsDone>),
    /// What came of queue pairs to bare memory.
    Asked(Box<PointResult>),
    /// It failed.
    Failed(String),
}

impl ToServer {
    /// What came instead of what was expected, as an error.
    pub(super) fn instead_of(self, expected: &str) -> SessionError {
        SessionError::Unexpected(format!("{self:?} instead of {expected}"))
    }
}

impl FromServer {
    /// What came instead of what was expected, as an error.
    pub(super) fn instead_of(self, expected: &str) -> SessionError {
        match self {
            Self::Failed(reason) => SessionError::Peer(reason),
            other => SessionError::Unexpected(format!("{other:?} instead of {expected}")),
        }
    }
}

/// How long a message of control may take. What that is in seconds, whoever joins the ends knows; where nobody can be
/// kept waiting by an absent peer, it is no time at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The peer answers at once.
    Answer,
    /// If the peer knows a better reason for a failure, it has said so already.
    Reason,
    /// The peer has something to do before.
    Endless,
}

/// What one look at a peer shows, while connections work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there, and says nothing.
    Silent,
    /// It has said something that was not received yet. Behind that, its end may not be seen.
    Spoke,
}

/// The other end of a session: what joins the two.
///
/// The ends may be processes, threads, or tasks of one thread. So nothing here takes real time: a future that blocks
/// its thread ([`TcpPeer`](super::TcpPeer)'s do) runs where each end has a thread, one that gives way to other tasks
/// ([`LocalPeer`](super::LocalPeer)'s) runs anywhere. Several threads of one end may look at the peer at once.
pub trait Peer: Sync {
    /// What this end says.
    type Says;
    /// What this end hears.
    type Hears;

    /// Sends descriptions of this end's connections, and returns the peer's, as many.
    ///
    /// # Errors
    ///
    /// The peer is gone, does not answer in time, or sends something other than as many descriptions.
    fn exchange(
        &mut self,
        own: &[EndpointDescription],
    ) -> impl Future<Output = Result<Vec<EndpointDescription>, SetupError>>;

    /// Says something.
    ///
    /// # Errors
    ///
    /// The peer is gone, or does not take it in time ([`SessionError::Control`]).
    fn send(&mut self, message: Self::Says) -> impl Future<Output = Result<(), SessionError>>;

    /// Hears what is said next.
    ///
    /// # Errors
    ///
    /// The peer is gone or does not answer in time ([`SessionError::Control`]), or says what cannot be understood
    /// ([`SessionError::Unexpected`]).
    fn receive(&mut self, patience: Patience) -> impl Future<Output = Result<Self::Hears, SessionError>>;

    /// Does something again and again until there is something to hear, or the peer is gone.
    ///
    /// # Errors
    ///
    /// What joins the ends is broken ([`SessionError::Control`]). A peer that has hung up is no error here, but the
    /// next [`receive`](Self::receive) says so.
    fn until_heard(&mut self, busy: impl FnMut()) -> impl Future<Output = Result<(), SessionError>>;

    /// Does something while nothing is said or heard, and the peer is [looked](Self::look) at.
    ///
    /// # Errors
    ///
    /// The error of `body`, or what joins the ends is broken ([`SessionError::Control`]).
    fn watched<T>(
        &self,
        body: impl Future<Output = Result<T, SessionError>>,
    ) -> impl Future<Output = Result<T, SessionError>>;

    /// Is the peer still there? Only while it is [watched](Self::watched).
    ///
    /// # Errors
    ///
    /// The peer is gone ([`SessionError::Control`]).
    fn look(&self) -> Result<Presence, SessionError>;
}

/// How often connections that work are polled between two looks at the clock, while the peer is watched.
const ROUNDS_BETWEEN: u32 = 15;

/// How often a peer that is watched is looked at, which may be a system call.
const LOOK_NS: u64 = 100_000_000;

/// How a peer is watched while connections work.
pub(super) struct Watch<'a> {
    /// One look at the peer ([`Peer::look`]). Not a type parameter: what both ends do would be compiled for each of them.
    pub(super) look: &'a (dyn Fn() -> Result<Presence, SessionError> + Sync),
    pub(super) device: &'a Device,
    /// The peer has nothing to say before this end has performed its part.
    pub(super) is_to_be_silent: bool,
    /// A round lasts as long as a receiver pauses.
    pub(super) rounds_are_long: bool,
}

impl Watch<'_> {
    /// What a thread asks in each round: it fails when the peer has gone. A peer alone says when its RNIC gives up,
    /// which may be hours from now.
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
