//! Early end of a command: its terminal or the reader of its output goes, or a signal arrives.
//!
//! Signals end a command like any other program, except if the terminal must be restored first. A thread that sleeps
//! in `poll` notices a terminal or a reader that goes. The command itself may be measuring, or waiting for a peer,
//! and print nothing for minutes.
#![allow(clippy::disallowed_methods, reason = "this module restores the terminal, and writes no untrusted text")]

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use doorbell_sync::IgnorePoison;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{LeaveAlternateScreen, disable_raw_mode};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level;

/// Time for restoring a terminal: a stopped one takes no output, and must not block the command.
const RESTORING: Duration = Duration::from_millis(500);

/// Ends the process once its output has no reader any more.
pub(crate) fn with_output() -> io::Result<()> {
    let stdout = io::stdout();
    // A terminal that has gone does not count as one any more.
    let is_terminal = stdout.is_terminal();
    spawn(move || {
        wait(&mut [PollFd::new(stdout.as_fd(), PollFlags::empty())]);
        if is_terminal {
            end_as_by(SIGHUP);
        }
        // A pipe without a reader is no error. Buffered output has no reader either.
        low_level::exit(0)
    })
}

/// Ends the process once its terminal goes, if it has one: its output is not its purpose.
pub(crate) fn with_terminal() -> io::Result<()> {
    if io::stdout().is_terminal() { with_output() } else { Ok(()) }
}

/// Ends the process once the process that started it closes its standard input.
pub(crate) fn with_input() -> io::Result<()> {
    spawn(|| {
        wait(&mut [PollFd::new(io::stdin().as_fd(), PollFlags::empty())]);
        low_level::exit(1)
    })
}

/// Ends the process together with its parent, such as a launcher, even if that is killed.
pub(crate) fn with_parent() -> io::Result<()> {
    let parent = std::os::unix::process::parent_id();
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    if std::os::unix::process::parent_id() != parent {
        end_as_by(SIGTERM); // it has gone already
    }
    Ok(())
}

/// A terminal that the process draws on, and that is restored before the process ends in any way.
pub(crate) struct Screen {
    /// Whether the terminal must still be restored. A drawing thread holds the lock.
    drawn: Arc<Mutex<bool>>,
}

impl Screen {
    /// Takes over the signals. Call this before any change of the terminal.
    pub(crate) fn take() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let (came, on_signal) = UnixStream::pair()?;
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            // Actions run in their order of registration, so the number is there before the wake-up.
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
            low_level::pipe::register(number, on_signal.try_clone()?)?;
        }
        let drawn = Arc::new(Mutex::new(true));
        let to_restore = Arc::clone(&drawn);
        spawn(move || {
            let (stdin, stdout) = (io::stdin(), io::stdout());
            // Only signals write to `on_signal`, so watch it for input.
            let mut fds = vec![PollFd::new(came.as_fd(), PollFlags::POLLIN)];
            fds.push(PollFd::new(stdout.as_fd(), PollFlags::empty()));
            if stdin.is_terminal() {
                fds.push(PollFd::new(stdin.as_fd(), PollFlags::empty()));
            }
            wait(&mut fds);
            let (done, restored) = channel();
            let restore = move || {
                // First the step that works even on a stopped terminal.
                let _ = disable_raw_mode();
                let mut drawn = to_restore.lock().ignore_poison();
                if std::mem::take(&mut *drawn) {
                    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
                }
                let _ = done.send(());
                // Keep the lock: no thread may draw any more.
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

    /// Locks the terminal against restoring.
    pub(crate) fn draw(&self) -> MutexGuard<'_, bool> {
        self.drawn.lock().ignore_poison()
    }

    /// Restores the terminal after a normal end.
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

/// Ends this process as the signal would, so that a process that waits for it learns the reason.
pub(crate) fn end_as_by(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
    // Only a blocked signal leads here.
    low_level::exit(128 + signal);
}

/// Waits for an event. A file that cannot be watched never has one.
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
