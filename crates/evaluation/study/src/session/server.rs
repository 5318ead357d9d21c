//! The answering end of a session.

use std::net::TcpStream;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::{Connector, with_connector};
use doorbell_verbs::{Device, Pd};

use super::introduction::{Introduced, Terms};
use super::messages::{FromServer, ToServer};
use super::peer::{Patience, Peer};
use super::point::{Point, Prepared};
use super::report::{Performed, Report};
use super::work::{Done, End, Work};
use super::{SessionError, TcpPeer, parties};
use crate::executor::block_on;
use crate::one_sided;
use crate::threads::{OsThreads, Threads};
use crate::unacknowledged::{self, Listener};
use crate::workload::Tally;
use doorbell_machine::cpu::CpuTime;
use doorbell_machine::pinning::ProcessPosition;
use doorbell_record::{Buckets, Parameters, Part, Role, Transport};

/// Client in another process that has completed its opening, and whose requests follow.
#[derive(Debug)]
pub struct AdmittedClient {
    peer: TcpPeer<FromServer, ToServer>,
    first: ToServer,
}

impl AdmittedClient {
    /// Creates the client from its stream and its first line. A [`SessionOpening`](super::SessionOpening) has admitted
    /// the client.
    ///
    /// # Errors
    ///
    /// The operating system rejects an option of the stream.
    pub fn new(stream: TcpStream, first: ToServer) -> Result<Self, SessionError> {
        Ok(Self { peer: TcpPeer::new(stream)?, first })
    }

    /// Serves the client until the client ends the session.
    ///
    /// The function takes ownership of the device. If the host becomes a middlebox, the device is closed and the
    /// middlebox uses the device's address.
    ///
    /// # Errors
    ///
    /// The client made an invalid request, or a point failed. In both cases this end has sent the reason to the client.
    /// Or the client has closed its connection.
    pub fn serve(self, device: Device, terms: &Terms) -> Result<(), SessionError> {
        let Self { mut peer, first } = self;
        let threads = OsThreads::default();
        let result = match block_on(answer_points(&device, (&mut peer, first), &threads, terms)) {
            Ok(Some((shared, place))) => {
                parties::serve(device, &mut peer, &shared, (terms, &terms.pinning.share(place)))
            }
            other => other.map(drop),
        };
        block_on(told(&mut peer, result))
    }

    /// Tells the client the reason why it is not served.
    pub fn refuse(mut self, reason: &str) {
        // If the message does not reach the client, the client has gone.
        let _ = block_on(self.peer.send(FromServer::Failed(reason.to_owned())));
    }
}

/// Serves a peer without admission until the peer ends the session. For example, this process has connected to the
/// peer.
///
/// # Errors
///
/// As [`AdmittedClient::serve`].
pub fn serve(device: Device, stream: TcpStream, terms: &Terms) -> Result<(), SessionError> {
    let mut peer = TcpPeer::new(stream)?;
    block_on(peer.exchange(&[]))?;
    match block_on(peer.receive(Patience::Answer)) {
        Ok(first) => AdmittedClient { peer, first }.serve(device, terms),
        Err(error) => block_on(told(&mut peer, Err(error))),
    }
}

/// Greets a client and tells the client the reason why it is not served.
///
/// # Errors
///
/// The client is gone.
pub fn refuse(stream: TcpStream, reason: &str) -> Result<(), SessionError> {
    let mut peer = TcpPeer::<FromServer, ToServer>::new(stream)?;
    block_on(async {
        peer.exchange(&[]).await?;
        // Read a message first. If the stream closes with unread input, TCP discards data that this end has sent.
        let _ = peer.receive(Patience::Answer).await?;
        peer.send(FromServer::Failed(reason.to_owned())).await
    })
}

/// Serves a peer of any kind with any kind of threads, until the peer ends the session. The peer uses
/// [`Asking`](super::Asking).
///
/// # Errors
///
/// The errors of [`serve`].
pub async fn answer<P: Peer<Says = FromServer, Hears = ToServer>>(
    device: &Device,
    mut peer: P,
    threads: &impl Threads,
    terms: &Terms,
) -> Result<(), SessionError> {
    peer.exchange(&[]).await?;
    let first = match peer.receive(Patience::Answer).await {
        Ok(first) => first,
        Err(error) => return told(&mut peer, Err(error)).await,
    };
    let result = match answer_points(device, (&mut peer, first), threads, terms).await {
        // The parties of a point about shared memory need threads and sockets.
        Ok(Some(_)) => {
            Err(SessionError::Unexpected("a point about shared memory, which requires processes".to_owned()))
        }
        other => other.map(drop),
    };
    told(&mut peer, result).await
}

