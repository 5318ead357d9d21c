//! A key-value store on passive memory and its workload, on a simulated testbed.
//!
//! Node 0 is the memory node, and node 1 is the metadata service. The following nodes are the hosts of the clients. The
//! last node is an optional second memory node. Each client is a thread with its own processor.

mod point;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_farmem::workload::{self, Load, Report, Tally};
use doorbell_farmem::{
    ClientDescription, ClientEnd, ClientOptions, HostCache, MemoryDescription, MemoryNode, Metadata, MetadataEnd,
    MetadataOptions, OpenError, StoreControl, StoreError, Strategy,
};
use doorbell_steer::{Config, Limits, Steer};
use doorbell_wire::RKey;

pub use point::{Point, PointError, simulate};

use crate::simulation::{Returned, Simulation, SimulationError, Summary, SwitchBox};
use crate::testbed::Testbed;
use crate::time::Ps;
use crate::topology::Topology;

const MEMORY: usize = 0;
const METADATA: usize = 1;
const FIRST_HOST: usize = 2;
/// Maximum number of keys for which a middlebox stores state. The state of this number of keys takes about 400 MB.
const MOST_STEERED_KEYS: usize = 1 << 20;
/// Interval at which the servers check whether the clients have ended.
const LOOK_NS: u64 = 1_000_000;
/// Interval at which the metadata service checks whether all requests of a fenced client were answered.
const FENCE_NS: u64 = 1_000;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Far {
    /// Concurrency control between the clients.
    pub strategy: Strategy,
    /// Workload of each client.
    pub load: Load,
    /// Number of clients, at least 1.
    pub clients: usize,
    /// Number of hosts, at least 1. Clients are assigned to the hosts in turn. The clients of a host share a cache.
    pub hosts: usize,
    /// Number of memory nodes that hold the same data: 1 or 2 ([`ClientOptions::replicas`]).
    pub replicas: usize,
    /// Time after which a client breaks a lock ([`ClientOptions::lease_ns`]).
    pub lease_ns: u64,
    /// Delay before a client writes a shortcut ([`ClientOptions::shortcut_delay_ns`]).
    pub shortcut_delay_ns: u64,
}

impl Default for Far {
    fn default() -> Self {
        let lease_ns = ClientOptions::default().lease_ns;
        Self {
            strategy: Strategy::Optimistic,
            load: Load::default(),
            clients: 64,
            hosts: 2,
            replicas: 1,
            lease_ns,
            shortcut_delay_ns: 0,
        }
    }
}

