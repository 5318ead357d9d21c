//! Stores of threads to registered memory that lie in the future of the hardware.
//!
//! A turn runs at once, so memory has the stores of the whole turn from its start. In a long turn, such as one that
//! copies a long message, a READ of a peer could therefore return a store before the thread made it. On a host, such a
//! READ returns the old bytes, and a peer that waits for a change READs again and again. So the NIC answers the READ at
//! the first round trip after the store.

use std::ops::Range;

use crate::time::Ps;

/// Stores of a node's threads that are later than the clock of the hardware by more than the least latency.
#[derive(Debug, Default)]
pub(crate) struct FutureStores {
    stores: Vec<(Range<u64>, Ps)>,
    /// Time from one READ of a waiting peer to the next.
    round_trip: Ps,
}

impl FutureStores {
    pub(crate) fn new(round_trip: Ps) -> Self {
        Self { stores: Vec::new(), round_trip }
    }

    /// Adds a store of a thread at the time `at`, and drops the stores before `now`.
    pub(crate) fn add(&mut self, addresses: Range<u64>, at: Ps, now: Ps) {
        self.stores.retain(|(_, at)| *at > now);
        // A copy in pieces is a sequence of stores. A READ of any of its bytes waits for the last one. Mirrored memory
        // has two such sequences.
        match self.stores.iter_mut().rev().take(2).find(|(last, _)| last.end == addresses.start) {
            Some((last, last_at)) => (last.end, *last_at) = (addresses.end, at),
            None => self.stores.push((addresses, at)),
        }
    }

    /// Returns the time at which a READ of these addresses, which arrived at `arrived`, can access memory.
    pub(crate) fn readable_at(&self, addresses: &Range<u64>, arrived: Ps) -> Ps {
        let touches = |other: &Range<u64>| other.start < addresses.end && addresses.start < other.end;
        let stores = self.stores.iter().filter(|(stored, _)| touches(stored)).map(|(_, at)| *at);
        let Some(last) = stores.max().filter(|last| *last > arrived) else { return arrived };
        let rounds = last.since(arrived).0.div_ceil(self.round_trip.0.max(1));
        arrived + self.round_trip.times(rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_last_store_to_its_bytes() {
        let mut stores = FutureStores::new(Ps(60));
        stores.add(0..8, Ps(100), Ps(0));
        stores.add(8..16, Ps(200), Ps(0));
        stores.add(64..72, Ps(300), Ps(0));
        let readable = |stores: &FutureStores, range| stores.readable_at(&range, Ps(10)).0;
        // The first whole number of round trips after 200 and after 300.
        assert_eq!([0..4, 16..64, 60..66].map(|range| readable(&stores, range)), [250, 10, 310]);
        assert_eq!(stores.readable_at(&(0..4), Ps(200)), Ps(200));
        stores.add(128..129, Ps(400), Ps(250));
        assert_eq!([0..4, 60..66, 128..129].map(|range| readable(&stores, range)), [10, 310, 430]);
    }
}
