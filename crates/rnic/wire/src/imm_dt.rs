//! Immediate data: four bytes that a message delivers in the responder's completion (IBTA Vol 1, chapter 9).

use crate::Error;

/// Bytes of the header.
pub const IMM_DT_LEN: usize = 4;

plain_header! {
    /// A view of an immediate data header.
    IMM_DT_LEN
    /// Immediate data: four bytes to which IBTA assigns no meaning. Verbs programs see the four bytes in network order.
    /// `value` is the number that these bytes represent.
    Repr {
        /// The four bytes as a big-endian number.
        value, set_value: u32 = 0;
    }
}
