//! All errors on one page, docs/internals/errors.md, so that a reviewer reads them together.
//!
//! `DOORBELL_UPDATE_ERRORS=1 cargo test -p doorbell-cli --test end_to_end errors` writes the page anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::run;
use crate::usage::WRONG;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

#[test]
fn the_page_of_errors_has_all_of_them() {
    let page = root().join("docs/internals/errors.md");
    compare(&page, &format!("{HEAD}{}{LIBRARIES}{}", wrong_usage(), of_libraries()));
}

/// Checks that a page has this text, or writes the page if the environment requests that.
#[track_caller]
fn compare(page: &Path, text: &str) {
    if std::env::var_os("DOORBELL_UPDATE_ERRORS").is_some() {
        fs::write(page, text).unwrap();
    }
    let stored = fs::read_to_string(page).unwrap_or_default();
    let differs = stored.lines().zip(text.lines()).find(|(stored, text)| stored != text);
    assert!(stored == text, "DOORBELL_UPDATE_ERRORS=1 writes the page anew; the first difference is {differs:?}");
}

const HEAD: &str = "# Errors

A test of the command writes this page (`crates/tools/cli/tests/end_to_end/errors.rs`). An error states the value and the allowed
range.

## Wrong usage

| arguments | error |
|---|---|
";

const LIBRARIES: &str = "
## Errors of the libraries

Each text is the format string of the error's `Display`.
";

/// Runs all wrong command lines, and returns a row for each.
fn wrong_usage() -> String {
    let mut rows = String::new();
    for (arguments, _) in WRONG {
        // The text of this error depends on the machine.
        if arguments.contains("--cpus 8000") {
            continue;
        }
        let stderr = run(arguments).expect_status(2).stderr;
        // Usage and hints follow after an empty line.
        let error: Vec<&str> = stderr.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        let _ = writeln!(rows, "| `{arguments}` | {} |", error.join(" ").replace('|', "\\|"));
    }
    rows
}

/// Returns the texts of all `#[error("...")]`, by crate and file.
fn of_libraries() -> String {
    let mut files = BTreeMap::new();
    collect(&root().join("crates"), &mut files);
    let mut text = String::new();
    let mut crate_before = String::new();
    for (file, errors) in files {
        let name = file.split('/').nth(2).unwrap_or_default().to_owned();
        if name != crate_before {
            let _ = write!(text, "\n### {name}\n\n");
            crate_before = name;
        }
        for error in errors {
            let _ = writeln!(text, "- `{error}`");
        }
    }
    text
}

/// Collects the errors of each source file below a folder.
fn collect(folder: &Path, files: &mut BTreeMap<String, Vec<String>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("tests") && !path.ends_with("target") {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let errors = errors_of(&fs::read_to_string(&path).unwrap());
            if !errors.is_empty() {
                let file = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                files.insert(file, errors);
            }
        }
    }
}

/// Returns the first string literal of each `#[error(...)]`, with continued lines joined.
fn errors_of(source: &str) -> Vec<String> {
    let mut errors = Vec::new();
    for part in source.split("#[error(").skip(1) {
        let Some(literal) = part.trim_start().strip_prefix('"') else { continue };
        let mut text = String::new();
        let mut characters = literal.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '"' => break,
                '\\' if characters.peek() == Some(&'\n') => {
                    while characters.next_if(|next| next.is_whitespace()).is_some() {}
                }
                '\\' => text.extend(characters.next()),
                character => text.push(character),
            }
        }
        errors.push(text.replace('`', "'"));
    }
    errors
}

#[test]
fn texts_of_errors_are_read_from_source() {
    let source = "#[error(\"a {0} of\\\n        two \\\"lines\\\"\")]\nA(u8),\n#[error(transparent)]\nB,\n#[error(\n  \"c\"\n)]\n";
    assert_eq!(errors_of(source), ["a {0} oftwo \"lines\"", "c"]);
}
