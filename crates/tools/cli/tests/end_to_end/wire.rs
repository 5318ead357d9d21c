//! `doorbell wire cost`.

use serde_json::Value;

use crate::command::{number, run};

fn cost(arguments: &str) -> Value {
    run(&format!("wire cost --json {arguments}")).expect_status(0).json()
}

#[test]
fn frames_have_the_sizes_that_counters_of_nics_show() {
    for (arguments, bytes) in [
        ("--op write --size 0", 74),
        ("--op write --size 1", 78),
        ("--op write --size 4", 78),
        ("--op write --size 5", 82),
        ("--op write --size 8", 82),
        ("--op send --size 1", 62),
        ("--op send --size 4096 --mtu 4096", 4154),
        ("--op send --size 4096 --transport ud", 4162),
        ("--op send --size 4096 --transport ud --vlan", 4166),
    ] {
        let cost = cost(arguments);
        assert_eq!(number(&cost, "/request/packets"), 1, "{arguments}");
        assert_eq!(number(&cost, "/request/frame_bytes"), bytes, "{arguments}");
    }
}

#[test]
fn an_acknowledgement_has_62_bytes_and_there_is_none_to_one_per_packet() {
    let cost = cost("--op write --size 1048576 --mtu 4096");
    assert_eq!(number(&cost, "/request/packets"), 256);
    // Each packet has 4154 B, and only the first packet also has a RETH of 16 B.
    assert_eq!(number(&cost, "/request/frame_bytes"), 256 * 4154 + 16);
    assert_eq!(number(&cost, "/response/min/packets"), 0);
    assert_eq!(number(&cost, "/response/max/packets"), 256);
    assert_eq!(number(&cost, "/response/max/frame_bytes"), 256 * 62);
}

#[test]
fn reads_and_atomics_are_answered_exactly() {
    let read = cost("--op read --size 5000 --mtu 1024");
    assert_eq!(number(&read, "/request/frame_bytes"), 74);
    assert_eq!(number(&read, "/response/exact/packets"), 5);
    // The first and the last packet carry an AETH.
    assert_eq!(number(&read, "/response/exact/frame_bytes"), 5 * 58 + 2 * 4 + 5000);
    for operation in ["compare-swap", "fetch-add"] {
        let atomic = cost(&format!("--op {operation} --size 8"));
        assert_eq!(number(&atomic, "/request/frame_bytes"), 58 + 28);
        assert_eq!(number(&atomic, "/response/exact/frame_bytes"), 58 + 4 + 8);
    }
}

#[test]
fn costs_cover_unreliable_transports_and_ipv6() {
    assert!(cost("--op send --size 1 --transport uc").pointer("/response").is_some_and(Value::is_null));
    let (four, six) = (cost("--op write --size 1"), cost("--op write --size 1 --ipv6"));
    assert_eq!(number(&six, "/request/frame_bytes"), number(&four, "/request/frame_bytes") + 20);
    assert_eq!(number(&six, "/request/line_bytes"), number(&four, "/request/line_bytes") + 20);
}

#[test]
fn the_table_shows_packets_and_bytes_of_a_message() {
    let text = run("wire cost --op write --size 1 --mtu 4096").expect_status(0).stdout;
    let row = |name: &str| -> Vec<u64> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line[name.len()..].split_whitespace().map(|word| word.parse().expect("a number")).collect()
    };
    assert_eq!(row("request"), [1, 78, 78 + 24]);
    assert_eq!(row("acknowledgements, at least"), [0, 0, 0]);
    assert_eq!(row("acknowledgements, at most"), [1, 62, 62 + 24]);
}

#[test]
fn impossible_messages_are_wrong_usage() {
    run("wire cost --op fetch-add --size 9").expect_complaint(2, &["atomic operation of 9 bytes"]);
    run("wire cost --op send --size 5000 --transport ud").expect_complaint(2, &["5000 bytes: must be at most 4096"]);
    run("wire cost --op read --size 1 --transport ud").expect_complaint(2, &["UD has no READ"]);
    run("wire cost --op send --size 1 --mtu 1500").expect_complaint(2, &["a path MTU of 256, 512, 1024, 2048 or 4096"]);
}
