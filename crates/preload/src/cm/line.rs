//! What an id is to the other end: its port, its connection or listener, and how far it has come.
//!
//! The service thread and the program's threads meet here. Nothing here touches queue pairs or what
//! C sees of an id; that is done by the program's threads, when they call.
//!
//! Locks: a line's state before its listener's, before the service's table and a channel's queue.

mod hear;
mod road;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_fabric::OwnProcess;
use doorbell_ibverbs_sys as c;
use doorbell_verbs::{PathMtu, Psn, QpKind};
use nix::sys::epoll::EpollFlags;
use socket2::SockRef;

use super::channel::{Detail, News, Place, Queue};
use super::message::{Endpoint, MAX_BYTES, Message, lookup, reason};
use super::ports::{Bound, Claim, Space};
use super::service::{self, Number, Service};
use crate::answer::{Answer, Refused};
use crate::{config, fork};

#[cfg(test)]
pub(super) use hear::ARRIVAL;

/// How long a program may take to accept or reject, or its peer to be told of it: the kernel's
/// connection manager waits as long once it has said that the message arrived (MRA, 2^24 * 4.096 us).
const ANSWER: Duration = Duration::from_secs(69);

/// How long the other end may take to agree that a connection is over.
const GOODBYE: Duration = Duration::from_secs(5);

/// How long packets of a connection that is over may be under way.
const TIMEWAIT: Duration = Duration::from_millis(200);

/// Reason for which the other end cannot get an answer.
const LEFT: &str = "the other end has left, or was answered already";

/// Requests that wait for a program that does not say how many may.
pub(super) const DEFAULT_BACKLOG: usize = 1024;

/// How far an id has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    AddressResolved,
    RouteResolved,
    Listening {
        backlog: usize,
    },
    /// Somebody connected to a listener; the request is to come.
    Arriving,
    /// The program has to accept or reject.
    Requested,
    /// A request is under way, or the connection for it.
    Connecting {
        connected: bool,
    },
    /// The listener has no room for one more connection, or does not exist yet; the id tries again soon.
    Crowded,
    /// The reply is here; the program has to take note of it.
    Answered,
    /// Accepted; the other end has to say that it knows.
    Accepted,
    Established,
    Disconnecting,
    Disconnected,
    /// Nothing comes of it any more.
    Over,
}

/// What a program may set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) traffic_class: u8,
    pub(super) ipv6_only: bool,
    /// It shares its port with others that do so too, until it listens.
    pub(super) reuse: bool,
    pub(super) ack_timeout: Option<u8>,
}

