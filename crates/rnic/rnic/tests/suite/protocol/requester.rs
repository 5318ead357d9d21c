//! Packets of the requester, and its handling of answers (IBTA Vol 1, 9.7.3, 9.7.5.1).

use crate::common::End;
use crate::common::script::{OWN, OWN_PSN, Script};
use doorbell_verbs_core::{
    AsyncEvent, CompletionOpcode, QpAttributes, QpKind, QpState, SendFlags, SendOperation as Op, Status,
};
use doorbell_wire::{BTH_LEN, NakCode, Opcode, PathMtu, Psn, RKey, RethPacket};

const NONE: [(u64, Status); 0] = [];

fn psn(index: u32) -> Psn {
    OWN_PSN.add(index)
}

fn write() -> Op {
    Op::Write { remote_address: 0xabc0, rkey: RKey::new(0x1234) }
}

fn read() -> Op {
    Op::Read { remote_address: 0x10_0000, rkey: RKey::new(0x1234) }
}

fn add() -> Op {
    Op::FetchAdd { remote_address: 0x10_0000, rkey: RKey::new(0x1234), add: 1 }
}

/// Returns the address and the length in the RETH of the packet.
fn reth(bytes: &[u8]) -> (u64, u32) {
    let reth = RethPacket::new_checked(&bytes[BTH_LEN..]).expect("the header is complete");
    (reth.virtual_address(), reth.dma_length())
}

#[test]
fn every_operation_has_its_opcodes() {
    use Opcode as O;
    let key = RKey::new(0x1234);
    let immediate = Op::WriteImmediate { remote_address: 0, rkey: key, immediate: 1 };
    let swap = Op::CompareSwap { remote_address: 0, rkey: key, compare: 1, swap: 2 };
    let cases: [(Op, usize, &[Opcode]); 14] = [
        (Op::Send, 0, &[O::RC_SEND_ONLY]),
        (Op::Send, 256, &[O::RC_SEND_ONLY]),
        (Op::Send, 257, &[O::RC_SEND_FIRST, O::RC_SEND_LAST]),
        (Op::Send, 513, &[O::RC_SEND_FIRST, O::RC_SEND_MIDDLE, O::RC_SEND_LAST]),
        (Op::SendImmediate(1), 1, &[O::RC_SEND_ONLY_IMM]),
        (Op::SendImmediate(1), 257, &[O::RC_SEND_FIRST, O::RC_SEND_LAST_IMM]),
        (Op::SendInvalidate(key), 1, &[O::RC_SEND_ONLY_INV]),
        (Op::SendInvalidate(key), 257, &[O::RC_SEND_FIRST, O::RC_SEND_LAST_INV]),
        (write(), 0, &[O::RC_WRITE_ONLY]),
        (write(), 513, &[O::RC_WRITE_FIRST, O::RC_WRITE_MIDDLE, O::RC_WRITE_LAST]),
        (immediate, 257, &[O::RC_WRITE_FIRST, O::RC_WRITE_LAST_IMM]),
        (immediate, 4, &[O::RC_WRITE_ONLY_IMM]),
        (add(), 8, &[O::RC_FETCH_ADD]),
        (swap, 8, &[O::RC_COMPARE_SWAP]),
    ];
    for (operation, length, opcodes) in cases {
        let mut script = Script::new();
        script.post_flagged(operation, length, SendFlags::SIGNALED | SendFlags::SOLICITED);
        let sent = script.sent();
        let found: Vec<_> = sent.iter().map(|sent| sent.opcode()).collect();
        assert_eq!(found, opcodes, "{operation:?} of {length} B");
        let count = sent.len();
        for (index, sent) in sent.iter().enumerate() {
            let last = index + 1 == count;
            let answered = sent.opcode().has_atomic_eth();
            assert_eq!(sent.psn(), psn(index as u32));
            assert_eq!(sent.bth().ack_request(), last, "only the last packet may request an acknowledgement");
            assert_eq!(sent.bth().solicited(), last && !answered, "only the last packet may be solicited");
            assert_eq!((sent.info.first, sent.info.last), (index == 0, last));
            assert_eq!(sent.info.work_request, Some(0));
            assert_eq!(usize::from(sent.bth().pad_count()), sent.info.payload_bytes.wrapping_neg() as usize & 3);
        }
        let payload: u32 = sent.iter().map(|sent| sent.info.payload_bytes).sum();
        assert_eq!(payload as usize, if opcodes[0].has_atomic_eth() { 0 } else { length });
    }
}

