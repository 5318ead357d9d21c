//! Timers, retries and RNR NAKs (IBTA Vol 1, 9.7.5.1.3, 9.7.5.2.8, 9.7.6).

use crate::common::End;
use crate::common::script::{OWN, OWN_PSN, Script};
use doorbell_verbs_core::{QpState, SendOperation as Op, Status};
use doorbell_wire::{NakCode, Opcode, Psn, RKey, ack_timeout_ns, rnr_timer_ns};

const NONE: [(u64, Status); 0] = [];
const EARLIEST_NS: u64 = 500_000;

fn psn(index: u32) -> Psn {
    OWN_PSN.add(index)
}

/// Returns the times at which packets left, relative to the time of the first packet.
fn times(script: &mut Script) -> Vec<u64> {
    let sent = script.sent();
    sent.iter().map(|packet| packet.at_ns - sent[0].at_ns).collect()
}

#[test]
fn early_retransmissions_back_off_and_use_no_retries() {
    let mut script = Script::rc(&End { timeout: 14, retry_count: 0, ..End::default() });
    script.post(Op::Send, 8);
    script.pass(16_000_000);
    assert_eq!(
        times(&mut script),
        [0, EARLIEST_NS, 3 * EARLIEST_NS, 7 * EARLIEST_NS, 15 * EARLIEST_NS, 31 * EARLIEST_NS]
    );
    let counters = script.counters();
    assert_eq!((counters.early_retransmit, counters.local_ack_timeout_err), (5, 0));
    assert_eq!((counters.tx_data_packets, counters.tx_retransmitted_packets), (1, 5));
    script.ack(psn(0));
    assert_eq!(script.ends(), [(0, Status::Success)]);
    // An answer of the peer resets the retry count.
    script.post(Op::Send, 8);
    script.pass(EARLIEST_NS);
    assert_eq!(times(&mut script), [0, EARLIEST_NS]);
}

#[test]
fn a_short_configured_timeout_is_kept() {
    // The timeout of 4.096 us * 2^4 is below the minimum early timeout. The requester must use this timeout
    // nevertheless.
    let timeout_ns = ack_timeout_ns(4).expect("the timeout is finite");
    let mut script = Script::rc(&End { timeout: 4, retry_count: 3, ..End::default() });
    let start_ns = script.world.now_ns;
    script.post(Op::Send, 8);
    script.world.settle();
    // The first wait is one timeout, the second is two, and all others are four.
    assert_eq!(times(&mut script), [0, timeout_ns, 3 * timeout_ns, 7 * timeout_ns]);
    assert_eq!(script.world.now_ns, start_ns + 11 * timeout_ns);
    assert_eq!(script.ends(), [(0, Status::RetryExceeded)]);
    assert_eq!(script.counters().local_ack_timeout_err, 4);
}

/// The death has the sum of all timeouts, and the number of timeouts.
#[test]
fn a_queue_pair_that_dies_unanswered_reports_one_death() {
    let timeout_ns = ack_timeout_ns(14).expect("the timeout is finite");
    let mut script = Script::rc(&End { timeout: 14, retry_count: 2, ..End::default() });
    for _ in 0..3 {
        script.post(Op::Send, 8);
    }
    script.world.settle();
    assert_eq!(script.state(), QpState::Error);
    let (deaths, 0) = script.rnic().take_deaths() else { panic!("one death is not omitted") };
    let [death] = &deaths[..] else { panic!("{deaths:?}") };
    let (line, seconds) = (death.to_string(), (7 * timeout_ns) as f64 / 1e9);
    assert!(line.contains(&format!("PSN {} unanswered by ", psn(0).get())), "{line}");
    assert!(line.ends_with(&format!(" for {seconds:.2} s, timer expired 3 times")), "{line}");
    assert!(!script.rnic().has_deaths() && script.rnic().take_deaths().0.is_empty());
}

