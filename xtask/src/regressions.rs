//! `cargo xtask regressions`: brings each fixed defect back, one at a time, and checks that the tests for it fail.
//!
//! A stored patch is `regressions/NAME.patch`: header lines, then the output of `git diff`.
//!
//! ```text
//! Defect: a sentence about the effect of the defect
//! Test: cargo test -p CRATE --test BINARY NAME
//! Fails: by hanging        (optional; without this line, a test that does not end is an error)
//! Limit: 20 s              (optional; time limit of a test, 120 s by default)
//! ```
//!
//! There may be several `Test` lines, also of the form `cargo xtask COMMAND`. Each test must fail. Patches are applied
//! to a clone of HEAD, which has a separate target directory.

mod named;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::place::Lock;
use crate::programs::BUILD;
use crate::shell::{command, output_of, root, run, target};

/// Default time limit of a test. A patch may state another limit.
const LIMIT: Duration = Duration::from_secs(120);

/// A stored patch.
#[derive(Debug, PartialEq, Eq)]
struct Patch {
    name: String,
    file: PathBuf,
    defect: String,
    tests: Vec<String>,
    hangs: bool,
    limit: Duration,
}

impl Patch {
    fn read(file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, String> {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let wrong = |why: &str| format!("{}: {why}", file.display());
        let (mut defect, mut tests, mut hangs, mut limit) = (None, Vec::new(), false, LIMIT);
        let is_diff = |line: &&str| line.starts_with("diff ") || line.starts_with("--- ");
        for line in text.lines().take_while(|line| !is_diff(line)).filter(|line| !line.trim().is_empty()) {
            match line.split_once(": ").map(|(key, value)| (key, value.trim())) {
                Some(("Defect", sentence)) => defect = Some(sentence.to_owned()),
                Some(("Test", test)) if test.starts_with("cargo test ") || test.starts_with("cargo xtask ") => {
                    tests.push(test.to_owned());
                }
                Some(("Test", _)) => return Err(wrong("a test must be `cargo test ...` or `cargo xtask ...`")),
                Some(("Fails", "by hanging")) => hangs = true,
                Some(("Limit", time)) => {
                    let seconds = time.strip_suffix(" s").and_then(|number| number.parse().ok());
                    limit =
                        Duration::from_secs(seconds.ok_or_else(|| wrong("a limit must have the form `Limit: 20 s`"))?);
                }
                _ => return Err(wrong(&format!("{line:?} is no header: allowed are Defect, Test, Fails and Limit"))),
            }
        }
        let defect = defect.ok_or_else(|| wrong("the line `Defect: ...` is missing"))?;
        if tests.is_empty() {
            return Err(wrong("the line `Test: ...` is missing"));
        }
        Ok(Self { name, file: file.to_owned(), defect, tests, hangs, limit })
    }

    fn apply(&self, tree: &Path, how: &[&str]) -> Result<(), String> {
        let mut apply = git(tree, &["apply"]);
        apply.args(how).arg(&self.file);
        output_of(apply).map(drop)
    }
}

/// Returns all stored patches, sorted by name.
fn stored() -> Result<Vec<Patch>, String> {
    let folder = root().join("regressions");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{} cannot be read: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "patch"));
    files.sort();
    files.iter().map(|file| Patch::read(file)).collect()
}

