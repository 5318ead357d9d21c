//! Tests of a listener beside many strangers. The test does the rounds of the service thread.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use doorbell_fabric::OwnProcess;
use doorbell_ibverbs_sys as c;
use doorbell_verbs::QpKind;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::Socket;

use super::super::incoming::PAUSE;
use super::super::{Line, Phase, READ};
use super::*;
use crate::cm::channel::{Detail, Queue};
use crate::cm::message::{Host, Message};
use crate::cm::ports::Space;
use crate::cm::service::Service;
use crate::cm::testing::{Transport, called, port_of_this_machine, request};
use crate::process::fork::Inside;

/// Maximum number of rounds until the listener has handled all connections and bytes of a test.
const ROUNDS_MAX: usize = 100_000;

/// Piece of time that counts in full.
const PIECE: Duration = Duration::from_millis(100);

/// A stranger that sends one byte of a request after another.
struct Dripping {
    socket: Socket,
    sent: usize,
}

impl Dripping {
    fn new(socket: Socket) -> Self {
        Self { socket, sent: 0 }
    }

    fn drip(&mut self) {
        let bytes = request();
        assert!(self.sent + 1 < bytes.len(), "a stranger completes no request");
        // Ignore an error: on a slow machine, the deadline of the stranger may have passed.
        let _ = self.socket.write_all(&bytes[self.sent..=self.sent]);
        self.sent += 1;
    }
}

/// A listener, and strangers that are connected to it.
struct Crowd {
    service: Arc<Service>,
    listener: Arc<Line>,
    transport: Transport,
    address: SocketAddr,
    events: Vec<EpollEvent>,
    /// Strangers that have sent nothing, the oldest first.
    silent: VecDeque<Socket>,
    dripping: Vec<Dripping>,
    /// Number of strangers that have connected.
    connected: usize,
    /// Forks of other tests must not copy a lock that a round holds.
    _inside: Inside,
}

impl Crowd {
    fn new(transport: Transport) -> Self {
        let inside = Inside::new();
        let service = Service::new().unwrap();
        let listener = Line::with(Arc::clone(&service), &Queue::new().unwrap(), QpKind::Rc, Space::Tcp);
        let listener = Arc::new(listener);
        listener.state().has_network = transport == Transport::Tcp;
        let bound = listener.bind(transport.address().as_socket().unwrap()).unwrap();
        listener.listen(1).unwrap();
        Self {
            service,
            listener,
            transport,
            address: (Ipv4Addr::LOCALHOST, bound.port()).into(),
            events: Vec::new(),
            silent: VecDeque::new(),
            dripping: Vec::new(),
            connected: 0,
            _inside: inside,
        }
    }

    /// Returns a connection to the listener, and the client's port.
    fn connect(&self) -> (Socket, u16) {
        if self.transport == Transport::Tcp {
            let stream = TcpStream::connect(self.address).unwrap();
            let port = stream.local_addr().unwrap().port();
            return (stream.into(), port);
        }
        let claim = port_of_this_machine();
        (called(&claim, self.address), claim.bound().address.port())
    }

    /// Returns the messages of an honest client. The last message is the request.
    fn messages(&self) -> Vec<Vec<u8>> {
        let host = Host::of(self.address);
        let addresses = Message::Addresses { source: host, destination: host }.emit();
        let is_here = self.transport == Transport::Unix;
        is_here.then_some(addresses).into_iter().chain([request()]).collect()
    }

    /// Connects a further stranger. Every second one begins to send at once.
    fn add_stranger(&mut self) {
        let (socket, _) = self.connect();
        if self.connected.is_multiple_of(2) {
            self.silent.push_back(socket);
        } else {
            let mut stranger = Dripping::new(socket);
            stranger.drip();
            self.dripping.push(stranger);
        }
        self.connected += 1;
    }

    /// Does a round without waiting.
    fn round(&mut self) {
        self.service.wake();
        assert!(self.service.round(&mut self.events));
    }

    /// Does rounds until `is_over`.
    fn until(&mut self, what: &str, is_over: impl Fn(&Self) -> bool) {
        let rounds = (0..ROUNDS_MAX).take_while(|_| {
            self.round();
            !is_over(self)
        });
        assert!(rounds.count() < ROUNDS_MAX, "{what}");
    }

    /// Does rounds until the listener has handled all connections and bytes.
    fn settle(&mut self) {
        self.until("the listener does not handle all strangers", |crowd| {
            let state = crowd.listener.state();
            let has_called = state.listening.iter().any(is_readable);
            drop(state);
            let visitors = crowd.visitors();
            let are_in = visitors.len() >= crowd.silent.len() + crowd.dripping.len();
            are_in && !has_called && !visitors.iter().any(has_bytes)
        });
    }