#[test]
fn one_acknowledgement_completes_all_requests_before_it() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    script.post_flagged(Op::Send, 300, SendFlags::empty());
    script.post(write(), 0);
    script.post(Op::Send, 8);
    assert_eq!(script.sent().len(), 5);
    script.ack(psn(3));
    assert_eq!(script.ends(), [(0, Status::Success), (2, Status::Success)]);
    assert!(script.rnic().in_flight_packets() > 0);
    script.ack(psn(4));
    assert_eq!(script.ends(), [(3, Status::Success)]);
    assert_eq!(script.rnic().in_flight_packets(), 0);
    script.world.settle();
    assert_eq!(script.rnic().poll_timeout(), None);
}

#[test]
fn stale_and_premature_acknowledgements_have_no_effect() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    script.post(Op::Send, 8);
    script.sent();
    for wrong in [psn(2), psn(1000), psn(1 << 22)] {
        script.ack(wrong);
    }
    assert_eq!(script.ends(), NONE);
    assert_eq!(script.counters().rx_unexpected_response, 3);
    script.ack(psn(0));
    assert_eq!(script.ends().len(), 1);
    // Late and duplicate answers must have no effect. This includes NAKs that a later answer has overtaken.
    script.ack(psn(0));
    script.nak(psn(0), NakCode::REMOTE_ACCESS_ERROR);
    script.ack(OWN_PSN.sub(1));
    script.rnr_nak(OWN_PSN.sub(7), 1);
    assert_eq!(script.ends(), NONE);
    assert_eq!(script.shapes(), []);
    assert_eq!(script.state(), QpState::ReadyToSend);
    assert_eq!(script.counters().rx_unexpected_response, 3);
}

#[test]
fn sequence_numbers_wrap() {
    let mut script = Script::rc(&End { send_psn: Psn::new(Psn::MASK - 1), ..End::default() });
    script.post(Op::Send, 8);
    script.post(Op::Send, 600);
    let first = Psn::new(Psn::MASK - 1);
    let numbers: Vec<_> = script.sent().iter().map(|sent| sent.psn()).collect();
    assert_eq!(numbers, [first, Psn::new(Psn::MASK), Psn::new(0), Psn::new(1)]);
    script.nak(Psn::new(0), NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(script.ends(), [(0, Status::Success)]);
    let numbers: Vec<_> = script.sent().iter().map(|sent| sent.psn()).collect();
    assert_eq!(numbers, [Psn::new(0), Psn::new(1)], "expected a retransmission from the gap on, within a message");
    script.ack(Psn::new(1));
    assert_eq!(script.ends(), [(1, Status::Success)]);
}

#[test]
fn each_nak_code_has_its_status_and_flushes_later_requests() {
    let cases = [
        (NakCode::INVALID_REQUEST, Status::RemoteInvalidRequest),
        (NakCode::REMOTE_ACCESS_ERROR, Status::RemoteAccess),
        (NakCode::REMOTE_OPERATIONAL_ERROR, Status::RemoteOperation),
        (NakCode::INVALID_RD_REQUEST, Status::RemoteInvalidRequest),
    ];
    for (code, status) in cases {
        let mut script = Script::new();
        script.receive(64, 8);
        for _ in 0..2 {
            script.post(Op::Send, 8);
        }
        script.post_flagged(Op::Send, 8, SendFlags::empty());
        script.sent();
        script.nak(psn(1), code);
        let flushed = Status::WorkRequestFlushed;
        let expected = [(0, Status::Success), (1, status), (2, flushed), (64, flushed)];
        assert_eq!(script.ends(), expected, "{code:?}: unsignalled requests must also report their failure");
        assert_eq!(script.state(), QpState::Error);
        let counters = script.counters();
        let counted = counters.req_remote_invalid_request
            + counters.req_remote_access_errors
            + counters.req_remote_operational_errors;
        assert_eq!(counted, 1);
        assert_eq!(script.rnic().in_flight_packets(), 0);
        assert_eq!(script.shapes(), []);
        script.post(Op::Send, 8);
        assert_eq!(script.ends(), [(3, flushed)], "a request in the error state was not flushed at once");
        script.world.settle();
        assert_eq!(script.rnic().poll_timeout(), None);
    }
}

#[test]
fn a_read_gathers_its_response_packets() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    script.post_read(600);
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(0)), (Opcode::RC_READ_REQUEST, psn(1))]);
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(1), &[1; 256]);
    assert_eq!(script.ends(), [(0, Status::Success)], "the response did not acknowledge earlier requests");
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(1), &[9; 256]);
    script.respond(Opcode::RC_READ_RESPONSE_MIDDLE, psn(2), &[2; 256]);
    assert_eq!(script.ends(), NONE);
    script.respond(Opcode::RC_READ_RESPONSE_LAST, psn(3), &[3; 88]);
    let completion = script.reap()[0];
    assert_eq!((completion.wr_id, completion.status, completion.byte_len), (1, Status::Success, 600));
    assert_eq!(completion.opcode, CompletionOpcode::Read);
    let bytes = script.world.nodes[OWN].memory.read(0, 600);
    assert_eq!(
        bytes,
        [&[1; 256][..], &[2; 256], &[3; 88]].concat(),
        "a duplicate response packet was copied into memory"
    );
    assert_eq!(script.rnic().in_flight_packets(), 0);
    // The sequence number of the next request must follow the last sequence number of the response.
    script.post(Op::Send, 0);
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(4))]);
}

