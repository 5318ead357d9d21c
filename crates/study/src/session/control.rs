//! What both ends say to each other.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use doorbell_verbs::Device;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::point::Before;
use super::{ANSWER_DEADLINE, SessionError};
use crate::one_sided::RemoteMemory;
use crate::parameters::Parameters;
use crate::record;
use crate::workload::Tally;

/// A line longer than this is not one of ours.
const LONGEST_LINE: usize = 1 << 20;

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

/// One line of JSON at a time, over TCP.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stream: TcpStream,
}

impl Control {
    pub(super) fn new(stream: TcpStream) -> Result<Self, SessionError> {
        stream.set_nodelay(true).map_err(SessionError::Control)?;
        Ok(Self { stream })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), SessionError> {
        let mut line = serde_json::to_vec(message).map_err(|error| SessionError::Control(error.into()))?;
        line.push(b'\n');
        self.stream.set_write_timeout(Some(ANSWER_DEADLINE)).map_err(SessionError::Control)?;
        self.stream.write_all(&line).map_err(SessionError::Control)
    }

    /// Reads no further than the line: what follows may be of another protocol.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, deadline: Option<Duration>) -> Result<T, SessionError> {
        self.stream.set_read_timeout(deadline).map_err(SessionError::Control)?;
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            self.stream.read_exact(&mut byte).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    SessionError::Control(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"))
                }
                _ => SessionError::Control(error),
            })?;
            match byte[0] {
                b'\n' => break,
                _ if line.len() >= LONGEST_LINE => {
                    return Err(SessionError::Unexpected(format!("a line longer than {LONGEST_LINE} B")));
                }
                other => line.push(other),
            }
        }
        serde_json::from_slice(&line)
            .map_err(|_| SessionError::Unexpected(String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned()))
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
