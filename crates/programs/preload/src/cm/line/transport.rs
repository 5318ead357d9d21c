//! Binding, listening and connecting of an id. Ids use Unix sockets within this machine, and TCP between machines.

use std::ffi::c_int;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell_fabric::{Opening, OwnProcess};
use doorbell_ibverbs_sys as c;
use doorbell_verbs::QpKind;
use nix::sys::epoll::EpollFlags;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::{ANSWER, KERNEL_BACKLOG, Line, Options, Phase, READ, State, refused, soon};
use crate::cm::address::canonical;
use crate::cm::channel::Detail;
use crate::cm::message::{Host, Message, lookup, reason};
use crate::cm::ports::{Bound, Claim, is_taken};
use crate::cm::service::attempt;
use crate::cm::tcp;
use crate::objects::answer::{Answer, Refused};

/// Time for which a client retries while no listener exists. For example, qperf's server listens again for each test,
/// and its client connects at about the same time. With adapters, the slow address resolution delays the client. This
/// library resolves addresses at once, so its client may connect before the server listens.
const LISTENER_LATE: Duration = Duration::from_millis(500);

/// Time between two attempts to reach a listener that does not exist yet or has no room.
const AGAIN: Duration = Duration::from_millis(20);

/// Maximum number of free TCP ports that the library requests from the kernel to find a free RDMA port. For each of
/// these numbers, another id may already have the RDMA port.
const NUMBERS: usize = 64;

/// First port that needs no privilege by default (`net.ipv4.ip_unprivileged_port_start`).
const PRIVILEGED: u16 = 1024;

/// End of an error text about a listener that has no TCP port.
const HERE_ONLY: &str = "so only programs of this machine can reach the listener";

impl Line {
    /// Binds the id to an address and a port.
    pub(in crate::cm) fn bind(&self, address: SocketAddr) -> Answer<SocketAddr> {
        let mut state = self.state();
        if state.phase != Phase::Idle || state.claim.is_some() {
            return Err(Refused::invalid("the id already has an address: bind an id only once"));
        }
        let (claim, tcp) = state.take_port(address).map_err(|error| {
            let why = match error.raw_os_error() {
                Some(libc::EADDRNOTAVAIL) => " (another id has the port, or no interface has the address)",
                Some(libc::EADDRINUSE) => " (another id has the port)",
                _ => "",
            };
            refused(&format!("the id could not be bound to {address}{why}"), &error)
        })?;
        let mut bound = address;
        bound.set_port(claim.bound().address.port());
        state.tcp = tcp.filter(|_| state.has_network && !bound.ip().is_loopback());
        state.claim = Some(claim);
        state.local = Some(bound);
        Ok(bound)
    }

    pub(in crate::cm) fn is_bound(&self) -> bool {
        let state = self.state();
        state.claim.is_some() || state.socket.is_some()
    }

    /// Sets whether the id shares its port. Returns an error for a listener, and for `false` if the id is bound.
    pub(in crate::cm) fn set_reuse(&self, reuse: bool) -> Answer<()> {
        let mut state = self.state();
        match &state.claim {
            Some(_) if matches!(state.phase, Phase::Listening { .. }) => {
                return Err(Refused::invalid(
                    "a listener does not share its port: the option cannot be changed after rdma_listen",
                ));
            }
            Some(_) if !reuse => {
                return Err(Refused::invalid(
                    "a bound id cannot stop sharing its port: clear the option before rdma_bind_addr",
                ));
            }
            Some(claim) if !claim.bound().reuse => {
                let shared = claim.again(true).map_err(|error| refused("the port cannot be shared", &error))?;
                state.claim = Some(shared);
            }
            _ => {}
        }
        state.options.reuse = reuse;
        Ok(())
    }

    pub(in crate::cm) fn listen(self: &Arc<Self>, backlog: usize) -> Answer<()> {
        let mut state = self.state();
        if state.phase != Phase::Idle {
            return Err(Refused::invalid(
                "the id cannot listen: must be bound, and must not be resolved, connected or listening",
            ));
        }
        let failed = |error: &io::Error| refused("the id cannot listen at its address", error);
        let claim =
            state.claim.as_ref().ok_or_else(|| Refused::invalid("the id is not bound: call rdma_bind_addr first"))?;
        // A listener does not share its port, as in Linux (`rdma_listen`). So replace a shared claim by an exclusive
        // claim.
        let alone = if claim.bound().reuse { Some(claim.again(false).map_err(|error| failed(&error))?) } else { None };
        let here = alone.as_ref().unwrap_or(claim).listen().map_err(|error| failed(&error))?;
        self.service.serve(self, &here, READ, None)?;
        if let Some(alone) = alone {
            state.claim = Some(alone);
            state.options.reuse = false;
        }
        state.listening.push(here);
        if let Err(why) = self.listen_to_network(&mut state) {
            why.tell("rdma_listen");
        }
        state.phase = Phase::Listening { backlog };
        Ok(())
    }

