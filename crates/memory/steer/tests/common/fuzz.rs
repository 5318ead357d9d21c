//! The fuzz target, which turns a byte string into packets that arrive at a box. A test on stable Rust runs it over a
//! corpus, and over mutations of the corpus for a bounded time.

use std::net::IpAddr;

use doorbell_steer::{ClientEnd, Config, Layout, Limits, NodeEnd, Region, Steer};
pub use doorbell_testing::fuzz::Choices;
use doorbell_verbs_core::Access;
use doorbell_wire::{BTH_LEN, BthPacket, Opcode, Outer, PathMtu, Psn, Qpn, RETH_LEN, RKey, RethPacket};

const LIMITS: Limits = Limits {
    clients: 3,
    regions: 1,
    message_bytes: 4096,
    client_requests: 8,
    client_bytes: 8192,
    held_bytes: 16_384,
    keys: 4,
    words: 4,
    window_bytes: 8192,
    incomplete_ns: 1_000_000,
};

/// Layout in which each WRITE of at least 16 bytes is a node of a store. A node begins with the word that names the
/// next node or marks the last one. The node's key follows.
#[derive(Debug)]
struct AnyNode;

impl Layout for AnyNode {
    fn key<'a>(&self, start: &'a [u8]) -> Option<&'a [u8]> {
        start.get(8..16)
    }

    fn word_offset(&self) -> u64 {
        0
    }

    fn least_read(&self, _: usize) -> u32 {
        16
    }

    fn is_tail(&self, word: u64) -> bool {
        word >> 63 == 0 && word != 0
    }

    fn next(&self, word: u64) -> Option<u64> {
        (word >> 63 == 1).then_some(word << 1 >> 1)
    }
}

/// Fuzzes a box with packets from clients, the node and unknown addresses. Some packets have arbitrary bytes, but most
/// have valid headers. For all packets, the box must stay within its limits and send a bounded number of packets.
pub fn fuzz_packets(data: &[u8]) {
    let mut choices = Choices(data);
    let [at_box, node, stranger]: [IpAddr; 3] = [[10, 0, 0, 9].into(), [10, 0, 0, 1].into(), [10, 0, 0, 7].into()];
    let config = Config { address: at_box, limits: LIMITS, seed: choices.byte().into() };
    let mut steer = if choices.chance() { Steer::with_layout(config, Box::new(AnyNode)) } else { Steer::new(config) };
    let (node_side, first_psn) = steer.node_side();
    steer.attach(NodeEnd { qpn: Qpn::new(17), ..NodeEnd::at(node, PathMtu::Mtu256) }).expect("the node takes READs");
    let region = Region {
        rkey: RKey::new(1),
        node_rkey: RKey::new(2),
        address: 0x1000,
        length: 0x1000,
        access: Access::all(),
        exclusive: choices.chance(),
    };
    steer.add_region(region).expect("there is room for a region");
    let mut peers = vec![(node, node_side, first_psn)];
    for index in 0..3 {
        let end = ClientEnd {
            address: [10, 0, 0, 2 + index].into(),
            qpn: Qpn::new(99),
            first_psn: Psn::new(0),
            path_mtu: PathMtu::Mtu256,
        };
        let qpn = steer.connect(end).expect("there is room for three clients");
        peers.push((end.address, qpn, end.first_psn));
    }
    let mut now_ns = 0;
    while !choices.is_empty() {
        let (address, qpn, psn) = &mut peers[choices.below(4)];
        let length = BTH_LEN + choices.below(320);
        let mut packet = choices.bytes(length);
        if packet.len() >= BTH_LEN && choices.below(8) > 0 {
            let opcode = Opcode::KNOWN[choices.below(Opcode::KNOWN.len())];
            packet.resize(packet.len().max(BTH_LEN + opcode.extension_len()), 0);
            let mut bth = BthPacket::new_unchecked(&mut packet[..]);
            bth.set_opcode(opcode);
            bth.set_version(0);
            bth.set_dest_qpn(*qpn);
            // Use the next PSN in most cases, and otherwise a PSN close to it.
            let offset = choices.below(16) as u32;
            bth.set_psn(if offset > 12 { psn.add(offset).sub(14) } else { *psn });
            *psn = if offset > 12 { *psn } else { psn.next() };
            if opcode.has_reth() || opcode.has_atomic_eth() {
                let payload = packet.len() - BTH_LEN - opcode.extension_len();
                let mut reth = RethPacket::new_unchecked(&mut packet[BTH_LEN..BTH_LEN + RETH_LEN]);
                reth.set_virtual_address(0x1000 + (choices.short() as u64 & 0xff8));
                // In an atomic, these bytes are not a length, but the beginning of the atomic's operand.
                reth.set_dma_length(if choices.chance() { payload as u32 } else { choices.short() as u32 });
                reth.set_rkey(RKey::new(1));
            }
        }
        let src = if choices.below(16) == 0 { stranger } else { *address };
        let dst = if choices.below(16) == 0 { stranger } else { at_box };
        let traffic_class = choices.byte();
        let outer = Outer { src, dst, traffic_class, hop_limit: 64, identification: None, dont_fragment: None };
        now_ns += choices.byte() as u64 * 10_000;
        steer.handle_packet(now_ns, &outer, &packet);
        if steer.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            steer.handle_timeout(now_ns);
        }
        let mut bytes = 0;
        let sent = steer.poll_transmit(|_, packet| bytes += packet.len());
        // One packet causes at most two transmissions of all packets in the window, and one more packet for each
        // client.
        assert!(sent <= 256 && bytes <= 64 << 10, "one packet made {sent} packets of {bytes} bytes");
        let held = steer.held();
        assert!(held.bytes <= LIMITS.held_bytes, "{held:?}");
        assert!(held.waiting + held.in_flight <= 3 * (LIMITS.client_requests + 128), "{held:?}");
    }
    // Disconnected clients must leave no state behind.
    for (_, qpn, _) in &peers[1..] {
        assert!(steer.disconnect(*qpn), "the client was connected");
    }
    steer.attach(NodeEnd::at(node, PathMtu::Mtu256)).expect("the node takes READs");
    assert_eq!(steer.held(), doorbell_steer::Held::default());
}
