//! A program whose main thread ends by `pthread_exit` lives on in its other threads, and ends with the last of them.
//! This library's threads, of which the program knows nothing, must not keep it; and since they block all signals,
//! no signal would end it either.

use std::fs;
use std::process::exit;
use std::thread::{Builder, sleep};
use std::time::Duration;

/// The thread that watches. It blocks no signals but those that the main thread did.
const NAME: &str = "doorbell-last";

/// Is that a thread of this library?
fn is_own(name: &str) -> bool {
    doorbell_fabric::THREADS.contains(&name) || [crate::cm::THREAD, NAME].contains(&name)
}

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// A thread is about to end by `pthread_exit`. If it is the main one, somebody has to see when the last one has.
pub(crate) fn thread_leaves() {
    // SAFETY: neither changes anything.
    let is_main = unsafe { libc::gettid() == libc::getpid() };
    // Without the thread, the program lives on until it is killed.
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

/// Has the program a thread left? `None` if that cannot be known.
fn program_has_threads() -> Option<bool> {
    let process = std::process::id().to_string();
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    if is_own(name) {
        return None; // threads of the program have such names, too
    }
    if !rest.trim_start().starts_with('Z') {
        return Some(true); // the main thread is on its way
    }
    for task in fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?;
        if task.file_name().to_str() == Some(&process) {
            continue;
        }
        // One that ended meanwhile has no name any more.
        if fs::read_to_string(task.path().join("comm")).is_ok_and(|name| !is_own(name.trim_end())) {
            return Some(true);
        }
    }
    Some(false)
}
