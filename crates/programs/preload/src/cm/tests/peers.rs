//! Tests with a bare socket as peer, which sends a wrong message or dies.

use std::io::{ErrorKind, Read as _, Write as _};
use std::time::{Duration, Instant};

use doorbell_ibverbs_sys as c;
use doorbell_testing::strangers::beside_on;
use doorbell_verbs::PathMtu;
use socket2::Socket;

use super::super::line::ARRIVAL;
use super::super::message::{Host, Message};
use super::super::testing::{BareListener, Transport, called, message as request, port_of_this_machine};
use super::ports::connects;
use super::*;

/// Reads the next message on a bare connection.
fn heard(stream: &mut Socket) -> Message {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = Vec::new();
    loop {
        if let Some((message, _)) = Message::parse(&bytes).unwrap() {
            return message;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
}

/// Checks that the peer has closed the connection.
fn gone(mut stream: Socket) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

impl Channel {
    /// Returns a listener on a transport, and its port.
    fn listener_on(&self, transport: Transport) -> (*mut c::rdma_cm_id, u16) {
        let id = self.id(c::RDMA_PS_TCP);
        transport.select(id);
        // SAFETY: the id exists.
        unsafe {
            fine(rdma_bind_addr(id, sockaddr(&transport.address())));
            fine(rdma_listen(id, 0));
            (id, u16::from_be(rdma_get_src_port(id)))
        }
    }

    fn resolved_on(&self, transport: Transport, port: u16) -> *mut c::rdma_cm_id {
        let id = self.resolved(c::RDMA_PS_TCP, port);
        transport.select(id);
        id
    }
}

#[test]
fn a_listener_closes_connections_with_wrong_messages_and_still_serves() {
    Transport::BOTH.into_iter().for_each(a_listener_closes_wrong_connections);
}

fn a_listener_closes_wrong_connections(transport: Transport) {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener_on(transport);
    let connect = || transport.call(port);
    let host = Host::of((Ipv4Addr::LOCALHOST, 0).into());
    let silent = connect();
    let mut other_version = request().emit();
    other_version[4] = 99;
    let wrong = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 100_000],
        other_version,
        Message::ReadyToUse.emit(),
        Message::Reject { reason: 1, private: Vec::new() }.emit(),
        // A client sends addresses only within a machine, and only once.
        Message::Addresses { source: host, destination: host }.emit(),
    ];
    for bytes in wrong {
        let mut stream = connect();
        // The listener may close the connection before the test has sent all bytes.
        let _ = stream.write_all(&bytes);
        gone(stream);
    }
    let mut half = connect();
    half.write_all(&request().emit()[..20]).unwrap();
    drop(half);
    assert!(!passive.is_readable());
    let client = active.resolved_on(transport, port);
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_connect(client, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }));
        let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        destroy(&[server]);
        active.expect(c::RDMA_CM_EVENT_REJECTED, 28);
    }
    drop(silent);
    destroy(&[client, listener]);
}

#[test]
fn whoever_lies_about_its_addresses_is_hung_up_on() {
    let passive = Channel::new();
    let (listener, port) = passive.listener_on(Transport::Unix);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (here, elsewhere) = (Host::of(to), Host::of((Ipv4Addr::new(192, 0, 2, 77), 0).into()));
    let other = Host::of((Ipv4Addr::new(127, 0, 0, 9), 0).into());
    let nowhere = Host::of((Ipv4Addr::UNSPECIFIED, 0).into());
    // If the listener accepted wrong addresses, the program would get an event for the request.
    let said = |source, destination| [Message::Addresses { source, destination }.emit(), request().emit()].concat();
    for bytes in [
        said(elsewhere, here), // the client's port is bound to another address
        said(other, here),
        said(nowhere, here),
        said(here, elsewhere), // the listener is bound to another address
        said(here, other),
        said(here, nowhere),
        request().emit(), // the request precedes the addresses
        Message::Lookup { private: Vec::new() }.emit(),
    ] {
        let mut stream = called(&port_of_this_machine(), to);
        stream.write_all(&bytes).unwrap();
        gone(stream);
    }
    // The listener must close connections from a socket without port, and from a port of another space.
    let nameless = Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    nameless.connect(&SockAddr::unix(format!("\0doorbell-cm/listen/tcp/{port}/127.0.0.1")).unwrap()).unwrap();
    gone(nameless);
    let foreign = Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    foreign.bind(&SockAddr::unix(format!("\0doorbell-cm/port/udp/{port}/127.0.0.1")).unwrap()).unwrap();
    foreign.connect(&SockAddr::unix(format!("\0doorbell-cm/listen/tcp/{port}/127.0.0.1")).unwrap()).unwrap();
    gone(foreign);
    assert!(!passive.is_readable());
    destroy(&[listener]);
}

#[test]
fn too_many_silent_connections_do_not_block_others() {
    Transport::BOTH.into_iter().for_each(silent_connections_do_not_block_others);
}

fn silent_connections_do_not_block_others(transport: Transport) {
    let passive = Channel::new();
    let (listener, port) = passive.listener_on(transport);
    let start = Instant::now();
    let silent: Vec<_> = (0..200).map(|_| transport.call(port)).collect();
    let mut stream = transport.call(port);
    stream.write_all(&request().emit()).unwrap();
    let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
    // The listener must serve the request before the first silent connection misses its ordinary deadline.
    assert!(start.elapsed() < ARRIVAL);
    drop(silent);
    destroy(&[server, listener]);
}

#[test]
fn an_honest_client_connects_beside_strangers() {
    Transport::BOTH.into_iter().for_each(a_client_connects_beside_strangers);
}

