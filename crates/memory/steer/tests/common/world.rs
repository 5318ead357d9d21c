//! RNICs and a box on one virtual clock, and the network between RNICs and box.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use doorbell_rnic::{Budget, CompletionQueue, Config, Filter, Region as RnicRegion, Rnic, TransmitBatch};
use doorbell_steer::{ClientEnd, NodeEnd, Region, Steer};
use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{
    Access, Completion, CqId, Payload, PdId, QpAttributes, QpCapacities, QpInit, QpKind, SendFlags, SendOperation,
    SendRequest, Sge,
};
use doorbell_wire::{BthPacket, Outer, PathMtu, Psn, Qpn, RKey};

use super::Rng;
use super::memory::Block;
use super::tally::Tally;
use super::trace::trace;

/// The remote key with which clients access the node's memory.
pub const KEY: RKey = RKey::new(0x77);

/// Index of the memory node among the devices.
pub const NODE: usize = 0;

/// Faults of the network. Rates are per mille of packets, and times are in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Link {
    pub latency_ns: u64,
    /// Maximum random additional delay, which reorders packets.
    pub jitter_ns: u64,
    pub loss: u64,
    pub duplicate: u64,
}

pub struct Device {
    pub rnic: Rnic,
    pub address: IpAddr,
    pub pd: PdId,
    pub memory: Block,
    pub region: Arc<RnicRegion>,
    pub cq: CqId,
    pub queue: Arc<CompletionQueue>,
    pub alive: bool,
}

struct Packet {
    from: IpAddr,
    to: IpAddr,
    traffic_class: u8,
    bytes: Vec<u8>,
}

pub struct World {
    pub now_ns: u64,
    pub devices: Vec<Device>,
    pub steer: Steer,
    pub mtu: PathMtu,
    /// Faults between clients and box. `node_link` has the faults between box and node.
    pub client_link: Link,
    pub node_link: Link,
    pub rng: Rng,
    pub tally: Tally,
    pub node_qpn: Qpn,
    /// The box's queue pair number for the queue pair with the node.
    pub box_qpn: Qpn,
    /// The first PSN of the client that connected last.
    pub next_psn: Psn,
    pub max_rd_atomic: u8,
    pub exclusive: bool,
    /// Rate at which routers set a congestion mark, per mille of packets.
    pub marks: u64,
    agenda: BTreeMap<(u64, u64), Packet>,
    order: u64,
    batch: TransmitBatch,
}

pub fn address_of(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 1 + index as u8).into()
}

pub fn address_of_box() -> IpAddr {
    Ipv4Addr::new(10, 0, 0, 200).into()
}

impl Device {
    fn new(index: usize, memory_bytes: usize, seed: [u8; 32]) -> Self {
        let address = address_of(index);
        let config = Config { address, active_mtu: PathMtu::Mtu4096, receive_buffer_bytes: 212_992, seed };
        let mut rnic = Rnic::new(config, None);
        let pd = rnic.create_pd();
        let memory = Block::new(memory_bytes);
        // SAFETY: the block lives as long as the device, and no reference to it is made.
        let region = unsafe { rnic.register(pd, memory.base(), memory.len(), memory.address(), Access::all(), None) }
            .expect("a new device has room for a region");
        let (cq, queue) = rnic.create_cq(4096, None).expect("a new device has room for a queue");
        Self { rnic, address, pd, memory, region, cq, queue, alive: true }
    }

    pub fn reap(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 64];
        let mut all = Vec::new();
        loop {
            let count = self.queue.poll(&mut out).expect("the queue was made deep enough");
            if count == 0 {
                return all;
            }
            all.extend_from_slice(&out[..count]);
        }
    }
}

/// Retry settings of clients.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub timeout: u8,
    pub retry_count: u8,
}

/// Returns the attributes of each transition that brings up a new RC queue pair. The peer has this address, queue pair
/// number and first PSN. `reads` is the maximum number of outstanding READs and atomics in each direction.
pub fn steps(
    mtu: PathMtu,
    peer: (IpAddr, Qpn, Psn),
    send_psn: Psn,
    reads: [u8; 2],
    patience: Patience,
) -> [QpAttributes; 3] {
    let end = ConnectionEnd {
        send_psn,
        receive_psn: peer.2,
        timeout: patience.timeout,
        retry_count: patience.retry_count,
        max_dest_rd_atomic: reads[0],
        max_rd_atomic: reads[1],
        ..ConnectionEnd::new(QpKind::Rc, (peer.0, peer.1), mtu)
    };
    end.steps()
}

