//! Packets of single queue pairs, and doorbells of posts: for a driver that decides when each happens.

use doorbell_verbs_core::SrqId;
use doorbell_wire::Qpn;

use super::Rnic;
use crate::qp::{ReceiveQueue, Stop};
use crate::transmit::{Budget, Filter, TransmitBatch};

/// One of the two streams of packets of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Packets of the queue pair's own work requests.
    Requests,
    /// Answers to the peer: acknowledgements, and responses to READs and atomics.
    Answers,
}

/// A queue pair with something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Whether it has requests.
    pub requests: bool,
    /// Whether it has answers.
    pub answers: bool,
}

/// Result of one pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Packets that were added to the batch.
    pub packets: usize,
    /// Whether more of this part could be sent now.
    pub more: bool,
}

/// Doorbells of posts ([`Policy::waits_for_doorbells`](crate::Policy::waits_for_doorbells)), and packets of one queue
/// pair at a time, in place of [`poll_transmit`](Rnic::poll_transmit).
impl Rnic {
    /// Returns the doorbell index that covers every posted send: the number of sends posted since the creation of the
    /// queue pair.
    pub fn posted_sends(&self, qpn: Qpn) -> u64 {
        self.slot(qpn).map_or(0, |slot| self.qps[slot as usize].sq.tail)
    }

    /// Returns the index of the work request that a queue pair sends from next, and the packet within it.
    pub fn next_send(&self, qpn: Qpn) -> Option<(u64, u32)> {
        self.slot(qpn).map(|slot| self.qps[slot as usize].send_cursor())
    }

    /// Makes the sends up to a [doorbell index](Self::posted_sends) visible to the device. An index that was rung
    /// already, or a queue pair that was destroyed, has no effect.
    pub fn ring_sends(&mut self, now_ns: u64, qpn: Qpn, index: u64) {
        self.core.now_ns = now_ns;
        let Some(slot) = self.slot(qpn) else { return };
        let sq = &mut self.qps[slot as usize].sq;
        sq.rung = sq.rung.max(index.min(sq.tail));
        self.settle(slot);
    }

    /// Reports to the device that the pulled sends up to a [doorbell index](Self::posted_sends) have left. Sends of
    /// UC and UD then complete if the policy makes them wait for it
    /// ([`Policy::waits_for_departures`](crate::Policy::waits_for_departures)). A queue pair that was destroyed has
    /// no effect.
    pub fn sends_departed(&mut self, now_ns: u64, qpn: Qpn, index: u64) {
        self.core.now_ns = now_ns;
        let Some(slot) = self.slot(qpn) else { return };
        self.qps[slot as usize].sends_departed(&mut self.core, index);
        self.settle(slot);
        self.publish();
    }

    /// Makes the oldest `receives` hidden receives visible to the device.
    pub fn ring_receives(&mut self, qpn: Qpn, receives: usize) {
        let Some(slot) = self.slot(qpn) else { return };
        if let ReceiveQueue::Own { ring, .. } = &mut self.qps[slot as usize].rq {
            ring.ring(receives);
        }
    }

    /// Makes the oldest hidden receives of a shared receive queue visible to the device.
    pub fn ring_shared_receives(&mut self, srq: SrqId, receives: usize) {
        if let Some(srq) = self.srqs.get(srq.0 as usize) {
            srq.queue.ring(receives);
        }
    }

    /// Returns the next queue pair with something to send. The device returns it once, until the driver
    /// [pulls](Self::pull) from it or its state changes.
    pub fn take_ready(&mut self) -> Option<Ready> {
        let slot = self.core.ready.pop_front()?;
        let qp = &mut self.qps[slot as usize];
        qp.queued = false;
        Some(Ready { qpn: qp.qpn, requests: qp.has_request_to_send(), answers: qp.resp.has_answers() })
    }

    /// Adds packets of one part of one queue pair to `batch`, within `budget`.
    pub fn pull(&mut self, now_ns: u64, qpn: Qpn, part: Part, budget: Budget, batch: &mut TransmitBatch) -> Pulled {
        self.core.now_ns = now_ns;
        let Some(slot) = self.slot(qpn) else { return Pulled::default() };
        batch.limit_growth(budget.bytes);
        let before = batch.infos().len();
        let (core, qp) = (&mut self.core, &mut self.qps[slot as usize]);
        let mut left = budget.packets;
        let more = match part {
            Part::Requests => {
                let stop = qp.transmit_requests(core, &mut left, batch);
                qp.note_stop(core, slot, stop);
                stop == Stop::Budget
            }
            Part::Answers => qp.transmit_answers(core, &mut left, batch),
        };
        self.arm_timer(slot);
        self.wake_waiters_of(slot);
        self.publish();
        Pulled { packets: batch.infos().len() - before, more }
    }

    /// Adds the acknowledgements of queue pairs that were reset or destroyed to `batch`. Returns the number of
    /// packets.
    pub fn pull_farewells(&mut self, batch: &mut TransmitBatch) -> usize {
        let mut left = usize::MAX;
        self.transmit_farewells(Filter::All, &mut left, batch);
        usize::MAX - left
    }
}
