//! Tests of VLAN tags, tunnels, extension headers, and frames without RoCE v2.

use doorbell_wire::FaultMarks;

use super::*;
use crate::decode::capture::{CapturedFrame, LinkType};
use crate::decode::layers::{Layer, TunnelKind, udp_frame};

const IPV4: u16 = 0x0800;
const BRIDGED: u16 = 0x6558;

fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[6; 12][..], &ethertype.to_be_bytes(), payload].concat()
}

/// Returns an IPv4 packet between the hosts of the outer network.
fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let [high, low] = length.to_be_bytes();
    let header = [0x45, 0, high, low, 0, 9, 0, 0, 33, protocol, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2];
    [&header, payload].concat()
}

fn ipv6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    let header = [0x60, 0, 0, 0, high, low, protocol, 33];
    [&header[..], &[0xfd; 16], &[0xfc; 16], payload].concat()
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    [&[0xc0, 0][..], &port.to_be_bytes(), &length.to_be_bytes(), &[0; 2], payload].concat()
}

fn vxlan(frame: &[u8]) -> Vec<u8> {
    udp(4789, &[&[8, 0, 0, 0, 0, 0x12, 0x34, 0][..], frame].concat())
}

/// Returns GENEVE with 8 bytes of options.
fn geneve(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = ethertype.to_be_bytes();
    udp(6081, &[&[2, 0, high, low, 0, 0, 7, 0, 1, 1, 0x80, 1, 9, 9, 9, 9][..], payload].concat())
}

fn gre(flags: u8, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let fields = [0x80, 0x20, 0x10].iter().filter(|field| flags & **field != 0).count();
    [&[flags, 0][..], &ethertype.to_be_bytes(), &vec![0x0a; 4 * fields], payload].concat()
}

fn erspan2(frame: &[u8]) -> Vec<u8> {
    gre(0x10, 0x88be, &[&[0x10, 5, 0x01, 0x02, 0, 0, 0, 0][..], frame].concat())
}

fn erspan3(platform_specific: bool, frame: &[u8]) -> Vec<u8> {
    let header = [0x20, 5, 0x01, 0x02, 0, 0, 0, 1, 0, 0, 0, u8::from(platform_specific)];
    let subheader: &[u8] = if platform_specific { &[0xee; 8] } else { &[] };
    gre(0x10, 0x22eb, &[&header, subheader, frame].concat())
}

fn outer4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(IPV4, &ipv4(protocol, payload))
}