#[test]
fn the_configured_timeout_counts_and_ends_the_connection() {
    let timeout_ns = ack_timeout_ns(14).expect("the timeout is finite");
    let mut script = Script::rc(&End { timeout: 14, retry_count: 2, ..End::default() });
    script.receive(64, 8);
    for _ in 0..3 {
        script.post(Op::Send, 8);
    }
    let start_ns = script.world.now_ns;
    script.world.settle();
    let took_ns = script.world.now_ns - start_ns;
    assert_eq!(took_ns, (1 + 2 + 4) * timeout_ns, "the queue pair must fail after the first wait and two retries");
    assert_eq!(script.counters().local_ack_timeout_err, 3);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(script.ends(), [(0, Status::RetryExceeded), (1, flushed), (2, flushed), (64, flushed)]);
    assert_eq!(script.state(), QpState::Error);
    script.world.nodes[OWN].alive = true;
    assert_eq!(script.rnic().in_flight_packets(), 0);
}

#[test]
fn an_answer_gives_all_retries_back() {
    let timeout_ns = ack_timeout_ns(10).expect("the timeout is finite");
    let mut script = Script::rc(&End { timeout: 10, retry_count: 1, ..End::default() });
    for round in 0..5 {
        script.post(Op::Send, 8);
        script.pass(timeout_ns * 3 / 2);
        script.ack(psn(round));
        assert_eq!(script.ends(), [(u64::from(round), Status::Success)]);
    }
}

#[test]
fn timeout_zero_waits_for_ever_and_keeps_trying() {
    let mut script = Script::rc(&End { timeout: 0, retry_count: 0, ..End::default() });
    script.post(Op::Send, 8);
    script.pass(20_000_000_000);
    let times = times(&mut script);
    assert_eq!(script.ends(), NONE);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 1_000_000_000), "tries are more than a second apart");
    assert!((20..60).contains(&times.len()), "{} tries in 20 s", times.len());
}

#[test]
fn the_early_timeout_follows_the_round_trip() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    script.sent();
    script.pass(400_000);
    script.ack(psn(0));
    script.post(Op::Send, 8);
    script.pass(10_000_000);
    assert_eq!(
        times(&mut script)[..2],
        [0, 1_600_000],
        "the second try did not leave after four round trips of 400 us"
    );
}

#[test]
fn a_sequence_nak_retransmits_at_once_and_uses_no_retries() {
    let mut script = Script::rc(&End { retry_count: 0, ..End::default() });
    for _ in 0..4 {
        script.post(Op::Send, 8);
    }
    script.sent();
    for _ in 0..10 {
        script.nak(psn(2), NakCode::PSN_SEQUENCE_ERROR);
        assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(2)), (Opcode::RC_SEND_ONLY, psn(3))]);
    }
    assert_eq!(script.ends(), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(script.counters().packet_seq_err, 10);
    script.ack(psn(3));
    assert_eq!(script.ends().len(), 2);
    assert_eq!(script.rnic().in_flight_packets(), 0);
}

#[test]
fn a_late_acknowledgement_shortens_the_retransmission() {
    let mut script = Script::new();
    for _ in 0..4 {
        script.post(Op::Send, 600);
    }
    script.sent();
    script.nak(psn(0), NakCode::PSN_SEQUENCE_ERROR);
    script.ack(psn(6)); // the ACK is for the first packet of the third message, so the first two messages had arrived
    let again: Vec<_> = script.shapes().iter().map(|shape| shape.1).collect();
    assert_eq!(again, (7..12).map(psn).collect::<Vec<_>>());
    assert_eq!(script.ends().len(), 2);
    script.ack(psn(11));
    assert_eq!(script.ends().len(), 2);
    assert_eq!(script.rnic().in_flight_packets(), 0);
}

#[test]
fn the_rnr_timer_is_honoured() {
    for timer in [1, 12, 31, 0] {
        let mut script = Script::rc(&End { timeout: 14, retry_count: 0, rnr_retry: 1, ..End::default() });
        script.post(Op::Send, 8);
        script.post(Op::Send, 8);
        script.sent();
        script.rnr_nak(psn(0), timer);
        script.pass(rnr_timer_ns(timer) - 1);
        assert_eq!(script.shapes(), [], "timer code {timer}: a packet left before {} ns", rnr_timer_ns(timer));
        script.pass(1);
        assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(0)), (Opcode::RC_SEND_ONLY, psn(1))]);
        assert_eq!(script.counters().local_ack_timeout_err, 0, "an RNR NAK counted as a timeout");
        script.ack(psn(1));
        assert_eq!(script.ends().len(), 2);
    }
}

