//! Tests of XRC, opcodes that are only counted, malformed packets, and the notes about them.

use super::*;

/// Returns an XRC request to shared receive queue 0x33.
fn xrc(opcode: Opcode, psn: u32, extension: &[u8], payload: &[u8]) -> Vec<u8> {
    frame(A, B, opcode, 0xb, psn, &[&[0, 0, 0, 0x33], extension].concat(), payload)
}

fn back(opcode: Opcode, psn: u32, extension: &[u8], payload: &[u8]) -> Vec<u8> {
    frame(B, A, opcode, 0xa, psn, extension, payload)
}

#[test]
fn requests_of_xrc_are_followed() {
    let unlimited = aeth(Syndrome::ACK_UNLIMITED);
    let frames = [
        xrc(Opcode::XRC_SEND_FIRST, 0, &[], &[1; 1024]),
        xrc(Opcode::XRC_SEND_LAST_IMM, 1, &[0; 4], &[1; 100]),
        back(Opcode::XRC_ACKNOWLEDGE, 1, &unlimited, &[]),
        xrc(Opcode::XRC_READ_REQUEST, 2, &reth(1500), &[]),
        back(Opcode::XRC_READ_RESPONSE_FIRST, 2, &unlimited, &[2; 1024]),
        back(Opcode::XRC_READ_RESPONSE_LAST, 3, &unlimited, &[2; 476]),
        xrc(Opcode::XRC_WRITE_ONLY, 4, &reth(30), &[1; 30]),
        xrc(Opcode::XRC_WRITE_ONLY, 4, &reth(30), &[1; 30]),
        // Some RNICs answer XRC requests with opcodes of RC.
        answer(4, Syndrome::ACK_UNLIMITED),
        xrc(Opcode::XRC_FETCH_ADD, 5, &[0; 28], &[]),
        back(Opcode::XRC_ATOMIC_ACKNOWLEDGE, 5, &[0; 12], &[]),
        xrc(Opcode::XRC_SEND_ONLY_INV, 6, &[0; 4], &[1; 8]),
        answer(6, Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR)),
    ];
    let summary = read(&pcap(&frames));
    assert_eq!((summary.packets, summary.malformed_packets, summary.unfollowed_packets), (13, 0, 0));
    assert_eq!(summary.icrc.right, 13);
    let talk = only(&summary);
    assert_eq!((talk.a_qpn, talk.b_qpn), (Some(0xa), Some(0xb)));
    let found: Vec<_> = talk
        .from_a
        .operations
        .iter()
        .map(|it| (it.transport.as_str(), it.operation.as_str(), it.messages, it.payload_bytes))
        .collect();
    let expected = [
        ("XRC", "SEND with immediate", 1, 1124),
        ("XRC", "READ", 1, 1500),
        ("XRC", "WRITE", 1, 30),
        ("XRC", "FETCH_ADD", 1, 8),
        ("XRC", "SEND with invalidate", 1, 8),
    ];
    assert_eq!(found, expected);
    assert_eq!((talk.from_a.retransmitted_packets, talk.from_a.missing_packets), (1, 0));
    assert_eq!((talk.from_b.acks, talk.from_b.read_response_packets, talk.from_b.atomic_responses), (2, 2, 1));
    // The WRITE was repeated, so its time is not measured. The NAK answers no request.
    assert_eq!(talk.from_a.time_to_ack.unwrap().count, 3);
    assert_eq!(summary.opcodes[0].name, "RC Acknowledge");
    assert_eq!((summary.opcodes[1].opcode, summary.opcodes[1].name.as_str()), (0xa0, "XRC SEND First"));
}

#[test]
fn opcodes_of_other_transports_are_counted_by_number() {
    let other = |opcode: u8, psn| frame(A, B, Opcode(opcode), 0xb, psn, &[], &[7; 40]);
    let mut frames = vec![other(0xc4, 9), other(0xc4, 1 << 20), other(0xff, 0), other(0x40, 0), other(0x1f, 5)];
    frames.extend([other(0x7f, 3), other(0x85, 3)]);
    frames.push(frame(B, A, Opcode::CNP, 0xa, 0, &[0; 16], &[]));
    let summary = read(&pcap(&frames));
    assert_eq!((summary.packets, summary.malformed_packets, summary.unfollowed_packets), (8, 0, 7));
    assert_eq!((summary.cnps, summary.icrc.right), (1, 8));
    let opcodes: Vec<_> = summary.opcodes.iter().map(|it| (it.name.as_str(), it.packets, it.followed)).collect();
    let expected = [
        ("RC opcode 0x1f", 1, false),
        ("RD opcode 0x40", 1, false),
        ("UD opcode 0x7f", 1, false),
        ("CNP", 1, true),
        ("CNP opcode 0x85", 1, false),
        ("vendor opcode 0xc4", 2, false),
        ("vendor opcode 0xff", 1, false),
    ];
    assert_eq!(opcodes, expected);
    let note = "7 packets are of opcodes that are counted and not followed: 1 of RC opcode 0x1f, 1 of RD opcode 0x40, 1 of UD \
                opcode 0x7f, 1 of CNP opcode 0x85, 2 of vendor opcode 0xc4, 1 of vendor opcode 0xff.";
    assert_eq!(summary.notes, [note]);
    // Their bytes count for the hosts, but their packets form no messages.
    assert_eq!(summary.hosts[0].tx_packets + summary.hosts[0].rx_packets, 8);
    assert!(summary.conversations.iter().all(|talk| talk.from_a.operations.is_empty()));
}

