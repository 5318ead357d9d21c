//! A store on simulated hosts: memory node on node 0, metadata service on node 1, clients on the others.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its part")]

#[path = "../../../rnic/tests/common/rng.rs"]
pub mod rng;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use doorbell_exchange::Config;
use doorbell_exchange::asynchronous::Waiter;
use doorbell_farmem::{
    Behind, Client, ClientDescription, ClientEnd, ClientOptions, Geometry, HostCache, MemoryDescription, MemoryNode,
    Metadata, MetadataEnd, MetadataOptions, NodeCounts, Operation, Outcome, Place, StoreError, Strategy,
};
use doorbell_sim::{Simulation, SwitchBox, Testbed, Topology, VirtualWaiter, testbed};
use doorbell_steer::{Config as SteerConfig, Limits, Steer};
use doorbell_verbs::RKey;

/// Which node of the simulation is which.
pub const MEMORY: usize = 0;
pub const METADATA: usize = 1;
pub const FIRST_HOST: usize = 2;

pub fn t3() -> Testbed {
    testbed::by_name("connectx5-100g-far").expect("a testbed of the program").clone()
}

/// Hasty, so that a death is noticed within milliseconds.
pub fn rpc() -> Config {
    Config::default().timeout_exponent(8).retry_count(3).keepalive(Duration::from_millis(2))
}

/// A middlebox in the switch, between the memory node and everybody else.
#[derive(Clone, Copy, Debug)]
pub struct Boxed {
    pub is_exclusive: bool,
    pub steers_reads: bool,
    /// Keys that it remembers.
    pub keys: usize,
}

/// The box and its control plane.
pub type Through = Rc<(SwitchBox, RefCell<Behind>)>;

/// A store: simulation, memory node and metadata service, and how many clients are at work.
pub struct Store<'a> {
    pub simulation: Simulation<'a>,
    pub memory: Rc<RefCell<MemoryNode>>,
    /// Until it serves.
    pub metadata: Option<Metadata>,
    pub through: Option<Through>,
    caches: Vec<Arc<HostCache>>,
    numbers: u32,
    pub working: Rc<Cell<usize>>,
    /// The memory node's CPU has something to do.
    is_asked: bool,
}

