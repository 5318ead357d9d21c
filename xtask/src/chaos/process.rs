//! One process of a pair.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::{command, output_of};

/// A process, with a separate folder for its output and its core file.
pub(super) struct Process {
    name: &'static str,
    text: String,
    program: String,
    child: Child,
    folder: PathBuf,
    status: Option<ExitStatus>,
    hung: String,
}

impl Process {
    /// Starts a command, which may leave a core file in its folder.
    pub(super) fn start(
        name: &'static str,
        run: Command,
        program: &str,
        folder: &Path,
        link: Stdio,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{run:?} could not be started: {error}");
        fs::create_dir_all(folder).map_err(failed)?;
        let output = File::create(folder.join("output.txt")).map_err(failed)?;
        let also = output.try_clone().map_err(failed)?;
        let text = format!("{run:?}");
        let mut with_core = rewrapped(run);
        with_core.current_dir(folder).stdin(link).stdout(Stdio::from(output)).stderr(Stdio::from(also));
        let child = with_core.spawn().map_err(|error| format!("{text} could not be started: {error}"))?;
        let (program, folder) = (program.to_owned(), folder.to_owned());
        Ok(Self { name, text, program, child, folder, status: None, hung: String::new() })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), String> {
        if self.ended().is_none() {
            let pid = Pid::from_raw(self.child.id() as i32);
            kill(pid, signal).map_err(|error| format!("{signal} cannot be sent to the {}: {error}", self.name))?;
        }
        Ok(())
    }

    /// Lowers the process's limit of descriptors to the lowest unused number, unless the process has ended. Then it can
    /// open no further descriptor.
    pub(super) fn limit_descriptors(&mut self) -> Result<(), String> {
        let pid = self.child.id();
        let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Ok(()) };
        let used: Vec<u64> = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let unused = (0..).find(|number| !used.contains(number)).unwrap_or_default();
        let limited = output_of(command("prlimit", &["--pid", &pid.to_string(), &format!("--nofile={unused}:")]));
        // The process may have ended meanwhile.
        if self.ended().is_some() { Ok(()) } else { limited.map(drop) }
    }

    /// Returns the exit status of the process if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    pub(super) fn wait_at_most(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.ended() {
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                status => return status,
            }
        }
    }

    /// Waits until the process ends. If the process hangs, stores its stacks for the report.
    pub(super) fn wait(&mut self, patience: Duration) -> Result<ExitStatus, String> {
        if let Some(status) = self.wait_at_most(patience) {
            return Ok(status);
        }
        self.hung = backtrace(&["-p", &self.child.id().to_string()]);
        Err(format!("the {} does not end within {} s", self.name, patience.as_secs()))
    }

    pub(super) fn kill(&mut self) {
        if self.ended().is_none() {
            // Ignore an error, because the process may just have ended.
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    /// Returns the command, its exit status, its output, and the stacks of its core file or of its hanging threads.
    pub(super) fn report(&self) -> String {
        let said = fs::read(self.folder.join("output.txt")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let status = self.status.map_or_else(|| "still running".to_owned(), |status| status.to_string());
        let cores = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut cores = cores.filter(|entry| entry.file_name().to_string_lossy().starts_with("core"));
        let stacks = cores.next().map(|core| backtrace(&[&self.program, &core.path().to_string_lossy()]));
        let stacks = stacks.unwrap_or_else(|| self.hung.clone());
        format!("the {}, {status}: {}\n{said}{stacks}", self.name, self.text)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the signal that ended a process, if this signal means a crash.
pub(super) fn crash(status: ExitStatus) -> Option<Signal> {
    let signal = Signal::try_from(status.signal()?).ok()?;
    let crashes = [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGABRT, Signal::SIGILL, Signal::SIGFPE, Signal::SIGSYS];
    crashes.contains(&signal).then_some(signal)
}

/// Returns a shell command that first allows core files. Then `exec` replaces the shell by the command `run`.
fn rewrapped(run: Command) -> Command {
    let mut shell = command("sh", &["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]);
    shell.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// Returns the stacks of all threads of a process or core file, as gdb prints them.
fn backtrace(what: &[&str]) -> String {
    let mut words = vec!["-batch", "-nx", "-ex", "thread apply all backtrace 20"];
    words.extend(what);
    match output_of(command("gdb", &words)) {
        Ok(text) => format!("stacks:\n{text}"),
        Err(why) => format!("no stacks: {}\n", why.lines().next().unwrap_or_default()),
    }
}
