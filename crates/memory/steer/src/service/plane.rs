//! State that the threads of the control plane share, and the messages of a set-up.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use doorbell_exchange::admission::{Clients, Hello, Note, Notes};
use doorbell_exchange::setup::{EndpointDescription, READY, RemoteRegion, SetupError, Timed};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::Access;
use doorbell_wire::{PathMtu, Psn, Qpn, to_gid};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::TcpKeepalive;

use super::jobs::{Job, Jobs};
use super::{ServiceError, Settings};
use crate::{NodeFailure, Steer};

/// Time after which a set-up with the node or a client fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Keepalive that detects a silently lost machine after about half a minute.
pub(crate) const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5)).with_retries(4);

/// Access of clients to the node's memory.
pub(crate) const ALL_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Properties of the memory node that the box announces to clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub(crate) address: IpAddr,
    pub(crate) path_mtu: PathMtu,
    pub(crate) region: RemoteRegion,
}

/// Counters of clients.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) served: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Number of queue pairs made with the node.
    pub(crate) attached: AtomicU64,
}

/// State that the threads of the control plane share.
#[derive(Debug)]
pub(crate) struct Plane {
    pub(super) jobs: Sender<Job>,
    /// Event that wakes the forwarding thread.
    kick: Arc<EventFd>,
    pub(crate) own: Settings,
    /// Whether the box gives each client a queue pair of its own at the node.
    pub(crate) relays: bool,
    pub(crate) note: Note,
    /// Notes about clients that were not served.
    refusals: Mutex<Notes>,
    pub(crate) node: Mutex<Option<Reached>>,
    /// Connections of served clients, each with the queue pair number to which the client sends. The box closes the
    /// connection of a client when the connection with the node ends, or when the client is shut out.
    pub(crate) streams: Mutex<HashMap<u64, (Qpn, TcpStream)>>,
    pub(crate) next_stream: AtomicU64,
    /// Connection with the node.
    pub(crate) node_stream: Mutex<Option<TcpStream>>,
    /// Failure of the queue pair with the node.
    pub(crate) node_failure: Mutex<Option<NodeFailure>>,
    /// Number of threads that communicate with clients.
    pub(crate) talking: AtomicUsize,
    pub(crate) counts: Counts,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body).map(drop)
}

pub(crate) fn name_of(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "a peer that is gone".to_owned(), |address| address.to_string())
}

impl Plane {
    pub(crate) fn new(own: Settings, relays: bool, note: Note) -> io::Result<(Arc<Self>, Jobs)> {
        let (jobs, queue) = channel();
        let kick = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let waiting = Jobs { queue, kick: Arc::clone(&kick) };
        let plane = Self {
            jobs,
            kick,
            own,
            relays,
            note,
            refusals: Mutex::new(Notes::new(note)),
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
    pub(crate) fn start(
        self: &Arc<Self>,
        stream: Option<TcpStream>,
        listen: &str,
    ) -> Result<Option<Receiver<ServiceError>>, ServiceError> {
        let listener =
            TcpListener::bind(listen).map_err(|error| ServiceError::Listen { listen: listen.to_owned(), error })?;
        let at = listener.local_addr()?;
        let mut clients = Clients::new(listener, Hello::new(1), self.note)?;
        let (failing, failed) = channel();
        let plane = Arc::clone(self);
        let is_shared = stream.is_some();
        match stream {
            Some(stream) => spawn("node", move || match plane.attach(&stream) {
                Ok(()) => plane.keep_node(&stream, &at.to_string()),
                Err(error) => drop(failing.send(error)), // fails if the box has ended
            })?,
            None => (self.note)(&format!("serving clients at {at} for the memory node {}", self.own.node)),
        }
        let plane = Arc::clone(self);
        spawn("clients", move || plane.accept(&mut clients))?;
        Ok(is_shared.then_some(failed))
    }

    /// Runs a job on the state of the box, and returns the result of the job.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Steer) -> R + Send + 'static,
    ) -> Result<R, ServiceError> {
        let (answer, answered) = sync_channel(1);
        let job = Box::new(move |steer: &mut Steer| {
            let _ = answer.send(job(steer)); // fails if the caller has stopped waiting
        });
        self.jobs.send(job).map_err(|_| ServiceError::Ending)?;
        // The write fails only if the event is set already, which wakes the thread too.
        let _ = self.kick.write(1);
        answered.recv().map_err(|_| ServiceError::Ending)
    }

    pub(crate) fn refused(&self, why: &dyn fmt::Display) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        lock(&self.refusals).say(&format!("a client was not served: {why}"));
    }

    pub(crate) fn describe(&self, qpn: Qpn, psn: Psn, path_mtu: PathMtu, region: RemoteRegion) -> EndpointDescription {
        let gid = to_gid(self.own.address);
        let lane = EndpointDescription::one_sided(gid, qpn, psn, path_mtu, self.own.udp_port);
        EndpointDescription { regions: [region, RemoteRegion::NONE], ..lane }
    }

    /// Checks the settings that node and clients must share. Returns the address of the peer's RNIC.
    pub(crate) fn check(&self, peer: &str, theirs: &EndpointDescription) -> Result<IpAddr, ServiceError> {
        let peer = peer.to_owned();
        if theirs.depth != 0 {
            return Err(ServiceError::Messages { peer });
        }
        if theirs.udp_port != self.own.udp_port {
            return Err(ServiceError::UdpPort { peer, theirs: theirs.udp_port, own: self.own.udp_port });
        }
        self.own.reachable(&peer, theirs.gid)
    }

    pub(crate) fn say_ready(&self, stream: &TcpStream, peer: &str, timed: &mut Timed<'_>) -> Result<(), ServiceError> {
        let mut said = [0];
        let result = timed.write_all(&[READY]).and_then(|()| timed.read_exact(&mut said));
        let restored = stream.set_read_timeout(None);
        result.and(restored).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                ServiceError::GaveUp { peer: peer.to_owned() }
            }
            _ => SetupError::broke(peer, error, DEADLINE).into(),
        })?;
        if said == [READY] { Ok(()) } else { Err(ServiceError::GaveUp { peer: peer.to_owned() }) }
    }
}

/// Waits until the peer ends its connection, or the connection fails. Ignores all data that the peer sends.
pub(crate) fn wait_for_end(mut stream: &TcpStream) {
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

#[cfg(test)]
impl Settings {
    pub(super) fn for_tests() -> Self {
        Self {
            address: IpAddr::from([127, 0, 0, 1]),
            udp_port: 4791,
            path_mtu: PathMtu::Mtu1024,
            exclusive: false,
            store: None,
            reads: 1,
            patience: Duration::from_secs(1),
            clients: 1,
            node: "127.0.0.1:1".to_owned(),
        }
    }
}
