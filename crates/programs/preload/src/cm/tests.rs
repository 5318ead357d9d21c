//! Tests with a client and a listener in one process. In `peers.rs`, one of the two is a bare socket. `ports.rs` tests
//! ports, and `states.rs` tests calls in states that do not allow them.

mod peers;
mod ports;
mod states;

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr;

use doorbell_ibverbs_sys as c;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockAddr;

use super::addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
use super::channel::{rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event};
use super::connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_get_request, rdma_listen, rdma_notify, rdma_reject,
};
use super::ep::{rdma_create_ep, rdma_destroy_ep};
use super::id::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
use super::message::{LOOKUP_REPLY_PRIVATE, REJECT_PRIVATE, REPLY_PRIVATE, REQUEST_PRIVATE};
use super::multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
use super::options::rdma_set_option;
use super::qp::{rdma_create_qp, rdma_destroy_qp};
use super::resolve::{rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route};
use super::testing::{Transport, local};

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn sockaddr(address: &SockAddr) -> *mut libc::sockaddr {
    address.as_ptr().cast_mut().cast()
}

#[track_caller]
fn fine(result: c_int) {
    assert_eq!(result, 0, "errno {}", errno());
}

#[track_caller]
fn refused(result: c_int, with: c_int) {
    assert_eq!((result, errno()), (-1, with));
}

/// Event channel of a test.
struct Channel(*mut c::rdma_event_channel);

/// The fields that a program sees in an event.
#[derive(Debug)]
struct Seen {
    id: *mut c::rdma_cm_id,
    listener: *mut c::rdma_cm_id,
    kind: c::rdma_cm_event_type,
    status: c_int,
    private: Vec<u8>,
    param: c::rdma_conn_param,
}

impl Channel {
    fn new() -> Self {
        let channel = rdma_create_event_channel();
        assert!(!channel.is_null());
        Self(channel)
    }

    /// Returns whether the descriptor reports a queued event.
    fn is_readable(&self) -> bool {
        // SAFETY: the channel exists.
        let fd = unsafe { BorrowedFd::borrow_raw((*self.0).fd) };
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN | PollFlags::POLLOUT)], PollTimeout::ZERO) == Ok(1)
    }

    /// Waits until the descriptor reports a queued event.
    fn wait_readable(&self) {
        // SAFETY: the channel exists.
        let fd = unsafe { BorrowedFd::borrow_raw((*self.0).fd) };
        assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(60_000_u16)), Ok(1));
    }

    fn next(&self) -> Seen {
        let mut event = ptr::null_mut();
        // SAFETY: the channel exists, and the event exists until it is acknowledged.
        unsafe {
            fine(rdma_get_cm_event(self.0, &raw mut event));
            let c::rdma_cm_event { id, listen_id, event: kind, status, param } = *event;
            let param = param.conn;
            let private = if param.private_data_len == 0 {
                Vec::new()
            } else {
                let length = usize::from(param.private_data_len);
                std::slice::from_raw_parts(param.private_data.cast::<u8>(), length).to_vec()
            };
            fine(rdma_ack_cm_event(event));
            Seen { id, listener: listen_id, kind, status, private, param }
        }
    }

    #[track_caller]
    fn expect(&self, kind: c::rdma_cm_event_type, status: c_int) -> Seen {
        let seen = self.next();
        assert_eq!((seen.kind, seen.status), (kind, status), "{seen:?}");
        seen
    }

    fn id(&self, port_space: c::rdma_port_space) -> *mut c::rdma_cm_id {
        let mut id = ptr::null_mut();
        // SAFETY: the channel exists.
        fine(unsafe { rdma_create_id(self.0, &raw mut id, ptr::null_mut(), port_space) });
        id
    }

    /// Returns a listener and its port.
    fn listener(&self, port_space: c::rdma_port_space, backlog: c_int) -> (*mut c::rdma_cm_id, u16) {
        let id = self.id(port_space);
        // SAFETY: the id exists.
        unsafe {
            fine(rdma_bind_addr(id, sockaddr(&local(0))));
            fine(rdma_listen(id, backlog));
            (id, u16::from_be(rdma_get_src_port(id)))
        }
    }

    /// Returns an id that is resolved to a port of this machine.
    fn resolved(&self, port_space: c::rdma_port_space, port: u16) -> *mut c::rdma_cm_id {
        let id = self.id(port_space);
        // SAFETY: the id exists.
        unsafe {
            fine(rdma_resolve_addr(id, ptr::null_mut(), sockaddr(&local(port)), 1000));
            self.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED, 0);
            fine(rdma_resolve_route(id, 1000));
            self.expect(c::RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        }
        id
    }

    fn no_more(&self) {
        assert!(!self.is_readable());
        // SAFETY: the channel exists.
        unsafe {
            let flags = libc::fcntl((*self.0).fd, libc::F_GETFL);
            libc::fcntl((*self.0).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            let mut event = ptr::null_mut();
            refused(rdma_get_cm_event(self.0, &raw mut event), libc::EAGAIN);
            libc::fcntl((*self.0).fd, libc::F_SETFL, flags);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the test does not use the channel any more.
        unsafe { rdma_destroy_event_channel(self.0) }
    }
}

fn create_qp(id: *mut c::rdma_cm_id, kind: c::ibv_qp_type) {
    let cap = c::ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
    let mut init = c::ibv_qp_init_attr { cap, qp_type: kind, sq_sig_all: 1, ..c::ibv_qp_init_attr::default() };
    // SAFETY: the id exists.
    fine(unsafe { rdma_create_qp(id, ptr::null_mut(), &raw mut init) });
}

fn state_of(id: *mut c::rdma_cm_id) -> c::ibv_qp_state {
    // SAFETY: the id and its queue pair exist.
    unsafe { (*(*id).qp).state }
}

fn param(private: &[u8]) -> c::rdma_conn_param {
    c::rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: 5,
        initiator_depth: 3,
        retry_count: 6,
        rnr_retry_count: 4,
        ..c::rdma_conn_param::default()
    }
}

