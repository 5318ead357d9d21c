//! Base transport header: the first header of every packet (IBTA Vol 1, chapter 9).

use crate::view::{from_be_24, to_be_24};
use crate::{Error, Opcode, PartitionKey, Psn, Qpn};

/// Bytes of the header.
pub const BTH_LEN: usize = 12;

mod at {
    pub(super) const OPCODE: usize = 0;
    /// Solicited event, MigReq, pad count (2 bits), transport header version (4 bits).
    pub(super) const FLAGS: usize = 1;
    pub(super) const PARTITION_KEY: usize = 2;
    /// FECN, BECN and 6 reserved bits. The ICRC of RoCE v2 does not cover this byte (Annex A17).
    pub(super) const CONGESTION: usize = 4;
    pub(super) const DEST_QPN: usize = 5;
    /// Acknowledge request and 7 reserved bits.
    pub(super) const ACK_REQUEST: usize = 8;
    pub(super) const PSN: usize = 9;
}

mod bit {
    pub(super) const SOLICITED: u8 = 0x80;
    pub(super) const MIGRATED: u8 = 0x40;
    pub(super) const PAD_COUNT_SHIFT: u8 = 4;
    pub(super) const PAD_COUNT: u8 = 0x30;
    pub(super) const VERSION: u8 = 0x0f;
    pub(super) const FECN: u8 = 0x80;
    pub(super) const BECN: u8 = 0x40;
    pub(super) const ACK_REQUEST: u8 = 0x80;
}

header_view! {
    /// A view of a base transport header.
    BTH_LEN
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the opcode, which determines the headers that follow.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        Opcode(self.byte(at::OPCODE))
    }

    /// Returns the solicited event bit: whether the receive completion at the responder raises an event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.byte(at::FLAGS) & bit::SOLICITED != 0
    }

    /// Returns MigReq, the path migration state.
    #[inline]
    pub fn migrated(&self) -> bool {
        self.byte(at::FLAGS) & bit::MIGRATED != 0
    }

    /// Returns the bytes of padding between payload and ICRC, 0 to 3.
    #[inline]
    pub fn pad_count(&self) -> u8 {
        (self.byte(at::FLAGS) & bit::PAD_COUNT) >> bit::PAD_COUNT_SHIFT
    }

    /// Returns TVer, the version of the transport header.
    #[inline]
    pub fn version(&self) -> u8 {
        self.byte(at::FLAGS) & bit::VERSION
    }

    /// Returns the partition key.
    #[inline]
    pub fn partition_key(&self) -> PartitionKey {
        PartitionKey::new(u16::from_be_bytes(self.get(at::PARTITION_KEY)))
    }

    /// Returns whether the packet met congestion on its path.
    #[inline]
    pub fn fecn(&self) -> bool {
        self.byte(at::CONGESTION) & bit::FECN != 0
    }

    /// Returns whether packets in the opposite direction met congestion.
    #[inline]
    pub fn becn(&self) -> bool {
        self.byte(at::CONGESTION) & bit::BECN != 0
    }

    /// Returns the destination queue pair.
    #[inline]
    pub fn dest_qpn(&self) -> Qpn {
        Qpn::new(from_be_24(self.get(at::DEST_QPN)))
    }

    /// Returns whether the requester asks for an acknowledgement.
    #[inline]
    pub fn ack_request(&self) -> bool {
        self.byte(at::ACK_REQUEST) & bit::ACK_REQUEST != 0
    }

    /// Returns the packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(from_be_24(self.get(at::PSN)))
    }

    #[inline]
    fn byte(&self, at: usize) -> u8 {
        self.buffer.as_ref()[at]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the opcode.
    #[inline]
    pub fn set_opcode(&mut self, opcode: Opcode) {
        self.set(at::OPCODE, [opcode.0]);
    }

    /// Sets the solicited event bit.
    #[inline]
    pub fn set_solicited(&mut self, solicited: bool) {
        self.set_bits(at::FLAGS, bit::SOLICITED, mask_if(solicited));
    }

    /// Sets MigReq.
    #[inline]
    pub fn set_migrated(&mut self, migrated: bool) {
        self.set_bits(at::FLAGS, bit::MIGRATED, mask_if(migrated));
    }

    /// Sets the bytes of padding from the lower two bits.
    #[inline]
    pub fn set_pad_count(&mut self, pad_count: u8) {
        self.set_bits(at::FLAGS, bit::PAD_COUNT, pad_count << bit::PAD_COUNT_SHIFT);
    }

    /// Sets the header version from the lower four bits.
    #[inline]
    pub fn set_version(&mut self, version: u8) {
        self.set_bits(at::FLAGS, bit::VERSION, version);
    }

    /// Sets the partition key.
    #[inline]
    pub fn set_partition_key(&mut self, key: PartitionKey) {
        self.set(at::PARTITION_KEY, key.get().to_be_bytes());
    }

    /// Sets the forward congestion bit.
    #[inline]
    pub fn set_fecn(&mut self, fecn: bool) {
        self.set_bits(at::CONGESTION, bit::FECN, mask_if(fecn));
    }

    /// Sets the backward congestion bit.
    #[inline]
    pub fn set_becn(&mut self, becn: bool) {
        self.set_bits(at::CONGESTION, bit::BECN, mask_if(becn));
    }

    /// Sets the destination queue pair.
    #[inline]
    pub fn set_dest_qpn(&mut self, qpn: Qpn) {
        self.set(at::DEST_QPN, to_be_24(qpn.get()));
    }

    /// Sets the acknowledge request bit.
    #[inline]
    pub fn set_ack_request(&mut self, ack_request: bool) {
        self.set_bits(at::ACK_REQUEST, bit::ACK_REQUEST, mask_if(ack_request));
    }

    /// Sets the packet sequence number.
    #[inline]
    pub fn set_psn(&mut self, psn: Psn) {
        self.set(at::PSN, to_be_24(psn.get()));
    }

    #[inline]
    fn set_bits(&mut self, at: usize, mask: u8, value: u8) {
        let byte = &mut self.buffer.as_mut()[at];
        *byte = *byte & !mask | value & mask;
    }
}

