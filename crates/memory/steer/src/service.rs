//! The box as a service. It sets up queue pairs over TCP with the node and with each client, like all programs of
//! Doorbell ([`doorbell_exchange::setup`]). The node sees the box as a client, and clients see the box as the node.
//!
//! Separate threads run the set-up. They send jobs to a queue, and the forwarding thread runs the jobs on the state of
//! the box. So the forwarding thread waits for no lock.

mod clients;
mod jobs;
mod node;
mod perftest;
mod plane;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use doorbell_exchange::address::ReachError;
use doorbell_exchange::admission::Note;
use doorbell_fabric::Link;
use doorbell_wire::PathMtu;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Driver, Layout};
use jobs::Jobs;
use plane::Plane;

/// Time without an acknowledgement of the node after which the box retransmits. Each retransmission doubles the time,
/// up to 64 times this value.
const NODE_TIMEOUT_NS: u64 = 4_000_000;

/// Time without packets for which the box polls before it sleeps.
const LINGER: Duration = Duration::from_micros(100);

/// Time after which the loop stops to work on waiting set-up jobs, so that packets of connected clients are not
/// delayed.
const JOBS_BUDGET: Duration = Duration::from_micros(200);

/// Maximum sleep of the loop. The loop checks whether it shall end after each sleep.
const NAP: Duration = Duration::from_millis(20);

/// A store in the memory of the node, whose requests the box steers.
#[derive(Clone)]
pub struct SteeredStore {
    /// Bytes that the region of the node must have.
    pub region_bytes: u64,
    /// Function that returns the layout of the store in a region that begins at this address.
    pub layout: Arc<dyn Fn(u64) -> Box<dyn Layout> + Send + Sync>,
}

impl fmt::Debug for SteeredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeredStore").field("region_bytes", &self.region_bytes).finish_non_exhaustive()
    }
}

/// Way in which the box connects clients to the node.
#[derive(Debug)]
pub enum Mode {
    /// All clients share one queue pair with the memory node at the other end of this connection.
    Shared(TcpStream),
    /// Each client has a queue pair of its own at the node, and packets pass unchanged.
    Relay,
    /// Programs of perftest, one pair after another: the server is at the node.
    Perftest,
}

/// Settings of a box.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the box for clients and node.
    pub address: IpAddr,
    /// UDP port of all ends.
    pub udp_port: u16,
    /// Path MTU of the box's link.
    pub path_mtu: PathMtu,
    /// Whether all accesses to the node's memory pass this box.
    pub exclusive: bool,
    /// Store in the node's memory, if the box steers requests.
    pub store: Option<SteeredStore>,
    /// Maximum concurrent READs and atomics that the node accepts.
    pub reads: u8,
    /// Time without an acknowledgement, despite retransmissions, after which the box gives up the node.
    pub patience: Duration,
    /// Maximum number of concurrent clients.
    pub clients: usize,
    /// HOST:PORT of the node.
    pub node: String,
}

impl Settings {
    /// Returns the number of retransmissions within [`patience`](Self::patience).
    fn node_retries(&self) -> u8 {
        let mut left_ns = (self.patience.as_nanos() as u64).saturating_sub(NODE_TIMEOUT_NS);
        let mut retries = 0;
        while retries < u8::MAX && left_ns > 0 {
            retries += 1;
            left_ns = left_ns.saturating_sub(NODE_TIMEOUT_NS << retries.min(6));
        }
        retries
    }

    /// Returns the IP address of a GID, if the box can send to that address.
    fn reachable(&self, peer: &str, gid: Ipv6Addr) -> Result<IpAddr, ServiceError> {
        let (address, own) = (gid.to_canonical(), self.address);
        let is_usable = !address.is_unspecified() && !address.is_multicast() && address != own;
        if !is_usable || address.is_ipv4() != own.is_ipv4() {
            return Err(ServiceError::Address { peer: peer.to_owned(), gid, own });
        }
        Ok(address)
    }
}

