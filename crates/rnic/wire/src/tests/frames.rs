use core::net::IpAddr;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

use super::golden;
use crate::{
    AethPacket, AethRepr, BTH_LEN, BthPacket, Encapsulation, Error, Msn, Opcode, Outer, Psn, Qpn, ROCE_UDP_PORT,
    RethPacket, Syndrome, is_vlan_tag, parse_datagram, parse_frame, parse_ip,
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_write_from_frame_to_payload() {
    let bytes = golden::bytes(golden::WRITE_ONLY);
    let frame = parse_frame(&bytes).unwrap();
    let encapsulation = Encapsulation {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        vlan: None,
        src_port: 0xc001,
        dst_port: ROCE_UDP_PORT,
    };
    assert_eq!(frame.encapsulation, encapsulation);
    let outer = Outer {
        src: ip("192.168.1.10"),
        dst: ip("192.168.1.20"),
        traffic_class: 0x6a,
        hop_limit: 64,
        identification: Some(0x1234),
        dont_fragment: Some(true),
    };
    assert_eq!(frame.outer, outer);
    let bth = BthPacket::new_checked(frame.payload).unwrap();
    assert_eq!(bth.opcode(), Opcode::RC_WRITE_ONLY);
    assert!(bth.solicited() && bth.ack_request() && !bth.migrated());
    assert_eq!(bth.pad_count(), 3);
    assert_eq!(bth.dest_qpn(), Qpn::new(0x11));
    assert_eq!(bth.psn(), Psn::new(0xabcdef));
    let reth = RethPacket::new_checked(bth.payload()).unwrap();
    assert_eq!(reth.dma_length(), 5);
    assert_eq!(&reth.payload()[..5], b"hello");
}

#[test]
fn an_acknowledgement_from_frame_to_syndrome() {
    let bytes = golden::bytes(golden::ACKNOWLEDGE);
    let frame = parse_frame(&bytes).unwrap();
    assert_eq!(frame.outer.dont_fragment, Some(false));
    let bth = BthPacket::new_checked(frame.payload).unwrap();
    assert!(bth.migrated() && bth.fecn() && bth.becn());
    let aeth = AethRepr::parse(&AethPacket::new_unchecked(bth.payload())).unwrap();
    let expected = AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(7) };
    assert_eq!(aeth, expected);
}

#[test]
fn an_ipv6_frame() {
    let bytes = golden::bytes(golden::WRITE_ONLY_IPV6);
    let frame = parse_frame(&bytes).unwrap();
    let outer = Outer {
        src: ip("fe80::1"),
        dst: ip("fe80::2"),
        traffic_class: 3,
        hop_limit: 64,
        identification: None,
        dont_fragment: None,
    };
    assert_eq!(frame.outer, outer);
    assert_eq!(frame.payload.len(), BTH_LEN + 16 + 8 + 4);
}

/// `emit_frame_headers` restores a parsed frame, but sets the UDP checksum and the IPv6 flow label to zero.
#[test]
fn headers_are_emitted_as_they_were_parsed() {
    for mut bytes in golden::frames() {
        let frame = parse_frame(&bytes).unwrap();
        let (encapsulation, outer) = (frame.encapsulation, frame.outer);
        let payload_len = frame.payload.len();
        let mut out = vec![0xa5; bytes.len()];
        let len = encapsulation.emit_frame_headers(&outer, payload_len, &mut out);
        assert_eq!(len, bytes.len() - payload_len);
        assert_eq!(len, encapsulation.header_len(&outer));
        bytes[len - 2..len].fill(0);
        if outer.src.is_ipv6() {
            bytes[15] &= 0xf0;
            bytes[16..18].fill(0);
        }
        assert_eq!(out[..len], bytes[..len]);
    }
}

#[test]
fn unknown_identification_is_written_as_a_socket_sends_it() {
    let bytes = golden::bytes(golden::WRITE_ONLY);
    let frame = parse_frame(&bytes).unwrap();
    let outer = Outer { identification: None, dont_fragment: None, ..frame.outer };
    let mut out = bytes.clone();
    frame.encapsulation.emit_frame_headers(&outer, frame.payload.len(), &mut out);
    let written = parse_frame(&out).unwrap().outer;
    assert_eq!(written.identification, Some(0));
    assert_eq!(written.dont_fragment, Some(true));
}

#[test]
fn mapped_addresses_are_ipv4_on_the_wire() {
    let encapsulation = parse_frame(&golden::bytes(golden::WRITE_ONLY)).unwrap().encapsulation;
    let outer = Outer {
        src: ip("::ffff:10.0.0.1"),
        dst: ip("10.0.0.2"),
        traffic_class: 0,
        hop_limit: 64,
        identification: None,
        dont_fragment: None,
    };
    let mut out = [0; 46];
    assert_eq!(encapsulation.emit_frame_headers(&outer, 4, &mut out), 42);
    assert_eq!(parse_frame(&out).unwrap().outer.src, ip("10.0.0.1"));
}

