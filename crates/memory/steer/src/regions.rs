//! Memory regions of the node that clients may access. The box checks a request before it forwards the request. A NAK
//! of the node for a remote access error would move the queue pair that all clients share to the error state.

use doorbell_verbs_core::Access;
use doorbell_wire::{NakCode, RKey};
use rustc_hash::FxHashMap;

use crate::config::{Region, SetupError};

#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: FxHashMap<u32, Region>,
}

impl Regions {
    pub(crate) fn add(&mut self, region: Region, most: usize) -> Result<(), SetupError> {
        let Region { rkey, address, length, .. } = region;
        if self.by_key.contains_key(&rkey.get()) {
            return Err(SetupError::RegionKnown(rkey));
        }
        if self.by_key.len() >= most {
            return Err(SetupError::TooManyRegions(most));
        }
        if address.checked_add(length).is_none() {
            return Err(SetupError::RegionBounds { address, length });
        }
        self.by_key.insert(rkey.get(), region);
        Ok(())
    }

    pub(crate) fn remove(&mut self, rkey: RKey) -> bool {
        self.by_key.remove(&rkey.get()).is_some()
    }

    /// Returns whether all accesses to the region with this key pass the box.
    pub(crate) fn is_exclusive(&self, rkey: RKey) -> bool {
        self.by_key.get(&rkey.get()).is_some_and(|region| region.exclusive)
    }

    /// Returns the region with the key `rkey`. If the `length` bytes at `address` are not inside the region, or the
    /// region does not grant the access, returns a NAK code (IBTA Vol 1, 10.6.7). Returns `None` for an access to no
    /// bytes, whose key a responder ignores.
    pub(crate) fn check(
        &self,
        rkey: RKey,
        address: u64,
        length: u32,
        access: Access,
    ) -> Result<Option<&Region>, NakCode> {
        if length == 0 {
            return Ok(None);
        }
        let region = self.by_key.get(&rkey.get()).ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
        let offset = address.checked_sub(region.address).ok_or(NakCode::REMOTE_ACCESS_ERROR)?;
        let fits = offset.checked_add(length.into()).is_some_and(|end| end <= region.length);
        match fits && region.access.contains(access) {
            true => Ok(Some(region)),
            false => Err(NakCode::REMOTE_ACCESS_ERROR),
        }
    }
}
