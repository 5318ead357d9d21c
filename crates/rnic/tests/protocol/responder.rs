//! What the responder answers (IBTA Vol 1, 9.7.4, 9.7.5.2, 9.7.7).

use super::common::script::{OWN, PEER_PSN, Script, nak_of, syndrome_of};
use super::common::{Acks, End};
use doorbell_rnic::{
    ACK_HOLD_NS, Access, AsyncEvent, Attachment, CompletionOpcode, QpKind, QpState, RecvRequest, SendFlags,
    SendOperation, Status,
};
use doorbell_wire::{BTH_LEN, NakCode, Opcode, PathMtu, Psn, RKey, SyndromeKind};

const NONE: [(u64, Status); 0] = [];

fn word_of(packet: &[u8]) -> u64 {
    u64::from_be_bytes(packet[BTH_LEN + 4..].try_into().expect("AETH and a word"))
}

#[test]
fn a_send_lands_in_the_oldest_receive_and_is_acknowledged() {
    let mut script = Script::new();
    script.receive(0, 100);
    script.receive(100, 300);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).payload(b"first"));
    script.hear(&script.say(Opcode::RC_SEND_FIRST).psn(PEER_PSN.add(1)).payload(&[1; 256]).quiet());
    script.hear(&script.say(Opcode::RC_SEND_LAST_IMM).psn(PEER_PSN.add(2)).immediate(9).payload(&[2; 44]));
    let completions = script.reap();
    assert_eq!(completions[0].wr_id, 0);
    assert_eq!((completions[0].byte_len, completions[0].attachment), (5, Attachment::None));
    assert_eq!((completions[1].byte_len, completions[1].attachment), (300, Attachment::Immediate(9)));
    assert_eq!(script.world.nodes[OWN].memory.read(0, 5), b"first");
    assert_eq!(script.world.nodes[OWN].memory.read(100, 300), [[1; 256].as_slice(), &[2; 44]].concat());
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(2))]);
    assert_eq!(script.events(), [], "communication was established by the program itself");
}

#[test]
fn one_acknowledgement_covers_a_run() {
    let mut script = Script::new();
    for psn in 0..40 {
        script.receive(psn * 8, 8);
        script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(psn as u32)));
    }
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(39))]);
    assert_eq!(script.counters().tx_ack_packets, 1);
}

#[test]
fn an_acknowledgement_is_held_back_for_its_bound_and_no_longer() {
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    let psn = script.answer_often();
    script.receive(0, 8);
    let start_ns = script.world.now_ns;
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
    assert!(script.rnic().held_ack_since_ns().is_some());
    assert_eq!(script.rnic().poll_timeout(), Some(start_ns + ACK_HOLD_NS));
    script.pass(ACK_HOLD_NS - 1);
    assert_eq!(script.shapes(), []);
    script.pass(1);
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, psn)]);
    assert_eq!(script.rnic().held_ack_since_ns(), None);
    let next_ns = script.world.now_ns + ACK_HOLD_NS;
    assert!(script.rnic().poll_timeout().is_none_or(|at_ns| at_ns > next_ns), "nothing is held any more");
}

#[test]
fn an_acknowledgement_that_is_due_again_is_not_held_longer_than_its_bound() {
    let mut script = Script::new();
    let first = script.qpn;
    let second = script.add_qp(QpKind::Rc, PathMtu::Mtu256, &End::default());
    script.world.acks = Acks::Held;
    let write = |script: &Script, psn| {
        script.say(Opcode::RC_WRITE_ONLY).psn(psn).reth(script.base(), script.rkey(), 8).payload(&[1; 8])
    };
    script.hear(&write(&script, PEER_PSN));
    script.pass(1_000);
    // The response to a READ acknowledges the WRITE.
    let read = script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(1)).reth(script.base(), script.rkey(), 8);
    script.hear(&read);
    assert_eq!(script.shapes(), [(Opcode::RC_READ_RESPONSE_ONLY, PEER_PSN.add(1))]);
    script.pass(9_000);
    let due_ns = script.world.now_ns;
    script.hear(&write(&script, PEER_PSN.add(2)));
    script.pass(5_000);
    script.qpn = second;
    script.hear(&write(&script, PEER_PSN));
    script.pass(ACK_HOLD_NS);
    let sent = script.sent();
    assert_eq!(sent[0].info.qpn, first, "the older acknowledgement leaves first");
    assert!(sent[0].at_ns <= due_ns + ACK_HOLD_NS, "it left after {} ns", sent[0].at_ns - due_ns);
}

