//! Work requests, packets and timeouts.

use std::cmp::Reverse;

use doorbell_verbs_core::{PostError, PostErrorKind, QpCounters, QpKind, QpState, RecvRequest, SendRequest, SrqId};
use doorbell_wire::{BTH_LEN, BthRepr, Outer, PartitionKey, Qpn, Transport};

use super::Rnic;
use crate::commons::{Sent, frame_overhead};
use crate::congestion::in_flight_cost;
use crate::deadline::earliest;
use crate::memory::Packet;
use crate::packets::Acknowledgement;
use crate::qp::{Qp, Stop};
use crate::transmit::{Budget, Filter, MAX_RUN_PACKETS, PathEnd, TransmitBatch};

/// Posting of work requests, and handling of packets and timeouts.
impl Rnic {
    /// Posts a list of send work requests, up to the first request that the device rejects.
    ///
    /// # Errors
    ///
    /// - There is no such queue pair, its state does not allow the request, or its send queue is full.
    /// - [`SendRules::check`](doorbell_verbs_core::SendRules::check) rejects the request.
    /// - The queue pair may not access the memory of a scatter-gather element as the request requires. If
    ///   [`check_elements_late`](Self::check_elements_late) was called, the device makes this check later.
    ///
    /// The error holds the index of the rejected request. The device accepted the requests before that index.
    pub fn post_send(&mut self, now_ns: u64, qpn: Qpn, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.post_sends(now_ns, qpn, list, false)
    }

    /// Posts all send work requests of a list, or none if the device rejects one of them.
    ///
    /// # Errors
    ///
    /// The errors of [`post_send`](Self::post_send). After an error, the device has accepted no request of the list.
    pub fn post_all_sends(&mut self, now_ns: u64, qpn: Qpn, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.post_sends(now_ns, qpn, list, true)
    }

    #[inline]
    fn post_sends(
        &mut self,
        now_ns: u64,
        qpn: Qpn,
        list: &[SendRequest<'_>],
        all_or_none: bool,
    ) -> Result<(), PostError> {
        self.core.now_ns = now_ns;
        let slot = self.slot(qpn).ok_or(PostError { index: 0, kind: PostErrorKind::UnknownQp(qpn) })?;
        let qp = &mut self.qps[slot as usize];
        qp.resp.note_post(list.len(), || self.core.empty_polls(qp.recv_cq));
        let mut result = Ok(());
        for (index, request) in list.iter().enumerate() {
            if let Err(kind) = qp.post_send(&mut self.core, request) {
                if all_or_none {
                    qp.sq.take_back(index);
                }
                result = Err(PostError { index, kind });
                break;
            }
        }
        if !self.core.policy.waits_for_doorbells {
            qp.sq.rung = qp.sq.tail;
        }
        if matches!(qp.state, QpState::SqError | QpState::Error) {
            qp.flush_sends(&mut self.core);
        }
        self.settle(slot);
        self.publish();
        result
    }

    /// Posts a list of receive work requests, up to the first request that the device rejects.
    ///
    /// # Errors
    ///
    /// - There is no such queue pair, the queue pair is in the reset state, or the queue pair uses a shared receive
    ///   queue.
    /// - The receive queue is full.
    /// - A request has too many scatter-gather elements, or an element outside of writable memory.
    ///
    /// The error holds the index of the rejected request. The device accepted the requests before that index.
    pub fn post_recv(&mut self, qpn: Qpn, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError { index: 0, kind: PostErrorKind::UnknownQp(qpn) })?;
        let qp = &mut self.qps[slot as usize];
        let mut result = Ok(());
        for (index, request) in list.iter().enumerate() {
            if let Err(kind) = qp.post_recv(&mut self.core, request) {
                result = Err(PostError { index, kind });
                break;
            }
        }
        self.publish();
        result
    }

    /// Posts a list of receives to a shared receive queue. A program that has [`SharedReceives`](crate::SharedReceives)
    /// posts without access to an engine.
    ///
    /// # Errors
    ///
    /// There is no such shared receive queue, the queue is full, or a request has too many scatter-gather elements or
    /// an element outside of writable memory. The error holds the index of the rejected request. The device accepted
    /// the requests before that index.
    pub fn post_srq_recv(&self, srq: SrqId, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let receives = self.shared_receives(srq);
        receives.ok_or(PostError { index: 0, kind: PostErrorKind::UnknownSrq(srq) })?.post(list)
    }

