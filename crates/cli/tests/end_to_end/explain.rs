//! `doorbell wire explain`, and `wire cost` over many sizes.

use serde_json::Value;

use crate::captures::Scratch;
use crate::command::{list, measuring, number, positive, run};

fn explain(arguments: &str) -> Value {
    run(&format!("wire explain --json {arguments}")).expect_status(0).json()
}

const WRITES_OF_ONE_BYTE: &str = "--rx-packets 481k --rx-bytes 37.518M --tx-packets 481k --tx-bytes 29.822M";

#[test]
fn counters_are_explained() {
    let answer = explain(WRITES_OF_ONE_BYTE);
    assert_eq!(answer["schema"], "doorbell-wire-explain/1");
    let best = &list(&answer, "/explanations")[0];
    assert_eq!(best["operations"], serde_json::json!(["WRITE"]));
    assert_eq!((number(best, "/payload_bytes/min"), number(best, "/payload_bytes/max")), (1, 4));
    assert_eq!((best["requester"].as_str(), best["pattern"].as_str()), (Some("peer"), Some("one_way")));
    assert!(positive(best, "/operations_per_s/min") < 481e3 && positive(best, "/operations_per_s/max") > 481e3);
    // As text: the same, with its reasons.
    let text = run(&format!("wire explain {WRITES_OF_ONE_BYTE} --link 100G")).expect_status(0).stdout;
    for words in [
        "78.00 B per packet",
        " 1. WRITE of 1-4 B, by the peer, 481 k operations/s",
        "length of an ACK (62 B)",
        "0.39 %",
    ] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
}

#[test]
fn hints_exclude_explanations() {
    let rates = "--tx-packets 1M --tx-bytes 1082M --rx-packets 0 --rx-bytes 0";
    let cut = |answer: &Value| list(answer, "/explanations").iter().any(|it| it["path_mtu"] == 1024);
    assert!(cut(&explain(rates)));
    assert!(!cut(&explain(&format!("{rates} --mtu 4096"))));
    for it in list(&explain(&format!("{rates} --ipv6 --vlan")), "/explanations") {
        assert_eq!((number(it, "/ip_version"), &it["vlan"]), (6, &Value::Bool(true)));
    }
}

#[test]
fn what_nothing_explains_is_said() {
    let text = run("wire explain --mtu 4096 --tx-packets 1M --tx-bytes 300M --rx-packets 100k --rx-bytes 30M");
    let text = text.expect_status(0).stdout;
    assert!(text.contains("no single operation explains"), "{text}");
    let text = run("wire explain --tx-packets 0 --tx-bytes 0 --rx-packets 0 --rx-bytes 0").expect_status(0).stdout;
    assert!(text.contains("no RDMA traffic"), "{text}");
}