#[test]
fn vlan_tags() {
    let plain = golden::bytes(golden::WRITE_ONLY);
    let frame = parse_frame(&plain).unwrap();
    let tagged = Encapsulation { vlan: Some(0x6064), ..frame.encapsulation };
    let mut out = vec![0; plain.len() + 4];
    let len = tagged.emit_frame_headers(&frame.outer, frame.payload.len(), &mut out);
    out[len..].copy_from_slice(frame.payload);
    let again = parse_frame(&out).unwrap();
    assert_eq!(again.encapsulation, tagged);
    assert_eq!(again.outer, frame.outer);
    assert_eq!(again.payload, frame.payload);

    // Add a service tag before the VLAN tag. The parser keeps the outermost tag.
    let twice = [&out[..12], &[0x88, 0xa8, 0, 7], &out[12..]].concat();
    let again = parse_frame(&twice).unwrap();
    assert_eq!(again.encapsulation.vlan, Some(7));
    assert_eq!(again.payload, frame.payload);
}

#[test]
fn trailing_bytes_of_a_padded_frame_are_no_payload() {
    let mut bytes = golden::bytes(golden::SEND_EMPTY);
    bytes.extend([0; 2]);
    assert_eq!(parse_frame(&bytes).unwrap().payload.len(), BTH_LEN + 4);
}

#[test]
fn ipv4_options_are_skipped() {
    let mut bytes = golden::bytes(golden::WRITE_ONLY);
    let payload = parse_frame(&bytes).unwrap().payload.to_vec();
    bytes[14] = 0x46;
    bytes[17] += 4;
    bytes.splice(34..34, [1; 4]);
    assert_eq!(parse_frame(&bytes).unwrap().payload, payload);
}

