//! Callers: processes that connect to the coordinator of a study. A launcher or ssh starts these processes, so the
//! coordinator cannot connect to them.
//!
//! A caller sends its rank and the token, receives a confirmation, and waits. For each point in which the caller has a
//! part, the coordinator tells the caller to serve. From then on, both use the stream for a session in which the caller
//! [serves](super::serve). After that session, the caller connects again. Thus no stream is used after an error, and a
//! caller notices when its coordinator is gone.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use doorbell_exchange::admission::{Line, Opening, Verdict};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use super::introduction::{Token, check_token};
use super::opening::to_line;
use super::peer::{Patience, Peer};
use super::tcp::parse;
use super::{SessionError, TcpPeer};
use crate::executor::block_on;

/// First message of a caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Rank of the caller. The coordinator has rank 0.
    pub rank: usize,
    /// Number of processes, including the coordinator.
    pub ranks: usize,
    /// Release of Doorbell that the caller runs.
    pub doorbell: String,
    /// Token that the coordinator requires.
    pub token: Option<Token>,
}

impl Call {
    /// Creates a call with the version of this release.
    pub fn new(rank: usize, ranks: usize, token: Option<Token>) -> Self {
        Self { rank, ranks, doorbell: env!("CARGO_PKG_VERSION").to_owned(), token }
    }
}

/// Message of the coordinator to a caller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Called {
    /// The coordinator has received the call. This message proves that the other end is a coordinator.
    Heard,
    /// A session begins.
    Serve,
    /// The study is over.
    Over,
    /// The coordinator has no part for the caller, or the study has failed.
    Refused(String),
}

/// Interval at which [`call`] checks `gives_up` while it waits for the first answer.
const LOOK: Duration = Duration::from_millis(50);

/// Calls the coordinator, and waits until the coordinator starts a session. Returns the stream, or `None` if the study
/// is over. Until the first answer arrives, the other end may be another service that never sends anything. The
/// function therefore calls `gives_up` repeatedly while it waits for the first answer.
///
/// # Errors
///
/// The coordinator is gone or `gives_up` returned `true` ([`SessionError::Control`]), or the coordinator refuses the
/// caller ([`SessionError::Peer`]).
pub fn call(
    stream: TcpStream,
    call: &Call,
    mut gives_up: impl FnMut() -> bool,
) -> Result<Option<TcpStream>, SessionError> {
    let mut peer = TcpPeer::<Call, Called>::new(stream)?;
    block_on(peer.send(call.clone()))?;
    while !speaks(peer.stream())? {
        if gives_up() {
            let silence = io::Error::new(io::ErrorKind::TimedOut, "it accepts the connection, but does not answer");
            return Err(SessionError::Control(silence));
        }
    }
    let mut patience = Patience::Answer;
    loop {
        match block_on(peer.receive(patience))? {
            Called::Heard => patience = Patience::Endless,
            Called::Serve => return Ok(Some(peer.into_stream())),
            Called::Over => return Ok(None),
            Called::Refused(reason) => return Err(SessionError::Peer(reason)),
        }
    }
}

/// Waits for at most [`LOOK`]. Returns whether the other end has sent something or closed the connection.
fn speaks(stream: &TcpStream) -> Result<bool, SessionError> {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::ZERO)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(SessionError::Control(error.into())),
    }
}

/// Maximum bytes of a call, which has the longest token in JSON and three short fields.
const CALL_MAX: usize = 4096;

/// Opening of a caller: its call with the token. Only callers of this release with a valid rank are admitted.
#[derive(Clone, Debug)]
pub struct CallOpening {
    token: Option<Token>,
    ranks: usize,
    line: Line,
}

impl CallOpening {
    /// Creates the opening of a caller for a coordinator of `ranks` processes.
    pub fn new(token: Option<Token>, ranks: usize) -> Self {
        Self { token, ranks, line: Line::new(CALL_MAX) }
    }

    fn judge(&self, line: &[u8]) -> Result<Call, SessionError> {
        let call: Call = parse(line).map_err(SessionError::Unexpected)?;
        check_token(self.token.as_ref(), call.token.as_ref())?;
        let own = env!("CARGO_PKG_VERSION");
        if call.doorbell != own {
            let what = format!("release {} of Doorbell: must be {own}, the coordinator's release", call.doorbell);
            return Err(SessionError::Unexpected(what));
        }
        if call.ranks != self.ranks || !(1..self.ranks).contains(&call.rank) {
            let what = format!(
                "rank {} of {}: the study has {} processes, and callers have ranks from 1",
                call.rank, call.ranks, self.ranks
            );
            return Err(SessionError::Unexpected(what));
        }
        Ok(call)
    }
}

impl Opening for CallOpening {
    type Admitted = Call;
    type Refusal = SessionError;

    fn hear(&mut self, _peer: &str, bytes: &[u8]) -> (usize, Verdict<Call, SessionError>) {
        let refused = |why: SessionError| {
            let reply = to_line(&Called::Refused(why.to_string()));
            Verdict::Dismiss { reply, why: Some(why) }
        };
        match self.line.take(bytes) {
            Err(error) => (bytes.len(), refused(SessionError::Unexpected(error.to_string()))),
            Ok((used, None)) => (used, Verdict::Continue),
            Ok((used, Some(line))) => (used, self.judge(&line).map_or_else(refused, Verdict::Admit)),
        }
    }
}

