//! Answers of the responder (IBTA Vol 1, 9.7.4, 9.7.5.2, 9.7.7).

use crate::common::End;
use crate::common::script::{OWN, PEER_PSN, Script, nak_of, syndrome_of};
use doorbell_verbs_core::{Access, AsyncEvent, Attachment, CompletionOpcode, QpKind, QpState, Status};
use doorbell_wire::{BTH_LEN, NakCode, Opcode, PathMtu, RKey, SyndromeKind};

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
    assert_eq!(script.events(), [], "an event came although the program itself moved to RTS");
}

#[test]
fn duplicate_sends_and_writes_are_only_acknowledged() {
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
    assert_eq!(script.world.nodes[OWN].memory.read(64, 8), [0; 8], "the duplicate WRITE was executed");
    assert_eq!(script.reap().len(), 1, "the SEND did not use exactly one receive");
    assert_eq!(script.counters().duplicate_request, 2);
    assert_eq!(script.rnic().poll_timeout(), None);
}

#[test]
fn a_duplicate_read_is_executed_again_from_its_address() {
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
    assert_eq!(sent[0].bytes[BTH_LEN + 4..], [2; 256], "the repeated READ must return the current bytes");
    assert_eq!(script.counters().rx_read_requests, 1, "a duplicate READ was counted");
    assert_eq!(script.counters().duplicate_request, 1);

    // A READ that extends beyond the range of the earlier request is no duplicate.
    script.hear(&read(&script).psn(PEER_PSN.add(1)).reth(base + 256, rkey, 600));
    assert_eq!(script.shapes(), []);
    assert_eq!(script.state(), QpState::ReadyToSend);
}

#[test]
fn a_duplicate_read_of_a_removed_region_ends_no_connection() {
    let mut script = Script::new();
    let region = script.region(0, 4096, Access::REMOTE_READ);
    let read = script.say(Opcode::RC_READ_REQUEST).reth(region.address(), region.rkey(), 600);
    script.hear(&read);
    assert_eq!(script.shapes().len(), 3, "the answer, which the network loses, has three packets");
    for is_gone in [false, true] {
        script.hear(&read);
        if is_gone {
            script.hear(&read);
        } else {
            // The region is deregistered between the request and its answer.
            script.rnic().deregister(&region).expect("no window is bound to the region");
        }
        let sent = script.sent();
        assert_eq!(sent.len(), 1, "expected one NAK");
        assert_eq!((nak_of(&sent[0]), sent[0].psn()), (Some(NakCode::REMOTE_ACCESS_ERROR), PEER_PSN));
        // The request may be a late copy, for which the peer does not wait. The connection must therefore stay.
        assert_eq!(script.state(), QpState::ReadyToSend);
        assert_eq!(script.events(), []);
    }
    script.receive(0, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(3)).payload(&[7; 8]));
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(3))]);
    assert_eq!(script.ends(), [(0, Status::Success)]);
}

#[test]
fn a_duplicate_atomic_gets_the_stored_result() {
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
    assert_eq!(script.world.nodes[OWN].memory.word(0), 104, "an atomic was not executed exactly once");
    assert_eq!(script.counters().rx_atomic_requests, 3);
    // The responder no longer stores the result of the first atomic, so it must send no answer.
    script.hear(&add);
    assert_eq!(script.shapes(), []);
}

#[test]
fn duplicates_do_not_reorder_waiting_answers() {
    let mut script = Script::new();
    let (base, rkey) = (script.base(), script.rkey());
    let add =
        |script: &Script, index| script.say(Opcode::RC_FETCH_ADD).psn(PEER_PSN.add(index)).atomic(base, rkey, 1, 0);
    let read = script.say(Opcode::RC_READ_REQUEST).psn(PEER_PSN.add(1)).reth(base, rkey, 600);
    script.hear(&add(&script, 0));
    script.hear(&read);
    script.hear(&add(&script, 4));
    // The peer repeats some requests before the responder sends an answer.
    for repeated in [&add(&script, 0), &read, &add(&script, 4), &read] {
        script.hear(repeated);
    }
    let numbers: Vec<_> = script.sent().iter().map(|sent| sent.psn()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4].map(|index| PEER_PSN.add(index)));
    assert_eq!(script.counters().duplicate_request, 4);
}

#[test]
fn a_gap_is_nakked_once_and_later_packets_are_dropped() {
    let mut script = Script::new();
    for slot in 0..4 {
        script.receive(slot * 8, 8);
    }
    let send = |script: &Script, index| script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(index));
    for index in 1..4 {
        script.hear(&send(&script, index));
    }
    let sent = script.sent();
    assert_eq!(sent.len(), 1, "expected one NAK for the gap");
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
        "the next gap got no NAK"
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
fn a_send_without_a_receive_gets_an_rnr_nak() {
    let mut script = Script::rc(&End { min_rnr_timer: 17, ..End::default() });
    let send = script.say(Opcode::RC_SEND_ONLY).payload(&[3; 8]);
    script.hear(&send);
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    let sent = script.sent();
    assert_eq!(sent.len(), 1, "a packet after the gap was answered");
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
    assert_eq!(sent.len(), 1, "the responder must send only the response, which acknowledges earlier requests");
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
        // SAFETY: the byte is inside the node's block, which outlives the reader. Both sides use atomic accesses.
        unsafe { AtomicU8::from_ptr((base + index) as *mut u8) }
    };
    let reader = std::thread::spawn(move || {
        for round in 1..=200 {
            while at(LENGTH - 1).load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
            for index in 0..LENGTH {
                assert_eq!(at(index).load(Ordering::Relaxed), round, "byte {index} was written after the last one");
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
fn the_first_packet_raises_communication_established() {
    let mut script = Script::silent(PathMtu::Mtu256);
    let end = End::default();
    script.qpn = script.world.create_qp(OWN, QpKind::Rc, &end);
    let qpn = script.qpn;
    script.world.bring_to_init(OWN, qpn, QpKind::Rc, &end);
    let peer = (crate::common::script::PEER, crate::common::script::PEER_QPN, PEER_PSN);
    script.world.bring_to_rtr(OWN, qpn, QpKind::Rc, PathMtu::Mtu256, &end, peer);
    script.receive(0, 8);
    script.receive(8, 8);
    script.hear(&script.say(Opcode::RC_SEND_ONLY));
    script.hear(&script.say(Opcode::RC_SEND_ONLY).psn(PEER_PSN.add(1)));
    assert_eq!(script.events(), [AsyncEvent::CommunicationEstablished(qpn)]);
    assert_eq!(script.shapes(), [(Opcode::RC_ACKNOWLEDGE, PEER_PSN.add(1))], "a queue pair in RTR did not answer");
}
