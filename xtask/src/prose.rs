//! `cargo xtask prose`: checks the language of comments, texts and pages, and the titles of commits.
//!
//! `ratchet.toml` has the number of findings that each part of the tree may have. `--lower` only lowers these numbers.
//! No number may exceed the number of the same part in an earlier commit. The pages of `docs` that are written by hand
//! have a maximum number of words.

mod pages;
mod passage;
mod rules;
mod sentence;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{command, output_of, root};
use passage::{Passage, of_page, of_source};
use rules::{Finding, Rules};

/// Maximum number of allowances in the whole tree.
const ALLOWED_MAX: usize = 30;

/// File with the number of findings that each part of the tree may have.
const RATCHET: &str = "xtask/src/prose/ratchet.toml";

/// Pages in the root folder that are checked.
const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Extensions of the files that are checked.
const SOURCES: [&str; 4] = ["rs", "c", "h", "md"];

/// Findings of one part of the tree, by file.
type Part = BTreeMap<PathBuf, Vec<Finding>>;

/// Checks language and titles. Prints the findings of the parts in `list`. With `lower`, stores lower numbers of
/// findings.
pub(crate) fn run(list: &[String], lower: bool) -> Result<(), String> {
    let rules = Rules::read();
    let (parts, allowed) = check_tree(&rules)?;
    let counts: Counts = parts.iter().map(|(name, part)| (name.clone(), part.values().map(Vec::len).sum())).collect();
    for name in list {
        let part = parts.get(name).ok_or_else(|| {
            let known: Vec<&str> = parts.keys().map(String::as_str).collect();
            format!("{name} is no part of the tree; use one of {}", known.join(", "))
        })?;
        print!("{}", printed(part));
    }
    let cannot = |error: std::io::Error| format!("{RATCHET}: {error}");
    let ratchet = root().join(RATCHET);
    let stored = read_ratchet(&fs::read_to_string(&ratchet).map_err(cannot)?)?;
    if lower {
        return fs::write(&ratchet, lowered(&stored, &counts)).map_err(cannot);
    }
    let mut wrong = compare(&stored, &counts);
    wrong.extend(earlier_ratchets()?.iter().flat_map(|earlier| raised(&stored, earlier)).take(1));
    if allowed > ALLOWED_MAX {
        wrong.push(format!("{allowed} allowances: at most {ALLOWED_MAX} in the whole tree"));
    }
    let words = pages::count()?;
    eprintln!("docs: {} words by hand, at most {}", words.values().sum::<usize>(), pages::WORDS_MAX);
    wrong.extend(pages::excess(&words));
    wrong.extend(titles(&rules)?);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

type Counts = BTreeMap<String, usize>;

fn read_ratchet(text: &str) -> Result<Counts, String> {
    toml::from_str(text).map_err(|error| format!("{RATCHET}: {error}"))
}

/// Returns the text of the ratchet with the new numbers to store. No new number exceeds the stored number.
fn lowered(stored: &Counts, counts: &Counts) -> String {
    let mut text =
        String::from("# Findings of `cargo xtask prose` that are left. Only `--lower` changes them, downwards.\n");
    for (name, &count) in counts {
        let count = stored.get(name).map_or(0, |&stored| stored.min(count));
        if count > 0 {
            let _ = writeln!(text, "\"{name}\" = {count}");
        }
    }
    text
}

/// Compares the numbers of findings with the stored numbers. Returns a line for each difference.
fn compare(stored: &Counts, counts: &Counts) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, &count) in counts {
        let stored = stored.get(name).copied().unwrap_or(0);
        if count > stored {
            let more = format!("`cargo xtask prose --list {name}` prints them");
            wrong.push(format!("{name} has {count} findings: at most {stored}; {more}"));
        } else if count < stored {
            wrong
                .push(format!("{name} has {count} findings, and {stored} are stored: run `cargo xtask prose --lower`"));
        }
    }
    let gone = stored.keys().filter(|name| !counts.contains_key(*name));
    wrong.extend(gone.map(|name| format!("{RATCHET} names {name}, which has no files: remove the line")));
    wrong
}

/// Returns the contents of `ratchet.toml` in all commits of this clone, the newest first.
fn earlier_ratchets() -> Result<Vec<Counts>, String> {
    let commits = output_of(command("git", &["log", "--format=%H", "--diff-filter=AM", "--", RATCHET]))?;
    let of = |commit: &str| read_ratchet(&output_of(command("git", &["show", &format!("{commit}:{RATCHET}")]))?);
    commits.lines().map(of).collect()
}

/// Returns a line for each stored number that exceeds the number of an earlier ratchet.
fn raised(stored: &Counts, earlier: &Counts) -> Vec<String> {
    let rises = stored.iter().filter_map(|(name, &count)| {
        let before = earlier.get(name).copied().unwrap_or(0);
        (count > before).then(|| format!("{RATCHET} allows {name} {count} findings, an earlier commit only {before}"))
    });
    rises.collect()
}

fn printed(part: &Part) -> String {
    let mut text = String::new();
    for (file, findings) in part {
        for Finding { line, what } in findings {
            let _ = writeln!(text, "{}:{line}: {what}", file.display());
        }
    }
    text
}

