//! The driver: pumps packets between one RNIC and one link.

mod looks;

use std::io;

use doorbell_rnic::{Budget, Filter, PathEnd, Rnic, Stray, TransmitBatch, earliest};
use doorbell_verbs_core::{AsyncEvent, LinkCounters, PortError, PortOrder, PortState};
use doorbell_wire::ICRC_LEN;

use crate::link::{Link, PlannedOrder, ReceivedRun, SharedRun, Sink};
use crate::observe::{Observation, Observer};
use crate::port::{Lost, PORT, Port, PortView};
use crate::seal::{Checker, Sealer};
use looks::Looks;

/// Size of a batch in bytes. Two runs of the longest packets fill a batch, and no packet of a third run fits behind
/// them. The batch stays in the processor's cache between copying, sealing and sending.
pub(crate) const BATCH_BYTES: usize = 124 << 10;

/// A pump that received at least this number of packets sends due acknowledgements immediately. After fewer packets, an
/// acknowledgement may wait for the program's reply, so that both leave together.
const HOLD_ACKS_BELOW_PACKETS: usize = 8;

/// Maximum number of packets that [`Driver::receive_arrived`] takes, more than the buffers of a link usually hold.
/// Peers may send faster than the driver receives.
const ARRIVED_PACKETS_MAX: usize = 1 << 16;

/// The same for a request without an answer in time. Meanwhile the driver sends nothing to others.
const OVERDUE_PACKETS_MAX: usize = 1 << 12;

/// Number of calls of [`Link::receive`] without a packet after which none waits. A call may find only a message between
/// devices, behind which packets wait.
const EMPTY_RECEIVES: usize = 4;

/// When to send the acknowledgements that are due at the end of a pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Acknowledgements may wait briefly for other packets to send, because the caller is about to handle the received
    /// packets.
    MayWait,
    /// Acknowledgements may wait until they are overdue, because another thread is handling the received packets.
    Wait,
    /// Acknowledgements are sent immediately.
    Now,
}

/// Driver of an RNIC on a link. It also computes the ICRCs of sent packets, and checks those of received packets.
///
/// The driver leaves the deaths of queue pairs to its caller, who may hold a lock. The caller takes them
/// ([`Rnic::take_deaths`]) after a call, and may pass them to [`log_deaths`](crate::log_deaths).
pub struct Driver<L> {
    rnic: Rnic,
    link: L,
    batch: TransmitBatch,
    /// Index of the first run of the batch that the link has not accepted yet.
    next_run: usize,
    encapsulation: Option<(Sealer, Checker)>,
    observation: Option<Observation>,
    /// Time by which the next pump must send the packets that [`defer_transmit`](Self::defer_transmit) deferred.
    deferred_until_ns: Option<u64>,
    port: Port,
    /// Whether the link may give orders to the port.
    link_orders_port: bool,
    looks: Looks,
    /// Buffer for the destinations for whose packets the link has no room.
    full: Vec<PathEnd>,
}

impl<L> Drop for Driver<L> {
    fn drop(&mut self) {
        if let Some(observation) = &mut self.observation {
            observation.finish(self.rnic.counters());
        }
    }
}

impl<L: std::fmt::Debug> std::fmt::Debug for Driver<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("rnic", &self.rnic).field("link", &self.link).finish_non_exhaustive()
    }
}

impl<L: Link> Driver<L> {
    /// Creates a driver of `rnic` on `link`. `port` is the UDP port of this device and its peers. Only the ICRC depends
    /// on this port, so the port has no effect on a link that is not sealed.
    pub fn new(rnic: Rnic, link: L, port: u16) -> Self {
        let address = rnic.config().address;
        let sealed = link.properties().sealed;
        Self {
            batch: TransmitBatch::new(BATCH_BYTES, if sealed { ICRC_LEN } else { 0 }),
            next_run: 0,
            encapsulation: sealed.then(|| (Sealer::new(address, port), Checker::new(address, port))),
            observation: None,
            deferred_until_ns: None,
            port: Port::default(),
            link_orders_port: link.orders_port(),
            looks: Looks::default(),
            full: Vec::new(),
            rnic,
            link,
        }
    }

