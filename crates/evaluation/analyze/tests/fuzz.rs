//! Runs the fuzz bodies on a corpus, and then on mutated inputs for a limited time. See `rnic/tests/suite/fuzz.rs`.

mod bodies;

#[test]
fn captures() {
    doorbell_testing::run_fuzz!("captures", bodies::fuzz_captures);
}
