//! `doorbell wire check`.

use crate::captures::Scratch;
use crate::command::{list, measuring, number, run};

/// Judges a capture of our RNIC, which must have no finding.
fn expect_clean(file: &str) -> serde_json::Value {
    let found = run(&format!("wire check --json {file}")).json();
    assert!(list(&found, "/findings").is_empty(), "{:#}", found["findings"]);
    run(&format!("wire check {file}")).expect_status(0);
    found
}

#[test]
fn captures_of_our_rnic_are_clean() {
    let _one_at_a_time = measuring();
    for arguments in ["bw -n 500 -s 64,5000 -m 1024", "lat -n 200 -s 64"] {
        let scratch = Scratch::new("check.pcap");
        let file = scratch.path();
        run(&format!("bench {arguments} --json --pcap {file}")).expect_status(0);
        let found = expect_clean(&file);
        assert_eq!(found["schema"], "doorbell-wire-check/1");
        assert!(list(&found, "/queue_pairs").iter().any(|it| !it["opposite"].is_null()), "{found:#}");
        let msn = list(&found, "/rules").iter().find(|rule| rule["name"] == "msn").expect("the rule of MSNs");
        assert!(number(msn, "/judged") > 0, "{msn:#}");
    }
}

#[test]
fn a_changed_packet_is_found_and_ends_with_status_1() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("check-changed.pcap");
    let file = scratch.path();
    run(&format!("bench bw -n 200 -s 64 --json --pcap {file}")).expect_status(0);
    let mut bytes = std::fs::read(&file).expect("the capture was written");
    // The destination port, length and checksum of UDP, and the BTH up to its partition key.
    let is_packet = |window: &[u8]| window[..2] == 4791_u16.to_be_bytes() && window[8..] == [0xff, 0xff];
    let at = bytes.windows(10).position(is_packet).expect("a packet of RoCE v2");
    // A byte after the BTH, which has 12 bytes.
    bytes[at + 6 + 12 + 1] ^= 1;
    std::fs::write(&file, &bytes).expect("the capture can be written");
    let found = run(&format!("wire check --json {file}")).expect_status(1).json();
    assert!(list(&found, "/findings").iter().any(|finding| finding["rule"] == "icrc"), "{found:#}");
    let text = run(&format!("wire check {file}")).expect_status(1).stdout;
    for words in ["error icrc (IBTA A17)", "findings: errors 1, warnings 0", "not judged"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
}

#[test]
fn a_page_has_a_picture_of_each_direction() {
    let _one_at_a_time = measuring();
    let (scratch, page) = (Scratch::new("check-page.pcap"), Scratch::new("check.html"));
    run(&format!("bench bw -n 100 -s 64 --json --pcap {}", scratch.path())).expect_status(0);
    run(&format!("wire check {} --html {}", scratch.path(), page.path())).expect_status(0);
    let text = std::fs::read_to_string(page.path()).expect("the page was written");
    for words in ["Doorbell wire check", "<svg", "PSN 0x", "RoCE v2 packets"] {
        assert!(text.contains(words), "{words:?} is missing in the page");
    }
}

/// Returns the header of a pcap file of Ethernet frames.
fn empty_capture() -> Vec<u8> {
    [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat()
}

#[test]
fn a_capture_without_packets_is_no_success() {
    let scratch = Scratch::new("check-empty.pcap");
    let header = empty_capture();
    std::fs::write(scratch.path(), &header).expect("a file can be written");
    let finished = run(&format!("wire check {}", scratch.path())).expect_status(1);
    assert!(finished.stderr.contains("no RoCE v2 packet among 0 frames"), "{}", finished.stderr);
    assert!(!finished.stdout.contains("no finding"), "{}", finished.stdout);
    // A forgotten name of the page does not cost a capture.
    run(&format!("wire check --html {0} {0}", scratch.path())).expect_complaint(2, &["--html", "is a capture"]);
    assert_eq!(std::fs::read(scratch.path()).expect("the capture is left"), header);
}

#[test]
fn the_name_of_a_capture_is_escaped() {
    let scratch = Scratch::new("check-\u{1b}[2J.pcap");
    std::fs::write(scratch.path(), empty_capture()).expect("a file can be written");
    let finished = run(&format!("wire check {}", scratch.path())).expect_status(1);
    for text in [finished.stdout, finished.stderr] {
        assert!(text.contains(r"check-\u001b[2J.pcap") && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn an_unreadable_file_does_not_hide_the_others() {
    let _one_at_a_time = measuring();
    let (scratch, page) = (Scratch::new("check-others.pcap"), Scratch::new("check-others.html"));
    let file = scratch.path();
    run(&format!("bench bw -n 100 -s 64 --json --pcap {file}")).expect_status(0);
    let finished = run(&format!("wire check /no/such/file {file} --html {}", page.path())).expect_status(1);
    assert!(finished.stdout.contains("no finding"), "{}", finished.stdout);
    assert!(finished.stderr.contains("/no/such/file cannot be opened"), "{}", finished.stderr);
    assert!(std::fs::read_to_string(page.path()).is_ok_and(|text| text.contains("<svg")));
    // A page that cannot be written is noticed before the files are read.
    for out in ["/no/such/folder/page.html", "/"] {
        run(&format!("wire check {file} --html {out}")).expect_complaint(1, &["--html: ", out]);
    }
}

#[test]
fn a_capture_without_right_icrcs_is_no_success() {
    let _one_at_a_time = measuring();
    let scratch = Scratch::new("check-icrcs.pcap");
    let file = scratch.path();
    run(&format!("bench bw -n 200 -s 64 --json --pcap {file}")).expect_status(0);
    let mut bytes = std::fs::read(&file).expect("the capture was written");
    // The destination port, length and checksum of UDP, and the BTH up to its partition key.
    let is_packet = |window: &[u8]| window[..2] == 4791_u16.to_be_bytes() && window[8..] == [0xff, 0xff];
    let packets: Vec<usize> = (0..bytes.len() - 10).filter(|at| is_packet(&bytes[*at..*at + 10])).collect();
    assert!(packets.len() > 200);
    // A byte after the BTH, which has 12 bytes.
    packets.into_iter().for_each(|at| bytes[at + 6 + 12 + 1] ^= 1);
    std::fs::write(&file, &bytes).expect("the capture can be written");
    let finished = run(&format!("wire check {file}")).expect_status(1);
    assert!(finished.stderr.contains("none with a right ICRC (--ignore-icrc"), "{}", finished.stderr);
    assert!(finished.stdout.contains("no packet to judge"), "{}", finished.stdout);
}

#[test]
fn wrong_arguments_are_rejected() {
    run("wire check").expect_complaint(2, &["FILE"]);
    run("wire check x --timeout 32").expect_complaint(2, &["--timeout"]);
    run("wire check x --retry-count 8").expect_complaint(2, &["--retry-count"]);
    run("wire check x --max-conversations 0").expect_complaint(2, &["--max-conversations is 0"]);
    run("wire check /no/such/file").expect_complaint(1, &["/no/such/file cannot be opened"]);
}
