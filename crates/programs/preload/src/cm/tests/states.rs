//! Tests of calls in states that do not allow them. The errno must be that of Linux (`drivers/infiniband/core/cma.c`,
//! `cm.c`).

use super::super::connect::rdma_establish;
use super::*;

fn unattached() -> c::rdma_conn_param {
    c::rdma_conn_param { qp_num: 1, ..param(b"") }
}

/// Returns an id that is bound but does not listen, and the port of the id.
fn deaf(channel: &Channel) -> (*mut c::rdma_cm_id, u16) {
    let id = channel.id(c::RDMA_PS_TCP);
    // SAFETY: the id exists.
    unsafe {
        fine(rdma_bind_addr(id, sockaddr(&local(0))));
        (id, u16::from_be(rdma_get_src_port(id)))
    }
}

#[test]
fn a_listener_may_come_a_little_late() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = deaf(&passive);
    let client = active.resolved(c::RDMA_PS_TCP, port);
    // SAFETY: the ids exist.
    unsafe {
        fine(rdma_connect(client, &mut unattached()));
        fine(rdma_listen(listener, 1));
        let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        destroy(&[server]);
        active.expect(c::RDMA_CM_EVENT_REJECTED, 28);
    }
    destroy(&[client, listener]);
}

#[test]
fn a_request_whose_client_left_is_neither_accepted_nor_rejected() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
    let abandoned = || {
        let client = active.resolved(c::RDMA_PS_TCP, port);
        // SAFETY: the ids exist.
        unsafe {
            fine(rdma_connect(client, &mut unattached()));
            let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
            destroy(&[client]);
            server
        }
    };
    for is_noticed in [false, true] {
        for accepts in [true, false] {
            let server = abandoned();
            if is_noticed {
                assert_eq!(passive.next().kind, c::RDMA_CM_EVENT_UNREACHABLE);
            }
            // SAFETY: the ids exist.
            unsafe {
                if accepts {
                    refused(rdma_accept(server, &mut unattached()), libc::EINVAL);
                }
                refused(rdma_reject(server, ptr::null(), 0), libc::EINVAL);
                refused(rdma_accept(server, &mut unattached()), libc::EINVAL);
                // Disconnecting never fails once the connection has begun.
                fine(rdma_disconnect(server));
            }
            destroy(&[server]);
        }
    }
    destroy(&[listener]);
}

/// Makes each call on the id. Returns the errno of each call, or 0 for a call that succeeds.
fn all_calls(id: *mut c::rdma_cm_id) -> [(&'static str, c_int); 9] {
    let with = |result: c_int| if result == 0 { 0 } else { errno() };
    // SAFETY: the id exists.
    unsafe {
        [
            ("rdma_bind_addr", with(rdma_bind_addr(id, sockaddr(&local(0))))),
            ("rdma_resolve_addr", with(rdma_resolve_addr(id, ptr::null_mut(), sockaddr(&local(1)), 1000))),
            ("rdma_resolve_route", with(rdma_resolve_route(id, 1000))),
            ("rdma_listen", with(rdma_listen(id, 1))),
            ("rdma_connect", with(rdma_connect(id, &mut unattached()))),
            ("rdma_accept", with(rdma_accept(id, &mut unattached()))),
            ("rdma_establish", with(rdma_establish(id))),
            ("rdma_notify", with(rdma_notify(id, c::IBV_EVENT_COMM_EST))),
            ("rdma_reject", with(rdma_reject(id, ptr::null(), 0))),
        ]
    }
}

/// Checks that each call fails with EINVAL, except the calls in `others`. For these, `others` lists the expected errno,
/// or 0 for success.
#[track_caller]
fn only(id: *mut c::rdma_cm_id, others: &[(&str, c_int)]) {
    for (call, errno) in all_calls(id) {
        let expected = others.iter().find(|(other, _)| *other == call).map_or(libc::EINVAL, |(_, errno)| *errno);
        assert_eq!(errno, expected, "{call}");
    }
}

#[test]
fn each_state_refuses_the_calls_of_others() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_TCP, 0);
    only(listener, &[]);
    let client = active.resolved(c::RDMA_PS_TCP, port);
    // SAFETY: the ids exist.
    unsafe {
        refused(rdma_disconnect(client), libc::EINVAL);
        fine(rdma_connect(client, &mut unattached()));
        let server = passive.expect(c::RDMA_CM_EVENT_CONNECT_REQUEST, 0).id;
        fine(rdma_accept(server, &mut unattached()));
        active.expect(c::RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
        fine(rdma_establish(client));
        passive.expect(c::RDMA_CM_EVENT_ESTABLISHED, 0);
        for id in [client, server] {
            only(id, &[("rdma_notify", libc::EISCONN)]);
        }
        fine(rdma_disconnect(client));
        passive.expect(c::RDMA_CM_EVENT_DISCONNECTED, 0);
        active.expect(c::RDMA_CM_EVENT_DISCONNECTED, 0);
        for id in [client, server] {
            only(id, &[]);
            fine(rdma_disconnect(id));
        }
        // A client may reject a reply instead of establishing the connection.
        let choosy = active.resolved(c::RDMA_PS_TCP, port);
        fine(rdma_connect(choosy, &mut unattached()));
        let other = passive.next();
        // The event for the end of the previous connection may come first.
        let other = if other.kind == c::RDMA_CM_EVENT_TIMEWAIT_EXIT { passive.next() } else { other }.id;
        fine(rdma_accept(other, &mut unattached()));
        while active.next().kind != c::RDMA_CM_EVENT_CONNECT_RESPONSE {}
        fine(rdma_reject(choosy, b"late".as_ptr().cast(), 4));
        let seen = loop {
            let seen = passive.next();
            if seen.kind != c::RDMA_CM_EVENT_TIMEWAIT_EXIT {
                break seen;
            }
        };
        assert_eq!((seen.kind, seen.status, &seen.private[..4]), (c::RDMA_CM_EVENT_REJECTED, 28, &b"late"[..]));
        only(choosy, &[]);
        destroy(&[client, server, choosy, other, listener]);
    }
}

#[test]
fn groups_are_joined_before_an_id_connects() {
    let (passive, active) = (Channel::new(), Channel::new());
    let (listener, port) = passive.listener(c::RDMA_PS_UDP, 0);
    let id = active.resolved(c::RDMA_PS_UDP, port);
    let group = SockAddr::from(SocketAddr::from((Ipv4Addr::new(239, 1, 2, 3), 0)));
    // SAFETY: the ids exist.
    unsafe {
        refused(rdma_join_multicast(id, sockaddr(&group), ptr::null_mut()), libc::EINVAL);
        refused(rdma_join_multicast(listener, sockaddr(&group), ptr::null_mut()), libc::EINVAL);
    }
    destroy(&[id, listener]);
}

#[test]
fn a_destroyed_event_channel_has_no_events() {
    let channel = rdma_create_event_channel();
    let mut event = ptr::null_mut();
    // SAFETY: after the channel is destroyed, the calls use only its address.
    unsafe {
        libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        rdma_destroy_event_channel(channel);
        refused(rdma_get_cm_event(channel, &raw mut event), libc::EBADF);
        rdma_destroy_event_channel(channel);
        let mut id = ptr::null_mut();
        refused(rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), 0), libc::EPROTONOSUPPORT);
    }
}
