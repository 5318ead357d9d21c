//! Registered memory: regions, their keys, and all accesses of an RNIC to regions.
//!
//! This module contains all `unsafe` code of the crate, apart from the registration of memory in `device.rs` and
//! `engine/objects.rs`.
//! Callers of the registration promise that the memory stays valid. The program and its peers may access a region at
//! any time. This module therefore never creates a Rust reference to the bytes of a region. `guarded.rs` copies bytes
//! through raw pointers. It uses release ordering to store the bytes that programs poll.

mod guarded;
mod payload;
mod view;
mod window;

use std::any::Any;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{Access, LKey, MemoryError, ObjectError, PdId, WindowBinding};
use doorbell_wire::{Qpn, RKey};
use rustc_hash::FxHashMap;

pub(crate) use self::guarded::WordOperation;
pub use self::guarded::{Copier, GuardedCode, copy_through};
pub(crate) use self::payload::Room;
pub use self::payload::{HEADERS_BYTES_MAX, LentMemory, Packet, Payload};
pub(crate) use self::view::Memory;
use self::window::{Bound, Window};
use crate::limits::LIMITS;

/// Queue pair through which a work request or a peer reaches memory, and the protection domain of the queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Through {
    /// The protection domain.
    pub pd: PdId,
    /// The queue pair.
    pub qpn: Qpn,
}

/// Provider of memory that is paged on demand. A region calls its pager before each access, so the pager sees all
/// accesses.
pub trait Pager: Send + Sync {
    /// Maps the memory for reading, and also for writing if `written`. Returns false if that is impossible.
    fn bring_in(&self, base: *mut u8, length: usize, written: bool) -> bool;
}

/// A region: either the whole memory of one registration, or the part of it that a bound memory window covers.
pub struct Region {
    pd: PdId,
    key: u32,
    address: u64,
    base: *mut u8,
    length: usize,
    access: Access,
    valid: AtomicBool,
    /// Number of memory windows that are bound to the region.
    windows: AtomicUsize,
    /// Binding of the window, if this region is the part that a bound window covers.
    bound: Option<Bound>,
    /// Pager that the region calls before each access, if the region is paged on demand.
    pager: Option<Arc<dyn Pager>>,
    /// Whether the region has no memory: reads return zeros, and writes are lost.
    is_null: bool,
    /// Owner of the memory, if the program did not allocate the memory itself. The owner keeps the memory alive while
    /// an engine may access the region.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: only the functions of `guarded` access memory through `base`. The caller of `RegionTable::insert` promised
// that the memory stays mapped while the region is valid, or that a fault handler is installed.
unsafe impl Send for Region {}
// SAFETY: as for `Send`. No method returns a reference to the bytes.
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("pd", &self.pd)
            .field("key", &format_args!("{:#010x}", self.key))
            .field("address", &format_args!("{:#x}", self.address))
            .field("length", &self.length)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl Region {
    /// Creates a region without windows, pager and owner. The code that registers the memory must keep it alive.
    fn new(pd: PdId, key: u32, address: u64, base: *mut u8, length: usize, access: Access) -> Self {
        Self {
            pd,
            key,
            address,
            base,
            length,
            access,
            valid: AtomicBool::new(true),
            windows: AtomicUsize::new(0),
            bound: None,
            pager: None,
            is_null: false,
            _owner: None,
        }
    }

    /// Returns the local key.
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// Returns the remote key, which is the same number as the local key.
    pub fn rkey(&self) -> RKey {
        RKey::new(self.key)
    }

    /// Returns the address of the first byte, as work requests and peers specify it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the access rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    #[inline]
    fn is_valid(&self) -> bool {
        self.valid.load(Ordering::Acquire)
    }

    /// Returns whether peers reach the region through this queue pair.
    #[inline]
    fn serves(&self, qpn: Qpn) -> bool {
        self.bound.as_ref().is_none_or(|bound| bound.serves(qpn))
    }

    fn expect_no_windows(&self) -> Result<(), ObjectError> {
        match self.windows.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(ObjectError::Busy { what: "memory region", users: "a memory window" }),
        }
    }

