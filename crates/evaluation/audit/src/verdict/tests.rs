use doorbell_counters::Common;
use doorbell_wire::{MessageKind, PathMtu};

use super::{Audit, Given, Predicted, Verdict, audit};
use crate::claim::{Claim, Figure, LinkType, Output, Setup, Tool};
use crate::counted::Counted;

const MIB: f64 = 1_048_576.0;

fn output(mebibytes_per_s: f64, bytes: u64, messages_per_s: f64, iterations: u64) -> Output {
    let average =
        Figure { printed: mebibytes_per_s, unit: "MB/sec".to_owned(), unit_bytes_per_s: MIB, resolution: 0.005 };
    let claim = Claim {
        bytes: Some(bytes),
        iterations: Some(iterations),
        average: Some(average),
        messages_per_s: Some(messages_per_s),
        messages_error_per_s: 0.5,
        ..Claim::default()
    };
    let setup = Setup {
        operation: Some(MessageKind::Write),
        path_mtu: Some(PathMtu::Mtu4096),
        link_type: Some(LinkType::Ethernet),
        ..Setup::default()
    };
    Output { tool: Some(Tool::Perftest), setup, claims: vec![claim], ..Output::default() }
}

fn counted(packets: u64, bytes_per_packet: u64) -> Counted {
    let mut counted = Counted::new("mlx5_0/1");
    counted.seconds = 10.0;
    counted.deltas[Common::TxPackets as usize] = Some(packets);
    counted.deltas[Common::TxBytes as usize] = Some(packets * bytes_per_packet);
    counted
}

fn causes(audit: &Audit) -> Vec<&'static str> {
    audit.findings.iter().map(|finding| finding.cause).collect()
}

/// 64 KiB at 150,000 messages/s are 9375 MiB/s.
fn plain() -> Output {
    output(9375.0, 65_536, 150_000.0, 1_500_000)
}

#[test]
fn a_claim_that_agrees_with_all_is_consistent() {
    let given = Given { link_bits_per_s: Some(100e9), ..Given::default() };
    let audit = audit(&plain(), Some(&counted(16 * 1_510_000, 4155)), &given);
    assert_eq!(audit.verdict, Verdict::Consistent, "{audit:#?}");
    assert!(causes(&audit).is_empty(), "{:?}", audit.findings);
}

#[test]
fn confused_units_and_directions_are_named() {
    for (factor, cause) in [(1.048_576, "units"), (1.0 / 1.048_576, "units"), (2.0, "both-directions"), (8.0, "bits")] {
        let audit = audit(&output(9375.0 * factor, 65_536, 150_000.0, 1_500_000), None, &Given::default());
        assert_eq!((audit.verdict, causes(&audit)), (Verdict::Contradicted, vec![cause]), "{factor}");
    }
    let audit = audit(&output(9375.0 * 1.3, 65_536, 150_000.0, 1_500_000), None, &Given::default());
    assert_eq!((audit.verdict, causes(&audit)), (Verdict::Contradicted, vec![]));
}

#[test]
fn payload_never_reaches_the_line_rate() {
    // 100 Gb/s are 12.5 GB/s, or 11920.9 MiB/s, and 98.04 % of that is payload.
    let of = |mebibytes: f64| {
        let messages = mebibytes * 16.0;
        let given = Given { link_bits_per_s: Some(100e9), ..Given::default() };
        audit(&output(mebibytes, 65_536, messages, 1_500_000), None, &given)
    };
    assert_eq!(of(11_600.0).verdict, Verdict::Consistent);
    assert_eq!(causes(&of(11_600.0)), ["line-rate"]);
    assert_eq!(of(11_850.0).verdict, Verdict::Contradicted);
    assert_eq!(of(25_000.0).verdict, Verdict::Contradicted);
    assert_eq!(causes(&of(15_000.0))[0], "both-directions");
}

#[test]
fn counters_below_the_needed_packets_contradict() {
    let audit = |packets| audit(&plain(), Some(&counted(packets, 4155)), &Given::default());
    assert_eq!(audit(16 * 1_500_000).verdict, Verdict::Consistent);
    let low = audit(16 * 1_000_000);
    assert_eq!((low.verdict, causes(&low)), (Verdict::Contradicted, vec!["counters"]));
    assert!(low.contradictions[0].contains("enough for 1000000 messages"), "{:?}", low.contradictions);
    assert_eq!(causes(&audit(100)), ["another-path", "counters"]);
}

#[test]
fn one_interval_of_counters_has_a_rate_and_no_total() {
    // An interval of one second in a benchmark of ten seconds.
    let mut counted = counted(16 * 150_000, 4155);
    counted.is_given_rate = true;
    counted.packet_rates = vec![16.0 * 150_000.0];
    assert_eq!(audit(&plain(), Some(&counted), &Given::default()).verdict, Verdict::Consistent);
    counted.packet_rates = vec![16.0 * 50_000.0];
    assert_eq!(audit(&plain(), Some(&counted), &Given::default()).verdict, Verdict::Contradicted);
}

