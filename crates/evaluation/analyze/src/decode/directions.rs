//! Directions of conversations. A direction has the packets from one address to one queue pair of another address.
//!
//! A packet does not name its source queue pair. So two directions are joined when the answers of one carry a sequence
//! number that only the requests of the other explain.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use doorbell_wire::{Psn, Qpn};

/// Maximum number of searches for the opposite of a direction.
const MAX_SEARCHES: u32 = 1000;

/// Number of sizes of cells: powers of two, up to half of all sequence numbers.
const LEVELS: usize = 24;

/// Maximum length of a span. Sequence numbers that are farther apart have no order.
const MAX_SPAN: u32 = 1 << 23;

/// Source, destination and destination queue pair of packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) to_qpn: Qpn,
}

/// Consecutive sequence numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) first: Psn,
    pub(crate) length: u32,
}

impl Span {
    pub(crate) fn contains(self, psn: Psn) -> bool {
        psn.distance_from(self.first) < self.length
    }

    /// Returns two parts of the span, each with its level and cell. Cells of level n divide the sequence numbers into
    /// parts of 2^n. The level is the smallest one whose cells are at least as long as the span.
    fn parts(self) -> [(u8, u32, Part); 2] {
        let more = self.length.saturating_sub(1);
        let level = u32::BITS - more.leading_zeros();
        let place = |psn: Psn| (psn.get() >> level, psn.get() & ((1 << level) - 1));
        let ((first_cell, first), (last_cell, last)) = (place(self.first), place(self.first.add(more)));
        let parts = match first_cell == last_cell {
            true => [Part::InsideFrom(first), Part::InsideUpTo(last + 1)],
            false => [Part::From(first), Part::UpTo(last + 1)],
        };
        [(level as u8, first_cell, parts[0]), (level as u8, last_cell, parts[1])]
    }
}

/// Part of a span in a cell, with an offset in the cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    /// Part from this offset on. The span ends in the next cell.
    From(u32),
    /// Part before this offset. The span begins in the cell before.
    UpTo(u32),
    /// Whole span, which begins with this offset.
    InsideFrom(u32),
    /// Whole span, which ends before this offset.
    InsideUpTo(u32),
}

impl Part {
    /// Returns the ranges of parts that contain an offset of a cell. A whole span is longer than half of the cell, so
    /// its end decides about offsets in the second half, and its start about the others.
    fn containing(level: u8, offset: u32) -> [RangeInclusive<Self>; 3] {
        let whole = match offset < (1 << level) / 2 {
            true => Self::InsideFrom(0)..=Self::InsideFrom(offset),
            false => Self::InsideUpTo(offset + 1)..=Self::InsideUpTo(u32::MAX),
        };
        [Self::From(0)..=Self::From(offset), Self::UpTo(offset + 1)..=Self::UpTo(u32::MAX), whole]
    }
}

#[derive(Clone, Copy, Debug)]
struct Direction {
    key: Key,
    /// Numbers of the routes from source to destination, and back.
    routes: [usize; 2],
    opposite: Option<usize>,
    /// Number of searches for `opposite` so far.
    searches: u32,
    /// Sequence numbers that the requests explain.
    sent: Option<Span>,
}

/// Directions by number, and the pairs of opposite ones.
#[derive(Debug, Default)]
pub(crate) struct Directions {
    all: Vec<Direction>,
    by_key: HashMap<Key, usize>,
    /// Numbers of pairs of source and destination.
    routes: HashMap<(IpAddr, IpAddr), usize>,
    /// Parts of the spans of directions without an opposite, by route, level and cell. A search reads only the
    /// directions that explain a sequence number.
    alone: BTreeSet<(usize, u8, u32, Part, usize)>,
    /// Number of entries of `alone` on each level.
    on_level: [usize; LEVELS],
    /// The direction of the previous packet, since most packets arrive in runs.
    last: usize,
}

/// Result of [`Directions::join`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Joined {
    /// The opposite direction, if it is known.
    pub(crate) opposite: Option<usize>,
    /// The former opposite direction, if another one has replaced it.
    pub(crate) before: Option<usize>,
}

impl Directions {
    /// Returns the number of a known direction.
    pub(crate) fn find(&mut self, key: Key) -> Option<usize> {
        if self.all.get(self.last).is_some_and(|direction| direction.key == key) {
            return Some(self.last);
        }
        self.last = *self.by_key.get(&key)?;
        Some(self.last)
    }

