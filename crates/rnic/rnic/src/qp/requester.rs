//! The requester: sends requests, handles acknowledgements and responses, and retransmits lost packets (IBTA Vol 1,
//! 9.7.2, 9.7.3, 9.7.5).

mod delayed;
mod response;
mod transmit;

use std::collections::VecDeque;

use doorbell_verbs_core::{DeathReason, QpKind, QpState, SendOperation, Status};
use doorbell_wire::{Psn, ack_timeout_ns};

use super::Qp;
use crate::commons::Commons;
use crate::congestion::in_flight_cost;
use crate::policy::Policy;
use crate::transmit::{EngineId, PathEnd};
use delayed::Delayed;

/// Maximum to which the early timeout doubles, if the configured timeout is unlimited.
const LONGEST_EARLY_TIMEOUT_NS: u64 = 1_000_000_000;

/// The early timeout is at least this number of smoothed round trip times.
const EARLY_TIMEOUT_ROUND_TRIPS: u64 = 4;

/// Minimum time for which the requester remembers the longest round trip. RFC 6298 instead adds four times the variance
/// of the round trips. An RNIC receives thousands of acknowledgements per second. If a peer's process once waited for a
/// CPU, the variance would no longer show that long round trip after ten samples.
const LONGEST_ROUND_TRIP_MEMORY_NS: u64 = 100_000_000;

/// Minimum delay of a deadline that shows that the process had no processor. With a processor, a thread wakes up
/// earlier.
const LATE_NS: u64 = 1_000_000;

/// Maximum number of outstanding packet sequence numbers. It is below half of the 2^24 numbers, so that old and new
/// numbers stay distinct (IBTA Vol 1, 9.7.1).
const MAX_OUTSTANDING_PSNS: u32 = 1 << 22;

/// Reason why the requester stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The requester has nothing to send, or waits for an answer or a timer.
    Idle,
    /// The budget or the batch is exhausted.
    Budget,
    /// The window towards the destination has no room for the next packet.
    Window { cost: u64 },
    /// The window for READ responses has no room for the response to the next request.
    Inbound { cost: u64 },
    /// The link has no room for packets to the destination of the queue pair.
    Link,
}

/// Packet to send again when an answer is overdue and the configured timeout has not passed.
///
/// The requester does not retransmit all packets. Usually the network has lost no request: the process of the peer has
/// no CPU, or an acknowledgement was lost. The requester therefore sends the oldest and the newest request packet again
/// as probes. If the responder has received all packets, it acknowledges the probes (IBTA Vol 1, 9.7.5.1.3). If it
/// lacks a packet, it answers the newest packet with a NAK "PSN sequence error", and the requester starts go-back-N.
/// The tail loss probe of TCP follows the same idea (RFC 8985, section 7). The oldest packet is needed too: a responder
/// that has already sent a NAK stays silent until the missing packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// The request packet with the oldest unacknowledged sequence number. [`Probe::Newest`] follows.
    Oldest,
    /// The request packet with the newest sequence number that was sent.
    Newest,
}

/// Maximum number of consecutive probe attempts without an answer. After them, the requester retransmits all packets.
const MAX_PROBES: u8 = 3;

