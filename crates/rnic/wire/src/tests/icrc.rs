use core::net::IpAddr;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

use super::golden;
use crate::{Check, Flow, ICRC_LEN, Icrc, crc, explain_difference, parse_frame, split_mix};

/// Computes CRC-32 one bit at a time.
fn slow_crc(bytes: &[u8]) -> u32 {
    let mut register = !0_u32;
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = register & 1;
            register >>= 1;
            if carry == 1 {
                register ^= 0xedb8_8320;
            }
        }
    }
    !register
}

/// Computes the ICRC as Annex A17 describes it: builds the pseudo packet and sets its mutable fields to ones.
fn slow_icrc(
    (src, dst): (IpAddr, IpAddr),
    (src_port, dst_port): (u16, u16),
    identification: u16,
    dont_fragment: bool,
    packet: &[u8],
) -> u32 {
    let udp_len = (8 + packet.len() + 4) as u16;
    let mut pseudo = vec![0xff; 8];
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            pseudo.extend([0x45, 0xff]);
            pseudo.extend((20 + udp_len).to_be_bytes());
            pseudo.extend(identification.to_be_bytes());
            pseudo.extend([if dont_fragment { 0x40 } else { 0 }, 0]);
            pseudo.extend([0xff, 17, 0xff, 0xff]);
            pseudo.extend(src.octets());
            pseudo.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            pseudo.extend([0x6f, 0xff, 0xff, 0xff]);
            pseudo.extend(udp_len.to_be_bytes());
            pseudo.extend([17, 0xff]);
            pseudo.extend(src.octets());
            pseudo.extend(dst.octets());
        }
        _ => panic!("two families"),
    }
    pseudo.extend(src_port.to_be_bytes());
    pseudo.extend(dst_port.to_be_bytes());
    pseudo.extend(udp_len.to_be_bytes());
    pseudo.extend([0xff, 0xff]);
    let bth = pseudo.len();
    pseudo.extend(packet);
    if let Some(byte) = pseudo.get_mut(bth + 4) {
        *byte = 0xff;
    }
    slow_crc(&pseudo)
}

fn ipv4_flow() -> Flow {
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    Flow::new(src, dst, 49_152, 4791)
}

fn with_icrc(flow: &Flow, identification: u16, df: bool, packet: &[u8]) -> Vec<u8> {
    let icrc = flow.icrc(identification, df, packet);
    [packet, &icrc.to_le_bytes()].concat()
}

#[test]
fn golden_frames() {
    for bytes in golden::frames() {
        let frame = parse_frame(&bytes).unwrap();
        let (outer, ports) = (frame.outer, frame.encapsulation);
        let flow = Flow::new(outer.src, outer.dst, ports.src_port, ports.dst_port);
        let (packet, icrc) = frame.payload.split_last_chunk::<ICRC_LEN>().unwrap();
        let identification = outer.identification.unwrap_or(0);
        let dont_fragment = outer.dont_fragment.unwrap_or(true);
        let computed = flow.icrc(identification, dont_fragment, packet);
        assert_eq!(computed.to_le_bytes(), *icrc);
        let addresses = (outer.src, outer.dst);
        let ports = (ports.src_port, ports.dst_port);
        let slow = slow_icrc(addresses, ports, identification, dont_fragment, packet);
        assert_eq!(computed, slow);
        let expected = Check::Valid { identification, dont_fragment };
        assert_eq!(flow.check(identification, frame.payload), expected);
    }
}

#[test]
fn icrc_ignores_fields_that_routers_change() {
    let flow = ipv4_flow();
    let packet = [7; 32];
    let icrc = flow.icrc(1, true, &packet);
    let mut marked = packet;
    marked[4] ^= 0xff;
    assert_eq!(flow.icrc(1, true, &marked), icrc);
    for at in (0..32).filter(|at| *at != 4) {
        let mut altered = packet;
        altered[at] ^= 1;
        assert_ne!(flow.icrc(1, true, &altered), icrc, "byte {at}");
    }
}

#[test]
fn every_identification_is_found() {
    let flow = ipv4_flow();
    for len in [12, 16, 32, 76, 268, 4112] {
        let packet: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let mut sealed = [&packet[..], &[0; 4]].concat();
        for identification in 0..=u16::MAX {
            for dont_fragment in [false, true] {
                let icrc = flow.icrc(identification, dont_fragment, &packet);
                sealed[len..].copy_from_slice(&icrc.to_le_bytes());
                let found = Check::Valid { identification, dont_fragment };
                assert_eq!(flow.check(0x5a5a, &sealed), found);
            }
        }
    }
}

#[test]
fn small_errors_are_never_explained() {
    let flow = ipv4_flow();
    let sealed = with_icrc(&flow, 3, true, &[0x11; 64]);
    for bit in 0..8 * sealed.len() {
        let mut altered = sealed.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let masked = bit / 8 == 4;
        let valid = flow.check(0, &altered) != Check::Invalid;
        assert_eq!(valid, masked, "bit {bit}");
    }
}

