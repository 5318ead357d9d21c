//! How long a thread keeps its processor where it shares it with others.
//!
//! A thread that polls waits for another one, which may be on the same processor, behind a program that computes. The scheduler
//! gives each a time slice in turn, by default of milliseconds, and so an exchange goes on once per that time. Linux lets a thread
//! ask for shorter slices since 6.12 (`sched_runtime` of a fair policy, 0.1 to 100 ms): it has no smaller share of the processor, but
//! in smaller pieces.
#![allow(unsafe_code)]

use std::io;

/// The shortest that Linux allows, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

/// Asks for the shortest time slices for the calling thread, and for all threads that it starts from now on.
///
/// True if it has them: kernels before 6.12 accept the wish without effect.
///
/// # Errors
///
/// The thread is not one of the usual policy (`SCHED_OTHER`), or the operating system refuses, as sandboxes may.
pub fn shorten_time_slices() -> io::Result<bool> {
    let mut wanted = attributes()?;
    if wanted.sched_policy != libc::SCHED_OTHER as u32 {
        return Err(io::Error::other("the thread has another policy than SCHED_OTHER"));
    }
    wanted.sched_runtime = SHORTEST_NS;
    // SAFETY: the structure says how long it is, and outlives the call, which changes how this thread is scheduled alone.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const wanted, NO_FLAGS) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attributes()?.sched_runtime == SHORTEST_NS)
}

const THIS_THREAD: libc::pid_t = 0;
const NO_FLAGS: libc::c_uint = 0;

/// How the calling thread is scheduled.
fn attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the structure consists of integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to the structure, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, size, NO_FLAGS) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_short_slices_and_what_else_they_had() {
        // A thread of its own, so that tests which run beside keep theirs.
        std::thread::spawn(|| {
            let before = attributes().unwrap();
            let has_short = shorten_time_slices().unwrap();
            let after = attributes().unwrap();
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            // Kernels before 6.12 tell nothing of slices.
            assert_eq!(after.sched_runtime, if has_short { SHORTEST_NS } else { before.sched_runtime });
            let inherited = std::thread::spawn(|| attributes().unwrap().sched_runtime).join().unwrap();
            assert_eq!(inherited, after.sched_runtime);
        })
        .join()
        .unwrap();
    }
}