#[test]
fn an_acknowledgement_rides_behind_the_reply() {
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    let psn = script.answer_often();
    script.receive(0, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
    assert_eq!(script.shapes(), []);
    script.post(SendOperation::Send, 8);
    let shapes: Vec<_> = script.shapes().iter().map(|shape| shape.0).collect();
    assert_eq!(shapes, [Opcode::RC_SEND_ONLY, Opcode::RC_ACKNOWLEDGE]);
}

/// Hears one more message, of which the program would see the completion now, and returns what was sent before
/// that without anybody releasing acknowledgements.
fn heard_alone(script: &mut Script, psn: Psn) -> Vec<(Opcode, Psn)> {
    script.receive(0, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
    let seen = script.world.nodes[OWN].reap().len();
    let shapes = script.shapes();
    assert_eq!((seen, script.reap().len()), (0, 1), "it is seen once everything has been sent");
    shapes
}

#[test]
fn a_receive_is_seen_once_its_acknowledgement_has_left() {
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    for index in 0..20 {
        let psn = PEER_PSN.add(index);
        assert_eq!(heard_alone(&mut script, psn), [(Opcode::RC_ACKNOWLEDGE, psn)]);
    }
    // Whatever the peer asks for: the completion says that it is done.
    script.receive(0, 8);
    script.hear(
        &script.say(Opcode::RC_WRITE_ONLY_IMM).psn(PEER_PSN.add(20)).reth(1, RKey::new(0), 0).immediate(4).quiet(),
    );
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(20))]);
}

#[test]
fn an_acknowledgement_waits_for_the_answer_of_a_program_that_has_answered_eight_times() {
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    let psn = script.answer_often();
    script.receive(0, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
    assert_eq!(script.world.nodes[OWN].reap().len(), 1, "it is seen at once");
    assert_eq!(script.shapes(), [], "and its acknowledgement waits");
    // The program looks for more and finds nothing: it is not going to answer.
    script.world.nodes[OWN].queue.note_empty_poll();
    assert_eq!(heard_alone(&mut script, psn.next()), [(Opcode::RC_ACKNOWLEDGE, psn.next())]);

    // Seven answers more are not enough, since they begin to count anew.
    let mut psn = psn.add(2);
    for _ in 0..7 {
        assert_eq!(heard_alone(&mut script, psn), [(Opcode::RC_ACKNOWLEDGE, psn)]);
        script.post_flagged(SendOperation::Send, 8, SendFlags::empty());
        script.sent();
        psn = psn.next();
    }
    assert_eq!(heard_alone(&mut script, psn), [(Opcode::RC_ACKNOWLEDGE, psn)]);
}

#[test]
fn an_acknowledgement_does_not_wait_while_receives_before_it_are_unanswered() {
    // As of a receiver that grants credits now and then.
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    let mut psn = script.answer_often();
    for round in 0..40 {
        script.receive(0, 8);
        script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
        let sent = script.shapes();
        // The first finds all before it answered; from then on at least one is not.
        assert_eq!(sent.contains(&(Opcode::RC_ACKNOWLEDGE, psn)), round > 0, "message {round}: {sent:?}");
        if round % 4 == 3 {
            script.post_flagged(SendOperation::Send, 8, SendFlags::empty());
            script.sent();
        }
        psn = psn.next();
    }
}

#[test]
fn no_acknowledgement_waits_for_an_answer_where_none_may() {
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    script.rnic().let_acks_wait(false);
    let psn = script.answer_often();
    assert_eq!(heard_alone(&mut script, psn), [(Opcode::RC_ACKNOWLEDGE, psn)]);
}

#[test]
fn an_acknowledgement_that_waits_outlives_its_queue_pair() {
    let held = || {
        let mut script = Script::new();
        script.world.acks = Acks::Held;
        let psn = script.answer_often();
        script.receive(0, 8);
        script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
        assert_eq!(script.reap().len(), 1);
        (script, [(Opcode::RC_ACKNOWLEDGE, psn)])
    };
    for to in [QpState::Reset, QpState::Error] {
        let (mut script, expected) = held();
        let qpn = script.qpn;
        script.world.bring_to(OWN, qpn, to);
        assert_eq!(script.shapes(), expected, "{to:?}");
    }
    let (mut script, expected) = held();
    let qpn = script.qpn;
    script.rnic().destroy_qp(qpn).expect("it exists");
    assert!(script.rnic().wants_transmit());
    assert_eq!(script.shapes(), expected);
    assert_eq!(script.rnic().backlog().farewells, 0);
    assert!(!script.rnic().wants_transmit());
}

#[test]
fn what_a_reset_takes_away_is_not_seen_later() {
    for destroys in [false, true] {
        let mut script = Script::new();
        script.receive(0, 8);
        script.hear(&script.say(Opcode::RC_SEND_ONLY));
        let qpn = script.qpn;
        if destroys {
            script.rnic().destroy_qp(qpn).expect("it exists");
        } else {
            script.world.bring_to(OWN, qpn, QpState::Reset);
        }
        assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN)], "the message was taken");
        assert_eq!(script.reap(), [], "but nothing names the queue pair any more");
    }
}

