use std::net::{IpAddr, Ipv4Addr};

use doorbell_wire::{
    AethRepr, BTH_LEN, BthRepr, Encapsulation, Flow, Msn, NakCode, Opcode, Outer, Psn, Qpn, RKey, ROCE_UDP_PORT,
    RethRepr, Syndrome,
};
use proptest::prelude::*;

use super::*;

mod copies;
mod cut;
mod layers;
mod opcodes;
mod silence;

const A: u8 = 1;
const B: u8 = 2;

fn address(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host).into()
}

/// Returns a packet without its ICRC.
fn transport_packet(opcode: Opcode, qpn: u32, psn: u32, extension: &[u8], payload: &[u8]) -> Vec<u8> {
    let pad_count = (payload.len().wrapping_neg() & 3) as u8;
    let bth = BthRepr { opcode, dest_qpn: Qpn::new(qpn), psn: Psn::new(psn), pad_count, ..BthRepr::default() };
    let mut bytes = vec![0; BTH_LEN];
    bth.write((&mut bytes[..]).try_into().unwrap());
    assert_eq!(extension.len(), opcode.extension_len(), "{opcode}");
    bytes.extend(extension);
    bytes.extend(payload);
    bytes.extend(std::iter::repeat_n(0, usize::from(pad_count)));
    bytes
}

/// Returns an Ethernet frame from one host to another.
pub(crate) fn frame_of(from: u8, to: u8, vlan: Option<u16>, udp_payload: &[u8]) -> Vec<u8> {
    let outer = Outer {
        src: address(from),
        dst: address(to),
        traffic_class: 0,
        hop_limit: 64,
        identification: Some(0),
        dont_fragment: Some(true),
    };
    let encapsulation =
        Encapsulation { src_mac: [2; 6], dst_mac: [4; 6], vlan, src_port: ROCE_UDP_PORT, dst_port: ROCE_UDP_PORT };
    let mut frame = vec![0; encapsulation.header_len(&outer)];
    encapsulation.emit_frame_headers(&outer, udp_payload.len(), &mut frame);
    frame.extend(udp_payload);
    frame
}

pub(crate) fn seal(from: u8, to: u8, identification: u16, mut packet: Vec<u8>) -> Vec<u8> {
    let flow = Flow::new(address(from), address(to), ROCE_UDP_PORT, ROCE_UDP_PORT);
    let icrc = flow.icrc(identification, true, &packet).to_le_bytes();
    packet.extend(icrc);
    packet
}

fn frame(from: u8, to: u8, opcode: Opcode, qpn: u32, psn: u32, extension: &[u8], payload: &[u8]) -> Vec<u8> {
    frame_of(from, to, None, &seal(from, to, 0, transport_packet(opcode, qpn, psn, extension, payload)))
}

fn reth(bytes: u32) -> [u8; 16] {
    let mut out = [0; 16];
    RethRepr { virtual_address: 0x1000, rkey: RKey::new(7), dma_length: bytes }.write(&mut out);
    out
}

fn aeth(syndrome: Syndrome) -> [u8; 4] {
    let mut out = [0; 4];
    AethRepr { syndrome, msn: Msn::new(1) }.write(&mut out);
    out
}

/// Returns a frame from A's queue pair 0xa to B's 0xb.
fn send(opcode: Opcode, psn: u32, bytes: usize) -> Vec<u8> {
    let extension = vec![0; opcode.extension_len()];
    frame(A, B, opcode, 0xb, psn, &extension, &vec![0x5a; bytes])
}

fn answer(psn: u32, syndrome: Syndrome) -> Vec<u8> {
    frame(B, A, Opcode::RC_ACKNOWLEDGE, 0xa, psn, &aeth(syndrome), &[])
}

fn ack(psn: u32) -> Vec<u8> {
    answer(psn, Syndrome::ACK_UNLIMITED)
}

