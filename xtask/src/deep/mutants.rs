//! Mutants: small changes of the code that some test of the crate should detect.
//!
//! cargo-mutants lists the mutants. The module applies each mutant alone, to the clone that `regressions` also uses for
//! stored patches. A file stores each verdict with the Git blob of the mutated source file. A later run therefore
//! continues where the last run ended.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use crate::peers;
use crate::regressions::{Checkout, Ended, git};
use crate::shell::{command, output_of, root};

/// Options of the part `mutants`.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// Number of mutants in the sample, 1 to 100000
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sample: u32,
    /// Seed of the sample
    #[arg(long, default_value_t = 31)]
    seed: u64,
    /// Maximum number of mutants to judge in this run [default: all without a verdict]
    #[arg(long, value_name = "N")]
    at_most: Option<usize>,
    /// File of the verdicts, which the run continues [default: the newest `mutants.txt` below `benchmarks`, or one
    /// below today's date]
    #[arg(long, value_name = "FILE")]
    verdicts: Option<PathBuf>,
}

/// Folders whose code is mutated, each with the package and options of the tests that must detect the mutants.
const PLACES: &[(&str, &str)] = &[
    ("crates/rnic/rnic/src/", "doorbell-rnic"),
    ("crates/messages/exchange/src/", "doorbell-exchange"),
    ("crates/rnic/fabric/src/shm/", "doorbell-fabric"),
    ("crates/memory/farmem/src/", "doorbell-farmem --package doorbell-sim --lib --test farmem"),
];

/// Name of a file of verdicts.
const VERDICTS: &str = "mutants.txt";

/// Maximum duration of the tests of a crate without a mutant.
const LIMIT: Duration = Duration::from_secs(900);

/// Constant part of the time limit of tests with a mutant.
const LEAST_LIMIT: Duration = Duration::from_secs(60);
/// Factor by which the duration of the tests without a mutant adds to the time limit of tests with a mutant.
const LIMIT_FACTOR: u32 = 4;

/// Minimum share of viable mutants that tests must catch, in percent.
const CAUGHT_PERCENT: usize = 95;

/// Mutants that no test can detect, each with the reason.
const EXPLAINED: &str = include_str!("../../mutants-explained.txt");

/// A mutant of the sample.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mutant {
    /// File, line and change, as cargo-mutants prints them.
    name: String,
    file: String,
    package: &'static str,
    diff: String,
}

/// Verdicts, by the Git blob of the source file and the name of the mutant.
type Verdicts = BTreeMap<(String, String), String>;

/// Judges the mutants of the sample that have no verdict yet, and writes all verdicts.
pub(super) fn run(options: &Options) -> Result<(), String> {
    let checkout = Checkout::open()?;
    let sample = sample(listed(checkout.tree())?, options.seed, options.sample as usize);
    let file = match &options.verdicts {
        Some(file) => root().join(file),
        None => newest_verdicts(&root().join("benchmarks"))?,
    };
    let mut verdicts = read(&fs::read_to_string(&file).unwrap_or_default());
    let mut states = BTreeMap::new();
    for file in sample.iter().map(|mutant| &mutant.file) {
        let state = output_of(git(checkout.tree(), &["rev-parse", &format!("HEAD:{file}")]))?;
        states.insert(file, state.trim()[..12].to_owned());
    }
    let key = |mutant: &Mutant| (states[&mutant.file].clone(), mutant.name.clone());
    let waiting: Vec<&Mutant> = sample.iter().filter(|mutant| !verdicts.contains_key(&key(mutant))).collect();
    eprintln!("{} mutants, of which {} have no verdict yet", sample.len(), waiting.len());
    let mut limits = BTreeMap::new();
    for mutant in waiting.into_iter().take(options.at_most.unwrap_or(usize::MAX)) {
        let limit = match limits.get(mutant.package) {
            Some(limit) => *limit,
            None => *limits.entry(mutant.package).or_insert(limit_of(&checkout, mutant.package)?),
        };
        let start = Instant::now();
        let verdict = judge(&checkout, mutant, limit)?;
        eprintln!("{verdict} after {:.0} s: {}", start.elapsed().as_secs_f64(), mutant.name);
        verdicts.insert(key(mutant), verdict.to_owned());
        write(&file, options, &verdicts)?;
    }
    let of_sample: Vec<(&Mutant, &String)> =
        sample.iter().filter_map(|mutant| Some((mutant, verdicts.get(&key(mutant))?))).collect();
    conclude(&of_sample, sample.len())
}

