//! Handling of ACKs, NAKs and responses by the requester (IBTA Vol 1, 9.7.5).

use doorbell_verbs_core::{SendOperation, Status};
use doorbell_wire::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, AethRepr, AtomicAckEthRepr, BthRepr, NakCode, PacketOperation, Psn, SyndromeKind,
    rnr_timer_ns,
};

use super::{cost_of, is_answered, payload_of};
use crate::commons::Commons;
use crate::memory::{Packet, Payload};
use crate::qp::Qp;
use crate::work::SendWqe;

impl Qp {
    /// Handles a response packet.
    #[inline]
    pub(crate) fn handle_response(
        &mut self,
        core: &mut Commons,
        bth: &BthRepr,
        operation: PacketOperation,
        mut rest: Packet<'_>,
    ) {
        let mut aeth = None;
        if bth.opcode.has_aeth() {
            let Some(header) = rest.split::<AETH_LEN>() else {
                core.counters.rx_malformed += 1;
                return;
            };
            aeth = Some(AethRepr::read(header));
        }
        match (operation, aeth) {
            (PacketOperation::Acknowledge, Some(aeth)) => self.handle_acknowledge(core, bth, aeth),
            (PacketOperation::AtomicAcknowledge, Some(_)) => match rest.split::<ATOMIC_ACK_ETH_LEN>() {
                Some(header) => self.handle_atomic_response(core, bth, AtomicAckEthRepr::read(header)),
                None => core.counters.rx_malformed += 1,
            },
            (PacketOperation::ReadResponse, _) => match rest.payload(bth.pad_count) {
                Some(payload) => self.handle_read_response(core, bth, payload),
                None => core.counters.rx_malformed += 1,
            },
            _ => core.counters.rx_malformed += 1,
        }
    }

    /// Returns whether the sequence number of a response is outstanding. If the requester has never sent this number,
    /// counts the response as unexpected.
    #[inline]
    fn is_outstanding(&mut self, core: &mut Commons, psn: Psn) -> bool {
        let outstanding = self.req.high_psn.distance_from(self.req.una);
        if psn.distance_from(self.req.una) < outstanding {
            return true;
        }
        // A number before `una` belongs to a harmless duplicate. A number beyond `high_psn` is an error of the peer.
        if !psn.is_before(self.req.una) {
            core.counters.rx_unexpected_response += 1;
        }
        false
    }

    /// Handles an ACK or NAK.
    fn handle_acknowledge(&mut self, core: &mut Commons, bth: &BthRepr, aeth: AethRepr) {
        if !self.is_outstanding(core, bth.psn) {
            return;
        }
        match aeth.syndrome.kind() {
            SyndromeKind::Ack { .. } => {
                if self.advance(core, bth.psn.next()) {
                    self.ask_again(core);
                }
            }
            SyndromeKind::RnrNak { timer } => {
                core.counters.rnr_nak_received += 1;
                self.counters.rnr_nak_received += 1;
                if self.advance(core, bth.psn) {
                    return self.ask_again(core);
                }
                if self.req.rnr_until_ns.is_some() {
                    return; // a copy of the same RNR NAK, since no packet was sent after it
                }
                if self.settings.rnr_retry < 7 {
                    if self.req.rnr_left == 0 {
                        core.counters.rnr_nak_retry_err += 1;
                        return self.fail_oldest(core, Status::RnrRetryExceeded);
                    }
                    self.req.rnr_left -= 1;
                }
                self.rewind(core);
                self.req.rnr_until_ns = Some(core.now_ns + rnr_timer_ns(timer));
                self.req.progress_ns = core.now_ns; // the RNR NAK shows that the peer is alive
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                core.counters.packet_seq_err += 1;
                if self.advance(core, bth.psn) {
                    return self.ask_again(core);
                }
                self.lost(core);
                self.rewind(core);
            }
            SyndromeKind::Nak(code) => {
                if self.advance(core, bth.psn) {
                    return self.ask_again(core);
                }
                let (counter, status) = match code {
                    NakCode::REMOTE_ACCESS_ERROR => (&mut core.counters.req_remote_access_errors, Status::RemoteAccess),
                    NakCode::REMOTE_OPERATIONAL_ERROR => {
                        (&mut core.counters.req_remote_operational_errors, Status::RemoteOperation)
                    }
                    _ => (&mut core.counters.req_remote_invalid_request, Status::RemoteInvalidRequest),
                };
                *counter += 1;
                self.fail_oldest(core, status);
            }
            SyndromeKind::Unknown(_) => core.counters.rx_malformed += 1,
        }
    }

