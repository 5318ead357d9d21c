//! Access of one engine to the memory of its device: a cache of keys, and the accesses of work requests and peers.

use std::sync::Arc;

use doorbell_verbs_core::{Access, LKey, MemoryError, PdId, Sge, WindowBinding};
use doorbell_wire::RKey;

use super::{Payload, Region, RegionDirectory, Room, Through, WordOperation};

/// Number of keys that the cache of an engine can hold. For cached keys, the data path takes no lock.
const CACHE_SLOTS: usize = 256;

/// Access of one engine to the memory of its device.
pub(crate) struct Memory {
    directory: Arc<dyn RegionDirectory>,
    /// Whether the device checks scatter-gather elements at the time of use instead of at the time of the post.
    pub(crate) checks_late: bool,
    cache: Box<[Option<Arc<Region>>; CACHE_SLOTS]>,
}

impl Memory {
    pub(crate) fn new(directory: Arc<dyn RegionDirectory>) -> Self {
        Self { directory, checks_late: false, cache: Box::new([const { None }; CACHE_SLOTS]) }
    }

    /// Removes destroyed regions and invalidated windows from the cache. After this call, the engine neither accesses
    /// these regions nor keeps them alive. Invalidated windows must be removed too, since a cached window keeps its
    /// region alive.
    pub(crate) fn forget_gone(&mut self) {
        for slot in self.cache.iter_mut() {
            if slot.as_ref().is_some_and(|region| !region.is_valid()) {
                *slot = None;
            }
        }
    }

    /// Returns the number of cached keys whose region is gone.
    pub(crate) fn stale_keys(&self) -> usize {
        self.cache.iter().flatten().filter(|region| !region.is_valid()).count()
    }

    fn slot(key: u32) -> usize {
        (key >> 8) as usize % CACHE_SLOTS
    }

    #[inline]
    fn region(&mut self, key: u32) -> Option<&Region> {
        let slot = Self::slot(key);
        let is_known = self.cache[slot].as_ref().is_some_and(|region| region.key == key && region.is_valid());
        if !is_known {
            self.look_up(key);
        }
        self.cache[slot].as_deref()
    }

    /// Looks up a key in the directory and stores the result in the cache. The directory takes a lock.
    #[cold]
    #[inline(never)]
    fn look_up(&mut self, key: u32) {
        self.cache[Self::slot(key)] = self.directory.find(key).filter(|region| region.is_valid());
    }

    /// Returns the region with this local key. A bound window has no local key.
    #[inline]
    fn local_region(&mut self, LKey(key): LKey) -> Result<&Region, MemoryError> {
        match self.region(key) {
            Some(region) if region.bound.is_none() => Ok(region),
            _ => Err(MemoryError::UnknownKey { key }),
        }
    }

    #[inline]
    fn remote_region(&mut self, through: Through, rkey: RKey) -> Result<&Region, MemoryError> {
        match self.region(rkey.get()) {
            Some(region) if region.serves(through.qpn) => Ok(region),
            _ => Err(MemoryError::UnknownKey { key: rkey.get() }),
        }
    }

    /// Checks one local scatter-gather element of a work request that is being posted.
    #[inline]
    pub(crate) fn check_local(&mut self, pd: PdId, sge: &Sge, needed: Access) -> Result<(), MemoryError> {
        if sge.length == 0 || self.checks_late {
            return Ok(()); // an element without bytes refers to no memory (IBTA Vol 1, 10.7.3.4)
        }
        self.local_region(sge.lkey)?.check(pd, sge.address, sge.length.into(), needed)?;
        Ok(())
    }

    /// Copies a part of a message to `out`. `sges` describe the memory of the message. The part starts at byte `skip`
    /// of the message and fills `out`.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        mut skip: u64,
        mut out: Room<'_>,
    ) -> Result<(), MemoryError> {
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = (length - skip).min(out.len() as u64);
            if take == 0 {
                break;
            }
            let region = self.local_region(sge.lkey)?;
            let offset = region.reach(pd, sge.address.wrapping_add(skip), take, Access::empty())?;
            region.copy_out(offset, out.take(take as usize))?;
            skip = 0;
        }
        debug_assert!(out.is_empty(), "the elements must hold all bytes of the packet");
        Ok(())
    }

    /// Copies `data` into the memory that `sges` describe. The first byte of `data` goes to byte `skip` of that memory.
    #[inline]
    pub(crate) fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        mut skip: u64,
        mut data: Payload<'_>,
    ) -> Result<(), MemoryError> {
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = (length - skip).min(data.len() as u64);
            if take == 0 {
                break;
            }
            let region = self.local_region(sge.lkey)?;
            let offset = region.reach(pd, sge.address.wrapping_add(skip), take, Access::LOCAL_WRITE)?;
            let (now, rest) = data.split_at(take as usize);
            region.copy_in(offset, now)?;
            data = rest;
            skip = 0;
        }
        debug_assert!(data.is_empty(), "the elements must have room for all bytes of the packet");
        Ok(())
    }

    /// Checks an access by a peer. An access to zero bytes needs no valid key (IBTA Vol 1, 9.7.4.1.4).
    #[inline]
    pub(crate) fn check_remote(
        &mut self,
        through: Through,
        rkey: RKey,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<(), MemoryError> {
        if length == 0 {
            return Ok(());
        }
        self.remote_region(through, rkey)?.check(through.pd, address, length, needed)?;
        Ok(())
    }

    /// Writes bytes that a peer sent.
    #[inline]
    pub(crate) fn write_remote(
        &mut self,
        through: Through,
        rkey: RKey,
        address: u64,
        data: Payload<'_>,
    ) -> Result<(), MemoryError> {
        if data.is_empty() {
            return Ok(());
        }
        let region = self.remote_region(through, rkey)?;
        let offset = region.reach(through.pd, address, data.len() as u64, Access::REMOTE_WRITE)?;
        region.copy_in(offset, data)
    }

    /// Reads bytes for a peer.
    #[inline]
    pub(crate) fn read_remote(
        &mut self,
        through: Through,
        rkey: RKey,
        address: u64,
        out: Room<'_>,
    ) -> Result<(), MemoryError> {
        if out.is_empty() {
            return Ok(());
        }
        let region = self.remote_region(through, rkey)?;
        let offset = region.reach(through.pd, address, out.len() as u64, Access::REMOTE_READ)?;
        region.copy_out(offset, out)
    }

    /// Runs a peer's atomic operation.
    pub(crate) fn atomic_remote(
        &mut self,
        through: Through,
        rkey: RKey,
        address: u64,
        operation: WordOperation,
    ) -> Result<u64, MemoryError> {
        if !address.is_multiple_of(8) {
            return Err(MemoryError::Misaligned { address });
        }
        let region = self.remote_region(through, rkey)?;
        let offset = region.reach(through.pd, address, 8, Access::REMOTE_ATOMIC)?;
        region.atomic(offset, operation)
    }

    /// Binds a memory window of this device.
    pub(crate) fn bind_window(&self, through: Through, binding: &WindowBinding) -> Result<(), MemoryError> {
        self.directory.bind(through, binding)
    }

    /// Invalidates the key of a memory window of this device. The invalidation was requested by a local work request,
    /// or by a SEND with Invalidate from the peer.
    pub(crate) fn invalidate_window(&self, through: Through, rkey: RKey) -> Result<(), MemoryError> {
        self.directory.invalidate(through, rkey)
    }
}
