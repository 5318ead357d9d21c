//! Memory regions of DMA buffers and of other memory that a file descriptor names.
//!
//! The library maps the memory for as long as the region exists. So the region outlives the descriptor, as on adapters.
//! If the memory shrinks meanwhile, an access to the missing part ends its work request with an error, as for memory
//! that the program has unmapped.

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use doorbell_fabric::{CopyMethod, bring_in, can_bring_in, guard_memory};
use doorbell_ibverbs_sys as c;
use doorbell_verbs::Access;
use doorbell_verbs::raw::Provider;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};

use crate::objects::answer::{Answer, Refused, pointer};
use crate::objects::handle::object;
use crate::objects::mr::{self, Mr};
use crate::objects::pd::Pd;
use crate::process::fork;

/// Type of the kernel's file system of DMA buffers (`linux/magic.h`, DMA_BUF_MAGIC).
const DMA_BUF_MAGIC: FsType = FsType(0x444d_4142);

/// Access flags that the kernel accepts for DMA buffers (`uverbs_std_types_mr.c`). A device may ignore the optional
/// ones.
const ALLOWED: c_uint = c::IBV_ACCESS_LOCAL_WRITE
    | c::IBV_ACCESS_REMOTE_WRITE
    | c::IBV_ACCESS_REMOTE_READ
    | c::IBV_ACCESS_REMOTE_ATOMIC
    | mr::OPTIONAL;

/// Size of the pages within which offset and address of a region must have the same position (`uverbs_std_types_mr.c`).
const PAGE_BYTES: u64 = 4096;

/// Memory that a descriptor names.
struct Memory<'a> {
    fd: BorrowedFd<'a>,
    number: c_int,
    /// Size in bytes at the time of the registration.
    size: u64,
    /// Unit of mappings in bytes.
    page: u64,
    is_dma_buf: bool,
}

impl Memory<'_> {
    /// Examines a descriptor.
    ///
    /// # Errors
    ///
    /// The descriptor is not open (EBADF), or it refers to no memory (EOPNOTSUPP).
    fn of(number: c_int) -> Answer<Self> {
        let closed = || Refused::new(libc::EBADF, format!("descriptor {number} is not open"));
        if number < 0 {
            return Err(closed());
        }
        // SAFETY: the descriptor is not negative. The functions below fail if it is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let failed = |errno: Errno| match errno {
            Errno::EBADF => closed(),
            errno => Refused::new(errno as c_int, format!("descriptor {number} cannot be examined: {errno}")),
        };
        let (system, status) = (fstatfs(fd).map_err(failed)?, fstat(fd).map_err(failed)?);
        let kind = system.filesystem_type();
        let is_dma_buf = kind == DMA_BUF_MAGIC;
        let is_file = status.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
        if !(is_dma_buf || is_file && [TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&kind)) {
            return Err(Refused::unsupported(format!(
                "descriptor {number} names no memory: must be a DMA buffer, a memfd, or a file of tmpfs or hugetlbfs"
            )));
        }
        let page = u64::try_from(system.block_size()).unwrap_or_default().max(PAGE_BYTES);
        Ok(Self { fd, number, size: u64::try_from(status.st_size).unwrap_or_default(), page, is_dma_buf })
    }

    /// Checks the place of a region in the memory, as the kernel does (`ib_umem_dmabuf_get`).
    fn expect_inside(&self, offset: u64, length: usize) -> Answer<()> {
        if length == 0 {
            return Err(Refused::invalid("0 B of a descriptor cannot be registered: the length must be at least 1 B"));
        }
        if offset.checked_add(length as u64).is_none_or(|end| end > self.size) {
            return Err(Refused::invalid(format!(
                "{length} B at offset {offset} of descriptor {} exceed its {} B",
                self.number, self.size
            )));
        }
        Ok(())
    }

    /// Maps the part of a region.
    fn map(&self, offset: u64, length: usize, is_written: bool) -> Answer<Mapping> {
        if self.is_dma_buf && guard_memory() == CopyMethod::Kernel {
            // The kernel copies into no pages of devices, and some exporters map their buffers as such pages.
            return Err(Refused::unsupported(
                "DMA buffers need a handler of SIGSEGV and SIGBUS, which this processor or this program does not permit",
            ));
        }
        // Some exporters map a buffer from its start, whatever the offset of the mapping (`drm_gem_shmem_fault`).
        let head = if self.is_dma_buf { offset } else { offset % self.page };
        let bytes = (head + length as u64).checked_next_multiple_of(self.page);
        let bytes = bytes.and_then(|bytes| NonZeroUsize::new(usize::try_from(bytes).ok()?));
        let (Some(bytes), Ok(start)) = (bytes, libc::off_t::try_from(offset - head)) else {
            return Err(Refused::invalid(format!("{length} B at offset {offset} are beyond the address space")));
        };
        let access = if is_written { ProtFlags::PROT_READ | ProtFlags::PROT_WRITE } else { ProtFlags::PROT_READ };
        // SAFETY: the kernel chooses the address of the new mapping.
        let map = |kind: MapFlags| unsafe { mmap(None, bytes, access, kind, self.fd, start) };
        let mapped = match map(MapFlags::MAP_SHARED) {
            // Kernels before 6.7 refuse shared mappings of a file that is sealed against writing. A private mapping
            // shows the same bytes, since no process can change them.
            Err(Errno::EPERM) if !is_written => map(MapFlags::MAP_PRIVATE),
            mapped => mapped,
        };
        let start = mapped.map_err(|errno| self.not_mapped(errno, is_written))?;
        // A forked child cannot use the region, so it must not keep the memory. If the call fails, the child keeps it.
        // SAFETY: no code of a child uses the mapping.
        let _ = unsafe { madvise(start, bytes.get(), MmapAdvise::MADV_DONTFORK) };
        Ok(Mapping { start, bytes: bytes.get(), head: head as usize, generation: fork::generation() })
    }

    fn not_mapped(&self, errno: Errno, is_written: bool) -> Refused {
        let number = self.number;
        let why = match errno {
            Errno::EPERM => {
                format!("descriptor {number} is sealed against writing: a region must not have write access")
            }
            Errno::EACCES => {
                let needed = if is_written { "reading and writing" } else { "reading" };
                format!("descriptor {number} must be open for {needed}, as the region's access flags require")
            }
            Errno::ENOMEM | Errno::EAGAIN => format!("descriptor {number} cannot be mapped now: {errno}"),
            errno => {
                return Refused::unsupported(format!(
                    "descriptor {number} cannot be mapped ({errno}): the software RNIC reaches memory of devices only \
                     through a mapping"
                ));
            }
        };
        Refused::new(errno as c_int, why)
    }
}

