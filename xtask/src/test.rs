//! `cargo xtask test`: runs steps and reports their outcomes.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::shell::{cargo, command, output_of, run, run_tests, succeeds};
use crate::steps::{self, Body, Group, Step};
use crate::{cores, fuzz, network, place, programs, vm};

/// Outcome of a step.
pub(crate) enum StepEnd {
    Passed,
    Failed(String),
    /// The step, or a part of the step, cannot run on this machine.
    LeftOut(String),
}

impl From<Result<(), String>> for StepEnd {
    fn from(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(why) => Self::Failed(why),
        }
    }
}

/// Steps that have ended, each with its name and duration.
struct Report {
    ended: Vec<(&'static str, Duration, StepEnd)>,
    /// Folder of the captures that the tests write.
    captures: PathBuf,
    /// Names of the programs that steps with several programs run. If the list is empty, such steps run all programs.
    only: Vec<String>,
}

impl Report {
    fn new() -> Self {
        cores::allow();
        Self { ended: Vec::new(), captures: captures(), only: Vec::new() }
    }

    /// Runs steps in order. Adjacent steps may run at the same time if their groups allow it ([`Group::runs_beside`]).
    ///
    /// A lane of its own runs steps that only compile, in the time that the other lanes leave. It starts a step when as
    /// many other steps have ended as precede the step.
    fn run(mut self, steps: &[&'static Step]) -> Self {
        let (compiling, others): (Vec<&'static Step>, Vec<&'static Step>) =
            steps.iter().copied().partition(|step| step.group == Group::Compiling);
        let ended = Mutex::new(Vec::new());
        let run = |step: &'static Step, beside_another: bool| {
            let start = Instant::now();
            let end = self.end_of(step, beside_another);
            ended.lock().expect("no lane panics with the lock").push((step, start.elapsed(), end));
        };
        let has_preceding = |step: &Step| {
            let before = steps.iter().take_while(|other| other.name != step.name);
            let before = before.filter(|other| other.group != Group::Compiling).count();
            let ended = ended.lock().expect("no lane panics with the lock");
            ended.iter().filter(|(other, ..)| other.group != Group::Compiling).count() >= before
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for group in others.chunk_by(|one, other| one.group.runs_beside(other.group)) {
                    in_lanes(group, group[0].group.at_a_time(), &run);
                }
            });
            if !compiling.is_empty() {
                scope.spawn(|| {
                    lower_priority();
                    for &step in &compiling {
                        while !has_preceding(step) {
                            thread::sleep(Duration::from_millis(100));
                        }
                        run(step, !others.is_empty());
                    }
                });
            }
        });
        let ended = ended.into_inner().expect("no lane panics with the lock");
        self.ended.extend(ended.into_iter().map(|(step, took, end)| (step.name, took, end)));
        self
    }

    fn end_of(&self, step: &Step, beside_another: bool) -> StepEnd {
        eprintln!("\n== {}", step.name);
        let since = SystemTime::now();
        let only: Vec<&str> = self.only.iter().map(String::as_str).collect();
        let mut end = caught(|| match step.body {
            Body::Plain(body) => body(),
            Body::Captures(body) => body(&self.captures),
            Body::Named(body) => body(&only),
            Body::Guest(body) => body(vm::Guest::of_step(beside_another.then_some(step.name))),
        });
        match &mut end {
            StepEnd::Failed(why) => {
                why.push_str(&cores::backtraces(since));
                eprintln!("FAILED: {why}");
            }
            StepEnd::LeftOut(why) => eprintln!("LEFT OUT: {why}"),
            // Keep the core files if another step runs at the same time, because they may belong to that step.
            StepEnd::Passed if beside_another => {}
            StepEnd::Passed => cores::discard(since),
        }
        end
    }
}

/// Calls the body of a step. After a panic, the step has failed, and the other steps still run.
fn caught(body: impl FnOnce() -> StepEnd) -> StepEnd {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| StepEnd::Failed("the step has panicked".to_owned()))
}

/// Runs steps in order, at most `at_a_time` at the same time.
fn in_lanes(steps: &[&'static Step], at_a_time: usize, run: &(impl Fn(&'static Step, bool) + Sync)) {
    let lanes = at_a_time.min(steps.len());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(&step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // A step of the lane that compiles leaves no core file and prints few lines, so it does not count.
                    run(step, lanes > 1);
                }
            });
        }
    });
}

