//! Probes that the requester sends before the configured timeout when an answer is overdue.

use crate::common::End;
use crate::common::script::{OWN_PSN, Script};
use doorbell_verbs_core::{SendOperation as Op, Status};
use doorbell_wire::{NakCode, Opcode, Psn};

const EARLIEST_NS: u64 = 500_000;

fn psn(index: u32) -> Psn {
    OWN_PSN.add(index)
}

/// Returns the sequence numbers of the sent packets, relative to the first sequence number of the test.
fn numbers(script: &mut Script) -> Vec<u32> {
    script.sent().iter().map(|packet| packet.psn().distance_from(OWN_PSN)).collect()
}

/// Posts one more SEND of one packet, and returns whether the packet has left.
fn is_window_open(script: &mut Script) -> bool {
    script.post(Op::Send, 256);
    script.world.transmit();
    let qpn = script.qpn;
    script.rnic().pending_work(qpn) == 0
}

#[test]
fn a_probe_resends_only_the_oldest_and_newest_packets() {
    let mut script = Script::new();
    for _ in 0..8 {
        script.post(Op::Send, 600);
    }
    assert_eq!(numbers(&mut script).len(), 24);
    script.pass(EARLIEST_NS);
    let probes = script.sent();
    assert!(probes.iter().all(|probe| probe.bth().ack_request()), "a probe requests no acknowledgement");
    assert_eq!(probes.iter().map(|probe| probe.psn()).collect::<Vec<_>>(), [psn(0), psn(23)]);
    assert_eq!(probes[0].opcode(), Opcode::RC_SEND_FIRST);
    assert_eq!(probes[1].opcode(), Opcode::RC_SEND_LAST);
    assert_eq!(script.counters().tx_retransmitted_packets, 2);
    // Case: the peer had received all messages, but its program had no CPU time. All sent messages complete.
    script.ack(psn(23));
    assert_eq!(script.ends().len(), 8);
    script.world.settle();
    assert_eq!(numbers(&mut script), [0; 0], "no packet may be left to send");
    script.world.assert_at_rest();
}

#[test]
fn a_gap_that_a_probe_finds_is_filled() {
    let mut script = Script::new();
    for _ in 0..4 {
        script.post(Op::Send, 600);
    }
    script.sent();
    script.pass(EARLIEST_NS);
    assert_eq!(numbers(&mut script), [0, 11]);
    // Case: the network had lost all packets. The peer expects the oldest packet, so the newest packet is out of
    // sequence.
    script.nak(psn(1), NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(numbers(&mut script), (1..12).collect::<Vec<_>>());
    script.ack(psn(11));
    assert_eq!(script.ends().len(), 4);
}

#[test]
fn three_unanswered_probes_cause_full_retransmission() {
    let mut script = Script::new();
    for _ in 0..4 {
        script.post(Op::Send, 8);
    }
    script.sent();
    for wait in [1, 2, 4] {
        script.pass(wait * EARLIEST_NS);
        assert_eq!(numbers(&mut script), [0, 3]);
    }
    script.pass(8 * EARLIEST_NS);
    assert_eq!(numbers(&mut script), [0, 1, 2, 3]);
    assert_eq!(script.counters().local_ack_timeout_err, 0);
    script.ack(psn(3));
    assert_eq!(script.ends(), [0, 1, 2, 3].map(|id| (id, Status::Success)));
}

#[test]
fn a_single_packet_is_its_own_probe_and_an_answer_ends_probing() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    script.post(Op::Send, 8);
    script.sent();
    script.ack(psn(0));
    script.pass(EARLIEST_NS);
    assert_eq!(numbers(&mut script), [1]);
    script.ack(psn(1));
    script.pass(100 * EARLIEST_NS);
    assert_eq!(numbers(&mut script), [0; 0]);
}

#[test]
fn a_queue_pair_that_waits_for_a_window_still_probes() {
    let mut script = Script::new();
    let mut posted = 0;
    while is_window_open(&mut script) {
        posted += 1;
    }
    let sent = numbers(&mut script).len() as u32;
    posted += 1;
    assert!(sent < posted, "the window did not fill");
    script.pass(EARLIEST_NS);
    assert_eq!(numbers(&mut script), [0, sent - 1]);
    script.ack(psn(sent - 1));
    assert_eq!(numbers(&mut script), (sent..posted).collect::<Vec<_>>());
}

#[test]
fn the_window_is_as_wide_after_a_probe_as_before() {
    let widths = [false, true].map(|probed| {
        let mut script = Script::new();
        script.post(Op::Send, 8);
        script.sent();
        if probed {
            script.pass(EARLIEST_NS);
            script.sent();
        }
        script.ack(psn(0));
        while is_window_open(&mut script) {}
        script.sent().len()
    });
    assert_eq!(widths[0], widths[1]);
}

#[test]
fn a_probe_asks_only_for_missing_read_responses() {
    let mut script = Script::new();
    let mtu = script.mtu;
    script.post_read(4 * mtu);
    script.post_read(2 * mtu);
    assert_eq!(numbers(&mut script), [0, 4]);
    let payload = vec![7; mtu];
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(0), &payload);
    script.pass(EARLIEST_NS);
    let probes = script.sent();
    assert_eq!(probes.iter().map(|probe| probe.psn()).collect::<Vec<_>>(), [psn(1), psn(4)]);
    for index in 1..3 {
        script.respond(Opcode::RC_READ_RESPONSE_MIDDLE, psn(index), &payload);
    }
    script.respond(Opcode::RC_READ_RESPONSE_LAST, psn(3), &payload);
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(4), &payload);
    script.respond(Opcode::RC_READ_RESPONSE_LAST, psn(5), &payload);
    // The answers to the probes must have no effect.
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(1), &payload);
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(4), &payload);
    assert_eq!(script.ends(), [(0, Status::Success), (1, Status::Success)]);
    script.world.settle();
    script.world.assert_at_rest();
}

#[test]
fn observed_stalls_delay_probes_until_forgotten() {
    let mut script = Script::rc(&End { timeout: 20, ..End::default() });
    let mut index = 0;
    let mut round_trip = |script: &mut Script, ns: u64| {
        script.post(Op::Send, 8);
        script.sent();
        script.pass(ns);
        let probes = script.sent().len();
        script.ack(psn(index));
        index += 1;
        probes
    };
    for _ in 0..20 {
        assert_eq!(round_trip(&mut script, 20_000), 0);
    }
    assert_eq!(round_trip(&mut script, EARLIEST_NS - 1), 0, "an answer within the minimum time caused a probe");
    for _ in 0..20 {
        round_trip(&mut script, 20_000);
    }
    assert_eq!(
        round_trip(&mut script, 2 * EARLIEST_NS - 3),
        0,
        "an answer within twice the longest round trip caused a probe"
    );
    for _ in 0..40 {
        round_trip(&mut script, 20_000_000 / 1000);
        script.pass(20_000_000);
    }
    assert_eq!(round_trip(&mut script, EARLIEST_NS), 1, "the long round trip was not forgotten");
}
