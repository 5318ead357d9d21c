//! Tests of packets captured at several points of observation, and of frames with injected faults.

use super::*;

/// Returns two SENDs with their ACKs. The second SEND is sent twice.
fn talk() -> Vec<Vec<u8>> {
    let one = [send(Opcode::RC_SEND_ONLY, 0, 64), ack(0)];
    let two = [send(Opcode::RC_SEND_ONLY, 1, 64), send(Opcode::RC_SEND_ONLY, 1, 64), ack(1)];
    [&one[..], &two].concat()
}

/// Checks that the decoder finds the talk and counts each transmission once.
fn check(summary: &Summary, copies: u64, what: &str) {
    assert_eq!((summary.packets, summary.second_copies), (5, copies), "{what}: {:?}", summary.notes);
    let talk = only(summary);
    assert_eq!((talk.from_a.operations[0].messages, talk.from_a.retransmitted_packets), (2, 1), "{what}");
    assert_eq!((talk.from_a.packets, talk.from_a.missing_packets, talk.from_b.acks), (3, 0, 2), "{what}");
    assert_eq!(summary.icrc, Icrc { right: 5, wrong: 0, unchecked: 0 }, "{what}");
    let host = &summary.hosts[0];
    assert_eq!(host.tx_packets + host.rx_packets, 5, "{what}");
    let noted = summary.notes.iter().any(|note| note.contains("second copies are left out"));
    assert_eq!(noted, copies > 0, "{what}: {:?}", summary.notes);
}

/// Returns each frame as the first point captures it, followed by the second point's copy.
fn twice(change: impl Fn(&mut Vec<u8>)) -> Vec<Vec<u8>> {
    let both = |frame: Vec<u8>| {
        let mut other = frame.clone();
        change(&mut other);
        [frame, other]
    };
    talk().into_iter().flat_map(both).collect()
}

#[test]
fn a_repeated_packet_at_one_point_is_a_retransmission() {
    check(&read(&pcap(&talk())), 0, "one interface");
}

#[test]
fn a_packet_of_another_link_header_tag_or_hop_is_a_copy() {
    check(&read(&pcap(&twice(|frame| frame[..12].fill(9)))), 5, "other MAC addresses");
    check(&read(&pcap(&twice(|frame| drop(frame.splice(12..12, [0x81, 0, 0, 7]))))), 5, "VLAN tag");
    // A router lowers the hop limit and changes the header's checksum. A switch marks congestion.
    let router = |frame: &mut Vec<u8>| {
        frame[22] -= 1;
        frame[15] |= 3;
    };
    check(&read(&pcap(&twice(router))), 5, "router");
    let congestion_in_bth = |frame: &mut Vec<u8>| {
        frame[22] -= 1;
        frame[46] |= 0x40;
    };
    check(&read(&pcap(&twice(congestion_in_bth))), 5, "FECN");
    // The outer header of an ERSPAN mirror port has a growing identification and sequence number.
    let number = std::cell::Cell::new(0);
    let mirrored = |frame: &mut Vec<u8>| {
        number.set(number.get() + 1);
        let inner = std::mem::take(frame);
        let gre = [&[0x10, 0, 0x88, 0xbe, 0, 0, 0, number.get()][..], &[0x10, 5, 1, 2, 0, 0, 0, 0], &inner].concat();
        let [high, low] = ((20 + gre.len()) as u16).to_be_bytes();
        let ip = [0x45, 0, high, low, 0, number.get(), 0, 0, 64, 47, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2];
        *frame = [&[6; 12][..], &[8, 0], &ip, &gre].concat();
    };
    check(&read(&pcap(&twice(mirrored))), 5, "ERSPAN");
}

#[test]
fn a_packet_of_another_interface_or_direction_is_a_copy() {
    // Linux cooked v2 of all interfaces shows both ends of a veth pair, of which one sends and the other receives.
    let cooked = |frame: &[u8], interface: u8, kind: u8| {
        let header = [8, 0, 0, 0, 0, 0, 0, interface, 0, 1, kind, 6, 2, 0, 0, 0, 0, 1, 0, 0];
        [&header[..], &frame[14..]].concat()
    };
    let frames: Vec<_> = talk().iter().flat_map(|frame| [cooked(frame, 5, 4), cooked(frame, 6, 0)]).collect();
    check(&read(&pcap_of(276, true, false, usize::MAX, &frames)), 5, "cooked v2");
    // Cooked v1 shows only the direction.
    let cooked =
        |frame: &[u8], kind: u8| [&[0, kind, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0][..], &frame[14..]].concat();
    let frames: Vec<_> = talk().iter().flat_map(|frame| [cooked(frame, 4), cooked(frame, 0)]).collect();
    check(&read(&pcap_of(113, true, false, usize::MAX, &frames)), 5, "cooked v1");
    // Test pcapng files of two interfaces, of one interface with directions, and of two sections.
    let two: Vec<_> = talk().iter().flat_map(|frame| [enhanced(0, 1, frame), enhanced(1, 2, frame)]).collect();
    check(&read(&[section(), interface(1, &[]), interface(1, &[]), two.concat()].concat()), 5, "two interfaces");
    let both: Vec<_> = talk().iter().flat_map(|frame| [noted(frame, 2, ""), noted(frame, 1, "")]).collect();
    check(&read(&[section(), interface(1, &[]), both.concat()].concat()), 5, "directions");
    let alone: Vec<_> =
        [section(), interface(1, &[])].into_iter().chain(talk().iter().map(|it| enhanced(0, 1, it))).collect();
    check(&read(&[alone.concat(), alone.concat()].concat()), 5, "two sections");
}

