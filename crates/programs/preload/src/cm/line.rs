//! Lines. A line is the connection state of an id: its port, its connection or listener, and its phase.
//!
//! The service thread and the program's threads share this state. This module uses neither queue pairs nor the C
//! structure of an id. Only the program's threads use these, in their calls.
//!
//! Order of locks: first the state of a line, then the state of its listener, then the table of the service or the
//! queue of a channel.

mod incoming;
mod transport;
mod visitors;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use doorbell_fabric::OwnProcess;
use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::{PathMtu, Psn, QpKind};
use nix::sys::epoll::EpollFlags;
use socket2::SockRef;

use super::channel::{Detail, IdPointer, PendingEvent, Queue};
use super::message::{Endpoint, MAX_BYTES, Message, lookup, reason};
use super::ports::{Bound, Claim, Space};
use super::service::{self, Deadline, Number, Service};
use crate::objects::answer::{Answer, Refused};
use crate::process::{config, fork};

pub(super) use incoming::ARRIVAL;
use visitors::Visitors;

/// Deadline for a program to accept or reject a request, including the time for the answer to reach the peer. The
/// kernel's connection manager waits for the same time after it has sent an MRA (2^24 times 4.096 us).
const ANSWER: Duration = Duration::from_secs(69);

/// Deadline for the peer's answer to a disconnect request.
const GOODBYE: Duration = Duration::from_secs(5);

/// Time after the end of a connection during which packets of the connection may still arrive.
const TIMEWAIT: Duration = Duration::from_millis(200);

/// Error text for an answer that the library cannot send to the peer.
const LEFT: &str = "the peer has left, or the id has already answered the peer";

/// Default backlog of a listener: the maximum number of requests that the program has not retrieved.
pub(super) const DEFAULT_BACKLOG: usize = 1024;

/// Length of the kernel's queue of a listener. Strangers that never send a request also wait in this queue, so the
/// queue is longer than the backlog. The line itself enforces the backlog of the program.
pub(super) const KERNEL_BACKLOG: c_int = 4096;

/// Phase of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    AddressResolved,
    RouteResolved,
    Listening {
        backlog: usize,
    },
    /// The peer has connected to the listener, but has not sent its request yet.
    Arriving,
    /// A request has arrived. The program must accept or reject it.
    Requested,
    /// The id has sent its request, or its socket is connecting so that the id can send the request.
    Connecting {
        connected: bool,
    },
    /// The listener does not exist yet, or has no room for another connection. The id will try again soon.
    Crowded,
    /// The reply has arrived. The program must confirm it.
    Answered,
    /// The program has accepted the request. The peer must confirm the reply.
    Accepted,
    Established,
    Disconnecting,
    Disconnected,
    /// The connection state has ended, and the line sends and receives nothing more.
    Over,
}

/// Options of an id that a program may set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) traffic_class: u8,
    pub(super) ipv6_only: bool,
    /// Whether the id shares its port with other ids that also set this option. Sharing ends when the id listens.
    pub(super) reuse: bool,
    pub(super) ack_timeout: Option<u8>,
}

/// Connection parameters. Some are negotiated with the peer, others concern only this side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) peer: Option<Endpoint>,
    pub(super) psn: Psn,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
}

impl Terms {
    /// Stores the endpoint of the peer, and the parameters that follow from the endpoint.
    fn learn(&mut self, peer: Endpoint) {
        self.peer = Some(peer);
        self.rnr_retry = peer.rnr_retry;
        // Swap the two limits of the peer: this side answers the READs that the peer has outstanding, and the peer
        // answers those of this side.
        (self.responder_resources, self.initiator_depth) = (peer.initiator_depth, peer.responder_resources);
    }