/// Gives this thread, and the programs that it starts, the lowest priority.
fn lower_priority() {
    let thread = nix::unistd::gettid().to_string();
    // At the usual priority, these steps only disturb the others more.
    if let Err(why) = output_of(command("renice", &["-n", "19", "-p", &thread])) {
        eprintln!("{why}");
    }
}

/// Runs the steps whose names equal or contain one of `names`, after the steps that these steps need.
pub(crate) fn some(names: &[String]) -> ExitCode {
    let found: Result<Vec<_>, String> = names.iter().map(|name| steps::named(name)).collect();
    match found {
        Ok(found) => alone(found.concat()),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

/// Runs the steps of a group whose names contain `only`, or all steps of the group.
pub(crate) fn group(group: Group, only: Option<&str>) -> ExitCode {
    let mut steps = steps::of(group);
    steps.retain(|step| only.is_none_or(|only| step.name.contains(only)));
    alone(steps)
}

fn alone(steps: Vec<&'static Step>) -> ExitCode {
    summarize(&Report::new().run(&steps::with_needs(steps)))
}

/// Runs only the checks of other programs on the captures in a directory.
pub(crate) fn packets(captures: &Path) -> ExitCode {
    let mut report = Report::new();
    report.captures = captures.to_owned();
    let mut steps = steps::named(steps::OTHER_PROGRAMS).unwrap_or_default();
    steps.extend(steps::of(Group::Packets));
    summarize(&report.run(&steps))
}

/// Runs only unmodified verbs programs.
///
/// `only` has names of programs of this repository and of docs/programs.md. Without names, all programs run.
pub(crate) fn programs(only: &[String]) -> ExitCode {
    /// Words that select whole steps.
    const WHOLE: &[(&str, &[&str])] = &[
        ("ucx", &["verbs programs, UCX"]),
        ("box", &["verbs programs, through a box"]),
        ("gloo", &[steps::GLOO_AND_MPICH]),
        ("mpich", &[steps::GLOO_AND_MPICH]),
        ("pypi", &[steps::PYPI]),
        ("dapltest", &[steps::DAPL]),
        ("iser", &[steps::ISER]),
        ("two-devices", &[steps::TWO_DEVICES]),
        ("crates", &[steps::CRATES]),
        ("librpma", &[steps::GLOO_AND_MPICH]),
        ("rdma_cm", &["verbs programs, rdma_cm", "rdma-core's tests"]),
    ];
    if only.is_empty() {
        return group(Group::Programs, None);
    }
    let pages = programs::page::names();
    let mut names = BTreeSet::new();
    let mut report = Report::new();
    for name in only {
        let whole = WHOLE.iter().find(|(word, _)| word.eq_ignore_ascii_case(name));
        names.extend(whole.into_iter().flat_map(|(_, steps)| steps.iter().copied()));
        if let Some(page) = pages.iter().find(|page| page.eq_ignore_ascii_case(name)) {
            names.insert(steps::PAGE);
            report.only.push((*page).to_owned());
        } else if whole.is_none() {
            names.insert(steps::OWN);
            report.only.push(name.clone());
        }
    }
    let mut steps = steps::of(Group::Programs);
    steps.retain(|step| names.contains(step.name));
    summarize(&report.run(&steps::with_needs(steps)))
}

/// Measures the programs of docs/programs.md.
pub(crate) fn measure(rounds: u32, out: Option<&Path>) -> Result<(), String> {
    network::apart_with_interface(|| programs::page::measure(rounds, out))
}

/// Runs all steps of a whole run, and reports all outcomes at the end. If a step fails, the remaining steps still run.
pub(crate) fn everything(fast: bool) -> ExitCode {
    let needs_others = |step: &&Step| {
        let is_own = matches!(step.group, Group::Code | Group::Builds | Group::Compiling);
        !is_own || [steps::OTHER_PROGRAMS, steps::OTHER_WHEELS].contains(&step.name)
    };
    let steps: Vec<&Step> = steps::whole_run().filter(|step| !(fast && needs_others(step))).collect();
    let mut report = Report::new().run(&steps);
    if fast {
        report.ended.push(("real peers", Duration::ZERO, StepEnd::LeftOut("--fast was given".to_owned())));
    }
    summarize(&report)
}

/// Returns the folder of the captures that the tests of this run write.
fn captures() -> PathBuf {
    place::own().join("pcap")
}

/// Returns the file to which tests that need root write their names if they cannot run.
fn left_out_file() -> PathBuf {
    place::own().join("left-out")
}

pub(crate) fn formatting() -> StepEnd {
    component("fmt", "rustfmt", || run(cargo(&["fmt", "--all", "--", "--check"])).into())
}

pub(crate) fn lints() -> StepEnd {
    // Only a build with this feature has all of xtask.
    let all = ["clippy", "--workspace", "--all-targets", "--features", "xtask/bindings"];
    let arguments = [&all[..], &["--", "--deny", "warnings"]].concat();
    component("clippy", "clippy", || run(cargo(&arguments)).into())
}

pub(crate) fn documentation() -> Result<(), String> {
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    doc.env("RUSTDOCFLAGS", "--deny warnings");
    run(doc)
}

/// Arguments of cargo for all tests but those of documentation. Without `--tests`, cargo would also compile and link
/// the examples, which [`lints`] checks.
const ALL_TESTS: [&str; 3] = ["test", "--workspace", "--tests"];

/// Builds all tests, and downloads their missing dependencies and those of fuzz targets.
pub(crate) fn build() -> Result<(), String> {
    run(cargo(&[&ALL_TESTS[..], &["--no-run"]].concat()))?;
    // Later, a step that compiles may hold the lock of the target directory for long.
    conformance_suites()?;
    fuzz::fetch()
}

/// Checks that `verbs` with only the provider for hardware devices does not depend on the software RNIC.
pub(crate) fn hardware_alone() -> Result<(), String> {
    let package = ["--package", "doorbell-verbs", "--no-default-features"];
    let tree = output_of(cargo(&[&["tree", "--edges", "normal", "--prefix", "none"], &package[..]].concat()))?;
    let own: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    for needed in ["doorbell-verbs-core", "doorbell-ibverbs-sys"] {
        if !own.contains(&needed) {
            return Err(format!("doorbell-verbs does not depend on {needed}, so this check is out of date"));
        }
    }
    if let Some(surplus) = ["doorbell-rnic", "doorbell-fabric"].into_iter().find(|name| own.contains(name)) {
        return Err(format!("verbs without the software RNIC depends on {surplus}"));
    }
    Ok(())
}

/// Environment variable with the number of tests that a test program runs at the same time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Returns a value of [`TEST_THREADS`]: one more than the default, because many tests wait for processes, deadlines, or
/// the end of a measurement.
fn test_threads() -> String {
    (thread::available_parallelism().map_or(1, usize::from) + 1).to_string()
}

/// Runs all unit, integration and documentation tests. The tests write captures, which steps with tshark and scapy
/// check.
pub(crate) fn tests() -> Result<(), String> {
    let captures = captures();
    std::fs::create_dir_all(&captures).map_err(|error| format!("{}: {error}", captures.display()))?;
    let temporary = place::own().join("tmp");
    // With this folder for temporary files, the files of a killed test disappear with the folder of this run. The path
    // of a preloaded library must not contain a space or a colon.
    let has_temporary = !temporary.to_string_lossy().contains([' ', ':']);
    if has_temporary {
        std::fs::create_dir_all(&temporary).map_err(|error| format!("{}: {error}", temporary.display()))?;
    }
    let run_those = |arguments: &[&str]| {
        let mut test = cargo(&[arguments, &["--no-fail-fast"]].concat());
        test.env("DOORBELL_PCAP_DIR", &captures).env("DOORBELL_LEFT_OUT", left_out_file());
        test.env(TEST_THREADS, test_threads());
        if has_temporary {
            test.env("TMPDIR", &temporary);
        }
        run_tests(test)
    };
    match (run_those(&ALL_TESTS), run_those(&["test", "--workspace", "--doc"])) {
        (Err(tests), Err(documentation)) => Err(format!("{tests}\n{documentation}")),
        (tests, documentation) => tests.and(documentation),
    }
}

/// Reports the tests that could not run because they need root.
pub(crate) fn left_out() -> StepEnd {
    match std::fs::read_to_string(left_out_file()) {
        Ok(tests) => {
            StepEnd::LeftOut(tests.lines().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; "))
        }
        Err(_) => StepEnd::Passed,
    }
}

/// Folder of the package with the conformance suite of verbs.
pub(crate) const VERBS: &str = "crates/rnic/verbs";
/// Folder of the package with the conformance suite of the protocols.
pub(crate) const EXCHANGE: &str = "crates/messages/exchange";

/// Returns the program of a conformance suite and the folder of its package, from a line that cargo prints.
fn conformance_suite(line: &str) -> Option<(PathBuf, PathBuf)> {
    let artifact: serde_json::Value = serde_json::from_str(line).ok()?;
    let package = Path::new(artifact["manifest_path"].as_str()?).parent()?.to_owned();
    let is_tests = artifact["target"]["name"] == "suite" && artifact["target"]["kind"][0] == "test";
    let is_suite = is_tests && [VERBS, EXCHANGE].iter().any(|folder| package.ends_with(folder));
    let program = artifact["executable"].as_str().filter(|_| is_suite)?;
    Some((program.into(), package))
}

/// Builds the conformance suites of [`VERBS`] and [`EXCHANGE`]. Returns the program of each suite, and the folder of
/// its package.
pub(crate) fn conformance_suites() -> Result<[(PathBuf, PathBuf); 2], String> {
    static LISTED: OnceLock<Result<[(PathBuf, PathBuf); 2], String>> = OnceLock::new();
    LISTED.get_or_init(list_conformance_suites).clone()
}

fn list_conformance_suites() -> Result<[(PathBuf, PathBuf); 2], String> {
    // List the built suites of the whole workspace. `cargo test` with only some packages would build these packages
    // again, with other features.
    let mut list = cargo(&ALL_TESTS);
    list.args(["--no-run", "--quiet", "--message-format", "json"]);
    let listed = output_of(list)?;
    let suites: Vec<(PathBuf, PathBuf)> = listed.lines().filter_map(conformance_suite).collect();
    suites.try_into().map_err(|suites: Vec<_>| format!("cargo built {} conformance suites, must be 2", suites.len()))
}

/// Runs the conformance suites of verbs and of the protocols over UDP. In all other tests, devices of one machine use
/// shared memory.
pub(crate) fn over_udp() -> Result<(), String> {
    for (program, package) in conformance_suites()? {
        let mut test = command(program, &["conformance::"]);
        test.current_dir(package).env(programs::LINK_VARIABLE, "udp").env(TEST_THREADS, test_threads());
        run_tests(test)?;
    }
    Ok(())
}

/// Runs a step that needs a component of the toolchain, if the component is installed.
fn component(subcommand: &str, name: &str, body: impl FnOnce() -> StepEnd) -> StepEnd {
    if succeeds(cargo(&[subcommand, "--version"])) {
        body()
    } else {
        StepEnd::LeftOut(format!("the toolchain has no {name}: `rustup component add {name}` adds it"))
    }
}

fn summarize(report: &Report) -> ExitCode {
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    println!("\n== summary");
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for (name, took, outcome) in &report.ended {
        let text = match outcome {
            StepEnd::Passed => {
                passed += 1;
                "passed".to_owned()
            }
            StepEnd::Failed(why) => {
                failed += 1;
                format!("FAILED: {}", why.lines().next().unwrap_or_default())
            }
            StepEnd::LeftOut(why) => {
                left_out += 1;
                format!("LEFT OUT: {why}")
            }
        };
        println!("{name:<24} {:>7.1} s  {text}", took.as_secs_f64());
    }
    if in_ci && left_out > 0 {
        println!("CI=true is set, so skipped steps are failures");
        failed += left_out;
        left_out = 0;
    }
    // Readers of a log begin at its end, so repeat each complete error at the end.
    for (name, _, outcome) in &report.ended {
        if let StepEnd::Failed(why) = outcome {
            println!("\n{name} FAILED: {why}");
        }
    }
    println!("steps: {passed} passed, {failed} failed, {left_out} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_panics_has_failed() {
        let ended = caught(|| panic!("on purpose"));
        assert!(matches!(ended, StepEnd::Failed(why) if why == "the step has panicked"));
        assert!(matches!(caught(|| StepEnd::Passed), StepEnd::Passed));
    }
}
