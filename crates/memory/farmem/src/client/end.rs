//! A client that is not connected yet, and its options.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{Config, Connector, SendReceive, send_receive};
use doorbell_verbs::{Access, Device, MemoryKind, Pd};

use super::Client;
use crate::cache::HostCache;
use crate::calls::{self, Calls};
use crate::client_core::{Core, Late};
use crate::combining::WakeWord;
use crate::error::OpenError;
use crate::lane::{Lane, LaneEnd, VerbsLeft};
use crate::layout::Geometry;
use crate::lock_messages::LockMessenger;
use crate::memory::{ClientDescription, MemoryDescription, settings};
use crate::methods::Strategy;
use crate::nodes::{MAX_REPLICAS, Nodes};
use crate::operation::Kind;
use crate::requests::Requests;
use crate::rpc;
use crate::slots::{Slot, State};
use crate::strategy::{self, Means};
use crate::worker::Worker;

/// Maximum number of operations that a client runs at a time.
pub const MAX_OUTSTANDING: usize = 64;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The method by which clients handle conflicting writes.
    pub strategy: Strategy,
    /// Maximum number of operations that run at a time: 1 to 64.
    pub outstanding: usize,
    /// Number of memory nodes with the same content: 1 or 2.
    pub replicas: usize,
    /// Options of the connection with the metadata service, except for the maximum message length, which the store
    /// sets. In a store with two memory nodes, the timeout and the retry count also apply to the queue pairs to these
    /// nodes. Both options determine the time until the client detects that a memory node does not answer.
    pub rpc: Config,
    /// Seed for the random part of waiting times.
    pub seed: u64,
    /// With strategies `lock` and `queue-lock`: the time without a change of a lock after which the client breaks the
    /// lock and has its holder shut out. With strategy `combine`: the maximum time that an operation waits for another
    /// operation of its host.
    pub lease_ns: u64,
    /// Time between linking a node and writing the key's shortcut in the background. The client posts one such WRITE at
    /// a time. 0 means that the client writes the shortcut at once.
    pub shortcut_delay_ns: u64,
    /// Number of verbs after which the client stops for good, even within an operation, as if its process had been
    /// killed. Tests use this to check the effects on other clients.
    pub verbs_until_death: Option<u64>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            strategy: Strategy::Optimistic,
            outstanding: 1,
            replicas: 1,
            rpc: Config::default(),
            seed: 1,
            lease_ns: 100_000_000,
            shortcut_delay_ns: 0,
            verbs_until_death: None,
        }
    }
}

/// Returns the options of a connection with the metadata service, whose ends need room for the longest message.
pub(crate) fn rpc_config(config: &Config) -> Config {
    config.clone().max_message(rpc::MAX_MESSAGE)
}

/// A client that is not connected yet.
#[derive(Debug)]
pub struct ClientEnd {
    device: Device,
    lane: LaneEnd,
    /// The second memory node, if the store has two.
    replica: Option<(LaneEnd, Option<MemoryDescription>)>,
    rpc: send_receive::Endpoint,
    calls: Option<send_receive::Endpoint>,
    pd: Pd,
    options: ClientOptions,
}

impl ClientEnd {
    /// Creates the queue pairs of a client, for a store of this geometry.
    ///
    /// # Errors
    ///
    /// The number of concurrent operations or a size is out of range, or the device has no room.
    pub fn new(pd: &Pd, geometry: Geometry, options: ClientOptions) -> Result<Self, OpenError> {
        geometry.check()?;
        if !(1..=MAX_OUTSTANDING).contains(&options.outstanding) {
            let (what, given) = ("the number of operations that run at a time", options.outstanding);
            return Err(OpenError::Geometry { what, given, least: 1, most: MAX_OUTSTANDING });
        }
        check_replicas(options.replicas)?;
        if options.replicas > 1 && !options.strategy.is_replicable() {
            return Err(OpenError::NotReplicated(options.strategy.name()));
        }
        let rpc = SendReceive.endpoint(pd, &rpc_config(&options.rpc), None)?;
        let calls = match options.strategy {
            Strategy::Server => {
                let config = calls::config(&options.rpc, &geometry).window(options.outstanding).batch(1);
                Some(SendReceive.endpoint(pd, &config, None)?)
            }
            _ => None,
        };
        // One more slot serves background WRITEs.
        let settings = || settings(options.replicas, &options.rpc);
        let lane = || LaneEnd::new(pd, options.outstanding + 1, settings());
        let replica = (options.replicas > 1).then(lane).transpose()?.map(|end| (end, None));
        Ok(Self { device: pd.device().clone(), pd: pd.clone(), lane: lane()?, replica, rpc, calls, options })
    }

