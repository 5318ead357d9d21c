//! Multicast groups, which the device does not offer yet.

use std::ffi::{c_int, c_void};

use doorbell_ibverbs_sys as c;
use libc::sockaddr;

use super::id;
use crate::outcome::{Refused, number};

/// # Safety
///
/// The C contract of the functions that name it.
unsafe fn refuse(call: &str, id: *mut c::rdma_cm_id) -> c_int {
    number(call, || {
        // SAFETY: the C contract.
        unsafe { id::own(id) }?;
        Err(Refused::unsupported("multicast is not offered"))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_join_multicast(
    id: *mut c::rdma_cm_id,
    _group: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the C contract.
    unsafe { refuse("rdma_join_multicast", id) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut c::rdma_cm_id,
    _attributes: *mut c::rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the C contract.
    unsafe { refuse("rdma_join_multicast_ex", id) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_leave_multicast(id: *mut c::rdma_cm_id, _group: *mut sockaddr) -> c_int {
    // SAFETY: the C contract.
    unsafe { refuse("rdma_leave_multicast", id) }
}
