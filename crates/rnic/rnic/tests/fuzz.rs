//! Runs the fuzz bodies over a corpus and for a bounded time of mutation.
//!
//! The corpus in `tests/corpus/<body>/` comes from `cargo xtask fuzz`, which keeps the smallest set of inputs with the
//! same code coverage. Inputs that once failed are also stored there, each under a name.

mod common;

use common::fuzz::{fuzz_operations, fuzz_packets};
use doorbell_testing::run_fuzz;

#[test]
fn packets() {
    run_fuzz!("packets", fuzz_packets);
}

#[test]
fn operations() {
    run_fuzz!("operations", fuzz_operations);
}
