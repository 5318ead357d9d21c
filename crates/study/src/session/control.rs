//! What both ends say to each other.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

use doorbell_exchange::setup::Timed;
use doorbell_verbs::Device;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};

use super::point::{Before, SessionEnd};
use super::{ANSWER_DEADLINE, SessionError};
use crate::executor::{self, Idle};
use crate::one_sided::RemoteMemory;
use crate::parameters::Parameters;
use crate::record;
use crate::workload::Tally;

/// A line longer than this is not one of ours.
const LONGEST_LINE: usize = 1 << 20;

/// How often connections that work are polled between two looks at the clock, while the stream is watched.
const ROUNDS_BETWEEN: u32 = 15;

/// How often a stream that is watched is looked at, which is a system call.
const LOOK_NS: u64 = 100_000_000;

/// A peer's machine of which nothing is heard is asked after so long, and again at this interval.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A peer's machine that has not answered for so long is gone.
const MACHINE_DEADLINE: Duration = Duration::from_secs(30);

/// How often something else is done between two looks at the stream, which are system calls.
const LOOKS_BETWEEN: u32 = 256;

/// What the client says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToServer {
    /// What is to be measured.
    Parameters(Box<Parameters>),
    /// Make the connections of the next point.
    Point { bytes: usize },
    /// One-sided operations are complete: so many of each connection.
    Done { messages: Vec<u64> },
    /// That was all.
    End,
}

/// What the server says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromServer {
    /// The parameters, or the point, are acceptable.
    Accepted,
    /// Receives are posted, or memory is there for one-sided operations, one region for each
    /// connection: go.
    Ready { memory: Vec<RemoteMemory> },
    /// The point is over.
    Report(Box<Report>),
    /// It failed.
    Failed(String),
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

/// What one end saw of a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) damaged: u64,
    pub(super) stalled_on_credits: u64,
    pub(super) keepalives: u64,
    pub(super) control_sends: u64,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) link: BTreeMap<String, u64>,
}

impl Report {
    /// `before` is what the device had counted before the point.
    pub(super) fn new(tallies: &[Tally], device: &Device, before: &Before) -> Self {
        let sum = |field: fn(&Tally) -> u64| tallies.iter().map(field).sum();
        Self {
            sent: sum(|t| t.sent),
            received: sum(|t| t.received),
            damaged: sum(|t| t.damaged),
            stalled_on_credits: sum(|t| t.stalled_on_credits),
            keepalives: sum(|t| t.keepalives),
            control_sends: sum(|t| t.control_sends),
            counters: device
                .counters()
                .zip(before.counters)
                .map(|(now, before)| record::by_name(&now.since(&before)))
                .unwrap_or_default(),
            link: record::link_by_name(&device.link_counters(), &before.link),
        }
    }
}

/// What a line says; if it is none of ours, its beginning.
fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|_| String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned())
}

/// Reads a line as either end would, and checks its parameters if it has some: for tests of what peers may say.
pub fn judge_line(line: &[u8]) {
    if let Ok(ToServer::Parameters(parameters)) = parse(line)
        && parameters.check().is_ok()
    {
        // What was checked can be used.
        parameters.sizes.iter().for_each(|&size| drop(parameters.fit(size)));
    }
    drop(parse::<FromServer>(line).map(|answer| answer.instead_of("anything")));
}

/// How the stream is watched while connections work.
pub(super) struct Watch<'a> {
    pub(super) device: &'a Device,
    pub(super) side: SessionEnd,
    /// A round lasts as long as a receiver pauses.
    pub(super) rounds_are_long: bool,
}

/// One line of JSON at a time, over TCP.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stream: TcpStream,
}

impl Control {
    pub(super) fn new(stream: TcpStream) -> Result<Self, SessionError> {
        stream.set_nodelay(true).map_err(SessionError::Control)?;
        let socket = SockRef::from(&stream);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        let kept = socket.set_tcp_keepalive(&keepalive);
        kept.and_then(|()| socket.set_tcp_user_timeout(Some(MACHINE_DEADLINE))).map_err(SessionError::Control)?;
        Ok(Self { stream })
    }

    /// Does something while the stream is watched, and nothing is sent or received over it.
    pub(super) fn watched<T>(&self, body: impl FnOnce() -> Result<T, SessionError>) -> Result<T, SessionError> {
        self.stream.set_nonblocking(true).map_err(SessionError::Control)?;
        let result = body();
        self.stream.set_nonblocking(false).map_err(SessionError::Control)?;
        result
    }