    /// Returns the client's description for [`MemoryNode::accept`](crate::MemoryNode::accept) of the memory node.
    pub fn to_memory(&self) -> ClientDescription {
        let calls = self.calls.as_ref().map(|endpoint| SendReceive.describe(endpoint));
        ClientDescription { lane: self.lane.description(), calls }
    }

    /// Returns the client's description for the second memory node, if the store has two.
    pub fn to_replica(&self) -> Option<ClientDescription> {
        self.replica.as_ref().map(|(lane, _)| ClientDescription { lane: lane.description(), calls: None })
    }

    /// Stores the description that the second memory node returned.
    pub fn set_replica(&mut self, memory: MemoryDescription) {
        if let Some((_, of_memory)) = &mut self.replica {
            *of_memory = Some(memory);
        }
    }

    /// Returns the client's description for [`Metadata::accept`](crate::Metadata::accept) of the metadata service.
    pub fn to_metadata(&self) -> EndpointDescription {
        SendReceive.describe(&self.rpc)
    }

    /// Connects the client. The memory nodes and the metadata service have accepted this client as number `number`.
    ///
    /// # Errors
    ///
    /// A description is invalid, there is no memory for buffers, or the second memory node of a store with two was not
    /// [set](Self::set_replica).
    pub fn connect(
        self,
        number: u32,
        memory: &MemoryDescription,
        metadata: &EndpointDescription,
        cache: &Arc<HostCache>,
    ) -> Result<Client, OpenError> {
        let Self { device, pd, lane, replica, rpc, calls, options } = self;
        let verbs_left = Rc::new(Cell::new(options.verbs_until_death));
        let first = lane.connect(memory, &verbs_left)?;
        let second = replica.map(|replica| connect_replica(replica, memory, &verbs_left)).transpose()?;
        let nodes = Nodes::new(first, second);
        let mut requests = Requests::new(SendReceive.connect(rpc, metadata)?);
        let geometry = memory.geometry;
        let means = match options.strategy {
            Strategy::QueueLock => {
                let messenger = LockMessenger::new(&pd, geometry, cache)?;
                requests.hello(messenger.address().gid, messenger.address().qpn);
                Means::LockMessages(Rc::new(RefCell::new(messenger)))
            }
            Strategy::Combine => {
                Means::WakeWord(Arc::new(WakeWord::new(pd.allocate(8, Access::LOCAL_WRITE, MemoryKind::Plain)?)))
            }
            Strategy::Server => {
                let (Some(endpoint), Some(peer)) = (calls, &memory.calls) else { return Err(OpenError::NoCalls) };
                let connection = SendReceive.connect(endpoint, peer)?;
                let death = options.verbs_until_death;
                Means::Calls(Rc::new(RefCell::new(Calls::new(connection, &geometry, options.outstanding, death))))
            }
            _ => Means::Nothing,
        };
        let slot = |_| Slot {
            state: Cell::new(State::Idle),
            kind: Cell::new(Kind::Get),
            key: RefCell::new(Vec::with_capacity(geometry.max_key)),
            value: RefCell::new(Vec::with_capacity(geometry.max_value)),
            reply: RefCell::default(),
            deadline_ns: Cell::default(),
            holds: Cell::default(),
            lingers: Cell::default(),
            ticket: Cell::default(),
        };
        let core = Rc::new(Core {
            device,
            nodes,
            cache: Arc::clone(cache),
            requests: RefCell::new(requests),
            slots: (0..options.outstanding).map(slot).collect(),
            counts: Cell::default(),
            random: Cell::new(options.seed),
            lease_ns: options.lease_ns,
            strategy: options.strategy,
            late: Late::new(options.shortcut_delay_ns),
            locks: Cell::new(0),
            number,
        });
        let worker = |slot| strategy::start(options.strategy, &means, Worker::new(Rc::clone(&core), slot));
        let workers = (0..options.outstanding).map(worker).collect();
        let over = VecDeque::with_capacity(options.outstanding);
        Ok(Client { over, core, means, woken: 0, workers, tickets: 0, polls: 0, is_closing: false })
    }
}

/// Checks the number of memory nodes with the same content.
pub(crate) fn check_replicas(given: usize) -> Result<(), OpenError> {
    match given {
        1..=MAX_REPLICAS => Ok(()),
        _ => Err(OpenError::Geometry { what: "the number of memory nodes", given, least: 1, most: MAX_REPLICAS }),
    }
}

/// Connects a client to the second memory node, which must have the same geometry as the first one.
pub(crate) fn connect_replica(
    (end, memory): (LaneEnd, Option<MemoryDescription>),
    first: &MemoryDescription,
    verbs_left: &VerbsLeft,
) -> Result<Lane, OpenError> {
    let memory = memory.ok_or(OpenError::NoReplica)?;
    if memory.geometry != first.geometry {
        return Err(OpenError::OtherStore);
    }
    end.connect(&memory, verbs_left)
}
