//! Test helpers for connections. Other modules use them too.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ptr;
use std::sync::Arc;

use doorbell_fabric::OwnProcess;
use doorbell_ibverbs_sys as c;
use doorbell_verbs::{PathMtu, Psn, QpKind, Qpn};
use socket2::{SockAddr, SockRef, Socket};

use super::channel::Queue;
pub(crate) use super::channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
};
pub(crate) use super::connect::{rdma_accept, rdma_connect, rdma_get_request, rdma_listen};
use super::id::Id;
pub(crate) use super::id::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
use super::line::Line;
use super::message::{Endpoint, Host, Message};
use super::object::object;
use super::ports::{Claim, Space};
use super::resolve::{rdma_bind_addr, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route};
use crate::process::fork::Inside;

pub(super) use doorbell_testing::Rng;

pub(super) fn local(port: u16) -> SockAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port).into()
}

/// Kind of sockets through which an id and a bare peer communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Unix sockets, which connect ids of one machine.
    Unix,
    /// TCP sockets, which connect ids of two machines.
    Tcp,
}

impl Transport {
    pub(super) const BOTH: [Self; 2] = [Self::Unix, Self::Tcp];

    /// Returns the address to which a test binds a listener of this transport.
    pub(super) fn address(self) -> SockAddr {
        let ip = if self == Self::Unix { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        SocketAddr::new(ip.into(), 0).into()
    }

    /// Makes an id use this transport. The id must not listen or connect before this call.
    pub(super) fn select(self, id: *mut c::rdma_cm_id) {
        // SAFETY: the id exists.
        let line = Arc::clone(&unsafe { object::<Id>(id) }.unwrap().line);
        let mut state = line.state();
        (state.has_network, state.is_far) = (self == Self::Tcp, self == Self::Tcp);
    }

    /// Returns a bare socket that is connected to a listener on this machine. The test itself sends messages through
    /// the socket.
    pub(crate) fn call(self, port: u16) -> Socket {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if self == Self::Tcp {
            return TcpStream::connect(to).unwrap().into();
        }
        let mut socket = called(&port_of_this_machine(), to);
        let host = Host::of(to);
        socket.write_all(&Message::Addresses { source: host, destination: host }.emit()).unwrap();
        socket
    }
}

/// Returns a free port of this machine.
pub(super) fn port_of_this_machine() -> Claim {
    // Forks of other tests must not copy a lock that is held here.
    let _inside = Inside::new();
    let line = Line::new(&Queue::new().unwrap(), QpKind::Rc, Space::Tcp).unwrap();
    line.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    line.state().claim.take().unwrap()
}

/// Connects from a port of this machine, and returns the socket. Nothing has been sent through the socket yet.
pub(super) fn called(from: &Claim, to: SocketAddr) -> Socket {
    from.call(to).unwrap();
    let socket = SockRef::from(from.socket()).try_clone().unwrap();
    socket.set_nonblocking(false).unwrap();
    socket
}

/// Number of ports that a test tries. An id or a socket of another test may have a port.
pub(super) const PORTS: usize = 100;

/// A bare listening socket and its port.
pub(crate) struct BareListener {
    socket: Socket,
    pub(crate) port: u16,
    transport: Transport,
    /// With the port's name on this machine, no id of another test can have the port.
    _claim: Claim,
    _listening: Option<OwnProcess>,
}

impl BareListener {
    pub(crate) fn new(transport: Transport) -> Self {
        let attempt = |_| {
            let claim = port_of_this_machine();
            let port = claim.bound().address.port();
            let (socket, listening) = if transport == Transport::Tcp {
                (TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?.into(), None)
            } else {
                let listening = claim.listen().unwrap();
                (SockRef::from(&listening).try_clone().unwrap(), Some(listening))
            };
            socket.set_nonblocking(false).unwrap();
            Some(Self { socket, port, transport, _claim: claim, _listening: listening })
        };
        (0..PORTS).find_map(attempt).expect("some port is free")
    }

    /// Accepts the next connection. A client on this machine first sends a message with the addresses. This function
    /// reads that message.
    pub(crate) fn accept(&self) -> Socket {
        let mut socket = self.socket.accept().unwrap().0;
        if self.transport == Transport::Unix {
            let mut bytes = [0; 48];
            std::io::Read::read_exact(&mut socket, &mut bytes).unwrap();
            assert!(matches!(Message::parse(&bytes), Ok(Some((Message::Addresses { .. }, 48)))));
        }
        socket
    }
}

fn synchronous_id() -> *mut c::rdma_cm_id {
    let mut id = ptr::null_mut();
    // SAFETY: the channel pointer is null, so the id gets its own channel.
    assert_eq!(unsafe { rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), c::RDMA_PS_TCP) }, 0);
    id
}

/// Returns a synchronous listener and its port.
pub(crate) fn synchronous_listener() -> (*mut c::rdma_cm_id, u16) {
    let id = synchronous_id();
    // SAFETY: the id exists.
    unsafe {
        assert_eq!(rdma_bind_addr(id, local(0).as_ptr().cast_mut().cast()), 0);
        assert_eq!(rdma_listen(id, 0), 0);
        (id, u16::from_be(rdma_get_src_port(id)))
    }
}

/// Resolves an id to a destination port of this machine.
pub(crate) fn resolve(id: *mut c::rdma_cm_id, port: u16) {
    // SAFETY: the id exists.
    assert_eq!(unsafe { rdma_resolve_addr(id, ptr::null_mut(), local(port).as_ptr().cast_mut().cast(), 1000) }, 0);
}

/// Returns a synchronous id that is ready to connect to a port of this machine.
pub(crate) fn synchronously_resolved(port: u16) -> *mut c::rdma_cm_id {
    let id = synchronous_id();
    resolve(id, port);
    // SAFETY: the id exists.
    assert_eq!(unsafe { rdma_resolve_route(id, 1000) }, 0);
    id
}

/// Returns the bytes of a request that a peer sends.
pub(crate) fn request() -> Vec<u8> {
    message().emit()
}

pub(super) fn message() -> Message {
    let endpoint = Endpoint {
        gid: Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
        qpn: Qpn::new(77),
        psn: Psn::new(5),
        path_mtu: PathMtu::Mtu512,
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry: 7,
        flow_control: false,
        srq: false,
    };
    Message::Request { kind: QpKind::Rc, endpoint, retry_count: 7, private: b"raw".to_vec() }
}
