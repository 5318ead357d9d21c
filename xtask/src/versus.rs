//! `cargo xtask compare --against`: comparison of two builds of Doorbell.
//!
//! `doorbell bench` measures wall time, once with each build in each round. Wall times vary by 5 to 10 %, so the result
//! is an interval of the ratio. valgrind's callgrind counts instructions per message, with both ends in one process.
//! The counted program is `benchmarks/instructions` of each revision, with the same workloads.

pub(crate) mod builds;
mod counted;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::figures;
use crate::place;
use crate::programs;
use crate::regressions::{check_out, git};
use crate::shell::{Running, cargo, command, output_of, root, run, target};

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

/// Measures both builds, prints a table, and writes the raw figures to `out`.
pub(crate) fn compare(against: &Against, out: Option<&Path>) -> Result<(), String> {
    let _alone = place::measuring()?;
    let home = target().join("xtask").join("compare");
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let other = against.revision.as_deref().map(|revision| Revision::check_out(&home, revision)).transpose()?;
    let timed = if against.only_instructions { Vec::new() } else { time(against, other.as_ref())? };
    let counted = match &other {
        Some(other) => counted::count(&home, other)?,
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

/// Returns the order of both builds in a round. The first run of a round may affect the second one, so each build runs
/// first in every second round.
const fn order(round: u32) -> [usize; 2] {
    if round.is_multiple_of(2) { [1, 0] } else { [0, 1] }
}

/// A clone at another revision.
pub(crate) struct Revision {
    pub(crate) tree: PathBuf,
    /// Hash of the commit.
    pub(crate) id: String,
}

impl Revision {
    /// Checks a revision out below the folder `home`. A later call with the same folder replaces the files.
    pub(crate) fn check_out(home: &Path, revision: &str) -> Result<Self, String> {
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
            let mut pair = [0.0; 2];
            for index in order(round) {
                pair[index] = timed.measure([&ours, &theirs][index])?;
            }
            taken.push(pair);
        }
    }
    println!("\n{:<20} {:>5} {:>20} {:>20} {:>8}  95 % of it", "wall time", "", "this", "other", "ratio");
    let rows = TIMED.iter().zip(&taken).map(|(timed, pairs)| {
        let ratios: Vec<f64> = pairs.iter().map(|[ours, theirs]| ours / theirs).collect();
        let [low, high] = figures::interval(&ratios).unwrap_or([f64::NAN; 2]);
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

fn median(values: &[f64]) -> f64 {
    figures::spread(values.iter().copied()).map_or(f64::NAN, |(median, ..)| median)
}
