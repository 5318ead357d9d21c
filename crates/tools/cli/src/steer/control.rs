//! Control plane of the box. The box sets up queue pairs over TCP with the node and with each client, like all programs
//! of Doorbell (`doorbell_exchange::setup`). The node sees the box as a client, and clients see the box as the node.
//!
//! Separate threads run the set-up. They send jobs to a queue, and the forwarding thread runs the jobs on the state of
//! the box. So the forwarding thread waits for no lock.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use doorbell_exchange::admission::Hello;
use doorbell_exchange::setup::{self, EndpointDescription, READY, RemoteRegion, SetupError, Timed};
use doorbell_farmem::{Geometry, StoreLayout};
use doorbell_steer::{ClientEnd, Layout, NodeEnd, NodeFailure, Region, Steer};
use doorbell_sync::IgnorePoison;
use doorbell_verbs::Access;
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::{SockRef, TcpKeepalive};

use super::shut_out;
use crate::admission::{Client, Clients};
use crate::control::reach;
use crate::failure::Failure;
use crate::output::note;

/// Time after which a set-up with the node or a client fails.
const DEADLINE: Duration = Duration::from_secs(10);

/// Pause before the box connects to a node again.
const AGAIN: Duration = Duration::from_secs(1);

/// Keepalive that detects a silently lost machine after about half a minute.
pub(super) const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5)).with_retries(4);

/// Maximum number of connections in set-up, in addition to the connections of served clients.
const IN_SETUP: usize = 64;

/// Interval at which the box checks whether the node has answered all requests of a client that is to be removed.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// Time without an acknowledgement of the node after which the box retransmits. Each retransmission doubles the time,
/// up to 64 times this value.
pub(super) const NODE_TIMEOUT_NS: u64 = 4_000_000;

/// Access of clients to the node's memory.
pub(super) const ALL_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A job that the forwarding thread runs on the state of the box.
pub(super) type Job = Box<dyn FnOnce(&mut Steer) + Send>;

/// Jobs that wait for the forwarding thread.
#[derive(Debug)]
pub(super) struct Jobs {
    queue: Receiver<Job>,
    kick: Arc<EventFd>,
}

impl Jobs {
    /// Runs jobs until none waits or `budget` has passed, since packets of connected clients wait meanwhile. Returns
    /// the number of jobs done.
    pub(super) fn work_off(&self, steer: &mut Steer, budget: Duration) -> usize {
        let _ = self.kick.read(); // reset the event, so that the next job wakes the thread again
        let begun = Instant::now();
        let mut done = 0;
        while done == 0 || begun.elapsed() < budget {
            let Ok(job) = self.queue.try_recv() else { return done };
            job(steer);
            done += 1;
        }
        // Jobs may remain. Set the event, so that the thread returns to the jobs after the packets that have arrived.
        let _ = self.kick.write(1);
        done
    }
}

impl AsFd for Jobs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }
}

/// Description of the box for set-up.
#[derive(Clone, Debug)]
pub(super) struct BoxDescription {
    pub(super) address: IpAddr,
    pub(super) udp_port: u16,
    pub(super) path_mtu: PathMtu,
    pub(super) exclusive: bool,
    pub(super) store: Option<Geometry>,
    pub(super) steers_reads: bool,
    pub(super) reads: u8,
    /// Whether the box gives each client a queue pair of its own at the node (`--relay`).
    pub(super) relays: bool,
    /// Number of retransmissions before the box gives up the node.
    pub(super) node_retries: u8,
    pub(super) clients: usize,
    /// HOST:PORT of the node.
    pub(super) node: String,
}

/// Returns the number of retransmissions within this time.
pub(super) fn retries_within(patience_ns: u64) -> u8 {
    let mut left_ns = patience_ns.saturating_sub(NODE_TIMEOUT_NS);
    let mut retries = 0;
    while retries < u8::MAX && left_ns > 0 {
        retries += 1;
        left_ns = left_ns.saturating_sub(NODE_TIMEOUT_NS << retries.min(6));
    }
    retries
}

