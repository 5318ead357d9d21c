//! Atomic extended transport header: address and operands of a compare-and-swap or fetch-and-add (IBTA Vol 1, chapter
//! 9).

use crate::{Error, RKey};

/// Bytes of the header.
pub const ATOMIC_ETH_LEN: usize = 28;

plain_header! {
    /// A view of an atomic extended transport header.
    ATOMIC_ETH_LEN
    /// An atomic extended transport header's fields.
    Repr {
        /// Address of the 8-byte word in the responder's memory.
        virtual_address, set_virtual_address: u64 = 0;
        /// The key of the memory region.
        rkey, set_rkey: RKey = 8;
        /// The value to swap in, or to add.
        swap_or_add, set_swap_or_add: u64 = 12;
        /// The value to compare with; a fetch-and-add ignores this field.
        compare, set_compare: u64 = 20;
    }
}