    /// Calls `observer` with the RNIC's counters from now on, at most `within_ns` after each change. The driver also
    /// calls `observer` when it runs out of work and when it is dropped.
    pub fn observe(&mut self, observer: Observer, within_ns: u64) {
        self.observation = Some(Observation::new(observer, within_ns));
    }

    /// Returns the RNIC.
    pub fn rnic(&self) -> &Rnic {
        &self.rnic
    }

    /// Returns the RNIC, to post work and to create objects.
    pub fn rnic_mut(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    /// Returns the link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// Returns the link, to join and leave multicast groups.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Returns the counters of the link, and of the packets that the port lost while it was down.
    pub fn link_counters(&self) -> LinkCounters {
        self.port.counters(&self.link.link_counters())
    }

    /// Returns the state of the port.
    ///
    /// # Errors
    ///
    /// The device has failed.
    pub fn port_state(&self) -> Result<PortState, PortError> {
        self.port.view().state()
    }

    /// Returns the state of the port for threads that do not hold the driver.
    pub(crate) fn port_view(&self) -> PortView {
        self.port.view().clone()
    }

    /// Changes the state of the port, and raises the events of the change. While the port is down, the driver loses and
    /// counts all packets in both directions. Queue pairs keep their state: their timers run, and requests fail once
    /// their retries are spent. After [`PortOrder::DeviceFatal`], all queue pairs are in the error state.
    ///
    /// # Errors
    ///
    /// The port has the ordered state already, or the device has failed.
    pub fn order_port(&mut self, now_ns: u64, order: PortOrder) -> Result<(), PortError> {
        self.port.obey(order)?;
        let events = self.rnic.events();
        match order {
            PortOrder::Down => events.push(AsyncEvent::PortError(PORT)),
            PortOrder::Up => {
                events.push(AsyncEvent::PortActive(PORT));
                // The kernel removes the GIDs of an interface that is down, and enters them again.
                events.push(AsyncEvent::GidChange(PORT));
            }
            PortOrder::DeviceFatal => events.push(AsyncEvent::DeviceFatal),
        }
        self.follow_port(now_ns);
        Ok(())
    }

    /// Makes this driver use the port of another engine's driver.
    pub(crate) fn share_port(&mut self, view: PortView) {
        self.port.share(view);
    }

    /// Follows a change of the port: after a failure, puts all queue pairs into the error state, and loses the packets
    /// that are ready if the port is down.
    pub(crate) fn follow_port(&mut self, now_ns: u64) {
        if self.port_state().is_err() {
            self.rnic.fail_queue_pairs();
        }
        if !self.port.is_up() {
            if self.is_link_full() {
                self.link.forget_batch();
            }
            self.port.lost_sent += self.discard_ready(now_ns);
        }
        if let Some(observation) = &mut self.observation {
            observation.note(now_ns);
        }
    }

    /// Handles a packet that another engine has received.
    pub(crate) fn receive_stray(&mut self, now_ns: u64, stray: &Stray) {
        if !self.port.is_up() {
            self.port.note_lost(now_ns, &Lost { packets: 1 });
            return;
        }
        self.rnic.handle_packet(now_ns, &stray.outer, &stray.bytes);
        if let Some(observation) = &mut self.observation {
            observation.note(now_ns);
        }
    }

    /// Carries out the orders of a fault plan to the port.
    #[inline]
    fn obey_link(&mut self, now_ns: u64) {
        if !self.link_orders_port {
            return;
        }
        while let Some(planned) = self.link.take_port_order() {
            // If the port is down already, or the device has failed, the order has no effect.
            match planned {
                PlannedOrder::Down { for_ns } => {
                    if self.order_port(now_ns, PortOrder::Down).is_ok() {
                        self.port.up_at_ns = Some(now_ns.saturating_add(for_ns));
                    }
                }
                PlannedOrder::DeviceFatal => {
                    let _ = self.order_port(now_ns, PortOrder::DeviceFatal);
                }
            }
        }
    }

    /// Takes a look on behalf of a caller that polls, without a clock. Returns false if the caller must call
    /// [`note_look`](Self::note_look) and [`pump`](Self::pump). Returns true if the driver has nothing to receive or to
    /// send. The last pump of a caller was then at most a few microseconds ago, unless callers have just become slower.
    #[inline]
    pub(crate) fn look(&mut self) -> bool {
        let may_look = self.looks.is_allowed() && self.is_quiet();
        if may_look {
            self.looks.take();
        }
        may_look
    }

    /// Records that the current look of a caller is a [`pump`](Self::pump).
    #[inline]
    pub(crate) fn note_look(&mut self, now_ns: u64) {
        self.looks.pumped(now_ns);
    }

    /// Returns whether a pump would do nothing, unless a deadline has come.
    fn is_quiet(&self) -> bool {
        !self.rnic.wants_transmit()
            && self.rnic.held_ack_since_ns().is_none()
            && self.deferred_until_ns.is_none()
            && !self.is_link_full()
            && !self.link.may_receive()
    }

    /// Lets the port come up if its planned time has come.
    #[inline]
    fn raise_port(&mut self, now_ns: u64) {
        if self.port.up_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            // The call cannot fail: an order that changes the port clears the time.
            let _ = self.order_port(now_ns, PortOrder::Up);
        }
    }

