//! What an id is to the other end: its TCP connection or listener, and how far it has come.
//!
//! The service thread and the program's threads meet here. Nothing here touches queue pairs or what
//! C sees of an id; that is done by the program's threads, when they call.
//!
//! Locks: a line's state before its listener's, before the service's table and a channel's queue.

mod hear;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::{PathMtu, Psn, QpKind};
use nix::sys::epoll::EpollFlags;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::channel::{Detail, News, Place, Queue};
use super::message::{Endpoint, MAX_BYTES, Message, lookup, reason};
use super::service::{self, Number, Service};
use crate::answer::{Answer, Refused};
use crate::fork;

#[cfg(test)]
pub(super) use hear::ARRIVAL;

/// How long a program may take to accept or reject, or its peer to be told of it: the kernel's
/// connection manager waits as long once it has said that the message arrived (MRA, 2^24 * 4.096 us).
const ANSWER: Duration = Duration::from_secs(69);

/// How long the other end may take to agree that a connection is over.
const GOODBYE: Duration = Duration::from_secs(5);

/// How long nobody may listen before a request is rejected. Servers that take one connection at a time
/// listen anew for the next, and clients that are told of an address at once come too early for that; real
/// networks take their time to resolve one.
const LISTENER_LATE: Duration = Duration::from_secs(2);

/// How long it is waited between two tries.
const AGAIN: Duration = Duration::from_millis(20);

/// How long packets of a connection that is over may be under way.
const TIMEWAIT: Duration = Duration::from_millis(200);

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
    /// A request is under way, or the TCP connection for it.
    Connecting {
        connected: bool,
    },
    /// Nobody listens there; it is tried again soon.
    Refused,
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
    id: Place,
    queue: Arc<Queue>,
    /// News of an id that the program does not know yet.
    early: Vec<News>,
    socket: Option<Socket>,
    inbox: Vec<u8>,
    /// What is said as soon as the TCP connection stands.
    request: Option<Message>,
    /// Until when it is tried again if nobody listens.
    refused_until: Option<Instant>,
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

fn refused(what: &str, error: &io::Error) -> Refused {
    Refused::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {error}"))
}

fn soon(wait: Duration) -> Option<Instant> {
    Some(Instant::now() + wait)
}

impl Line {
    pub(super) fn new(queue: &Arc<Queue>, kind: QpKind) -> Answer<Arc<Self>> {
        let service = service::get()?;
        Ok(Arc::new(Self::with(service, queue, kind)))
    }

    fn with(service: Arc<Service>, queue: &Arc<Queue>, kind: QpKind) -> Self {
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
            id: Place::NONE,
            queue: Arc::clone(queue),
            early: Vec::new(),
            socket: None,
            inbox: Vec::new(),
            request: None,
            refused_until: None,
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

    /// Takes an address and a TCP port for the id.
    pub(super) fn bind(&self, address: SocketAddr) -> Answer<SocketAddr> {
        let mut state = self.state();
        if state.phase != Phase::Idle || state.socket.is_some() {
            return Err(Refused::invalid("the id has an address already"));
        }
        let bind = || -> io::Result<(Socket, SocketAddr)> {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            // Connections of a server that ended must not keep the next one from its port.
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                socket.set_only_v6(state.options.ipv6_only)?;
            }
            socket.bind(&address.into())?;
            let bound = socket.local_addr()?.as_socket().unwrap_or(address);
            Ok((socket, bound))
        };
        let (socket, bound) =
            bind().map_err(|error| refused(&format!("the id could not be bound to {address}"), &error))?;
        state.socket = Some(socket);
        state.local = Some(bound);
        Ok(bound)
    }

    pub(super) fn is_bound(&self) -> bool {
        self.state().socket.is_some()
    }

    pub(super) fn listen(self: &Arc<Self>, backlog: usize) -> Answer<()> {
        let mut state = self.state();
        if state.phase != Phase::Idle {
            return Err(Refused::invalid("only an id that is bound and nothing else can listen"));
        }
        let socket = state.socket.as_ref().ok_or_else(|| Refused::invalid("the id is not bound"))?;
        socket
            .listen(backlog.try_into().unwrap_or(c_int::MAX))
            .map_err(|error| refused("the id cannot listen at its address", &error))?;
        self.service.serve(self, socket, READ, None)?;
        state.phase = Phase::Listening { backlog };
        Ok(())
    }

    /// Connects to where the id is resolved to, and says `request` there.
    pub(super) fn connect(self: &Arc<Self>, request: Message) -> Answer<()> {
        let mut state = self.state();
        if state.phase != Phase::RouteResolved {
            return Err(Refused::invalid("an id needs a resolved route before it connects, and connects once"));
        }
        let socket = state.socket.as_ref().ok_or_else(|| Refused::invalid("the id is not bound"))?;
        prepare(socket);
        state.request = Some(request);
        state.refused_until = soon(LISTENER_LATE);
        self.reach_out(&mut state)
    }

