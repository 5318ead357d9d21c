//! Streams of messages between the nodes of any topology, and their results.

mod streams;

use std::io::Write;

use doorbell_exchange::{Connector, with_connector};
use doorbell_record::{Kind, Parameters, Transport};

use crate::bottleneck::Bottleneck;
use crate::estimate::{self, MemoryError};
use crate::measure::MeasureError;
use crate::simulation::{Simulation, SimulationError, Summary};
use crate::testbed::Testbed;
use crate::time::Ps;
use crate::topology::Topology;
use streams::Streams;

/// Pattern of senders and receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One node sends to another node.
    OneToOne,
    /// N nodes send to one node.
    ManyToOne,
    /// One node sends to N nodes.
    OneToMany,
    /// N nodes send, each to a separate receiver.
    ManyToMany,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 4] = [Self::OneToOne, Self::ManyToOne, Self::OneToMany, Self::ManyToMany];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneToOne => "1:1",
            Self::ManyToOne => "N:1",
            Self::OneToMany => "1:N",
            Self::ManyToMany => "N:N",
        }
    }

    /// Returns the pattern with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name().eq_ignore_ascii_case(name))
    }

    /// Returns the number of nodes that the pattern needs with this N.
    pub fn nodes(self, n: usize) -> usize {
        match self {
            Self::OneToOne => 2,
            Self::ManyToOne | Self::OneToMany => n + 1,
            Self::ManyToMany => 2 * n,
        }
    }

    /// Returns the sender and receiver nodes of each connection.
    pub fn pairs(self, n: usize) -> Vec<(usize, usize)> {
        match self {
            Self::OneToOne => vec![(0, 1)],
            Self::ManyToOne => (1..=n).map(|sender| (sender, 0)).collect(),
            Self::OneToMany => (1..=n).map(|receiver| (0, receiver)).collect(),
            Self::ManyToMany => (0..n).map(|sender| (sender, n + sender)).collect(),
        }
    }
}

/// Messages over connections, which may have replies. Each connection has a separate thread at both ends,
/// unless [`Serving::server_threads`](doorbell_record::Serving::server_threads) sets the number of threads of each
/// receiving node.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Pattern of senders and receivers.
    pub pattern: Pattern,
    /// N of the pattern.
    pub n: usize,
    /// Parameters of each connection: protocol or transport, window, batch, number of messages. The pattern
    /// determines the numbers of connections and threads. A rate is that of all connections.
    pub parameters: Parameters,
    /// Size of each message in bytes, without its reply. With a mix of sizes, the longest one.
    pub bytes: usize,
}

/// Error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// The run failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The run would exceed its memory limit.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The topology has fewer nodes than the pattern.
    #[error("the pattern {pattern} with N = {n} needs {needed} nodes, but the topology has {nodes}")]
    Nodes {
        /// Name of the pattern.
        pattern: &'static str,
        /// N of the pattern.
        n: usize,
        /// Number of nodes that the pattern needs.
        needed: usize,
        /// Number of nodes of the topology.
        nodes: usize,
    },
    /// A latency is measured on one connection only.
    #[error("a latency needs one connection: the pattern is {0}, allowed is 1:1")]
    Latency(&'static str),
    /// The capture file cannot be written.
    #[error("the capture cannot be written: {0}")]
    Capture(#[from] std::io::Error),
}

impl TrafficError {
    /// Returns whether a connection broke during the run, for example because the network dropped a packet and all
    /// its retransmissions.
    pub fn is_broken_connection(&self) -> bool {
        matches!(self, Self::Measure(MeasureError::Connection(_)))
    }
}

/// Options of a run, apart from its traffic.
pub struct Run<'a> {
    /// Costs of each part.
    pub testbed: &'a Testbed,
    /// Nodes and the network between them.
    pub topology: Topology,
    /// Seed of all random choices.
    pub seed: u64,
    /// Memory limit in bytes for the estimate of [`Traffic::memory`].
    pub memory: u64,
    /// Destination of a pcap file with all packets.
    pub capture: Option<Box<dyn Write + Send>>,
    /// Callback that is sometimes called with the number of messages received on all connections.
    pub progress: Option<&'a dyn Fn(u64)>,
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { topology, seed, memory, .. } = self;
        f.debug_struct("Run").field("topology", topology).field("seed", seed).field("memory", memory).finish()
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Messages per second, of all connections.
    pub messages_per_s: f64,
    /// Median latency in nanoseconds: for a latency half a round trip, for messages with replies the time from a
    /// message to its reply.
    pub latency_ns: Option<u64>,
    /// Jain's fairness index of the rates of all connections, each over the time from its first message to the end of
    /// its last. `None` if no message arrived.
    pub fairness: Option<f64>,
    /// RNR NAKs that receivers sent.
    pub rnr_naks: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Virtual time from the first message to the end of the last.
    pub lasted: Ps,
    /// Number of messages sent. Over unacknowledged transports, the number of messages that arrived.
    pub messages: u64,
    /// Number of messages lost over unacknowledged transports. For a latency, the number of rounds without an answer.
    pub lost: u64,
    /// Number of messages that arrived damaged, if verified.
    pub damaged: u64,
    /// Station that was busy longest.
    pub bottleneck: Bottleneck,
    /// Summary of the simulation.
    pub summary: Summary,
}

