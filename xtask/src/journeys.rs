//! `cargo xtask journeys`: questions of new users, the commands that answer them, and the seconds until the answer.
//!
//! `benchmarks/journeys/journeys.toml` has the questions. Times depend on the machine, so a slow answer is no failure.
//! A command that fails, or a missing answer, is one.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::peers::has;
use crate::place;
use crate::programs::{self, built, cpus, kernel, ports};
use crate::shell::{command, output_of};

const LIST: &str = include_str!("../../benchmarks/journeys/journeys.toml");

/// Time after which a command counts as hanging. No step takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// Name of the free TCP port of a journey in its commands.
const PORT: &str = "{port}";

/// Options of `cargo xtask journeys`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Names of journeys [default: all journeys]
    names: Vec<String>,
    /// File to which the table is written, as in `benchmarks/DATE/journeys.txt`.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    journey: Vec<Journey>,
}

/// Question with the commands that answer it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Journey {
    name: String,
    question: String,
    /// Seconds within which a user should have the answer.
    goal_s: f64,
    /// Programs that must be installed.
    #[serde(default)]
    needs: Vec<String>,
    step: Vec<Step>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Command line for the shell.
    run: String,
    /// Whether the command listens on the port until the end of the journey.
    #[serde(default)]
    listens: bool,
    /// Text of the answer.
    #[serde(default)]
    answer: Option<String>,
    /// File with the answer. Without it, the answer is in the output.
    #[serde(default)]
    file: Option<PathBuf>,
    /// Whether the command may end with any status.
    #[serde(default)]
    any_status: bool,
}

/// Times of a journey.
#[derive(Debug)]
struct Times {
    /// Time from the start until the last answer.
    answered: Duration,
    steps: Vec<Duration>,
}

/// Runs the journeys, and prints the times of each.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let all = list()?;
    let is_chosen = |journey: &Journey| options.names.is_empty() || options.names.contains(&journey.name);
    if let Some(unknown) = options.names.iter().find(|name| all.iter().all(|journey| journey.name != **name)) {
        let names: Vec<&str> = all.iter().map(|journey| journey.name.as_str()).collect();
        return Err(format!("there is no journey {unknown}: must be one of {}", names.join(", ")));
    }
    programs::build()?;
    let _alone = place::measuring()?;
    let (mut text, mut failures) = (String::new(), Vec::new());
    let mut say = |lines: &str| {
        print!("{lines}");
        text.push_str(lines);
    };
    say(&heading()?);
    for journey in all.iter().filter(|journey| is_chosen(journey)) {
        if let Some(missing) = journey.needs.iter().find(|program| !has(program)) {
            say(&format!("{:<24} left out: {missing} is not installed\n", journey.name));
            continue;
        }
        match journey.travel(&place::own_file("journey"), &built()) {
            Ok(times) => say(&journey.lines(&times)),
            Err(why) => {
                say(&format!("{:<24} failed\n", journey.name));
                failures.push(format!("{}: {why}", journey.name));
            }
        }
    }
    if let Some(out) = &options.out {
        fs::write(out, text).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn list() -> Result<Vec<Journey>, String> {
    let list: List = toml::from_str(LIST).map_err(|error| format!("journeys.toml: {error}"))?;
    Ok(list.journey)
}

/// Returns the description of the run, and the names of the columns.
fn heading() -> Result<String, String> {
    let of = |program: &str, arguments: &[&str]| -> Result<String, String> {
        Ok(output_of(command(program, arguments))?.trim().to_owned())
    };
    let (date, commit) = (of("date", &["+%F"])?, of("git", &["rev-parse", "--short", "HEAD"])?);
    let machine = format!("{} CPUs, Linux {}", cpus(), kernel());
    let columns = format!("{:<24}{:>10}{:>10}{:>10}  question", "journey", "answer, s", "all, s", "goal, s");
    Ok(format!("Seconds of journeys, {date}, commit {commit}, {machine}\n\n{columns}\n"))
}

impl Journey {
    /// Runs all steps in a new folder. `programs` is the folder of `doorbell`.
    fn travel(&self, folder: &Path, programs: &Path) -> Result<Times, String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        let port = ports::free_port()?;
        let begun = Instant::now();
        let (mut servers, mut answered, mut steps) = (Vec::new(), None, Vec::new());
        for step in &self.step {
            let step_begun = Instant::now();
            let line = step.run.replace(PORT, &port.to_string());
            // `exec` replaces the shell by the program, so killing the child kills the program itself.
            let mut shell = command("sh", &["-c", &format!("exec {line}")]);
            shell.current_dir(folder).env("PATH", &path);
            if step.listens {
                servers.push(listening(shell, &line, port)?);
            } else {
                answered = step.perform(shell, &line, folder)?.or(answered);
            }
            steps.push(step_begun.elapsed());
        }
        let answered: Instant = answered.ok_or("no step has an answer")?;
        Ok(Times { answered: answered - begun, steps })
    }

    fn lines(&self, times: &Times) -> String {
        let all: Duration = times.steps.iter().sum();
        let seconds = [times.answered.as_secs_f64(), all.as_secs_f64()];
        let is_late = if seconds[0] > self.goal_s { " (beyond the goal)" } else { "" };
        let [answered, all] = seconds;
        let mut lines = format!("{:<24}{answered:>10.2}{all:>10.2}{:>10}", self.name, self.goal_s);
        lines.push_str(&format!("  {}{is_late}\n", self.question));
        for (step, time) in self.step.iter().zip(&times.steps) {
            lines.push_str(&format!("{:<24}{:>10}{:>10.2}{:>10}  {}\n", "", "", time.as_secs_f64(), "", step.run));
        }
        lines
    }
}

