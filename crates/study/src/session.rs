//! Two processes that measure together, coordinated over TCP.
//!
//! The client says what is to be measured; then, point by point, both make fresh connections,
//! exchange their descriptions, run the workload, and the server tells what it saw. Everything is
//! a line of JSON, bounded in length and time. The server trusts nothing that it is told: it
//! accepts the parameters and each point, or says why not and ends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use doorbell_exchange::send_receive::{Connection, Endpoint};
use doorbell_exchange::setup::{self, SetupError};
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::{Access, Counters, Device, MemoryKind, PathMtu, Pd};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::executor::{self, Idle};
use crate::parameters::{Fitted, Kind, Parameters, ParametersError};
use crate::record::{self, BothEnds, Buckets, Counted, Latency, PointResult, Predicted};
use crate::workload::{self, Plan, Reception, SendMemory, Tally};

/// How long one side waits for the other to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// A line longer than this is not one of ours.
const LONGEST_LINE: usize = 1 << 20;

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Set-up failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The ends do not connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection broke.
    #[error("at {bytes} B: {error}")]
    Connection {
        /// Size of the messages.
        bytes: usize,
        /// Why.
        error: ConnectionError,
    },
    /// A verbs object could not be made.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// The control connection broke.
    #[error("the peer is gone: {0}")]
    Control(#[source] io::Error),
    /// What is to be measured cannot be.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The client wants more memory than this side gives.
    #[error("the client allows {asked} B of message memory, this side has {allowed} B for it")]
    Memory {
        /// What the client allows.
        asked: usize,
        /// What this side was started with.
        allowed: usize,
    },
    /// The client wants a point that it has not announced.
    #[error("messages of {0} B are not among the sizes that the client announced")]
    UnknownSize(usize),
    /// The peer says something unexpected.
    #[error("the peer sent what is not expected here: {0}")]
    Unexpected(String),
    /// The peer failed.
    #[error("the peer failed: {0}")]
    Peer(String),
    /// Both ends have something to say.
    #[error("{own}; the peer says: {peer}")]
    Both {
        /// This end.
        own: String,
        /// The other.
        peer: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToServer {
    /// What is to be measured.
    Parameters(Box<Parameters>),
    /// Make the connections of the next point.
    Point { bytes: usize },
    /// That was all.
    End,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FromServer {
    /// The parameters, or the point, are acceptable.
    Accepted,
    /// Receives are posted: go.
    Ready,
    /// The point is over.
    Report(Box<Report>),
    /// It failed.
    Failed(String),
}

impl FromServer {
    /// What came instead of what was expected, as an error.
    fn instead_of(self, expected: &str) -> SessionError {
        match self {
            Self::Failed(reason) => SessionError::Peer(reason),
            other => SessionError::Unexpected(format!("{other:?} instead of {expected}")),
        }
    }
}

/// What one end saw of a point.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Report {
    sent: u64,
    received: u64,
    damaged: u64,
    stalled_on_credits: u64,
    keepalives: u64,
    control_sends: u64,
    counters: std::collections::BTreeMap<String, u64>,
}

impl Report {
    fn new(tallies: &[Tally], counters: &Counters) -> Self {
        let sum = |field: fn(&Tally) -> u64| tallies.iter().map(field).sum();
        Self {
            sent: sum(|t| t.sent),
            received: sum(|t| t.received),
            damaged: sum(|t| t.damaged),
            stalled_on_credits: sum(|t| t.stalled_on_credits),
            keepalives: sum(|t| t.keepalives),
            control_sends: sum(|t| t.control_sends),
            counters: record::by_name(counters),
        }
    }
}

/// One line of JSON at a time, over TCP.
#[derive(Debug)]
struct Control {
    stream: TcpStream,
}

impl Control {
    fn new(stream: TcpStream) -> Result<Self, SessionError> {
        stream.set_nodelay(true).map_err(SessionError::Control)?;
        Ok(Self { stream })
    }

    fn send(&mut self, message: &impl Serialize) -> Result<(), SessionError> {
        let mut line = serde_json::to_vec(message).map_err(|error| SessionError::Control(error.into()))?;
        line.push(b'\n');
        self.stream.set_write_timeout(Some(ANSWER_DEADLINE)).map_err(SessionError::Control)?;
        self.stream.write_all(&line).map_err(SessionError::Control)
    }

    /// Reads no further than the line: what follows may be of another protocol.
    fn receive<T: DeserializeOwned>(&mut self, deadline: Option<Duration>) -> Result<T, SessionError> {
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
}

impl Control {
    /// The server takes what it was told last.
    fn expect_accepted(&mut self) -> Result<(), SessionError> {
        match self.receive(Some(ANSWER_DEADLINE))? {
            FromServer::Accepted => Ok(()),
            other => Err(other.instead_of("accepted")),
        }
    }
}

/// One point's connections and memory.
struct Point {
    connections: Vec<(Connection, SendMemory)>,
    fitted: Fitted,
    idle: Idle,
    before: Counters,
    mtu: PathMtu,
}

/// What one end has made of a point before it knows the other.
struct Prepared {
    endpoints: Vec<Endpoint>,
    memory: Vec<SendMemory>,
    fitted: Fitted,
    idle: Idle,
    before: Counters,
}

impl Prepared {
    fn new(pd: &Pd, parameters: &Parameters, bytes: usize) -> Result<Self, SessionError> {
        let device = pd.device();
        let fitted = parameters.fit(bytes)?;
        let idle = if parameters.events { Idle::sleep_on(device.create_channel()?) } else { Idle::spin() };
        let before = device.counters();
        let stride = bytes.next_multiple_of(64).max(64);
        let (mut endpoints, mut memory) = (Vec::new(), Vec::new());
        for _ in 0..parameters.connections {
            endpoints.push(Endpoint::new(pd, parameters.config(bytes, &fitted), idle.channel())?);
            let region = pd.allocate(fitted.send_buffers * stride, Access::empty(), MemoryKind::Plain)?;
            memory.push(SendMemory { region, stride });
        }
        Ok(Self { endpoints, memory, fitted, idle, before })
    }

    fn connect(self, stream: &TcpStream) -> Result<Point, SessionError> {
        let own: Vec<_> = self.endpoints.iter().map(Endpoint::description).collect();
        let peers = setup::exchange(stream, &own, ANSWER_DEADLINE)?;
        let mut mtu = PathMtu::Mtu4096;
        let mut connections = Vec::new();
        for (((endpoint, own), peer), memory) in self.endpoints.into_iter().zip(&own).zip(&peers).zip(self.memory) {
            mtu = own.path_mtu.min(peer.path_mtu); // the same for all connections of two devices
            connections.push((endpoint.connect(peer)?, memory));
        }
        Ok(Point { connections, fitted: self.fitted, idle: self.idle, before: self.before, mtu })
    }
}

fn plan(parameters: &Parameters, fitted: &Fitted, bytes: usize) -> Plan {
    Plan {
        bytes,
        extent: parameters.extent,
        rate: parameters.rate.map(|rate| rate / parameters.connections as f64),
        verify: parameters.verify,
        buffers: fitted.send_buffers,
    }
}

/// The end that asks.
#[derive(Debug)]
pub struct Client {
    device: Device,
    pd: Pd,
    control: Control,
    parameters: Parameters,
}

impl Client {
    /// Greets the server and tells it what is to be measured.
    ///
    /// # Errors
    ///
    /// The parameters are not allowed, here or there.
    pub fn new(device: &Device, stream: TcpStream, parameters: Parameters) -> Result<Self, SessionError> {
        parameters.check()?;
        setup::exchange(&stream, &[], ANSWER_DEADLINE)?;
        let mut control = Control::new(stream)?;
        control.send(&ToServer::Parameters(Box::new(parameters.clone())))?;
        control.expect_accepted()?;
        Ok(Self { pd: device.create_pd()?, device: device.clone(), control, parameters })
    }

    /// Measures one size. `progress` hears how many messages of one connection are done.
    pub fn measure(&mut self, bytes: usize, progress: impl Fn(u64)) -> Result<PointResult, SessionError> {
        let result = self.measure_point(bytes, progress);
        // If the peer failed too, its reason is the better one.
        if let Err(SessionError::Connection { .. } | SessionError::Setup(_)) = &result
            && let Ok(FromServer::Failed(reason)) = self.control.receive(Some(Duration::from_secs(2)))
        {
            return Err(SessionError::Both {
                own: result.map_or_else(|e| e.to_string(), |_| String::new()),
                peer: reason,
            });
        }
        result
    }

    fn measure_point(&mut self, bytes: usize, progress: impl Fn(u64)) -> Result<PointResult, SessionError> {
        self.control.send(&ToServer::Point { bytes })?;
        let prepared = Prepared::new(&self.pd, &self.parameters, bytes)?;
        self.control.expect_accepted()?;
        let Point { connections, fitted, idle, before, mtu } = prepared.connect(&self.control.stream)?;
        match self.control.receive(Some(ANSWER_DEADLINE))? {
            FromServer::Ready => {}
            other => return Err(other.instead_of("ready")),
        }
        let parameters = &self.parameters;
        let plan = plan(parameters, &fitted, bytes);
        let failed = |error| SessionError::Connection { bytes, error };
        let progress = &progress;
        let device = &self.device;
        let (tallies, histogram) = match parameters.kind {
            Kind::Latency => {
                let tasks = connections.into_iter().map(|(connection, memory)| {
                    workload::ping(connection, idle.clone(), device.clone(), plan, memory, progress)
                });
                let (mut tallies, mut all) = (Vec::new(), Buckets::empty_histogram());
                for result in executor::run(&idle, tasks) {
                    let (tally, histogram) = result.map_err(failed)?;
                    tallies.push(tally);
                    all.add(&histogram).unwrap_or_else(|_| unreachable!("both resize by themselves"));
                }
                (tallies, Some(all))
            }
            Kind::Bandwidth => {
                let reception = Reception { verify: parameters.verify, pause_ns: 0 };
                let tasks = connections.into_iter().map(|(connection, memory)| {
                    workload::stream(
                        connection,
                        idle.clone(),
                        device.clone(),
                        Some((plan, memory)),
                        reception,
                        progress,
                    )
                });
                let tallies: Result<Vec<Tally>, _> = executor::run(&idle, tasks).into_iter().collect();
                (tallies.map_err(failed)?, None)
            }
        };
        let counters = device.counters().since(&before);
        let report = match self.control.receive::<FromServer>(Some(ANSWER_DEADLINE))? {
            FromServer::Report(report) => *report,
            other => return Err(other.instead_of("a report")),
        };
        let own = Report::new(&tallies, &counters);
        let began_ns = tallies.iter().map(|tally| tally.began_ns).min().unwrap_or(0);
        let ended_ns = tallies.iter().map(|tally| tally.ended_ns).max().unwrap_or(0);
        let seconds = ended_ns.saturating_sub(began_ns).max(1) as f64 / 1e9;
        let messages = match parameters.kind {
            Kind::Latency => own.sent - workload::warm_up_rounds() * parameters.connections as u64,
            Kind::Bandwidth if parameters.bidirectional => own.sent + report.sent,
            Kind::Bandwidth => own.sent,
        };
        let ipv6 = device.attributes().address.is_ipv6();
        let predict = |end: &Report| record::predict(bytes, end.sent, end.received, mtu, parameters.credits, ipv6);
        // Each control message may be acknowledged as well.
        let mut predicted = BothEnds::<Predicted> { client: predict(&own), server: predict(&report) };
        predicted.client.ack_packets_max += report.control_sends + report.keepalives;
        predicted.server.ack_packets_max += own.control_sends + own.keepalives;
        Ok(PointResult {
            bytes,
            messages,
            seconds,
            messages_per_s: messages as f64 / seconds,
            bytes_per_s: messages as f64 * bytes as f64 / seconds,
            latency_ns: histogram.as_ref().map(Latency::of),
            histogram_ns: histogram.as_ref().map(Buckets::of),
            fitted,
            mtu: mtu.bytes(),
            counted: BothEnds {
                client: Counted::of(&own.counters, own.keepalives, own.control_sends, bytes, ipv6),
                server: Counted::of(&report.counters, report.keepalives, report.control_sends, bytes, ipv6),
            },
            predicted,
            damaged: own.damaged + report.damaged,
            stalled_on_credits: own.stalled_on_credits + report.stalled_on_credits,
            counters: BothEnds { client: own.counters, server: report.counters },
        })
    }

    /// Says that that was all.
    pub fn finish(mut self) -> Result<(), SessionError> {
        self.control.send(&ToServer::End)
    }
}

/// The other end: serves one client until it is done, with up to `memory_bytes` of message memory.
///
/// # Errors
///
/// The client wants what is not allowed, or a point failed: the client was told why. Or the client
/// is gone.
pub fn serve(device: &Device, stream: TcpStream, memory_bytes: usize) -> Result<(), SessionError> {
    setup::exchange(&stream, &[], ANSWER_DEADLINE)?;
    let mut control = Control::new(stream)?;
    let result = serve_points(device, &mut control, memory_bytes);
    if let Err(error) = &result
        && !matches!(error, SessionError::Control(_))
    {
        // If it cannot be told, it is gone, and there is a better reason to report.
        let _ = control.send(&FromServer::Failed(error.to_string()));
    }
    result
}

fn serve_points(device: &Device, control: &mut Control, memory_bytes: usize) -> Result<(), SessionError> {
    let ToServer::Parameters(parameters) = control.receive(Some(ANSWER_DEADLINE))? else {
        return Err(SessionError::Unexpected("no parameters".to_owned()));
    };
    if parameters.memory_bytes > memory_bytes {
        return Err(SessionError::Memory { asked: parameters.memory_bytes, allowed: memory_bytes });
    }
    parameters.check()?;
    let pd = device.create_pd()?;
    control.send(&FromServer::Accepted)?;
    loop {
        match control.receive(None)? {
            ToServer::Point { bytes } if parameters.sizes.contains(&bytes) => {
                let report = serve_point(&pd, control, &parameters, bytes)?;
                control.send(&FromServer::Report(Box::new(report)))?;
            }
            ToServer::Point { bytes } => return Err(SessionError::UnknownSize(bytes)),
            ToServer::End => return Ok(()),
            ToServer::Parameters(_) => return Err(SessionError::Unexpected("parameters twice".to_owned())),
        }
    }
}

fn serve_point(pd: &Pd, control: &mut Control, parameters: &Parameters, bytes: usize) -> Result<Report, SessionError> {
    let device = pd.device();
    let prepared = Prepared::new(pd, parameters, bytes)?;
    control.send(&FromServer::Accepted)?;
    let Point { connections, fitted, idle, before, .. } = prepared.connect(&control.stream)?;
    control.send(&FromServer::Ready)?;
    let plan = plan(parameters, &fitted, bytes);
    let results = match parameters.kind {
        Kind::Latency => {
            let tasks = connections
                .into_iter()
                .map(|(connection, memory)| workload::pong(connection, idle.clone(), plan, memory));
            executor::run(&idle, tasks)
        }
        Kind::Bandwidth => {
            let reception = Reception { verify: parameters.verify, pause_ns: parameters.slow_receiver_us * 1000 };
            let tasks = connections.into_iter().map(|(connection, memory)| {
                let plan = parameters.bidirectional.then_some((plan, memory));
                workload::stream(connection, idle.clone(), device.clone(), plan, reception, |_| {})
            });
            executor::run(&idle, tasks)
        }
    };
    let tallies: Result<Vec<Tally>, ConnectionError> = results.into_iter().collect();
    let tallies = tallies.map_err(|error| SessionError::Connection { bytes, error })?;
    Ok(Report::new(&tallies, &device.counters().since(&before)))
}
