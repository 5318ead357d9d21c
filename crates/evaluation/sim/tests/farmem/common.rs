//! A store on simulated hosts: the memory node on host 0, the metadata service on host 1, and clients on the next
//! hosts. A second memory node, if any, is on the last host.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its part")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use doorbell_exchange::Config;
use doorbell_exchange::asynchronous::Waiter;
use doorbell_farmem::{
    BOX, Client, ClientDescription, ClientEnd, ClientOptions, Geometry, HostCache, MemoryDescription, MemoryNode,
    Metadata, MetadataEnd, MetadataOptions, NodeCounts, NodeVersion, Outcome, StoreControl, StoreError, StoreOperation,
    Strategy,
};
use doorbell_sim::{Simulation, SwitchBox, Testbed, Topology, VirtualWaiter, testbed};
use doorbell_steer::{Config as SteerConfig, Limits, NodeEnd, Steer};
use doorbell_verbs::{DeviceAttributes, RKey};

/// Numbers of the simulated hosts.
pub const MEMORY: usize = 0;
pub const METADATA: usize = 1;
pub const FIRST_HOST: usize = 2;

pub fn t3() -> Testbed {
    testbed::by_name("connectx5-100g-far").expect("a testbed of the program").clone()
}

/// Returns options with short timeouts, so that the death of a peer is detected within milliseconds.
pub fn rpc() -> Config {
    Config::default().timeout_exponent(8).retry_count(3).keepalive(Duration::from_millis(2))
}

/// A middlebox in the switch, between the memory node and all other hosts.
#[derive(Clone, Copy, Debug)]
pub struct Boxed {
    pub is_exclusive: bool,
    pub steers_reads: bool,
    /// Number of keys that the box remembers.
    pub keys: usize,
}

/// Ways in which a memory node fails.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// The memory node destroys its queue pairs and answers no client.
    Dies,
    /// The memory node and the metadata service no longer reach each other. Clients whose bit is set in `clients` do
    /// not reach the memory node either. The memory node serves the other clients until its lease ends.
    CutOff { clients: u32 },
    /// The service does not reach the memory node's region, but can order the memory node to stop.
    Told,
}

/// Failure of one of two memory nodes at a given time.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub node: usize,
    pub at_ns: u64,
    pub how: How,
}

/// Time for which a memory node serves without contact to the metadata service.
pub const NODE_LEASE_NS: u64 = 3_000_000;

/// The program that runs the service: its control connections to the memory nodes, and the clients to fence.
#[derive(Default)]
struct Carrier {
    nodes: Vec<Rc<RefCell<MemoryNode>>>,
    /// Whether each memory node answers on its control connection.
    is_cut: Rc<Cell<[bool; 2]>>,
    fencing: Vec<u32>,
    /// A memory node without contact to the service, and the time at which this node has stopped by itself.
    stops_ns: Option<(usize, u64)>,
}

impl Carrier {
    fn work(&mut self, metadata: &mut Metadata, now_ns: u64) -> bool {
        let mut happened = metadata.poll();
        while let Some(client) = metadata.next_fence() {
            self.fencing.push(client);
        }
        let cut = self.is_cut.get();
        if let Some(node) = cut.iter().position(|&is_cut| is_cut) {
            metadata.lose(node); // the node does not answer on its control connection
        }
        if let Some(node) = metadata.next_stop() {
            happened = true;
            match cut[node] {
                true => self.stops_ns = Some((node, now_ns + NODE_LEASE_NS)),
                false => {
                    self.nodes[node].borrow_mut().stop().expect("stopped");
                    metadata.stopped(node);
                }
            }
        }
        if let Some((node, _)) = self.stops_ns.take_if(|(_, at)| now_ns >= *at) {
            assert!(
                self.nodes[node].borrow().is_stopped(),
                "the service counts the lease as over before the node does"
            );
            metadata.stopped(node);
            happened = true;
        }
        let alone = metadata.alone();
        self.fencing.retain(|&client| {
            for (index, node) in self.nodes.iter().enumerate() {
                match (alone, cut[index]) {
                    (Some(alone), _) if alone != index => {}
                    (None, true) => {
                        metadata.lose(index);
                        return true;
                    }
                    _ => drop(node.borrow_mut().fence(client).expect("fenced")),
                }
            }
            metadata.fenced(client);
            happened = true;
            false
        });
        happened
    }
}

/// Creates a box without state at this address.
pub fn steer(address: std::net::IpAddr, boxed: Boxed, seed: u64) -> Steer {
    let limits = Limits { window_bytes: 1 << 40, keys: boxed.keys, ..Limits::default() };
    Steer::new(SteerConfig { limits, seed, ..SteerConfig::at(address) })
}

