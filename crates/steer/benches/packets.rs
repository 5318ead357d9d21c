//! CPU time per packet of the box: WRITEs of 128 bytes from several clients, their way to the node, and the
//! acknowledgements back; and READs. Every packet's ICRC is checked on the way in and made on the way out.

use std::net::IpAddr;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell_steer::{ClientEnd, Config, NodeEnd, Region, Steer};
use doorbell_verbs_core::Access;
use doorbell_wire::{
    AETH_LEN, AethRepr, BTH_LEN, BthPacket, BthRepr, Check, Flow, ICRC_LEN, Opcode, Outer, PathMtu, Psn, Qpn, RETH_LEN,
    RKey, ROCE_UDP_PORT, RethRepr, Syndrome,
};

const CLIENTS: usize = 4;
/// Requests of each client between two acknowledgements of the node.
const BURST: u32 = 8;
const BYTES: usize = 128;
const RKEY: RKey = RKey::new(1);
const BASE: u64 = 0x10_0000;

struct Bench {
    steer: Steer,
    address: IpAddr,
    node: IpAddr,
    clients: Vec<(IpAddr, Qpn, Psn)>,
    node_side: Qpn,
    node_psn: Psn,
    now_ns: u64,
    out: u64,
}

fn outer(src: IpAddr, dst: IpAddr) -> Outer {
    Outer { src, dst, traffic_class: 0, hop_limit: 64, identification: None, dont_fragment: None }
}

impl Bench {
    fn new() -> Self {
        let [address, node]: [IpAddr; 2] = [[10, 0, 0, 9].into(), [10, 0, 0, 1].into()];
        let mut steer = Steer::new(Config::at(address));
        let (node_side, node_psn) = steer.node_side();
        steer.attach(NodeEnd { qpn: Qpn::new(17), ..NodeEnd::at(node, PathMtu::Mtu1024) }).unwrap();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region =
            Region { rkey: RKEY, node_rkey: RKey::new(2), address: BASE, length: 1 << 20, access, exclusive: true };
        steer.add_region(region).unwrap();
        let clients = (0..CLIENTS)
            .map(|index| {
                let address = [10, 0, 1, index as u8].into();
                let qpn = Qpn::new(40 + index as u32);
                let end = ClientEnd { address, qpn, first_psn: Psn::new(0), path_mtu: PathMtu::Mtu1024 };
                (address, steer.connect(end).unwrap(), Psn::new(0))
            })
            .collect();
        Self { steer, address, node, clients, node_side, node_psn, now_ns: 0, out: 0 }
    }

    /// A packet arrives, as a driver takes it: its ICRC is checked.
    fn arrive(&mut self, from: IpAddr, packet: &mut Vec<u8>) {
        let flow = Flow::new(from, self.address, ROCE_UDP_PORT, ROCE_UDP_PORT);
        let icrc = flow.icrc(0, true, packet).to_le_bytes();
        packet.extend_from_slice(&icrc);
        assert!(matches!(flow.check(0, packet), Check::Valid { .. }));
        packet.truncate(packet.len() - ICRC_LEN);
        self.now_ns += 100;
        self.steer.handle_packet(self.now_ns, &outer(from, self.address), packet);
    }

    /// What follows leaves, with an ICRC.
    fn leave(&mut self, flow: &Flow) -> usize {
        let mut sum = 0;
        let count = self.steer.poll_transmit(|_, packet| sum ^= u64::from(flow.icrc(0, true, packet)));
        self.out ^= sum;
        count
    }

    /// Each client writes or reads some times, and the node answers.
    fn round(&mut self, opcode: Opcode) -> usize {
        let flow = Flow::new(self.address, self.node, ROCE_UDP_PORT, ROCE_UDP_PORT);
        let mut packets = 0;
        let is_read = opcode == Opcode::RC_READ_REQUEST;
        let mut packet = Vec::with_capacity(256);
        for burst in 0..BURST {
            for at in 0..CLIENTS {
                let (from, dest_qpn, psn) = self.clients[at];
                let bth = BthRepr { opcode, dest_qpn, psn, ack_request: burst + 1 == BURST, ..BthRepr::default() };
                let virtual_address = BASE + u64::from(psn.get() % 4096) * BYTES as u64;
                let reth = RethRepr { virtual_address, rkey: RKEY, dma_length: BYTES as u32 };
                packet.clear();
                packet.resize(BTH_LEN + RETH_LEN, 0);
                bth.emit(&mut BthPacket::new_unchecked(&mut packet[..]));
                reth.write(packet[BTH_LEN..].first_chunk_mut().unwrap());
                if !is_read {
                    packet.resize(BTH_LEN + RETH_LEN + BYTES, 0x5a);
                }
                self.arrive(from, &mut packet);
                packets += 1 + self.leave(&flow);
                self.clients[at].2 = psn.next();
                if is_read {
                    packets += self.answer(&mut packet, Opcode::RC_READ_RESPONSE_ONLY, BYTES, &flow);
                }
            }
            if !is_read && burst % 2 == 1 {
                self.node_psn = self.node_psn.add(2 * CLIENTS as u32 - 1);
                packets += self.answer(&mut packet, Opcode::RC_ACKNOWLEDGE, 0, &flow);
            }
        }
        packets
    }

    /// The node answers its next request.
    fn answer(&mut self, packet: &mut Vec<u8>, opcode: Opcode, bytes: usize, flow: &Flow) -> usize {
        let bth = BthRepr { opcode, dest_qpn: self.node_side, psn: self.node_psn, ..BthRepr::default() };
        let aeth = AethRepr { syndrome: Syndrome::ACK_UNLIMITED, ..AethRepr::default() };
        self.node_psn = self.node_psn.next();
        packet.clear();
        packet.resize(BTH_LEN + AETH_LEN + bytes, 0x5a);
        bth.emit(&mut BthPacket::new_unchecked(&mut packet[..]));
        aeth.write(packet[BTH_LEN..].first_chunk_mut().unwrap());
        self.arrive(self.node, packet);
        1 + self.leave(flow)
    }
}

fn packets(c: &mut Criterion) {
    let mut group = c.benchmark_group("packets through the box");
    for (name, opcode) in [("WRITE", Opcode::RC_WRITE_ONLY), ("READ", Opcode::RC_READ_REQUEST)] {
        let mut bench = Bench::new();
        let packets = bench.round(opcode);
        group.throughput(Throughput::Elements(packets as u64));
        group.bench_function(format!("{name} of {BYTES} B"), |bencher| {
            bencher.iter(|| assert_eq!(bench.round(opcode), packets, "every round is the same"));
        });
        let unexpected = bench.steer.counters().unexpected + bench.steer.counters().full;
        assert_eq!((unexpected, bench.steer.held().in_flight), (0, 0), "every request was answered");
    }
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
