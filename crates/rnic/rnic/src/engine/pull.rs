//! Functions for a driver that simulates an RNIC in hardware. The driver decides when each packet leaves, and when the
//! doorbell of each post reaches the device.

use doorbell_verbs_core::SrqId;
use doorbell_wire::Qpn;

use super::Rnic;
use crate::qp::{ReceiveQueue, Stop};
use crate::transmit::{Budget, Filter, TransmitBatch};

/// Kind of packets that [`Rnic::pull`] takes from a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Packets of the queue pair's own work requests.
    Requests,
    /// Answers to the peer: acknowledgements, and responses to READs and atomics.
    Answers,
}

/// Queue pair that has packets to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// Whether the queue pair has requests to send.
    pub requests: bool,
    /// Whether the queue pair has answers to send.
    pub answers: bool,
}

/// Result of [`Rnic::pull`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Number of packets that the call added to the batch.
    pub packets: usize,
    /// Whether the queue pair could send more packets of this kind now.
    pub more: bool,
    /// Whether the queue pair has answers to send, among them an acknowledgement that has waited for these requests
    /// ([`Policy::acks_follow_requests`](crate::Policy::acks_follow_requests)).
    pub answers: bool,
}

/// Functions that ring the doorbells of posts ([`Policy::waits_for_doorbells`](crate::Policy::waits_for_doorbells)),
/// and functions that replace [`poll_transmit`](Rnic::poll_transmit): they send the packets of a single queue pair.
impl Rnic {
    /// Returns the doorbell index that covers every posted send: the number of sends posted since the creation of the
    /// queue pair.
    pub fn posted_sends(&self, qpn: Qpn) -> u64 {
        self.slot(qpn).map_or(0, |slot| self.qps[slot as usize].sq.tail)
    }

    /// Returns the index of the work request that the queue pair sends next, and the index of the next packet within
    /// this work request.
    pub fn next_send(&self, qpn: Qpn) -> Option<(u64, u32)> {
        self.slot(qpn).map(|slot| self.qps[slot as usize].send_cursor())
    }

    /// Makes the sends up to a [doorbell index](Self::posted_sends) visible to the device. The call has no effect if
    /// the index was rung before or the queue pair was destroyed.
    pub fn ring_sends(&mut self, now_ns: u64, qpn: Qpn, index: u64) {
        self.core.now_ns = now_ns;
        let Some(slot) = self.slot(qpn) else { return };
        let sq = &mut self.qps[slot as usize].sq;
        sq.rung = sq.rung.max(index.min(sq.tail));
        self.settle(slot);
    }

    /// Reports to the device that the pulled sends up to a [doorbell index](Self::posted_sends) have left. If the
    /// policy makes sends of UC and UD wait for their departure
    /// ([`Policy::waits_for_departures`](crate::Policy::waits_for_departures)), these sends now complete. The call has
    /// no effect if the queue pair was destroyed.
    pub fn sends_departed(&mut self, now_ns: u64, qpn: Qpn, index: u64) {
        self.core.now_ns = now_ns;
        let Some(slot) = self.slot(qpn) else { return };
        self.qps[slot as usize].sends_departed(&mut self.core, index);
        self.settle(slot);
        self.publish();
    }

    /// Makes hidden receives of a queue pair visible to the device: the oldest ones, `receives` in number.
    pub fn ring_receives(&mut self, qpn: Qpn, receives: usize) {
        let Some(slot) = self.slot(qpn) else { return };
        if let ReceiveQueue::Own { ring, .. } = &mut self.qps[slot as usize].rq {
            ring.ring(receives);
        }
    }

    /// Makes hidden receives of a shared receive queue visible to the device: the oldest ones, `receives` in number.
    pub fn ring_shared_receives(&mut self, srq: SrqId, receives: usize) {
        if let Some(shared) = self.shared_receives(srq) {
            shared.queue().ring(receives);
        }
    }

    /// Returns the next queue pair that has packets to send. Does not return the queue pair again until the driver
    /// [pulls](Self::pull) from it or its state changes.
    pub fn take_ready(&mut self) -> Option<Ready> {
        let slot = self.core.ready.pop_front()?;
        let qp = &mut self.qps[slot as usize];
        qp.queued = false;
        Some(Ready { qpn: qp.qpn, requests: qp.has_request_to_send(), answers: qp.resp.has_answers() })
    }

    /// Adds packets of one kind of one queue pair to `batch`, within `budget`.
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
                if core.policy.acks_follow_requests {
                    qp.resp.release_ack();
                }
                stop == Stop::Budget
            }
            Part::Answers => qp.transmit_answers(core, &mut left, batch),
        };
        let answers = qp.resp.has_answers();
        self.arm_timer(slot);
        self.wake_waiters_of(slot);
        self.publish();
        Pulled { packets: batch.infos().len() - before, more, answers }
    }

    /// Adds packets to `batch`: the acknowledgements of queue pairs that were reset or destroyed. Returns the number of
    /// packets.
    pub fn pull_farewells(&mut self, batch: &mut TransmitBatch) -> usize {
        let mut left = usize::MAX;
        self.transmit_farewells(Filter::All, &mut left, batch);
        usize::MAX - left
    }
}