#[test]
fn a_read_that_lost_a_response_asks_for_the_rest() {
    let mut script = Script::new();
    script.post_read(1000);
    script.sent();
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(0), &[1; 256]);
    script.respond(Opcode::RC_READ_RESPONSE_MIDDLE, psn(2), &[3; 256]);
    script.respond(Opcode::RC_READ_RESPONSE_LAST, psn(3), &[4; 232]);
    assert_eq!(script.counters().implied_nak_seq_err, 1, "the lost response was not requested exactly once");
    let sent = script.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].opcode(), sent[0].psn()), (Opcode::RC_READ_REQUEST, psn(1)));
    assert_eq!(reth(&sent[0].bytes), (0x10_0000 + 256, 744));
    assert!(sent[0].info.retransmission);
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(1), &[2; 256]);
    script.respond(Opcode::RC_READ_RESPONSE_MIDDLE, psn(2), &[3; 256]);
    script.respond(Opcode::RC_READ_RESPONSE_LAST, psn(3), &[4; 232]);
    assert_eq!(script.ends(), [(0, Status::Success)]);
    assert_eq!(script.rnic().in_flight_packets(), 0);
}

#[test]
fn an_ack_past_a_read_or_atomic_implies_a_lost_answer() {
    for (operation, opcode, length) in [(read(), Opcode::RC_READ_REQUEST, 16), (add(), Opcode::RC_FETCH_ADD, 8)] {
        let mut script = Script::new();
        script.post(operation, length);
        script.post(Op::Send, 8);
        script.sent();
        script.ack(psn(1));
        script.ack(psn(1));
        assert_eq!(script.ends(), NONE);
        assert_eq!(script.counters().implied_nak_seq_err, 1);
        assert_eq!(script.shapes(), [(opcode, psn(0)), (Opcode::RC_SEND_ONLY, psn(1))]);
    }
}

#[test]
fn answers_out_of_order_ask_for_the_oldest_again() {
    let mut script = Script::new();
    script.post_read(16);
    script.post(add(), 8);
    script.sent();
    script.respond_atomic(psn(1), 5);
    assert_eq!(script.ends(), NONE);
    assert_eq!(script.shapes(), [(Opcode::RC_READ_REQUEST, psn(0)), (Opcode::RC_FETCH_ADD, psn(1))]);
    script.respond(Opcode::RC_READ_RESPONSE_ONLY, psn(0), &[1; 16]);
    script.respond_atomic(psn(1), 5);
    assert_eq!(script.ends(), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(script.world.nodes[OWN].memory.word(0), 5, "the old value must be stored in host byte order");
}

#[test]
fn a_response_of_the_wrong_length_is_a_bad_response() {
    let mut script = Script::new();
    script.post_read(600);
    script.post(Op::Send, 8);
    script.sent();
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(0), &[1; 255]);
    assert_eq!(script.ends(), [(0, Status::BadResponse), (1, Status::WorkRequestFlushed)]);
}

