//! Immediate data: four bytes that a message delivers in the responder's completion (IBTA Vol 1, chapter 9).

use crate::Error;

/// Bytes of the header.
pub const IMM_DT_LEN: usize = 4;

header_view! {
    /// A view of an immediate data header.
    IMM_DT_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the four bytes as a big-endian number.
    #[inline]
    pub fn value(&self) -> u32 {
        u32::from_be_bytes(self.get(0))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the four bytes from a number, most significant first.
    #[inline]
    pub fn set_value(&mut self, value: u32) {
        self.set(0, value.to_be_bytes());
    }
}

/// Immediate data: four bytes to which IBTA assigns no meaning. Verbs programs see the four bytes in network order.
/// `value` is the number that these bytes represent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// The four bytes as a big-endian number.
    pub value: u32,
}

parse_any_bits!();

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn read(bytes: &[u8; IMM_DT_LEN]) -> Repr {
        Repr { value: Packet::new_unchecked(bytes).value() }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; IMM_DT_LEN]) {
        Packet::new_unchecked(out).set_value(self.value);
    }
}
