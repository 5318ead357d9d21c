//! Memory windows: parts of a region for peers, each under its own key, which the program can invalidate.

use doorbell_verbs_core::WindowKind;
use doorbell_wire::RKey;

use crate::error::Error;
use crate::handles::Pd;

/// A memory window (IBTA Vol 1, 10.6.7). Dropping the handle destroys the window and ends the access of peers through
/// it.
///
/// A work request binds it ([`SendOperation::BindWindow`](crate::SendOperation::BindWindow)) to a part of a region
/// that was allocated with [`Access::WINDOW_BIND`](crate::Access::WINDOW_BIND). A region with a bound window stays
/// registered, and its memory stays allocated, even if its last handle is dropped. To free the region, invalidate the
/// key or drop the window first.
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
    /// The device has no free memory window, or the provider offers none: `system` does not.
    pub fn create_window(&self, kind: WindowKind) -> Result<Window, Error> {
        let rkey = self.provider().create_window(self.id(), kind)?;
        Ok(Window { pd: self.clone(), rkey })
    }
}

impl Window {
    /// Returns the key that the window was created with. A binding chooses its lowest 8 bits ([`key`](Self::key)).
    pub fn rkey(&self) -> RKey {
        self.rkey
    }

    /// Returns the key with these lowest 8 bits, for a binding. The window has 256 keys; a key of an earlier binding
    /// gives no access.
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
