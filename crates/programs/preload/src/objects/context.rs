//! Opening the device, and the tables through which programs call many verbs.

use std::ffi::{c_int, c_void};
use std::mem::{self, offset_of};
use std::sync::Arc;

use doorbell_ibverbs_sys as c;

use crate::objects::answer::{Answer, Refused, pointer, status};
use crate::objects::device::{self, Device};
use crate::objects::event::Events;
use crate::objects::handle::{Handles, Kind, object};
use crate::objects::{ah, cq, cq_ex, dm, mr, mw, pd, post, qp, query, srq, unsupported};
use crate::process::fork::say;

/// A context. C sees the `ibv_context` within its first field.
#[repr(C)]
pub(crate) struct Context {
    c: c::verbs_context,
    pub(crate) device: Arc<Device>,
    pub(crate) events: Arc<Events>,
    /// Objects that were created from the context.
    pub(crate) handles: Handles,
}

/// Value of `abi_compat` that announces the extended table.
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

impl Context {
    /// Returns the context of a C pointer.
    ///
    /// # Safety
    ///
    /// If it is not null, `pointer` came from `ibv_open_device` and was not closed.
    pub(crate) unsafe fn of<'a>(pointer: *mut c::ibv_context) -> Answer<&'a Self> {
        if pointer.is_null() {
            return Err(Refused::invalid("the context is null"));
        }
        // SAFETY: the `ibv_context` lies in a `verbs_context`, with which a `Context` begins.
        Ok(unsafe { &*pointer.byte_sub(offset_of!(c::verbs_context, context)).cast::<Self>() })
    }

    pub(crate) fn as_c(&self) -> *mut c::ibv_context {
        (&raw const self.c.context).cast_mut()
    }
}

fn tables(events: &Events) -> c::verbs_context {
    // SAFETY: zeros are a value of each of its fields: numbers, null pointers, absent functions.
    let mut tables: c::verbs_context = unsafe { mem::zeroed() };
    tables.sz = size_of::<c::verbs_context>();
    unsupported::fill(&mut tables);
    tables.query_port = Some(query::query_port);
    tables.query_device_ex = Some(query::query_device_ex);
    tables.query_rt_values = Some(query::query_rt_values);
    tables.create_cq_ex = Some(cq_ex::create_cq_ex);
    tables.create_qp_ex = Some(qp::create_qp_ex);
    tables.create_srq_ex = Some(srq::create_srq_ex);
    tables.get_srq_num = Some(srq::get_srq_num);
    tables.alloc_dm = Some(dm::alloc_dm);
    tables.free_dm = Some(dm::free_dm);
    tables.reg_dm_mr = Some(dm::reg_dm_mr);
    tables.advise_mr = Some(mr::advise_mr);
    tables.alloc_null_mr = Some(mr::alloc_null_mr);
    tables.alloc_td = Some(pd::alloc_td);
    tables.dealloc_td = Some(pd::dealloc_td);
    tables.alloc_parent_domain = Some(pd::alloc_parent_domain);
    let context = &mut tables.context;
    context.ops.alloc_mw = Some(mw::alloc_mw);
    context.ops.bind_mw = Some(mw::bind_mw);
    context.ops.dealloc_mw = Some(mw::dealloc_mw);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    // There is no kernel to command, but some programs duplicate this descriptor.
    context.cmd_fd = events.fd();
    context.async_fd = events.fd();
    context.num_comp_vectors = 1;
    context.abi_compat = EXTENDED;
    tables
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut c::ibv_device) -> *mut c::ibv_context {
    let open = || {
        if device.is_null() {
            return Err(Refused::invalid("the device is null"));
        }
        let opened = device::open().inspect_err(|refused| {
            // The fault is outside the program, and no errno describes it.
            say(&format!("doorbell: the software RNIC could not be opened: {refused}"));
        })?;
        let events = Arc::new(Events::new()?);
        let mut c = tables(&events);
        c.context.device = device;
        // The C library's initializer of a mutex writes zeros too.
        let context = Box::leak(Box::new(Context { c, device: opened, events, handles: Handles::default() }));
        Ok(context.as_c())
    };
    pointer("ibv_open_device", open)
}

/// Closes a context. Objects that the program did not destroy are destroyed with it, as the kernel would do: from
/// then on no peer reaches their memory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut c::ibv_context) -> c_int {
    status("ibv_close_device", || {
        // SAFETY: the C contract.
        let own = unsafe { Context::of(context) }?;
        if !own.device.is_own() {
            return Ok(()); // the context belongs to the parent process
        }
        for (kind, pointer) in own.handles.left() {
            // SAFETY: an object of this kind that exists, and the program does not use it again.
            unsafe { destroy(kind, pointer as *mut c_void) };
        }
        // SAFETY: it came from `Box::leak`, no object that was created from it still exists, and the program does not
        // use it again.
        drop(unsafe { Box::from_raw((&raw const *own).cast_mut()) });
        Ok(())
    })
}

/// Destroys an object that the program did not destroy, without waiting for it to acknowledge events.
///
/// # Safety
///
/// The pointer is an object of this kind, and no thread uses it.
unsafe fn destroy(kind: Kind, pointer: *mut c_void) {
    // SAFETY: passed on to our caller. Objects are destroyed before those that they were created from, so none is in
    // use.
    unsafe {
        match kind {
            Kind::Qp => {
                let _ = object::<qp::Qp>(pointer.cast()).map(|own| own.unacknowledged.give_up());
                qp::ibv_destroy_qp(pointer.cast())
            }
            Kind::Mw => mw::dealloc_mw(pointer.cast()),
            Kind::Mr => mr::ibv_dereg_mr(pointer.cast()),
            Kind::Ah => ah::ibv_destroy_ah(pointer.cast()),
            Kind::Srq => {
                let _ = object::<srq::Srq>(pointer.cast()).map(|own| own.unacknowledged.give_up());
                srq::ibv_destroy_srq(pointer.cast())
            }
            Kind::Cq => {
                let _ = object::<cq::Cq>(pointer.cast()).map(cq::Cq::give_up);
                cq::ibv_destroy_cq(pointer.cast())
            }
            Kind::Channel => cq::ibv_destroy_comp_channel(pointer.cast()),
            Kind::Dm => dm::free_dm(pointer.cast()),
            Kind::ParentDomain | Kind::Pd => pd::ibv_dealloc_pd(pointer.cast()),
            Kind::Td => pd::dealloc_td(pointer.cast()),
        };
    }
}
