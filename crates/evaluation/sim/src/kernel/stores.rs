//! Stores of threads to registered memory that lie in the future of the hardware.
//!
//! A turn runs at once, so memory has the stores of the whole turn from its start. In a long turn, such as one that
//! copies a long message, a READ of a peer could therefore return a store before the thread made it. The NIC answers
//! such a READ at the time of the store.

use std::ops::Range;

use crate::time::Ps;

/// Stores of a node's threads that are later than the clock of the hardware by more than the least latency.
#[derive(Debug, Default)]
pub(crate) struct FutureStores(Vec<(Range<u64>, Ps)>);

impl FutureStores {
    /// Adds a store of a thread at the time `at`, and drops the stores before `now`.
    pub(crate) fn add(&mut self, addresses: Range<u64>, at: Ps, now: Ps) {
        self.0.retain(|(_, at)| *at > now);
        // A copy in pieces is a sequence of stores. A READ of any of its bytes waits for the last one. Mirrored memory
        // has two such sequences.
        match self.0.iter_mut().rev().take(2).find(|(last, _)| last.end == addresses.start) {
            Some((last, last_at)) => (last.end, *last_at) = (addresses.end, at),
            None => self.0.push((addresses, at)),
        }
    }

    /// Returns the time of the last store to these addresses; zero without a store.
    pub(crate) fn last_to(&self, addresses: &Range<u64>) -> Ps {
        let touches = |other: &Range<u64>| other.start < addresses.end && addresses.start < other.end;
        self.0.iter().filter(|(stored, _)| touches(stored)).map(|(_, at)| *at).max().unwrap_or(Ps::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_last_store_to_its_bytes() {
        let mut stores = FutureStores::default();
        stores.add(0..8, Ps(100), Ps(0));
        stores.add(8..16, Ps(200), Ps(0));
        stores.add(64..72, Ps(300), Ps(0));
        assert_eq!([0..4, 16..64, 60..66].map(|range| stores.last_to(&range)), [Ps(200), Ps::ZERO, Ps(300)]);
        stores.add(128..129, Ps(400), Ps(250));
        assert_eq!([0..4, 60..66, 128..129].map(|range| stores.last_to(&range)), [Ps::ZERO, Ps(300), Ps(400)]);
    }
}