#[test]
fn many_capture_points_may_be_late_and_miss_packets() {
    // All frames of the second point come after those of the first. A third point lost the retransmission.
    let other = |number: u8| talk().into_iter().map(move |frame| [&[number; 12], &frame[12..]].concat());
    let frames: Vec<_> = talk().into_iter().chain(other(1)).chain(other(2).take(3)).collect();
    check(&read(&pcap(&frames)), 8, "late");
    // The first point lost packets that the second one saw.
    let frames: Vec<_> = talk().into_iter().take(2).chain(other(1)).collect();
    check(&read(&pcap(&frames)), 2, "lost");
    // Use more points than `copies.rs` distinguishes.
    let at_many = |frame: Vec<u8>| (0..20).map(move |number| [&[number; 12], &frame[12..]].concat());
    let frames: Vec<_> = talk().into_iter().flat_map(at_many).collect();
    check(&read(&pcap(&frames)), 19 * 5, "many");
    // Frames from before segmentation also count as copies, packet by packet.
    let segment =
        |index: u16| seal(A, B, index, transport_packet(Opcode::RC_SEND_ONLY, 0xb, index.into(), &[], &[3; 64]));
    let long = frame_of(A, B, None, &(0..4).flat_map(segment).collect::<Vec<_>>());
    let copies = (0..4).map(|index| {
        let mut frame = frame_of(A, B, Some(7), &segment(index));
        frame[22..24].copy_from_slice(&index.to_be_bytes());
        frame
    });
    let frames: Vec<_> = std::iter::once(long).chain(copies).collect();
    let summary = read(&pcap(&frames));
    assert_eq!((summary.packets, summary.second_copies, summary.retransmitted_packets), (4, 4, 0));
}

#[test]
fn packets_without_a_psn_are_counted_per_capture_point() {
    let cnp = frame(A, B, Opcode::CNP, 0xb, 0, &[0; 16], &[]);
    let other = [&[9; 12], &cnp[12..]].concat();
    let summary = read(&pcap(&[cnp.clone(), other.clone(), cnp.clone(), cnp, other.clone(), other]));
    assert_eq!((summary.cnps, summary.second_copies), (3, 3));
}

/// Returns a frame of a software RNIC's own capture, with flags and a comment.
fn noted(frame: &[u8], flags: u32, comment: &str) -> Vec<u8> {
    let length = frame.len() as u32;
    let mut body = [0, 0, 7, length, length].map(u32::to_le_bytes).as_flattened().to_vec();
    for (code, value) in [(2_u16, &flags.to_le_bytes()[..]), (1, comment.as_bytes())] {
        if code == 2 {
            body.extend(frame);
        }
        body.resize(body.len().next_multiple_of(4), 0);
        if !value.is_empty() {
            body.extend(code.to_le_bytes());
            body.extend((value.len() as u16).to_le_bytes());
            body.extend(value);
        }
    }
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend([0; 4]);
    block(6, &body)
}

#[test]
fn frames_are_counted_by_their_fault_marks() {
    let (first, second) = (send(Opcode::RC_SEND_ONLY, 0, 64), send(Opcode::RC_SEND_ONLY, 1, 64));
    let mut corrupted = second.clone();
    corrupted[60] ^= 1;
    let frames = [
        noted(&first, 1, "doorbell fault: dropped"),
        noted(&first, 1, "doorbell fault: delayed"),
        noted(&corrupted, 1, "doorbell fault: corrupted"),
        noted(&second, 1, "doorbell fault: reordered"),
        noted(&second, 1, "doorbell fault: duplicate"),
        noted(&ack(1), 2, "a comment of a person: dropped"),
    ];
    let summary = read(&[section(), interface(1, &[]), frames.concat()].concat());
    let expected = FaultCounts { dropped: 1, duplicates: 1, corrupted: 1, delayed: 1, reordered: 1 };
    assert_eq!(summary.faults, expected);
    assert_eq!((summary.frames, summary.packets, summary.second_copies), (6, 5, 0));
    assert_eq!(summary.icrc, Icrc { right: 4, wrong: 1, unchecked: 0 });
    let talk = only(&summary);
    assert_eq!((talk.from_a.operations[0].messages, talk.from_a.retransmitted_packets), (2, 0));
    assert_eq!((talk.from_a.bad_icrc_packets, talk.from_a.missing_packets, talk.from_b.acks), (1, 0, 1));
    assert!(summary.notes.iter().any(|note| note.contains("1 dropped (in no other count)")), "{:?}", summary.notes);
}