    /// Adds a direction, and returns its number. The numbers are 0, 1, and so on.
    pub(crate) fn add(&mut self, key: Key) -> usize {
        self.last = self.all.len();
        let Self { routes, .. } = self;
        let routes = [(key.from, key.to), (key.to, key.from)].map(|route| {
            let next = routes.len();
            *routes.entry(route).or_insert(next)
        });
        self.all.push(Direction { key, routes, opposite: None, searches: 0, sent: None });
        self.by_key.insert(key, self.last);
        self.last
    }

    /// Returns the key of a direction.
    pub(crate) fn key(&self, at: usize) -> Key {
        self.all[at].key
    }

    /// Returns the opposite of a direction.
    pub(crate) fn opposite(&self, at: usize) -> Option<usize> {
        self.all[at].opposite
    }

    /// Records the sequence numbers that the requests of a direction explain.
    pub(crate) fn sent(&mut self, at: usize, sent: Option<Span>) {
        let sent = sent.filter(|span| (1..=MAX_SPAN).contains(&span.length));
        let Direction { opposite, sent: before, .. } = self.all[at];
        if opposite.is_some() || before == sent {
            self.all[at].sent = sent;
            return;
        }
        self.set_alone(at, false);
        self.all[at].sent = sent;
        self.set_alone(at, true);
    }

    /// Adds a direction to `alone`, or removes it.
    fn set_alone(&mut self, at: usize, is_alone: bool) {
        let Direction { routes: [route, _], sent: Some(sent), .. } = self.all[at] else { return };
        for (level, cell, part) in sent.parts() {
            let (entry, count) = ((route, level, cell, part, at), &mut self.on_level[usize::from(level)]);
            if is_alone {
                *count += usize::from(self.alone.insert(entry));
            } else {
                *count -= usize::from(self.alone.remove(&entry));
            }
        }
    }

    /// Returns the other directions without an opposite that lead back to the source of `at` and whose requests explain
    /// `psn`.
    fn explaining(&self, at: usize, psn: Psn) -> impl Iterator<Item = usize> {
        let [_, back] = self.all[at].routes;
        let levels = (0_u8..).zip(&self.on_level).filter(|(_, count)| **count > 0).map(|(level, _)| level);
        let ranges = levels.flat_map(move |level| {
            let (cell, offset) = (psn.get() >> level, psn.get() & ((1 << level) - 1));
            Part::containing(level, offset).map(|parts| {
                let (first, last) = parts.into_inner();
                (back, level, cell, first, 0)..=(back, level, cell, last, usize::MAX)
            })
        });
        let entries = ranges.flat_map(move |range| self.alone.range(range));
        entries.map(|&(.., other)| other).filter(move |&other| other != at)
    }

    /// Returns whether another direction without an opposite leads back to the source of `at` and explains `psn`.
    pub(crate) fn is_explained(&self, at: usize, psn: Psn) -> bool {
        self.explaining(at, psn).next().is_some()
    }

