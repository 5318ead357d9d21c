//! `cargo xtask fuzz`: the fuzz targets under libFuzzer, on stable Rust.
//!
//! libFuzzer needs only coverage of the tested code, which stable code generation options provide: 8-bit counters and a
//! table of program counters. There is no sanitizer. A target is `crates/FLOOR/CRATE/fuzz/fuzz_targets/TARGET.rs`, and
//! its corpus is `crates/FLOOR/CRATE/tests/corpus/TARGET`. The target directory keeps the inputs that a run finds. A
//! run then minimizes the corpus to the fewest old and found inputs that reach the same code. Inputs that a person
//! named stay, since they may reproduce a fixed defect.
//!
//! A corpus is part of the repository, and every test run replays it, so it has a limit ([`CORPUS`]). Named inputs
//! always stay. The smallest of the others fill the corpus up to the limit. The command reports the inputs that it
//! dropped. They stay in the target directory, so later runs on the same machine start from them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::peers;
use crate::place::{self, Lock};
use crate::shell::{cargo, command, elsewhere, host, root, run, target};

/// Flags that make rustc count edges and set the cfg `fuzzing`.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing";

/// Time limit of one input in seconds. If an input takes longer, libFuzzer reports a defect.
const LONGEST_S: u32 = 20;

/// Limit of each corpus. With this limit, all corpora together stay below 1 MiB.
const CORPUS: Limit = Limit { inputs: 256, bytes: 64 << 10 };

/// Maximum size of one corpus.
#[derive(Clone, Copy)]
struct Limit {
    inputs: usize,
    bytes: u64,
}

/// An input that libFuzzer's merge kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Input {
    name: String,
    bytes: Vec<u8>,
}

/// Inputs chosen for a corpus, and the inputs that did not fit.
struct Choice {
    kept: Vec<Input>,
    dropped: Vec<Input>,
}

/// A fuzz target.
struct Target {
    /// The crate's folder.
    home: PathBuf,
    name: String,
}

/// Returns all targets, sorted by crate and name.
fn all() -> Result<Vec<Target>, String> {
    let mut targets = Vec::new();
    let floors = folder(&root().join("crates"))?;
    for home in floors.iter().map(|floor| folder(floor)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        let bodies = home.join("fuzz").join("fuzz_targets");
        if bodies.exists() {
            let sources = folder(&bodies)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
            let names = sources.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
            targets.extend(names.map(|name| Target { home: home.clone(), name }));
        }
    }
    if targets.is_empty() { Err("there is no fuzz target in crates/*/*/fuzz".to_owned()) } else { Ok(targets) }
}