impl BoxDescription {
    /// Returns the IP address of a GID, if the box can send to that address.
    pub(super) fn reachable(&self, peer: &str, gid: Ipv6Addr) -> Result<IpAddr, Refusal> {
        let (address, own) = (gid.to_canonical(), self.address);
        let is_usable = !address.is_unspecified() && !address.is_multicast() && address != own;
        if !is_usable || address.is_ipv4() != own.is_ipv4() {
            return Err(Refusal::Address { peer: peer.to_owned(), gid, own });
        }
        Ok(address)
    }
}

/// Properties of the memory node that the box announces to clients.
#[derive(Clone, Copy, Debug)]
struct Reached {
    address: IpAddr,
    path_mtu: PathMtu,
    region: RemoteRegion,
}

/// Reason why a queue pair is not set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Setup(#[from] SetupError),
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
    Steer(#[from] doorbell_steer::SetupError),
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
    NoKey(String),
}

/// Counters of clients.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) served: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Number of queue pairs made with the node.
    pub(super) attached: AtomicU64,
}

/// State that the threads of the control plane share.
#[derive(Debug)]
pub(super) struct Plane {
    jobs: Sender<Job>,
    /// Event that wakes the forwarding thread.
    kick: Arc<EventFd>,
    pub(super) own: BoxDescription,
    node: Mutex<Option<Reached>>,
    /// Connections of served clients, each with the queue pair number to which the client sends. The box closes the
    /// connection of a client when the connection with the node ends, or when the client is shut out.
    streams: Mutex<HashMap<u64, (Qpn, TcpStream)>>,
    next_stream: AtomicU64,
    /// Connection with the node.
    node_stream: Mutex<Option<TcpStream>>,
    /// Failure of the queue pair with the node.
    node_failure: Mutex<Option<NodeFailure>>,
    /// Number of threads that communicate with clients.
    talking: AtomicUsize,
    pub(super) counts: Counts,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body).map(drop)
}

fn name_of(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "a peer that is gone".to_owned(), |address| address.to_string())
}

impl Plane {
    pub(super) fn new(own: BoxDescription) -> io::Result<(Arc<Self>, Jobs)> {
        let (jobs, queue) = channel();
        let kick = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let waiting = Jobs { queue, kick: Arc::clone(&kick) };
        let plane = Self {
            jobs,
            kick,
            own,
            node: Mutex::default(),
            streams: Mutex::default(),
            next_stream: AtomicU64::new(0),
            node_stream: Mutex::default(),
            node_failure: Mutex::default(),
            talking: AtomicUsize::new(0),
            counts: Counts::default(),
        };
        Ok((Arc::new(plane), waiting))
    }

