//! Opening the device, and the tables through which programs call much of verbs.

use std::ffi::{c_int, c_void};
use std::mem::{self, offset_of};
use std::sync::Arc;

use doorbell_ibverbs_sys as c;

use crate::device::{self, Device};
use crate::event::Events;
use crate::handle::Users;
use crate::outcome::{Outcome, Refused, pointer, status};
use crate::{cq, cq_ex, dm, pd, post, qp, query, srq};

/// A context. C sees the `ibv_context` within its first field.
#[repr(C)]
pub(crate) struct Context {
    c: c::verbs_context,
    pub(crate) device: Arc<Device>,
    pub(crate) events: Arc<Events>,
    /// Objects that were made from it.
    pub(crate) users: Users,
}

/// What `abi_compat` says where the extended table is there.
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

impl Context {
    /// The context behind a C pointer.
    ///
    /// # Safety
    ///
    /// If it is not null, `pointer` came from `ibv_open_device` and was not closed.
    pub(crate) unsafe fn of<'a>(pointer: *mut c::ibv_context) -> Outcome<&'a Self> {
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
    tables.alloc_td = Some(pd::alloc_td);
    tables.dealloc_td = Some(pd::dealloc_td);
    tables.alloc_parent_domain = Some(pd::alloc_parent_domain);
    let context = &mut tables.context;
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    // There is no kernel to command, but some programs duplicate the descriptor.
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
            // What is wrong is outside the program, and no errno says it.
            eprintln!("doorbell: the software RNIC could not be opened: {refused}");
        })?;
        let events = Arc::new(Events::new()?);
        let mut c = tables(&events);
        c.context.device = device;
        // A mutex of zeros is what the C library's initializer makes.
        let context = Box::leak(Box::new(Context { c, device: opened, events, users: Users::default() }));
        Ok(context.as_c())
    };
    pointer("ibv_open_device", open)
}

/// Closes a context. What the program left behind stops working, as if the kernel had cleared it
/// away, but its memory stays: the program may yet name it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut c::ibv_context) -> c_int {
    status("ibv_close_device", || {
        // SAFETY: the C contract.
        let own = unsafe { Context::of(context) }?;
        if own.device.is_own() && own.users.none() {
            // SAFETY: it came from `Box::leak`, nothing was made from it that still exists, and
            // the program does not name it again.
            drop(unsafe { Box::from_raw((&raw const *own).cast_mut()) });
        } else if own.device.is_own() {
            qp::stop_all_of(own);
        }
        Ok(())
    })
}