impl Traffic {
    /// Runs the traffic.
    ///
    /// # Errors
    ///
    /// Returns an error if the run would exceed its memory limit, parameters or topology do not fit, or a connection
    /// breaks.
    pub fn run(&self, run: Run<'_>) -> Result<Carried, TrafficError> {
        self.check(run.topology, run.memory)?;
        if self.parameters.transport != Transport::Rc {
            return self.run_unacknowledged(run);
        }
        with_connector!(self.parameters.protocol, connector => self.run_over(run, &connector))
    }

    /// Checks that the traffic can run on these nodes within `memory` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the run would exceed its memory limit, or parameters or topology do not fit.
    pub fn check(&self, topology: Topology, memory: u64) -> Result<(), TrafficError> {
        let Self { pattern, n, parameters, .. } = self;
        parameters.check().map_err(MeasureError::from)?;
        topology.check().map_err(|error| MeasureError::from(SimulationError::from(error)))?;
        let (needed, nodes) = (pattern.nodes(*n), topology.nodes());
        if *n == 0 || needed > nodes {
            return Err(TrafficError::Nodes { pattern: pattern.name(), n: *n, needed, nodes });
        }
        if parameters.kind == Kind::Latency && pattern.pairs(*n).len() > 1 {
            return Err(TrafficError::Latency(pattern.name()));
        }
        if parameters.transport != Transport::Rc && parameters.serving.server_threads > 0 {
            return Err(MeasureError::Feature("only acknowledged messages share receiving threads").into());
        }
        Ok(MemoryError::check(self.memory(topology)?, memory)?)
    }

    /// Estimates the memory of a run in bytes, from nodes, ports, queue pairs, queues, buffers and packets in flight.
    ///
    /// # Errors
    ///
    /// Returns an error if the messages do not fit into the memory that the parameters allow each connection.
    pub fn memory(&self, topology: Topology) -> Result<u64, TrafficError> {
        let connections = self.pattern.pairs(self.n).len();
        let needed = estimate::bytes(topology, &self.parameters, self.bytes, connections);
        Ok(needed.map_err(MeasureError::from)?)
    }

    fn start<'a>(&self, run: Run<'a>) -> Result<(Simulation<'a>, Streams<'a>), TrafficError> {
        let mut simulation = Simulation::new(run.testbed, run.topology, run.seed).map_err(MeasureError::from)?;
        if let Some(to) = run.capture {
            simulation.capture(to)?;
        }
        let streams = Streams::new(&simulation, self, run.progress)?;
        Ok((simulation, streams))
    }

    fn run_over<C: Connector + 'static>(&self, run: Run<'_>, protocol: &C) -> Result<Carried, TrafficError>
    where
        C::Connection: 'static,
    {
        let (mut simulation, mut streams) = self.start(run)?;
        streams.connect(&mut simulation, self, protocol)?;
        Ok(streams.run(&mut simulation)?)
    }

    fn run_unacknowledged(&self, run: Run<'_>) -> Result<Carried, TrafficError> {
        let (mut simulation, mut streams) = self.start(run)?;
        streams.connect_unacknowledged(&mut simulation, self)?;
        Ok(streams.run(&mut simulation)?)
    }
}
