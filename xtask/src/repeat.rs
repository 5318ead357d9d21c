//! `cargo xtask repeat`: runs a step many times, alone or beside other work on the machine, and counts the passes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::{Parser, ValueEnum};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::place;
use crate::programs::{cpus, kernel};
use crate::shell::{command, output_of, root, target};
use crate::steps;

/// Argument that selects a whole run of `test`.
const ALL: &str = "all";

/// Maximum number of lines that the log repeats from a failed run's output before its summary.
const LINES_OF_FAILED: usize = 60;

/// Maximum number of lines with seeds that the log repeats.
const SEEDS_MAX: usize = 20;

/// Options of `cargo xtask repeat`.
#[derive(Debug, Parser)]
pub(crate) struct Repeat {
    /// Step: a name as the summary of `test` prints it, or a part of names. `all` repeats the whole run.
    step: String,
    /// Number of runs of each step, 1 to 10000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,
    /// File to which the log is appended.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Other work on the machine during the runs. May be given several times.
    #[arg(long, value_enum)]
    beside: Vec<Load>,
}

/// Work that uses processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Load {
    /// Compiles a crate of this workspace, again and again, with one job.
    Compiler,
    /// Spins on one processor.
    Spinner,
}

impl Load {
    const fn name(self) -> &'static str {
        match self {
            Self::Compiler => "a compiler",
            Self::Spinner => "a spinner",
        }
    }

    /// Starts the work. The work ends when the caller drops the handle, or soon after this process ends.
    fn start(self) -> Result<Running, String> {
        let own = std::process::id();
        let script = match self {
            Self::Compiler => format!(
                "while kill -0 {own}; do rm -rf \"$CARGO_TARGET_DIR\"; cargo build --quiet --jobs 1 --package \
                 doorbell-exchange; done"
            ),
            Self::Spinner => {
                format!("while kill -0 {own}; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done")
            }
        };
        let mut shell = command("sh", &["-c", &script]);
        shell.env("CARGO_TARGET_DIR", target().join("xtask").join("beside"));
        shell.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        shell.spawn().map(Running).map_err(|error| format!("{} could not be started: {error}", self.name()))
    }
}

/// A process group. Dropping this handle kills the group.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The group may have ended already.
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Outcome of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// The run passed, but the step or a part of the step could not run on this machine.
    LeftOut,
    Failed,
}

impl Outcome {
    fn of(succeeded: bool, said: &str) -> Self {
        let skipped = said.lines().last().is_some_and(|line| !line.ends_with(" 0 skipped"));
        match (succeeded, skipped) {
            (false, _) => Self::Failed,
            (true, true) => Self::LeftOut,
            (true, false) => Self::Passed,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::LeftOut => "LEFT OUT",
            Self::Failed => "FAILED",
        }
    }
}

impl Repeat {
    /// Runs the steps in turns, each `times` times. Returns an error if a run failed.
    pub(crate) fn run(&self) -> Result<(), String> {
        let names: Vec<&str> = match self.step.as_str() {
            ALL => vec![ALL],
            part => steps::named(part)?.iter().map(|step| step.name).collect(),
        };
        let log = self.log.as_deref().map(|path| open(path).map(|file| (path, file))).transpose()?;
        let mut log = Log(log);
        let state = state()?;
        self.begin(&mut log, &names, &state)?;
        let _beside = self.beside.iter().map(|load| load.start()).collect::<Result<Vec<_>, _>>()?;
        let mut outcomes = Vec::new();
        for round in 1..=self.times {
            for &name in &names {
                let (outcome, seconds, said) = run_once(name)?;
                log.line(&format!("{round:>4}  {name:<32} {:<8} {seconds:>7.1} s", outcome.name()))?;
                if outcome == Outcome::Failed {
                    details(&said).iter().try_for_each(|line| log.line(&format!("      | {line}")))?;
                }
                outcomes.push(outcome);
            }
            let now = self::state()?;
            if now != state {
                log.line(&format!("the files changed before the end of round {round}; they are now {now}"))?;
            }
        }
        let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
        let failed = count(Outcome::Failed);
        log.line(&format!(
            "runs: {} passed, {failed} failed, {} left out",
            count(Outcome::Passed),
            count(Outcome::LeftOut)
        ))?;
        if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} runs failed", outcomes.len())) }
    }

    fn begin(&self, log: &mut Log<'_>, names: &[&str], state: &str) -> Result<(), String> {
        let beside: Vec<&str> = self.beside.iter().map(|load| load.name()).collect();
        let beside = if beside.is_empty() { "alone".to_owned() } else { format!("beside {}", beside.join(" and ")) };
        let times = if self.times == 1 { "once".to_owned() } else { format!("{} times", self.times) };
        log.line(&format!("== {}: {times}, {beside}", names.join("; ")))?;
        log.line(&format!("commit: {state}"))?;
        log.line(&format!("date: {}", output_of(command("date", &["-u", "+%FT%TZ"]))?.trim()))?;
        log.line(&format!("processors: {}; kernel: {}", cpus(), kernel()))
    }
}

