//! Runs the fuzz bodies over a corpus and for a bounded time of mutation: see `rnic/tests/fuzz.rs`.

mod common;
#[path = "../../../rnic/rnic/tests/common/fuzz/runner.rs"]
mod runner;

use common::fuzz::{fuzz_descriptions, fuzz_messages};
use runner::run;

#[test]
fn messages() {
    run("messages", fuzz_messages);
}

#[test]
fn descriptions() {
    run("descriptions", fuzz_descriptions);
}
