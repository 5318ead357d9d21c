//! Signals of a command that runs a program and waits for its end.

use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use doorbell_reach::{KeptSignals, keep_ended_children};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp};

use crate::failure::Failure;

/// Interval between two checks whether the program has ended, or a signal has arrived.
const CHECK: Duration = Duration::from_millis(20);

/// Signals that go to the program.
const FORWARDED: [Signal; 10] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTERM,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGWINCH,
];
/// Signals that the terminal sends to all processes of its foreground process group, mostly also to the program.
const OF_TERMINAL: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGWINCH];

/// Signals that go to the program until its end, instead of ending or stopping this process.
///
/// If another process sends a signal to the process group of both, the program gets the signal twice: itself, and from
/// this process. The kernel does not show whether a signal was sent to the group or to one process. There are two
/// alternatives, and each loses more than a repeated signal does:
///
/// * A second process in the group gets the signals to the group too, and thereby identifies them. But pkill also sends
///   a signal to each process with the name of this command. Such a signal would not reach the program.
/// * The program gets a process group of its own. A harness that sends SIGKILL to the group of its command would leave
///   the program alive, and this process would have to pass on the terminal.
pub(crate) struct Forwarding {
    kept: KeptSignals,
    /// Whether the parent of this process ignores SIGCHLD. The kernel would discard the status of the program.
    ignored_children: bool,
}

impl Forwarding {
    /// Begins to keep signals for the program, except those that the parent of this process ignores, as nohup does. The
    /// program ignores them too.
    pub(crate) fn begin() -> Result<Self, Failure> {
        Ok(Self { kept: KeptSignals::begin(&FORWARDED)?, ignored_children: keep_ended_children()? })
    }

    /// Returns whether this process ignored SIGCHLD before.
    pub(crate) fn ignored_children(&self) -> bool {
        self.ignored_children
    }

    /// Waits for the end of the program, and forwards signals. Calls `each` before each check. After the end, signals
    /// have their default action. If SIGTSTP stops the program, this process stops too, so that a shell sees it.
    pub(crate) fn wait(mut self, program: &mut Child, mut each: impl FnMut()) -> Result<ExitStatus, Failure> {
        let id = Pid::from_raw(program.id() as i32);
        let mut is_to_stop = false;
        loop {
            if let Some(status) = program.try_wait()? {
                return Ok(status);
            }
            let mut all = self.kept.take();
            // A program that has to stop and to continue must not remain stopped.
            all.sort_by_key(|arrived| arrived.signal == Signal::SIGCONT);
            for arrived in all {
                match arrived.signal {
                    Signal::SIGTSTP => is_to_stop = true,
                    Signal::SIGCONT => is_to_stop = false,
                    _ => {}
                }
                let is_of_group = arrived.is_from_kernel && OF_TERMINAL.contains(&arrived.signal);
                // A program such as timeout has a process group of its own.
                if !is_of_group || getpgid(Some(id)) != Ok(getpgrp()) {
                    // The program may have ended meanwhile.
                    let _ = kill(id, arrived.signal);
                }
            }
            if is_to_stop && has_stopped(id) {
                is_to_stop = false;
                raise(Signal::SIGSTOP)?;
            }
            each();
            sleep(CHECK);
        }
    }
}

/// Returns whether the program has stopped since the last call. A program may ignore SIGTSTP.
fn has_stopped(program: Pid) -> bool {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
    matches!(waitid(Id::Pid(program), flags), Ok(WaitStatus::Stopped(..)))
}
