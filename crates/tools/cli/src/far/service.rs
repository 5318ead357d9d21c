//! The store of a run on this machine: memory nodes and the metadata service. The metadata service is a thread of this
//! process. A memory node is a thread of this process or a process of its own. Strategies with a middlebox have a
//! middlebox process in front of the memory node.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_exchange::Config;
use doorbell_exchange::admission::Hello;
use doorbell_exchange::setup::EndpointDescription;
use doorbell_fabric::FaultPlan;
use doorbell_farmem::workload::Load;
use doorbell_farmem::{
    BOX, ClientDescription, Geometry, MemoryDescription, MemoryNode, Metadata, MetadataEnd, MetadataOptions,
    NodeCounts, NodeVersion, Strategy,
};
use doorbell_study::pinning::Pinning;
use doorbell_verbs::Device;
use serde_json::Value;

use super::client::from_hex;
use super::memory::MemoryHandle;
use super::middlebox::{BoxOptions, BoxProcess, OtherBox, ThroughBox, Via, serve_boxes};
use crate::admission::Clients;
use crate::failure::Failure;
use crate::output::note;

/// Number of unsuccessful polls before a thread yields its CPU to other threads.
const PATIENCE: u32 = 100;
/// Time without packets of a client after which the metadata service probes the client.
const KEEPALIVE: Duration = Duration::from_millis(200);
const GONE: &str = "the store has ended";

/// A question with a channel for its answer.
pub(super) struct Question<Q, A> {
    question: Q,
    answer: Sender<Result<A, String>>,
}

fn ask<M, Q, A>(to: &Sender<M>, question: Q, wrap: impl FnOnce(Question<Q, A>) -> M) -> Result<A, String> {
    let (answer, answers) = channel();
    to.send(wrap(Question { question, answer })).map_err(|_| GONE.to_owned())?;
    answers.recv().map_err(|_| GONE.to_owned())?
}

pub(super) enum ToMemory {
    Accept(Question<(u32, ClientDescription), MemoryDescription>),
    Fence(Question<u32, ()>),
    Stop(Question<(), ()>),
    Holds(Question<(NodeVersion, Vec<u8>), bool>),
}

/// Number of a client, its identity at a box, and its endpoint for messages.
type Entering = (u32, Option<Via>, EndpointDescription);

type ToMetadata = Question<Entering, EndpointDescription>;

/// Location of a memory node.
pub(super) enum NodeAt {
    /// In this process, on this device.
    Here(Device),
    /// In a process of its own.
    There(MemoryHandle),
}

/// Handle of a memory node for parts of the program that connect to it.
#[derive(Clone)]
pub(super) enum MemorySide {
    Here(Sender<ToMemory>),
    There(Arc<MemoryHandle>, Geometry),
}

impl MemorySide {
    pub(super) fn accept(&self, number: u32, client: ClientDescription) -> Result<MemoryDescription, String> {
        match self {
            Self::Here(to) => ask(to, (number, client), ToMemory::Accept),
            Self::There(process, geometry) => {
                let endpoint = from_hex(&process.ask(&format!("accept {number} {}", client.lane.to_hex()))?)?;
                Ok(MemoryDescription { endpoint, region: endpoint.regions[0], geometry: *geometry, calls: None })
            }
        }
    }

    fn fence(&self, client: u32) -> Result<(), String> {
        match self {
            Self::Here(to) => ask(to, client, ToMemory::Fence),
            Self::There(process, _) => process.ask(&format!("fence {client}")).map(drop),
        }
    }

    /// Stops the node. Returns the time from which the node serves no request any more: now, or the end of the node's
    /// lease.
    fn stop(&self) -> Result<Instant, String> {
        match self {
            Self::Here(to) => ask(to, (), ToMemory::Stop).map(|()| Instant::now()),
            Self::There(process, _) => Ok(process.stop()),
        }
    }

