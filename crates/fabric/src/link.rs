//! The link: what a driver needs from whatever carries its packets.

use std::io;
use std::net::IpAddr;

use doorbell_rnic::{HEADERS_BYTES_MAX, Packet, Payload, TransmitBatch};
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{FaultMarks, Outer};

use crate::shm::OwnProcess;

/// How a link carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProperties {
    /// Packets carry an ICRC, which is made on the way out and checked on the way in.
    pub sealed: bool,
}

/// Packets that arrived together from one sender: equal-sized, the last may be shorter.
/// Each is the UDP payload of one datagram: BTH to padding, then the ICRC where the link is
/// sealed.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedRun<'a> {
    /// The outer headers, as far as the link can see them.
    pub outer: Outer,
    /// The UDP source port, where there is one.
    pub source_port: u16,
    /// The packets, one behind the other.
    pub bytes: &'a [u8],
    /// Bytes of each packet but the last.
    pub segment_bytes: usize,
}

impl<'a> ReceivedRun<'a> {
    /// The packets, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment_bytes.max(1))
    }
}

/// Packets that arrived together from one sender through memory that both share: equal-sized, the last may be shorter,
/// each from the BTH to the padding.
#[derive(Clone, Copy, Debug)]
pub struct SharedRun<'a> {
    /// The outer headers that the packets would have.
    pub outer: Outer,
    /// A private copy of the first bytes of each packet, as [`Packet::with_headers`] needs it.
    pub headers: &'a [u8],
    /// The packets, one behind the other.
    pub bytes: Payload<'a>,
    /// Bytes of each packet but the last.
    pub segment_bytes: usize,
}

impl<'a> SharedRun<'a> {
    /// The packets, in order.
    #[inline]
    pub fn packets(&self) -> impl Iterator<Item = Packet<'a>> + use<'a> {
        let (mut headers, mut bytes) = (self.headers, self.bytes);
        let segment_bytes = self.segment_bytes;
        std::iter::from_fn(move || {
            let (packet, rest) = bytes.split_at(bytes.len().min(segment_bytes));
            let (copied, other) = headers.split_at_checked(packet.len().min(HEADERS_BYTES_MAX))?;
            (headers, bytes) = (other, rest);
            (!packet.is_empty()).then(|| Packet::with_headers(copied, packet))
        })
    }
}

/// Takes what a link received.
pub trait Sink {
    /// Takes one run.
    fn receive(&mut self, run: ReceivedRun<'_>);

    /// Takes one run that lies in memory which its sender may still write, without ICRCs, though the link is sealed.
    /// False if the sink takes sealed runs alone: then the link copies and seals this one, and hands it to
    /// [`receive`](Self::receive).
    fn receive_shared(&mut self, _run: &SharedRun<'_>) -> bool {
        false
    }

    /// Takes one run whose packets were all struck by these injected faults. A sink that ignores marks receives the run,
    /// unless the packets were dropped.
    fn receive_faulty(&mut self, run: ReceivedRun<'_>, marks: FaultMarks) {
        if !marks.has(FaultMarks::DROPPED) {
            self.receive(run);
        }
    }
}

impl<F: FnMut(ReceivedRun<'_>)> Sink for F {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        self(run);
    }
}

/// Carries packets. Links stack: faults, counters and pcap each wrap any link.
pub trait Link: Send {
    /// What the link promises.
    fn properties(&self) -> LinkProperties;

    /// Do packets to this destination need their ICRC made? On a sealed link all do, unless they go through memory and
    /// nothing above the link looks at them. What a sealed link sends has room for the ICRC in any case.
    fn seals(&self, _destination: IpAddr) -> bool {
        self.properties().sealed
    }

    /// Sends the runs of a (sealed) batch from `*next` on and advances `*next` past those that
    /// the link took. `*next` short of the batch's runs means that the link is full for now.
    ///
    /// # Errors
    ///
    /// The link cannot be used any more. A full link is no error, nor is a packet that cannot reach its destination:
    /// the link drops and counts it.
    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()>;

    /// Hands what has arrived to the sink, a bounded amount, and says how many packets it was.
    ///
    /// # Errors
    ///
    /// The link cannot be used any more. When nothing has arrived, that is no error.
    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize>;

    /// The driver is going to sleep until the link's descriptor is readable. False if it must not, because something
    /// has arrived already that does not show there.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Does every packet that arrives from now on make the link's descriptor readable? If not, a driver that sleeps on the
    /// descriptor would miss packets: its caller wakes it, and it calls [`prepare_sleep`](Self::prepare_sleep) again.
    fn shows_arrivals(&self) -> bool {
        true
    }

    /// The destination of the first packet that the link did not take, if the link does not know yet how to reach it. It will
    /// know by [`poll_timeout`](Self::poll_timeout). `None` if the packets wait for room.
    fn awaits(&self) -> Option<IpAddr> {
        None
    }

    /// The driver has packets for other destinations than the one that [`awaits`](Self::awaits) names: the link is to wait for a
    /// shorter time.
    fn hurry(&mut self) {}

    /// When the link itself wants to be called again: a fault that delays packets does.
    fn poll_timeout(&self) -> Option<u64> {
        None
    }

    /// Receives what is sent to a multicast group, from now on. Returns what becomes readable then.
    ///
    /// # Errors
    ///
    /// The link has no multicast groups, or the operating system cannot join this one.
    fn join(&mut self, group: IpAddr) -> io::Result<OwnProcess> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("this link has no multicast groups such as {group}")))
    }

    /// Ends that.
    fn leave(&mut self, _group: IpAddr) {}

    /// Returns whether the link holds records, such as captured packets, that are not in their file yet.
    fn holds_records(&self) -> bool {
        false
    }

    /// Writes the records that the link holds.
    fn write_records(&mut self) {}

    /// What was lost on this side.
    fn link_counters(&self) -> LinkCounters;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn properties(&self) -> LinkProperties {
        (**self).properties()
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        (**self).transmit(now_ns, batch, next)
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        (**self).receive(now_ns, sink)
    }

    fn seals(&self, destination: IpAddr) -> bool {
        (**self).seals(destination)
    }

    fn prepare_sleep(&mut self) -> bool {
        (**self).prepare_sleep()
    }

    fn shows_arrivals(&self) -> bool {
        (**self).shows_arrivals()
    }

    fn awaits(&self) -> Option<IpAddr> {
        (**self).awaits()
    }

    fn hurry(&mut self) {
        (**self).hurry();
    }

    fn poll_timeout(&self) -> Option<u64> {
        (**self).poll_timeout()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<OwnProcess> {
        (**self).join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        (**self).leave(group);
    }

    fn holds_records(&self) -> bool {
        (**self).holds_records()
    }

    fn write_records(&mut self) {
        (**self).write_records();
    }

    fn link_counters(&self) -> LinkCounters {
        (**self).link_counters()
    }
}
