//! `cargo xtask compare --against`: comparison of two builds of Doorbell.
//!
//! `doorbell bench` measures wall time, once with each build in each round. Wall times vary by 5 to 10 %, so the result
//! is an interval of the ratio. valgrind's callgrind counts instructions per message, with both ends in one thread. The
//! counted program is `benchmarks/instructions` of each revision, with the same workloads. It runs with two lengths,
//! and the difference of both counts excludes the start of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::place;
use crate::programs;
use crate::regressions::{check_out, git};
use crate::shell::{Running, cargo, command, output_of, root, run, target};
use crate::{figures, fuzz, peers};

/// Minimum number of rounds. With fewer rounds, differences of a few per cent cannot be seen.
pub(crate) const LEAST_ROUNDS: u32 = 15;
/// Time limit of one measurement. No measurement takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// The other build, with which the build of this folder is compared.
pub(crate) struct Against {
    /// Another program `doorbell`, whose wall time is measured.
    pub(crate) binary: Option<PathBuf>,
    /// Another revision, whose instructions are counted. Without `binary`, the wall time of this revision is also
    /// measured.
    pub(crate) revision: Option<String>,
    pub(crate) rounds: u32,
    /// Whether only instructions are counted.
    pub(crate) only_instructions: bool,
}

/// A measurement of `doorbell bench`.
struct Timed {
    name: &'static str,
    arguments: &'static str,
    /// Path of the result in the record. `scale` converts the result to `unit`.
    pointer: &'static str,
    unit: &'static str,
    scale: f64,
}

const TIMED: &[Timed] = &[
    Timed {
        name: "lat 16 B",
        arguments: "bench lat -s 16 -D 0.5 --json",
        pointer: "/results/0/latency_ns/p50",
        unit: "us",
        scale: 1e-3,
    },
    Timed {
        name: "bw 16 B",
        arguments: "bench bw -s 16 -D 0.5 --json",
        pointer: "/results/0/messages_per_s",
        unit: "M/s",
        scale: 1e-6,
    },
    Timed {
        name: "bw 16 B, batched",
        arguments: "bench bw -s 16 --config batched -D 0.5 --json",
        pointer: "/results/0/messages_per_s",
        unit: "M/s",
        scale: 1e-6,
    },
    Timed {
        name: "bw 64 KiB",
        arguments: "bench bw -s 65536 -D 0.5 --json",
        pointer: "/results/0/bytes_per_s",
        unit: "GB/s",
        scale: 1e-9,
    },
];

/// A workload of the counting program, with the two lengths with which it runs.
struct Counted {
    name: &'static str,
    short: u64,
    long: u64,
}

const fn counted(name: &'static str, short: u64, long: u64) -> Counted {
    Counted { name, short, long }
}

/// Workloads whose instructions are counted. The lengths are multiples of the workload's window.
const COUNTED: &[Counted] = &[
    counted("rnic", 6400, 64_000),
    counted("rnic-batched", 6400, 64_000),
    counted("rnic-64k", 160, 4800),
    counted("exchange", 6400, 64_000),
    counted("exchange-batched", 6400, 64_000),
    counted("bench-lat", 3200, 32_000),
    counted("bench-bw", 6400, 64_000),
    counted("bench-bw-batched", 6400, 64_000),
    counted("bench-bw-64k", 160, 4800),
];

/// Number of times that the instructions of a workload are counted. The counts differ only because programs read the
/// clock.
const COUNTS: usize = 5;

