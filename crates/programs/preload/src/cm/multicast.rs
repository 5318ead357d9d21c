//! Multicast groups. When an id joins a group, the library attaches the id's queue pair to the group.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::QpKind;
use libc::sockaddr;

use super::address;
use super::channel::{Detail, Opaque};
use super::id::{self, BEGUN, Id};
use super::line::Phase;
use crate::objects::ah;
use crate::objects::answer::{Answer, Refused, number};
use crate::objects::qp::{ibv_attach_mcast, ibv_detach_mcast};

/// A multicast group that an id has joined.
pub(super) struct Group {
    address: IpAddr,
    /// Whether the queue pair of the id is attached to the group. Only an attached queue pair receives messages to the
    /// group.
    attached: bool,
}

/// # Safety
///
/// The C contract of `rdma_join_multicast`.
unsafe fn join(
    id: *mut c::rdma_cm_id,
    group: Option<SocketAddr>,
    receives: bool,
    context: *mut c_void,
) -> Answer<c_int> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { id::own(id) }?;
    let group =
        group.ok_or_else(|| Refused::invalid("the address of the multicast group is missing"))?.ip().to_canonical();
    if !group.is_multicast() {
        return Err(Refused::invalid(format!("{group} is not a multicast address")));
    }
    if own.verbs().is_null() || own.line.state().kind != QpKind::Ud {
        return Err(Refused::invalid(
            "the id cannot join a group: it must be bound, in port space RDMA_PS_UDP or RDMA_PS_IPOIB",
        ));
    }
    // As in Linux, an id can join only while it is bound or has a resolved address (`rdma_join_multicast` in
    // `drivers/infiniband/core/cma.c`).
    let phase = own.line.state().phase;
    if !matches!(phase, Phase::Idle | Phase::AddressResolved) {
        let why = format!("an id in phase {phase:?} cannot join a group: it must be bound or have a resolved address");
        return Err(Refused::invalid(why));
    }
    if own.groups().iter().any(|joined| joined.address == group) {
        return Err(Refused::new(libc::EADDRINUSE, format!("the id has already joined group {group}")));
    }
    let attached = receives && !own.qp().is_null();
    if attached {
        // SAFETY: the queue pair of an id exists while the id refers to it.
        let errno = unsafe { ibv_attach_mcast(own.qp(), &ah::gid(group), 0) };
        if errno != 0 {
            return Err(Refused::new(errno, format!("the id's queue pair cannot be attached to group {group}")));
        }
    }
    own.groups().push(Group { address: group, attached });
    own.line.state().tell(
        c::RDMA_CM_EVENT_MULTICAST_JOIN,
        0,
        Detail::Group { address: group, context: Opaque(context) },
    );
    Ok(BEGUN)
}

fn leave(own: &Id, group: &Group) {
    if group.attached && !own.qp().is_null() {
        // SAFETY: the queue pair of an id exists while the id refers to it. For a queue pair that is not attached, the
        // call returns an error.
        unsafe { ibv_detach_mcast(own.qp(), &ah::gid(group.address), 0) };
    }
}

/// Leaves all groups of an id. The caller then destroys the id or its queue pair.
pub(super) fn leave_all(own: &Id) {
    let groups = std::mem::take(&mut *own.groups());
    groups.iter().for_each(|group| leave(own, group));
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut c::rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::synchronously("rdma_join_multicast", id, move || join(id, address::read(group)?, true, context)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut c::rdma_cm_id,
    attributes: *mut c::rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    let begin = move || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let attributes = unsafe { attributes.as_ref() }.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        let (needed, flags) = (c::RDMA_CM_JOIN_MC_ATTR_ADDRESS, c::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS);
        let mask = attributes.comp_mask;
        if mask & needed == 0 || mask & !(needed | flags) != 0 {
            return Err(Refused::invalid(format!(
                "comp_mask {mask:#x} must contain the address, and may contain only the join flags besides"
            )));
        }
        let receives = match attributes.join_flags {
            _ if mask & flags == 0 => true,
            c::RDMA_MC_JOIN_FLAG_FULLMEMBER => true,
            c::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => false,
            flag => {
                return Err(Refused::invalid(format!(
                    "join flag {flag} is not supported: use RDMA_MC_JOIN_FLAG_FULLMEMBER or ..._SENDONLY_FULLMEMBER"
                )));
            }
        };
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { join(id, address::read(attributes.addr)?, receives, context) }
    };
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::synchronously("rdma_join_multicast_ex", id, begin) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_leave_multicast(id: *mut c::rdma_cm_id, group: *mut sockaddr) -> c_int {
    number("rdma_leave_multicast", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, wanted) = unsafe { (id::own(id)?, address::read(group)?) };
        let wanted = wanted.map(|wanted| wanted.ip().to_canonical());
        let gone = {
            let mut groups = own.groups();
            let at = groups.iter().position(|group| Some(group.address) == wanted);
            at.map(|at| groups.remove(at))
        };
        leave(
            own,
            &gone
                .ok_or_else(|| Refused::new(libc::EADDRNOTAVAIL, "the id has not joined the group at this address"))?,
        );
        Ok(0)
    })
}
