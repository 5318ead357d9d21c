//! Clients, box and node over UDP on the loopback interface, all in one process. The test captures the packets on the
//! box's link, and writes the expected contents to a file next to the capture. `cargo xtask test` compares this file
//! with the contents that other programs decode from the capture.
//!
//! These tests have a process of their own. The simulations of the other tests use all processors, so a packet of these
//! tests could arrive after its early timeout. The retransmission would then be in the capture.

mod common;

use std::fmt::Write as _;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use common::memory::Block;
use common::world::{KEY, Patience, steps};
use doorbell_fabric::{Acks, BindRequest, Driver as RnicDriver, Pcap, UdpLink, bind};
use doorbell_rnic::{CompletionQueue, Config as RnicConfig, Region as RnicRegion, Rnic};
use doorbell_steer::{ClientEnd, Config, Driver, NodeEnd, Region, Steer};
use doorbell_verbs_core::{
    Access, Completion, CqId, Payload, PdId, QpCapacities, QpInit, QpKind, SendFlags, SendOperation, SendRequest, Sge,
    Status,
};
use doorbell_wire::{Opcode, PathMtu, Psn, Qpn, ROCE_UDP_PORT};

const MTU: PathMtu = PathMtu::Mtu1024;

struct End {
    driver: RnicDriver<UdpLink>,
    address: IpAddr,
    pd: PdId,
    cq: CqId,
    queue: Arc<CompletionQueue>,
    region: Arc<RnicRegion>,
    // The memory must be dropped after the driver, which has registered the memory as a region.
    memory: Block,
}

fn link() -> UdpLink {
    bind(BindRequest::default()).expect("a loopback address is free")
}

impl End {
    fn new(seed: u8) -> Self {
        let link = link();
        let address = link.local_address();
        let receive_buffer_bytes = link.receive_buffer_bytes() as u64;
        let config = RnicConfig { address, active_mtu: MTU, receive_buffer_bytes, seed: [seed; 32] };
        let mut rnic = Rnic::new(config, None);
        let pd = rnic.create_pd();
        let memory = Block::new(64 << 10);
        // SAFETY: the block lives as long as the device, and no reference to it is made.
        let region = unsafe { rnic.register(pd, memory.base(), memory.len(), memory.address(), Access::all(), None) }
            .expect("a new device has room for a region");
        let (cq, queue) = rnic.create_cq(256, None).expect("a new device has room for a queue");
        Self { driver: RnicDriver::new(rnic, link, ROCE_UDP_PORT), address, pd, cq, queue, region, memory }
    }

    fn create_qp(&mut self) -> Qpn {
        let capacities =
            QpCapacities { max_send_wr: 64, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (pd, send_cq, recv_cq) = (self.pd, self.cq, self.cq);
        let init = QpInit { kind: QpKind::Rc, pd, send_cq, recv_cq, srq: None, capacities, signal_all: true };
        self.driver.rnic_mut().create_qp(init).expect("the capacities are within the device's limits")
    }

    fn bring_up(&mut self, qpn: Qpn, peer: (IpAddr, Qpn, Psn), send_psn: Psn) {
        for step in steps(MTU, peer, send_psn, [16, 16], Patience { timeout: 18, retry_count: 7 }) {
            self.driver.rnic_mut().modify_qp(qpn, &step).expect("the transition is in the table");
        }
    }
}

struct Set {
    node: End,
    clients: Vec<(End, Qpn, Qpn, Psn)>,
    at_box: Driver<Pcap<UdpLink>>,
    node_qpn: Qpn,
    box_qpn: Qpn,
    node_psn: Psn,
    start: Instant,
}

impl Set {
    fn new(clients: usize, capture: &Path) -> Self {
        let link = link();
        let box_address = link.local_address();
        let file = File::create(capture).expect("a writable directory");
        let clock = |_| SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let link = Pcap::new(link, box_address, ROCE_UDP_PORT, file, clock).expect("a writable file");
        let steer = Steer::new(Config { seed: 5, ..Config::at(box_address) });
        let mut at_box = Driver::new(steer, link, ROCE_UDP_PORT);
        let mut node = End::new(1);
        let node_qpn = node.create_qp();
        let (box_qpn, node_psn) = at_box.steer().node_side();
        node.bring_up(node_qpn, (box_address, box_qpn, node_psn), Psn::new(0));
        // The timeout is long, so that the box does not give up the node on a busy machine.
        let end = NodeEnd { qpn: node_qpn, timeout_ns: 200_000_000, ..NodeEnd::at(node.address, MTU) };
        at_box.steer_mut().attach(end).expect("the node takes READs");
        let region = Region {
            rkey: KEY,
            node_rkey: node.region.rkey(),
            address: node.memory.address(),
            length: node.memory.len() as u64,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            exclusive: true,
        };
        at_box.steer_mut().add_region(region).expect("there is room for a region");
        let clients = (0..clients)
            .map(|at| {
                let mut end = End::new(2 + at as u8);
                let (qpn, first_psn) = (end.create_qp(), Psn::new(100 * (at as u32 + 1)));
                let client = ClientEnd { address: end.address, qpn, first_psn, path_mtu: MTU };
                let peer = at_box.steer_mut().connect(client).expect("there is room for a client");
                end.bring_up(qpn, (box_address, peer, Psn::new(0)), first_psn);
                (end, qpn, peer, first_psn)
            })
            .collect();
        Self { node, clients, at_box, node_qpn, box_qpn, node_psn, start: Instant::now() }
    }

