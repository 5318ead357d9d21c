//! The memory node: a region, and queue pairs through which clients access the region.

use doorbell_exchange::Config;
use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_verbs::{
    Access, Cq, MemoryKind, ModifyError, Pd, Psn, Qp, QpAttributes, QpCapacities, QpKind, QpOptions, QpState, Region,
};
use rustc_hash::FxHashMap;

use crate::contents;
use crate::error::OpenError;
use crate::layout::{self, Geometry, Header, NodeVersion, Word};
use crate::methods::Strategy;
use crate::server::Server;

/// Settings of queue pairs to memory nodes. Their requests consume no receive, so no RNR NAK comes.
const SETTINGS: RcSettings = RcSettings { timeout: 14, retry_count: 6, rnr_retry: 7, min_rnr_timer: 12 };

/// Returns the settings of the queue pairs to the memory nodes. With two memory nodes, the options of the metadata
/// connection determine the time until a failure is detected.
pub(crate) fn settings(replicas: usize, rpc: &Config) -> RcSettings {
    match replicas {
        1 => SETTINGS,
        _ => RcSettings { timeout: rpc.timeout, retry_count: rpc.retry_count, ..SETTINGS },
    }
}

/// Access rights of peers to a memory node's region.
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Description of a client, or of the metadata service, for the memory node's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientDescription {
    /// The queue pair for verbs.
    pub lane: EndpointDescription,
    /// The connection for requests to the memory node's CPU, if the client's strategy is `server`.
    pub calls: Option<EndpointDescription>,
}

/// Description of a memory node for the client's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryDescription {
    /// The queue pair that the memory node created for this client.
    pub endpoint: EndpointDescription,
    /// The region.
    pub region: RemoteRegion,
    /// The layout of the region.
    pub geometry: Geometry,
    /// The memory node's end of the connection for requests to its CPU, if the client has one.
    pub calls: Option<EndpointDescription>,
}

impl MemoryDescription {
    /// Returns the description of a memory node from its [`ends`](Self::ends).
    pub(crate) fn of(ends: ClientDescription, geometry: Geometry) -> Self {
        let ClientDescription { lane: endpoint, calls } = ends;
        Self { endpoint, region: endpoint.regions[0], geometry, calls }
    }

    /// Returns the memory node's ends. The lane contains the region.
    pub(crate) fn ends(&self) -> ClientDescription {
        let lane = EndpointDescription { regions: [self.region, RemoteRegion::NONE], ..self.endpoint };
        ClientDescription { lane, calls: self.calls }
    }
}

/// A queue pair between a memory node and a client or the metadata service, not connected yet.
#[derive(Debug)]
pub(crate) struct MemoryQp {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    psn: Psn,
}

impl MemoryQp {
    pub(crate) fn new(pd: &Pd, sends: usize, access: Access) -> Result<Self, OpenError> {
        let cq = pd.device().create_cq(sends.max(1))?;
        let capacities =
            QpCapacities { max_send_wr: sends.max(1), max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (send_cq, recv_cq) = (&cq, &cq);
        let options = QpOptions { kind: QpKind::Rc, send_cq, recv_cq, srq: None, capacities, signal_all: false };
        let qp = pd.create_qp(options)?;
        rc::initialise(&qp, access)?;
        Ok(Self { qp, psn: pd.device().random_psn(), cq })
    }

    pub(crate) fn description(&self) -> EndpointDescription {
        EndpointDescription::bare(&self.qp, self.psn)
    }

    pub(crate) fn connect(&self, peer: &EndpointDescription, settings: &RcSettings) -> Result<(), OpenError> {
        Ok(rc::connect(&self.qp, &self.description(), peer, settings)?)
    }
}

/// Contents of a node in a store without running operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The word of the node.
    pub word: Word,
    /// The key of the node; empty if the node is not intact.
    pub key: Vec<u8>,
    /// Whether the node marks its key as deleted.
    pub is_tombstone: bool,
    /// Whether the node is in the expected use and its CRC is right.
    pub is_intact: bool,
}

/// A memory node.
#[derive(Debug)]
pub struct MemoryNode {
    pd: Pd,
    region: Region,
    geometry: Geometry,
    clients: FxHashMap<u32, MemoryQp>,
    server: Server,
    /// Whether the memory node has stopped, so that it serves no client any more.
    is_stopped: bool,
    /// The time at which the memory node stops by itself.
    until_ns: Option<u64>,
}

