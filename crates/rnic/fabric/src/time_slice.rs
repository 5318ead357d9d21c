//! Time slices of threads that share a processor.
//!
//! A polling thread may share its processor with the thread that it waits for, or with other busy threads. By default,
//! the scheduler gives each thread a time slice of milliseconds in turn. So each exchange of messages takes
//! milliseconds. Since version 6.12, Linux lets a thread request slices of 0.1 to 100 ms (`sched_runtime` of a fair
//! policy). A thread with shorter slices still gets the same share of the processor.
#![allow(unsafe_code)]

use std::io;

/// Shortest time slice that Linux allows, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

/// Requests the shortest time slices for the calling thread. Threads that this thread starts later inherit them.
///
/// Returns true if the kernel granted the request. Kernels before 6.12 accept the request but ignore it.
///
/// # Errors
///
/// The thread has another scheduling policy than `SCHED_OTHER`, or the operating system or a sandbox rejects the system
/// call.
pub fn shorten_time_slices() -> io::Result<bool> {
    let mut wanted = attributes()?;
    if wanted.sched_policy != libc::SCHED_OTHER as u32 {
        return Err(io::Error::other("the scheduling policy of the thread must be SCHED_OTHER"));
    }
    wanted.sched_runtime = SHORTEST_NS;
    // SAFETY: the structure holds its own length and outlives the call. The call changes only the scheduling of this
    // thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const wanted, NO_FLAGS) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attributes()?.sched_runtime == SHORTEST_NS)
}

const THIS_THREAD: libc::pid_t = 0;
const NO_FLAGS: libc::c_uint = 0;

/// Returns the scheduling attributes of the calling thread.
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
    fn short_time_slices_keep_other_thread_attributes() {
        // Use a separate thread, so that tests which run at the same time keep their time slices.
        std::thread::spawn(|| {
            let before = attributes().unwrap();
            let has_short = shorten_time_slices().unwrap();
            let after = attributes().unwrap();
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            // Kernels before 6.12 report no slices.
            assert_eq!(after.sched_runtime, if has_short { SHORTEST_NS } else { before.sched_runtime });
            let inherited = std::thread::spawn(|| attributes().unwrap().sched_runtime).join().unwrap();
            assert_eq!(inherited, after.sched_runtime);
        })
        .join()
        .unwrap();
    }
}