    /// Starts the threads that set up queue pairs: a thread for the memory node at the other end of `stream`, and a
    /// thread for each client that connects to `listen`. The returned receiver gets the error if the first queue pair
    /// with the node cannot be set up. Without a `stream`, each client gets a queue pair of its own at the node, and
    /// the method returns no receiver.
    pub(super) fn start(
        self: &Arc<Self>,
        stream: Option<TcpStream>,
        listen: &str,
    ) -> Result<Option<Receiver<Failure>>, Failure> {
        let listener = TcpListener::bind(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        let at = listener.local_addr()?;
        let mut clients = Clients::new(listener, Hello::new(1))?;
        let (failing, failed) = channel();
        let plane = Arc::clone(self);
        let is_shared = stream.is_some();
        match stream {
            Some(stream) => spawn("node", move || match plane.attach(&stream) {
                Ok(()) => plane.keep_node(&stream, &at.to_string()),
                Err(error) => drop(failing.send(error)), // fails if the box has ended
            })?,
            None => note!("serving clients at {at} for the memory node {}", self.own.node),
        }
        let plane = Arc::clone(self);
        spawn("clients", move || plane.accept(&mut clients))?;
        Ok(is_shared.then_some(failed))
    }

    /// Runs a job on the state of the box, and returns the result of the job.
    pub(super) fn with<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Steer) -> R + Send + 'static,
    ) -> Result<R, Refusal> {
        let (answer, answered) = sync_channel(1);
        let job = Box::new(move |steer: &mut Steer| {
            let _ = answer.send(job(steer)); // fails if the caller has stopped waiting
        });
        self.jobs.send(job).map_err(|_| Refusal::Ending)?;
        // The write fails only if the event is set already, which wakes the thread too.
        let _ = self.kick.write(1);
        answered.recv().map_err(|_| Refusal::Ending)
    }

    /// Sets up a new queue pair with the node whenever the current one fails. The first queue pair is already set up.
    fn keep_node(&self, first: &TcpStream, listen: &str) {
        note!("serving clients at {listen} for the memory node {}", self.own.node);
        let mut said = String::new();
        let mut why = self.wait_for_node(first);
        loop {
            self.detach();
            if said != why {
                note!("{why}; trying again until the node answers");
                said.clone_from(&why);
            }
            std::thread::sleep(AGAIN);
            let again = reach(&self.own.node, "").and_then(|stream| self.attach(&stream).map(|()| stream));
            match again {
                Ok(stream) => {
                    note!("the memory node {} is there again", self.own.node);
                    said.clear();
                    why = self.wait_for_node(&stream);
                }
                Err(error) => why = error.to_string(),
            }
        }
    }

    /// Waits until the node ends its connection, or the queue pair with the node fails. Returns a sentence about the
    /// reason.
    fn wait_for_node(&self, stream: &TcpStream) -> String {
        wait_for_end(stream);
        *lock(&self.node_stream) = None;
        let node = &self.own.node;
        match lock(&self.node_failure).take() {
            None => format!("the memory node {node} has ended its connection"),
            Some(NodeFailure::Refused) => format!("the memory node {node} has refused a request"),
            Some(NodeFailure::Silent) => format!("the memory node {node} does not answer any more"),
        }
    }

    /// Records whether the queue pair with the node has failed. After a failure, closes the connection with the node,
    /// which is useless without the queue pair.
    pub(super) fn node_failed(&self, failure: Option<NodeFailure>) {
        let stream = lock(&self.node_stream);
        if let (Some(failure), Some(stream)) = (failure, stream.as_ref()) {
            *lock(&self.node_failure) = Some(failure);
            let _ = stream.shutdown(Shutdown::Both); // fails if the connection has ended already
        }
    }

    /// Sets up the queue pair with the node.
    fn attach(&self, stream: &TcpStream) -> Result<(), Failure> {
        let peer = name_of(stream);
        let (qpn, psn) = self.with(|steer| steer.node_side())?;
        let theirs =
            setup::exchange(stream, &[self.describe(qpn, psn, self.own.path_mtu, RemoteRegion::NONE)], DEADLINE)?;
        let reached = self.check_node(&peer, &theirs[0])?;
        let end = NodeEnd {
            qpn: theirs[0].qpn,
            max_rd_atomic: self.own.reads,
            timeout_ns: NODE_TIMEOUT_NS,
            retries: self.own.node_retries,
            ..NodeEnd::at(reached.address, reached.path_mtu)
        };
        let region = Region {
            rkey: reached.region.rkey,
            node_rkey: theirs[0].regions[0].rkey,
            address: reached.region.address,
            length: reached.region.length,
            access: ALL_ACCESS,
            exclusive: self.own.exclusive,
        };
        let (store, steers_reads) = (self.own.store, self.own.steers_reads);
        self.with(move |steer| {
            let layout = |sizes| {
                let layout = StoreLayout::new(sizes, region.address);
                Box::new(if steers_reads { layout } else { layout.writes_alone() }) as Box<dyn Layout>
            };
            steer.set_layout(store.map(layout));
            steer.attach(end)?;
            steer.add_region(region)
        })??;
        SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE)?;
        // After this statement, the box can serve clients.
        *lock(&self.node) = Some(reached);
        self.say_ready(stream, &peer, &mut Timed::new(stream, DEADLINE))?;
        *lock(&self.node_failure) = None;
        *lock(&self.node_stream) = Some(stream.try_clone()?);
        self.counts.attached.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Gives up the queue pair with the node, and the queue pairs of all clients. The clients then connect again.
    fn detach(&self) {
        let region = lock(&self.node).take().map(|reached| reached.region.rkey);
        let _ = self.with(move |steer| {
            steer.detach();
            region.map(|rkey| steer.remove_region(rkey))
        });
        for (_, stream) in lock(&self.streams).values() {
            let _ = stream.shutdown(Shutdown::Both); // the thread of the client cleans up
        }
    }

    fn describe(&self, qpn: Qpn, psn: Psn, path_mtu: PathMtu, region: RemoteRegion) -> EndpointDescription {
        let gid = to_gid(self.own.address);
        let lane = EndpointDescription::one_sided(gid, qpn, psn, path_mtu, self.own.udp_port);
        EndpointDescription { regions: [region, RemoteRegion::NONE], ..lane }
    }

    /// Checks the settings that node and clients must share. Returns the address of the peer's RNIC.
    fn check(&self, peer: &str, theirs: &EndpointDescription) -> Result<IpAddr, Refusal> {
        let peer = peer.to_owned();
        if theirs.depth != 0 {
            return Err(Refusal::Messages { peer });
        }
        if theirs.udp_port != self.own.udp_port {
            return Err(Refusal::UdpPort { peer, theirs: theirs.udp_port, own: self.own.udp_port });
        }
        self.own.reachable(&peer, theirs.gid)
    }

    fn check_node(&self, peer: &str, theirs: &EndpointDescription) -> Result<Reached, Failure> {
        let address = self.check(peer, theirs)?;
        let RemoteRegion { address: start, length, .. } = theirs.regions[0];
        if length == 0 {
            return Err(Refusal::NoMemory { peer: peer.to_owned() }.into());
        }
        if let Some(needed) = self.own.store.map(|sizes| sizes.region_bytes()).filter(|&needed| needed > length) {
            return Err(Refusal::TooSmall { peer: peer.to_owned(), given: length, needed }.into());
        }
        // Give clients a key of the box instead of the node's own key.
        let region = RemoteRegion { address: start, length, rkey: RKey::new(getrandom::u32()?) };
        Ok(Reached { address, path_mtu: self.own.path_mtu.min(theirs.path_mtu), region })
    }

    fn say_ready(&self, stream: &TcpStream, peer: &str, timed: &mut Timed<'_>) -> Result<(), Refusal> {
        let mut said = [0];
        let result = timed.write_all(&[READY]).and_then(|()| timed.read_exact(&mut said));
        let restored = stream.set_read_timeout(None);
        result.and(restored).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                Refusal::GaveUp { peer: peer.to_owned() }
            }
            _ => SetupError::broke(peer, error, DEADLINE).into(),
        })?;
        if said == [READY] { Ok(()) } else { Err(Refusal::GaveUp { peer: peer.to_owned() }) }
    }

    /// Serves each client in a thread of its own until the process ends.
    fn accept(self: &Arc<Self>, clients: &mut Clients<Hello>) {
        loop {
            let Client { stream, from, opening, until } = clients.next();
            let Some(theirs) = opening.first().copied() else { continue };
            let most = self.own.clients + IN_SETUP;
            if self.talking.fetch_add(1, Ordering::Relaxed) >= most {
                self.talking.fetch_sub(1, Ordering::Relaxed);
                self.refused(&format!(
                    "{from}: the box has {most} connections already (--clients {})",
                    self.own.clients
                ));
                continue;
            }
            let plane = Arc::clone(self);
            let spawned = spawn("client", move || {
                let timed = Timed::new(&stream, until.saturating_duration_since(Instant::now()));
                let served = match plane.own.relays {
                    true => plane.serve_relayed(&stream, &theirs, timed),
                    false => plane.serve(&stream, &theirs, timed).map_err(Failure::from),
                };
                if let Err(why) = served {
                    plane.refused(&format!("{from}: {why}"));
                }
                plane.talking.fetch_sub(1, Ordering::Relaxed);
            });
            if let Err(error) = spawned {
                self.talking.fetch_sub(1, Ordering::Relaxed);
                self.refused(&format!("{from}: no thread could be started: {error}"));
            }
        }
    }

    pub(super) fn refused(&self, why: &dyn fmt::Display) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        note!("a client was not served: {why}");
    }

    /// Serves a client that has described its queue pair, until the connection of the client ends.
    fn serve(&self, stream: &TcpStream, theirs: &EndpointDescription, timed: Timed<'_>) -> Result<(), Refusal> {
        let peer = name_of(stream);
        let address = self.check(&peer, theirs)?;
        let Some(node) = *lock(&self.node) else { return Err(Refusal::NoNode) };
        let path_mtu = theirs.path_mtu.min(node.path_mtu);
        let client = ClientEnd { address, qpn: theirs.qpn, first_psn: theirs.psn, path_mtu };
        let qpn = self.with(move |steer| steer.connect(client))??;
        let result = self.serve_connected(stream, &peer, timed, qpn, &node);
        let _ = self.with(move |steer| steer.disconnect(qpn));
        result
    }

    /// Serves a client that has a queue pair of its own at the node, until the client or the node ends its connection.
    fn serve_relayed(
        &self,
        stream: &TcpStream,
        theirs: &EndpointDescription,
        mut timed: Timed<'_>,
    ) -> Result<(), Failure> {
        let peer = name_of(stream);
        let client = (self.check(&peer, theirs)?, theirs.qpn);
        let to_node = reach(&self.own.node, "; does a memory node set up queue pairs there?")?;
        let gid = to_gid(self.own.address);
        let answer = setup::exchange(&to_node, &[EndpointDescription { gid, ..*theirs }], DEADLINE)?[0];
        let at_node = name_of(&to_node);
        let node = (self.check(&at_node, &answer)?, answer.qpn);
        self.with(move |steer| steer.relay(client, node))??;
        let mut connected = || -> Result<(), Failure> {
            timed.write_all(&setup::hello(&[EndpointDescription { gid, ..answer }]))?;
            self.say_ready(&to_node, &at_node, &mut Timed::new(&to_node, DEADLINE))?;
            self.counts.served.fetch_add(1, Ordering::Relaxed);
            self.say_ready(stream, &peer, &mut timed)?;
            for one in [stream, &to_node] {
                SockRef::from(one).set_tcp_keepalive(&KEEPALIVE)?;
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    wait_for_end(&to_node);
                    let _ = stream.shutdown(Shutdown::Both); // fails if the connection has ended already
                });
                wait_for_end(stream);
                let _ = to_node.shutdown(Shutdown::Both);
            });
            Ok(())
        };
        let result = connected();
        self.with(move |steer| steer.end_relay(client, node))?;
        result
    }

    fn serve_connected(
        &self,
        stream: &TcpStream,
        peer: &str,
        mut timed: Timed<'_>,
        qpn: Qpn,
        node: &Reached,
    ) -> Result<(), Refusal> {
        let broke = |error| SetupError::broke(peer, error, DEADLINE);
        // The node sends no requests to the client, so the first PSN of requests to the client does not matter.
        let own = self.describe(qpn, Psn::new(0), node.path_mtu, node.region);
        timed.write_all(&setup::hello(&[own])).map_err(broke)?;
        // Count the client before the answer: after the answer, the client may finish and a signal may end the box
        // before this thread runs again.
        self.counts.served.fetch_add(1, Ordering::Relaxed);
        self.say_ready(stream, peer, &mut timed)?;
        SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE).map_err(broke)?;
        let number = self.next_stream.fetch_add(1, Ordering::Relaxed);
        lock(&self.streams).insert(number, (qpn, stream.try_clone().map_err(broke)?));
        self.listen_to(stream);
        lock(&self.streams).remove(&number);
        Ok(())
    }

    /// Answers requests to shut clients out until the peer ends its connection. If the peer sends any other message,
    /// the box ignores all further data of the peer.
    fn listen_to(&self, mut stream: &TcpStream) {
        let mut said = [0; shut_out::BYTES];
        while stream.read_exact(&mut said).is_ok() {
            let Some(qpn) = shut_out::parse(said) else { return wait_for_end(stream) };
            if self.shut_out(qpn).is_err() || stream.write_all(&said).is_err() {
                return;
            }
        }
    }

    /// Shuts a client out, and waits until the node has answered all requests of that client.
    fn shut_out(&self, qpn: Qpn) -> Result<(), Refusal> {
        // If the queue pair with the node has failed, the node may still execute requests until it has replaced that
        // queue pair.
        let is_out = move |steer: &mut Steer| steer.is_attached() && steer.at_node(qpn) == 0;
        let mut is_over = self.with(move |steer| {
            steer.disconnect(qpn);
            is_out(steer)
        })?;
        for (_, stream) in lock(&self.streams).values().filter(|(own, _)| *own == qpn) {
            let _ = stream.shutdown(Shutdown::Both); // the thread of the client cleans up
        }
        while !is_over {
            std::thread::sleep(LOOK_AGAIN);
            is_over = self.with(is_out)?;
        }
        Ok(())
    }
}

