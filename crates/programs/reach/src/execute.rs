//! Replacement of this process by a program.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::execve;

/// Replaces this process by the program of this name, which `execvp(3)` would find in the `PATH` of this process. The
/// program gets `variables` in addition to the environment of this process. `words` are the program's name and its
/// arguments. Calls `before` with the path of each file that the function tries to execute. The function returns only
/// on failure, with the reason.
pub fn execute_by_name(
    name: &OsStr,
    words: &[OsString],
    variables: &[(&str, OsString)],
    before: impl Fn(&Path),
) -> io::Error {
    // Use the same default as `execvp(3)`.
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut skipped = None;
    let failed = super::first_of_programs(name, &path, |file| {
        before(file);
        let error = execute(file, words, variables);
        if !is_skipped(&error) {
            return Some(error);
        }
        // As `execvp(3)`, prefer the report of a file that may not be executed.
        if skipped.is_none() || error.kind() == io::ErrorKind::PermissionDenied {
            skipped = Some(error);
        }
        None
    });
    failed.or(skipped).unwrap_or_else(|| Errno::ENOENT.into())
}

/// Returns whether `execvp(3)` goes on to the next folder after this error.
fn is_skipped(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EACCES | Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ENODEV | Errno::ETIMEDOUT)
    )
}

/// Replaces this process by the program in `file`. The program starts without blocked signals, and with the default
/// action of SIGPIPE. The function returns only on failure, with the reason.
///
/// `execvp(3)` passes every file that the kernel does not recognise to the shell. The shell then executes the bytes of
/// the file, even if the file is a program for another machine. This function therefore passes only text files to the
/// shell.
fn execute(file: &Path, words: &[OsString], variables: &[(&str, OsString)]) -> io::Error {
    let c_string = |text: &OsStr| CString::new(text.as_bytes());
    let prepared = || {
        let inherited = env::vars_os().filter(|(name, _)| variables.iter().all(|(other, _)| name != other));
        let set = variables.iter().map(|(name, value)| (OsString::from(name), value.clone()));
        let variables = inherited.chain(set).map(|(mut variable, value)| {
            variable.push("=");
            variable.push(value);
            c_string(&variable)
        });
        let words: Result<Vec<_>, _> = words.iter().map(|word| c_string(word)).collect();
        Ok::<_, std::ffi::NulError>((c_string(file.as_os_str())?, words?, variables.collect::<Result<Vec<_>, _>>()?))
    };
    let (program, mut words, variables) = match prepared() {
        Ok(prepared) => prepared,
        Err(error) => return error.into(),
    };
    // `sigprocmask` and `signal` succeed with these arguments.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    // SAFETY: the default action calls no function of this program.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    let Err(mut refused) = execve(&program, &words, &variables);
    if refused == Errno::ENOEXEC && is_text(file) {
        words.splice(..words.len().min(1), [c"sh".to_owned(), program]);
        let Err(of_shell) = execve(c"/bin/sh", &words, &variables);
        refused = of_shell;
    }
    refused.into()
}

/// Returns whether the first line of the file has no NUL byte. Shells apply the same rule to recognise text files.
fn is_text(file: &Path) -> bool {
    let mut beginning = [0; super::BEGINNING_BYTES];
    let read = super::open(file).and_then(|file| file.read_at(&mut beginning, 0).ok());
    let line = read.and_then(|read| beginning[..read].split(|&byte| byte == b'\n').next());
    line.is_some_and(|line| !line.contains(&0))
}
