//! A metadata service that is not connected yet, and its options.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use doorbell_exchange::Config;
use doorbell_verbs::Pd;

use super::directory::Directory;
use super::failover::Failover;
use super::maintenance::{Chores, Lanes, Maintenance};
use super::{Metadata, PROBE, TIDY};
use crate::client::{check_replicas, connect_replica};
use crate::error::OpenError;
use crate::lane::LaneEnd;
use crate::memory::{ClientDescription, MemoryDescription, settings};

/// Options of a metadata service.
#[derive(Clone, Debug)]
pub struct MetadataOptions {
    /// Options of the connections with clients, except for the maximum message length, which the store sets. In a store
    /// with two memory nodes, the timeout and the retry count also apply to the queue pairs to these nodes. Both
    /// options determine the time until the service detects that a memory node does not answer.
    pub rpc: Config,
    /// Maximum time that an operation may run while other clients wait for nodes that this operation may read. After
    /// this time, the operation's client is shut out.
    pub lease_ns: u64,
    /// Number of memory nodes with the same content: 1 or 2.
    pub replicas: usize,
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self { rpc: Config::default(), lease_ns: 1_000_000_000, replicas: 1 }
    }
}

/// A metadata service that is not connected to a memory node yet.
#[derive(Debug)]
pub struct MetadataEnd {
    pd: Pd,
    pub(super) lane: LaneEnd,
    /// The lane to the second memory node, if the store has two, and the description of that memory node.
    replica: Option<(LaneEnd, Option<MemoryDescription>)>,
    options: MetadataOptions,
}

impl MetadataEnd {
    /// Creates the queue pair that reads and closes chains.
    ///
    /// # Errors
    ///
    /// The device has no room, or the number of memory nodes is not 1 or 2.
    pub fn new(pd: &Pd, options: MetadataOptions) -> Result<Self, OpenError> {
        check_replicas(options.replicas)?;
        let lane = || LaneEnd::new(pd, PROBE + 1, settings(options.replicas, &options.rpc));
        let replica = (options.replicas > 1).then(lane).transpose()?.map(|end| (end, None));
        Ok(Self { pd: pd.clone(), lane: lane()?, replica, options })
    }

    /// Returns the service's description for the memory node.
    pub fn to_memory(&self) -> ClientDescription {
        ClientDescription { lane: self.lane.description(), calls: None }
    }

    /// Returns the service's description for the second memory node, if the store has two.
    pub fn to_replica(&self) -> Option<ClientDescription> {
        self.replica.as_ref().map(|(lane, _)| ClientDescription { lane: lane.description(), calls: None })
    }

    /// Stores the description that the second memory node returned.
    pub fn set_replica(&mut self, memory: MemoryDescription) {
        if let Some((_, of_memory)) = &mut self.replica {
            *of_memory = Some(memory);
        }
    }

    /// Connects the service to the memory node. All nodes are free at first.
    ///
    /// # Errors
    ///
    /// A description is invalid, there is no memory for buffers, or the second memory node of a store with two was not
    /// [set](Self::set_replica).
    pub fn connect(self, memory: &MemoryDescription) -> Result<Metadata, OpenError> {
        let for_ever = Rc::new(Cell::new(None));
        let replica = self.replica.map(|replica| connect_replica(replica, memory, &for_ever)).transpose()?;
        let lane = Lanes::new(self.lane.connect(memory, &for_ever)?, replica);
        let directory = Rc::new(RefCell::new(Directory::new(memory.geometry)));
        let chores = Rc::new(RefCell::new(Chores::default()));
        let maintenance = Maintenance {
            slot: TIDY,
            lanes: lane.clone(),
            directory: Rc::clone(&directory),
            chores: Rc::clone(&chores),
        };
        Ok(Metadata {
            device: self.pd.device().clone(),
            pd: self.pd,
            options: self.options,
            failover: Failover::new(lane.clone(), PROBE),
            lanes: lane,
            directory,
            chores,
            maintenance: Box::pin(maintenance.work()),
            sessions: BTreeMap::new(),
            to_fence: VecDeque::new(),
            has_parted: false,
            settled_ns: 0,
            suspects: Vec::new(),
            scratch: Vec::new(),
        })
    }
}
