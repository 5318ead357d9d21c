//! `doorbell bench load`, and replies and mixes of sizes in the other commands of `bench`.

use serde_json::{Value, json};

use crate::bench::{ENDS, record};
use crate::command::{list, number, positive, run};

#[test]
fn replies_have_a_size_of_their_own() {
    let record_of_one = |arguments: &str| {
        let record = record(arguments);
        assert_eq!(record["parameters"]["operation"], "request_response", "{arguments}");
        list(&record, "/results")[0].clone()
    };
    let result = record_of_one("bw -s 200 --reply 64K -t 4 -n 200 --verify");
    assert_eq!((number(&result, "/bytes"), number(&result, "/messages")), (200, 200));
    // A request has one packet, and a reply has 16 packets of at most 4096 B.
    let [client, server] =
        ENDS.map(|end| ["packets", "bytes"].map(|unit| number(&result, &format!("/counted/{end}/data_{unit}"))));
    assert_eq!(client, [200, 200 * (58 + 4 + 200)]);
    assert_eq!(server, [200 * 16, 200 * (16 * 58 + 4 + 65_536)]);
    let payload = positive(&result, "/bytes_per_s") / positive(&result, "/messages_per_s");
    assert!((payload - 65_536.0).abs() < 1.0, "{payload}");
    let timed: u64 = list(&result, "/histogram_ns").iter().map(|bucket| number(bucket, "/1")).sum();
    assert_eq!(timed, 200, "each request has a latency");

    let result = record_of_one("lat --request 200 --reply 5000 -n 100 --verify");
    assert_eq!((&result["timed"], number(&result, "/messages")), (&json!("round_trip"), 100));
    let result = record_of_one("bw -s 64 --reply 1000 --threads 3 --server-threads 1 -n 100 --think 100 --verify");
    assert_eq!(number(&result, "/messages"), 300);
    assert!(list(&record("bw -s 64 --reply 0 -n 100"), "/results").iter().all(|it| it["latency_ns"].is_null()));
}

#[test]
fn load_has_clients_with_a_connection_and_a_thread_each() {
    let record = record("--request 200 --reply 64K --clients 2 --server-threads 1 -n 100 --verify");
    let parameters = &record["parameters"];
    let serving = &parameters["serving"];
    assert_eq!((number(parameters, "/connections"), number(parameters, "/window")), (2, 1));
    assert_eq!((number(serving, "/threads"), number(serving, "/server_threads")), (2, 1));
    let result = &list(&record, "/results")[0];
    assert_eq!((number(result, "/bytes"), number(result, "/messages")), (200, 200));
    assert!(number(result, "/latency_ns/p50") > 0, "{result:#}");

    let load = "bench --request 200 --reply 64K --clients 24 -n 50 --testbed connectx5-100g";
    let finished = run(load).expect_status(0);
    let heading = finished.stderr.replace('\n', " ");
    for said in ["24 connections on 24:24 threads, replies of 65536 B, closed loop", "window 1,"] {
        assert!(heading.contains(said), "{said}: {heading}");
    }
    let table: Vec<&str> = finished.stdout.lines().take(2).collect();
    assert!(table.iter().all(|line| line.chars().count() <= 100), "{table:?}");
    let cells: Vec<&str> = table[1].split_whitespace().collect();
    assert_eq!(cells[..3], ["200", "65536", "1200"]);
    // 24 clients share the line, on which a reply takes 5.2 us.
    let median_us: f64 = cells[5].parse().expect("a number");
    assert!(median_us > 12.0 * 5.2, "{table:?}");
    let finished = run(&format!("{load} --rate 50k")).expect_status(0);
    let heading = finished.stderr.replace('\n', " ");
    assert!(heading.contains("open loop of 50000 requests/s"), "{heading}");
    assert!(heading.contains("window 8,"), "the window of 64 KiB: {heading}");
}

/// A mix of sizes is one point, whose packets are predicted from the sequence of sizes.
#[test]
fn a_mix_of_sizes_is_one_point() {
    let mean = |record: &Value| {
        let [result] = list(record, "/results") else { panic!("one point: {record:#}") };
        assert_eq!((number(result, "/bytes"), number(result, "/messages")), (5000, 900));
        positive(result, "/bytes_per_s") / positive(result, "/messages_per_s")
    };
    for protocol in ["send-receive", "direct-read", "direct-write", "buffered-write-tail-send", "shared-write"] {
        let one_way = record(&format!("bw --sizes 64:0.9,5000:0.1 -q 3 -n 300 --protocol {protocol} --verify"));
        let expected = 0.9 * 64.0 + 0.1 * 5000.0;
        assert!((mean(&one_way) - expected).abs() < 0.4 * expected, "{}", mean(&one_way));
    }
    let answered = record("load --sizes 0:1,5000:1 --reply 64 -q 3 -n 300 -t 4 --verify");
    assert_eq!(answered["parameters"]["operation"], "request_response");
    assert!((mean(&answered) - 2500.0).abs() < 400.0, "{}", mean(&answered));

    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "bytes,weight\n64,9\n5000,1\n").expect("the file is written");
    let path = file.path().display();
    // Each reply has the size of its request.
    let alike = record(&format!("bw --op request-response --sizes-from {path} -q 3 -n 300 --verify"));
    assert_eq!(alike["parameters"]["mix"], json!([[64, 9.0], [5000, 1.0]]));
    let alike = &list(&alike, "/results")[0];
    let [asked, replied] = ENDS.map(|end| number(alike, &format!("/counted/{end}/data_bytes")));
    assert_eq!(asked, replied);
    std::fs::write(file.path(), "64;9\n").expect("the file is written");
    let said = format!("{path}, line 1: \"64;9\" is no row: must be BYTES,WEIGHT, as in 4096,0.25");
    run(&format!("bench bw --sizes-from {path}")).expect_complaint(2, &[&said]);
}
