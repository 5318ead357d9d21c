//! What the box passes on: packets of others, packets that it cannot read, and congestion notifications.

use std::net::IpAddr;

use doorbell_wire::{BthPacket, Outer, Qpn};

use super::Steer;
use crate::output::Path;

impl Steer {
    /// Passes a packet of a connection that the box does not serve on.
    pub(super) fn pass(&mut self, outer: &Outer, dest_qpn: Qpn, packet: &[u8]) {
        let relayed = self.relays.get(&(outer.src, dest_qpn)).copied();
        let (source, destination) = match relayed {
            Some(destination) => (self.config.address, destination),
            None => (outer.src, outer.dst),
        };
        self.push_passed(outer, source, destination, packet);
    }

    /// Passes a packet on that the box cannot read: as it is where the box is on its way, else to the node.
    pub(super) fn pass_unparsed(&mut self, outer: &Outer, packet: &[u8]) {
        self.counters.unparsed += 1;
        if outer.dst != self.config.address {
            return self.push_passed(outer, outer.src, outer.dst, packet);
        }
        if let Some(node) = self.node.as_ref().map(|node| node.end.address).filter(|node| *node != outer.src) {
            self.push_passed(outer, self.config.address, node, packet);
        }
    }

    fn push_passed(&mut self, outer: &Outer, source: IpAddr, destination: IpAddr, packet: &[u8]) {
        self.counters.passed += 1;
        let Outer { traffic_class, hop_limit, .. } = *outer;
        self.out.push(Path { source, destination, traffic_class, hop_limit }, packet);
    }

    /// A congestion notification of the node is about what the box sends it, and so about every client that has
    /// something there (Annex A17).
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
