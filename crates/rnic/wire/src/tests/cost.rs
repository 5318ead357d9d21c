use proptest::prelude::*;

use crate::cost::{ATOMIC_BYTES, MAX_MESSAGE_BYTES};
use crate::{
    CostError, Direction, IpVersion, LinkSide, MessageCost, MessageKind, OuterKind, PathMtu, Response, Transport,
    message_cost,
};

fn rc_ipv4(kind: MessageKind, bytes: u64) -> MessageCost {
    message_cost(kind, Transport::Rc, bytes, PathMtu::Mtu4096, OuterKind::IPV4).unwrap()
}

fn frame_bytes(kind: MessageKind, bytes: u64) -> u64 {
    let request = rc_ipv4(kind, bytes).request;
    assert_eq!(request.packets, 1);
    request.frame_bytes
}

/// Frame lengths as counters of several vendors showed them.
#[test]
fn frames_as_counted() {
    assert_eq!(frame_bytes(MessageKind::Write, 0), 74);
    for bytes in 1..=4 {
        assert_eq!(frame_bytes(MessageKind::Write, bytes), 78);
        assert_eq!(frame_bytes(MessageKind::Send, bytes), 62);
    }
    for bytes in 5..=8 {
        assert_eq!(frame_bytes(MessageKind::Write, bytes), 82);
    }
    let Response::Range { min, max } = rc_ipv4(MessageKind::Write, 1).response else {
        panic!("a WRITE has an ACK as response");
    };
    assert_eq!(min, Direction::default());
    assert_eq!((max.packets, max.frame_bytes), (1, 62));

    let two = rc_ipv4(MessageKind::Write, 2 * 4096).request;
    let three = rc_ipv4(MessageKind::Write, 3 * 4096).request;
    assert_eq!(three.frame_bytes - two.frame_bytes, 4154);
}

#[test]
fn a_write_of_one_mib() {
    let cost = rc_ipv4(MessageKind::Write, 1 << 20);
    let request = cost.request;
    assert_eq!(request.packets, 256);
    let average = request.frame_bytes as f64 / request.packets as f64;
    assert_eq!(average, 4154.0625);
    assert_eq!(request.line_bytes, request.frame_bytes + 24 * 256);
    let Response::Range { max, .. } = cost.response else {
        panic!("a WRITE has an ACK as response");
    };
    // The maximum is one ACK per request packet. A NIC was measured to send about 9 ACKs for this message.
    assert_eq!(max.packets, 256);
    assert_eq!(max.line_bytes, 256 * 86);
}

#[test]
fn goodput() {
    let long = rc_ipv4(MessageKind::Write, 1 << 30);
    assert!((long.goodput_share() - 4096.0 / 4178.0).abs() < 1e-6);
    assert!((long.goodput_share() - 0.9804).abs() < 5e-5);
    let read = rc_ipv4(MessageKind::Read, 1 << 30);
    assert!((read.goodput_share() - 4096.0 / 4178.0).abs() < 1e-6);
    assert_eq!(rc_ipv4(MessageKind::Send, 0).goodput_share(), 0.0);
}

#[test]
fn datagrams() {
    let send = |bytes, outer| message_cost(MessageKind::Send, Transport::Ud, bytes, PathMtu::Mtu4096, outer);
    let cost = send(4096, OuterKind::IPV4).unwrap();
    assert_eq!(cost.request.frame_bytes, 4162);
    assert_eq!(cost.response, Response::None);
    let tagged = send(4096, OuterKind::IPV4.with_vlan()).unwrap();
    assert_eq!(tagged.request.frame_bytes, 4166);
    let too_long = CostError::TooLong { bytes: 4097, limit: 4096 };
    assert_eq!(send(4097, OuterKind::IPV4), Err(too_long));
}

#[test]
fn short_frames_are_padded_on_the_line() {
    let cost = rc_ipv4(MessageKind::Send, 0);
    assert_eq!(cost.request.frame_bytes, 58);
    assert_eq!(cost.request.line_bytes, 84);
}

#[test]
fn reads_and_atomics_have_exact_responses() {
    let read = rc_ipv4(MessageKind::Read, 4097);
    assert_eq!(read.request, Direction { packets: 1, frame_bytes: 74, line_bytes: 98 });
    let response =
        Direction { packets: 2, frame_bytes: (62 + 4096) + (62 + 4), line_bytes: (62 + 4096) + (62 + 4) + 48 };
    assert_eq!(read.response, Response::Exact(response));
    for kind in [MessageKind::CompareSwap, MessageKind::FetchAdd] {
        let cost = rc_ipv4(kind, 8);
        assert_eq!(cost.request.frame_bytes, 58 + 28);
        let response = Direction { packets: 1, frame_bytes: 70, line_bytes: 94 };
        assert_eq!(cost.response, Response::Exact(response));
    }
}