/// Tags a frame with VLAN 7 under these EtherTypes, the outermost first.
fn tagged(frame: &[u8], ethertypes: &[u16]) -> Vec<u8> {
    let tags: Vec<u8> =
        ethertypes.iter().flat_map(|ethertype| [&ethertype.to_be_bytes()[..], &[0x60, 7]].concat()).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// Decodes a conversation of a SEND and its ACK, each wrapped.
fn wrapped(wrap: impl Fn(&[u8]) -> Vec<u8>) -> Summary {
    read(&pcap(&[wrap(&send(Opcode::RC_SEND_ONLY, 0, 64)), wrap(&ack(0))]))
}

fn plain() -> Summary {
    wrapped(<[u8]>::to_vec)
}

/// Returns the part of the summary that must not depend on tunnels.
fn contents(summary: &Summary) -> (u64, u64, Icrc, Vec<Conversation>) {
    (summary.packets, summary.frame_bytes, summary.icrc, summary.conversations.clone())
}

#[test]
fn every_tunnel_is_taken_off() {
    let ip = |frame: &[u8]| frame[14..].to_vec();
    type Wrap = Box<dyn Fn(&[u8]) -> Vec<u8>>;
    let wraps: Vec<(&str, Wrap)> = vec![
        ("VXLAN", Box::new(|frame| outer4(17, &vxlan(frame)))),
        ("VXLAN", Box::new(|frame| ethernet(0x86dd, &ipv6(17, &vxlan(frame))))),
        // VXLAN on Linux's old port, and its extension for other protocols with IPv4 and Ethernet.
        ("VXLAN", Box::new(|frame| outer4(17, &udp(8472, &[&[8, 0, 0, 0, 0, 0, 1, 0][..], frame].concat())))),
        (
            "VXLAN",
            Box::new(move |frame| outer4(17, &udp(4790, &[&[12, 0, 0, 1, 0, 0, 1, 0], &ip(frame)[..]].concat()))),
        ),
        ("VXLAN", Box::new(|frame| outer4(17, &udp(4790, &[&[12, 0, 0, 3, 0, 0, 1, 0], frame].concat())))),
        ("GENEVE", Box::new(|frame| outer4(17, &geneve(BRIDGED, frame)))),
        ("GENEVE", Box::new(move |frame| outer4(17, &geneve(IPV4, &ip(frame))))),
        ("GRE", Box::new(move |frame| outer4(47, &gre(0, IPV4, &ip(frame))))),
        ("GRE", Box::new(|frame| outer4(47, &gre(0, BRIDGED, frame)))),
        // NVGRE, and GRE with all optional fields.
        ("GRE", Box::new(|frame| outer4(47, &gre(0x20, BRIDGED, frame)))),
        ("GRE", Box::new(|frame| ethernet(0x86dd, &ipv6(47, &gre(0xb0, BRIDGED, frame))))),
        ("GRE", Box::new(|frame| outer4(17, &udp(4754, &gre(0, BRIDGED, frame))))),
        ("ERSPAN I", Box::new(|frame| outer4(47, &gre(0, 0x88be, frame)))),
        ("ERSPAN II", Box::new(|frame| outer4(47, &erspan2(frame)))),
        ("ERSPAN III", Box::new(|frame| outer4(47, &erspan3(false, frame)))),
        ("ERSPAN III", Box::new(|frame| outer4(47, &erspan3(true, frame)))),
        ("IP in IP", Box::new(move |frame| outer4(4, &ip(frame)))),
    ];
    for (index, (name, wrap)) in wraps.iter().enumerate() {
        let summary = wrapped(wrap);
        assert_eq!(contents(&summary), contents(&plain()), "{index} {name}: {:?}", summary.other_kinds);
        assert_eq!(summary.tunnels, [TunnelCount { tunnel: name, frames: 2 }], "{index}");
        assert!(summary.notes.iter().any(|note| note.contains(&format!("2 of {name};"))), "{:?}", summary.notes);
    }
    // Add VLAN tags inside and outside the tunnel. The inner tag counts as part of the inner frame.
    let inside = wrapped(|frame| outer4(17, &vxlan(&tagged(frame, &[0x8100]))));
    assert_eq!(inside.frame_bytes, plain().frame_bytes + 8);
    let outside = wrapped(|frame| tagged(&outer4(17, &vxlan(frame)), &[0x8100]));
    assert_eq!(contents(&outside), contents(&plain()));
    // A mirrored VXLAN frame counts for both tunnels.
    let nested = wrapped(|frame| outer4(47, &erspan2(&outer4(17, &vxlan(frame)))));
    assert_eq!(contents(&nested), contents(&plain()));
    let names: Vec<_> = nested.tunnels.iter().map(|it| (it.tunnel, it.frames)).collect();
    assert_eq!(names, [("VXLAN", 2), ("ERSPAN II", 2)]);
    assert_eq!(plain().tunnels, []);
}

#[test]
fn inner_ipv6_is_followed() {
    let packet = transport_packet(Opcode::RC_SEND_ONLY, 0xb, 0, &[], &[1; 12]);
    let flow = Flow::new([0xfd; 16].into(), [0xfc; 16].into(), 0xc000, ROCE_UDP_PORT);
    let sealed = [&packet[..], &flow.icrc(0, true, &packet).to_le_bytes()].concat();
    let inner = ipv6(17, &udp(ROCE_UDP_PORT, &sealed));
    for frame in [
        ethernet(0x86dd, &inner),
        outer4(17, &vxlan(&ethernet(0x86dd, &inner))),
        outer4(17, &geneve(0x86dd, &inner)),
        outer4(41, &inner),
    ] {
        let summary = read(&pcap(&[frame]));
        assert_eq!((summary.icrc.right, summary.frame_bytes), (1, 14 + 40 + 8 + 12 + 12 + 4), "{summary:#?}");
    }
}

#[test]
fn a_frame_shows_its_tags_tunnels_and_hop_limits() {
    let inner = tagged(&send(Opcode::RC_SEND_ONLY, 0, 8), &[0x88a8, 0x8100]);
    let bytes = tagged(&outer4(47, &erspan2(&outer4(17, &vxlan(&inner)))), &[0x9100]);
    let frame = CapturedFrame {
        timestamp_ns: None,
        link_type: LinkType::ETHERNET,
        interface: 0,
        direction: 0,
        faults: FaultMarks::NONE,
        original_bytes: bytes.len(),
        bytes: &bytes,
    };
    let found = udp_frame(&frame, ROCE_UDP_PORT).unwrap();
    let tunnel = |kind, id| Layer::Tunnel { kind, id, hop_limit: 33 };
    let expected = [
        Layer::Vlan(7),
        tunnel(TunnelKind::Erspan2, 0x102),
        tunnel(TunnelKind::Vxlan, 0x1234),
        Layer::Vlan(7),
        Layer::Vlan(7),
    ];
    assert_eq!(found.layers.as_slice(), expected);
    assert_eq!(found.datagram.outer.hop_limit, 64);
}

#[test]
fn nesting_is_bounded() {
    let deep = |layers: usize| {
        let mut frame = send(Opcode::RC_SEND_ONLY, 0, 8);
        for _ in 0..layers {
            frame = outer4(17, &vxlan(&frame));
        }
        read(&pcap(&[frame]))
    };
    assert_eq!(deep(8).packets, 1);
    let summary = deep(9);
    assert_eq!((summary.packets, summary.other_frames), (0, 1));
    assert_eq!(summary.other_kinds[0].kind, "more than 8 VLAN tags and tunnels");
    assert!(summary.notes.iter().any(|note| note.contains("1 frames with more than 8 VLAN tags")));
}

#[test]
fn every_ethertype_of_vlan_tags_is_known() {
    for tags in [&[0x8100][..], &[0x88a8], &[0x9100], &[0x9200], &[0x9300], &[0x9100, 0x8100], &[0x88a8, 0x8100]] {
        let summary = wrapped(|frame| tagged(frame, tags));
        assert_eq!(summary.icrc.right, 2, "{tags:04x?}");
        assert_eq!(summary.frame_bytes, plain().frame_bytes + 2 * 4 * tags.len() as u64);
    }
    let cooked = |frame: &[u8]| {
        let frame = tagged(frame, &[0x9100, 0x8100]);
        [&[0; 14], &frame[12..]].concat()
    };
    let frames = [cooked(&send(Opcode::RC_SEND_ONLY, 0, 64)), cooked(&ack(0))];
    assert_eq!(read(&pcap_of(113, true, false, usize::MAX, &frames)).icrc.right, 2);
}

#[test]
fn ip_options_and_extension_headers_are_skipped() {
    let packet = seal(A, B, 0, transport_packet(Opcode::RC_SEND_ONLY, 0xb, 0, &[], &[1; 12]));
    let datagram = udp(ROCE_UDP_PORT, &packet);
    let mut with_options = outer4(17, &[&[1, 1, 1, 0][..], &datagram].concat());
    with_options[14] = 0x46;
    // The headers are hop-by-hop, routing, destination options of 16 bytes, a fragment header of the only fragment, and
    // authentication.
    let headers = [
        &[43, 0, 1, 4, 0, 0, 0, 0][..],
        &[60, 0, 0, 0, 0, 0, 0, 0],
        &[[44, 1, 1, 12, 0, 0, 0, 0], [0; 8]].concat(),
        &[51, 0, 0, 6, 0, 0, 0, 1],
        &[[17, 4, 0, 0, 0, 0, 0, 1], [0; 8], [0; 8]].concat(),
        &datagram,
    ]
    .concat();
    let extended = ethernet(0x86dd, &ipv6(0, &headers));
    let summary = read(&pcap(&[with_options, extended.clone()]));
    assert_eq!((summary.packets, summary.payload_bytes), (2, 24), "{:?}", summary.other_kinds);
    assert_eq!(summary.icrc, Icrc { right: 0, wrong: 0, unchecked: 2 });
    assert_eq!(summary.cut_packets, 0);
    assert!(summary.notes.iter().any(|note| note.contains("2 packets have IP options")), "{:?}", summary.notes);
    // A frame cut within its extension headers holds no packet.
    for length in 14 + 40..extended.len() - datagram.len() {
        let summary = read(&pcap_of(1, true, false, length, std::slice::from_ref(&extended)));
        assert_eq!(summary.other_kinds[0].kind, "cut within the headers", "{length}");
    }
}

#[test]
fn fragments_are_named() {
    let mut first = send(Opcode::RC_SEND_ONLY, 0, 64);
    first[20] = 0x20;
    let later = ethernet(0x86dd, &ipv6(44, &[17, 0, 0x05, 0xa8, 0, 0, 0, 1, 0, 0, 0, 0]));
    let more = ethernet(0x86dd, &ipv6(44, &[17, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]));
    let summary = read(&pcap(&[first, later, more]));
    assert_eq!((summary.packets, summary.other_frames), (0, 3));
    assert_eq!(summary.other_kinds, [KindCount { kind: "IP fragments".to_owned(), frames: 3 }]);
    assert!(summary.notes.iter().any(|note| note.starts_with("3 IP fragments, which this command does not put")));
}

#[test]
fn frames_of_other_protocols_are_named_with_their_counts() {
    let mut frames = vec![ethernet(0x8915, &[0; 80]); 12];
    frames.extend(vec![ethernet(0x8847, &[0; 40]); 3]);
    frames.push(outer4(47, &gre(0, 0x8847, &[0; 40])));
    frames.extend([ethernet(0x0806, &[0; 28]), outer4(6, &[0; 20]), outer4(6, &[0; 20])]);
    frames.extend([outer4(17, &udp(53, &[0; 20])), ethernet(40, &[0; 40]), ethernet(0x1234, &[0; 40])]);
    // These frames are neither VXLAN, GENEVE, nor a known variant of GRE.
    frames.extend([outer4(17, &udp(4789, &[0; 60])), outer4(17, &udp(6081, &[0x40; 60]))]);
    frames.extend([outer4(47, &gre(0x40, IPV4, &[0; 40])), outer4(50, &[0; 40]), outer4(99, &[0; 40])]);
    let summary = read(&pcap(&frames));
    assert_eq!((summary.packets, summary.other_frames), (0, frames.len() as u64));
    let kinds: Vec<_> = summary.other_kinds.iter().map(|it| (it.frames, it.kind.as_str())).collect();
    let expected = [
        (12, "RoCE v1 (EtherType 0x8915)"),
        (4, "MPLS (EtherType 0x8847)"),
        (2, "TCP (IP protocol 6)"),
        (1, "ARP (EtherType 0x0806)"),
        (1, "EtherType 0x1234"),
        (1, "IEEE 802.3 without EtherType"),
        (1, "GRE of another kind (IP protocol 47)"),
        (1, "IPsec ESP (IP protocol 50)"),
        (1, "IP protocol 99"),
        (1, "UDP to port 53"),
        (1, "UDP to port 4789"),
        (1, "UDP to port 6081"),
    ];
    let mut sorted = kinds.clone();
    sorted.sort_unstable_by_key(|&(frames, kind)| {
        (std::cmp::Reverse(frames), expected.iter().position(|it| it.1 == kind))
    });
    assert_eq!(sorted, expected);
    for note in [
        "12 frames of RoCE v1 (EtherType 0x8915), which this command does not decode.",
        "4 frames of MPLS (EtherType 0x8847), which this command does not decode.",
        "1 frames of IPsec ESP (IP protocol 50), which this command does not decode.",
    ] {
        assert!(summary.notes.iter().any(|found| found == note), "{note}: {:?}", summary.notes);
    }
    assert!(!summary.notes.iter().any(|note| note.contains("ARP") && note.contains("does not decode")));
}

#[test]
fn link_layers_of_infiniband_are_named() {
    for (link_type, name) in [(247, "247 (InfiniBand)"), (197, "197 (ERF"), (242, "242 (IP over InfiniBand)")] {
        let error = decode(&pcap_of(link_type, true, false, usize::MAX, &[])[..], &Options::default()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        let frame = send(Opcode::RC_SEND_ONLY, 0, 4);
        let file = [section(), interface(link_type as u16, &[]), interface(1, &[])].concat();
        let summary =
            read(&[file, enhanced(0, 0, &[1; 80]), enhanced(0, 0, &[1; 80]), enhanced(1, 0, &frame)].concat());
        let note = format!("2 frames of link type {name}");
        assert!(summary.notes.iter().any(|found| found.starts_with(&note)), "{:?}", summary.notes);
    }
}

#[test]
fn mirrored_frames_may_be_cut() {
    // A mirroring switch truncates the frames.
    let summary = wrapped(|frame| outer4(47, &erspan2(&frame[..frame.len().min(70)])));
    assert_eq!((summary.packets, summary.cut_packets, summary.icrc.right), (2, 1, 1));
    assert_eq!(only(&summary).from_a.operations[0].payload_bytes, 64);
}

proptest! {
    /// Damaged and cut tunnels give an answer.
    #[test]
    fn damaged_tunnels(which in 0..6_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), cut in any::<prop::sample::Index>()) {
        let inner = send(Opcode::RC_SEND_ONLY, 0, 8);
        let mut frame = match which {
            0 => outer4(17, &vxlan(&inner)),
            1 => outer4(17, &geneve(BRIDGED, &inner)),
            2 => outer4(47, &gre(0xb0, BRIDGED, &inner)),
            3 => outer4(47, &erspan3(true, &inner)),
            4 => ethernet(0x86dd, &ipv6(0, &[&[60, 0, 0, 0, 0, 0, 0, 0, 47, 0, 0, 0, 0, 0, 0, 0], &erspan2(&inner)[..]].concat())),
            _ => tagged(&outer4(41, &ipv6(4, &inner[14..])), &[0x9100, 0x8100]),
        };
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame.truncate(cut.index(frame.len() + 1));
        let summary = read(&pcap(&[frame]));
        prop_assert_eq!(summary.packets + summary.other_frames + summary.malformed_packets + summary.super_packets.cut_frames, 1);
    }
}
