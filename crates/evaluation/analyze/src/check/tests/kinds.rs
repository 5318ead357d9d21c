//! Kinds of captures: file formats, link types, cut frames and files, orders of packets, and other protocols.

use doorbell_wire::{Flow, ROCE_UDP_PORT};

use super::*;

const ETHERNET: u16 = 1;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Format of a capture file.
#[derive(Clone, Copy, Debug)]
enum File {
    Pcap { nanoseconds: bool },
    PcapNg { nanoseconds: bool },
}

const FILES: [File; 4] = [
    File::Pcap { nanoseconds: false },
    File::Pcap { nanoseconds: true },
    File::PcapNg { nanoseconds: false },
    File::PcapNg { nanoseconds: true },
];

/// Returns a pcapng file with one frame per microsecond.
fn pcapng(link_type: u16, nanoseconds: bool, big_endian: bool, snap: usize, frames: &[Vec<u8>]) -> Vec<u8> {
    let long = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let short = |value: u16| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let length = long(12 + padded as u32);
        [&long(kind)[..], &length, body, &vec![0; padded - body.len()], &length].concat()
    };
    let version = [short(1), short(0)].concat();
    let mut file = block(0x0a0d_0d0a, &[&long(0x1a2b_3c4d)[..], &version, &[0xff; 8]].concat());
    // Option 9 is the unit of times, as a negative power of 10.
    let unit = [&short(9)[..], &short(1), &[9, 0, 0, 0], &[0; 4]].concat();
    let unit = if nanoseconds { unit } else { Vec::new() };
    file.extend(block(1, &[&short(link_type)[..], &[0; 2], &long(snap.min(65_535) as u32), &unit].concat()));
    for (index, frame) in frames.iter().enumerate() {
        let captured = frame.len().min(snap);
        let ticks = (1_700_000_000_000_000 + index as u64) * if nanoseconds { 1000 } else { 1 };
        let fields = [0, (ticks >> 32) as u32, ticks as u32, captured as u32, frame.len() as u32].map(long);
        file.extend(block(6, &[fields.as_flattened(), &frame[..captured]].concat()));
    }
    file
}

impl File {
    fn of(self, link_type: u16, big_endian: bool, snap: usize, frames: &[Vec<u8>]) -> Vec<u8> {
        match self {
            File::Pcap { nanoseconds } => pcap_of(u32::from(link_type), nanoseconds, big_endian, snap, frames),
            File::PcapNg { nanoseconds } => pcapng(link_type, nanoseconds, big_endian, snap, frames),
        }
    }
}

fn report_of(file: &[u8]) -> Report {
    check(file, &Options::default(), &Limits::default()).unwrap()
}

fn found(report: &Report) -> Vec<(&'static str, u64)> {
    report.findings.iter().map(|finding| (finding.rule, finding.packet)).collect()
}

/// Returns rules with their counts of findings and of judged packets.
fn counts(report: &Report) -> Vec<(&'static str, u64, u64)> {
    report.rules.iter().map(|count| (count.rule.name, count.findings, count.judged)).collect()
}

/// Returns a conversation with a wrong MSN and a wrong retransmission.
fn mutated() -> Script {
    let mut script = clean();
    script.nth(Opcode::RC_ACKNOWLEDGE, 3).extension[3] += 1;
    script.nth(Opcode::RC_SEND_ONLY, SENDS_BEFORE_LOSS + 5).body.truncate(40);
    script
}

type Wrap = fn(&Sent) -> Vec<u8>;

/// Replaces the EtherType of a frame over IPv4.
fn with_link(sent: &Sent, link: &[u8]) -> Vec<u8> {
    [link, &sent.frame()[14..]].concat()
}

fn addressed(tags: &[u8]) -> Vec<u8> {
    [&[6; 12][..], tags, &IPV4.to_be_bytes()].concat()
}

/// Returns the IPv6 packet with the transport packet of `sent`.
fn over_ipv6(sent: &Sent) -> Vec<u8> {
    let address = |host: u8| std::net::Ipv6Addr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    let (from, to) = (address(sent.from), address(sent.to()));
    let mut packet = sent.packet();
    let icrc = Flow::new(from.into(), to.into(), ROCE_UDP_PORT, ROCE_UDP_PORT).icrc(0, true, &packet);
    packet.extend(icrc.to_le_bytes());
    let length = (8 + packet.len()) as u16;
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend(length.to_be_bytes());
    ip.extend([17, 64]);
    ip.extend([from.octets(), to.octets()].concat());
    ip.extend([ROCE_UDP_PORT, ROCE_UDP_PORT, length, 0].map(u16::to_be_bytes).as_flattened());
    [ip, packet].concat()
}

