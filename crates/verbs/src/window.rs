//! Memory windows: a part of a region for peers, under a key of its own that can be taken back.

use doorbell_verbs_core::WindowKind;
use doorbell_wire::RKey;

use crate::error::Error;
use crate::handles::Pd;

/// A memory window (IBTA Vol 1, 10.6.7). It is destroyed when its handle goes, and no peer reaches memory through it then.
///
/// A work request binds it ([`SendOperation::BindWindow`](crate::SendOperation::BindWindow)) to a part of a region that was
/// allocated with [`Access::WINDOW_BIND`](crate::Access::WINDOW_BIND). A region with a bound window stays registered, and
/// its memory allocated, even if its last handle goes: take the key back or drop the window first.
#[derive(Debug)]
pub struct Window {
    pd: Pd,
    rkey: RKey,
}

impl Pd {
    /// Creates a memory window, which is not bound.
    ///
    /// # Errors
    ///
    /// The device has no more memory windows, or the provider does not offer them: of those here `system` does not.
    pub fn create_window(&self, kind: WindowKind) -> Result<Window, Error> {
        let rkey = self.provider().create_window(self.id(), kind)?;
        Ok(Window { pd: self.clone(), rkey })
    }
}

impl Window {
    /// The key that it was created with. A binding chooses its lowest 8 bits ([`key`](Self::key)).
    pub fn rkey(&self) -> RKey {
        self.rkey
    }

    /// One of its 256 keys, for a binding: that with these lowest 8 bits. A key of an earlier binding opens nothing.
    pub fn key(&self, lowest: u8) -> RKey {
        RKey::new(self.rkey.get() & !0xff | u32::from(lowest))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // It exists, since it was created so, and nothing else destroys it.
        let _ = self.pd.provider().destroy_window(self.rkey);
    }
}