    /// Checks an access and returns the offset of its first byte in the region.
    #[inline]
    fn check(&self, pd: PdId, address: u64, length: u64, needed: Access) -> Result<usize, MemoryError> {
        if self.pd != pd {
            return Err(MemoryError::ForeignPd { key: self.key });
        }
        if !self.access.contains(needed) {
            return Err(MemoryError::Forbidden { key: self.key, needed, granted: self.access });
        }
        let offset = address.wrapping_sub(self.address);
        if offset > self.length as u64 || length > self.length as u64 - offset {
            return Err(MemoryError::OutOfBounds {
                key: self.key,
                address,
                length,
                region_address: self.address,
                region_length: self.length as u64,
            });
        }
        Ok(offset as usize)
    }

    /// Checks an access that the caller makes immediately after this call, and maps the memory if the region is paged
    /// on demand. Returns the offset of the first byte in the region.
    #[inline]
    fn reach(&self, pd: PdId, address: u64, length: u64, needed: Access) -> Result<usize, MemoryError> {
        let offset = self.check(pd, address, length, needed)?;
        if let Some(pager) = &self.pager {
            let written = needed.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            if !pager.bring_in(self.base.wrapping_add(offset), length as usize, written) {
                return Err(MemoryError::NotThere { key: self.key, address, length });
            }
        }
        Ok(offset)
    }

    /// Maps memory before a local access to it, if the region is paged on demand.
    ///
    /// # Errors
    ///
    /// The region belongs to another protection domain, does not allow the access or is too short, or the memory is
    /// gone.
    pub fn prefetch(&self, pd: PdId, address: u64, length: u64, needed: Access) -> Result<(), MemoryError> {
        let offset = self.reach(pd, address, length, needed)?;
        if self.pager.is_some() || !self.access.contains(Access::ON_DEMAND) {
            return Ok(());
        }
        let (base, written) = (self.base.wrapping_add(offset), needed.contains(Access::LOCAL_WRITE));
        // SAFETY: the range lies inside the region (checked). The caller of `RegionTable::insert` promised that the
        // memory is mapped or that a fault handler is installed.
        let there = unsafe { guarded::bring_in(base, length as usize, written) };
        there.map_err(|_| self.not_there(offset, length as usize))
    }

    #[cold]
    #[inline(never)]
    fn not_there(&self, offset: usize, length: usize) -> MemoryError {
        MemoryError::NotThere {
            key: self.key,
            address: self.address.wrapping_add(offset as u64),
            length: length as u64,
        }
    }

    /// Copies bytes out of the region. The caller has checked the range.
    #[inline(always)]
    fn copy_out(&self, offset: usize, out: Room<'_>) -> Result<(), MemoryError> {
        assert!(offset <= self.length && out.len() <= self.length - offset);
        if self.is_null {
            out.clear();
            return Ok(());
        }
        let length = out.len();
        let copied = if length == 8
            && let Some(word) = self.word(offset)
        {
            // SAFETY: `word` points to eight aligned bytes inside the region.
            unsafe { guarded::load(word) }.map(|value| out.put(value))
        } else {
            // SAFETY: the range lies inside the region (asserted), and no other thread uses `out`. If local code writes
            // the range at the same time, the copy has torn bytes, as on hardware.
            unsafe { guarded::copy_out(self.base.wrapping_add(offset), out.start(), length) }
        };
        copied.map_err(|_| self.not_there(offset, length))
    }

    /// Copies bytes into the region. Stores the last byte last, with release ordering, because programs wait for a
    /// message by reading its last byte. Stores an aligned u64 with one store, as RNICs do, because programs keep
    /// counters in such words.
    #[inline(always)]
    fn copy_in(&self, offset: usize, data: Payload<'_>) -> Result<(), MemoryError> {
        assert!(offset <= self.length && data.len() <= self.length - offset);
        if self.is_null {
            return Ok(());
        }
        let copied = if data.len() == 8
            && let Some(word) = self.word(offset)
        {
            // SAFETY: the payload has eight mapped bytes, and any eight bytes are a valid u64. The word lies inside the
            // region.
            unsafe { guarded::store(word, data.start().cast::<u64>().read_unaligned()) }
        } else {
            // SAFETY: the range lies inside the region (asserted), and the payload is mapped. If a program reads the
            // range at the same time, it sees torn bytes, as on hardware. If the sender of the payload writes the
            // payload at the same time, the copy has torn bytes.
            unsafe { guarded::copy_in(data, self.base.wrapping_add(offset)) }
        };
        copied.map_err(|_| self.not_there(offset, data.len()))
    }

