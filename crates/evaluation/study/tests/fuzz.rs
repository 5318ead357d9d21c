//! Runs the fuzz bodies over a corpus and for a bounded time of mutation, see `rnic/tests/fuzz.rs`.

mod common;

use common::fuzz::{fuzz_lines, fuzz_records};
use doorbell_testing::run_fuzz;

#[test]
fn lines() {
    run_fuzz!("lines", fuzz_lines);
}

#[test]
fn records() {
    run_fuzz!("records", fuzz_records);
}
