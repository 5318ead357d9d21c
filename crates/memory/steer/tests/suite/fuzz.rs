//! Runs the fuzz target over its corpus, and over mutations of the corpus for a bounded time.
#![allow(dead_code, unreachable_pub, reason = "the body uses a part of its module")]

#[path = "../common/fuzz.rs"]
mod body;

#[test]
fn packets() {
    doorbell_testing::run_fuzz!("packets", body::fuzz_packets);
}
