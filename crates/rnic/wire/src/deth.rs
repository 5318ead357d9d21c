//! Datagram extended transport header: source queue pair of a datagram (IBTA Vol 1, chapter 9).

use crate::{Error, QKey, Qpn};

/// Bytes of the header.
pub const DETH_LEN: usize = 8;

plain_header! {
    /// A view of a datagram extended transport header.
    DETH_LEN
    /// A datagram extended transport header's fields.
    Repr {
        /// Q_Key, which must match the Q_Key of the destination queue pair.
        qkey, set_qkey: QKey = 0;
        /// The queue pair that sent the datagram.
        source_qpn, set_source_qpn: Qpn = 5;
    }
    reserved = 4
}