    /// Returns whether the node of the store at `place` is intact and has this key.
    fn holds(&self, place: NodeVersion, key: &[u8]) -> Result<bool, String> {
        match self {
            Self::Here(to) => ask(to, (place, key.to_vec()), ToMemory::Holds),
            Self::There(process, _) => {
                let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                process.ask(&format!("holds {} {key}", place.bits())).map(|answer| answer == "yes")
            }
        }
    }

    /// Returns whether the node's process has ended.
    fn is_gone(&self) -> bool {
        matches!(self, Self::There(process, _) if process.is_gone())
    }

    /// Connects a middlebox. The queue pair of the previous middlebox must have been given up.
    pub(super) fn accept_box(&self, lane: EndpointDescription) -> Result<MemoryDescription, String> {
        self.accept(BOX, ClientDescription { lane, calls: None })
    }

    /// Gives up the queue pair with the middlebox, if there is one.
    pub(super) fn part_with_box(&self) -> Result<(), String> {
        self.fence(BOX)
    }
}

/// Handle of the metadata service for parts of the program that connect to it.
#[derive(Clone)]
pub(super) struct MetadataSide(Sender<ToMetadata>);

impl MetadataSide {
    /// Accepts a client. `via` is the client's identity at its box, or `None` without a box.
    pub(super) fn accept(
        &self,
        number: u32,
        via: Option<Via>,
        client: EndpointDescription,
    ) -> Result<EndpointDescription, String> {
        ask(&self.0, (number, via, client), |asked| asked)
    }
}

/// Handles of the memory nodes and of the metadata service, and the address at which clients reach the middlebox.
#[derive(Clone)]
pub(super) struct Sides {
    pub(super) memory: MemorySide,
    /// The second memory node, which holds the same data.
    pub(super) replica: Option<MemorySide>,
    pub(super) metadata: MetadataSide,
    pub(super) through: Option<SocketAddr>,
}

/// The middlebox of a store, and the thread that accepts boxes for the memory node.
struct Gate {
    /// `None` if another command runs the box.
    process: Option<BoxProcess>,
    /// Address at which clients reach the box.
    through: SocketAddr,
    options: BoxOptions,
    /// Address at which the memory node accepts boxes.
    node: SocketAddr,
    is_over: Arc<AtomicBool>,
    boxes: JoinHandle<()>,
}

impl Gate {
    fn open(memory: MemorySide, options: BoxOptions, other: OtherBox) -> Result<Self, Failure> {
        let at = other.addresses();
        let listen = at.map_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), |(_, node)| node);
        let listener = TcpListener::bind(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        let node = listener.local_addr()?;
        let mut visitors = Clients::new(listener, Hello::new(1))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let boxes = std::thread::Builder::new()
            .name("boxes".to_owned())
            .spawn(move || serve_boxes(&mut visitors, &memory, &over))?;
        let (process, through) = match at {
            None => {
                let process = BoxProcess::start(node, &options)?;
                let through = process.address;
                (Some(process), through)
            }
            Some((through, _)) => {
                let arguments = options.arguments(node).join(" ");
                note!("start the middlebox at {through} now: doorbell {arguments} --listen {through}");
                (None, through)
            }
        };
        Ok(Self { process, through, options, node, is_over, boxes })
    }

    /// Returns the counters of the box, if this command has started it.
    fn close(self) -> Result<Option<Value>, Failure> {
        let counted = self.process.map(BoxProcess::stop).transpose();
        self.is_over.store(true, Ordering::Release);
        if counted.as_ref().is_ok_and(Option::is_none) {
            return Ok(None); // the box of another command stays connected, so do not wait for the thread
        }
        self.boxes.join().map_err(|_| "a thread of the store panicked")?;
        counted
    }
}

/// A running store with the keys of a workload.
pub(super) struct Store {
    sides: Sides,
    /// Whether no more clients come.
    is_over: Arc<AtomicBool>,
    /// Whether the memory nodes get no more requests.
    is_unused: Arc<AtomicBool>,
    gate: Option<Gate>,
    geometry: Geometry,
    /// Threads of the memory nodes in this process.
    memories: Vec<JoinHandle<()>>,
    metadata: JoinHandle<Result<FinalState, String>>,
}

