//! A key-value store on passive memory and its workload, on a simulated testbed.
//!
//! Node 0 is the memory node, and node 1 is the metadata service. The following nodes are the hosts of the clients. The
//! last node is an optional second memory node. Each client is a thread with its own processor.

mod point;
pub(crate) mod published;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_farmem::assembly::{
    AssemblyError, BoxParty, BoxSettings, ClientParty, LocalParties, MemoryParty, MetadataParty, Plan,
};
use doorbell_farmem::workload::{self, Load, Report, Tally};
use doorbell_farmem::{ClientOptions, HostCache, Metadata, MetadataOptions, OpenError, StoreError, Strategy};
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
    /// The parts of the store cannot be connected.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
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
    #[error("a simulated client or service has not ended")]
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

/// All parties of the store except for the clients. The middlebox is in the switch.
struct FarServer {
    parties: LocalParties,
    switch_box: Option<SwitchBox>,
}

impl FarServer {
    /// Creates memory nodes on these nodes, and the metadata service. Puts a middlebox into the switch if the strategy
    /// needs one. All requests pass the middlebox, including the requests of the metadata service. The middlebox may
    /// therefore turn CASes into WRITEs.
    fn new(simulation: &mut Simulation<'_>, memories: &[usize], plan: &Plan, seed: u64) -> Result<Self, FarError> {
        let mut parties = LocalParties::default();
        for (index, &node) in memories.iter().enumerate() {
            let pd = simulation.device(node).create_pd()?;
            parties.memories[index] = Some(MemoryParty::new(&pd, plan, index as u8)?);
        }
        let pd = simulation.device(METADATA).create_pd()?;
        parties.metadata = Some(MetadataParty::new(&pd, plan, MetadataOptions::default())?);
        if !plan.is_boxed {
            parties.settle(None, 0)?;
            return Ok(Self { parties, switch_box: None });
        }
        // A simulation has no socket buffers that limit the bytes in flight, so the window is practically unlimited.
        let limits = Limits {
            window_bytes: 1 << 40,
            clients: plan.clients + 1,
            keys: usize::try_from(plan.keys).unwrap_or(usize::MAX).min(MOST_STEERED_KEYS),
            ..Limits::default()
        };
        let make = |address| Steer::new(Config { limits, seed, ..Config::at(address) });
        let switch_box = simulation.put_middlebox(make).map_err(SimulationError::from)?;
        let attributes = simulation.device(MEMORY).attributes();
        let settings = BoxSettings {
            rkey: RKey::new(seed as u32),
            is_exclusive: true,
            steers_reads: plan.strategy.steers_reads(),
            path_mtu: attributes.active_mtu,
            udp_port: attributes.udp_port,
            patience: None,
        };
        switch_box.with(|steer| {
            parties.middlebox = Some(BoxParty::new(steer, plan, settings));
            parties.settle(Some(steer), 0)
        })?;
        Ok(Self { parties, switch_box: Some(switch_box) })
    }

    fn admit(&mut self, client: &mut ClientParty) -> Result<(), AssemblyError> {
        let Self { parties, switch_box } = self;
        match switch_box {
            None => parties.admit(client, None, 0),
            Some(switch_box) => switch_box.with(|steer| parties.admit(client, Some(steer), 0)),
        }
    }

    /// Advances the metadata service and the control plane of the middlebox. Returns whether anything changed.
    fn poll(&mut self, now_ns: u64) -> Result<bool, AssemblyError> {
        let Self { parties, switch_box } = self;
        let happened = parties.poll(now_ns)?;
        if let Some(switch_box) = switch_box
            && parties.wants_middlebox()
        {
            switch_box.with(|steer| parties.poll_middlebox(steer, now_ns))?;
        }
        Ok(happened)
    }

    /// Returns the number of clients that the metadata service knows.
    fn clients(&self) -> usize {
        self.parties.metadata.as_ref().and_then(MetadataParty::metadata).map_or(0, Metadata::clients)
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
    let plan = Plan { replicas: *replicas, ..Plan::new(*strategy, load, *clients) };
    let memories: Vec<usize> = [MEMORY].into_iter().chain((*replicas > 1).then_some(second)).collect();
    let mut server = FarServer::new(&mut simulation, &memories, &plan, seed)?;
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
            outstanding: load.outstanding,
            seed: seed.wrapping_mul(1000).wrapping_add(u64::from(number)),
            lease_ns: *lease_ns,
            shortcut_delay_ns: *shortcut_delay_ns,
            ..ClientOptions::default()
        };
        let mut client = ClientParty::new(&pds[host], &plan, number, options)?;
        server.admit(&mut client)?;
        let mut client = client.connect(&caches[host])?;
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
    let served = serve_metadata(&mut simulation, &server, (&working, load.drains));
    let summary = simulation.run()?;
    served.take().ok_or(FarError::Unfinished)??;
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
            let (happened, deadline) = match &mut server.borrow_mut().parties.memories[0] {
                Some(memory) => (memory.poll(waiter.now().as_ns()), memory.deadline_ns()),
                None => (false, None),
            };
            if happened {
                waiter.breathe().await;
            } else {
                let look = waiter.now().as_ns() + LOOK_NS;
                waiter.wait(None, deadline.into_iter().chain([look]).min()).await;
            }
        }
    });
}

fn serve_metadata(
    simulation: &mut Simulation<'_>,
    server: &Rc<RefCell<FarServer>>,
    (working, says_goodbye): (&Rc<Cell<usize>>, bool),
) -> Returned<Result<(), AssemblyError>> {
    let (server, working, waiter) = (Rc::clone(server), Rc::clone(working), simulation.polling());
    simulation.spawn(METADATA, "metadata", async move {
        while working.get() > 0 || (says_goodbye && server.borrow().clients() > 0) {
            if server.borrow_mut().poll(waiter.now().as_ns())? {
                waiter.breathe().await;
            } else {
                let (deadline, is_fencing) = {
                    let parties = &server.borrow().parties;
                    (parties.metadata.as_ref().and_then(MetadataParty::deadline_ns), parties.wants_middlebox())
                };
                let look = waiter.now().as_ns() + if is_fencing { FENCE_NS } else { LOOK_NS };
                waiter.wait(None, deadline.into_iter().chain([look]).min()).await;
            }
        }
        Ok(())
    })
}
