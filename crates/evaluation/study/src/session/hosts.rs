//! A session of many hosts.
//!
//! One process is the coordinator. The coordinator has a control connection to each host, including the host on its own
//! machine. Each host performs the asking or the answering part of a point, with its share of the connections
//! ([`Dealt`]). The coordinator relays descriptions of connections between the hosts, so a host reaches other hosts
//! only over RDMA.
//!
//! Clocks of hosts differ. The coordinator asks each host several times for its time, and uses the answer with the
//! shortest round trip. The host has read its clock during that round trip, so half of the round-trip time bounds the
//! error. All asking hosts begin at one instant, each by its own clock.

mod clock;
mod together;

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use doorbell_exchange::setup::{EndpointDescription, SetupError};
use doorbell_verbs::PathMtu;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::introduction::Introduction;
use super::messages::{FromServer, ToServer};
use super::peer::{ANSWER, PERFORMANCE, Patience, Peer};
use super::{SessionError, TcpPeer};
use crate::executor::block_on;
use crate::layout::{Lane, Layout, Share};
use crate::one_sided::RemoteMemory;
use doorbell_machine::pinning::ProcessPosition;
use doorbell_record::settings::MIX;
use doorbell_record::{Extent, Parameters, PointResult, Transport};
use together::{SeenBy, Together};

pub(super) use clock::{Clock, Watch};
pub(super) use together::{Interval, in_common, of_common_time};

/// Maximum time to wait for errors of other hosts after one host has failed.
const REASONS: Duration = Duration::from_millis(500);

/// Maximum number of reads of each host's clock.
const CLOCK_LOOKS: usize = 8;

/// Round-trip time in nanoseconds below which a clock read is accurate enough. The error is half of this time, which is
/// a two-thousandth of the shortest repetition.
const SHORT_LOOK_NS: u64 = 100_000;

/// Time from the request to start until the start. The request must reach all hosts within this time.
const UNTIL_START: Duration = Duration::from_millis(3);

/// Failure of a session, with the host that caused the failure.
#[derive(Debug, thiserror::Error)]
#[error("{host}: {error}")]
pub struct HostError {
    /// Name of the host.
    pub host: String,
    /// Reason of the failure.
    #[source]
    pub error: SessionError,
}

impl HostError {
    /// Returns whether the host is gone or unreachable.
    pub fn is_gone(&self) -> bool {
        matches!(self.error, SessionError::Control(_))
    }
}

/// Connections of a point, distributed over hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dealt {
    lanes: Vec<Lane>,
    shares: Vec<Share>,
}

impl Dealt {
    /// Distributes `connections` connections over at least two hosts, as `layout` requires.
    pub fn new(layout: Layout, connections: usize, hosts: usize) -> Self {
        let lanes = layout.deal(connections, hosts);
        let shares = layout.shares(&lanes, hosts);
        Self { lanes, shares }
    }

    /// Returns the shares of all hosts that have a connection, in the order of hosts.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }
}

/// Host, with the coordinator's control connection to that host.
pub(super) struct Host {
    pub(super) name: String,
    place: ProcessPosition,
    peer: TcpPeer<ToServer, FromServer>,
}

impl Host {
    pub(super) fn failed(&self, error: impl Into<SessionError>) -> HostError {
        HostError { host: self.name.clone(), error: error.into() }
    }

    pub(super) fn say(&mut self, message: ToServer) -> Result<(), HostError> {
        block_on(self.peer.send(message)).map_err(|error| self.failed(error))
    }

