//! Invalidate extended transport header: rkey that a SEND with Invalidate invalidates (IBTA Vol 1, chapter 9).

use crate::{Error, RKey};

/// Bytes of the header.
pub const IETH_LEN: usize = 4;

plain_header! {
    /// A view of an invalidate extended transport header.
    IETH_LEN
    /// An invalidate extended transport header's field.
    Repr {
        /// The key to invalidate.
        rkey, set_rkey: RKey = 0;
    }
}
