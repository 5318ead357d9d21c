mod credits;
mod kinds;
mod mutated;
mod script;

use doorbell_wire::{AtomicEthRepr, NakCode, Opcode, PartitionKey, Psn, Qpn, RKey, Syndrome};
use script::{A, ACKS_BEFORE_LOSS, B, FIRST, MTU, SENDS_BEFORE_LOSS, Script, Sent, aeth, clean, move_psn, reth};

use super::*;
use crate::decode::tests::{pcap, pcap_of};

#[test]
fn a_conversation_with_recovery_has_no_finding() {
    let report = clean().check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!((report.queue_pairs.len(), report.more_findings, report.unfollowed_packets), (2, 0, 0));
    assert_eq!((report.queue_pairs[0].opposite, report.queue_pairs[1].opposite), (Some(1), Some(0)));
    assert_eq!((report.queue_pairs[0].from_qpn, report.queue_pairs[0].to_qpn), (Some(0xa), 0xb));
    assert_eq!(report.queue_pairs[0].repeated, 3 + 1 + 1);
    assert!(report.queue_pairs[0].complete && !report.has_errors());
    for count in &report.rules {
        assert_eq!(count.judged == 0, count.rule.sentence.contains("(--"), "{count:?}");
    }
}

#[test]
fn the_documentation_has_the_table_of_rules() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/wire-check.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("<!-- generated: rules of wire check, which a test compares -->").unwrap();
    let (table, _) = rest.split_once("<!-- end of generated part -->").unwrap();
    let rows = RULES.iter().map(|rule| {
        let severity = rule.severity.to_string();
        format!("| `{}` | {} | {severity} | {} |", rule.name, rule.section, rule.sentence)
    });
    assert_eq!(table.lines().filter(|line| line.starts_with("| `")).collect::<Vec<_>>(), rows.collect::<Vec<_>>());
}

#[test]
fn timeouts_and_retries_need_the_settings_of_the_queue_pair() {
    let mut script = Script::new();
    let psn = script.send();
    script.ack(psn);
    let psn = script.send();
    (0..4).for_each(|_| script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62));
    script.ack(psn);
    let findings = |limits: Limits| {
        let report = script.check(&limits);
        report.findings.iter().map(|finding| (finding.rule, finding.packet)).collect::<Vec<_>>()
    };
    assert!(findings(Limits::default()).is_empty());
    // The frames have a distance of 1 us.
    let timeout = |ns| Limits { timeout_ns: Some(ns), ..Limits::default() };
    assert!(findings(timeout(1000)).is_empty());
    assert_eq!(findings(timeout(1500)), [4_u64, 5, 6, 7].map(|packet| ("timeout", packet)));
    let retries = |count| Limits { retry_count: Some(count), ..Limits::default() };
    assert!(findings(retries(4)).is_empty());
    assert_eq!(findings(retries(2)), [6_u64, 7].map(|packet| ("retry-count", packet)));
}

#[test]
fn the_first_request_of_a_connection_has_a_timeout_too() {
    let found = |earlier_messages, complete| {
        let mut script = Script::new();
        let psn = script.send();
        script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
        script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
        script.msn = earlier_messages;
        script.ack(psn);
        let report =
            script.check(&Limits { timeout_ns: Some(1500), retry_count: Some(1), complete, ..Limits::default() });
        report.findings.iter().map(|finding| (finding.rule, finding.packet)).collect::<Vec<_>>()
    };
    assert_eq!(found(0, true), [("timeout", 2), ("retry-count", 3), ("timeout", 3)]);
    // An earlier request, which was not captured, may have been the overdue one.
    assert_eq!([found(1, true), found(0, false)], [vec![], vec![]]);
}

