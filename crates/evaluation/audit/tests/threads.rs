//! Outputs from public threads, restated with their figures, and the verdict that each thread arrived at.
//!
//! The name of a file is that of the project and the number of the thread.

use doorbell_audit::{Audit, Counted, Given, Verdict, audit, json, read, text};
use doorbell_verbs_core::Status;

fn causes(audit: &Audit) -> Vec<&'static str> {
    audit.findings.iter().map(|finding| finding.cause).collect()
}

fn judged(output: &str, link_bits_per_s: Option<f64>, counters: Option<&str>) -> Audit {
    let counted = counters.map(|text| Counted::from_json(text).expect("the counters are readable").remove(0));
    let audit = audit(&read(output, &[]), counted.as_ref(), &Given { link_bits_per_s, ..Given::default() });
    // Each audit has a page and a JSON object with its verdict.
    assert!(text(&audit)[0].starts_with(audit.verdict.name()), "{:?}", text(&audit));
    assert_eq!(json(&audit)["verdict"], audit.verdict.name());
    audit
}

/// Messages divided by the duration are half of the printed rate: perftest leaves out a quarter at each end.
#[test]
fn perftest_273() {
    let audit = judged(include_str!("threads/perftest-273.txt"), None, None);
    assert_eq!((audit.verdict, causes(&audit)), (Verdict::Consistent, vec!["margin"]));
    assert!(audit.findings[0].sentence.contains("30.0 s of the requested 60 s"), "{:?}", audit.findings);
}

/// A capture showed 500,000 packets per second, a sixth of the packets of 11,728 MiB/s: the capture lost the rest.
#[test]
fn perftest_225() {
    let capture = "{\"devices\": [{\"device\": \"ibdump\", \"seconds\": 1, \"per_second\": {\"tx_packets\": 5e5}}]}";
    let audit = judged(include_str!("threads/perftest-225.txt"), Some(100e9), Some(capture));
    assert_eq!((audit.verdict, causes(&audit)[0]), (Verdict::Contradicted, "counters"));
    assert!(audit.findings[0].sentence.contains("17 % of the packets"), "{:?}", audit.findings);
    // Without the capture, the claim fits the link.
    assert_eq!(judged(include_str!("threads/perftest-225.txt"), Some(100e9), None).verdict, Verdict::Consistent);
}

/// A run of 1000 messages of 1 KiB was six times slower than the same row of a run over all sizes.
#[test]
fn perftest_65() {
    let audit = judged(include_str!("threads/perftest-65.txt"), None, None);
    assert_eq!((audit.verdict, causes(&audit)), (Verdict::Consistent, vec!["short-run"]));
}

/// The default GID indexes of the two ends differed; -x 3 at both ends solved it.
#[test]
fn perftest_44() {
    let audit = judged(include_str!("threads/perftest-44.txt"), None, None);
    assert_eq!((audit.verdict, causes(&audit)), (Verdict::Failed, vec!["gid"]));
    assert_eq!(audit.output.failures, [Status::RetryExceeded]);
}

/// Both ends were one port, and the traffic did not leave the NIC.
#[test]
fn spdk_2741() {
    let audit = judged(include_str!("threads/spdk-2741.txt"), Some(100e9), None);
    assert_eq!((audit.verdict, causes(&audit)[0]), (Verdict::Contradicted, "loopback"));
    assert!(causes(&audit).contains(&"margin") && causes(&audit).contains(&"cpu"), "{:?}", audit.findings);
}

/// 24,700 MB/s are the sum of both directions of a link of 100 Gb/s, which the thread found very good.
#[test]
fn ompi_3216() {
    let audit = judged(include_str!("threads/ompi-3216.txt"), Some(100e9), None);
    assert_eq!((audit.verdict, causes(&audit)), (Verdict::Consistent, vec!["line-rate"]));
}

/// 900 GB/s between devices with 318 GB/s: the client had counted sends that had not arrived.
#[test]
fn ucx_py_1088() {
    let audit = judged(include_str!("threads/ucx-py-1088.txt"), Some(8.0 * 318e9), None);
    assert_eq!((audit.verdict, causes(&audit)[0]), (Verdict::Contradicted, "local-completion"));
}

/// With the right settings, a bond of two ports reached its 400 Gb/s.
#[test]
fn ucx_10649() {
    let audit = judged(include_str!("threads/ucx-10649.txt"), Some(400e9), None);
    assert_eq!((audit.verdict, causes(&audit)), (Verdict::Consistent, vec!["line-rate"]));
}

/// The output names the status by its text instead of its number.
#[test]
fn perftest_342() {
    let audit = judged(include_str!("threads/perftest-342.txt"), None, None);
    assert_eq!((audit.verdict, &audit.output.failures[..]), (Verdict::Failed, &[Status::RetryExceeded][..]));
    assert!(text(&audit).iter().any(|line| line.contains(". Check: ")), "{:?}", text(&audit));
}

/// A software device reported atomics, whose numbers agree with each other.
#[test]
fn pib_4() {
    let audit = judged(include_str!("threads/pib-4.txt"), None, None);
    assert_eq!((audit.verdict, causes(&audit)), (Verdict::Consistent, vec!["short-run"]));
}