#[derive(Debug)]
pub(crate) struct Requester {
    /// Sequence number for the first packet of the next request.
    next_psn: Psn,
    /// The oldest sequence number that is not acknowledged.
    una: Psn,
    /// Sequence number of the packet that is sent next, at the cursor.
    cursor_psn: Psn,
    /// The sequence number after the highest one that was sent so far.
    high_psn: Psn,
    /// Index of the first request without sequence numbers.
    assigned: u64,
    /// Index of the request that is sent next.
    cursor: u64,
    /// Index of the packet that is sent next, within the request at the cursor.
    cursor_packet: u32,
    /// READs (or pieces of a long READ) and atomics that were sent and are not completely answered. Each entry is the
    /// sequence number after the last one of the READ, piece or atomic. At most `max_rd_atomic` entries.
    reads: VecDeque<Psn>,
    in_flight: u64,
    inbound_in_flight: u64,
    retry_left: u8,
    rnr_left: u8,
    rnr_until_ns: Option<u64>,
    /// Start of the configured timeout: usually the time of the most recent answer.
    progress_ns: u64,
    /// Start of the first configured timeout that has expired since the most recent answer.
    unanswered_since_ns: u64,
    /// Start of the early timeout: usually the time of the most recent answer, probe or rewind.
    sent_ns: u64,
    early_timeout_ns: u64,
    /// Whether the requester has started its timers anew, since the process had no processor. It does so at most once
    /// until an answer arrives or the configured timeout expires.
    is_excused: bool,
    /// Smoothed round trip time.
    round_trip_ns: u64,
    /// Longest recent round trip time.
    longest_round_trip_ns: u64,
    /// Time at which the longest recent round trip was measured.
    longest_seen_ns: u64,
    /// Probe that the requester must send because an answer is overdue.
    probe: Option<Probe>,
    /// Number of probe attempts since the most recent answer of the peer.
    probes: u8,
    timed: Option<(Psn, u64)>,
    since_ack_request: u32,
    /// Value of `una` when the requester most recently requested a lost response again. While `una` keeps this value,
    /// the requester does not request the response once more.
    implied_nak: Option<Psn>,
    pub(super) drain_reported: bool,
    /// Datagrams that wait for room in the link: one entry for each destination. Their indices are below `cursor`.
    delayed: Vec<Delayed>,
    /// Whether some of the datagrams in `delayed` may have room in the link now.
    resumes: bool,
}

impl Requester {
    pub(crate) fn new(head: u64, policy: &Policy) -> Self {
        let zero = Psn::new(0);
        Self {
            next_psn: zero,
            una: zero,
            cursor_psn: zero,
            high_psn: zero,
            assigned: head,
            cursor: head,
            cursor_packet: 0,
            reads: VecDeque::new(),
            in_flight: 0,
            inbound_in_flight: 0,
            retry_left: 0,
            rnr_left: 0,
            rnr_until_ns: None,
            progress_ns: 0,
            unanswered_since_ns: 0,
            sent_ns: 0,
            early_timeout_ns: policy.least_early_timeout_ns.unwrap_or(u64::MAX),
            is_excused: false,
            round_trip_ns: 0,
            longest_round_trip_ns: 0,
            longest_seen_ns: 0,
            probe: None,
            probes: 0,
            timed: None,
            since_ack_request: 0,
            implied_nak: None,
            drain_reported: false,
            delayed: Vec::new(),
            resumes: false,
        }
    }

    pub(crate) fn start(&mut self, psn: Psn, retries: u8, rnr_retries: u8) {
        self.next_psn = psn;
        self.una = psn;
        self.cursor_psn = psn;
        self.high_psn = psn;
        self.retry_left = retries;
        self.rnr_left = rnr_retries;
    }

    /// Resets all positions to an empty queue, after the send queue was flushed. `head` is the index of the next
    /// request.
    pub(crate) fn reset_cursor(&mut self, head: u64) {
        self.assigned = head;
        self.cursor = head;
        self.cursor_packet = 0;
        self.una = self.next_psn;
        self.cursor_psn = self.next_psn;
        self.high_psn = self.next_psn;
        self.reads.clear();
        self.rnr_until_ns = None;
        self.timed = None;
        self.probe = None;
        self.delayed.clear();
        self.resumes = false;
    }

    /// Returns whether all started requests are done.
    pub(crate) fn is_idle(&self, head: u64) -> bool {
        self.assigned == head
    }