    pub(super) fn path_mtu(&self, own: PathMtu) -> PathMtu {
        self.peer.map_or(own, |peer| peer.path_mtu.min(own))
    }
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) options: Options,
    pub(super) terms: Terms,
    pub(super) kind: QpKind,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// Whether the peer is on another machine. The id then uses TCP.
    pub(super) is_far: bool,
    /// Whether other machines can reach the RNIC of this process.
    pub(super) has_network: bool,
    /// The id's claim to a port of this machine. After the id has connected within this machine, its connection holds
    /// the port instead.
    pub(super) claim: Option<Claim>,
    space: Space,
    /// Socket that reserves the TCP port with the number of the RDMA port. Only set if the library chose the port
    /// number for the program.
    tcp: Option<OwnProcess>,
    id: IdPointer,
    queue: Arc<Queue>,
    /// Events that arrived before the program knew the id.
    early: Vec<PendingEvent>,
    /// Socket of the connection to the peer.
    socket: Option<OwnProcess>,
    /// Sockets at which the listener listens.
    listening: Vec<OwnProcess>,
    inbox: Vec<u8>,
    /// Request that the line sends once its socket is connected.
    request: Option<Message>,
    /// Time at which the program called `rdma_connect`.
    begun: Option<Instant>,
    /// Bound addresses of the client and of the listener. Only set for a connection within this machine, until the
    /// client's [`Message::Addresses`] arrives.
    called: Option<(Bound, Bound)>,
    /// Listener that accepted this connection.
    listener: Option<Arc<Line>>,
    /// Connections of this listener that have not sent their request yet.
    visitors: Visitors,
}

pub(super) struct Line {
    pub(super) number: Number,
    service: Arc<Service>,
    generation: u32,
    state: Mutex<State>,
}

const READ: EpollFlags = EpollFlags::EPOLLIN;

pub(super) fn refused(what: &str, error: &io::Error) -> Refused {
    Refused::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {error}"))
}

fn soon(wait: Duration) -> Option<Deadline> {
    Some(Deadline::Real(Instant::now() + wait))
}

impl Line {
    pub(super) fn new(queue: &Arc<Queue>, kind: QpKind, space: Space) -> Answer<Arc<Self>> {
        let line = Self::with(service::get()?, queue, kind, space);
        line.state().has_network = config::is_on_network();
        Ok(Arc::new(line))
    }