#[test]
fn malformed_frames() {
    let altered = |at: usize, byte: u8| {
        let mut bytes = golden::bytes(golden::WRITE_ONLY);
        bytes[at] = byte;
        parse_frame(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(altered(12, 0x07), Error::EtherType(0x0700));
    assert_eq!(altered(14, 0x65), Error::IpHeader);
    assert_eq!(altered(14, 0x44), Error::IpHeader);
    assert_eq!(altered(17, 19), Error::IpHeader);
    let truncated = Error::Truncated { needed: 83, found: 82 };
    assert_eq!(altered(17, 0x45), truncated);
    assert_eq!(altered(20, 0x20), Error::Fragment);
    assert_eq!(altered(21, 0x01), Error::Fragment);
    assert_eq!(altered(23, 6), Error::IpProtocol(6));
    assert_eq!(altered(39, 7), Error::UdpHeader);
    assert_eq!(altered(39, 0x31), Error::UdpHeader);
}

#[test]
fn every_truncation_is_an_error() {
    for bytes in golden::frames() {
        for len in 0..bytes.len() {
            let error = parse_frame(&bytes[..len]).map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::Truncated { .. }), "{len}: {error}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        let _ = parse_frame(&bytes);
    }

    /// Parses almost valid frames, so that the parser reaches its later checks.
    #[test]
    fn damaged_frames(which in 0..5_usize, at in 12..60_usize, byte: u8, len: usize) {
        let mut bytes = golden::frames()[which].clone();
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        bytes.truncate(len % (bytes.len() + 1));
        if let Ok(frame) = parse_frame(&bytes) {
            prop_assert!(frame.payload.len() < bytes.len());
        }
    }

    #[test]
    fn round_trip(
        v6: bool,
        src: [u8; 16],
        dst: [u8; 16],
        traffic_class: u8,
        hop_limit: u8,
        identification: u16,
        dont_fragment: bool,
        vlan: Option<u16>,
        ports: (u16, u16),
        payload: Vec<u8>,
    ) {
        let address = |bytes: [u8; 16]| {
            if v6 {
                // Set the first byte, so that the address is never IPv4-mapped.
                let mut bytes = bytes;
                bytes[0] = 0xfd;
                IpAddr::from(bytes)
            } else {
                IpAddr::from(*bytes.first_chunk::<4>().unwrap())
            }
        };
        let outer = Outer {
            src: address(src),
            dst: address(dst),
            traffic_class,
            hop_limit,
            identification: (!v6).then_some(identification),
            dont_fragment: (!v6).then_some(dont_fragment),
        };
        let encapsulation = Encapsulation {
            src_mac: [1; 6],
            dst_mac: [2; 6],
            vlan,
            src_port: ports.0,
            dst_port: ports.1,
        };
        let mut bytes = vec![0; encapsulation.header_len(&outer)];
        encapsulation.emit_frame_headers(&outer, payload.len(), &mut bytes);
        bytes.extend(&payload);
        let frame = parse_frame(&bytes).unwrap();
        prop_assert_eq!(frame.encapsulation, encapsulation);
        prop_assert_eq!(frame.outer, outer);
        prop_assert_eq!(frame.payload, &payload[..]);
    }
}

/// Bytes of the UDP header after the ports.
const AFTER_PORTS: usize = 4;

/// A capture may cut a packet anywhere. The parser reads the rest if the UDP ports are complete.
#[test]
fn a_cut_packet_is_parsed_up_to_the_cut() {
    for bytes in golden::frames() {
        let frame = parse_frame(&bytes).unwrap();
        let packet = &bytes[14..];
        let headers = packet.len() - frame.payload.len();
        for len in 0..=packet.len() {
            let datagram = parse_datagram(&packet[..len]);
            if len < headers - AFTER_PORTS {
                assert!(matches!(datagram, Err(Error::Truncated { .. })), "{len}: {datagram:?}");
                continue;
            }
            let datagram = datagram.unwrap();
            assert_eq!(datagram.outer, frame.outer);
            assert_eq!(datagram.dst_port, ROCE_UDP_PORT);
            assert_eq!((datagram.ip_len, datagram.payload_len), (packet.len(), frame.payload.len()));
            assert_eq!(datagram.payload, &frame.payload[..len.saturating_sub(headers)]);
        }
        // The payload does not include bytes after the packet, such as Ethernet's padding.
        let padded = [packet, &[0xee; 9]].concat();
        assert_eq!(parse_datagram(&padded).unwrap().payload, frame.payload);
    }
    assert_eq!(parse_datagram(&[0x55; 60]), Err(Error::IpHeader));
}

/// The parser skips options of IPv4 and every kind of extension header of IPv6.
#[test]
fn options_and_extension_headers_are_skipped() {
    let udp = [0xc0, 0, 0x12, 0xb7, 0, 11, 0, 0, 7, 8, 9];
    let mut v4 = [&[0x46, 0, 0, 35, 0, 0, 0, 0, 9, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0][..], &udp].concat();
    let datagram = parse_datagram(&v4).unwrap();
    assert_eq!((datagram.has_options, datagram.payload, datagram.ip_len), (true, &[7, 8, 9][..], 35));
    v4[9] = 6;
    assert_eq!(parse_ip(&v4).map(|ip| (ip.protocol, ip.payload_len)), Ok((6, 11)));
    assert_eq!(parse_datagram(&v4), Err(Error::IpProtocol(6)));
    let extended = |first: u8, headers: &[&[u8]]| {
        let rest = [headers.concat(), udp.to_vec()].concat();
        let fixed = [0x60, 0, 0, 0, 0, rest.len() as u8, first, 33];
        [&fixed[..], &[0xfd; 32], &rest].concat()
    };
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let authentication = [17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let headers: [&[u8]; 8] = [
        &options(43),
        &[60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &options(44),
        &[135, 0, 0, 6, 0, 0, 0, 1],
        &options(139),
        &options(140),
        &options(51),
        &authentication,
    ];
    let v6 = extended(0, &headers);
    let datagram = parse_datagram(&v6).unwrap();
    assert_eq!((datagram.has_options, datagram.payload, datagram.ip_len), (true, &[7, 8, 9][..], v6.len()));
    let frame = [&[0; 12][..], &[0x86, 0xdd], &v6].concat();
    assert_eq!(parse_frame(&frame).map(|frame| frame.payload), Ok(&[7, 8, 9][..]));
    for len in 0..v6.len() - 3 - AFTER_PORTS {
        assert!(matches!(parse_datagram(&v6[..len]), Err(Error::Truncated { .. })), "{len}");
    }
    // Either the fragment's offset or the More Fragments flag is set.
    for [high, low] in [[0, 8], [0, 1], [0x80, 0]] {
        let fragment = extended(44, &[&[17, 0, high, low, 0, 0, 0, 1]]);
        assert_eq!(parse_ip(&fragment), Err(Error::Fragment));
    }
    // The extension header is longer than the packet's payload length.
    let mut short = extended(0, &[&options(17)]);
    short[5] = 7;
    assert_eq!(parse_ip(&short), Err(Error::IpHeader));
    assert!([0x8100, 0x88a8, 0x9100, 0x9200, 0x9300].into_iter().all(is_vlan_tag));
    assert!(![0x0800, 0x86dd, 0x9000].into_iter().any(is_vlan_tag));
}
