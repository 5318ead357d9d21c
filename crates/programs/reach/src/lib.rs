//! Check whether a library can be preloaded into a program. The dynamic linker preloads libraries (`ld.so(8)`).
//! Preloading fails for a program without dynamic linker, and for a program with more rights than the user that starts
//! the program.
//!
//! ```
//! use std::path::Path;
//!
//! match doorbell_reach::barrier(Path::new("/usr/bin/ib_send_bw")) {
//!     Some(barrier) => println!("the library cannot be preloaded: {barrier}"),
//!     None => println!("no barrier found"),
//! }
//! ```
//!
//! `doorbell run` checks the program that it executes. The preloaded library checks the programs that a process starts,
//! between fork and exec. Except for [`execute_by_name`], [`KeptSignals`], [`library()`] and [`variables`], this crate
//! therefore takes no lock, and allocates memory only for paths longer than 384 bytes.
#![deny(unsafe_code)]

mod elf;
#[allow(unsafe_code)]
mod execute;
mod library;
#[allow(unsafe_code)]
mod rights;
#[allow(unsafe_code)]
mod signals;

pub use execute::execute_by_name;
pub use library::{LIBRARY, LibraryError, drop_ins, library, variables};
pub use signals::{Arrived, KeptSignals, discard_ended_children, keep_ended_children};

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Reason why no library can be preloaded into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Barrier {
    /// The program has no dynamic linker.
    Static,
    /// The program is for another processor or another word size than the library.
    Foreign,
    /// The dynamic linker of the program does not belong to the GNU C library, which the preloaded library needs.
    OtherLibc,
    /// The file is setuid: the program runs with the rights of the file's owner.
    Setuid,
    /// The file is setgid: the program runs with the rights of the file's group.
    Setgid,
    /// The file gives capabilities to the program.
    Capabilities,
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "it is linked statically, and only the dynamic linker preloads a library",
            Self::Foreign => "it is built for another kind of processor than the library",
            Self::OtherLibc => "its C library is not the GNU C library, which the library needs",
            Self::Setuid => "it is setuid, and the dynamic linker ignores LD_PRELOAD for setuid programs",
            Self::Setgid => "it is setgid, and the dynamic linker ignores LD_PRELOAD for setgid programs",
            Self::Capabilities => {
                "its file has capabilities, and the dynamic linker ignores LD_PRELOAD for such programs"
            }
        })
    }
}

/// Maximum number of nested interpreters that the kernel follows.
const MOST_INTERPRETERS: usize = 5;
/// Number of bytes at the beginning of a file from which the kernel recognises the file's format (`BINPRM_BUF_SIZE`).
const BEGINNING_BYTES: usize = 256;
/// Maximum length of a path.
const PATH_BYTES: usize = libc::PATH_MAX as usize;

/// Returns the reason why no library can be preloaded into the program at this path. Returns `None` if preloading
/// works, if the path does not exist, or if the file is no program. For a script, checks the interpreter of the script.
pub fn barrier(path: &Path) -> Option<Barrier> {
    let mut interpreter;
    let mut path = path;
    for _ in 0..MOST_INTERPRETERS {
        // An executable file that this process cannot read is no script, but the file may be setuid or setgid.
        let Some(file) = open(path) else { return rights::barrier(path) };
        let mut beginning = [0; BEGINNING_BYTES];
        let read = file.read_at(&mut beginning, 0).ok()?;
        match interpreter_of(&beginning[..read]) {
            Some(named) => {
                interpreter = beginning;
                path = Path::new(OsStr::from_bytes(&interpreter[named]));
            }
            None => return rights::barrier(path).or_else(|| elf::barrier(&file)),
        }
    }
    None
}

/// Opens a regular file. Returns `None` for any other file, since opening it could block or have side effects.
fn open(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC).open(path);
    file.ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file()))
}

/// Returns the position of the interpreter's path, which follows `#!` in the first line of a script.
fn interpreter_of(beginning: &[u8]) -> Option<Range<usize>> {
    let line = beginning.strip_prefix(b"#!")?;
    let from = beginning.len() - line.trim_ascii_start().len();
    let rest = &beginning[from..];
    // The first line names no interpreter: `rest` begins in a later line.
    if line[..line.len() - rest.len()].contains(&b'\n') {
        return None;
    }
    let length = rest.iter().position(|byte| matches!(byte, b' ' | b'\t' | b'\n' | 0)).unwrap_or(rest.len());
    (length > 0).then_some(from..from + length)
}

/// Calls `found` with the path of the first executable file of this name, like [`first_of_programs`].
pub fn with_program<R>(name: &OsStr, path: &OsStr, found: impl FnOnce(&Path) -> R) -> Option<R> {
    let mut found = Some(found);
    first_of_programs(name, path, |candidate| found.take().map(|found| found(candidate)))
}

/// Calls `found` with the path of each executable file that `execvp(3)` considers for this name, until `found` returns
/// a result. If the name has no slash, these are the files in the folders of `path`.
pub fn first_of_programs<R>(name: &OsStr, path: &OsStr, mut found: impl FnMut(&Path) -> Option<R>) -> Option<R> {
    if name.as_bytes().contains(&b'/') {
        return found(Path::new(name));
    }
    let mut place = [0; PATH_BYTES];
    for folder in path.as_bytes().split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { b"." } else { folder };
        let length = folder.len() + 1 + name.len();
        let Some(text) = place.get_mut(..length) else { continue };
        text[..folder.len()].copy_from_slice(folder);
        text[folder.len()] = b'/';
        text[folder.len() + 1..].copy_from_slice(name.as_bytes());
        let candidate = Path::new(OsStr::from_bytes(text));
        if rights::may_execute(candidate)
            && let Some(result) = found(candidate)
        {
            return Some(result);
        }
    }
    None
}

#[cfg(test)]
mod tests;
