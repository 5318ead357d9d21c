//! Streams of messages between the nodes of any topology: who sends to whom, and what came out.

mod streams;

use std::io::Write;

use doorbell_exchange::{Connector, with_connector};
use doorbell_study::parameters::{Kind, Parameters, Transport};

use crate::bottleneck::Bottleneck;
use crate::estimate::{self, MemoryError};
use crate::measure::MeasureError;
use crate::simulation::{Simulation, SimulationError, Summary};
use crate::testbed::Testbed;
use crate::time::Ps;
use crate::topology::Topology;
use streams::Streams;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One node to another.
    OneToOne,
    /// N nodes to one.
    ManyToOne,
    /// One node to N.
    OneToMany,
    /// N nodes, each to another one of its own.
    ManyToMany,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::OneToOne, Self::ManyToOne, Self::OneToMany, Self::ManyToMany];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneToOne => "1:1",
            Self::ManyToOne => "N:1",
            Self::OneToMany => "1:N",
            Self::ManyToMany => "N:N",
        }
    }

    /// The pattern of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name().eq_ignore_ascii_case(name))
    }

    /// How many nodes it takes with this N.
    pub fn nodes(self, n: usize) -> usize {
        match self {
            Self::OneToOne => 2,
            Self::ManyToOne | Self::OneToMany => n + 1,
            Self::ManyToMany => 2 * n,
        }
    }

    /// The nodes of each connection: sender and receiver.
    pub fn pairs(self, n: usize) -> Vec<(usize, usize)> {
        match self {
            Self::OneToOne => vec![(0, 1)],
            Self::ManyToOne => (1..=n).map(|sender| (sender, 0)).collect(),
            Self::OneToMany => (1..=n).map(|receiver| (0, receiver)).collect(),
            Self::ManyToMany => (0..n).map(|sender| (sender, n + sender)).collect(),
        }
    }
}

/// Messages of one size over connections, each with a thread of its own at both ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Who sends to whom.
    pub pattern: Pattern,
    /// The N of the pattern.
    pub n: usize,
    /// Each connection: protocol or transport, window, batch, how many messages. The numbers of connections and threads
    /// are those of the pattern.
    pub parameters: Parameters,
    /// Bytes of each message.
    pub bytes: usize,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// The run failed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The run would need more memory than it may.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The topology has fewer nodes than the pattern.
    #[error("{pattern} with {n} nodes takes {needed} nodes, and the topology has {nodes}")]
    Nodes {
        /// The pattern's name.
        pattern: &'static str,
        /// Its N.
        n: usize,
        /// How many nodes it takes.
        needed: usize,
        /// How many there are.
        nodes: usize,
    },
    /// Latencies are those of one connection.
    #[error("a latency is that of one connection: the pattern is {0}, allowed is 1:1")]
    Latency(&'static str),
    /// The capture's file cannot be written.
    #[error("the capture cannot be written: {0}")]
    Capture(#[from] std::io::Error),
}

/// What a run is beside its traffic.
pub struct Run<'a> {
    /// What each part needs.
    pub testbed: &'a Testbed,
    /// Nodes and what lies between them.
    pub topology: Topology,
    /// Of all that is random.
    pub seed: u64,
    /// Bytes of memory that the run may need, as [`Traffic::memory`] estimates it.
    pub memory: u64,
    /// Where all packets go, as a pcap file.
    pub capture: Option<Box<dyn Write + Send>>,
    /// Called now and then with the messages that have arrived on all connections.
    pub progress: Option<&'a dyn Fn(u64)>,
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { topology, seed, memory, .. } = self;
        f.debug_struct("Run").field("topology", topology).field("seed", seed).field("memory", memory).finish()
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Messages per second, of all connections.
    pub messages_per_s: f64,
    /// Of a latency: its median in nanoseconds, half a round trip.
    pub latency_ns: Option<u64>,
    /// RNR NAKs that receivers sent.
    pub rnr_naks: u64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// Virtual time in which messages were sent.
    pub lasted: Ps,
    /// Messages sent, or, over transports that acknowledge nothing, those that arrived.
    pub messages: u64,
    /// Messages that did not arrive, over transports that acknowledge nothing. Of a latency: rounds without an answer.
    pub lost: u64,
    /// Messages that did not arrive as they were sent, if that was checked.
    pub damaged: u64,
    /// What was busy longest.
    pub bottleneck: Bottleneck,
    /// How the run went.
    pub summary: Summary,
}

impl Traffic {
    /// Runs it.
    ///
    /// # Errors
    ///
    /// The run would need more memory than it may, parameters or topology do not fit, or a connection breaks.
    pub fn run(&self, run: Run<'_>) -> Result<Carried, TrafficError> {
        self.check(run.topology, run.memory)?;
        if self.parameters.transport != Transport::Rc {
            return self.run_unacknowledged(run);
        }
        with_connector!(self.parameters.protocol, connector => self.run_over(run, &connector))
    }

    /// Can it run on these nodes, within so many bytes of memory?
    ///
    /// # Errors
    ///
    /// The run would need more memory than it may, or parameters or topology do not fit.
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
        Ok(MemoryError::check(self.memory(topology)?, memory)?)
    }

    /// Bytes of memory that a run needs, about: from nodes, ports, queue pairs, queues, buffers and packets in flight.
    ///
    /// # Errors
    ///
    /// The messages do not fit into the memory that the parameters allow each connection.
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
