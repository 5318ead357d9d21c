//! Fuzz bodies: plain functions of bytes. A stable test runs them over a corpus and for a bounded
//! time of mutation, cargo-fuzz for as long as one likes.

mod operations;
mod packets;

use doorbell_rnic::Rnic;

pub use operations::fuzz_operations;
pub use packets::{fuzz_packets, stage};

/// Bytes as choices. When they run out, all choices are 0 and `is_empty` is true.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end <= 256 { usize::from(self.byte()) % end.max(1) } else { self.short() % end }
    }

    pub(crate) fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}

/// Bounds that hold whatever arrives.
pub fn check_bounds(rnic: &Rnic) {
    let (backlog, qps) = (rnic.backlog(), rnic.qp_count());
    assert!(backlog.ready <= qps, "{backlog:?}: each of {qps} queue pairs is ready once");
    assert!(backlog.waiting <= qps, "{backlog:?}: each of {qps} queue pairs waits once");
    // Entries of queue pairs that are gone stay until they are due.
    assert!(backlog.timers <= 8 * (qps + 64), "{backlog:?}: timers of {qps} queue pairs");
    assert!(backlog.answers <= 33 * qps, "{backlog:?}: answers of {qps} queue pairs");
}
