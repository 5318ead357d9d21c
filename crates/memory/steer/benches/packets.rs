//! CPU time per packet of the box, the middlebox between clients and a memory node. The box forwards clients' requests
//! to the memory node, and the node's answers to the clients.
//!
//! The requests are WRITEs and READs of 128 bytes, CASes that become WRITEs, and steered READs and puts of a store's
//! client. A steered request names an old node of the store, and the box sends it to the newest node of the same key. A
//! put is a WRITE of a new node of 128 bytes and a CAS on an old node. The box sends this CAS to the newest node as a
//! WRITE. The time includes the ICRC check of each arriving packet, and the computation of the ICRC of each departing
//! packet.

use std::net::IpAddr;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell_steer::{ClientEnd, Config, Layout, NodeEnd, Region, Steer};
use doorbell_verbs_core::Access;
use doorbell_wire::{
    AETH_LEN, ATOMIC_ETH_LEN, AethRepr, AtomicEthRepr, BTH_LEN, BthPacket, BthRepr, Check, Flow, ICRC_LEN, Opcode,
    Outer, PathMtu, Psn, Qpn, RETH_LEN, RKey, ROCE_UDP_PORT, RethRepr, Syndrome,
};

const CLIENTS: usize = 4;
/// Number of turns of each client in a round.
const TURNS: u64 = 8;
const BYTES: usize = 128;
const RKEY: RKey = RKey::new(1);
const BASE: u64 = 0x10_0000;
/// Number of the store's nodes for the key of each client. The client always names the first node, and uses the other
/// nodes in turn for its puts.
const NODES: u64 = 64;

const TAIL: u64 = 1 << 62;
const LINK: u64 = 2 << 62;
const KIND: u64 = 3 << 62;

/// Layout of a store's nodes. A node begins with the word that names the next node or marks the last one. The node's
/// key follows.
#[derive(Debug)]
struct Chains;

impl Layout for Chains {
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
        word & KIND == TAIL
    }

    fn next(&self, word: u64) -> Option<u64> {
        (word & KIND == LINK).then_some(word & !KIND)
    }
}

/// Kind of request that each client sends in its turn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    Write,
    Read,
    Swap,
    SteeredPut,
    SteeredRead,
}

struct Client {
    address: IpAddr,
    /// Queue pair number that the box uses for this client.
    qpn: Qpn,
    psn: Psn,
    /// Number of turns so far.
    turns: u64,
}

struct Bench {
    steer: Steer,
    address: IpAddr,
    node: IpAddr,
    clients: Vec<Client>,
    node_side: Qpn,
    node_psn: Psn,
    now_ns: u64,
    packet: Vec<u8>,
    packets: usize,
    out: u64,
}

fn outer(src: IpAddr, dst: IpAddr) -> Outer {
    Outer { src, dst, traffic_class: 0, hop_limit: 64, identification: None, dont_fragment: None }
}

/// Returns the word that marks the last node of a chain. The word differs for each `version`.
fn tail(version: u64) -> u64 {
    TAIL | version
}

/// Returns the address of store node `number` of a client's key.
fn node_of(client: usize, number: u64) -> u64 {
    BASE + (client as u64 * NODES + number) * BYTES as u64
}

