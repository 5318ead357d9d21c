//! Device memory. The software device is part of the process, so its device memory is memory of the process.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_ibverbs_sys as c;

use crate::objects::answer::{Answer, Refused, pointer, status};
use crate::objects::context::Context;
use crate::objects::handle::{Kind, Object, Users, object};
use crate::objects::mr;

/// Size of the device memory, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// Base-2 logarithm of the alignment of each allocation: 12 for a page of 4096 B. A program may request at most this
/// alignment.
const LOG_ALIGN: u32 = 12;

/// Size of a word in bytes. As on hardware, offsets and lengths of copies must be multiples of a word.
const WORD: u64 = 4;

/// A piece of device memory that a program has allocated.
#[repr(C)]
pub(crate) struct Dm {
    c: c::ibv_dm,
    base: *mut u8,
    layout: Layout,
    pub(crate) users: Users,
}

// SAFETY: `Dm` is `#[repr(C)]` and begins with an `ibv_dm`.
unsafe impl Object for Dm {
    type C = c::ibv_dm;
    const KIND: Kind = Kind::Dm;
}

impl Drop for Dm {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.layout.size(), Ordering::Relaxed);
        // SAFETY: the memory was allocated with this layout, and no region uses the memory any more.
        unsafe { dealloc(self.base, self.layout) }
    }
}

/// Number of allocated bytes. All contexts share this device memory.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

impl Dm {
    /// Returns the address of the `length` bytes at `offset`.
    pub(crate) fn place(&self, offset: u64, length: usize) -> Answer<*mut u8> {
        let size = self.layout.size() as u64;
        if offset > size || length as u64 > size - offset {
            let why = format!("{length} B at offset {offset} exceed the allocation of {size} B of device memory");
            return Err(Refused::invalid(why));
        }
        // SAFETY: the address is inside the allocation, as the code above has checked.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    fn word_place(&self, offset: u64, length: usize) -> Answer<*mut u8> {
        if !offset.is_multiple_of(WORD) || !(length as u64).is_multiple_of(WORD) {
            return Err(Refused::invalid(format!(
                "{length} B at offset {offset} of device memory cannot be copied: both must be multiples of {WORD} B"
            )));
        }
        self.place(offset, length)
    }
}

pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_alloc_dm_attr,
) -> *mut c::ibv_dm {
    pointer("ibv_alloc_dm", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, attr) = unsafe { (Context::of(context)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > LOG_ALIGN {
            return Err(Refused::invalid(format!(
                "device memory with comp_mask {:#x}, length {} B and alignment 2^{} B: must be 0, at least 1 B, and at \
                 most 2^{LOG_ALIGN} B",
                attr.comp_mask, attr.length, attr.log_align_req
            )));
        }
        let layout = Layout::from_size_align(attr.length, 1 << LOG_ALIGN);
        let layout = layout.ok().filter(|layout| layout.size() <= MAX_BYTES);
        let full = || {
            Refused::new(libc::ENOMEM, format!("the allocation exceeds the device memory of {MAX_BYTES} B in total"))
        };
        let layout = layout.ok_or_else(full)?;
        let taken = |used: usize| Some(used + layout.size()).filter(|&sum| sum <= MAX_BYTES);
        IN_USE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).map_err(|_| full())?;
        // SAFETY: the layout has at least one byte.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
            return Err(full());
        }
        let c = c::ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: 0,
        };
        Ok(own.handles.give(Dm { c, base, layout, users: Users::default() }))
    })
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut c::ibv_dm) -> c_int {
    status("ibv_free_dm", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Dm>(dm) }?;
        own.users.expect_none("device memory")?;
        // SAFETY: a context exists while objects of it exist. No region uses the memory, and the program does not use
        // it any more.
        drop(unsafe { Context::of(own.c.context)?.handles.take::<Dm>(dm) });
        Ok(())
    })
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut c::ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    status("ibv_memcpy_to_dm", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let place = unsafe { object::<Dm>(dm) }?.word_place(offset, length)?;
        // SAFETY: `place` has room for `length` bytes, and the program's memory has `length` bytes.
        unsafe { ptr::copy(from.cast(), place, length) };
        Ok(())
    })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut c::ibv_dm, offset: u64, length: usize) -> c_int {
    status("ibv_memcpy_from_dm", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let place = unsafe { object::<Dm>(dm) }?.word_place(offset, length)?;
        // SAFETY: `place` has `length` bytes, and the program's memory has room for them.
        unsafe { ptr::copy(place, to.cast(), length) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut c::ibv_pd,
    dm: *mut c::ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut c::ibv_mr {
    pointer("ibv_reg_dm_mr", || {
        // The program does not know the address of device memory, so it could not use a region without zero-based
        // addresses.
        if flags & c::IBV_ACCESS_ZERO_BASED == 0 {
            return Err(Refused::invalid("a region of device memory must have IBV_ACCESS_ZERO_BASED"));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let place = unsafe { object::<Dm>(dm) }?.place(offset, length)?;
        // SAFETY: by the C contract of this function, the program passes valid arguments. The device memory exists
        // until no region uses it.
        unsafe { mr::reg_mr(pd, place.cast(), length, 0, flags, dm) }
    })
}
