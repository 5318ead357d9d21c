//! `cargo xtask fuzz`: the fuzz targets under libFuzzer, on stable Rust.
//!
//! libFuzzer only wants the coverage of the code it drives, which stable code generation options give: 8-bit counters
//! and a table of program counters. There is no sanitizer. A target is `crates/CRATE/fuzz/fuzz_targets/TARGET.rs`, and
//! its corpus `crates/CRATE/tests/corpus/TARGET`. What a run finds is kept in the target directory, and the inputs of
//! it that reach more code than the corpus does are added to that.

use std::fs;
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
            let names = folder(&bodies)?.into_iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
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

/// Runs the targets of this name (all, if none is given), each for so many minutes, and adds to their corpora.
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
        // Only what reaches more than the corpus does already.
        let mut merge = command(&program, &["-merge=1", "-use_counters=0"]);
        merge.arg(&corpus).arg(&found);
        run(merge)
    }
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
    fn each_target_is_a_program_of_its_crate() {
        for target in all().unwrap() {
            let manifest = fs::read_to_string(target.home.join("fuzz/Cargo.toml")).unwrap();
            assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        }
    }
}
