//! Memory windows.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::Provider;
use doorbell_verbs::{LKey, Payload, RKey, SendOperation, SendRequest, WindowBinding, WindowKind};

use crate::objects::answer::{Answer, Refused, pointer, status};
use crate::objects::handle::{Kind, Object, object};
use crate::objects::mr::{self, Mr};
use crate::objects::pd::Pd;
use crate::objects::post::send_flags;
use crate::objects::qp::Qp;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    c: UnsafeCell<c::ibv_mw>,
    kind: WindowKind,
}

// SAFETY: `Mw` is `#[repr(C)]` and begins with an `ibv_mw`.
unsafe impl Object for Mw {
    type C = c::ibv_mw;
    const KIND: Kind = Kind::Mw;
}

impl Mw {
    /// Returns the key of the window that C code sees. Programs do not bind a window and read its key concurrently.
    fn rkey(&self) -> u32 {
        // SAFETY: only `bind_mw` changes this field. The program does not call `bind_mw` concurrently.
        unsafe { (*self.c.get()).rkey }
    }

    fn pd(&self) -> *mut c::ibv_pd {
        // SAFETY: the field never changes after creation.
        unsafe { (*self.c.get()).pd }
    }
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut c::ibv_pd, kind: c::ibv_mw_type) -> *mut c::ibv_mw {
    pointer("ibv_alloc_mw", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Pd>(pd) }?;
        let context = own.context()?;
        let (number, kind) = match kind {
            c::IBV_MW_TYPE_1 => (kind, WindowKind::Type1),
            c::IBV_MW_TYPE_2 => (kind, WindowKind::Type2),
            _ => return Err(Refused::invalid(format!("memory window type {kind} does not exist: must be 1 or 2"))),
        };
        let rkey = context.device.provider.create_window(own.id, kind)?.get();
        own.users.add();
        let c = c::ibv_mw { context: context.as_c(), pd, rkey, handle: rkey >> 8, type_: number };
        Ok(context.handles.give(Mw { c: UnsafeCell::new(c), kind }))
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut c::ibv_mw) -> c_int {
    status("ibv_dealloc_mw", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments. A protection domain exists
        // while windows of it exist.
        let (own, pd) = unsafe {
            let own = object::<Mw>(mw)?;
            (own, object::<Pd>(own.pd())?)
        };
        let context = pd.context()?;
        context.device.provider.destroy_window(RKey::new(own.rkey()))?;
        pd.users.remove();
        // SAFETY: the program does not use the window any more.
        drop(unsafe { context.handles.take::<Mw>(mw) });
        Ok(())
    })
}

/// Returns the next key of a window. Only the lowest byte of the key changes.
fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// Converts a C description of a binding to the RNIC's form.
///
/// # Safety
///
/// The region in `info` is null or exists.
unsafe fn binding(rkey: u32, info: &c::ibv_mw_bind_info) -> Answer<WindowBinding> {
    // SAFETY: the caller guarantees that the region is null or exists.
    let lkey = unsafe { object::<Mr>(info.mr) }.map_or(0, Mr::lkey);
    if info.mr.is_null() && info.length > 0 {
        return Err(Refused::invalid("the memory region is null"));
    }
    Ok(WindowBinding {
        rkey: RKey::new(rkey),
        lkey: LKey(lkey),
        address: info.addr,
        length: info.length,
        access: mr::access(info.mw_access_flags)?,
        zero_based: info.mw_access_flags & c::IBV_ACCESS_ZERO_BASED != 0,
    })
}

/// Binds a window of type 1. The program can use the new key of the window at once.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut c::ibv_qp, mw: *mut c::ibv_mw, bind: *mut c::ibv_mw_bind) -> c_int {
    status("ibv_bind_mw", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (qp, own, bind) = unsafe { (object::<Qp>(qp)?, object::<Mw>(mw)?, bind.as_ref()) };
        let bind = bind.ok_or_else(|| Refused::invalid("the binding is null"))?;
        qp.device.expect_own()?;
        if own.kind != WindowKind::Type1 {
            return Err(Refused::invalid("the memory window has type 2: bind it with a work request (IBV_WR_BIND_MW)"));
        }
        let rkey = next_key(own.rkey());
        let request = SendRequest {
            wr_id: bind.wr_id,
            // SAFETY: by the C contract of this function, the program passes valid arguments.
            operation: SendOperation::BindWindow(unsafe { binding(rkey, &bind.bind_info) }?),
            flags: send_flags(bind.send_flags),
            payload: Payload::Sges(&[]),
            destination: None,
        };
        // SAFETY: the request reads and writes no memory.
        let posted = unsafe { qp.raw.post_send(&[request]) };
        posted.map_err(|error| error.kind)?;
        // SAFETY: by the C contract, the program does not use the window concurrently.
        unsafe { (*own.c.get()).rkey = rkey };
        Ok(())
    })
}

/// Returns the operation that binds a window of type 2 with a key that the program chose.
///
/// # Safety
///
/// Each of the window and the region is null or exists.
pub(crate) unsafe fn bind_operation(
    mw: *mut c::ibv_mw,
    rkey: u32,
    info: &c::ibv_mw_bind_info,
) -> Answer<SendOperation> {
    // SAFETY: the caller guarantees that the window is null or exists.
    let own = unsafe { object::<Mw>(mw) }?;
    if own.kind != WindowKind::Type2 {
        return Err(Refused::invalid("the memory window has type 1: bind it with ibv_bind_mw"));
    }
    if rkey >> 8 != own.rkey() >> 8 {
        let why = format!(
            "key {rkey:#010x} does not fit the window's key {:#010x}: only the lowest byte may differ",
            own.rkey()
        );
        return Err(Refused::invalid(why));
    }
    // SAFETY: the caller guarantees that the region is null or exists.
    Ok(SendOperation::BindWindow(unsafe { binding(rkey, info) }?))
}
