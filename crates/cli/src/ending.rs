//! How a command ends before its time: its terminal or the reader of its output goes, or a signal comes.
//!
//! Signals end a command as they end any program, except where the terminal has to be restored first. A terminal
//! or a reader that goes is noticed by a thread that sleeps in `poll`: the command itself may be measuring, or
//! waiting for a peer, and print nothing for minutes.
#![allow(clippy::disallowed_methods, reason = "it restores the terminal, and writes no text of others")]

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{LeaveAlternateScreen, disable_raw_mode};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level;

/// How long restoring a terminal may take: one that is stopped takes no output, and must not keep the command.
const RESTORING: Duration = Duration::from_millis(500);

/// Ends the process once nobody can see its output any more.
pub(crate) fn with_output() -> io::Result<()> {
    let stdout = io::stdout();
    // One that has gone is no terminal any more.
    let is_terminal = stdout.is_terminal();
    spawn(move || {
        wait(&mut [PollFd::new(stdout.as_fd(), PollFlags::empty())]);
        if is_terminal {
            end_as_by(SIGHUP);
        }
        // A pipe that nobody reads any more is no error. What lies in buffers has no reader either.
        low_level::exit(0)
    })
}

/// Ends the process once its terminal goes, if it has one: its output is not what it runs for.
pub(crate) fn with_terminal() -> io::Result<()> {
    if io::stdout().is_terminal() { with_output() } else { Ok(()) }
}

/// Ends the process once its standard input is closed at the other end: by the process that started it.
pub(crate) fn with_input() -> io::Result<()> {
    spawn(|| {
        wait(&mut [PollFd::new(io::stdin().as_fd(), PollFlags::empty())]);
        low_level::exit(1)
    })
}

/// Has the process end with the one that started it, such as a launcher, even if that is killed.
pub(crate) fn with_parent() -> io::Result<()> {
    let parent = std::os::unix::process::parent_id();
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    if std::os::unix::process::parent_id() != parent {
        end_as_by(SIGTERM); // it has gone already
    }
    Ok(())
}

/// A terminal that is drawn on, and is restored before the process ends, in whatever way.
pub(crate) struct Screen {
    /// Is it to be restored still? Whoever draws holds the lock.
    drawn: Arc<Mutex<bool>>,
}

impl Screen {
    /// Takes signals over; to be called before anything of the terminal is changed.
    pub(crate) fn take() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let (came, on_signal) = UnixStream::pair()?;
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            // Actions run in the order in which they were registered, so the number is there before the wake-up.
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
            low_level::pipe::register(number, on_signal.try_clone()?)?;
        }
        let drawn = Arc::new(Mutex::new(true));
        let to_restore = Arc::clone(&drawn);
        spawn(move || {
            let (stdin, stdout) = (io::stdin(), io::stdout());
            // Nothing is ever written to `on_signal` but by signals, so it has to be watched for input.
            let mut fds = vec![PollFd::new(came.as_fd(), PollFlags::POLLIN)];
            fds.push(PollFd::new(stdout.as_fd(), PollFlags::empty()));
            if stdin.is_terminal() {
                fds.push(PollFd::new(stdin.as_fd(), PollFlags::empty()));
            }
            wait(&mut fds);
            let (done, restored) = channel();
            let restore = move || {
                // First what takes effect even on a terminal that is stopped.
                let _ = disable_raw_mode();
                let mut drawn = to_restore.lock().unwrap_or_else(PoisonError::into_inner);
                if std::mem::take(&mut *drawn) {
                    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
                }
                let _ = done.send(());
                // The lock is kept: nothing may be drawn any more.
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

    /// Nothing is restored while this is held.
    pub(crate) fn draw(&self) -> MutexGuard<'_, bool> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the terminal where nothing has gone wrong.
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

/// Ends this process as the signal would, so that whoever waits for it learns why it ended.
pub(crate) fn end_as_by(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
    // That leaves only a signal that is blocked.
    low_level::exit(128 + signal);
}

/// Waits until there is news. What cannot be watched has none, ever.
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
