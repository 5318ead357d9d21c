//! A middlebox inside the switch. The queue pairs of clients end at the middlebox, and one queue pair from there to the
//! memory node serves all clients.

use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_sim::{Ps, Simulation, Summary, SwitchBox, Testbed, Topology, VirtualWaiter, testbed};
use doorbell_steer::{ClientEnd, Config, Limits, NodeEnd, Region as Opened, Steer};
use doorbell_verbs::{
    Access, Completion, Cq, MemoryKind, Payload, Pd, Qp, QpCapacities, QpKind, QpOptions, Region, SendFlags,
    SendOperation, SendRequest, Status,
};
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};

const SETTINGS: RcSettings = RcSettings { timeout: 8, retry_count: 7, rnr_retry: 7, min_rnr_timer: 12 };
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
const MTU: PathMtu = PathMtu::Mtu4096;
const DEPTH: usize = 64;

/// The testbed of far memory, with equally fast accesses to memory.
fn t3() -> Testbed {
    let t3 = testbed::by_name("connectx5-100g-far").expect("a built-in testbed");
    t3.with("pcie.slow_every", "0").expect("an allowed value")
}

/// A queue pair of one host, and memory for results.
struct End {
    qp: Qp,
    cq: Cq,
    memory: Region,
    psn: Psn,
}

impl End {
    fn new(pd: &Pd, bytes: usize) -> Self {
        let device = pd.device();
        let cq = device.create_cq(DEPTH).expect("the queue or device has room");
        let capacities =
            QpCapacities { max_send_wr: DEPTH, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let options =
            QpOptions { kind: QpKind::Rc, send_cq: &cq, recv_cq: &cq, srq: None, capacities, signal_all: true };
        let qp = pd.create_qp(options).expect("the queue or device has room");
        rc::initialise(&qp, REMOTE).expect("a new queue pair");
        let memory =
            pd.allocate(bytes, REMOTE | Access::LOCAL_WRITE, MemoryKind::Plain).expect("memory can be allocated");
        Self { psn: device.random_psn(), qp, cq, memory }
    }

    fn connect(&self, gid: Ipv6Addr, qpn: Qpn, psn: Psn) {
        let attributes = self.qp.pd().device().attributes();
        let own = self.describe(attributes.gid, self.qp.qpn(), self.psn);
        rc::connect(&self.qp, &own, &self.describe(gid, qpn, psn), &SETTINGS).expect("the queue pair can be connected");
    }

    fn describe(&self, gid: Ipv6Addr, qpn: Qpn, psn: Psn) -> EndpointDescription {
        let udp_port = self.qp.pd().device().attributes().udp_port;
        EndpointDescription::one_sided(gid, qpn, psn, MTU, udp_port)
    }

    fn gid(&self) -> Ipv6Addr {
        self.qp.pd().device().attributes().gid
    }
}

fn gid_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Path from clients to the memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    Box { exclusive: bool },
}

/// A memory node on node 0, and clients on the other nodes.
struct Rig {
    simulation: Simulation<'static>,
    switch_box: Option<SwitchBox>,
    /// Ends of the memory node: one end for the middlebox, or one end per client without a middlebox.
    node: Vec<End>,
    clients: Vec<Rc<End>>,
    rkey: RKey,
}

const BYTES: usize = 4096;

