//! Stations that serve one request at a time. A station stores the time at which it is next free, and computes from it
//! when the next request is served.

use std::collections::VecDeque;

use crate::testbed::{Nic, Pcie};
use crate::time::{Ps, Rate};

/// A station that serves one request at a time, in the order of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    free: Ps,
    busy: Ps,
}

impl Server {
    /// Serves a request that arrives at `at` and takes `service`. Returns the time at which the service begins.
    #[inline]
    pub(crate) fn serve(&mut self, at: Ps, service: Ps) -> Ps {
        let begins = at.max(self.free);
        self.free = begins + service;
        self.busy += service;
        begins
    }

    /// Returns the time when the station is next free.
    pub(crate) fn free(&self) -> Ps {
        self.free
    }

    /// Returns the busy time so far.
    pub(crate) fn busy(&self) -> Ps {
        self.busy
    }
}

/// A wire or bus in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    rate: Rate,
    server: Server,
    /// The last two lengths in bytes, with their times on the lane. Traffic has few different lengths, and
    /// [`Rate::time_of`] contains a slow division.
    memo: [(u64, Ps); 2],
}

impl Lane {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, server: Server::default(), memo: [(0, Ps::ZERO); 2] }
    }

    /// Returns the time that `bytes` take.
    #[inline]
    pub(crate) fn time_of(&mut self, bytes: u64) -> Ps {
        if self.memo[0].0 == bytes {
            return self.memo[0].1;
        }
        self.memo.swap(0, 1);
        if self.memo[0].0 != bytes {
            self.memo[0] = (bytes, self.rate.time_of(bytes));
        }
        self.memo[0].1
    }

    /// Carries `bytes` that are ready at `at`. Returns the time at which the last byte has passed.
    #[inline]
    pub(crate) fn carry(&mut self, at: Ps, bytes: u64) -> Ps {
        let service = self.time_of(bytes);
        self.server.serve(at, service) + service
    }

    /// Returns the time at which all bytes so far have passed.
    pub(crate) fn free(&self) -> Ps {
        self.server.free()
    }

    /// Returns the busy time so far.
    pub(crate) fn busy(&self) -> Ps {
        self.server.busy()
    }

    /// Pauses the lane for the time `by`, beginning at `from`. Bytes that had not begun to leave at `from` leave later
    /// by this time.
    pub(crate) fn pause(&mut self, from: Ps, by: Ps) {
        self.server.free = self.server.free.max(from) + by;
    }
}

/// The PCIe bus between the memory of a host and its NIC.
#[derive(Clone, Debug)]
pub(crate) struct PcieBus {
    costs: Pcie,
    /// Direction to the NIC: completions of its reads.
    down: Lane,
    /// Direction to memory: writes of the NIC.
    up: Lane,
    /// End times of the reads in flight.
    reads: VecDeque<Ps>,
}

impl PcieBus {
    pub(crate) fn new(costs: &Pcie) -> Self {
        Self { costs: costs.clone(), down: Lane::new(costs.rate), up: Lane::new(costs.rate), reads: VecDeque::new() }
    }

    /// Reads `bytes` for the NIC, not before `at`. Returns the time at which the NIC has the last byte.
    pub(crate) fn read(&mut self, at: Ps, bytes: u64) -> Ps {
        let (mut left, mut done) = (bytes, at);
        while left > 0 {
            let part = left.min(self.costs.max_read_request);
            left -= part;
            let mut begins = at;
            while self.reads.len() as u64 >= self.costs.reads_in_flight {
                begins = begins.max(self.reads.pop_front().unwrap_or_default());
            }
            while self.reads.front().is_some_and(|&end| end <= begins) {
                self.reads.pop_front();
            }
            let packets = part.div_ceil(self.costs.max_payload);
            done = self.down.carry(begins + self.costs.read, part + packets * self.costs.completion_header);
            self.reads.push_back(done);
        }
        done
    }

    /// Returns the busy times of both directions: fetches and writes of the NIC.
    pub(crate) fn busy(&self) -> (Ps, Ps) {
        (self.down.busy(), self.up.busy())
    }

    /// Writes `bytes` that the NIC has at the time `at`. Returns the time at which a polling CPU sees the last byte.
    pub(crate) fn write(&mut self, at: Ps, bytes: u64) -> Ps {
        let packets = bytes.div_ceil(self.costs.max_payload).max(1);
        self.up.carry(at, bytes + packets * self.costs.write_header) + self.costs.write
    }
}

/// Cache of queue pair contexts in the NIC, with least-recently-used eviction.
#[derive(Clone, Debug)]
pub(crate) struct ContextCache {
    room: usize,
    /// Cached queue pairs, the least recently used first. The list is not used while the cache has room for all
    /// contexts.
    recent: VecDeque<u32>,
}

impl ContextCache {
    pub(crate) fn new(costs: &Nic) -> Self {
        Self { room: usize::try_from(costs.cached_queue_pairs).unwrap_or(usize::MAX), recent: VecDeque::new() }
    }

    /// Returns whether the NIC must fetch the context of a queue pair to handle its packet. `queue_pairs` is the
    /// number of queue pairs of the NIC.
    pub(crate) fn misses(&mut self, queue_pair: u32, queue_pairs: usize) -> bool {
        if queue_pairs <= self.room {
            return false;
        }
        if let Some(place) = self.recent.iter().rposition(|&kept| kept == queue_pair) {
            self.recent.remove(place);
            self.recent.push_back(queue_pair);
            return false;
        }
        if self.recent.len() >= self.room {
            self.recent.pop_front();
        }
        self.recent.push_back(queue_pair);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate() -> Rate {
        Rate::from_bits_per_s(100_000_000_000).expect("a rate")
    }

    #[test]
    fn a_server_serves_one_request_at_a_time() {
        let mut server = Server::default();
        assert_eq!(server.serve(Ps(10), Ps(5)), Ps(10));
        assert_eq!(server.serve(Ps(11), Ps(5)), Ps(15));
        assert_eq!(server.serve(Ps(40), Ps(5)), Ps(40));
        assert_eq!((server.free(), server.busy()), (Ps(45), Ps(15)));
    }

    #[test]
    fn a_lane_remembers_the_times_of_two_lengths() {
        let mut line = Lane::new(rate());
        for bytes in [98, 98, 62, 98, 1000, 62, 98, 0, 1000, 0] {
            assert_eq!(line.time_of(bytes), rate().time_of(bytes), "{bytes} B");
        }
        assert_eq!(line.carry(Ps(0), 98), Ps(7840));
        assert_eq!(line.carry(Ps(1), 98), Ps(15_680));
        assert_eq!(line.free(), Ps(15_680));
    }
}
