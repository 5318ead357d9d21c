//! Packet of a capture, as the rules see it.

use doorbell_wire::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, AethRepr, AtomicAckEthRepr, AtomicEthRepr, BTH_LEN, BthRepr,
    FaultMarks, ICRC_LEN, PacketOperation, RETH_LEN, RethRepr,
};

/// Number and time of a captured packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Number of the frame in the file, from 1.
    pub(super) packet: u64,
    pub(super) at_ns: Option<u64>,
}

/// Parsed packet of the transports RC and UC, or a CNP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) place: Place,
    pub(super) bth: BthRepr,
    /// Captured bytes after the BTH.
    pub(super) rest: &'a [u8],
    /// Bytes from the BTH to the ICRC, as the IP header states them.
    pub(super) whole_bytes: usize,
    /// Whether the end of the frame was not captured. Such a frame may hold several packets before segmentation.
    pub(super) is_cut: bool,
    pub(super) faults: FaultMarks,
    /// Whether switches may mark the packet, or have marked it: any ECN bit is set (RFC 3168).
    pub(super) is_markable: bool,
    /// Whether the capturing host sent the frame, if the capture shows that. The network may have lost the frame
    /// afterwards.
    pub(super) is_outbound: Option<bool>,
}

impl Packet<'_> {
    pub(super) fn operation(&self) -> Option<PacketOperation> {
        self.bth.opcode.operation()
    }

    /// Returns whether the frame has the payload of one packet.
    pub(super) fn has_known_payload(&self) -> bool {
        !self.is_cut || !self.bth.opcode.has_payload()
    }

    /// Returns the bytes between the last extension header and the ICRC, padding included. Returns `None` if the packet
    /// is too short for its headers.
    pub(super) fn body_bytes(&self) -> Option<usize> {
        self.whole_bytes.checked_sub(BTH_LEN + self.bth.opcode.extension_len() + ICRC_LEN)
    }

    /// Returns the bytes of payload; 0 for a packet that is too short for its padding.
    pub(super) fn payload_bytes(&self) -> u32 {
        let payload = self.body_bytes().unwrap_or(0).saturating_sub(usize::from(self.bth.pad_count));
        u32::try_from(payload).unwrap_or(u32::MAX)
    }

    pub(super) fn reth(&self) -> Option<RethRepr> {
        self.rest.first_chunk::<RETH_LEN>().filter(|_| self.bth.opcode.has_reth()).map(RethRepr::read)
    }

    pub(super) fn aeth(&self) -> Option<AethRepr> {
        self.rest.first_chunk::<AETH_LEN>().filter(|_| self.bth.opcode.has_aeth()).map(AethRepr::read)
    }

    pub(super) fn atomic(&self) -> Option<AtomicEthRepr> {
        self.rest.first_chunk::<ATOMIC_ETH_LEN>().filter(|_| self.bth.opcode.has_atomic_eth()).map(AtomicEthRepr::read)
    }

    /// Returns the immediate data or the key to invalidate, the last header before the payload.
    pub(super) fn immediate(&self) -> Option<u32> {
        let opcode = self.bth.opcode;
        let headers = self.rest.get(..opcode.extension_len()).filter(|_| opcode.has_imm() || opcode.has_ieth())?;
        headers.last_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Returns the old value in the response to an atomic.
    pub(super) fn original(&self) -> Option<u64> {
        let rest = self.rest.get(AETH_LEN..).filter(|_| self.bth.opcode.has_atomic_ack_eth())?;
        Some(AtomicAckEthRepr::read(rest.first_chunk::<ATOMIC_ACK_ETH_LEN>()?).original)
    }
}
