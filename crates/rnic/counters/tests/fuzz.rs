//! Runs the fuzz bodies over a corpus and for a bounded time of mutation, see `rnic/tests/fuzz.rs`.

mod common;
#[path = "../../rnic/tests/common/fuzz/runner.rs"]
mod runner;

use common::fuzz::{fuzz_published, fuzz_sysfs};
use runner::run;

#[test]
fn published() {
    run("published", fuzz_published);
}

#[test]
fn sysfs() {
    run("sysfs", fuzz_sysfs);
}
