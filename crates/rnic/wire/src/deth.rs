//! Datagram extended transport header: source queue pair of a datagram (IBTA Vol 1, chapter 9).

use crate::view::{from_be_24, to_be_24};
use crate::{Error, QKey, Qpn};

/// Bytes of the header.
pub const DETH_LEN: usize = 8;

mod at {
    pub(super) const QKEY: usize = 0;
    pub(super) const SOURCE_QPN: usize = 5;
}

header_view! {
    /// A view of a datagram extended transport header.
    DETH_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the Q_Key, which must match the Q_Key of the destination queue pair.
    #[inline]
    pub fn qkey(&self) -> QKey {
        QKey::new(u32::from_be_bytes(self.get(at::QKEY)))
    }

    /// Returns the queue pair that sent the datagram.
    #[inline]
    pub fn source_qpn(&self) -> Qpn {
        Qpn::new(from_be_24(self.get(at::SOURCE_QPN)))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the Q_Key, which must match the Q_Key of the destination queue pair.
    #[inline]
    pub fn set_qkey(&mut self, qkey: QKey) {
        self.set(at::QKEY, qkey.get().to_be_bytes());
    }

    /// Sets the queue pair that sent the datagram.
    #[inline]
    pub fn set_source_qpn(&mut self, qpn: Qpn) {
        self.set(at::SOURCE_QPN, to_be_24(qpn.get()));
    }
}

/// A datagram extended transport header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// Q_Key, which must match the Q_Key of the destination queue pair.
    pub qkey: QKey,
    /// The queue pair that sent the datagram.
    pub source_qpn: Qpn,
}

parse_any_bits!();

impl Repr {
    /// Reads the header.
    #[inline]
    pub fn read(bytes: &[u8; DETH_LEN]) -> Repr {
        let packet = Packet::new_unchecked(bytes);
        Repr { qkey: packet.qkey(), source_qpn: packet.source_qpn() }
    }

    /// Writes the header, with the reserved byte zero.
    #[inline]
    pub fn write(&self, out: &mut [u8; DETH_LEN]) {
        *out = [0; DETH_LEN];
        let mut packet = Packet::new_unchecked(out);
        packet.set_qkey(self.qkey);
        packet.set_source_qpn(self.source_qpn);
    }
}
