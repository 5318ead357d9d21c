//! Early end of a command after the terminal or the reader of its output has gone, or after a signal.
//!
//! Signals have their default action, except in a command that must restore the terminal first. A separate thread
//! sleeps in `poll` and notices when the terminal or the reader has gone. The other threads of the command may measure
//! or wait for a peer, and print nothing for minutes.
#![allow(clippy::disallowed_methods, reason = "this module restores the terminal, and writes no untrusted text")]

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use doorbell_sync::IgnorePoison;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{LeaveAlternateScreen, disable_raw_mode};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level;

/// Time after which the process ends even if its terminal is not restored. Writes to a stopped terminal block.
const RESTORING: Duration = Duration::from_millis(500);

/// Process id of the program that this process runs and waits for; 0 without one.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Sets the program to terminate before this process ends; 0 after the program has ended.
pub(crate) fn set_program(id: i32) {
    PROGRAM.store(id, Ordering::Relaxed);
}

fn terminate_program() {
    let id = PROGRAM.load(Ordering::Relaxed);
    if id > 0 {
        // The program may have ended meanwhile.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
}

/// Ends the process once the reader of its standard output has gone.
pub(crate) fn with_output() -> io::Result<()> {
    let stdout = io::stdout();
    // Check now: after a terminal has gone, `is_terminal` returns `false`.
    let is_terminal = stdout.is_terminal();
    spawn(move || {
        wait(&mut [PollFd::new(stdout.as_fd(), PollFlags::empty())]);
        terminate_program();
        if is_terminal {
            end_as_by(SIGHUP);
        }
        // A pipe without a reader is no error. Exit without a flush, since nothing reads the buffered output.
        low_level::exit(0)
    })
}

/// Ends the process once its terminal has gone, for a command whose purpose is not its output. Without a terminal, the
/// command does not depend on the reader of its output.
pub(crate) fn with_terminal() -> io::Result<()> {
    if io::stdout().is_terminal() { with_output() } else { Ok(()) }
}

/// Ends this process once the parent process closes the standard input of this process.
pub(crate) fn with_input() -> io::Result<()> {
    spawn(|| {
        wait(&mut [PollFd::new(io::stdin().as_fd(), PollFlags::empty())]);
        low_level::exit(1)
    })
}

/// Ends this process when its parent, such as a launcher, ends or is killed.
pub(crate) fn with_parent() -> io::Result<()> {
    let parent = std::os::unix::process::parent_id();
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
    if std::os::unix::process::parent_id() != parent {
        end_as_by(SIGTERM); // the parent ended before `set_pdeathsig`
    }
    Ok(())
}

/// A terminal on which the process draws. The terminal is restored before the process ends, also after a signal.
pub(crate) struct Screen {
    /// Whether the terminal must still be restored. A thread holds the lock while it draws.
    drawn: Arc<Mutex<bool>>,
}

impl Screen {
    /// Handles the signals that end the process. Call this function before any change of the terminal.
    pub(crate) fn take() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let (came, on_signal) = UnixStream::pair()?;
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            // Actions run in their order of registration, so the number of the signal is stored before the wake-up.
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
            low_level::pipe::register(number, on_signal.try_clone()?)?;
        }
        let drawn = Arc::new(Mutex::new(true));
        let to_restore = Arc::clone(&drawn);
        spawn(move || {
            let (stdin, stdout) = (io::stdin(), io::stdout());
            // The actions of the signals write to `on_signal`, so watch `came`, the other end, for input.
            let mut fds = vec![PollFd::new(came.as_fd(), PollFlags::POLLIN)];
            fds.push(PollFd::new(stdout.as_fd(), PollFlags::empty()));
            if stdin.is_terminal() {
                fds.push(PollFd::new(stdin.as_fd(), PollFlags::empty()));
            }
            wait(&mut fds);
            let (done, restored) = channel();
            let restore = move || {
                // Begin with the step that works even on a stopped terminal.
                let _ = disable_raw_mode();
                let mut drawn = to_restore.lock().ignore_poison();
                if std::mem::take(&mut *drawn) {
                    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
                }
                let _ = done.send(());
                // Keep the lock until the process ends, so that no thread draws any more.
                std::thread::sleep(RESTORING);
            };
            if spawn(restore).is_ok() {
                let _ = restored.recv_timeout(RESTORING);
            }
            match signal.load(Ordering::Relaxed) {
                0 => end_as_by(SIGHUP),
                number => end_as_by(number as i32),
            }
        })?;
        Ok(Self { drawn })
    }

    /// Locks the terminal, so that it is not restored while the caller draws.
    pub(crate) fn draw(&self) -> MutexGuard<'_, bool> {
        self.drawn.lock().ignore_poison()
    }

    /// Restores the terminal at the normal end of the command.
    pub(crate) fn restore(self) -> io::Result<()> {
        let mut drawn = self.draw();
        if std::mem::take(&mut *drawn) {
            ratatui::try_restore()?;
            execute!(io::stdout(), Show)?;
        }
        Ok(())
    }
}

fn spawn(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("ending".to_owned()).spawn(body).map(drop)
}

/// Ends this process as the signal would, so that the parent process sees the signal in the exit status.
pub(crate) fn end_as_by(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
    // This line is reached only if the signal is blocked.
    low_level::exit(128 + signal);
}

/// Waits for an event of any of the files. Ignores files that cannot be watched (`POLLNVAL`).
fn wait(fds: &mut [PollFd<'_>]) {
    loop {
        match poll(fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            Ok(_) if fds.iter().all(|fd| fd.revents().is_none_or(|news| !news.intersects(!PollFlags::POLLNVAL))) => {
                std::thread::park();
            }
            Ok(_) => return,
            Err(_) => std::thread::park(),
        }
    }
}
