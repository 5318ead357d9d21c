//! Runs the fuzz bodies over a corpus and for a bounded time of mutation.
//!
//! The corpus in `tests/corpus/<body>/` comes from `cargo xtask fuzz`, which keeps the smallest set of inputs with the
//! same code coverage. Inputs that once failed are also stored there, each under a name.

mod common;
#[path = "common/fuzz/runner.rs"]
mod runner;

use common::fuzz::{fuzz_operations, fuzz_packets};
use runner::run;

#[test]
fn packets() {
    run("packets", fuzz_packets);
}

#[test]
fn operations() {
    run("operations", fuzz_operations);
}