/// Returns the newest file of verdicts in the folders of `home`, whose names are dates. Without such a file, returns a
/// new path with today's date.
fn newest_verdicts(home: &Path) -> Result<PathBuf, String> {
    let folders = fs::read_dir(home).into_iter().flatten().flatten();
    let newest = folders.map(|entry| entry.path().join(VERDICTS)).filter(|file| file.exists()).max();
    match newest {
        Some(file) => Ok(file),
        None => Ok(home.join(output_of(command("date", &["+%F"]))?.trim()).join(VERDICTS)),
    }
}

fn test_of(package: &str) -> String {
    format!("cargo test --package {package}")
}

/// Returns the time limit of the tests of a crate with a mutant. Without a mutant, the tests must pass.
fn limit_of(checkout: &Checkout, package: &str) -> Result<Duration, String> {
    let mut took = Duration::ZERO;
    // The first run also builds the tests, so measure the duration of the second run.
    for _ in 0..2 {
        let start = Instant::now();
        match checkout.run_test(&test_of(package), LIMIT, "without-mutants")? {
            Ended::Passed => took = start.elapsed(),
            other => return Err(format!("the tests of {package} without a mutant: {other}")),
        }
    }
    eprintln!("the tests of {package} take {:.0} s", took.as_secs_f64());
    Ok(LEAST_LIMIT + LIMIT_FACTOR * took)
}

fn judge(checkout: &Checkout, mutant: &Mutant, limit: Duration) -> Result<&'static str, String> {
    let patch = crate::place::own_file("mutant.patch");
    fs::write(&patch, &mutant.diff).map_err(|error| format!("{}: {error}", patch.display()))?;
    // An interrupted run may have left its mutant in the clone.
    checkout.clean()?;
    let mut apply = git(checkout.tree(), &["apply"]);
    apply.arg(&patch);
    output_of(apply)?;
    let ended = checkout.run_test(&test_of(mutant.package), limit, "mutant");
    checkout.clean()?;
    Ok(match ended? {
        Ended::Passed => "SURVIVED",
        Ended::Hung => "caught by hanging",
        Ended::Failed | Ended::Died => "caught",
        Ended::Unbuilt => "unviable",
    })
}

/// Returns all mutants in [`PLACES`].
fn listed(tree: &Path) -> Result<Vec<Mutant>, String> {
    let program = peers::tool("cargo-mutants", &[])?;
    let mut list = command(program, &["mutants", "--workspace", "--list", "--json", "--diff", "--dir"]);
    list.arg(tree);
    for (folder, _) in PLACES {
        list.args(["--file", &format!("{folder}**/*.rs")]);
    }
    let text = output_of(list)?;
    let all = parse(&serde_json::from_str(&text).map_err(|error| format!("cargo-mutants lists no JSON: {error}"))?)?;
    check_places(&all)?;
    Ok(all)
}

/// Rejects a list without mutants of one of the places, as after a move of its files. The sample would not show it.
fn check_places(all: &[Mutant]) -> Result<(), String> {
    let is_empty = |folder: &str| !all.iter().any(|mutant| mutant.file.starts_with(folder));
    match PLACES.iter().find(|(folder, _)| is_empty(folder)) {
        Some((folder, _)) => Err(format!("cargo-mutants lists no mutant of {folder}, must list some of each place")),
        None => Ok(()),
    }
}