/// Measures both builds, prints a table, and writes the raw figures to `out`.
pub(crate) fn compare(against: &Against, out: Option<&Path>) -> Result<(), String> {
    let _alone = place::measuring()?;
    let home = target().join("xtask").join("compare");
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let other = against.revision.as_deref().map(|revision| Revision::check_out(&home, revision)).transpose()?;
    let timed = if against.only_instructions { Vec::new() } else { time(against, other.as_ref())? };
    let counted = match &other {
        Some(other) => count(&home, other)?,
        None => {
            println!("\ninstructions are left out: counting them needs --against-revision");
            Vec::new()
        }
    };
    if let Some(out) = out {
        let text = json!({ "schema": "doorbell-compare-builds/1", "timed": timed, "instructions": counted });
        fs::write(out, format!("{text:#}\n")).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    Ok(())
}

/// A clone at another revision.
struct Revision {
    tree: PathBuf,
    id: String,
}

impl Revision {
    fn check_out(home: &Path, revision: &str) -> Result<Self, String> {
        let id = output_of(git(&root(), &["rev-parse", "--verify", &format!("{revision}^{{commit}}")]))?;
        let id = id.trim().to_owned();
        let tree = home.join("tree");
        check_out(&tree, &id)?;
        Ok(Self { tree, id })
    }

    /// Builds `doorbell` of this revision, and returns its path.
    fn doorbell(&self) -> Result<PathBuf, String> {
        let built = self.tree.with_file_name("target");
        let mut build = cargo(&["build", "--release", "--package", "doorbell-cli"]);
        build.current_dir(&self.tree).env("CARGO_TARGET_DIR", &built);
        run(build)?;
        Ok(built.join("release").join("doorbell"))
    }
}

/// Measures the wall times of both builds in turns.
fn time(against: &Against, other: Option<&Revision>) -> Result<Vec<Value>, String> {
    let theirs = match (&against.binary, other) {
        (Some(binary), _) => binary.clone(),
        (None, Some(other)) => other.doorbell()?,
        (None, None) => return Err("give --against or --against-revision".to_owned()),
    };
    programs::build()?;
    let ours = programs::doorbell();
    let mut taken: Vec<Vec<[f64; 2]>> = TIMED.iter().map(|_| Vec::new()).collect();
    for round in 0..against.rounds {
        eprintln!("round {} of {}", round + 1, against.rounds);
        for (timed, taken) in TIMED.iter().zip(&mut taken) {
            // The first run of a round may affect the second one, so each build runs first in every second round.
            let mut pair = [0.0; 2];
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for index in order {
                pair[index] = timed.measure([&ours, &theirs][index])?;
            }
            taken.push(pair);
        }
    }
    println!("\n{:<20} {:>5} {:>20} {:>20} {:>8}  95 % of it", "wall time", "", "this", "other", "ratio");
    let rows = TIMED.iter().zip(&taken).map(|(timed, pairs)| {
        let ratios: Vec<f64> = pairs.iter().map(|[ours, theirs]| ours / theirs).collect();
        let [low, high] = interval(&ratios);
        let side = |index: usize| {
            let figures = figures::spread(pairs.iter().map(|pair| pair[index] * timed.scale));
            figures.map_or_else(String::new, |(median, least, most)| format!("{median:.3} ({least:.3}-{most:.3})"))
        };
        let ratio = median(&ratios);
        println!(
            "{:<20} {:>5} {:>20} {:>20} {ratio:>8.3}  {low:.3} to {high:.3}",
            timed.name,
            timed.unit,
            side(0),
            side(1)
        );
        json!({ "name": timed.name, "pairs": pairs, "ratio": ratio, "interval": [low, high] })
    });
    Ok(rows.collect())
}

impl Timed {
    fn measure(&self, binary: &Path) -> Result<f64, String> {
        let words: Vec<&str> = self.arguments.split_whitespace().collect();
        let (stdout, _) = Running::start(command(binary, &words))?.finish(PATIENCE)?;
        let record: Value = serde_json::from_str(&stdout).map_err(|error| format!("{}: {error}", self.name))?;
        let value = record.pointer(self.pointer).and_then(Value::as_f64);
        value.filter(|value| *value > 0.0).ok_or_else(|| format!("{}: the record has no {}", self.name, self.pointer))
    }
}

/// Counts instructions per message of both builds.
fn count(home: &Path, other: &Revision) -> Result<Vec<Value>, String> {
    peers::install_for_counting()?;
    let ours = counting_program(home, &root(), "this")?;
    let theirs = counting_program(home, &other.tree, "other")?;
    println!("\ninstructions per message, the other being {}", other.id.get(..7).unwrap_or(&other.id));
    println!("{:<20} {:>12} {:>12} {:>8}  spread", "", "this", "other", "ratio");
    let mut rows = Vec::new();
    for counted in COUNTED {
        let mut sides: [Vec<f64>; 2] = Default::default();
        for _ in 0..COUNTS {
            for (program, side) in [&ours, &theirs].into_iter().zip(&mut sides) {
                let [short, long] =
                    [counted.short, counted.long].map(|length| instructions(program, counted.name, length));
                side.push((long? - short?) / (counted.long - counted.short) as f64);
            }
        }
        let [this, other] = sides.each_ref().map(|side| median(side));
        let widths = sides.iter().filter_map(|side| figures::spread(side.iter().copied()));
        let widest = widths.map(|(_, least, most)| 100.0 * (most - least) / least);
        let widest = widest.fold(0.0, f64::max);
        println!("{:<20} {this:>12.1} {other:>12.1} {:>8.4}  {widest:.2} %", counted.name, this / other);
        rows.push(json!({ "name": counted.name, "this": sides[0], "other": sides[1], "ratio": this / other }));
    }
    Ok(rows)
}

/// Copies the lock file of `tree` to its counting program, so that the program uses the same versions of dependencies.
fn take_versions(tree: &Path) -> Result<(), String> {
    let lock = tree.join("benchmarks").join("instructions").join("Cargo.lock");
    fs::copy(tree.join("Cargo.lock"), &lock).map(drop).map_err(|error| format!("{}: {error}", lock.display()))
}

/// Checks that the counting program compiles with the current crates.
pub(crate) fn check() -> Result<(), String> {
    take_versions(&root())?;
    let mut check = cargo(&["check", "--quiet"]);
    check.current_dir(root().join("benchmarks").join("instructions")).env("CARGO_TARGET_DIR", fuzz::check_target());
    run(check)
}

/// Builds the counting program of `tree`. Returns the path of the program.
fn counting_program(home: &Path, tree: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = tree.join("benchmarks").join("instructions");
    let cannot = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
    take_versions(tree)?;
    let built = home.join("instructions");
    let mut build = cargo(&["build", "--release"]);
    build.current_dir(&folder).env("CARGO_TARGET_DIR", &built);
    run(build)?;
    let program = home.join(format!("doorbell-instructions-{name}"));
    let made = built.join("release").join("doorbell-instructions");
    fs::copy(&made, &program).map_err(|error| cannot(&made, error))?;
    Ok(program)
}

/// Returns the number of instructions that the counting program takes for a workload of this length.
fn instructions(program: &Path, workload: &str, length: u64) -> Result<f64, String> {
    let mut valgrind = command("valgrind", &["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
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

fn median(values: &[f64]) -> f64 {
    figures::spread(values.iter().copied()).map_or(f64::NAN, |(median, ..)| median)
}

/// Returns an interval that contains the median of the distribution in at least 95 of 100 cases, for any distribution.
/// The ends of the interval are two of the sorted values, which the binomial distribution determines (inversion of the
/// sign test).
fn interval(values: &[f64]) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let Some(last) = count.checked_sub(1) else { return [f64::NAN; 2] };
    // `below` is the probability that fewer than k of n values lie below the median. The loop finds the largest k for
    // which this probability is at most 2.5 %.
    let (mut k, mut term, mut below) = (0, 0.5_f64.powi(count as i32), 0.0);
    while k < count / 2 && below + term <= 0.025 {
        below += term;
        k += 1;
        term *= (count + 1 - k) as f64 / k as f64;
    }
    let k = k.saturating_sub(1);
    [sorted[k], sorted[last - k]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_match_the_sign_test() {
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        // Of 15 values, at most three lie below the median in 1.8 % of cases, at most four in 5.9 %.
        assert_eq!(interval(&values), [4.0, 12.0]);
        let values: Vec<f64> = (1..=25).map(f64::from).collect();
        assert_eq!(interval(&values), [8.0, 18.0]);
        assert_eq!(interval(&[7.0, 8.0]), [7.0, 8.0]);
    }
}
