//! `cargo xtask fuzz`: the fuzz targets under libFuzzer, on stable Rust.
//!
//! libFuzzer only wants the coverage of the code it drives, which stable code generation options give: 8-bit counters
//! and a table of program counters. There is no sanitizer. A target is `crates/CRATE/fuzz/fuzz_targets/TARGET.rs`, and
//! its corpus `crates/CRATE/tests/corpus/TARGET`. What a run finds is kept in the target directory. Afterwards the corpus
//! is the fewest inputs, of it and of what was found, that reach all the code that all of them reach, and those that
//! somebody gave a name: they may stand for a defect that was mended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::peers;
use crate::shell::{cargo, command, output_of, root, run, target};
use crate::test::Outcome;

/// What makes rustc count edges, and tells crates that they are being fuzzed.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table --cfg fuzzing";

/// An input takes longer only if something is wrong.
const LONGEST_S: u32 = 20;

/// A fuzz target.
struct Target {
    /// The crate's folder.
    home: PathBuf,
    name: String,
}

/// All of them, by crate and name.
fn all() -> Result<Vec<Target>, String> {
    let mut targets = Vec::new();
    for home in folder(&root().join("crates"))? {
        let bodies = home.join("fuzz").join("fuzz_targets");
        if bodies.exists() {
            let sources = folder(&bodies)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
            let names = sources.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
            targets.extend(names.map(|name| Target { home: home.clone(), name }));
        }
    }
    if targets.is_empty() { Err("there is no fuzz target in crates/*/fuzz".to_owned()) } else { Ok(targets) }
}

fn folder(path: &Path) -> Result<Vec<PathBuf>, String> {
    let cannot = |error| format!("{} cannot be read: {error}", path.display());
    let mut paths: Vec<PathBuf> =
        fs::read_dir(path).map_err(cannot)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// Checks that all targets compile, without what counts coverage.
pub(crate) fn build() -> Outcome {
    if let Err(why) = peers::install_for_fuzzing() {
        return Outcome::LeftOut(why);
    }
    let check_all = || -> Result<(), String> {
        let mut homes: Vec<PathBuf> = all()?.into_iter().map(|target| target.home).collect();
        homes.dedup();
        homes.iter().try_for_each(|home| {
            let mut check = cargo(&["check", "--quiet"]);
            check.current_dir(home.join("fuzz")).env("CARGO_TARGET_DIR", target().join("xtask").join("fuzz-check"));
            run(check)
        })
    };
    check_all().into()
}

/// Runs the named targets (all, if no name is given) for `minutes` each, and minimises their corpora together with
/// the inputs that they find.
pub(crate) fn fuzz(name: Option<&str>, minutes: u32) -> Result<(), String> {
    peers::install_for_fuzzing()?;
    let targets = all()?;
    let known: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    if let Some(name) = name.filter(|name| !known.contains(name)) {
        return Err(format!("there is no fuzz target {name}, only: {}", known.join(", ")));
    }
    targets.iter().filter(|target| name.is_none_or(|name| target.name == name)).try_for_each(|it| it.run(minutes))
}

impl Target {
    fn run(&self, minutes: u32) -> Result<(), String> {
        let home = target().join("xtask").join("fuzz");
        let crate_name = self.home.file_name().unwrap_or_default();
        let triple = host()?;
        // With a target named, the flags are not those of build scripts and of macros.
        let mut build = cargo(&["build", "--release", "--target", &triple, "--bin", &self.name]);
        build.current_dir(self.home.join("fuzz"));
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
        let mut search =
            command(&program, &[&format!("-max_total_time={}", minutes * 60), &limit, "-print_final_stats=1"]);
        // It ends the directory's name with what it writes there.
        search.arg(format!("-artifact_prefix={}/", failed.display())).arg(&found).arg(&corpus);
        run(search).map_err(|why| format!("{why}: the input is in {}", failed.display()))?;
        // Greedily from all folders, until the empty first one reaches all that the others do.
        let fewest = home.join("fewest").join(crate_name).join(&self.name);
        let cannot = |error: io::Error| format!("{}: {error}", fewest.display());
        if fewest.exists() {
            fs::remove_dir_all(&fewest).map_err(cannot)?;
        }
        fs::create_dir_all(&fewest).map_err(cannot)?;
        let mut merge = command(&program, &["-set_cover_merge=1", "-use_counters=0"]);
        merge.arg(&fewest).arg(&corpus).arg(&found);
        run(merge)?;
        replace(&corpus, &fewest)
    }
}

/// Makes a corpus what is in `fewest`, but keeps the inputs that somebody gave a name.
fn replace(corpus: &Path, fewest: &Path) -> Result<(), String> {
    let cannot = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let read = |path: &Path| fs::read(path).map_err(|error| cannot(path, error));
    let (named, unnamed): (Vec<PathBuf>, Vec<PathBuf>) = folder(corpus)?.into_iter().partition(|path| is_named(path));
    // libFuzzer calls each input it keeps by its hash, named ones too.
    let named = named.iter().map(|path| read(path)).collect::<Result<Vec<_>, String>>()?;
    let kept = folder(fewest)?;
    if kept.is_empty() {
        return Err(format!("{}: no input reaches anything, so the corpus stays", fewest.display()));
    }
    for path in unnamed {
        fs::remove_file(&path).map_err(|error| cannot(&path, error))?;
    }
    for path in kept {
        let bytes = read(&path)?;
        if !named.contains(&bytes) {
            let place = corpus.join(path.file_name().unwrap_or_default());
            fs::write(&place, bytes).map_err(|error| cannot(&place, error))?;
        }
    }
    Ok(())
}

/// Did somebody name this input? A program names it by a hash in hexadecimal.
fn is_named(input: &Path) -> bool {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let is_hash = matches!(name.len(), 16 | 40) && name.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
    !is_hash
}

/// What this machine's programs are built for.
fn host() -> Result<String, String> {
    let said = output_of(command("rustc", &["--version", "--verbose"]))?;
    let triple = said.lines().find_map(|line| line.strip_prefix("host: "));
    triple.map(str::to_owned).ok_or_else(|| format!("rustc does not say what it builds for:\n{said}"))
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
        let error = replace(&corpus, &fewest).unwrap_err();
        assert!(error.contains("the corpus stays"), "{error}");
        assert_eq!(names(&corpus).len(), 3, "nothing is lost");
        write(fewest.join(&new), "new");
        write(fewest.join(twin), "defect");
        replace(&corpus, &fewest).unwrap();
        assert_eq!(names(&corpus), ["a-defect", &new, "deadbeef"]);
        assert_eq!(fs::read_to_string(corpus.join(&new)).unwrap(), "new");
    }

    #[test]
    fn each_target_is_a_program_of_its_crate() {
        for target in all().unwrap() {
            let manifest = fs::read_to_string(target.home.join("fuzz/Cargo.toml")).unwrap();
            assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        }
    }
}
