//! Answers of one queue pair, judged with the requests of the opposite stream.

use std::collections::VecDeque;

use doorbell_wire::{AethRepr, NakCode, Opcode, PacketOperation, Psn, SyndromeKind};

use super::Limits;
use super::findings::{Draft, Drafts, Needs, Settled};
use super::packet::{Packet, Place};
use super::requests::{Requests, payload_of_path};
use super::rules::RuleId;
use super::sent::{Sent, name};

/// Distance beyond the newest request from which an answer probably has a PSN that was never sent. Capturers may hold
/// back a few requests, but not that many, unless the file has the directions one after the other.
const FAR_BEYOND: u32 = 64;
/// Maximum number of answers far beyond the newest request that wait for that request.
const MAX_FAR: usize = 256;

/// Bytes that an atomic changes. Its address is a multiple of them.
const ATOMIC_BYTES: u64 = 8;

/// READ response packet that came last.
#[derive(Clone, Copy, Debug)]
struct LastResponse {
    psn: Psn,
    opcode: Opcode,
}

/// MSNs minus the numbers of messages that the captured requests had ended. The difference is constant.
#[derive(Debug, Default)]
struct MessageNumbers {
    base: Option<u32>,
    /// Difference of the newest answer, if it is not `base`.
    odd: Option<u32>,
    /// Difference of the newest deviating answer to a repeated request, which may belong to a new connection.
    repeated: Option<u32>,
    /// Finding that waits for the next answer. A new connection drops it.
    pending: Option<Draft>,
}

impl MessageNumbers {
    /// Records the difference of an answer. Returns the change since the answers before, modulo 2^24. The second answer
    /// in a row with the same deviation makes it the base.
    fn see(&mut self, base: u32) -> Option<u32> {
        let known = *self.base.get_or_insert(base);
        if base == known {
            self.odd = None;
            return None;
        }
        if self.odd == Some(base) || self.repeated == Some(base) {
            (self.base, self.odd) = (Some(base), None);
            return None;
        }
        self.odd = Some(base);
        Some(base.wrapping_sub(known) & Psn::MASK)
    }
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// [`Requests::generation`] of the judged answers.
    generation: u32,
    message_numbers: MessageNumbers,
    credits_limited: Settled<bool>,
    mtu: Settled<u32>,
    last: Option<LastResponse>,
    /// Newest PSN of a response, if the capture is complete.
    newest_response: Option<Psn>,
    /// Newest PSN of an ACK, with its MSN.
    acknowledged: Option<(Psn, u32)>,
    /// PSN that a NAK refused, and that NAK.
    refused: Option<(Psn, Place)>,
    /// ACK of a PSN that was not captured before.
    early: Option<(Psn, Place)>,
    /// First answer of the stream.
    pub(super) first: Option<(Psn, Place)>,
    /// Answers far beyond the newest request, whose requests may come later in the file.
    far: VecDeque<(Psn, Place)>,
}

