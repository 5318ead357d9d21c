//! Tests on captures of the traffic between Linux's rdma_rxe and Doorbell's software RNIC (`cargo xtask capture-rxe`).
//! The parser must know each packet. Each ICRC must equal the one that [`Flow`] computes with the identification that
//! the kernel wrote.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use doorbell_wire::{BthPacket, Flow, ICRC_LEN, Opcode, PacketOperation, ROCE_UDP_PORT, parse_frame};
use pcap_file::pcap::PcapReader;

/// Address of rxe. All other packets come from Doorbell's software RNIC.
const RXE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Checks a capture. It must have at least `least` packets, and rxe must have sent a packet of each opcode in `wanted`.
fn check(capture: &[u8], least: usize, wanted: &[Opcode]) {
    let mut reader = PcapReader::new(capture).unwrap();
    let mut sent = BTreeSet::new();
    let mut packets = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        assert_eq!(packet.data.len(), packet.orig_len as usize, "the capture must hold the whole packet");
        let frame = parse_frame(&packet.data).unwrap();
        packets += 1;
        assert_eq!(frame.encapsulation.dst_port, ROCE_UDP_PORT);
        let (covered, icrc) = frame.payload.split_last_chunk::<ICRC_LEN>().unwrap();
        let bth = BthPacket::new_checked(covered).unwrap();
        let opcode = bth.opcode();
        let flow = Flow::new(frame.outer.src, frame.outer.dst, frame.encapsulation.src_port, ROCE_UDP_PORT);
        let (identification, dont_fragment) = (frame.outer.identification.unwrap(), frame.outer.dont_fragment.unwrap());
        let expected = flow.icrc(identification, dont_fragment, covered);
        assert_eq!(u32::from_le_bytes(*icrc), expected, "packet {packets}, {opcode:?}");
        let padded = bth.payload().len() - opcode.extension_len();
        assert!(padded >= usize::from(bth.pad_count()) && padded.is_multiple_of(4), "packet {packets}, {opcode:?}");
        assert!(opcode.operation().is_some_and(|operation| operation != PacketOperation::Cnp), "packet {packets}");
        if frame.outer.src == RXE {
            sent.insert(opcode);
        }
    }
    assert!(packets >= least, "{packets} packets");
    for opcode in wanted {
        assert!(sent.contains(opcode), "no {opcode:?} among {sent:?}");
    }
}

#[test]
fn packets_of_rxe_parse_and_have_a_valid_icrc() {
    // In this capture, rxe acts as requester and as responder, with messages of one packet and of several packets.
    let wanted = [
        Opcode::RC_SEND_ONLY,
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_LAST_IMM,
        Opcode::RC_WRITE_ONLY,
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_READ_REQUEST,
        Opcode::RC_READ_RESPONSE_FIRST,
        Opcode::RC_ACKNOWLEDGE,
        Opcode::RC_ATOMIC_ACKNOWLEDGE,
        Opcode::RC_COMPARE_SWAP,
        Opcode::RC_FETCH_ADD,
        Opcode::UC_SEND_FIRST,
        Opcode::UC_WRITE_FIRST,
        Opcode::UD_SEND_ONLY,
    ];
    check(include_bytes!("../data/rxe.pcap"), 300, &wanted);
}

#[test]
fn rxe_retransmissions_parse() {
    check(include_bytes!("../data/rxe-loss.pcap"), 300, &[Opcode::RC_ACKNOWLEDGE]);
}

#[test]
fn rnr_naks_of_rxe_parse() {
    let wanted = [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_WRITE_ONLY_IMM];
    check(include_bytes!("../data/rxe-rnr.pcap"), 200, &wanted);
}

#[test]
fn packets_between_two_rxe_devices_parse() {
    let wanted = [
        Opcode::RC_SEND_ONLY_IMM,
        Opcode::RC_SEND_LAST_IMM,
        Opcode::RC_WRITE_ONLY_IMM,
        Opcode::RC_WRITE_LAST_IMM,
        Opcode::UC_SEND_ONLY_IMM,
        Opcode::UC_WRITE_ONLY_IMM,
        Opcode::UD_SEND_ONLY_IMM,
    ];
    check(include_bytes!("../data/rxe-both.pcap"), 120, &wanted);
}
