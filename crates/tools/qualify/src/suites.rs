//! Cases of the conformance suites: a process that runs them, and its supervisor.

use std::io::{self, BufRead, BufReader};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use doorbell_exchange_conformance as exchange;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::Device;
use doorbell_verbs_conformance as verbs;

use crate::report::{CaseResult, Outcome};

/// Option of `doorbell qualify` with the cases that its process runs, separated by commas.
pub const RUN_CASES: &str = "--run-cases";

/// Rule of the cases of message connections.
const EXCHANGE_RULE: &str = "Doorbell's contract of message connections";

/// Starts of the lines that the process writes before and after a case. Cases may write other lines.
const BEGIN: &str = "doorbell-case-begin ";
const END: &str = "doorbell-case-end ";

/// Number of messages of long cases, unless the environment states another one.
const MESSAGES: (&str, &str) = ("DOORBELL_MESSAGES", "2000");

/// A case of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseEntry {
    /// Suite, module or variant, and function, as in `verbs/states/rnr_retries_end`.
    pub name: String,
    /// Rule that the case checks.
    pub rule: &'static str,
}

/// Returns the cases of both suites, except those that require a network that loses packets.
pub fn cases() -> Vec<CaseEntry> {
    let of_verbs = verbs::CASES.iter().map(|case| CaseEntry { name: format!("verbs/{}", case.name), rule: case.rule });
    let of_exchange = exchange::cases().into_iter().filter(|case| !case.requires_loss());
    let of_exchange =
        of_exchange.map(|case| CaseEntry { name: format!("exchange/{}", case.name), rule: EXCHANGE_RULE });
    of_verbs.chain(of_exchange).collect()
}

/// Function that opens a device.
type OpenDevice = Box<dyn Fn() -> Device + Send + Sync>;

/// Function that opens the device of the cases. The suite of message connections takes only a function without state.
static OPEN: OnceLock<OpenDevice> = OnceLock::new();

/// Messages of panics during a case.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn open() -> Device {
    let open = OPEN.get().expect("`run_cases` sets the function before it runs a case");
    open()
}

/// Runs cases on devices that `device` opens, and writes a line before and after each. `device` panics if it cannot
/// open the device.
///
/// # Errors
///
/// A name is unknown, or a line could not be written.
pub fn run_cases(
    names: &[String],
    device: impl Fn() -> Device + Send + Sync + 'static,
    mut write: impl FnMut(&str) -> io::Result<()>,
) -> io::Result<()> {
    // Only the first call of a process has an effect, and a process runs the cases of one device.
    let _ = OPEN.set(Box::new(device));
    exchange::set_provider(exchange::Provider { works_while_callers_sleep: true, device: open, lossy: || None });
    std::panic::set_hook(Box::new(|panic| PANICS.lock().ignore_poison().push(message(panic))));
    let of_exchange = exchange::cases();
    for name in names {
        let run = body(name, &of_exchange)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("there is no case {name}")))?;
        write(&format!("{BEGIN}{name}"))?;
        PANICS.lock().ignore_poison().clear();
        let start = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(run));
        let outcome = match ended {
            Ok(()) => Outcome::Passed,
            Err(_) => Outcome::Failed(last_panic()),
        };
        let departures = verbs::departures::take();
        let result = CaseResult { name: name.clone(), outcome, departures, seconds: start.elapsed().as_secs_f64() };
        write(&format!("{END}{}", serde_json::to_string(&result)?))?;
    }
    Ok(())
}

/// Returns the function that runs the case `name`.
fn body(name: &str, of_exchange: &[exchange::Case]) -> Option<Box<dyn Fn()>> {
    if let Some(name) = name.strip_prefix("exchange/") {
        let run = of_exchange.iter().find(|case| case.name == name)?.run;
        return Some(Box::new(run));
    }
    let name = name.strip_prefix("verbs/")?;
    let run = verbs::CASES.iter().find(|case| case.name == name)?.run;
    Some(Box::new(move || run(&|| (open(), open()))))
}

/// Returns the message of a panic, with its file and line. The folders of the file name the machine that built
/// Doorbell, so they are left out.
fn message(panic: &PanicHookInfo<'_>) -> String {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("a panic without a message");
    match panic.location() {
        Some(place) => format!("{text} ({}:{})", place.file().rsplit('/').next().unwrap_or_default(), place.line()),
        None => text.to_owned(),
    }
}

/// Returns the message of the panic that ended a case. A case may provoke panics before, and a panic of a thread causes
/// another one where the thread is joined.
fn last_panic() -> String {
    let panics = PANICS.lock().ignore_poison();
    let is_cause = |text: &&String| !text.starts_with("a scoped thread panicked");
    panics.iter().rfind(is_cause).or(panics.last()).cloned().unwrap_or_default()
}

/// Supervisor of processes that run cases.
#[derive(Debug)]
pub(crate) struct Supervisor<'a> {
    /// Path of the command `doorbell`.
    pub(crate) program: &'a Path,
    /// Arguments that choose the device.
    pub(crate) device: &'a [String],
    /// Maximum time without a line of the process.
    pub(crate) patience: Duration,
}