fn destroy(ids: &[*mut c::rdma_cm_id]) {
    for &id in ids {
        // SAFETY: the test does not use the ids any more.
        unsafe {
            rdma_destroy_qp(id);
            fine(rdma_destroy_id(id));
        }
    }
}

/// Returns the attributes of an id's queue pair.
fn attributes_of(id: *mut c::rdma_cm_id) -> c::ibv_qp_attr {
    let (mut attr, mut init) = (c::ibv_qp_attr::default(), c::ibv_qp_init_attr::default());
    // SAFETY: the id and its queue pair exist.
    fine(unsafe { crate::objects::qp::ibv_query_qp((*id).qp, &raw mut attr, -1, &raw mut init) });
    attr
}

#[test]
fn two_ids_agree_connect_and_disconnect() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
    let client = active.resolved(c::RDMA_PS_TCP, port);
    create_qp(client, c::IBV_QPT_RC);
    assert_eq!(state_of(client), c::IBV_QPS_INIT);
    // SAFETY: the ids exist.
    unsafe {
        assert_eq!(u16::from_be(rdma_get_dst_port(client)), port);
        assert_ne!(rdma_get_src_port(client), 0);
        fine(rdma_connect(client, &mut param(b"hello")));
        let request = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        let server = request.id;
        assert_eq!(request.listener, listener);
        assert_eq!((*server).verbs, (*client).verbs);
        assert_eq!(u16::from_be(rdma_get_src_port(server)), port);
        assert_eq!(rdma_get_dst_port(server), rdma_get_src_port(client));
        assert_eq!(request.private.len(), REQUEST_PRIVATE);
        assert_eq!(&request.private[..6], b"hello\0");
        let seen = request.param;
        assert_eq!((seen.responder_resources, seen.initiator_depth), (3, 5));
        assert_eq!((seen.retry_count, seen.rnr_retry_count, seen.qp_num), (6, 4, (*(*client).qp).qp_num));
        create_qp(server, c::IBV_QPT_RC);
        fine(rdma_accept(server, &mut param(&[7; REPLY_PRIVATE])));
        assert_eq!(state_of(server), c::IBV_QPS_RTS);
        let answer = active.expect(c::RDMA_CM_EVENT_ESTABLISHED, 0);
        assert_eq!(answer.private, [7; REPLY_PRIVATE]);
        assert_eq!(answer.param.qp_num, (*(*server).qp).qp_num);
        assert_eq!(state_of(client), c::IBV_QPS_RTS);
        passive.expect(c::RDMA_CM_EVENT_ESTABLISHED, 0);
        // Each side answers the READs that the other side has outstanding, so the limits of the two sides are swapped.
        let (one, other) = (attributes_of(client), attributes_of(server));
        assert_eq!((one.max_rd_atomic, one.max_dest_rd_atomic), (5, 3));
        assert_eq!((other.max_rd_atomic, other.max_dest_rd_atomic), (3, 5));
        assert_eq!((one.rq_psn, one.sq_psn), (other.sq_psn, other.rq_psn));
        assert_eq!((one.path_mtu, one.retry_cnt, one.rnr_retry), (other.path_mtu, 6, 4));

        fine(rdma_disconnect(client));
        assert_eq!(state_of(client), c::IBV_QPS_ERR);
        active.expect(c::RDMA_CM_EVENT_DISCONNECTED, 0);
        passive.expect(c::RDMA_CM_EVENT_DISCONNECTED, 0);
        // Either side may disconnect.
        fine(rdma_disconnect(server));
        assert_eq!(state_of(server), c::IBV_QPS_ERR);
        active.expect(c::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        passive.expect(c::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        destroy(&[server, client, listener]);
    }
    active.no_more();
    passive.no_more();
}

#[test]
fn a_rejection_carries_its_reason_and_private_data() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
    let client = active.resolved(c::RDMA_PS_TCP, port);
    create_qp(client, c::IBV_QPT_RC);
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_connect(client, ptr::null_mut()));
        let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        let too_long = [0; REJECT_PRIVATE + 1];
        refused(rdma_reject(server, too_long.as_ptr().cast(), too_long.len() as u8), libc::EINVAL);
        fine(rdma_reject(server, b"no".as_ptr().cast(), 2));
        let seen = active.expect(c::RDMA_CM_EVENT_REJECTED, 28);
        assert_eq!((&seen.private[..3], seen.private.len()), (&b"no\0"[..], REJECT_PRIVATE));
        assert_eq!(state_of(client), c::IBV_QPS_ERR);
        refused(rdma_accept(server, ptr::null_mut()), libc::EINVAL);
        destroy(&[server, client, listener]);
    }
}

