//! The driver, which moves packets between a box and one link. Clients and node are all on this link.

use std::io;

use doorbell_fabric::{Checker, Link, ReceivedRun, Sealer};
use doorbell_rnic::{EngineId, Path, TransmitBatch};
use doorbell_wire::ICRC_LEN;

use crate::engine::Steer;

/// Maximum number of bytes that wait to be sent. Packets that a link delivers at one time cause about as many bytes to
/// send as they contain. Requests in the node's window can add to these bytes.
const BATCH_BYTES: usize = 4 << 20;

/// Counters of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    /// Packets with a wrong ICRC, or too short to have an ICRC.
    pub damaged: u64,
    /// Packets that the driver did not send, since their source address is not the link's address.
    pub foreign_source: u64,
    /// Packets that the driver did not send, since `BATCH_BYTES` bytes were already waiting to be sent.
    pub dropped: u64,
}

/// A box, its link, and the encapsulation of packets on the link. The link has the box's address.
#[derive(Debug)]
pub struct Driver<L> {
    steer: Steer,
    link: L,
    batch: TransmitBatch,
    /// Number of runs of the current batch that the link has already taken. A run is a group of packets that the link
    /// sends together.
    next_run: usize,
    encapsulation: Option<(Sealer, Checker)>,
    counters: DriverCounters,
}

impl<L: Link> Driver<L> {
    /// Returns a driver for `steer` on `link`. `port` is the UDP port of both ends, which the ICRC covers. `port` has
    /// no effect on a link without ICRC.
    pub fn new(steer: Steer, link: L, port: u16) -> Self {
        let address = steer.config().address;
        let sealed = link.properties().sealed;
        Self {
            steer,
            batch: TransmitBatch::new(BATCH_BYTES, if sealed { ICRC_LEN } else { 0 }),
            next_run: 0,
            encapsulation: sealed.then(|| (Sealer::new(address, port), Checker::new(address, port))),
            link,
            counters: DriverCounters::default(),
        }
    }

    /// Returns the box.
    pub fn steer(&self) -> &Steer {
        &self.steer
    }

    /// Returns the box for changes, such as connecting a client.
    pub fn steer_mut(&mut self) -> &mut Steer {
        &mut self.steer
    }

    /// Returns the link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// Returns the counters of the driver. [`Steer::counters`] returns those of the box.
    pub fn counters(&self) -> DriverCounters {
        self.counters
    }

    /// Receives packets, handles due timeouts and sends packets. Returns the number of received packets.
    ///
    /// # Errors
    ///
    /// The link is broken: [`Link::receive`] or [`Link::transmit`] failed.
    pub fn pump(&mut self, now_ns: u64) -> io::Result<usize> {
        // Send the waiting packets first. While the link is full, the box must not produce further packets.
        self.transmit(now_ns)?;
        if self.is_link_full() {
            return Ok(0);
        }
        let received = self.receive(now_ns)?;
        if self.steer.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.steer.handle_timeout(now_ns);
        }
        self.gather();
        self.transmit(now_ns)?;
        Ok(received)
    }

    fn receive(&mut self, now_ns: u64) -> io::Result<usize> {
        let Self { steer, link, encapsulation, counters, .. } = self;
        link.receive(now_ns, &mut |run: ReceivedRun<'_>| {
            for (index, packet) in run.segments().enumerate() {
                let packet = match encapsulation {
                    None => Some(packet),
                    Some((_, checker)) => checker.check(&run, index, packet),
                };
                match packet {
                    Some(packet) => steer.handle_packet(now_ns, &run.outer, packet),
                    None => counters.damaged += 1,
                }
            }
        })
    }

    /// Collects the packets that the box wants to send, in runs of the batch.
    fn gather(&mut self) {
        let Self { steer, batch, counters, encapsulation, .. } = self;
        self.next_run = 0;
        batch.clear();
        let address = steer.config().address;
        steer.poll_transmit(|path, packet| {
            if path.source != address {
                counters.foreign_source += 1;
                return;
            }
            if !batch.has_room(packet.len()) {
                counters.dropped += 1;
                return;
            }
            let engine = EngineId::default();
            let (destination, traffic_class, hop_limit) = (path.destination, path.traffic_class, path.hop_limit);
            batch.push_copy(&Path { engine, destination, traffic_class, hop_limit }, packet);
        });
        if let Some((sealer, _)) = encapsulation {
            sealer.seal(batch);
        }
    }

    fn transmit(&mut self, now_ns: u64) -> io::Result<()> {
        if !self.is_link_full() {
            return Ok(());
        }
        self.link.transmit(now_ns, &self.batch, &mut self.next_run)
    }

    /// Returns whether packets wait for room in the link.
    pub fn is_link_full(&self) -> bool {
        self.next_run < self.batch.runs().len()
    }

    /// Returns the time at which the next call of [`pump`](Self::pump) is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.steer.poll_timeout().into_iter().chain(self.link.poll_timeout()).min()
    }
}
