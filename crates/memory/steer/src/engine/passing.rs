//! Packets that the box forwards without handling them as a client's requests: packets of relayed connections,
//! unreadable packets, and congestion notifications.

use std::net::IpAddr;

use doorbell_wire::{BthPacket, BthRepr, Outer, PacketOperation, Qpn};
use rustc_hash::FxHashMap;

use super::Steer;
use crate::config::SetupError;
use crate::order::{Asked, Numbering, Order};
use crate::output::Path;

/// Connections between a client and the node whose packets the box relays.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// For each sender address and destination queue pair, the connection and whether the client is the sender.
    ways: FxHashMap<(IpAddr, Qpn), Relay>,
    /// The requests of each connection: those of the client, and those of the node.
    asked: Vec<[Asked; 2]>,
    free: Vec<usize>,
    numbering: Option<Numbering>,
}

#[derive(Clone, Copy, Debug)]
struct Relay {
    destination: IpAddr,
    connection: usize,
    of_client: bool,
}

impl Steer {
    /// Relays the packets of a connection between a client and a node, in both directions. Packets from the client's
    /// address go to the node's queue pair, and packets from the node's address to the client's queue pair. Each end
    /// sees the box's address as the address of its peer; all other fields of a packet stay unchanged. The box numbers
    /// the requests ([`order`](Self::order)).
    ///
    /// # Errors
    ///
    /// The number of relayed connections has reached the maximum number of clients, or the box could not distinguish
    /// packets of this connection from those of another.
    pub fn relay(&mut self, client: (IpAddr, Qpn), node: (IpAddr, Qpn)) -> Result<(), SetupError> {
        let relays = &mut self.relays;
        if relays.asked.len() - relays.free.len() >= self.config.limits.clients {
            return Err(SetupError::TooManyClients(self.config.limits.clients));
        }
        let keys = [(client.0, node.1), (node.0, client.1)];
        if keys[0] == keys[1] || keys.iter().any(|key| relays.ways.contains_key(key)) {
            return Err(SetupError::ClientKnown(client.1));
        }
        let connection = relays.free.pop().unwrap_or_else(|| {
            relays.asked.push(Default::default());
            relays.asked.len() - 1
        });
        for (key, destination, of_client) in [(keys[0], node.0, true), (keys[1], client.0, false)] {
            relays.ways.insert(key, Relay { destination, connection, of_client });
        }
        relays.numbering.get_or_insert_default();
        Ok(())
    }

    /// Ends the relay of a connection. Returns false if there is no such connection.
    pub fn end_relay(&mut self, client: (IpAddr, Qpn), node: (IpAddr, Qpn)) -> bool {
        let relays = &mut self.relays;
        let ways = [(client.0, node.1), (node.0, client.1)].map(|key| relays.ways.remove(&key));
        let Some(way) = ways[0] else { return false };
        relays.asked[way.connection] = Default::default();
        relays.free.push(way.connection);
        true
    }

    /// Returns the statistics of the order in which the node answered the requests of relayed connections.
    pub fn order(&self) -> Order {
        self.relays.numbering.as_ref().map(|numbering| *numbering.order()).unwrap_or_default()
    }

    /// Forwards a packet of a relayed connection. Returns false if the packet belongs to no relayed connection.
    pub(super) fn pass_relayed(
        &mut self,
        outer: &Outer,
        bth: &BthRepr,
        operation: PacketOperation,
        packet: &[u8],
    ) -> bool {
        let relays = &mut self.relays;
        if relays.ways.is_empty() || outer.dst != self.config.address {
            return false;
        }
        let Some(way) = relays.ways.get(&(outer.src, bth.dest_qpn)).copied() else { return false };
        if let (Some(numbering), Some([of_client, of_node])) =
            (&mut relays.numbering, relays.asked.get_mut(way.connection))
        {
            let (asked, answered) = if way.of_client { (of_client, of_node) } else { (of_node, of_client) };
            numbering.packet(bth, operation, packet, asked, answered);
        }
        self.push_passed(outer, self.config.address, way.destination, packet);
        true
    }

    /// Forwards an unreadable packet. Packets for the box's own address go to the node, all others to their
    /// destination.
    pub(super) fn pass_unparsed(&mut self, outer: &Outer, packet: &[u8]) {
        self.counters.unparsed += 1;
        if outer.dst != self.config.address {
            return self.push_passed(outer, outer.src, outer.dst, packet);
        }
        if let Some(node) = self.node.as_ref().map(|node| node.end.address).filter(|node| *node != outer.src) {
            self.push_passed(outer, self.config.address, node, packet);
        }
    }

    pub(super) fn push_passed(&mut self, outer: &Outer, source: IpAddr, destination: IpAddr, packet: &[u8]) {
        self.counters.passed += 1;
        let Outer { traffic_class, hop_limit, .. } = *outer;
        self.out.push(Path { source, destination, traffic_class, hop_limit }, packet);
    }

    /// Handles a congestion notification of the node. The notification concerns the packets from the box to the node,
    /// so the box notifies every client with outstanding requests (Annex A17).
    pub(super) fn tell_clients_of_congestion(&mut self, packet: &[u8]) {
        let Some(node) = &self.node else { return };
        let mut slots: Vec<u32> = node.in_flight.iter().map(|message| message.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            let Some(client) = self.clients[slot as usize].as_ref() else { continue };
            let path = client.path(self.config.address);
            BthPacket::new_unchecked(self.out.push(path, packet)).set_dest_qpn(client.peer.qpn);
            self.counters.congestion += 1;
        }
    }

    pub(super) fn tell_node_of_congestion(&mut self, packet: &[u8]) {
        let Some(node) = &self.node else { return };
        let (source, destination) = (self.config.address, node.end.address);
        let path = Path { source, destination, traffic_class: 0, hop_limit: 64 };
        BthPacket::new_unchecked(self.out.push(path, packet)).set_dest_qpn(node.end.qpn);
        self.counters.congestion += 1;
    }
}