    /// Returns the sequence number for the first packet of the next request.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    fn has_outstanding(&self) -> bool {
        self.una != self.cursor_psn
    }

    /// Returns the early timeout before any backoff; [`u64::MAX`] if the policy turns off early retransmission.
    #[inline]
    fn base_early_timeout_ns(&self, policy: &Policy) -> u64 {
        let Some(least_ns) = policy.least_early_timeout_ns else { return u64::MAX };
        (EARLY_TIMEOUT_ROUND_TRIPS * self.round_trip_ns).max(2 * self.longest_round_trip_ns).max(least_ns)
    }

    fn take_round_trip(&mut self, now_ns: u64, sample_ns: u64) {
        // RFC 6298 section 2, gain 1/8.
        let smoothed = self.round_trip_ns;
        self.round_trip_ns = if smoothed == 0 { sample_ns } else { (7 * smoothed + sample_ns) / 8 };
        if now_ns - self.longest_seen_ns >= LONGEST_ROUND_TRIP_MEMORY_NS {
            self.longest_round_trip_ns /= 2;
            self.longest_seen_ns = now_ns;
        }
        if sample_ns >= self.longest_round_trip_ns {
            self.longest_round_trip_ns = sample_ns;
            self.longest_seen_ns = now_ns;
        }
    }
}

/// Returns the payload bytes of packet `index` of a message.
#[inline]
fn payload_of(length: u32, mtu: usize, index: u32) -> usize {
    (length as usize - index as usize * mtu).min(mtu)
}

/// Returns the cost of packets `from..to` of a message.
#[inline]
fn cost_of(length: u32, mtu: usize, from: u32, to: u32) -> u64 {
    let upto = |packet: u32| (packet as usize * mtu).min(length as usize) as u64;
    in_flight_cost(u64::from(to - from), upto(to) - upto(from))
}

#[inline]
fn is_answered(operation: SendOperation) -> bool {
    matches!(operation, SendOperation::Read { .. } | SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. })
}

impl Qp {
    /// Returns whether the queue pair has a request that can be sent now. While the queue pair waits for a window, only
    /// a probe can be sent. Does not check whether the windows have room.
    #[inline]
    pub(crate) fn has_request_to_send(&self) -> bool {
        let req = &self.req;
        if !self.requests() || req.rnr_until_ns.is_some() {
            return false;
        }
        if req.probe.is_some() {
            return true;
        }
        if self.blocked || req.cursor == self.sq.rung {
            return req.resumes;
        }
        // In SQD the requester finishes started messages and starts no new ones.
        self.state == QpState::ReadyToSend || req.cursor < req.assigned || req.resumes
    }

    /// Returns the index of the work request that is sent next, and the index of the next packet within this work
    /// request.
    pub(crate) fn send_cursor(&self) -> (u64, u32) {
        (self.req.cursor, self.req.cursor_packet)
    }

    /// Returns the number of posted sends whose packets were not all sent. Datagrams that were set aside do not count,
    /// since a driver cannot send them.
    pub(crate) fn unsent_requests(&self) -> usize {
        (self.sq.tail - self.req.cursor) as usize
    }

    /// Returns the destination of the next packet; `None` for a UD queue pair without a request to send.
    pub(crate) fn next_destination(&self) -> Option<PathEnd> {
        match self.kind {
            QpKind::Ud => self
                .sq
                .destination_of(self.req.cursor)
                .map(|to| PathEnd { address: to.address.destination, engine: EngineId::of(to.qpn) }),
            QpKind::Rc | QpKind::Uc => Some(self.path.end()),
        }
    }

