//! `cargo xtask deep`: tools that find defects which tests miss. They take seconds to hours, so `test` does not run
//! them.

mod mutants;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::shell::{cargo, command, output_of, run, run_tests, target};
use crate::{network, peers, programs};

/// Options of `cargo xtask deep`.
#[derive(Debug, Parser)]
pub(crate) struct Deep {
    /// Parts to run [default: all]
    #[arg(value_enum)]
    parts: Vec<Part>,
    #[command(flatten)]
    mutants: mutants::Options,
}

/// A tool, with the code that it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// AddressSanitizer, over the tests of verbs, exchange and preload.
    Address,
    /// Valgrind's memcheck, over C programs under the library.
    Memcheck,
    /// Loom, over code that passes data between threads and processes.
    Loom,
    /// ThreadSanitizer, over the tests of fabric.
    Thread,
    /// Licences, bans and sources of dependencies.
    Deny,
    /// Mutants of rnic, exchange, fabric's shared memory and farmem.
    Mutants,
}

/// Target of builds with sanitizers. With an explicit target, cargo builds build scripts and macros without sanitizers.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Crates whose tests run under AddressSanitizer.
const ADDRESS: &[&str] = &["doorbell-verbs", "doorbell-exchange", "doorbell-preload"];

/// Crates, and filters of the tests of each crate that run under loom. docs/deep.md describes these tests.
const LOOM: &[(&str, &[&str])] = &[
    ("doorbell-fabric", &["flush::", "gate::", "ring::", "wake::"]),
    ("doorbell-exchange", &["pool::", "reports::", "ring::"]),
    // The module `protocol` also has a module `shared`.
    ("doorbell-rnic", &["completion::", "shared::", "--skip", "protocol::"]),
    ("doorbell-counters", &["sequence::"]),
    ("doorbell-verbs", &["sleepers::"]),
];

impl Deep {
    /// Runs the chosen parts, or all parts. If a part fails, the remaining parts still run.
    pub(crate) fn run(&self) -> Result<(), String> {
        peers::install();
        let parts = if self.parts.is_empty() { Part::value_variants() } else { &self.parts };
        let mut failures = Vec::new();
        for part in parts {
            eprintln!("\n== {part:?}");
            let outcome = match part {
                Part::Address => address(),
                Part::Memcheck => memcheck(),
                Part::Loom => loom(),
                Part::Thread => thread(),
                Part::Deny => deny(),
                Part::Mutants => mutants::run(&self.mutants),
            };
            if let Err(why) = outcome {
                eprintln!("FAILED: {why}");
                failures.push(format!("{part:?}: {why}"));
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
    }
}

/// Returns the command for tests of a crate, built with a sanitizer. A stable compiler accepts sanitizers only with
/// `RUSTC_BOOTSTRAP`.
fn sanitized(kind: &str, package: &str, more: &[&str]) -> std::process::Command {
    let mut test = cargo(&["test", "--target", TARGET, "--no-fail-fast", "--package", package]);
    test.args(["--lib", "--bins", "--tests"]);
    test.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", [&[kind][..], more].concat().join(" "));
    test.env("CARGO_TARGET_DIR", target().join("xtask").join("deep").join("sanitized"));
    test
}

fn address() -> Result<(), String> {
    let of = |package: &&str| {
        let mut test = sanitized("-Zsanitizer=address", package, &[]);
        // Do not detect leaks. Statics of the library live as long as the process, and programs may end while threads
        // run code of the library.
        test.env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1:allow_user_segv_handler=1");
        network::apart(|| run_tests(test))
    };
    joined(ADDRESS.iter().map(of))
}

/// Runs ThreadSanitizer if the toolchain has the sources of the standard library. Without these sources, the atomics of
/// the standard library are not instrumented.
fn thread() -> Result<(), String> {
    let sysroot = output_of(command("rustc", &["--print", "sysroot"]))?;
    let sources = PathBuf::from(sysroot.trim()).join("lib/rustlib/src/rust/library/std");
    if !sources.exists() {
        eprintln!("LEFT OUT: the toolchain has no sources of the standard library (`rustup component add rust-src`)");
        return Ok(());
    }
    let mut test = sanitized("-Zsanitizer=thread", "doorbell-fabric", &[]);
    test.args(["-Z", "build-std"]);
    network::apart(|| run_tests(test))
}

fn memcheck() -> Result<(), String> {
    peers::install_for_counting()?;
    programs::build()?;
    network::apart(programs::under_memcheck)
}

fn loom() -> Result<(), String> {
    for &(package, filters) in LOOM {
        run_tests(cargo(&[&["test", "--package", package, "--test", "suite", "--"], filters].concat()))?;
    }
    Ok(())
}

fn deny() -> Result<(), String> {
    let deny = peers::tool("cargo-deny", &[])?;
    run(command(deny, &["check", "licenses", "bans", "sources"]))
}

fn joined(outcomes: impl Iterator<Item = Result<(), String>>) -> Result<(), String> {
    let failures: Vec<String> = outcomes.filter_map(Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::shell::root;

    fn page() -> String {
        fs::read_to_string(root().join("docs/deep.md")).unwrap()
    }

    /// Returns the folders of all crates, with the name of each folder.
    fn crates() -> Vec<(String, PathBuf)> {
        let folders =
            |of: &Path| fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let all = folders(&root().join("crates")).flat_map(|floor| folders(&floor).collect::<Vec<_>>());
        all.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path)).collect()
    }

    /// Returns the package and the filter of each file of tests that uses loom.
    fn models() -> BTreeSet<(String, String)> {
        let files = |(name, path): (String, PathBuf)| {
            let files = fs::read_dir(path.join("tests/suite")).into_iter().flatten().flatten();
            let files = files.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "rs"));
            let uses_loom = |path: &PathBuf| fs::read_to_string(path).unwrap().contains("loom::");
            let files = files.filter(uses_loom).map(move |path| {
                (format!("doorbell-{name}"), format!("{}::", path.file_stem().unwrap().to_string_lossy()))
            });
            files.collect::<Vec<_>>()
        };
        crates().into_iter().flat_map(files).collect()
    }

    /// A filter that matches no test would let the part pass.
    #[test]
    fn the_part_loom_runs_each_model_and_the_page_lists_it() {
        let of = |(package, filters): &(&str, &[&str])| {
            let filters = filters.iter().take_while(|filter| !filter.starts_with("--"));
            filters.map(|filter| ((*package).to_owned(), (*filter).to_owned())).collect::<Vec<_>>()
        };
        let run: BTreeSet<_> = LOOM.iter().flat_map(of).collect();
        assert_eq!(run, models());
        for (package, filter) in models() {
            let (package, file) = (package.trim_start_matches("doorbell-"), filter.trim_end_matches("::"));
            let model = format!("| `{package}/tests/suite/{file}.rs` |");
            assert!(page().contains(&model), "docs/deep.md lacks {model}");
        }
    }

    #[test]
    fn the_page_has_each_part_and_names_only_files_that_exist() {
        let page = page();
        for part in Part::value_variants() {
            let row = format!("\n| `{}` |", part.to_possible_value().unwrap().get_name());
            assert!(page.contains(&row), "docs/deep.md has no row of {part:?}");
        }
        let crates = crates();
        for file in page.split('`').skip(1).step_by(2).filter(|word| word.contains('/') && !word.contains(' ')) {
            let (name, rest) = file.split_once('/').unwrap();
            let is_in_crate = |(own, path): &(String, PathBuf)| own == name && path.join(rest).exists();
            assert!(root().join(file).exists() || crates.iter().any(is_in_crate), "docs/deep.md names {file}");
        }
    }
}
