//! Peers in other processes, joined by TCP. Each message is one line of JSON.

use std::io;
use std::marker::PhantomData;
use std::net::TcpStream;
use std::time::Duration;

use doorbell_exchange::setup::{self, EndpointDescription, SetupError, Timed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};

use super::SessionError;
use super::peer::{ANSWER, Patience, Peer, Presence, REASON, REQUEST};

/// Maximum length of a line in bytes.
const LONGEST_LINE: usize = 1 << 20;

/// Idle time after which TCP probes the peer's machine, and interval between further probes.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Time without an acknowledgement after which TCP treats the peer's machine as gone.
const MACHINE_DEADLINE: Duration = Duration::from_secs(30);

/// Number of calls of `busy` between two checks of the stream. Each check is a system call.
const LOOKS_BETWEEN: u32 = 256;

/// Parses a line. The error contains the first 200 bytes of the invalid line.
pub(super) fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|_| String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned())
}

/// Peer over TCP. This end sends messages of type `S` and receives messages of type `H`.
///
/// The futures block the thread that polls them, so each end needs its own thread or process.
#[derive(Debug)]
pub(crate) struct TcpPeer<S, H> {
    stream: TcpStream,
    words: PhantomData<fn(S) -> H>,
}

impl<S: Serialize, H: DeserializeOwned> TcpPeer<S, H> {
    /// Creates the peer for the other end of a stream.
    ///
    /// # Errors
    ///
    /// The operating system rejects an option of the stream.
    pub(crate) fn new(stream: TcpStream) -> Result<Self, SessionError> {
        stream.set_nodelay(true).map_err(SessionError::Control)?;
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        let kept = socket.set_tcp_keepalive(&keepalive);
        kept.and_then(|()| socket.set_tcp_user_timeout(Some(MACHINE_DEADLINE))).map_err(SessionError::Control)?;
        Ok(Self { stream, words: PhantomData })
    }

    /// Receives `count` descriptions from the peer. A coordinator relays these descriptions, and sends descriptions to
    /// this peer later. Errors do not name the peer, since the coordinator adds the name.
    pub(super) fn hear_descriptions(&self, count: usize) -> Result<Vec<EndpointDescription>, SetupError> {
        setup::receive(&mut Timed::new(&self.stream, ANSWER), "it", count, ANSWER)
    }

    /// Sends descriptions to a peer that has already sent its descriptions.
    pub(super) fn say_descriptions(&self, descriptions: &[EndpointDescription]) -> Result<(), SessionError> {
        let hello = setup::hello(descriptions);
        Timed::new(&self.stream, ANSWER).write_all(&hello).map_err(SessionError::Control)
    }

    /// Returns the stream and drops the peer.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Returns the stream.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Receives the next line, which must be complete within the deadline. Without a deadline, the line may begin at
    /// any time. Once begun, it must be complete within [`ANSWER`].
    fn next(&mut self, deadline: Option<Duration>) -> Result<H, SessionError> {
        if deadline.is_none() {
            self.await_line()?;
        }
        let line = self.read_line(deadline.unwrap_or(ANSWER))?;
        parse(&line).map_err(SessionError::Unexpected)
    }

    /// Waits until a line begins or the stream ends.
    fn await_line(&mut self) -> Result<(), SessionError> {
        self.stream.set_read_timeout(None).map_err(SessionError::Control)?;
        loop {
            match self.stream.peek(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop).map_err(SessionError::Control),
            }
        }
    }

    /// Reads up to the end of the line. Bytes after the line stay unread, since they may belong to another protocol.
    fn read_line(&mut self, deadline: Duration) -> Result<Vec<u8>, SessionError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                SessionError::Control(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"))
            }
            _ => SessionError::Control(error),
        };
        let mut timed = Timed::new(&self.stream, deadline);
        let mut line = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let there = timed.peek(&mut piece).map_err(failed)?;
            if there == 0 {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            let end = piece[..there].iter().position(|&byte| byte == b'\n');
            let piece = &mut piece[..end.map_or(there, |end| end + 1)];
            timed.read_exact(piece).map_err(failed)?;
            line.extend_from_slice(&piece[..end.unwrap_or(there)]);
            if line.len() > LONGEST_LINE {
                return Err(SessionError::Unexpected(format!("a line longer than {LONGEST_LINE} B")));
            }
            if end.is_some() {
                return Ok(line);
            }
        }
    }
}