/// Connects a box with a memory node on a device, in place of an earlier box.
pub fn attach(
    steer: &mut Steer,
    memory: &mut MemoryNode,
    device: &DeviceAttributes,
    (boxed, rkey): (Boxed, u32),
) -> StoreControl {
    memory.fence(BOX).expect("an earlier box is shut out");
    let lane = StoreControl::lane(steer, device.active_mtu, device.udp_port);
    let node = memory.accept(BOX, &ClientDescription { lane, calls: None }).expect("accepted");
    let settings = (RKey::new(rkey), boxed.is_exclusive, boxed.steers_reads);
    StoreControl::connect(steer, node, NodeEnd::at, settings).expect("connected")
}

/// The box in the switch and its control plane.
pub type Through = Rc<(SwitchBox, RefCell<StoreControl>)>;

/// A store: simulation, memory nodes, metadata service, and the number of working clients.
pub struct Store<'a> {
    pub simulation: Simulation<'a>,
    pub memory: Rc<RefCell<MemoryNode>>,
    /// The second memory node, if any.
    pub replica: Option<Rc<RefCell<MemoryNode>>>,
    /// Whether the control connection of each memory node is cut. Its queue pairs still work.
    is_cut: Rc<Cell<[bool; 2]>>,
    replica_host: usize,
    /// Whether a memory node will fail.
    fails: bool,
    /// The metadata service, until [`Self::serve`] takes it.
    pub metadata: Option<Metadata>,
    pub through: Option<Through>,
    pub caches: Vec<Arc<HostCache>>,
    numbers: u32,
    pub working: Rc<Cell<usize>>,
    /// Whether the memory node's CPU serves requests of clients.
    is_asked: bool,
}

