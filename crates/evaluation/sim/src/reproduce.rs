//! Simulations of published results in their published configurations.
//!
//! [`Runs`] implements [`Predictor`], as the model does. `doorbell_model::check` compares the predictions of the
//! simulator and of the model with the published rows and shapes.

use std::collections::BTreeMap;
use std::io::{self, Write};

pub use doorbell_model::check::Lack;
use doorbell_model::check::{Binding, Manner, Needed, Order, Ordered, Packets, Predictor, Rated, StoreFigures, Stored};
use doorbell_model::operation::{Posted, PostedOperation as Asked};
use doorbell_model::workload::Workload;
use doorbell_protocols::{Protocol, Release};
use doorbell_record::{
    Extent, FarPoint, Figure, Kind, Operation, OrderPoint, Parameters, PointResult, SharedBy, StorePoint, Strategy,
};
use doorbell_wire::{MessageKind, OuterKind, Transport, message_cost};

use crate::bottleneck::{Bottleneck, Station};
use crate::estimate::{self, MemoryError};
use crate::far;
use crate::far::published::published_store;
use crate::measure::{ANSWERING, ASKING, HOSTS, Load, Measured, measure, measure_captured};
use crate::paced::highest_without_rnr;
use crate::testbed::{Parameter, Testbed};

/// Minimum number of receives of a connection.
const LEAST_DEPTH: usize = 128;

/// Length of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Messages of a run, over all connections.
    pub messages: u64,
    /// Minimum number of messages of each connection.
    pub least_each: u64,
    /// Rounds of a latency run.
    pub rounds: u64,
    /// Microseconds for which operations of a store are counted.
    pub store_us: u64,
}

impl Effort {
    /// Length with which all rows take minutes.
    pub const USUAL: Self = Self { messages: 40_000, least_each: 1000, rounds: 500, store_us: 4000 };
    /// Length with which all rows take less than a minute.
    pub const QUICK: Self = Self { messages: 8000, least_each: 300, rounds: 100, store_us: 2000 };
    /// Length for smooth curves.
    pub const FULL: Self = Self { messages: 200_000, least_each: 2000, rounds: 2000, store_us: 20_000 };

    /// Returns the extent of a run with messages of this size, and with replies as the parameters state.
    pub fn extent(self, parameters: &Parameters, bytes: usize) -> Extent {
        let each = match parameters.kind {
            Kind::Latency => self.rounds,
            Kind::Bandwidth => (self.messages / parameters.connections.max(1) as u64).max(self.least_each),
        };
        // Simulating one long message takes as much time as simulating many short messages.
        let longest = parameters.longest(bytes).max(1) as u64;
        Extent::Messages(each.min((LONG_BYTES / longest).max(SHORTEST)))
    }
}

/// Opens a destination for the packets of a run.
type Captures = Box<dyn FnMut() -> io::Result<Box<dyn Write + Send>>>;

/// Simulations of one testbed. A simulation that several rows need runs only once.
pub struct Runs<'a> {
    testbed: &'a Testbed,
    effort: Effort,
    seed: u64,
    memory: u64,
    captures: Option<Captures>,
    done: BTreeMap<String, Measured>,
    far: BTreeMap<String, PointResult>,
}

impl std::fmt::Debug for Runs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { testbed, effort, seed, memory, .. } = self;
        let mut out = f.debug_struct("Runs");
        out.field("testbed", &testbed.name).field("effort", effort).field("seed", seed).field("memory", memory);
        out.finish_non_exhaustive()
    }
}

/// Converts the error of a run into the reason why a prediction has no number.
fn failed(error: impl std::fmt::Display) -> Lack {
    Lack::Failed(error.to_string())
}

impl<'a> Runs<'a> {
    /// Creates an empty set of runs.
    pub fn new(testbed: &'a Testbed, effort: Effort) -> Self {
        let (captures, done, far) = (None, BTreeMap::new(), BTreeMap::new());
        Self { testbed, effort, seed: SEED, memory: u64::MAX, captures, done, far }
    }

    /// Sets the seed, if one is given.
    pub fn with_seed(mut self, seed: Option<u64>) -> Self {
        self.seed = seed.unwrap_or(SEED);
        self
    }

