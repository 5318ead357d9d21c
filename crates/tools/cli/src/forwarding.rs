//! Signals of a command that runs a program and waits for its end.

use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use doorbell_reach::KeptSignals;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::Failure;

/// Interval between two checks whether the program has ended, or a signal has arrived.
const CHECK: Duration = Duration::from_millis(20);

/// Signals that the terminal sends to all processes of its foreground process group, and so to the program too.
const OF_TERMINAL: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];

/// Signals that go to the program until its end, instead of ending this process.
pub(crate) struct Forwarding {
    kept: KeptSignals,
}

impl Forwarding {
    /// Begins to keep these signals for the program, except those that the parent of this process ignores, as nohup
    /// does. The program ignores them too.
    pub(crate) fn begin(signals: &[Signal]) -> Result<Self, Failure> {
        Ok(Self { kept: KeptSignals::begin(signals)? })
    }

    /// Waits for the end of the program, and forwards signals. Calls `each` before each check. After the end, signals
    /// have their default action.
    pub(crate) fn wait(mut self, program: &mut Child, mut each: impl FnMut()) -> Result<ExitStatus, Failure> {
        let id = Pid::from_raw(program.id() as i32);
        loop {
            if let Some(status) = program.try_wait()? {
                return Ok(status);
            }
            for arrived in self.kept.take() {
                let has_program = arrived.is_from_kernel && OF_TERMINAL.contains(&arrived.signal);
                if !has_program {
                    // The program may have ended meanwhile.
                    let _ = kill(id, arrived.signal);
                }
            }
            each();
            sleep(CHECK);
        }
    }
}