/// Returns a pcap file of a little-endian machine with times in nanoseconds, and one frame per microsecond.
pub(crate) fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    pcap_of(1, true, false, usize::MAX, frames)
}

pub(crate) fn pcap_of(link_type: u32, nanoseconds: bool, big_endian: bool, snap: usize, frames: &[Vec<u8>]) -> Vec<u8> {
    let number = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file = Vec::new();
    for field in [magic, if big_endian { 0x0002_0004 } else { 0x0004_0002 }, 0, 0, snap.min(65535) as u32, link_type] {
        file.extend(number(field));
    }
    for (index, frame) in frames.iter().enumerate() {
        let captured = frame.len().min(snap);
        let fraction = index as u32 * if nanoseconds { 1000 } else { 1 };
        for field in [1_700_000_000, fraction, captured as u32, frame.len() as u32] {
            file.extend(number(field));
        }
        file.extend(&frame[..captured]);
    }
    file
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (12 + body.len().next_multiple_of(4)) as u32;
    let mut block = [kind.to_le_bytes(), length.to_le_bytes()].concat();
    block.extend(body);
    block.resize(length as usize - 4, 0);
    block.extend(length.to_le_bytes());
    block
}

fn section() -> Vec<u8> {
    block(0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat())
}

fn interface(link_type: u16, options: &[u8]) -> Vec<u8> {
    block(1, &[&link_type.to_le_bytes()[..], &[0; 6], options].concat())
}

fn enhanced(interface: u32, ticks: u64, frame: &[u8]) -> Vec<u8> {
    let length = frame.len() as u32;
    let fields = [interface, (ticks >> 32) as u32, ticks as u32, length, length];
    block(6, &[fields.map(u32::to_le_bytes).as_flattened(), frame].concat())
}

fn read(file: &[u8]) -> Summary {
    decode(file, &Options::default()).unwrap()
}

fn only(summary: &Summary) -> &Conversation {
    assert_eq!(summary.conversations.len(), 1, "{summary:#?}");
    &summary.conversations[0]
}

