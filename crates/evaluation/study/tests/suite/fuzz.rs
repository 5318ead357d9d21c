//! Runs the fuzz functions over a corpus, and over mutated inputs for a limited time. See `rnic/tests/suite/fuzz.rs`.

use crate::common::fuzz::{fuzz_lines, fuzz_records};
use doorbell_testing::run_fuzz;

#[test]
fn lines() {
    run_fuzz!("lines", fuzz_lines);
}

#[test]
fn records() {
    run_fuzz!("records", fuzz_records);
}
