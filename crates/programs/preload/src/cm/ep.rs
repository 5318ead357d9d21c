//! Endpoints. A call of this module creates an id, binds or resolves the id, and creates its queue pair.

use std::ffi::c_int;
use std::slice;

use doorbell_ibverbs_sys as c;

use super::id::{self, Id};
use super::{qp, resolve};
use crate::objects::answer::{Answer, Refused, number};
use crate::process::wait::{STATUS, cancellation_point, in_steps};

/// # Safety
///
/// The C contract of `rdma_create_ep`.
unsafe fn create(
    result: &c::rdma_addrinfo,
    pd: *mut c::ibv_pd,
    init: Option<&mut c::ibv_qp_init_attr>,
) -> Answer<*mut c::rdma_cm_id> {
    let kind = match result.ai_qp_type {
        0 => id::kind_of(result.ai_port_space as c::rdma_port_space)?,
        kind => crate::objects::qp::kind(kind as c::ibv_qp_type)?,
    };
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        let created =
            id::create(std::ptr::null_mut(), std::ptr::null_mut(), result.ai_port_space as c::rdma_port_space, kind)?;
        let own = id::own(created)?;
        let filled = fill(own, created, result, pd, init);
        if let Err(refused) = filled {
            // The program has retrieved no events of the new id and its queue pair, so destroying them does not wait.
            let _ = qp::destroy(own);
            id::destroy(created)?;
            return Err(refused);
        }
        Ok(created)
    }
}

/// # Safety
///
/// The contract of [`create`].
unsafe fn fill(
    own: &Id,
    created: *mut c::rdma_cm_id,
    result: &c::rdma_addrinfo,
    pd: *mut c::ibv_pd,
    init: Option<&mut c::ibv_qp_init_attr>,
) -> Answer<()> {
    let passive = result.ai_flags as u32 & c::RAI_PASSIVE != 0;
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe {
        if passive {
            let address = super::address::read(result.ai_src_addr)?;
            resolve::bind(own, address.ok_or_else(|| Refused::invalid("the address to bind to is missing"))?)?;
        } else {
            resolve::resolve_address(created, result.ai_src_addr, result.ai_dst_addr)?;
            own.complete_at_once()?;
            resolve::resolve_route(created)?;
            own.complete_at_once()?;
        }
        let private = if result.ai_connect.is_null() {
            Vec::new()
        } else {
            slice::from_raw_parts(result.ai_connect.cast::<u8>(), result.ai_connect_len).to_vec()
        };
        if private.len() > super::message::REQUEST_PRIVATE {
            return Err(Refused::invalid(format!(
                "{} bytes of private data are too many: at most {} are allowed",
                private.len(),
                super::message::REQUEST_PRIVATE
            )));
        }
        own.defaults().private = private;
        let Some(init) = init else { return Ok(()) };
        init.qp_type = crate::objects::qp::kind_number(own.line.state().kind);
        if passive {
            let mut defaults = own.defaults();
            (defaults.qp, defaults.pd) = (Some(*init), pd);
            Ok(())
        } else {
            qp::create(own, pd, init)
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut c::rdma_cm_id,
    result: *mut c::rdma_addrinfo,
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_qp_init_attr,
) -> c_int {
    cancellation_point();
    number("rdma_create_ep", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe {
            let result = result.as_ref().filter(|_| !id.is_null());
            let result =
                result.ok_or_else(|| Refused::invalid("the pointer to the id or the address information is null"))?;
            id.write(create(result, pd, init.as_mut())?);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_destroy_ep(id: *mut c::rdma_cm_id) {
    in_steps("rdma_destroy_ep", STATUS, move |_| {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { id::own(id) }?;
        match qp::destroy(own).and_then(|()| qp::destroy_srq(own)) {
            // SAFETY: by the C contract of this function, the program passes valid arguments.
            Ok(()) => unsafe { id::destroy(id) },
            Err(step) => Ok(step),
        }
    });
}
