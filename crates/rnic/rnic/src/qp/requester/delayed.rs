//! Requests of UC and UD queue pairs that wait until the link has room for packets to their destination.
//!
//! RC queue pairs have windows, which bound the packets in the link. On UC and UD, a send is done once its packets have
//! left, so only the link can slow a program down whose peer reads more slowly. The driver names the destinations
//! without room ([`Rnic::set_full_destinations`](crate::Rnic::set_full_destinations)). A UC queue pair with such a
//! destination stops, within a message too. A UD queue pair sets its datagrams to such a destination aside, and goes on
//! with its other datagrams. Sends complete in order, so a send that waits delays the completions of later sends. The
//! send queue then fills, and the program has to wait.

use std::collections::VecDeque;

use doorbell_verbs_core::QpKind;

use super::transmit::PacketPosition;
use super::{Requester, Stop};
use crate::commons::Commons;
use crate::qp::Qp;
use crate::transmit::{PathEnd, TransmitBatch};

/// Datagrams to one engine of a device that a UD queue pair has set aside.
#[derive(Debug)]
pub(super) struct Delayed {
    destination: PathEnd,
    /// Indices of the work requests, oldest first. There is at least one.
    sends: VecDeque<u64>,
}

impl Requester {
    /// Returns the index of the oldest datagram that was set aside; [`u64::MAX`] if there is none.
    #[inline]
    pub(super) fn oldest_delayed(&self) -> u64 {
        if self.delayed.is_empty() {
            return u64::MAX;
        }
        self.delayed.iter().filter_map(|delayed| delayed.sends.front().copied()).min().unwrap_or(u64::MAX)
    }
}

impl Qp {
    /// Delays the request at the cursor, if the link has no room for packets to its destination. Returns whether the
    /// request was set aside, so that the cursor is at the next request.
    ///
    /// # Errors
    ///
    /// The queue pair must stop, since all its packets have this destination.
    #[cold]
    pub(super) fn delay(&mut self, core: &mut Commons) -> Result<bool, Stop> {
        let Some(destination) = self.next_destination().filter(|destination| core.full.contains(destination)) else {
            return Ok(false);
        };
        self.await_link(core);
        if self.kind != QpKind::Ud {
            return Err(Stop::Link);
        }
        let req = &mut self.req;
        match req.delayed.iter_mut().find(|delayed| delayed.destination == destination) {
            Some(delayed) => delayed.sends.push_back(req.cursor),
            None => req.delayed.push(Delayed { destination, sends: VecDeque::from([req.cursor]) }),
        }
        req.cursor += 1; // a datagram has one packet
        req.cursor_psn = req.cursor_psn.next();
        req.una = req.cursor_psn;
        req.high_psn = req.cursor_psn;
        Ok(true)
    }

    /// Adds the queue pair to the queue pairs that wait for room in the link.
    fn await_link(&mut self, core: &mut Commons) {
        if !std::mem::replace(&mut self.awaits_link, true) {
            core.awaiting_link.push(self.qpn);
        }
    }

    /// Lets the requests of the queue pair try again that waited for room in the link.
    pub(crate) fn link_has_room(&mut self) {
        self.awaits_link = false;
        self.blocked = false; // UC and UD queue pairs wait for no window
        self.req.resumes = !self.req.delayed.is_empty();
    }

    /// Sends the datagrams that were set aside and whose destination has room now, oldest first.
    ///
    /// # Errors
    ///
    /// The budget or the batch is exhausted, or the memory of a datagram is gone. Such a datagram fails once all
    /// earlier sends are done.
    #[cold]
    pub(super) fn transmit_delayed(
        &mut self,
        core: &mut Commons,
        budget: &mut usize,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        let result = self.transmit_freed(core, budget, batch);
        if result != Err(Stop::Budget) && !self.req.delayed.is_empty() {
            self.await_link(core);
        }
        self.req.resumes &= result.is_err();
        result
    }

    fn transmit_freed(
        &mut self,
        core: &mut Commons,
        budget: &mut usize,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        loop {
            let delayed = self.req.delayed.iter().enumerate();
            let freed = delayed.filter(|(_, delayed)| !core.full.contains(&delayed.destination));
            // The oldest first: a datagram whose memory is gone then waits only for datagrams without room.
            let oldest = freed.filter_map(|(place, delayed)| Some((*delayed.sends.front()?, place))).min();
            let Some((index, place)) = oldest else { return Ok(()) };
            if *budget == 0 {
                return Err(Stop::Budget);
            }
            let wqe = *self.sq.get(index);
            let position = PacketPosition {
                index,
                packet: 0,
                packets: 1,
                psn: wqe.first_psn,
                retransmission: false,
                ack_request: false,
            };
            self.write_packet(core, &wqe, position, &mut None, batch)?;
            *budget -= 1;
            let sends = &mut self.req.delayed[place].sends;
            sends.pop_front();
            if sends.is_empty() {
                self.req.delayed.swap_remove(place);
            }
            if !core.policy.waits_for_departures {
                self.sends_departed(core, self.req.cursor);
            }
        }
    }
}