fn rig(testbed: &Testbed, clients: usize, way: Way, seed: u64) -> Rig {
    let topology = Topology::Star { nodes: 1 + clients };
    let mut simulation = Simulation::new(testbed, topology, seed).expect("a simulation");
    let pd = |node: usize| simulation.device(node).create_pd().expect("a protection domain");
    let node_pd = pd(0);
    let ends: Vec<_> = (1..=clients).map(|node| Rc::new(End::new(&pd(node), BYTES))).collect();
    let Way::Box { exclusive } = way else {
        // All clients access the memory of the first end, each through its own queue pair of the memory node.
        let node: Vec<_> = ends.iter().map(|_| End::new(&node_pd, BYTES)).collect();
        for (node, client) in node.iter().zip(&ends) {
            node.connect(client.gid(), client.qp.qpn(), client.psn);
            client.connect(node.gid(), node.qp.qpn(), node.psn);
        }
        let rkey = node[0].memory.rkey();
        return Rig { simulation, switch_box: None, node, clients: ends, rkey };
    };
    let node = End::new(&node_pd, BYTES);
    // A simulation has no socket buffers that limit the bytes in flight, so the window is practically unlimited.
    let limits = Limits { window_bytes: 1 << 40, ..Limits::default() };
    let make = |address| Steer::new(Config { limits, seed, ..Config::at(address) });
    let switch_box = simulation.put_middlebox(make).expect("there is one switch");
    let gid = gid_of(switch_box.address());
    let rkey = RKey::new(0x77);
    switch_box.with(|steer| {
        let (qpn, psn) = steer.node_side();
        node.connect(gid, qpn, psn);
        let end = NodeEnd { qpn: node.qp.qpn(), ..NodeEnd::at(node.gid().to_canonical(), MTU) };
        steer.attach(end).expect("the node takes READs");
        let (address, length) = (node.memory.address(), node.memory.len() as u64);
        let region = Opened { rkey, node_rkey: node.memory.rkey(), address, length, access: REMOTE, exclusive };
        steer.add_region(region).expect("the queue or device has room");
        for client in &ends {
            let (address, qpn) = (client.gid().to_canonical(), client.qp.qpn());
            let peer = ClientEnd { address, qpn, first_psn: client.psn, path_mtu: MTU };
            let own = steer.connect(peer).expect("the queue or device has room");
            client.connect(gid, own, Psn::new(0));
        }
    });
    Rig { simulation, switch_box: Some(switch_box), node: vec![node], clients: ends, rkey }
}

impl End {
    fn post(&self, operation: SendOperation, place: usize, bytes: usize) {
        let sges = [self.memory.sge(place * 8, bytes)];
        let payload = Payload::Sges(&sges);
        let wr_id = place as u64;
        let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload, destination: None };
        self.qp.post_send(&[request]).expect("the queue or device has room");
    }

    /// Waits for completions and takes them.
    async fn complete(&self, waiter: &VirtualWaiter, out: &mut [Completion]) -> usize {
        loop {
            let count = self.cq.poll(out).expect("the queue is deep enough");
            if count > 0 {
                assert!(out[..count].iter().all(|completion| completion.status == Status::Success));
                waiter.breathe().await;
                return count;
            }
            waiter.wait(None, None).await;
        }
    }
}

/// Increments a word `times` times by CAS, and retries a CAS if another client was faster.
async fn increment(end: Rc<End>, remote_address: u64, rkey: RKey, times: usize, waiter: VirtualWaiter) {
    let (mut known, mut done) = (0, 0);
    let mut out = [Completion::default(); 4];
    while done < times {
        end.post(SendOperation::CompareSwap { remote_address, rkey, compare: known, swap: known + 1 }, 0, 8);
        end.complete(&waiter, &mut out).await;
        let found = end.memory.load_acquire_u64(0);
        done += usize::from(found == known);
        known = if found == known { known + 1 } else { found };
    }
}

/// Lets all clients increment one word, and returns its final value.
fn count_together(testbed: &Testbed, way: Way, seed: u64) -> (u64, Summary, Rig) {
    let mut rig = rig(testbed, 4, way, seed);
    let address = rig.node[0].memory.address() + 64;
    for (index, client) in rig.clients.iter().enumerate() {
        let waiter = rig.simulation.polling();
        let work = increment(Rc::clone(client), address, rig.rkey, 50, waiter);
        rig.simulation.spawn(1 + index, format!("client {index}"), work);
    }
    let summary = rig.simulation.run().unwrap_or_else(|error| panic!("{way:?}, seed {seed}: {error}"));
    (rig.node[0].memory.load_acquire_u64(64), summary, rig)
}

#[test]
fn each_increment_happens_once_and_runs_are_reproducible() {
    for exclusive in [false, true] {
        let way = Way::Box { exclusive };
        let (value, summary, rig) = count_together(&t3(), way, 5);
        assert_eq!(value, 200);
        let counters = rig.switch_box.map(|it| it.with(|steer| *steer.counters())).expect("the rig has a middlebox");
        // The first CAS reads the value of the word. The middlebox can compute the results of all later CASes.
        let converted = if exclusive { counters.requests - 1 } else { 0 };
        assert!(counters.cas_converted <= converted && (counters.cas_converted > 0) == exclusive, "{counters:?}");
        assert_eq!((counters.duplicates, counters.to_node_again, counters.unexpected), (0, 0, 0), "{counters:?}");
        let again = count_together(&t3(), way, 5).1;
        assert_eq!(summary, again, "the same seed gives the same run");
    }
}

