//! The program `benchmarks/instructions`: its workloads, its build, and its runs under valgrind's callgrind.
//!
//! The program has both ends of a workload in one thread, or in two threads if the ends wait for notifications. A
//! workload runs with two lengths. The difference of both counts, divided by the difference of the lengths, excludes
//! the start of the program.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fuzz;
use crate::shell::{cargo, command, root, run};

/// A workload of the counting program, with the two lengths with which it runs.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) short: u64,
    pub(crate) long: u64,
}

const fn workload(name: &'static str, short: u64, long: u64) -> Workload {
    Workload { name, short, long }
}

impl Workload {
    /// Returns the number of messages that the long run has and the short run has not.
    pub(crate) fn messages(&self) -> f64 {
        (self.long - self.short) as f64
    }

    /// Returns whether the workload runs over a link of the software RNIC.
    pub(crate) fn is_on_link(&self) -> bool {
        ON_LINKS.iter().any(|workload| workload.name == self.name)
    }
}

/// Returns all workloads.
pub(crate) fn workloads() -> impl Iterator<Item = &'static Workload> {
    IN_MEMORY.iter().chain(ON_LINKS)
}

/// Returns whether a run failed because the counting program does not have the workload. Older revisions lack some.
pub(crate) fn is_unknown(why: &str) -> bool {
    why.contains("there is no workload")
}

/// Workloads over a wire in memory, or without a link. The lengths are multiples of the workload's window.
pub(crate) const IN_MEMORY: &[Workload] = &[
    workload("rnic", 6400, 64_000),
    workload("rnic-batched", 6400, 64_000),
    workload("rnic-64k", 160, 4800),
    workload("exchange", 6400, 64_000),
    workload("exchange-batched", 6400, 64_000),
    workload("bench-lat", 3200, 32_000),
    workload("bench-bw", 6400, 64_000),
    workload("bench-bw-batched", 6400, 64_000),
    workload("bench-bw-64k", 160, 4800),
];

/// Workloads over shared memory and UDP, between two devices of the counting program's process.
pub(crate) const ON_LINKS: &[Workload] = &[
    workload("shm-lat", 3200, 32_000),
    workload("shm-bw", 6400, 64_000),
    workload("shm-bw-64k", 160, 4800),
    workload("udp-lat", 3200, 32_000),
    workload("udp-bw", 6400, 64_000),
    workload("udp-bw-64k", 160, 4800),
    workload("shm-events", 800, 8000),
    workload("udp-events", 800, 8000),
];

/// Checks that the counting program compiles with the current crates.
pub(crate) fn check() -> Result<(), String> {
    fuzz::check_alone(&root().join("benchmarks").join("instructions"))
}

/// Builds the counting program of `tree` in the folder `home`. Returns the path of the program, which contains `name`.
pub(crate) fn build(home: &Path, tree: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = tree.join("benchmarks").join("instructions");
    let cannot = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    fuzz::take_versions(tree, &folder)?;
    let built = home.join("instructions");
    let mut build = cargo(&["build", "--release"]);
    build.current_dir(&folder).env("CARGO_TARGET_DIR", &built);
    run(build)?;
    let program = home.join(format!("doorbell-instructions-{name}"));
    let made = built.join("release").join("doorbell-instructions");
    fs::copy(&made, &program).map_err(|error| cannot(&made, error))?;
    Ok(program)
}

/// Counts the instructions that the counting program takes for a workload of this length. callgrind writes the costs of
/// lines and calls to the file `profile`.
pub(crate) fn count(program: &Path, workload: &str, length: u64, profile: &Path) -> Result<u64, String> {
    // valgrind runs one thread at a time. Without fair scheduling, a thread that looks for packets would starve others.
    let mut valgrind = command("valgrind", &["--tool=callgrind", "--fair-sched=yes"]);
    valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
    // Turn the publication of counters off, because it depends on the clock.
    valgrind.arg(program).args([workload, &length.to_string()]).env("DOORBELL_PUBLISH", "0");
    let output = valgrind.output().map_err(|error| format!("valgrind could not be started: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{workload} failed under valgrind: {}\n{said}", output.status));
    }
    let number = said.lines().find_map(|line| line.split_once("Collected :")).map(|(_, number)| number.trim());
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("valgrind reports no number of instructions:\n{said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_program_itself_reports_an_unknown_workload() {
        assert!(is_unknown("shm-lat failed under valgrind: exit status: 1\nthere is no workload \"shm-lat\"\n"));
        assert!(!is_unknown("shm-lat failed under valgrind: signal: 11\n"));
    }

    #[test]
    fn the_program_and_its_page_have_each_workload() {
        let folder = root().join("benchmarks");
        let read = |path: &str| fs::read_to_string(folder.join(path)).unwrap();
        let (program, page) = (read("instructions/src/main.rs"), read("README.md"));
        for Workload { name, .. } in workloads() {
            assert!(program.contains(&format!("        \"{name}\" => ")), "the program lacks {name}");
            assert!(page.contains(&format!("`{name}`")), "benchmarks/README.md lacks {name}");
        }
    }

    #[test]
    fn a_workload_runs_over_a_link_or_in_memory() {
        assert!(ON_LINKS.iter().all(Workload::is_on_link));
        assert!(!IN_MEMORY.iter().any(Workload::is_on_link));
    }
}
