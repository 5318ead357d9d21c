//! Time slices of threads that share a processor.
//!
//! A polling thread waits for another thread, which may be on the same processor, after a program that computes. The
//! scheduler gives each thread a time slice in turn, by default of milliseconds, so each exchange takes that time.
//! Since 6.12, Linux lets a thread ask for shorter slices (`sched_runtime` of a fair policy, 0.1 to 100 ms). The
//! thread has the same share of the processor, in smaller pieces.
#![allow(unsafe_code)]

use std::io;

/// Shortest time slice that Linux allows, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

/// Asks for the shortest time slices for the calling thread, and for all threads that it starts from now on.
///
/// Returns true if the thread has them: kernels before 6.12 accept the request without effect.
///
/// # Errors
///
/// The thread has another policy than `SCHED_OTHER`, or the operating system refuses, as sandboxes may.
pub fn shorten_time_slices() -> io::Result<bool> {
    let mut wanted = attributes()?;
    if wanted.sched_policy != libc::SCHED_OTHER as u32 {
        return Err(io::Error::other("the thread has another policy than SCHED_OTHER"));
    }
    wanted.sched_runtime = SHORTEST_NS;
    // SAFETY: the structure holds its own length and outlives the call, which changes only how this thread is
    // scheduled.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const wanted, NO_FLAGS) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attributes()?.sched_runtime == SHORTEST_NS)
}

const THIS_THREAD: libc::pid_t = 0;
const NO_FLAGS: libc::c_uint = 0;

/// Returns how the calling thread is scheduled.
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
