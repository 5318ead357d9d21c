//! `doorbell wire explain`, and `wire cost` over many sizes.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;

use crate::bench::record;
use crate::captures::Scratch;
use crate::command::{Running, list, measuring, number, positive, run};
use crate::counters::World;

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
    // The text has the same result with its reasons.
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

/// The published counters have separators of digits.
#[test]
fn requests_and_responses_have_a_rate_with_one_outstanding() {
    let counted = "--rx-packets 463,272 --rx-bytes 29_649_408 --tx-packets 463_272 --tx-bytes 29,649,408";
    let text = run(&format!("wire explain {counted}")).expect_status(0).stdout;
    assert!(text.contains("request and response, 231.6 k if one is outstanding, else 222 k to 482 k"), "{text}");
    run("wire explain --rx-packets 46,32 --rx-bytes 1 --tx-packets 0 --tx-bytes 0").expect_complaint(2, &["46,32"]);
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
fn unexplained_counters_are_reported() {
    let text = run("wire explain --mtu 4096 --tx-packets 1M --tx-bytes 300M --rx-packets 100k --rx-bytes 30M");
    let text = text.expect_status(0).stdout;
    assert!(text.contains("no single operation explains"), "{text}");
    let text = run("wire explain --tx-packets 0 --tx-bytes 0 --rx-packets 0 --rx-bytes 0").expect_status(0).stdout;
    assert!(text.contains("no RDMA traffic"), "{text}");
}

#[test]
fn impossible_counters_are_wrong_usage() {
    let rest = "--tx-packets 1k --tx-bytes 62k";
    for (arguments, words) in [
        ("", &["--rx-bytes, --rx-packets, --tx-bytes, --tx-packets missing"][..]),
        (rest, &["--rx-bytes, --rx-packets missing"]),
        (&format!("{rest} --rx-packets -5 --rx-bytes 0"), &["rx_packets is -5"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 9"), &["rx shows 9 bytes and 0 packets"]),
        (&format!("{rest} --rx-packets 1k --rx-bytes 40k"), &["40.0 bytes per packet", "smallest"]),
        (&format!("{rest} --rx-packets 1k --rx-bytes 9M"), &["9000.0 bytes per packet", "at most"]),
        (&format!("{rest} --rx-packets lots --rx-bytes 9M"), &["lots", "must be a number"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 0 --link 0"), &["1M to 100T bits per second"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 0 --tolerance 20"), &["tolerance is 0.2"]),
        (&format!("{rest} --rx-packets 0 --rx-bytes 0 --mtu 9000"), &["256, 512, 1024, 2048 or 4096"]),
        ("--pcap x.pcap --rx-bytes 5", &["cannot be used with"]),
        ("--host 10.0.0.1", &["--pcap"]),
    ] {
        run(&format!("wire explain {arguments}")).expect_complaint(2, words);
    }
}

/// Checks that the conclusions from the counters of each end name the operation, payload and rate of the run.
fn check_conclusions(operation: &str, result: &Value) {
    let (kind, patterns): (_, &[&str]) = match operation {
        "send" => ("SEND with immediate", &["one_way", "one_way_with_credits"]),
        "request-response" => ("SEND with immediate", &["request_response"]),
        "write" => ("WRITE", &["one_way"]),
        "read" => ("READ", &["fetch"]),
        "cas" => ("CAS", &["fetch"]),
        _ => ("FETCH_ADD", &["fetch"]),
    };
    let bytes = number(result, "/bytes");
    for (end, posts) in [("client", "this_host"), ("server", "peer")] {
        let posts = if operation == "request-response" { "both" } else { posts };
        let packets = number(result, &format!("/counters/{end}/tx_vport_rdma_unicast_packets")) as f64;
        let seconds = packets / positive(result, &format!("/rates/{end}/tx_packets"));
        let rate = number(result, "/messages") as f64 / seconds;
        let named = list(result, &format!("/explained/{end}/named"));
        let is_truth = |it: &&Value| {
            let holds = |span: &Value| number(span, "/min") <= bytes && bytes <= number(span, "/max");
            let rates = &it["operations_per_s"];
            list(it, "/operations").contains(&kind.into())
                && patterns.contains(&it["pattern"].as_str().unwrap_or_default())
                && it["requester"] == posts
                && holds(&it["payload_bytes"])
                && (it["received_payload_bytes"].is_null() || holds(&it["received_payload_bytes"]))
                && rates["min"].as_f64().is_some_and(|min| min <= rate)
                && rates["max"].as_f64().is_some_and(|max| rate <= max)
        };
        let verdict = &result["explained"][end]["verdict"];
        assert!(
            named.iter().any(|it| is_truth(&it)),
            "{operation} of {bytes} B at {rate}/s, {end}: {verdict}\n{result:#}"
        );
        // A conclusion must not name every operation.
        assert!(named.len() <= 12, "{verdict}");
    }
}

/// Checks that counters alone reveal every workload, size and window. For SENDs, the windows differ in the way that
/// credits are sent. For all other operations, one window is narrow and one is wide. The run is repeated if it has many
/// retransmissions, as on a busy machine.
fn is_explained(operation: &str, windows: &[usize], runs: &[(&str, u64)]) {
    for window in windows {
        for (sizes, messages) in runs {
            let measure = || record(&format!("bw --op {operation} -t {window} -n {messages} -s {sizes}"));
            let is_calm = |record: &Value| {
                list(record, "/results").iter().all(|result| {
                    let of = |end: &str, what: &str| number(result, &format!("/counters/{end}/{what}"));
                    ["client", "server"].iter().all(|end| {
                        of(end, "tx_retransmitted_packets") * 200 <= of(end, "tx_vport_rdma_unicast_packets")
                    })
                })
            };
            let record = (0..5).map(|_| measure()).find(is_calm).unwrap_or_else(measure);
            list(&record, "/results").iter().for_each(|result| check_conclusions(operation, result));
        }
    }
}

const SIZES_AND_MESSAGES: [(&str, u64); 2] = [("0,1,8,64,512,4096", 2000), ("1048576", 70)];

#[test]
fn sends_are_explained_by_their_counters() {
    is_explained("send", &[1, 8, 32, 64], &SIZES_AND_MESSAGES);
}

#[test]
fn writes_are_explained_by_their_counters() {
    is_explained("write", &[1, 32], &SIZES_AND_MESSAGES);
}

#[test]
fn reads_are_explained_by_their_counters() {
    is_explained("read", &[1, 32], &SIZES_AND_MESSAGES);
}

#[test]
fn requests_and_responses_are_explained_by_their_counters() {
    is_explained("request-response", &[1, 32], &SIZES_AND_MESSAGES);
}

#[test]
fn atomics_are_explained_by_their_counters() {
    is_explained("cas", &[1, 32], &[("8", 2000)]);
    is_explained("fetch-add", &[1, 32], &[("8", 2000)]);
}

#[test]
fn the_bench_prints_conclusions_from_its_counters() {
    let _one_at_a_time = measuring();
    let text = run("bench bw -v --op write -t 8 -n 2000 -s 64").expect_status(0).stdout;
    let (_, conclusions) = text
        .split_once("Conclusions of `doorbell wire explain` from these counters alone\n")
        .expect("the output has the conclusions");
    for (line, (side, who)) in conclusions.lines().zip([("this", "by this host"), ("other", "by the peer")]) {
        assert!(line.trim_start().starts_with(&format!("64 {side} ")), "{line}");
        assert!(line.contains("WRITE of 61-64 B") && line.contains(who), "{line}");
    }
    // A ping-pong goes both ways.
    let text = run("bench lat -v -n 2000 -s 64").expect_status(0).stdout;
    assert_eq!(text.matches("request and response, ").count(), 2, "{text}");
}

/// `explain` names the operation from the counters of a busy device.
#[test]
fn a_device_is_explained() {
    let _one_at_a_time = measuring();
    let world = World::new();
    let bench = Running::start(world.command("bench bw --op write -t 8 -s 64 -D 600"));
    let counters = |arguments: &str| Running::start(world.looking(arguments)).finish().expect_status(0);
    // Find the sending device, which sends 138 bytes per packet.
    let sender = loop {
        let look = counters("counters --json -n 1 -i 0.2").json();
        let sends = |device: &&Value| {
            let rate = |name: &str| device["per_second"][name].as_f64().unwrap_or(0.0);
            rate("tx_packets") > 0.0 && rate("tx_bytes") > 100.0 * rate("tx_packets")
        };
        if let Some(device) = list(&look, "/devices").iter().find(sends) {
            break device["device"].as_str().expect("the device has a name").to_owned();
        }
    };
    let finished = counters(&format!("wire explain --device {sender} --interval 0.5 --json"));
    assert!(finished.stderr.contains(&sender) && finished.stderr.contains("Ethernet frames"), "{}", finished.stderr);
    let answer = finished.json();
    let named = &list(&answer, "/explanations")[..number(&answer, "/named") as usize];
    let is_truth = |it: &Value| {
        it["operations"] == serde_json::json!(["WRITE"])
            && it["requester"] == "this_host"
            && it["nearest_payload_bytes"] == serde_json::json!({ "min": 61, "max": 64 })
    };
    assert!(named.iter().any(is_truth), "{answer:#}");
    bench.kill();
}

#[test]
fn an_unexplainable_device_is_an_error() {
    let world = World::new();
    let explain = |arguments: &str| Running::start(world.looking(&format!("wire explain {arguments}"))).finish();
    explain("--device mlx5_0").expect_complaint(1, &["there is no RDMA device \"mlx5_0\"; there is none at all"]);
    world.write("rxe0/ports/1/hw_counters/sent_pkts", "5");
    world.write("rxe0/ports/1/hw_counters/rcvd_pkts", "5");
    explain("--device rxe0 --interval 0.1")
        .expect_complaint(1, &["rxe0 has no rate of bytes received, bytes sent: the device does not count them"]);
    explain("--device rxe0 --interval 0").expect_complaint(2, &["--interval is 0 s, allowed is 0.1 to 3600"]);
    explain("--device rxe0 --pcap x.pcap").expect_complaint(2, &["cannot be used with"]);
    run("wire explain --interval 1").expect_complaint(2, &["--device"]);

    // Write decreasing counters until the command has read them.
    let count = |value: u64| {
        for name in ["tx_roce_only_bytes", "tx_roce_only_pkts", "rx_roce_only_bytes", "rx_roce_only_pkts"] {
            world.write(&format!("bnxt_re0/ports/1/hw_counters/{name}"), &value.to_string());
        }
    };
    count(1_000_000_000);
    let (done, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut value = 1_000_000_000;
            while ended.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                value -= 1;
                count(value);
            }
        });
        let finished = explain("--device bnxt_re0 --interval 1");
        // The other thread ends when this closure drops `done`, also by a panic.
        drop(done);
        finished.expect_complaint(1, &["bnxt_re0 has no rate of", "was reset: this interval has no rates"]);
    });
}