impl Bench {
    fn new(turn: Turn) -> Self {
        let [address, node]: [IpAddr; 2] = [[10, 0, 0, 9].into(), [10, 0, 0, 1].into()];
        let is_store = matches!(turn, Turn::SteeredPut | Turn::SteeredRead);
        let config = Config::at(address);
        let mut steer = if is_store { Steer::with_layout(config, Box::new(Chains)) } else { Steer::new(config) };
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
                Client { address, qpn: steer.connect(end).unwrap(), psn: Psn::new(0), turns: 0 }
            })
            .collect();
        let mut bench = Self {
            steer,
            address,
            node,
            clients,
            node_side,
            node_psn,
            now_ns: 0,
            packet: Vec::with_capacity(256),
            packets: 0,
            out: 0,
        };
        for client in 0..CLIENTS {
            if is_store {
                // Build a chain of two nodes. All later requests of the client have the address of the first node.
                bench.write_node(client, 0, 0);
                bench.put(client);
            } else if turn == Turn::Swap {
                bench.write(client, node_of(client, 0), &[0; 8]);
            }
            bench.acknowledge();
        }
        bench
    }

    /// Receives a packet with a check of its ICRC, as a driver does.
    fn arrive(&mut self, from: IpAddr) {
        let flow = Flow::new(from, self.address, ROCE_UDP_PORT, ROCE_UDP_PORT);
        let icrc = flow.icrc(0, true, &self.packet).to_le_bytes();
        self.packet.extend_from_slice(&icrc);
        assert!(matches!(flow.check(0, &self.packet), Check::Valid { .. }));
        self.packet.truncate(self.packet.len() - ICRC_LEN);
        self.now_ns += 100;
        self.steer.handle_packet(self.now_ns, &outer(from, self.address), &self.packet);
        // Compute the ICRC of each resulting packet.
        let flow = Flow::new(self.address, self.node, ROCE_UDP_PORT, ROCE_UDP_PORT);
        let mut sum = 0;
        let count = self.steer.poll_transmit(|_, packet| sum ^= u64::from(flow.icrc(0, true, packet)));
        self.out ^= sum;
        self.packets += 1 + count;
    }

    fn request(&mut self, client: usize, opcode: Opcode, header: &[u8], payload: &[u8]) {
        let Client { address, qpn, psn, .. } = self.clients[client];
        let bth = BthRepr { opcode, dest_qpn: qpn, psn, ack_request: true, ..BthRepr::default() };
        self.packet.clear();
        self.packet.resize(BTH_LEN, 0);
        bth.emit(&mut BthPacket::new_unchecked(&mut self.packet[..]));
        self.packet.extend_from_slice(header);
        self.packet.extend_from_slice(payload);
        self.clients[client].psn = psn.next();
        self.arrive(address);
    }

    fn write(&mut self, client: usize, virtual_address: u64, payload: &[u8]) {
        let mut header = [0; RETH_LEN];
        RethRepr { virtual_address, rkey: RKEY, dma_length: payload.len() as u32 }.write(&mut header);
        self.request(client, Opcode::RC_WRITE_ONLY, &header, payload);
        self.node_psn = self.node_psn.next();
    }

    fn read(&mut self, client: usize, virtual_address: u64) {
        let mut header = [0; RETH_LEN];
        RethRepr { virtual_address, rkey: RKEY, dma_length: BYTES as u32 }.write(&mut header);
        self.request(client, Opcode::RC_READ_REQUEST, &header, &[]);
        self.answer(Opcode::RC_READ_RESPONSE_ONLY, self.node_psn, BYTES);
        self.node_psn = self.node_psn.next();
    }

    /// Sends a CAS, which the box forwards to the node as a WRITE.
    fn swap(&mut self, client: usize, virtual_address: u64, compare: u64, swap: u64) {
        let mut header = [0; ATOMIC_ETH_LEN];
        AtomicEthRepr { virtual_address, rkey: RKEY, swap_or_add: swap, compare }.write(&mut header);
        self.request(client, Opcode::RC_COMPARE_SWAP, &header, &[]);
        self.node_psn = self.node_psn.next();
    }

    fn write_node(&mut self, client: usize, number: u64, version: u64) {
        let mut node = [0x5a; BYTES];
        node[..8].copy_from_slice(&tail(version).to_le_bytes());
        node[8..16].copy_from_slice(&(client as u64).to_le_bytes());
        self.write(client, node_of(client, number), &node);
    }

    /// Appends a node to the chain of the client's key, with a CAS on the first node of the chain.
    fn put(&mut self, client: usize) {
        let turns = self.clients[client].turns;
        let number = 1 + turns % (NODES - 1);
        self.write_node(client, number, 1 + turns);
        self.swap(client, node_of(client, 0), tail(0), LINK | node_of(client, number));
        self.clients[client].turns += 1;
    }

    /// Sends the node's acknowledgement of all WRITEs.
    fn acknowledge(&mut self) {
        self.answer(Opcode::RC_ACKNOWLEDGE, self.node_psn.sub(1), 0);
    }

    fn answer(&mut self, opcode: Opcode, psn: Psn, bytes: usize) {
        let bth = BthRepr { opcode, dest_qpn: self.node_side, psn, ..BthRepr::default() };
        let aeth = AethRepr { syndrome: Syndrome::ACK_UNLIMITED, ..AethRepr::default() };
        self.packet.clear();
        self.packet.resize(BTH_LEN + AETH_LEN + bytes, 0x5a);
        bth.emit(&mut BthPacket::new_unchecked(&mut self.packet[..]));
        aeth.write(self.packet[BTH_LEN..].first_chunk_mut().unwrap());
        self.arrive(self.node);
    }

    /// Runs all turns of each client. Returns the number of packets that the box received or sent.
    fn round(&mut self, turn: Turn) -> usize {
        let before = self.packets;
        for number in 0..TURNS {
            for client in 0..CLIENTS {
                match turn {
                    Turn::Write => self.write(client, node_of(client, number), &[0x5a; BYTES]),
                    Turn::Read => self.read(client, node_of(client, number)),
                    Turn::Swap => {
                        let turns = self.clients[client].turns;
                        self.swap(client, node_of(client, 0), turns, turns + 1);
                        self.clients[client].turns += 1;
                    }
                    Turn::SteeredPut => self.put(client),
                    Turn::SteeredRead => self.read(client, node_of(client, 0)),
                }
            }
            // One acknowledgement covers two turns of all clients.
            if number % 2 == 1 && !matches!(turn, Turn::Read | Turn::SteeredRead) {
                self.acknowledge();
            }
        }
        self.packets - before
    }
}

fn packets(c: &mut Criterion) {
    let mut group = c.benchmark_group("packets through the box");
    for (name, turn) in [
        ("WRITE of 128 B", Turn::Write),
        ("READ of 128 B", Turn::Read),
        ("CAS as a WRITE", Turn::Swap),
        ("steered put of 128 B", Turn::SteeredPut),
        ("steered READ of 128 B", Turn::SteeredRead),
    ] {
        let mut bench = Bench::new(turn);
        let packets = bench.round(turn);
        group.throughput(Throughput::Elements(packets as u64));
        let before = *bench.steer.counters();
        let mut rounds = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                rounds += 1;
                assert_eq!(bench.round(turn), packets, "rounds differ in their packets");
            });
        });
        let after = bench.steer.counters();
        let requests = rounds * TURNS * CLIENTS as u64;
        let is_swap = matches!(turn, Turn::Swap | Turn::SteeredPut);
        assert_eq!(after.cas_converted - before.cas_converted, if is_swap { requests } else { 0 }, "{name}");
        assert_eq!(
            after.cas_steered - before.cas_steered,
            if turn == Turn::SteeredPut { requests } else { 0 },
            "{name}"
        );
        assert_eq!(
            after.reads_steered - before.reads_steered,
            if turn == Turn::SteeredRead { requests } else { 0 },
            "{name}"
        );
        assert_eq!(
            (after.unexpected + after.full, bench.steer.held().in_flight),
            (0, 0),
            "requests remained unanswered"
        );
    }
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