impl Store<'_> {
    pub fn new(testbed: &Testbed, hosts: usize, geometry: Geometry, seed: u64) -> Self {
        Self::behind(None, testbed, hosts, geometry, seed)
    }

    /// Perhaps behind a middlebox.
    pub fn behind(boxed: Option<Boxed>, testbed: &Testbed, hosts: usize, geometry: Geometry, seed: u64) -> Self {
        let topology = Topology::Star { nodes: FIRST_HOST + hosts };
        let mut simulation = Simulation::new(testbed, topology, seed).expect("a simulation");
        let switch_box = boxed.map(|boxed| {
            let limits = Limits { window_bytes: 1 << 40, keys: boxed.keys, ..Limits::default() };
            let make = |address| Steer::new(SteerConfig { limits, seed, ..SteerConfig::at(address) });
            (simulation.put_middlebox(make).expect("there is one switch"), boxed)
        });
        let pd = |node: usize| simulation.device(node).create_pd().expect("a protection domain");
        let mut memory = MemoryNode::new(&pd(MEMORY), geometry).expect("a memory node");
        let options = MetadataOptions { rpc: rpc(), ..MetadataOptions::default() };
        let end = MetadataEnd::new(&pd(METADATA), options).expect("an end");
        let through = switch_box.map(|(switch_box, boxed)| {
            let rkey = RKey::new(0x77);
            let attach = |steer: &mut Steer| {
                Behind::attach(steer, &mut memory, rkey, boxed.is_exclusive, boxed.steers_reads).expect("attached")
            };
            let behind = switch_box.with(attach);
            Rc::new((switch_box, RefCell::new(behind)))
        });
        let description = accept(&mut memory, &through, 0, &end.to_memory());
        let metadata = end.connect(&description).expect("connected");
        Self {
            simulation,
            memory: Rc::new(RefCell::new(memory)),
            metadata: Some(metadata),
            through,
            caches: (0..hosts).map(|_| Arc::new(HostCache::new(1 << 12))).collect(),
            numbers: 0,
            working: Rc::default(),
            is_asked: false,
        }
    }

    /// A client on a host.
    pub fn client(&mut self, host: usize, options: ClientOptions) -> Client {
        self.numbers += 1;
        let number = self.numbers;
        let pd = self.simulation.device(FIRST_HOST + host).create_pd().expect("a protection domain");
        self.is_asked |= options.strategy == Strategy::Server;
        let geometry = self.memory.borrow().geometry();
        let end = ClientEnd::new(&pd, geometry, ClientOptions { rpc: rpc(), ..options }).expect("an end");
        let memory = accept(&mut self.memory.borrow_mut(), &self.through, number, &end.to_memory());
        let service = self.metadata.as_mut().expect("the service does not run yet");
        let metadata = service.accept(number, &end.to_metadata()).expect("accepted");
        self.working.set(self.working.get() + 1);
        end.connect(number, &memory, &metadata, &self.caches[host]).expect("connected")
    }

    /// Runs the metadata service until all clients have gone and everything is tidy, and says what is left.
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
        self.simulation.spawn(METADATA, "metadata", async move {
            let mut fencing = Vec::new();
            loop {
                let happened = match &through {
                    None => serve_once(&mut metadata, &memory),
                    Some(through) => serve_behind(&mut metadata, through, &mut fencing),
                };
                let nodes = metadata.nodes();
                if working.get() == 0 && metadata.clients() == 0 && metadata.is_tidy() && nodes.retired == 0 {
                    return Rest { nodes, keys: metadata.keys() };
                }
                if !happened {
                    // Nothing wakes it when the last client has ended.
                    let soon = waiter.now().as_ns() + if fencing.is_empty() { 1_000_000 } else { 1_000 };
                    let deadline = metadata.deadline_ns().map_or(soon, |deadline| deadline.min(soon));
                    waiter.wait(None, Some(deadline)).await;
                } else {
                    waiter.breathe().await;
                }
            }
        })
    }
}

/// Connects a client with the memory, or with the box before it.
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

/// As [`serve_once`], where the box shuts clients out.
fn serve_behind(metadata: &mut Metadata, through: &Through, fencing: &mut Vec<u32>) -> bool {
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

/// What is left when all clients have gone.
pub struct Rest {
    pub nodes: NodeCounts,
    pub keys: Vec<(Vec<u8>, Place)>,
}

impl Rest {
    /// Every node is free or the only one of a key, and holds what it should.
    pub fn check(&self, memory: &MemoryNode) {
        let nodes = u64::from(memory.geometry().nodes);
        let NodeCounts { free, granted, heads, retired, spent } = self.nodes;
        assert_eq!((granted, retired, spent), (0, 0, 0), "nobody holds a node any more");
        assert_eq!((heads, free), (self.keys.len() as u64, nodes - heads), "no node is lost");
        let (served, served_free, used) = memory.served();
        assert_eq!(served + served_free, used, "no node of the memory node's CPU is lost");
        for (key, place) in &self.keys {
            let node = memory.inspect(*place).expect("a node");
            assert_eq!(node.word, doorbell_farmem::Word::Tail(*place), "the only node of {key:?}");
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

/// Waits until something happens.
pub async fn progress(client: &mut Client, waiter: &VirtualWaiter) {
    if client.poll() {
        waiter.breathe().await;
    } else {
        waiter.wait(None, client.deadline_ns()).await;
    }
}

/// Runs one operation to its end.
pub async fn run(
    client: &mut Client,
    waiter: &VirtualWaiter,
    operation: Operation<'_>,
    value: &mut Vec<u8>,
) -> Result<Outcome, StoreError> {
    let ticket = client.submit(operation)?.expect("nothing else runs");
    loop {
        if let Some((done, result)) = client.finished(value) {
            assert_eq!(done, ticket);
            return result;
        }
        progress(client, waiter).await;
    }
}

/// Says goodbye.
pub async fn close(mut client: Client, waiter: &VirtualWaiter, working: &Cell<usize>) {
    client.close();
    while !client.is_closed() {
        progress(&mut client, waiter).await;
    }
    working.set(working.get() - 1);
}