/// Link types with their headers. The byte after the link's own fields is 4 for outgoing frames of cooked links.
const LINKS: &[(&str, u16, Wrap)] = &[
    ("Ethernet", ETHERNET, Sent::frame),
    ("VLAN", ETHERNET, |sent| with_link(sent, &addressed(&[0x81, 0, 0x20, 7]))),
    ("QinQ", ETHERNET, |sent| with_link(sent, &addressed(&[0x88, 0xa8, 0, 3, 0x81, 0, 0x20, 7]))),
    ("old QinQ", ETHERNET, |sent| with_link(sent, &addressed(&[0x91, 0, 0, 3, 0x81, 0, 0x20, 7]))),
    ("raw IP", 101, |sent| with_link(sent, &[])),
    ("IPv4", 228, |sent| with_link(sent, &[])),
    ("Linux cooked v1", 113, |sent| with_link(sent, &[0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0, 8, 0])),
    ("Linux cooked v1, VLAN", 113, |sent| {
        with_link(sent, &[0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0, 0x81, 0, 0, 7, 8, 0])
    }),
    ("Linux cooked v2", 276, |sent| with_link(sent, &[8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0])),
    ("BSD loopback", 0, |sent| with_link(sent, &[2, 0, 0, 0])),
    ("OpenBSD loopback", 108, |sent| with_link(sent, &[0, 0, 0, 2])),
    ("Ethernet, IPv6", ETHERNET, |sent| [&[6; 12][..], &IPV6.to_be_bytes(), &over_ipv6(sent)].concat()),
    ("QinQ, IPv6", ETHERNET, |sent| {
        [&[6; 12][..], &[0x88, 0xa8, 0, 3, 0x81, 0, 0x20, 7], &IPV6.to_be_bytes(), &over_ipv6(sent)].concat()
    }),
    ("IPv6", 229, over_ipv6),
    ("Linux cooked v1, IPv6", 113, |sent| {
        [&[0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0, 0x86, 0xdd][..], &over_ipv6(sent)].concat()
    }),
];

#[test]
fn each_kind_of_file_and_link_has_the_same_findings() {
    let plain = |script: &Script| script.check(&Limits::default());
    let (clean, mutated) = (clean(), mutated());
    let expected = [plain(&clean), plain(&mutated)];
    assert_eq!((found(&expected[0]).len(), found(&expected[1]).len()), (0, 2), "{:?}", found(&expected[1]));
    for (name, link_type, wrap) in LINKS {
        for file in FILES {
            for big_endian in [false, true] {
                for (script, expected) in [&clean, &mutated].into_iter().zip(&expected) {
                    let frames: Vec<_> = script.packets.iter().map(wrap).collect();
                    let report = report_of(&file.of(*link_type, big_endian, usize::MAX, &frames));
                    let of = format!("{name}, {file:?}, big endian: {big_endian}");
                    assert_eq!((report.packets, &report.stopped), (expected.packets, &None), "{of}");
                    assert_eq!(found(&report), found(expected), "{of}");
                    assert_eq!(counts(&report), counts(expected), "{of}");
                    assert_eq!(report.format, if matches!(file, File::Pcap { .. }) { "pcap" } else { "pcapng" });
                }
            }
        }
    }
}

#[test]
fn each_snap_length_leaves_a_part_of_the_findings() {
    for (name, link_type, wrap) in LINKS {
        let frames = |script: &Script| script.packets.iter().map(wrap).collect::<Vec<_>>();
        let (clean, mutated) = (frames(&clean()), frames(&mutated()));
        let all = found(&report_of(&pcap_of(u32::from(*link_type), true, false, usize::MAX, &mutated)));
        for snap in 0..180 {
            let of = |frames: &[Vec<u8>]| report_of(&pcap_of(u32::from(*link_type), true, false, snap, frames));
            assert_eq!(found(&of(&clean)), [], "{name}, {snap} bytes");
            let part = found(&of(&mutated));
            assert!(part.iter().all(|finding| all.contains(finding)), "{name}, {snap} bytes: {part:?}");
        }
        // The headers without payload are enough for the MSN.
        let part = found(&report_of(&pcap_of(u32::from(*link_type), true, false, 128, &mutated)));
        assert!(part.iter().any(|(rule, _)| *rule == "msn"), "{name}: {part:?}");
    }
}