#[test]
fn without_a_listener_connections_are_rejected_and_services_unreachable() {
    let channel = Channel::new();
    // An id is bound to the port, but no id listens there.
    let holder = channel.id(c::RDMA_PS_TCP);
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_bind_addr(holder, sockaddr(&local(0))));
        let port = u16::from_be(rdma_get_src_port(holder));
        let stream = channel.resolved(c::RDMA_PS_TCP, port);
        fine(rdma_connect(stream, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }));
        channel.expect(c::RDMA_CM_EVENT_REJECTED, 8);
        let datagrams = channel.resolved(c::RDMA_PS_UDP, port);
        fine(rdma_connect(datagrams, ptr::null_mut()));
        channel.expect(c::RDMA_CM_EVENT_UNREACHABLE, 1);
        destroy(&[stream, datagrams, holder]);
    }
}

#[test]
fn a_datagram_service_is_found_or_refused() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_UDP, 0);
    let client = active.resolved(c::RDMA_PS_UDP, port);
    create_qp(client, c::IBV_QPT_UD);
    assert_eq!(state_of(client), c::IBV_QPS_RTS);
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_connect(client, &mut param(b"who?")));
        let request = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        assert_eq!((&request.private[..5], request.private.len()), (&b"who?\0"[..], 180));
        create_qp(request.id, c::IBV_QPT_UD);
        fine(rdma_accept(request.id, &mut param(b"me")));
        let mut event = ptr::null_mut();
        fine(rdma_get_cm_event(active.0, &raw mut event));
        assert_eq!((*event).event, c::RDMA_CM_EVENT_ESTABLISHED);
        let service = (*event).param.ud;
        assert_eq!((service.qp_num, service.qkey), ((*(*request.id).qp).qp_num, c::RDMA_UDP_QKEY));
        assert_eq!((service.ah_attr.is_global, service.ah_attr.port_num), (1, 1));
        assert_eq!(service.ah_attr.grh.dgid.raw[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(service.private_data_len, 136);
        fine(rdma_ack_cm_event(event));

        let other = active.resolved(c::RDMA_PS_UDP, port);
        fine(rdma_connect(other, ptr::null_mut()));
        let refusing = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        let too_long = [0; LOOKUP_REPLY_PRIVATE + 1];
        refused(rdma_reject(refusing, too_long.as_ptr().cast(), too_long.len() as u8), libc::EINVAL);
        fine(rdma_reject(refusing, b"no".as_ptr().cast(), 2));
        let seen = active.expect(c::RDMA_CM_EVENT_UNREACHABLE, 2);
        assert_eq!((&seen.private[..3], seen.private.len()), (&b"no\0"[..], LOOKUP_REPLY_PRIVATE));
        // A datagram service rejects a connection request. Such a request arrives only over TCP: within one machine,
        // the names of sockets contain the port space.
        let far = passive.id(c::RDMA_PS_UDP);
        Transport::Tcp.select(far);
        fine(rdma_bind_addr(far, sockaddr(&Transport::Tcp.address())));
        fine(rdma_listen(far, 0));
        let stream = active.resolved(c::RDMA_PS_TCP, u16::from_be(rdma_get_src_port(far)));
        Transport::Tcp.select(stream);
        fine(rdma_connect(stream, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }));
        active.expect(c::RDMA_CM_EVENT_REJECTED, 8);
        destroy(&[client, request.id, other, refusing, stream, far, listener]);
    }
    passive.no_more();
}