/// If the session failed, sends the reason to the peer. Returns `result`.
async fn told(peer: &mut impl Peer<Says = FromServer>, result: Result<(), SessionError>) -> Result<(), SessionError> {
    if let Err(error) = &result
        && !matches!(error, SessionError::Control(_))
    {
        // If the message does not reach the peer, the peer has gone. The error in `result` is more useful than the
        // failure to send.
        let _ = peer.send(FromServer::Failed(error.to_string())).await;
    }
    result
}

/// Serves a client whose first message was `first`, until the client ends the session or requests a point about shared
/// memory. For such a point, returns its parameters, and this process's position among the processes that share its
/// CPUs.
async fn answer_points<P: Peer<Says = FromServer, Hears = ToServer>>(
    device: &Device,
    (peer, mut first): (&mut P, ToServer),
    threads: &impl Threads,
    terms: &Terms,
) -> Result<Option<(Box<Parameters>, ProcessPosition)>, SessionError> {
    let mut is_introduced = false;
    let mut place = ProcessPosition::default();
    if let ToServer::Introduce(introduction) = first {
        terms.admit(Some(&introduction))?;
        let introduced = Introduced::now(&device.attributes(), terms, &introduction);
        peer.send(FromServer::Introduced(Box::new(introduced))).await?;
        first = peer.receive(Patience::Answer).await?;
        (is_introduced, place) = (true, introduction.place);
    } else {
        terms.admit(None)?;
    }
    let parameters = match first {
        ToServer::Parameters(parameters) => parameters,
        // The client only wanted the introduction.
        ToServer::End if is_introduced => return Ok(None),
        _ => return Err(SessionError::Unexpected("a first request with no parameters".to_owned())),
    };
    if parameters.memory_bytes > terms.memory_bytes {
        return Err(SessionError::Memory { asked: parameters.memory_bytes, allowed: terms.memory_bytes });
    }
    parameters.check()?;
    if parameters.far.is_some() {
        return Ok(Some((parameters, place)));
    }
    let pd = device.create_pd()?;
    let (cast, cpus) = (parameters.cast(), parameters.pinning(&terms.pinning.share(place)).cpus);
    peer.send(FromServer::Accepted).await?;
    loop {
        let (bytes, part, connections, numbers) = match peer.receive(terms.patience()).await? {
            ToServer::Point { bytes, connections } => {
                (bytes, cast.answering, connections.unwrap_or(parameters.connections), Vec::new())
            }
            ToServer::Ask { bytes, connections, numbers } => (bytes, cast.asking, connections, numbers),
            ToServer::Clock => {
                peer.send(FromServer::Clock { now_ns: device.now_ns() }).await?;
                continue;
            }
            ToServer::Go { .. } => return Err(SessionError::Unexpected("go before the first point".to_owned())),
            ToServer::End => return Ok(None),
            ToServer::Introduce(_) => {
                return Err(SessionError::Unexpected("an introduction after the parameters".to_owned()));
            }
            ToServer::Parameters(_) => {
                return Err(SessionError::Unexpected("a second message with parameters".to_owned()));
            }
            ToServer::Done { .. } => return Err(SessionError::Unexpected("done before the first point".to_owned())),
            other => return Err(other.instead_of("a point of messages or one-sided operations")),
        };
        if !parameters.sizes.contains(&bytes) {
            return Err(SessionError::UnknownSize(bytes));
        }
        let part = share(part, connections)?;
        check_numbers(&numbers, &parameters)?;
        let _pinned = threads.pin(&cpus)?;
        let report = with_connector!(parameters.protocol, connector =>
            perform_part(connector, &pd, peer, threads, &parameters, bytes, (part, &numbers)).await);
        let report = report.map_err(|error| error.on(device))?;
        peer.send(report).await?;
    }
}

/// Returns the part with `connections` of its connections.
fn share(part: Part, connections: usize) -> Result<Part, SessionError> {
    if !(1..=part.connections).contains(&connections) {
        let what = format!("a point of {connections} connections: must be 1 to {}", part.connections);
        return Err(SessionError::Unexpected(what));
    }
    Ok(part.share(connections))
}

/// Checks the numbers of connections among those of all hosts.
fn check_numbers(numbers: &[usize], parameters: &Parameters) -> Result<(), SessionError> {
    let connections = parameters.connections;
    numbers.iter().find(|&&number| number >= connections).map_or(Ok(()), |number| {
        let what = format!("connection number {number}: must be 0 to {}", connections.saturating_sub(1));
        Err(SessionError::Unexpected(what))
    })
}

