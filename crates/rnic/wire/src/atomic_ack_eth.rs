//! Atomic acknowledge extended transport header: value before an atomic operation (IBTA Vol 1, chapter 9).

use crate::Error;

/// Bytes of the header.
pub const ATOMIC_ACK_ETH_LEN: usize = 8;

plain_header! {
    /// A view of an atomic acknowledge extended transport header.
    ATOMIC_ACK_ETH_LEN
    /// An atomic acknowledge extended transport header's field.
    Repr {
        /// The value in memory before the operation.
        original, set_original: u64 = 0;
    }
}