impl Step {
    /// Runs the command to its end. Returns the instant at which the answer has appeared, if the step has one.
    fn perform(&self, mut shell: Command, line: &str, folder: &Path) -> Result<Option<Instant>, String> {
        let child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = Killed(child.map_err(|error| format!("`{line}` could not be started: {error}"))?);
        let (sender, pieces) = channel();
        if let Some(pipe) = child.0.stdout.take() {
            forward(pipe, sender.clone());
        }
        if let Some(pipe) = child.0.stderr.take() {
            forward(pipe, sender);
        }
        let (mut said, mut answered) = (Vec::new(), None);
        let until = Instant::now() + PATIENCE;
        loop {
            match pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(piece) => said.extend(piece),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(format!("`{line}` does not end")),
            }
            if answered.is_none() && self.file.is_none() && self.is_answer(&said) {
                answered = Some(Instant::now());
            }
        }
        let status = child.0.wait().map_err(|error| format!("`{line}`: {error}"))?;
        if !status.success() && !self.any_status {
            return Err(format!("`{line}` failed: {status}\n{}", String::from_utf8_lossy(&said)));
        }
        if let Some(file) = &self.file {
            let file = folder.join(file);
            let text = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            answered = self.is_answer(&text).then(Instant::now);
        }
        match &self.answer {
            Some(answer) if answered.is_none() => Err(format!("`{line}` gives no answer with {answer:?}")),
            _ => Ok(answered),
        }
    }

    fn is_answer(&self, text: &[u8]) -> bool {
        self.answer.as_ref().is_some_and(|answer| String::from_utf8_lossy(text).contains(answer))
    }
}

/// A process that is killed when the handle is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command, and waits until it listens on the port.
fn listening(mut shell: Command, line: &str, port: u16) -> Result<Killed, String> {
    let child = shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = Killed(child.map_err(|error| format!("`{line}` could not be started: {error}"))?);
    let until = Instant::now() + PATIENCE;
    while !ports::is_listening(server.0.id(), port) {
        if Instant::now() > until || !matches!(server.0.try_wait(), Ok(None)) {
            return Err(format!("`{line}` does not listen on port {port}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}

/// Sends the bytes of a pipe as they arrive.
fn forward(mut pipe: impl Read + Send + 'static, to: Sender<Vec<u8>>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            if to.send(bytes[..count].to_vec()).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_journey_ends_with_an_answer() {
        let all = list().unwrap();
        assert_eq!(all.len(), 8);
        assert_eq!(all.iter().map(|journey| &journey.name).collect::<BTreeSet<_>>().len(), all.len());
        for Journey { name, goal_s, step, .. } in &all {
            assert!(step.len() <= 3, "{name} takes a newcomer more than three commands");
            assert!(*goal_s > 0.0 && step.last().is_some_and(|last| last.answer.is_some()), "{name}");
            let has_port = step.iter().any(|step| step.run.contains(PORT));
            assert_eq!(has_port, step.iter().any(|step| step.listens), "{name}");
            assert!(step.iter().all(|step| step.file.is_none() || step.answer.is_some()), "{name}");
        }
    }

    fn travel(steps: Vec<Step>) -> Result<Times, String> {
        let folder = tempfile::tempdir().unwrap();
        let journey = Journey {
            name: "toy".to_owned(),
            question: "why?".to_owned(),
            goal_s: 5.0,
            needs: Vec::new(),
            step: steps,
        };
        let times = journey.travel(folder.path(), Path::new("/nowhere"))?;
        assert!(journey.lines(&times).starts_with("toy "), "{times:?}");
        Ok(times)
    }

    fn step(run: &str, answer: &str) -> Step {
        Step { run: run.to_owned(), answer: Some(answer.to_owned()), ..Step::default() }
    }

    #[test]
    fn the_answer_counts_when_it_appears() {
        let times = travel(vec![step("sh -c 'echo because; sleep 1'", "because")]).unwrap();
        assert!(times.answered < times.steps[0], "{times:?}");
        let in_file = Step { file: Some("page".into()), ..step("sh -c 'echo because > page'", "because") };
        let times = travel(vec![in_file]).unwrap();
        assert_eq!(times.steps.len(), 1);
    }

    #[test]
    fn failures_and_missing_answers_are_reported() {
        let why = travel(vec![step("echo nothing", "because")]).unwrap_err();
        assert_eq!(why, "`echo nothing` gives no answer with \"because\"");
        let why = travel(vec![step("sh -c 'echo because; exit 3'", "because")]).unwrap_err();
        assert!(why.contains("failed: exit status: 3") && why.contains("because"), "{why}");
        let tolerated = Step { any_status: true, ..step("sh -c 'echo because; exit 3'", "because") };
        assert!(travel(vec![tolerated]).is_ok());
        let why = travel(vec![Step { run: "true".to_owned(), ..Step::default() }]).unwrap_err();
        assert_eq!(why, "no step has an answer");
        let silent = Step { run: "true".to_owned(), listens: true, ..Step::default() };
        assert!(travel(vec![silent]).unwrap_err().starts_with("`true` does not listen on port "));
    }
}