impl Supervisor<'_> {
    /// Runs cases, and calls `ended` with the result of each. If a case hangs or its process dies, another process runs
    /// the remaining cases.
    ///
    /// # Errors
    ///
    /// A process could not be started, or ended before its first case. The error is a sentence.
    pub(crate) fn run(&self, names: Vec<String>, mut ended: impl FnMut(CaseResult)) -> Result<(), String> {
        let mut rest = names;
        while !rest.is_empty() {
            let names = rest.clone();
            let status = self.run_one_process(&names, &mut |result| {
                rest.retain(|name| *name != result.name);
                ended(result);
            })?;
            if rest.len() == names.len() {
                return Err(format!("the process of the cases ended before its first case ({status})"));
            }
        }
        Ok(())
    }

    /// Runs cases in one process until they have ended, one hangs, or the process dies. Returns the status of the
    /// process.
    fn run_one_process(&self, names: &[String], ended: &mut dyn FnMut(CaseResult)) -> Result<String, String> {
        let names = names.join(",");
        let mut command = Command::new(self.program);
        command.arg("qualify").args(self.device).args([RUN_CASES, names.as_str()]);
        if std::env::var_os(MESSAGES.0).is_none() {
            command.env(MESSAGES.0, MESSAGES.1);
        }
        // The process ends if its standard input ends, so it does not outlive this one.
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} could not be started: {error}", self.program.display()))?;
        let stdout = child.stdout.take().ok_or("the process of the cases has no standard output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The receiver has gone after a case that hangs.
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        let mut running: Option<(String, Instant)> = None;
        let has_hung = loop {
            match lines.recv_timeout(self.patience) {
                Ok(line) => {
                    if let Some(name) = line.strip_prefix(BEGIN) {
                        running = Some((name.to_owned(), Instant::now()));
                    } else if let Some(result) = line.strip_prefix(END) {
                        running = None;
                        let wrong =
                            |error: serde_json::Error| format!("the process of the cases wrote a wrong line: {error}");
                        ended(serde_json::from_str(result).map_err(wrong)?);
                    }
                }
                Err(RecvTimeoutError::Timeout) => break true,
                Err(RecvTimeoutError::Disconnected) => break false,
            }
        };
        if has_hung {
            // The process may have ended meanwhile.
            let _ = child.kill();
        }
        drop(child.stdin.take());
        let status = child.wait().map_err(|error| format!("the process of the cases cannot be waited for: {error}"))?;
        if let Some((name, start)) = running {
            let seconds = start.elapsed().as_secs_f64();
            let outcome = match has_hung {
                true => Outcome::Hung(format!("the case did not end within {seconds:.0} s")),
                false => Outcome::Died(format!("the process of the case ended during the case: {status}")),
            };
            ended(CaseResult { name, outcome, departures: Vec::new(), seconds });
        }
        Ok(status.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn cases_have_rules_and_bodies() {
        let (cases, of_exchange) = (cases(), exchange::cases());
        assert!(cases.len() > 300, "{}", cases.len());
        for case in &cases {
            assert!(!case.rule.is_empty() && !case.name.contains(','), "{case:?}");
            assert!(body(&case.name, &of_exchange).is_some(), "{case:?}");
        }
        assert!(body("verbs/none", &of_exchange).is_none() && body("none", &of_exchange).is_none());
        assert!(!cases.iter().any(|case| case.name.ends_with("loss_is_not_seen")));
    }

    /// Runs a supervisor on a script in place of the command. The last argument of the script has the names.
    fn supervise(script: &str, names: &[&str]) -> (Vec<(String, Outcome)>, Result<(), String>) {
        let _one_at_a_time = crate::SCRIPTS.lock().ignore_poison();
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("doorbell");
        std::fs::write(&program, format!("#!/bin/sh\nset -- $(echo \"$4\" | tr , ' ')\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let device = ["-d".to_owned()];
        let supervisor = Supervisor { program: &program, device: &device, patience: Duration::from_secs(2) };
        let mut results = Vec::new();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let ended = supervisor.run(names, |result| results.push((result.name, result.outcome)));
        (results, ended)
    }

    /// Shell commands that write the lines of a case that passed.
    const PASS: &str = r#"pass() { echo "doorbell-case-begin $1"; echo noise; echo "doorbell-case-end {\"name\": \"$1\", \"outcome\": \"passed\", \"seconds\": 0.1}"; }"#;

    #[test]
    fn a_dead_process_is_replaced() {
        let script =
            format!("{PASS}\nfor name; do [ $name = b ] && echo doorbell-case-begin b && kill -9 $$; pass $name; done");
        let (results, ended) = supervise(&script, &["a", "b", "c"]);
        assert_eq!(ended, Ok(()));
        let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!((&results[0].1, &results[2].1), (&Outcome::Passed, &Outcome::Passed));
        assert!(matches!(&results[1].1, Outcome::Died(why) if why.contains("signal: 9")), "{results:?}");
    }

    #[test]
    fn a_case_that_hangs_is_ended() {
        let script = format!(
            "{PASS}\nfor name; do [ $name = a ] && echo doorbell-case-begin a && exec sleep 60; pass $name; done"
        );
        let (results, ended) = supervise(&script, &["a", "b"]);
        assert_eq!(ended, Ok(()));
        assert!(matches!(&results[0].1, Outcome::Hung(why) if why.contains("did not end within")), "{results:?}");
        assert_eq!(results[1], ("b".to_owned(), Outcome::Passed));
    }

    #[test]
    fn a_process_without_a_case_is_an_error() {
        let (results, ended) = supervise("exit 3", &["a"]);
        assert_eq!(results, []);
        let error = ended.unwrap_err();
        assert!(error.contains("before its first case") && error.contains("exit status: 3"), "{error}");
    }
}