impl World {
    /// Creates a world with this number of clients. The box is not attached to the node yet.
    pub fn new(seed: u64, clients: usize, node_bytes: usize, client_bytes: usize, steer: Steer, mtu: PathMtu) -> Self {
        let mut rng = Rng::new(seed);
        let bytes_of = |index| if index == NODE { node_bytes } else { client_bytes };
        let devices = (0..=clients).map(|index| Device::new(index, bytes_of(index), rng.bytes32())).collect();
        Self {
            now_ns: 1,
            devices,
            steer,
            mtu,
            client_link: Link { latency_ns: 2_000, ..Link::default() },
            node_link: Link { latency_ns: 2_000, ..Link::default() },
            rng,
            tally: Tally::default(),
            node_qpn: Qpn::new(0),
            box_qpn: Qpn::new(0),
            next_psn: Psn::new(0),
            max_rd_atomic: 8,
            exclusive: false,
            marks: 0,
            agenda: BTreeMap::new(),
            order: 0,
            batch: TransmitBatch::new(1 << 16, 0),
        }
    }

    fn create_qp(&mut self, index: usize) -> Qpn {
        let device = &mut self.devices[index];
        let capacities =
            QpCapacities { max_send_wr: 64, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 1, max_inline: 0 };
        let init = QpInit {
            kind: QpKind::Rc,
            pd: device.pd,
            send_cq: device.cq,
            recv_cq: device.cq,
            srq: None,
            capacities,
            signal_all: false,
        };
        device.rnic.create_qp(init).expect("the capacities are within the device's limits")
    }

    fn bring_up(&mut self, index: usize, qpn: Qpn, peer: (IpAddr, Qpn, Psn), send_psn: Psn, patience: Patience) {
        for step in steps(self.mtu, peer, send_psn, [self.max_rd_atomic, 8], patience) {
            self.devices[index].rnic.modify_qp(qpn, &step).expect("the transition is in the table");
        }
    }

    /// Connects the box with the node, and adds the node's memory as a region. Destroys the node's previous queue pair,
    /// so that late packets cannot access the memory.
    pub fn attach(&mut self) {
        if self.node_qpn != Qpn::new(0) {
            self.devices[NODE].rnic.destroy_qp(self.node_qpn).expect("the node has this queue pair");
        }
        let qpn = self.create_qp(NODE);
        self.node_qpn = qpn;
        let (own_qpn, first_psn) = self.steer.node_side();
        self.box_qpn = own_qpn;
        self.bring_up(
            NODE,
            qpn,
            (address_of_box(), own_qpn, first_psn),
            Psn::new(0),
            Patience { timeout: 14, retry_count: 7 },
        );
        let end = NodeEnd {
            qpn,
            max_rd_atomic: self.max_rd_atomic,
            timeout_ns: 200_000,
            ..NodeEnd::at(address_of(NODE), self.mtu)
        };
        self.steer.attach(end).expect("the node takes READs");
        let node = &self.devices[NODE];
        let region = Region {
            rkey: KEY,
            node_rkey: node.region.rkey(),
            address: node.memory.address(),
            length: node.memory.len() as u64,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            exclusive: self.exclusive,
        };
        self.steer.remove_region(KEY);
        self.steer.add_region(region).expect("there is room for a region");
    }

    /// Connects a client with the box. Returns the client's queue pair number and the box's queue pair number for the
    /// client.
    pub fn connect(&mut self, index: usize, patience: Patience) -> (Qpn, Qpn) {
        let qpn = self.create_qp(index);
        let first_psn = Psn::new(self.rng.next() as u32);
        self.next_psn = first_psn;
        let end = ClientEnd { address: address_of(index), qpn, first_psn, path_mtu: self.mtu };
        let peer = self.steer.connect(end).expect("there is room for a client");
        self.bring_up(index, qpn, (address_of_box(), peer, Psn::new(0)), first_psn, patience);
        (qpn, peer)
    }

    /// Connects a client directly with the node. Returns the client's queue pair number.
    pub fn connect_past_box(&mut self, index: usize, patience: Patience) -> Qpn {
        let (own, other) = (self.create_qp(index), self.create_qp(NODE));
        let psn = Psn::new(self.rng.next() as u32);
        self.bring_up(NODE, other, (address_of(index), own, psn), psn, patience);
        self.bring_up(index, own, (address_of(NODE), other, psn), psn, patience);
        own
    }

    pub fn node_address(&self, offset: usize) -> u64 {
        self.devices[NODE].memory.address() + offset as u64
    }

    /// Posts a work request with a buffer of `length` bytes at `offset` of the client's memory.
    pub fn post(&mut self, index: usize, qpn: Qpn, wr_id: u64, operation: SendOperation, offset: usize, length: usize) {
        let now_ns = self.now_ns;
        let device = &mut self.devices[index];
        let address = device.memory.address() + offset as u64;
        let sges = [Sge { address, length: length as u32, lkey: device.region.lkey() }];
        let request = SendRequest {
            wr_id,
            operation,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            destination: None,
        };
        device.rnic.post_send(now_ns, qpn, &[request]).expect("there is room in the queue");
    }

