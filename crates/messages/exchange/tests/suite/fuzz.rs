//! Runs the fuzz functions with the inputs of a corpus, and with mutated inputs for a bounded time: see
//! `rnic/tests/suite/fuzz.rs`.

use crate::common::fuzz::{fuzz_descriptions, fuzz_messages};
use doorbell_testing::run_fuzz;

#[test]
fn messages() {
    run_fuzz!("messages", fuzz_messages);
}

#[test]
fn descriptions() {
    run_fuzz!("descriptions", fuzz_descriptions);
}