    /// Runs tasks until all are done, or the peer has hung up: it alone says when its RNIC gives up, which may be
    /// hours from now. Only while the stream is [watched](Self::watched).
    pub(super) fn run<T>(
        &self,
        by: &Watch<'_>,
        idle: &Idle,
        tasks: impl IntoIterator<Item = impl Future<Output = T>>,
    ) -> Result<Vec<T>, SessionError> {
        let (mut countdown, mut next_ns) = (0, 0);
        executor::run_while(idle, tasks, || {
            if countdown > 0 {
                countdown -= 1;
                return Ok(());
            }
            countdown = if by.rounds_are_long { 0 } else { ROUNDS_BETWEEN };
            let now_ns = by.device.now_ns();
            if now_ns < next_ns {
                return Ok(());
            }
            next_ns = now_ns + LOOK_NS;
            match self.stream.peek(&mut [0]) {
                Ok(0) => {
                    let hung_up = io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up while a point ran");
                    Err(SessionError::Control(hung_up))
                }
                // Behind what it said, its end would not be seen.
                Ok(_) if by.side == SessionEnd::Server => {
                    Err(SessionError::Unexpected("something while a point ran".to_owned()))
                }
                Ok(_) => Ok(()),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
                Err(error) => Err(SessionError::Control(error)),
            }
        })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), SessionError> {
        let mut line = serde_json::to_vec(message).map_err(|error| SessionError::Control(error.into()))?;
        line.push(b'\n');
        Timed::new(&self.stream, ANSWER_DEADLINE).write_all(&line).map_err(SessionError::Control)
    }

    /// The next line, which is there within the deadline as a whole. Without one it may begin at any time, but then it
    /// is to be whole as soon as an answer.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, deadline: Option<Duration>) -> Result<T, SessionError> {
        if deadline.is_none() {
            self.await_line()?;
        }
        let line = self.read_line(deadline.unwrap_or(ANSWER_DEADLINE))?;
        parse(&line).map_err(SessionError::Unexpected)
    }

    /// Waits for a line to begin, or the end.
    fn await_line(&mut self) -> Result<(), SessionError> {
        self.stream.set_read_timeout(None).map_err(SessionError::Control)?;
        loop {
            match self.stream.peek(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop).map_err(SessionError::Control),
            }
        }
    }

    /// Reads no further than the line: what follows may be of another protocol.
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

    /// Does something again and again until there is something to receive, or the peer is gone.
    pub(super) fn until_readable(&mut self, mut busy: impl FnMut()) -> Result<(), SessionError> {
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

    /// The server takes what it was told last.
    pub(super) fn expect_accepted(&mut self) -> Result<(), SessionError> {
        match self.receive(Some(ANSWER_DEADLINE))? {
            FromServer::Accepted => Ok(()),
            other => Err(other.instead_of("accepted")),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a peer over TCP drips by the clock, which no device has")]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    /// However soon each byte comes after the one before.
    #[test]
    fn a_line_that_drips_has_no_longer_than_the_deadline() {
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
        let mut control = Control::new(stream).unwrap();
        let result = control.receive::<FromServer>(Some(Duration::from_millis(300)));
        assert!(
            matches!(&result, Err(SessionError::Control(error)) if error.kind() == io::ErrorKind::TimedOut),
            "{result:?}"
        );
        drop(control);
        dripping.join().unwrap();
    }

    #[test]
    fn nothing_behind_a_line_is_read_and_a_line_without_end_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut control = Control::new(stream).unwrap();
        peer.write_all(b"\"accepted\"\n\"accepted\"\nDOORBELL").unwrap();
        for deadline in [None, Some(ANSWER_DEADLINE)] {
            assert!(matches!(control.receive(deadline).unwrap(), FromServer::Accepted));
        }
        let mut behind = [0; 8];
        Timed::new(&control.stream, ANSWER_DEADLINE).read_exact(&mut behind).unwrap();
        assert_eq!(&behind, b"DOORBELL");
        let endless = std::thread::spawn(move || while peer.write_all(&[b'1'; 4096]).is_ok() {});
        let error = control.receive::<FromServer>(None).unwrap_err();
        assert!(error.to_string().ends_with("a line longer than 1048576 B"), "{error}");
        drop(control);
        endless.join().unwrap();
    }
}