#[test]
fn a_recovery_from_an_earlier_request_is_no_timeout() {
    let mut script = Script::new();
    let psn = script.send();
    let next = script.send();
    // The timeout expires while the ACK of the first request is on its way.
    script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
    script.ack(psn);
    script.push(A, Opcode::RC_SEND_ONLY, next, &[], 62);
    script.ack(next);
    let report = script.check(&Limits { timeout_ns: Some(2500), retry_count: Some(0), ..Limits::default() });
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn an_rnr_nak_may_be_lost_after_its_capture() {
    let mut script = Script::new();
    let psn = script.send();
    script.ack(psn);
    let psn = script.send();
    // A timer of 491.52 ms.
    script.answer(psn, Syndrome::rnr_nak(31));
    script.notify();
    script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
    script.ack(psn);
    let frames: Vec<_> = script.packets.iter().map(Sent::frame).collect();
    let findings = |file: &[u8]| check(file, &Options::default(), &Limits::default()).unwrap().findings.len();
    assert_eq!(findings(&pcap(&frames)), 1, "a few round trips after the NAK");
    // Linux cooked headers with the packet type: 4 is outgoing, 0 is incoming.
    let cooked = |type_of_answer: u8| {
        let cook = |(packet, frame): (&Sent, &Vec<u8>)| {
            let own = if packet.from == B { type_of_answer } else { 4 - type_of_answer };
            let mut cooked = vec![0, own, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0];
            cooked.extend(&frame[12..]);
            cooked
        };
        let frames: Vec<_> = script.packets.iter().zip(&frames).map(cook).collect();
        pcap_of(113, true, false, usize::MAX, &frames)
    };
    assert_eq!((findings(&cooked(0)), findings(&cooked(4))), (1, 0));
    // The request is repeated after many round trips.
    let cnp = script.packets[4].clone();
    (0..20).for_each(|_| script.packets.insert(4, cnp.clone()));
    assert!(script.check(&Limits::default()).findings.is_empty());
}

#[test]
fn a_repetition_after_an_rnr_nak_is_no_timeout() {
    let mut script = Script::new();
    let psn = script.send();
    script.ack(psn);
    let psn = script.send();
    (0..3).for_each(|_| script.notify());
    // The responder answers the second transmission, or the first one late.
    script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
    script.answer(psn, Syndrome::rnr_nak(1));
    script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
    script.ack(psn);
    let report = script.check(&Limits { timeout_ns: Some(2500), ..Limits::default() });
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let count = report.rules.iter().find(|count| count.rule.name == "rnr-timer").unwrap();
    assert_eq!((count.judged, count.unjudged), (0, 1), "{count:?}");
}

#[test]
fn a_new_connection_may_repeat_a_refused_request() {
    let mut script = Script::new();
    for _ in 0..3 {
        let psn = script.send();
        script.ack(psn);
    }
    let psn = script.send();
    script.answer(psn, Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR));
    let findings = |script: &Script, complete| {
        let report = script.check(&Limits { complete, ..Limits::default() });
        report.findings.iter().map(|finding| (finding.rule, finding.packet)).collect::<Vec<_>>()
    };
    assert_eq!([false, true].map(|complete| findings(&script, complete)), [vec![], vec![]]);
    script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
    script.ack(psn);
    assert_eq!(findings(&script, false), []);
    assert_eq!(findings(&script, true), [("refused-request", 10)]);
}

/// Returns the rules and packets of the findings in a complete capture.
fn found_if_complete(script: &Script) -> Vec<(&'static str, u64)> {
    let report = script.check(&Limits { complete: true, ..Limits::default() });
    assert!(script.check(&Limits::default()).findings.is_empty(), "findings without the evidence");
    report.findings.iter().map(|finding| (finding.rule, finding.packet)).collect()
}

#[test]
fn a_complete_capture_has_the_start_of_the_first_message() {
    let mut script = Script::new();
    script.write();
    script.write();
    let first = script.packets.remove(0);
    assert_eq!(found_if_complete(&script), [("acknowledged-psn", 1)]);
    // The first packet was lost before the capture, and comes again.
    script.packets.insert(2, first);
    assert_eq!(found_if_complete(&script), []);
}

