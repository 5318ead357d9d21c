//! A wire between two devices that one thread drives, without the kernel. A sent packet waits in memory until the other
//! device takes it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_fabric::{Link, LinkProperties, MemoryNetwork, MemoryOptions, ReceivedRun, Sink};
use doorbell_rnic::TransmitBatch;
use doorbell_verbs::LinkCounters;
use doorbell_verbs::soft::{self, LinkEnd, SoftOptions};
use doorbell_verbs::{Device, PathMtu};
use doorbell_wire::{Outer, ROCE_UDP_PORT};
use nix::sys::eventfd::EventFd;

#[derive(Default)]
struct Packets {
    bytes: Vec<u8>,
    runs: Vec<(Range<usize>, usize, usize)>,
}

/// Packets of one direction.
type Direction = Arc<Mutex<Packets>>;

/// An observer of each packet that a device sends, from its BTH on.
pub(crate) type Tap = Box<dyn FnMut(&[u8]) + Send>;

struct Wire {
    properties: LinkProperties,
    tap: Option<Tap>,
    outward: Direction,
    inward: Direction,
    /// Packets that this end has taken from the wire and passes to its device.
    taken: Packets,
    outer: Outer,
}

fn lock(direction: &Direction) -> MutexGuard<'_, Packets> {
    direction.lock().expect("no holder of the lock panics")
}

impl Link for Wire {
    fn properties(&self) -> LinkProperties {
        self.properties
    }

    fn transmit(&mut self, _now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        let mut packets = lock(&self.outward);
        for run in &batch.runs()[*next..] {
            let from = packets.bytes.len();
            for segment in run.segments() {
                if let Some(tap) = &mut self.tap {
                    tap(&batch.bytes()[segment.clone()]);
                }
                packets.bytes.extend_from_slice(&batch.bytes()[segment]);
            }
            let to = packets.bytes.len();
            let longest = run.segments().map(|segment| segment.len()).max().unwrap_or(1);
            packets.runs.push((from..to, longest, run.packets));
        }
        *next = batch.runs().len();
        Ok(())
    }

    fn receive(&mut self, _now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        std::mem::swap(&mut self.taken, &mut *lock(&self.inward));
        let mut count = 0;
        for (range, segment_bytes, packets) in self.taken.runs.drain(..) {
            let bytes = &self.taken.bytes[range];
            sink.receive(ReceivedRun { outer: self.outer, source_port: ROCE_UDP_PORT, bytes, segment_bytes });
            count += packets;
        }
        self.taken.bytes.clear();
        Ok(count)
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// Returns two devices that a wire connects.
pub(crate) fn devices() -> [Device; 2] {
    tapped_devices([None, None])
}

/// Returns two devices that a wire connects, with an observer for the packets that each device sends.
pub(crate) fn tapped_devices(taps: [Option<Tap>; 2]) -> [Device; 2] {
    let mut taps = taps.into_iter();
    let wires: [Direction; 2] = Default::default();
    let address = |index: usize| IpAddr::from(Ipv4Addr::new(10, 0, 0, index as u8 + 1));
    // These properties make the device compute the ICRC of each packet, as on a RoCE network, since the ICRC is part of
    // the cost of verbs. This file is also built against older revisions, whose link properties have more fields. The
    // properties are therefore copied from a `MemoryNetwork`.
    let properties = MemoryNetwork::new(MemoryOptions::default()).attach(Ipv4Addr::LOCALHOST.into()).properties();
    [0, 1].map(|index| {
        let outer = Outer {
            src: address(1 - index),
            dst: address(index),
            traffic_class: 0,
            hop_limit: 64,
            identification: None,
            dont_fragment: None,
        };
        let (outward, inward) = (Arc::clone(&wires[index]), Arc::clone(&wires[1 - index]));
        let tap = taps.next().flatten();
        let link = Box::new(Wire { properties, tap, outward, inward, taken: Packets::default(), outer });
        // The devices never sleep on this descriptor, so it need not become readable.
        let readable = OwnedFd::from(EventFd::new().expect("a file descriptor")).into();
        let end = LinkEnd {
            link,
            readable,
            address: address(index),
            port: ROCE_UDP_PORT,
            active_mtu: PathMtu::Mtu4096,
            receive_buffer_bytes: 0,
        };
        soft::open_on(end, &SoftOptions::default()).expect("a software RNIC opens")
    })
}