    /// Returns the testbed of the runs.
    pub(crate) fn testbed(&self) -> &'a Testbed {
        self.testbed
    }

    /// Limits the estimated memory of each run, in bytes.
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Writes the packets of each run to a pcap file that `open` opens. A search of the highest rate without RNR NAKs
    /// captures only the run with that rate, which it repeats.
    pub fn with_captures(mut self, open: impl FnMut() -> io::Result<Box<dyn Write + Send>> + 'static) -> Self {
        self.captures = Some(Box::new(open));
        self
    }

    /// Returns the result of a shared-memory point, from an earlier run if possible.
    pub(crate) fn far(&mut self, point: &FarPoint) -> Result<PointResult, Lack> {
        let key = format!("{point:?}");
        if let Some(result) = self.far.get(&key) {
            return Ok(result.clone());
        }
        let result = far::simulate(self.testbed, point, self.seed).map_err(failed)?.result;
        self.far.insert(key, result.clone());
        Ok(result)
    }

    /// Returns the result of a load, from an earlier run if possible. If `is_paced`, the load runs at the highest rate
    /// without RNR NAKs.
    pub(crate) fn run(&mut self, load: &Load, is_paced: bool) -> Result<Measured, Lack> {
        let load = self.with_extent(load, is_paced);
        let key = format!("{load:?} {is_paced}");
        if let Some(measured) = self.done.get(&key) {
            return Ok(measured.clone());
        }
        let connections = load.parameters.connections;
        let needed = estimate::bytes(HOSTS, &load.parameters, load.bytes, connections).map_err(failed)?;
        MemoryError::check(needed, self.memory).map_err(failed)?;
        let highest = if is_paced {
            let highest = highest_without_rnr(self.testbed, &load, self.seed).map_err(failed)?;
            Some(highest.ok_or(Lack::Feature("every rate provokes RNR NAKs"))?)
        } else {
            None
        };
        let measured = match (&mut self.captures, highest) {
            (None, Some(highest)) => highest,
            (None, None) => measure(self.testbed, &load, self.seed).map_err(failed)?,
            (Some(open), highest) => {
                let mut captured = load;
                if let Some(highest) = highest {
                    captured.parameters.rate = highest.offered;
                }
                measure_captured(self.testbed, &captured, self.seed, open().map_err(failed)?).map_err(failed)?
            }
        };
        self.done.insert(key, measured.clone());
        Ok(measured)
    }

    fn with_extent(&self, load: &Load, is_paced: bool) -> Load {
        let mut load = load.clone();
        let extent = self.effort.extent(&load.parameters, load.bytes);
        // A receiver that is too slow causes RNR NAKs only once it has no receives left, so a paced run must be long.
        load.parameters.extent = match extent {
            Extent::Messages(each) if is_paced => Extent::Messages(each.max(DEPTHS * load.parameters.depth as u64)),
            extent => extent,
        };
        load
    }

    pub(crate) fn latency(&mut self, load: &Load) -> Result<f64, Lack> {
        let mut load = load.clone();
        load.parameters.kind = Kind::Latency;
        (load.parameters.window, load.parameters.batch) = (1, 1);
        let measured = self.run(&load, false)?;
        measured.latency_ns.map(|ns| ns as f64).ok_or(Lack::Quantity("the latency of this workload"))
    }

    /// Converts a published workload. Each message has a completion. Lists have one receive or one work request, unless
    /// the workload states otherwise.
    fn load(&self, workload: &Workload, manner: Manner) -> Load {
        let bytes = workload.bytes as usize;
        let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, bytes);
        parameters.depths_are_defaults = false;
        parameters.protocol = workload.protocol;
        parameters.window = workload.window as usize;
        parameters.batch = workload.batch as usize;
        // With this depth, the receiver does not run out of receives while the sender waits for acknowledgements.
        parameters.depth = (2 * parameters.window).max(LEAST_DEPTH);
        parameters.inline = workload.inline_bytes as usize;
        parameters.credits = workload.credits || !workload.protocol.is_possible_without_credits();
        parameters.connections = workload.peers.connections as usize;
        parameters.mtu = workload.path_mtu.map(doorbell_wire::PathMtu::bytes);
        // No publication states that it leaves messages unsignaled.
        parameters.signal_each = true;
        let serving = &mut parameters.serving;
        serving.threads = workload.peers.senders as usize;
        serving.poll_list = workload.receive_batch as usize;
        serving.repost_list = workload.repost_batch as usize;
        if workload.srq {
            serving.shared_receives = Some(if workload.repost_thread { SharedBy::Thread } else { SharedBy::Lock });
        }
        serving.single_receiver = manner.one_queue && workload.protocol == Protocol::SendReceive;
        if workload.peers.receivers != workload.peers.senders && !serving.single_receiver {
            serving.server_threads = workload.peers.receivers as usize;
        }
        Load::new(parameters, bytes)
    }

    /// Converts operations on bare queue pairs.
    fn posted(&self, posted: &Posted) -> Result<Load, Lack> {
        let bytes = posted.bytes as usize;
        let mut parameters = Parameters::plain(Kind::Bandwidth, Operation::Send, bytes);
        parameters.depths_are_defaults = false;
        parameters.operation = match posted.operation {
            Asked::Send => Operation::Send,
            Asked::Write => Operation::Write,
            Asked::Read => Operation::Read,
            Asked::CompareSwap => Operation::CompareSwap,
            Asked::FetchAdd => Operation::FetchAdd,
            Asked::RequestResponse => Operation::RequestResponse,
            Asked::UdSend => return Err(Lack::Feature("the simulator has no unreliable datagrams")),
        };
        parameters.connections = posted.connections as usize;
        parameters.window = posted.window as usize;
        parameters.depth = (2 * parameters.window).max(LEAST_DEPTH);
        parameters.mtu = posted.path_mtu.map(doorbell_wire::PathMtu::bytes);
        // Messages of T2 have immediate data if the published byte counts include immediate data. In the simulation,
        // messages have immediate data if credits are on.
        parameters.credits = posted.immediate;
        parameters.inline = posted.inline_bytes as usize;
        parameters.batch = posted.batch as usize;
        parameters.addresses =
            posted.operation.is_atomic().then_some((posted.addresses as usize).clamp(1, parameters.connections));
        let outstanding = posted.outstanding.map(|all| all as usize);
        Ok(Load { parameters, bytes, in_rounds: posted.in_rounds, outstanding })
    }

    fn rated(measured: &Measured) -> Rated {
        let binding = binding(measured);
        Rated { messages_per_s: measured.messages_per_s, binding, rnr_naks: measured.rnr_naks }
    }
}

