//! `doorbell wire decode`.

use std::process::Stdio;

use serde_json::Value;

use crate::command::{Running, doorbell, list, measuring, number, run};

/// The name of a file of one test. Dropping this handle removes the file.
pub(crate) struct Scratch(std::path::PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("doorbell-wire-{}-{name}", std::process::id())))
    }

    pub(crate) fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn with(name: &str, bytes: &[u8]) -> Self {
        let scratch = Self::new(name);
        std::fs::write(&scratch.0, bytes).expect("temporary files can be written");
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the direction that carries messages of this size, and the number of these messages.
fn sent(found: &Value, bytes: u64) -> (&Value, u64) {
    let directions = list(found, "/conversations").iter().flat_map(|it| [&it["from_a"], &it["from_b"]]);
    let messages = |direction: &Value| {
        let sizes = list(direction, "/operations").iter().flat_map(|operation| list(operation, "/sizes"));
        sizes.filter(|size| size["bytes"] == bytes).map(|size| number(size, "/messages")).sum()
    };
    directions
        .map(|direction| (direction, messages(direction)))
        .max_by_key(|(_, messages)| *messages)
        .unwrap_or_else(|| panic!("no conversation in {found:#}"))
}

/// `decode` finds the packets that the RNIC has counted.
#[test]
fn a_capture_of_the_bench_agrees_with_counters() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("decode.pcap");
    let file = scratch.path();
    let record = run(&format!("bench bw -n 500 -s 64,5000 -m 1024 --json --pcap {file}")).expect_status(0).json();
    let found = run(&format!("wire decode --json {file}")).expect_status(0).json();
    assert_eq!(found["schema"], "doorbell-wire-decode/1");
    assert_eq!(number(&found, "/icrc/wrong") + number(&found, "/icrc/unchecked"), 0);
    assert_eq!(number(&found, "/icrc/right"), number(&found, "/packets"));
    assert_eq!(number(&found, "/frames"), number(&found, "/packets"));
    // Each size has a conversation, which contains every sent message of this size once.
    assert_eq!(list(&found, "/conversations").len(), 2);
    for (bytes, packets) in [(64, 1), (5000, 5)] {
        let (direction, messages) = sent(&found, bytes);
        assert_eq!(messages, 500);
        assert_eq!(list(direction, "/operations")[0]["operation"], "SEND with immediate");
        assert_eq!(number(direction, "/missing_packets") + number(direction, "/incomplete_messages"), 0);
        assert!(number(direction, "/request_packets") >= 500 * packets);
        let times = &direction["time_to_ack"];
        assert!(
            number(times, "/min_ns") <= number(times, "/median_ns")
                && number(times, "/p99_ns") <= number(times, "/max_ns")
        );
    }
    let counted: u64 =
        list(&record, "/results").iter().map(|result| number(result, "/counted/client/data_packets")).sum();
    assert_eq!(counted, 500 + 500 * 5);

    let text = run(&format!("wire decode {file} --top 1")).expect_status(0).stdout;
    for words in ["RC SEND Only with Immediate", "time to acknowledgement", "1 more conversations", "500 of 5000 B"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
    // Decode through a pipe.
    let mut command = doorbell("wire decode - --json");
    command.stdin(Stdio::from(std::fs::File::open(&file).expect("the capture was read before")));
    assert_eq!(Running::start(command).finish().expect_status(0).json(), found);

    // For a capture that ends within a packet, `decode` prints a summary and an error, and ends with status 1.
    let whole = std::fs::read(&file).expect("the capture was read before");
    let cut = Scratch::with("cut.pcap", &whole[..whole.len() - 7]);
    let finished = run(&format!("wire decode --json {}", cut.path())).expect_status(1);
    assert_eq!(number(&finished.json(), "/packets"), number(&found, "/packets") - 1);
    for words in ["ends in the midst of a block", "summary is of what could be read"] {
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
    }
    run(&format!("wire explain --pcap {}", cut.path())).expect_complaint(1, &["ends in the midst"]);
}

#[test]
fn decode_shows_lost_and_retransmitted_packets() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("loss.pcap");
    let file = scratch.path();
    let record = run(&format!("bench bw -n 2000 -s 256 --fault drop=0.02,seed=3 --json --pcap {file}"));
    let record = record.expect_status(0).json();
    let found = run(&format!("wire decode --json {file}")).expect_status(0).json();
    assert!(number(&found, "/retransmitted_packets") > 0, "{found:#}");
    let (direction, messages) = sent(&found, 256);
    assert_eq!(messages, 2000);
    // All packets of this side are in its capture, so each counted retransmission is visible.
    let repeated = number(&record, "/results/0/counted/client/retransmitted_packets");
    assert_eq!(number(direction, "/retransmitted_packets"), repeated);
}

#[test]
fn a_capture_of_shared_memory_has_the_packets_of_a_socket() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("memory.pcap");
    let file = scratch.path();
    let record = run(&format!("bench bw -n 2000 -s 256 --link shm --json --pcap {file}")).expect_status(0).json();
    assert!(number(&record, "/results/0/link/client/tx_shared_memory_packets") > 0, "{record:#}");
    let found = run(&format!("wire decode --json {file}")).expect_status(0).json();
    assert_eq!(sent(&found, 256).1, 2000);
    assert_eq!(number(&found, "/icrc/right"), number(&found, "/packets"), "{found:#}");
}

#[test]
fn a_file_that_is_no_capture_is_rejected() {
    for (name, bytes, words) in [
        ("empty", &b""[..], &["is empty"][..]),
        ("text", b"hello, world", &["is no pcap or pcapng file"]),
        ("gzip", &[0x1f, 0x8b, 8, 0, 0, 0], &["gzip"]),
        ("header", &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0], &["midst of a file header"]),
        (
            "wifi",
            &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 105, 0, 0, 0],
            &["link type 105 (IEEE 802.11)"],
        ),
    ] {
        let scratch = Scratch::with(name, bytes);
        run(&format!("wire decode {}", scratch.path())).expect_complaint(1, words);
    }
    run("wire decode /no/such/file").expect_complaint(1, &["/no/such/file cannot be opened"]);
    run("wire decode /").expect_complaint(1, &["cannot be read"]);
    run("wire decode").expect_complaint(2, &["FILE"]);
    run("wire decode x --max-conversations 0").expect_complaint(2, &["--max-conversations is 0"]);
    // A capture without a packet is valid.
    let header = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    let scratch = Scratch::with("none", &header);
    let text = run(&format!("wire decode {}", scratch.path())).expect_status(0).stdout;
    assert!(text.contains("No RoCE v2 packet among 0 frames"), "{text}");
}
