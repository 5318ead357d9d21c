//! Replay of captures of the traffic between Linux's rdma_rxe and Doorbell's software RNIC (`cargo xtask capture-rxe`).
//! The RNIC under test takes the place of the software RNIC. It receives the captured packets of rxe, and must send the
//! captured packets of the software RNIC, byte for byte.

mod capture;
mod replay;

use capture::{Connection, Message, connections, read};
use doorbell_verbs_core::QpKind;
use doorbell_wire::{PacketOperation, Psn};
use replay::Replay;

const CAPTURE: &[u8] = include_bytes!("../../../wire/tests/data/rxe.pcap");
const WITH_LOSS: &[u8] = include_bytes!("../../../wire/tests/data/rxe-loss.pcap");

/// Replays a connection from its first packet to its last.
fn replayed(connection: &Connection) -> Replay<'_> {
    let mut replay = Replay::new(connection);
    for packet in &connection.packets {
        replay.step(packet);
    }
    replay.finish();
    replay.assert_nothing_else_is_sent();
    replay.assert_done();
    replay
}

#[test]
fn replayed_packets_to_rxe_match_the_capture() {
    for connection in &connections(read(CAPTURE)) {
        replayed(connection);
    }
}

#[test]
fn packets_lost_to_or_from_rxe_are_retransmitted() {
    let (mut naks_heeded, mut naks_sent) = (0, 0);
    for connection in &connections(read(WITH_LOSS)) {
        naks_heeded += replayed(connection).naks_heeded;
        let naks = connection.packets.iter().filter(|packet| packet.is_acknowledgement() && !packet.is_plain_ack());
        naks_sent += naks.filter(|packet| !packet.is_of_rxe()).count();
    }
    assert!(
        naks_heeded >= 3 && naks_sent >= 3,
        "the RNIC obeyed {naks_heeded} NAKs and sent {naks_sent} NAKs: both must be at least 3"
    );
}

#[test]
fn a_packet_of_rxe_with_one_bit_flipped_is_dropped_and_counted() {
    // Offset of the byte with the congestion bits, which switches set and the ICRC does not cover (IBTA Vol 1, 7.8.1;
    // Annex A17.3.4).
    const UNCOVERED_BYTE: usize = 4;
    let connections = connections(read(CAPTURE));
    let is_short = |message: &Message| message.operation() == PacketOperation::Send && message.packets == 1;
    let of_short_sends = |connection: &&Connection| {
        let messages = connection.messages(true);
        connection.kind == QpKind::Rc && messages.len() > 2 && messages.iter().all(is_short)
    };
    let connection = connections.iter().find(of_short_sends).expect("rxe sent SENDs of one packet");
    let [first, second, third, ..] = &connection.messages(true)[..] else { panic!("expected at least three messages") };
    for bit in 0..8 * second.first.datagram.len() {
        let mut flipped = second.first.clone();
        flipped.datagram[bit / 8] ^= 1 << (bit % 8);
        let is_covered = bit / 8 != UNCOVERED_BYTE;
        let mut replay = Replay::new(connection);
        for packet in [&first.first, &flipped, &third.first] {
            replay.hear(packet);
        }
        replay.finish();
        assert_eq!(replay.rnic.counters().rx_icrc_encapsulated, u64::from(is_covered), "bit {bit}");
        let naks: &[Psn] = if is_covered { &[second.first.bth.psn] } else { &[] };
        assert_eq!(replay.naks(), naks, "bit {bit}");
    }
}