impl Answers {
    /// Judges the fields that need no request.
    pub(super) fn look(&mut self, packet: &Packet<'_>, drafts: &mut Drafts) {
        self.first.get_or_insert((packet.bth.psn, packet.place));
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

    /// Forgets the answers to another stream of requests.
    pub(super) fn start_anew(&mut self, generation: u32) {
        let (credits_limited, first) = (self.credits_limited, self.first);
        *self = Self { generation, credits_limited, first, ..Self::default() };
    }

    /// Returns whether an answer with this PSN probably belongs to other requests.
    pub(super) fn is_foreign(requests: &Requests, psn: Psn) -> bool {
        !requests.has_sent(psn) && requests.beyond(psn).is_none_or(|beyond| beyond >= FAR_BEYOND)
    }

    /// Judges the length of an answer.
    pub(super) fn length(&mut self, packet: &Packet<'_>, drafts: &mut Drafts) {
        if packet.operation() == Some(PacketOperation::ReadResponse) {
            payload_of_path(&mut self.mtu, packet, drafts);
        }
    }

    /// Judges an answer with the requests that it belongs to.
    pub(super) fn judge(&mut self, packet: &Packet<'_>, requests: &mut Requests, limits: &Limits, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let generation = requests.generation();
        if self.generation != generation {
            self.start_anew(generation);
        }
        if requests.is_jumping() {
            drafts.unjudged(RuleId::Mtu);
        } else {
            self.length(packet, drafts);
        }
        let is_first = self.first.is_some_and(|(_, first)| first.packet == packet.place.packet);
        requests.judge_from(packet.place.packet, is_first);
        let Some(beyond) = requests.beyond(psn) else {
            drafts.judged(RuleId::Unsent);
            if limits.complete {
                drafts.judged(RuleId::Captured);
                self.in_order(packet, requests, drafts);
            }
            self.settle_early(psn, requests, drafts);
            self.settle_far(Some(psn), requests, drafts);
            if limits.complete && packet.bth.opcode.is_last() {
                respond(packet, requests, drafts);
            }
            match packet.operation() {
                Some(PacketOperation::Acknowledge) => self.acknowledge(packet, requests, limits, drafts),
                Some(PacketOperation::ReadResponse) => self.read_response(packet, requests, drafts),
                Some(PacketOperation::AtomicAcknowledge) => Self::atomic_response(packet, requests, drafts),
                _ => {}
            }
            let numbers = &self.message_numbers;
            let base = numbers.base.filter(|_| numbers.odd.is_none());
            if let Some(aeth) = packet.aeth().filter(|_| limits.complete) {
                requests.grant(base, &aeth, packet.place);
            }
            return;
        };
        if let Some(aeth) = packet.aeth().filter(|_| limits.complete) {
            requests.grant(None, &aeth, packet.place);
        }
        if requests.is_jumping() {
            drafts.unjudged(RuleId::Unsent);
        } else if beyond >= FAR_BEYOND {
            if self.far.len() == MAX_FAR {
                self.far.pop_front();
                drafts.unjudged(RuleId::Unsent);
            }
            self.far.push_back((psn, packet.place));
        } else {
            self.early = Some((psn, packet.place));
        }
    }

    /// Judges whether a response comes after the response to a later request, although its request came once.
    fn in_order(&mut self, packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
        let (psn, operation) = (packet.bth.psn, packet.operation());
        if !matches!(operation, Some(PacketOperation::ReadResponse | PacketOperation::AtomicAcknowledge)) {
            return;
        }
        let Some(sent) = requests.covering(psn).filter(|sent| sent.takes_response()) else { return };
        drafts.judged(RuleId::ResponseOrder);
        match self.newest_response {
            Some(newest) if psn.is_before(newest) => {
                if sent.requests() == 1 {
                    let places = (packet.place, sent.place.packet);
                    let expected = format!("PSN {psn} before PSN {newest}, in the order of the requests");
                    let found = "the response after that one".to_owned();
                    drafts.relate(RuleId::ResponseOrder, places, Needs::PeerRequests, expected, found);
                }
            }
            _ => self.newest_response = Some(psn),
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

    /// Drops answers far beyond the newest request if their requests came later. Reports them once a later answer with
    /// the smaller PSN `psn` shows that the responder was not that far, and at the end of the capture.
    fn settle_far(&mut self, psn: Option<Psn>, requests: &Requests, drafts: &mut Drafts) {
        self.far.retain(|&(far, place)| {
            if requests.beyond(far).is_none() || requests.is_out_of_order(place) {
                drafts.unjudged(RuleId::Unsent);
                return false;
            }
            let is_unsent = psn.is_none_or(|psn| psn.is_before(far) && requests.is_later(place));
            if is_unsent {
                drafts.push(unsent(far, place));
            }
            !is_unsent
        });
    }

    fn acknowledge(&mut self, packet: &Packet<'_>, requests: &mut Requests, limits: &Limits, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let Some(aeth) = packet.aeth() else { return };
        match aeth.syndrome.kind() {
            SyndromeKind::Ack { .. } => {
                self.accept(packet, requests, limits, drafts);
                self.message_number(psn, &aeth, packet.place, requests, limits, drafts);
                if self.acknowledged.is_none_or(|(known, _)| known.is_before(psn)) {
                    self.acknowledged = Some((psn, aeth.msn.get()));
                }
                requests.answered(psn.next(), packet.place);
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                self.message_number(psn.sub(1), &aeth, packet.place, requests, limits, drafts);
                self.missing(packet, &aeth, requests, drafts);
                if limits.complete {
                    after_gap(packet, requests, drafts);
                    one_nak(packet, requests, drafts);
                }
                requests.answered(psn, packet.place);
                requests.nak(psn, packet.place);
            }
            SyndromeKind::RnrNak { timer } => {
                self.message_number(psn.sub(1), &aeth, packet.place, requests, limits, drafts);
                requests.answered(psn, packet.place);
                requests.rnr(psn, timer, packet.place, packet.is_outbound);
            }
            kind => {
                requests.answered(psn, packet.place);
                // A duplicate may be refused although the request was acknowledged before.
                let is_first = requests.exactly(psn).is_some_and(|sent| sent.times == 1);
                if matches!(kind, SyndromeKind::Nak(_)) {
                    requests.refuse();
                }
                if is_first && matches!(kind, SyndromeKind::Nak(_)) {
                    self.refused.get_or_insert((psn, packet.place));
                }
            }
        }
    }

    /// Judges whether an ACK acknowledges a refused request.
    fn accept(&mut self, packet: &Packet<'_>, requests: &Requests, limits: &Limits, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let Some((refused, nak)) = self.refused.take_if(|(refused, _)| !psn.is_before(*refused)) else {
            drafts.judged(RuleId::Refused);
            return;
        };
        // A new connection may repeat the requests of the last one.
        if !limits.complete && requests.exactly(refused).is_none_or(|sent| sent.times > 1) {
            drafts.unjudged(RuleId::Refused);
            return;
        }
        drafts.judged(RuleId::Refused);
        let expected = format!("a PSN before the refused {refused}");
        let found = format!("an acknowledgement of PSN {psn}");
        drafts.relate(RuleId::Refused, (packet.place, nak.packet), Needs::PeerRequests, expected, found);
    }

    /// Judges the MSN of an answer that acknowledges everything up to `psn`.
    fn message_number(
        &mut self,
        psn: Psn,
        aeth: &AethRepr,
        place: Place,
        requests: &Requests,
        limits: &Limits,
        drafts: &mut Drafts,
    ) {
        let Some(messages) = requests.messages_up_to(psn) else {
            drafts.unjudged(RuleId::Msn);
            return;
        };
        self.confirm_message_number(drafts);
        let base = aeth.msn.get().wrapping_sub(messages) & Psn::MASK;
        let numbers = &mut self.message_numbers;
        let is_repeated = requests.exactly(psn).is_some_and(|sent| sent.times > 1);
        if is_repeated
            && let Some(known) = numbers.base.filter(|known| *known != base)
            && !(limits.complete && exceeds(aeth.msn.get(), known, requests.messages()))
        {
            // A new connection that repeats the requests of the last one counts from 0 again. The answer to a duplicate
            // may also have the count of all messages so far.
            numbers.repeated = Some(base);
            drafts.unjudged(RuleId::Msn);
            return;
        }
        drafts.judged(RuleId::Msn);
        if let Some(off) = numbers.see(base) {
            let off = if off < 1 << 23 { i64::from(off) } else { i64::from(off) - (1 << 24) };
            numbers.pending = Some(Draft {
                rule: RuleId::Msn,
                place,
                related: None,
                needs: Needs::PeerRequests,
                expected: "the count of messages that the answers before have".to_owned(),
                found: format!("an MSN that differs by {off}"),
            });
        }
    }

    fn confirm_message_number(&mut self, drafts: &mut Drafts) {
        if let Some(draft) = self.message_numbers.pending.take() {
            drafts.push(draft);
        }
    }

    /// Reports the findings that waited for further packets.
    pub(super) fn finish(&mut self, requests: &Requests, drafts: &mut Drafts) {
        if self.generation == requests.generation() {
            self.confirm_message_number(drafts);
            self.settle_far(None, requests, drafts);
        }
    }

    /// Judges a NAK for a missing packet. A packet that was sent once and is acknowledged cannot be missing.
    fn missing(&mut self, packet: &Packet<'_>, aeth: &AethRepr, requests: &Requests, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let Some(sent) = requests.exactly(psn).filter(|sent| sent.times == 1 && packet.faults.is_empty()) else {
            drafts.unjudged(RuleId::Nak);
            return;
        };
        // A NAK from before the ACK, which the network has delayed, has the MSN of that time.
        let is_delayed = |msn: u32| match msn.wrapping_sub(aeth.msn.get()) & Psn::MASK {
            0 => !sent.opcode.is_last(),
            ahead => ahead < 1 << 23,
        };
        let acknowledged = self.acknowledged.filter(|(acknowledged, _)| !acknowledged.is_before(psn));
        if acknowledged.is_some_and(|(_, msn)| is_delayed(msn)) {
            drafts.unjudged(RuleId::Nak);
            return;
        }
        drafts.judged(RuleId::Nak);
        if let Some((acknowledged, _)) = acknowledged {
            let places = (packet.place, sent.place.packet);
            let expected = format!("a PSN after the acknowledged {acknowledged}");
            drafts.relate(RuleId::Nak, places, Needs::PeerRequests, expected, format!("PSN {psn}"));
        }
    }

    fn read_response(&mut self, packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
        let (opcode, psn) = (packet.bth.opcode, packet.bth.psn);
        let last = self.last.replace(LastResponse { psn, opcode });
        let is_reread = requests.is_reread(psn);
        let is_incomplete = requests.is_incomplete();
        requests.answered(psn, packet.place);
        requests.recovery.received(psn.next(), packet.place);
        requests.learn_mtu(self.mtu.get());
        if opcode.is_last() {
            requests.end_of_read(psn, packet.has_known_payload().then(|| packet.payload_bytes()));
        }
        let sent = requests.covering(psn).filter(|_| !is_incomplete).copied();
        let is_read = |sent: &Sent| sent.opcode.operation() == Some(PacketOperation::ReadRequest);
        let is_judgeable = |sent: &Sent| packet.has_known_payload() && sent.target.is_some() || !is_read(sent);
        let Some(sent) = sent.filter(is_judgeable) else {
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
        if let Some(last) = last.filter(|last| last.psn == psn && last.opcode != opcode)
            && !is_start
            && sent.times == 1
        {
            report(format!("one packet for PSN {psn}, which was {}", last.opcode), opcode.to_string());
        }
        if let Some(last) = last.filter(|last| last.psn.next() == psn) {
            if opcode.is_first() && !is_start && !last.opcode.is_last() {
                report("a middle or last packet of the response".to_owned(), opcode.to_string());
            }
            if !opcode.is_first() && last.opcode.is_last() {
                report("the first packet of a response".to_owned(), opcode.to_string());
            }
        }
        drafts.judged(RuleId::ReadResponse);
    }

    fn atomic_response(packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let is_incomplete = requests.is_incomplete();
        requests.answered(psn, packet.place);
        requests.recovery.received(psn.next(), packet.place);
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
        if let Some((address, _)) = sent.target {
            drafts.judged(RuleId::Alignment);
            if !address.is_multiple_of(ATOMIC_BYTES) {
                let expected = format!("a NAK for the address 0x{address:x}");
                drafts.relate(RuleId::Alignment, places, Needs::PeerRequests, expected, packet.bth.opcode.to_string());
            }
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

/// Returns whether an MSN counts more messages than the requester has sent. `base` is the MSN before the first of them.
fn exceeds(msn: u32, base: u32, messages: u32) -> bool {
    let beyond = msn.wrapping_sub(base).wrapping_sub(messages) & Psn::MASK;
    beyond != 0 && beyond < 1 << 23
}

/// Judges whether a packet has shown the responder that the one before it is missing.
fn after_gap(packet: &Packet<'_>, requests: &Requests, drafts: &mut Drafts) {
    let psn = packet.bth.psn;
    if requests.is_jumping() {
        drafts.unjudged(RuleId::Nak);
    } else if !requests.has_later(psn) {
        drafts.push(Draft {
            rule: RuleId::Nak,
            place: packet.place,
            related: None,
            needs: Needs::PeerRequests,
            expected: format!("a request with a PSN after {psn} before the NAK for it"),
            found: "a NAK after the newest request".to_owned(),
        });
    }
}

/// Judges whether a NAK for a missing packet comes twice without a transmission of the packet between.
fn one_nak(packet: &Packet<'_>, requests: &Requests, drafts: &mut Drafts) {
    let psn = packet.bth.psn;
    drafts.judged(RuleId::OneNak);
    if let Some(first) = requests.recovery.same_nak(psn) {
        let expected = format!("PSN {psn} again before the next NAK for it");
        let found = "a second NAK".to_owned();
        drafts.relate(RuleId::OneNak, (packet.place, first.packet), Needs::PeerRequests, expected, found);
    }
}

/// Judges the number of responses to a READ or atomic.
fn respond(packet: &Packet<'_>, requests: &mut Requests, drafts: &mut Drafts) {
    let is_of = |operation| match operation {
        Some(PacketOperation::ReadRequest) => packet.operation() == Some(PacketOperation::ReadResponse),
        Some(PacketOperation::CompareSwap | PacketOperation::FetchAdd) => {
            packet.operation() == Some(PacketOperation::AtomicAcknowledge)
        }
        _ => false,
    };
    let sent = requests.covering(packet.bth.psn).filter(|sent| is_of(sent.opcode.operation()));
    let Some(sent) = sent else { return };
    drafts.judged(RuleId::OneResponse);
    if let Some((responses, times)) = sent.respond() {
        let places = (packet.place, sent.place.packet);
        let expected = format!("at most {times} responses, since the request came {times} times");
        let found = format!("response {responses}");
        drafts.relate(RuleId::OneResponse, places, Needs::PeerRequests, expected, found);
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