#[test]
fn counters_that_cannot_be_are_wrong_usage() {
    let rest = "--tx-packets 1k --tx-bytes 62k";
    for (arguments, words) in [
        ("", &["--rx-bytes, --rx-packets, --tx-bytes, --tx-packets missing"][..]),
        (rest, &["--rx-bytes, --rx-packets missing"]),
        (&format!("{rest} --rx-packets -5 --rx-bytes 0"), &["rx_packets is -5"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 9"), &["rx shows 9 bytes in 0 packets"]),
        (&format!("{rest} --rx-packets 1k --rx-bytes 40k"), &["40.0 bytes per packet", "smallest"]),
        (&format!("{rest} --rx-packets 1k --rx-bytes 9M"), &["9000.0 bytes per packet", "at most"]),
        (&format!("{rest} --rx-packets lots --rx-bytes 9M"), &["lots", "is no number"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 0 --link 0"), &["bits per second above 0"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 0 --tolerance 20"), &["tolerance is 0.2"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 0 --mtu 9000"), &["256, 512, 1024, 2048 or 4096"]),
        ("--pcap x.pcap --rx-bytes 5", &["cannot be used with"]),
        ("--host 10.0.0.1", &["--pcap"]),
    ] {
        run(&format!("wire explain {arguments}")).expect_complaint(2, words);
    }
}

/// What the bench put on the link is what is read from it.
#[test]
fn a_capture_of_the_bench_is_explained() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("explain.pcap");
    let file = scratch.path();
    run(&format!("bench bw -n 3000 -s 512 --pcap {file}")).expect_status(0);
    let finished = run(&format!("wire explain --json --pcap {file}")).expect_status(0);
    assert!(finished.stderr.contains("as 127."), "{}", finished.stderr);
    let answer = finished.json();
    let named = list(&answer, "/explanations").iter().any(|it| {
        let operations = list(it, "/operations");
        operations.contains(&"SEND with immediate".into())
            && it["pattern"].as_str().is_some_and(|pattern| pattern.starts_with("one_way"))
            && number(it, "/payload_bytes/min") <= 512
            && number(it, "/payload_bytes/max") >= 512
    });
    assert!(named, "{answer:#}");
    run(&format!("wire explain --pcap {file} --host 10.9.8.7"))
        .expect_complaint(1, &["10.9.8.7 (--host) takes no part", "127."]);
    run(&format!("wire explain --pcap {file} --udp-port 4000")).expect_complaint(1, &["no RoCE v2 packets", "4000"]);
    run("wire explain --pcap /no/such/file").expect_complaint(1, &["/no/such/file cannot be opened"]);
}

#[test]
fn costs_of_many_sizes_are_a_table() {
    let table = run("wire cost --json --op write --size 1,8,4096 --mtu 1024,4096").expect_status(0).json();
    assert_eq!(table["schema"], "doorbell-wire-cost-table/1");
    let rows = list(&table, "/rows");
    assert_eq!(rows.len(), 6);
    assert_eq!((number(&rows[4], "/bytes"), number(&rows[4], "/mtu")), (4096, 1024));
    assert_eq!((number(&rows[4], "/request/packets"), number(&rows[5], "/request/packets")), (4, 1));
    let text = run("wire cost --op write --size 1,4096").expect_status(0).stdout;
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[1][..5], ["1", "4096", "1", "78", "102"], "{text}");
    assert_eq!(words[2][..5], ["4096", "4096", "1", "4170", "4194"], "{text}");
    // All sizes, of datagrams up to the path MTU.
    assert_eq!(list(&run("wire cost --json --op send -a").expect_status(0).json(), "/rows").len(), 23);
    let datagrams = run("wire cost --json --op send -a --transport ud --mtu 1024").expect_status(0).json();
    assert_eq!(list(&datagrams, "/rows").len(), 10);
    // Atomic operations have one size.
    assert_eq!(number(&run("wire cost --json --op fetch-add").expect_status(0).json(), "/bytes"), 8);
    run("wire cost --op send -a -s 5").expect_complaint(2, &["cannot be used with"]);
}

#[test]
fn efficiency_over_sizes_and_path_mtus() {
    let text = run("wire cost --op write --efficiency -s 64,1048576").expect_status(0).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    for mtu in ["MTU 256", "MTU 4096"] {
        assert!(lines[0].contains(mtu), "{text}");
    }
    // 64 in 74 + 64 + 24, whatever the path MTU; 4096 in 4178, but for one RETH.
    assert_eq!(lines[1].matches("39.51 %").count(), 5, "{text}");
    assert!(lines[2].trim_start().starts_with("1048576") && lines[2].ends_with("98.04 %"), "{text}");
    let json = run("wire cost --op write --efficiency -s 64 --json").expect_status(0).json();
    assert_eq!(list(&json, "/rows").len(), 5);
}

#[test]
fn what_a_link_allows() {
    let cost = run("wire cost --json --op send --size 512 --mtu 4096 --link 100G").expect_status(0).json();
    assert_eq!(cost["schema"], "doorbell-wire-cost/1");
    let rate = positive(&cost, "/link/messages_per_s");
    assert!((rate - 100e9 / 8.0 / 594.0).abs() < 1.0, "{rate}");
    assert_eq!(cost["link"]["binding"], "request");
    let text = run("wire cost --op send --size 512 --link 100G").expect_status(0).stdout;
    assert!(text.contains("21.0 M messages/s at most") && text.contains("direction of requests is full"), "{text}");
    let text = run("wire cost --op read --size 8,4096 --link 100G").expect_status(0).stdout;
    let ends: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(ends, ["full", "request", "response"]);
    let text = run("wire cost --op send --size 0 --link 100G").expect_status(0).stdout;
    assert!(text.contains("if each packet is acknowledged by itself: 145 M messages/s"), "{text}");
    run("wire cost --op send --size 0 --link fast").expect_complaint(2, &["fast"]);
}