/// State of the metadata service after the last client had gone.
pub(super) struct FinalState {
    pub(super) nodes: NodeCounts,
    keys: Vec<(Vec<u8>, doorbell_farmem::NodeVersion)>,
    /// Counters of the middlebox, or of the last one if there were several.
    pub(super) box_counters: Option<Value>,
    /// Number of memory nodes that served at the end.
    pub(super) memory_nodes: usize,
    /// Index of the memory node that served alone at the end, if the other memory node has failed.
    alone: Option<usize>,
}

/// Yields the CPU of a polling thread, at once after [`PATIENCE`] polls without work.
#[derive(Default)]
pub(super) struct Patience(u32);

impl Patience {
    pub(super) fn after(&mut self, happened: bool) {
        self.0 = if happened { 0 } else { self.0.saturating_add(1) };
        if self.0 > PATIENCE {
            std::thread::yield_now();
        }
    }
}

impl Store {
    /// Starts a store for `clients` clients: one memory node, or two with the same data, and a metadata service on a
    /// device of its own. A middlebox damages arriving packets as `fault` says. With a strategy that needs a
    /// middlebox, all devices are software RNICs unless `other` names a running box. Clients take the first CPUs of
    /// `pinning`. Memory node, metadata service and middlebox take the CPUs after those of the clients.
    pub(super) fn start(
        (memories, of_metadata): (Vec<NodeAt>, Device),
        strategy: Strategy,
        load: Load,
        clients: usize,
        (fault, other): (Option<FaultPlan>, OtherBox),
        pinning: &Pinning,
    ) -> Result<Self, Failure> {
        let geometry = load.geometry(clients);
        let udp_port = of_metadata.attributes().udp_port;
        let is_over = Arc::new(AtomicBool::new(false));
        let (to_metadata, for_metadata) = channel();
        let is_unused = Arc::new(AtomicBool::new(false));
        let (mut sides, mut threads) = (Vec::new(), Vec::new());
        for memory in memories {
            let of_memory = match memory {
                NodeAt::There(process) => {
                    sides.push(MemorySide::There(Arc::new(process), geometry));
                    continue;
                }
                NodeAt::Here(device) => device,
            };
            // Pin this thread first: the first write to a page puts the page on the NUMA node of the writing thread.
            let pinned = pinning.pin(clients);
            let mut memory = MemoryNode::new(&of_memory.create_pd()?, geometry)?;
            memory.fill(strategy, load.keys, load.value_bytes)?;
            drop(pinned);
            let (to_memory, for_memory) = channel();
            let pinning = pinning.clone();
            let unused = Arc::clone(&is_unused);
            sides.push(MemorySide::Here(to_memory));
            let thread = std::thread::Builder::new().name("memory".to_owned());
            threads.push(thread.spawn(move || {
                let _pinned = pinning.pin(clients);
                serve_memory(memory, &for_memory, &unused);
            })?);
        }
        let replica = sides.get(1).cloned();
        let memory_side = sides.first().cloned().ok_or("a store has a memory node")?;
        let cpu = pinning.cpus.get(clients + 2).copied();
        let box_options = BoxOptions { strategy, geometry, udp_port, fault, cpu };
        let gate = || Gate::open(memory_side.clone(), box_options, other);
        let gate = strategy.is_steered().then(gate).transpose()?;
        let through = gate.as_ref().map(|gate| gate.through);
        let over = Arc::clone(&is_over);
        let mut carrier = Carrier { sides, fencing: Vec::new(), stops: None };
        let pinning = pinning.clone();
        let metadata = std::thread::Builder::new().name("metadata".to_owned()).spawn(move || {
            let _pinned = pinning.pin(clients + 1);
            let open = || -> Result<(Option<ThroughBox>, Metadata), Failure> {
                // Probe silent clients often, so that the service soon notices a killed client.
                let rpc = Config::default().keepalive(KEEPALIVE);
                let options = MetadataOptions { rpc, replicas: carrier.sides.len(), ..MetadataOptions::default() };
                let mut end = MetadataEnd::new(&of_metadata.create_pd()?, options)?;
                if let Some((replica, peer)) = carrier.sides.get(1).zip(end.to_replica()) {
                    end.set_replica(replica.accept(0, peer)?);
                }
                let (through, mut metadata) = match through {
                    None => {
                        let of_memory = carrier.sides[0].accept(0, end.to_memory())?;
                        (None, end.connect(&of_memory)?)
                    }
                    Some(address) => {
                        let (through, metadata) = ThroughBox::connect(address, end, geometry)?;
                        (Some(through), metadata)
                    }
                };
                if strategy != Strategy::Server {
                    metadata.fill(load.keys)?;
                }
                Ok((through, metadata))
            };
            let (through, metadata) = open().map_err(|error| error.to_string())?;
            serve_metadata(metadata, through, &for_metadata, &mut carrier, &over)
        })?;
        let sides = Sides { memory: memory_side, replica, metadata: MetadataSide(to_metadata), through };
        Ok(Self { sides, is_over, is_unused, gate, geometry, memories: threads, metadata })
    }