    /// Runs an atomic operation on the u64 at `offset`. The caller has checked the range.
    fn atomic(&self, offset: usize, operation: WordOperation) -> Result<u64, MemoryError> {
        // The responder has checked the alignment of the remote address. The word in memory may still be misaligned,
        // since a region can be registered under an address whose low bits differ from those of its memory.
        let address = self.address.wrapping_add(offset as u64);
        let word = self.word(offset).ok_or(MemoryError::Misaligned { address })?;
        // SAFETY: the word is eight aligned bytes inside the region. The documentation requires that local code uses
        // atomics on words that peers operate on.
        unsafe { guarded::operate(word, operation) }.map_err(|_| self.not_there(offset, 8))
    }

    /// Returns the address of the u64 at `offset`, if this u64 is aligned and the region has memory. The caller has
    /// checked the range.
    #[inline]
    fn word(&self, offset: usize) -> Option<*mut u64> {
        assert!(offset <= self.length && 8 <= self.length - offset);
        let place = self.base.wrapping_add(offset).cast::<u64>();
        (!self.is_null && place.is_aligned()).then_some(place)
    }
}

/// Index of regions by key. An engine looks a key up in this index if its own cache does not have the key.
pub trait RegionDirectory: Send + Sync {
    /// Returns the region, or the bound window, with exactly this key.
    fn find(&self, key: u32) -> Option<Arc<Region>>;

    /// Binds a memory window (IBTA Vol 1, 10.6.7.2).
    ///
    /// # Errors
    ///
    /// There is no such memory window or region, or one of them belongs to another protection domain. Or the region is
    /// too short, its rights do not allow the binding, or windows of this type do not allow the binding.
    fn bind(&self, through: Through, binding: &WindowBinding) -> Result<(), MemoryError>;

    /// Invalidates the key of a bound memory window of type 2. The invalidation was requested by the program that owns
    /// the window, or by a SEND with Invalidate from a peer.
    ///
    /// # Errors
    ///
    /// No bound memory window has this key, or the window belongs to another protection domain, is of type 1, or was
    /// bound through another queue pair. A key of a region is not accepted.
    fn invalidate(&self, through: Through, rkey: RKey) -> Result<(), MemoryError>;
}

/// The regions and memory windows of a device.
#[derive(Default)]
pub struct RegionTable {
    keys: RwLock<Keys>,
    pager: OnceLock<Arc<dyn Pager>>,
}

impl std::fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionTable").field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Regions and windows by the upper 24 bits of their keys. The program may change the lower 8 bits. No key is in both
/// maps.
#[derive(Debug, Default)]
struct Keys {
    regions: FxHashMap<u32, Arc<Region>>,
    windows: FxHashMap<u32, Window>,
}

impl Keys {
    fn unused(&self, mut random: impl FnMut() -> u32) -> u32 {
        loop {
            let key = random();
            let name = key >> 8;
            // Never use keys below 256, because programs with errors often send key 0 or other small keys.
            if name != 0 && !self.regions.contains_key(&name) && !self.windows.contains_key(&name) {
                return key;
            }
        }
    }
}

fn is_possible(address: u64, length: usize, access: Access) -> bool {
    (access.contains(Access::ON_DEMAND) || length as u64 <= LIMITS.max_region_bytes)
        && address.checked_add(length as u64).is_some()
}

impl RegionTable {
    /// Sets the pager of regions that are registered with [`Access::ON_DEMAND`] from now on. Without a pager, such
    /// regions behave like all other regions. Only the first call has an effect.
    pub fn page_with(&self, pager: Arc<dyn Pager>) {
        let _ = self.pager.set(pager);
    }

    fn pager_for(&self, access: Access) -> Option<Arc<dyn Pager>> {
        self.pager.get().filter(|_| access.contains(Access::ON_DEMAND)).cloned()
    }