    /// Handles packets that arrived together from one sender. Each packet extends from the BTH to the padding and is
    /// given as bytes or as a [`Packet`].
    pub fn handle_packets<'a, P: Into<Packet<'a>>>(
        &mut self,
        now_ns: u64,
        outer: &Outer,
        packets: impl IntoIterator<Item = P>,
    ) {
        self.core.now_ns = now_ns;
        let overhead = frame_overhead(outer.src);
        let mut last: Option<(Qpn, u32)> = None;
        for packet in packets {
            let mut packet: Packet<'a> = packet.into();
            let bytes = packet.len() as u64 + overhead;
            self.core.counters.rx_vport_rdma_unicast_packets += 1;
            self.core.counters.rx_vport_rdma_unicast_bytes += bytes;
            let whole = packet;
            let Some(header) = packet.split::<BTH_LEN>() else {
                self.core.counters.rx_malformed += 1;
                continue;
            };
            let bth = BthRepr::read(header);
            if outer.dst.is_multicast() {
                self.handle_multicast(outer, bth, packet, bytes);
                continue;
            }
            let slot = match last {
                Some((qpn, slot)) if qpn == bth.dest_qpn => slot,
                _ => {
                    if let Some((_, slot)) = last.take() {
                        self.settle(slot);
                    }
                    let Some(slot) = self.slot(bth.dest_qpn) else {
                        self.handle_unknown(outer, &bth, whole);
                        continue;
                    };
                    last = Some((bth.dest_qpn, slot));
                    slot
                }
            };
            self.dispatch(slot, outer, bth, packet);
        }
        if let Some((_, slot)) = last {
            self.settle(slot);
        }
        self.publish();
    }

    /// Handles one packet: see [`handle_packets`](Self::handle_packets).
    pub fn handle_packet(&mut self, now_ns: u64, outer: &Outer, packet: &[u8]) {
        self.handle_packets(now_ns, outer, [packet]);
    }

    pub(super) fn count_unknown(&mut self, bth: &BthRepr) {
        match bth.opcode.transport() {
            Transport::Cnp => self.core.counters.rx_cnp += 1,
            _ if bth.opcode.operation().is_none() || bth.version != 0 => self.core.counters.rx_malformed += 1,
            _ => self.core.counters.rx_unknown_qp += 1,
        }
    }

    #[inline(always)]
    pub(super) fn dispatch(&mut self, slot: u32, outer: &Outer, bth: BthRepr, rest: Packet<'_>) {
        let (core, qp) = (&mut self.core, &mut self.qps[slot as usize]);
        qp.counters.rx_packets += 1;
        // The following checks of the BTH come in the order of IBTA Vol 1, 9.6.
        let Some(operation) = bth.opcode.operation().filter(|_| bth.version == 0) else {
            core.counters.rx_malformed += 1;
            return;
        };
        let of_kind = match bth.opcode.transport() {
            Transport::Rc => qp.kind == QpKind::Rc,
            Transport::Uc => qp.kind == QpKind::Uc,
            Transport::Ud => qp.kind == QpKind::Ud,
            Transport::Cnp => {
                core.counters.rx_cnp += 1;
                return;
            }
            _ => false,
        };
        if !of_kind {
            core.counters.rx_unknown_qp += 1;
            return;
        }
        // The lowest 15 bits name the partition (IBTA Vol 1, 10.9.3).
        if (bth.partition_key.get() ^ PartitionKey::DEFAULT.get()) & 0x7fff != 0 {
            core.counters.rx_key_violation += 1;
            return;
        }
        if qp.kind != QpKind::Ud && outer.src != qp.settings.peer.destination {
            core.counters.rx_foreign_source += 1;
            return;
        }
        if !bth.opcode.is_response() {
            if !qp.responds() {
                core.counters.rx_wrong_state += 1;
            } else if qp.kind == QpKind::Ud {
                qp.handle_datagram(core, outer, bth, rest);
            } else {
                qp.handle_request(core, bth, operation, rest);
            }
            return;
        }
        if !qp.requests() {
            core.counters.rx_wrong_state += 1;
            return;
        }
        qp.handle_response(core, &bth, operation, rest);
    }

    /// Counts packets that the driver dropped because their ICRC was wrong.
    pub fn count_icrc_errors(&mut self, packets: u64) {
        self.core.counters.rx_icrc_encapsulated += packets;
    }