/// Checks that each stored patch can be parsed, applies to the current files, and names tests that exist. Runs no test.
pub(crate) fn check() -> Result<(), String> {
    let patches = stored()?;
    if patches.is_empty() {
        return Err("there is no patch in regressions".to_owned());
    }
    let sources = named::Sources::read()?;
    let check = |patch: &Patch| {
        patch.apply(&root(), &["--check"])?;
        match patch.tests.iter().find_map(|test| sources.missing(test)) {
            Some(missing) => Err(format!("{}: there is no test {missing}", patch.file.display())),
            None => Ok(()),
        }
    };
    let wrong: Vec<String> = patches.iter().filter_map(|patch| check(patch).err()).collect();
    eprintln!("{} patches, of which {} do not apply or name no test", patches.len(), wrong.len());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Applies the patches in `names`, or all patches without names, one at a time. Runs the tests of each patch, which
/// must fail.
pub(crate) fn judge(names: &[String]) -> Result<(), String> {
    let mut patches = stored()?;
    if let Some(unknown) = names.iter().find(|name| patches.iter().all(|patch| patch.name != **name)) {
        let known: Vec<&str> = patches.iter().map(|patch| patch.name.as_str()).collect();
        return Err(format!("regressions has no {unknown}.patch; use one of {}", known.join(", ")));
    }
    patches.retain(|patch| names.is_empty() || names.contains(&patch.name));
    if patches.is_empty() {
        return Err("there is no patch in regressions".to_owned());
    }
    let checkout = Checkout::open()?;
    let broken = checkout.run_without_patches(&patches)?;
    let mut rows = Vec::new();
    for patch in &patches {
        eprintln!("\n== {}: {}", patch.name, patch.defect);
        let start = Instant::now();
        let verdict = checkout.judge(patch, &broken);
        eprintln!("{}", verdict.as_ref().map_or_else(|why| format!("WRONG: {why}"), Clone::clone));
        rows.push((patch, start.elapsed(), verdict));
    }
    let width = patches.iter().map(|patch| patch.name.len()).max().unwrap_or_default();
    println!("{:<width$} {:>8}  verdict", "patch", "time");
    for (patch, took, verdict) in &rows {
        let text = match verdict {
            Ok(how) => how.clone(),
            Err(why) => format!("WRONG: {}", why.lines().next().unwrap_or_default()),
        };
        println!("{:<width$} {:>6.1} s  {text}", patch.name, took.as_secs_f64());
    }
    let wrong = rows.iter().filter(|(_, _, verdict)| verdict.is_err()).count();
    println!("patches: {} fail their tests as they must, {wrong} do not", rows.len() - wrong);
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {} patches are wrong", rows.len())) }
}

/// A clone of HEAD, its target directory, and the logs of its tests.
pub(crate) struct Checkout {
    _alone: Lock,
    tree: PathBuf,
    built: PathBuf,
    logs: PathBuf,
}

impl Checkout {
    /// Creates the clone, or updates it to HEAD.
    pub(crate) fn open() -> Result<Self, String> {
        let home = target().join("xtask").join("regressions");
        let alone = Lock::take(&home.join("lock"), "the clone that patches are applied to")?;
        let checkout =
            Self { _alone: alone, tree: home.join("tree"), built: home.join("target"), logs: home.join("logs") };
        fs::create_dir_all(&checkout.logs).map_err(|error| format!("{}: {error}", checkout.logs.display()))?;
        let own = root();
        if !output_of(git(&own, &["status", "--porcelain", "--untracked-files=no"]))?.is_empty() {
            eprintln!("uncommitted changes are ignored: patches are applied to HEAD");
        }
        let head = output_of(git(&own, &["rev-parse", "HEAD"]))?;
        check_out(&checkout.tree, head.trim())?;
        Ok(checkout)
    }

    /// Runs the tests of all patches without any patch. Returns the tests that do not pass, each with a reason. Does
    /// not repeat tests that have passed with the same files before.
    fn run_without_patches(&self, patches: &[Patch]) -> Result<Vec<(String, String)>, String> {
        let state = output_of(git(&self.tree, &["rev-parse", "HEAD^{tree}"]))?;
        let remembered = self.logs.with_file_name("passed");
        let mut passed: BTreeSet<String> = fs::read_to_string(&remembered)
            .ok()
            .and_then(|text| text.strip_prefix(&state).map(|rest| rest.lines().map(str::to_owned).collect()))
            .unwrap_or_default();
        let mut broken = Vec::new();
        let mut seen = BTreeSet::new();
        for (patch, test) in patches.iter().flat_map(|patch| patch.tests.iter().map(move |test| (patch, test))) {
            if passed.contains(test) || !seen.insert(test) {
                continue;
            }
            eprintln!("\n== without patches: {test}");
            match self.run_test(test, patch.limit, "without-patches") {
                Ok(Ended::Passed) => {
                    passed.insert(test.clone());
                }
                Ok(other) => broken.push((test.clone(), format!("{other} without the patch, too"))),
                Err(why) => broken.push((test.clone(), format!("without the patch: {why}"))),
            }
        }
        let lines: String = passed.iter().map(|test| format!("{test}\n")).collect();
        fs::write(&remembered, state + &lines).map_err(|error| format!("{}: {error}", remembered.display()))?;
        Ok(broken)
    }

    /// Returns how the tests fail with the patch. Returns an error if a test does not fail as the patch states.
    fn judge(&self, patch: &Patch, broken: &[(String, String)]) -> Result<String, String> {
        if let Some((test, why)) = broken.iter().find(|(test, _)| patch.tests.contains(test)) {
            return Err(format!("`{test}` {why}"));
        }
        patch.apply(&self.tree, &[]).map_err(|why| format!("the patch does not apply: {why}"))?;
        let verdicts: Result<Vec<String>, String> = patch.tests.iter().map(|test| self.fails(patch, test)).collect();
        // The next patch needs a clean tree, so an error of `clean` comes before the verdict.
        self.clean()?;
        verdicts.map(|verdicts| verdicts.join("; "))
    }

    /// Returns the clone's folder.
    pub(crate) fn tree(&self) -> &Path {
        &self.tree
    }

    /// Resets all files of the clone to HEAD.
    pub(crate) fn clean(&self) -> Result<(), String> {
        run(git(&self.tree, &["checkout", "--quiet", "--force", "HEAD", "--", "."]))?;
        run(git(&self.tree, &["clean", "--quiet", "--force", "-d", "-x"]))
    }

    fn fails(&self, patch: &Patch, test: &str) -> Result<String, String> {
        match self.run_test(test, patch.limit, &patch.name)? {
            Ended::Passed => Err(format!("`{test}` passes although the defect is back")),
            Ended::Unbuilt => Err(format!("`{test}` does not compile with the patch")),
            Ended::Hung if patch.hangs => Ok("hangs".to_owned()),
            Ended::Hung => Err(format!(
                "`{test}` does not end within {} s (if the defect makes the test hang, add `Fails: by hanging`)",
                patch.limit.as_secs()
            )),
            failed => Ok(failed.to_string()),
        }
    }

    /// Builds and runs a test. Returns an error if no test ran.
    pub(crate) fn run_test(&self, test: &str, limit: Duration, log: &str) -> Result<Ended, String> {
        let words: Vec<&str> = test.split_whitespace().skip(1).collect();
        let log = self.logs.join(format!("{log}.log"));
        let is_xtask = words.first() == Some(&"xtask");
        let builds = if is_xtask {
            // Build xtask, and the files that most commands of xtask need.
            vec![vec!["build", "--quiet", "--package", "xtask"], [&["--quiet"], BUILD].concat()]
        } else {
            vec![[&words[..1], &["--no-run", "--quiet"], &words[1..]].concat()]
        };
        for build in builds {
            eprintln!("+ cargo {}", build.join(" "));
            // The build always ends, so it needs no time limit.
            let built = self.cargo(&build, &log, None)?;
            if !built.is_some_and(|status| status.success()) {
                eprintln!("the test does not compile: see {}", log.display());
                return Ok(Ended::Unbuilt);
            }
        }
        eprintln!("+ {test}");
        let ended = self.cargo(&words, &log, Some(limit))?;
        let said = fs::read(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let Some(status) = ended else { return Ok(Ended::Hung) };
        if is_xtask {
            return Ok(if status.success() { Ended::Passed } else { Ended::Failed });
        }
        Count::of(&String::from_utf8_lossy(&said)).verdict(status.success()).ok_or_else(|| {
            format!(
                "`{test}` ran no test: its filter matches no test, or all tests are ignored (see {})",
                log.display()
            )
        })
    }

    /// Runs cargo in the clone and writes its output to a file. Returns `None` if the function killed cargo at the time
    /// limit.
    fn cargo(&self, arguments: &[&str], log: &Path, limit: Option<Duration>) -> Result<Option<ExitStatus>, String> {
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let out = File::create(log).map_err(|error| failed(&log.display().to_string(), error))?;
        let err = out.try_clone().map_err(|error| failed(&log.display().to_string(), error))?;
        let mut cargo = crate::shell::cargo(arguments);
        cargo.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.built).stdout(out).stderr(err);
        // Start a separate process group, so that a kill also reaches the processes of the test.
        let mut child = cargo.process_group(0).spawn().map_err(|error| failed("cargo could not be started", error))?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|error| failed("cargo", error))? {
                return Ok(Some(status));
            }
            if limit.is_some_and(|limit| start.elapsed() > limit) {
                let group = format!("-{}", child.id());
                output_of(command("kill", &["-KILL", "--", &group]))?;
                child.wait().map_err(|error| failed("cargo", error))?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Clones the repository to `tree`, or updates an existing clone, and checks out a commit. Unchanged files keep their
/// modification times, so cargo builds only changed crates.
pub(crate) fn check_out(tree: &Path, commit: &str) -> Result<(), String> {
    let own = root();
    if !tree.join(".git").exists() {
        let mut clone = git(&own, &["clone", "--quiet", "--shared", "--no-checkout"]);
        clone.arg(&own).arg(tree);
        run(clone)?;
    }
    // The clone shares the objects of this repository, so it has every commit.
    run(git(tree, &["checkout", "--quiet", "--force", "--detach", commit]))?;
    run(git(tree, &["clean", "--quiet", "--force", "-d", "-x"]))
}

pub(crate) fn git(directory: &Path, arguments: &[&str]) -> Command {
    let mut git = command("git", arguments);
    git.current_dir(directory);
    git
}

/// Outcome of a test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Passed,
    Failed,
    /// The process died before it reported a result.
    Died,
    Hung,
    /// The test does not compile.
    Unbuilt,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Passed => "passes",
            Self::Failed => "fails",
            Self::Died => "dies",
            Self::Hung => "does not end",
            Self::Unbuilt => "does not compile",
        })
    }
}

