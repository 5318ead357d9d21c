//! A pseudo-terminal on which commands run.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{Termios, tcgetattr};

use crate::command::PATIENCE;

/// Time within which a command must end. Commands end within milliseconds, and later on a busy machine.
const TO_END: Duration = Duration::from_secs(20);

/// Relation of a command to the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// The command leads a session on this terminal, and gets SIGHUP when the terminal goes.
    Own,
    /// The command leads a session on this terminal, but ignores SIGHUP.
    OwnWithoutHangup,
    /// The command only reads and writes on the terminal, and gets no signal when the terminal goes.
    None,
}

pub(crate) struct Terminal {
    /// The master end of the pseudo-terminal, which usually belongs to a window or sshd.
    master: File,
    slave: File,
    before: Termios,
    said: Arc<Mutex<String>>,
    /// Threads that read the output, each with its own descriptor of the master end.
    windows: RefCell<Vec<JoinHandle<()>>>,
    gone: Arc<AtomicBool>,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        // No process may inherit the master end. Otherwise, the terminal would not go when the test closes its master
        // end.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master = posix_openpt(flags).expect("there are pseudo-terminals");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("the terminal can be used");
        let name = ptsname_r(&master).expect("the terminal has a name");
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
        let slave = options.open(name).expect("the terminal can be opened");
        let mut stty = Command::new("stty");
        stty.args(["rows", "30", "cols", "100"]).stdin(slave.try_clone().expect("a descriptor can be had"));
        assert!(stty.status().is_ok_and(|status| status.success()), "the terminal has a size");
        let master = File::from(OwnedFd::from(master));
        let before = tcgetattr(&slave).expect("the file is a terminal");
        let said = Arc::new(Mutex::new(String::new()));
        Self { master, slave, before, said, windows: RefCell::default(), gone: Arc::default() }
    }

    /// Runs a command with the terminal as its standard input, output and error.
    pub(crate) fn start(&self, command: Command, session: Session) -> OnTerminal {
        let started = self.start_with(command, session, self.end());
        let mut master = self.master.try_clone().expect("a descriptor can be had");
        let (said, gone) = (Arc::clone(&self.said), Arc::clone(&self.gone));
        let window = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !gone.load(Ordering::Relaxed) {
                let news = poll(&mut [PollFd::new(master.as_fd(), PollFlags::POLLIN)], 10_u8);
                if news.is_ok_and(|news| news > 0) {
                    let Ok(count @ 1..) = master.read(&mut bytes) else { return };
                    let text = String::from_utf8_lossy(&bytes[..count]);
                    said.lock().ignore_poison().push_str(&text);
                }
            }
        });
        self.windows.borrow_mut().push(window);
        started
    }

    /// Runs a command on the terminal with its standard output at `stdout`. No thread reads the output on the terminal.
    pub(crate) fn start_with(&self, command: Command, session: Session, stdout: Stdio) -> OnTerminal {
        // A test in the background of a shell ignores some signals, and its child processes would ignore them too.
        const BY_DEFAULT: [&str; 2] = ["env", "--default-signal=HUP,INT,QUIT"];
        let more: &[&str] = match session {
            Session::Own => &["setsid", "--ctty"],
            Session::OwnWithoutHangup => &["setsid", "--ctty", "sh", "-c", "trap '' HUP; exec \"$@\"", "sh"],
            Session::None => &[],
        };
        let prefix = [&BY_DEFAULT[..], more].concat();
        let mut wrapped = Command::new(prefix[0]);
        wrapped.args(&prefix[1..]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped.env("TERM", "xterm").stdin(self.end()).stdout(stdout).stderr(self.end());
        if session == Session::None {
            // Give the command its own process group, so that a signal to the group reaches no other test.
            wrapped.process_group(0);
        }
        let child = wrapped.spawn().unwrap_or_else(|error| panic!("{}: {error}", prefix[0]));
        OnTerminal { child, what: format!("{command:?}") }
    }

    pub(crate) fn end(&self) -> Stdio {
        self.slave.try_clone().expect("a descriptor can be had").into()
    }

    /// Returns the output so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().ignore_poison().clone()
    }

    /// Waits until the terminal shows this text.
    pub(crate) fn wait_for(&self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.said().contains(text) {
            assert!(Instant::now() < until, "{text:?} was never shown, only {:?}", self.said());
            sleep(Duration::from_millis(2));
        }
    }

    #[track_caller]
    pub(crate) fn expect(&self, text: &str) {
        assert!(self.said().contains(text), "{text:?} is missing in {:?}", self.said());
    }

    pub(crate) fn press(&self, key: &str) {
        (&self.master).write_all(key.as_bytes()).expect("keys can be pressed");
    }

    /// Returns whether the terminal has its initial settings again, with line editing and echo.
    pub(crate) fn is_cooked(&self) -> bool {
        tcgetattr(&self.slave).expect("the file is a terminal") == self.before
    }

    /// Checks that the terminal has its initial settings again, and shows its first screen and its cursor.
    #[track_caller]
    pub(crate) fn expect_restored(&self) {
        assert!(self.is_cooked(), "{:?}", tcgetattr(&self.slave));
        // The reading thread may not have received the last output yet.
        let is_undone = |text: &str, on: &str, off: &str| text.rfind(on) <= text.rfind(off);
        let until = Instant::now() + TO_END;
        loop {
            let said = self.said();
            if is_undone(&said, "\u{1b}[?1049h", "\u{1b}[?1049l") && is_undone(&said, "\u{1b}[?25l", "\u{1b}[?25h") {
                return;
            }
            assert!(Instant::now() < until, "the screen is not as it was: {said:?}");
            sleep(Duration::from_millis(2));
        }
    }

    /// Closes the master end, as if the window was closed. Every descriptor of the terminal is then dead.
    pub(crate) fn vanish(self) {
        drop(self);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
        for window in self.windows.take() {
            let _ = window.join();
        }
    }
}

/// A command that runs on a terminal. Dropping this handle ends the process.
pub(crate) struct OnTerminal {
    child: Child,
    what: String,
}

impl OnTerminal {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits until the command has ended by itself.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + TO_END;
        loop {
            if let Some(status) = self.child.try_wait().expect("the process can be waited for") {
                return status;
            }
            assert!(Instant::now() < until, "{} does not end", self.what);
            sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
