//! Tests of Rust crates that call verbs, from crates.io and without any change. Cargo starts each test by
//! `doorbell run`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::{PATIENCE, doorbell, start};
use crate::place::Lock;
use crate::shell::{cargo, output_of, run, target};
use crate::test::StepEnd;
use crate::{network, peers};

/// Tests of a crate.
struct Suite {
    name: &'static str,
    version: &'static str,
    runs: &'static [Run],
}

/// One run of tests.
struct Run {
    /// Options of `doorbell run`.
    options: &'static [&'static str],
    /// Targets of cargo that have the tests.
    targets: &'static [&'static str],
    /// Minimum number of tests that must pass.
    least: usize,
    /// Maximum number of attempts.
    attempts: usize,
}

/// Options of `doorbell run` that drop some packets.
const LOSS: &[&str] = &["--fault", "drop=0.1,seed=3"];

/// Crates whose tests run.
const SUITES: &[Suite] = &[Suite {
    name: "sideway",
    version: "0.4.3",
    runs: &[
        // The target `compiletest` is left out, because it only tests which programs the compiler rejects.
        Run {
            options: &[],
            targets: &["--lib", "--test=test_atomic", "--test=test_cq", "--test=test_mr_and_cq", "--test=test_qp"],
            least: 64,
            attempts: 1,
        },
        Run { options: LOSS, targets: &["--test=test_atomic"], least: 2, attempts: 1 },
        // These tests wait only 10 ms for a completion, so they may fail on a busy machine, and would fail with loss.
        Run { options: &[], targets: &["--test=test_post_send"], least: 4, attempts: 10 },
    ],
}];

/// Builds and runs the tests of all crates. The step is left out if the packages for the build cannot be installed.
pub(crate) fn all() -> StepEnd {
    match peers::install_for_crates() {
        Ok(()) => SUITES.iter().try_for_each(Suite::run).into(),
        Err(why) => StepEnd::LeftOut(why),
    }
}

impl Suite {
    fn run(&self) -> Result<(), String> {
        let folder = target().join("xtask").join("crates");
        let _alone = Lock::take(&folder.join("lock"), "crates of crates.io")?;
        let manifest = network::outside(|| self.download(&folder))?;
        let tests = |arguments: &[&str], targets: &[&str]| -> Command {
            let mut tests = cargo(&["test", "--locked", "--manifest-path", &manifest]);
            tests.args(arguments).args(targets).env("CARGO_TARGET_DIR", folder.join("target"));
            tests
        };
        let doorbell = doorbell().to_string_lossy().into_owned();
        for Run { options, targets, least, attempts } in self.runs {
            network::outside(|| run(tests(&["--no-run"], targets)))?;
            let begun = Instant::now();
            let words = [&[doorbell.as_str(), "run"][..], *options, &["--"][..]].concat();
            // A list of strings without control characters has the same form in JSON and in TOML.
            let runner = serde_json::to_string(&words).map_err(|error| error.to_string())?;
            let config = format!("target.'cfg(unix)'.runner = {runner}");
            let attempt =
                || start(tests(&["--offline", "--no-fail-fast", "--config", &config], targets))?.finish(PATIENCE);
            let mut said = attempt();
            for _ in 1..*attempts {
                if said.is_ok() {
                    break;
                }
                said = attempt();
            }
            let said = said?;
            let passed = passed(&said);
            if passed < *least {
                return Err(format!("{passed} tests of {} pass, must be at least {least}:\n{said}", self.name));
            }
            eprintln!("{:>5.1} s  {passed} tests of {}, {options:?}", begun.elapsed().as_secs_f64(), self.name);
        }
        Ok(())
    }

    /// Downloads the crate, if it is missing, and returns the path of its manifest. The crate is a dependency of a
    /// package in `folder`, which has no code.
    fn download(&self, folder: &Path) -> Result<String, String> {
        let own = folder.join(self.name);
        let manifest = own.join("Cargo.toml");
        let text = format!(
            "[package]\nname = \"download-{name}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n\
             [lib]\npath = \"lib.rs\"\n\n[workspace]\n\n[dependencies]\n{name} = \"={version}\"\n",
            name = self.name,
            version = self.version
        );
        let failed = |error: std::io::Error| format!("{}: {error}", own.display());
        fs::create_dir_all(&own).map_err(failed)?;
        fs::write(own.join("lib.rs"), "").and_then(|()| fs::write(&manifest, text)).map_err(failed)?;
        let listed =
            output_of(cargo(&["metadata", "--format-version", "1", "--manifest-path", &manifest.to_string_lossy()]))?;
        self.manifest_in(&listed)
    }

    /// Returns the path of the crate's manifest from the output of `cargo metadata`.
    fn manifest_in(&self, listed: &str) -> Result<String, String> {
        let listed: serde_json::Value = serde_json::from_str(listed).map_err(|error| error.to_string())?;
        let packages = listed["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let own = packages.iter().find(|package| package["name"] == self.name && package["version"] == self.version);
        let manifest = own.and_then(|own| own["manifest_path"].as_str());
        manifest.map(str::to_owned).ok_or_else(|| format!("cargo lists no {} {}", self.name, self.version))
    }
}

/// Returns the number of passed tests, from lines such as `test result: ok. 3 passed; 0 failed; ...`.
fn passed(said: &str) -> usize {
    let counts = said.lines().filter_map(|line| {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        counts.split_once(" passed")?.0.parse::<usize>().ok()
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_of_all_programs_count() {
        let said = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 1 ignored; finished in 0.00s\n\n\
                    test result: FAILED. 11 passed; 1 failed; 0 ignored\n";
        assert_eq!(passed(said), 13);
        assert_eq!(passed(""), 0);
    }

    #[test]
    fn the_manifest_is_the_one_of_the_named_version() {
        let package = |version: &str| {
            let path = format!("/{version}/Cargo.toml");
            serde_json::json!({ "name": "sideway", "version": version, "manifest_path": path })
        };
        let listed = serde_json::json!({ "packages": [package("0.1.0"), package(SUITES[0].version)] });
        let expected = format!("/{}/Cargo.toml", SUITES[0].version);
        assert_eq!(SUITES[0].manifest_in(&listed.to_string()), Ok(expected));
        let missing = SUITES[0].manifest_in("{\"packages\": []}").unwrap_err();
        assert!(missing.contains("sideway 0.4.3"), "{missing}");
    }
}
