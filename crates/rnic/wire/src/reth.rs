//! RDMA extended transport header: memory of a WRITE or READ request (IBTA Vol 1, chapter 9).

use crate::{Error, RKey};

/// Bytes of the header.
pub const RETH_LEN: usize = 16;

mod at {
    pub(super) const VIRTUAL_ADDRESS: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const DMA_LENGTH: usize = 12;
}

header_view! {
    /// A view of an RDMA extended transport header.
    RETH_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the address of the message in the responder's memory.
    #[inline]
    pub fn virtual_address(&self) -> u64 {
        u64::from_be_bytes(self.get(at::VIRTUAL_ADDRESS))
    }

    /// Returns the key of the memory region.
    #[inline]
    pub fn rkey(&self) -> RKey {
        RKey::new(u32::from_be_bytes(self.get(at::RKEY)))
    }

    /// Returns the bytes of the whole message.
    #[inline]
    pub fn dma_length(&self) -> u32 {
        u32::from_be_bytes(self.get(at::DMA_LENGTH))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the address of the message in the responder's memory.
    #[inline]
    pub fn set_virtual_address(&mut self, address: u64) {
        self.set(at::VIRTUAL_ADDRESS, address.to_be_bytes());
    }

    /// Sets the key of the memory region.
    #[inline]
    pub fn set_rkey(&mut self, rkey: RKey) {
        self.set(at::RKEY, rkey.get().to_be_bytes());
    }

    /// Sets the bytes of the whole message.
    #[inline]
    pub fn set_dma_length(&mut self, length: u32) {
        self.set(at::DMA_LENGTH, length.to_be_bytes());
    }
}

/// An RDMA extended transport header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// Address of the message in the responder's memory.
    pub virtual_address: u64,
    /// The key of the memory region.
    pub rkey: RKey,
    /// Bytes of the whole message.
    pub dma_length: u32,
}

parse_any_bits!();

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn read(bytes: &[u8; RETH_LEN]) -> Repr {
        let packet = Packet::new_unchecked(bytes);
        Repr { virtual_address: packet.virtual_address(), rkey: packet.rkey(), dma_length: packet.dma_length() }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; RETH_LEN]) {
        let mut packet = Packet::new_unchecked(out);
        packet.set_virtual_address(self.virtual_address);
        packet.set_rkey(self.rkey);
        packet.set_dma_length(self.dma_length);
    }
}