#[test]
fn repeated_sends_and_writes_are_acknowledged_again_and_not_carried_out_again() {
    let mut script = Script::new();
    script.receive(0, 8);
    let send = script.say(Opcode::RC_SEND_ONLY).payload(&[7; 8]);
    let write = script.say(Opcode::RC_WRITE_ONLY).psn(PEER_PSN.add(1)).reth(script.base() + 64, script.rkey(), 8);
    let write = write.payload(&[8; 8]);
    script.hear(&send);
    script.hear(&write);
    assert_eq!(script.shapes().len(), 1);
    script.world.nodes[OWN].memory.write(64, &[0; 8]);
    for again in [&send, &write] {
        script.hear(again);
        assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(1))]);
    }
    assert_eq!(script.world.nodes[OWN].memory.read(64, 8), [0; 8], "the WRITE was not carried out again");
    assert_eq!(script.reap().len(), 1, "the SEND took one receive");
    assert_eq!(script.counters().duplicate_request, 2);
    assert_eq!(script.rnic().poll_timeout(), None);
}

#[test]
fn a_repeated_read_is_carried_out_again_from_where_it_is_asked_for() {
    let mut script = Script::new();
    script.world.nodes[OWN].memory.write(0, &[1; 600]);
    let (base, rkey) = (script.base(), script.rkey());
    let read = |script: &Script| script.say(Opcode::RC_READ_REQUEST);
    script.hear(&read(&script).reth(base, rkey, 600));
    let opcodes = [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE, Opcode::RC_READ_RESPONSE_LAST];
    let expected: Vec<_> = opcodes.iter().zip(0..).map(|(&opcode, index)| (opcode, PEER_PSN.add(index))).collect();
    assert_eq!(script.shapes(), expected);

    script.world.nodes[OWN].memory.write(0, &[2; 600]);
    script.hear(&read(&script).psn(PEER_PSN.add(1)).reth(base + 256, rkey, 344));
    let sent = script.sent();
    assert_eq!(
        sent.iter().map(|sent| (sent.opcode(), sent.psn())).collect::<Vec<_>>(),
        [(Opcode::RC_READ_RESPONSE_FIRST, PEER_PSN.add(1)), (Opcode::RC_READ_RESPONSE_LAST, PEER_PSN.add(2))]
    );
    assert_eq!(sent[0].bytes[BTH_LEN + 4..], [2; 256], "the bytes are those of now");
    assert_eq!(script.counters().rx_read_requests, 1, "a repetition is not counted as a READ");
    assert_eq!(script.counters().duplicate_request, 1);

    // What reaches beyond what was asked for before is no repetition.
    script.hear(&read(&script).psn(PEER_PSN.add(1)).reth(base + 256, rkey, 600));
    assert_eq!(script.shapes(), []);
    assert_eq!(script.state(), QpState::ReadyToSend);
}

#[test]
fn a_read_that_is_repeated_after_its_region_went_is_refused_and_ends_nothing() {
    let mut script = Script::new();
    let region = script.region(0, 4096, Access::REMOTE_READ);
    let read = script.say(Opcode::RC_READ_REQUEST).reth(region.address(), region.rkey(), 600);
    script.hear(&read);
    assert_eq!(script.shapes().len(), 3, "the answer, which the network loses");
    for is_gone in [false, true] {
        script.hear(&read);
        if is_gone {
            script.hear(&read);
        } else {
            // Between the request and its answer.
            script.rnic().deregister(&region).expect("no window is bound to it");
        }
        let sent = script.sent();
        assert_eq!(sent.len(), 1, "the peer is told, once");
        assert_eq!((nak_of(&sent[0]), sent[0].psn()), (Some(NakCode::REMOTE_ACCESS_ERROR), PEER_PSN));
        // The request may have been a late copy, of which the peer knows nothing.
        assert_eq!(script.state(), QpState::ReadyToSend);
        assert_eq!(script.events(), []);
    }
    script.receive(0, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(3)).payload(&[7; 8]));
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(3))]);
    assert_eq!(script.ends(), [(0, Status::Success)]);
}