#[test]
fn a_nak_for_a_missing_packet_follows_a_later_one() {
    let mut script = Script::new();
    let sent: Vec<_> = (0..3).map(|_| script.send()).collect();
    script.msn = 1;
    script.answer(sent[1], Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
    assert_eq!(found_if_complete(&script), []);
    script.packets.remove(2);
    assert_eq!(found_if_complete(&script), [("nak-sequence", 3)]);
}

#[test]
fn a_missing_packet_is_not_acknowledged_before_its_retransmission() {
    let mut script = Script::new();
    let sent: Vec<_> = (0..3).map(|_| script.send()).collect();
    script.msn = 1;
    script.answer(sent[1], Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
    sent[1..].iter().for_each(|psn| script.push(A, Opcode::RC_SEND_ONLY, *psn, &[], 62));
    script.msn = 2;
    script.ack(sent[2]);
    assert_eq!(found_if_complete(&script), []);
    let ack = script.packets.remove(6);
    script.packets.insert(4, ack);
    assert_eq!(found_if_complete(&script), [("go-back-n", 5)]);
}

#[test]
fn answers_to_duplicates_count_no_new_message() {
    let mut script = Script::new();
    let sent: Vec<_> = (0..2).map(|_| script.send()).collect();
    script.ack(sent[0]);
    script.ack(sent[1]);
    script.push(A, Opcode::RC_SEND_ONLY, sent[0], &[], 62);
    // A responder may answer with the count of all messages.
    script.answer(sent[0], Syndrome::ACK_UNLIMITED);
    assert_eq!(found_if_complete(&script), []);
    script.msn = 3;
    script.answer(sent[0], Syndrome::ACK_UNLIMITED);
    assert_eq!(found_if_complete(&script), [("msn", 7)]);
}

#[test]
fn responses_have_the_order_of_the_requests() {
    let mut script = Script::new();
    let mut atomic = [0; 28];
    AtomicEthRepr { virtual_address: 0x2000, rkey: RKey::new(7), swap_or_add: 1, compare: 0 }.write(&mut atomic);
    let sent: Vec<_> = (0..4).map(|_| script.request(Opcode::RC_FETCH_ADD, &atomic, 0, 1)).collect();
    for psn in &sent {
        script.msn += 1;
        script.atomic_answer(*psn);
    }
    assert_eq!(found_if_complete(&script), []);
    script.packets.swap(5, 6);
    assert_eq!(found_if_complete(&script), [("response-order", 7)]);
    // The second request has no response, until the requester repeats that request.
    script.packets.remove(6);
    assert_eq!(found_if_complete(&script), [("response-order", 2)]);
    script.push(A, Opcode::RC_FETCH_ADD, sent[1], &atomic, 0);
    script.atomic_answer(sent[1]);
    assert_eq!(found_if_complete(&script), []);
}

#[test]
fn only_aligned_atomics_are_performed() {
    let mut script = clean();
    for nth in 0..2 {
        script.nth(Opcode::RC_FETCH_ADD, nth).extension[7] = 4;
    }
    let report = script.check(&Limits::default());
    let rules: Vec<_> = report.findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, ["atomic-address"; 2]);
}

#[test]
fn a_cnp_needs_a_packet_that_can_be_marked() {
    let mut script = Script::new();
    let psn = script.send();
    script.ack(psn);
    script.notify();
    assert_eq!(found_if_complete(&script), [("cnp-cause", 3)]);
    let mut frames: Vec<_> = script.packets.iter().map(Sent::frame).collect();
    // ECT(0) in the traffic class of IPv4. The ICRC does not cover that byte.
    frames[0][15] = 2;
    let limits = Limits { complete: true, ..Limits::default() };
    let report = check(&pcap(&frames)[..], &Options::default(), &limits).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn times_that_do_not_advance_are_not_judged() {
    let mut script = Script::new();
    let psn = script.send();
    script.ack(psn);
    let psn = script.send();
    script.push(A, Opcode::RC_SEND_ONLY, psn, &[], 62);
    script.notify();
    script.notify();
    let frames: Vec<_> = script.packets.iter().map(Sent::frame).collect();
    let limits = Limits { timeout_ns: Some(1000), cnp_interval_ns: Some(1000), ..Limits::default() };
    for has_times in [true, false] {
        let mut file = pcap(&frames);
        let mut at = 24;
        for (index, frame) in (0..).zip(&frames) {
            let time = if has_times { [1_700_000_000 - index, index * 1000] } else { [0, 0] };
            let [seconds, nanoseconds] = time.map(u32::to_le_bytes);
            file[at..at + 4].copy_from_slice(&seconds);
            file[at + 4..at + 8].copy_from_slice(&nanoseconds);
            at += 16 + frame.len();
        }
        let report = check(&file[..], &Options::default(), &limits).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        for rule in ["timeout", "cnp-rate"] {
            let count = report.rules.iter().find(|count| count.rule.name == rule).unwrap();
            assert_eq!((count.judged, count.unjudged), (0, 1), "{count:?}");
        }
    }
}

#[test]
fn swapped_retransmissions_are_no_finding() {
    let mut script = Script::new();
    let sent: Vec<_> = (0..4).map(|_| script.send()).collect();
    script.msn = 1;
    script.answer(sent[1], Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
    for at in [2, 3, 1] {
        script.push(A, Opcode::RC_SEND_ONLY, sent[at], &[], 62);
    }
    script.msn = 3;
    script.ack(sent[3]);
    let psn = script.send();
    script.ack(psn);
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    // Without the first retransmission, the requester has skipped a packet.
    script.remove(Opcode::RC_SEND_ONLY, 6);
    let report = script.check(&Limits::default());
    assert!(report.findings.iter().any(|finding| finding.rule == "go-back-n"), "{:#?}", report.rules);
}

#[test]
fn the_rate_of_cnps_needs_an_interval() {
    let interval = |ns| Limits { cnp_interval_ns: Some(ns), ..Limits::default() };
    assert!(clean().check(&interval(1000)).findings.is_empty());
    let report = clean().check(&interval(1001));
    assert_eq!(report.findings.iter().filter(|finding| finding.rule == "cnp-rate").count(), 11);
    assert!(!report.has_errors(), "a warning is no error");
}

#[test]
fn an_msn_that_is_always_wrong_is_found() {
    let wrong = |change: fn(u8) -> u8| -> Vec<_> {
        let mut script = Script::new();
        for _ in 0..6 {
            let psn = script.send();
            script.ack(psn);
            let msn = &mut script.packets.last_mut().unwrap().extension[3];
            *msn = change(*msn);
        }
        script.check(&Limits::default()).findings.into_iter().map(|finding| (finding.rule, finding.packet)).collect()
    };
    let all = wrong(|_| 0);
    assert_eq!(all, [4_u64, 6, 8, 10, 12].map(|packet| ("msn", packet)));
    assert_eq!(wrong(|msn| 2 * msn), all);
    assert_eq!(wrong(|msn| msn + u8::from(msn > 3)), [("msn", 8)]);
}

#[test]
fn two_deviations_in_a_row_are_found() {
    let mut script = Script::new();
    for key in [0x8000, 0x8000, 0x8001, 0x8002, 0x8000] {
        script.send();
        script.packets.last_mut().unwrap().bth.partition_key = PartitionKey::new(key);
    }
    let found: Vec<_> = script.check(&Limits::default()).findings.iter().map(|finding| finding.packet).collect();
    assert_eq!(found, [3, 4]);
}

#[test]
fn warnings_beyond_the_maximum_hide_no_error() {
    let mut script = Script::new();
    for _ in 0..500 {
        let psn = script.send();
        script.ack(psn);
        script.packets.last_mut().unwrap().bth.ack_request = true;
    }
    script.nth(Opcode::RC_SEND_ONLY, 490).body.push(0);
    let report = script.check(&Limits::default());
    assert!(report.has_errors() && report.findings.iter().any(|finding| finding.rule == "padding"));
    assert_eq!((report.errors, report.warnings), (1, 500));
    assert_eq!(report.more_findings, 501 - report.findings.len() as u64);
    let of_rule = |name| report.rules.iter().find(|count| count.rule.name == name).unwrap().findings;
    assert_eq!((of_rule("ack-request"), of_rule("padding")), (500, 1));
}

/// The capturer may lose any packet, or begin at any packet. Neither is the fault of a queue pair.
#[test]
fn packets_that_the_capturer_lost_cause_no_finding() {
    let whole = clean().packets;
    for lost in 0..whole.len() {
        let mut packets = whole.clone();
        packets.remove(lost);
        let script = Script { packets, ..Script::new() };
        let report = script.check(&Limits::default());
        // Without the first retransmission, a complete capture would show a violation.
        let is_retransmission = whole[..lost].iter().any(|sent| {
            sent.from == A && (sent.bth.psn, sent.bth.opcode) == (whole[lost].bth.psn, whole[lost].bth.opcode)
        });
        let findings = report.findings.iter().filter(|finding| finding.rule != "go-back-n" || !is_retransmission);
        assert_eq!(findings.count(), 0, "without packet {}: {:#?}", lost + 1, report.findings);
    }
    for start in 0..whole.len() {
        let script = Script { packets: whole[start..].to_vec(), ..Script::new() };
        let report = script.check(&Limits::default());
        assert!(report.findings.is_empty(), "from packet {}: {:#?}", start + 1, report.findings);
    }
}

#[test]
fn a_loss_after_a_read_without_responses_is_no_finding() {
    let mut script = Script::new();
    let psn = script.send();
    script.ack(psn);
    script.request(Opcode::RC_READ_REQUEST, &reth(2500), 0, 3);
    script.write();
    script.remove(Opcode::RC_WRITE_FIRST, 0);
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert!(!report.queue_pairs[0].complete);
}

#[test]
fn frames_that_are_cut_may_hold_several_packets() {
    let mut script = Script::new();
    // The first frame has the packets before segmentation.
    let first = script.request(Opcode::RC_WRITE_FIRST, &reth(1000), 800, 3);
    let last = script.request(Opcode::RC_WRITE_LAST, &[], 232, 1);
    script.push(A, Opcode::RC_WRITE_FIRST, first, &reth(1000), 256);
    script.ack(last);
    let frames: Vec<_> = script.packets.iter().map(Sent::frame).collect();
    let report = check(&pcap_of(1, true, false, 100, &frames)[..], &Options::default(), &Limits::default()).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    for rule in ["padding", "mtu", "dma-length", "retransmission"] {
        let count = report.rules.iter().find(|count| count.rule.name == rule).unwrap();
        assert!(count.unjudged > 0, "{count:?}");
    }
}

#[test]
fn directions_may_come_one_after_the_other() {
    let mut script = Script::new();
    for _ in 0..300 {
        let psn = script.send();
        script.ack(psn);
    }
    let (requests, answers): (Vec<_>, Vec<_>) = script.packets.into_iter().partition(|packet| packet.from == A);
    let (first, rest) = requests.split_at(10);
    let packets = [first, &answers[..], rest].concat();
    let report = Script { packets, ..Script::new() }.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    // Without the requests, the responder has answered PSNs that were never sent.
    let packets = [first, &answers[..]].concat();
    let report = Script { packets, ..Script::new() }.check(&Limits::default());
    assert!(report.findings.iter().any(|finding| finding.rule == "unsent-psn"), "{:#?}", report.rules);
}

#[test]
fn one_direction_alone_has_no_finding() {
    for from in [A, B] {
        let packets = clean().packets.into_iter().filter(|packet| packet.from == from).collect();
        let report = Script { packets, ..Script::new() }.check(&Limits::default());
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert_eq!(report.queue_pairs[0].opposite, None);
    }
}

#[test]
fn a_new_connection_with_the_same_numbers_has_no_finding() {
    let mut script = clean();
    let again = clean().packets.into_iter().map(|mut packet| {
        move_psn(&mut packet, 5_000_000);
        packet
    });
    script.packets.extend(again);
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn a_new_connection_may_start_at_the_same_psn() {
    let mut script = Script::new();
    let mut atomic = [0; 28];
    AtomicEthRepr { virtual_address: 0x2000, rkey: RKey::new(7), swap_or_add: 1, compare: 0 }.write(&mut atomic);
    for bytes in [62, 40] {
        (script.psn, script.msn) = (Psn::new(FIRST), 0);
        let psn = script.request(Opcode::RC_FETCH_ADD, &atomic, 0, 1);
        script.msn += 1;
        script.atomic_answer(psn);
        script.packets.last_mut().unwrap().extension[11] = bytes as u8;
        for _ in 0..4 {
            let psn = script.request(Opcode::RC_SEND_ONLY, &[], bytes, 1);
            script.ack(psn);
        }
    }
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn a_new_connection_may_have_a_larger_path_mtu() {
    let mut script = Script::new();
    for _ in 0..3 {
        script.request(Opcode::RC_SEND_FIRST, &[], 256, 1);
        let last = script.request(Opcode::RC_SEND_LAST, &[], 200, 1);
        script.ack(last);
        let psn = script.request(Opcode::RC_READ_REQUEST, &reth(700), 0, 3);
        script.msn += 1;
        let aeth = aeth(Syndrome::ACK_UNLIMITED, script.msn);
        script.push(B, Opcode::RC_READ_RESPONSE_FIRST, psn, &aeth, 256);
        script.push(B, Opcode::RC_READ_RESPONSE_MIDDLE, psn.add(1), &[], 256);
        script.push(B, Opcode::RC_READ_RESPONSE_LAST, psn.add(2), &aeth, 188);
    }
    script.psn = script.psn.add(5_000_000);
    script.msn = 0;
    script.read();
    script.read();
    for _ in 0..2 {
        let psn = script.request(Opcode::RC_SEND_ONLY, &[], MTU, 1);
        script.ack(psn);
        script.write();
    }
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn a_queue_pair_may_get_another_peer() {
    let mut script = clean();
    let again = clean().packets.into_iter().map(|mut packet| {
        move_psn(&mut packet, 5_000_000);
        if packet.from == A {
            packet.bth.dest_qpn = Qpn::new(0xc);
        }
        packet
    });
    script.packets.extend(again);
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let opposites: Vec<_> = report.queue_pairs.iter().map(|queue_pair| queue_pair.opposite).collect();
    assert_eq!(opposites, [None, Some(2), Some(1)]);
}

#[test]
fn wrong_icrcs_everywhere_are_the_capture_before_the_nic() {
    let mut script = clean();
    script.packets.iter_mut().for_each(|packet| packet.is_damaged = true);
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty() && !report.has_judged());
    let kept = Options { drop_bad_icrc: false, ..Options::default() };
    let frames: Vec<_> = script.packets.iter().map(Sent::frame).collect();
    let report = check(&pcap(&frames)[..], &kept, &Limits::default()).unwrap();
    assert_eq!((report.findings.len(), report.queue_pairs.len(), report.has_judged()), (0, 2, true));
    let version = report.rules.iter().find(|count| count.rule.name == "version").unwrap();
    assert_eq!((version.judged, version.unjudged), (0, frames.len() as u64));
}

#[test]
fn memory_does_not_grow_with_the_capture() {
    let mut script = Script::new();
    for _ in 0..20_000 {
        let psn = script.send();
        script.ack(psn);
    }
    let report = script.check(&Limits::default());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    for queue_pair in &report.queue_pairs {
        assert_eq!(queue_pair.packets, 20_000);
        assert!((100..=256).contains(&queue_pair.events.len()), "{}", queue_pair.events.len());
    }
}