#[test]
fn messages_are_put_together() {
    let mut frames = Vec::new();
    let opcodes = [
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_LAST,
    ];
    for (psn, opcode) in (0..).zip(opcodes) {
        frames.push(send(opcode, psn, if opcode == Opcode::RC_SEND_LAST { 904 } else { 1024 }));
    }
    frames.push(ack(4));
    // A READ whose response takes three packets, then two SENDs and an atomic operation.
    frames.push(frame(A, B, Opcode::RC_READ_REQUEST, 0xb, 5, &reth(3000), &[]));
    let responses = [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE, Opcode::RC_READ_RESPONSE_LAST];
    for (psn, (opcode, bytes)) in (5..).zip(responses.into_iter().zip([1024, 1024, 952])) {
        let extension = vec![0x1f; opcode.extension_len()];
        frames.push(frame(B, A, opcode, 0xa, psn, &extension, &vec![1; bytes]));
    }
    frames.push(send(Opcode::RC_SEND_ONLY, 8, 0));
    frames.push(send(Opcode::RC_SEND_ONLY_IMM, 9, 13));
    frames.push(ack(9));
    frames.push(frame(A, B, Opcode::RC_FETCH_ADD, 0xb, 10, &[0; 28], &[]));
    frames.push(frame(B, A, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0xa, 10, &[0; 12], &[]));

    let summary = read(&pcap(&frames));
    assert_eq!((summary.packets, summary.frames), (frames.len() as u64, frames.len() as u64));
    assert_eq!(summary.icrc, Icrc { right: frames.len() as u64, wrong: 0, unchecked: 0 });
    assert_eq!(summary.frame_bytes, frames.iter().map(|frame| frame.len() as u64).sum::<u64>());
    assert_eq!(summary.payload_bytes, 5000 + 3000 + 13);
    let talk = only(&summary);
    assert_eq!((talk.a, talk.b, talk.a_qpn, talk.b_qpn), (address(A), address(B), Some(0xa), Some(0xb)));
    let from_a = &talk.from_a;
    let found: Vec<_> = from_a
        .operations
        .iter()
        .map(|it| (it.operation.as_str(), it.messages, it.payload_bytes, it.min_bytes, it.max_bytes))
        .collect();
    assert_eq!(
        found,
        [
            ("SEND", 2, 5000, Some(0), Some(5000)),
            ("READ", 1, 3000, Some(3000), Some(3000)),
            ("SEND with immediate", 1, 13, Some(13), Some(13)),
            ("FETCH_ADD", 1, 8, Some(8), Some(8))
        ]
    );
    let sizes = [SizeCount { bytes: 0, messages: 1 }, SizeCount { bytes: 5000, messages: 1 }];
    assert_eq!(from_a.operations[0].sizes, sizes);
    assert_eq!((from_a.retransmitted_packets, from_a.missing_packets, from_a.incomplete_messages), (0, 0, 0));
    assert_eq!((talk.from_b.acks, talk.from_b.read_response_packets, talk.from_b.atomic_responses), (2, 3, 1));
    assert_eq!(from_a.acks_per_request_packet, Some(2.0 / 7.0));
    // With one frame per microsecond, the first SEND takes 1 us, the READ 3 us, and the others 2, 1 and 1 us.
    let times = from_a.time_to_ack.unwrap();
    assert_eq!((times.count, times.min_ns / 100, times.max_ns / 100), (5, 10, 30));
    assert_eq!(summary.time_to_ack, Some(times));
    assert_eq!(summary.duration_ns, (frames.len() as u64 - 1) * 1000);
    assert_eq!(summary.stopped, None);
    let (a, b) = (&summary.hosts[0], &summary.hosts[1]);
    assert_eq!((a.tx_packets, a.rx_packets), (b.rx_packets, b.tx_packets));
}

#[test]
fn repeated_packets_count_once_as_messages() {
    let mut frames: Vec<_> = (0..5).map(|psn| send(Opcode::RC_SEND_ONLY, psn, 64)).collect();
    frames.push(answer(2, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR)));
    frames.extend((2..5).map(|psn| send(Opcode::RC_SEND_ONLY, psn, 64)));
    frames.push(answer(4, Syndrome::rnr_nak(12)));
    frames.push(send(Opcode::RC_SEND_ONLY, 4, 64));
    frames.push(ack(4));
    let summary = read(&pcap(&frames));
    let talk = only(&summary);
    assert_eq!((talk.from_a.operations[0].messages, talk.from_a.retransmitted_packets), (5, 4));
    assert_eq!(talk.from_b.naks, [NakCount { code: 0, name: "PSN sequence error".to_owned(), naks: 1 }]);
    assert_eq!((talk.from_b.rnr_naks, talk.from_b.acks), (1, 1));
    assert_eq!((summary.naks, summary.rnr_naks, summary.retransmitted_packets), (1, 1, 4));
    // The NAK acknowledges packets 0 and 1. The ACK of the others does not show which copy it acknowledges.
    assert_eq!(summary.time_to_ack.unwrap().count, 2);
}

