//! Runs the fuzz body over its corpus and for a bounded time of mutation.
#![allow(dead_code, unreachable_pub, reason = "the body uses its part of what it shares with other tests")]

#[path = "common/fuzz.rs"]
mod body;
mod common {
    #[path = "../../../../rnic/tests/common/rng.rs"]
    mod rng;
    pub(crate) use rng::Rng;
}
#[path = "../../../rnic/rnic/tests/common/fuzz/runner.rs"]
mod runner;

#[test]
fn packets() {
    runner::run("packets", body::fuzz_packets);
}