    /// Joins the direction `at` of an answer to `psn` with the direction of its requests, unless `is_settled`. Sequence
    /// numbers start at random, so usually only one direction has sent `psn`. A former opposite is free again.
    pub(crate) fn join(&mut self, at: usize, is_settled: bool, psn: Psn) -> Joined {
        let Direction { opposite: known, searches, .. } = self.all[at];
        let unchanged = Joined { opposite: known, before: None };
        if is_settled || searches >= MAX_SEARCHES {
            return unchanged;
        }
        self.all[at].searches += 1;
        let other = {
            let mut fitting = self.explaining(at, psn);
            let (Some(other), None) = (fitting.next(), fitting.next()) else { return unchanged };
            other
        };
        if let Some(known) = known {
            self.all[known].opposite = None;
            self.set_alone(known, true);
        }
        for (one, another) in [(at, other), (other, at)] {
            self.set_alone(one, false);
            self.all[one].opposite = Some(another);
        }
        Joined { opposite: Some(other), before: known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(from: u8, to: u8, qpn: u32) -> Key {
        let address = |host| IpAddr::from([10, 0, 0, host]);
        Key { from: address(from), to: address(to), to_qpn: Qpn::new(qpn) }
    }

    #[test]
    fn directions_are_found_by_their_key() {
        let mut directions = Directions::default();
        assert_eq!(directions.find(key(1, 2, 7)), None);
        assert_eq!([key(1, 2, 7), key(2, 1, 7)].map(|key| directions.add(key)), [0, 1]);
        assert_eq!(
            [key(1, 2, 7), key(2, 1, 7), key(1, 2, 8)].map(|key| directions.find(key)),
            [Some(0), Some(1), None]
        );
        assert_eq!(directions.key(1), key(2, 1, 7));
    }

    /// Records four requests of a direction, from `first` on.
    fn send(directions: &mut Directions, at: usize, first: u32) {
        directions.sent(at, Some(Span { first: Psn::new(first), length: 4 }));
    }

    #[test]
    fn only_the_single_direction_that_explains_an_answer_is_joined() {
        let mut directions = Directions::default();
        let answers = directions.add(key(1, 2, 7));
        let others = [key(2, 1, 8), key(2, 1, 9), key(3, 1, 8)].map(|key| directions.add(key));
        for (at, first) in others.into_iter().zip([100, 102, 200]) {
            send(&mut directions, at, first);
        }
        let join = |directions: &mut Directions, is_settled, psn| {
            let joined = directions.join(answers, is_settled, Psn::new(psn));
            assert_eq!(directions.opposite(answers), joined.opposite);
            joined
        };
        let nothing = Joined { opposite: None, before: None };
        assert_eq!(join(&mut directions, false, 103), nothing, "two directions may have the requests");
        assert_eq!(join(&mut directions, false, 201), nothing, "its source is another one");
        let first = Joined { opposite: Some(others[0]), before: None };
        assert_eq!(join(&mut directions, false, 100), first);
        assert_eq!(directions.opposite(others[0]), Some(answers));
        assert_eq!(join(&mut directions, true, 105), first, "a settled pair stays");
        // In a later connection, the queue pair has another peer. The former peer may then have another opposite.
        let second = Joined { opposite: Some(others[1]), before: Some(others[0]) };
        assert_eq!(join(&mut directions, false, 105), second);
        assert_eq!([directions.opposite(others[0]), directions.opposite(others[1])], [None, Some(answers)]);
        let back = Joined { opposite: Some(others[0]), before: Some(others[1]) };
        assert_eq!(join(&mut directions, false, 100), back);
    }

    #[test]
    fn searches_are_limited() {
        let mut directions = Directions::default();
        let answers = directions.add(key(1, 2, 7));
        let requests = directions.add(key(2, 1, 8));
        for _ in 0..MAX_SEARCHES {
            assert_eq!(directions.join(answers, false, Psn::new(100)).opposite, None);
        }
        send(&mut directions, requests, 100);
        assert_eq!(directions.join(answers, false, Psn::new(100)).opposite, None);
    }

    #[test]
    fn every_direction_that_explains_a_number_is_found() {
        // Spans of all lengths begin near the ends of cells, and near the largest sequence number.
        let firsts = [0, 1, 5, 64, 4090, 0x7f_fff0, 0x80_0000, 0xff_fff0, 0xff_ffff];
        let lengths = [1, 2, 3, 4, 7, 8, 9, 60, 1000, 1 << 13, (1 << 13) + 1, (1 << 22) + 5, MAX_SPAN];
        let mut directions = Directions::default();
        let answers = directions.add(key(1, 2, 0));
        let mut spans = Vec::new();
        for (first, length) in firsts.iter().flat_map(|first| lengths.map(|length| (*first, length))) {
            let at = directions.add(key(2, 1, spans.len() as u32));
            let span = Span { first: Psn::new(first), length };
            // The direction grows to its span.
            for length in [1, length.div_ceil(2), length] {
                directions.sent(at, Some(Span { length, ..span }));
            }
            spans.push((at, span));
        }
        for psn in firsts.into_iter().flat_map(|first| (0..100).map(move |at| Psn::new(first).add(at).sub(20))) {
            let mut found: Vec<usize> = directions.explaining(answers, psn).collect();
            found.sort_unstable();
            let expected: Vec<usize> = spans.iter().filter(|(_, span)| span.contains(psn)).map(|(at, _)| *at).collect();
            assert_eq!(found, expected, "{psn}");
            assert_eq!(directions.is_explained(answers, psn), !expected.is_empty());
        }
        spans.iter().for_each(|&(at, _)| directions.sent(at, None));
        assert!(directions.alone.is_empty() && directions.on_level == [0; LEVELS]);
    }

    #[test]
    fn joined_directions_explain_no_other_answers() {
        let mut directions = Directions::default();
        let pairs: Vec<(usize, usize)> =
            (0..500).map(|number| (directions.add(key(1, 2, number)), directions.add(key(2, 1, number)))).collect();
        for (&(_, requests), number) in pairs.iter().zip(0..) {
            send(&mut directions, requests, 4 * number);
        }
        for (&(answers, requests), number) in pairs.iter().zip(0..) {
            assert_eq!(directions.join(answers, false, Psn::new(4 * number + 3)).opposite, Some(requests));
            // Later requests of a joined direction stay out of the searches.
            send(&mut directions, requests, 4 * number + 1);
        }
        assert!(directions.alone.is_empty() && directions.on_level == [0; LEVELS]);
    }
}