    /// Receives, handles expired timers and sends. Returns the number of packets received.
    ///
    /// # Errors
    ///
    /// The link is broken: [`Link::receive`] or [`Link::transmit`] failed. The driver has handled expired timers
    /// nevertheless, so work requests continue to time out.
    pub fn pump(&mut self, now_ns: u64, acks: Acks) -> io::Result<usize> {
        self.raise_port(now_ns);
        // If the link fails here, return the error only at the end, so that work requests still time out.
        let mut received = self.receive(now_ns);
        self.obey_link(now_ns);
        let timed_out = self.is_timer_due(now_ns);
        if timed_out {
            if self.rnic.is_answer_overdue(now_ns) {
                let arrived = self.receive_at_most(OVERDUE_PACKETS_MAX, now_ns);
                received = received.and_then(|packets| Ok(packets + arrived?));
            }
            self.rnic.handle_timeout(now_ns);
        }
        // If this pump received no packets, the program has nothing to reply to, so acknowledgements do not wait for a
        // reply.
        let packets = received.as_ref().map_or(0, |&packets| packets);
        let may_wait = match acks {
            Acks::MayWait => packets > 0,
            Acks::Wait => true,
            Acks::Now => false,
        };
        // If other packets are sent now, sending the acknowledgement with them costs almost nothing.
        if !may_wait || packets >= HOLD_ACKS_BELOW_PACKETS || self.rnic.wants_transmit() {
            self.rnic.release_acks();
        }
        let transmitted = self.transmit(now_ns);
        if let Some(observation) = &mut self.observation {
            if packets > 0 || timed_out {
                observation.note(now_ns);
            }
            observation.look(now_ns, acks == Acks::Now && packets == 0, self.rnic.counters());
        }
        transmitted?;
        received
    }

    /// Handles expired timers without the link. Drops the packets that are ready, as a network that loses them.
    pub fn time_out(&mut self, now_ns: u64) {
        if self.is_timer_due(now_ns) {
            self.rnic.handle_timeout(now_ns);
        }
        self.rnic.release_acks();
        self.discard_ready(now_ns);
    }

    /// Returns whether a timer of the RNIC has expired.
    #[inline]
    fn is_timer_due(&self, now_ns: u64) -> bool {
        self.rnic.poll_timeout().is_some_and(|at| at <= now_ns)
    }