    fn pump(&mut self) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        self.at_box.pump(now_ns).expect("the box's socket works");
        for end in self.clients.iter_mut().map(|client| &mut client.0).chain([&mut self.node]) {
            end.driver.pump(now_ns, Acks::Now).expect("the socket works");
        }
    }

    fn post(&mut self, at: usize, operation: SendOperation, offset: usize, length: usize) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let (end, qpn, ..) = &mut self.clients[at];
        let (address, lkey) = (end.memory.address() + offset as u64, end.region.lkey());
        let sges = [Sge { address, length: length as u32, lkey }];
        let payload = Payload::Sges(&sges);
        let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload, destination: None };
        end.driver.rnic_mut().post_send(now_ns, *qpn, &[request]).expect("there is room in the queue");
    }

    /// Pumps all drivers until `count` requests of a client have succeeded.
    fn wait(&mut self, at: usize, mut count: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while count > 0 {
            assert!(Instant::now() < until, "the requests of client {at} did not complete");
            self.pump();
            let mut completions = [Completion::default(); 64];
            let found = self.clients[at].0.queue.poll(&mut completions).expect("the queue is deep enough");
            for completion in &completions[..found] {
                assert_eq!(completion.status, Status::Success);
            }
            count -= found;
        }
    }
}

fn capture(name: &str) -> (PathBuf, Option<PathBuf>) {
    let (directory, own) = match std::env::var_os("DOORBELL_PCAP_DIR") {
        Some(directory) => (PathBuf::from(directory), None),
        None => {
            let own = std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
            (own.clone(), Some(own))
        }
    };
    std::fs::create_dir_all(&directory).expect("a writable directory");
    (directory.join(format!("{name}.pcap")), own)
}

