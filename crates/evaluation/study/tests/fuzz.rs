//! Runs the fuzz bodies over a corpus and for a bounded time of mutation, see `rnic/tests/fuzz.rs`.

mod common;
#[path = "../../../rnic/rnic/tests/common/fuzz/runner.rs"]
mod runner;

use common::fuzz::{fuzz_lines, fuzz_records};
use runner::run;

#[test]
fn lines() {
    run("lines", fuzz_lines);
}

#[test]
fn records() {
    run("records", fuzz_records);
}