#[test]
fn a_long_read_is_split_and_repeated_within_its_pieces() {
    // A buffer of 64 kB leads to a window of 16 kB. Pieces then cost up to 4 kB, which is three packets.
    let link = crate::common::Link { buffer_bytes: 64_000, ..Default::default() };
    let mut world = crate::common::World::new(1, 2, 1 << 20, 64, link);
    let end = End { max_rd_atomic: 2, ..End::default() };
    let (a, _) = world.connect(doorbell_verbs_core::QpKind::Rc, PathMtu::Mtu256, (0, &end), (1, &end));
    world.recording = true;
    let pattern = crate::common::workload::pattern(3, 4000);
    world.nodes[1].memory.write(0, &pattern);
    let sge = [world.nodes[0].sge(0, 4000)];
    let (remote_address, rkey) = (world.nodes[1].memory.address(), world.nodes[1].region.rkey());
    let request = doorbell_verbs_core::SendRequest {
        wr_id: 1,
        operation: Op::Read { remote_address, rkey },
        flags: SendFlags::SIGNALED,
        payload: doorbell_verbs_core::Payload::Sges(&sge),
        destination: None,
    };
    world.nodes[0].rnic.post_send(1, a, &[request]).expect("the device has room");
    // The network loses the second response packet.
    let mut count = 0;
    world.gate = Some(Box::new(move |sent| {
        count += usize::from(sent.from == 1);
        !(sent.from == 1 && count == 2)
    }));
    world.transmit();
    let first: Vec<_> = world.sent(0, 1).map(|sent| (sent.psn(), reth(&sent.bytes).1)).collect();
    assert_eq!(first, [(psn(0), 768), (psn(3), 768)], "expected two outstanding requests");
    world.settle();
    assert_eq!(world.nodes[0].memory.read(0, 4000), pattern);
    for sent in world.sent(0, 1) {
        let start = sent.psn().distance_from(OWN_PSN);
        let packets = reth(&sent.bytes).1.div_ceil(256);
        assert_eq!(start / 3, (start + packets - 1) / 3, "a retransmission exceeds a piece: {start} + {packets}");
    }
    assert!(world.sent(0, 1).any(|sent| sent.psn() == psn(1)), "the lost packet was not requested again");
    assert_eq!(world.nodes[0].reap().len(), 1);
    world.assert_at_rest();
}