    fn with(service: Arc<Service>, queue: &Arc<Queue>, kind: QpKind, space: Space) -> Self {
        let terms = Terms {
            peer: None,
            psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry: 7,
        };
        let state = State {
            phase: Phase::Idle,
            options: Options::default(),
            terms,
            kind,
            local: None,
            remote: None,
            is_far: false,
            has_network: false,
            claim: None,
            space,
            tcp: None,
            id: IdPointer::NONE,
            queue: Arc::clone(queue),
            early: Vec::new(),
            socket: None,
            listening: Vec::new(),
            inbox: Vec::new(),
            request: None,
            begun: None,
            called: None,
            listener: None,
            visitors: Visitors::new(),
        };
        Self { number: service.number(), service, generation: fork::generation(), state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }

    /// Returns an error for an id that this process inherited by a fork. The connection of such an id belongs to the
    /// parent.
    pub(super) fn expect_own(&self) -> Answer<()> {
        if self.generation == fork::generation() {
            return Ok(());
        }
        Err(Refused::new(
            libc::EIO,
            "a parent process created the id before it forked: create a new id in this process",
        ))
    }

    /// Sets the id of this line once the program knows the id, and queues the events that arrived before.
    pub(super) fn adopt(&self, id: IdPointer) {
        let mut state = self.state();
        state.id = id;
        for mut news in std::mem::take(&mut state.early) {
            news.id = id;
            state.queue.push(news);
        }
    }

    /// Sends the program's answer to a request, or its confirmation of a reply. Then sets the phase of the line to
    /// `next`.
    ///
    /// If the peer has left, the errno is EINVAL. The kernel's connection manager also returns EINVAL for each message
    /// that does not fit the state (`ib_send_cm_rep`, `ib_send_cm_rej` and `ib_send_cm_rtu` in
    /// `drivers/infiniband/core/cm.c`).
    pub(super) fn answer(&self, expected: Phase, message: &Message, next: Phase) -> Answer<()> {
        let mut state = self.state();
        if state.phase != expected {
            return Err(Refused::invalid(LEFT));
        }
        let said = state.say(message).map_err(|error| Refused::invalid(format!("{LEFT}: {error}")));
        if said.is_err() && expected == Phase::Answered && next != Phase::Over {
            state.disconnected(&self.service, self.number, 0);
        } else if said.is_err() || next == Phase::Over {
            state.end(&self.service, self.number);
        } else {
            state.phase = next;
            self.service.set_deadline(self.number, if next == Phase::Accepted { soon(ANSWER) } else { None });
        }
        said
    }

    /// Establishes the connection after data has arrived. The data shows that the peer has received the reply, even if
    /// the peer's confirmation has not arrived.
    pub(super) fn note_established(&self) -> Answer<()> {
        let mut state = self.state();
        match state.phase {
            Phase::Accepted => {
                state.establish(&self.service, self.number);
                Ok(())
            }
            Phase::Established => Err(Refused::new(libc::EISCONN, "the connection is already established")),
            _ => Err(Refused::invalid("the id has no connection in set-up")),
        }
    }

    /// Returns whether the program has called connect on this id, successfully or not, or whether the id belongs to a
    /// request.
    pub(super) fn has_begun(&self) -> bool {
        use Phase as P;
        !matches!(self.state().phase, P::Idle | P::AddressResolved | P::RouteResolved | P::Listening { .. })
    }

    /// Returns whether an event is queued, or will certainly follow since the id is disconnecting.
    pub(super) fn owes_news(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Disconnecting || state.queue.has_news_of(state.id)
    }

    /// Ends the connection. If the connection has begun but is not established, succeeds without sending a message,
    /// like the kernel (`rdma_disconnect` in `drivers/infiniband/core/cma.c`).
    pub(super) fn disconnect(&self) -> Answer<()> {
        if !self.has_begun() {
            return Err(Refused::invalid("the id has no connection: call rdma_connect, or use the id of a request"));
        }
        let mut state = self.state();
        if !matches!(state.phase, Phase::Established | Phase::Accepted | Phase::Answered) {
            return Ok(());
        }
        if state.say(&Message::DisconnectRequest).is_err() {
            state.disconnected(&self.service, self.number, 0);
        } else {
            state.phase = Phase::Disconnecting;
            self.service.set_deadline(self.number, soon(GOODBYE));
        }
        Ok(())
    }

    /// Moves the id and its queued events to another channel.
    pub(super) fn migrate(&self, queue: &Arc<Queue>) {
        let mut state = self.state();
        let waiting = state.queue.take_all_of(state.id);
        state.queue = Arc::clone(queue);
        for news in waiting {
            queue.push(news);
        }
    }

    /// Ends the line of a destroyed id. Informs the peer, and discards the events that the program has not retrieved.
    pub(super) fn close(&self) {
        let untold = {
            let mut state = self.state();
            match state.phase {
                Phase::Requested => drop(state.say(&state.rejection(reason::CONSUMER_DEFINED))),
                Phase::Established | Phase::Accepted | Phase::Answered => {
                    drop(state.say(&Message::DisconnectRequest));
                }
                _ => {}
            }
            state.end(&self.service, self.number);
            let id = std::mem::replace(&mut state.id, IdPointer::NONE);
            state.early.clear();
            if id == IdPointer::NONE { VecDeque::new() } else { state.queue.take_all_of(id) }
        };
        // Close the lines of requests that the program has not retrieved.
        for news in untold {
            if let Detail::Request { line, .. } = news.detail {
                line.close();
            }
        }
    }
}

impl State {
    /// Queues an event for the program.
    pub(super) fn tell(&mut self, kind: c::rdma_cm_event_type, status: c_int, detail: Detail) {
        let news = PendingEvent { id: self.id, kind, status, detail };
        if self.id == IdPointer::NONE {
            self.early.push(news);
        } else {
            self.queue.push(news);
        }
    }

    fn rejection(&self, why: u16) -> Message {
        if self.kind != QpKind::Ud {
            return Message::Reject { reason: why, private: Vec::new() };
        }
        let status = if why == reason::CONSUMER_DEFINED { lookup::REJECTED } else { lookup::UNSUPPORTED };
        let nobody = (std::net::Ipv6Addr::UNSPECIFIED, doorbell_verbs::Qpn::new(0), doorbell_verbs::QKey::new(0));
        Message::LookupReply { status, gid: nobody.0, qpn: nobody.1, qkey: nobody.2, private: Vec::new() }
    }

    /// Sends a message. The call does not wait, since any socket buffer has room for all messages of one connection.
    fn say(&self, message: &Message) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        socket.expect_intact()?;
        let bytes = message.emit();
        match SockRef::from(socket).send_with_flags(&bytes, libc::MSG_NOSIGNAL)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }

