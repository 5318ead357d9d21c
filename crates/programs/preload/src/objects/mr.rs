//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::{Keys, Provider};
use doorbell_verbs::soft::{bring_in, can_bring_in};
use doorbell_verbs::{Access, MemoryError};

use crate::objects::answer::{Answer, Refused, pointer, status};
use crate::objects::dm::Dm;
use crate::objects::handle::{Kind, Object, object};
use crate::objects::pd::Pd;
use crate::objects::post::elements;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    c: c::ibv_mr,
    address: u64,
    access: Access,
    /// Device memory that the region covers, or null.
    dm: *mut c::ibv_dm,
    /// Whether the memory is not the program's own: the region has none, or it is a mapping of the library.
    is_fixed: bool,
}

// SAFETY: `Mr` is `#[repr(C)]` and begins with an `ibv_mr`.
unsafe impl Object for Mr {
    type C = c::ibv_mr;
    const KIND: Kind = Kind::Mr;
}

impl Mr {
    /// Creates the object of a region whose memory is not the program's own. Such a region cannot be re-registered.
    pub(crate) fn fixed(c: c::ibv_mr, address: u64, access: Access) -> Self {
        Self { c, address, access, dm: NO_DM, is_fixed: true }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.c.lkey
    }
}

/// Value of `dm` for a region of the program's own memory.
const NO_DM: *mut c::ibv_dm = ptr::null_mut();

/// Access flags that a device may ignore. So a program may set them without checking that the device supports them.
pub(crate) const OPTIONAL: c_uint = 0x3ff << 20;