#[test]
fn late_packets_do_not_count_as_retransmitted() {
    // Sequence numbers wrap during the capture.
    let psn = |offset: u32| (0x00ff_fffe + offset) & 0x00ff_ffff;
    let order = [0, 1, 4, 5, 2, 3, 4, 5, 6];
    let frames: Vec<_> = order.map(|offset| send(Opcode::RC_SEND_ONLY, psn(offset), 8)).to_vec();
    let summary = read(&pcap(&frames));
    let from_a = &only(&summary).from_a;
    assert_eq!((from_a.operations[0].messages, from_a.retransmitted_packets, from_a.missing_packets), (7, 2, 0));
    // A packet that never arrives is missing, and its message is incomplete.
    let frames =
        [send(Opcode::RC_SEND_ONLY, 5, 8), send(Opcode::RC_SEND_LAST, 9, 8), send(Opcode::RC_SEND_ONLY, 10, 8)];
    let summary = read(&pcap(&frames));
    let from_a = &only(&summary).from_a;
    assert_eq!((from_a.missing_packets, from_a.incomplete_messages, from_a.operations[0].messages), (3, 1, 2));
    // The end of a message whose beginning was lost comes after the beginning of the next message.
    let frames = [
        send(Opcode::RC_SEND_ONLY, 5, 8),
        send(Opcode::RC_SEND_FIRST, 9, 1024),
        send(Opcode::RC_SEND_LAST, 8, 8),
        send(Opcode::RC_SEND_LAST, 10, 8),
    ];
    let summary = read(&pcap(&frames));
    let from_a = &only(&summary).from_a;
    let sends = &from_a.operations[0];
    assert_eq!((from_a.incomplete_messages, sends.messages, sends.max_bytes), (1, 2, Some(1032)));
}

#[test]
fn a_request_for_the_rest_of_a_read_is_a_retransmission() {
    let ask = |psn: u32, from: u64, bytes: u32| {
        let mut header = [0; 16];
        RethRepr { virtual_address: from, rkey: RKey::new(7), dma_length: bytes }.write(&mut header);
        frame(A, B, Opcode::RC_READ_REQUEST, 0xb, psn, &header, &[])
    };
    // The READ has 16 response packets of 256 bytes. After 4 of them the response was lost, so the requester asks for
    // the rest. Then it posts another READ.
    let frames = [ask(100, 0x1000, 4096), ask(104, 0x1400, 3072), ask(116, 0x9000, 4096)];
    let summary = read(&pcap(&frames));
    let from_a = &only(&summary).from_a;
    assert_eq!((from_a.operations[0].messages, from_a.operations[0].payload_bytes), (2, 8192));
    assert_eq!((from_a.retransmitted_packets, from_a.missing_packets), (1, 0));
}

#[test]
fn answers_are_matched_to_their_queue_pairs() {
    let mut frames = Vec::new();
    let pairs: Vec<_> =
        (0..50_u32).map(|pair| (0xa00 + pair, 0xb00 + pair, pair.wrapping_mul(0x0005_4321) & 0xff_ffff)).collect();
    for round in 0..3 {
        for &(_, to, psn) in &pairs {
            frames.push(frame(A, B, Opcode::RC_WRITE_ONLY, to, (psn + round) & 0xff_ffff, &reth(4), &[0; 4]));
        }
        for &(to, _, psn) in &pairs {
            let psn = (psn + round) & 0xff_ffff;
            frames.push(frame(B, A, Opcode::RC_ACKNOWLEDGE, to, psn, &aeth(Syndrome::ACK_UNLIMITED), &[]));
        }
    }
    let summary = read(&pcap(&frames));
    assert_eq!(summary.conversations.len(), pairs.len());
    for talk in &summary.conversations {
        assert_eq!(talk.a_qpn.map(|qpn| qpn + 0x100), talk.b_qpn);
        assert_eq!((talk.from_a.request_packets, talk.from_b.acks), (3, 3));
        assert_eq!(talk.from_a.acks_per_request_packet, Some(1.0));
    }
    // With room for ten conversations, the decoder still counts all packets.
    let options = Options { max_conversations: 10, ..Options::default() };
    let summary = decode(&pcap(&frames)[..], &options).unwrap();
    assert_eq!(summary.packets, frames.len() as u64);
    let followed: u64 = summary.conversations.iter().map(|it| it.from_a.packets + it.from_b.packets).sum();
    assert!(followed > 0 && followed + summary.other_conversations_packets == summary.packets);
    assert!(summary.notes.iter().any(|note| note.contains("beyond the 10 that are kept apart")), "{:?}", summary.notes);
}

