//! Packets and headers that queue pairs and the engine write.

use doorbell_wire::{AETH_LEN, AethRepr, BTH_LEN, BthRepr, Msn, Opcode, PartitionKey, Psn, Qpn, Syndrome};

use crate::transmit::{Path, TransmitBatch, TransmitInfo};

/// Returns a BTH whose remaining fields have their usual values: default partition, primary path, no congestion marks.
#[inline]
pub(crate) fn plain_bth(opcode: Opcode, dest_qpn: Qpn, psn: Psn, pad: usize) -> BthRepr {
    BthRepr {
        opcode,
        solicited: false,
        migrated: true,
        pad_count: pad as u8,
        version: 0,
        partition_key: PartitionKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn,
        ack_request: false,
        psn,
    }
}

/// ACK for all packets up to `psn`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgement {
    pub(crate) dest_qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
}

impl Acknowledgement {
    /// Bytes of the packet.
    pub(crate) const LEN: usize = BTH_LEN + AETH_LEN;

    /// Adds the ACK to a batch, which must have room for it.
    #[inline]
    pub(crate) fn write(&self, path: &Path, qpn: Qpn, batch: &mut TransmitBatch) {
        let opcode = Opcode::RC_ACKNOWLEDGE;
        let info = TransmitInfo {
            qpn,
            opcode,
            work_request: None,
            first: true,
            last: true,
            inline: false,
            retransmission: false,
            payload_bytes: 0,
        };
        let out = batch.push(path, Self::LEN, info);
        let (bth, out) = out.split_first_chunk_mut::<BTH_LEN>().expect("the packet must have room for the BTH");
        plain_bth(opcode, self.dest_qpn, self.psn, 0).write(bth);
        let aeth = out.first_chunk_mut::<AETH_LEN>().expect("the packet must have room for the AETH");
        AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: self.msn }.write(aeth);
    }
}