/// A mapping, which ends when no region uses it.
struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
    /// Offset of the region's first byte in the mapping.
    head: usize,
    /// Process that has the mapping.
    generation: u32,
}

// SAFETY: the mapping belongs to the process, and this module creates no reference to its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn base(&self) -> *mut u8 {
        self.start.as_ptr().cast::<u8>().wrapping_add(self.head)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            return; // a forked child may have other memory at this address
        }
        // SAFETY: the mapping has this range, and no region uses it any more.
        let unmapped = unsafe { munmap(self.start, self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping of this module must end");
    }
}

/// Registers memory that a descriptor names. `offset` is that of the first byte in the memory, and `address` is the
/// address by which work requests and peers refer to this byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut c::ibv_pd,
    offset: u64,
    length: usize,
    address: u64,
    fd: c_int,
    flags: c_int,
) -> *mut c::ibv_mr {
    pointer("ibv_reg_dmabuf_mr", || {
        let flags = flags as c_uint;
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Pd>(pd) }?;
        let context = own.context()?;
        if flags & !ALLOWED != 0 {
            let unknown = flags & !ALLOWED;
            return Err(Refused::invalid(format!(
                "access flags {unknown:#x} are not allowed for DMA buffers: {ALLOWED:#x} are allowed"
            )));
        }
        let access = mr::rights(flags)?;
        // Programs test with the descriptor -1 whether a device supports DMA buffers, and expect EBADF.
        let memory = Memory::of(fd)?;
        memory.expect_inside(offset, length)?;
        if offset % PAGE_BYTES != address % PAGE_BYTES {
            return Err(Refused::invalid(format!(
                "offset {offset:#x} and address {address:#x} must have the same position within a page of {PAGE_BYTES} B"
            )));
        }
        let is_written = access.contains(Access::LOCAL_WRITE);
        let mapping = memory.map(offset, length, is_written)?;
        let base = mapping.base();
        // The kernel cannot bring in pages of devices, which are always there.
        if !memory.is_dma_buf && can_bring_in() {
            bring_in(base, length, is_written).map_err(|error| {
                let why = format!("{length} B at offset {offset} of descriptor {fd} cannot be brought in: {error}");
                Refused::new(libc::EFAULT, why)
            })?;
        }
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(mapping);
        // SAFETY: the mapping lives as long as `owner`, and no Rust code has references to its bytes. If the memory
        // shrinks, the handler of SIGBUS, or the kernel as the copier, ends accesses to the missing pages.
        let keys = unsafe { context.device.provider.register(own.id, base, length, address, access, Some(owner)) }?;
        own.users.add();
        let c = c::ibv_mr {
            context: context.as_c(),
            pd,
            // libibverbs stores the offset here, since the program need not have mapped the memory.
            addr: ptr::without_provenance_mut(offset as usize),
            length,
            handle: keys.lkey.0,
            lkey: keys.lkey.0,
            rkey: keys.rkey.get(),
        };
        Ok(context.handles.give(Mr::fixed(c, address, access)))
    })
}

#[cfg(test)]
mod tests;
