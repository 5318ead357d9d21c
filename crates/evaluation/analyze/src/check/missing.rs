//! PSNs that a requester skipped in a complete capture.

use std::collections::VecDeque;

use doorbell_wire::Psn;

use super::findings::{Drafts, Needs};
use super::packet::Place;
use super::rules::RuleId;

/// Maximum number of PSNs of one gap that are remembered.
const MAX_OF_GAP: u32 = 64;
/// Maximum number of PSNs that are remembered.
const MAX: usize = 4096;

/// PSN that was skipped and has not come yet.
#[derive(Clone, Copy, Debug)]
struct Skipped {
    psn: Psn,
    /// Packet that skipped the PSN.
    place: Place,
    /// Answer that acknowledges the PSN.
    answer: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Missing(VecDeque<Skipped>);

impl Missing {
    /// Records that a packet with PSN `end` skipped the PSNs from `first` on.
    pub(super) fn add(&mut self, first: Psn, end: Psn, place: Place, drafts: &mut Drafts) {
        for step in 0..end.distance_from(first).min(MAX_OF_GAP) {
            if self.0.len() == MAX
                && let Some(oldest) = self.0.pop_front()
            {
                oldest.report(drafts);
            }
            self.0.push_back(Skipped { psn: first.add(step), place, answer: None });
        }
    }

    /// Removes the PSNs of a packet that came.
    pub(super) fn find(&mut self, first: Psn, psns: u32) {
        self.0.retain(|skipped| skipped.psn.distance_from(first) >= psns);
    }

    /// Records an answer that acknowledges everything before `end`.
    pub(super) fn acknowledge(&mut self, end: Psn, answer: Place) {
        let is_new = |skipped: &&mut Skipped| skipped.answer.is_none() && skipped.psn.is_before(end);
        for skipped in self.0.iter_mut().filter(is_new) {
            skipped.answer = Some(answer.packet);
        }
    }

    /// Reports the PSNs that were acknowledged and never came.
    pub(super) fn report(&mut self, drafts: &mut Drafts) {
        self.0.drain(..).for_each(|skipped| skipped.report(drafts));
    }
}

impl Skipped {
    fn report(self, drafts: &mut Drafts) {
        let Some(answer) = self.answer else {
            drafts.unjudged(RuleId::Captured);
            return;
        };
        let expected = format!("PSN {} before this packet, since the responder has acknowledged it", self.psn);
        let found = "no packet with this PSN".to_owned();
        drafts.relate(RuleId::Captured, (self.place, answer), Needs::Nothing, expected, found);
    }
}
