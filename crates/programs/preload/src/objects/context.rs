//! Opening and closing the device. Also creates the tables of functions through which programs call many verbs.

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

/// A context. C code sees the `ibv_context` inside the first field.
#[repr(C)]
pub(crate) struct Context {
    c: c::verbs_context,
    pub(crate) device: Arc<Device>,
    pub(crate) events: Arc<Events>,
    /// Objects that were created from this context.
    pub(crate) handles: Handles,
}

/// Value of `abi_compat` that announces the extended table of functions.
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

impl Context {
    /// Returns the context to which a C pointer refers.
    ///
    /// # Safety
    ///
    /// `pointer` is null, or came from `ibv_open_device` and was not closed.
    pub(crate) unsafe fn of<'a>(pointer: *mut c::ibv_context) -> Answer<&'a Self> {
        if pointer.is_null() {
            return Err(Refused::invalid("the context is null"));
        }
        // SAFETY: the `ibv_context` lies inside the `verbs_context` with which each `Context` begins.
        Ok(unsafe { &*pointer.byte_sub(offset_of!(c::verbs_context, context)).cast::<Self>() })
    }

    pub(crate) fn as_c(&self) -> *mut c::ibv_context {
        (&raw const self.c.context).cast_mut()
    }
}

fn tables(events: &Events) -> c::verbs_context {
    // SAFETY: zeros are a valid value of each field. The fields are numbers, pointers and optional functions.
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
    // The context has no command channel to the kernel. But some programs duplicate this descriptor, so it must be
    // valid.
    context.cmd_fd = events.fd();
    context.async_fd = events.fd();
    context.num_comp_vectors = 1;
    context.abi_compat = EXTENDED;
    tables
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut c::ibv_device) -> *mut c::ibv_context {
    let open = || {
        let number = device::number_of(device)?;
        let opened = device::open(number).inspect_err(|refused| {
            // The user must correct the settings, and no errno describes the cause. So write the reason to standard
            // error.
            say(&format!("doorbell: the software RNIC doorbell{number} could not be opened: {refused}"));
        })?;
        let events = Arc::new(Events::new()?);
        opened.tell(&events);
        let mut c = tables(&events);
        c.context.device = device;
        // The mutexes in the C structure are zero, as after initialisation by the C library.
        let context = Box::leak(Box::new(Context { c, device: opened, events, handles: Handles::default() }));
        Ok(context.as_c())
    };
    pointer("ibv_open_device", open)
}

/// Closes a context. Also destroys the objects that the program did not destroy, as the kernel does. After this call,
/// no peer can access their memory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut c::ibv_context) -> c_int {
    status("ibv_close_device", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { Context::of(context) }?;
        if !own.device.is_own() {
            return Ok(()); // an inherited context belongs to the parent process
        }
        for (kind, pointer) in own.handles.left() {
            // SAFETY: the pointer refers to an existing object of this kind. The program does not use the object any
            // more.
            unsafe { destroy(kind, pointer as *mut c_void) };
        }
        // SAFETY: the pointer came from `Box::leak`. No object of the context exists any more, and the program does not
        // use the context any more.
        drop(unsafe { Box::from_raw((&raw const *own).cast_mut()) });
        Ok(())
    })
}

/// Destroys an object that the program did not destroy. Does not wait for the program to acknowledge events.
///
/// # Safety
///
/// `pointer` refers to an object of this kind, and no thread uses the object.
unsafe fn destroy(kind: Kind, pointer: *mut c_void) {
    // SAFETY: the caller guarantees that the object exists. The caller destroys each object before the objects from
    // which it was created, so no other object uses it.
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