impl MemoryNode {
    /// Allocates the region of a store.
    ///
    /// # Errors
    ///
    /// A size is out of range, or there is not enough memory.
    pub fn new(pd: &Pd, geometry: Geometry) -> Result<Self, OpenError> {
        geometry.check()?;
        let bytes = geometry.region_bytes() as usize;
        let region = pd.allocate(bytes, REMOTE | Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let (clients, server) = (FxHashMap::default(), Server::default());
        Ok(Self { pd: pd.clone(), region, geometry, clients, server, is_stopped: false, until_ns: None })
    }

    /// Creates a queue pair for a client and connects it. `client` is the number for [`fence`](Self::fence).
    ///
    /// # Errors
    ///
    /// A client with this number exists, the device has no room, the description is invalid, or the memory node has
    /// stopped.
    pub fn accept(&mut self, client: u32, peer: &ClientDescription) -> Result<MemoryDescription, OpenError> {
        if self.is_stopped {
            return Err(OpenError::Stopped);
        }
        if self.clients.contains_key(&client) {
            return Err(OpenError::Duplicate(client));
        }
        let qp = MemoryQp::new(&self.pd, 1, REMOTE)?;
        qp.connect(&peer.lane, &SETTINGS)?;
        let endpoint = qp.description();
        let accept = |calls| self.server.accept(&self.pd, &self.geometry, client, calls);
        let calls = peer.calls.as_ref().map(accept).transpose()?;
        self.clients.insert(client, qp);
        Ok(MemoryDescription { endpoint, region: RemoteRegion::of(&self.region), geometry: self.geometry, calls })
    }

    /// Shuts a client out: moves its queue pair to the error state (IBTA Vol 1, 10.3.1). The memory node then executes
    /// no further request of the client. Once `fence` returns, this client does not change memory any more. Returns
    /// whether there was a client with this number.
    ///
    /// # Errors
    ///
    /// The device refuses the transition.
    pub fn fence(&mut self, client: u32) -> Result<bool, ModifyError> {
        self.server.part(client);
        let Some(end) = self.clients.remove(&client) else { return Ok(false) };
        end.qp.modify(&QpAttributes { state: Some(QpState::Error), ..QpAttributes::default() })?;
        Ok(true)
    }

    /// Stops serving for good: shuts all clients out and accepts no other client. In a store with two memory nodes, the
    /// other memory node may serve alone once `stop` has returned.
    ///
    /// # Errors
    ///
    /// The device refuses a transition.
    pub fn stop(&mut self) -> Result<(), ModifyError> {
        self.is_stopped = true;
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        clients.into_iter().try_for_each(|client| self.fence(client).map(drop))
    }

    /// Returns whether the node has stopped.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Sets the time, on the device's clock, until which the metadata service allows this memory node to serve. Such a
    /// lease exists in a store with two memory nodes. At the time, [`poll`](Self::poll) [stops](Self::stop) the memory
    /// node, unless a later call has set another time. So the service knows when the node has stopped, even if the two
    /// cannot reach each other. The lease must begin when the node asks the service for it, not when the answer
    /// arrives.
    pub fn serve_until(&mut self, until_ns: u64) {
        self.until_ns = Some(until_ns);
    }

    /// Writes the keys of a workload, each with a value of `value_bytes` bytes.
    /// [`Metadata::fill`](crate::Metadata::fill) then records these keys as existing. With strategy `server`, adds the
    /// keys to the table of the memory node's CPU instead. Call this before any client is accepted.
    ///
    /// # Errors
    ///
    /// The store has no room for this number of keys, or for values of this length.
    pub fn fill(&mut self, strategy: Strategy, keys: u64, value_bytes: usize) -> Result<(), OpenError> {
        self.geometry.check_keys(keys)?;
        let most = self.geometry.max_value;
        if value_bytes > most {
            let what = "the bytes of a value to begin with";
            return Err(OpenError::Geometry { what, given: value_bytes, least: 0, most });
        }
        let (mut value, mut node) = (Vec::new(), Vec::new());
        for rank in 0..keys {
            let (key, place) = (contents::key(rank), contents::first_place(rank));
            contents::first_value(rank, &mut value, value_bytes);
            if strategy == Strategy::Server {
                self.server.fill(&self.region, &self.geometry, &key, &value);
                continue;
            }
            layout::encode(place, &key, Some(&value), &mut node);
            self.region.copy_in(self.geometry.node(place.index()) as usize, &node);
        }
        Ok(())
    }

    /// Executes requests of clients of strategy `server`, and stops the memory node at the time that
    /// [`serve_until`](Self::serve_until) has set. Returns whether anything changed.
    pub fn poll(&mut self) -> bool {
        if !self.is_stopped && self.until_ns.is_some_and(|until_ns| self.pd.device().now_ns() >= until_ns) {
            // No device refuses the transition to the error state (IBTA Vol 1, 10.3.1).
            let _ = self.stop();
            return true;
        }
        self.server.poll(&self.region, &self.geometry)
    }

    /// Returns the time, on the device's clock, at which the memory node needs a [`poll`](Self::poll) without an event.
    /// At that time, the node checks whether a silent client is alive, or stops.
    pub fn deadline_ns(&self) -> Option<u64> {
        let until_ns = self.until_ns.filter(|_| !self.is_stopped);
        self.server.deadline_ns().into_iter().chain(until_ns).min()
    }

    /// Returns the counters of the CPU's table: the number of keys, and of the nodes in use and free again.
    pub fn served(&self) -> (u64, u64, u64) {
        let (keys, free, used) = self.server.counts();
        (keys as u64, free as u64, used.into())
    }

    /// Returns the region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the contents of a node, for checks of a store without running operations. `None` if there is no such
    /// node.
    pub fn inspect(&self, place: NodeVersion) -> Option<NodeView> {
        if !self.geometry.has(place) {
            return None;
        }
        let mut bytes = vec![0; self.geometry.node_bytes()];
        self.region.copy_out(self.geometry.node(place.index()) as usize, &mut bytes);
        let header = Header::parse(&bytes);
        let is_intact =
            header.place == Some(place) && bytes.get(..header.length()).is_some_and(|node| header.is_intact(node));
        let key = header.key(&bytes).filter(|_| is_intact).unwrap_or_default().to_vec();
        Some(NodeView { word: header.word, key, is_tombstone: header.is_tombstone, is_intact })
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }
}
