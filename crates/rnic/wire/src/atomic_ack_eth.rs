//! Atomic acknowledge extended transport header: value before an atomic operation (IBTA Vol 1, chapter 9).

use crate::Error;

/// Bytes of the header.
pub const ATOMIC_ACK_ETH_LEN: usize = 8;

header_view! {
    /// A view of an atomic acknowledge extended transport header.
    ATOMIC_ACK_ETH_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the value in memory before the operation.
    #[inline]
    pub fn original(&self) -> u64 {
        u64::from_be_bytes(self.get(0))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the value in memory before the operation.
    #[inline]
    pub fn set_original(&mut self, original: u64) {
        self.set(0, original.to_be_bytes());
    }
}

/// An atomic acknowledge extended transport header's field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// The value in memory before the operation.
    pub original: u64,
}

parse_any_bits!();

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn read(bytes: &[u8; ATOMIC_ACK_ETH_LEN]) -> Repr {
        Repr { original: Packet::new_unchecked(bytes).original() }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; ATOMIC_ACK_ETH_LEN]) {
        Packet::new_unchecked(out).set_original(self.original);
    }
}
