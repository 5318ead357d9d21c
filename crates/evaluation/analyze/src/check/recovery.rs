//! Go-back-N: NAKs for missing packets, and the retransmissions after them.

use doorbell_wire::Psn;

use super::findings::{Draft, Drafts, Needs};
use super::packet::{Packet, Place};
use super::rules::RuleId;

/// NAK for a missing packet.
#[derive(Clone, Copy, Debug)]
struct Nak {
    psn: Psn,
    place: Place,
    /// Whether the packet was sent once before the NAK. A second transmission may be on its way.
    is_first: bool,
}

#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Whether the capture is complete.
    pub(super) is_complete: bool,
    nak: Option<Nak>,
    /// PSN at which a retransmission began that skipped the PSN of the NAK.
    skipping: Option<Place>,
    /// Finding about a skipped retransmission. If the retransmission still comes, the network has swapped packets.
    skipped: Option<Draft>,
    /// Findings that no later packet can explain.
    sure: Vec<Draft>,
}

impl Recovery {
    /// Records a NAK.
    pub(super) fn nak(&mut self, psn: Psn, place: Place, is_first: bool) {
        // The responder received the packet of the last NAK, although the requester has not sent it again.
        self.sure.extend(self.skipped.take_if(|_| self.is_complete));
        self.nak = Some(Nak { psn, place, is_first });
        self.skipping = None;
    }

    /// Returns whether a retransmission is due.
    pub(super) fn is_waiting(&self) -> bool {
        self.nak.is_some()
    }

    /// Returns an earlier NAK for the same packet, if the packet was not sent since.
    pub(super) fn same_nak(&self, psn: Psn) -> Option<Place> {
        self.nak.filter(|nak| nak.psn == psn).map(|nak| nak.place)
    }

    /// Records an answer that shows that the responder has all packets before `end`.
    pub(super) fn received(&mut self, end: Psn, answer: Place) {
        let Some(nak) = self.nak.filter(|nak| nak.psn.is_before(end)) else { return };
        if self.skipped.is_some() {
            return;
        }
        (self.nak, self.skipping) = (None, None);
        // In other captures, the network may have delayed the packet. A second transmission may have preceded the NAK.
        if self.is_complete && nak.is_first {
            self.sure.push(Draft {
                rule: RuleId::GoBackN,
                place: answer,
                related: Some(nak.place.packet),
                needs: Needs::Nothing,
                expected: format!("PSN {} again before its acknowledgement", nak.psn),
                found: format!("an acknowledgement up to PSN {}", end.sub(1)),
            });
        }
    }

    /// Reports a skipped retransmission that has not come before a new request or the end.
    pub(super) fn confirm(&mut self, drafts: &mut Drafts) {
        self.skipping = None;
        self.sure.drain(..).for_each(|draft| drafts.push(draft));
        if let Some(draft) = self.skipped.take() {
            drafts.push(draft);
            self.nak = None;
        }
    }

    /// Judges whether retransmissions start at the PSN of a NAK.
    pub(super) fn recover(&mut self, packet: &Packet<'_>, previous: Option<Psn>, drafts: &mut Drafts) {
        let psn = packet.bth.psn;
        let Some(nak) = self.nak else { return };
        if !nak.psn.is_before(psn) {
            if self.skipped.take().is_some() {
                drafts.unjudged(RuleId::GoBackN);
            } else {
                drafts.judged(RuleId::GoBackN);
            }
            (self.nak, self.skipping) = (None, None);
            return;
        }
        let continues = previous.is_some_and(|previous| previous.next() == psn);
        match self.skipping {
            // One repeated packet alone may be a probe, and a run that began before the NAK goes on for a while.
            None if !continues => self.skipping = Some(packet.place),
            Some(place) if continues && self.skipped.is_none() => {
                drafts.judged(RuleId::GoBackN);
                self.skipped = Some(Draft {
                    rule: RuleId::GoBackN,
                    place,
                    related: Some(nak.place.packet),
                    needs: Needs::Requests,
                    expected: format!("retransmission from PSN {} on", nak.psn),
                    found: format!("retransmission that skips it, up to PSN {psn}"),
                });
                self.skipping = None;
            }
            _ => self.skipping = None,
        }
    }
}