    /// Connects, or connects again.
    fn reach_out(self: &Arc<Self>, state: &mut State) -> Answer<()> {
        let remote = state.remote.ok_or_else(|| Refused::invalid("the id has no destination"))?;
        let Some(socket) = &state.socket else { return Ok(()) };
        let connect = || socket.connect(&SockAddr::from(remote));
        let connected = match connect() {
            // What the kernel says first on a socket that was refused before (inet_stream_connect).
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => connect(),
            result => result,
        };
        match connected {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => self.on_refusal(state, &error),
            _ => {
                self.service.serve(self, socket, EpollFlags::EPOLLOUT, soon(ANSWER))?;
                state.phase = Phase::Connecting { connected: false };
            }
        }
        Ok(())
    }

    /// A TCP connection did not come about.
    fn on_refusal(self: &Arc<Self>, state: &mut State, error: &io::Error) {
        let refused = error.raw_os_error() == Some(libc::ECONNREFUSED);
        if refused && state.refused_until.is_some_and(|until| Instant::now() < until) {
            if let Some(socket) = &state.socket {
                self.service.forget_socket(socket);
            }
            state.phase = Phase::Refused;
            self.service.keep(self, soon(AGAIN));
            return;
        }
        let (kind, status) = fate(state.kind, error);
        state.end(&self.service, self.number);
        state.tell(kind, status, Detail::Nothing);
    }

    /// Says the program's answer to a request, or that it knows of the reply. `next` says what becomes
    /// of the line.
    pub(super) fn answer(&self, expected: Phase, message: &Message, next: Phase) -> Answer<()> {
        let mut state = self.state();
        if state.phase != expected {
            return Err(Refused::new(libc::ENOTCONN, "the other end has given up"));
        }
        let said = state.say(message).map_err(|error| refused("the other end could not be answered", &error));
        if said.is_err() && expected == Phase::Answered {
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

    /// Is there a connection that can be ended, or was there one?
    pub(super) fn has_connection(&self) -> bool {
        use Phase as P;
        matches!(self.state().phase, P::Established | P::Accepted | P::Answered | P::Disconnecting | P::Disconnected)
    }

    /// Is there, or will there certainly be, something to tell of the end of its connection?
    pub(super) fn owes_news(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Disconnecting || state.queue.has_news_of(state.id)
    }

    pub(super) fn disconnect(&self) -> Answer<()> {
        let mut state = self.state();
        match state.phase {
            Phase::Established | Phase::Accepted | Phase::Answered => {}
            Phase::Disconnecting | Phase::Disconnected => return Ok(()),
            _ => return Err(Refused::invalid("the id has no connection")),
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
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        let bytes = message.emit();
        match socket.send_with_flags(&bytes, libc::MSG_NOSIGNAL)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }

    /// Reads what is there, one message's size at most; the error says that no more will come.
    fn receive(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let mut buffer = [MaybeUninit::<u8>::uninit(); MAX_BYTES];
        let room = MAX_BYTES - self.inbox.len().min(MAX_BYTES);
        match socket.recv(&mut buffer[..room]) {
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
        if let Some(socket) = self.socket.take() {
            service.forget_socket(&socket);
            // A forked child may hold it too: closing alone would leave the other end connected.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.inbox = Vec::new();
        self.request = None;
    }

    fn end(&mut self, service: &Service, number: Number) {
        self.hang_up(service);
        self.phase = Phase::Over;
        service.forget(number);
    }
}

/// What a TCP connection that does not come about is to the program. Nobody listening is what IBTA
/// calls an invalid service.
fn fate(kind: QpKind, error: &io::Error) -> (c::rdma_cm_event_type, c_int) {
    match (error.raw_os_error(), kind) {
        (Some(libc::ECONNREFUSED), QpKind::Ud) => (c::RDMA_CM_EVENT_UNREACHABLE, lookup::UNSUPPORTED.into()),
        (Some(libc::ECONNREFUSED), _) => (c::RDMA_CM_EVENT_REJECTED, reason::INVALID_SERVICE_ID.into()),
        (errno, _) => (c::RDMA_CM_EVENT_UNREACHABLE, -errno.unwrap_or(libc::ECONNRESET)),
    }
}

/// A connection says little, at once, and must notice that the other machine is gone.
fn prepare(socket: &Socket) {
    let alive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    // Without them it works, if more slowly.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&alive.with_retries(3));
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn a_listener_that_goes_takes_its_port_from_those_who_inherited_the_socket() {
        let line = Line::new(&Queue::new().unwrap(), QpKind::Rc).unwrap();
        let address = line.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        line.listen(1).unwrap();
        let inherited = line.state().socket.as_ref().unwrap().try_clone().unwrap();
        let connection = TcpStream::connect(address).unwrap();
        line.close();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        drop((inherited, connection));
    }
}
