//! Runs each example and compares its output with `examples/README.md`.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each example has a main, which calls the function that these tests call"
)]

#[path = "../../examples/echo_tokio.rs"]
mod echo_tokio;
#[path = "../../examples/key_value.rs"]
mod key_value;
#[path = "../../examples/many_clients.rs"]
mod many_clients;
#[path = "../../examples/ping_pong.rs"]
mod ping_pong;
#[path = "../../examples/replicate.rs"]
mod replicate;
#[path = "../../examples/under_loss.rs"]
mod under_loss;

use std::error::Error;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

/// Returns the output that `examples/README.md` shows below the command of the example `name`.
fn shown(name: &str) -> String {
    let page = std::fs::read_to_string(format!("{FOLDER}/README.md")).unwrap();
    let command = format!("$ cargo run -p doorbell --example {name}");
    let block = page.split("```").find(|block| block.lines().any(|line| line.starts_with(&command)));
    let lines =
        block.unwrap_or_else(|| panic!("examples/README.md must have a block for the example {name}")).lines().skip(2);
    lines.map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn assert_documented_output(name: &str, run: impl FnOnce(&mut Vec<u8>) -> Result<(), Box<dyn Error>>) {
    let mut out = Vec::new();
    run(&mut out).unwrap_or_else(|error| panic!("{error}"));
    assert!(!out.is_empty());
    assert_eq!(String::from_utf8_lossy(&out), shown(name));
}

#[test]
fn ping_pong() {
    assert_documented_output("ping_pong", ping_pong::run);
}

#[test]
fn many_clients() {
    assert_documented_output("many_clients", many_clients::run);
}

#[test]
fn echo_tokio() {
    assert_documented_output("echo_tokio", echo_tokio::run);
}

#[test]
fn key_value() {
    assert_documented_output("key_value", key_value::run);
}

#[test]
fn replicate() {
    assert_documented_output("replicate", replicate::run);
}

#[test]
fn under_loss() {
    assert_documented_output("under_loss", under_loss::run);
}

/// An example must be short, since users read an example before they run it.
#[test]
fn no_example_is_long() {
    for entry in std::fs::read_dir(FOLDER).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 80, "{} has {lines} lines", path.display());
    }
}

/// README.md of the project must show the first example of this crate's README.md. Documentation tests compile only the
/// README.md of this crate.
#[test]
fn the_first_example_stands_in_both_pages() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let own = read("README.md");
    let example = own.split("```").find(|block| block.starts_with("rust")).expect("an example");
    assert!(
        read("../../../README.md").contains(example),
        "README.md of the project must have the first example of this crate's README.md"
    );
}
