//! Directions of conversations. A direction has the packets from one address to one queue pair of another address.
//!
//! A packet does not name its source queue pair. So two directions are joined when the answers of one carry a sequence
//! number that only the requests of the other explain.

use std::collections::HashMap;
use std::net::IpAddr;

use doorbell_wire::Qpn;

/// Maximum number of searches for the opposite of a direction.
const MAX_SEARCHES: u32 = 1000;

/// Source, destination and destination queue pair of packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) to_qpn: Qpn,
}

#[derive(Clone, Copy, Debug)]
struct Direction {
    key: Key,
    opposite: Option<usize>,
    /// Number of searches for `opposite` so far.
    searches: u32,
}

/// Directions by number, and the pairs of opposite ones.
#[derive(Debug, Default)]
pub(crate) struct Directions {
    all: Vec<Direction>,
    by_key: HashMap<Key, usize>,
    /// Directions without an opposite, by source and destination.
    alone: HashMap<(IpAddr, IpAddr), Vec<usize>>,
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
        self.all.push(Direction { key, opposite: None, searches: 0 });
        self.by_key.insert(key, self.last);
        self.alone.entry((key.from, key.to)).or_default().push(self.last);
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

    /// Returns the directions without an opposite that lead back to the source of `at`.
    pub(crate) fn alone_back(&self, at: usize) -> &[usize] {
        let Key { from, to, .. } = self.all[at].key;
        self.alone.get(&(to, from)).map_or(&[], Vec::as_slice)
    }

    /// Joins the direction `at` of an answer with the direction of its requests, unless `is_settled`. `has_sent`
    /// returns whether the requests of a direction explain the sequence number of the answer. Sequence numbers start at
    /// random, so usually only one direction has sent it. A former opposite is free again.
    pub(crate) fn join(&mut self, at: usize, is_settled: bool, has_sent: impl Fn(usize) -> bool) -> Joined {
        let Direction { opposite: known, searches, .. } = self.all[at];
        let unchanged = Joined { opposite: known, before: None };
        if is_settled || searches >= MAX_SEARCHES {
            return unchanged;
        }
        self.all[at].searches += 1;
        let mut fitting = self.alone_back(at).iter().copied().filter(|&other| other != at && has_sent(other));
        let (Some(other), None) = (fitting.next(), fitting.next()) else { return unchanged };
        if let Some(known) = known {
            let before = &mut self.all[known];
            before.opposite = None;
            self.alone.entry((before.key.from, before.key.to)).or_default().push(known);
        }
        for (one, another) in [(at, other), (other, at)] {
            let Key { from, to, .. } = self.all[one].key;
            if let Some(alone) = self.alone.get_mut(&(from, to)) {
                alone.retain(|&direction| direction != one);
            }
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

    #[test]
    fn only_the_single_direction_that_explains_an_answer_is_joined() {
        let mut directions = Directions::default();
        let answers = directions.add(key(1, 2, 7));
        let others = [key(2, 1, 8), key(2, 1, 9), key(3, 1, 8)].map(|key| directions.add(key));
        let nothing = Joined { opposite: None, before: None };
        assert_eq!(directions.join(answers, false, |_| true), nothing, "two directions may have the requests");
        assert_eq!(directions.join(answers, false, |other| other == others[2]), nothing, "its source is another one");
        let first = Joined { opposite: Some(others[0]), before: None };
        assert_eq!(directions.join(answers, false, |other| other == others[0]), first);
        assert_eq!(directions.opposite(others[0]), Some(answers));
        assert_eq!(directions.join(answers, true, |_| true), first, "a settled pair stays");
        // In a later connection, the queue pair has another peer. The former peer may then have another opposite.
        let second = Joined { opposite: Some(others[1]), before: Some(others[0]) };
        assert_eq!(directions.join(answers, false, |other| other == others[1]), second);
        assert_eq!([directions.opposite(others[0]), directions.opposite(others[1])], [None, Some(answers)]);
        let back = Joined { opposite: Some(others[0]), before: Some(others[1]) };
        assert_eq!(directions.join(answers, false, |other| other == others[0]), back);
    }

    #[test]
    fn searches_are_limited() {
        let mut directions = Directions::default();
        let answers = directions.add(key(1, 2, 7));
        let requests = directions.add(key(2, 1, 8));
        for _ in 0..MAX_SEARCHES {
            assert_eq!(directions.join(answers, false, |_| false).opposite, None);
        }
        assert_eq!(directions.join(answers, false, |other| other == requests).opposite, None);
    }
}