    /// Receives the next message of the host, which has begun to arrive or arrives soon.
    fn hear(&mut self) -> Result<FromServer, HostError> {
        match block_on(self.peer.receive(Patience::Answer)) {
            Ok(FromServer::Failed(reason)) => Err(self.failed(SessionError::Peer(reason))),
            Ok(message) => Ok(message),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Reads the clock of the host several times.
    fn clock(&mut self, watch: Watch) -> Result<Clock, HostError> {
        let mut looks = Vec::with_capacity(CLOCK_LOOKS);
        for _ in 0..CLOCK_LOOKS {
            let before = watch.ns();
            self.say(ToServer::Clock)?;
            let now_ns = self.hear()?.clock().map_err(|error| self.failed(error))?;
            let after = watch.ns();
            looks.push((now_ns, before, after));
            if after - before <= SHORT_LOOK_NS {
                break;
            }
        }
        Ok(Clock::of(looks))
    }
}

/// Hosts that have a part in a point.
pub(super) struct Hosts {
    pub(super) hosts: Vec<Host>,
    watch: Watch,
}

impl Hosts {
    pub(super) fn say(&mut self, message: impl Fn(usize) -> ToServer) -> Result<(), HostError> {
        self.hosts.iter_mut().enumerate().try_for_each(|(index, host)| host.say(message(index)))
    }

    /// Receives the next message of each host. Returns the messages in the order of hosts.
    pub(super) fn hear(&mut self, patience: Duration) -> Result<Vec<FromServer>, HostError> {
        let mut heard = self.nothing();
        self.hear_until(&mut heard, |_| true, Some(patience))?;
        Ok(heard.into_iter().flatten().collect())
    }

    pub(super) fn nothing(&self) -> Vec<Option<FromServer>> {
        self.hosts.iter().map(|_| None).collect()
    }

    /// Receives the next message of each host. `content` returns the content of the message that is expected of the
    /// host with this index.
    pub(super) fn expect<T>(
        &mut self,
        patience: Duration,
        content: impl Fn(usize, FromServer) -> Result<T, SessionError>,
    ) -> Result<Vec<T>, HostError> {
        let heard = self.hear(patience)?.into_iter().enumerate();
        heard.map(|(index, said)| content(index, said).map_err(|error| self.hosts[index].failed(error))).collect()
    }

    /// Receives messages until all `awaited` hosts have sent a message. The function fails if any host fails or closes
    /// its connection, even a host that is not awaited. If several hosts fail, the function returns the error of a host
    /// that is gone, since the other errors are consequences.
    pub(super) fn hear_until(
        &mut self,
        heard: &mut [Option<FromServer>],
        awaited: impl Fn(usize) -> bool,
        patience: Option<Duration>,
    ) -> Result<(), HostError> {
        let mut failures: Vec<HostError> = Vec::new();
        let mut until = patience.map(|patience| self.watch.elapsed() + patience);
        loop {
            let pending: Vec<usize> = (0..heard.len()).filter(|&index| heard[index].is_none()).collect();
            let failed = |index: &usize| failures.iter().any(|failure| failure.host == self.hosts[*index].name);
            let pending: Vec<usize> = pending.into_iter().filter(|index| !failed(index)).collect();
            if failures.is_empty() && !pending.iter().any(|&index| awaited(index)) {
                return Ok(());
            }
            let left = until.map(|until| until.saturating_sub(self.watch.elapsed()));
            if pending.is_empty() || left == Some(Duration::ZERO) {
                break;
            }
            for index in self.readable(&pending, left)? {
                match self.hosts[index].hear() {
                    Ok(said) => heard[index] = Some(said),
                    Err(failure) => {
                        failures.push(failure);
                        let soon = self.watch.elapsed() + REASONS;
                        until = Some(until.map_or(soon, |until| until.min(soon)));
                    }
                }
            }
        }
        let best = failures.iter().position(HostError::is_gone).unwrap_or(0);
        if best < failures.len() {
            return Err(failures.swap_remove(best));
        }
        let silent = (0..heard.len()).find(|&index| heard[index].is_none() && awaited(index)).unwrap_or(0);
        let silence = std::io::Error::new(std::io::ErrorKind::TimedOut, "it does not answer");
        Err(self.hosts[silent].failed(SessionError::Control(silence)))
    }

    /// Waits until a pending host has sent something or is gone, or until the time is over. Returns all such hosts.
    fn readable(&self, pending: &[usize], left: Option<Duration>) -> Result<Vec<usize>, HostError> {
        let mut fds: Vec<PollFd<'_>> = pending
            .iter()
            .map(|&index| PollFd::new(self.hosts[index].peer.stream().as_fd(), PollFlags::POLLIN))
            .collect();
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            // Round up. A timeout of 0 ms would make the caller spin until the deadline.
            PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(self.hosts[pending[0]].failed(SessionError::Control(error.into()))),
        }
        let has_news = |fd: &PollFd<'_>| fd.revents().is_some_and(|news| !news.is_empty());
        Ok(pending.iter().zip(&fds).filter(|(_, fd)| has_news(fd)).map(|(&index, _)| index).collect())
    }
}

/// Measures one point on several hosts.
///
/// `streams` has an entry for each host with a share, in the order of [`Dealt::shares`]. An entry has the name of the
/// host for errors and records, the stream, and the host's position among the processes on its machine. The process at
/// the other end of each stream must call [`serve`](super::serve).
///
/// # Errors
///
/// A host refuses, fails, or is gone. The error names the host.
///
/// # Panics
///
/// Panics if the number of streams differs from the number of shares.
pub fn measure_on(
    streams: Vec<(String, TcpStream, ProcessPosition)>,
    introduction: &Introduction,
    parameters: &Parameters,
    bytes: usize,
    dealt: &Dealt,
) -> Result<PointResult, HostError> {
    let shares = dealt.shares();
    assert_eq!(streams.len(), shares.len(), "one stream for each host that has a share");
    if parameters.mix.is_some() {
        let host = streams.first().map_or_else(String::new, |(name, _, _)| name.clone());
        return Err(HostError { host, error: MIX.refuse("given", "one size on several hosts").into() });
    }
    let (mut hosts, clocks) = Hosts::meet(streams, introduction, parameters)?;
    let joined = hosts.connect(dealt, bytes)?;
    let start_ns = hosts.go(dealt, &clocks, &joined)?;
    let seen = hosts.hear_performance(parameters, dealt)?;
    hosts.say(|_| ToServer::End)?;
    let names: Vec<String> = hosts.hosts.into_iter().map(|host| host.name).collect();
    Together { names, parameters, bytes, dealt, clocks, mtu: joined.mtu, ipv6: joined.ipv6, start_ns }.result(seen)
}

/// Properties of the connections after set-up.
struct Joined {
    mtu: PathMtu,
    ipv6: bool,
    /// For one-sided operations, the region for each connection.
    memory: Vec<Option<RemoteMemory>>,
}

impl Hosts {
    /// Greets all hosts, sends the parameters to each host, and reads the clock of each host.
    pub(super) fn meet(
        streams: Vec<(String, TcpStream, ProcessPosition)>,
        introduction: &Introduction,
        parameters: &Parameters,
    ) -> Result<(Self, Vec<Clock>), HostError> {
        let joined = |(name, stream, place): (String, TcpStream, ProcessPosition)| match TcpPeer::new(stream) {
            Ok(peer) => Ok(Host { name, place, peer }),
            Err(error) => Err(HostError { host: name, error }),
        };
        let hosts = streams.into_iter().map(joined).collect::<Result<Vec<_>, _>>()?;
        let mut hosts = Self { hosts, watch: Watch::start() };
        hosts.greet(introduction, parameters)?;
        let watch = hosts.watch;
        let clocks = hosts.hosts.iter_mut().map(|host| host.clock(watch)).collect::<Result<Vec<_>, _>>()?;
        Ok((hosts, clocks))
    }

