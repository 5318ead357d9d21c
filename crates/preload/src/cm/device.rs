//! The device that ids are bound to: there is one, so every address of the machine is an address of it.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use doorbell_ibverbs_sys as c;

use super::id::Id;
use super::verbs;
use crate::answer::{Answer, pointer};
use crate::context::Context;
use crate::fork;

/// The context and the protection domain that ids share. They stay open, as with librdmacm: a program
/// may use them for as long as it runs.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    pub(super) context: *mut c::ibv_context,
    pub(super) pd: *mut c::ibv_pd,
}

// SAFETY: the objects may be used by any thread.
unsafe impl Send for Shared {}

/// The device of this process, opened if it is not.
pub(super) fn open() -> Answer<Shared> {
    static SHARED: Mutex<Option<(u32, Shared)>> = Mutex::new(None);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((generation, shared)) = *shared
        && generation == fork::generation()
    {
        return Ok(shared);
    }
    let context = verbs::open_device()?;
    // SAFETY: it was just opened.
    let pd = unsafe { verbs::alloc_pd(context) }?;
    let opened = Shared { context, pd };
    *shared = Some((fork::generation(), opened));
    Ok(opened)
}

/// The context behind an id that is bound to the device.
pub(super) fn context_of<'a>(id: &Id) -> Answer<&'a Context> {
    // SAFETY: an id's context is the shared one, which stays; null is an error.
    let context = unsafe { Context::of((*id.c.get()).verbs) }?;
    context.device.expect_own()?;
    Ok(context)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut c::ibv_context {
    pointer("rdma_get_devices", || {
        let list = Box::new([open()?.context, ptr::null_mut()]);
        if !count.is_null() {
            // SAFETY: not null, so the caller's place for the number.
            unsafe { count.write(1) }
        }
        Ok(Box::into_raw(list).cast())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_free_devices(list: *mut *mut c::ibv_context) {
    if !list.is_null() {
        // SAFETY: not null, so a list from `rdma_get_devices`.
        drop(unsafe { Box::from_raw(list.cast::<[*mut c::ibv_context; 2]>()) });
    }
}
