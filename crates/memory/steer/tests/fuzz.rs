//! Runs the fuzz body over its corpus and for a bounded time of mutation.
#![allow(dead_code, unreachable_pub, reason = "the body uses a part of its module")]

#[path = "common/fuzz.rs"]
mod body;

#[test]
fn packets() {
    doorbell_testing::run_fuzz!("packets", body::fuzz_packets);
}
