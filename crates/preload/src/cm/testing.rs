//! What tests of other parts need of connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::ptr;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::{PathMtu, Psn, QpKind, Qpn};
use socket2::SockAddr;

pub(crate) use super::channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
};
pub(crate) use super::connect::{rdma_accept, rdma_connect, rdma_get_request, rdma_listen};
pub(crate) use super::id::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
use super::message::{Endpoint, Message};
use super::resolve::{rdma_bind_addr, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route};

#[path = "../../../rnic/tests/common/rng.rs"]
#[allow(dead_code, unreachable_pub)] // it serves other tests too
mod rng;
pub(super) use rng::Rng;

pub(super) fn local(port: u16) -> SockAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port).into()
}

fn synchronous_id() -> *mut c::rdma_cm_id {
    let mut id = ptr::null_mut();
    // SAFETY: without a channel it gets one of its own.
    assert_eq!(unsafe { rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), c::RDMA_PS_TCP) }, 0);
    id
}

/// A listener without event channel, and its port.
pub(crate) fn synchronous_listener() -> (*mut c::rdma_cm_id, u16) {
    let id = synchronous_id();
    // SAFETY: the id exists.
    unsafe {
        assert_eq!(rdma_bind_addr(id, local(0).as_ptr().cast_mut().cast()), 0);
        assert_eq!(rdma_listen(id, 0), 0);
        (id, u16::from_be(rdma_get_src_port(id)))
    }
}

/// Resolves an id to a port of this machine.
pub(crate) fn resolve(id: *mut c::rdma_cm_id, port: u16) {
    // SAFETY: the id exists.
    assert_eq!(unsafe { rdma_resolve_addr(id, ptr::null_mut(), local(port).as_ptr().cast_mut().cast(), 1000) }, 0);
}

/// An id without event channel that is ready to connect to a port.
pub(crate) fn synchronously_resolved(port: u16) -> *mut c::rdma_cm_id {
    let id = synchronous_id();
    resolve(id, port);
    // SAFETY: the id exists.
    assert_eq!(unsafe { rdma_resolve_route(id, 1000) }, 0);
    id
}

/// A request as a peer says it.
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