    /// Also listens at the TCP port, for clients on other machines. Does nothing if other machines cannot reach the
    /// RNIC or the listener's address.
    fn listen_to_network(&self, state: &mut State) -> Answer<()> {
        let Some(local) = state.local.filter(|local| state.has_network && !local.ip().is_loopback()) else {
            return Ok(());
        };
        let listen = |kept: Option<OwnProcess>| -> io::Result<OwnProcess> {
            let socket = kept.map_or_else(|| tcp_socket(local, state.options), Ok)?;
            SockRef::from(&socket).listen(KERNEL_BACKLOG)?;
            Ok(socket)
        };
        let kept = state.tcp.take();
        let socket = listen(kept)
            .map_err(|error| refused(&format!("TCP port {} is unavailable, {HERE_ONLY}", local.port()), &error))?;
        self.service.watch(self.number, &socket, READ)?;
        state.listening.push(socket);
        Ok(())
    }

    /// Closes this line's sockets at the TCP port that the program wants for its own socket. Returns whether the line
    /// had such a socket.
    pub(in crate::cm) fn leave_tcp(&self, wanted: SocketAddr) -> bool {
        let Some(mut state) = attempt(&self.state) else { return false };
        let stands_in_the_way = |socket: &OwnProcess| {
            let own = SockRef::from(socket).local_addr().ok().and_then(|own| own.as_socket());
            own.filter(|_| socket.is_intact()).is_some_and(|own| {
                let [own, wanted] = [own, wanted].map(canonical);
                own.port() == wanted.port()
                    && (own.ip().is_unspecified() || wanted.ip().is_unspecified() || own.ip() == wanted.ip())
            })
        };
        let reserved = state.tcp.take_if(|socket| stands_in_the_way(socket));
        let listening: Vec<_> = state.listening.extract_if(.., |socket| stands_in_the_way(socket)).collect();
        for socket in &listening {
            self.service.forget_socket(socket);
            // A forked child that has not run yet may also hold the socket, so shut the socket down.
            let _ = SockRef::from(socket).shutdown(Shutdown::Both);
        }
        reserved.is_some() || !listening.is_empty()
    }

    /// Listens for other machines again, after the program failed to bind the TCP port.
    pub(in crate::cm) fn return_to_tcp(&self) {
        let Some(mut state) = attempt(&self.state) else { return };
        if let Phase::Listening { .. } = state.phase
            && let Err(why) = self.listen_to_network(&mut state)
        {
            why.tell("bind");
        }
    }

    /// Explains, if the user requested explanations, that the program now has the TCP port of the listener.
    pub(in crate::cm) fn tell_left_tcp(&self, port: SocketAddr) {
        let why = format!("the program listens for rdma_cm and has a socket of its own at TCP port {}", port.port());
        Refused::new(libc::EADDRINUSE, format!("{why}, {HERE_ONLY}")).tell("bind");
    }

    /// Connects to the resolved destination of the id, and sends `request`.
    pub(in crate::cm) fn connect(self: &Arc<Self>, request: Message) -> Answer<()> {
        let mut state = self.state();
        if state.phase != Phase::RouteResolved {
            return Err(Refused::invalid(
                "the id cannot connect: its route must be resolved, and an id connects only once",
            ));
        }
        if state.claim.is_none() {
            return Err(Refused::invalid("the id is not bound: call rdma_bind_addr first"));
        }
        state.request = Some(request);
        state.begun = Some(Instant::now());
        self.reach_out(&mut state)
    }

    /// Makes one attempt to connect.
    pub(super) fn reach_out(self: &Arc<Self>, state: &mut State) -> Answer<()> {
        let remote =
            state.remote.ok_or_else(|| Refused::invalid("the id has no destination: call rdma_resolve_addr first"))?;
        if state.is_far { self.reach_far(state, remote) } else { self.reach_here(state, remote) }
    }

    /// Connects within this machine. The attempt succeeds or fails at once.
    fn reach_here(self: &Arc<Self>, state: &mut State, remote: SocketAddr) -> Answer<()> {
        let Some(claim) = &state.claim else { return Ok(()) };
        if let Err(error) = claim.call(canonical(remote)) {
            self.on_refusal(state, &error);
            return Ok(());
        }
        state.socket = state.claim.take().map(Claim::into_socket);
        let Some(socket) = &state.socket else { return Ok(()) };
        self.service.serve(self, socket, READ, soon(ANSWER))?;
        let source = Host::of(canonical(state.local.unwrap_or(remote)));
        let addresses = Message::Addresses { source, destination: Host::of(canonical(remote)) };
        let said = state.say(&addresses).and_then(|()| state.request.as_ref().map_or(Ok(()), |said| state.say(said)));
        match said {
            Ok(()) => state.phase = Phase::Connecting { connected: true },
            Err(error) => self.on_refusal(state, &error),
        }
        Ok(())
    }

