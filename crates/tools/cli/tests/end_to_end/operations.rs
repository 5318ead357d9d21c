//! Kinds of messages: one-sided operations, and requests with their response.

use serde_json::Value;

use crate::bench::record;
use crate::command::{list, number, positive};

const SIZES: [u64; 7] = [0, 1, 8, 64, 512, 4096, 1 << 20];

fn sizes() -> String {
    SIZES.map(|bytes| bytes.to_string()).join(",")
}

/// Runs an operation with several windows, each time with three messages more than the window, and checks each result.
fn with_windows(operation: &str, sizes: &str, check: impl Fn(&Value, u64)) {
    for window in [1, 8, 32, 64] {
        let messages = window + 3;
        let record = record(&format!("bw --op {operation} -t {window} -n {messages} -s {sizes} --verify"));
        for result in list(&record, "/results") {
            assert_eq!(number(result, "/messages"), messages, "{result:#}");
            assert_eq!(number(result, "/fitted/window"), window, "{result:#}");
            check(result, messages);
        }
    }
}

fn undisturbed(result: &Value) -> bool {
    let repeated = |end| number(result, &format!("/counted/{end}/retransmitted_packets"));
    repeated("client") + repeated("server") == 0
}

#[test]
fn sends_are_counted_with_every_window() {
    with_windows("send", &sizes(), |result, messages| {
        let packets = messages * number(result, "/bytes").div_ceil(4096).max(1);
        assert_eq!(number(result, "/counted/client/data_packets"), packets);
        assert_eq!(number(result, "/counted/server/data_packets"), 0);
    });
}

#[test]
fn writes_are_counted_to_the_byte() {
    with_windows("write", &sizes(), |result, messages| {
        let bytes = number(result, "/bytes");
        let packets = bytes.div_ceil(4096).max(1);
        // Each packet has 58 B of headers, and the first packet of a message also has 16 B of RETH.
        let each = packets * 58 + 16 + bytes.next_multiple_of(4);
        assert_eq!(number(result, "/counted/client/data_packets"), messages * packets);
        assert_eq!(number(result, "/counted/client/data_bytes"), messages * each);
        // The processor of the other side has no part in the operation, so the other side sends only acknowledgements.
        for what in ["data_packets", "response_packets", "control_packets"] {
            assert_eq!(number(result, &format!("/counted/server/{what}")), 0, "{result:#}");
        }
        assert_eq!(number(result, "/counters/server/rx_send_requests"), 0);
    });
}

#[test]
fn reads_are_counted_to_the_byte() {
    with_windows("read", &sizes(), |result, messages| {
        let bytes = number(result, "/bytes");
        let requests = number(result, "/counted/client/data_packets");
        assert_eq!(number(result, "/counted/client/data_bytes"), requests * 74);
        if bytes <= 4096 {
            assert_eq!(requests, messages);
        } else {
            assert!((messages..=messages * 256).contains(&requests), "{result:#}");
        }
        if undisturbed(result) {
            let packets = bytes.div_ceil(4096).max(1);
            assert_eq!(number(result, "/counted/server/response_packets"), messages * packets);
            // Each packet has 58 B of headers, and the first and the last packet of a response have an AETH.
            let each = packets * 58 + 4 * packets.min(2) + bytes.next_multiple_of(4);
            let counted = number(result, "/counted/server/response_bytes");
            assert!((messages * each..=messages * each + 8 * (requests - messages)).contains(&counted), "{result:#}");
            assert_eq!(number(result, "/counted/server/ack_packets"), 0, "responses acknowledge");
        }
    });
}

#[test]
fn atomics_are_counted_to_the_byte() {
    for operation in ["cas", "fetch-add"] {
        with_windows(operation, "8", |result, messages| {
            assert_eq!(number(result, "/counted/client/data_packets"), messages);
            assert_eq!(number(result, "/counted/client/data_bytes"), messages * 86);
            if undisturbed(result) {
                assert_eq!(number(result, "/counted/server/response_packets"), messages);
                assert_eq!(number(result, "/counted/server/response_bytes"), messages * 70);
                assert_eq!(number(result, "/counters/server/rx_atomic_requests"), messages);
            }
        });
        // Without -s, atomic operations have their fixed size.
        let record = record(&format!("lat --op {operation} -n 10 --verify"));
        assert_eq!(record.pointer("/parameters/sizes"), Some(&Value::from(vec![8])));
    }
}