#[test]
fn requests_beyond_the_backlog_or_to_a_destroyed_listener_are_rejected() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 2);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let client = active.resolved(c::RDMA_PS_TCP, port);
        // SAFETY: the ids exist.
        fine(unsafe { rdma_connect(client, &mut c::rdma_conn_param { qp_num: 1, ..param(b"") }) });
        clients.push(client);
    }
    active.expect(c::RDMA_CM_EVENT_REJECTED, 3);
    assert!(passive.is_readable());
    destroy(&[listener]);
    passive.no_more();
    active.expect(c::RDMA_CM_EVENT_REJECTED, 28);
    active.expect(c::RDMA_CM_EVENT_REJECTED, 28);
    destroy(&clients);
}

#[test]
fn a_synchronous_endpoint_needs_no_events() {
    fn endpoint(port: u16, passive: bool) -> *mut c::rdma_cm_id {
        let hints = c::rdma_addrinfo {
            ai_flags: if passive { c::RAI_PASSIVE as c_int } else { 0 },
            ai_port_space: c::RDMA_PS_TCP as c_int,
            ..c::rdma_addrinfo::default()
        };
        let service = std::ffi::CString::new(port.to_string()).unwrap();
        let (mut found, mut id) = (ptr::null_mut(), ptr::null_mut());
        let cap =
            c::ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
        let mut init = c::ibv_qp_init_attr { cap, ..c::ibv_qp_init_attr::default() };
        // SAFETY: each name ends with a zero byte, and the test frees the result.
        unsafe {
            fine(rdma_getaddrinfo(c"127.0.0.1".as_ptr(), service.as_ptr(), &raw const hints, &raw mut found));
            assert_eq!((*found).ai_qp_type as u32, c::IBV_QPT_RC);
            fine(rdma_create_ep(&raw mut id, found, ptr::null_mut(), &raw mut init));
            rdma_freeaddrinfo(found);
        }
        id
    }
    let listener = endpoint(0, true);
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_listen(listener, 1));
        let port = u16::from_be(rdma_get_src_port(listener));
        let client = std::thread::spawn(move || {
            let client = endpoint(port, false);
            fine(rdma_connect(client, ptr::null_mut()));
            assert_eq!(state_of(client), c::IBV_QPS_RTS);
            assert!(!(*client).recv_cq.is_null() && !(*client).send_cq_channel.is_null());
            fine(rdma_disconnect(client));
            rdma_destroy_ep(client);

            let rejected = endpoint(port, false);
            refused(rdma_connect(rejected, ptr::null_mut()), libc::ECONNREFUSED);
            rdma_destroy_ep(rejected);
        });
        let mut server = ptr::null_mut();
        fine(rdma_get_request(listener, &raw mut server));
        fine(rdma_accept(server, ptr::null_mut()));
        // The first call returns after the event of the disconnection, even if the client has already left. For the
        // other two calls no event will come, so they return at once.
        fine(rdma_disconnect(server));
        fine(rdma_disconnect(server));
        fine(rdma_disconnect(server));
        rdma_destroy_ep(server);
        fine(rdma_get_request(listener, &raw mut server));
        fine(rdma_reject(server, ptr::null(), 0));
        rdma_destroy_ep(server);
        client.join().unwrap();
        rdma_destroy_ep(listener);
    }
}

