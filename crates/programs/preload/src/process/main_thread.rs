//! End of a program whose main thread called `pthread_exit`. Such a program continues in its other threads, and must
//! end with the last of these threads. The threads of this library must not keep the process alive. They block all
//! signals, so no signal would end a process that has only threads of this library.

use std::fs;
use std::process::exit;
use std::thread::{Builder, sleep};
use std::time::Duration;

/// Name of the watching thread. The watching thread blocks only the signals that the main thread blocked.
const NAME: &str = "doorbell-last";

/// Returns whether `name` is the name of a thread of this library.
fn is_own(name: &str) -> bool {
    doorbell_fabric::THREADS.contains(&name) || [crate::cm::THREAD, NAME].contains(&name)
}

/// Interval between two checks for remaining threads of the program.
const INTERVAL: Duration = Duration::from_millis(50);

/// Starts the watching thread if the main thread is about to end by `pthread_exit`.
pub(crate) fn thread_leaves() {
    // glibc has a function for this system call only since 2.30.
    // SAFETY: `gettid` and `getpid` change nothing.
    let is_main = unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) };
    // If the watching thread cannot be started, the process lives until a signal kills it.
    if is_main {
        let _ = Builder::new().name(NAME.into()).spawn(watch);
    }
}

fn watch() {
    while let Some(left) = program_has_threads() {
        if !left {
            exit(0); // as the C library does after the last thread
        }
        sleep(INTERVAL);
    }
}

/// Returns whether the program has a thread left, or `None` if the answer is unknown.
fn program_has_threads() -> Option<bool> {
    let process = std::process::id().to_string();
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    if is_own(name) {
        return None; // threads of the program have the names of this library's threads too
    }
    if !rest.trim_start().starts_with('Z') {
        return Some(true); // the main thread has not ended yet
    }
    for task in fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?;
        if task.file_name().to_str() == Some(&process) {
            continue;
        }
        // A thread that has ended since the listing has no name any more.
        if fs::read_to_string(task.path().join("comm")).is_ok_and(|name| !is_own(name.trim_end())) {
            return Some(true);
        }
    }
    Some(false)
}
