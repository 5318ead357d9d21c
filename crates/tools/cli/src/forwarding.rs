//! Signals of a command that runs a program and waits for its end.

use std::fs::{self, File};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use signal_hook::consts::{SIGINT, SIGQUIT};

use crate::failure::Failure;

/// Interval between two checks whether the program has ended, or a signal has arrived.
const CHECK: Duration = Duration::from_millis(20);

/// Signals that go to the program until its end, instead of ending this process.
pub(crate) struct Forwarding {
    /// Number of the last signal that is not forwarded yet; 0 without one.
    signal: Arc<AtomicUsize>,
    has_ended: Arc<AtomicBool>,
}

impl Forwarding {
    /// Begins to keep these signals for the program, except those that the parent of this process ignores, as nohup
    /// does. The program ignores them too.
    pub(crate) fn begin(signals: &[i32]) -> Result<Self, Failure> {
        let (signal, has_ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for number in signals.iter().copied().filter(|number| !is_ignored(*number)) {
            signal_hook::flag::register_conditional_default(number, Arc::clone(&has_ended))?;
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Self { signal, has_ended })
    }

    /// Waits for the end of the program, and forwards signals. Calls `each` before each check. After the end, signals
    /// have their default action.
    pub(crate) fn wait(&self, program: &mut Child, each: impl FnMut()) -> Result<ExitStatus, Failure> {
        let status = self.forward(program, each);
        self.has_ended.store(true, Ordering::SeqCst);
        status
    }

    fn forward(&self, program: &mut Child, mut each: impl FnMut()) -> Result<ExitStatus, Failure> {
        loop {
            if let Some(status) = program.try_wait()? {
                return Ok(status);
            }
            let number = self.signal.swap(0, Ordering::Relaxed) as i32;
            if let Ok(signal) = Signal::try_from(number)
                && !([SIGINT, SIGQUIT].contains(&number) && is_foreground())
                && let Ok(id) = i32::try_from(program.id())
            {
                // The program may have ended meanwhile.
                let _ = kill(Pid::from_raw(id), signal);
            }
            each();
            sleep(CHECK);
        }
    }
}

/// Returns whether this process ignores a signal, from the mask in `/proc/self/status`.
fn is_ignored(number: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (number - 1)) != 0
}

/// Returns whether the terminal sends its signals to the process group of this process, which is also that of the
/// program.
fn is_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()))
}
