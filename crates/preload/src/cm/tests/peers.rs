//! Bare sockets that say one wrong thing, or die.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::PathMtu;

use super::super::line::ARRIVAL;
use super::super::message::Message;
use super::super::testing::message as request;
use super::*;

/// The next message on a bare TCP connection.
fn heard(stream: &mut TcpStream) -> Message {
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

/// It was hung up on.
fn gone(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_listener_hangs_up_on_nonsense_and_goes_on() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let silent = connect();
    let mut other_version = request().emit();
    other_version[4] = 99;
    let wrong = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 100_000],
        other_version,
        Message::ReadyToUse.emit(),
        Message::Reject { reason: 1, private: Vec::new() }.emit(),
    ];
    for bytes in wrong {
        let mut stream = connect();
        // It may hang up before all is said.
        let _ = stream.write_all(&bytes);
        gone(stream);
    }
    let mut half = connect();
    half.write_all(&request().emit()[..20]).unwrap();
    drop(half);
    assert!(!passive.is_readable());
    let client = active.resolved(c::RDMA_PS_TCP, port);
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
fn more_silent_connections_than_are_held_leave_those_that_speak_alone() {
    let passive = Channel::new();
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
    let start = Instant::now();
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&request().emit()).unwrap();
    let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
    // Before the first of the others was given up for its silence alone.
    assert!(start.elapsed() < ARRIVAL);
    drop(silent);
    destroy(&[server, listener]);
}

#[test]
fn a_peer_that_dies_is_noticed_at_every_step() {
    let passive = Channel::new();
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
    let connect = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.write_all(&request().emit()).unwrap();
        stream
    };
    // SAFETY: the ids exist.
    unsafe {
        // Before the program looks at the request.
        drop(connect());
        let seen = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        assert_eq!((&seen.private[..4], seen.param.qp_num), (&b"raw\0"[..], 77));
        let early = seen.id;
        let seen = passive.next();
        assert_eq!((seen.kind, seen.id), (c::RDMA_CM_EVENT_UNREACHABLE, early));
        create_qp(early, c::IBV_QPT_RC);
        refused(rdma_accept(early, ptr::null_mut()), libc::ENOTCONN);

        // After the reply.
        let mut stream = connect();
        let accepted = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        create_qp(accepted, c::IBV_QPT_RC);
        fine(rdma_accept(accepted, ptr::null_mut()));
        let Message::Reply { endpoint, private } = heard(&mut stream) else { panic!("no reply") };
        assert_eq!((endpoint.qpn.get(), endpoint.path_mtu), ((*(*accepted).qp).qp_num, PathMtu::Mtu512));
        assert_eq!(private, []);
        drop(stream);
        assert_eq!(passive.next().kind, c::RDMA_CM_EVENT_UNREACHABLE);

        // Once it is established.
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

        // Data came before it was said to be established; then nonsense.
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
fn whoever_answers_with_nonsense_is_unreachable() {
    let active = Channel::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    for bytes in [b"220 mail ready\r\n".to_vec(), Message::ReadyToUse.emit(), request().emit(), Vec::new()] {
        let client = active.resolved(c::RDMA_PS_TCP, port);
        // SAFETY: the id exists.
        fine(unsafe { rdma_connect(client, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }) });
        let (mut stream, _) = listener.accept().unwrap();
        assert!(matches!(heard(&mut stream), Message::Request { .. }));
        stream.write_all(&bytes).unwrap();
        drop(stream);
        let seen = active.next();
        assert_eq!(seen.kind, c::RDMA_CM_EVENT_UNREACHABLE);
        assert!(seen.status < 0);
        destroy(&[client]);
    }
}