#[test]
fn a_repeated_atomic_is_answered_from_memory_of_the_first() {
    let end = End { max_dest_rd_atomic: 2, ..End::default() };
    let mut script = Script::rc(&end);
    script.world.nodes[OWN].memory.set_word(0, 10);
    let (base, rkey) = (script.base(), script.rkey());
    let add = script.say(Opcode::RC_FETCH_ADD).atomic(base, rkey, 5, 0);
    let swap = script.say(Opcode::RC_COMPARE_SWAP).psn(PEER_PSN.add(1)).atomic(base, rkey, 99, 15);
    let add_again = add.clone().psn(PEER_PSN.add(2));
    let mut answers = Vec::new();
    for request in [&add, &swap, &swap, &add, &add_again] {
        script.hear(request);
        answers.extend(script.sent().iter().map(|sent| (sent.opcode(), sent.psn(), word_of(&sent.bytes))));
    }
    let opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
    let psn = |index| PEER_PSN.add(index);
    assert_eq!(
        answers,
        [(opcode, psn(0), 10), (opcode, psn(1), 15), (opcode, psn(1), 15), (opcode, psn(0), 10), (opcode, psn(2), 99)]
    );
    assert_eq!(script.world.nodes[OWN].memory.word(0), 104, "each was carried out once");
    assert_eq!(script.counters().rx_atomic_requests, 3);
    // The first is older than what the resources remember: no answer is better than a wrong one.
    script.hear(&add);
    assert_eq!(script.shapes(), []);
}

#[test]
fn a_repetition_leaves_the_answers_that_wait_and_their_order_alone() {
    let mut script = Script::new();
    let (base, rkey) = (script.base(), script.rkey());
    let add =
        |script: &Script, index| script.say(Opcode::RC_FETCH_ADD).psn(PEER_PSN.add(index)).atomic(base, rkey, 1, 0);
    let read = script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(1)).reth(base, rkey, 600);
    script.hear(&add(&script, 0));
    script.hear(&read);
    script.hear(&add(&script, 4));
    // The peer asks for one of them again, before any has left.
    for repeated in [&add(&script, 0), &read, &add(&script, 4), &read] {
        script.hear(repeated);
    }
    let numbers: Vec<_> = script.sent().iter().map(|sent| sent.psn()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4].map(|index| PEER_PSN.add(index)));
    assert_eq!(script.counters().duplicate_request, 4);
}

#[test]
fn a_gap_is_told_once_and_what_follows_is_dropped_until_it_is_filled() {
    let mut script = Script::new();
    for slot in 0..4 {
        script.receive(slot * 8, 8);
    }
    let send = |script: &Script, index| script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(index));
    for index in 1..4 {
        script.hear(&send(&script, index));
    }
    let sent = script.sent();
    assert_eq!(sent.len(), 1, "one NAK for the gap");
    assert_eq!((nak_of(&sent[0]), sent[0].psn()), (Some(NakCode::PSN_SEQUENCE_ERROR), PEER_PSN));
    assert_eq!(script.counters().out_of_sequence, 3);
    assert_eq!(script.ends(), NONE);
    script.hear(&send(&script, 0));
    script.hear(&send(&script, 2));
    let sent = script.sent();
    let naks: Vec<_> = sent.iter().map(|sent| (nak_of(sent), sent.psn())).collect();
    assert_eq!(
        naks,
        [(Some(NakCode::PSN_SEQUENCE_ERROR), PEER_PSN.add(1)), (None, PEER_PSN)],
        "the next gap is told anew"
    );
}

#[test]
fn a_nak_that_has_not_left_is_withdrawn_when_the_gap_is_filled() {
    let mut script = Script::new();
    script.receive(0, 8);
    script.receive(8, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    script.hear(&script.say(Opcode::RC_SEND_ONLY));
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    let sent = script.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((nak_of(&sent[0]), sent[0].psn()), (None, PEER_PSN.add(1)));
}

#[test]
fn without_a_receive_the_peer_is_told_to_come_back() {
    let mut script = Script::rc(&End { min_rnr_timer: 17, ..End::default() });
    let send = script.say(Opcode::RC_SEND_ONLY).payload(&[3; 8]);
    script.hear(&send);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    let sent = script.sent();
    assert_eq!(sent.len(), 1, "what follows is dropped without a word");
    assert_eq!(syndrome_of(&sent[0]), Some(SyndromeKind::RnrNak { timer: 17 }));
    assert_eq!(sent[0].psn(), PEER_PSN);
    assert_eq!((script.counters().rnr_nak_sent, script.counters().tx_ack_packets), (1, 1));
    script.receive(0, 8);
    script.hear(&send);
    assert_eq!(script.ends(), [(0, Status::Success)]);
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN)]);
}