    /// Reads available bytes, at most the maximum size of one message. After an error, no more bytes will arrive.
    fn receive(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        socket.expect_intact()?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); MAX_BYTES];
        let room = MAX_BYTES - self.inbox.len().min(MAX_BYTES);
        match SockRef::from(socket).recv(&mut buffer[..room]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(received) => {
                // SAFETY: `recv` has written this number of bytes.
                let bytes = buffer[..received].iter().map(|byte| unsafe { byte.assume_init() });
                self.inbox.extend(bytes);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn establish(&mut self, service: &Service, number: Number) {
        self.phase = Phase::Established;
        service.set_deadline(number, None);
        self.tell(c::RDMA_CM_EVENT_ESTABLISHED, 0, Detail::Nothing);
    }

    fn disconnected(&mut self, service: &Service, number: Number, status: c_int) {
        self.hang_up(service);
        self.phase = Phase::Disconnected;
        self.tell(c::RDMA_CM_EVENT_DISCONNECTED, status, Detail::Nothing);
        service.set_deadline(number, soon(TIMEWAIT));
    }

    fn hang_up(&mut self, service: &Service) {
        for socket in self.listening.drain(..).chain(self.socket.take()) {
            service.forget_socket(&socket);
            if socket.is_intact() {
                // Shut down the connection, since a forked child may still hold the socket for a moment. Otherwise, the
                // peer would stay connected.
                let _ = SockRef::from(&socket).shutdown(Shutdown::Both);
            }
        }
        (self.claim, self.tcp) = (None, None);
        self.inbox = Vec::new();
        self.request = None;
    }

    fn end(&mut self, service: &Service, number: Number) {
        self.hang_up(service);
        self.phase = Phase::Over;
        service.forget(number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpStream};
    use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
    use std::os::unix::net::UnixStream;

    use nix::sys::epoll::{Epoll, EpollCreateFlags};
    use nix::sys::eventfd::EventFd;

    use super::*;

    #[test]
    fn a_closed_listener_frees_its_port_though_others_inherited_the_socket() {
        let own = |line: &Line| {
            line.state().has_network = true;
            line.bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap()
        };
        let _inside = fork::Inside::new(); // forks of other tests must not copy a lock that is held here
        let new = || Line::new(&Queue::new().unwrap(), QpKind::Rc, Space::Tcp).unwrap();
        let (line, other) = (new(), new());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, own(&line).port()));
        line.listen(1).unwrap();
        own(&other);
        let inherited: Vec<_> =
            line.state().listening.iter().map(|socket| SockRef::from(socket).try_clone().unwrap()).collect();
        assert_eq!(inherited.len(), 2, "the listener must have a Unix socket and a TCP socket");
        let connection = TcpStream::connect(address).unwrap();
        let call = || other.state().claim.as_ref().unwrap().call(address);
        line.close();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(call().unwrap_err().kind(), ErrorKind::ConnectionRefused);
        drop((inherited, connection));
    }

    #[test]
    fn an_answer_to_a_peer_that_has_left_is_invalid() {
        let service = Service::start().unwrap();
        let queue = Queue::new().unwrap();
        for phase in [Phase::Requested, Phase::Over] {
            let line = Line::with(Arc::clone(&service), &queue, QpKind::Rc, Space::Tcp);
            let (socket, peer) = UnixStream::pair().unwrap();
            drop(peer);
            // The service does not serve this socket, so only the answer can find that the peer has left.
            line.state().socket = Some(OwnProcess::from(OwnedFd::from(socket)));
            line.state().phase = phase;
            let rejection = line.state().rejection(reason::CONSUMER_DEFINED);
            let answered = line.answer(Phase::Requested, &rejection, Phase::Over);
            assert_eq!(answered.map_err(|refused| refused.errno), Err(libc::EINVAL), "{phase:?}");
        }
    }

    /// The test sets back the time at which the program called `rdma_connect`, and thus waits for no time.
    #[test]
    fn a_connection_that_was_refused_for_half_a_second_is_reported() {
        let queue = Queue::new().unwrap();
        let line = Arc::new(Line::with(Service::start().unwrap(), &queue, QpKind::Rc, Space::Tcp));
        let mut state = line.state();
        state.begun = Some(Instant::now() - Duration::from_millis(500));
        line.on_refusal(&mut state, &io::Error::from_raw_os_error(libc::ECONNREFUSED));
        assert_eq!(state.phase, Phase::Over);
        let found: Vec<_> = state.early.iter().map(|news| (news.kind, news.status)).collect();
        assert_eq!(found, [(c::RDMA_CM_EVENT_REJECTED, c_int::from(reason::INVALID_SERVICE_ID))]);
    }

    /// Replaces the file of a descriptor. This simulates a program that closes the library's descriptors and then opens
    /// files.
    fn replace(descriptor: BorrowedFd<'_>, with: &impl AsFd) {
        // SAFETY: the descriptor belongs to the test. The library compares identities before it uses a descriptor.
        let replaced = unsafe { libc::dup2(with.as_fd().as_raw_fd(), descriptor.as_raw_fd()) };
        assert_eq!(replaced, descriptor.as_raw_fd());
    }

    #[test]
    fn lines_end_once_the_program_has_closed_the_descriptors_of_their_service() {
        let service = Service::start().unwrap();
        let queue = Queue::new().unwrap();
        let new = |phase| {
            let line = Arc::new(Line::with(Arc::clone(&service), &queue, QpKind::Rc, Space::Tcp));
            line.state().phase = phase;
            line
        };
        let lines = [
            (Phase::Listening { backlog: 1 }, &[c::RDMA_CM_EVENT_DEVICE_REMOVAL][..]),
            (Phase::Connecting { connected: true }, &[c::RDMA_CM_EVENT_UNREACHABLE]),
            (Phase::Requested, &[c::RDMA_CM_EVENT_UNREACHABLE]),
            (Phase::Established, &[c::RDMA_CM_EVENT_DISCONNECTED, c::RDMA_CM_EVENT_TIMEWAIT_EXIT]),
            (Phase::Disconnecting, &[c::RDMA_CM_EVENT_DISCONNECTED, c::RDMA_CM_EVENT_TIMEWAIT_EXIT]),
        ]
        .map(|(phase, events)| (new(phase), phase, events));
        let mut others = Vec::new();
        for (line, ..) in &lines {
            let (socket, other) = UnixStream::pair().unwrap();
            let socket = OwnProcess::from(OwnedFd::from(socket));
            service.serve(line, &socket, READ, None).unwrap();
            line.state().socket = Some(socket);
            others.push(other);
        }
        assert!(service.is_intact());
        // Replace the files of all descriptors of the lines and of the service by other files of the same kind.
        let (mut theirs, mine) = UnixStream::pair().unwrap();
        for (line, ..) in &lines {
            replace(line.state().socket.as_ref().unwrap().as_fd(), &mine);
        }
        let numbers: Vec<_> =
            lines.iter().map(|(line, ..)| line.state().socket.as_ref().unwrap().as_fd().as_raw_fd()).collect();
        let [epoll, wake] = service.descriptors();
        replace(wake, &EventFd::new().unwrap());
        replace(epoll, &Epoll::new(EpollCreateFlags::empty()).unwrap().0);
        assert!(!service.is_intact());

        let until = Instant::now() + Duration::from_secs(60);
        while lines.iter().any(|(line, ..)| line.state().early.is_empty()) {
            assert!(Instant::now() < until, "a line waits for a service that has no descriptors");
            std::thread::sleep(Duration::from_millis(10));
        }
        for (line, phase, expected) in &lines {
            let found: Vec<_> = line.state().early.iter().map(|news| news.kind).collect();
            assert_eq!(found, *expected, "{phase:?}");
            assert_eq!(line.disconnect().map_err(|refused| refused.errno), Ok(()), "{phase:?}");
            line.close();
        }
        let late = new(Phase::Crowded);
        assert_eq!(service.keep(&late, soon(ANSWER)).map_err(|refused| refused.errno), Err(libc::EBADF));
        // The library must not have written to a file of the program or closed such a file.
        drop(mine);
        theirs.set_nonblocking(true).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        for number in numbers {
            // SAFETY: the descriptor is a copy of `mine` and has no other owner.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }
}
