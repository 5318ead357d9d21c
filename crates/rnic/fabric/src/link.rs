//! The trait [`Link`], by which a driver sends and receives packets.

use std::io;
use std::net::IpAddr;

use doorbell_rnic::{HEADERS_BYTES_MAX, Loan, Packet, Path, PathEnd, Payload, TransmitBatch};
use doorbell_verbs_core::LinkCounters;
use doorbell_wire::{FaultMarks, Outer};

use crate::own_process::OwnProcess;
use crate::struck::{PlanTexts, RuleNumbers};

/// Properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProperties {
    /// Whether packets carry an ICRC, which the sender computes and the receiver checks.
    pub sealed: bool,
}

/// Packets of equal size that arrived together from one sender. The last packet may be shorter. Each packet is the UDP
/// payload of one datagram: BTH to padding, then the ICRC if the link is sealed.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedRun<'a> {
    /// The fields of the outer headers that the link can read.
    pub outer: Outer,
    /// The UDP source port, or 0 if the link has no ports.
    pub source_port: u16,
    /// The packets, concatenated.
    pub bytes: &'a [u8],
    /// Bytes of each packet but the last.
    pub segment_bytes: usize,
}

impl<'a> ReceivedRun<'a> {
    /// Returns the packets, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment_bytes.max(1))
    }
}

/// Packets of equal size that arrived together from one sender through shared memory. The last packet may be shorter.
/// Each packet consists of the bytes from the BTH to the padding.
#[derive(Clone, Copy, Debug)]
pub struct SharedRun<'a> {
    /// The outer headers that the packets would have over UDP.
    pub outer: Outer,
    /// Private copies of the first bytes of each packet, concatenated, for [`Packet::with_headers`].
    pub headers: &'a [u8],
    /// The packets, concatenated.
    pub bytes: Payload<'a>,
    /// Bytes of each packet but the last.
    pub segment_bytes: usize,
}

impl<'a> SharedRun<'a> {
    /// Returns the packets, in order.
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

/// A packet that a link sent, or dropped because of an injected fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPacket {
    /// Outer headers of the packet. Its identification is the one with which the ICRC was computed.
    pub outer: Outer,
    /// The packet: BTH to padding, then the ICRC if the link is sealed.
    pub bytes: Vec<u8>,
    /// Faults that struck the packet.
    pub marks: FaultMarks,
    /// Rules of the fault plan that struck the packet.
    pub rules: RuleNumbers,
}

