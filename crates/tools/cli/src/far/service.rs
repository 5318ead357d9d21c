//! The store of a run on this machine: memory nodes and the metadata service. The metadata service is a thread of this
//! process. A memory node is a thread of this process or a process of its own. Strategies with a middlebox have a
//! middlebox process in front of the memory node.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_exchange::Config;
use doorbell_fabric::FaultPlan;
use doorbell_farmem::assembly::{
    AssemblyError, BoxEntrance, Exchange, Mailbox, MemoryParty, MetadataParty, Party, Plan,
};
use doorbell_farmem::{MetadataOptions, NodeCounts};
use doorbell_machine::pinning::Pinning;
use doorbell_verbs::Device;
use serde_json::Value;

use super::arguments::OtherBox;
use super::memory::MemoryHandle;
use super::middlebox::{BoxOptions, Gate};
use crate::failure::Failure;
use crate::output::print_note;

/// Time without packets of a client after which the metadata service probes the client.
const KEEPALIVE: Duration = Duration::from_millis(200);

/// Location of the memory nodes.
pub(super) enum Memories<'a> {
    /// In this process, each on a device.
    Here(Vec<Device>),
    /// Each in a process of its own, which this command starts with another `--index`.
    There(&'a dyn Fn() -> std::io::Result<Command>),
}

/// A running store with the keys of a workload.
pub(super) struct Store {
    pub(super) exchange: Exchange,
    /// Whether no more clients come.
    is_over: Arc<AtomicBool>,
    pub(super) gate: Option<Gate>,
    /// Threads of the memory nodes in this process.
    memories: Vec<JoinHandle<()>>,
    /// Processes of the other memory nodes.
    processes: Vec<MemoryHandle>,
    metadata: JoinHandle<Result<FinalState, String>>,
}

/// Guard that ends all other parties with the metadata service, even if the service panics.
struct Closing(Exchange);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// State of the store after the last client had gone.
pub(super) struct FinalState {
    pub(super) nodes: NodeCounts,
    /// Counters of the middlebox, or of the last one if there were several.
    pub(super) box_counters: Option<Value>,
    /// Number of memory nodes that served at the end.
    pub(super) memory_nodes: usize,
}

impl Store {
    /// Starts a store: memory nodes with the same data, and a metadata service on a device of its own. A middlebox
    /// damages arriving packets as `fault` says. With a strategy that needs a middlebox, all devices are software RNICs
    /// unless `other` names a running box. Clients take the first CPUs of `pinning`. Memory node, metadata service and
    /// middlebox take the CPUs after those of the clients.
    pub(super) fn start(
        (memories, of_metadata): (Memories<'_>, Device),
        plan: Plan,
        (fault, other): (Option<FaultPlan>, OtherBox),
        pinning: &Pinning,
    ) -> Result<Self, Failure> {
        let (clients, exchange) = (plan.clients, Exchange::new(&plan));
        // The mailbox must exist before a memory node asks for its second lease.
        let mailbox = exchange.mailbox(Party::Metadata);
        let (mut threads, mut processes) = (Vec::new(), Vec::new());
        match memories {
            Memories::There(command) => {
                for index in 0..plan.replicas as u8 {
                    let mut command = command()?;
                    command.args(["--index", &index.to_string()]);
                    processes.push(MemoryHandle::start(&mut command, index, &exchange)?);
                }
            }
            Memories::Here(devices) => {
                for (index, device) in (0..).zip(devices) {
                    // Pin this thread first: the first write to a page puts the page on the NUMA node of the writing
                    // thread.
                    let pinned = pinning.pin(clients);
                    let mut memory = MemoryParty::new(&device.create_pd()?, &plan, index)?;
                    drop(pinned);
                    let (pinning, mut mailbox) = (pinning.clone(), exchange.mailbox(Party::Memory(index)));
                    let thread = std::thread::Builder::new().name("memory".to_owned());
                    threads.push(thread.spawn(move || {
                        let _pinned = pinning.pin(clients);
                        memory.serve(&mut mailbox, &device, print_note);
                    })?);
                }
            }
        }
        let (udp_port, cpu) = (of_metadata.attributes().udp_port, pinning.cpus.get(clients + 2).copied());
        let options = BoxOptions { strategy: plan.strategy, geometry: plan.geometry, udp_port, fault, cpu };
        let gate = plan.is_boxed.then(|| Gate::open(&exchange, options, other)).transpose()?;
        let entrance = gate.as_ref().map(|gate| BoxEntrance::new(gate.through));
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, ended, pinning) = (Arc::clone(&is_over), exchange.clone(), pinning.clone());
        let metadata = std::thread::Builder::new().name("metadata".to_owned()).spawn(move || {
            let _pinned = pinning.pin(clients + 1);
            let _closing = Closing(ended);
            serve_metadata(&of_metadata, &plan, mailbox.through(entrance), &over).map_err(|error| error.to_string())
        })?;
        Ok(Self { exchange, is_over, gate, memories: threads, processes, metadata })
    }

    /// Kills the process of memory node `node`: 0 or 1. Does nothing for a node that is a thread of this process.
    pub(super) fn kill_node(&self, node: usize) -> Result<(), Failure> {
        Ok(self.processes.get(node).map_or(Ok(()), MemoryHandle::kill)?)
    }

    /// Returns the mailbox of a client in this process.
    pub(super) fn mailbox(&self, client: u32) -> Mailbox {
        let entrance = self.gate.as_ref().map(|gate| BoxEntrance::new(gate.through));
        self.exchange.mailbox(Party::Client(client)).through(entrance)
    }

    /// Waits until every client has gone and the metadata service has finished and checked the nodes of the store.
    pub(super) fn stop(self) -> Result<FinalState, Failure> {
        let panicked = |_| Failure::from("a thread of the store panicked");
        self.is_over.store(true, Ordering::Release);
        let mut rest = self.metadata.join().map_err(panicked)??;
        rest.box_counters = self.gate.map(Gate::close).transpose()?.flatten();
        self.memories.into_iter().try_for_each(|memory| memory.join().map_err(panicked))?;
        Ok(rest)
    }
}

fn serve_metadata(
    device: &Device,
    plan: &Plan,
    mut mailbox: Mailbox,
    is_over: &AtomicBool,
) -> Result<FinalState, Failure> {
    // Probe silent clients often, so that the service soon notices a killed client.
    let options = MetadataOptions { rpc: Config::default().keepalive(KEEPALIVE), ..MetadataOptions::default() };
    let mut party = MetadataParty::new(&device.create_pd()?, plan, options)?;
    party.serve(&mut mailbox, device, is_over, print_note)?;
    let metadata = party.metadata().ok_or(AssemblyError::Ended)?;
    let memory_nodes = if metadata.alone().is_some() { 1 } else { plan.replicas };
    Ok(FinalState { nodes: metadata.nodes(), box_counters: None, memory_nodes })
}