    /// Counts malformed packets that the driver dropped.
    pub fn count_malformed(&mut self, packets: u64) {
        self.core.counters.rx_malformed += packets;
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.expire_timers(now_ns, false);
        self.release_held_acks(now_ns.saturating_sub(self.core.policy.ack_hold_ns));
        self.publish();
    }

    /// Returns whether [`handle_timeout`](Self::handle_timeout) would repeat or fail a request without an answer. The
    /// answer may have arrived at the driver already, so the driver handles all arrived packets first.
    pub fn is_answer_overdue(&mut self, now_ns: u64) -> bool {
        self.expire_timers(now_ns, true)
    }

    /// Handles the expired timers of requesters. If `stops` is true, stops before the first request without an answer
    /// in time, and returns true.
    fn expire_timers(&mut self, now_ns: u64, stops: bool) -> bool {
        self.core.now_ns = now_ns;
        while let Some(&Reverse((at, slot, qpn))) = self.timers.peek()
            && at <= now_ns
        {
            // A queue pair with another time has a newer entry with an earlier deadline.
            let qp = self.qps.get_mut(slot as usize).filter(|qp| qp.qpn == qpn && qp.timer_queued_ns == at);
            let is_due = |qp: &Qp| qp.requester_deadline_ns().is_some_and(|deadline| deadline <= now_ns);
            if stops && qp.as_ref().is_some_and(|qp| is_due(qp) && !qp.delays_requests()) {
                return true;
            }
            self.timers.pop();
            let Some(qp) = qp else { continue };
            qp.timer_queued_ns = u64::MAX;
            if is_due(qp) {
                qp.handle_requester_timeout(&mut self.core);
            }
            self.settle(slot);
        }
        false
    }

    /// Returns the time by which the driver must call [`handle_timeout`](Self::handle_timeout), followed by
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn poll_timeout(&self) -> Option<u64> {
        let timer = self.timers.peek().map(|&Reverse((at, ..))| at);
        let ack = self.held_ack_since_ns().map(|since| since + self.core.policy.ack_hold_ns);
        earliest([timer, ack])
    }

    /// Makes the next [`poll_transmit`](Self::poll_transmit) send all due acknowledgements that are held back.
    pub fn release_acks(&mut self) {
        self.release_held_acks(u64::MAX);
    }

    /// Returns the time since which the oldest held acknowledgement has been due; `None` if no acknowledgement is held
    /// back.
    pub fn held_ack_since_ns(&self) -> Option<u64> {
        self.held_acks.front().map(|&(since, ..)| since)
    }

    fn release_held_acks(&mut self, due_before_ns: u64) {
        while let Some(&(since, slot, qpn)) = self.held_acks.front()
            && since <= due_before_ns
        {
            self.held_acks.pop_front();
            let Some(qp) = self.qps.get_mut(slot as usize).filter(|qp| qp.qpn == qpn) else { continue };
            qp.ack_held = false;
            if qp.resp.held_ack_since_ns().is_some_and(|due| due <= due_before_ns) {
                qp.resp.release_ack();
            }
            self.settle(slot);
        }
    }

    /// Adds packets to `batch`, within `budget`. The packets come from the queue pairs that `filter` selects, which
    /// take turns. Returns the number of added packets.
    pub fn poll_transmit(&mut self, now_ns: u64, budget: Budget, filter: Filter, batch: &mut TransmitBatch) -> usize {
        self.core.now_ns = now_ns;
        self.release_held_acks(now_ns.saturating_sub(self.core.policy.ack_hold_ns));
        batch.limit_growth(budget.bytes);
        let before = batch.infos().len();
        let mut left = budget.packets;
        self.transmit_farewells(filter, &mut left, batch);
        let mut passed_over = 0;
        while left > 0 && passed_over < self.core.ready.len() {
            let Some(slot) = self.core.ready.pop_front() else { break };
            let (core, qp) = (&mut self.core, &mut self.qps[slot as usize]);
            if !filter.wants(qp.qpn) {
                core.ready.push_back(slot);
                passed_over += 1;
                continue;
            }
            qp.queued = false;
            // `quantum` is the maximum number of packets in this turn of the queue pair. Its requests are written
            // before its answers. If the program has replied to a message, the reply and the acknowledgement of the
            // message can then leave in one run. If there are answers, requests get half of the quantum, rounded up.
            let quantum = left.min(MAX_RUN_PACKETS);
            let share = match qp.resp.has_answers() {
                false => quantum,
                // If only one packet may be sent, requests and answers alternate.
                true if quantum == 1 => {
                    qp.answers_turn = !qp.answers_turn;
                    usize::from(!qp.answers_turn)
                }
                true => quantum.div_ceil(2),
            };
            let mut requests = share;
            let stop = qp.transmit_requests(core, &mut requests, batch);
            if core.policy.acks_follow_requests {
                qp.resp.release_ack();
            }
            let mut answers = quantum - (share - requests);
            let more_answers = qp.transmit_answers(core, &mut answers, batch);
            left -= quantum - answers;
            qp.note_stop(core, slot, stop);
            if stop == Stop::Budget || more_answers {
                qp.queued = true;
                core.ready.push_back(slot);
            }
            let batch_full = (stop == Stop::Budget && requests > 0) || (more_answers && answers > 0);
            self.arm_timer(slot);
            self.wake_waiters_of(slot);
            if batch_full {
                break;
            }
        }
        self.publish();
        batch.infos().len() - before
    }

