//! Repeated requests: their contents and their times.

use doorbell_wire::PacketOperation;

use super::super::Limits;
use super::super::findings::{Draft, Drafts, Needs};
use super::super::packet::Packet;
use super::super::rules::RuleId;
use super::super::sent::{Sent, difference, is_rest};
use super::{Requests, passed_ns};

/// Maximum number of repeated READ requests that are remembered.
const MAX_REREADS: usize = 64;
/// Maximum number of findings before the first answer.
const MAX_EARLY: usize = 64;

impl Requests {
    /// Judges a request whose PSN was sent before.
    pub(super) fn repeat(&mut self, packet: &Packet<'_>, limits: &Limits, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let previous = self.previous;
        let Some(at) = self.index(psn) else {
            self.length_of_payload(packet, drafts);
            drafts.unjudged(RuleId::Repeated);
            return;
        };
        let sent = self.sent[at];
        let is_read = packet.operation() == Some(PacketOperation::ReadRequest);
        if is_read {
            if self.rereads.len() == MAX_REREADS {
                self.rereads.pop_front();
            }
            self.rereads.push_back(psn);
        }
        if sent.psn != psn {
            // The rest of a READ, or a packet that was not captured when it was first sent.
            self.confirm(drafts);
            self.length_of_payload(packet, drafts);
            if is_rest(&sent, packet) {
                self.sent[at].rests = sent.rests.saturating_add(1);
            } else {
                drafts.unjudged(RuleId::Repeated);
            }
            return self.recovery.recover(packet, previous, drafts);
        }
        // The responder has acknowledged a later request, so the first transmission has arrived.
        let is_done = self.acknowledged.is_some_and(|end| psn.is_before(end));
        if is_done && !limits.complete {
            // The repeated atomic of a new connection has another value in its response.
            self.sent[at].answer = None;
        }
        if sent.payload.is_some() && packet.has_known_payload() {
            drafts.judged(RuleId::Repeated);
        } else {
            drafts.unjudged(RuleId::Repeated);
        }
        if let Some(difference) = difference(&sent, packet) {
            if limits.complete {
                self.confirm(drafts);
            }
            let is_second = self.suspect.take().is_some();
            if is_second || is_done && !limits.complete {
                // A new connection repeats the PSNs of the last one.
                self.start_anew(drafts);
                self.push_new(packet, drafts);
                return;
            }
            drafts.unjudged(RuleId::Mtu);
            self.suspect = Some(Draft {
                rule: RuleId::Repeated,
                place: packet.place,
                related: Some(sent.place.packet),
                needs: Needs::Nothing,
                expected: format!("PSN {psn} as in packet {}", sent.place.packet),
                found: difference,
            });
            return;
        }
        self.confirm(drafts);
        self.length_of_payload(packet, drafts);
        self.wait(packet, &sent, limits, drafts);
        let sent = &mut self.sent[at];
        sent.times = sent.times.saturating_add(1);
        sent.last_ns = packet.place.at_ns;
        self.recovery.recover(packet, previous, drafts);
    }

    /// Judges the times of a retransmission.
    fn wait(&mut self, packet: &Packet<'_>, sent: &Sent, limits: &Limits, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        if let Some(rnr) = self.rnr.filter(|rnr| rnr.psn == psn) {
            self.rnr = None;
            match passed_ns(rnr.place.at_ns, packet.place.at_ns) {
                Some(waited_ns) if rnr.is_certain && rnr.most_ns.is_none_or(|most_ns| waited_ns <= most_ns) => {
                    drafts.judged(RuleId::Rnr);
                    // Half of the delay allows for the times of captures.
                    if waited_ns < rnr.delay_ns / 2 {
                        let expected = format!("PSN {psn} at least {} us after the RNR NAK", rnr.delay_ns / 1000);
                        let found = format!("{} us", waited_ns / 1000);
                        drafts.relate(RuleId::Rnr, (packet.place, rnr.place.packet), Needs::Nothing, expected, found);
                    }
                }
                _ => drafts.unjudged(RuleId::Rnr),
            }
            return;
        }
        // A recovery from an earlier PSN goes on with this request.
        let continues = self.previous.is_some_and(|previous| previous.next() == psn);
        // Before the first answer, only the first request of the connection is certainly the oldest one.
        let is_opening = limits.complete && self.acknowledged.is_none() && self.opening == Some(psn);
        let is_oldest = is_opening || self.acknowledged == Some(psn);
        if !is_oldest || self.has_reads || continues {
            return;
        }
        let mut conclude = |rule, finding: Option<(String, String)>| {
            if !is_opening {
                drafts.judged(rule);
            }
            let Some((expected, found)) = finding else { return };
            let related = Some(sent.place.packet);
            let draft = Draft { rule, place: packet.place, related, needs: Needs::Nothing, expected, found };
            if !is_opening {
                drafts.push(draft);
            } else if self.early.len() < MAX_EARLY {
                self.early.push(draft);
            }
        };
        self.unanswered += 1;
        if let Some(most) = limits.retry_count {
            let is_beyond = self.unanswered > most;
            let found = || format!("repetition {} of PSN {psn} without an answer", self.unanswered);
            conclude(RuleId::Retry, is_beyond.then(|| (format!("at most {most} repetitions"), found())));
        }
        let Some(least_ns) = limits.timeout_ns.filter(|_| !self.recovery.is_waiting()) else { return };
        let Some(waited_ns) = passed_ns(sent.last_ns, packet.place.at_ns) else {
            return drafts.unjudged(RuleId::Timeout);
        };
        let expected = || format!("PSN {psn} again after {} us or more", least_ns / 1000);
        let is_early = waited_ns < least_ns;
        conclude(RuleId::Timeout, is_early.then(|| (expected(), format!("{} us", waited_ns / 1000))));
    }

    /// Reports repetitions of the first request before any answer, if the connection began with that request.
    pub(super) fn report_early(&mut self, drafts: &mut Drafts) {
        for draft in self.early.drain(..) {
            if self.is_whole == Some(true) {
                drafts.judged(draft.rule);
                drafts.push(draft);
            } else {
                drafts.unjudged(draft.rule);
            }
        }
    }
}