    fn reach_far(self: &Arc<Self>, state: &mut State, remote: SocketAddr) -> Answer<()> {
        if state.socket.is_none() {
            let socket = state.tcp.take().map_or_else(|| state.tcp_to_connect(), Ok);
            let socket =
                socket.map_err(|error| refused("a TCP socket for the connection could not be created", &error))?;
            prepare(&socket);
            state.socket = Some(socket);
        }
        let Some(socket) = &state.socket else { return Ok(()) };
        socket.expect_intact().map_err(|error| refused("the id cannot connect", &error))?;
        let connect = || SockRef::from(socket).connect(&SockAddr::from(remote));
        let connected = match connect() {
            // If an earlier connection of this socket was refused, the kernel first returns ECONNABORTED
            // (`inet_stream_connect`). So try again.
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

    /// Handles a failed attempt to connect. The id tries again for a limited time, and then reports the failure.
    pub(super) fn on_refusal(self: &Arc<Self>, state: &mut State, error: &io::Error) {
        let patience = match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => LISTENER_LATE,
            // The listener is on this machine, and its queue of unaccepted connections is full. Retry as long as a
            // program may take to answer.
            Some(libc::EAGAIN) => ANSWER,
            _ => Duration::ZERO,
        };
        if state.begun.is_some_and(|begun| begun.elapsed() < patience) && self.service.keep(self, soon(AGAIN)).is_ok() {
            if let Some(socket) = &state.socket {
                self.service.forget_socket(socket);
            }
            state.phase = Phase::Crowded;
            return;
        }
        let (kind, status) = fate(state.kind, error);
        state.end(&self.service, self.number);
        state.tell(kind, status, Detail::Nothing);
    }
}

impl State {
    /// Claims a port of this machine. If the program leaves the port open, also returns the TCP socket to which the
    /// kernel gave the port.
    fn take_port(&self, address: SocketAddr) -> io::Result<(Claim, Option<OwnProcess>)> {
        let Options { ipv6_only: only, reuse, .. } = self.options;
        let bound = |port| {
            let mut address = canonical(address);
            address.set_port(port);
            Bound { space: self.space, address, only, reuse }
        };
        if address.port() != 0 {
            check(address, self.options)?;
            return Ok((Claim::take(bound(address.port()))?, None));
        }
        // Keep the sockets in `offered`. While they exist, the kernel does not offer their ports again.
        let mut offered = Vec::new();
        loop {
            let tcp = tcp_socket(address, self.options)?;
            let number = SockRef::from(&tcp).local_addr()?.as_socket().map_or(0, |local| local.port());
            match Claim::take_free(bound(number)) {
                Ok(claim) => return Ok((claim, Some(tcp))),
                Err(error) if is_taken(&error) && offered.len() < NUMBERS => offered.push(tcp),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns a TCP socket for a connection. The socket is bound to the number of the id's port, unless another socket
    /// has this TCP port.
    fn tcp_to_connect(&self) -> io::Result<OwnProcess> {
        let Some(mut local) = self.local else { return Err(ErrorKind::AddrNotAvailable.into()) };
        tcp_socket(local, self.options).or_else(|error| {
            let why = format!("TCP port {} is unavailable, so the peer sees another port", local.port());
            refused(&why, &error).tell("rdma_connect");
            local.set_port(0);
            tcp_socket(local, self.options)
        })
    }
}

/// Checks that this machine has the address, and that this user may bind the port. The function asks the kernel by
/// binding a TCP socket and a UDP socket.
fn check(mut address: SocketAddr, options: Options) -> io::Result<()> {
    if address.port() < PRIVILEGED {
        match tcp_socket(address, options) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {} // RDMA ports are independent of TCP ports
            result => return result.map(drop),
        }
    }
    address.set_port(0);
    UdpSocket::bind(address).map(drop)
}

fn tcp_socket(address: SocketAddr, options: Options) -> io::Result<OwnProcess> {
    let opening = Opening::begin();
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Old connections of a terminated server must not prevent the next server from binding the port.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(options.ipv6_only)?;
    }
    tcp::bind_own(&socket, &address.into())?;
    Ok(OwnProcess::new(socket.into(), &opening))
}

/// Sets TCP options. Small messages leave at once, and keepalive detects that the other machine is gone.
pub(super) fn prepare(socket: &impl AsFd) {
    let alive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    let socket = SockRef::from(socket);
    // Ignore errors. Without the options, small messages are slower, and the loss of the other machine may stay
    // unnoticed.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&alive.with_retries(3));
}

/// Returns the event and the status of a failed connection. For a missing listener, IBTA's reason is an invalid service
/// ID.
fn fate(kind: QpKind, error: &io::Error) -> (c::rdma_cm_event_type, c_int) {
    match (error.raw_os_error(), kind) {
        (Some(libc::ECONNREFUSED), QpKind::Ud) => (c::RDMA_CM_EVENT_UNREACHABLE, lookup::UNSUPPORTED.into()),
        (Some(libc::ECONNREFUSED), _) => (c::RDMA_CM_EVENT_REJECTED, reason::INVALID_SERVICE_ID.into()),
        (Some(libc::EAGAIN), _) => (c::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        (errno, _) => (c::RDMA_CM_EVENT_UNREACHABLE, -errno.unwrap_or(libc::ECONNRESET)),
    }
}