impl Predictor for Runs<'_> {
    fn is_fitted(&self, id: &str) -> bool {
        let is_named = |parameter: Parameter<'_>| parameter.is_fitted && names(parameter.source, id);
        id == StorePoint::FITTED_ON || self.testbed.parameters().any(is_named)
    }

    fn latency_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.latency(&self.load(workload, Manner::default()))
    }

    fn rate(&mut self, workload: &Workload, manner: Manner) -> Result<Rated, Lack> {
        self.run(&self.load(workload, manner), manner.is_paced).map(|measured| Self::rated(&measured))
    }

    /// Returns the rate of the direction with the payload.
    fn line_rate(&mut self, workload: &Workload) -> Result<f64, Lack> {
        let reads = workload.protocol.release() == Release::Receiver;
        let kind = if reads { MessageKind::Read } else { MessageKind::Send };
        let mtu = workload.path_mtu.unwrap_or(self.testbed.link.path_mtu);
        let cost = message_cost(kind, Transport::Rc, workload.bytes, mtu, OuterKind::IPV4).map_err(failed)?;
        let line_bytes = match cost.response {
            doorbell_wire::Response::Exact(response) => response.line_bytes,
            _ => cost.request.line_bytes,
        };
        Ok(self.testbed.link.rate.bits_per_s() as f64 / 8.0 / line_bytes as f64)
    }

    fn posting_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        let cpu = &self.testbed.cpu;
        Ok((cpu.post_list.0 as f64 / f64::from(workload.batch) + cpu.post_wr.0 as f64) / 1e3)
    }

    fn sending_cpu_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        let measured = self.run(&self.load(workload, Manner::default()), false)?;
        let threads = measured.summary.threads.iter().filter(|thread| thread.node == ASKING);
        let worked: u64 = threads.map(|thread| thread.worked.0).sum();
        Ok(worked as f64 / 1e3 / measured.messages.max(1) as f64)
    }

    fn operations(&mut self, posted: &Posted) -> Result<Rated, Lack> {
        self.run(&self.posted(posted)?, false).map(|measured| Self::rated(&measured))
    }

    fn packets(&mut self, posted: &Posted) -> Result<Packets, Lack> {
        let measured = self.run(&self.posted(posted)?, false)?;
        let target = measured.counted[ANSWERING].ok_or(Lack::Quantity("the counters of the answering host"))?;
        let each = |count: u64| count as f64 / measured.messages.max(1) as f64;
        Ok(Packets {
            packets_in: each(target.rx_vport_rdma_unicast_packets),
            packets_out: each(target.tx_vport_rdma_unicast_packets),
            bytes_in: each(target.rx_vport_rdma_unicast_bytes),
            bytes_out: each(target.tx_vport_rdma_unicast_bytes),
        })
    }

    fn order(&mut self, asked: &Ordered) -> Result<Order, Lack> {
        let operation = match asked.operation {
            Asked::Read => Operation::Read,
            Asked::Write => Operation::Write,
            Asked::CompareSwap => Operation::CompareSwap,
            _ => return Err(Lack::Feature("the order of operations that need receives is not simulated")),
        };
        let result = self.far(&FarPoint::Order(OrderPoint {
            operation,
            queue_pairs: asked.connections as usize,
            addresses: asked.addresses,
            zipf: asked.zipf,
            rate_per_s: asked.rate_per_s.unwrap_or(UNLIMITED),
            outstanding: asked.window as usize,
            requests: if asked.rate_per_s.is_some() { REQUESTS } else { UNPACED_REQUESTS },
        }))?;
        let figure = |figure| result.far.get(&figure).copied().ok_or(Lack::Quantity("the order of these requests"));
        Ok(Order {
            in_order: figure(Figure::InOrder)? / 100.0,
            same_address_late: figure(Figure::SameAddressOutOfOrder)? / 100.0,
            largest_gap: figure(Figure::LargestGap)?,
        })
    }

    fn store(&mut self, asked: &Stored) -> Result<StoreFigures, Lack> {
        let Stored { clients, keys, zipf, write_percent, is_steered } = *asked;
        let strategy = if is_steered { Strategy::Steered } else { Strategy::Optimistic };
        let store = published_store(strategy, clients as usize);
        let measure_us = self.effort.store_us as f64;
        let result = self.far(&FarPoint::Store(StorePoint { keys, zipf, write_percent, measure_us, ..store }))?;
        let figure = |figure| result.far.get(&figure).copied().ok_or(Lack::Quantity("operations of this kind"));
        Ok(StoreFigures {
            success_of_reads: figure(Figure::GetSuccess).ok().map(|percent| percent / 100.0),
            success_of_writes: figure(Figure::PutSuccess)? / 100.0,
            bytes_per_operation: figure(Figure::BytesPerOperation)?,
            write_p99_ns: figure(Figure::PutP99)? * 1e3,
        })
    }

    /// Returns 8 for WRITEs, the maximum that the publication uses. For READs and atomic operations, returns 16, the
    /// limit of a queue pair.
    fn unstated_window(&self, operation: Asked) -> Result<u32, Lack> {
        Ok(if operation == Asked::Write { 8 } else { 16 })
    }

    fn reads_in_flight(&self) -> Result<u32, Lack> {
        Ok(self.testbed.nic.max_rd_atomic as u32)
    }

    fn inline_receive_bytes(&self) -> Result<u64, Lack> {
        Ok(self.testbed.nic.inline_receive)
    }

    fn has(&self, needed: Needed) -> Result<(), Lack> {
        match needed {
            Needed::Interrupts => Err(Lack::Feature(
                "the hosts of simulated rows poll, so the simulator does not predict the cost of interrupts",
            )),
            Needed::InlineCopies | Needed::CompletionQueues | Needed::RnrNaks => Ok(()),
        }
    }
}