/// What the two ends agree on, and what this one decides.
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
    /// Takes note of what the other end says of itself.
    fn learn(&mut self, peer: Endpoint) {
        self.peer = Some(peer);
        self.rnr_retry = peer.rnr_retry;
        // What one end answers is what the other has outstanding.
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
    /// The other end is on another machine, and TCP leads there.
    pub(super) is_far: bool,
    /// Other machines reach the RNIC of this process.
    pub(super) has_network: bool,
    /// Its port on this machine. An id that has connected here has given it to its connection.
    pub(super) claim: Option<Claim>,
    space: Space,
    /// Holds the TCP port of the same number, if the program left the choice of a number to the library.
    tcp: Option<OwnProcess>,
    id: Place,
    queue: Arc<Queue>,
    /// News of an id that the program does not know yet.
    early: Vec<News>,
    /// The connection.
    socket: Option<OwnProcess>,
    /// Of a listener: what it is reached by.
    listening: Vec<OwnProcess>,
    inbox: Vec<u8>,
    /// What is said as soon as the connection stands.
    request: Option<Message>,
    /// When the program asked for the connection.
    begun: Option<Instant>,
    /// Of a connection within this machine that has not said yet between which addresses it is: how the two ends are
    /// bound, the caller first.
    called: Option<(Bound, Bound)>,
    /// Whose request this may become.
    listener: Option<Arc<Line>>,
    /// Of a listener: connections whose request is not here yet.
    arriving: Vec<Number>,
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

fn soon(wait: Duration) -> Option<Instant> {
    Some(Instant::now() + wait)
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
            id: Place::NONE,
            queue: Arc::clone(queue),
            early: Vec::new(),
            socket: None,
            listening: Vec::new(),
            inbox: Vec::new(),
            request: None,
            begun: None,
            called: None,
            listener: None,
            arriving: Vec::new(),
        };
        Self { number: service.number(), service, generation: fork::generation(), state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses ids that were inherited by a fork: their connections are the parent's.
    pub(super) fn expect_own(&self) -> Answer<()> {
        if self.generation == fork::generation() {
            return Ok(());
        }
        Err(Refused::new(libc::EIO, "the id was created by another process, before it forked: create one anew"))
    }

    /// The program knows the id from now on, and gets what there was to tell of it.
    pub(super) fn adopt(&self, id: Place) {
        let mut state = self.state();
        state.id = id;
        for mut news in std::mem::take(&mut state.early) {
            news.id = id;
            state.queue.push(news);
        }
    }

    /// Sends the program's answer to a request, or its acknowledgement of the reply. `next` is the phase of the line
    /// afterwards.
    ///
    /// If the other end has left, the errno is EINVAL, as for every message that the kernel's connection manager refuses
    /// in a state (`ib_send_cm_rep`, `ib_send_cm_rej` and `ib_send_cm_rtu` in `drivers/infiniband/core/cm.c`).
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

    /// Data has come, so the other end must know of the reply, whether it said so or not.
    pub(super) fn note_established(&self) -> Answer<()> {
        let mut state = self.state();
        match state.phase {
            Phase::Accepted => {
                state.establish(&self.service, self.number);
                Ok(())
            }
            Phase::Established => Err(Refused::new(libc::EISCONN, "the connection is established")),
            _ => Err(Refused::invalid("there is no connection to be established")),
        }
    }

    /// Returns whether the id has connected, or is the id of a request, with any outcome.
    pub(super) fn has_begun(&self) -> bool {
        use Phase as P;
        !matches!(self.state().phase, P::Idle | P::AddressResolved | P::RouteResolved | P::Listening { .. })
    }

    /// Is there, or will there certainly be, something to tell of the end of its connection?
    pub(super) fn owes_news(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Disconnecting || state.queue.has_news_of(state.id)
    }

    /// Ends the connection. If one has begun and is not established, this sends nothing and returns no error, as in the
    /// kernel (`rdma_disconnect` in `drivers/infiniband/core/cma.c`).
    pub(super) fn disconnect(&self) -> Answer<()> {
        if !self.has_begun() {
            return Err(Refused::invalid("the id has no connection: it did not connect, and is not that of a request"));
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

    /// Moves the id, with what was not told of it yet, to another channel.
    pub(super) fn migrate(&self, queue: &Arc<Queue>) {
        let mut state = self.state();
        let waiting = state.queue.take_all_of(state.id);
        state.queue = Arc::clone(queue);
        for news in waiting {
            queue.push(news);
        }
    }

    /// The id is destroyed: the other end is told, and the program is told nothing more.
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
            let id = std::mem::replace(&mut state.id, Place::NONE);
            state.early.clear();
            if id == Place::NONE { VecDeque::new() } else { state.queue.take_all_of(id) }
        };
        // Requests that the program did not look at.
        for news in untold {
            if let Detail::Request { line, .. } = news.detail {
                line.close();
            }
        }
    }
}

impl State {
    /// Tells the program something.
    pub(super) fn tell(&mut self, kind: c::rdma_cm_event_type, status: c_int, detail: Detail) {
        let news = News { id: self.id, kind, status, detail };
        if self.id == Place::NONE {
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

    /// What is said in a connection's life fits into any socket's buffer, so it leaves at once.
    fn say(&self, message: &Message) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        socket.expect_intact()?;
        let bytes = message.emit();
        match SockRef::from(socket).send_with_flags(&bytes, libc::MSG_NOSIGNAL)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }

    /// Reads what is there, one message's size at most; the error says that no more will come.
    fn receive(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        socket.expect_intact()?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); MAX_BYTES];
        let room = MAX_BYTES - self.inbox.len().min(MAX_BYTES);
        match SockRef::from(socket).recv(&mut buffer[..room]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(received) => {
                // SAFETY: so many bytes were written.
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
                // A forked child may hold the socket for a moment, and would keep the other end connected.
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
    fn a_listener_that_goes_takes_its_port_from_those_who_inherited_the_socket() {
        let own = |line: &Line| {
            line.state().has_network = true;
            line.bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap()
        };
        let new = || Line::new(&Queue::new().unwrap(), QpKind::Rc, Space::Tcp).unwrap();
        let (line, other) = (new(), new());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, own(&line).port()));
        line.listen(1).unwrap();
        own(&other);
        let inherited: Vec<_> =
            line.state().listening.iter().map(|socket| SockRef::from(socket).try_clone().unwrap()).collect();
        assert_eq!(inherited.len(), 2, "one for this machine, and one of TCP");
        let connection = TcpStream::connect(address).unwrap();
        let call = || other.state().claim.as_ref().unwrap().call(address);
        line.close();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(call().unwrap_err().kind(), ErrorKind::ConnectionRefused);
        drop((inherited, connection));
    }

    /// Puts another file under a number, as programs do that close descriptors of others and open files.
    fn replace(descriptor: BorrowedFd<'_>, with: &impl AsFd) {
        // SAFETY: the number belongs to the test, and the library compares identities.
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
        // From here on all numbers stand for other files of the same kind.
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
        // The library wrote to no file of the program, and closed none.
        drop(mine);
        theirs.set_nonblocking(true).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        for number in numbers {
            // SAFETY: it is a copy of `mine`, and no other owner is left.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }
}
