//! Invalidate extended transport header: rkey that a SEND with Invalidate invalidates (IBTA Vol 1, chapter 9).

use crate::{Error, RKey};

/// Bytes of the header.
pub const IETH_LEN: usize = 4;

header_view! {
    /// A view of an invalidate extended transport header.
    IETH_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the key to invalidate.
    #[inline]
    pub fn rkey(&self) -> RKey {
        RKey::new(u32::from_be_bytes(self.get(0)))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the key to invalidate.
    #[inline]
    pub fn set_rkey(&mut self, rkey: RKey) {
        self.set(0, rkey.get().to_be_bytes());
    }
}

/// An invalidate extended transport header's field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// The key to invalidate.
    pub rkey: RKey,
}

parse_any_bits!();

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn read(bytes: &[u8; IETH_LEN]) -> Repr {
        Repr { rkey: Packet::new_unchecked(bytes).rkey() }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; IETH_LEN]) {
        Packet::new_unchecked(out).set_rkey(self.rkey);
    }
}
