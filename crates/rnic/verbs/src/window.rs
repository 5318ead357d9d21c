//! Memory windows, which let peers access a part of a region under a key that the program can invalidate.

use doorbell_verbs_core::WindowKind;
use doorbell_wire::RKey;

use crate::error::Error;
use crate::handles::Pd;

/// A memory window (IBTA Vol 1, 10.6.7). When the handle is dropped, the window is destroyed, and peers can no longer
/// access memory through it.
///
/// A work request binds the window ([`SendOperation::BindWindow`](crate::SendOperation::BindWindow)) to a part of a
/// region that was allocated with [`Access::WINDOW_BIND`](crate::Access::WINDOW_BIND). While a window is bound to a
/// region, the region stays registered and allocated, even if the last handle of the region is dropped. To free the
/// region, first invalidate the key of the window or drop the window.
#[derive(Debug)]
pub struct Window {
    pd: Pd,
    rkey: RKey,
}

impl Pd {
    /// Creates a memory window that is not bound.
    ///
    /// # Errors
    ///
    /// The device has no free memory window, or the provider offers no windows, as the provider `system`.
    pub fn create_window(&self, kind: WindowKind) -> Result<Window, Error> {
        let rkey = self.provider().create_window(self.id(), kind)?;
        Ok(Window { pd: self.clone(), rkey })
    }
}

impl Window {
    /// Returns the key that the window was created with. Each binding chooses the lowest 8 bits of its key with
    /// [`key`](Self::key).
    pub fn rkey(&self) -> RKey {
        self.rkey
    }

    /// Returns the key of the window with the lowest 8 bits set to `lowest`, for a binding. A window has 256 keys. Only
    /// the key of the latest binding gives access.
    pub fn key(&self, lowest: u8) -> RKey {
        RKey::new(self.rkey.get() & !0xff | u32::from(lowest))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // The call cannot fail: the window exists, and no other code destroys it.
        let _ = self.pd.provider().destroy_window(self.rkey);
    }
}
