//! Tests of packets that the snap length cut within their headers.

use doorbell_wire::ROCE_UDP_PORT;

use super::*;

/// Returns four READs of 8 KiB at path MTU 1024 with their responses, an atomic operation, and a WRITE with its ACK.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for read in 0..4 {
        let first = 100 + 8 * read;
        frames.push(frame(A, B, Opcode::RC_READ_REQUEST, 0xb, first, &reth(8192), &[]));
        for packet in 0..8 {
            let opcode = match packet {
                0 => Opcode::RC_READ_RESPONSE_FIRST,
                7 => Opcode::RC_READ_RESPONSE_LAST,
                _ => Opcode::RC_READ_RESPONSE_MIDDLE,
            };
            let extension = vec![0x1f; opcode.extension_len()];
            frames.push(frame(B, A, opcode, 0xa, first + packet, &extension, &[7; 1024]));
        }
    }
    frames.push(frame(A, B, Opcode::RC_FETCH_ADD, 0xb, 132, &[0; 28], &[]));
    frames.push(frame(B, A, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0xa, 132, &[0; 12], &[]));
    frames.push(frame(A, B, Opcode::RC_WRITE_ONLY, 0xb, 133, &reth(64), &[1; 64]));
    frames.push(ack(133));
    frames
}

/// Returns the frames with a VLAN tag.
fn tagged(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat()).collect()
}

/// Returns the packets of the frames over IPv6, with a VLAN tag or without.
fn over_ipv6(frames: &[Vec<u8>], vlan: Option<u16>) -> Vec<Vec<u8>> {
    let rewrap = |frame: &Vec<u8>| {
        let address = |last: u8| IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let outer = Outer {
            src: address(frame[29]),
            dst: address(frame[33]),
            traffic_class: 0,
            hop_limit: 64,
            identification: None,
            dont_fragment: None,
        };
        let port = ROCE_UDP_PORT;
        let headers = Encapsulation { src_mac: [2; 6], dst_mac: [4; 6], vlan, src_port: port, dst_port: port };
        let packet = &frame[42..frame.len() - 4];
        let icrc = Flow::new(outer.src, outer.dst, port, port).icrc(0, true, packet).to_le_bytes();
        let mut out = vec![0; headers.header_len(&outer)];
        headers.emit_frame_headers(&outer, packet.len() + 4, &mut out);
        [&out[..], packet, &icrc].concat()
    };
    frames.iter().map(rewrap).collect()
}

fn cut_to(bytes: usize, frames: &[Vec<u8>]) -> Summary {
    read(&pcap_of(1, true, false, bytes, frames))
}

/// Checks facts that hold for any cut after the BTH.
fn check_whole(summary: &Summary, frames: &[Vec<u8>]) {
    assert_eq!((summary.packets, summary.malformed_packets), (frames.len() as u64, 0));
    assert_eq!((summary.retransmitted_packets, summary.cut_bths), (0, 0));
    let talk = only(summary);
    let from_a = &talk.from_a;
    let messages: Vec<_> = from_a.operations.iter().map(|it| (it.operation.as_str(), it.messages)).collect();
    assert_eq!(messages, [("READ", 4), ("FETCH_ADD", 1), ("WRITE", 1)]);
    assert_eq!((from_a.missing_packets, from_a.incomplete_messages, from_a.retransmitted_packets), (0, 0, 0));
    assert_eq!((talk.from_b.read_response_packets, talk.from_b.atomic_responses), (32, 1));
    assert_eq!((from_a.operations[1].payload_bytes, from_a.operations[2].payload_bytes), (8, 64));
}