pub(crate) fn access(flags: c_uint) -> Answer<Access> {
    let known = [
        (c::IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (c::IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (c::IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (c::IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (c::IBV_ACCESS_MW_BIND, Access::WINDOW_BIND),
        (c::IBV_ACCESS_ON_DEMAND, Access::ON_DEMAND),
    ];
    let all = known.iter().fold(0, |all, (flag, _)| all | flag);
    // The flag for huge pages is only a hint, so the library ignores it.
    let unknown = flags & !(all | OPTIONAL | c::IBV_ACCESS_HUGETLB | c::IBV_ACCESS_ZERO_BASED);
    if unknown != 0 {
        return Err(Refused::unsupported(format!(
            "access flags {unknown:#x} are not supported: {all:#x} and the optional flags {OPTIONAL:#x} are allowed"
        )));
    }
    Ok(known.iter().filter(|(flag, _)| flags & flag != 0).map(|&(_, access)| access).collect())
}

/// Returns the access rights of a region that is registered with these flags.
pub(crate) fn rights(flags: c_uint) -> Answer<Access> {
    let access = access(flags)?;
    // IBTA Vol 1, 10.6.3.1, requires local write access for these rights.
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Refused::invalid("remote write and remote atomic access require IBV_ACCESS_LOCAL_WRITE"));
    }
    Ok(access)
}

/// Checks the arguments of a registration before the RNIC gets them. Returns the access rights of the region.
fn checked(memory: *mut c_void, length: usize, flags: c_uint, dm: *mut c::ibv_dm) -> Answer<Access> {
    let access = rights(flags)?;
    if length == 0 && dm.is_null() {
        // The kernel rejects a length of 0 for every adapter (`ib_umem_get`), before it checks that the address is
        // mapped.
        return Err(Refused::invalid(format!(
            "0 B at {memory:p} cannot be registered: the length must be at least 1 B"
        )));
    }
    if access.contains(Access::ON_DEMAND) {
        // Do not check that the memory is mapped. The pages of an on-demand region may be unmapped now, and such a
        // region may even cover the whole address space.
        return Ok(access);
    }
    expect_mapped(memory, length, access.contains(Access::LOCAL_WRITE))?;
    Ok(access)
}

/// Checks that the memory is mapped, and that it is writable if `written` is set. Like registration with hardware, the
/// check brings the pages into memory. On kernels before 5.14, which cannot bring pages in on request, the check always
/// succeeds.
fn expect_mapped(memory: *mut c_void, length: usize, written: bool) -> Answer<()> {
    if (memory as usize).checked_add(length).is_none() {
        return Err(Refused::invalid(format!(
            "the {length} B at {memory:p} reach beyond the end of the address space"
        )));
    }
    if !can_bring_in() || bring_in(memory.cast(), length, written).is_ok() {
        return Ok(());
    }
    let what = if written { "mapped and writable" } else { "mapped" };
    Err(Refused::new(libc::EFAULT, format!("the {length} B at {memory:p} must all be {what}")))
}

fn register(pd: &Pd, memory: *mut c_void, length: usize, address: u64, access: Access) -> Answer<Keys> {
    let provider = &pd.context()?.device.provider;
    // SAFETY: by the contract of verbs, the program keeps the memory mapped until it deregisters the region. No Rust
    // code has references to this memory.
    Ok(unsafe { provider.register(pd.id, memory.cast(), length, address, access, None) }?)
}

/// # Safety
///
/// The C contract of `ibv_reg_mr_iova2`.
pub(crate) unsafe fn reg_mr(
    pd: *mut c::ibv_pd,
    memory: *mut c_void,
    length: usize,
    address: u64,
    flags: c_uint,
    dm: *mut c::ibv_dm,
) -> Answer<*mut c::ibv_mr> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { object::<Pd>(pd) }?;
    let context = own.context()?;
    let address = if flags & c::IBV_ACCESS_ZERO_BASED != 0 { 0 } else { address };
    let access = checked(memory, length, flags, dm)?;
    let keys = match length {
        // Adapters accept a region of 0 bytes of device memory, and rdma-core's tests expect this.
        0 => context.device.provider.register_null(own.id)?,
        _ => register(own, memory, length, address, access)?,
    };
    own.users.add();
    let c = c::ibv_mr {
        context: context.as_c(),
        pd,
        addr: memory,
        length,
        handle: keys.lkey.0,
        lkey: keys.lkey.0,
        rkey: keys.rkey.get(),
    };
    // SAFETY: by the C contract of this function, the program passes valid arguments. `dm` is null for a region of the
    // program's own memory.
    if let Ok(dm) = unsafe { object::<Dm>(dm) } {
        dm.users.add();
    }
    Ok(context.handles.give(Mr { c, address, access, dm, is_fixed: false }))
}

/// Creates a region that reads as zeros and discards writes. The program can use only the local key of this region.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut c::ibv_pd) -> *mut c::ibv_mr {
    pointer("ibv_alloc_null_mr", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Pd>(pd) }?;
        let context = own.context()?;
        let lkey = context.device.provider.register_null(own.id)?.lkey.0;
        own.users.add();
        let c =
            c::ibv_mr { context: context.as_c(), pd, addr: ptr::null_mut(), length: 0, handle: lkey, lkey, rkey: 0 };
        Ok(context.handles.give(Mr::fixed(c, 0, Access::LOCAL_WRITE)))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut c::ibv_pd,
    memory: *mut c_void,
    length: usize,
    flags: c_int,
) -> *mut c::ibv_mr {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    pointer("ibv_reg_mr", || unsafe { reg_mr(pd, memory, length, memory as u64, flags as c_uint, NO_DM) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut c::ibv_pd,
    memory: *mut c_void,
    length: usize,
    address: u64,
    flags: c_int,
) -> *mut c::ibv_mr {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    pointer("ibv_reg_mr_iova", || unsafe { reg_mr(pd, memory, length, address, flags as c_uint, NO_DM) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut c::ibv_pd,
    memory: *mut c_void,
    length: usize,
    address: u64,
    flags: c_uint,
) -> *mut c::ibv_mr {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    pointer("ibv_reg_mr_iova2", || unsafe { reg_mr(pd, memory, length, address, flags, NO_DM) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut c::ibv_mr) -> c_int {
    status("ibv_dereg_mr", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Mr>(mr) }?;
        // SAFETY: a protection domain exists while regions of it exist.
        let pd = unsafe { object::<Pd>(own.c.pd) }?;
        let context = pd.context()?;
        context.device.provider.deregister(doorbell_verbs::LKey(own.c.lkey))?;
        pd.users.remove();
        // SAFETY: device memory exists while regions use it.
        if let Ok(dm) = unsafe { object::<Dm>(own.dm) } {
            dm.users.remove();
        }
        // SAFETY: the program does not use the region any more.
        drop(unsafe { context.handles.take::<Mr>(mr) });
        Ok(())
    })
}

/// Changes the memory, the rights or the protection domain of a region. If the call fails, the region stays unchanged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut c::ibv_mr,
    changes: c_int,
    pd: *mut c::ibv_pd,
    memory: *mut c_void,
    length: usize,
    flags: c_int,
) -> c_int {
    let body = || {
        let changes = changes as c_uint;
        let known = c::IBV_REREG_MR_CHANGE_TRANSLATION | c::IBV_REREG_MR_CHANGE_PD | c::IBV_REREG_MR_CHANGE_ACCESS;
        if changes == 0 || changes & !known != 0 {
            return Err(Refused::invalid(format!(
                "re-registration flags {changes:#x} are not allowed: must be one or more of {known:#x}"
            )));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments. The code below writes through
        // `mr` only after the last use of this reference.
        let own = unsafe { object::<Mr>(mr) }?;
        if !own.dm.is_null() || own.is_fixed {
            return Err(Refused::unsupported(
                "a region of device memory, of a DMA buffer, or without memory cannot be re-registered",
            ));
        }
        let moves = changes & c::IBV_REREG_MR_CHANGE_TRANSLATION != 0;
        let (memory, length) = if moves { (memory, length) } else { (own.c.addr, own.c.length) };
        if moves && (memory.is_null() || length == 0) {
            let why = format!(
                "{length} B at {memory:p}: a changed translation needs memory that is not null and at least 1 B"
            );
            return Err(Refused::invalid(why));
        }
        let address = if moves { memory as u64 } else { own.address };
        let pd = if changes & c::IBV_REREG_MR_CHANGE_PD != 0 { pd } else { own.c.pd };
        let access = match changes & c::IBV_REREG_MR_CHANGE_ACCESS != 0 {
            true => checked(memory, length, flags as c_uint, NO_DM)?,
            false => {
                if !own.access.contains(Access::ON_DEMAND) {
                    expect_mapped(memory, length, own.access.contains(Access::LOCAL_WRITE))?;
                }
                own.access
            }
        };
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (old_pd, new_pd) = unsafe { (object::<Pd>(own.c.pd)?, object::<Pd>(pd)?) };
        let context = old_pd.context()?;
        if !ptr::eq(context, new_pd.context()?) {
            return Err(Refused::invalid("the protection domain belongs to another context than the region"));
        }
        let (provider, lkey) = (&context.device.provider, doorbell_verbs::LKey(own.c.lkey));
        // SAFETY: by the C contract, as for `register`.
        unsafe { provider.reregister(lkey, new_pd.id, memory.cast(), length, address, access) }?;
        old_pd.users.remove();
        new_pd.users.add();
        // SAFETY: the program does not use the region during the change.
        let own = unsafe { &mut *mr.cast::<Mr>() };
        (own.c.pd, own.c.addr, own.c.length) = (pd, memory, length);
        (own.address, own.access) = (address, access);
        Ok(())
    };
    match status("ibv_rereg_mr", body) {
        0 => 0,
        _ => c::IBV_REREG_MR_ERR_INPUT,
    }
}

/// Applies the program's advice on memory that is paged on demand. The advice takes effect before the function returns,
/// so the flush flag makes no difference.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut c::ibv_pd,
    advice: c::ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut c::ibv_sge,
    count: u32,
) -> c_int {
    status("ibv_advise_mr", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, list) = unsafe { (object::<Pd>(pd)?, elements(list, count as usize)) };
        let provider = &own.context()?.device.provider;
        if flags & !c::IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 {
            return Err(Refused::invalid(format!(
                "flags {flags:#x} are not allowed: must be 0 or IBV_ADVISE_MR_FLAG_FLUSH"
            )));
        }
        let needed = match advice {
            c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Access::LOCAL_WRITE,
            c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH | c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Access::empty(),
            _ => {
                return Err(Refused::unsupported(format!(
                    "advice {advice} does not exist: must be one of IBV_ADVISE_MR_ADVICE_*"
                )));
            }
        };
        // Pages that are present need no work. This advice must not bring other pages into memory.
        let list = if advice == c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT { &[] } else { list };
        for sge in list {
            provider.prefetch(own.id, sge, needed).map_err(|error| {
                let errno = match error {
                    MemoryError::UnknownKey { .. } => libc::ENOENT,
                    MemoryError::ForeignPd { .. } | MemoryError::Forbidden { .. } => libc::EPERM,
                    _ => libc::EFAULT,
                };
                Refused::new(errno, error.to_string())
            })?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::objects::context::{ibv_close_device, ibv_open_device};
    use crate::objects::device::listed;
    use crate::objects::dm::{alloc_dm, free_dm, reg_dm_mr};
    use crate::objects::pd::{ibv_alloc_pd, ibv_dealloc_pd};

    #[test]
    fn a_region_stays_with_its_context() {
        let mut memory = [0_u8; 64];
        // SAFETY: the objects exist until the test destroys them. The memory lives longer.
        unsafe {
            let contexts = [(); 2].map(|()| ibv_open_device(listed(0).unwrap()));
            let [own, other] = contexts.map(|context| ibv_alloc_pd(context));
            let sibling = ibv_alloc_pd(contexts[0]);
            let mr = ibv_reg_mr(own, memory.as_mut_ptr().cast(), memory.len(), 0);
            let change = |pd| {
                let refused = ibv_rereg_mr(mr, c::IBV_REREG_MR_CHANGE_PD as c_int, pd, ptr::null_mut(), 0, 0);
                (refused, (*mr).pd)
            };
            assert_eq!(change(other), (c::IBV_REREG_MR_ERR_INPUT, own));
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(change(sibling), (0, sibling));
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!([own, other, sibling].map(|pd| ibv_dealloc_pd(pd)), [0; 3]);
            assert_eq!(contexts.map(|context| ibv_close_device(context)), [0; 2]);
        }
    }

    #[test]
    fn a_region_has_the_address_and_the_optional_rights_that_the_program_names() {
        let mut memory = [0_u8; 64];
        let flags = c::IBV_ACCESS_LOCAL_WRITE | c::IBV_ACCESS_RELAXED_ORDERING;
        // SAFETY: the objects exist until the test destroys them. The memory lives longer.
        unsafe {
            let context = ibv_open_device(listed(0).unwrap());
            let pd = ibv_alloc_pd(context);
            let start = memory.as_mut_ptr().cast::<c_void>();
            for address in [0, 0x1000, u64::MAX - 64] {
                let mr = ibv_reg_mr_iova2(pd, start, memory.len(), address, flags);
                assert_eq!(((*mr).addr, (*mr).length), (start, memory.len()));
                let reach = |addr: u64, length: u32| {
                    let mut element = c::ibv_sge { addr, length, lkey: (*mr).lkey };
                    advise_mr(pd, c::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &raw mut element, 1)
                };
                assert_eq!((reach(address, 64), reach(address + 60, 4)), (0, 0));
                assert_eq!((reach(address + 60, 5), reach(start as u64, 1)), (libc::EFAULT, libc::EFAULT));
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
            assert!(ibv_reg_mr_iova2(pd, start, memory.len(), u64::MAX - 62, flags).is_null());
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
            assert!(ibv_reg_mr_iova2(pd, start, memory.len(), 0, flags | 1 << 30).is_null());
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
            assert_eq!((ibv_dealloc_pd(pd), ibv_close_device(context)), (0, 0));
        }
    }

    #[test]
    fn a_region_of_no_bytes_of_the_program_is_refused_by_every_call() {
        let mut memory = [0_u8; 64];
        let (here, nowhere) = (memory.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut::<c_void>(0x10000));
        #[track_caller]
        fn refused(mr: *mut c::ibv_mr) {
            assert!(mr.is_null());
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        }
        let on_demand = c::IBV_ACCESS_ON_DEMAND | c::IBV_ACCESS_LOCAL_WRITE;
        // SAFETY: the objects exist until the test destroys them. The memory lives longer.
        unsafe {
            let context = ibv_open_device(listed(0).unwrap());
            let pd = ibv_alloc_pd(context);
            for place in [here, nowhere, ptr::null_mut()] {
                for flags in [0, c::IBV_ACCESS_LOCAL_WRITE, on_demand] {
                    refused(ibv_reg_mr(pd, place, 0, flags as c_int));
                    refused(ibv_reg_mr_iova(pd, place, 0, 4096, flags as c_int));
                    refused(ibv_reg_mr_iova2(pd, place, 0, 4096, flags));
                }
            }
            let mut attributes = c::ibv_alloc_dm_attr { length: 64, ..c::ibv_alloc_dm_attr::default() };
            let dm = alloc_dm(context, &raw mut attributes);
            let none = reg_dm_mr(pd, dm, 0, 0, c::IBV_ACCESS_ZERO_BASED | c::IBV_ACCESS_LOCAL_WRITE);
            assert!(!none.is_null(), "device memory has no pages to pin");
            assert_eq!(ibv_dereg_mr(none), 0);
            assert_eq!(free_dm(dm), 0);
            let mr = ibv_reg_mr(pd, here, memory.len(), 0);
            let changes = c::IBV_REREG_MR_CHANGE_TRANSLATION as c_int;
            assert_eq!(ibv_rereg_mr(mr, changes, pd, here, 0, 0), c::IBV_REREG_MR_ERR_INPUT);
            assert_eq!(
                ((*mr).addr, (*mr).length),
                (here, memory.len()),
                "a failed change must leave the region unchanged"
            );
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!((ibv_dealloc_pd(pd), ibv_close_device(context)), (0, 0));
        }
    }
}
