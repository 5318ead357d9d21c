//! `cargo xtask test`: everything that is checked, in one command.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::shell::{cargo, output_of, run, run_tests, succeeds};
use crate::{
    bindings, browser, digests, dist, end_to_end, fuzz, network, packets, peers, place, programs, regressions, versus,
    vm,
};

/// How a step ended.
pub(crate) enum StepEnd {
    Passed,
    Failed(String),
    /// Could not be run here.
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

/// Says how a step ended that did not pass.
fn tell(outcome: &StepEnd) {
    match outcome {
        StepEnd::Passed => {}
        StepEnd::Failed(why) => eprintln!("FAILED: {why}"),
        StepEnd::LeftOut(why) => eprintln!("LEFT OUT: {why}"),
    }
}

/// A step of a lane, and its name.
type LaneStep = (&'static str, Box<dyn FnOnce() -> StepEnd + Send>);

struct Report {
    steps: Vec<(&'static str, Duration, StepEnd)>,
}

impl Report {
    fn step(&mut self, name: &'static str, body: impl FnOnce() -> StepEnd) {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let outcome = body();
        tell(&outcome);
        self.steps.push((name, start.elapsed(), outcome));
    }

    /// What needs the guest with rdma_rxe: the steps whose names contain `only`, or all.
    fn guests(&mut self, only: Option<&str>) {
        eprintln!("\n== rdma_rxe, two guests at a time");
        for (name, took, outcome) in vm::steps(only) {
            eprintln!("\n== {name}");
            tell(&outcome);
            self.steps.push((name, took, outcome));
        }
    }

    fn programs(&mut self) {
        self.step("verbs programs, build", || programs::build().into());
        self.step("verbs programs, device", || network::apart(|| programs::show().into()));
        self.step("verbs programs, archive", || network::apart(|| dist::check().into()));
        self.step("verbs programs, our own", || network::apart(|| programs::own(&[]).into()));
        // Programs start, wait for timeouts and end: two lanes of them are done sooner than one.
        self.lanes([
            vec![
                ("verbs programs, pairs", Box::new(|| network::apart(|| programs::pairs().into()))),
                (
                    "verbs programs, their page",
                    Box::new(|| network::apart_with_interface(|| programs::page::check(&[]).into())),
                ),
            ],
            vec![
                ("verbs programs, UCX", Box::new(|| network::apart(|| programs::ucx().into()))),
                ("verbs programs, rdma_cm", Box::new(|| network::apart(programs::rdma_cm))),
                ("verbs programs, through a box", Box::new(|| network::apart(|| programs::behind::a_box().into()))),
                ("rdma-core's tests", Box::new(|| network::apart(|| programs::pyverbs().into()))),
            ],
        ]);
    }

    /// Runs the steps of each lane one after the other, and the lanes at the same time.
    fn lanes<const N: usize>(&mut self, lanes: [Vec<LaneStep>; N]) {
        let steps = std::thread::scope(|scope| {
            let lanes = lanes.map(|lane| {
                scope.spawn(move || {
                    let mut own = Self { steps: Vec::new() };
                    lane.into_iter().for_each(|(name, body)| own.step(name, body));
                    own.steps
                })
            });
            lanes.map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        self.steps.extend(steps.into_iter().flatten());
    }

    fn packets(&mut self, captures: &Path) {
        self.step("packets, to tshark", || packets::dissect(captures));
        self.step("packets, to scapy", || packets::recompute_icrc(captures));
    }
}

/// Only has other programs check the captures in a directory.
pub(crate) fn packets(captures: &Path) -> ExitCode {
    let mut report = Report { steps: Vec::new() };
    peers::install();
    report.packets(captures);
    summarize(&report, false)
}

/// Only runs the command end to end.
pub(crate) fn end_to_end() -> ExitCode {
    let mut report = Report { steps: Vec::new() };
    peers::install();
    report.step("release build", || programs::build().into());
    end_to_end::run(&mut |name, body| report.step(name, body));
    summarize(&report, false)
}

/// Only opens a report in a browser.
pub(crate) fn report() -> ExitCode {
    let mut report = Report { steps: Vec::new() };
    peers::install();
    report.step("release build", || programs::build().into());
    report.step("report, in a browser", browser::report);
    summarize(&report, false)
}

/// Only runs unmodified verbs programs.
///
/// `only` names programs of our own and of the page; none names all.
pub(crate) fn programs(only: &[String]) -> ExitCode {
    let mut report = Report { steps: Vec::new() };
    peers::install();
    if only.is_empty() {
        report.programs();
        return summarize(&report, false);
    }
    let pages = programs::page::names();
    let (page, own): (Vec<&String>, Vec<&String>) = only.iter().partition(|name| pages.contains(&name.as_str()));
    let page: Vec<&str> = page.into_iter().map(String::as_str).collect();
    let own: Vec<String> =
        own.into_iter().filter(|name| !["ucx", "box", "rdma_cm"].contains(&name.as_str())).cloned().collect();
    report.step("verbs programs, build", || programs::build().into());
    if only.iter().any(|name| name == "box") {
        report.step("verbs programs, through a box", || network::apart(|| programs::behind::a_box().into()));
    }
    if only.iter().any(|name| name == "rdma_cm") {
        report.step("verbs programs, rdma_cm", || network::apart(programs::rdma_cm));
        report.step("rdma-core's tests", || network::apart(|| programs::pyverbs().into()));
    }
    if only.iter().any(|name| name.eq_ignore_ascii_case("ucx")) {
        report.step("verbs programs, UCX", || network::apart(|| programs::ucx().into()));
    }
    if !own.is_empty() {
        report.step("verbs programs, our own", || network::apart(|| programs::own(&own).into()));
    }
    if !page.is_empty() {
        report.step("verbs programs, their page", || {
            network::apart_with_interface(|| programs::page::check(&page).into())
        });
    }
    summarize(&report, false)
}

/// Measures the programs of the page.
pub(crate) fn measure(rounds: u32, out: Option<&Path>) -> ExitCode {
    let mut report = Report { steps: Vec::new() };
    let measured = || network::apart_with_interface(|| programs::page::measure(rounds, out).into());
    report.step("verbs programs, measured", measured);
    summarize(&report, false)
}

/// Only runs what needs the guest with rdma_rxe.
pub(crate) fn guest(only: Option<&str>) -> ExitCode {
    let mut report = Report { steps: Vec::new() };
    report.step("release build", || programs::build().into());
    report.guests(only);
    summarize(&report, false)
}

/// Runs only the checks between two machines, which are network namespaces.
pub(crate) fn machines(only: Option<&str>) -> ExitCode {
    let mut report = Report { steps: Vec::new() };
    peers::install();
    report.step("release build", || programs::build().into());
    end_to_end::run(&mut |name, body| {
        if only.is_none_or(|only| name.contains(only)) {
            report.step(name, body);
        }
    });
    summarize(&report, false)
}

/// Runs all steps, also after one failed, and says at the end how each went.
pub(crate) fn everything(fast: bool) -> ExitCode {
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let captures = place::own().join("pcap");
    let mut report = Report { steps: Vec::new() };

    report.step("formatting", || component("fmt", "rustfmt", || run(cargo(&["fmt", "--all", "--", "--check"])).into()));
    report.step("lints", || {
        let arguments = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
        component("clippy", "clippy", || run(cargo(&arguments)).into())
    });
    report.step("verbs without the software RNIC", || hardware_alone().into());
    report.step("packages", || packages().into());
    report.step("fuzz targets, build", fuzz::build);
    report.step("instruction counter, check", || versus::check().into());
    report.step("regressions apply", || regressions::check().into());
    report.step("release build", || programs::build().into());
    report.step("documentation", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
        doc.env("RUSTDOCFLAGS", "--deny warnings");
        run(doc).into()
    });
    if !fast {
        peers::install(); // some tests need iproute2
    }
    let left_out = place::own().join("left-out");
    // What is still to be downloaded for them is downloaded here.
    report.step("tests, build", || run(cargo(&["test", "--workspace", "--no-run"])).into());
    report.step("tests", || network::apart(|| tests(&captures, &left_out).into()));
    if let Ok(what) = std::fs::read_to_string(&left_out) {
        let what = what.lines().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; ");
        report.step("tests of root", || StepEnd::LeftOut(what));
    }
    // The tests above went through shared memory, since their devices are of one machine: this repeats some over UDP.
    report.step("tests, over UDP", || network::apart(|| over_udp().into()));
    report.step("simulations, in the release build", || digests::compare().into());
    if fast {
        report.step("real peers", || StepEnd::LeftOut("--fast was given".to_owned()));
    } else {
        report.packets(&captures);
        end_to_end::run(&mut |name, body| report.step(name, body));
        report.step("report, in a browser", browser::report);
        report.programs();
        report.guests(None);
        report.step("layouts, to the C compiler", || bindings::check_layout().into());
    }
    summarize(&report, in_ci)
}

/// Checks that each crate can be packaged, with its licences and a page of its own.
fn packages() -> Result<(), String> {
    let tree = output_of(cargo(&["tree", "--workspace", "--depth", "0", "--prefix", "none"]))?;
    let names = tree.lines().filter_map(|line| line.split(' ').next()).filter(|name| name.starts_with("doorbell"));
    for name in names {
        let files = output_of(cargo(&["package", "--list", "--quiet", "--allow-dirty", "--package", name]))?;
        for needed in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            if !files.lines().any(|file| file == needed) {
                return Err(format!("the package of {name} lacks {needed}"));
            }
        }
    }
    Ok(())
}

/// Builds `verbs` with the provider for the machine's own devices alone, which needs nothing of the software RNIC.
fn hardware_alone() -> Result<(), String> {
    let package = ["--package", "doorbell-verbs", "--no-default-features"];
    let tree = output_of(cargo(&[&["tree", "--edges", "normal", "--prefix", "none"], &package[..]].concat()))?;
    let own: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    for needed in ["doorbell-verbs-core", "doorbell-ibverbs-sys"] {
        if !own.contains(&needed) {
            return Err(format!(
                "verbs without the software RNIC does not depend on {needed}: was this asked wrongly?"
            ));
        }
    }
    if let Some(surplus) = ["doorbell-rnic", "doorbell-fabric"].into_iter().find(|name| own.contains(name)) {
        return Err(format!("verbs without the software RNIC depends on {surplus}"));
    }
    run(cargo(&[&["check", "--quiet", "--lib"], &package[..]].concat()))
}

/// All unit, integration and documentation tests. Those that capture packets do so for the peers,
/// and those that cannot run here say so in the file `left_out`.
fn tests(captures: &Path, left_out: &Path) -> Result<(), String> {
    std::fs::create_dir_all(captures).map_err(|error| format!("{}: {error}", captures.display()))?;
    let mut test = cargo(&["test", "--workspace", "--no-fail-fast"]);
    test.env("DOORBELL_PCAP_DIR", captures).env("DOORBELL_LEFT_OUT", left_out);
    let temporary = place::own().join("tmp");
    // What a test that was killed leaves in there goes with this run. A library is preloaded by a path with neither.
    if !temporary.to_string_lossy().contains([' ', ':']) {
        std::fs::create_dir_all(&temporary).map_err(|error| format!("{}: {error}", temporary.display()))?;
        test.env("TMPDIR", temporary);
    }
    run_tests(test)
}

/// The conformance suite of the protocols, with devices that share no memory.
fn over_udp() -> Result<(), String> {
    let mut test = cargo(&["test", "--package", "doorbell-exchange", "--test", "conformance", "--no-fail-fast"]);
    test.env(programs::LINK_VARIABLE, "udp");
    run_tests(test)
}

/// Runs something that needs a component of the toolchain, if that is installed.
fn component(subcommand: &str, name: &str, body: impl FnOnce() -> StepEnd) -> StepEnd {
    if succeeds(cargo(&[subcommand, "--version"])) {
        body()
    } else {
        StepEnd::LeftOut(format!("the toolchain has no {name}: `rustup component add {name}` adds it"))
    }
}

fn summarize(report: &Report, in_ci: bool) -> ExitCode {
    println!("\n== summary");
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for (name, took, outcome) in &report.steps {
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
        println!("CI=true is set, so nothing may be left out");
        failed += left_out;
        left_out = 0;
    }
    // Once more at the very end, and whole: whoever looks at a log begins there.
    for (name, _, outcome) in &report.steps {
        if let StepEnd::Failed(why) = outcome {
            println!("\n{name} FAILED: {why}");
        }
    }
    println!("steps: {passed} passed, {failed} failed, {left_out} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
