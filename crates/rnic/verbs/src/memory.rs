//! Memory of the safe API. The provider chooses the address, and accessors read and write the bytes.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use doorbell_verbs_core::{Access, LKey, Sge};
use doorbell_wire::RKey;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::error::Error;
use crate::handles::Pd;
use crate::raw::{Keys, MemoryAccess, MemoryObserver, Placement};

/// Kinds of memory that [`Pd::allocate`] offers.
#[derive(Clone, Copy, Debug)]
pub enum MemoryKind<'a> {
    /// Pages of the usual size.
    Plain,
    /// Huge pages if the system has free huge pages, else pages of the usual size.
    HugePages,
    /// The same bytes mapped twice, the second copy directly after the first. Data that wraps around the end of a
    /// ring is then contiguous. The length must be a multiple of the page size; the region is twice as long.
    Mirrored,
    /// A shared mapping of a file. The file must be at least as long as the region.
    File(&'a File),
}

/// A memory mapping, which is unmapped on drop.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: this module accesses the mapping only through raw copies and atomics, and unmaps it only on drop.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no other code unmaps the mapping, and every region on it holds it alive.
        let _ = unsafe { munmap(self.base.cast(), self.length) };
    }
}

fn page_bytes() -> usize {
    4096 // the smallest page size of machines with RNICs; larger sizes are multiples
}

fn os(what: &'static str) -> impl FnOnce(nix::Error) -> Error {
    move |error| Error::Os { what, error: error.into() }
}

impl Mapping {
    fn new(length: usize, kind: &MemoryKind<'_>) -> Result<Self, Error> {
        let whole = NonZeroUsize::new(length.max(1).next_multiple_of(page_bytes())).unwrap_or(NonZeroUsize::MIN);
        let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let base = match kind {
            // Populate all pages now, so that the data path has no page faults. A hardware RNIC pins the pages at
            // registration.
            MemoryKind::Plain => {
                let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
                // SAFETY: a fresh mapping at an address that the kernel chooses.
                unsafe { mmap_anonymous(None, whole, rw, flags) }.map_err(os("memory could not be allocated"))?
            }
            MemoryKind::HugePages => {
                let huge = NonZeroUsize::new(whole.get().next_multiple_of(2 << 20)).unwrap_or(whole);
                // SAFETY: as above.
                let base = unsafe { mmap_anonymous(None, huge, rw, MapFlags::MAP_PRIVATE) }
                    .map_err(os("memory could not be allocated"))?;
                // SAFETY: advice on the mapping created above. If the system has no huge pages, the call has no effect.
                let _ = unsafe { madvise(base, huge.get(), MmapAdvise::MADV_HUGEPAGE) };
                return Ok(Self { base: base.cast(), length: huge.get() });
            }
            MemoryKind::Mirrored => return Self::mirrored(whole.get()),
            // SAFETY: a fresh mapping at an address that the kernel chooses. If a process truncates the file,
            // accesses raise SIGBUS, as for every mapped file.
            MemoryKind::File(file) => unsafe { mmap(None, whole, rw, MapFlags::MAP_SHARED, file.as_fd(), 0) }
                .map_err(os("the file could not be mapped"))?,
        };
        Ok(Self { base: base.cast(), length: whole.get() })
    }

    fn mirrored(length: usize) -> Result<Self, Error> {
        let what = "mirrored memory could not be allocated";
        let file = memfd_create(c"doorbell", MFdFlags::MFD_CLOEXEC).map_err(os(what))?;
        nix::unistd::ftruncate(&file, length as i64).map_err(os(what))?;
        let (one, two) = (NonZeroUsize::new(length), NonZeroUsize::new(2 * length));
        let (Some(one), Some(two)) = (one, two) else { return Err(os(what)(nix::Error::EINVAL)) };
        // SAFETY: a fresh mapping that only reserves addresses. Its pages are neither readable nor writable yet.
        let base =
            unsafe { mmap_anonymous(None, two, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }.map_err(os(what))?;
        let mapping = Self { base: base.cast(), length: 2 * length };
        for half in [0, length] {
            let place = NonZeroUsize::new(mapping.base.as_ptr() as usize + half);
            let rw = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: this mapping replaces one half of the reservation above. No other code uses the reservation.
            unsafe { mmap(place, one, rw, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, &file, 0) }.map_err(os(what))?;
        }
        Ok(mapping)
    }
}

struct Inner {
    keys: Keys,
    length: usize,
    address: u64,
    observer: Option<Arc<dyn MemoryObserver>>,
    access: Access,
    mapping: Arc<Mapping>,
    pd: Pd,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The call cannot fail: the region is registered, and no other code deregisters it.
        let _ = self.pd.provider().deregister(self.keys.lkey);
    }
}

