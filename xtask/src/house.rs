//! `cargo xtask house`: the crates and the dependencies between them (arrows), circular uses between modules (circles),
//! and long files.
//!
//! `house.toml` has the violations that existed when the rules began. `--lower` only removes entries from this file.

mod crates;
mod modules;

use std::collections::BTreeSet;
use std::fs;

use serde::{Deserialize, Serialize};

use crate::shell::{command, output_of, root};

/// File with the violations that are allowed until their crates are rebuilt.
const ALLOWED: &str = "xtask/src/house/house.toml";

/// Maximum number of lines of a source file.
const LINES_MAX: usize = 600;

/// The page with the drawing of the crates.
const PAGE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- crates: `cargo xtask house --write` -->\n";
const END: &str = "<!-- end of crates -->\n";

/// Violations of the rules, each in a line.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Violations {
    /// Dependencies on a crate of a higher floor.
    up: BTreeSet<String>,
    /// Circles of modules in one crate, which use each other.
    circles: BTreeSet<String>,
    /// Files with more than [`LINES_MAX`] lines.
    long_files: BTreeSet<String>,
}

impl Violations {
    fn lists(&self) -> [(&'static str, &BTreeSet<String>); 3] {
        [
            ("an arrow that runs up", &self.up),
            ("a circle between modules", &self.circles),
            ("a file of more than 600 lines", &self.long_files),
        ]
    }

    /// Returns the violations in `found` that `self` allows.
    fn allowed(&self, found: &Self) -> Self {
        let is_allowed = |circle: &&String| self.circles.iter().any(|allowed| is_part(circle, allowed));
        Self {
            up: &self.up & &found.up,
            circles: found.circles.iter().filter(is_allowed).cloned().collect(),
            long_files: &self.long_files & &found.long_files,
        }
    }
}

/// Returns whether all modules of a circle belong to the circle `of`.
fn is_part(circle: &str, of: &str) -> bool {
    let modules = |text: &str| -> Option<(String, BTreeSet<String>)> {
        let (name, list) = text.split_once(": ")?;
        Some((name.to_owned(), list.split(", ").map(str::to_owned).collect()))
    };
    let (Some((name, part)), Some((of_name, whole))) = (modules(circle), modules(of)) else { return false };
    name == of_name && part.is_subset(&whole)
}

/// Options of `cargo xtask house`.
#[derive(Debug, Default, clap::Parser)]
pub(crate) struct Options {
    /// Removes violations that do not exist any more from the list of allowed ones.
    #[arg(long)]
    lower: bool,
    /// Writes the drawing of the crates into ARCHITECTURE.md.
    #[arg(long)]
    write: bool,
}

/// Prints the crates and their violations. Fails if there are violations that are not allowed, if allowed violations no
/// longer exist, or if the drawing is out of date.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let house = crates::read()?;
    let drawing = house.drawing();
    print!("{drawing}");
    let found = violations(&house)?;
    for (what, list) in found.lists() {
        for entry in list {
            println!("{what}: {entry}");
        }
    }
    let cannot = |file: &str, error: &dyn std::fmt::Display| format!("{file}: {error}");
    let read = |file: &str| fs::read_to_string(root().join(file)).map_err(|error| cannot(file, &error));
    let write = |file: &str, text: &str| fs::write(root().join(file), text).map_err(|error| cannot(file, &error));
    let allowed: Violations = toml::from_str(&read(ALLOWED)?).map_err(|error| cannot(ALLOWED, &error))?;
    if options.lower {
        let left = toml::to_string_pretty(&allowed.allowed(&found)).map_err(|error| cannot(ALLOWED, &error))?;
        write(
            ALLOWED,
            &format!("# Violations of `cargo xtask house` that are left. Only `--lower` changes them.\n{left}"),
        )?;
    }
    let page = read(PAGE)?;
    let drawn = with_drawing(&page, &drawing)?;
    if options.write {
        write(PAGE, &drawn)?;
    }
    let mut wrong = compare(&allowed, &found);
    if !options.write && drawn != page {
        wrong.push(format!("the drawing of the crates in {PAGE} is out of date: run `cargo xtask house --write`"));
    }
    if options.lower || wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn violations(house: &crates::House) -> Result<Violations, String> {
    let mut found = Violations { up: house.up(), ..Violations::default() };
    for (name, source) in house.sources() {
        let circles = modules::circles(&source)?;
        found.circles.extend(circles.into_iter().map(|circle| format!("{name}: {}", circle.join(", "))));
    }
    for file in output_of(command("git", &["ls-files", "*.rs"]))?.lines() {
        let text = fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
        if text.lines().count() > LINES_MAX && !is_generated(file) {
            found.long_files.insert(file.to_owned());
        }
    }
    Ok(found)
}

fn is_generated(file: &str) -> bool {
    file.contains("ibverbs-sys/") && (file.ends_with("/bindings.rs") || file.ends_with("/layout.rs"))
}

/// Compares the found violations with the allowed violations. Returns a line for each difference.
fn compare(allowed: &Violations, found: &Violations) -> Vec<String> {
    let mut wrong = Vec::new();
    let permitted = allowed.allowed(found);
    for (((what, found), (_, permitted)), (_, allowed)) in
        found.lists().into_iter().zip(permitted.lists()).zip(allowed.lists())
    {
        wrong.extend(found.difference(permitted).map(|entry| format!("new: {what}: {entry}")));
        let gone = allowed.difference(found);
        wrong.extend(gone.map(|entry| format!("gone: {what}: {entry}: run `cargo xtask house --lower`")));
    }
    wrong
}

/// Returns the page with its drawing replaced by `drawing`.
fn with_drawing(page: &str, drawing: &str) -> Result<String, String> {
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| format!("{PAGE} has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("{PAGE} has no line {END}"))?;
    Ok(format!("{before}{BEGIN}\n```text\n{drawing}```\n\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(circles: &[&str]) -> Violations {
        Violations { circles: circles.iter().map(|circle| (*circle).to_owned()).collect(), ..Violations::default() }
    }

    #[test]
    fn new_violations_and_stale_allowances_are_reported() {
        let allowed = with(&["fabric: a, b", "study: c, d"]);
        assert!(compare(&allowed, &allowed).is_empty());
        let wrong = compare(&allowed, &with(&["fabric: a, b", "sim: e, f"]));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("new: a circle between modules: sim: e, f"), "{wrong:?}");
        assert!(wrong[1].starts_with("gone: a circle between modules: study: c, d"), "{wrong:?}");
        assert_eq!(allowed.allowed(&with(&["fabric: a, b", "sim: e, f"])), with(&["fabric: a, b"]));
    }

    #[test]
    fn a_circle_may_shrink_and_not_grow() {
        let allowed = with(&["fabric: a, b, c"]);
        assert_eq!(allowed.allowed(&with(&["fabric: a, b"])), with(&["fabric: a, b"]));
        assert_eq!(compare(&allowed, &with(&["fabric: a, b"])).len(), 1, "the list must be lowered");
        assert!(compare(&allowed, &with(&["fabric: a, b, c, d"]))[0].starts_with("new: "));
        assert!(compare(&allowed, &with(&["sim: a, b"]))[0].starts_with("new: "));
    }

    #[test]
    fn the_drawing_replaces_the_earlier_one() {
        let page = format!("head\n{BEGIN}old\n{END}tail\n");
        let drawn = with_drawing(&page, "new\n").unwrap();
        assert_eq!(drawn, format!("head\n{BEGIN}\n```text\nnew\n```\n\n{END}tail\n"));
        assert_eq!(with_drawing(&drawn, "new\n").as_ref(), Ok(&drawn));
        assert!(with_drawing("no marker", "new\n").is_err());
    }
}