    /// Kills the middlebox, and starts a new middlebox in its place.
    pub(super) fn replace_box(&mut self) -> Result<(), Failure> {
        match &mut self.gate {
            Some(Gate { process: Some(process), options, node, .. }) => process.replace(*node, options),
            _ => Ok(()),
        }
    }

    /// Kills the process of memory node `node`: 0 or 1. Does nothing for a node that is a thread of this process.
    pub(super) fn kill_node(&self, node: usize) -> Result<(), Failure> {
        match [Some(&self.sides.memory), self.sides.replica.as_ref()].get(node) {
            Some(Some(MemorySide::There(process, _))) => Ok(process.kill()?),
            _ => Ok(()),
        }
    }

    /// Returns the handles by which clients reach the store.
    pub(super) fn sides(&self) -> Sides {
        self.sides.clone()
    }

    /// Waits until every client has gone and the metadata service has finished. Checks that each node of the store is
    /// free, or is intact and the newest node of a key.
    pub(super) fn stop(self) -> Result<FinalState, Failure> {
        let panicked = |_| Failure::from("a thread of the store panicked");
        self.is_over.store(true, Ordering::Release);
        let mut rest = self.metadata.join().map_err(panicked)??;
        rest.box_counters = self.gate.map(Gate::close).transpose()?.flatten();
        let sides = [Some(&self.sides.memory), self.sides.replica.as_ref()];
        for (node, side) in sides.into_iter().flatten().enumerate() {
            if rest.alone.is_none_or(|alone| alone == node) {
                rest.check(self.geometry, side)?;
                rest.memory_nodes += 1;
            }
        }
        self.is_unused.store(true, Ordering::Release);
        self.memories.into_iter().try_for_each(|memory| memory.join().map_err(panicked))?;
        Ok(rest)
    }
}

impl FinalState {
    fn check(&self, geometry: Geometry, memory: &MemorySide) -> Result<(), Failure> {
        let NodeCounts { free, granted, heads, retired, spent } = self.nodes;
        let all = u64::from(geometry.nodes);
        if free + heads + spent != all || granted + retired > 0 {
            return Err(format!(
                "of {all} nodes {free} are free, {heads} have a value, {spent} are spent, {granted} are with clients that \
                 have gone, {retired} are not free again: nodes were lost"
            )
            .into());
        }
        for (key, place) in &self.keys {
            if !memory.holds(*place, key)? {
                return Err(format!("the node of key {key:02x?} is damaged").into());
            }
        }
        Ok(())
    }
}

