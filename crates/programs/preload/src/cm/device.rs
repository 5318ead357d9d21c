//! The device to which ids belong. The library has only one device, so each address of the machine belongs to this
//! device.

use std::ffi::c_int;
use std::ptr;
use std::sync::Mutex;

use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;

use super::id::Id;
use super::verbs;
use crate::objects::answer::{Answer, pointer};
use crate::objects::context::Context;
use crate::process::fork;

/// The context and the protection domain that all ids share. As in librdmacm, both stay open until the process ends.
#[derive(Clone, Copy)]
pub(super) struct SharedDomain {
    pub(super) context: *mut c::ibv_context,
    pub(super) pd: *mut c::ibv_pd,
}

// SAFETY: any thread may use the context and the protection domain.
unsafe impl Send for SharedDomain {}

/// Returns the shared context and protection domain of this process. The first call opens the device.
pub(super) fn open() -> Answer<SharedDomain> {
    static SHARED: Mutex<Option<(u32, SharedDomain)>> = Mutex::new(None);
    let mut shared = SHARED.lock().ignore_poison();
    if let Some((generation, shared)) = *shared
        && generation == fork::generation()
    {
        return Ok(shared);
    }
    let context = verbs::open_device()?;
    // SAFETY: the context was just opened.
    let pd = unsafe { verbs::alloc_pd(context) }?;
    let opened = SharedDomain { context, pd };
    *shared = Some((fork::generation(), opened));
    Ok(opened)
}

/// Returns the context of an id that is bound to the device.
pub(super) fn context_of<'a>(id: &Id) -> Answer<&'a Context> {
    // SAFETY: the context of an id is the shared context, which is never closed. For a null pointer, `Context::of`
    // returns an error.
    let context = unsafe { Context::of((*id.c.get()).verbs) }?;
    context.device.expect_own()?;
    Ok(context)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut c::ibv_context {
    pointer("rdma_get_devices", || {
        let list = Box::new([open()?.context, ptr::null_mut()]);
        if !count.is_null() {
            // SAFETY: if the pointer is not null, the caller provides memory for the number.
            unsafe { count.write(1) }
        }
        Ok(Box::into_raw(list).cast())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_free_devices(list: *mut *mut c::ibv_context) {
    if !list.is_null() {
        // SAFETY: if the pointer is not null, it came from `rdma_get_devices`.
        drop(unsafe { Box::from_raw(list.cast::<[*mut c::ibv_context; 2]>()) });
    }
}