#[test]
fn a_write_with_immediate_needs_its_receive_with_the_last_packet() {
    let mut script = Script::new();
    let first = script.say(Opcode::RC_WRITE_FIRST).reth(script.base(), script.rkey(), 300).payload(&[1; 256]);
    let last = script.say(Opcode::RC_WRITE_LAST_IMM).psn(PEER_PSN.add(1)).immediate(77).payload(&[2; 44]);
    script.hear(&first.quiet());
    script.hear(&last);
    let sent = script.sent();
    assert!(matches!(syndrome_of(&sent[0]), Some(SyndromeKind::RnrNak { .. })));
    assert_eq!(sent[0].psn(), PEER_PSN.add(1));
    script.receive(512, 0);
    script.hear(&last);
    let completion = script.reap()[0];
    assert_eq!(completion.opcode, CompletionOpcode::ReceiveWriteImmediate);
    assert_eq!((completion.byte_len, completion.attachment), (300, Attachment::Immediate(77)));
    assert_eq!(script.world.nodes[OWN].memory.read(0, 300), [[1; 256].as_slice(), &[2; 44]].concat());
}

/// Plays packets to a fresh queue pair with one receive of 300 B, and returns the NAK.
fn refused(end: &End, play: impl Fn(&mut Script)) -> (Option<NakCode>, Psn, Vec<AsyncEvent>, Script) {
    let mut script = Script::rc(end);
    script.receive(0, 300);
    play(&mut script);
    let sent = script.sent();
    let last = sent.last().expect("something was answered");
    let (code, psn) = (nak_of(last), last.psn());
    let events = script.events();
    (code, psn, events, script)
}

#[test]
fn what_makes_no_sense_is_an_invalid_request() {
    type Play = Box<dyn Fn(&mut Script)>;
    let one = |make: fn(&Script) -> super::common::script::Say| -> Play {
        Box::new(move |script| script.hear(&make(script)))
    };
    let cases: Vec<(&str, Play)> = vec![
        ("a middle without a first", one(|s| s.say(Opcode::RC_SEND_MIDDLE).payload(&[0; 256]))),
        ("a last without a first", one(|s| s.say(Opcode::RC_WRITE_LAST).payload(&[0; 8]))),
        ("a short first", one(|s| s.say(Opcode::RC_SEND_FIRST).payload(&[0; 200]))),
        ("a packet longer than the path MTU", one(|s| s.say(Opcode::RC_SEND_ONLY).payload(&[0; 260]))),
        (
            "a WRITE shorter than announced",
            one(|s| s.say(Opcode::RC_WRITE_ONLY).reth(s.base(), s.rkey(), 9).payload(&[0; 8])),
        ),
        (
            "a WRITE longer than announced",
            one(|s| s.say(Opcode::RC_WRITE_ONLY).reth(s.base(), s.rkey(), 7).payload(&[0; 8])),
        ),
        (
            "a WRITE that could be over",
            one(|s| s.say(Opcode::RC_WRITE_FIRST).reth(s.base(), s.rkey(), 256).payload(&[0; 256])),
        ),
        ("a READ with payload", one(|s| s.say(Opcode::RC_READ_REQUEST).reth(s.base(), s.rkey(), 9).payload(&[0; 8]))),
        ("a READ of more than 2 GiB", one(|s| s.say(Opcode::RC_READ_REQUEST).reth(s.base(), s.rkey(), (1 << 31) + 1))),
        ("a misaligned atomic", one(|s| s.say(Opcode::RC_FETCH_ADD).atomic(s.base() + 4, s.rkey(), 1, 0))),
        (
            "an atomic with payload",
            one(|s| s.say(Opcode::RC_FETCH_ADD).atomic(s.base(), s.rkey(), 1, 0).payload(&[0; 4])),
        ),
        (
            "an empty last",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_SEND_LAST).psn(PEER_PSN.add(1)));
            }),
        ),
        (
            "another first",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_SEND_FIRST).psn(PEER_PSN.add(1)).payload(&[0; 256]));
            }),
        ),
        (
            "a WRITE within a SEND",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_WRITE_LAST).psn(PEER_PSN.add(1)).payload(&[0; 8]));
            }),
        ),
        (
            "a READ within a SEND",
            Box::new(|s| {
                s.hear(&s.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
                s.hear(&s.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(1)).reth(s.base(), s.rkey(), 8));
            }),
        ),
    ];
    for (name, play) in cases {
        let (code, psn, events, mut script) = refused(&End::default(), play);
        assert_eq!(code, Some(NakCode::INVALID_REQUEST), "{name}");
        assert!(psn == PEER_PSN || psn == PEER_PSN.add(1), "{name}: the NAK names the packet");
        assert_eq!(events, [AsyncEvent::QpRequestError(script.qpn)], "{name}");
        assert_eq!(script.counters().resp_invalid_request, 1, "{name}");
        assert_eq!(script.state(), QpState::Error, "{name}");
        assert_eq!(script.ends(), [(0, Status::WorkRequestFlushed)], "{name}: the receive comes back");
    }
}