#[test]
fn every_link_type_holds_the_same_packets() {
    let frames = [send(Opcode::RC_SEND_ONLY, 0, 64), ack(0)];
    let with = |header: Vec<u8>| frames.iter().map(|frame| [&header[..], &frame[14..]].concat()).collect::<Vec<_>>();
    let ethernet = read(&pcap(&frames));
    assert_eq!(ethernet.frame_bytes, 122 + 62);
    let mut cooked = vec![0; 16];
    cooked[14] = 8;
    let mut cooked2 = vec![0; 20];
    cooked2[0] = 8;
    let expected =
        |summary: &Summary| (summary.packets, summary.frame_bytes, summary.icrc, summary.conversations.clone());
    for (link_type, header) in [
        (101, vec![]),
        (12, vec![]),
        (228, vec![]),
        (0, vec![2, 0, 0, 0]),
        (108, vec![0, 0, 0, 2]),
        (113, cooked),
        (276, cooked2),
    ] {
        let summary = read(&pcap_of(link_type, true, false, usize::MAX, &with(header)));
        assert_eq!(expected(&summary), expected(&ethernet), "{link_type}");
    }
    // A VLAN tag makes frames longer, also in counters.
    let packet = |frame: &Vec<u8>| frame[42..].to_vec();
    let tagged = [frame_of(A, B, Some(7), &packet(&frames[0])), frame_of(B, A, Some(7), &packet(&frames[1]))];
    let summary = read(&pcap(&tagged));
    assert_eq!((summary.icrc.right, summary.frame_bytes), (2, 126 + 66));
    // Padding to Ethernet's minimum is not part of the packet.
    let padded: Vec<_> = frames.iter().map(|frame| [&frame[..], &[0; 20]].concat()).collect();
    assert_eq!(expected(&read(&pcap(&padded))), expected(&ethernet));
}

#[test]
fn every_kind_of_file_holds_the_same_frames() {
    let frames: Vec<_> = (0..4).flat_map(|psn| [send(Opcode::RC_SEND_ONLY, psn, 5), ack(psn)]).collect();
    let expected = read(&pcap(&frames));
    for nanoseconds in [false, true] {
        for big_endian in [false, true] {
            let summary = read(&pcap_of(1, nanoseconds, big_endian, usize::MAX, &frames));
            assert_eq!(summary, expected, "{nanoseconds} {big_endian}");
        }
    }
    // The file has two interfaces, Ethernet in microseconds and raw IP in nanoseconds, and other blocks between them.
    let seconds = 1_700_000_000_u64;
    let resolution = |digits: u8| [9, 0, 1, 0, digits, 0, 0, 0, 0, 0, 0, 0];
    let mut file = [section(), interface(1, &[]), interface(101, &resolution(9)), block(5, &[0; 12])].concat();
    for (index, frame) in (0..).zip(&frames) {
        let (us, ns) = (seconds * 1_000_000 + index, (seconds * 1_000_000 + index) * 1000);
        file.extend(if index % 2 == 0 { enhanced(0, us, frame) } else { enhanced(1, ns, &frame[14..]) });
        file.extend(block(0x0bad_f00d, &[0; 8]));
    }
    let summary = read(&file);
    assert_eq!(Summary { format: "pcap", ..summary }, expected);
    // The file has a binary time resolution, an offset of 1000 s, and a second section.
    let options = [&resolution(0x80 | 20)[..8], &[14, 0, 8, 0], &1000_i64.to_le_bytes()].concat();
    let mut file = [section(), section(), interface(1, &options)].concat();
    file.extend(enhanced(0, 5 << 20, &frames[0]));
    file.extend(enhanced(0, (5 << 20) + (1 << 19), &frames[1]));
    let summary = read(&file);
    assert_eq!((summary.first_timestamp_ns, summary.duration_ns), (Some(1_005_000_000_000), 500_000_000));
    // Simple packets have no time.
    let simple =
        [section(), interface(1, &[]), block(3, &[&(frames[0].len() as u32).to_le_bytes()[..], &frames[0]].concat())];
    let summary = read(&simple.concat());
    assert_eq!((summary.icrc.right, summary.first_timestamp_ns, summary.packets_per_s), (1, None, None));
}