#[test]
fn a_read_whose_reth_is_cut_has_an_unknown_length() {
    let v4 = frames();
    let v4_tagged = tagged(&v4);
    let (v6, v6_tagged) = (over_ipv6(&v4, None), over_ipv6(&v4, Some(7)));
    for (frames, around) in [(&v4, 14 + 20), (&v4_tagged, 18 + 20), (&v6, 14 + 40), (&v6_tagged, 18 + 40)] {
        let headers = around + 8 + 12;
        let whole = cut_to(usize::MAX, frames);
        check_whole(&whole, frames);
        let read = &only(&whole).from_a.operations[0];
        assert_eq!((read.payload_bytes, read.min_bytes, read.unknown_sizes), (4 * 8192, Some(8192), 0));
        // The cut goes from the end of the BTH to the last byte of the RETH.
        for bytes in headers..headers + 16 {
            let summary = cut_to(bytes, frames);
            check_whole(&summary, frames);
            let read = &only(&summary).from_a.operations[0];
            assert_eq!((read.unknown_sizes, read.payload_bytes, read.sizes.len()), (4, 0, 0), "{bytes}");
            assert_eq!((read.min_bytes, read.max_bytes), (None, None), "{bytes}");
            let note = "the RETH of 4 READ requests (length unknown)";
            assert!(summary.notes.iter().any(|it| it.contains(note)), "{:?}", summary.notes);
        }
        // The frame includes the RETH, but not the ICRC.
        let summary = cut_to(headers + 16, frames);
        check_whole(&summary, frames);
        assert_eq!(only(&summary).from_a.operations[0].sizes, [SizeCount { bytes: 8192, messages: 4 }]);
    }
}

#[test]
fn an_ack_with_a_cut_aeth_is_neither_ack_nor_nak() {
    let mut v4 = vec![send(Opcode::RC_SEND_ONLY, 0, 64), ack(0), send(Opcode::RC_SEND_ONLY, 1, 64)];
    v4.push(answer(1, Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR)));
    let v4_tagged = tagged(&v4);
    let (v6, v6_tagged) = (over_ipv6(&v4, None), over_ipv6(&v4, Some(7)));
    for (frames, around) in [(&v4, 14 + 20), (&v4_tagged, 18 + 20), (&v6, 14 + 40), (&v6_tagged, 18 + 40)] {
        let headers = around + 8 + 12;
        for bytes in headers..headers + 4 {
            let summary = cut_to(bytes, frames);
            let talk = only(&summary);
            assert_eq!((talk.from_b.acks, talk.from_b.naks.len(), talk.from_b.cut_acks), (0, 0, 2), "{bytes}");
            assert_eq!((summary.malformed_packets, summary.cut_packets), (0, 4));
            assert_eq!(talk.from_a.acks_per_request_packet, Some(1.0));
            assert_eq!(talk.from_a.time_to_ack, None);
        }
        let talk = only(&cut_to(headers + 4, frames)).clone();
        assert_eq!((talk.from_b.acks, talk.from_b.naks.len(), talk.from_b.cut_acks), (1, 1, 0));
    }
}

#[test]
fn packets_cut_within_the_bth_are_cut_and_not_malformed() {
    let v4 = frames();
    let (v6, v6_tagged) = (over_ipv6(&v4, None), over_ipv6(&v4, Some(7)));
    for (frames, around) in [(&v4, 14 + 20), (&v6, 14 + 40), (&v6_tagged, 18 + 40)] {
        let count = frames.len() as u64;
        // The cut goes from the end of the UDP ports to the last byte of the BTH.
        for bytes in around + 4..around + 8 + 12 {
            let summary = cut_to(bytes, frames);
            assert_eq!((summary.packets, summary.cut_packets, summary.cut_bths), (count, count, count), "{bytes}");
            assert_eq!((summary.malformed_packets, summary.second_copies, summary.conversations.len()), (0, 0, 0));
            let with_opcode: u64 = summary.opcodes.iter().map(|opcode| opcode.packets).sum();
            assert_eq!(with_opcode, if bytes > around + 8 { count } else { 0 }, "{bytes}");
        }
        assert_eq!(cut_to(around + 3, frames).other_frames, count);
    }
}