#[test]
fn a_send_longer_than_its_receive_ends_both_sides() {
    let (code, _, _, mut script) = refused(&End::default(), |script| {
        script.hear(&script.say(Opcode::RC_SEND_FIRST).payload(&[0; 256]).quiet());
        script.hear(&script.say(Opcode::RC_SEND_LAST).psn(PEER_PSN.add(1)).payload(&[0; 45]));
    });
    assert_eq!(code, Some(NakCode::INVALID_REQUEST));
    assert_eq!(script.ends(), [(0, Status::LocalLength)]);
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let end = End { max_dest_rd_atomic: 2, ..End::default() };
    let (code, psn, _, mut script) = refused(&end, |script| {
        for index in 0..3 {
            let read = script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(index));
            script.hear(&read.reth(script.base(), script.rkey(), 8));
        }
    });
    assert_eq!((code, psn), (Some(NakCode::INVALID_REQUEST), PEER_PSN.add(2)));
    assert_eq!(script.counters().tx_response_packets, 2, "what was carried out before is answered before");
    assert_eq!(script.state(), QpState::Error);
    script.ends();
    // A repetition that waits gives way to a new request: the peer waits for two at most.
    let mut script = Script::rc(&end);
    let (base, rkey) = (script.base(), script.rkey());
    let read =
        |script: &Script, index| script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(index)).reth(base, rkey, 8);
    script.hear(&read(&script, 0));
    script.hear(&read(&script, 1));
    assert_eq!(script.sent().len(), 2);
    for index in [0, 1, 2] {
        script.hear(&read(&script, index));
    }
    let expected: Vec<_> = [1, 2].map(|index| (Opcode::RC_READ_RESPONSE_ONLY, PEER_PSN.add(index))).into();
    assert_eq!(script.shapes(), expected);
}