/// A registered memory region. Clones are the same region.
///
/// Peers can write a region at any time, so the safe accessors never return a `&[u8]`. Offsets count from the start of
/// the region.
///
/// # Panics
///
/// Accessors panic if the range is not inside the region, as slices do.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("length", &self.len())
            .field("access", &self.inner.access)
            .finish_non_exhaustive()
    }
}

impl Pd {
    /// Allocates and registers memory. The provider chooses its address.
    ///
    /// # Errors
    ///
    /// `length` is 0, the operating system has no memory, or the device refuses the registration as
    /// [`Provider::register`](crate::raw::Provider::register) describes. A file is too short or cannot be mapped. The
    /// length of [`MemoryKind::Mirrored`] is not a multiple of the page size.
    pub fn allocate(&self, length: usize, access: Access, kind: MemoryKind<'_>) -> Result<Region, Error> {
        Region::allocate(self, length, access, kind)
    }
}

impl Region {
    fn allocate(pd: &Pd, length: usize, access: Access, kind: MemoryKind<'_>) -> Result<Self, Error> {
        if let MemoryKind::File(file) = &kind {
            let known = file.metadata().map_err(Error::os("the file could not be read"))?.len();
            if known < length as u64 {
                let error = std::io::Error::other(format!("the file has {known} B, the region needs {length} B"));
                return Err(Error::Os { what: "the file could not be mapped", error });
            }
        }
        let mirrored = matches!(kind, MemoryKind::Mirrored);
        if mirrored && (length == 0 || !length.is_multiple_of(page_bytes())) {
            let error = std::io::Error::other(format!("{length} B is not a multiple of {} B", page_bytes()));
            return Err(Error::Os { what: "mirrored memory could not be allocated", error });
        }
        let mapping = Arc::new(Mapping::new(length, &kind)?);
        let length = if mirrored { 2 * length } else { length };
        let base = mapping.base.as_ptr();
        let owner = Arc::clone(&mapping) as Arc<dyn std::any::Any + Send + Sync>;
        let Placement { address, observer } = pd.provider().place(base, length, mirrored);
        // SAFETY: the mapping lives as long as `owner`. Only `slice` and `slice_mut` create references to its bytes.
        // Their callers guarantee that neither a peer nor the device accesses these bytes while the references live.
        let keys = unsafe { pd.provider().register(pd.id(), base, length, address, access, Some(owner)) }?;
        Ok(Self { inner: Arc::new(Inner { keys, length, address, observer, access, mapping, pd: pd.clone() }) })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.inner.length
    }

    /// Returns whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access rights of the registration.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Returns the address of the first byte. Peers use this address in READs, WRITEs and atomics.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Returns the local key, for scatter-gather elements.
    pub fn lkey(&self) -> LKey {
        self.inner.keys.lkey
    }

    /// Returns the remote key, for accesses by peers.
    pub fn rkey(&self) -> RKey {
        self.inner.keys.rkey
    }