fn parse(list: &Value) -> Result<Vec<Mutant>, String> {
    let of = |value: &Value| {
        let word = |name: &str| value[name].as_str().map(str::to_owned);
        let (file, name, diff) = (word("file")?, word("name")?, word("diff")?);
        let place = PLACES.iter().find(|(folder, _)| file.starts_with(folder));
        // The first two lines of the diff name the file and the change. Git needs the file name in both lines.
        let hunks = diff.splitn(3, '\n').nth(2)?;
        let diff = format!("--- a/{file}\n+++ b/{file}\n{hunks}");
        Some(place.map(|(_, package)| Mutant { name, file, package, diff }))
    };
    let all: Option<Vec<_>> = list.as_array().and_then(|list| list.iter().map(of).collect());
    Ok(all.ok_or("a mutant lacks its file, name or diff")?.into_iter().flatten().collect())
}

/// Returns the `count` mutants with the smallest hashes of seed and name. With this choice, a small change of the code
/// replaces only a few mutants of the sample.
fn sample(mut all: Vec<Mutant>, seed: u64, count: usize) -> Vec<Mutant> {
    all.sort_by_cached_key(|mutant| (hash(seed, &mutant.name), mutant.name.clone()));
    all.truncate(count);
    all
}

/// Returns FNV-1a of the name without its digits, mixed as in SplitMix64. Without digits, the hash does not depend on
/// line numbers.
fn hash(seed: u64, name: &str) -> u64 {
    let without_lines = name.bytes().filter(|byte| !byte.is_ascii_digit());
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = without_lines.fold(start, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (sum ^ (sum >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn read(text: &str) -> Verdicts {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let fields = lines.filter_map(|line| {
        let mut fields = line.split('\t').map(str::to_owned);
        Some(((fields.next()?, fields.next()?), fields.next()?))
    });
    fields.collect()
}

fn write(file: &Path, options: &Options, verdicts: &Verdicts) -> Result<(), String> {
    let mut text = format!(
        "# Mutants of a sample, by `cargo xtask deep mutants --seed {} --sample {}`: state of the file (its blob in Git), \
         mutant, verdict.\n",
        options.seed, options.sample
    );
    for ((state, name), verdict) in verdicts {
        text += &format!("{state}\t{name}\t{verdict}\n");
    }
    let made = file.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(file, text)).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns the reason why no test can detect this mutant. The reason stands in a line `END OF NAME :: REASON` of
/// [`EXPLAINED`].
fn explanation(name: &str) -> Option<&'static str> {
    let lines = EXPLAINED.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" :: ")).find(|(change, _)| name.ends_with(change)).map(|(_, why)| why)
}

fn conclude(judged: &[(&Mutant, &String)], sample: usize) -> Result<(), String> {
    let survivors: Vec<&Mutant> =
        judged.iter().filter(|(_, verdict)| *verdict == "SURVIVED").map(|(mutant, _)| *mutant).collect();
    let unviable = judged.iter().filter(|(_, verdict)| *verdict == "unviable").count();
    let viable = judged.len() - unviable;
    for mutant in &survivors {
        println!("survived: {}; {}", mutant.name, explanation(&mutant.name).unwrap_or("NOT EXPLAINED"));
    }
    let caught = viable - survivors.len();
    println!(
        "mutants: {} of {sample} judged, {unviable} do not compile, {caught} of {viable} viable ones caught",
        judged.len()
    );
    let unexplained = survivors.iter().filter(|mutant| explanation(&mutant.name).is_none()).count();
    if unexplained > 0 {
        return Err(format!("{unexplained} survivors have no explanation in xtask/mutants-explained.txt"));
    }
    if caught * 100 < viable * CAUGHT_PERCENT {
        return Err(format!("tests caught {caught} of {viable} mutants, must be at least {CAUGHT_PERCENT} %"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_verdicts_are_continued() {
        let home = std::env::temp_dir().join(format!("mutants-{}", std::process::id()));
        let of = |date: &str| home.join(date).join(VERDICTS);
        let first = newest_verdicts(&home).unwrap();
        assert!(first.starts_with(&home) && first.ends_with(VERDICTS), "{first:?}");
        for date in ["2026-09-30", "2026-10-02", "2026-10-01"] {
            fs::create_dir_all(home.join(date)).unwrap();
            fs::write(of(date), "").unwrap();
        }
        fs::create_dir_all(home.join("2026-10-03")).unwrap();
        assert_eq!(newest_verdicts(&home).unwrap(), of("2026-10-02"));
        fs::remove_dir_all(home).unwrap();
    }

    fn mutant(name: &str) -> Mutant {
        Mutant { name: name.to_owned(), file: String::new(), package: "doorbell-rnic", diff: String::new() }
    }

    #[test]
    fn a_sample_depends_on_its_seed_and_not_on_line_numbers() {
        let all: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|name| format!("x.rs:10:3: {name}")).to_vec();
        let moved: Vec<_> = all.iter().map(|name| name.replace("10:3", "99:7")).collect();
        let names = |of: &[String], seed| -> Vec<String> {
            let taken = sample(of.iter().map(|name| mutant(name)).collect(), seed, 3);
            taken.iter().map(|mutant| mutant.name.rsplit(' ').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(names(&all, 1).len(), 3);
        assert_eq!(names(&all, 1), names(&moved, 1));
        assert!((2..50).any(|seed| names(&all, seed) != names(&all, 1)));
    }

    #[test]
    fn written_verdicts_are_read_back() {
        let file = tempfile::tempdir().unwrap();
        let path = file.path().join("below").join("mutants.txt");
        let options = Options { sample: 2, seed: 1, at_most: None, verdicts: Some(path.clone()) };
        let verdicts: Verdicts = [(("abc".to_owned(), "x.rs:1:1: y".to_owned()), "caught".to_owned())].into();
        write(&path, &options, &verdicts).unwrap();
        assert_eq!(read(&fs::read_to_string(&path).unwrap()), verdicts);
    }

    #[test]
    fn survivors_need_an_explanation() {
        let mutants: Vec<Mutant> = (0..40).map(|number| mutant(&format!("x.rs:{number}:1: y"))).collect();
        let caught = "caught".to_owned();
        let all: Vec<_> = mutants.iter().map(|mutant| (mutant, &caught)).collect();
        assert_eq!(conclude(&all, 200), Ok(()));
        let survived = "SURVIVED".to_owned();
        let mut one = all.clone();
        one[0].1 = &survived;
        assert!(conclude(&one, 200).unwrap_err().contains("1 survivors have no explanation"));
    }

    #[test]
    fn a_mutant_belongs_to_the_crate_of_its_file() {
        let list = serde_json::json!([
            {"file": "crates/rnic/fabric/src/shm/ring.rs", "name": "n", "diff": "--- x\n+++ y\n@@ z\n", "package": "doorbell-fabric"},
            {"file": "crates/rnic/fabric/src/pcap.rs", "name": "n", "diff": "--- x\n+++ y\n@@ z\n"},
        ]);
        let found = parse(&list).unwrap();
        assert_eq!((found.len(), found[0].package), (1, "doorbell-fabric"));
        assert_eq!(
            found[0].diff,
            "--- a/crates/rnic/fabric/src/shm/ring.rs\n+++ b/crates/rnic/fabric/src/shm/ring.rs\n@@ z\n"
        );
        assert!(parse(&serde_json::json!([{"file": "crates/rnic/rnic/src/lib.rs"}])).is_err());
    }

    #[test]
    fn each_place_exists_and_has_mutants() {
        let of = |folder: &str| Mutant { file: format!("{folder}lib.rs"), ..mutant("n") };
        let mut all: Vec<_> = PLACES.iter().map(|(folder, _)| of(folder)).collect();
        assert_eq!(check_places(&all), Ok(()));
        assert!(PLACES.iter().all(|(folder, _)| root().join(folder).is_dir()));
        all.pop();
        assert!(check_places(&all).unwrap_err().contains("no mutant of crates/memory/farmem/src/"));
    }
}