#[test]
fn packets_cut_short_are_counted_by_their_headers() {
    let frames = [send(Opcode::RC_SEND_FIRST, 0, 1024), send(Opcode::RC_SEND_LAST, 1, 1000), ack(1)];
    let summary = read(&pcap_of(1, true, false, 64, &frames));
    assert_eq!((summary.packets, summary.cut_packets), (3, 2));
    assert_eq!(summary.icrc, Icrc { right: 1, wrong: 0, unchecked: 2 });
    let from_a = &only(&summary).from_a;
    assert_eq!((from_a.operations[0].messages, from_a.operations[0].payload_bytes), (1, 2024));
    assert_eq!(summary.frame_bytes, frames.iter().map(|frame| frame.len() as u64).sum::<u64>());
    assert!(summary.notes.iter().any(|note| note.contains("2 packets are cut short")), "{:?}", summary.notes);
    // Frames cut within the IP header hold no packet.
    assert_eq!(read(&pcap_of(1, true, false, 30, &frames)).other_frames, 3);
    // Packets cut within the BTH have an unknown queue pair, but are not malformed.
    let summary = read(&pcap_of(1, true, false, 45, &frames));
    assert_eq!((summary.malformed_packets, summary.packets, summary.cut_packets, summary.cut_bths), (0, 3, 3, 3));
    let opcodes: Vec<_> = summary.opcodes.iter().map(|count| (count.opcode, count.packets)).collect();
    assert_eq!(opcodes, [(0, 1), (2, 1), (17, 1)]);
}

#[test]
fn frames_from_before_segmentation_are_taken_apart() {
    // One frame holds 40 SENDs of 6 bytes. Another holds a SEND of three long packets, of which the last is shorter.
    let segment = |index: u16, opcode, psn, bytes: usize| {
        seal(A, B, index, transport_packet(opcode, 0xb, psn, &[], &vec![3; bytes]))
    };
    let short: Vec<u8> = (0..40).flat_map(|i| segment(i, Opcode::RC_SEND_ONLY, u32::from(i), 6)).collect();
    let opcodes = [(Opcode::RC_SEND_FIRST, 4096), (Opcode::RC_SEND_MIDDLE, 4096), (Opcode::RC_SEND_LAST, 10)];
    let long: Vec<u8> =
        (0..3).zip(opcodes).flat_map(|(i, (opcode, bytes))| segment(i, opcode, 40 + u32::from(i), bytes)).collect();
    let frames = [frame_of(A, B, None, &short), frame_of(A, B, None, &long), ack(42)];
    let summary = read(&pcap(&frames));
    assert_eq!(summary.super_packets, SuperPackets { frames: 2, packets: 43, cut_frames: 0 });
    assert_eq!((summary.packets, summary.icrc.right, summary.icrc.wrong), (44, 44, 0));
    assert_eq!(summary.frame_bytes, 40 * (58 + 8) + 2 * 4154 + (58 + 12) + 62);
    let operations = &only(&summary).from_a.operations;
    assert_eq!((operations[0].messages, operations[0].max_bytes), (41, Some(8202)));
    assert!(summary.notes.iter().any(|note| note.contains("segmentation offload")), "{:?}", summary.notes);
    // If such a frame is cut short, its packets are unknown.
    let summary = read(&pcap_of(1, true, false, 96, &frames[1..]));
    assert_eq!((summary.super_packets.cut_frames, summary.packets), (1, 1));
    // The frame is slightly too long for one packet.
    let two = [segment(0, Opcode::RC_SEND_FIRST, 0, 4096), segment(1, Opcode::RC_SEND_LAST, 1, 0)].concat();
    let summary = read(&pcap_of(1, true, false, 96, &[frame_of(A, B, None, &two)]));
    assert_eq!((summary.super_packets.cut_frames, summary.packets), (1, 0));
}

