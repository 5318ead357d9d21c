//! Runs the fuzz bodies over a corpus, and over mutated inputs for a bounded time.
//!
//! `cargo xtask fuzz` writes the corpus in `tests/corpus/<body>/` and keeps the smallest set of inputs with the same
//! code coverage. Each input that once failed is also there, under a name of its own.

use crate::common::fuzz::{fuzz_operations, fuzz_packets};
use doorbell_testing::run_fuzz;

#[test]
fn packets() {
    run_fuzz!("packets", fuzz_packets);
}

#[test]
fn operations() {
    run_fuzz!("operations", fuzz_operations);
}