#[test]
fn unsupported_messages_have_no_cost() {
    let cost = |kind, transport, bytes| message_cost(kind, transport, bytes, PathMtu::Mtu256, OuterKind::IPV6);
    let refused = cost(MessageKind::FetchAdd, Transport::Rc, 4);
    assert_eq!(refused, Err(CostError::AtomicLength(4)));
    let refused = cost(MessageKind::Send, Transport::Rc, MAX_MESSAGE_BYTES + 1);
    assert!(matches!(refused, Err(CostError::TooLong { .. })));
    assert!(cost(MessageKind::Send, Transport::Rc, MAX_MESSAGE_BYTES).is_ok());
    for kind in MessageKind::ALL {
        use MessageKind::*;
        for (transport, offered) in [
            (Transport::Rc, true),
            (Transport::Uc, matches!(kind, Send | SendImm | Write | WriteImm)),
            (Transport::Ud, matches!(kind, Send | SendImm)),
            (Transport::Rd, false),
            (Transport::Cnp, false),
            (Transport::Xrc, false),
            (Transport::Vendor, false),
        ] {
            let result = cost(kind, transport, ATOMIC_BYTES);
            let expected = CostError::NotOffered { kind, transport };
            assert_eq!(result.is_ok(), offered, "{kind:?} {transport:?}");
            if !offered {
                assert_eq!(result, Err(expected));
            }
        }
    }
}

/// A WRITE of 512 bytes takes 594 bytes on the line. A link of 100 Gb/s therefore carries 21.0 M messages/s.
#[test]
fn link_limit_follows_from_line_bytes() {
    let link = 100e9;
    let send = rc_ipv4(MessageKind::Send, 512).link_limit(link);
    assert!((send.messages_per_s / 21.04e6 - 1.0).abs() < 1e-3);
    assert_eq!((send.binding, send.messages_per_s), (LinkSide::Request, link / 8.0 / 594.0));
    assert_eq!(send.messages_per_s_most_acknowledged, send.messages_per_s);
    // On the line, an ACK is 2 bytes longer than an empty SEND, and as long as a SEND of 1 to 4 bytes.
    let empty = rc_ipv4(MessageKind::Send, 0).link_limit(link);
    assert_eq!((empty.binding, empty.binding_most_acknowledged), (LinkSide::Request, LinkSide::Response));
    assert_eq!(empty.messages_per_s_most_acknowledged, link / 8.0 / 86.0);
    assert_eq!(rc_ipv4(MessageKind::Send, 4).link_limit(link).binding_most_acknowledged, LinkSide::Both);
    // The request of a READ of 8 bytes is longer than its response.
    for (bytes, binding) in [(8, LinkSide::Request), (12, LinkSide::Both), (4096, LinkSide::Response)] {
        assert_eq!(rc_ipv4(MessageKind::Read, bytes).link_limit(link).binding, binding, "{bytes}");
    }
}

/// Splits a message into packets and adds the header lengths: `first` extension bytes on the first packet, `last` on
/// the last packet, `every` on all packets.
fn cut(mut bytes: u64, mtu: u64, outer: OuterKind, (first, last, every): (u64, u64, u64)) -> Direction {
    let ip = match outer.ip {
        IpVersion::V4 => 20,
        IpVersion::V6 => 40,
    };
    let vlan = if outer.vlan { 4 } else { 0 };
    let mut total = Direction::default();
    loop {
        let payload = bytes.min(mtu);
        let is_last = bytes <= mtu;
        let mut padded = payload;
        while !padded.is_multiple_of(4) {
            padded += 1;
        }
        let mut frame = 14 + vlan + ip + 8 + 12 + every + padded + 4;
        if total.packets == 0 {
            frame += first;
        }
        if is_last {
            frame += last;
        }
        total.packets += 1;
        total.frame_bytes += frame;
        total.line_bytes += frame.max(60) + 24;
        if is_last {
            return total;
        }
        bytes -= payload;
    }
}

proptest! {
    #[test]
    fn cost_equals_the_sum_over_packets(
        kind in prop::sample::select(&MessageKind::ALL[..]),
        transport in prop::sample::select(&[Transport::Rc, Transport::Uc, Transport::Ud][..]),
        bytes in prop_oneof![0..600_u64, 0..100_000_u64],
        mtu in prop::sample::select(&PathMtu::ALL[..]),
        v6: bool,
        vlan: bool,
    ) {
        use MessageKind::*;
        let ip = if v6 { IpVersion::V6 } else { IpVersion::V4 };
        let outer = OuterKind { ip, vlan };
        let Ok(cost) = message_cost(kind, transport, bytes, mtu, outer) else {
            return Ok(());
        };
        let mtu = mtu.bytes() as u64;
        let deth = if transport == Transport::Ud { 8 } else { 0 };
        let request = match kind {
            Send => cut(bytes, mtu, outer, (0, 0, deth)),
            SendImm | SendInv => cut(bytes, mtu, outer, (0, 4, deth)),
            Write => cut(bytes, mtu, outer, (16, 0, 0)),
            WriteImm => cut(bytes, mtu, outer, (16, 4, 0)),
            Read => cut(0, mtu, outer, (16, 0, 0)),
            CompareSwap | FetchAdd => cut(0, mtu, outer, (28, 0, 0)),
        };
        prop_assert_eq!(cost.request, request);
        let ack = cut(0, mtu, outer, (4, 0, 0));
        let response = match kind {
            Read => {
                // The first and the last packet of the response carry an AETH. If the response is a single packet,
                // `first` already counts its AETH.
                let last = if bytes <= mtu { 0 } else { 4 };
                Response::Exact(cut(bytes, mtu, outer, (4, last, 0)))
            }
            CompareSwap | FetchAdd => Response::Exact(cut(0, mtu, outer, (12, 0, 0))),
            _ if transport == Transport::Rc => Response::Range {
                min: Direction::default(),
                max: Direction {
                    packets: request.packets,
                    frame_bytes: request.packets * ack.frame_bytes,
                    line_bytes: request.packets * ack.line_bytes,
                },
            },
            _ => Response::None,
        };
        prop_assert_eq!(cost.response, response);
    }
}
