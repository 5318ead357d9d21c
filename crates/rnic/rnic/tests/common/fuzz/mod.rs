//! Fuzz bodies: plain functions of bytes. A test for stable Rust runs them over a corpus, and over mutated inputs for a
//! bounded time. cargo-fuzz runs them without a time limit.

mod operations;
mod packets;

use doorbell_rnic::Rnic;

pub(crate) use doorbell_testing::fuzz::Choices;
pub use operations::fuzz_operations;
pub use packets::{fuzz_packets, stage};

/// Checks bounds of the backlog that must hold for any input.
pub fn check_bounds(rnic: &Rnic) {
    let (backlog, qps) = (rnic.backlog(), rnic.qp_count());
    assert!(backlog.ready <= qps, "{backlog:?}: more ready entries than {qps} queue pairs");
    assert!(backlog.waiting <= qps, "{backlog:?}: more waiting entries than {qps} queue pairs");
    // `qps + 64` also counts destroyed queue pairs, whose timer entries stay in the list until they are due.
    assert!(backlog.timers <= 8 * (qps + 64), "{backlog:?}: too many timers for {qps} queue pairs");
    assert!(backlog.answers <= 33 * qps, "{backlog:?}: too many answers for {qps} queue pairs");
}
