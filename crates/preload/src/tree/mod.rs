//! What programs look at besides libibverbs: `/dev/infiniband`, `/sys/class/infiniband` and what belongs to them.
//!
//! These paths, and only these, are served here: functions of the C library that take a path compare its first
//! letters (`route.rs`), and nearly all calls go on to the C library at once. What is served is written down in one
//! table (`plan.rs`). It stands as real files in a folder of this process (`place.rs`), beside the published
//! counters: that is where calls lead, so that what a program opened behaves as a file or a folder does. The folder is
//! made at the first such call, goes with the process, and is removed by the next process where one was killed.
//!
//! Links, `..` and relative paths are followed within the table, as the kernel would follow them in its own tree
//! (`route.rs`): so no path leads from it into the folder's surroundings, and no answer shows where the folder is.
//!
//! Programs that make system calls themselves are not reached, and neither is what the C library opens within
//! functions that are not served: `ftw`, `nftw` and `fts_open`.

mod files;
mod folders;
mod links;
mod next;
mod place;
mod plan;
mod route;
mod status;
mod sys;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use next::find_all;
use place::Unprepared;
pub(crate) use place::{before_exec, end};
use plan::{Node, plan};
use route::{Buffer, End, Lead, may_concern};

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
    /// It is refused with this errno.
    Refused(c_int),
}

/// Goes the way of a path that may lead to what is served. `serve` says what happens where it does: it may take part of
/// nothing that waits. Afterwards nothing is held, since `real` may be where a thread is cancelled.
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
                        place::tell(
                            unsafe { CStr::from_ptr(path) }.to_bytes(),
                            &"there is no such file of the software RNIC",
                        );
                    }
                    Way::Refused(errno)
                }
                Lead::Node(node) => match serve(node, &mut buffer) {
                    Served::Done(result) => Way::Done(result),
                    Served::Call => Way::Buffer,
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
    Done(R),
    Refused(c_int),
}

/// Answers from the plan alone, if there is a place at all.
fn answered<R>(node: &'static Node, answer: impl FnOnce() -> Served<R>) -> Served<R> {
    match place::find() {
        Ok(()) => answer(),
        Err(unprepared) => Served::Refused(unprepared.errno(node)),
    }
}

/// Has a node stand where the C library's function finds it.
fn served_by_call<R>(node: &'static Node, path: &mut Buffer) -> Served<R> {
    match place::prepare(node, path) {
        Ok(()) => Served::Call,
        Err(unprepared) => Served::Refused(unprepared.errno(node)),
    }
}

impl Unprepared {
    /// What a program is told: that there is no such file. Why is said to who asked for it.
    fn errno(self, node: &Node) -> c_int {
        match self {
            // As of any file.
            Self::Errno(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => errno,
            Self::Errno(errno) => {
                let why = nix::errno::Errno::from_raw(errno);
                place::tell(&node.path, &why);
                libc::ENOENT
            }
            Self::Nowhere(why) => {
                place::tell(&node.path, &why);
                libc::ENOENT
            }
        }
    }
}