impl Store<'_> {
    pub fn new(testbed: &Testbed, hosts: usize, geometry: Geometry, seed: u64) -> Self {
        Self::made(None, 1, testbed, hosts, geometry, seed)
    }

    /// Returns a store with one memory node, behind a middlebox if `boxed` is set.
    pub fn behind(boxed: Option<Boxed>, testbed: &Testbed, hosts: usize, geometry: Geometry, seed: u64) -> Self {
        Self::made(boxed, 1, testbed, hosts, geometry, seed)
    }

    /// Returns a store with one or two memory nodes.
    pub fn replicated(replicas: usize, testbed: &Testbed, hosts: usize, geometry: Geometry, seed: u64) -> Self {
        Self::made(None, replicas, testbed, hosts, geometry, seed)
    }

    fn made(
        boxed: Option<Boxed>,
        replicas: usize,
        testbed: &Testbed,
        hosts: usize,
        geometry: Geometry,
        seed: u64,
    ) -> Self {
        let replica_host = FIRST_HOST + hosts;
        let topology = Topology::Star { nodes: replica_host + replicas - 1 };
        let mut simulation = Simulation::new(testbed, topology, seed).expect("a simulation");
        let switch_box = boxed.map(|boxed| {
            let make = |address| steer(address, boxed, seed);
            (simulation.put_middlebox(make).expect("there is one switch"), boxed)
        });
        let pd = |node: usize| simulation.device(node).create_pd().expect("a protection domain");
        let mut memory = MemoryNode::new(&pd(MEMORY), geometry).expect("a memory node");
        let mut replica = (replicas > 1).then(|| MemoryNode::new(&pd(replica_host), geometry).expect("a memory node"));
        let options = MetadataOptions { rpc: rpc(), replicas, ..MetadataOptions::default() };
        let mut end = MetadataEnd::new(&pd(METADATA), options).expect("an end");
        let through = switch_box.map(|(switch_box, boxed)| {
            let device = simulation.device(MEMORY).attributes();
            let behind = switch_box.with(|steer| attach(steer, &mut memory, &device, (boxed, 0x77)));
            Rc::new((switch_box, RefCell::new(behind)))
        });
        let description = accept(&mut memory, &through, 0, &end.to_memory());
        if let (Some(replica), Some(peer)) = (&mut replica, end.to_replica()) {
            end.set_replica(replica.accept(0, &peer).expect("accepted"));
        }
        let metadata = end.connect(&description).expect("connected");
        Self {
            simulation,
            memory: Rc::new(RefCell::new(memory)),
            replica: replica.map(|replica| Rc::new(RefCell::new(replica))),
            is_cut: Rc::default(),
            replica_host,
            fails: false,
            metadata: Some(metadata),
            through,
            caches: (0..hosts).map(|_| Arc::new(HostCache::new(1 << 12))).collect(),
            numbers: 0,
            working: Rc::default(),
            is_asked: false,
        }
    }

    /// Creates a client on a host and connects it.
    pub fn client(&mut self, host: usize, options: ClientOptions) -> Client {
        self.numbers += 1;
        let number = self.numbers;
        let pd = self.simulation.device(FIRST_HOST + host).create_pd().expect("a protection domain");
        self.is_asked |= options.strategy == Strategy::Server;
        let geometry = self.memory.borrow().geometry();
        let replicas = 1 + usize::from(self.replica.is_some());
        let options = ClientOptions { rpc: rpc(), replicas, ..options };
        let mut end = ClientEnd::new(&pd, geometry, options).expect("an end");
        let memory = accept(&mut self.memory.borrow_mut(), &self.through, number, &end.to_memory());
        if let (Some(replica), Some(peer)) = (&self.replica, end.to_replica()) {
            end.set_replica(replica.borrow_mut().accept(number, &peer).expect("accepted"));
        }
        let service = self.metadata.as_mut().expect("the service does not run yet");
        let metadata = service.accept(number, &end.to_metadata()).expect("accepted");
        self.working.set(self.working.get() + 1);
        end.connect(number, &memory, &metadata, &self.caches[host]).expect("connected")
    }

    /// Makes a memory node fail at the given time, unless all clients have finished by then.
    pub fn fail(&mut self, failure: Failure) {
        let Failure { node, at_ns, how } = failure;
        self.fails = true;
        let (memory, host) = match (node, &self.replica) {
            (1, Some(replica)) => (Rc::clone(replica), self.replica_host),
            _ => (Rc::clone(&self.memory), MEMORY),
        };
        let (working, waiter) = (Rc::clone(&self.working), self.simulation.polling());
        let is_cut = Rc::clone(&self.is_cut);
        self.simulation.spawn(host, "memory", async move {
            waiter.wait(None, Some(at_ns)).await;
            if working.get() == 0 {
                return;
            }
            let cut = || {
                let mut cut = is_cut.get();
                cut[node] = true;
                is_cut.set(cut);
            };
            match how {
                How::Dies => {
                    cut();
                    memory.borrow_mut().stop().expect("stopped");
                }
                How::CutOff { clients } => {
                    cut();
                    let of_clients = (1..32_u32).filter(|number| clients >> number & 1 == 1);
                    for number in [0].into_iter().chain(of_clients) {
                        memory.borrow_mut().fence(number).expect("fenced");
                    }
                    let until = waiter.now().as_ns() + NODE_LEASE_NS;
                    memory.borrow_mut().serve_until(until);
                    while !memory.borrow().is_stopped() {
                        waiter.wait(None, Some(until)).await;
                        memory.borrow_mut().poll();
                    }
                }
                How::Told => drop(memory.borrow_mut().fence(0).expect("fenced")),
            }
        });
    }

    /// Runs the metadata service until all clients have gone and the service has no pending work. Returns the final
    /// state.
    pub fn serve(&mut self) -> doorbell_sim::Returned<Rest> {
        let mut metadata = self.metadata.take().expect("the service does not run yet");
        let memory = Rc::clone(&self.memory);
        let (working, waiter) = (Rc::clone(&self.working), self.simulation.polling());
        if self.is_asked {
            let (memory, working, waiter) = (Rc::clone(&memory), Rc::clone(&working), waiter.clone());
            self.simulation.spawn(MEMORY, "memory", async move {
                while working.get() > 0 {
                    let (happened, deadline) = {
                        let mut memory = memory.borrow_mut();
                        (memory.poll(), memory.deadline_ns())
                    };
                    match happened {
                        true => waiter.breathe().await,
                        false => {
                            let soon = waiter.now().as_ns() + 1_000_000;
                            waiter.wait(None, Some(deadline.map_or(soon, |deadline| deadline.min(soon)))).await;
                        }
                    }
                }
            });
        }
        let through = self.through.clone();
        let nodes = [Some(memory), self.replica.clone()].into_iter().flatten().collect();
        let fails = self.fails;
        let mut carrier = Carrier { nodes, is_cut: Rc::clone(&self.is_cut), ..Carrier::default() };
        self.simulation.spawn(METADATA, "metadata", async move {
            let mut fencing = Vec::new();
            loop {
                let happened = match &through {
                    None => carrier.work(&mut metadata, waiter.now().as_ns()),
                    Some(through) => serve_behind(&mut metadata, through, &mut fencing),
                };
                let nodes = metadata.nodes();
                if working.get() == 0 && metadata.clients() == 0 && metadata.is_tidy() && nodes.retired == 0 {
                    return Rest { nodes, keys: metadata.keys(), alone: metadata.alone() };
                }
                if !happened {
                    // The end of the last client is no event that wakes the service, so the service polls again soon.
                    let is_soon =
                        !fencing.is_empty() || carrier.stops_ns.is_some() || (fails && metadata.alone().is_none());
                    let soon = waiter.now().as_ns() + if is_soon { 5_000 } else { 1_000_000 };
                    let deadline = metadata.deadline_ns().map_or(soon, |deadline| deadline.min(soon));
                    waiter.wait(None, Some(deadline)).await;
                } else {
                    waiter.breathe().await;
                }
            }
        })
    }
}