    /// Returns a scatter-gather element for a piece of the region. This function does not check the bounds; posting
    /// does.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: self.address().wrapping_add(offset as u64),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey: self.lkey(),
        }
    }

    #[inline]
    fn place(&self, offset: usize, length: usize) -> *mut u8 {
        let whole = self.len();
        assert!(
            offset <= whole && length <= whole - offset,
            "{length} B at offset {offset} are not inside a region of {whole} B"
        );
        // SAFETY: the address is inside the mapping, as asserted above.
        unsafe { self.inner.mapping.base.as_ptr().add(offset) }
    }

    /// Reports an access to the [`MemoryObserver`](crate::raw::MemoryObserver) of the region, if the region has one.
    #[inline]
    fn heard(&self, access: MemoryAccess, offset: usize, length: usize) {
        if let Some(observer) = &self.inner.observer {
            observer.accessed(access, offset, length);
        }
    }

    /// Copies bytes out of the region. If a peer writes a byte during the copy, the old or the new value is copied.
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let from = self.place(offset, out.len());
        // SAFETY: `from` has `out.len()` bytes. `out` is exclusive, so `from` and `out` do not overlap unless a caller
        // broke the contract of `slice_mut`.
        unsafe { ptr::copy(from, out.as_mut_ptr(), out.len()) }
        self.heard(MemoryAccess::CopyOut, offset, out.len());
    }

    /// Copies bytes into the region.
    #[inline]
    pub fn copy_in(&self, offset: usize, data: &[u8]) {
        let to = self.place(offset, data.len());
        // SAFETY: `to` has `data.len()` bytes, and does not overlap `data` (see `copy_out`).
        unsafe { ptr::copy(data.as_ptr(), to, data.len()) }
        self.heard(MemoryAccess::CopyIn, offset, data.len());
    }

    /// Sets every byte of a piece of the region to `value`.
    pub fn fill(&self, offset: usize, length: usize, value: u8) {
        let to = self.place(offset, length);
        // SAFETY: `to` has `length` bytes.
        unsafe { ptr::write_bytes(to, value, length) }
        self.heard(MemoryAccess::CopyIn, offset, length);
    }

    #[inline]
    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: the byte is inside the mapping, which lives as long as `self`. Peers and the device write the byte
        // with atomic or raw stores.
        unsafe { AtomicU8::from_ptr(self.place(offset, 1)) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        let place = self.place(offset, 8).cast::<u64>();
        assert!(place.is_aligned(), "a u64 at offset {offset} is not aligned to 8 B");
        // SAFETY: eight aligned bytes inside the mapping, which lives as long as `self`.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Reads a byte with acquire ordering. Bytes that the peer wrote before this byte are visible afterwards.
    #[inline]
    pub fn load_acquire_u8(&self, offset: usize) -> u8 {
        let value = self.byte(offset).load(Ordering::Acquire);
        self.heard(MemoryAccess::Load, offset, 1);
        value
    }

    /// Reads an aligned u64 in host byte order with acquire ordering. Atomics of peers write the same format.
    #[inline]
    pub fn load_acquire_u64(&self, offset: usize) -> u64 {
        let value = self.word(offset).load(Ordering::Acquire);
        self.heard(MemoryAccess::Load, offset, 8);
        value
    }

    /// Writes a byte after all earlier writes (release ordering).
    #[inline]
    pub fn store_release_u8(&self, offset: usize, value: u8) {
        self.byte(offset).store(value, Ordering::Release);
        self.heard(MemoryAccess::Store, offset, 1);
    }

    /// Writes an aligned u64 in host byte order after all earlier writes (release ordering).
    #[inline]
    pub fn store_release_u64(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
        self.heard(MemoryAccess::Store, offset, 8);
    }

    /// Returns a piece of the region as a slice.
    ///
    /// # Safety
    ///
    /// While the slice lives, nothing may write the piece: no posted work request, no peer, no accessor and no other
    /// reference.
    #[inline]
    pub unsafe fn slice(&self, offset: usize, length: usize) -> &[u8] {
        // SAFETY: the piece is inside the mapping. The caller guarantees that nothing writes the piece.
        unsafe { std::slice::from_raw_parts(self.place(offset, length), length) }
    }

    /// Returns a piece of the region as a mutable slice.
    ///
    /// # Safety
    ///
    /// While the slice lives, nothing else may access the piece. No posted work request may use the piece, no peer may
    /// access it, and no other reference or accessor may read or write it.
    #[allow(clippy::mut_from_ref)] // the region is shared by design; the caller guarantees exclusive access
    #[inline]
    pub unsafe fn slice_mut(&self, offset: usize, length: usize) -> &mut [u8] {
        // SAFETY: the piece is inside the mapping. The caller guarantees that nothing else accesses the piece.
        unsafe { std::slice::from_raw_parts_mut(self.place(offset, length), length) }
    }
}
