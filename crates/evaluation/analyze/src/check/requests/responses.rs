//! READs and atomics without a response, in a complete capture.

use super::super::findings::{Draft, Drafts, Needs};
use super::super::rules::RuleId;
use super::Requests;

impl Requests {
    /// Records an answer that is judged. `is_first` is whether no answer of its stream came before.
    pub(in super::super) fn judge_from(&mut self, answer: u64, is_first: bool) {
        self.judged_from.get_or_insert(if is_first { 0 } else { answer });
    }

    /// Records that the responder has ended the connection.
    pub(in super::super) fn refuse(&mut self) {
        self.is_refused = true;
    }

    /// Reports READs and atomics without a response, up to the first one that the requester has repeated. The requester
    /// may give up on that one.
    pub(super) fn report_unanswered(&self, drafts: &mut Drafts) {
        let is_waiting = |at: usize| {
            let sent = &self.sent[at];
            sent.takes_response() && sent.responses == 0 && sent.requests() > 1
        };
        (0..self.sent.len()).take_while(|&at| !is_waiting(at)).for_each(|at| self.judge_response(at, drafts));
    }

    /// Judges whether a READ or atomic has a response, if the responder has acknowledged a later request. A requester
    /// that lost the response repeats the request.
    pub(super) fn judge_response(&self, at: usize, drafts: &mut Drafts) {
        let (Some(sent), Some(next)) = (self.sent.get(at), self.sent.get(at + 1)) else { return };
        let is_judgeable = self.recovery.is_complete
            && !self.is_refused
            && sent.takes_response()
            && self.judged_from.is_some_and(|from| from < sent.place.packet)
            && self.acknowledged.is_some_and(|end| next.psn.is_before(end));
        if !is_judgeable {
            return;
        }
        drafts.judged(RuleId::ResponseOrder);
        if sent.responses == 0 && sent.requests() == 1 {
            drafts.push(Draft {
                rule: RuleId::ResponseOrder,
                place: sent.place,
                related: None,
                needs: Needs::Requests,
                expected: format!("a response to the {} with PSN {}", sent.opcode, sent.psn),
                found: "answers to later requests only".to_owned(),
            });
        }
    }
}
