//! Runs the fuzz bodies over a corpus and for a bounded time of mutation, see `rnic/tests/fuzz.rs`.

mod bodies;

#[test]
fn captures() {
    doorbell_testing::run_fuzz!("captures", bodies::fuzz_captures);
}