    /// Registers `length` bytes at `base` under the address `address`. The function `random` supplies candidates for
    /// the key. Returns `None` if the device already has its maximum number of regions or the range is invalid.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until [`remove`](Self::remove) has returned *and* every engine has forgotten the
    /// key. If `access` allows writing, the memory must also stay writable. There are three exceptions:
    ///
    /// - If `owner` owns the memory, the memory must stay mapped and writable as long as `owner` lives.
    /// - Memory that is paged on demand must stay mapped and writable only from the answer of the pager to the end of
    ///   the access.
    /// - If the process has a handler for faults in [`GuardedCode`], or a [`Copier`], the memory may disappear at any
    ///   time.
    ///
    /// No Rust reference to bytes of the memory may exist while a work request or a peer may write these bytes.
    #[allow(clippy::too_many_arguments, reason = "the parameters of a registration, and where keys come from")]
    pub unsafe fn insert(
        &self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
        pager: Option<Arc<dyn Pager>>,
        random: impl FnMut() -> u32,
    ) -> Option<Arc<Region>> {
        if !is_possible(address, length, access) {
            return None;
        }
        self.enter(random, |key| Region {
            pager: pager.or_else(|| self.pager_for(access)),
            _owner: owner,
            ..Region::new(pd, key, address, base, length, access)
        })
    }

    /// Registers a region without memory, for local use. Reads return zeros, and writes are lost. The region accepts
    /// every address. Returns `None` if the device already has its maximum number of regions.
    pub fn insert_null(&self, pd: PdId, random: impl FnMut() -> u32) -> Option<Arc<Region>> {
        self.enter(random, |key| Region {
            is_null: true,
            ..Region::new(pd, key, 0, ptr::null_mut(), usize::MAX, Access::LOCAL_WRITE)
        })
    }

    fn enter(&self, random: impl FnMut() -> u32, region: impl FnOnce(u32) -> Region) -> Option<Arc<Region>> {
        let mut keys = self.write();
        if keys.regions.len() >= LIMITS.max_regions {
            return None;
        }
        let key = keys.unused(random);
        let region = Arc::new(region(key));
        keys.regions.insert(key >> 8, Arc::clone(&region));
        Some(region)
    }

    /// Replaces the memory of a region and keeps its keys valid. Engines that cached the old region reject the old
    /// region from now on.
    ///
    /// # Errors
    ///
    /// The range is invalid or too long, no region has this key, or a memory window is bound to the region. The region
    /// then stays unchanged.
    ///
    /// # Safety
    ///
    /// As for [`insert`](Self::insert). The old memory may be unmapped after every engine has forgotten the key.
    pub unsafe fn replace(
        &self,
        key: u32,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Arc<Region>, ObjectError> {
        if !is_possible(address, length, access) {
            return Err(ObjectError::Region { address, length });
        }
        let mut keys = self.write();
        let place = keys.regions.get_mut(&(key >> 8)).filter(|region| region.key == key);
        let place = place.ok_or(ObjectError::Unknown("memory region"))?;
        place.expect_no_windows()?;
        let pager = self.pager_for(access);
        let region = Arc::new(Region { pager, ..Region::new(pd, key, address, base, length, access) });
        let old = std::mem::replace(place, Arc::clone(&region));
        old.valid.store(false, Ordering::Release);
        Ok(region)
    }

    /// Removes a region. Engines that cached the region reject its key from now on.
    ///
    /// # Errors
    ///
    /// No region has this key, or a memory window is bound to the region (IBTA Vol 1, 10.6.7.2.4).
    pub fn remove(&self, key: u32) -> Result<Arc<Region>, ObjectError> {
        let mut keys = self.write();
        let place = keys.regions.get(&(key >> 8)).filter(|region| region.key == key);
        let region = Arc::clone(place.ok_or(ObjectError::Unknown("memory region"))?);
        region.expect_no_windows()?;
        keys.regions.remove(&(key >> 8));
        region.valid.store(false, Ordering::Release);
        Ok(region)
    }

    /// Returns the number of regions of a protection domain.
    pub fn count_of(&self, pd: PdId) -> usize {
        self.read().regions.values().filter(|region| region.pd == pd).count()
    }

    /// Returns the numbers of regions and windows.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let keys = self.read();
        (keys.regions.len(), keys.windows.len())
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().ignore_poison()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().ignore_poison()
    }
}

impl RegionDirectory for RegionTable {
    fn find(&self, key: u32) -> Option<Arc<Region>> {
        let keys = self.read();
        let bound = || keys.windows.get(&(key >> 8)).and_then(|window| window.bound.as_ref());
        keys.regions.get(&(key >> 8)).or_else(bound).filter(|region| region.key == key).cloned()
    }

    fn bind(&self, through: Through, binding: &WindowBinding) -> Result<(), MemoryError> {
        self.bind_window(through, binding)
    }

    fn invalidate(&self, through: Through, rkey: RKey) -> Result<(), MemoryError> {
        self.invalidate_window(through, rkey)
    }
}