/// Returns the bottleneck of a run. If the model has the same bottleneck, the name is that of the model.
fn binding(measured: &Measured) -> Binding {
    let bottleneck = Bottleneck::of(&measured.summary);
    let answers = bottleneck.node == Some(ANSWERING);
    let name = match bottleneck.station {
        _ if !bottleneck.binds() => "latency",
        Station::Thread if answers => "receiving CPU",
        Station::Thread => "sending CPU",
        Station::Unit if answers => "receiving NIC's units",
        Station::Unit => "sending NIC's units",
        Station::Send | Station::Gather | Station::Receive if answers => "receiving NIC",
        Station::Send | Station::Gather | Station::Receive => "sending NIC",
        Station::Fetch | Station::Write if answers => "receiver's PCIe",
        Station::Fetch | Station::Write => "sender's PCIe",
        Station::Port | Station::SwitchPort => "link",
    };
    let is_receiving_cpu = bottleneck.binds() && bottleneck.station == Station::Thread && answers;
    Binding { name, is_receiving_cpu }
}

/// Requests of a run about order with a rate, as many as in the experiment `far-memory/reordering`.
const REQUESTS: u64 = 20_000;
/// Requests of a run about order without a rate. There are more, since few of them are late.
const UNPACED_REQUESTS: u64 = 100_000;
/// Requests per second that no queue pair reaches.
const UNLIMITED: f64 = 1e15;

/// Default seed of all runs, so that each user gets the same results.
pub const SEED: u64 = 1;
/// Maximum number of bytes that each connection of a run carries. A run of long messages has fewer messages because of
/// this limit, but at least [`SHORTEST`].
const LONG_BYTES: u64 = 64 << 20;
/// Minimum number of messages of each connection in a run that [`LONG_BYTES`] limits.
const SHORTEST: u64 = 64;
/// Minimum number of messages per receive buffer in a search of the highest rate without RNR NAKs.
const DEPTHS: u64 = 20;

/// Returns whether a sentence names a row, by its whole id or by a prefix and a star.
pub(crate) fn names(sentence: &str, id: &str) -> bool {
    sentence.split([' ', ',', '(', ')', ';']).map(|word| word.trim_end_matches('.')).any(|word| {
        match word.strip_suffix('*') {
            Some(beginning) => beginning.contains('/') && id.starts_with(beginning),
            None => word == id,
        }
    })
}