#[test]
fn memory_placement_extensions_take_sequence_numbers() {
    let frames = [
        send(Opcode::RC_SEND_ONLY, 0, 64),
        frame(A, B, Opcode(0x1c), 0xb, 1, &[], &[0; 20]),
        frame(A, B, Opcode(0x1d), 0xb, 2, &[], &[0; 24]),
        send(Opcode::RC_SEND_ONLY, 3, 64),
        ack(3),
    ];
    let summary = read(&pcap(&frames));
    let from_a = &only(&summary).from_a;
    assert_eq!((from_a.missing_packets, from_a.request_packets, from_a.operations[0].messages), (0, 4, 2));
    let note = "2 packets are of opcodes that are counted and not followed: 1 of RC FLUSH (opcode 0x1c), 1 of RC ATOMIC WRITE \
                (opcode 0x1d).";
    assert_eq!(summary.notes, [note]);
}

/// Returns malformed datagrams to the port. Each has another transport header version, or is too short for a packet.
fn malformed() -> Vec<Vec<u8>> {
    let mut version = transport_packet(Opcode::RC_SEND_ONLY, 0xb, 0, &[], &[]);
    version[1] |= 3;
    let short = seal(A, B, 0, transport_packet(Opcode::RC_SEND_ONLY, 0xb, 0, &[], &[]));
    let mut short = short[..BTH_LEN].to_vec();
    short[0] = Opcode::RC_READ_REQUEST.0;
    [seal(A, B, 0, version), short, vec![1; 5], vec![2; 7]].map(|payload| frame_of(A, B, None, &payload)).to_vec()
}

#[test]
fn malformed_packets_have_reasons() {
    let mut frames = malformed();
    let reasons = |summary: &Summary| -> Vec<_> {
        summary.malformed_reasons.iter().map(|it| (it.packets, it.reason.clone())).collect()
    };
    let expected = [
        (2, "shorter than a BTH".to_owned()),
        (1, "of transport header version 3".to_owned()),
        (1, "too short for RC RDMA READ Request".to_owned()),
    ];
    let summary = read(&pcap(&frames));
    assert_eq!((summary.packets, summary.malformed_packets, summary.other_frames), (0, 4, 0));
    assert_eq!(reasons(&summary), expected);
    // The notes name the reasons, and do not claim that the port has no packets.
    let note = "4 packets to UDP port 4791 are malformed: 2 shorter than a BTH, 1 of transport header version 3, 1 too short \
                for RC RDMA READ Request.";
    assert_eq!(
        summary.notes[..2],
        ["No RoCE v2 packet among 4 frames: all 4 that go to UDP port 4791 are malformed.".to_owned(), note.to_owned()]
    );
    assert!(!summary.notes.iter().any(|note| note.contains("none goes")), "{:?}", summary.notes);
    // Correct packets accompany the malformed ones.
    frames.push(send(Opcode::RC_SEND_ONLY, 0, 4));
    let summary = read(&pcap(&frames));
    assert_eq!((summary.packets, summary.notes[0].as_str()), (1, note));
    // A packet that the snap length cut is not malformed.
    let summary = read(&pcap_of(1, true, false, 45, &[send(Opcode::RC_SEND_ONLY, 0, 64)]));
    assert_eq!((reasons(&summary).len(), summary.cut_bths), (0, 1));
}

#[test]
fn a_note_names_other_ports_if_no_frame_matches() {
    let frames = [send(Opcode::RC_SEND_ONLY, 0, 4), send(Opcode::RC_SEND_ONLY, 1, 4)];
    let options = Options { udp_port: 4792, ..Options::default() };
    let summary = decode(&pcap(&frames)[..], &options).unwrap();
    let note = "No RoCE v2 packet among 2 frames: none goes to UDP port 4792. They are 2 UDP to port 4791.";
    assert_eq!(summary.notes, [note]);
    assert_eq!(read(&pcap(&[])).notes, ["No RoCE v2 packet among 0 frames."]);
}

#[test]
fn packets_without_a_conversation_are_counted_separately() {
    let mut damaged = send(Opcode::RC_SEND_ONLY, 0, 64);
    damaged[80] ^= 1;
    let summary = read(&pcap(&[damaged]));
    assert_eq!(summary.other_conversations_packets, 1);
    let note = "1 packets with a wrong ICRC go to queue pairs that no packet with a right ICRC goes to";
    assert!(summary.notes.iter().any(|found| found.starts_with(note)), "{:?}", summary.notes);
    assert!(
        !summary.notes.iter().any(|note| note.contains("kept apart") || note.contains("  ")),
        "{:?}",
        summary.notes
    );
}

#[test]
fn a_summary_has_the_operations_of_each_host() {
    use crate::explain::Seen;
    use doorbell_wire::{MessageKind, Transport};

    let summary = read(&pcap(&[send(Opcode::RC_SEND_ONLY, 1, 8), send(Opcode::RC_SEND_ONLY, 2, 8), ack(2)]));
    let sends = vec![(Transport::Rc, MessageKind::Send)];
    let of_a = Seen { sent: sends.clone(), received: Vec::new() };
    assert_eq!(Seen::of(&summary, address(A)), Some(of_a));
    assert_eq!(Seen::of(&summary, address(B)), Some(Seen { sent: Vec::new(), received: sends }));
    assert_eq!(Seen::of(&summary, address(9)), None);
    let more = Summary { other_conversations_packets: 1, ..summary };
    assert_eq!(Seen::of(&more, address(A)), None);
}
