//! Answers of the node (IBTA Vol 1, 9.7.5).

use doorbell_wire::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, AethPacket, AethRepr, AtomicAckEthRepr, BTH_LEN, BthPacket, BthRepr, NakCode, Outer,
    PacketOperation, Psn, SyndromeKind, rnr_timer_ns,
};

use super::{Steer, owner};
use crate::message::{Answer, Kind, Message};
use crate::output::Path;

impl Steer {
    pub(super) fn handle_response(
        &mut self,
        now_ns: u64,
        outer: &Outer,
        packet: &[u8],
        bth: &BthRepr,
        operation: PacketOperation,
    ) {
        let aeth = packet.get(BTH_LEN..).and_then(|rest| rest.first_chunk::<AETH_LEN>()).map(AethRepr::read);
        match (operation, aeth) {
            (PacketOperation::Acknowledge, Some(aeth)) => self.handle_acknowledge(now_ns, bth.psn, aeth),
            (PacketOperation::AtomicAcknowledge, Some(_)) => {
                let rest = packet[BTH_LEN + AETH_LEN..].first_chunk::<ATOMIC_ACK_ETH_LEN>();
                if let Some(header) = rest {
                    self.handle_atomic(now_ns, bth.psn, AtomicAckEthRepr::read(header).original);
                }
            }
            (PacketOperation::ReadResponse, _) => self.handle_read(now_ns, outer, packet, bth),
            _ => self.counters.unexpected += 1,
        }
    }

    fn handle_acknowledge(&mut self, now_ns: u64, psn: Psn, aeth: AethRepr) {
        let Some(node) = &self.node else { return };
        let is_next = psn == node.next_psn();
        if !node.is_outstanding(psn) {
            // The repetition of an old answer is harmless, so it does not count as unexpected.
            let is_old = psn.is_before(node.oldest());
            self.counters.unexpected += u64::from(!is_old && !is_next);
            return;
        }
        match aeth.syndrome.kind() {
            SyndromeKind::Ack { .. } => {
                self.counters.acks_in += 1;
                self.advance(now_ns, psn.next());
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                self.counters.node_naks += 1;
                self.advance(now_ns, psn);
                if let Some(node) = &mut self.node {
                    node.ask_for_rewind();
                }
            }
            SyndromeKind::RnrNak { timer } => {
                self.advance(now_ns, psn);
                if let Some(node) = &mut self.node {
                    node.pause(now_ns, rnr_timer_ns(timer));
                }
            }
            SyndromeKind::Nak(code) => {
                self.advance(now_ns, psn);
                let culprit = self.node.as_ref().and_then(|node| node.in_flight.front()).map(|message| message.qpn);
                self.fail_node(culprit.map(|qpn| (qpn, code)));
            }
            SyndromeKind::Unknown(_) => self.counters.unexpected += 1,
        }
    }

    /// Handles a packet of a READ response, and forwards it with the client's queue pair number, PSN and MSN.
    fn handle_read(&mut self, now_ns: u64, outer: &Outer, packet: &[u8], bth: &BthRepr) {
        if !self.reach(now_ns, bth.psn) {
            return;
        }
        let mtu = self.mtu();
        let from = self.config.address;
        let Some(node) = &mut self.node else { return };
        let Some(message) = node.in_flight.front_mut() else { return };
        let (index, left) = (message.done, message.length as usize - message.done as usize * mtu);
        let payload = packet.len() - BTH_LEN - bth.opcode.extension_len() - usize::from(bth.pad_count);
        let is_last = index + 1 == message.packets;
        let is_expected = message.kind == Kind::Read
            && payload == left.min(mtu)
            && bth.opcode.is_first() == (index == 0)
            && bth.opcode.is_last() == is_last;
        if !is_expected {
            self.counters.unexpected += 1;
            return;
        }
        message.done += 1;
        if let Some(client) = owner(&mut self.clients, message)
            && (message.again || !client.is_repeating())
        {
            let Outer { traffic_class, hop_limit, .. } = *outer;
            let path = Path { source: from, destination: client.peer.address, traffic_class, hop_limit };
            let out = self.out.push(path, packet);
            let mut head = BthPacket::new_unchecked(&mut out[..]);
            head.set_dest_qpn(client.peer.qpn);
            head.set_psn(message.psn.add(index));
            if bth.opcode.has_aeth() {
                AethPacket::new_unchecked(&mut out[BTH_LEN..]).set_msn(message.msn);
            }
        }
        let done = is_last.then(|| node.retire()).flatten();
        node.progress(now_ns);
        if let Some(message) = done {
            self.complete(message, None);
        }
    }

