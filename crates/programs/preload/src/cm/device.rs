//! The devices to which ids belong. An id belongs to the device that has the id's local address. Each other address of
//! the machine belongs to the first device, since the addresses of ids are independent of those of the devices.

use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Mutex;

use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;

use super::id::Id;
use super::verbs;
use crate::objects::answer::{Answer, pointer};
use crate::objects::context::Context;
use crate::objects::device::{free_list, into_list, number_at};
use crate::process::{config, fork};

/// The context and the protection domain that all ids of a device share. As in librdmacm, both stay open until the
/// process ends.
#[derive(Clone, Copy)]
pub(super) struct SharedDomain {
    pub(super) context: *mut c::ibv_context,
    pub(super) pd: *mut c::ibv_pd,
}

// SAFETY: any thread may use the context and the protection domain.
unsafe impl Send for SharedDomain {}

/// Shared domains of this process.
struct Domains {
    generation: u32,
    /// Domains by the number of the device. `None` if the device is not open.
    domains: Vec<Option<SharedDomain>>,
}

/// Returns the shared context and protection domain of a device. The first call for a device opens the device.
fn open(number: usize) -> Answer<SharedDomain> {
    static DOMAINS: Mutex<Domains> = Mutex::new(Domains { generation: 0, domains: Vec::new() });
    let mut all = DOMAINS.lock().ignore_poison();
    if all.generation != fork::generation() {
        *all = Domains { generation: fork::generation(), domains: Vec::new() };
    }
    if let Some(Some(opened)) = all.domains.get(number) {
        return Ok(*opened);
    }
    let context = verbs::open_device(number)?;
    // SAFETY: the context was just opened.
    let pd = unsafe { verbs::alloc_pd(context) }?;
    let opened = SharedDomain { context, pd };
    if all.domains.len() <= number {
        all.domains.resize(number + 1, None);
    }
    all.domains[number] = Some(opened);
    Ok(opened)
}

/// Returns the shared context and protection domain of the device for an id with this local address.
pub(super) fn open_at(local: IpAddr) -> Answer<SharedDomain> {
    open(number_at(local))
}

/// Returns the context of an id that is bound to the device.
pub(super) fn context_of<'a>(id: &Id) -> Answer<&'a Context> {
    // SAFETY: the context of an id is a shared context, which is never closed. For a null pointer, `Context::of`
    // returns an error.
    let context = unsafe { Context::of((*id.c.get()).verbs) }?;
    context.device.expect_own()?;
    Ok(context)
}

/// Opens all devices, as librdmacm does, and returns their contexts.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut c::ibv_context {
    pointer("rdma_get_devices", || {
        let numbers = 0..config::devices()?.len();
        let contexts = numbers.map(|number| open(number).map(|opened| opened.context)).collect::<Answer<Vec<_>>>()?;
        if !count.is_null() {
            // SAFETY: if the pointer is not null, the caller provides memory for the number.
            unsafe { count.write(contexts.len() as c_int) }
        }
        Ok(into_list(contexts.into_iter()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_free_devices(list: *mut *mut c::ibv_context) {
    // SAFETY: the pointer is null, or came from `rdma_get_devices`.
    unsafe { free_list(list) }
}