/// Checks all files. Returns the findings of each part, and the number of allowances.
fn check_tree(rules: &Rules) -> Result<(BTreeMap<String, Part>, usize), String> {
    let (mut parts, mut allowed) = (BTreeMap::<String, Part>::new(), 0);
    for file in output_of(command("git", &["ls-files"]))?.lines().map(PathBuf::from) {
        let Some(name) = part_of(&file).filter(|_| is_read(&file)) else { continue };
        let text = fs::read_to_string(root().join(&file)).map_err(|error| format!("{}: {error}", file.display()))?;
        let findings = rules.check(&passages(&file, &text));
        allowed += findings.allowed;
        parts.entry(name).or_default().insert(file, findings.all);
    }
    Ok((parts, allowed))
}

/// Returns the name of the part of the tree that a file belongs to: a crate, `xtask`, `docs`, `docs/internals`, a page.
fn part_of(file: &Path) -> Option<String> {
    let mut names = file.iter().filter_map(|name| name.to_str());
    let first = names.next()?;
    match first {
        "crates" => names.nth(1).map(str::to_owned),
        "docs" if names.next() == Some("internals") => Some("docs/internals".to_owned()),
        "xtask" | "docs" => Some(first.to_owned()),
        page => PAGES.contains(&page).then(|| page.to_owned()),
    }
}

/// Returns whether the text of a file is checked. Generated files are not checked.
fn is_read(file: &Path) -> bool {
    let is = |name: &str| file.file_name().is_some_and(|found| found == name);
    let is_layout = file.starts_with("crates/rnic/ibverbs-sys") && (is("bindings.rs") || is("layout.rs"));
    let is_generated = is_layout || file == Path::new("docs/internals/errors.md");
    file.extension().is_some_and(|extension| SOURCES.iter().any(|known| extension == *known)) && !is_generated
}

/// Returns the passages of a file that are checked.
fn passages(file: &Path, text: &str) -> Vec<Passage> {
    let is = |extension: &str| file.extension().is_some_and(|found| found == extension);
    if is("md") {
        return of_page(text);
    }
    let mut passages = of_source(text, is("rs"));
    // All C files are test programs, so their string literals are not checked.
    let tests = if is("rs") { first_line_of_tests(file, text) } else { 0 };
    passages.retain(|passage| passage.kind != passage::Kind::Text || passage.line < tests);
    passages
}

/// Returns the line at which the tests of a file begin.
fn first_line_of_tests(file: &Path, text: &str) -> usize {
    let is_test = |name: &std::ffi::OsStr| matches!(name.to_str(), Some("tests" | "tests.rs" | "examples" | "benches"));
    if file.iter().any(is_test) {
        return 0;
    }
    let lines: Vec<&str> = text.lines().collect();
    let begins = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    lines.windows(2).position(begins).map_or(usize::MAX, |line| line + 1)
}

/// Checks the titles of all commits since the date `titles.since` of the rules.
fn titles(rules: &Rules) -> Result<Vec<String>, String> {
    let since = format!("--since={}", rules.titles.since);
    let log = output_of(command("git", &["log", "--no-merges", "--format=%h %s", &since]))?;
    let wrong = log.lines().filter_map(|line| {
        let (commit, title) = line.split_once(' ')?;
        rules.of_title(title).map(|what| format!("commit {commit}, \"{title}\" {what}"))
    });
    Ok(wrong.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(numbers: &[(&str, usize)]) -> Counts {
        numbers.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn numbers_only_go_down() {
        let stored = counts(&[("wire", 5), ("rnic", 2), ("docs", 1)]);
        let found = counts(&[("wire", 3), ("rnic", 4), ("docs", 0), ("new", 7)]);
        let text = lowered(&stored, &found);
        assert_eq!(read_ratchet(&text), Ok(counts(&[("wire", 3), ("rnic", 2)])), "{text}");
        let wrong = compare(&stored, &found);
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(compare(&found, &found).is_empty());
        assert_eq!(compare(&stored, &counts(&[("wire", 5), ("rnic", 2)])).len(), 1);
    }

    #[test]
    fn numbers_above_an_earlier_commit_are_reported() {
        let earlier = counts(&[("wire", 3), ("rnic", 2)]);
        assert_eq!(raised(&counts(&[("wire", 3), ("rnic", 1)]), &earlier), Vec::<String>::new());
        assert_eq!(raised(&counts(&[("wire", 4), ("docs", 1)]), &earlier).len(), 2);
    }

    #[test]
    fn each_part_of_the_tree_has_its_number() {
        let part = |file: &str| part_of(Path::new(file));
        assert_eq!(part("crates/rnic/wire/src/lib.rs").as_deref(), Some("wire"));
        assert_eq!(part("docs/ci.md").as_deref(), Some("docs"));
        assert_eq!(part("docs/internals/wire.md").as_deref(), Some("docs/internals"));
        assert_eq!(part("README.md").as_deref(), Some("README.md"));
        assert_eq!(part("Cargo.toml"), None);
    }

    #[test]
    fn texts_of_tests_are_no_errors() {
        let source = "#[cfg(test)]\nmod testing;\nfn f() { g(\"nobody\") }\n#[cfg(test)]\nmod tests {\n    const A: &str = \"nobody\";\n}\n";
        let of = |file: &str| passages(Path::new(file), source).len();
        assert_eq!((of("crates/rnic/wire/src/lib.rs"), of("crates/rnic/wire/src/tests.rs")), (1, 0));
    }
}
