//! Times at which acknowledgements leave, relative to the completions that a program sees (IBTA Vol 1, 9.7.5).

use crate::common::script::{OWN, PEER_PSN, Script};
use crate::common::{Acks, End};
use doorbell_rnic::ACK_HOLD_NS;
use doorbell_verbs_core::{QpKind, QpState, SendFlags, SendOperation, Status};
use doorbell_wire::{Opcode, PathMtu, Psn, RKey};

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
fn an_acknowledgement_is_held_only_for_its_bound() {
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
    assert!(script.rnic().poll_timeout().is_none_or(|at_ns| at_ns > next_ns), "an acknowledgement is still held");
}

#[test]
fn an_acknowledgement_that_is_due_again_keeps_its_bound() {
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
    assert!(sent[0].at_ns <= due_ns + ACK_HOLD_NS, "the acknowledgement left only after {} ns", sent[0].at_ns - due_ns);
}

#[test]
fn an_acknowledgement_follows_the_reply() {
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

/// Receives one more message, and checks that its completion becomes visible only after all packets have left. Returns
/// the packets that the RNIC sends before that, although no call releases held acknowledgements.
fn heard_alone(script: &mut Script, psn: Psn) -> Vec<(Opcode, Psn)> {
    script.receive(0, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
    let seen = script.world.nodes[OWN].reap().len();
    let shapes = script.shapes();
    assert_eq!((seen, script.reap().len()), (0, 1), "the completion must be visible only after all packets have left");
    shapes
}

#[test]
fn a_receive_completes_after_its_acknowledgement_left() {
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    for index in 0..20 {
        let psn = PEER_PSN.add(index);
        assert_eq!(heard_alone(&mut script, psn), [(Opcode::RC_ACKNOWLEDGE, psn)]);
    }
    // Even without an acknowledgement request of the peer, the completion waits until the acknowledgement has left.
    script.receive(0, 8);
    script.hear(
        &script.say(Opcode::RC_WRITE_ONLY_IMM).psn(PEER_PSN.add(20)).reth(1, RKey::new(0), 0).immediate(4).quiet(),
    );
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(20))]);
}

#[test]
fn an_acknowledgement_waits_after_eight_answers() {
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    let psn = script.answer_often();
    script.receive(0, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
    assert_eq!(script.world.nodes[OWN].reap().len(), 1, "the completion must be visible at once");
    assert_eq!(script.shapes(), [], "the acknowledgement must wait for an answer");
    // A poll that finds the queue empty shows that the program will not reply.
    script.world.nodes[OWN].queue.note_empty_poll();
    assert_eq!(heard_alone(&mut script, psn.next()), [(Opcode::RC_ACKNOWLEDGE, psn.next())]);

    // The RNIC now counts replies from zero again. An acknowledgement waits after eight replies, so it does not wait
    // after seven.
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
fn an_acknowledgement_does_not_wait_after_unanswered_receives() {
    // The program behaves like a receiver that grants credits from time to time.
    let mut script = Script::new();
    script.world.acks = Acks::Held;
    let mut psn = script.answer_often();
    for round in 0..40 {
        script.receive(0, 8);
        script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(psn));
        let sent = script.shapes();
        // The acknowledgement of the first message waits, since the program has replied to all messages before it. All
        // other acknowledgements leave at once, since at least one earlier message is without a reply.
        assert_eq!(sent.contains(&(Opcode::RC_ACKNOWLEDGE, psn)), round > 0, "message {round}: {sent:?}");
        if round % 4 == 3 {
            script.post_flagged(SendOperation::Send, 8, SendFlags::empty());
            script.sent();
        }
        psn = psn.next();
    }
}

#[test]
fn acknowledgements_do_not_wait_when_waiting_is_disabled() {
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
    script.rnic().destroy_qp(qpn).expect("the queue pair exists");
    assert!(script.rnic().wants_transmit());
    assert_eq!(script.shapes(), expected);
    assert_eq!(script.rnic().backlog().farewells, 0);
    assert!(!script.rnic().wants_transmit());
}

#[test]
fn reset_and_destroy_remove_unseen_completions() {
    for destroys in [false, true] {
        let mut script = Script::new();
        script.receive(0, 8);
        script.hear(&script.say(Opcode::RC_SEND_ONLY));
        let qpn = script.qpn;
        if destroys {
            script.rnic().destroy_qp(qpn).expect("the queue pair exists");
        } else {
            script.world.bring_to(OWN, qpn, QpState::Reset);
        }
        assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN)], "the message was not acknowledged");
        assert_eq!(script.reap(), [], "a completion names the destroyed queue pair");
    }
}

#[test]
fn in_error_a_receive_is_acknowledged_after_earlier_answers() {
    let mut script = Script::new();
    script.receive(0, 8);
    let read = |script: &Script| script.say(Opcode::RC_READ_REQUEST).reth(script.base() + 64, script.rkey(), 8);
    script.hear(&read(&script));
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)).payload(&[7; 8]));
    // The response to this READ would also acknowledge the SEND. But the error state drops that response, so the
    // RNIC must send an ACK.
    script.hear(&read(&script).psn(PEER_PSN.add(2)));
    let qpn = script.qpn;
    script.world.bring_to(OWN, qpn, QpState::Error);
    let expected = [(Opcode::RC_READ_RESPONSE_ONLY, PEER_PSN), (Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(2))];
    assert_eq!(script.shapes(), expected);
    assert_eq!(script.ends(), [(0, Status::Success)]);
    assert_eq!(script.shapes(), []);
}