/// Returns the current commit, and the number of changed lines if files differ from the commit.
fn state() -> Result<String, String> {
    let commit = output_of(command("git", &["rev-parse", "HEAD"]))?;
    let changed = output_of(command("git", &["diff", "HEAD"]))?;
    let commit = commit.trim();
    Ok(if changed.is_empty() { commit.to_owned() } else { format!("{commit}, with {} changed lines", lines(&changed)) })
}

fn lines(diff: &str) -> usize {
    diff.lines().filter(|line| line.starts_with(['+', '-'])).count()
}

/// Runs a step or all steps in a separate process. Returns the outcome, the duration in seconds, and the output.
fn run_once(name: &str) -> Result<(Outcome, f64, String), String> {
    let output = place::own_file("run.txt");
    let failed = |error: std::io::Error| format!("{}: {error}", output.display());
    let file = File::create(&output).map_err(failed)?;
    let own = std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
    let mut child = command(own, &["test"]);
    if name != ALL {
        child.arg(name);
    }
    child.stdout(file.try_clone().map_err(failed)?).stderr(file);
    let start = Instant::now();
    let succeeded = status_of(child)?;
    let took = start.elapsed().as_secs_f64();
    let said = fs::read(&output).map_err(failed)?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let outcome = Outcome::of(succeeded, &said);
    if outcome == Outcome::Failed {
        eprintln!("the whole output: {}", output.display());
    } else {
        fs::remove_file(&output).map_err(failed)?;
    }
    Ok((outcome, took, said))
}

fn status_of(mut command: Command) -> Result<bool, String> {
    command.status().map(|status| status.success()).map_err(|error| format!("a run could not be started: {error}"))
}

/// Returns the important lines of a failed run: seeds, the end of its output, and the summary with all errors. Errors
/// contain the output of programs and backtraces.
fn details(said: &str) -> Vec<String> {
    let all: Vec<&str> = said.lines().collect();
    let summary = all.iter().rposition(|line| *line == "== summary").unwrap_or(all.len());
    let (before, summary) = all.split_at(summary);
    let is_seed = |line: &&&str| line.to_lowercase().contains("seed");
    let seeds = before.iter().filter(is_seed).take(SEEDS_MAX);
    let end = &before[before.len().saturating_sub(LINES_OF_FAILED)..];
    // Replace the path of the repository, which exists only on this machine.
    let local = root().to_string_lossy().into_owned();
    seeds.chain(end).chain(summary).map(|line| line.replace(&local, ".")).collect()
}

/// Log that prints lines, and also appends the lines to a file if a file is given.
struct Log<'a>(Option<(&'a Path, File)>);

impl Log<'_> {
    fn line(&mut self, line: &str) -> Result<(), String> {
        println!("{line}");
        match &mut self.0 {
            Some((path, file)) => writeln!(file, "{line}").map_err(|error| format!("{}: {error}", path.display())),
            None => Ok(()),
        }
    }
}

fn open(path: &Path) -> Result<File, String> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| OpenOptions::new().create(true).append(true).open(path))
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_run_counts_skipped_steps() {
        let passed = "== summary\nx 1.0 s passed\nsteps: 1 passed, 0 failed, 0 skipped\n";
        let left_out = "== summary\nx 1.0 s LEFT OUT: y\nsteps: 2 passed, 0 failed, 1 skipped\n";
        assert_eq!(Outcome::of(true, passed), Outcome::Passed);
        assert_eq!(Outcome::of(true, left_out), Outcome::LeftOut);
        assert_eq!(Outcome::of(false, passed), Outcome::Failed);
        assert_eq!(Outcome::of(true, "steps: 9 passed, 0 failed, 10 skipped"), Outcome::LeftOut);
    }

    #[test]
    fn logs_of_failed_runs_have_seeds_and_the_summary() {
        let noise: String = (0..500).map(|line| format!("line {line}\n")).collect();
        let said = format!("replay: SEED=7 cargo test\n{noise}\n== summary\nx FAILED: y\n#0 in main\n");
        let lines = details(&said);
        assert_eq!(lines[0], "replay: SEED=7 cargo test");
        assert!(!lines.contains(&"line 100".to_owned()) && lines.contains(&"line 499".to_owned()));
        assert_eq!(lines[lines.len() - 3..], ["== summary", "x FAILED: y", "#0 in main"]);
    }

    #[test]
    fn dropping_a_load_ends_it() {
        let load = Load::Spinner.start().unwrap();
        let group = Pid::from_raw(load.0.id() as i32);
        assert_eq!(killpg(group, None), Ok(()));
        drop(load);
        assert!(killpg(group, None).is_err());
    }
}