    /// Resets the retries and measures the round trip after an answer of the peer.
    #[inline]
    fn progress(&mut self, core: &mut Commons) {
        let (retries, rnr_retries) = (self.settings.retry_count, self.settings.rnr_retry);
        let req = &mut self.req;
        req.retry_left = retries;
        req.rnr_left = rnr_retries;
        req.rnr_until_ns = None;
        req.implied_nak = None;
        req.progress_ns = core.now_ns;
        req.sent_ns = core.now_ns;
        req.is_excused = false;
        while req.reads.front().is_some_and(|&end| !req.una.is_before(end)) {
            req.reads.pop_front();
        }
        if let Some((psn, sent_ns)) = req.timed
            && psn.is_before(req.una)
        {
            req.take_round_trip(core.now_ns, core.now_ns.saturating_sub(sent_ns));
            req.timed = None;
        }
        req.probe = None;
        req.probes = 0;
        req.early_timeout_ns = req.base_early_timeout_ns(&core.policy);
    }

    fn lost(&mut self, core: &mut Commons) {
        if let Some(destination) = self.destination {
            let round_trip_ns = self.req.round_trip_ns;
            core.destinations[destination].window.lost(core.now_ns, round_trip_ns);
        }
    }

    /// Moves the cursor back to the oldest unacknowledged packet, so that the requester sends this packet and all later
    /// packets again (go-back-N).
    pub(crate) fn rewind(&mut self, core: &mut Commons) {
        self.release_in_flight(core);
        let head = self.sq.head;
        let req = &mut self.req;
        req.cursor = head;
        req.cursor_psn = req.una;
        req.cursor_packet = if head < req.assigned { req.una.distance_from(self.sq.get(head).first_psn) } else { 0 };
        req.reads.clear();
        req.timed = None;
        req.probe = None;
        req.since_ack_request = 0;
        req.sent_ns = core.now_ns;
    }

    /// Removes the bytes that this queue pair has in flight from the windows.
    pub(crate) fn release_in_flight(&mut self, core: &mut Commons) {
        if let Some(destination) = self.destination {
            core.refund(destination, std::mem::take(&mut self.req.in_flight));
        }
        core.refund_inbound(std::mem::take(&mut self.req.inbound_in_flight));
    }

    /// Completes the oldest request with an error and flushes all later requests. An RC queue pair enters the error
    /// state (IBTA Vol 1, 10.3.1.7), a UC or UD queue pair SQE.
    fn fail_oldest(&mut self, core: &mut Commons, status: Status) {
        if self.sq.head == self.sq.tail {
            return self.enter_error(core);
        }
        if self.kind == QpKind::Rc {
            let reason = self.reason_of_death(core, status);
            self.report_death(core, self.req.una, reason);
        }
        let wqe = self.sq.pop();
        self.complete_send(core, &wqe, status);
        if self.kind == QpKind::Rc {
            self.enter_error(core);
        } else {
            self.state = QpState::SqError;
            self.flush_sends(core);
        }
    }

    fn reason_of_death(&self, core: &Commons, status: Status) -> DeathReason {
        let tries = |retries: u8| u32::from(retries) + 1;
        match status {
            Status::RetryExceeded => DeathReason::Unanswered {
                for_ns: core.now_ns.saturating_sub(self.req.unanswered_since_ns),
                expirations: tries(self.settings.retry_count),
            },
            Status::RnrRetryExceeded => DeathReason::NotReady { refusals: tries(self.settings.rnr_retry) },
            status => DeathReason::Failed(status),
        }
    }

    /// Records that the packets of all sends before `index` have left. On UC and UD, these sends now complete, since no
    /// acknowledgement follows.
    #[inline]
    pub(crate) fn sends_departed(&mut self, core: &mut Commons, index: u64) {
        if self.kind == QpKind::Rc {
            return;
        }
        let departed = index.min(self.req.cursor).min(self.req.oldest_delayed());
        while self.sq.head < departed {
            let wqe = self.sq.pop();
            self.complete_send(core, &wqe, Status::Success);
        }
        self.report_drained(core);
    }

