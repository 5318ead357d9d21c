//! A program under a fault plan: its parent checks at the end that each rule fired.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use crate::ending;
use crate::failure::Failure;
use crate::faults::FaultCheck;
use crate::forwarding::Forwarding;
use crate::output::note;

/// Runs this command again in a child process, which becomes the program. Ends as the program ends. If the program
/// succeeds and a required rule has not fired in any of its processes, the status is 1.
pub(super) fn run(check: FaultCheck) -> Result<ExitCode, Failure> {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let own = words.iter().position(|word| word == "run").map_or(0, |at| at + 1);
    let rest = words.split_off(own);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words).arg("--watched").arg(check.journal());
    let forwarding = Forwarding::begin()?;
    if forwarding.ignored_children() {
        command.arg("--ignore-children");
    }
    command.args(rest);
    let status = forwarding.wait(&mut command.spawn()?, || {})?;
    let have_fired = match check.finish() {
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