/// Receiver of the runs that arrive over a link.
pub trait Sink {
    /// Takes one run.
    fn receive(&mut self, run: ReceivedRun<'_>);

    /// Takes one run in shared memory, which the sender may still change. The packets have no ICRCs, although the link
    /// is sealed. Returns false if the sink takes only sealed runs. Then the link copies and seals the run, and passes
    /// the copy to [`receive`](Self::receive).
    fn receive_shared(&mut self, _run: &SharedRun<'_>) -> bool {
        false
    }

    /// Takes one run whose packets were all struck by the injected faults in `marks`, by these rules of the fault plan.
    /// By default, passes the run to [`receive`](Self::receive), unless the packets were dropped.
    fn receive_faulty(&mut self, run: ReceivedRun<'_>, marks: FaultMarks, _rules: RuleNumbers) {
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

/// Order of a fault plan to the port of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedOrder {
    /// The port goes down, and comes up again.
    Down {
        /// Time until the port comes up, in nanoseconds.
        for_ns: u64,
    },
    /// The device fails.
    DeviceFatal,
}

/// Medium that carries packets. Some links wrap another link, to inject faults or to count or capture packets.
pub trait Link: Send {
    /// Returns the link that this link wraps. Methods that a wrapper does not implement call the same method of the
    /// wrapped link.
    fn inner(&self) -> Option<&dyn Link> {
        None
    }

    /// Returns the wrapped link like [`inner`](Self::inner), for calls that change the wrapped link.
    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        None
    }

    /// Returns the properties of the link.
    fn properties(&self) -> LinkProperties;

    /// Returns whether packets on this path need an ICRC. On a sealed link, packets need one unless they go
    /// through shared memory and no wrapper reads them. Each packet of a batch for a sealed link has room for the ICRC
    /// in any case.
    fn seals(&self, _path: &Path) -> bool {
        self.properties().sealed
    }

    /// Lends memory to an empty batch for packets to one destination. The driver ends the loan before the next call of
    /// this link, and passes the batch to [`transmit`](Self::transmit). The packets need no ICRC.
    fn lend(&mut self) -> Option<Loan> {
        None
    }

    /// Sends the runs of a batch from `*next` on, and advances `*next` past the runs that the link accepted. If `*next`
    /// is less than the number of runs afterwards, the link is full. If the link is sealed, so is the batch.
    ///
    /// # Errors
    ///
    /// The link is no longer usable. A full link is no error. Packets that cannot reach their destination are dropped
    /// and counted, also without an error.
    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()>;

    /// Passes a bounded number of arrived packets to the sink. Returns the number of passed packets.
    ///
    /// # Errors
    ///
    /// The link is no longer usable. An empty queue is no error.
    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize>;

    /// Returns whether [`receive`](Self::receive) may find a packet now. A link that cannot know this without a system
    /// call returns true. After false, the driver may leave out some calls of `receive`, but only for a few
    /// microseconds.
    fn may_receive(&self) -> bool {
        true
    }

    /// Prepares for the first queue pair of the engine. From now on, the engine's thread calls the link.
    fn begin(&mut self) {
        if let Some(inner) = self.inner_mut() {
            inner.begin();
        }
    }

    /// Lets the next call of [`receive`](Self::receive) look wherever a packet may have arrived. Other calls may look
    /// at some places in turn.
    fn look_everywhere(&mut self) {
        if let Some(inner) = self.inner_mut() {
            inner.look_everywhere();
        }
    }

    /// Prepares for the driver to sleep until the link's descriptor is readable. Returns false if the driver must not
    /// sleep, because packets have arrived that do not make the descriptor readable.
    fn prepare_sleep(&mut self) -> bool {
        self.inner_mut().is_none_or(|inner| inner.prepare_sleep())
    }

    /// Returns whether every packet that arrives from now on makes the link's descriptor readable. If not, a thread
    /// that sleeps on the descriptor would miss packets. Then the caller must wake the thread, which calls
    /// [`prepare_sleep`](Self::prepare_sleep) again.
    fn shows_arrivals(&self) -> bool {
        self.inner().is_none_or(Link::shows_arrivals)
    }

    /// Returns the destination of the first packet that the link did not accept, if the link is still looking for a
    /// route to that destination. The link decides on the route by [`poll_timeout`](Self::poll_timeout) at the latest.
    /// Returns `None` if the packets wait for room.
    fn awaits(&self) -> Option<PathEnd> {
        self.inner()?.awaits()
    }

    /// Shortens the wait for a route to the destination that [`awaits`](Self::awaits) returns. The driver calls this
    /// when packets for other destinations wait too.
    fn hurry(&mut self) {
        if let Some(inner) = self.inner_mut() {
            inner.hurry();
        }
    }

    /// Forgets a batch of which the link has accepted only a part. The driver calls this when it drops the other runs
    /// of the batch, because its port went down.
    fn forget_batch(&mut self) {
        if let Some(inner) = self.inner_mut() {
            inner.forget_batch();
        }
    }

    /// Returns whether packets that the link has accepted wait for room.
    fn holds_packets(&self) -> bool {
        self.inner().is_some_and(Link::holds_packets)
    }

    /// Appends the destinations of the packets that the link has accepted and that wait for room. The driver lets
    /// requests without a window to these destinations wait too.
    fn full_destinations(&self, destinations: &mut Vec<PathEnd>) {
        if let Some(inner) = self.inner() {
            inner.full_destinations(destinations);
        }
    }

    /// Sends the packets that wait for room, if there is room now. [`transmit`](Self::transmit) and
    /// [`receive`](Self::receive) do this too.
    fn send_held(&mut self, now_ns: u64) {
        if let Some(inner) = self.inner_mut() {
            inner.send_held(now_ns);
        }
    }

    /// Returns the time by which the link needs the next call of [`transmit`](Self::transmit) or
    /// [`receive`](Self::receive), for example to pass on delayed packets.
    fn poll_timeout(&self) -> Option<u64> {
        self.inner()?.poll_timeout()
    }

    /// Joins a multicast group. Returns the descriptor that becomes readable when a packet for the group arrives.
    ///
    /// # Errors
    ///
    /// The link does not support multicast, or the operating system cannot join this group.
    fn join(&mut self, group: IpAddr) -> io::Result<OwnProcess> {
        let none = || {
            io::Error::new(
                io::ErrorKind::Unsupported,
                format!("this link supports no multicast, so it cannot join {group}"),
            )
        };
        self.inner_mut().ok_or_else(none)?.join(group)
    }

    /// Leaves a multicast group.
    fn leave(&mut self, group: IpAddr) {
        if let Some(inner) = self.inner_mut() {
            inner.leave(group);
        }
    }

    /// Asks the link to report the packets that it sends, for [`take_sent`](Self::take_sent). Returns false if each
    /// packet is sent as [`transmit`](Self::transmit) gets it, so that there is nothing to report.
    fn report_sent(&mut self) -> bool {
        self.inner_mut().is_some_and(|inner| inner.report_sent())
    }

    /// Returns the packets that left since the last call, in order, with those that an injected fault dropped. Returns
    /// none unless [`report_sent`](Self::report_sent) returned true.
    fn take_sent(&mut self) -> Vec<SentPacket> {
        self.inner_mut().map(|inner| inner.take_sent()).unwrap_or_default()
    }

    /// Returns whether the link holds records, such as captured packets, that it has not written to their file yet.
    fn holds_records(&self) -> bool {
        self.inner().is_some_and(Link::holds_records)
    }

    /// Writes the records that the link holds to their file.
    fn write_records(&mut self) {
        if let Some(inner) = self.inner_mut() {
            inner.write_records();
        }
    }

    /// Returns whether the link may give orders to the port of the device. The driver asks once.
    fn orders_port(&self) -> bool {
        self.inner().is_some_and(Link::orders_port)
    }

    /// Takes the oldest order to the port of the device. The driver asks after it has received or sent packets.
    fn take_port_order(&mut self) -> Option<PlannedOrder> {
        self.inner_mut()?.take_port_order()
    }

    /// Returns the texts of the plan of the faults that the link injects.
    fn plan_texts(&self) -> Option<PlanTexts> {
        self.inner()?.plan_texts()
    }

    /// Returns the counters of the link, for example of the packets that it lost, by cause.
    fn link_counters(&self) -> LinkCounters;
}

impl Link for Box<dyn Link> {
    fn inner(&self) -> Option<&dyn Link> {
        Some(&**self)
    }

    fn inner_mut(&mut self) -> Option<&mut dyn Link> {
        Some(&mut **self)
    }

    fn properties(&self) -> LinkProperties {
        (**self).properties()
    }

    fn seals(&self, path: &Path) -> bool {
        (**self).seals(path)
    }

    fn lend(&mut self) -> Option<Loan> {
        (**self).lend()
    }

    fn transmit(&mut self, now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        (**self).transmit(now_ns, batch, next)
    }

    fn receive(&mut self, now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        (**self).receive(now_ns, sink)
    }

    fn may_receive(&self) -> bool {
        (**self).may_receive()
    }

    fn link_counters(&self) -> LinkCounters {
        (**self).link_counters()
    }
}