#[test]
fn every_remote_access_is_checked() {
    type Make = Box<dyn Fn(&mut Script, u64, RKey) -> super::common::script::Say>;
    let operations: [(&str, u64, Make); 4] = [
        ("WRITE", 8, Box::new(|s, at, key| s.say(Opcode::RC_WRITE_ONLY).reth(at, key, 8).payload(&[1; 8]))),
        ("long WRITE", 300, Box::new(|s, at, key| s.say(Opcode::RC_WRITE_FIRST).reth(at, key, 300).payload(&[1; 256]))),
        ("READ", 8, Box::new(|s, at, key| s.say(Opcode::RC_READ_REQUEST).reth(at, key, 8))),
        ("atomic", 8, Box::new(|s, at, key| s.say(Opcode::RC_COMPARE_SWAP).atomic(at, key, 1, 0))),
    ];
    type Spoil = Box<dyn Fn(&mut Script, u64) -> (u64, RKey)>;
    let end = |script: &Script| script.base() + script.world.nodes[OWN].memory.len() as u64;
    let faults: [(&str, Spoil); 8] = [
        ("no such key", Box::new(|s, _| (s.base(), RKey::new(0xdead_be00)))),
        ("the lower 8 bits changed", Box::new(|s, _| (s.base(), RKey::new(s.rkey().get() ^ 1)))),
        ("behind the end", Box::new(move |s, length| (end(s) - (length - 1) / 8 * 8, s.rkey()))),
        ("before the start", Box::new(|s, _| (s.base() - 8, s.rkey()))),
        ("around the end of the address space", Box::new(|s, _| (u64::MAX - 7, s.rkey()))),
        (
            "a region of another protection domain",
            Box::new(|s, _| {
                let pd = s.rnic().create_pd();
                let (base, address) = (s.world.nodes[OWN].memory.base(), s.base());
                // SAFETY: the block lives as long as the node's RNIC.
                let region = unsafe { s.rnic().register(pd, base, 4096, address, Access::all(), None) };
                (address, region.expect("room for a region").rkey())
            }),
        ),
        ("a region without the right", Box::new(|s, _| (s.base(), s.region(0, 4096, Access::LOCAL_WRITE).rkey()))),
        (
            "a region that is gone",
            Box::new(|s, _| {
                let region = s.region(0, 4096, Access::all());
                s.rnic().deregister(&region).expect("it was registered");
                (s.base(), region.rkey())
            }),
        ),
    ];
    for (operation, length, make) in &operations {
        for (fault, spoil) in &faults {
            let (code, psn, events, mut script) = refused(&End::default(), |script| {
                let (address, key) = spoil(script, *length);
                let request = make(script, address, key);
                script.hear(&request);
            });
            assert_eq!((code, psn), (Some(NakCode::REMOTE_ACCESS_ERROR), PEER_PSN), "{operation}: {fault}");
            assert_eq!(events, [AsyncEvent::QpAccessError(script.qpn)], "{operation}: {fault}");
            assert_eq!(script.counters().resp_remote_access_errors, 1, "{operation}: {fault}");
            assert_eq!(script.world.nodes[OWN].memory.read(0, 8), [0; 8], "{operation}: {fault}: nothing was written");
            assert_eq!(script.ends(), [(0, Status::WorkRequestFlushed)], "{operation}: {fault}");
        }
        // The queue pair must allow it too.
        let end = End { access: Access::LOCAL_WRITE, ..End::default() };
        let (code, ..) = refused(&end, |script| {
            let (address, key) = (script.base(), script.rkey());
            let request = make(script, address, key);
            script.hear(&request);
        });
        assert_eq!(code, Some(NakCode::REMOTE_ACCESS_ERROR), "{operation}: the queue pair does not allow it");
    }
}

#[test]
fn memory_that_goes_away_meanwhile_is_an_operational_error() {
    // A receive whose region is gone when the message comes.
    let mut script = Script::new();
    let region = script.region(0, 64, Access::LOCAL_WRITE);
    let sge = doorbell_rnic::Sge { address: region.address(), length: 64, lkey: region.lkey() };
    let qpn = script.qpn;
    script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 4, sges: &[sge] }]).expect("room");
    script.rnic().deregister(&region).expect("it was registered");
    script.hear(&script.say(Opcode::RC_SEND_ONLY).payload(&[1; 8]));
    assert_eq!(nak_of(&script.sent()[0]), Some(NakCode::REMOTE_OPERATIONAL_ERROR));
    assert_eq!(script.ends(), [(4, Status::LocalProtection)]);
    assert_eq!(script.counters().resp_remote_operational_errors, 1);
    assert_eq!(script.events(), [AsyncEvent::QpFatal(qpn)]);

    // A READ whose region goes away before the answer leaves.
    let mut script = Script::new();
    let region = script.region(0, 600, Access::REMOTE_READ);
    script.hear(&script.say(Opcode::RC_READ_REQUEST).reth(region.address(), region.rkey(), 600));
    script.rnic().deregister(&region).expect("it was registered");
    let sent = script.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((nak_of(&sent[0]), sent[0].psn()), (Some(NakCode::REMOTE_OPERATIONAL_ERROR), PEER_PSN));
    assert_eq!(script.state(), QpState::Error);
    assert_eq!(script.counters().tx_vport_rdma_unicast_packets, 1, "what was taken back is not counted");
}

#[test]
fn a_send_with_invalidate_takes_the_remote_key_away() {
    let mut script = Script::new();
    let region = script.region(4096, 64, Access::all());
    let key = region.rkey();
    script.receive(0, 8);
    script.receive(8, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY_INV).invalidate(key));
    assert_eq!(script.reap()[0].attachment, Attachment::Invalidated(key));
    // Local use goes on.
    let sge = doorbell_rnic::Sge { address: region.address(), length: 8, lkey: region.lkey() };
    let qpn = script.qpn;
    script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 1, sges: &[sge] }]).expect("the local key is valid");
    script.sent();
    script.hear(&script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(1)).reth(region.address(), key, 8));
    assert_eq!(nak_of(&script.sent()[0]), Some(NakCode::REMOTE_ACCESS_ERROR));

    // A key that is none, or of another protection domain, ends the connection.
    let (code, _, _, mut script) = refused(&End::default(), |script| {
        script.hear(&script.say(Opcode::RC_SEND_ONLY_INV).invalidate(RKey::new(0x5555_5555)));
    });
    assert_eq!(code, Some(NakCode::REMOTE_ACCESS_ERROR));
    assert_eq!(script.ends(), [(0, Status::LocalAccess)]);
}