/// Makes the connections of a point and performs a part of it. Returns the report for the peer. An asking part begins
/// at the common start time of all hosts. `numbers` are those of [`ToServer::Ask`].
async fn perform_part<C: Connector<Connection: Send>, P: Peer<Says = FromServer, Hears = ToServer>>(
    protocol: C,
    pd: &Pd,
    peer: &mut P,
    threads: &impl Threads,
    parameters: &Parameters,
    bytes: usize,
    (part, numbers): (Part, &[usize]),
) -> Result<FromServer, SessionError> {
    let device = pd.device();
    let prepared = Prepared::new(&protocol, pd, parameters, bytes, &part, |config| config)?.numbered(numbers);
    peer.send(FromServer::Accepted).await?;
    let mut point = prepared.connect_to(peer).await?;
    let (before, mut cpu_before) = (point.before, threads.cpu_time());
    peer.send(FromServer::Ready { memory: if part.answers { point.memory() } else { Vec::new() } }).await?;
    if !part.answers {
        let (memory, start_ns) = peer.receive(Patience::Answer).await?.go(device)?;
        let waiter = threads.waiter(None);
        let until_start = async {
            while device.now_ns() < start_ns {
                waiter.wait(None, Some(start_ns)).await;
            }
        };
        threads.run(&waiter, [until_start], || Ok::<_, SessionError>(())).await?;
        point.aim(&memory)?;
        cpu_before = threads.cpu_time();
    }
    // Targets and listeners count no empty polls: a target's polls drive the software RNIC.
    let cpu = || CpuTime { empty_ns: None, ..threads.cpu_time().since(cpu_before) };
    let (Done { tallies, histogram }, cpu) = if part.answers && parameters.operation.is_one_sided() {
        (be_target(&point, peer).await?.into(), cpu())
    } else if part.answers && parameters.transport != Transport::Rc {
        (be_listener(&point, peer).await?.into(), cpu())
    } else {
        point.perform(&*peer, (threads, cpu_before), (true, &|_| {})).await?
    };
    let report = Report::new(&tallies, device, &before, cpu);
    if part.answers {
        return Ok(FromServer::Report(Box::new(report)));
    }
    let histogram_ns = histogram.as_ref().map(Buckets::of);
    Ok(FromServer::Performed(Box::new(Performed { tallies, histogram_ns, report })))
}

/// Receives messages until the peer reports that it has sent all messages, and then the messages in flight.
async fn be_listener<C: Connector>(
    point: &Point<C>,
    peer: &mut impl Peer<Says = FromServer, Hears = ToServer>,
) -> Result<Vec<Tally>, SessionError> {
    let (plan, answers) = (&point.work.plan, point.work.part.role == Role::Responder);
    let failed = |error| SessionError::Connection { bytes: plan.bytes, error };
    let listeners = point.ends.iter().filter_map(|end| match end {
        End::Unacknowledged(end) => Some(Listener::new(end, plan, answers)),
        _ => None,
    });
    let mut listeners: Vec<_> = listeners.collect();
    let mut result = Ok(0);
    peer.until_heard(|| {
        if result.is_ok() {
            result = listeners.iter_mut().try_fold(0, |count, listener| Ok(count + listener.turn()?));
        }
    })
    .await?;
    result.map_err(failed)?;
    let messages = peer.receive(Patience::Endless).await?.done(listeners.len())?;
    unacknowledged::hear_out(&mut listeners, &messages, &point.work.device).await.map_err(failed)?;
    Ok(listeners.iter().map(Listener::tally).collect())
}

/// Provides memory for the peer's operations until the peer reports that they are complete.
async fn be_target<C: Connector>(
    point: &Point<C>,
    peer: &mut impl Peer<Says = FromServer, Hears = ToServer>,
) -> Result<Vec<Tally>, SessionError> {
    let Work { parameters, plan, device, .. } = &point.work;
    let ends = point.ends.iter().filter_map(|end| if let End::OneSided(end, _) = end { Some(end) } else { None });
    let ends: Vec<_> = ends.collect();
    // A hardware RNIC serves the operations without this thread, and on few processors a polling target would slow down
    // other threads. A software RNIC runs on the processors of its programs. A target that polls runs the software RNIC
    // in its own thread. With `events`, the target sleeps and the RNIC's own thread serves the operations.
    let wants_processor = device.attributes().provider == doorbell_verbs::soft::PROVIDER;
    if let (Some(end), true) = (ends.first(), wants_processor && !parameters.events) {
        peer.until_heard(|| end.lend_processor()).await?;
    }
    let messages = peer.receive(Patience::Endless).await?.done(ends.len())?;
    let tally = |(end, received): (&one_sided::End, u64)| {
        let damaged =
            if parameters.verify { end.damaged(parameters.operation, plan.bytes, plan.buffers, received) } else { 0 };
        Tally { received, damaged, ..Tally::default() }
    };
    Ok(ends.into_iter().zip(messages).map(tally).collect())
}