    fn visitors(&self) -> Vec<Arc<Line>> {
        let numbers: Vec<_> = self.listener.state().visitors.lines.values().copied().collect();
        numbers.into_iter().filter_map(|number| self.service.line(number)).collect()
    }

    /// Returns the line of the visitor that has connected from a port.
    fn visitor(&self, port: u16) -> Option<Arc<Line>> {
        let is_it = |line: &Arc<Line>| {
            let state = line.state();
            let from = state.called.map(|(caller, _)| caller.address).or(state.remote);
            from.is_some_and(|from| from.port() == port)
        };
        self.visitors().into_iter().find(is_it)
    }

    /// Returns the lines whose requests the listener has reported since the last call.
    fn take_requests(&self) -> Vec<Arc<Line>> {
        let news = std::mem::take(&mut self.listener.state().early);
        let request = |detail: Detail| match detail {
            Detail::Request { line, .. } => line,
            _ => panic!("the listener reports another event"),
        };
        news.into_iter().map(|news| request(news.detail)).collect()
    }

    fn has_request(&self) -> bool {
        let state = self.listener.state();
        state.early.iter().any(|news| news.kind == c::RDMA_CM_EVENT_CONNECT_REQUEST)
    }

    /// Does rounds until `is_over`. Before each round, a stranger connects, five that were silent begin to send, and
    /// all others send a byte. Returns the numbers of the visitors that the listener has handled.
    fn handled_until(&mut self, is_over: impl Fn(&Self) -> bool) -> Vec<Number> {
        self.listener.state().visitors.handled.clear();
        for _ in 0..30 {
            self.add_stranger();
            let woken = self.silent.len().min(5);
            self.dripping.extend(self.silent.drain(..woken).map(Dripping::new));
            self.dripping.iter_mut().for_each(Dripping::drip);
            self.round();
            if is_over(self) {
                return self.listener.state().visitors.handled.clone();
            }
        }
        panic!("30 rounds did not handle the client, but {:?}", self.listener.state().visitors.handled);
    }

    /// Does rounds until the listener has handled a message of a visitor, and returns the number of other visitors that
    /// the listener has handled meanwhile.
    fn strangers_before(&mut self, own: &Arc<Line>, mut client: &Socket, message: &[u8]) -> usize {
        client.write_all(message).unwrap();
        while !has_bytes(own) {
            std::thread::yield_now();
        }
        let number = own.number;
        let handled = self.handled_until(|crowd| crowd.listener.state().visitors.handled.contains(&number));
        handled.iter().filter(|&&other| other != number).count()
    }

