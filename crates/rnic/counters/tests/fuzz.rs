//! Runs the fuzz bodies over a corpus and for a bounded time of mutation, see `rnic/tests/fuzz.rs`.

mod common;

use common::fuzz::{fuzz_published, fuzz_sysfs};
use doorbell_testing::run_fuzz;

#[test]
fn published() {
    run_fuzz!("published", fuzz_published);
}

#[test]
fn sysfs() {
    run_fuzz!("sysfs", fuzz_sysfs);
}
