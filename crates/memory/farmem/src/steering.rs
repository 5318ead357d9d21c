//! The store behind a middlebox. The box uses its knowledge of the nodes to steer requests to the newest node of a key.
//! Clients connect to the memory node through the box.

use std::net::IpAddr;

use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_steer::{ClientEnd, Layout, NodeEnd, Region, SetupError, Steer};
use doorbell_verbs::{Access, PathMtu, Psn, Qpn, RKey};
use doorbell_wire::to_gid;
use rustc_hash::FxHashMap;

use crate::error::OpenError;
use crate::layout::{self, Geometry, HEADER_BYTES, Header, Word};
use crate::memory::{ClientDescription, MemoryDescription};

/// The layout of a store's nodes in a memory node's region, for [`doorbell_steer::Steer`].
#[derive(Clone, Copy, Debug)]
pub struct StoreLayout {
    geometry: Geometry,
    base: u64,
    steers_reads: bool,
}

impl StoreLayout {
    /// Returns the layout of a store with this geometry, in a region that begins at address `base`. The box steers
    /// READs too.
    pub fn new(geometry: Geometry, base: u64) -> Self {
        Self { geometry, base, steers_reads: true }
    }

    /// Returns the same layout, but the box does not steer READs.
    pub fn writes_alone(self) -> Self {
        Self { steers_reads: false, ..self }
    }
}

impl Layout for StoreLayout {
    fn key<'a>(&self, start: &'a [u8]) -> Option<&'a [u8]> {
        // A WRITE of a shortcut is shorter than a header, so it is never treated as a node.
        let header = Header::parse(start.get(..HEADER_BYTES)?);
        let (Word::Tail(own), Some(place)) = (header.word, header.place) else { return None };
        let is_node = place == own && header.key_length > 0 && self.geometry.has(place);
        header.key(start).filter(|_| is_node)
    }

    fn word_offset(&self) -> u64 {
        0
    }

    fn least_read(&self, key_bytes: usize) -> u32 {
        layout::look_length(key_bytes) as u32
    }

    fn is_tail(&self, word: u64) -> bool {
        matches!(Word::from_bits(word), Word::Tail(_))
    }

    fn next(&self, word: u64) -> Option<u64> {
        match Word::from_bits(word) {
            Word::Link(next) if self.geometry.has(next) => self.base.checked_add(self.geometry.node(next.index())),
            _ => None,
        }
    }

    /// Returns the class of a node: 1 for a tombstone, 0 for a node with a value. A put requires a predecessor with a
    /// value, and an insert requires a tombstone.
    fn class(&self, start: &[u8]) -> u8 {
        start.get(..HEADER_BYTES).map_or(0, |header| Header::parse(header).is_tombstone.into())
    }

    fn steers_reads(&self) -> bool {
        self.steers_reads
    }
}

/// A memory node behind a middlebox: the box's control plane for a store. The box is the memory node's only client. All
/// clients of the store, including the metadata service, are clients of the box.
#[derive(Debug)]
pub struct StoreControl {
    node: MemoryDescription,
    rkey: RKey,
    clients: FxHashMap<u32, Qpn>,
}

/// The client number of a middlebox at its memory node.
pub const BOX: u32 = u32::MAX;

/// Maximum number of outstanding READs and atomics that a memory node accepts on one queue pair.
const READS: u8 = 16;

impl StoreControl {
    /// Returns the box's description for [`MemoryNode::accept`](crate::MemoryNode::accept) with client number [`BOX`].
    pub fn lane(steer: &Steer, path_mtu: PathMtu, udp_port: u16) -> EndpointDescription {
        let (qpn, psn) = steer.node_side();
        EndpointDescription::one_sided(to_gid(steer.config().address), qpn, psn, path_mtu, udp_port)
    }