#[test]
fn damaged_packets_are_dropped_as_an_rnic_drops_them() {
    let mut frames = vec![send(Opcode::RC_SEND_ONLY, 0, 64), send(Opcode::RC_SEND_ONLY, 1, 64)];
    frames[1][80] ^= 1;
    let summary = read(&pcap(&frames));
    assert_eq!(summary.icrc, Icrc { right: 1, wrong: 1, unchecked: 0 });
    let from_a = &only(&summary).from_a;
    assert_eq!((from_a.bad_icrc_packets, from_a.operations[0].messages), (1, 1));
    let options = Options { drop_bad_icrc: false, ..Options::default() };
    let summary = decode(&pcap(&frames)[..], &options).unwrap();
    assert_eq!(only(&summary).from_a.operations[0].messages, 2);
    // The other port received no packets.
    let options = Options { udp_port: 4792, ..Options::default() };
    let summary = decode(&pcap(&frames)[..], &options).unwrap();
    assert_eq!((summary.packets, summary.other_frames), (0, 2));
    assert!(summary.notes[0].contains("none goes to UDP port 4792"), "{:?}", summary.notes);
}

#[test]
fn datagrams_and_congestion_are_counted() {
    let datagram = |psn| frame(A, B, Opcode::UD_SEND_ONLY, 0x11, psn, &[0; 8], &[1; 20]);
    let mut frames = vec![datagram(7), datagram(3), datagram(90)];
    frames.push(frame(B, A, Opcode::CNP, 0xa, 0, &[0; 16], &[]));
    let summary = read(&pcap(&frames));
    assert_eq!(summary.cnps, 1);
    let talk = summary.conversations.iter().find(|it| it.b_qpn == Some(0x11)).unwrap();
    // Sequence numbers of datagrams belong to the sender. None of them counts as repeated or missing.
    assert_eq!((talk.from_a.operations[0].messages, talk.from_a.retransmitted_packets), (3, 0));
    assert_eq!((talk.from_a.operations[0].transport.as_str(), talk.from_a.missing_packets), ("UD", 0));
    let mut marked = send(Opcode::RC_SEND_ONLY, 0, 0);
    marked[15] |= 3;
    assert_eq!(read(&pcap(&[marked])).congestion_marked_packets, 1);
}

#[test]
fn invalid_captures_are_rejected() {
    let refused = |file: &[u8], words: &[&str]| {
        let text = decode(file, &Options::default()).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is missing in: {text}"));
    };
    refused(&[], &["empty"]);
    refused(&[0xd4], &["no pcap or pcapng file"]);
    refused(b"#!/bin/sh", &["no pcap or pcapng file"]);
    refused(&[0x1f, 0x8b, 8, 0, 0], &["gzip"]);
    refused(&pcap(&[])[..20], &["ends in the midst of a file header"]);
    let frames = [send(Opcode::RC_SEND_ONLY, 0, 4)];
    refused(&pcap_of(127, true, false, usize::MAX, &frames), &["link type 127", "radiotap", "Ethernet (1)"]);
    let file = [section(), interface(127, &[]), enhanced(0, 0, &frames[0])].concat();
    refused(&file, &["link type 127"]);
    // If the file also has an interface of a known link type, only the unknown frames are left out.
    let file =
        [section(), interface(127, &[]), interface(1, &[]), enhanced(0, 0, &[1]), enhanced(1, 0, &frames[0])].concat();
    let summary = read(&file);
    assert_eq!((summary.packets, summary.other_frames), (1, 1));
    assert!(summary.notes[0].contains("link type 127"), "{:?}", summary.notes);
}

