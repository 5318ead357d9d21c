//! Answers of one queue pair, judged with the requests of the opposite stream.

use doorbell_wire::{AethRepr, NakCode, PacketOperation, Psn, SyndromeKind};

use super::findings::{Draft, Drafts, Needs, Settled};
use super::packet::{Packet, Place};
use super::requests::{Requests, Sent, name, payload_of_path};
use super::rules::RuleId;

/// Distance beyond the newest request from which an answer has a PSN that was never sent. Capturers may hold back a few
/// requests, but not that many.
const FAR_BEYOND: u32 = 64;

/// READ response packet that came last.
#[derive(Clone, Copy, Debug)]
struct LastResponse {
    psn: Psn,
    is_end: bool,
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// [`Requests::generation`] of the judged answers.
    generation: u32,
    /// MSN minus the number of messages that the captured requests had ended.
    msn_base: Settled<u32>,
    credits_limited: Settled<bool>,
    mtu: Settled<u32>,
    last: Option<LastResponse>,
    /// Newest PSN of an ACK.
    acknowledged: Option<Psn>,
    /// ACK of a PSN that was not captured before.
    early: Option<(Psn, Place)>,
}

impl Answers {
    /// Judges the fields that need no request.
    pub(super) fn look(&mut self, packet: &Packet<'_>, drafts: &mut Drafts) {
        if packet.operation() == Some(PacketOperation::ReadResponse) {
            payload_of_path(&mut self.mtu, packet, drafts);
        }
        drafts.judged(RuleId::AckRequest);
        if packet.bth.ack_request {
            let found = format!("the bit is set in {}", packet.bth.opcode);
            drafts.add(RuleId::AckRequest, packet.place, "no request for an acknowledgement".to_owned(), found);
        }
        let Some(aeth) = packet.aeth() else {
            if packet.bth.opcode.has_aeth() {
                drafts.unjudged(RuleId::Syndrome);
            }
            return;
        };
        drafts.judged(RuleId::Syndrome);
        let is_plain = packet.operation() == Some(PacketOperation::Acknowledge);
        match aeth.syndrome.kind() {
            SyndromeKind::Ack { credits } => {
                if let Some((limited, _, place)) = self.credits_limited.see(credits != 31, packet.place) {
                    let kind = |limited| if limited { "a number of credits" } else { "unlimited credits" };
                    drafts.add(RuleId::Credits, place, kind(limited).to_owned(), kind(!limited).to_owned());
                }
                drafts.judged(RuleId::Credits);
            }
            SyndromeKind::RnrNak { .. } if is_plain => {}
            SyndromeKind::Nak(code) if is_plain && code.0 <= NakCode::INVALID_RD_REQUEST.0 => {}
            SyndromeKind::Unknown(_) | SyndromeKind::Nak(_) | SyndromeKind::RnrNak { .. } => {
                let expected = if is_plain { "an ACK, an RNR NAK or a NAK of codes 0 to 4" } else { "an ACK" };
                let found = format!("syndrome 0x{:02x} in {}", aeth.syndrome.0, packet.bth.opcode);
                drafts.add(RuleId::Syndrome, packet.place, expected.to_owned(), found);
            }
        }
    }

    /// Judges an answer with the requests that it belongs to.
    pub(super) fn judge(&mut self, packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let generation = requests.generation();
        if self.generation != generation {
            let Self { credits_limited, mtu, .. } = *self;
            *self = Self { generation, credits_limited, mtu, ..Self::default() };
        }
        let Some(beyond) = requests.beyond(psn) else {
            drafts.judged(RuleId::Unsent);
            self.settle_early(psn, requests, drafts);
            match packet.operation() {
                Some(PacketOperation::Acknowledge) => self.acknowledge(packet, requests, drafts),
                Some(PacketOperation::ReadResponse) => self.read_response(packet, requests, drafts),
                Some(PacketOperation::AtomicAcknowledge) => Self::atomic_response(packet, requests, drafts),
                _ => {}
            }
            return;
        };
        if requests.is_jumping() {
            drafts.unjudged(RuleId::Unsent);
        } else if beyond >= FAR_BEYOND {
            drafts.push(unsent(psn, packet.place));
        } else {
            self.early = Some((psn, packet.place));
        }
    }

    /// Reports an answer beyond the newest request, once a later answer shows that the responder was not that far.
    fn settle_early(&mut self, psn: Psn, requests: &Requests, drafts: &mut Drafts) {
        let Some((early, place)) = self.early else { return };
        if requests.beyond(early).is_none() {
            self.early = None;
        } else if psn.is_before(early) {
            drafts.push(unsent(early, place));
            self.early = None;
        }
    }

    fn acknowledge(&mut self, packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let Some(aeth) = packet.aeth() else { return };
        match aeth.syndrome.kind() {
            SyndromeKind::Ack { .. } => {
                self.message_number(psn, &aeth, packet.place, requests, drafts);
                if self.acknowledged.is_none_or(|known| known.is_before(psn)) {
                    self.acknowledged = Some(psn);
                }
                requests.answered(psn.next());
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                self.message_number(psn.sub(1), &aeth, packet.place, requests, drafts);
                self.missing(packet, requests, drafts);
                requests.answered(psn);
                requests.nak(psn, packet.place);
            }
            SyndromeKind::RnrNak { timer } => {
                self.message_number(psn.sub(1), &aeth, packet.place, requests, drafts);
                requests.answered(psn);
                // The network may lose an RNR NAK after the responder has captured it. The requester then repeats the
                // request after its own timeout.
                if packet.is_outbound {
                    drafts.unjudged(RuleId::Rnr);
                } else {
                    requests.rnr(psn, timer, packet.place);
                }
            }
            _ => requests.answered(psn),
        }
    }