/// The packets of a bench are recognized in its capture.
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
    // The capture has neither IPv6 nor READs and atomic operations, so no explanation has them.
    for it in list(&answer, "/explanations") {
        assert_eq!(number(it, "/ip_version"), 4, "{it:#}");
        for absent in ["READ", "CAS", "FETCH_ADD"] {
            assert!(!list(it, "/operations").contains(&absent.into()), "{it:#}");
        }
    }
    run(&format!("wire explain --ipv6 --pcap {file}")).expect_complaint(2, &["cannot be used with"]);
    run(&format!("wire explain --pcap {file} --host 10.9.8.7"))
        .expect_complaint(1, &["has no packets of the host 10.9.8.7", "127."]);
    run(&format!("wire explain --pcap {file} --udp-port 4000"))
        .expect_complaint(1, &["no RoCE v2 packets", "none goes to UDP port 4000", "UDP to port 4791"]);
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
    // With -a, the table has all sizes, or for datagrams all sizes up to the path MTU.
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
    // 64 B of payload take 74 + 64 + 24 line bytes at each path MTU. In a long message, 4096 B take 4178 line bytes,
    // and one RETH is added.
    assert_eq!(lines[1].matches("39.51 %").count(), 5, "{text}");
    assert!(lines[2].trim_start().starts_with("1048576") && lines[2].ends_with("98.04 %"), "{text}");
    let json = run("wire cost --op write --efficiency -s 64 --json").expect_status(0).json();
    assert_eq!(list(&json, "/rows").len(), 5);
}

#[test]
fn cost_shows_the_limit_of_a_link() {
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
