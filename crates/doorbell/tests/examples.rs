//! Runs every example and compares what it prints.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "examples have a main, and a function that it calls")]

#[path = "../examples/echo_tokio.rs"]
mod echo_tokio;
#[path = "../examples/key_value.rs"]
mod key_value;
#[path = "../examples/many_clients.rs"]
mod many_clients;
#[path = "../examples/ping_pong.rs"]
mod ping_pong;
#[path = "../examples/replicate.rs"]
mod replicate;
#[path = "../examples/under_loss.rs"]
mod under_loss;

use std::error::Error;

#[track_caller]
fn prints(run: impl FnOnce(&mut Vec<u8>) -> Result<(), Box<dyn Error>>, expected: &str) {
    let mut out = Vec::new();
    run(&mut out).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

#[test]
fn ping_pong() {
    prints(ping_pong::run, "1000 round trips of 8 B\n");
}

#[test]
fn many_clients() {
    let sum = |client: u64| (client * 100..(client + 1) * 100).sum::<u64>();
    let expected: String = (0..8).map(|client| format!("client {client}: {}\n", sum(client))).collect();
    prints(many_clients::run, &expected);
}

#[test]
fn echo_tokio() {
    prints(echo_tokio::run, "100 connections, each message came back\n");
}

#[test]
fn key_value() {
    prints(
        key_value::run,
        "key 3: value 301, written 2 times\n\
         key 4: value 400, written 1 times\n\
         key 5: value 0, written 0 times\n",
    );
}

#[test]
fn replicate() {
    let expected: String = (0..3).map(|reader| format!("reader {reader}: 1048576 B, the same: true\n")).collect();
    prints(replicate::run, &expected);
}

#[test]
fn under_loss() {
    let expected: String = (1..=3).map(|seed| format!("seed {seed}: 500 messages, in order\n")).collect();
    prints(under_loss::run, &expected);
}

/// An example is read before it is run.
#[test]
fn no_example_is_long() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 80, "{} has {lines} lines", path.display());
    }
}

/// The page of the project shows the example that is compiled with the page of this crate.
#[test]
fn the_first_example_stands_in_both_pages() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let own = read("README.md");
    let example = own.split("```").find(|block| block.starts_with("rust")).expect("an example");
    assert!(read("../../README.md").contains(example), "README.md of the project has another example");
}
