//! Helpers that run other programs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::place;

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// Returns cargo's target directory.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(given) => root().join(given),
        None => root().join("target"),
    }
}

/// Returns a command of the same cargo that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    command(cargo, arguments)
}

/// Returns a command of cargo in a folder outside of the workspace. In the same target directory, and with the settings
/// of dependencies in the workspace's profile `dev`, the folder shares the crates of other projects with the workspace.
pub(crate) fn elsewhere(folder: &Path, arguments: &[&str]) -> Command {
    let mut cargo = cargo(arguments);
    cargo.current_dir(folder).env("CARGO_TARGET_DIR", target());
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_LTO", "off");
    cargo
}

/// Returns a command in the root of the repository, without standard input.
pub(crate) fn command(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    if let Some(own) = place::own_if_open() {
        command.env(place::VARIABLE, own);
    }
    command
}

/// Prints a command and runs it. Fails if the command fails.
pub(crate) fn run(mut command: Command) -> Result<(), String> {
    let text = describe(&command);
    eprintln!("+ {text}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{text}` failed: {status}")),
        Err(error) => Err(format!("`{text}` could not be started: {error}")),
    }
}

/// Prints and runs a command of `cargo test`. An error names the failed tests.
pub(crate) fn run_tests(mut command: Command) -> Result<(), String> {
    let text = describe(&command);
    eprintln!("+ {text}");
    command.stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("`{text}` could not be started: {error}"))?;
    let mut failed = Vec::new();
    // Read bytes instead of text, because tests may print bytes that are not UTF-8.
    for line in child.stdout.take().into_iter().flat_map(|pipe| BufReader::new(pipe).split(b'\n').map_while(Result::ok))
    {
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        failed.extend(line.strip_suffix(" ... FAILED").map(|test| test.trim_start_matches("test ").to_owned()));
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{text}` failed: {status}; tests that failed: {}", failed.join(", "))),
        Err(error) => Err(format!("`{text}`: {error}")),
    }
}

/// Runs a command and returns its standard output. Fails if the command fails.
pub(crate) fn output_of(mut command: Command) -> Result<String, String> {
    let text = describe(&command);
    let output = command.output().map_err(|error| format!("`{text}` could not be started: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{text}` failed: {}\n{why}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{text}` printed output that is not UTF-8"))
}

/// Returns whether a command succeeds. Discards its output.
pub(crate) fn succeeds(mut command: Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// A command that runs in the background. Dropping it kills the process.
pub(crate) struct Running {
    text: String,
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Receiver<String>,
    said: String,
}

impl Running {
    /// Starts the command, and reads its output in threads.
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        let text = describe(&command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("`{text}` could not be started: {error}"))?;
        let read = |mut pipe: ChildStdout| {
            std::thread::spawn(move || {
                let mut text = String::new();
                // After an error, for example if the output is not UTF-8, the text stays empty. Callers report missing
                // output.
                let _ = pipe.read_to_string(&mut text);
                text
            })
        };
        let stdout = child.stdout.take().map(read);
        let (lines, stderr) = channel();
        if let Some(pipe) = child.stderr.take() {
            std::thread::spawn(move || {
                BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
            });
        }
        Ok(Self { text, child, stdout, stderr, said: String::new() })
    }

    /// Waits until the standard error of the command contains `words`.
    pub(crate) fn wait_for(&mut self, words: &str, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        while !self.said.contains(words) {
            match self.stderr.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.hear(&line),
                Err(why) => {
                    let how =
                        if why == RecvTimeoutError::Timeout { "has not printed" } else { "ended without printing" };
                    return Err(format!("`{}` {how} {words:?}:\n{}", self.text, self.said));
                }
            }
        }
        Ok(())
    }

    /// Waits until the standard error of the command contains `words`, and returns the word that follows.
    pub(crate) fn word_after(&mut self, words: &str, patience: Duration) -> Result<String, String> {
        self.wait_for(words, patience)?;
        let word = self.said.split_once(words).and_then(|(_, rest)| rest.split_whitespace().next());
        word.map(str::to_owned).ok_or_else(|| format!("`{}` prints no word after {words:?}", self.text))
    }

    /// Sends SIGINT, which must end the command. Returns the standard output of the command.
    pub(crate) fn end(mut self, patience: Duration) -> Result<String, String> {
        self.interrupt()?;
        let status = self.wait(Instant::now() + patience)?;
        if status.signal() != Some(nix::sys::signal::Signal::SIGINT as i32) {
            return Err(format!("`{}` ended with {status}, expected an end by SIGINT", self.text));
        }
        Ok(self.stdout.take().map(JoinHandle::join).and_then(Result::ok).unwrap_or_default())
    }

    /// Sends SIGINT.
    pub(crate) fn interrupt(&self) -> Result<(), String> {
        output_of(command("kill", &["-INT", &self.child.id().to_string()])).map(drop)
    }

    /// Waits until the command ends, and returns its standard output and standard error. Fails if the command fails or
    /// takes longer than `patience`.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<(String, String), String> {
        let until = Instant::now() + patience;
        let status = self.wait(until)?;
        // A remaining child of the command may hold the pipe open, so the time limit also applies to this wait.
        while let Ok(line) = self.stderr.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.hear(&line);
        }
        if !status.success() {
            return Err(format!("`{}` failed: {status}\n{}", self.text, self.said));
        }
        let stdout = self.stdout.take().map(JoinHandle::join);
        let stdout = stdout.and_then(Result::ok).unwrap_or_default();
        Ok((stdout, std::mem::take(&mut self.said)))
    }

    fn wait(&mut self, until: Instant) -> Result<ExitStatus, String> {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err(format!("`{}` does not end", self.text)),
                Err(error) => return Err(format!("`{}` cannot be waited for: {error}", self.text)),
            }
        }
    }

    fn hear(&mut self, line: &str) {
        self.said.push_str(line);
        self.said.push('\n');
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The command may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn describe(command: &Command) -> String {
    let variables = command.get_envs().filter(|(name, _)| *name != place::VARIABLE).filter_map(|(name, value)| {
        let (name, value) = (name.to_string_lossy(), value?.to_string_lossy());
        Some(if value.contains(' ') { format!("{name}='{value}'") } else { format!("{name}={value}") })
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}
/// Returns the target triple of this machine.
pub(crate) fn host() -> Result<String, String> {
    let said = output_of(command("rustc", &["--version", "--verbose"]))?;
    let triple = said.lines().find_map(|line| line.strip_prefix("host: "));
    triple.map(str::to_owned).ok_or_else(|| format!("`rustc --version --verbose` prints no line `host: ...`:\n{said}"))
}
