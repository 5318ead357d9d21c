//! Taking packets queue pair by queue pair, and telling the device of posts: for a driver that decides when each
//! happens.

use doorbell_verbs_core::SrqId;
use doorbell_wire::Qpn;

use super::Rnic;
use crate::qp::{ReceiveQueue, Stop};
use crate::transmit::{Budget, Filter, TransmitBatch};

/// One of the two streams of packets of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What its own work requests send.
    Requests,
    /// What it answers its peer: acknowledgements, and responses to READs and atomics.
    Answers,
}

/// A queue pair with something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Its number.
    pub qpn: Qpn,
    /// It has requests.
    pub requests: bool,
    /// It has answers.
    pub answers: bool,
}

/// What one pull brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Packets that were added to the batch.
    pub packets: usize,
    /// More of this part could be sent now.
    pub more: bool,
}

/// Posts that wait for their doorbell ([`Policy::waits_for_doorbells`](crate::Policy::waits_for_doorbells)), and packets
/// queue pair by queue pair, instead of [`poll_transmit`](Rnic::poll_transmit).
impl Rnic {
    /// The doorbell index that covers every send that is posted on a queue pair: how many were posted in its life.
    pub fn posted_sends(&self, qpn: Qpn) -> u64 {
        self.slot(qpn).map_or(0, |slot| self.qps[slot as usize].sq.tail)
    }

    /// The index of the work request that a queue pair sends from next, and the packet within it.
    pub fn next_send(&self, qpn: Qpn) -> Option<(u64, u32)> {
        self.slot(qpn).map(|slot| self.qps[slot as usize].send_cursor())
    }

    /// Tells the device of the sends up to a [doorbell index](Self::posted_sends). One that was rung already, or of a
    /// queue pair that is gone, has no effect.
    pub fn ring_sends(&mut self, now_ns: u64, qpn: Qpn, index: u64) {
        self.core.now_ns = now_ns;
        let Some(slot) = self.slot(qpn) else { return };
        let sq = &mut self.qps[slot as usize].sq;
        sq.rung = sq.rung.max(index.min(sq.tail));
        self.settle(slot);
    }

    /// Tells the device that sends up to a [doorbell index](Self::posted_sends) have left, of those that were pulled. Those
    /// of UC and UD complete if they wait for that
    /// ([`Policy::waits_for_departures`](crate::Policy::waits_for_departures)). A queue pair that is gone is none.
    pub fn sends_departed(&mut self, now_ns: u64, qpn: Qpn, index: u64) {
        self.core.now_ns = now_ns;
        let Some(slot) = self.slot(qpn) else { return };
        self.qps[slot as usize].sends_departed(&mut self.core, index);
        self.settle(slot);
        self.publish();
    }

    /// Tells the device of the oldest `receives` that it does not know of.
    pub fn ring_receives(&mut self, qpn: Qpn, receives: usize) {
        let Some(slot) = self.slot(qpn) else { return };
        if let ReceiveQueue::Own { ring, .. } = &mut self.qps[slot as usize].rq {
            ring.ring(receives);
        }
    }

    /// The same of a shared receive queue.
    pub fn ring_shared_receives(&mut self, srq: SrqId, receives: usize) {
        if let Some(srq) = self.srqs.get(srq.0 as usize) {
            srq.queue.ring(receives);
        }
    }

    /// The next queue pair with something to send. It is named once, until it is [pulled](Self::pull) from or
    /// something happens to it.
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

    /// Adds the acknowledgements of queue pairs that were reset or destroyed to `batch`. Returns how many.
    pub fn pull_farewells(&mut self, batch: &mut TransmitBatch) -> usize {
        let mut left = usize::MAX;
        self.transmit_farewells(Filter::All, &mut left, batch);
        usize::MAX - left
    }
}