    fn greet(&mut self, introduction: &Introduction, parameters: &Parameters) -> Result<(), HostError> {
        // Greet all hosts before waiting for answers, since each host opens a device before it answers.
        for host in &self.hosts {
            host.peer.say_descriptions(&[]).map_err(|error| host.failed(error))?;
        }
        for host in &self.hosts {
            host.peer.hear_descriptions(0).map_err(|error| host.failed(gone_or(error)))?;
        }
        for host in &mut self.hosts {
            let introduction = Introduction { place: host.place, ..introduction.clone() };
            host.say(ToServer::Introduce(Box::new(introduction)))?;
        }
        self.expect(ANSWER, |_, said| said.introduced())?;
        self.say(|_| ToServer::Parameters(Box::new(parameters.clone())))?;
        self.expect(ANSWER, |_, said| said.accepted()).map(drop)
    }

    /// Tells each host to make its connections, and relays the descriptions between the hosts.
    fn connect(&mut self, dealt: &Dealt, bytes: usize) -> Result<Joined, HostError> {
        let Dealt { lanes, shares } = dealt;
        self.say(|index| {
            let connections = shares[index].lanes.len();
            match shares[index].asks {
                true => ToServer::Ask { bytes, connections, numbers: shares[index].lanes.clone() },
                false => ToServer::Point { bytes, connections: Some(connections) },
            }
        })?;
        self.expect(ANSWER, |_, said| said.accepted())?;
        // Descriptions of the asking and of the answering end of each connection.
        let mut described: Vec<[Option<EndpointDescription>; 2]> = vec![[None; 2]; lanes.len()];
        let end = |lane: usize, host: usize| usize::from(lanes[lane].asks != host);
        for (host, share) in self.hosts.iter().zip(shares) {
            let heard = host.peer.hear_descriptions(share.lanes.len()).map_err(|error| host.failed(gone_or(error)))?;
            for (&lane, description) in share.lanes.iter().zip(heard) {
                described[lane][end(lane, share.host)] = Some(description);
            }
        }
        let all = described.iter().flatten().flatten();
        let mtu = all.map(|description| description.path_mtu).min().unwrap_or(PathMtu::Mtu4096);
        let ipv6 = described.iter().flatten().flatten().any(|end| end.gid.to_ipv4_mapped().is_none());
        for (host, share) in self.hosts.iter().zip(shares) {
            let other = |&lane: &usize| described[lane][1 - end(lane, share.host)];
            let others: Vec<EndpointDescription> = share.lanes.iter().filter_map(other).collect();
            host.peer.say_descriptions(&others).map_err(|error| host.failed(error))?;
        }
        let mut memory = vec![None; lanes.len()];
        for (share, regions) in shares.iter().zip(self.expect(ANSWER, |_, said| said.ready())?) {
            for (&lane, region) in share.lanes.iter().zip(regions) {
                memory[lane] = Some(region);
            }
        }
        Ok(Joined { mtu, ipv6, memory })
    }

