//! Search for the tests that stored patches name. A renamed test would otherwise be missed only when all patches run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{command, output_of, root};

/// Folder of the suites from which other crates generate tests.
const SUITES: &str = "crates/testing";

/// Source files of the repository.
pub(super) struct Sources(Vec<(PathBuf, String)>);

impl Sources {
    pub(super) fn read() -> Result<Self, String> {
        let listed = output_of(command("git", &["ls-files", "*.rs"]))?;
        let read = |path: &str| Some((PathBuf::from(path), fs::read_to_string(root().join(path)).ok()?));
        Ok(Self(listed.lines().filter_map(read).collect()))
    }

    /// Returns the filter of a `cargo test` command if no function matches it. A function matches if it has the last
    /// name of the filter, and its modules have the other names. Other commands have no filter.
    pub(super) fn missing<'a>(&self, test: &'a str) -> Option<&'a str> {
        let mut words = test.strip_prefix("cargo test ")?.split_whitespace();
        let mut filter = None;
        while let Some(word) = words.next() {
            match word {
                "-p" | "--package" | "--test" | "--features" => drop(words.next()),
                word if word.starts_with('-') => {}
                word => filter = Some(word),
            }
        }
        let filter = filter?;
        let segments: Vec<&str> = filter.split("::").collect();
        let (name, modules) = segments.split_last()?;
        let is_in = |(path, text): &(PathBuf, String)| {
            let is_module = |module: &&str| {
                path.starts_with(SUITES) || has_component(path, module) || text.contains(&format!("mod {module}"))
            };
            // A filter may be the beginning of the names of several tests.
            text.contains(&format!("fn {name}")) && modules.iter().all(is_module)
        };
        let is_module_alone = |(path, _): &(PathBuf, String)| has_component(path, name);
        (!self.0.iter().any(|file| is_in(file) || is_module_alone(file))).then_some(filter)
    }
}

fn has_component(path: &Path, name: &str) -> bool {
    path.with_extension("").iter().any(|component| component == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_moved_or_was_renamed_is_missing() {
        let file = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        let sources = Sources(vec![
            file("crates/rnic/rnic/src/paths/tests.rs", "fn a_path_has_no_name() {}"),
            file("crates/testing/suite/src/events.rs", "pub fn events_arrive() {}"),
            file("crates/rnic/rnic/src/values.rs", "mod tests { fn a_value_stays() {} }"),
        ]);
        for found in [
            "cargo test -p doorbell-rnic --lib paths::tests::a_path_has_no_name",
            "cargo test -p doorbell-rnic --test all udp::events_arrive",
            "cargo test -p doorbell-rnic values::tests::a_value_stays -- --exact",
            "cargo test -p doorbell-rnic --lib paths",
            "cargo test -p doorbell-rnic --test all",
            "cargo xtask programs promises",
        ] {
            assert_eq!(sources.missing(found), None, "{found}");
        }
        let moved = "cargo test -p doorbell-rnic --lib tree::tests::a_path_has_no_name";
        assert_eq!(sources.missing(moved), Some("tree::tests::a_path_has_no_name"));
        assert_eq!(sources.missing("cargo test -p doorbell-rnic --lib a_path_without"), Some("a_path_without"));
    }
}