#[test]
fn an_id_takes_its_waiting_events_to_another_channel() {
    let (one, other) = (Channel::new(), Channel::new());
    let id = one.id(c::RDMA_PS_TCP);
    // SAFETY: the id exists.
    unsafe {
        fine(rdma_resolve_addr(id, ptr::null_mut(), sockaddr(&local(9)), 1000));
        assert!(one.is_readable());
        fine(rdma_migrate_id(id, other.0));
        one.no_more();
        assert_eq!((*id).channel, other.0);
        assert_eq!(other.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED, 0).id, id);
        // This call queues an event. Destroying the id discards the event, since the program has not retrieved it.
        fine(rdma_resolve_route(id, 1000));
        destroy(&[id]);
    }
    other.no_more();
}

#[test]
fn a_source_without_an_address_keeps_its_port() {
    let channel = Channel::new();
    let holder = channel.id(c::RDMA_PS_TCP);
    let id = channel.id(c::RDMA_PS_TCP);
    let (level, name, mut reuse) = (c::RDMA_OPTION_ID as c_int, c::RDMA_OPTION_ID_REUSEADDR as c_int, 1);
    // SAFETY: the ids exist.
    unsafe {
        for id in [holder, id] {
            fine(rdma_set_option(id, level, name, (&raw mut reuse).cast(), size_of::<c_int>()));
        }
        fine(rdma_bind_addr(holder, sockaddr(&local(0))));
        let port = rdma_get_src_port(holder);
        let source = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), u16::from_be(port)).into();
        fine(rdma_resolve_addr(id, sockaddr(&source), sockaddr(&local(9)), 1000));
        channel.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        assert_eq!(rdma_get_src_port(id), port);
        destroy(&[id, holder]);
    }
}

#[test]
fn a_forked_child_leaves_the_events_of_an_inherited_channel_to_its_parent() {
    let channel = Channel::new();
    let id = channel.id(c::RDMA_PS_TCP);
    // SAFETY: the channel and the id exist. The child uses only the channel, so it takes no lock that another thread
    // may hold. The child ends without unwinding.
    unsafe {
        fine(rdma_resolve_addr(id, ptr::null_mut(), sockaddr(&local(9)), 1000));
        let fd = (*channel.0).fd;
        channel.wait_readable();
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let child = libc::fork();
        if child == 0 {
            let mut event = ptr::null_mut();
            let empty = rdma_get_cm_event(channel.0, &raw mut event) == -1 && errno() == libc::EAGAIN;
            let same = libc::fcntl(fd, libc::F_GETFL) == flags | libc::O_NONBLOCK
                && libc::fcntl(fd, libc::F_GETFD) == libc::FD_CLOEXEC;
            // The descriptor is a new one, since it does not show the event of the parent.
            let own = !channel.is_readable();
            libc::_exit(c_int::from(!empty) | c_int::from(!same) << 1 | c_int::from(!own) << 2);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
        channel.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        channel.no_more();
        destroy(&[id]);
    }
}

#[test]
fn wrong_calls_get_their_errno() {
    let channel = Channel::new();
    let id = channel.id(c::RDMA_PS_TCP);
    // SAFETY: each id exists or is null.
    unsafe {
        let mut none = ptr::null_mut();
        refused(rdma_create_id(channel.0, &raw mut none, ptr::null_mut(), 0x999), libc::EPROTONOSUPPORT);
        refused(rdma_create_id(channel.0, ptr::null_mut(), ptr::null_mut(), c::RDMA_PS_TCP), libc::EINVAL);
        refused(rdma_destroy_id(ptr::null_mut()), libc::EINVAL);
        refused(rdma_get_cm_event(ptr::null_mut(), &mut ptr::null_mut()), libc::EINVAL);
        refused(rdma_ack_cm_event(ptr::null_mut()), libc::EINVAL);
        refused(rdma_connect(id, ptr::null_mut()), libc::EINVAL);
        refused(rdma_accept(id, ptr::null_mut()), libc::EINVAL);
        refused(rdma_reject(id, ptr::null(), 0), libc::EINVAL);
        refused(rdma_disconnect(id), libc::EINVAL);
        refused(rdma_resolve_route(id, 0), libc::EINVAL);
        refused(rdma_resolve_addr(id, ptr::null_mut(), ptr::null_mut(), 0), libc::EINVAL);
        refused(rdma_get_request(id, &raw mut none), libc::EINVAL);
        let mut init = c::ibv_qp_init_attr { qp_type: c::IBV_QPT_RC, ..c::ibv_qp_init_attr::default() };
        refused(rdma_create_qp(id, ptr::null_mut(), &raw mut init), libc::EINVAL);
        refused(rdma_bind_addr(id, ptr::null_mut()), libc::EAFNOSUPPORT);
        let unix = SockAddr::unix("/tmp/x").unwrap();
        refused(rdma_bind_addr(id, sockaddr(&unix)), libc::EAFNOSUPPORT);
        let elsewhere = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0).into();
        refused(rdma_bind_addr(id, sockaddr(&elsewhere)), libc::EADDRNOTAVAIL);
        let mut timeout = 32_u8;
        let level = c::RDMA_OPTION_ID as c_int;
        let name = c::RDMA_OPTION_ID_ACK_TIMEOUT as c_int;
        refused(rdma_set_option(id, level, name, (&raw mut timeout).cast(), 1), libc::EINVAL);
        refused(rdma_set_option(id, level, name, (&raw mut timeout).cast(), 4), libc::EINVAL);
        refused(rdma_set_option(id, level, 99, (&raw mut timeout).cast(), 1), libc::ENOSYS);

        let (listener, port) = channel.listener(c::RDMA_PS_TCP, 0);
        refused(rdma_bind_addr(id, sockaddr(&local(port))), libc::EADDRINUSE);
        refused(rdma_listen(listener, 0), libc::EINVAL);
        let client = channel.resolved(c::RDMA_PS_TCP, port);
        let too_long = [0; REQUEST_PRIVATE + 1];
        refused(rdma_connect(client, &mut param(&too_long)), libc::EINVAL);
        let deep = c::rdma_conn_param { responder_resources: 254, qp_num: 1, ..param(b"") };
        refused(rdma_connect(client, &mut deep.clone()), libc::EINVAL);
        refused(rdma_connect(client, ptr::null_mut()), libc::EINVAL);
        let mut datagrams = c::ibv_qp_init_attr { qp_type: c::IBV_QPT_UD, ..c::ibv_qp_init_attr::default() };
        refused(rdma_create_qp(client, ptr::null_mut(), &raw mut datagrams), libc::EINVAL);
        create_qp(client, c::IBV_QPT_RC);
        refused(rdma_create_qp(client, ptr::null_mut(), &raw mut init), libc::EINVAL);
        destroy(&[id, client, listener]);
    }
}