#[test]
fn dropped_frames_to_or_from_the_box_are_retransmitted() {
    let replaced = [
        ("link.rate", "1 Gb/s"),
        ("switch.resume_at", "0 B"),
        ("switch.pause_at", "180 B"),
        ("switch.queue", "180 B"),
        ("switch.when_full", "drop"),
    ];
    let with =
        |testbed: Testbed, &(field, value): &(&str, &str)| testbed.with(field, value).expect("a value of the field");
    let testbed = replaced.iter().fold(t3(), with);
    let mut lost = 0;
    for seed in 0..4 {
        for exclusive in [false, true] {
            let (value, summary, _) = count_together(&testbed, Way::Box { exclusive }, seed);
            assert_eq!(value, 200, "seed {seed}");
            lost += summary.counts.dropped;
        }
    }
    assert!(lost > 0, "the switch must drop frames");
}

/// Returns the rate of CASes on one word, from clients with several outstanding CASes each.
fn cas_rate(way: Way) -> f64 {
    const EACH: usize = 2000;
    let mut rig = rig(&t3(), 4, way, 1);
    let remote_address = rig.node[0].memory.address();
    let (rkey, outstanding) = (rig.rkey, 16);
    // The middlebox knows the value of the word once it has answered a CAS while no other CAS was in flight.
    let first = increment(Rc::clone(&rig.clients[0]), remote_address, rkey, 1, rig.simulation.polling());
    rig.simulation.spawn(1, "the first", first);
    let from_ns = rig.simulation.run().unwrap_or_else(|error| panic!("{way:?}: {error}")).ended.as_ns();
    let last = Rc::new(Cell::new(0));
    for (index, client) in rig.clients.iter().enumerate() {
        let (client, waiter, last) = (Rc::clone(client), rig.simulation.polling(), Rc::clone(&last));
        rig.simulation.spawn(1 + index, format!("client {index}"), async move {
            let mut out = [Completion::default(); 16];
            let post = |place| {
                client.post(SendOperation::CompareSwap { remote_address, rkey, compare: 1, swap: 2 }, place, 8);
            };
            (0..outstanding).for_each(post);
            let (mut posted, mut done) = (outstanding, 0);
            while done < EACH {
                let count = client.complete(&waiter, &mut out).await;
                done += count;
                for completion in &out[..count] {
                    if posted < EACH {
                        post(completion.wr_id as usize);
                        posted += 1;
                    }
                }
            }
            last.set(waiter.now().as_ns().max(last.get()));
        });
    }
    rig.simulation.run().unwrap_or_else(|error| panic!("{way:?}: {error}"));
    (4 * EACH) as f64 * 1e9 / (last.get() - from_ns) as f64
}

/// The NIC's lock limits the rate of CASes on one address. A WRITE takes no lock.
#[test]
fn a_cas_turned_into_a_write_takes_no_lock() {
    let [direct, boxed, converted] =
        [Way::Direct, Way::Box { exclusive: false }, Way::Box { exclusive: true }].map(cas_rate);
    println!("CAS on one address: {direct:.0}/s direct, {boxed:.0}/s through a box, {converted:.0}/s as WRITEs");
    let lock = Ps(1_000_000_000_000).0 as f64 / t3().nic.atomic.0 as f64;
    for (rate, what) in [(direct, "direct"), (boxed, "through a box")] {
        assert!((0.95..=1.0).contains(&(rate / lock)), "{what}: {rate} of {lock} per second");
    }
    // Without the lock, the limit is 64 outstanding operations per round trip.
    assert!(converted > 4.0 * lock, "{converted} of {lock} per second");
}

#[test]
fn a_middlebox_requires_a_switch() {
    let mut simulation = Simulation::new(&t3(), Topology::Pair, 1).expect("a simulation");
    let error = simulation.put_middlebox(|address| Steer::new(Config::at(address))).map(drop).expect_err("no switch");
    assert_eq!(error.to_string(), "the topology has 0 switches; a middlebox needs exactly one");
}
