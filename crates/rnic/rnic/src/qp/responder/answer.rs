//! Transmission of answers: READ and atomic responses, NAKs, and due acknowledgements.

use doorbell_wire::{AETH_LEN, ATOMIC_ACK_ETH_LEN, AethRepr, AtomicAckEthRepr, BTH_LEN, NakCode, Opcode, Syndrome};

use super::Answer;
use crate::commons::{Commons, Sent};
use crate::packets::{Acknowledgement, plain_bth};
use crate::qp::Qp;
use crate::transmit::{TransmitBatch, TransmitInfo};

impl Qp {
    /// Sends answers, and then the due acknowledgement. Returns true if the budget or the batch ran out first.
    pub(crate) fn transmit_answers(
        &mut self,
        core: &mut Commons,
        budget: &mut usize,
        batch: &mut TransmitBatch,
    ) -> bool {
        let through = self.through();
        while let Some(answer) = self.resp.answers.front_mut() {
            if *budget == 0 {
                return true;
            }
            let mtu = self.settings.path_mtu.bytes();
            let (opcode, psn, msn, syndrome, payload) = match *answer {
                Answer::Nak { psn, msn, syndrome, .. } => (Opcode::RC_ACKNOWLEDGE, psn, msn, syndrome, 0),
                Answer::Atomic { psn, msn, .. } => {
                    (Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, msn, Syndrome::ACK_UNLIMITED, 0)
                }
                Answer::Read { psn, msn, left, started, .. } => {
                    let opcode = match (started, left as usize <= mtu) {
                        (false, true) => Opcode::RC_READ_RESPONSE_ONLY,
                        (false, false) => Opcode::RC_READ_RESPONSE_FIRST,
                        (true, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                        (true, true) => Opcode::RC_READ_RESPONSE_LAST,
                    };
                    (opcode, psn, msn, Syndrome::ACK_UNLIMITED, mtu.min(left as usize))
                }
            };
            let pad = payload.wrapping_neg() & 3;
            let len = BTH_LEN + opcode.extension_len() + payload + pad;
            if !batch.has_room(len) {
                return true;
            }
            *budget -= 1;
            let info = TransmitInfo {
                qpn: self.qpn,
                opcode,
                work_request: None,
                first: opcode.is_first(),
                last: opcode.is_last(),
                inline: false,
                retransmission: false,
                payload_bytes: payload as u32,
            };
            let out = batch.push(&self.path, len, info);
            let (bth, mut out) = out.split_first_chunk_mut::<BTH_LEN>().expect("the packet must have room for the BTH");
            plain_bth(opcode, self.settings.dest_qpn, psn, pad).write(bth);
            if opcode.has_aeth() {
                let (aeth, rest) =
                    out.split_first_chunk_mut::<AETH_LEN>().expect("the packet must have room for the AETH");
                AethRepr { syndrome, msn }.write(aeth);
                out = rest;
            }
            // A NAK contains the PSN of the packet that the responder rejects or lacks. It therefore acknowledges only
            // the packets before that packet.
            let acknowledges = if matches!(answer, Answer::Nak { .. }) { psn.sub(1) } else { psn };
            let frame = len as u64 + self.frame_overhead;
            let mut refused = None;
            match answer {
                Answer::Nak { .. } => {
                    core.count_sent(&mut self.counters, Sent::Ack, frame);
                    self.resp.answers.pop_front();
                }
                Answer::Atomic { original, .. } => {
                    let header = out
                        .first_chunk_mut::<ATOMIC_ACK_ETH_LEN>()
                        .expect("the packet must have room for the AtomicAckETH");
                    AtomicAckEthRepr { original: *original }.write(header);
                    core.count_sent(&mut self.counters, Sent::Response, frame);
                    self.resp.answers.pop_front();
                }
                Answer::Read { psn, address, rkey, left, started, again, .. } => {
                    out[payload..].fill(0);
                    let body = batch.payload_room(payload, pad);
                    if core.memory.read_remote(through, *rkey, *address, body).is_err() {
                        refused = Some(*again);
                    } else {
                        core.count_sent(&mut self.counters, Sent::Response, frame);
                        *psn = psn.next();
                        *address = address.wrapping_add(payload as u64);
                        *left -= payload as u64;
                        *started = true;
                        if *left == 0 {
                            self.resp.answers.pop_front();
                        }
                    }
                }
            }
            match refused {
                None => self.resp.acknowledged(acknowledges),
                // The region was deregistered after the responder had accepted the READ. Send a NAK in place of the
                // response.
                Some(is_repetition) => {
                    batch.retract(len);
                    if is_repetition {
                        self.resp.answers.pop_front();
                        self.refuse_repetition(core, psn);
                    } else {
                        self.resp.answers.clear();
                        self.refuse(core, psn, NakCode::REMOTE_OPERATIONAL_ERROR);
                    }
                }
            }
        }
        self.transmit_ack(core, budget, batch)
    }

    /// Sends the due acknowledgement, which acknowledges all packets received so far.
    #[inline]
    pub(crate) fn transmit_ack(&mut self, core: &mut Commons, budget: &mut usize, batch: &mut TransmitBatch) -> bool {
        if self.resp.ack_due_ns.is_none() {
            self.resp.ack_urgent = false;
            return false;
        }
        if *budget == 0 || !batch.has_room(Acknowledgement::LEN) {
            return true;
        }
        *budget -= 1;
        self.resp.ack_due_ns = None;
        self.resp.ack_urgent = false;
        self.resp.unacknowledged_receive = None;
        self.acknowledgement().write(&self.path, self.qpn, batch);
        core.count_sent(&mut self.counters, Sent::Ack, Acknowledgement::LEN as u64 + self.frame_overhead);
        false
    }

    /// Returns an acknowledgement of all packets received so far.
    pub(super) fn acknowledgement(&self) -> Acknowledgement {
        Acknowledgement { dest_qpn: self.settings.dest_qpn, psn: self.resp.expected.sub(1), msn: self.resp.msn }
    }
}