    /// Lets the service thread wait for visitors for some time.
    fn wait(&self, time: Duration) {
        for _ in 0..time.as_millis().div_ceil(PIECE.as_millis()) {
            self.service.stop_for(PIECE);
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // Lines and the service refer to each other, so close the lines.
        self.visitors().iter().for_each(|line| line.close());
        self.listener.close();
    }
}

fn is_readable(socket: &OwnProcess) -> bool {
    poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
}

fn has_bytes(line: &Arc<Line>) -> bool {
    line.state().socket.as_ref().is_some_and(is_readable)
}

/// Strangers flood the listener with connections and bytes. Between two steps of an honest client, the listener handles
/// at most one of them. The arrival of the client is its first step.
#[test]
fn an_honest_client_of_rdma_cm_waits_for_at_most_one_stranger_per_step() {
    Transport::BOTH.into_iter().for_each(a_client_waits_for_one_stranger);
}

fn a_client_waits_for_one_stranger(transport: Transport) {
    let mut crowd = Crowd::new(transport);
    for _ in 0..4 {
        (0..90).for_each(|_| crowd.add_stranger());
        // The queue of connections has an order, so no other connection may be in it.
        crowd.settle();
        let (client, port) = crowd.connect();
        while !crowd.listener.state().listening.iter().any(is_readable) {
            std::thread::yield_now();
        }
        let handled = crowd.handled_until(|crowd| crowd.visitor(port).is_some());
        let own = crowd.visitor(port).unwrap();
        let mut between = vec![handled.iter().filter(|&&other| other != own.number).count()];
        for message in crowd.messages() {
            assert!(own.state().phase == Phase::Arriving && !crowd.has_request());
            between.push(crowd.strangers_before(&own, &client, &message));
        }
        assert!(between.iter().all(|&count| count <= 1), "{transport:?}: {between:?} strangers before the steps");
        let requests = crowd.take_requests();
        assert!(requests.len() == 1 && Arc::ptr_eq(&requests[0], &own), "{} requests", requests.len());
        own.close();
        crowd.silent.clear();
        crowd.dripping.clear();
        crowd.settle();
        crowd.until("the strangers stay", |crowd| crowd.visitors().is_empty());
    }
}

/// Strangers and established connections are ready at the same time. One round handles all connections and one
/// stranger.
#[test]
fn connections_do_not_wait_for_ready_strangers() {
    let mut crowd = Crowd::new(Transport::Tcp);
    (0..100).for_each(|_| crowd.add_stranger());
    crowd.settle();
    crowd.dripping.iter_mut().for_each(Dripping::drip);
    let connections: Vec<_> = (0..3)
        .map(|_| {
            let (own, peer) = UnixStream::pair().unwrap();
            let queue = Queue::new().unwrap();
            let line = Arc::new(Line::with(Arc::clone(&crowd.service), &queue, QpKind::Rc, Space::Tcp));
            let own = OwnProcess::from(OwnedFd::from(own));
            crowd.service.serve(&line, &own, READ, None).unwrap();
            line.state().socket = Some(own);
            line.state().phase = Phase::Established;
            drop(peer);
            line
        })
        .collect();
    while !crowd.visitors().iter().any(has_bytes) {
        std::thread::yield_now();
    }
    crowd.listener.state().visitors.handled.clear();
    crowd.round();
    assert!(
        connections.iter().all(|line| line.state().phase == Phase::Disconnected),
        "a connection waits for strangers"
    );
    assert_eq!(crowd.listener.state().visitors.handled.len(), 1);
    connections.iter().for_each(|line| line.close());
}

/// The process is stopped for an hour while a visitor has not sent its request.
#[test]
fn a_stop_costs_a_visitor_of_rdma_cm_a_tenth_of_a_second() {
    let mut crowd = Crowd::new(Transport::Tcp);
    let (_client, port) = crowd.connect();
    crowd.until("the visitor does not arrive", |crowd| crowd.visitor(port).is_some());
    crowd.service.stop_for(Duration::from_secs(3600));
    crowd.round();
    assert!(crowd.visitor(port).is_some(), "the stop counts in full");
    // A longer wait would not count in full.
    let (_, timeout) = crowd.service.awaited();
    assert!(timeout <= EpollTimeout::from(100_u8), "{timeout:?}");
    crowd.wait(ARRIVAL);
    crowd.round();
    assert!(crowd.visitor(port).is_none(), "the visitor outlasts its deadline");
}

/// Takes all descriptors of this process.
fn take_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn a_listener_of_rdma_cm_without_descriptors_serves_an_honest_client() {
    doorbell_testing::in_own_process(
        |_| {},
        || {
            let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, 200, most).unwrap();
            Transport::BOTH.into_iter().for_each(a_silent_visitor_leaves_its_descriptor);
            Transport::BOTH.into_iter().for_each(a_listener_waits_for_a_descriptor);
        },
    );
}

fn a_silent_visitor_leaves_its_descriptor(transport: Transport) {
    let mut crowd = Crowd::new(transport);
    let silent: Vec<_> = (0..4).map(|_| crowd.connect()).collect();
    crowd.until("the visitors do not arrive", |crowd| crowd.visitors().len() == silent.len());
    let (mut client, _) = crowd.connect();
    client.write_all(&crowd.messages().concat()).unwrap();
    let files = take_descriptors();
    assert!(!files.is_empty());
    crowd.wait(LIMITS.patience);
    crowd.until("the client does not take the descriptor of a visitor", Crowd::has_request);
    let left: Vec<_> = silent.iter().map(|(_, port)| crowd.visitor(*port).is_some()).collect();
    assert_eq!(left, [false, true, true, true], "the oldest visitor makes room");
    crowd.take_requests().iter().for_each(|line| line.close());
}

fn a_listener_waits_for_a_descriptor(transport: Transport) {
    let mut crowd = Crowd::new(transport);
    let (mut client, _) = crowd.connect();
    client.write_all(&crowd.messages().concat()).unwrap();
    let mut files = take_descriptors();
    for _ in 0..3 {
        crowd.until("the listener does not pause without a descriptor", |crowd| {
            crowd.listener.state().visitors.is_paused
        });
        crowd.wait(PAUSE);
    }
    assert!(!crowd.has_request());
    drop(files.pop());
    crowd.wait(PAUSE);
    crowd.until("the client does not take the free descriptor", Crowd::has_request);
    crowd.take_requests().iter().for_each(|line| line.close());
}