#[test]
fn rnr_retries_are_counted_and_progress_gives_them_back() {
    let mut script = Script::rc(&End { rnr_retry: 2, ..End::default() });
    script.post(Op::Send, 8);
    script.post(Op::Send, 8);
    script.sent();
    let refuse = |script: &mut Script, index| {
        script.rnr_nak(psn(index), 1);
        script.rnr_nak(psn(index), 1); // the network copies the NAK
        script.pass(10_000);
        script.shapes().len()
    };
    assert_eq!(refuse(&mut script, 0), 2);
    assert_eq!(refuse(&mut script, 0), 2);
    script.ack(psn(0));
    assert_eq!(refuse(&mut script, 1), 1);
    assert_eq!(refuse(&mut script, 1), 1);
    assert_eq!(script.ends(), [(0, Status::Success)]);
    script.rnr_nak(psn(1), 1);
    assert_eq!(script.ends(), [(1, Status::RnrRetryExceeded)]);
    assert_eq!(script.counters().rnr_nak_retry_err, 1);
    assert_eq!(script.state(), QpState::Error);
}

#[test]
fn seven_rnr_retries_are_unlimited_and_timers_are_bounded() {
    let mut script = Script::rc(&End { rnr_retry: 7, timeout: 0, ..End::default() });
    script.post(Op::Send, 8);
    // The peer is silent until the time between two tries is a second. From then on, each new deadline is earlier than
    // the deadline before.
    script.pass(1_200_000_000);
    for _ in 0..10_000 {
        script.sent();
        script.rnr_nak(psn(0), 1);
        script.pass(10_000);
        assert!(script.rnic().backlog().timers <= 20, "{:?}", script.rnic().backlog());
    }
    assert_eq!(script.ends(), NONE);
    script.sent();
    script.ack(psn(0));
    assert_eq!(script.ends(), [(0, Status::Success)]);
    script.world.settle();
    script.world.assert_at_rest();
}

#[test]
fn waiting_for_a_window_does_not_use_up_the_timeout() {
    let timeout_ns = ack_timeout_ns(8).expect("the timeout is finite");
    let mut script = Script::rc(&End { timeout: 8, retry_count: 0, ..End::default() });
    let patient = script.qpn;
    let end = End { timeout: 0, ..End::default() };
    let busy = [(); 2].map(|()| script.add_qp(doorbell_verbs_core::QpKind::Rc, doorbell_wire::PathMtu::Mtu4096, &end));
    script.post(Op::Send, 8);
    script.sent();
    script.pass(300_000);
    // Other queue pairs fill the window, so the retransmission must wait.
    for qpn in busy {
        script.qpn = qpn;
        for _ in 0..64 {
            script.post(Op::Send, 4096);
        }
    }
    script.sent();
    script.qpn = patient;
    script.pass(100_000);
    script.nak(psn(0), NakCode::PSN_SEQUENCE_ERROR);
    script.pass(390_000);
    assert_eq!(script.shapes(), [], "a packet left although the window is full");
    for qpn in busy {
        script.rnic().destroy_qp(qpn).expect("the queue pair exists");
    }
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(0))]);
    script.pass(timeout_ns - 400_000 - 1);
    assert_eq!(script.state(), QpState::ReadyToSend, "the time of the peer before the wait did not count");
    script.pass(1);
    assert_eq!(script.ends(), [(0, Status::RetryExceeded)]);
    assert_eq!(script.counters().local_ack_timeout_err, 1);
}

#[test]
fn unreliable_sends_are_done_when_they_leave() {
    let mut script = Script::with(doorbell_verbs_core::QpKind::Uc, doorbell_wire::PathMtu::Mtu256, &End::default());
    script.post(Op::Send, 600);
    script.post(Op::Write { remote_address: 0, rkey: RKey::new(1) }, 8);
    assert_eq!(script.shapes().len(), 4);
    assert_eq!(script.ends().len(), 2);
    assert_eq!(script.rnic().in_flight_packets(), 0);
    assert_eq!(script.rnic().poll_timeout(), None);
}