#[test]
fn messages_of_no_bytes_are_messages() {
    let mut script = Script::new();
    for slot in 0..3 {
        script.receive(slot, 0);
    }
    let nowhere = RKey::new(0);
    let psn = |index| PEER_PSN.add(index);
    script.hear(&script.say(Opcode::RC_SEND_ONLY));
    script.hear(&script.say(Opcode::RC_SEND_ONLY_IMM).psn(psn(1)).immediate(3));
    script.hear(&script.say(Opcode::RC_WRITE_ONLY).psn(psn(2)).reth(1, nowhere, 0));
    script.hear(&script.say(Opcode::RC_WRITE_ONLY_IMM).psn(psn(3)).reth(1, nowhere, 0).immediate(4));
    script.hear(&script.say(Opcode::RC_READ_REQUEST).psn(psn(4)).reth(1, nowhere, 0));
    let completions = script.reap();
    assert_eq!(completions.len(), 3);
    assert!(completions.iter().all(|completion| completion.byte_len == 0 && completion.status == Status::Success));
    let sent = script.sent();
    assert_eq!(sent.len(), 1, "the response acknowledges all before it");
    assert_eq!((sent[0].opcode(), sent[0].psn()), (Opcode::RC_READ_RESPONSE_ONLY, psn(4)));
    assert_eq!(sent[0].bytes.len(), BTH_LEN + 4);
}

#[test]
fn the_last_byte_is_visible_last() {
    use std::sync::atomic::{AtomicU8, Ordering};
    const LENGTH: usize = 200;
    let mut script = Script::new();
    let base = script.world.nodes[OWN].memory.base() as usize;
    let at = move |index: usize| {
        // SAFETY: inside the node's block, which outlives the reader; bytes are atomics to both.
        unsafe { AtomicU8::from_ptr((base + index) as *mut u8) }
    };
    let reader = std::thread::spawn(move || {
        for round in 1..=200 {
            while at(LENGTH - 1).load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
            for index in 0..LENGTH {
                assert_eq!(at(index).load(Ordering::Relaxed), round, "byte {index} came after the last");
            }
            at(LENGTH).store(round, Ordering::Release);
        }
    });
    for round in 1..=200_u8 {
        let write = script.say(Opcode::RC_WRITE_ONLY).psn(PEER_PSN.add(u32::from(round) - 1));
        script.hear(&write.reth(script.base(), script.rkey(), LENGTH as u32).payload(&[round; LENGTH]));
        while at(LENGTH).load(Ordering::Acquire) != round && !reader.is_finished() {
            std::thread::yield_now();
        }
    }
    reader.join().expect("the reader saw whole messages");
}

#[test]
fn the_first_packet_is_told_to_a_queue_pair_that_waits_for_it() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let end = End::default();
    script.qpn = script.world.create_qp(OWN, QpKind::Rc, &end);
    let qpn = script.qpn;
    script.world.bring_to_init(OWN, qpn, QpKind::Rc, &end);
    let peer = (super::common::script::PEER, super::common::script::PEER_QPN, PEER_PSN);
    script.world.bring_to_rtr(OWN, qpn, QpKind::Rc, PathMtu::Mtu256, &end, peer);
    script.receive(0, 8);
    script.receive(8, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY));
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    assert_eq!(script.events(), [AsyncEvent::CommunicationEstablished(qpn)]);
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(1))], "it answers before it can send");
}

#[test]
fn in_error_a_completed_receive_is_acknowledged_behind_the_answers_before_it() {
    let mut script = Script::new();
    script.receive(0, 8);
    let read = |script: &Script| script.say(Opcode::RC_READ_REQUEST).reth(script.base() + 64, script.rkey(), 8);
    script.hear(&read(&script));
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)).payload(&[7; 8]));
    // Its answer would acknowledge the SEND as well, but does not leave any more.
    script.hear(&read(&script).psn(PEER_PSN.add(2)));
    let qpn = script.qpn;
    script.world.bring_to(OWN, qpn, QpState::Error);
    let expected = [(Opcode::RC_READ_RESPONSE_ONLY, PEER_PSN), (Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(2))];
    assert_eq!(script.shapes(), expected);
    assert_eq!(script.ends(), [(0, Status::Success)]);
    assert_eq!(script.shapes(), []);
}
