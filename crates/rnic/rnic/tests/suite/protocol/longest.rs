//! The longest messages (IBTA Vol 1, 9.4.1: 2^31 bytes).

use crate::common::End;
use crate::common::script::{OWN, PEER, PEER_PSN, Script, nak_of};
use doorbell_verbs_core::{
    MAX_MESSAGE_BYTES, Payload, PostErrorKind, QpKind, QpState, RecvRequest, SendFlags, SendOperation as Op,
    SendRequest, Sge, Status,
};
use doorbell_wire::{BTH_LEN, NakCode, Opcode, Outer, PathMtu, RKey, RethPacket};

/// Creates a queue pair with a path MTU of 4096, and two scatter-gather elements of `bytes` in total. The elements have
/// no memory.
fn with_room(kind: QpKind, bytes: u64) -> (Script, [Sge; 2]) {
    let mut script = Script::with(kind, PathMtu::Mtu4096, &End::default());
    let pd = script.world.nodes[OWN].pd;
    let lkey = script.rnic().register_null(pd).expect("the device has room").lkey();
    let half = u32::try_from(bytes / 2).expect("the length fits into an element");
    let rest = u32::try_from(bytes - u64::from(half)).expect("the length fits into an element");
    (script, [Sge { address: 0, length: half, lkey }, Sge { address: 0, length: rest, lkey }])
}

#[test]
fn requests_beyond_the_maximum_message_length_are_refused() {
    let read = Op::Read { remote_address: 0x1_0000, rkey: RKey::new(0x1234) };
    let write = Op::Write { remote_address: 0x1_0000, rkey: RKey::new(0x1234) };
    for operation in [Op::Send, write, read] {
        let (mut script, sges) = with_room(QpKind::Rc, MAX_MESSAGE_BYTES + 1);
        let (flags, now_ns, qpn) = (SendFlags::SIGNALED, script.world.now_ns, script.qpn);
        let request = SendRequest { wr_id: 1, operation, flags, payload: Payload::Sges(&sges), destination: None };
        let error = script.rnic().post_send(now_ns, qpn, &[request]).expect_err("the message is too long");
        let (given, allowed) = (MAX_MESSAGE_BYTES + 1, MAX_MESSAGE_BYTES);
        assert_eq!(error.kind, PostErrorKind::MessageTooLong { given, allowed });
        assert!(error.to_string().contains("2147483649") && error.to_string().contains("2147483648"), "{error}");
        // The device accepts a message of the maximum length, and its first packet is correct.
        let (mut script, sges) = with_room(QpKind::Rc, MAX_MESSAGE_BYTES);
        let qpn = script.qpn;
        let request = SendRequest { payload: Payload::Sges(&sges), ..request };
        script.rnic().post_send(now_ns, qpn, &[request]).expect("the message has the maximum length");
        let sent = script.sent();
        let length = || RethPacket::new_checked(&sent[0].bytes[BTH_LEN..]).expect("whole").dma_length();
        match operation {
            Op::Send => assert_eq!(sent[0].opcode(), Opcode::RC_SEND_FIRST),
            Op::Write { .. } => assert_eq!((sent[0].opcode(), length()), (Opcode::RC_WRITE_FIRST, 1 << 31)),
            // The READ requests a piece that fits into the window.
            _ => assert!(sent[0].opcode() == Opcode::RC_READ_REQUEST && (4096..1 << 20).contains(&length())),
        }
    }
}

/// Sends `packets` full packets of one message from the peer, and then the last packet of the message.
fn hear_message(script: &mut Script, opcodes: [Opcode; 3], packets: u64) {
    let outer = Outer {
        src: script.world.nodes[PEER].address,
        dst: script.world.nodes[OWN].address,
        traffic_class: 0,
        hop_limit: 64,
        identification: None,
        dont_fragment: None,
    };
    let now_ns = script.world.now_ns;
    let mut packet = script.say(opcodes[1]).quiet().payload(&[0; 4096]).bytes();
    for index in 0..=packets {
        packet[0] = match index {
            0 => opcodes[0].0,
            index if index == packets => opcodes[2].0,
            _ => opcodes[1].0,
        };
        packet[9..12].copy_from_slice(&PEER_PSN.add(index as u32).get().to_be_bytes()[1..]);
        script.rnic().handle_packet(now_ns, &outer, &packet);
    }
}

#[test]
fn a_message_that_exceeds_the_maximum_ends_the_connection() {
    let opcodes = [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST];
    let whole = MAX_MESSAGE_BYTES / 4096;
    for (packets, status) in [(whole - 1, Status::Success), (whole, Status::LocalLength)] {
        let (mut script, sges) = with_room(QpKind::Rc, 6 << 30);
        let qpn = script.qpn;
        script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 5, sges: &sges }]).expect("the device has room");
        hear_message(&mut script, opcodes, packets);
        let completions = script.reap();
        assert_eq!(completions.iter().map(|end| (end.wr_id, end.status)).collect::<Vec<_>>(), [(5, status)]);
        if status == Status::Success {
            assert_eq!(u64::from(completions[0].byte_len), MAX_MESSAGE_BYTES);
        } else {
            assert_eq!(script.sent().last().and_then(nak_of), Some(NakCode::INVALID_REQUEST));
            assert_eq!(script.state(), QpState::Error);
        }
    }
    // UC drops the message.
    let (mut script, sges) = with_room(QpKind::Uc, 6 << 30);
    let qpn = script.qpn;
    script.rnic().post_recv(qpn, &[RecvRequest { wr_id: 5, sges: &sges }]).expect("the device has room");
    hear_message(&mut script, [Opcode::UC_SEND_FIRST, Opcode::UC_SEND_MIDDLE, Opcode::UC_SEND_LAST], whole);
    assert_eq!((script.reap().len(), script.counters().rx_dropped_messages), (0, 1));
}

#[test]
fn a_write_that_announces_more_than_the_longest_message_is_invalid() {
    let mut script = Script::new();
    let (base, rkey) = (script.base(), script.rkey());
    script.hear(&script.say(Opcode::RC_WRITE_FIRST).reth(base, rkey, (1 << 31) + 1).payload(&[1; 256]));
    assert_eq!(nak_of(&script.sent()[0]), Some(NakCode::INVALID_REQUEST));
    assert_eq!(script.state(), QpState::Error);
}
