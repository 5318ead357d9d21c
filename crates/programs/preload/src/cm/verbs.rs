//! Verbs for the connection manager. These functions call the C functions that programs also call.

use std::ffi::{c_int, c_void};
use std::io;

use doorbell_ibverbs_sys as c;

use crate::objects::answer::{Answer, Refused};
use crate::objects::{context, cq, device, pd, qp, srq};

/// Converts the result of a verb that creates an object. If the verb returned null, it has already explained the
/// reason.
fn made<T>(what: &str, object: *mut T) -> Answer<*mut T> {
    if !object.is_null() {
        return Ok(object);
    }
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(Refused::new(errno, format!("the {what} could not be created")))
}

/// Opens the device of this number.
pub(super) fn open_device(number: usize) -> Answer<*mut c::ibv_context> {
    let listed = device::listed(number)?;
    // SAFETY: the listed device always exists.
    made("context", unsafe { context::ibv_open_device(listed) })
}

/// # Safety
///
/// The C contract of `ibv_alloc_pd`.
pub(super) unsafe fn alloc_pd(context: *mut c::ibv_context) -> Answer<*mut c::ibv_pd> {
    // SAFETY: the caller guarantees the C contract of the verb.
    made("protection domain", unsafe { pd::ibv_alloc_pd(context) })
}

/// Creates a completion queue with a channel.
///
/// # Safety
///
/// The C contracts of `ibv_create_comp_channel` and `ibv_create_cq`.
pub(super) unsafe fn create_cq(
    context: *mut c::ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
) -> Answer<(*mut c::ibv_comp_channel, *mut c::ibv_cq)> {
    // SAFETY: the caller guarantees the C contract of the verb.
    unsafe {
        let channel = made("completion channel", cq::ibv_create_comp_channel(context))?;
        let queue = made("completion queue", cq::ibv_create_cq(context, depth, cq_context, channel, 0));
        if queue.is_err() {
            cq::ibv_destroy_comp_channel(channel);
        }
        Ok((channel, queue?))
    }
}

/// # Safety
///
/// `channel` is null, or was created by [`create_cq`].
pub(super) unsafe fn destroy_channel(channel: *mut c::ibv_comp_channel) {
    if !channel.is_null() {
        // SAFETY: the caller guarantees that the channel exists. If the channel is still in use, the call returns an
        // error.
        unsafe { cq::ibv_destroy_comp_channel(channel) };
    }
}

/// # Safety
///
/// The C contract of `ibv_create_srq`.
pub(super) unsafe fn create_srq(pd: *mut c::ibv_pd, init: &mut c::ibv_srq_init_attr) -> Answer<*mut c::ibv_srq> {
    // SAFETY: the caller guarantees the C contract of the verb.
    made("shared receive queue", unsafe { srq::ibv_create_srq(pd, init) })
}

/// # Safety
///
/// The C contract of `ibv_create_qp`.
pub(super) unsafe fn create_qp(pd: *mut c::ibv_pd, init: &mut c::ibv_qp_init_attr) -> Answer<*mut c::ibv_qp> {
    // SAFETY: the caller guarantees the C contract of the verb.
    made("queue pair", unsafe { qp::ibv_create_qp(pd, init) })
}

/// # Safety
///
/// The C contract of `ibv_create_qp_ex`.
pub(super) unsafe fn create_qp_ex(
    context: *mut c::ibv_context,
    init: &mut c::ibv_qp_init_attr_ex,
) -> Answer<*mut c::ibv_qp> {
    // SAFETY: the caller guarantees the C contract of the verb.
    made("queue pair", unsafe { qp::create_qp_ex(context, init) })
}

/// # Safety
///
/// The C contract of `ibv_modify_qp`.
pub(super) unsafe fn modify_qp(qp: *mut c::ibv_qp, attr: &mut c::ibv_qp_attr, mask: u32) -> Answer<()> {
    // SAFETY: the caller guarantees the C contract of the verb.
    match unsafe { qp::ibv_modify_qp(qp, attr, mask as c_int) } {
        0 => Ok(()),
        errno => Err(Refused::new(errno, format!("the queue pair cannot change to state {}", attr.qp_state))),
    }
}
