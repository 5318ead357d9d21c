//! What programs look at besides libibverbs: `/dev/infiniband`, `/sys/class/infiniband` and what belongs to them.
//!
//! These paths, and only these, are served here: functions of the C library that take a path compare its first
//! letters (`route.rs`), and nearly all calls go on to the C library at once. One table (`plan.rs`) lists all served
//! entries. Status, rights, links and lists of entries come from this table. No file stands for an entry before a program
//! opens it. Then the program gets an anonymous file, or a folder that was removed at once (`anonymous.rs`), whose name
//! identifies the entry (`names.rs`). So nothing stays when a process ends, even if it is killed.
//!
//! Links, `..` and relative paths are followed within the table, as the kernel would follow them in its own tree
//! (`route.rs`): so no path leads from it into the folder's surroundings. A removed folder has no entries for the kernel:
//! functions that list a folder are served too (`listing.rs`).
//!
//! Programs that make system calls themselves are not reached, and neither is what the C library opens within
//! functions that are not served: `ftw`, `nftw` and `fts_open`.

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

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use next::find_all;
use plan::{Node, plan};
pub(crate) use route::look_where_started;
use route::{Buffer, End, Lead, may_concern, was_missed};
use sys::Fd;

use crate::answer::set_errno;
use crate::wait::Uncancelled;

/// What the character device is called.
pub(crate) fn dev_name() -> &'static CStr {
    &plan().dev_name
}

/// How a call on a path of ours goes on.
enum Served<R> {
    /// It is done, and this is its result.
    Done(R),
    /// The C library's function does it, on the path in the buffer.
    Call,
    /// The same, but the path leads to this descriptor, which is closed afterwards.
    CallOn(Fd),
    /// It is refused with this errno.
    Refused(c_int),
}

/// Goes the way of a path that may lead to what is served. `serve` says what happens where it does: it may take part of
/// nothing that waits. Afterwards nothing is held, since `real` may be where a thread is cancelled, except for a
/// descriptor that `real` opens again, during which the thread is not cancelled.
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
            // SAFETY: every caller passes on what `may_concern` has read.
            match unsafe { route::lead(folder, path, end, &mut buffer) } {
                Lead::Through => Way::Through,
                Lead::Elsewhere => Way::Buffer,
                Lead::Refused(errno) => {
                    if errno == libc::ENOENT {
                        // SAFETY: a C string, as above.
                        anonymous::tell(
                            unsafe { CStr::from_ptr(path) }.to_bytes(),
                            &"there is no such file of the software RNIC",
                        );
                    }
                    Way::Refused(errno)
                }
                Lead::Node(node) => match serve(node, &mut buffer) {
                    Served::Done(result) => Way::Done(result),
                    Served::Call => Way::Buffer,
                    Served::CallOn(fd) => Way::Held(fd),
                    Served::Refused(errno) => Way::Refused(errno),
                },
            }
        };
        // Nothing unwinds into C.
        catch_unwind(AssertUnwindSafe(way)).unwrap_or(Way::Refused(libc::EIO))
    };
    set_errno(errno_before);
    match way {
        Way::Through => real(folder, path),
        Way::Buffer => real(libc::AT_FDCWD, buffer.as_ptr()),
        Way::Held(fd) => {
            let _uncancelled = Uncancelled::new();
            let result = real(libc::AT_FDCWD, buffer.as_ptr());
            let errno = sys::errno();
            drop(fd);
            set_errno(errno);
            result
        }
        Way::Done(result) => result,
        Way::Refused(errno) => {
            set_errno(errno);
            failed
        }
    }
}

enum Way<R> {
    Through,
    Buffer,
    Held(Fd),
    Done(R),
    Refused(c_int),
}

/// Answers from the plan alone, if nodes can be served at all.
fn answered<R>(node: &'static Node, answer: impl FnOnce() -> Served<R>) -> Served<R> {
    match anonymous::check() {
        Ok(()) => answer(),
        Err(unserved) => Served::Refused(unserved.errno(node)),
    }
}

/// Answers with what is made for a node.
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
