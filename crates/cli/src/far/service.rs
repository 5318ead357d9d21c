//! The store's side of a run on this machine: the memory node and the metadata service, a thread each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_exchange::Config;
use doorbell_exchange::setup::EndpointDescription;
use doorbell_farmem::workload::Load;
use doorbell_farmem::{
    ClientDescription, MemoryDescription, MemoryNode, Metadata, MetadataEnd, MetadataOptions, NodeCounts, Strategy,
};
use doorbell_verbs::Device;

use crate::Failure;

/// Looks in vain before a thread offers its CPU to others.
const PATIENCE: u32 = 100;
/// After so much silence the service asks whether a client lives.
const KEEPALIVE: Duration = Duration::from_millis(200);
const GONE: &str = "the store has ended";

/// A question with room for its answer.
struct Asked<Q, A> {
    question: Q,
    answer: Sender<Result<A, String>>,
}

fn ask<M, Q, A>(to: &Sender<M>, question: Q, wrap: impl FnOnce(Asked<Q, A>) -> M) -> Result<A, String> {
    let (answer, answers) = channel();
    to.send(wrap(Asked { question, answer })).map_err(|_| GONE.to_owned())?;
    answers.recv().map_err(|_| GONE.to_owned())?
}

enum ToMemory {
    Accept(Asked<(u32, ClientDescription), MemoryDescription>),
    Fence(Asked<u32, ()>),
}

type ToMetadata = Asked<(u32, EndpointDescription), EndpointDescription>;

/// The memory node, for those who connect to it.
#[derive(Clone)]
pub(super) struct MemorySide(Sender<ToMemory>);

impl MemorySide {
    pub(super) fn accept(&self, number: u32, client: ClientDescription) -> Result<MemoryDescription, String> {
        ask(&self.0, (number, client), ToMemory::Accept)
    }

    fn fence(&self, client: u32) -> Result<(), String> {
        ask(&self.0, client, ToMemory::Fence)
    }
}

/// The metadata service, for those who connect to it.
#[derive(Clone)]
pub(super) struct MetadataSide(Sender<ToMetadata>);

impl MetadataSide {
    pub(super) fn accept(&self, number: u32, client: EndpointDescription) -> Result<EndpointDescription, String> {
        ask(&self.0, (number, client), |asked| asked)
    }
}

/// Both.
#[derive(Clone)]
pub(super) struct Sides {
    pub(super) memory: MemorySide,
    pub(super) metadata: MetadataSide,
}

/// A store at work, filled with the keys of a workload.
pub(super) struct Store {
    sides: Sides,
    /// No client comes any more; and nobody asks the memory node any more.
    is_over: Arc<AtomicBool>,
    is_unused: Arc<AtomicBool>,
    memory: JoinHandle<MemoryNode>,
    metadata: JoinHandle<Result<Rest, String>>,
}

/// What the metadata service knew when all clients had gone.
pub(super) struct Rest {
    pub(super) nodes: NodeCounts,
    keys: Vec<(Vec<u8>, doorbell_farmem::Place)>,
}

/// Lets others have the CPU now and then, and at once when there was nothing to do for a while.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    fn after(&mut self, happened: bool) {
        self.0 = if happened { 0 } else { self.0.saturating_add(1) };
        if self.0 > PATIENCE {
            std::thread::yield_now();
        }
    }
}

