//! Test of the limit measurement with two real processes. The second process runs this program too, and its standard
//! output carries the protocol. Therefore this test has no harness, which would print there.

use std::process::Command;
use std::time::Duration;

use doorbell_machine::limit::{LimitOptions, LinkLimit, child_main, measure};

const CHILD: &str = "--limit-child";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(CHILD) => child_main(&arguments[1]).unwrap(),
        // A test runner that lists the tests finds none, and runs the whole program as one test.
        Some("--list") => {}
        _ => both_processes_agree_on_what_arrived(),
    }
}

fn both_processes_agree_on_what_arrived() {
    let options = LimitOptions {
        port: 24_793,
        payload_bytes: vec![36, 4112],
        repetition: Duration::from_millis(20),
        repetitions: 3,
        ping_pong_bytes: 36,
        ping_pongs: 200,
    };
    let own = |mode: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([CHILD, mode]);
        child
    };
    let report = measure(own, &options).unwrap();
    assert!(report.memory.line_ns > 0.0 && report.memory.copies.iter().all(|copy| copy.bytes_per_s > 0.0));
    let shared = report.shared_memory.expect("two processes of one user share memory");
    for link in [&report.udp, &shared] {
        check(link);
    }
    let nowhere = |_: &str| Command::new("/nonexistent");
    assert!(measure(nowhere, &options).is_err());
    // A second process that does not speak the protocol causes an error instead of a hang.
    let error = measure(|_: &str| Command::new("ls"), &options).unwrap_err();
    assert!(error.to_string().contains("answered"), "{error}");
    // If the second process does not share memory, the report still has all other results.
    let deaf = |mode: &str| own(mode.trim_end_matches("/shm"));
    let report = measure(deaf, &options).unwrap();
    let why = report.shared_memory.unwrap_err();
    assert!(why.contains("share memory"), "{why}");
    check(&report.udp);
}

fn check(link: &LinkLimit) {
    assert!(link.ping_pong_ns > 0 && link.ping_pong_blocking_ns > 0);
    let shapes: Vec<_> = link.results.iter().map(|result| (result.frame_bytes, result.segments)).collect();
    assert_eq!(shapes, [(78, 64), (4154, 15)]);
    for result in &link.results {
        let (slowest, fastest) = result.datagrams_per_s_spread;
        assert!(slowest <= result.datagrams_per_s && result.datagrams_per_s <= fastest);
        assert!(result.datagrams_per_s > 0.0 && result.received_share <= 1.0, "{result:?}");
        let frames = result.bytes_per_s / result.datagrams_per_s;
        assert!((frames - result.frame_bytes as f64).abs() < 1e-6);
    }
}
