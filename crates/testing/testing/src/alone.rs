//! Tests that need a process of their own.

use std::env;
use std::process::Command;
use std::thread;

/// Environment variable of a process that runs one test.
const ALONE: &str = "DOORBELL_TEST_ALONE";

/// Runs `body` in a process of its own, in which no other test runs. The test calls this function first, so the new
/// process calls it too and runs the body. `prepare` changes the command that starts the process. Returns what the test
/// printed, or `None` in the new process.
///
/// # Panics
///
/// Panics if the body panics, or if the process cannot be started.
pub fn in_own_process(prepare: impl FnOnce(&mut Command), body: impl FnOnce()) -> Option<String> {
    if env::var_os(ALONE).is_some() {
        body();
        return None;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let thread = thread::current();
    command.args(["--exact", thread.name().expect("a test has a name"), "--nocapture"]).env(ALONE, "1");
    prepare(&mut command);
    let output = command.output().unwrap();
    let [printed, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{printed}{errors}");
    assert!(printed.contains("1 passed"), "the inner test did not run: {printed}");
    Some(printed)
}