/// Waits until the peer ends its connection, or the connection fails. Ignores all data that the peer sends.
fn wait_for_end(mut stream: &TcpStream) {
    let mut said = [0; 256];
    loop {
        match stream.read(&mut said) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Returns the GID of RoCE v2 for an IP address (IBTA Annex A17). An IPv4 address is mapped to IPv6.
pub(super) fn to_gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use doorbell_steer::{Config, Limits};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_woken(jobs: &Jobs) -> bool {
        poll(&mut [PollFd::new(jobs.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    #[test]
    fn a_job_wakes_the_box_which_runs_all_waiting_jobs() {
        let own = BoxDescription {
            address: IpAddr::from([127, 0, 0, 1]),
            udp_port: 4791,
            path_mtu: PathMtu::Mtu1024,
            exclusive: false,
            store: None,
            steers_reads: true,
            reads: 1,
            relays: false,
            node_retries: 1,
            clients: 1,
            node: "127.0.0.1:1".to_owned(),
        };
        let mut steer = Steer::new(Config { address: own.address, limits: Limits::default(), seed: 1 });
        let (plane, jobs) = Plane::new(own).unwrap();
        assert!(!is_woken(&jobs));
        let waiting: Vec<_> = (0..100)
            .map(|number| {
                let plane = Arc::clone(&plane);
                std::thread::spawn(move || plane.with(move |_| number).unwrap())
            })
            .collect();
        let mut done = 0;
        while done < 100 {
            // The event is set while jobs wait, so `poll` needs no timeout.
            poll(&mut [PollFd::new(jobs.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
            done += jobs.work_off(&mut steer, Duration::MAX);
        }
        assert!((0..100).eq(waiting.into_iter().map(|thread| thread.join().unwrap())));
        // The last thread may have set the event after its job was done: the call resets the event.
        assert_eq!(jobs.work_off(&mut steer, Duration::MAX), 0);
        assert!(!is_woken(&jobs));
        // With a budget of zero, `work_off` does one job, and sets the event for the remaining jobs.
        let order = |plane: &Plane| plane.jobs.send(Box::new(|_: &mut Steer| {})).unwrap();
        (0..2).for_each(|_| order(&plane));
        assert_eq!(jobs.work_off(&mut steer, Duration::ZERO), 1);
        assert!(is_woken(&jobs));
        assert_eq!(jobs.work_off(&mut steer, Duration::MAX), 1);
        (0..3).for_each(|_| order(&plane));
        assert_eq!(jobs.work_off(&mut steer, Duration::MAX), 3);
    }
}