/// Caller that waits for a session.
#[derive(Debug)]
pub struct Caller {
    /// Call with which the caller was admitted.
    pub call: Call,
    peer: TcpPeer<Called, Call>,
}

impl Caller {
    /// Confirms to a caller that the coordinator has admitted it.
    ///
    /// # Errors
    ///
    /// The caller has closed its connection.
    pub fn new(stream: TcpStream, call: Call) -> Result<Self, SessionError> {
        let mut peer = TcpPeer::<Called, Call>::new(stream)?;
        block_on(peer.send(Called::Heard))?;
        Ok(Self { call, peer })
    }

    /// Tells the caller to serve a session on the returned stream.
    ///
    /// # Errors
    ///
    /// The caller is gone.
    pub fn serve(mut self) -> Result<TcpStream, SessionError> {
        block_on(self.peer.send(Called::Serve))?;
        Ok(self.peer.into_stream())
    }

    /// Tells the caller why there is no study, or why the study ends.
    pub fn refuse(mut self, reason: &str) {
        // If the message does not reach the caller, the caller has gone.
        let _ = block_on(self.peer.send(Called::Refused(reason.to_owned())));
    }

    /// Tells the caller that the study is over.
    pub fn dismiss(mut self) {
        // If the message does not reach the caller, the caller has gone.
        let _ = block_on(self.peer.send(Called::Over));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use doorbell_exchange::admission::{Event, Limits, Lobby, Why};

    use super::*;

    /// Returns the first caller of a coordinator, or the reason why the coordinator refused the caller.
    fn hear(lobby: &mut Lobby<CallOpening>) -> Result<Caller, String> {
        match lobby.next(None).unwrap().unwrap() {
            Event::Admitted { stream, opening, .. } => Caller::new(stream, opening).map_err(|error| error.to_string()),
            Event::Refused { why: Why::Refused(why), .. } => Err(why.to_string()),
            Event::Refused { why, .. } => panic!("{why}"),
        }
    }

    /// Starts a coordinator of `ranks` processes, and connects to that coordinator.
    fn coordinator(ranks: usize, token: Option<&str>) -> (Lobby<CallOpening>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let opening = CallOpening::new(token.map(|token| token.parse().unwrap()), ranks);
        (Lobby::new(listener, opening, Limits::default()).unwrap(), stream)
    }

    /// Calls a coordinator of three processes. Returns the result of the caller and the result of the coordinator:
    /// whether the caller shall serve a point, and the rank that the coordinator admitted. A result may be the reason
    /// of a refusal.
    fn calling(rank: usize, doorbell: &str, token: &str) -> (Result<bool, String>, Result<usize, String>) {
        let (mut lobby, stream) = coordinator(3, Some("secret"));
        let said = Call { doorbell: doorbell.to_owned(), ..Call::new(rank, 3, token.parse().ok()) };
        let caller = std::thread::spawn(move || call(stream, &said, || false));
        let heard = hear(&mut lobby);
        let rank = heard.as_ref().map(|caller| caller.call.rank).map_err(Clone::clone);
        match heard {
            Ok(caller) if rank == Ok(1) => drop(caller.serve().unwrap()),
            Ok(caller) => caller.dismiss(),
            Err(_) => {}
        }
        let called = caller.join().unwrap();
        (called.map(|stream| stream.is_some()).map_err(|error| error.to_string()), rank)
    }

    /// A left-over address file may lead a caller to another service that never sends anything first.
    #[test]
    fn a_service_that_never_answers_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_silent, _) = listener.accept().unwrap();
        let mut looks = 0;
        let error = call(stream, &Call::new(1, 2, None), || {
            looks += 1;
            looks == 3
        });
        assert!(
            matches!(&error, Err(SessionError::Control(error)) if error.kind() == io::ErrorKind::TimedOut),
            "{error:?}"
        );
    }

    #[test]
    fn callers_hear_why_there_is_no_study() {
        let (mut lobby, stream) = coordinator(2, None);
        let caller = std::thread::spawn(move || call(stream, &Call::new(1, 2, None), || false));
        hear(&mut lobby).unwrap().refuse("there is no place for records");
        let error = caller.join().unwrap().unwrap_err();
        assert!(matches!(&error, SessionError::Peer(reason) if reason == "there is no place for records"), "{error}");
    }

    #[test]
    fn callers_need_token_release_and_rank() {
        let own = env!("CARGO_PKG_VERSION");
        assert_eq!(calling(1, own, "secret"), (Ok(true), Ok(1)));
        assert_eq!(calling(2, own, "secret"), (Ok(false), Ok(2)));
        for (rank, release, token, words) in [
            (1, own, "other", "another token"),
            (1, "0.0.1", "secret", "release 0.0.1 of Doorbell"),
            (0, own, "secret", "rank 0 of 3"),
            (3, own, "secret", "rank 3 of 3"),
        ] {
            let (called, heard) = calling(rank, release, token);
            let (called, heard) = (called.unwrap_err(), heard.unwrap_err());
            assert!(called.contains(words) && heard.contains(words), "{called}; {heard}");
        }
    }
}