    fn outer(&self, packet: &Packet) -> Outer {
        Outer {
            src: packet.from,
            dst: packet.to,
            traffic_class: packet.traffic_class,
            hop_limit: 64,
            identification: Some(0),
            dont_fragment: Some(true),
        }
    }

    fn travel(&mut self, from: IpAddr, to: IpAddr, traffic_class: u8, bytes: &[u8]) {
        let node = address_of(NODE);
        let link = if from == node || to == node { self.node_link.clone() } else { self.client_link.clone() };
        trace(|| {
            let bth = BthPacket::new_unchecked(bytes);
            let (opcode, psn, to_qpn) = (bth.opcode(), bth.psn().get(), bth.dest_qpn().get());
            let last = |address: IpAddr| address.to_string().rsplit('.').next().map(str::to_owned).unwrap_or_default();
            let (from, to) = (last(from), last(to));
            let aeth = match opcode.has_aeth() {
                true => format!(
                    " syndrome {:#x} msn {}",
                    bytes[12],
                    u32::from_be_bytes([0, bytes[13], bytes[14], bytes[15]])
                ),
                false => String::new(),
            };
            format!("{:>10} .{from} -> .{to}: {opcode} psn {psn:#x} to QP {to_qpn:#x}{aeth}", self.now_ns)
        });
        if self.rng.chance(link.loss) {
            trace(|| format!("{:>10} lost", self.now_ns));
            return self.tally.hit("fault: packet lost");
        }
        let copies = if self.rng.chance(link.duplicate) { 2 } else { 1 };
        self.tally.add("fault: packet duplicated", copies - 1);
        let traffic_class = if self.rng.chance(self.marks) { traffic_class | 3 } else { traffic_class };
        for _ in 0..copies {
            let at_ns = self.now_ns + link.latency_ns + self.rng.below(link.jitter_ns + 1);
            self.order += 1;
            let packet = Packet { from, to, traffic_class, bytes: bytes.to_vec() };
            self.agenda.insert((at_ns, self.order), packet);
        }
    }

    /// Sends the pending packets of all devices into the network.
    pub fn transmit(&mut self) {
        for index in 0..self.devices.len() {
            if !self.devices[index].alive {
                continue;
            }
            if self.rng.chance(500) {
                self.devices[index].rnic.release_acks();
            }
            let mut batch = std::mem::replace(&mut self.batch, TransmitBatch::new(0, 0));
            loop {
                batch.clear();
                let device = &mut self.devices[index];
                let added = device.rnic.poll_transmit(self.now_ns, Budget::UNLIMITED, Filter::All, &mut batch);
                if added == 0 {
                    device.rnic.transmitted();
                    break;
                }
                let from = device.address;
                for run in batch.runs() {
                    for segment in run.segments() {
                        self.travel(from, run.path.destination, run.path.traffic_class, &batch.bytes()[segment]);
                    }
                }
            }
            self.batch = batch;
        }
        let mut packets = Vec::new();
        self.steer.poll_transmit(|path, bytes| packets.push((*path, bytes.to_vec())));
        for (path, bytes) in packets {
            assert_eq!(bytes.len() % 4, 0, "packets are padded");
            self.travel(path.source, path.destination, path.traffic_class, &bytes);
        }
    }

    pub fn next_event_ns(&self) -> Option<u64> {
        let timeouts =
            self.devices.iter().filter(|device| device.alive).filter_map(|device| device.rnic.poll_timeout());
        let agenda = self.agenda.keys().next().map(|(at_ns, _)| *at_ns);
        timeouts.chain(self.steer.poll_timeout()).chain(agenda).min()
    }

    /// Sends all pending packets, and advances the clock to the next event. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let Some(next_ns) = self.next_event_ns() else { return false };
        self.now_ns = self.now_ns.max(next_ns);
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= self.now_ns
        {
            let packet = entry.remove();
            let outer = self.outer(&packet);
            if packet.to == address_of_box() {
                self.steer.handle_packet(self.now_ns, &outer, &packet.bytes);
            } else if let Some(device) = self.devices.iter_mut().find(|device| device.address == packet.to)
                && device.alive
            {
                device.rnic.handle_packet(self.now_ns, &outer, &packet.bytes);
            }
        }
        for device in self.devices.iter_mut().filter(|device| device.alive) {
            if device.rnic.poll_timeout().is_some_and(|at_ns| at_ns <= self.now_ns) {
                device.rnic.handle_timeout(self.now_ns);
            }
        }
        if self.steer.poll_timeout().is_some_and(|at_ns| at_ns <= self.now_ns) {
            self.steer.handle_timeout(self.now_ns);
        }
        true
    }
}