/// Of the 2^32 possible differences between two ICRCs, identification (16 bits) and DF (1 bit) explain 2^17.
#[test]
fn one_random_error_in_32768_is_explained() {
    let mut state = 1;
    let tries = 1 << 22;
    let explained = (0..tries)
        .filter(|_| {
            let random = split_mix(&mut state);
            explain_difference(random as u32, (random >> 32) as u32, 54).is_some()
        })
        .count();
    let expected = tries >> 15;
    assert!(
        (expected / 2..expected * 2).contains(&explained),
        "{explained} errors explained, about {expected} expected"
    );
}

/// If bytes after the BTH are changed, the check still accepts one of 2^15 packets. The test allows four times that
/// rate.
#[test]
fn corrupted_packets_are_refused() {
    let flow = ipv4_flow();
    let sealed = with_icrc(&flow, 3, true, &[0x11; 268]);
    let mut state = 2;
    let tries = 1 << 18;
    let accepted = (0..tries)
        .filter(|_| {
            let mut altered = sealed.clone();
            let at = 12 + (split_mix(&mut state) % 240) as usize;
            altered[at..at + 8].copy_from_slice(&split_mix(&mut state).to_le_bytes());
            flow.check(3, &altered) != Check::Invalid
        })
        .count();
    assert!(accepted < tries >> 13, "{accepted} of {tries} damaged packets were accepted");
}

#[test]
fn no_explanation_beyond_an_ip_packet() {
    assert_eq!(explain_difference(5, 5, 30), Some((0, false)));
    assert!(explain_difference(5, 5, 65_535).is_some());
    assert_eq!(explain_difference(5, 5, usize::MAX / 2), None);
}

#[test]
fn icrc_over_ipv6_ignores_the_identification() {
    let flow = Flow::new(IpAddr::from([1; 16]), IpAddr::from([2; 16]), 1, 2);
    assert_eq!(flow.icrc(1, true, &[0; 16]), flow.icrc(2, false, &[0; 16]));
    let mut sealed = with_icrc(&flow, 0, true, &[3; 16]);
    let valid = Check::Valid { identification: 9, dont_fragment: true };
    assert_eq!(flow.check(9, &sealed), valid);
    sealed[15] ^= 1;
    assert_eq!(flow.check(9, &sealed), Check::Invalid);
}

#[test]
fn mapped_addresses_are_ipv4() {
    let mapped = |last| IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, last]);
    assert_eq!(Flow::new(mapped(1), mapped(2), 49_152, 4791), ipv4_flow());
}

#[test]
fn packets_too_short_for_a_bth_are_invalid() {
    let flow = ipv4_flow();
    for len in 0..12 {
        let sealed = with_icrc(&flow, 0, true, &vec![0; len]);
        assert_eq!(flow.check(0, &sealed), Check::Invalid);
    }
    for len in 0..4 {
        assert_eq!(flow.check(0, &[0; 4][..len]), Check::Invalid);
    }
}

#[test]
fn long_packets_do_not_overflow() {
    let flow = ipv4_flow();
    flow.icrc(0, true, &vec![0; 70_000]);
    assert_eq!(flow.check(0, &vec![0; 70_000]), Check::Invalid);
}

proptest! {
    #[test]
    fn crc_of_any_length(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(!crc::update(crc::INITIAL, &bytes), slow_crc(&bytes));
        prop_assert_eq!(!crc::update_short(crc::INITIAL, &bytes), slow_crc(&bytes));
    }

    #[test]
    fn zeros_are_taken_back(register: u32, zeros in 0..6000_usize) {
        let after = crc::update(register, &vec![0; zeros]);
        prop_assert_eq!(crc::rewind(after, zeros), Some(register));
    }

    #[test]
    fn icrc_matches_the_slow_reference_over_ipv4(
        src: [u8; 4],
        dst: [u8; 4],
        ports: (u16, u16),
        identification: u16,
        df: bool,
        packet in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let (src, dst) = (IpAddr::from(src), IpAddr::from(dst));
        let flow = Flow::new(src, dst, ports.0, ports.1);
        let slow = slow_icrc((src, dst), ports, identification, df, &packet);
        prop_assert_eq!(flow.icrc(identification, df, &packet), slow);
    }

    #[test]
    fn icrc_matches_the_slow_reference_over_ipv6(
        mut src: [u8; 16],
        dst: [u8; 16],
        ports: (u16, u16),
        packet in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        src[0] = 0xfd;
        let (src, dst) = (IpAddr::from(src), IpAddr::from(dst));
        let flow = Flow::new(src, dst, ports.0, ports.1);
        let slow = slow_icrc((src, dst), ports, 0, true, &packet);
        prop_assert_eq!(flow.icrc(0, true, &packet), slow);
    }

    /// Computes the ICRC in parts of any size, also in parts that split the BTH.
    #[test]
    fn icrc_in_parts_equals_icrc_at_once(
        packet in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec(0..40_usize, 0..8),
    ) {
        let flow = ipv4_flow();
        let mut icrc = Icrc::new(&flow, 5, true, packet.len());
        let mut rest = &packet[..];
        for cut in cuts {
            let (part, behind) = rest.split_at(cut.min(rest.len()));
            icrc.update(part);
            rest = behind;
        }
        icrc.update(rest);
        prop_assert_eq!(icrc.finish(), flow.icrc(5, true, &packet));
    }

    #[test]
    fn any_bytes_are_checked(bytes: Vec<u8>, identification: u16) {
        ipv4_flow().check(identification, &bytes);
    }
}