/// Error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FarError {
    /// A part of the store cannot be created.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A verbs object could not be created.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// An operation failed.
    #[error("an operation of a client failed: {0}")]
    Store(#[from] StoreError),
    /// The simulation did not reach its end.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// A thread ended without a result.
    #[error("a simulated client has not ended")]
    Unfinished,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct FarRun {
    /// Report of all clients.
    pub report: Report,
    /// Average number of cores that the memory node kept busy until the last client finished. Polls that found
    /// nothing do not count.
    pub memory_cpu: f64,
    /// Average share of a core that each client kept busy until the last client finished.
    pub client_cpu: f64,
    /// Summary of the simulation.
    pub summary: Summary,
}

/// Memory nodes, and the middlebox in front of these nodes if the strategy needs one.
struct FarServer {
    memory: MemoryNode,
    /// The second memory node, which holds the same data.
    replica: Option<MemoryNode>,
    /// The middlebox and its control; `None` for strategies without a middlebox.
    through: Option<(SwitchBox, StoreControl)>,
}

impl FarServer {
    /// Attaches a middlebox if the strategy needs one. All requests pass the middlebox, including the requests of the
    /// metadata service. The middlebox may therefore turn CASes into WRITEs.
    fn new(
        simulation: &mut Simulation<'_>,
        (mut memory, replica): (MemoryNode, Option<MemoryNode>),
        far: &Far,
        seed: u64,
    ) -> Result<Self, FarError> {
        if !far.strategy.is_steered() {
            return Ok(Self { memory, replica, through: None });
        }
        // A simulation has no socket buffers that limit the bytes in flight, so the window is practically unlimited.
        let limits = Limits {
            window_bytes: 1 << 40,
            clients: far.clients + 1,
            keys: usize::try_from(far.load.keys).unwrap_or(usize::MAX).min(MOST_STEERED_KEYS),
            ..Limits::default()
        };
        let make = |address| Steer::new(Config { limits, seed, ..Config::at(address) });
        let switch_box = simulation.put_middlebox(make).map_err(SimulationError::from)?;
        let rkey = RKey::new(seed as u32);
        let steers_reads = far.strategy.steers_reads();
        let control = switch_box.with(|steer| StoreControl::attach(steer, &mut memory, rkey, true, steers_reads))?;
        Ok(Self { memory, replica, through: Some((switch_box, control)) })
    }

    fn accept(&mut self, client: u32, peer: &ClientDescription) -> Result<MemoryDescription, OpenError> {
        match &mut self.through {
            None => self.memory.accept(client, peer),
            Some((switch_box, control)) => switch_box.with(|steer| control.accept(steer, client, peer)),
        }
    }

    fn accept_replica(
        &mut self,
        client: u32,
        peer: Option<ClientDescription>,
    ) -> Result<Option<MemoryDescription>, OpenError> {
        self.replica.as_mut().zip(peer).map(|(replica, peer)| replica.accept(client, &peer)).transpose()
    }

    /// Stops a memory node that does not answer. Stopping a simulated node takes no virtual time.
    fn stop(&mut self, node: usize) {
        let memory = if node == 0 { Some(&mut self.memory) } else { self.replica.as_mut() };
        // Stopping cannot fail, since the simulated device accepts each transition to the error state.
        let _ = memory.map(MemoryNode::stop);
    }

    /// Fences a client. Returns false if the client is not fenced yet, so that the caller has to call this again.
    fn fence(&mut self, client: u32) -> bool {
        match &mut self.through {
            // `fence` succeeds at once, since the simulated device accepts each transition to the error state.
            None => {
                let of_replica = self.replica.as_mut().is_none_or(|replica| replica.fence(client).is_ok());
                self.memory.fence(client).is_ok() && of_replica
            }
            Some((switch_box, control)) => switch_box.with(|steer| control.fence(steer, client)),
        }
    }
}

type Tallies = Vec<Vec<Returned<Result<Tally, StoreError>>>>;

/// Runs a workload.
///
/// # Errors
///
/// Returns an error if the store cannot be created, or an operation fails.
pub fn run(testbed: &Testbed, far: &Far, seed: u64) -> Result<FarRun, FarError> {
    let Far { strategy, load, clients, hosts, replicas, lease_ns, shortcut_delay_ns } = far;
    let second = FIRST_HOST + hosts;
    let mut simulation = Simulation::new(testbed, Topology::Star { nodes: second + usize::from(*replicas > 1) }, seed)?;
    let geometry = load.geometry(*clients);
    let memory = |node| -> Result<MemoryNode, FarError> {
        let mut memory = MemoryNode::new(&simulation.device(node).create_pd()?, geometry)?;
        memory.fill(*strategy, load.keys, load.value_bytes)?;
        Ok(memory)
    };
    let (first, replica) = (memory(MEMORY)?, (*replicas > 1).then(|| memory(second)).transpose()?);
    let options = MetadataOptions { replicas: *replicas, ..MetadataOptions::default() };
    let mut end = MetadataEnd::new(&simulation.device(METADATA).create_pd()?, options)?;
    let mut server = FarServer::new(&mut simulation, (first, replica), far, seed)?;
    let of_memory = server.accept(0, &end.to_memory())?;
    if let Some(of_replica) = server.accept_replica(0, end.to_replica())? {
        end.set_replica(of_replica);
    }
    let mut metadata = end.connect(&of_memory)?;
    if *strategy != Strategy::Server {
        metadata.fill(load.keys)?;
    }
    let pds: Vec<_> =
        (0..*hosts).map(|host| simulation.device(FIRST_HOST + host).create_pd()).collect::<Result<_, _>>()?;
    let caches: Vec<_> = (0..*hosts).map(|_| Arc::new(HostCache::new(4 * load.keys as usize))).collect();
    caches.iter().for_each(|cache| cache.fill(load.keys, load.value_bytes));
    let working = Rc::new(Cell::new(*clients));
    let ended = Rc::new(Cell::new(Ps(0)));
    let mut tallies: Tallies = (0..*hosts).map(|_| Vec::new()).collect();
    let path_mtu = simulation.device(MEMORY).attributes().active_mtu;
    for index in 0..*clients {
        let (host, number) = (index % hosts, index as u32 + 1);
        let options = ClientOptions {
            strategy: *strategy,
            outstanding: load.outstanding,
            replicas: *replicas,
            seed: seed.wrapping_mul(1000).wrapping_add(u64::from(number)),
            lease_ns: *lease_ns,
            shortcut_delay_ns: *shortcut_delay_ns,
            ..ClientOptions::default()
        };
        let mut end = ClientEnd::new(&pds[host], geometry, options)?;
        let of_memory = server.accept(number, &end.to_memory())?;
        if let Some(of_replica) = server.accept_replica(number, end.to_replica())? {
            end.set_replica(of_replica);
        }
        let of_metadata = metadata.accept(number, &end.to_metadata())?;
        let mut client = end.connect(number, &of_memory, &of_metadata, &caches[host])?;
        let (waiter, working, load) = (simulation.polling(), Rc::clone(&working), *load);
        let ended = Rc::clone(&ended);
        let device = simulation.device(FIRST_HOST + host).clone();
        tallies[host].push(simulation.spawn(FIRST_HOST + host, format!("client {number}"), async move {
            let tally = workload::drive(&mut client, &device, &load, (number.into(), seed), &waiter, &mut ()).await;
            ended.set(ended.get().max(waiter.now()));
            if load.drains {
                workload::close(client, &waiter).await;
            }
            working.set(working.get() - 1);
            tally
        }));
    }
    let server = Rc::new(RefCell::new(server));
    if *strategy == Strategy::Server {
        serve_memory(&mut simulation, &server, &working);
    }
    serve_metadata(&mut simulation, metadata, &server, (&working, load.drains));
    let summary = simulation.run()?;
    let mut by_host: Vec<Vec<Tally>> = Vec::new();
    for host in tallies {
        let host: Result<Vec<_>, FarError> =
            host.iter().map(|returned| Ok(returned.take().ok_or(FarError::Unfinished)??)).collect();
        by_host.push(host?);
    }
    let report = Report::new(load, path_mtu, *strategy == Strategy::Server, &by_host);
    let share = |worked: Ps| worked.0 as f64 / ended.get().0.max(1) as f64;
    let of_node = |node| summary.threads.iter().filter(move |thread| thread.node == node);
    // `sum` of an empty iterator is -0.0, so fold from 0.0.
    let memory_cpu = of_node(MEMORY).fold(0.0, |sum, thread| sum + share(thread.worked));
    let of_clients = summary.threads.iter().filter(|thread| thread.node >= FIRST_HOST);
    let client_cpu = of_clients.map(|thread| share(thread.worked)).sum::<f64>() / *clients as f64;
    Ok(FarRun { report, memory_cpu, client_cpu, summary })
}

fn serve_memory(simulation: &mut Simulation<'_>, server: &Rc<RefCell<FarServer>>, working: &Rc<Cell<usize>>) {
    let (server, working, waiter) = (Rc::clone(server), Rc::clone(working), simulation.polling());
    simulation.spawn(MEMORY, "memory", async move {
        while working.get() > 0 {
            let happened = server.borrow_mut().memory.poll();
            if happened {
                waiter.breathe().await;
            } else {
                let deadline = server.borrow().memory.deadline_ns();
                let look = waiter.now().as_ns() + LOOK_NS;
                waiter.wait(None, deadline.into_iter().chain([look]).min()).await;
            }
        }
    });
}

fn serve_metadata(
    simulation: &mut Simulation<'_>,
    mut metadata: Metadata,
    server: &Rc<RefCell<FarServer>>,
    (working, says_goodbye): (&Rc<Cell<usize>>, bool),
) {
    let (server, working, waiter) = (Rc::clone(server), Rc::clone(working), simulation.polling());
    simulation.spawn(METADATA, "metadata", async move {
        let mut fencing: Vec<u32> = Vec::new();
        while working.get() > 0 || (says_goodbye && metadata.clients() > 0) {
            let mut happened = metadata.poll();
            while let Some(client) = metadata.next_fence() {
                fencing.push(client);
                happened = true;
            }
            if let Some(node) = metadata.next_stop() {
                server.borrow_mut().stop(node);
                metadata.stopped(node);
            }
            fencing.retain(|&client| {
                let is_out = server.borrow_mut().fence(client);
                if is_out {
                    metadata.fenced(client);
                }
                !is_out
            });
            if happened {
                waiter.breathe().await;
            } else {
                let look = waiter.now().as_ns() + if fencing.is_empty() { LOOK_NS } else { FENCE_NS };
                waiter.wait(None, metadata.deadline_ns().into_iter().chain([look]).min()).await;
            }
        }
    });
}