impl<S: Serialize, H: DeserializeOwned> Peer for TcpPeer<S, H> {
    type Says = S;
    type Hears = H;

    async fn exchange(&mut self, own: &[EndpointDescription]) -> Result<Vec<EndpointDescription>, SetupError> {
        setup::exchange(&self.stream, own, ANSWER)
    }

    async fn send(&mut self, message: S) -> Result<(), SessionError> {
        let mut line = serde_json::to_vec(&message).map_err(|error| SessionError::Control(error.into()))?;
        line.push(b'\n');
        Timed::new(&self.stream, ANSWER).write_all(&line).map_err(SessionError::Control)
    }

    async fn receive(&mut self, patience: Patience) -> Result<H, SessionError> {
        self.next(match patience {
            Patience::Answer => Some(ANSWER),
            Patience::Request => Some(REQUEST),
            Patience::Reason => Some(REASON),
            Patience::Endless => None,
        })
    }

    async fn until_heard(&mut self, mut busy: impl FnMut()) -> Result<(), SessionError> {
        self.stream.set_nonblocking(true).map_err(SessionError::Control)?;
        let readable = loop {
            (0..LOOKS_BETWEEN).for_each(|_| busy());
            match self.stream.peek(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.stream.set_nonblocking(false).map_err(SessionError::Control)?;
        readable.map(|_| ()).map_err(SessionError::Control)
    }

    async fn watched<T>(&self, body: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
        self.stream.set_nonblocking(true).map_err(SessionError::Control)?;
        let result = body.await;
        self.stream.set_nonblocking(false).map_err(SessionError::Control)?;
        result
    }

    fn look(&self) -> Result<Presence, SessionError> {
        match self.stream.peek(&mut [0]) {
            Ok(0) => Err(SessionError::hung_up()),
            Ok(_) => Ok(Presence::Spoke),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Presence::Silent)
            }
            Err(error) => Err(SessionError::Control(error)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the slow peer sends bytes in real time")]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::super::messages::{FromServer, ToServer};
    use super::*;

    /// The deadline holds even if the peer sends single bytes at short intervals.
    #[test]
    fn a_slow_line_must_end_by_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let dripping = std::thread::spawn(move || {
            let mut line = vec![b' '; 200];
            line.extend(b"\"accepted\"\n");
            for byte in line {
                std::thread::sleep(Duration::from_millis(30));
                if peer.write_all(&[byte]).is_err() {
                    return; // the other end has hung up
                }
            }
        });
        let mut control = TcpPeer::<ToServer, FromServer>::new(stream).unwrap();
        let result = control.next(Some(Duration::from_millis(300)));
        assert!(
            matches!(&result, Err(SessionError::Control(error)) if error.kind() == io::ErrorKind::TimedOut),
            "{result:?}"
        );
        drop(control);
        dripping.join().unwrap();
    }

    #[test]
    fn bytes_after_a_line_stay_unread_and_long_lines_fail() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut control = TcpPeer::<ToServer, FromServer>::new(stream).unwrap();
        peer.write_all(b"\"accepted\"\n\"accepted\"\nDOORBELL").unwrap();
        for deadline in [None, Some(ANSWER)] {
            assert!(matches!(control.next(deadline).unwrap(), FromServer::Accepted));
        }
        let mut behind = [0; 8];
        Timed::new(&control.stream, ANSWER).read_exact(&mut behind).unwrap();
        assert_eq!(&behind, b"DOORBELL");
        let endless = std::thread::spawn(move || while peer.write_all(&[b'1'; 4096]).is_ok() {});
        let error = control.next(None).unwrap_err();
        assert!(error.to_string().ends_with("a line longer than 1048576 B"), "{error}");
        drop(control);
        endless.join().unwrap();
    }
}