/// Numbers of tests that the test programs of `cargo test` report.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    started: u64,
    passed: u64,
    failed: u64,
}

impl Count {
    fn of(said: &str) -> Self {
        let mut count = Self::default();
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["running", number, "test" | "tests"] => count.started += number.parse().unwrap_or(0),
                ["test", "result:", _, passed, "passed;", failed, "failed;", ..] => {
                    count.passed += passed.parse().unwrap_or(0);
                    count.failed += failed.parse().unwrap_or(0);
                }
                _ => {}
            }
        }
        count
    }

    /// Returns the outcome, or `None` if no test ran.
    fn verdict(&self, succeeded: bool) -> Option<Ended> {
        match (succeeded, self.failed, self.passed) {
            (false, 1.., _) => Some(Ended::Failed),
            // A program that started a test and reports no result has died in the test.
            (false, 0, _) if self.started > self.passed => Some(Ended::Died),
            (true, 0, 1..) => Some(Ended::Passed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Patch, String> {
        Patch::parse(Path::new("regressions/name.patch"), text)
    }

    #[test]
    fn a_patch_header_names_its_defect_and_tests() {
        let text = "Defect: It hangs.\nTest: cargo test -p a b\nTest: cargo xtask c\nFails: by hanging\nLimit: 7 s\n\n\
                    diff --git a/x b/x\nDefect: not a header any more\n";
        let patch = parse(text).unwrap();
        assert_eq!((patch.name.as_str(), patch.defect.as_str()), ("name", "It hangs."));
        assert_eq!(patch.tests, ["cargo test -p a b", "cargo xtask c"]);
        assert!(patch.hangs);
        assert_eq!(patch.limit, Duration::from_secs(7));
    }

    #[test]
    fn a_patch_without_defect_or_test_is_rejected() {
        assert!(parse("Test: cargo test -p a\n").unwrap_err().contains("Defect"));
        assert!(parse("Defect: It hangs.\ndiff --git a/x b/x\n").unwrap_err().contains("Test"));
        assert!(parse("Defect: It hangs.\nTest: rm -r /\n").is_err());
        assert!(parse("Defect: It hangs.\nTets: cargo test\n").unwrap_err().contains("Tets"));
        assert!(parse("Defect: It hangs.\nTest: cargo test a\nLimit: 7\n").is_err());
    }

    #[test]
    fn only_a_test_that_ran_fails_or_passes() {
        fn verdict(said: &str, succeeded: bool) -> Option<Ended> {
            Count::of(said).verdict(succeeded)
        }
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        let one = "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        let bad = "running 1 test\ntest a ... FAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        let skipped = "running 1 test\ntest a ... ignored\n\ntest result: ok. 0 passed; 0 failed; 1 ignored\n";
        assert_eq!(verdict(none, true), None);
        assert_eq!(verdict(skipped, true), None);
        assert_eq!(verdict("error: could not compile `a`", false), None);
        assert_eq!(verdict("error: no test target named `a`", false), None);
        assert_eq!(verdict(one, true), Some(Ended::Passed));
        assert_eq!(verdict(&(none.to_owned() + one), true), Some(Ended::Passed));
        assert_eq!(verdict(bad, false), Some(Ended::Failed));
        assert_eq!(verdict(&(one.to_owned() + bad), false), Some(Ended::Failed));
        assert_eq!(verdict("running 1 test\nprocess didn't exit successfully (signal: 6)", false), Some(Ended::Died));
    }
}
