//! Served paths: the files of an RDMA device that programs read without libibverbs. Examples are `/dev/infiniband` and
//! `/sys/class/infiniband`.
//!
//! The library replaces the functions of the C library that take a path. Each of them compares the first letters of its
//! path with the served paths (`route.rs`). Nearly all calls then continue in the C library at once. One table
//! (`plan.rs`) lists all served entries with their status, rights, links and folders.
//!
//! No file exists for an entry until a program opens the entry. Then the program gets an anonymous file, or a folder
//! that the library has created and removed at once (`anonymous.rs`). The name of this file or folder identifies the
//! entry (`names.rs`). So no file remains when a process ends, even if a signal kills the process.
//!
//! The library follows links, `..` and relative paths within the table, as the kernel follows them in its own tree
//! (`route.rs`). So no path leads from an anonymous folder to the folder in which the library created it. The kernel
//! shows no entries in a removed folder. Therefore, the library also replaces the functions that list a folder
//! (`listing.rs`).
//!
//! The library does not serve system calls that bypass the C library, nor files that the C library opens within `ftw`,
//! `nftw` and `fts_open`.

mod anonymous;
mod files;
mod folders;
mod links;
mod listing;
mod names;
mod next;
mod plan;
mod route;
mod status;
mod sys;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use next::find_all;
use plan::{Node, plan};
pub(crate) use route::look_where_started;
use route::{Buffer, End, Lead, may_concern, was_missed};
use sys::Fd;

use crate::objects::answer::set_errno;
use crate::process::wait::Uncancelled;

/// Returns the name of the character device of the device with this number.
pub(crate) fn dev_name(number: usize) -> CString {
    plan().dev_name(number)
}

/// Outcome of a call on a served path.
enum Served<R> {
    /// The call is complete and returns this result.
    Done(R),
    /// The caller must call the C library's function with the path in the buffer.
    Call,
    /// The buffer contains the path of this descriptor below `/proc`. The caller must call the C library's function
    /// with this path, and then close the descriptor.
    CallOn(Fd),
    /// The call fails with this errno.
    Refused(c_int),
}

/// Follows a path that may lead to a served node. If the path leads to a node, `serve` decides the outcome. `serve`
/// must not wait. `real` calls the C library's function, which may be a cancellation point. So this function holds no
/// resource while `real` runs. The exception is [`Served::CallOn`]: this function then holds the descriptor, and
/// cancellation is disabled while `real` runs.
#[cold]
#[inline(never)]
fn led<R>(
    folder: c_int,
    path: *const c_char,
    end: End,
    failed: R,
    real: impl Fn(c_int, *const c_char) -> R,
    serve: impl FnOnce(&'static Node, &mut Buffer) -> Served<R>,
) -> R {
    let errno_before = sys::errno();
    let mut buffer = Buffer::new();
    let way = {
        let _uncancelled = Uncancelled::new();
        let way = || {
            // SAFETY: every caller passes the path that `may_concern` has read.
            match unsafe { route::lead(folder, path, end, &mut buffer) } {
                Lead::Through => Handling::Through,
                Lead::Elsewhere => Handling::Buffer,
                Lead::Refused(errno) => {
                    if errno == libc::ENOENT {
                        // SAFETY: `may_concern` has read the path, so the path is a C string.
                        anonymous::tell(
                            unsafe { CStr::from_ptr(path) }.to_bytes(),
                            &"the software RNIC has no file of this name",
                        );
                    }
                    Handling::Refused(errno)
                }
                Lead::Node(node) => match serve(node, &mut buffer) {
                    Served::Done(result) => Handling::Done(result),
                    Served::Call => Handling::Buffer,
                    Served::CallOn(fd) => Handling::Held(fd),
                    Served::Refused(errno) => Handling::Refused(errno),
                },
            }
        };
        // A panic must not unwind into C.
        catch_unwind(AssertUnwindSafe(way)).unwrap_or(Handling::Refused(libc::EIO))
    };
    set_errno(errno_before);
    match way {
        Handling::Through => real(folder, path),
        Handling::Buffer => real(libc::AT_FDCWD, buffer.as_ptr()),
        Handling::Held(fd) => {
            let _uncancelled = Uncancelled::new();
            let result = real(libc::AT_FDCWD, buffer.as_ptr());
            let errno = sys::errno();
            drop(fd);
            set_errno(errno);
            result
        }
        Handling::Done(result) => result,
        Handling::Refused(errno) => {
            set_errno(errno);
            failed
        }
    }
}

enum Handling<R> {
    Through,
    Buffer,
    Held(Fd),
    Done(R),
    Refused(c_int),
}

/// Returns the result of `answer`, or an error if the library cannot serve nodes in this process. For calls that need
/// only the plan, and no file or folder.
fn answered<R>(node: &'static Node, answer: impl FnOnce() -> Served<R>) -> Served<R> {
    match anonymous::check() {
        Ok(()) => answer(),
        Err(unserved) => Served::Refused(unserved.errno(node)),
    }
}

/// Returns the answer for a file or folder that was created for a node, or the error of creating it.
fn made<R, T>(
    node: &'static Node,
    made: Result<T, anonymous::Unserved>,
    answer: impl FnOnce(T) -> Served<R>,
) -> Served<R> {
    match made {
        Ok(made) => answer(made),
        Err(unserved) => Served::Refused(unserved.errno(node)),
    }
}