#[test]
fn an_id_without_queue_pair_joins_groups_for_the_program() {
    let channel = Channel::new();
    let id = channel.id(c::RDMA_PS_UDP);
    let group = |last| SocketAddr::new(Ipv4Addr::new(239, 1, 1, last).into(), 0).into();
    let mut context = 5;
    // SAFETY: the id exists.
    unsafe {
        refused(rdma_join_multicast(id, sockaddr(&group(1)), ptr::null_mut()), libc::EINVAL);
        fine(rdma_resolve_addr(id, ptr::null_mut(), sockaddr(&group(1)), 1000));
        channel.expect(c::RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        refused(rdma_join_multicast(id, sockaddr(&local(1)), ptr::null_mut()), libc::EINVAL);
        fine(rdma_join_multicast(id, sockaddr(&group(1)), (&raw mut context).cast()));
        let mut event = ptr::null_mut();
        fine(rdma_get_cm_event(channel.0, &raw mut event));
        assert_eq!(((*event).event, (*event).status), (c::RDMA_CM_EVENT_MULTICAST_JOIN, 0));
        let joined = (*event).param.ud;
        assert_eq!(joined.private_data, (&raw mut context).cast());
        assert_eq!((joined.qp_num, joined.qkey), (0xff_ffff, c::RDMA_UDP_QKEY));
        assert_eq!(joined.ah_attr.grh.dgid.raw, Ipv4Addr::new(239, 1, 1, 1).to_ipv6_mapped().octets());
        fine(rdma_ack_cm_event(event));
        refused(rdma_join_multicast(id, sockaddr(&group(1)), ptr::null_mut()), libc::EADDRINUSE);
        let mut other = c::rdma_cm_join_mc_attr_ex { addr: sockaddr(&group(2)), ..Default::default() };
        refused(rdma_join_multicast_ex(id, &raw mut other, ptr::null_mut()), libc::EINVAL);
        other.comp_mask = c::RDMA_CM_JOIN_MC_ATTR_ADDRESS | c::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        other.join_flags = c::RDMA_MC_JOIN_FLAG_RESERVED;
        refused(rdma_join_multicast_ex(id, &raw mut other, ptr::null_mut()), libc::EINVAL);
        fine(rdma_leave_multicast(id, sockaddr(&group(1))));
        refused(rdma_leave_multicast(id, sockaddr(&group(1))), libc::EADDRNOTAVAIL);
        destroy(&[id]);
    }
}