    /// Handles a READ response packet.
    fn handle_read_response(&mut self, core: &mut Commons, bth: &BthRepr, payload: Payload<'_>) {
        if !self.is_outstanding(core, bth.psn) {
            return;
        }
        // A response acknowledges all requests before the one that it answers (IBTA Vol 1, 9.7.5.1.2).
        self.advance(core, bth.psn);
        let head = self.sq.head;
        if head >= self.req.assigned {
            return;
        }
        let wqe = *self.sq.get(head);
        let expected = wqe.first_psn.add(wqe.received);
        if !matches!(wqe.operation, SendOperation::Read { .. }) || bth.psn != expected {
            return self.ask_again(core);
        }
        let mtu = self.mtu();
        let index = wqe.received;
        if payload.len() != payload_of(wqe.length, mtu, index) {
            return self.fail_oldest(core, Status::BadResponse);
        }
        let skip = u64::from(index) * mtu as u64;
        if core.memory.scatter(self.pd, self.sq.sges_of(head), skip, payload).is_err() {
            return self.fail_oldest(core, Status::LocalProtection);
        }
        let wqe = self.sq.get_mut(head);
        wqe.received += 1;
        let wqe = *wqe;
        self.answered(core, &wqe, cost_of(wqe.length, mtu, index, index + 1));
    }

    /// Handles an atomic response.
    fn handle_atomic_response(&mut self, core: &mut Commons, bth: &BthRepr, response: AtomicAckEthRepr) {
        if !self.is_outstanding(core, bth.psn) {
            return;
        }
        self.advance(core, bth.psn);
        let head = self.sq.head;
        if head >= self.req.assigned {
            return;
        }
        let wqe = *self.sq.get(head);
        let is_atomic = matches!(wqe.operation, SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. });
        if !is_atomic || bth.psn != wqe.first_psn {
            return self.ask_again(core);
        }
        // Store the old value in host byte order, as programs expect it.
        if core.memory.scatter(self.pd, self.sq.sges_of(head), 0, response.original.to_ne_bytes()[..].into()).is_err() {
            return self.fail_oldest(core, Status::LocalProtection);
        }
        self.sq.get_mut(head).received = 1;
        let cost = cost_of(wqe.length, self.mtu(), 0, 1);
        self.answered(core, &SendWqe { received: 1, ..wqe }, cost);
    }

    /// Records one response packet of the request at the head of the queue. Completes the request after its last
    /// response packet.
    fn answered(&mut self, core: &mut Commons, wqe: &SendWqe, cost: u64) {
        let cost = cost.min(self.req.inbound_in_flight);
        core.delivered_inbound(cost);
        self.req.inbound_in_flight -= cost;
        self.req.una = wqe.first_psn.add(wqe.received);
        self.progress(core);
        if wqe.received == wqe.packets {
            self.sq.pop();
            self.complete_send(core, wqe, Status::Success);
        }
        self.pull_cursor();
        if !self.req.has_outstanding() {
            // If a response crossed a retransmission of its request on the way, the window may still be charged for a
            // response that will not come. Nothing is outstanding now, so refund this charge.
            core.refund_inbound(std::mem::take(&mut self.req.inbound_in_flight));
        }
        self.report_drained(core);
    }

    /// Marks all requests before `to` as acknowledged, but stops at an outstanding READ or atomic. Returns true if it
    /// stopped. In this case, the response to the READ or atomic is lost: the peer has already answered a later request
    /// (the implied NAK of IBTA Vol 1, 9.7.5.2.8).
    #[inline]
    fn advance(&mut self, core: &mut Commons, to: Psn) -> bool {
        let before = self.req.una;
        let mtu = self.mtu();
        let mut delivered = 0;
        let mut lost = false;
        while self.sq.head < self.req.assigned && self.req.una.is_before(to) {
            let head = self.sq.head;
            let wqe = self.sq.get(head);
            if is_answered(wqe.operation) {
                lost = true;
                break;
            }
            let from = self.req.una.distance_from(wqe.first_psn);
            let upto = to.distance_from(wqe.first_psn).min(wqe.packets);
            // The window is charged only for packets before the cursor, since the most recent `rewind` refunded the
            // packets after it.
            let charged = if head < self.req.cursor {
                upto
            } else if head == self.req.cursor {
                upto.min(self.req.cursor_packet)
            } else {
                from
            };
            if charged > from {
                delivered += cost_of(wqe.length, mtu, from, charged);
            }
            self.req.una = wqe.first_psn.add(upto);
            if upto == wqe.packets {
                let wqe = self.sq.pop();
                self.complete_send(core, &wqe, Status::Success);
            }
        }
        if delivered > 0
            && let Some(destination) = self.destination
        {
            core.delivered(destination, delivered);
            self.req.in_flight -= delivered;
        }
        if self.req.una != before {
            self.progress(core);
            self.pull_cursor();
            self.report_drained(core);
        }
        lost
    }

    /// Moves the cursor past packets that were acknowledged after a rewind, so that the requester does not send them
    /// again.
    #[inline]
    fn pull_cursor(&mut self) {
        let req = &mut self.req;
        if req.cursor_psn.is_before(req.una) {
            req.cursor_psn = req.una;
            req.cursor = self.sq.head;
            req.cursor_packet =
                if req.cursor < req.assigned { req.una.distance_from(self.sq.get(req.cursor).first_psn) } else { 0 };
        }
    }

    /// Requests a missing response again, but only once for each value of `una`.
    fn ask_again(&mut self, core: &mut Commons) {
        if self.req.implied_nak == Some(self.req.una) {
            return;
        }
        self.req.implied_nak = Some(self.req.una);
        core.counters.implied_nak_seq_err += 1;
        let round_trip_ns = self.req.round_trip_ns;
        core.inbound.lost(core.now_ns, round_trip_ns);
        self.rewind(core);
    }
}
