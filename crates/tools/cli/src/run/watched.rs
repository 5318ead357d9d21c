//! A program under a fault plan: its parent checks at the end that each rule fired.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::ending;
use crate::failure::Failure;
use crate::faults::FaultCheck;
use crate::forwarding::Forwarding;
use crate::output::note;

/// Runs this command again in a child process, which becomes the program. Ends as the program ends. If the program
/// succeeds and a required rule has not fired in any of its processes, the status is 1. Rules of a program that could
/// not be started are not checked.
pub(super) fn run(check: FaultCheck) -> Result<ExitCode, Failure> {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let own = words.iter().position(|word| word == "run").map_or(0, |at| at + 1);
    let rest = words.split_off(own);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words).arg("--watched").arg(check.journal());
    // The child opens the descriptor of this process, so the program has none.
    let unstarted = File::from(memfd_create("doorbell-unstarted", MFdFlags::MFD_CLOEXEC)?);
    command.arg("--unstarted").arg(format!("/proc/{}/fd/{}", std::process::id(), unstarted.as_raw_fd()));
    let forwarding = Forwarding::begin()?;
    if forwarding.ignored_children() {
        command.arg("--ignore-children");
    }
    command.args(rest);
    let status = forwarding.wait(&mut command.spawn()?, || {})?;
    let checked = if unstarted.metadata().is_ok_and(|about| about.len() > 0) {
        drop(check);
        Ok(false)
    } else {
        check.finish()
    };
    let have_fired = match checked {
        // The status of a program that fails is more important.
        Err(error) if !status.success() => {
            note!("doorbell: {error}");
            false
        }
        checked => checked?,
    };
    if let Some(signal) = status.signal() {
        ending::end_as_by(signal);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(match code {
        Some(0) if have_fired => ExitCode::SUCCESS,
        Some(code) if code > 0 => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    })
}
