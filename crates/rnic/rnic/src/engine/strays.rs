//! Packets to queue pairs of other engines of the device.
//!
//! A link may deliver packets of several engines together, for example if the kernel has merged datagrams that arrived
//! together. The engine keeps the packets of the others until the driver passes them on.

use doorbell_wire::{BthRepr, Outer};

use super::Rnic;
use crate::commons::frame_overhead;
use crate::memory::Packet;
use crate::transmit::EngineId;

/// Maximum number of packets that wait for their engine. Further packets are dropped and counted.
const STRAYS_MAX: usize = 4096;

/// A packet to a queue pair of another engine.
#[derive(Clone, Debug)]
pub struct Stray {
    /// Engine of the destination queue pair.
    pub engine: EngineId,
    /// The outer headers.
    pub outer: Outer,
    /// The packet, from the BTH to the padding.
    pub bytes: Vec<u8>,
}

impl Rnic {
    /// Handles a packet whose destination is no queue pair of this engine: keeps it if another engine of the device has
    /// the number, and otherwise counts it.
    #[cold]
    pub(super) fn handle_unknown(&mut self, outer: &Outer, bth: &BthRepr, packet: Packet<'_>) {
        let engine = EngineId::of(bth.dest_qpn);
        if engine == self.engine || !self.device.is_used(engine) || self.strays.len() >= STRAYS_MAX {
            self.count_unknown(bth);
            return;
        }
        // The other engine counts the packet.
        self.core.counters.rx_vport_rdma_unicast_packets -= 1;
        self.core.counters.rx_vport_rdma_unicast_bytes -= packet.len() as u64 + frame_overhead(outer.src);
        let mut bytes = vec![0; packet.len()];
        packet.bytes().copy_to(&mut bytes);
        self.strays.push(Stray { engine, outer: *outer, bytes });
    }

    /// Returns whether the engine has received packets of other engines.
    #[inline]
    pub fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// Removes and returns the packets of other engines, oldest first. The driver passes each of them to
    /// [`handle_packet`](Self::handle_packet) of its engine.
    pub fn take_strays(&mut self) -> Vec<Stray> {
        std::mem::take(&mut self.strays)
    }
}
