//! Peer of an end of a session.

use std::time::Duration;

use doorbell_exchange::setup::{EndpointDescription, SetupError};
use doorbell_verbs::Device;

use super::SessionError;

/// Maximum time that an end waits for an answer of its peer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Maximum time that a server without a token waits for the next request of its client. The client has nothing else to
/// do between two points than to print, so this time is ample.
pub(super) const REQUEST: Duration = Duration::from_secs(60);

/// Maximum time that an end waits for the peer's reason after a failure.
pub(super) const REASON: Duration = Duration::from_secs(2);

/// Maximum time that hosts may take for a point in addition to the point's duration.
pub(super) const PERFORMANCE: Duration = Duration::from_secs(60);

/// Maximum time to make the parties of a store, which may write millions of keys.
pub(super) const MAKING: Duration = Duration::from_secs(120);

/// Class of deadline for a control message. Each [`Peer`] implementation defines the time of each class.
/// [`LocalPeer`](super::LocalPeer) has no deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The peer answers at once.
    Answer,
    /// The peer has shown no token, and must soon ask for something, so that it cannot keep others out by its silence.
    Request,
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
/// The ends may be processes, threads, or tasks of one thread. Futures of a peer over TCP block their thread, so each
/// end requires its own thread. Futures of [`LocalPeer`](super::LocalPeer) let other tasks run, so both ends may share
/// a thread. Several threads of one end may call [`look`](Self::look) at the same time.
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