    /// Judges the MSN of an answer that acknowledges everything up to `psn`.
    fn message_number(&mut self, psn: Psn, aeth: &AethRepr, place: Place, requests: &Requests, drafts: &mut Drafts) {
        let Some(messages) = requests.messages_up_to(psn) else {
            drafts.unjudged(RuleId::Msn);
            return;
        };
        drafts.judged(RuleId::Msn);
        let base = aeth.msn.get().wrapping_sub(messages) & Psn::MASK;
        if let Some((settled, odd, place)) = self.msn_base.see(base, place) {
            let off = odd.wrapping_sub(settled) & Psn::MASK;
            let off = if off < 1 << 23 { i64::from(off) } else { i64::from(off) - (1 << 24) };
            let expected = "the count of messages that the answers before and after have".to_owned();
            drafts.push(Draft {
                rule: RuleId::Msn,
                place,
                related: None,
                needs: Needs::PeerRequests,
                expected,
                found: format!("an MSN that differs by {off}"),
            });
        }
    }

    /// Judges a NAK for a missing packet. A packet that was sent once and is acknowledged cannot be missing.
    fn missing(&mut self, packet: &Packet<'_>, requests: &Requests, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let Some(sent) = requests.exactly(psn).filter(|sent| sent.times == 1 && packet.faults.is_empty()) else {
            drafts.unjudged(RuleId::Nak);
            return;
        };
        drafts.judged(RuleId::Nak);
        if let Some(acknowledged) = self.acknowledged.filter(|acknowledged| !acknowledged.is_before(psn)) {
            let places = (packet.place, sent.place.packet);
            let expected = format!("a PSN after the acknowledged {acknowledged}");
            drafts.relate(RuleId::Nak, places, Needs::PeerRequests, expected, format!("PSN {psn}"));
        }
    }

    fn read_response(&mut self, packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
        let (opcode, psn) = (packet.bth.opcode, packet.bth.psn);
        let last = self.last.replace(LastResponse { psn, is_end: opcode.is_last() });
        let is_reread = requests.is_reread(psn);
        let is_incomplete = requests.is_incomplete();
        requests.answered(psn);
        requests.learn_mtu(self.mtu.get());
        let sent = requests.covering(psn).filter(|_| !is_incomplete).copied();
        let is_read = |sent: &Sent| sent.opcode.operation() == Some(PacketOperation::ReadRequest);
        let Some(sent) = sent.filter(|sent| sent.target.is_some() || !is_read(sent)) else {
            drafts.unjudged(RuleId::ReadResponse);
            return;
        };
        let places = (packet.place, sent.place.packet);
        let mut report = |expected: String, found: String| {
            drafts.relate(RuleId::ReadResponse, places, Needs::PeerRequests, expected, found);
        };
        if !is_read(&sent) {
            if sent.psn == psn {
                let was = sent.opcode.operation().map_or("request", name);
                report(format!("another answer to the {was} with PSN {psn}"), opcode.to_string());
            }
            return;
        }
        let length = sent.target.map_or(0, |(_, length)| length);
        let payload = u64::from(packet.payload_bytes());
        let index = u64::from(psn.distance_from(sent.psn));
        let is_start = sent.psn == psn || is_reread;
        let mtu = self.mtu.get().map(u64::from);
        if opcode.is_last() {
            // The bytes of the packets before need the path MTU, which a response of one packet does not show.
            let before = if index == 0 { Some(0) } else { mtu.map(|mtu| index * mtu) };
            if let Some(before) = before
                && before.checked_add(payload) != Some(length)
            {
                let found = format!("{payload} bytes in {opcode}, {before} bytes after the start");
                report(format!("the end of a READ of {length} bytes"), found);
            }
        } else if (index + 1) * payload >= length {
            let found = format!("{opcode} with {payload} bytes at packet {} of the response", index + 1);
            report(format!("the last packet of a READ of {length} bytes"), found);
        }
        if let Some(last) = last.filter(|last| last.psn.next() == psn) {
            if opcode.is_first() && !is_start && !last.is_end {
                report("a middle or last packet of the response".to_owned(), opcode.to_string());
            }
            if !opcode.is_first() && last.is_end {
                report("the first packet of a response".to_owned(), opcode.to_string());
            }
        }
        drafts.judged(RuleId::ReadResponse);
    }

    fn atomic_response(packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let is_incomplete = requests.is_incomplete();
        requests.answered(psn);
        let covering = requests.covering(psn).filter(|sent| sent.psn == psn && !is_incomplete);
        let (Some(sent), Some(original)) = (covering, packet.original()) else {
            drafts.unjudged(RuleId::Atomic);
            return;
        };
        drafts.judged(RuleId::Atomic);
        let places = (packet.place, sent.place.packet);
        let operation = sent.opcode.operation();
        if !matches!(operation, Some(PacketOperation::CompareSwap | PacketOperation::FetchAdd)) {
            let was = operation.map_or("request", name);
            let expected = format!("another answer to the {was} with PSN {psn}");
            drafts.relate(RuleId::Atomic, places, Needs::PeerRequests, expected, packet.bth.opcode.to_string());
            return;
        }
        match sent.answer {
            Some(first) if first != original => {
                let found = format!("0x{original:x}");
                let expected = format!("0x{first:x}, the value of the first response");
                drafts.relate(RuleId::Atomic, places, Needs::PeerRequests, expected, found);
            }
            _ => sent.answer = Some(original),
        }
    }
}

fn unsent(psn: Psn, place: Place) -> Draft {
    Draft {
        rule: RuleId::Unsent,
        place,
        related: None,
        needs: Needs::PeerRequests,
        expected: "a PSN that the requester has sent".to_owned(),
        found: format!("PSN {psn}"),
    }
}