#[test]
fn outstanding_reads_and_atomics_are_bounded_as_agreed() {
    let mut script = Script::rc(&End { max_rd_atomic: 2, ..End::default() });
    for _ in 0..3 {
        script.post_read(16);
    }
    script.post(Op::Send, 0);
    assert_eq!(script.shapes().len(), 2, "a request overtook a waiting one");
    script.respond(Opcode::RC_READ_RESPONSE_ONLY, psn(0), &[0; 16]);
    assert_eq!(script.shapes(), [(Opcode::RC_READ_REQUEST, psn(2)), (Opcode::RC_SEND_ONLY, psn(3))]);
    // At most two READs may be outstanding. This must also hold after a retransmission, when late responses to the
    // first transmission arrive.
    script.nak(psn(1), NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(script.shapes().len(), 3);
    script.post_read(16);
    script.respond(Opcode::RC_READ_RESPONSE_ONLY, psn(1), &[0; 16]);
    assert_eq!(script.shapes(), [(Opcode::RC_READ_REQUEST, psn(4))]);
    script.post_read(16);
    script.respond(Opcode::RC_READ_RESPONSE_ONLY, psn(1), &[0; 16]);
    assert_eq!(script.shapes(), [], "a duplicate answer must make no room for a request");
}

#[test]
fn a_fence_waits_only_for_reads_and_atomics() {
    let mut script = Script::new();
    script.post(Op::Send, 0);
    script.post_flagged(Op::Send, 0, SendFlags::FENCE);
    assert_eq!(script.shapes().len(), 2, "a fence waited for SENDs");
    script.post_read(300);
    script.post(add(), 8);
    script.post_flagged(write(), 8, SendFlags::FENCE);
    script.post(Op::Send, 0);
    assert_eq!(script.shapes().len(), 2);
    script.respond(Opcode::RC_READ_RESPONSE_FIRST, psn(2), &[0; 256]);
    script.respond(Opcode::RC_READ_RESPONSE_LAST, psn(3), &[0; 44]);
    assert_eq!(script.shapes(), []);
    script.respond_atomic(psn(4), 0);
    assert_eq!(script.shapes(), [(Opcode::RC_WRITE_ONLY, psn(5)), (Opcode::RC_SEND_ONLY, psn(6))]);
}

#[test]
fn inline_data_is_copied_when_it_is_posted() {
    let mut script = Script::new();
    let (qpn, now_ns) = (script.qpn, script.world.now_ns);
    let bytes = vec![7; 64];
    let request = doorbell_verbs_core::SendRequest {
        wr_id: 0,
        operation: Op::Send,
        flags: SendFlags::empty(),
        payload: doorbell_verbs_core::Payload::Inline(&bytes),
        destination: None,
    };
    script.rnic().post_send(now_ns, qpn, &[request]).expect("the device has room");
    drop(bytes);
    let sent = script.sent();
    assert!(sent[0].info.inline);
    assert_eq!(sent[0].bytes[BTH_LEN..], [7; 64]);
}

/// Posts SEND 7, whose second packet lies in a separate region, and then SEND 8. Then deregisters that region.
fn send_from_nowhere(script: &mut Script) {
    let length = 64;
    let region = script.region(0, length, doorbell_verbs_core::Access::empty());
    let whole = script.world.nodes[OWN].sge(0, 256);
    let gone = doorbell_verbs_core::Sge { address: region.address(), length: length as u32, lkey: region.lkey() };
    let elements = [whole, gone];
    let (qpn, now_ns) = (script.qpn, script.world.now_ns);
    let request = |wr_id, sges| doorbell_verbs_core::SendRequest {
        wr_id,
        operation: Op::Send,
        flags: SendFlags::empty(),
        payload: doorbell_verbs_core::Payload::Sges(sges),
        destination: None,
    };
    let list = [request(7, &elements[..]), request(8, &elements[..1])];
    script.rnic().post_send(now_ns, qpn, &list).expect("the device has room");
    script.rnic().deregister(&region).expect("the region was registered");
}

#[test]
fn a_request_with_missing_memory_fails_after_earlier_ones() {
    let mut script = Script::new();
    script.post(Op::Send, 64);
    script.post(read(), 256);
    send_from_nowhere(&mut script);
    // The first packet of the failing request still leaves.
    let expected = [(Opcode::RC_SEND_ONLY, psn(0)), (Opcode::RC_READ_REQUEST, psn(1)), (Opcode::RC_SEND_FIRST, psn(2))];
    assert_eq!(script.shapes(), expected, "only packets with readable memory may leave");
    assert_eq!(script.counters().tx_vport_rdma_unicast_packets, 3);
    assert_eq!(
        (script.ends(), script.state()),
        (vec![], QpState::ReadyToSend),
        "the request failed before its earlier packets were acknowledged"
    );
    // Until the request fails, the requester must still retransmit lost packets.
    script.nak(psn(0), NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(script.shapes(), expected);
    script.ack(psn(0));
    assert_eq!(script.ends(), [(0, Status::Success)]);
    assert_eq!((script.shapes(), script.state()), (vec![], QpState::ReadyToSend));
    script.respond(Opcode::RC_READ_RESPONSE_ONLY, psn(1), &[1; 256]);
    script.sent();
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(script.ends(), [(1, Status::Success), (7, Status::LocalProtection), (8, flushed)]);
    assert_eq!(script.state(), QpState::Error);
    assert_eq!(script.rnic().in_flight_packets(), 0);
}

#[test]
fn a_request_with_missing_memory_does_not_outlast_retries() {
    let mut script = Script::rc(&End { timeout: 8, retry_count: 2, ..End::default() });
    script.post(Op::Send, 64);
    send_from_nowhere(&mut script);
    script.sent();
    script.pass(1_000_000_000);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(script.ends(), [(0, Status::RetryExceeded), (7, flushed), (8, flushed)]);
    assert_eq!(script.rnic().in_flight_packets(), 0);
}

#[test]
fn a_first_request_with_missing_memory_fails_at_once() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut script = Script::with(kind, PathMtu::Mtu256, &End::default());
        send_from_nowhere(&mut script);
        assert_eq!(script.sent().len(), 1, "only packets with readable memory may leave");
        assert_eq!(script.ends(), [(7, Status::LocalProtection), (8, Status::WorkRequestFlushed)]);
        assert_eq!(script.rnic().in_flight_packets(), 0);
    }
}