    /// Returns the next deadline of the requester.
    #[inline]
    pub(crate) fn requester_deadline_ns(&self) -> Option<u64> {
        let req = &self.req;
        if let Some(until) = req.rnr_until_ns {
            return Some(until);
        }
        if self.kind != QpKind::Rc || !self.requests() || !req.has_outstanding() {
            return None;
        }
        let early = req.sent_ns.saturating_add(req.early_timeout_ns);
        let configured = self.counted_timeout_ns().map_or(u64::MAX, |ns| req.progress_ns + ns);
        Some(early.min(configured))
    }

    /// Returns the time without an answer of the peer after which the requester counts a retry. The first retry follows
    /// after the configured timeout, the second after twice this time, and all others after four times this time, the
    /// maximum that IBTA allows (Vol 1, 9.9.2.1.1). The time grows so that a peer with a busy processor does not count
    /// as dead. Lost packets do not wait for it: early retransmission replaces them.
    fn counted_timeout_ns(&self) -> Option<u64> {
        let counted = self.settings.retry_count.saturating_sub(self.req.retry_left);
        ack_timeout_ns(self.settings.timeout).map(|ns| ns << counted.min(2))
    }

    /// Returns whether the requester waits as an RNR NAK has asked, so that its deadline is no missing answer.
    pub(crate) fn delays_requests(&self) -> bool {
        self.req.rnr_until_ns.is_some()
    }

    /// Starts the timers anew. The time until now is no silence of the peer, and no part of a round trip.
    fn restart_timers(&mut self, now_ns: u64) {
        let req = &mut self.req;
        (req.progress_ns, req.sent_ns, req.timed) = (now_ns, now_ns, None);
    }

    /// Handles the deadlines of the requester that have passed.
    pub(crate) fn handle_requester_timeout(&mut self, core: &mut Commons) {
        if let Some(until) = self.req.rnr_until_ns {
            if until <= core.now_ns {
                self.req.rnr_until_ns = None;
                self.req.progress_ns = core.now_ns;
                self.req.sent_ns = core.now_ns;
            }
            return;
        }
        // A process without a processor may have sent its packets late, and its peer may have had none either. An
        // RNIC's timers start when the packets leave (IBTA Vol 1, 9.7.6.1.3), so the peer gets the timeout once more.
        let late_ns = self.requester_deadline_ns().map_or(0, |deadline| core.now_ns.saturating_sub(deadline));
        if late_ns >= LATE_NS && !std::mem::replace(&mut self.req.is_excused, true) {
            return self.restart_timers(core.now_ns);
        }
        if let Some(timeout_ns) = self.counted_timeout_ns()
            && core.now_ns >= self.req.progress_ns + timeout_ns
        {
            core.counters.local_ack_timeout_err += 1;
            if self.req.retry_left == self.settings.retry_count {
                self.req.unanswered_since_ns = self.req.progress_ns;
            }
            if self.req.retry_left == 0 {
                return self.fail_oldest(core, Status::RetryExceeded);
            }
            self.req.retry_left -= 1;
            self.req.progress_ns = core.now_ns;
            self.req.is_excused = false;
            self.req.probes = MAX_PROBES;
        } else {
            core.counters.early_retransmit += 1;
        }
        let req = &mut self.req;
        if let Some(least_ns) = core.policy.least_early_timeout_ns {
            let longest_ns = ack_timeout_ns(self.settings.timeout).unwrap_or(LONGEST_EARLY_TIMEOUT_NS).max(least_ns);
            req.early_timeout_ns = (2 * req.early_timeout_ns).min(longest_ns);
        }
        req.implied_nak = None;
        if req.probes == MAX_PROBES {
            self.lost(core);
            self.rewind(core);
            return;
        }
        req.probes += 1;
        req.probe = Some(Probe::Oldest);
        req.sent_ns = core.now_ns;
        // The probes send the oldest and the newest packet a second time. Do not measure the round trip of a packet
        // that was sent twice (algorithm of Karn, RFC 6298 section 3).
        let newest = req.cursor_psn.sub(1);
        req.timed = req.timed.filter(|&(psn, _)| psn != req.una && psn != newest);
    }
}