#[test]
fn several_rows_are_compared_by_their_sum() {
    let mut rows = plain();
    // 64 B at 6.4 million messages/s.
    rows.claims.push(output(390.625, 64, 6_400_000.0, 1_000_000).claims.remove(0));
    let needed = 16 * 1_500_000 + 1_000_000;
    let of = |rows: &Output, packets| audit(rows, Some(&counted(packets, 4155)), &Given::default());
    let whole = of(&rows, needed);
    assert_eq!(whole.verdict, Verdict::Consistent);
    let sentence = format!("the messages of all 2 rows need {needed} packets");
    assert!(whole.comparisons.iter().any(|it| it.starts_with(&sentence)), "{:?}", whole.comparisons);
    assert_eq!(of(&rows, needed / 2).verdict, Verdict::Contradicted);
    rows.claims[1].iterations = None;
    let unknown = of(&rows, needed / 2);
    assert_eq!(unknown.verdict, Verdict::Consistent);
    assert!(unknown.notes.iter().any(|note| note.contains("2 rows")), "{:?}", unknown.notes);
}

#[test]
fn counters_that_were_reset_lead_to_no_verdict_of_theirs() {
    let mut reset = Counted::new("mlx5_0/1");
    reset.seconds = 10.0;
    reset.remarks.push("the counters decreased, so the device was reset".to_owned());
    let audit = audit(&plain(), Some(&reset), &Given::default());
    assert_eq!(audit.verdict, Verdict::Consistent);
    assert!(audit.notes.iter().any(|note| note.contains("was reset")), "{:?}", audit.notes);
    assert!(audit.notes.iter().any(|note| note.contains("counters are not compared")), "{:?}", audit.notes);
}

#[test]
fn packets_of_another_path_mtu_and_losses_are_found() {
    let mut counted = counted(64 * 1_500_000, 1083);
    counted.deltas[Common::Retransmissions as usize] = Some(500_000);
    counted.deltas[Common::RnrReceived as usize] = Some(3);
    let audit = audit(&plain(), Some(&counted), &Given::default());
    assert_eq!(causes(&audit), ["mtu", "retransmissions", "rnr"]);
    assert!(audit.findings[0].sentence.contains("path MTU of 1024, not 4096"), "{:?}", audit.findings[0]);
}

#[test]
fn a_low_rate_has_causes_from_the_settings() {
    let mut low = output(100.0, 64, 1_638_400.0, 5_000_000);
    low.setup.queue_pairs = Some(1);
    low.setup.inline = Some(0);
    low.setup.depth = Some(1);
    let given = Given { link_bits_per_s: Some(100e9), ..Given::default() };
    let audit = audit(&low, None, &given);
    assert_eq!(audit.verdict, Verdict::Consistent);
    assert_eq!(causes(&audit)[0], "message-rate");
    for cause in ["inline", "queue-pairs", "window"] {
        assert!(causes(&audit).contains(&cause), "{cause}: {:?}", audit.findings);
    }
    low.setup.operation = Some(MessageKind::Read);
    let audit = super::audit(&low, None, &given);
    assert!(!causes(&audit).contains(&"inline"), "{:?}", audit.findings);
}

#[test]
fn margins_have_whole_seconds() {
    let of = |duration_s: f64, seconds: u64, is_bidirectional: bool| {
        let mut output = output(9375.0, 65_536, 150_000.0, 150_000 * seconds);
        output.setup.duration_s = Some(duration_s);
        output.setup.is_bidirectional = is_bidirectional;
        causes(&audit(&output, None, &Given::default())).contains(&"margin")
    };
    // A quarter of 10 s has 2 whole seconds, a quarter of 3 s has none.
    assert!(of(10.0, 6, false) && !of(10.0, 5, false) && !of(10.0, 10, false) && !of(3.0, 3, false));
    assert!(of(10.0, 3, true) && !of(10.0, 6, true));
}

#[test]
fn packets_of_another_kind_are_not_compared() {
    let mut multicast = plain();
    multicast.setup.other_packets = Some("multicast");
    let given = Given { link_bits_per_s: Some(10e9), ..Given::default() };
    let audit = audit(&multicast, Some(&counted(5, 4155)), &given);
    assert_eq!((audit.verdict, audit.arithmetic), (Verdict::Consistent, None));
    assert!(audit.notes.iter().any(|note| note.starts_with("the messages are multicast")), "{:?}", audit.notes);
}

#[test]
fn short_runs_and_predictions_are_reported() {
    let predicted = Predicted { testbed: "connectx5-100g".to_owned(), bytes_per_s: 10e9, messages_per_s: 152_000.0 };
    let given = Given { predicted: Some(predicted), ..Given::default() };
    let audit = audit(&output(9375.0, 65_536, 150_000.0, 1000), None, &given);
    assert_eq!(causes(&audit), ["short-run"]);
    assert!(audit.predictions.iter().any(|sentence| sentence.contains("98 %")), "{:?}", audit.predictions);
    let mut alone = output(9375.0, 65_536, 150_000.0, 1000);
    alone.claims[0].messages_per_s = None;
    let audit = super::audit(&alone, None, &given);
    assert_eq!((audit.verdict, audit.predictions.len()), (Verdict::Unknown, 1));
}

#[test]
fn an_output_without_claims_is_unknown() {
    assert_eq!(audit(&Output::default(), None, &Given::default()).verdict, Verdict::Unknown);
}