#[test]
fn draining_finishes_begun_requests_and_raises_an_event() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    script.post(Op::Send, 8);
    script.sent();
    let drain = QpAttributes { state: Some(QpState::SqDrain), sqd_notify: Some(true), ..QpAttributes::default() };
    let qpn = script.qpn;
    script.world.modify(OWN, qpn, drain);
    script.post(Op::Send, 8);
    assert_eq!(script.shapes(), [], "a draining queue pair started a new request");
    // The acknowledgement arrives when the requester is about to retransmit all packets. The acknowledgement completes
    // only the first request, so the send queue is not drained.
    script.nak(psn(0), NakCode::PSN_SEQUENCE_ERROR);
    script.ack(psn(0));
    assert_eq!(script.events(), [], "the drained event came while a request is outstanding");
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(1))]);
    script.ack(psn(1));
    assert_eq!(script.events(), [AsyncEvent::SqDrained(qpn)]);
    script.world.bring_to(OWN, qpn, QpState::ReadyToSend);
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(2))], "the second request was not retransmitted");
    script.ack(psn(2));
    // The earlier move to SQD has used up its request for the event. Another move requests it again, and gets the event
    // at once, since the send queue is already drained.
    script.world.modify(OWN, qpn, drain);
    assert_eq!(script.events(), [AsyncEvent::SqDrained(qpn)]);
    script.world.bring_to(OWN, qpn, QpState::ReadyToSend);
    script.world.bring_to(OWN, qpn, QpState::SqDrain);
    assert_eq!(script.events(), [], "the event came without a request");
}

#[test]
fn a_new_address_while_drained_moves_remaining_requests() {
    let mut script = Script::new();
    script.post(Op::Send, 8);
    script.sent();
    let qpn = script.qpn;
    script.world.bring_to(OWN, qpn, QpState::SqDrain);
    let elsewhere = crate::common::address_of(9);
    let address = doorbell_verbs_core::AddressVector::to(elsewhere);
    script.world.modify(OWN, qpn, QpAttributes { address: Some(address), ..QpAttributes::default() });
    assert_eq!(script.rnic().in_flight_packets(), 0, "packets to the old address are in flight");
    let mut batch = doorbell_rnic::TransmitBatch::new(4096, 4);
    let now_ns = script.world.now_ns;
    let budget = doorbell_rnic::Budget::UNLIMITED;
    assert_eq!(script.rnic().poll_transmit(now_ns, budget, doorbell_rnic::Filter::All, &mut batch), 1);
    assert_eq!(batch.runs()[0].path.destination, elsewhere);
    script.ack(psn(0));
    assert_eq!(script.counters().rx_foreign_source, 1, "the old peer's packet was not counted as foreign");
    script.world.bring_to(OWN, qpn, QpState::Error);
    assert_eq!(script.ends(), [(0, Status::WorkRequestFlushed)]);
    assert_eq!(script.rnic().in_flight_packets(), 0);
}

#[test]
fn reset_discards_posted_work_and_the_old_connection() {
    let end = End::default();
    let mut script = Script::rc(&end);
    script.receive(64, 8);
    script.post(Op::Send, 300);
    script.post_read(300);
    script.sent();
    let qpn = script.qpn;
    script.world.bring_to(OWN, qpn, QpState::Reset);
    assert_eq!(script.ends(), NONE);
    assert_eq!(script.rnic().in_flight_packets(), 0);
    script.ack(psn(0));
    assert_eq!(script.counters().rx_foreign_source + script.counters().rx_wrong_state, 1);
    script.world.bring_to_init(OWN, qpn, doorbell_verbs_core::QpKind::Rc, &end);
    let peer = (crate::common::script::PEER, crate::common::script::PEER_QPN, crate::common::script::PEER_PSN);
    script.world.bring_to_rtr(OWN, qpn, doorbell_verbs_core::QpKind::Rc, PathMtu::Mtu256, &end, peer);
    script.world.bring_to_rts(OWN, qpn, doorbell_verbs_core::QpKind::Rc, &end);
    script.post(Op::Send, 8);
    assert_eq!(script.shapes(), [(Opcode::RC_SEND_ONLY, psn(0))]);
    script.ack(psn(0));
    assert_eq!(script.ends(), [(2, Status::Success)]);
}