    /// Sends the acknowledgements of queue pairs that were reset or destroyed.
    pub(super) fn transmit_farewells(&mut self, filter: Filter, left: &mut usize, batch: &mut TransmitBatch) {
        let core = &mut self.core;
        let mut passed_over = 0;
        while passed_over < core.farewells.len() && *left > 0 && batch.has_room(Acknowledgement::LEN) {
            let Some(farewell) = core.farewells.pop_front() else { break };
            if !filter.wants(farewell.qpn) {
                core.farewells.push_back(farewell);
                passed_over += 1;
                continue;
            }
            *left -= 1;
            farewell.acknowledgement.write(&farewell.path, farewell.qpn, batch);
            let frame = Acknowledgement::LEN as u64 + farewell.frame_overhead;
            core.count_sent(&mut QpCounters::default(), Sent::Ack, frame);
        }
    }

    /// Publishes the completions that waited for packets to leave. The driver must call this function once
    /// [`poll_transmit`](Self::poll_transmit) adds no more packets and the link has all packets. If the link is broken
    /// for good, the driver must call it too, since the packets will never leave.
    pub fn transmitted(&mut self) {
        self.core.transmitted();
        self.publish();
    }

    /// Returns whether the device has packets to send.
    pub fn wants_transmit(&self) -> bool {
        !self.core.ready.is_empty() || !self.core.farewells.is_empty()
    }

    /// Returns whether the device has packets to send to any engine other than `destination`. For a UD queue pair, only
    /// the destination of its next packet counts.
    pub fn wants_transmit_beside(&self, destination: PathEnd) -> bool {
        let queue_pairs = self.core.ready.iter().filter_map(|&slot| self.qps[slot as usize].next_destination());
        let farewells = self.core.farewells.iter().map(|farewell| farewell.path.end());
        queue_pairs.chain(farewells).any(|next| next != destination)
    }

    /// Replaces the list of destinations for whose packets the link has no room. Requests of UC and UD queue pairs to
    /// these destinations wait, and so do their completions. Requests to a destination that is no longer in the list go
    /// on at the next [`poll_transmit`](Self::poll_transmit). The packets of RC queue pairs do not wait here, since
    /// windows bound them.
    ///
    /// A driver whose link holds packets back calls this function when the destinations of these packets may have
    /// changed. Initially the list is empty.
    pub fn set_full_destinations(&mut self, full: &[PathEnd]) {
        let is_freed = self.core.full.iter().any(|destination| !full.contains(destination));
        self.core.full.clear();
        self.core.full.extend_from_slice(full);
        if !is_freed {
            return;
        }
        for qpn in std::mem::take(&mut self.core.awaiting_link) {
            if let Some(slot) = self.slot(qpn) {
                self.qps[slot as usize].link_has_room();
                self.settle(slot);
            }
        }
    }

    /// Returns whether the link has no room for packets to some destination, as the last call of
    /// [`set_full_destinations`](Self::set_full_destinations) has said.
    #[inline]
    pub fn has_full_destinations(&self) -> bool {
        !self.core.full.is_empty()
    }

    /// Returns an upper bound of the number of packets in flight: the bytes in flight, divided by the cost of a packet
    /// without payload.
    pub fn in_flight_packets(&self) -> usize {
        (self.core.in_flight() / in_flight_cost(1, 0)) as usize
    }

    /// Returns the number of posted sends of a queue pair whose packets were not all sent.
    pub fn pending_work(&self, qpn: Qpn) -> usize {
        self.slot(qpn).map_or(0, |slot| self.qps[slot as usize].unsent_requests())
    }

    /// Returns the number of queue pairs.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }
}