    /// Receives the packets that have arrived.
    fn receive(&mut self, now_ns: u64) -> io::Result<usize> {
        if !self.port.is_up() {
            let mut lost = Lost::default();
            let received = self.link.receive(now_ns, &mut lost);
            self.port.note_lost(now_ns, &lost);
            return received;
        }
        let Self { rnic, link, encapsulation, .. } = self;
        match encapsulation {
            None => link.receive(now_ns, &mut |run: ReceivedRun<'_>| {
                rnic.handle_packets(now_ns, &run.outer, run.segments());
            }),
            Some((_, checker)) => {
                let before = checker.counters();
                let received = link.receive(now_ns, &mut Checked { rnic, checker, now_ns });
                let after = checker.counters();
                if after.failed != before.failed || after.short != before.short {
                    rnic.count_icrc_errors(after.failed - before.failed);
                    rnic.count_malformed(after.short - before.short);
                }
                received
            }
        }
    }

    /// Handles all packets that have arrived, though a [`pump`](Self::pump) may take only some of them. Returns their
    /// number.
    ///
    /// # Errors
    ///
    /// The link is broken: [`Link::receive`] failed.
    pub fn receive_arrived(&mut self, now_ns: u64) -> io::Result<usize> {
        self.receive_at_most(ARRIVED_PACKETS_MAX, now_ns)
    }

    fn receive_at_most(&mut self, limit: usize, now_ns: u64) -> io::Result<usize> {
        self.raise_port(now_ns);
        let (mut packets, mut empty) = (0, 0);
        while packets < limit && empty < EMPTY_RECEIVES {
            self.link.look_everywhere();
            let received = self.receive(now_ns);
            self.obey_link(now_ns);
            let received = received?;
            packets += received;
            empty = if received == 0 { empty + 1 } else { 0 };
        }
        if packets > 0
            && let Some(observation) = &mut self.observation
        {
            observation.note(now_ns);
        }
        Ok(packets)
    }

    /// Defers the sending of ready packets to the next [`pump`](Self::pump), which must happen by `until_ns`.
    pub fn defer_transmit(&mut self, until_ns: u64) {
        self.deferred_until_ns.get_or_insert(until_ns);
    }

    /// Returns whether ready packets are deferred.
    pub fn has_deferred(&self) -> bool {
        self.deferred_until_ns.is_some()
    }

    /// Sends all packets that are ready, including acknowledgements that were held back.
    ///
    /// # Errors
    ///
    /// As [`transmit`](Self::transmit).
    pub fn flush(&mut self, now_ns: u64) -> io::Result<()> {
        self.rnic.release_acks();
        self.transmit(now_ns)
    }

    /// Sends packets until none is ready or the link is full. Completions of receives become visible to the program
    /// once all packets are sent.
    ///
    /// # Errors
    ///
    /// The link is broken: [`Link::transmit`] failed. The remaining packets are lost, as in a network.
    pub fn transmit(&mut self, now_ns: u64) -> io::Result<()> {
        self.deferred_until_ns = None;
        if !self.port.is_up() {
            self.port.lost_sent += self.discard_ready(now_ns);
            return Ok(());
        }
        if self.rnic.has_full_destinations() {
            self.note_full_destinations();
        }
        loop {
            if self.next_run == self.batch.runs().len() {
                self.batch.clear();
                self.next_run = 0;
                if self.fill_batch(now_ns) == 0 {
                    // All packets are sent, including the acknowledgements of completed receives. So the RNIC may show
                    // the completions of these receives to the program.
                    self.rnic.transmitted();
                    return Ok(());
                }
                if let Some((sealer, _)) = &mut self.encapsulation {
                    sealer.seal_to(&mut self.batch, |path| self.link.seals(path));
                }
                if let Some(observation) = &mut self.observation {
                    observation.note(now_ns);
                }
            }
            if let Err(error) = self.link.transmit(now_ns, &self.batch, &mut self.next_run) {
                // The link is broken. `drop_batch` makes completions visible to the program, although their
                // acknowledgements will never be sent.
                self.drop_batch();
                return Err(error);
            }
            self.obey_link(now_ns);
            if !self.port.is_up() {
                return Ok(());
            }
            if self.link.holds_packets() || self.rnic.has_full_destinations() {
                self.note_full_destinations();
            }
            if self.is_link_full() {
                if let Some(destination) = self.link.awaits()
                    && self.rnic.wants_transmit_beside(destination)
                {
                    self.link.hurry();
                }
                return Ok(());
            }
        }
    }

    /// Lets requests without a window wait while the link has no room for packets to their destination.
    #[cold]
    fn note_full_destinations(&mut self) {
        self.full.clear();
        self.link.full_destinations(&mut self.full);
        self.rnic.set_full_destinations(&self.full);
    }

    /// Adds packets to the empty batch. Returns their number.
    #[inline]
    fn fill_batch(&mut self, now_ns: u64) -> usize {
        if !self.rnic.wants_transmit() {
            return 0;
        }
        if let Some(loan) = self.link.lend() {
            self.batch.lend(loan);
        }
        let packets = self.rnic.poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut self.batch);
        self.batch.end_loan();
        packets
    }

    /// Drops the unsent runs of the batch and all packets that are ready, as a network that loses them. Returns the
    /// number of packets.
    fn discard_ready(&mut self, now_ns: u64) -> u64 {
        self.rnic.set_full_destinations(&[]);
        let mut packets = 0;
        loop {
            let unsent = &self.batch.runs()[self.next_run..];
            packets += unsent.iter().map(|run| run.segments().count() as u64).sum::<u64>();
            self.batch.clear();
            self.next_run = 0;
            if !self.rnic.wants_transmit()
                || self.rnic.poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut self.batch) == 0
            {
                break;
            }
        }
        self.drop_batch();
        packets
    }

    /// Drops the unsent runs of the batch, as if the network had lost them. While a batch waits, the RNIC does not
    /// retransmit. After this call, it retransmits when its timers expire.
    fn drop_batch(&mut self) {
        self.next_run = self.batch.runs().len();
        self.rnic.transmitted();
    }

    /// Returns whether the batch contains runs that the link has not accepted yet.
    pub fn is_link_full(&self) -> bool {
        self.next_run < self.batch.runs().len()
    }

    /// Returns whether packets wait only for room in the link. Returns false if the link still looks for the route to
    /// their destination.
    pub fn wants_room(&self) -> bool {
        self.is_link_full() && self.link.awaits().is_none()
    }

    /// Returns the deadline of the next call of [`pump`](Self::pump).
    pub fn poll_timeout(&self) -> Option<u64> {
        let observation = self.observation.as_ref().and_then(Observation::poll_timeout);
        let link = self.link.poll_timeout().map(|at_ns| self.port.paced(at_ns));
        earliest([self.rnic.poll_timeout(), link, observation, self.deferred_until_ns, self.port.up_at_ns])
    }
}

/// Sink that checks the ICRC of packets and passes correct packets to the RNIC. Packets from shared memory need no
/// ICRC.
struct Checked<'a> {
    rnic: &'a mut Rnic,
    checker: &'a mut Checker,
    now_ns: u64,
}

impl Sink for Checked<'_> {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        let packets = run.segments().enumerate();
        let whole = packets.filter_map(|(index, packet)| self.checker.check(&run, index, packet));
        self.rnic.handle_packets(self.now_ns, &run.outer, whole);
    }

    fn receive_shared(&mut self, run: &SharedRun<'_>) -> bool {
        self.rnic.handle_packets(self.now_ns, &run.outer, run.packets());
        true
    }
}

#[cfg(test)]
pub(crate) mod tests;