#[test]
fn damaged_captures_are_read_up_to_the_damage() {
    let frames: Vec<_> = (0..3).map(|psn| send(Opcode::RC_SEND_ONLY, psn, 16)).collect();
    let file = pcap(&frames);
    let record = 16 + frames[0].len();
    for length in 24..=file.len() {
        let summary = read(&file[..length]);
        assert_eq!(summary.packets as usize, (length - 24) / record);
        let whole = (length - 24).is_multiple_of(record);
        assert_eq!(summary.stopped.is_none(), whole, "{length}: {:?}", summary.stopped);
    }
    let mut huge = file.clone();
    huge[24 + record + 8..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let summary = read(&huge);
    assert_eq!(summary.packets, 1);
    assert!(summary.stopped.unwrap().contains("a packet of 4294967295 bytes"));
    let ng = [section(), interface(1, &[]), enhanced(0, 0, &frames[0]), enhanced(0, 1, &frames[1])].concat();
    for (at, value, word) in
        [(4, 13, "length of 13"), (4, 0, "length of 0"), (8, 9, "interface 9"), (20, 9999, "has room for")]
    {
        let mut damaged = ng.clone();
        let block = ng.len() - enhanced(0, 1, &frames[1]).len();
        damaged[block + at..][..4].copy_from_slice(&u32::to_le_bytes(value));
        let summary = read(&damaged);
        let stopped = summary.stopped.unwrap();
        assert!(summary.packets == 1 && stopped.contains(word), "{stopped}");
    }
    let summary = read(&ng[..ng.len() - 1]);
    assert!(summary.packets == 1 && summary.stopped.unwrap().contains("midst of a block"));
}

/// Returns frames of all kinds, in both formats.
fn mixture() -> [Vec<u8>; 2] {
    let frames = [
        send(Opcode::RC_SEND_FIRST, 0, 256),
        send(Opcode::RC_SEND_LAST, 1, 3),
        frame(A, B, Opcode::RC_READ_REQUEST, 0xb, 2, &reth(600), &[]),
        frame(B, A, Opcode::RC_READ_RESPONSE_FIRST, 0xa, 2, &[0; 4], &[0; 256]),
        frame(A, B, Opcode::RC_WRITE_ONLY_IMM, 0xb, 5, &[0; 20], &[0; 9]),
        answer(5, Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR)),
        frame_of(
            A,
            B,
            Some(1),
            &[
                seal(A, B, 0, transport_packet(Opcode::RC_SEND_ONLY, 0xb, 6, &[], &[0; 8])),
                seal(A, B, 1, transport_packet(Opcode::RC_SEND_ONLY, 0xb, 7, &[], &[0; 8])),
            ]
            .concat(),
        ),
    ];
    let mut ng = [section(), interface(1, &[9, 0, 1, 0, 9, 0, 0, 0]), interface(113, &[])].concat();
    for (ticks, frame) in (0..).zip(&frames) {
        ng.extend(enhanced(0, ticks, frame));
    }
    [pcap(&frames), ng]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A damaged file gives an answer or an error. The answer never has more packets than fit into the file.
    #[test]
    fn damaged_files(
        format in 0..2_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
        doubled: bool,
    ) {
        let mut file = mixture()[format].clone();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if doubled {
            file.extend(file.clone());
        }
        file.truncate(cut.index(file.len() + 1));
        match decode(&file[..], &Options::default()) {
            Ok(summary) => prop_assert!(summary.packets as usize <= file.len() / 16),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_bytes(bytes: Vec<u8>, magic in 0..3_usize) {
        let [pcap, ng] = mixture();
        let head: &[u8] = [&[][..], &pcap[..24], &ng[..28 + 28]][magic];
        let _ = decode(&[head, &bytes].concat()[..], &Options::default());
    }
}
