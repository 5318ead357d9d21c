//! Atomic extended transport header: address and operands of a compare-and-swap or fetch-and-add (IBTA Vol 1, chapter
//! 9).

use crate::{Error, RKey};

/// Bytes of the header.
pub const ATOMIC_ETH_LEN: usize = 28;

mod at {
    pub(super) const VIRTUAL_ADDRESS: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const SWAP_OR_ADD: usize = 12;
    pub(super) const COMPARE: usize = 20;
}

header_view! {
    /// A view of an atomic extended transport header.
    ATOMIC_ETH_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the address of the 8-byte word in the responder's memory.
    #[inline]
    pub fn virtual_address(&self) -> u64 {
        u64::from_be_bytes(self.get(at::VIRTUAL_ADDRESS))
    }

    /// Returns the key of the memory region.
    #[inline]
    pub fn rkey(&self) -> RKey {
        RKey::new(u32::from_be_bytes(self.get(at::RKEY)))
    }

    /// Returns the value to swap in, or to add.
    #[inline]
    pub fn swap_or_add(&self) -> u64 {
        u64::from_be_bytes(self.get(at::SWAP_OR_ADD))
    }

    /// Returns the value to compare with; a fetch-and-add ignores this field.
    #[inline]
    pub fn compare(&self) -> u64 {
        u64::from_be_bytes(self.get(at::COMPARE))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the address of the 8-byte word in the responder's memory.
    #[inline]
    pub fn set_virtual_address(&mut self, address: u64) {
        self.set(at::VIRTUAL_ADDRESS, address.to_be_bytes());
    }

    /// Sets the key of the memory region.
    #[inline]
    pub fn set_rkey(&mut self, rkey: RKey) {
        self.set(at::RKEY, rkey.get().to_be_bytes());
    }

    /// Sets the value to swap in, or to add.
    #[inline]
    pub fn set_swap_or_add(&mut self, value: u64) {
        self.set(at::SWAP_OR_ADD, value.to_be_bytes());
    }

    /// Sets the value to compare with.
    #[inline]
    pub fn set_compare(&mut self, value: u64) {
        self.set(at::COMPARE, value.to_be_bytes());
    }
}

/// An atomic extended transport header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// Address of the 8-byte word in the responder's memory.
    pub virtual_address: u64,
    /// The key of the memory region.
    pub rkey: RKey,
    /// The value to swap in, or to add.
    pub swap_or_add: u64,
    /// The value to compare with; a fetch-and-add ignores this field.
    pub compare: u64,
}

parse_any_bits!();

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn read(bytes: &[u8; ATOMIC_ETH_LEN]) -> Repr {
        let packet = Packet::new_unchecked(bytes);
        Repr {
            virtual_address: packet.virtual_address(),
            rkey: packet.rkey(),
            swap_or_add: packet.swap_or_add(),
            compare: packet.compare(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; ATOMIC_ETH_LEN]) {
        let mut packet = Packet::new_unchecked(out);
        packet.set_virtual_address(self.virtual_address);
        packet.set_rkey(self.rkey);
        packet.set_swap_or_add(self.swap_or_add);
        packet.set_compare(self.compare);
    }
}