#[test]
fn other_programs_accept_packets_rewritten_by_a_udp_box() {
    let (path, own) = capture("steer-box");
    let mut set = Set::new(1, &path);
    let (remote_address, rkey) = (set.node.memory.address(), KEY);
    set.clients[0].0.memory.write(0, &[7; 1500]);
    let cas = |compare, swap| SendOperation::CompareSwap { remote_address: remote_address + 8, rkey, compare, swap };
    let node_rkey = set.node.region.rkey().get();
    let (_, qpn, peer, mut psn) = set.clients[0];
    let (node_qpn, box_qpn, mut node_psn) = (set.node_qpn.get(), set.box_qpn.get(), set.node_psn);
    let mut expected = format!("requester {}\n", set.clients[0].0.address);
    let mut expect = |to_box: &[(Opcode, &str)],
                      to_node: &[(Opcode, String)],
                      from_node: &[Opcode],
                      to_client: &[Opcode]| {
        let first = (psn, node_psn);
        for (opcode, more) in to_box {
            let _ = writeln!(expected, "> opcode={} psn={} dqpn={} {more}", opcode.0, psn.get(), peer.get());
            psn = psn.next();
        }
        for (opcode, more) in to_node {
            let _ = writeln!(expected, "< opcode={} psn={} dqpn={node_qpn} {more}", opcode.0, node_psn.get());
            node_psn = node_psn.next();
        }
        for (index, opcode) in from_node.iter().enumerate() {
            let _ = writeln!(expected, "< opcode={} psn={} dqpn={box_qpn}", opcode.0, first.1.add(index as u32).get());
        }
        for (index, opcode) in to_client.iter().enumerate() {
            let _ =
                writeln!(expected, "< opcode={} psn={} dqpn={}", opcode.0, first.0.add(index as u32).get(), qpn.get());
        }
    };
    let own_key = format!("rkey={}", KEY.get());
    let to_node = format!("rkey={node_rkey}");
    expect(
        &[(Opcode::RC_WRITE_FIRST, own_key.as_str()), (Opcode::RC_WRITE_LAST, "")],
        &[(Opcode::RC_WRITE_FIRST, to_node.clone()), (Opcode::RC_WRITE_LAST, String::new())],
        &[],
        &[],
    );
    expect(
        &[(Opcode::RC_COMPARE_SWAP, "")],
        &[(Opcode::RC_COMPARE_SWAP, String::new())],
        &[Opcode::RC_ATOMIC_ACKNOWLEDGE],
        &[Opcode::RC_ATOMIC_ACKNOWLEDGE],
    );
    expect(
        &[(Opcode::RC_COMPARE_SWAP, "")],
        &[(Opcode::RC_WRITE_ONLY, format!("{to_node} dmalen=8"))],
        &[],
        &[Opcode::RC_ATOMIC_ACKNOWLEDGE],
    );
    // The response is a single packet. With a longer response, one packet may leave the box before the next one
    // arrives, so the order in the capture would vary.
    let response = [Opcode::RC_READ_RESPONSE_ONLY];
    expect(&[(Opcode::RC_READ_REQUEST, own_key.as_str())], &[(Opcode::RC_READ_REQUEST, to_node)], &response, &response);
    set.post(0, SendOperation::Write { remote_address, rkey }, 0, 1500);
    set.wait(0, 1);
    assert_eq!(set.node.memory.read(0, 1500), [7; 1500]);
    let seven = u64::from_ne_bytes([7; 8]);
    for (compare, swap) in [(seven, 1), (1, 2)] {
        set.post(0, cas(compare, swap), 4096, 8);
        set.wait(0, 1);
        assert_eq!(set.clients[0].0.memory.word(4096), compare);
        assert_eq!(set.node.memory.word(8), swap);
    }
    set.post(0, SendOperation::Read { remote_address, rkey }, 8192, 1000);
    set.wait(0, 1);
    assert_eq!(set.clients[0].0.memory.read(8192, 1000), set.node.memory.read(0, 1000));
    assert_eq!(set.at_box.steer().counters().cas_converted, 1);
    // The capture has 3 to 10 acknowledgements. The node acknowledges two WRITEs, one of which was a client's CAS. The
    // box acknowledges only the other WRITE to the client.
    let _ = writeln!(expected, "acks 3 10");
    drop(set);
    let found = std::fs::read(&path).expect("the capture").len();
    assert!(found > 1500 * 3, "the capture has only {found} bytes, so packets of one side are missing");
    std::fs::write(path.with_extension("expected"), expected).expect("a writable directory");
    if let Some(own) = own {
        std::fs::remove_dir_all(own).expect("our own directory");
    }
}

#[test]
fn clients_on_sockets_of_their_own_share_a_counter() {
    let (path, own) = capture("steer-shared");
    let own = own.unwrap_or_else(|| path.clone());
    let mut set = Set::new(3, &path);
    let (remote_address, rkey) = (set.node.memory.address(), KEY);
    for _ in 0..20 {
        for at in 0..3 {
            for place in 0..8 {
                set.post(at, SendOperation::FetchAdd { remote_address, rkey, add: 1 }, place * 8, 8);
            }
        }
        for at in 0..3 {
            set.wait(at, 8);
        }
    }
    assert_eq!(set.node.memory.word(0), 3 * 20 * 8, "an addition did not happen exactly once");
    assert_eq!(set.at_box.counters().damaged, 0);
    drop(set);
    // The contents of this capture depend on the machine, so `cargo xtask test` cannot check it. Remove its files.
    if own.is_dir() {
        std::fs::remove_dir_all(own).expect("our own directory");
    } else {
        std::fs::remove_file(path).expect("our own capture");
    }
}
