//! Counts packets and bytes per class as they cross a link.

use std::io;
use std::ops::{Index, Sub};

use doorbell_rnic::TransmitBatch;
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{Opcode, PacketOperation};

use crate::link::{Link, LinkProperties, ReceivedRun, Sink};

/// Purpose of a packet, according to its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PacketClass {
    /// A packet of a SEND or WRITE.
    Data,
    /// A READ request.
    ReadRequest,
    /// A packet of a READ response.
    ReadResponse,
    /// A compare-and-swap or fetch-and-add.
    AtomicRequest,
    /// The response to a compare-and-swap or fetch-and-add.
    AtomicResponse,
    /// An ACK or NAK. Both have the same opcode; only the AETH differs.
    Acknowledge,
    /// A congestion notification packet.
    Cnp,
    /// A packet with an unknown opcode.
    Other,
}

impl PacketClass {
    /// All classes, in the order of their counters.
    pub const ALL: [PacketClass; 8] = [
        PacketClass::Data,
        PacketClass::ReadRequest,
        PacketClass::ReadResponse,
        PacketClass::AtomicRequest,
        PacketClass::AtomicResponse,
        PacketClass::Acknowledge,
        PacketClass::Cnp,
        PacketClass::Other,
    ];

    /// Returns the class of packets with this opcode.
    pub const fn of(opcode: Opcode) -> Self {
        match opcode.operation() {
            Some(PacketOperation::Send | PacketOperation::Write) => PacketClass::Data,
            Some(PacketOperation::ReadRequest) => PacketClass::ReadRequest,
            Some(PacketOperation::ReadResponse) => PacketClass::ReadResponse,
            Some(PacketOperation::CompareSwap | PacketOperation::FetchAdd) => PacketClass::AtomicRequest,
            Some(PacketOperation::AtomicAcknowledge) => PacketClass::AtomicResponse,
            Some(PacketOperation::Acknowledge) => PacketClass::Acknowledge,
            Some(PacketOperation::Cnp) => PacketClass::Cnp,
            None => PacketClass::Other,
        }
    }

    /// Returns the name under which counters of the class are printed.
    pub const fn name(self) -> &'static str {
        match self {
            PacketClass::Data => "data",
            PacketClass::ReadRequest => "read_request",
            PacketClass::ReadResponse => "read_response",
            PacketClass::AtomicRequest => "atomic_request",
            PacketClass::AtomicResponse => "atomic_response",
            PacketClass::Acknowledge => "acknowledge",
            PacketClass::Cnp => "cnp",
            PacketClass::Other => "other",
        }
    }
}

/// Table of the class of each opcode, so that counting a packet takes one lookup.
const CLASSES: [PacketClass; 256] = {
    let mut classes = [PacketClass::Other; 256];
    let mut opcode = 0;
    while opcode < classes.len() {
        classes[opcode] = PacketClass::of(Opcode(opcode as u8));
        opcode += 1;
    }
    classes
};

/// Number of packets, and total bytes of their UDP payloads (BTH to ICRC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Traffic in one direction, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficByClass([Traffic; PacketClass::ALL.len()]);

impl TrafficByClass {
    /// Returns an iterator over all classes, each with its traffic.
    pub fn iter(&self) -> impl Iterator<Item = (PacketClass, Traffic)> {
        PacketClass::ALL.into_iter().zip(self.0)
    }

    /// Returns the sum of all classes.
    pub fn total(&self) -> Traffic {
        self.0.iter().fold(Traffic::default(), |sum, class| Traffic {
            packets: sum.packets + class.packets,
            bytes: sum.bytes + class.bytes,
        })
    }

    #[inline]
    fn count(&mut self, packet: &[u8]) {
        let class = packet.first().map_or(PacketClass::Other, |&opcode| CLASSES[opcode as usize]);
        let traffic = &mut self.0[class as usize];
        traffic.packets += 1;
        traffic.bytes += packet.len() as u64;
    }
}

impl Index<PacketClass> for TrafficByClass {
    type Output = Traffic;