/// A base transport header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repr {
    /// Opcode, which determines the headers that follow.
    pub opcode: Opcode,
    /// Solicited event bit: whether the receive completion at the responder raises an event.
    pub solicited: bool,
    /// MigReq, the path migration state.
    pub migrated: bool,
    /// Bytes of padding between payload and ICRC, 0 to 3.
    pub pad_count: u8,
    /// TVer, the version of the transport header; 0 in every valid packet.
    pub version: u8,
    /// Partition key.
    pub partition_key: PartitionKey,
    /// Whether the packet met congestion on its path.
    pub fecn: bool,
    /// Whether packets in the opposite direction met congestion.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// Whether the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Repr {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// The buffer is too short ([`Error::Truncated`]), or the header's version is unknown ([`Error::HeaderVersion`]).
    #[inline]
    pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &Packet<&T>) -> Result<Repr, Error> {
        packet.check_len()?;
        let repr = Repr::read(&packet.get(0));
        repr.check_version()?;
        Ok(repr)
    }

    /// Checks that the header's version is 0, the only version that IBTA defines.
    ///
    /// # Errors
    ///
    /// The version is not 0 ([`Error::HeaderVersion`]).
    #[inline]
    pub const fn check_version(&self) -> Result<(), Error> {
        match self.version {
            0 => Ok(()),
            version => Err(Error::HeaderVersion(version)),
        }
    }

    /// Reads a header of any version.
    #[inline]
    pub fn read(bytes: &[u8; BTH_LEN]) -> Repr {
        // The data path calls this function for every packet. Reading three words is faster than reading each field
        // through `Packet`.
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [first, second, third] = [word(at::OPCODE), word(at::CONGESTION), word(at::ACK_REQUEST)];
        let flags = (first >> 16) as u8;
        let congestion = (second >> 24) as u8;
        Repr {
            opcode: Opcode((first >> 24) as u8),
            solicited: flags & bit::SOLICITED != 0,
            migrated: flags & bit::MIGRATED != 0,
            pad_count: (flags & bit::PAD_COUNT) >> bit::PAD_COUNT_SHIFT,
            version: flags & bit::VERSION,
            partition_key: PartitionKey::new(first as u16),
            fecn: congestion & bit::FECN != 0,
            becn: congestion & bit::BECN != 0,
            dest_qpn: Qpn::new(second),
            ack_request: (third >> 24) as u8 & bit::ACK_REQUEST != 0,
            psn: Psn::new(third),
        }
    }

    /// Writes the header, with reserved bits zero.
    #[inline]
    pub fn write(&self, out: &mut [u8; BTH_LEN]) {
        let bit_if = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = bit_if(self.solicited, bit::SOLICITED)
            | bit_if(self.migrated, bit::MIGRATED)
            | self.pad_count << bit::PAD_COUNT_SHIFT & bit::PAD_COUNT
            | self.version & bit::VERSION;
        let congestion = bit_if(self.fecn, bit::FECN) | bit_if(self.becn, bit::BECN);
        let ack_request = bit_if(self.ack_request, bit::ACK_REQUEST);
        let words = [
            u32::from(self.opcode.0) << 24 | u32::from(flags) << 16 | u32::from(self.partition_key.get()),
            u32::from(congestion) << 24 | self.dest_qpn.get(),
            u32::from(ack_request) << 24 | self.psn.get(),
        ];
        for (place, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
    }
}

#[inline]
const fn mask_if(set: bool) -> u8 {
    if set { 0xff } else { 0 }
}