fn folder(path: &Path) -> Result<Vec<PathBuf>, String> {
    let cannot = |error| format!("{} cannot be read: {error}", path.display());
    let mut paths: Vec<PathBuf> =
        fs::read_dir(path).map_err(cannot)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// Copies the lock file of `tree` to a package outside of its workspace, so that the package uses the same versions of
/// dependencies. Replaces the present file at once, because another run may read it.
pub(crate) fn take_versions(tree: &Path, package: &Path) -> Result<(), String> {
    let (lock, copy) = (tree.join("Cargo.lock"), place::own_file("Cargo.lock"));
    fs::copy(&lock, &copy).map_err(|error| format!("{}: {error}", lock.display()))?;
    place::publish(&copy, &package.join("Cargo.lock"))
}

/// Downloads the crates of the workspace's lock file that are missing. It also has those of the fuzz targets.
pub(crate) fn fetch() -> Result<(), String> {
    run(cargo(&["fetch", "--quiet", "--locked", "--target", &host()?]))
}

/// Checks that a package outside of the workspace compiles. It uses the same versions of dependencies as the workspace,
/// and shares those that are already checked.
pub(crate) fn check_alone(package: &Path) -> Result<(), String> {
    take_versions(&root(), package)?;
    let mut check = elsewhere(package, &["check", "--quiet"]);
    // With a built libFuzzer, the build script of libfuzzer-sys compiles none. A check links nothing, so any file will
    // do.
    check.env("CUSTOM_LIBFUZZER_PATH", root().join("Cargo.toml"));
    run(check)
}

/// Checks that all targets compile, without the flags for coverage.
pub(crate) fn build() -> Result<(), String> {
    let mut homes: Vec<PathBuf> = all()?.into_iter().map(|target| target.home).collect();
    homes.dedup();
    homes.iter().try_for_each(|home| check_alone(&home.join("fuzz")))
}

/// Runs the target `name`, or all targets without a name, for `minutes` each. Then minimizes the corpus of each target
/// together with the found inputs. If a target fails, the remaining targets still run.
pub(crate) fn fuzz(name: Option<&str>, minutes: f64) -> Result<(), String> {
    peers::install_for_fuzzing()?;
    // Only one run at a time, because runs share the found inputs and replace the corpora in the repository.
    let _alone = Lock::take(&target().join("xtask").join("fuzz.lock"), "fuzzing")?;
    let targets = all()?;
    let known: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    if let Some(name) = name.filter(|name| !known.contains(name)) {
        return Err(format!("there is no fuzz target {name}; use one of {}", known.join(", ")));
    }
    let chosen = targets.iter().filter(|target| name.is_none_or(|name| target.name == name));
    let failed: Vec<String> = chosen
        .filter_map(|target| match target.run(minutes) {
            Ok(report) => {
                eprintln!("{}: {report}", target.name);
                None
            }
            Err(why) => Some(format!("{}: {why}", target.name)),
        })
        .collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

impl Target {
    /// Fuzzes the target and minimizes its corpus. Returns a summary of the corpus.
    fn run(&self, minutes: f64) -> Result<String, String> {
        let home = target().join("xtask").join("fuzz");
        let crate_name = self.home.file_name().unwrap_or_default();
        let (triple, package) = (host()?, self.home.join("fuzz"));
        take_versions(&root(), &package)?;
        // With an explicit target, cargo builds build scripts and macros without these flags.
        let mut build = cargo(&["build", "--release", "--target", &triple, "--bin", &self.name]);
        build.current_dir(package);
        build.env("CARGO_TARGET_DIR", home.join("target")).env("RUSTFLAGS", FLAGS);
        run(build)?;
        let corpus = self.home.join("tests").join("corpus").join(&self.name);
        let found = home.join("found").join(crate_name).join(&self.name);
        let failed = home.join("failed").join(crate_name).join(&self.name);
        for folder in [&corpus, &found, &failed] {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let program = home.join("target").join(&triple).join("release").join(&self.name);
        let limit = format!("-timeout={LONGEST_S}");
        // Whole seconds, at least 1: libFuzzer treats 0 as unlimited.
        let duration = format!("-max_total_time={}", (minutes * 60.0).ceil().max(1.0) as u64);
        let mut search = command(&program, &[&duration, &limit, "-print_final_stats=1"]);
        // libFuzzer appends file names to this prefix.
        search.arg(format!("-artifact_prefix={}/", failed.display())).arg(&found).arg(&corpus);
        run(search).map_err(|why| format!("{why}: the input is in {}", failed.display()))?;
        // libFuzzer's merge copies inputs to the empty first folder, until these inputs reach the same code as all
        // inputs of the other folders.
        let fewest = home.join("fewest").join(crate_name).join(&self.name);
        let cannot = |error: io::Error| format!("{}: {error}", fewest.display());
        if fewest.exists() {
            fs::remove_dir_all(&fewest).map_err(cannot)?;
        }
        fs::create_dir_all(&fewest).map_err(cannot)?;
        let mut merge = command(&program, &["-set_cover_merge=1", "-use_counters=0"]);
        merge.arg(&fewest).arg(&corpus).arg(&found);
        run(merge)?;
        replace(&corpus, &fewest, CORPUS)
    }
}

/// Replaces the unnamed inputs of a corpus by the inputs in `fewest`, up to the limit. Named inputs stay. Returns a
/// summary of the change.
fn replace(corpus: &Path, fewest: &Path, limit: Limit) -> Result<String, String> {
    let cannot = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let read = |path: &Path| fs::read(path).map_err(|error| cannot(path, error));
    let (named, unnamed): (Vec<PathBuf>, Vec<PathBuf>) = folder(corpus)?.into_iter().partition(|path| is_named(path));
    let named = named.iter().map(|path| read(path)).collect::<Result<Vec<_>, String>>()?;
    let merged = folder(fewest)?;
    if merged.is_empty() {
        return Err(format!("{}: the merge has kept no input, so the corpus stays", fewest.display()));
    }
    let input = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Input { name, bytes: read(path)? })
    };
    let merged = merged.iter().map(input).collect::<Result<Vec<_>, String>>()?;
    let choice = choose(&named, merged, limit);
    for path in unnamed {
        fs::remove_file(&path).map_err(|error| cannot(&path, error))?;
    }
    for Input { name, bytes } in &choice.kept {
        let place = corpus.join(name);
        fs::write(&place, bytes).map_err(|error| cannot(&place, error))?;
    }
    Ok(choice.report(&named, limit))
}

/// Chooses the unnamed inputs of a corpus. Takes the smallest merged inputs first (by name within one size), and stops
/// before the first input that exceeds the limit. Named inputs count towards the limit, but all of them stay.
fn choose(named: &[Vec<u8>], mut merged: Vec<Input>, limit: Limit) -> Choice {
    // libFuzzer names each kept input by its hash, even if the input has another name in the corpus.
    merged.retain(|input| !named.contains(&input.bytes));
    merged.sort_by(|a, b| (a.bytes.len(), &a.name).cmp(&(b.bytes.len(), &b.name)));
    let (mut inputs, mut bytes) = (named.len(), named.iter().map(|input| input.len() as u64).sum::<u64>());
    let fitting = merged.iter().take_while(|input| {
        inputs += 1;
        bytes += input.bytes.len() as u64;
        inputs <= limit.inputs && bytes <= limit.bytes
    });
    let count = fitting.count();
    let dropped = merged.split_off(count);
    Choice { kept: merged, dropped }
}

impl Choice {
    fn report(&self, named: &[Vec<u8>], limit: Limit) -> String {
        let size = |inputs: &[Input]| inputs.iter().map(|input| input.bytes.len() as u64).sum::<u64>();
        let bytes = named.iter().map(|input| input.len() as u64).sum::<u64>() + size(&self.kept);
        let inputs = named.len() + self.kept.len();
        let mut report =
            format!("the corpus holds {inputs} inputs of {bytes} B together, {} of them named", named.len());
        if !self.dropped.is_empty() {
            report += &format!(
                "; the {} largest, of {} B together, were dropped, since the limit is {} inputs and {} B:",
                self.dropped.len(),
                size(&self.dropped),
                limit.inputs,
                limit.bytes
            );
            for input in &self.dropped {
                report += &format!("\n  {} ({} B)", input.name, input.bytes.len());
            }
        }
        if inputs > limit.inputs || bytes > limit.bytes {
            report +=
                &format!("; the named inputs alone exceed the limit of {} inputs and {} B", limit.inputs, limit.bytes);
        }
        report
    }
}

/// Returns whether a person named this input. A program names inputs by a hash in hexadecimal.
fn is_named(input: &Path) -> bool {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let is_hash = matches!(name.len(), 16 | 40) && name.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
    !is_hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_becomes_the_fewest_inputs_and_keeps_named_ones() {
        let home = tempfile::tempdir().unwrap();
        let (corpus, fewest) = (home.path().join("corpus"), home.path().join("fewest"));
        let write = |path: PathBuf, bytes: &str| fs::write(path, bytes).unwrap();
        let names = |path: &Path| -> Vec<String> {
            let names = folder(path).unwrap().into_iter();
            names.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
        };
        let (old, new, twin) = ("0".repeat(16), "a".repeat(40), "f".repeat(40));
        fs::create_dir(&corpus).unwrap();
        fs::create_dir(&fewest).unwrap();
        write(corpus.join("a-defect"), "defect");
        write(corpus.join("deadbeef"), "short for a hash");
        write(corpus.join(&old), "old");
        let error = replace(&corpus, &fewest, CORPUS).unwrap_err();
        assert!(error.contains("the corpus stays"), "{error}");
        assert_eq!(names(&corpus).len(), 3, "all inputs of the corpus stay");
        write(fewest.join(&new), "new");
        write(fewest.join(twin), "defect");
        let report = replace(&corpus, &fewest, CORPUS).unwrap();
        assert_eq!(report, "the corpus holds 3 inputs of 25 B together, 2 of them named");
        assert_eq!(names(&corpus), ["a-defect", &new, "deadbeef"]);
        assert_eq!(fs::read_to_string(corpus.join(&new)).unwrap(), "new");
    }

    #[test]
    fn a_corpus_takes_the_smallest_inputs_first_and_named_ones_always() {
        let input = |name: &str, length| Input { name: name.to_owned(), bytes: vec![name.as_bytes()[0]; length] };
        let names = |inputs: &[Input]| inputs.iter().map(|input| input.name.clone()).collect::<String>();
        let merged = [("d", 30), ("a", 10), ("c", 20), ("b", 20), ("e", 31)].map(|(name, length)| input(name, length));
        let chosen = |named: &[Vec<u8>], inputs, bytes| {
            let choice = choose(named, merged.to_vec(), Limit { inputs, bytes });
            let all = choice.kept.len() + choice.dropped.len();
            assert_eq!(choice.report(named, Limit { inputs, bytes }).lines().count(), 1 + choice.dropped.len());
            (names(&choice.kept), names(&choice.dropped), all)
        };
        let is = |kept: &str, dropped: &str| (kept.to_owned(), dropped.to_owned(), kept.len() + dropped.len());
        assert_eq!(chosen(&[], 5, 111), is("abcde", ""), "all inputs fit exactly");
        assert_eq!(chosen(&[], 5, 110), is("abcd", "e"), "all inputs together exceed the limit by one byte");
        assert_eq!(chosen(&[], 4, 1000), is("abcd", "e"), "all inputs together exceed the limit by one input");
        assert_eq!(chosen(&[], 2, 1000), is("ab", "cde"), "inputs of one size are taken by name");
        assert_eq!(chosen(&[vec![0; 60]], 5, 100), is("ab", "cde"), "a named input counts towards the limit");
        assert_eq!(
            chosen(&[vec![0; 200]], 5, 100),
            is("", "abcde"),
            "a named input stays even if it alone is too large"
        );
        assert_eq!(chosen(&[vec![b'c'; 20]], 5, 111), is("abde", ""), "an input that has a name is not kept twice");
        let report = choose(&[vec![0; 200]], merged.to_vec(), Limit { inputs: 5, bytes: 100 });
        let report = report.report(&[vec![0; 200]], Limit { inputs: 5, bytes: 100 });
        assert!(report.contains("the 5 largest, of 111 B together, were dropped"), "{report}");
        assert!(report.contains("  e (31 B)"), "{report}");
        assert!(report.contains("the named inputs alone exceed the limit of 5 inputs and 100 B"), "{report}");
    }

    #[test]
    fn the_corpora_of_the_repository_are_within_the_limit() {
        for target in all().unwrap() {
            let corpus = target.home.join("tests").join("corpus").join(&target.name);
            let sizes: Vec<u64> =
                folder(&corpus).unwrap().iter().map(|path| fs::metadata(path).unwrap().len()).collect();
            let (inputs, bytes) = (sizes.len(), sizes.iter().sum::<u64>());
            let fits = inputs <= CORPUS.inputs && bytes <= CORPUS.bytes;
            assert!(fits, "{}: {inputs} inputs of {bytes} B; `cargo xtask fuzz` cuts it", corpus.display());
        }
    }

    #[test]
    fn the_lock_file_of_the_workspace_has_each_dependency_of_the_targets() {
        let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
        for target in all().unwrap() {
            let manifest = fs::read_to_string(target.home.join("fuzz/Cargo.toml")).unwrap();
            let manifest: toml::Table = toml::from_str(&manifest).unwrap();
            let names: Vec<&String> = manifest["dependencies"].as_table().unwrap().keys().collect();
            assert!(names.iter().any(|name| *name == "libfuzzer-sys"), "{}", target.name);
            let missing: Vec<_> =
                names.into_iter().filter(|name| !lock.contains(&format!("name = \"{name}\"\n"))).collect();
            assert!(missing.is_empty(), "{}: {missing:?}", target.name);
        }
    }

    #[test]
    fn each_target_is_a_program_of_its_crate() {
        for target in all().unwrap() {
            let manifest = fs::read_to_string(target.home.join("fuzz/Cargo.toml")).unwrap();
            assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        }
    }
}
