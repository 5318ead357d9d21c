//! Memory windows (IBTA Vol 1, 10.6.7). Work requests bind a window to a part of a region. Peers access this part by
//! the key of the window until a work request or a peer invalidates the key.
//!
//! Only the engine of the queue pair that bound a window of type 2 reaches memory through it, so no access follows an
//! invalidation. A window of type 1 serves all queue pairs. After it was bound again through one engine, another engine
//! may still finish the packet that it is copying.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use doorbell_verbs_core::{Access, MemoryError, ObjectError, PdId, WindowBinding, WindowKind};
use doorbell_wire::{Qpn, RKey};

use super::{Keys, Region, RegionTable, Through};
use crate::limits::LIMITS;

/// A memory window of the device.
#[derive(Debug)]
pub(super) struct Window {
    pd: PdId,
    kind: WindowKind,
    pub(super) bound: Option<Arc<Region>>,
}

/// Binding of a memory window. A bound window is a [`Region`] of its own that contains this value.
#[derive(Debug)]
pub(super) struct Bound {
    region: Arc<Region>,
    kind: WindowKind,
    qpn: Qpn,
}

impl Bound {
    /// Returns whether peers reach the window through this queue pair.
    pub(super) fn serves(&self, qpn: Qpn) -> bool {
        self.kind == WindowKind::Type1 || self.qpn == qpn
    }
}

impl Window {
    /// Invalidates the key of the window. Engines that cached the key reject it from now on.
    fn unbind(&mut self) {
        let Some(old) = self.bound.take() else { return };
        old.valid.store(false, Ordering::Release);
        if let Some(bound) = &old.bound {
            bound.region.windows.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl RegionTable {
    /// Creates an unbound window and returns its key. Until the window is bound, the key only identifies the window.
    /// Returns `None` if the device already has its maximum number of windows.
    pub fn insert_window(&self, pd: PdId, kind: WindowKind, random: impl FnMut() -> u32) -> Option<RKey> {
        let mut keys = self.write();
        if keys.windows.len() >= LIMITS.max_windows {
            return None;
        }
        let key = keys.unused(random);
        keys.windows.insert(key >> 8, Window { pd, kind, bound: None });
        Some(RKey::new(key))
    }

    /// Removes a bound or unbound window. `rkey` is the current key of the window or an earlier one.
    ///
    /// # Errors
    ///
    /// No window has or had this key.
    pub fn remove_window(&self, rkey: RKey) -> Result<(), ObjectError> {
        let window = self.write().windows.remove(&(rkey.get() >> 8));
        window.ok_or(ObjectError::Unknown("memory window"))?.unbind();
        Ok(())
    }

    /// Invalidates the keys of type 2 windows that were bound through a queue pair that is destroyed.
    pub fn unbind_windows_of(&self, qpn: Qpn) {
        let is_its_own = |window: &Window| {
            let bound = window.bound.as_ref().and_then(|region| region.bound.as_ref());
            bound.is_some_and(|bound| bound.kind == WindowKind::Type2 && bound.qpn == qpn)
        };
        if self.read().windows.values().any(is_its_own) {
            self.write().windows.values_mut().filter(|window| is_its_own(window)).for_each(Window::unbind);
        }
    }

    /// Returns the number of windows of a protection domain.
    pub fn count_windows_of(&self, pd: PdId) -> usize {
        self.read().windows.values().filter(|window| window.pd == pd).count()
    }

    /// Binds a window (IBTA Vol 1, 10.6.7.2).
    pub(super) fn bind_window(&self, through: Through, binding: &WindowBinding) -> Result<(), MemoryError> {
        let mut keys = self.write();
        let Keys { regions, windows } = &mut *keys;
        let (key, Through { pd, qpn }) = (binding.rkey.get(), through);
        let refused = |why| Err(MemoryError::Window { key, why });
        let window = windows.get_mut(&(key >> 8)).ok_or(MemoryError::UnknownKey { key })?;
        if window.pd != pd {
            return Err(MemoryError::ForeignPd { key });
        }
        match window.kind {
            WindowKind::Type1 if binding.zero_based => {
                return refused("a window of type 1 must use the addresses of the region, not offsets");
            }
            WindowKind::Type1 if binding.length == 0 => {
                window.unbind();
                return Ok(());
            }
            WindowKind::Type1 => {}
            WindowKind::Type2 if window.bound.is_some() => {
                return refused("a bound window of type 2 must be invalidated before it is bound again");
            }
            WindowKind::Type2 if binding.length == 0 => {
                return refused("a window of type 2 must be bound to at least one byte");
            }
            WindowKind::Type2 => {}
        }
        let lkey = binding.lkey.0;
        let region = regions.get(&(lkey >> 8)).filter(|region| region.key == lkey);
        let region = region.ok_or(MemoryError::UnknownKey { key: lkey })?;
        let mut needed = Access::WINDOW_BIND;
        // A window through which peers write needs a region with local write access (IBTA Vol 1, 10.6.7.2.2).
        needed.set(Access::LOCAL_WRITE, binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC));
        let offset = region.check(pd, binding.address, binding.length, needed)?;
        window.unbind();
        region.windows.fetch_add(1, Ordering::AcqRel);
        let address = if binding.zero_based { 0 } else { binding.address };
        let base = region.base.wrapping_add(offset);
        let length = binding.length as usize; // fits, since the window lies inside the region
        let access = binding.access & (Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        window.bound = Some(Arc::new(Region {
            bound: Some(Bound { region: Arc::clone(region), kind: window.kind, qpn }),
            pager: region.pager.clone(),
            ..Region::new(pd, key, address, base, length, access)
        }));
        Ok(())
    }

    /// Invalidates the key of a bound window of type 2 (IBTA Vol 1, 10.6.7.2.6).
    pub(super) fn invalidate_window(&self, through: Through, rkey: RKey) -> Result<(), MemoryError> {
        let mut keys = self.write();
        let key = rkey.get();
        let unknown = MemoryError::UnknownKey { key };
        let window = keys.windows.get_mut(&(key >> 8)).ok_or(unknown)?;
        let region = window.bound.as_ref().filter(|region| region.key == key).ok_or(unknown)?;
        if window.pd != through.pd {
            return Err(MemoryError::ForeignPd { key });
        }
        if window.kind == WindowKind::Type1 {
            return Err(MemoryError::Window {
                key,
                why: "a window of type 1 must be bound to zero bytes instead of being invalidated",
            });
        }
        if !region.serves(through.qpn) {
            return Err(MemoryError::Window { key, why: "the window was bound through another queue pair" });
        }
        window.unbind();
        Ok(())
    }
}
