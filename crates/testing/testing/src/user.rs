//! Other users of the machine.

use std::thread;

/// Runs a function as another user, in a thread of its own. Only root can do this.
///
/// # Panics
///
/// Panics if the process may not become the user, or if the function panics.
pub fn as_user<T: Send>(user: u32, run: impl FnOnce() -> T + Send) -> T {
    let become_and_run = || {
        // SAFETY: the call changes the user of the calling thread alone, and that thread ends below.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0, "no change to user {user}");
        run()
    };
    thread::scope(|scope| scope.spawn(become_and_run).join().unwrap())
}
