//! The driver: pumps packets between one RNIC and one link.

use std::io;

use doorbell_rnic::{Budget, Filter, Rnic, TransmitBatch};
use doorbell_wire::ICRC_LEN;

use crate::link::{Link, ReceivedRun, SharedRun, Sink};
use crate::observe::{Observation, Observer};
use crate::seal::{Checker, Sealer};

/// Bytes of one batch: two of the longest runs, which stay in a cache from sealing to sending.
const BATCH_BYTES: usize = 128 << 10;

/// With fewer packets than this received together, a due acknowledgement may wait for a reply to
/// leave behind; more of them are worth an acknowledgement of their own.
const HOLD_ACKS_BELOW_PACKETS: usize = 8;

/// What becomes of acknowledgements that are due when a pump ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// They may wait for company for a moment: the caller is about to handle what arrived.
    MayWait,
    /// They may wait until they are overdue: somebody else is handling what arrived.
    Wait,
    /// They leave now.
    Now,
}

/// An RNIC, a link, and the encapsulation between them.
pub struct Driver<L> {
    rnic: Rnic,
    link: L,
    batch: TransmitBatch,
    /// Runs of the batch before this one have left.
    next_run: usize,
    encapsulation: Option<(Sealer, Checker)>,
    observation: Option<Observation>,
    /// When what a caller left to be sent is sent at the latest.
    deferred_until_ns: Option<u64>,
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
    /// Drives `rnic` over `link`. `port` is the UDP port of both ends, which the ICRC covers; it
    /// does not matter where the link is not sealed.
    pub fn new(rnic: Rnic, link: L, port: u16) -> Self {
        let address = rnic.config().address;
        let sealed = link.properties().sealed;
        Self {
            batch: TransmitBatch::new(BATCH_BYTES, if sealed { ICRC_LEN } else { 0 }),
            next_run: 0,
            encapsulation: sealed.then(|| (Sealer::new(address, port), Checker::new(address, port))),
            observation: None,
            deferred_until_ns: None,
            rnic,
            link,
        }
    }

    /// Shows the RNIC's counters to `observer` from now on, whenever they have changed: when
    /// there is nothing else to do, at most `within_ns` later while there is, and at the end.
    pub fn observe(&mut self, observer: Observer, within_ns: u64) {
        self.observation = Some(Observation::new(observer, within_ns));
    }

    /// The RNIC.
    pub fn rnic(&self) -> &Rnic {
        &self.rnic
    }

    /// The RNIC, to post work and to make objects.
    pub fn rnic_mut(&mut self) -> &mut Rnic {
        &mut self.rnic
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The link, to join and leave multicast groups.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Receives, does what is due and sends. Returns the number of packets received.
    ///
    /// # Errors
    ///
    /// The link is broken: [`Link::receive`] or [`Link::transmit`] failed. What was due was done all the same, so work
    /// requests go on timing out.
    pub fn pump(&mut self, now_ns: u64, acks: Acks) -> io::Result<usize> {
        // A link that fails must not keep work requests from timing out.
        let received = self.receive(now_ns);
        let timed_out = self.rnic.poll_timeout().is_some_and(|at| at <= now_ns);
        if timed_out {
            self.rnic.handle_timeout(now_ns);
        }
        // A caller that found nothing has nothing to reply to; and many packets are company.
        let packets = received.as_ref().map_or(0, |&packets| packets);
        let may_wait = match acks {
            Acks::MayWait => packets > 0,
            Acks::Wait => true,
            Acks::Now => false,
        };
        // Behind packets that leave anyway an acknowledgement costs next to nothing.
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

    /// Takes what has arrived.
    fn receive(&mut self, now_ns: u64) -> io::Result<usize> {
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

    /// Leaves what is ready to be sent to the next [`pump`](Self::pump), which then is due at this time.
    pub fn defer_transmit(&mut self, until_ns: u64) {
        self.deferred_until_ns.get_or_insert(until_ns);
    }

    /// Lets acknowledgements leave that are held back, and sends what is ready.
    ///
    /// # Errors
    ///
    /// As [`transmit`](Self::transmit).
    pub fn flush(&mut self, now_ns: u64) -> io::Result<()> {
        self.rnic.release_acks();
        self.transmit(now_ns)
    }

    /// Sends what is ready, until nothing is left or the link is full. Receives that completed are seen by
    /// the program once nothing is left.
    ///
    /// # Errors
    ///
    /// The link is broken: [`Link::transmit`] failed. What was to be sent is lost, as packets are in a network.
    pub fn transmit(&mut self, now_ns: u64) -> io::Result<()> {
        self.deferred_until_ns = None;
        loop {
            if self.next_run == self.batch.runs().len() {
                self.batch.clear();
                self.next_run = 0;
                if !self.rnic.wants_transmit()
                    || self.rnic.poll_transmit(now_ns, Budget::UNLIMITED, Filter::All, &mut self.batch) == 0
                {
                    // Everything has left, so receives are seen whose acknowledgements were part of it.
                    self.rnic.transmitted();
                    return Ok(());
                }
                if let Some((sealer, _)) = &mut self.encapsulation {
                    sealer.seal_to(&mut self.batch, |destination| self.link.seals(destination));
                }
                if let Some(observation) = &mut self.observation {
                    observation.note(now_ns);
                }
            }
            if let Err(error) = self.link.transmit(now_ns, &self.batch, &mut self.next_run) {
                // The link is broken, so no acknowledgement will leave: the program sees the completions all the same.
                self.drop_batch();
                return Err(error);
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

    /// What is left of the batch is lost, as packets are in a network. Its timers tell the requester, which could
    /// send nothing again while the batch waits.
    fn drop_batch(&mut self) {
        self.next_run = self.batch.runs().len();
        self.rnic.transmitted();
    }

    /// Is something waiting for the link to have room?
    pub fn is_link_full(&self) -> bool {
        self.next_run < self.batch.runs().len()
    }

    /// Is something waiting that the link takes as soon as it has room?
    pub fn wants_room(&self) -> bool {
        self.is_link_full() && self.link.awaits().is_none()
    }

    /// When [`pump`](Self::pump) is to be called at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        let observation = self.observation.as_ref().and_then(Observation::poll_timeout);
        let deadlines = [self.rnic.poll_timeout(), self.link.poll_timeout(), observation, self.deferred_until_ns];
        deadlines.into_iter().flatten().min()
    }
}

/// Hands packets to the RNIC whose ICRC is right, or needs none.
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
mod tests;