fn serve_memory(mut memory: MemoryNode, questions: &Receiver<ToMemory>, is_unused: &AtomicBool) {
    let mut patience = Patience::default();
    loop {
        let mut happened = memory.poll();
        match questions.try_recv() {
            Ok(ToMemory::Accept(Question { question: (number, client), answer })) => {
                happened = true;
                let _ = answer.send(memory.accept(number, &client).map_err(|error| error.to_string()));
            }
            Ok(ToMemory::Fence(Question { question: client, answer })) => {
                happened = true;
                let _ = answer.send(memory.fence(client).map(drop).map_err(|error| error.to_string()));
            }
            Ok(ToMemory::Stop(Question { answer, .. })) => {
                happened = true;
                let _ = answer.send(memory.stop().map_err(|error| error.to_string()));
            }
            Ok(ToMemory::Holds(Question { question: (place, key), answer })) => {
                happened = true;
                let node = memory.inspect(place);
                let _ = answer.send(Ok(node.is_some_and(|node| node.is_intact && node.key == key)));
            }
            Err(_) if is_unused.load(Ordering::Acquire) => return,
            Err(_) => {}
        }
        patience.after(happened);
    }
}

/// Carrier of the metadata service's requests to the memory nodes.
struct Carrier {
    sides: Vec<MemorySide>,
    /// Clients to shut out.
    fencing: Vec<u32>,
    /// Index of a memory node that is to stop, and the time from which it serves no request any more.
    stops: Option<(usize, Instant)>,
}

impl Carrier {
    /// Passes stops and fences of the metadata service on to the memory nodes. Returns whether there was work.
    fn work(&mut self, metadata: &mut Metadata) -> Result<bool, String> {
        let mut happened = false;
        if self.sides.len() > 1
            && let Some(node) = self.sides.iter().position(MemorySide::is_gone)
        {
            metadata.lose(node);
        }
        if let Some(node) = metadata.next_stop() {
            self.stops = Some((node, self.sides[node].stop()?));
        }
        if let Some((node, _)) = self.stops.take_if(|(_, at)| Instant::now() >= *at) {
            metadata.stopped(node);
            happened = true;
        }
        while let Some(client) = metadata.next_fence() {
            self.fencing.push(client);
        }
        let mut waiting = Vec::new();
        for client in self.fencing.drain(..) {
            let (mut is_out, alone) = (true, metadata.alone());
            for (node, side) in self.sides.iter().enumerate() {
                if alone.is_some_and(|alone| alone != node) {
                    continue; // the node serves no client any more
                }
                match side.fence(client) {
                    Ok(()) => {}
                    Err(why) if self.sides.len() == 1 || alone.is_some() => return Err(why),
                    Err(_) => {
                        metadata.lose(node);
                        is_out = false;
                    }
                }
            }
            match is_out {
                true => metadata.fenced(client),
                false => waiting.push(client),
            }
            happened |= is_out;
        }
        self.fencing = waiting;
        Ok(happened)
    }
}

fn serve_metadata(
    mut metadata: Metadata,
    mut through: Option<ThroughBox>,
    questions: &Receiver<ToMetadata>,
    carrier: &mut Carrier,
    is_over: &AtomicBool,
) -> Result<FinalState, String> {
    let mut patience = Patience::default();
    loop {
        let mut happened = metadata.poll();
        if let Some(through) = &mut through {
            happened |= through.look_after(&mut metadata).map_err(|error| error.to_string())?;
        }
        if let Ok(Question { question: (number, via, client), answer }) = questions.try_recv() {
            happened = true;
            let noted = match (&mut through, via) {
                (Some(through), Some(via)) => through.note(number, via),
                _ => Ok(()),
            };
            let accept = |()| metadata.accept(number, &client).map_err(|error| error.to_string());
            let _ = answer.send(noted.and_then(accept));
        }
        happened |= carrier.work(&mut metadata)?;
        if is_over.load(Ordering::Acquire) && metadata.clients() == 0 && metadata.is_tidy() {
            let nodes = metadata.nodes();
            if nodes.retired == 0 {
                let (keys, alone) = (metadata.keys(), metadata.alone());
                return Ok(FinalState { nodes, keys, box_counters: None, memory_nodes: 0, alone });
            }
        }
        patience.after(happened);
    }
}