    /// Connects the box with a memory node that has accepted the box. `end` creates the description of the node's queue
    /// pair from address and path MTU; `connect` then sets the queue pair number and the maximum number of READs.
    ///
    /// `rkey` is the remote key for the clients, which the box chooses. `is_exclusive` states that all accesses to the
    /// region pass the box, so that the box may turn CASes into WRITEs. With `steers_reads` the box steers READs too.
    ///
    /// # Errors
    ///
    /// The box has no room for the region.
    pub fn connect(
        steer: &mut Steer,
        node: MemoryDescription,
        end: impl FnOnce(IpAddr, PathMtu) -> NodeEnd,
        (rkey, is_exclusive, steers_reads): (RKey, bool, bool),
    ) -> Result<Self, OpenError> {
        let layout = StoreLayout::new(node.geometry, node.region.address);
        let layout = if steers_reads { layout } else { layout.writes_alone() };
        steer.set_layout(Some(Box::new(layout)));
        let RemoteRegion { address, length, rkey: node_rkey } = node.region;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let end = NodeEnd {
            qpn: node.endpoint.qpn,
            max_rd_atomic: READS,
            ..end(node.endpoint.gid.to_canonical(), node.endpoint.path_mtu)
        };
        steer.attach(end).map_err(OpenError::Box)?;
        let region = Region { rkey, node_rkey, address, length, access, exclusive: is_exclusive };
        steer.add_region(region).map_err(OpenError::Box)?;
        Ok(Self { node, rkey, clients: FxHashMap::default() })
    }

    /// Connects a client, which gets this number, as [`MemoryNode::accept`](crate::MemoryNode::accept) does without a
    /// box.
    ///
    /// # Errors
    ///
    /// A client with this number exists, or the box has no room for another client.
    pub fn accept(
        &mut self,
        steer: &mut Steer,
        client: u32,
        peer: &ClientDescription,
    ) -> Result<MemoryDescription, OpenError> {
        if self.clients.contains_key(&client) {
            return Err(OpenError::Duplicate(client));
        }
        let EndpointDescription { gid, qpn, psn, path_mtu, .. } = peer.lane;
        let path_mtu = path_mtu.min(self.node.endpoint.path_mtu);
        let end = ClientEnd { address: gid.to_canonical(), qpn, first_psn: psn, path_mtu };
        let own: Result<Qpn, SetupError> = steer.connect(end);
        let qpn = own.map_err(OpenError::Box)?;
        self.clients.insert(client, qpn);
        let gid = to_gid(steer.config().address);
        // The memory node sends no requests to clients, so its first PSN does not matter.
        let endpoint = EndpointDescription { gid, qpn, psn: Psn::new(0), ..self.node.endpoint };
        let region = RemoteRegion { rkey: self.rkey, ..self.node.region };
        Ok(MemoryDescription { endpoint, region, geometry: self.node.geometry, calls: None })
    }

    /// Shuts a client out, as [`MemoryNode::fence`](crate::MemoryNode::fence) does without a box. Returns false while
    /// requests of the client are outstanding at the memory node: then call again.
    pub fn fence(&mut self, steer: &mut Steer, client: u32) -> bool {
        let Some(&qpn) = self.clients.get(&client) else { return true };
        steer.disconnect(qpn);
        let is_out = steer.at_node(qpn) == 0;
        if is_out {
            self.clients.remove(&client);
        }
        is_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NodeVersion;

    #[test]
    fn a_box_parses_only_nodes_laid_out_by_clients() {
        let geometry = Geometry { nodes: 3, keys: 5, max_key: 9, max_value: 100 };
        let layout = StoreLayout::new(geometry, 1 << 20);
        let mut node = Vec::new();
        layout::encode(NodeVersion::new(2, 7), b"key", Some(b"value"), &mut node);
        assert_eq!(layout.key(&node), Some(&b"key"[..]));
        // A packet may end within a node, but a steered node requires that the first packet contains the whole key.
        assert_eq!(layout.key(&node[..HEADER_BYTES + 2]), None);
        layout::encode(NodeVersion::new(2, 7), b"key", None, &mut node);
        assert_eq!(layout.key(&node), Some(&b"key"[..]), "a tombstone must count as a node");
        layout::encode(NodeVersion::new(3, 7), b"key", None, &mut node);
        assert_eq!(layout.key(&node), None, "an invalid node must have no key");
        assert_eq!(
            layout.key(&Word::Link(NodeVersion::new(2, 7)).bits().to_le_bytes()),
            None,
            "a shortcut must not count as a node"
        );
        let link = Word::Link(NodeVersion::new(2, 7)).bits();
        assert_eq!(layout.next(link), Some((1 << 20) + 128 + 2 * 192));
        assert_eq!(layout.next(Word::Link(NodeVersion::new(3, 7)).bits()), None);
        assert!(
            layout.is_tail(Word::Tail(NodeVersion::new(2, 7)).bits())
                && !layout.is_tail(link)
                && layout.next(0).is_none()
        );
        assert_eq!(layout.least_read(3), 40);
        assert!(layout.steers_reads() && !layout.writes_alone().steers_reads());
    }
}