fn a_client_connects_beside_strangers(transport: Transport) {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener_on(transport);
    // No stranger completes its request.
    let greeting = &request().emit()[..20];
    beside_on(|| Ok(transport.call(port)), greeting, || connects(&active, &passive, port, transport));
    assert!(!passive.is_readable());
    destroy(&[listener]);
}

#[test]
fn a_client_waits_while_the_listener_is_full() {
    let active = Channel::new();
    let claim = port_of_this_machine();
    let port = claim.bound().address.port();
    let listening = Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    listening.bind(&SockAddr::unix(format!("\0doorbell-cm/listen/tcp/{port}/127.0.0.1")).unwrap()).unwrap();
    listening.listen(0).unwrap();
    listening.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // With a backlog of 0, the kernel queues one connection. So `first` fills the queue, and the next attempt fails.
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let first = called(&port_of_this_machine(), to);
    assert_eq!(port_of_this_machine().call(to).unwrap_err().kind(), ErrorKind::WouldBlock);
    let client = active.resolved(c::RDMA_PS_TCP, port);
    // SAFETY: the id exists.
    fine(unsafe { rdma_connect(client, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }) });
    // Destroy a second client while it waits.
    let other = active.resolved(c::RDMA_PS_TCP, port);
    // SAFETY: the id exists.
    fine(unsafe { rdma_connect(other, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }) });
    destroy(&[other]);
    drop(listening.accept().unwrap());
    let mut second = listening.accept().unwrap().0;
    assert!(matches!(heard(&mut second), Message::Addresses { .. }));
    assert!(matches!(heard(&mut second), Message::Request { .. }));
    drop(first);
    destroy(&[client]);
    active.no_more();
}

#[test]
fn a_peer_that_dies_is_noticed_at_every_step() {
    Transport::BOTH.into_iter().for_each(a_dead_peer_is_noticed);
}

fn a_dead_peer_is_noticed(transport: Transport) {
    let passive = Channel::new();
    let (listener, port) = passive.listener_on(transport);
    let connect = || {
        let mut stream = transport.call(port);
        stream.write_all(&request().emit()).unwrap();
        stream
    };
    // SAFETY: the ids exist.
    unsafe {
        // The peer dies before the program retrieves the request.
        drop(connect());
        let seen = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        assert_eq!((&seen.private[..4], seen.param.qp_num), (&b"raw\0"[..], 77));
        let early = seen.id;
        let seen = passive.next();
        assert_eq!((seen.kind, seen.id), (c::RDMA_CM_EVENT_UNREACHABLE, early));
        create_qp(early, c::IBV_QPT_RC);
        refused(rdma_accept(early, ptr::null_mut()), libc::EINVAL);

        // The peer dies after the program has accepted.
        let mut stream = connect();
        let accepted = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        create_qp(accepted, c::IBV_QPT_RC);
        fine(rdma_accept(accepted, ptr::null_mut()));
        let Message::Reply { endpoint, private } = heard(&mut stream) else { panic!("no reply") };
        assert_eq!((endpoint.qpn.get(), endpoint.path_mtu), ((*(*accepted).qp).qp_num, PathMtu::Mtu512));
        assert!(private.is_empty(), "{private:?}");
        drop(stream);
        assert_eq!(passive.next().kind, c::RDMA_CM_EVENT_UNREACHABLE);

        // The peer dies after the connection is established.
        let mut stream = connect();
        let established = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        create_qp(established, c::IBV_QPT_RC);
        fine(rdma_accept(established, ptr::null_mut()));
        heard(&mut stream);
        stream.write_all(&Message::ReadyToUse.emit()).unwrap();
        passive.expect(c::RDMA_CM_EVENT_ESTABLISHED, 0);
        drop(stream);
        passive.expect(c::RDMA_CM_EVENT_DISCONNECTED, 0);
        passive.expect(c::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);

        // Data establishes the connection before the RTU arrives. Then the peer sends a wrong message.
        let mut stream = connect();
        let noticed = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        create_qp(noticed, c::IBV_QPT_RC);
        refused(rdma_notify(noticed, c::IBV_EVENT_COMM_EST), libc::EINVAL);
        fine(rdma_accept(noticed, ptr::null_mut()));
        fine(rdma_notify(noticed, c::IBV_EVENT_COMM_EST));
        passive.expect(c::RDMA_CM_EVENT_ESTABLISHED, 0);
        refused(rdma_notify(noticed, c::IBV_EVENT_COMM_EST), libc::EISCONN);
        heard(&mut stream);
        stream.write_all(&Message::ReadyToUse.emit()).unwrap();
        stream.write_all(&request().emit()).unwrap();
        passive.expect(c::RDMA_CM_EVENT_DISCONNECTED, 0);
        gone(stream);
        destroy(&[early, accepted, established, noticed, listener]);
    }
}

#[test]
fn a_listener_that_sends_a_wrong_answer_is_unreachable() {
    Transport::BOTH.into_iter().for_each(a_wrong_answer_is_unreachable);
}

fn a_wrong_answer_is_unreachable(transport: Transport) {
    let active = Channel::new();
    let listener = BareListener::new(transport);
    for bytes in [b"220 mail ready\r\n".to_vec(), Message::ReadyToUse.emit(), request().emit(), Vec::new()] {
        let client = active.resolved_on(transport, listener.port);
        // SAFETY: the id exists.
        fine(unsafe { rdma_connect(client, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }) });
        let mut stream = listener.accept();
        assert!(matches!(heard(&mut stream), Message::Request { .. }));
        stream.write_all(&bytes).unwrap();
        drop(stream);
        let seen = active.next();
        assert_eq!(seen.kind, c::RDMA_CM_EVENT_UNREACHABLE);
        assert!(seen.status < 0);
        destroy(&[client]);
    }
}
