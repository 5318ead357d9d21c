//! RDMA extended transport header: memory of a WRITE or READ request (IBTA Vol 1, chapter 9).

use crate::{Error, RKey};

/// Bytes of the header.
pub const RETH_LEN: usize = 16;

plain_header! {
    /// A view of an RDMA extended transport header.
    RETH_LEN
    /// An RDMA extended transport header's fields.
    Repr {
        /// Address of the message in the responder's memory.
        virtual_address, set_virtual_address: u64 = 0;
        /// The key of the memory region.
        rkey, set_rkey: RKey = 8;
        /// Bytes of the whole message.
        dma_length, set_dma_length: u32 = 12;
    }
}