    fn handle_atomic(&mut self, now_ns: u64, psn: Psn, original: u64) {
        if !self.reach(now_ns, psn) {
            return;
        }
        let Some(node) = &mut self.node else { return };
        let front = node.in_flight.front().map(|message| message.kind);
        if !matches!(front, Some(Kind::CompareSwap { .. } | Kind::FetchAdd { .. })) {
            self.counters.unexpected += 1;
            return;
        }
        let done = node.retire();
        node.progress(now_ns);
        if let Some(message) = done {
            self.complete(message, Some(original));
        }
    }

    /// Handles the PSN of a response, which also answers all earlier requests. Returns false if an earlier response was
    /// lost, or if no outstanding request has this PSN.
    fn reach(&mut self, now_ns: u64, psn: Psn) -> bool {
        if !self.node.as_ref().is_some_and(|node| node.is_outstanding(psn)) {
            return false;
        }
        self.advance(now_ns, psn);
        let Some(node) = &mut self.node else { return false };
        let is_oldest = node.oldest() == psn && node.in_flight.front().is_some_and(Message::has_response);
        if !is_oldest && node.lost_response() {
            self.counters.lost_responses += 1;
        }
        is_oldest
    }

    /// Records that all requests before the PSN `to` are answered. If an unanswered READ or atomic is among them, its
    /// response was lost (IBTA Vol 1, 9.7.5.2.8), and the box requests the response again.
    fn advance(&mut self, now_ns: u64, to: Psn) {
        let mut has_moved = false;
        while let Some(node) = &mut self.node
            && let Some(front) = node.in_flight.front_mut()
            && front.node_psn.add(front.done).is_before(to)
        {
            if front.has_response() {
                if node.lost_response() {
                    self.counters.lost_responses += 1;
                }
                break;
            }
            let upto = to.distance_from(front.node_psn).min(front.packets);
            has_moved |= upto > front.done;
            if upto < front.packets {
                front.done = front.done.max(upto);
                break;
            }
            if let Some(message) = node.retire() {
                self.complete(message, None);
            }
        }
        if has_moved && let Some(node) = &mut self.node {
            node.progress(now_ns);
        }
    }

    /// Records that the node has answered a request, and sends the answer to the client. `original` is the value that
    /// an atomic found.
    fn complete(&mut self, message: Message, original: Option<u64>) {
        let from = self.config.address;
        self.learn_from(&message, original);
        let answer = match (message.answer, message.kind, original) {
            (Answer::Converted { prior }, ..) => Some(prior),
            (Answer::Steered, Kind::CompareSwap { compare, .. }, Some(original)) => {
                Some(self.seen_by_client(compare, original))
            }
            (_, _, original) => original,
        };
        if message.has_response() {
            self.ready.append(&mut self.response_waiters);
        }
        if let Some(client) = owner(&mut self.clients, &message) {
            client.held_bytes -= message.held;
            if message.again {
                client.repeated();
            } else {
                client.completed(&message);
                match answer {
                    Some(value) => {
                        client.keep_result(message.psn, value);
                        client.answer_atomic(message.psn, value, from, &mut self.out);
                    }
                    None if message.kind == Kind::Write => client.want_ack(),
                    None => {}
                }
            }
            let slot = message.slot;
            self.touch(slot);
        }
        self.release(message);
    }

    /// Returns the value that a client gets for a steered CAS: the word at the actual node. If a failed CAS found a
    /// word that marks a last node, this word would look like success to the client. So the client gets zero instead.
    pub(super) fn seen_by_client(&self, compared: u64, original: u64) -> u64 {
        let looks_like_success = self.steering.as_ref().is_none_or(|steering| steering.is_tail(original));
        if original != compared && looks_like_success { 0 } else { original }
    }
}
