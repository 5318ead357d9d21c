//! Runs the fuzz bodies over a corpus and for a bounded time of mutation, see `rnic/tests/fuzz.rs`.

mod bodies;
mod common;
#[path = "../../../rnic/rnic/tests/common/fuzz/runner.rs"]
mod runner;

#[test]
fn captures() {
    runner::run("captures", bodies::fuzz_captures);
}