    fn index(&self, class: PacketClass) -> &Traffic {
        &self.0[class as usize]
    }
}

/// Computes the traffic between two snapshots.
impl Sub for TrafficByClass {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self(std::array::from_fn(|class| Traffic {
            packets: self.0[class].packets - earlier.0[class].packets,
            bytes: self.0[class].bytes - earlier.0[class].bytes,
        }))
    }
}

/// A link that counts the packets that it sends and receives.
#[derive(Debug)]
pub struct Counted<L> {
    inner: L,
    sent: TrafficByClass,
    received: TrafficByClass,
}

impl<L: Link> Counted<L> {
    /// Counts the packets that cross `inner`.
    pub fn new(inner: L) -> Self {
        Self { inner, sent: TrafficByClass::default(), received: TrafficByClass::default() }
    }

    /// Returns the traffic that the link accepted for sending.
    pub fn sent(&self) -> &TrafficByClass {
        &self.sent
    }

    /// Returns the traffic that the link received, including packets that the RNIC rejects later.
    pub fn received(&self) -> &TrafficByClass {
        &self.received
    }

    /// Returns the wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }
}

impl<L: Link> Link for Counted<L> {
    fn inner(&self) -> Option<&dyn Link> {
        Some(&self.inner)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        Some(&mut self.inner)
    }

    fn properties(&self) -> LinkProperties {
        self.inner.properties()
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        let from = *next;
        let result = self.inner.transmit(now_ns, batch, next);
        let bytes = batch.bytes();
        for run in &batch.runs()[from..*next] {
            run.segments().for_each(|segment| self.sent.count(&bytes[segment]));
        }
        result
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Self { inner, received, .. } = self;
        inner.receive(now_ns, &mut |run: ReceivedRun<'_>| {
            run.segments().for_each(|packet| received.count(packet));
            sink.receive(run);
        })
    }

    fn link_counters(&self) -> LinkCounters {
        self.inner.link_counters()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::memory::{MemoryNetwork, MemoryOptions};
    use crate::testing::{info, path, receive_all, transmit_all};

    #[test]
    fn packets_are_counted_by_class() {
        let network = MemoryNetwork::new(MemoryOptions::default());
        let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut sender = Counted::new(network.attach(a));
        let mut receiver = Counted::new(network.attach(b));
        let mut batch = TransmitBatch::new(1 << 16, 4);
        let opcodes = [
            (Opcode::RC_SEND_FIRST, 1036, PacketClass::Data),
            (Opcode::RC_SEND_LAST, 20, PacketClass::Data),
            (Opcode::RC_READ_REQUEST, 28, PacketClass::ReadRequest),
            (Opcode::RC_ACKNOWLEDGE, 16, PacketClass::Acknowledge),
            (Opcode::CNP, 28, PacketClass::Cnp),
            (Opcode(0xff), 12, PacketClass::Other),
        ];
        for (opcode, len, _) in opcodes {
            let packet = batch.push(&path(b), len, info());
            packet.fill(0);
            packet[0] = opcode.0;
        }
        transmit_all(&mut sender, 0, &batch);
        receive_all(&mut receiver, 1 << 30);
        assert_eq!(sender.sent(), receiver.received());
        assert_eq!(sender.received().total(), Traffic::default());
        assert_eq!(sender.sent()[PacketClass::Data], Traffic { packets: 2, bytes: 1064 });
        for (_, len, class) in &opcodes[2..] {
            let expected = Traffic { packets: 1, bytes: *len as u64 + 4 };
            assert_eq!(sender.sent()[*class], expected, "{}", class.name());
        }
        assert_eq!((*sender.sent() - *sender.sent()).total(), Traffic::default());
        assert_eq!(sender.sent().iter().map(|(_, traffic)| traffic.packets).sum::<u64>(), 6);
    }

    #[test]
    fn the_classes_are_in_the_order_of_their_counters() {
        for (index, class) in PacketClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, index);
        }
    }
}