    /// Returns the instant at which all hosts begin, on the coordinator's clock.
    pub(super) fn soon(&self, clocks: &[Clock]) -> u64 {
        let farthest_ns = clocks.iter().map(|clock| clock.error_ns).max().unwrap_or(0);
        self.watch.ns() + UNTIL_START.as_nanos() as u64 + 2 * farthest_ns.min(ANSWER.as_nanos() as u64)
    }

    /// Tells all asking hosts to begin at one instant. Returns that instant on the coordinator's clock.
    fn go(&mut self, dealt: &Dealt, clocks: &[Clock], joined: &Joined) -> Result<u64, HostError> {
        let start_ns = self.soon(clocks);
        for ((host, share), clock) in self.hosts.iter_mut().zip(&dealt.shares).zip(clocks) {
            if share.asks {
                let memory = share.lanes.iter().filter_map(|&lane| joined.memory[lane]).collect();
                host.say(ToServer::Go { memory, start_ns: clock.at(start_ns) })?;
            }
        }
        Ok(start_ns)
    }

    /// Receives the report of each host. Returns the reports in the order of hosts.
    fn hear_performance(&mut self, parameters: &Parameters, dealt: &Dealt) -> Result<Vec<SeenBy>, HostError> {
        let Dealt { lanes, shares } = dealt;
        let patience = match parameters.extent {
            Extent::Seconds(seconds) => Some(Duration::from_secs_f64(seconds) + PERFORMANCE),
            Extent::Messages(_) => None,
        };
        let mut heard = self.nothing();
        self.hear_until(&mut heard, |index| shares[index].asks, patience)?;
        let mut sent = vec![0; lanes.len()];
        for (index, said) in heard.iter().enumerate() {
            if let Some(FromServer::Performed(performed)) = said {
                let count = performed.tallies.len();
                if count != shares[index].lanes.len() {
                    let what = format!("what {count} connections did, of {}", shares[index].lanes.len());
                    return Err(self.hosts[index].failed(SessionError::Unexpected(what)));
                }
                for (&lane, tally) in shares[index].lanes.iter().zip(&performed.tallies) {
                    sent[lane] = tally.sent;
                }
            }
        }
        if parameters.operation.is_one_sided() || parameters.transport != Transport::Rc {
            for (host, share) in self.hosts.iter_mut().zip(shares).filter(|(_, share)| !share.asks) {
                host.say(ToServer::Done { messages: share.lanes.iter().map(|&lane| sent[lane]).collect() })?;
            }
        }
        self.hear_until(&mut heard, |_| true, Some(ANSWER))?;
        let seen = heard.into_iter().flatten().enumerate().map(|(index, said)| {
            let seen = match shares[index].asks {
                true => said.performed().map(SeenBy::Asking),
                false => said.report().map(SeenBy::Answering),
            };
            seen.map_err(|error| self.hosts[index].failed(error))
        });
        seen.collect()
    }
}

/// Converts an error of set-up. A host that closes the connection during set-up counts as gone, like a host that closes
/// it later.
fn gone_or(error: SetupError) -> SessionError {
    match error {
        SetupError::Io { error, .. } => SessionError::Control(error),
        other => SessionError::Setup(other),
    }
}
