//! Runs the fuzz bodies over their corpus, and on mutations of it for a bounded time. See also
//! `rnic/tests/suite/fuzz.rs`.

use crate::common::fuzz::{fuzz_published, fuzz_sysfs};
use doorbell_testing::run_fuzz;

#[test]
fn published() {
    run_fuzz!("published", fuzz_published);
}

#[test]
fn sysfs() {
    run_fuzz!("sysfs", fuzz_sysfs);
}
