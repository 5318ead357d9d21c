//! Findings of one stream, before the whole capture is known.

use super::packet::Place;
use super::rules::{COUNT, RuleId};

/// Maximum number of findings per stream, rule and evidence that are kept. Further findings are counted.
const MAX_DRAFTS: u64 = 64;

/// Evidence without which a finding is dropped at the end of the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    /// The packet alone is enough.
    Nothing,
    /// No request of this stream is missing.
    Requests,
    /// No request of the opposite stream is missing.
    PeerRequests,
    /// The source computes correct ICRCs in other packets.
    RightIcrcs,
}

impl Needs {
    pub(super) const ALL: [Needs; 4] = [Needs::Nothing, Needs::Requests, Needs::PeerRequests, Needs::RightIcrcs];
}

#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) rule: RuleId,
    pub(super) place: Place,
    /// Packet that the finding also concerns, such as the NAK or the first transmission.
    pub(super) related: Option<u64>,
    pub(super) needs: Needs,
    pub(super) expected: String,
    pub(super) found: String,
}

/// Findings and counts of a stream.
#[derive(Debug)]
pub(super) struct Drafts {
    pub(super) list: Vec<Draft>,
    /// Findings of each rule and evidence, with those beyond the maximum.
    pub(super) found: [[u64; Needs::ALL.len()]; COUNT],
    /// Packets that each rule judged.
    pub(super) judged: [u32; COUNT],
    /// Packets that each rule could not judge, because evidence was missing.
    pub(super) unjudged: [u32; COUNT],
}

impl Drafts {
    pub(super) fn new() -> Self {
        Self { list: Vec::new(), found: [[0; Needs::ALL.len()]; COUNT], judged: [0; COUNT], unjudged: [0; COUNT] }
    }

    /// Counts a judged packet.
    pub(super) fn judged(&mut self, rule: RuleId) {
        let count = &mut self.judged[rule as usize];
        *count = count.saturating_add(1);
    }

    /// Counts a packet that the rule could not judge.
    pub(super) fn unjudged(&mut self, rule: RuleId) {
        let count = &mut self.unjudged[rule as usize];
        *count = count.saturating_add(1);
    }

    pub(super) fn push(&mut self, draft: Draft) {
        let found = &mut self.found[draft.rule as usize][draft.needs as usize];
        *found += 1;
        if *found <= MAX_DRAFTS {
            self.list.push(draft);
        }
    }

    /// Adds a finding that needs no other packet.
    pub(super) fn add(&mut self, rule: RuleId, place: Place, expected: String, found: String) {
        self.push(Draft { rule, place, related: None, needs: Needs::Nothing, expected, found });
    }

    /// Adds a finding that concerns another packet too.
    pub(super) fn relate(&mut self, rule: RuleId, places: (Place, u64), needs: Needs, expected: String, found: String) {
        self.push(Draft { rule, place: places.0, related: Some(places.1), needs, expected, found });
    }
}

/// Value that all packets of a stream share, except after a lasting change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled<T> {
    value: Option<T>,
    seen: u32,
    odd: Option<(T, Place)>,
}

impl<T> Default for Settled<T> {
    fn default() -> Self {
        Self { value: None, seen: 0, odd: None }
    }
}

impl<T: Copy + PartialEq> Settled<T> {
    /// Returns the value, if at least two packets had it and the newest packet had it too.
    pub(super) fn get(&self) -> Option<T> {
        self.value.filter(|_| self.seen >= 2 && self.odd.is_none())
    }

    /// Records the value of a packet. Returns the settled value, and value and place of the last deviating packet, if
    /// no other packet had its value. Two deviating packets in a row with one value change the settled value.
    pub(super) fn see(&mut self, value: T, place: Place) -> Option<(T, T, Place)> {
        let Some(settled) = self.value else {
            self.value = Some(value);
            self.seen = 1;
            return None;
        };
        if value == settled {
            self.seen = self.seen.saturating_add(1);
            // With fewer packets, each of both values may be the settled one.
            let (odd, place) = self.odd.take_if(|_| self.seen >= 3)?;
            return Some((settled, odd, place));
        }
        match self.odd {
            Some((odd, _)) if odd == value => {
                *self = Self { value: Some(value), seen: 2, odd: None };
                None
            }
            _ => {
                let (odd, place) = self.odd.replace((value, place))?;
                (self.seen >= 2).then_some((settled, odd, place))
            }
        }
    }
}