#[test]
fn a_file_that_ends_early_has_a_sentence_and_no_finding() {
    let frames: Vec<_> = clean().packets.iter().map(Sent::frame).collect();
    for file in FILES {
        let whole = file.of(ETHERNET, false, usize::MAX, &frames);
        let mut ends = 0;
        for length in (40..whole.len()).step_by(7) {
            match check(&whole[..length], &Options::default(), &Limits::default()) {
                Ok(report) => {
                    assert_eq!(found(&report), [], "{file:?}, {length} bytes");
                    let Some(stopped) = report.stopped else { continue };
                    assert!(stopped.contains("ends in the midst of a"), "{stopped}");
                    ends += 1;
                }
                Err(error) => assert!(length < 60, "{file:?}, {length} bytes: {error}"),
            }
        }
        assert!(ends > frames.len(), "{file:?}: {ends}");
    }
}

/// A capturer with a buffer per processor writes neighbouring packets in the wrong order. The times may have the order
/// of the packets or of the file.
#[test]
fn neighbours_in_the_wrong_order_cause_no_finding() {
    let whole = clean().packets;
    for distance in 1..=3 {
        for at in 0..whole.len() - distance {
            let mut order: Vec<usize> = (0..whole.len()).collect();
            order[at..=at + distance].rotate_left(1);
            let packets = order.iter().map(|&index| whole[index].clone()).collect();
            let script = Script { packets, ..Script::new() };
            let frames: Vec<_> = script.packets.iter().map(Sent::frame).collect();
            let in_order_of_file = pcap(&frames);
            let mut in_order_of_packets = in_order_of_file.clone();
            let mut record = 24;
            for (frame, &index) in frames.iter().zip(&order) {
                in_order_of_packets[record + 4..record + 8].copy_from_slice(&(1000 * index as u32).to_le_bytes());
                record += 16 + frame.len();
            }
            for file in [in_order_of_file, in_order_of_packets] {
                let report = report_of(&file);
                assert_eq!(found(&report), [], "packet {} moved by {distance}: {:#?}", at + 1, report.findings);
            }
        }
    }
}

#[test]
fn other_protocols_cause_no_finding() {
    let sent = clean().packets[0].clone();
    let frame = sent.frame();
    let changed = |at: usize, value: &[u8]| {
        let mut frame = frame.clone();
        frame[at..at + value.len()].copy_from_slice(value);
        frame
    };
    // TCP, another port of UDP, RoCE v1, ARP, and a frame that is too short for Ethernet.
    let others =
        [changed(23, &[6]), changed(36, &[0, 53]), changed(12, &[0x89, 0x15]), changed(12, &[8, 6]), vec![1; 9]];
    let report = report_of(&pcap(&others));
    assert_eq!((report.frames, report.packets, found(&report)), (5, 0, vec![]));
    // Datagrams of another protocol to the port of RoCE v2, alone and among packets.
    let strange = |seed: u8| {
        let mut frame = frame.clone();
        frame[42..].iter_mut().zip(0_u8..).for_each(|(byte, at)| *byte = at.wrapping_mul(seed) ^ seed);
        frame
    };
    let strangers: Vec<_> = (0..200).map(strange).collect();
    assert_eq!(found(&report_of(&pcap(&strangers))), []);
    let mut mixed: Vec<_> = clean().packets.iter().map(Sent::frame).collect();
    mixed.extend(strangers);
    mixed.extend(others);
    let report = report_of(&pcap(&mixed));
    assert!(report.findings.iter().all(|finding| finding.rule == "icrc"), "{:#?}", report.findings);
}

#[test]
fn files_that_are_no_captures_have_a_sentence() {
    let error = |bytes: &[u8]| check(bytes, &Options::default(), &Limits::default()).unwrap_err().to_string();
    assert!(error(&[]).contains("is empty"));
    assert!(error(b"GIF89a and so on, long enough for a header").contains("is no pcap or pcapng file"));
    assert!(error(&[0x1f, 0x8b, 8, 0, 0]).contains("gzip"));
    let infiniband = pcap_of(247, true, false, usize::MAX, &[vec![0; 100]]);
    assert!(error(&infiniband).contains("247 (InfiniBand)"));
}