impl Store {
    /// Starts it on two devices, for so many clients.
    pub(super) fn start(
        [of_memory, of_metadata]: [Device; 2],
        strategy: Strategy,
        load: Load,
        clients: usize,
    ) -> Result<Self, Failure> {
        let mut memory = MemoryNode::new(&of_memory.create_pd()?, load.geometry(clients))?;
        memory.fill(strategy, load.keys, load.value_bytes)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (to_memory, for_memory) = channel();
        let (to_metadata, for_metadata) = channel();
        let memory_side = MemorySide(to_memory);
        let is_unused = Arc::new(AtomicBool::new(false));
        let unused = Arc::clone(&is_unused);
        let memory = std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(move || serve_memory(memory, &for_memory, &unused))?;
        let (over, side) = (Arc::clone(&is_over), memory_side.clone());
        let metadata = std::thread::Builder::new().name("metadata".to_owned()).spawn(move || {
            let open = || -> Result<Metadata, Failure> {
                // So a client that is killed is noticed soon.
                let rpc = Config::default().keepalive(KEEPALIVE);
                let end =
                    MetadataEnd::new(&of_metadata.create_pd()?, MetadataOptions { rpc, ..MetadataOptions::default() })?;
                let of_memory = side.accept(0, end.to_memory())?;
                let mut metadata = end.connect(&of_memory)?;
                if strategy != Strategy::Server {
                    metadata.fill(load.keys)?;
                }
                Ok(metadata)
            };
            let metadata = open().map_err(|error| error.to_string())?;
            serve_metadata(metadata, &for_metadata, &side, &over)
        })?;
        let sides = Sides { memory: memory_side, metadata: MetadataSide(to_metadata) };
        Ok(Self { sides, is_over, is_unused, memory, metadata })
    }

    /// How clients reach it.
    pub(super) fn sides(&self) -> Sides {
        self.sides.clone()
    }

    /// Waits until every client has gone and everything is tidy, and checks what is left: each node is free or the
    /// newest of a key, and intact.
    pub(super) fn stop(self) -> Result<Rest, Failure> {
        let panicked = |_| Failure::from("a thread of the store panicked");
        self.is_over.store(true, Ordering::Release);
        let rest = self.metadata.join().map_err(panicked)??;
        self.is_unused.store(true, Ordering::Release);
        let memory = self.memory.join().map_err(panicked)?;
        rest.check(&memory)?;
        Ok(rest)
    }
}

impl Rest {
    fn check(&self, memory: &MemoryNode) -> Result<(), Failure> {
        let NodeCounts { free, granted, heads, retired, spent } = self.nodes;
        let all = u64::from(memory.geometry().nodes);
        if free + heads + spent != all || granted + retired > 0 {
            return Err(format!(
                "of {all} nodes {free} are free, {heads} have a value, {spent} are spent, {granted} are with clients that \
                 have gone, {retired} are not free again: nodes were lost"
            )
            .into());
        }
        for (key, place) in &self.keys {
            let is_whole = memory.inspect(*place).is_some_and(|node| node.is_intact && &node.key == key);
            if !is_whole {
                return Err(format!("the node of key {key:02x?} is damaged").into());
            }
        }
        Ok(())
    }
}

fn serve_memory(mut memory: MemoryNode, questions: &Receiver<ToMemory>, is_unused: &AtomicBool) -> MemoryNode {
    let mut patience = Patience::default();
    loop {
        let mut happened = memory.poll();
        match questions.try_recv() {
            Ok(ToMemory::Accept(Asked { question: (number, client), answer })) => {
                happened = true;
                let _ = answer.send(memory.accept(number, &client).map_err(|error| error.to_string()));
            }
            Ok(ToMemory::Fence(Asked { question: client, answer })) => {
                happened = true;
                let _ = answer.send(memory.fence(client).map(drop).map_err(|error| error.to_string()));
            }
            Err(_) if is_unused.load(Ordering::Acquire) => return memory,
            Err(_) => {}
        }
        patience.after(happened);
    }
}

fn serve_metadata(
    mut metadata: Metadata,
    questions: &Receiver<ToMetadata>,
    memory: &MemorySide,
    is_over: &AtomicBool,
) -> Result<Rest, String> {
    let mut patience = Patience::default();
    loop {
        let mut happened = metadata.poll();
        if let Ok(Asked { question: (number, client), answer }) = questions.try_recv() {
            happened = true;
            let _ = answer.send(metadata.accept(number, &client).map_err(|error| error.to_string()));
        }
        while let Some(client) = metadata.next_fence() {
            memory.fence(client)?;
            metadata.fenced(client);
        }
        if is_over.load(Ordering::Acquire) && metadata.clients() == 0 && metadata.is_tidy() {
            let nodes = metadata.nodes();
            if nodes.retired == 0 {
                return Ok(Rest { nodes, keys: metadata.keys() });
            }
        }
        patience.after(happened);
    }
}