#[test]
fn each_request_is_answered_with_as_many_bytes() {
    with_windows("request-response", &sizes(), |result, messages| {
        let bytes = number(result, "/bytes");
        let packets = messages * bytes.div_ceil(4096).max(1);
        for end in ["client", "server"] {
            assert_eq!(number(result, &format!("/counted/{end}/data_packets")), packets, "{result:#}");
            let each = packets * 58 + messages * (4 + bytes.next_multiple_of(4));
            assert_eq!(number(result, &format!("/counted/{end}/data_bytes")), each, "{result:#}");
        }
    });
}

#[test]
fn lists_and_inline_data_equal_single_posts() {
    for operation in ["write", "read", "request-response"] {
        record(&format!("bw --op {operation} -t 64 -l 8 -n 501 -s 0,16,5000 --verify"));
        record(&format!("bw --op {operation} -t 7 -l 7 -I 0 -n 100 -s 0,16 --verify"));
    }
    record("bw --op write -t 16 -l 4 -I 1024 -n 101 -s 0,1,1024,1025 --verify");
    record("bw --op fetch-add -t 64 -l 16 -n 501 --verify");
    record("bw --op cas -t 64 -l 16 -n 501 --verify");
}

#[test]
fn several_connections_have_memory_of_their_own() {
    for operation in ["write -s 16,5000", "read -s 16,5000", "cas", "fetch-add", "request-response -s 16,5000"] {
        for events in ["", "-e"] {
            let record = record(&format!("bw --op {operation} -q 3 -n 200 {events} --verify"));
            for result in list(&record, "/results") {
                assert_eq!(number(result, "/messages"), 600);
                let timed: u64 = list(result, "/histogram_ns").iter().map(|bucket| number(bucket, "/1")).sum();
                assert_eq!(timed, 600, "each operation has a latency");
            }
        }
    }
}

#[test]
fn latencies_name_their_timed_interval() {
    for (operation, timed) in [
        ("send", "half_round_trip"),
        ("request-response", "round_trip"),
        ("write", "completion"),
        ("read", "completion"),
        ("fetch-add", "completion"),
    ] {
        let record = record(&format!("lat --op {operation} -n 100 -s 8 --verify"));
        let result = &list(&record, "/results")[0];
        assert_eq!(result.pointer("/timed"), Some(&Value::from(timed)));
        assert_eq!(number(result, "/messages"), 100);
        positive(result, "/latency_ns/min");
        let recorded: u64 = list(result, "/histogram_ns").iter().map(|bucket| number(bucket, "/1")).sum();
        assert_eq!(recorded, 100);
        // The RNIC also counts the 200 warm-up rounds, but the histogram does not.
        assert_eq!(number(result, "/counted/client/data_packets"), 300);
    }
}

#[test]
fn one_sided_operations_survive_faults() {
    for operation in ["write -s 16,65536", "read -s 16,65536", "cas", "fetch-add", "request-response -s 16,65536"] {
        for fault in ["drop=0.01,seed=5", "duplicate=0.02,reorder=0.02,corrupt=0.01,seed=5"] {
            record(&format!("bw --op {operation} -n 300 --verify --fault {fault}"));
        }
    }
}

#[test]
fn all_operations_keep_a_duration_and_rate() {
    for operation in ["write", "read", "request-response"] {
        let record = record(&format!("bw --op {operation} --rate 2000 -D 0.1 -s 16 --verify"));
        let (messages, seconds) = (number(&record, "/results/0/messages"), positive(&record, "/results/0/seconds"));
        assert!(messages > 0 && messages as f64 <= 2000.0 * seconds + 1.0, "{messages} messages in {seconds} s");
    }
}

#[test]
fn rates_match_the_counters_of_each_end() {
    let record = record("bw --op write -n 500 -s 16");
    let result = &list(&record, "/results")[0];
    for end in ["client", "server"] {
        for way in ["tx", "rx"] {
            let count = number(result, &format!("/counters/{end}/{way}_vport_rdma_unicast_packets"));
            let rate = positive(result, &format!("/rates/{end}/{way}_packets"));
            let seconds = positive(result, "/seconds");
            assert!((rate * seconds - count as f64).abs() < 0.01 * count as f64 + 1.0, "{end} {way}: {result:#}");
        }
    }
}