/// Connects a client with the memory node, or with the box in front of the memory node.
fn accept(
    memory: &mut MemoryNode,
    through: &Option<Through>,
    client: u32,
    peer: &ClientDescription,
) -> MemoryDescription {
    match through {
        None => memory.accept(client, peer).expect("accepted"),
        Some(through) => through.0.with(|steer| through.1.borrow_mut().accept(steer, client, peer)).expect("accepted"),
    }
}

/// Serves once as `serve_once` does, but the box fences the clients.
pub fn serve_behind(metadata: &mut Metadata, through: &Through, fencing: &mut Vec<u32>) -> bool {
    let mut happened = metadata.poll();
    while let Some(client) = metadata.next_fence() {
        fencing.push(client);
    }
    fencing.retain(|&client| {
        let is_out = through.0.with(|steer| through.1.borrow_mut().fence(steer, client));
        if is_out {
            metadata.fenced(client);
            happened = true;
        }
        !is_out
    });
    happened
}

/// Final state of the metadata service after all clients have gone.
pub struct Rest {
    pub nodes: NodeCounts,
    pub keys: Vec<(Vec<u8>, NodeVersion)>,
    /// Number of the memory node that serves alone, if one of two failed.
    pub alone: Option<usize>,
}

impl Rest {
    /// Checks each memory node that still serves.
    pub fn check_all(&self, store: &Store<'_>) {
        let replica = store.replica.iter().filter(|_| self.alone != Some(0));
        let memories = Some(&store.memory).filter(|_| self.alone != Some(1)).into_iter().chain(replica);
        memories.for_each(|memory| self.check(&memory.borrow()));
    }

    /// Checks that each node is either free or the only node of a key, and that each node of a key is intact.
    pub fn check(&self, memory: &MemoryNode) {
        let nodes = u64::from(memory.geometry().nodes);
        let NodeCounts { free, granted, heads, retired, spent } = self.nodes;
        assert_eq!((granted, retired, spent), (0, 0, 0), "a client still holds a node");
        assert_eq!((heads, free), (self.keys.len() as u64, nodes - heads), "nodes are lost");
        let (served, served_free, used) = memory.served();
        assert_eq!(served + served_free, used, "nodes of the memory node's CPU are lost");
        for (key, place) in &self.keys {
            let node = memory.inspect(*place).expect("a node");
            assert_eq!(node.word, doorbell_farmem::Word::Tail(*place), "the node of {key:?} is not its only one");
            assert!(node.is_intact && &node.key == key && !node.is_tombstone, "{key:?}: {node:?}");
        }
    }
}

pub fn serve_once(metadata: &mut Metadata, memory: &RefCell<MemoryNode>) -> bool {
    let mut happened = metadata.poll();
    while let Some(client) = metadata.next_fence() {
        memory.borrow_mut().fence(client).expect("fenced");
        metadata.fenced(client);
        happened = true;
    }
    happened
}

/// Returns the number of running operations, whether the client is over, and whether it is closed. Programs wait for
/// changes of these three values.
fn awaited(client: &Client) -> (usize, bool, bool) {
    (client.running(), client.is_over(), client.is_closed())
}

/// Polls a client. Checks that the values of [`awaited`] change only in a poll that reports an event, or after a
/// deadline. Otherwise a sleeping program would never wake.
pub fn poll(client: &mut Client, waiter: &VirtualWaiter) -> bool {
    let before = awaited(client);
    let happened = client.poll();
    let is_due = || client.deadline_ns().is_some_and(|deadline| deadline <= waiter.now().as_ns());
    let after = awaited(client);
    assert!(
        happened || before == after || is_due(),
        "a poll without an event changed (running, over, closed) from {before:?} to {after:?}"
    );
    happened
}

/// Polls a client, and waits for an event if the poll makes no progress.
pub async fn progress(client: &mut Client, waiter: &VirtualWaiter) {
    if poll(client, waiter) {
        waiter.breathe().await;
    } else {
        waiter.wait(None, client.deadline_ns()).await;
    }
}

/// Runs one operation to its end.
pub async fn run(
    client: &mut Client,
    waiter: &VirtualWaiter,
    operation: StoreOperation<'_>,
    value: &mut Vec<u8>,
) -> Result<Outcome, StoreError> {
    let ticket = client.submit(operation)?.expect("no other operation runs");
    loop {
        if let Some((done, result)) = client.finished(value) {
            assert_eq!(done, ticket);
            return result;
        }
        progress(client, waiter).await;
    }
}

/// Closes a client, and waits until its close message is acknowledged.
pub async fn close(mut client: Client, waiter: &VirtualWaiter, working: &Cell<usize>) {
    client.close();
    while !client.is_closed() {
        progress(&mut client, waiter).await;
    }
    working.set(working.get() - 1);
}