/// Reason why a queue pair is not set up, or why a box fails.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors say it")]
#[non_exhaustive]
pub enum ServiceError {
    #[error(transparent)]
    Setup(#[from] doorbell_exchange::setup::SetupError),
    #[error("{peer} gave up the setup: it cannot connect to this middlebox, or its program ended")]
    GaveUp { peer: String },
    #[error("{peer} sets up a connection of messages; a box takes queue pairs for READ, WRITE and atomics")]
    Messages { peer: String },
    #[error("{peer} uses UDP port {theirs}, the box {own}: give both the same --udp-port")]
    UdpPort { peer: String, theirs: u16, own: u16 },
    #[error("{peer} gives {gid} as the address of its RNIC: the box at {own} cannot send to this address")]
    Address { peer: String, gid: Ipv6Addr, own: IpAddr },
    #[error("{peer} opens no memory: a memory node shares a region with its clients")]
    NoMemory { peer: String },
    #[error("the region of {peer} has {given} bytes, a store of these sizes needs {needed}")]
    TooSmall { peer: String, given: u64, needed: u64 },
    #[error("the memory node is currently unavailable")]
    NoNode,
    #[error(transparent)]
    Steer(#[from] crate::SetupError),
    #[error("the box is ending")]
    Ending,
    #[error("perftest's {who} names a queue pair out of turn: client and server must take turns")]
    OutOfTurn { who: &'static str },
    #[error("perftest's programs did not connect their queue pairs within 30 s")]
    Unconnected,
    #[error("perftest does not send its path MTU: use version 5.1 or later of perftest")]
    NoPathMtu,
    #[error(
        "both programs of perftest use a path MTU of {theirs} bytes, the box's link takes {own}: give them -m {own}"
    )]
    PathMtu { theirs: usize, own: usize },
    #[error("the system returned no random number for an rkey: {0}")]
    NoKey(#[from] getrandom::Error),
    #[error("cannot listen on {listen}: {error}")]
    Listen { listen: String, error: io::Error },
    #[error(transparent)]
    Reach(#[from] ReachError),
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("the box cannot use its UDP socket any more: {0}")]
    Link(#[source] io::Error),
}

/// Counters of the clients of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Clients that were connected.
    pub served: u64,
    /// Clients that were refused.
    pub refused: u64,
    /// Queue pairs that were made with the node.
    pub attached: u64,
}

/// A running control plane, and the jobs that it has for the box.
#[derive(Debug)]
pub struct Service {
    plane: Arc<Plane>,
    jobs: Jobs,
    /// Receives the error if the first queue pair with the node cannot be set up.
    failed: Option<Receiver<ServiceError>>,
}

impl Service {
    /// Starts the threads that set up queue pairs: one for the memory node, and one for each client that connects to
    /// `listen`. `note` shows refused clients and the state of the node.
    ///
    /// # Errors
    ///
    /// The system refuses a listener, a descriptor or a thread.
    pub fn start(settings: Settings, mode: Mode, listen: &str, note: Note) -> Result<Self, ServiceError> {
        let (plane, jobs) = Plane::new(settings, matches!(mode, Mode::Relay), note)?;
        let failed = match mode {
            Mode::Shared(stream) => plane.start(Some(stream), listen)?,
            Mode::Relay => plane.start(None, listen)?,
            Mode::Perftest => plane.start_perftest(listen).map(|()| None)?,
        };
        Ok(Self { plane, jobs, failed })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.plane.own
    }

    /// Returns the counters of clients.
    pub fn counters(&self) -> ClientCounters {
        let counts = &self.plane.counts;
        let [served, refused, attached] =
            [&counts.served, &counts.refused, &counts.attached].map(|count| count.load(Ordering::Relaxed));
        ClientCounters { served, refused, attached }
    }

    /// Forwards packets until `is_over`, until the time is over, or until the first set-up with the node fails.
    /// `readable` is the descriptor of the driver's link.
    ///
    /// # Errors
    ///
    /// The link is broken, or the first queue pair with the node cannot be set up.
    pub fn forward<L: Link>(
        &self,
        driver: &mut Driver<L>,
        readable: &impl AsFd,
        during: Option<Duration>,
        is_over: impl Fn() -> bool,
    ) -> Result<(), ServiceError> {
        let begun = Instant::now();
        let until = during.map(|during| begun + during);
        let mut busy_at = begun;
        let mut failure = None;
        loop {
            let jobs_done = self.jobs.work_off(driver.steer_mut(), JOBS_BUDGET);
            if let Some(Ok(failure)) = self.failed.as_ref().map(Receiver::try_recv) {
                return Err(failure);
            }
            let received = driver.pump((Instant::now() - begun).as_nanos() as u64).map_err(ServiceError::Link)?;
            if driver.steer().node_failure() != failure {
                failure = driver.steer().node_failure();
                self.plane.node_failed(failure);
            }
            let now = Instant::now();
            if is_over() || until.is_some_and(|until| now >= until) {
                return Ok(());
            }
            if received > 0 || jobs_done > 0 {
                busy_at = now;
            } else if now - busy_at < LINGER || driver.is_link_full() {
                std::thread::yield_now(); // a peer may wait for this very CPU
            } else {
                let timer = driver.poll_timeout().map(Duration::from_nanos);
                let left = [timer.map(|at| at.saturating_sub(now - begun)), until.map(|until| until - now)];
                let nap = left.into_iter().flatten().min().unwrap_or(NAP).min(NAP);
                // The timeout of `poll` is in whole milliseconds, so a nap below one millisecond becomes 0: no sleep.
                let timeout = PollTimeout::try_from(nap).unwrap_or(PollTimeout::ZERO);
                // A signal interrupts `poll`. The loop then checks whether it shall end.
                let mut watched = [readable.as_fd(), self.jobs.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
                let _ = poll(&mut watched, timeout);
            }
        }
    }
}
