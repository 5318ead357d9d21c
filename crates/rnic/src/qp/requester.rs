//! The requester: sends requests, takes acknowledgements and responses, and sends again what was
//! lost (IBTA Vol 1, 9.7.2, 9.7.3, 9.7.5).

use std::collections::VecDeque;

use doorbell_wire::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, AethRepr, AtomicAckEthRepr, AtomicEthRepr, BTH_LEN, BthRepr,
    DETH_LEN, DethRepr, IETH_LEN, IMM_DT_LEN, IethRepr, ImmDtRepr, NakCode, Opcode, Operation, PartitionKey, Psn,
    RETH_LEN, RethRepr, SyndromeKind, ack_timeout_ns, rnr_timer_ns,
};

use super::{Qp, QpKind, QpState};
use crate::completion::Status;
use crate::congestion::in_flight_cost;
use crate::core::Core;
use crate::transmit::{TransmitBatch, TransmitInfo};
use crate::work::{SendFlags, SendOperation, SendWqe};

/// The earliest that anything is sent again without being asked for.
const EARLY_TIMEOUT_NS: u64 = 500_000;

/// How long early retransmissions back off to where the configured timeout is infinite.
const LONGEST_EARLY_TIMEOUT_NS: u64 = 1_000_000_000;

/// The early timeout in measured round trips.
const EARLY_TIMEOUT_ROUND_TRIPS: u64 = 4;

/// An acknowledgement is asked for at least every so many packets, so that the window moves
/// within long messages.
const ACK_REQUEST_PACKETS: u32 = 16;

/// Sequence numbers outstanding at most: half the number space less some slack, so that old and
/// new never look alike (IBTA Vol 1, 9.7.1).
const MAX_OUTSTANDING_PSNS: u32 = 1 << 22;

/// Why the requester stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Nothing to send, or it waits for an answer or a timer.
    Idle,
    /// The budget or the batch is exhausted.
    Budget,
    /// The window towards the destination has no room for the next packet.
    Window { cost: u64 },
    /// The window for READ responses has no room for what the next request brings.
    Inbound { cost: u64 },
}

#[derive(Debug)]
pub(crate) struct Requester {
    /// Sequence number of the next request that gets one.
    next_psn: Psn,
    /// The oldest sequence number that is not acknowledged.
    una: Psn,
    /// Sequence number at the cursor.
    cursor_psn: Psn,
    /// One past the highest sequence number that was ever sent.
    high_psn: Psn,
    /// Requests below this index have their sequence numbers.
    assigned: u64,
    /// What is sent next: a request, and a packet within it.
    cursor: u64,
    cursor_packet: u32,
    /// READs and atomics (of a long READ: pieces) that are sent and not wholly answered: one past
    /// the last sequence number of each. Never more than `max_rd_atomic`.
    reads: VecDeque<Psn>,
    in_flight: u64,
    inbound_in_flight: u64,
    retry_left: u8,
    rnr_left: u8,
    rnr_until_ns: Option<u64>,
    /// Start of the configured timeout.
    progress_ns: u64,
    /// Start of the early timeout.
    sent_ns: u64,
    early_timeout_ns: u64,
    round_trip_ns: u64,
    timed: Option<(Psn, u64)>,
    since_ack_request: u32,
    /// A lost response was asked for again from here.
    implied_nak: Option<Psn>,
    pub(super) drain_reported: bool,
}

impl Requester {
    pub(crate) fn new(head: u64) -> Self {
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
            sent_ns: 0,
            early_timeout_ns: EARLY_TIMEOUT_NS,
            round_trip_ns: 0,
            timed: None,
            since_ack_request: 0,
            implied_nak: None,
            drain_reported: false,
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

    /// Forgets everything that was posted: the queue was flushed.
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
    }

    /// Is everything done that was begun?
    pub(crate) fn is_idle(&self, head: u64) -> bool {
        self.assigned == head
    }

    /// The number that the next request will get.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    fn has_outstanding(&self) -> bool {
        self.una != self.cursor_psn
    }

    fn base_early_timeout_ns(&self) -> u64 {
        (EARLY_TIMEOUT_ROUND_TRIPS * self.round_trip_ns).max(EARLY_TIMEOUT_NS)
    }
}

/// Bytes of payload in packet `index` of a message.
#[inline]
fn payload_of(length: u32, mtu: usize, index: u32) -> usize {
    (length as usize - index as usize * mtu).min(mtu)
}

/// What packets `from..to` of a message count for.
#[inline]
fn cost_of(length: u32, mtu: usize, from: u32, to: u32) -> u64 {
    let upto = |packet: u32| (packet as usize * mtu).min(length as usize) as u64;
    in_flight_cost(u64::from(to - from), upto(to) - upto(from))
}

#[inline]
fn is_answered(operation: SendOperation) -> bool {
    matches!(operation, SendOperation::Read { .. } | SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. })
}

/// The opcode of one packet of a SEND or WRITE.
#[inline]
fn request_opcode(kind: QpKind, operation: SendOperation, first: bool, last: bool) -> Opcode {
    use SendOperation as Op;
    // First, middle, last, only: the columns of IBTA's opcode table, which are the same for RC
    // and UC apart from the transport bits.
    let row = match operation {
        Op::Send => [0x00, 0x01, 0x02, 0x04],
        Op::SendImmediate(_) => [0x00, 0x01, 0x03, 0x05],
        Op::SendInvalidate(_) => [0x00, 0x01, 0x16, 0x17],
        Op::Write { .. } => [0x06, 0x07, 0x08, 0x0a],
        Op::WriteImmediate { .. } => [0x06, 0x07, 0x09, 0x0b],
        Op::Read { .. } => [0x0c; 4],
        Op::CompareSwap { .. } => [0x13; 4],
        Op::FetchAdd { .. } => [0x14; 4],
    };
    let column = match (first, last) {
        (true, false) => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, true) => 3,
    };
    let transport = match kind {
        QpKind::Rc => 0x00,
        QpKind::Uc => 0x20,
        QpKind::Ud => 0x60,
    };
    Opcode(transport | row[column])
}

/// Takes the next `N` bytes of a packet that is being written.
#[inline]
fn take<'a, const N: usize>(out: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (head, rest) = std::mem::take(out).split_first_chunk_mut().expect("the packet was sized for its headers");
    *out = rest;
    head
}

impl Qp {
    /// Is there a request that could be sent now, windows apart?
    #[inline]
    pub(crate) fn has_request_to_send(&self) -> bool {
        let req = &self.req;
        if req.cursor == self.sq.tail || !self.requests() || req.rnr_until_ns.is_some() {
            return false;
        }
        // In SQD, messages that were begun are finished and nothing new is begun.
        self.state == QpState::ReadyToSend || req.cursor < req.assigned
    }

    /// Work requests that are posted and not yet sent, or not wholly.
    pub(crate) fn unsent_requests(&self) -> usize {
        (self.sq.tail - self.req.cursor) as usize
    }

    /// Takes a response.
    #[inline]
    pub(crate) fn handle_response(&mut self, core: &mut Core, bth: &BthRepr, operation: Operation, rest: &[u8]) {
        let mut rest = rest;
        let mut aeth = None;
        if bth.opcode.has_aeth() {
            let Some((header, behind)) = rest.split_first_chunk::<AETH_LEN>() else {
                core.counters.rx_malformed += 1;
                return;
            };
            aeth = Some(AethRepr::read(header));
            rest = behind;
        }
        match (operation, aeth) {
            (Operation::Acknowledge, Some(aeth)) => self.handle_acknowledge(core, bth, aeth),
            (Operation::AtomicAcknowledge, Some(_)) => match rest.first_chunk::<ATOMIC_ACK_ETH_LEN>() {
                Some(header) => self.handle_atomic_response(core, bth, AtomicAckEthRepr::read(header)),
                None => core.counters.rx_malformed += 1,
            },
            (Operation::ReadResponse, _) => {
                match rest.len().checked_sub(bth.pad_count.into()).and_then(|length| rest.get(..length)) {
                    Some(payload) => self.handle_read_response(core, bth, payload),
                    None => core.counters.rx_malformed += 1,
                }
            }
            _ => core.counters.rx_malformed += 1,
        }
    }

    /// Sends requests until the budget, the windows or the work is exhausted.
    pub(crate) fn transmit_requests(&mut self, core: &mut Core, budget: &mut usize, batch: &mut TransmitBatch) -> Stop {
        while self.has_request_to_send() {
            if *budget == 0 {
                return Stop::Budget;
            }
            let index = self.req.cursor;
            if index == self.req.assigned {
                let next_psn = self.req.next_psn;
                let wqe = self.sq.get_mut(index);
                wqe.first_psn = next_psn;
                self.req.next_psn = next_psn.add(wqe.packets);
                self.req.assigned += 1;
            }
            let wqe = *self.sq.get(index);
            if wqe.flags.contains(SendFlags::FENCE) && self.req.cursor_packet == 0 && !self.req.reads.is_empty() {
                return Stop::Idle;
            }
            if is_answered(wqe.operation) {
                if self.req.reads.len() >= usize::from(self.settings.max_rd_atomic) {
                    return Stop::Idle;
                }
                if self.req.cursor_psn.distance_from(self.req.una) >= MAX_OUTSTANDING_PSNS {
                    return Stop::Idle;
                }
                match self.transmit_read_or_atomic(core, &wqe, batch) {
                    Ok(()) => {}
                    Err(stop) => return stop,
                }
            } else {
                match self.transmit_packet(core, index, &wqe, batch) {
                    Ok(()) => {}
                    Err(stop) => return stop,
                }
            }
            *budget -= 1;
        }
        Stop::Idle
    }

    /// Starts the clocks when something becomes outstanding.
    #[inline]
    fn sent(&mut self, core: &mut Core, was_outstanding: bool, psn: Psn, retransmission: bool) {
        let req = &mut self.req;
        if !was_outstanding {
            // Time spent waiting for a window does not count against the peer.
            let waited_ns = core.now_ns.saturating_sub(req.sent_ns);
            req.progress_ns = if retransmission { req.progress_ns + waited_ns } else { core.now_ns };
            req.sent_ns = core.now_ns;
        }
        if req.timed.is_none() && !retransmission {
            req.timed = Some((psn, core.now_ns)); // never a packet sent twice (Karn, RFC 6298 section 3)
        }
        if req.high_psn.is_before(req.cursor_psn) {
            req.high_psn = req.cursor_psn;
        }
    }

    /// One packet of a SEND or WRITE.
    #[inline]
    fn transmit_packet(
        &mut self,
        core: &mut Core,
        index: u64,
        wqe: &SendWqe,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        use SendOperation as Op;
        let mtu = self.mtu();
        let packet = self.req.cursor_packet;
        let (first, last) = (packet == 0, packet + 1 == wqe.packets);
        let payload = payload_of(wqe.length, mtu, packet);
        let cost = in_flight_cost(1, payload as u64);
        let rc = self.kind == QpKind::Rc;
        if rc && let Some(destination) = self.destination {
            let window = &core.destinations[destination].window;
            if !window.has_room(cost) {
                return Err(Stop::Window { cost });
            }
            if window.exceeds_share(self.req.in_flight, cost) {
                return Err(Stop::Idle);
            }
        }
        let opcode = request_opcode(self.kind, wqe.operation, first, last);
        let pad = payload.wrapping_neg() & 3;
        let len = BTH_LEN + opcode.extension_len() + payload + pad;
        if !batch.has_room(len) {
            return Err(Stop::Budget);
        }
        let psn = self.req.cursor_psn;
        let retransmission = rc && psn.is_before(self.req.high_psn);
        let info = TransmitInfo {
            qpn: self.qpn,
            opcode,
            work_request: Some(wqe.wr_id),
            first,
            last,
            inline: wqe.inline,
            retransmission,
            payload_bytes: payload as u32,
        };
        let mut path = self.path;
        let mut dest_qpn = self.settings.dest_qpn;
        let ud = self.sq.destination_of(index);
        if let Some(ud) = ud {
            path.destination = ud.address.destination;
            path.traffic_class = ud.address.traffic_class;
            path.hop_limit = ud.address.hop_limit;
            dest_qpn = ud.qpn;
        }
        // Ask for an acknowledgement at the end of a message, now and then within one, and with
        // the packet that fills the window: otherwise nothing would ever open it again.
        self.req.since_ack_request += 1;
        let ack_request = rc
            && (last
                || self.req.since_ack_request >= ACK_REQUEST_PACKETS
                || self.destination.is_some_and(|destination| {
                    let window = &core.destinations[destination].window;
                    window.in_flight + 2 * cost > window.limit()
                        || window.exceeds_share(self.req.in_flight + cost, cost)
                }));
        if ack_request {
            self.req.since_ack_request = 0;
        }
        let mut out = batch.push(&path, len, info);
        let bth = BthRepr {
            opcode,
            solicited: last && wqe.flags.contains(SendFlags::SOLICITED),
            migrated: true,
            pad_count: pad as u8,
            version: 0,
            partition_key: PartitionKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request,
            psn,
        };
        bth.write(take::<BTH_LEN>(&mut out));
        if let Some(ud) = ud {
            DethRepr { qkey: ud.qkey, source_qpn: self.qpn }.write(take::<DETH_LEN>(&mut out));
        }
        match wqe.operation {
            Op::Write { remote_address, rkey } | Op::WriteImmediate { remote_address, rkey, .. } if first => {
                RethRepr { virtual_address: remote_address, rkey, dma_length: wqe.length }
                    .write(take::<RETH_LEN>(&mut out));
            }
            _ => {}
        }
        match wqe.operation {
            Op::SendImmediate(value) | Op::WriteImmediate { immediate: value, .. } if last => {
                ImmDtRepr { value }.write(take::<IMM_DT_LEN>(&mut out));
            }
            Op::SendInvalidate(rkey) if last => IethRepr { rkey }.write(take::<IETH_LEN>(&mut out)),
            _ => {}
        }
        let (body, padding) = out.split_at_mut(payload);
        padding.fill(0);
        if wqe.inline {
            let start = packet as usize * mtu;
            body.copy_from_slice(&self.sq.inline_of(index)[start..start + payload]);
        } else if payload > 0 {
            let skip = u64::from(packet) * mtu as u64;
            if core.memory.gather(self.pd, self.sq.sges_of(index), skip, body).is_err() {
                // The region went away between posting and sending.
                batch.retract(len);
                self.fail_request(core, index, Status::LocalProtection);
                return Err(Stop::Idle);
            }
        }
        let frame = len as u64 + self.frame_overhead;
        if retransmission {
            core.counters.tx_retransmitted_packets += 1;
            core.counters.tx_retransmitted_bytes += frame;
            self.counters.tx_retransmitted_packets += 1;
        } else {
            core.counters.tx_data_packets += 1;
            core.counters.tx_data_bytes += frame;
            self.counters.tx_data_packets += 1;
            if wqe.length == 0 && matches!(wqe.operation, Op::SendImmediate(_)) {
                core.counters.tx_credit_packets += 1;
                core.counters.tx_credit_bytes += frame;
            }
        }
        core.counters.tx_vport_rdma_unicast_bytes += frame;
        core.counters.tx_vport_rdma_unicast_packets += 1;

        let was_outstanding = self.req.has_outstanding();
        self.req.cursor_psn = psn.next();
        if last {
            self.req.cursor += 1;
            self.req.cursor_packet = 0;
        } else {
            self.req.cursor_packet = packet + 1;
        }
        if rc {
            if let Some(destination) = self.destination {
                core.charge(destination, cost);
                self.req.in_flight += cost;
            }
            self.sent(core, was_outstanding, psn, retransmission);
        } else {
            // Unreliable: sent is done.
            self.req.una = self.req.cursor_psn;
            self.req.high_psn = self.req.cursor_psn;
            if last {
                self.sq.pop();
                self.complete_send(core, wqe, Status::Success);
                self.report_drained(core);
            }
        }
        Ok(())
    }

    /// A READ request (or a piece of one), or an atomic request.
    fn transmit_read_or_atomic(
        &mut self,
        core: &mut Core,
        wqe: &SendWqe,
        batch: &mut TransmitBatch,
    ) -> Result<(), Stop> {
        use SendOperation as Op;
        let mtu = self.mtu();
        let packet = self.req.cursor_packet;
        // The answer flows into our own receive buffer, so it is our window that bounds it.
        // Pieces end where they ended the first time: what is asked for again must be part of one
        // request that the responder knows (IBTA Vol 1, 9.7.4.4).
        let piece_packets = (core.read_piece_cost / in_flight_cost(1, mtu as u64)).max(1);
        let packets = u64::from(wqe.packets - packet).min(piece_packets - u64::from(packet) % piece_packets) as u32;
        let cost = cost_of(wqe.length, mtu, packet, packet + packets);
        if !core.inbound.has_room(cost) {
            return Err(Stop::Inbound { cost });
        }
        if core.inbound.exceeds_share(self.req.inbound_in_flight, cost) {
            return Err(Stop::Idle);
        }
        let opcode = request_opcode(self.kind, wqe.operation, true, true);
        let len = BTH_LEN + opcode.extension_len();
        if !batch.has_room(len) {
            return Err(Stop::Budget);
        }
        let psn = self.req.cursor_psn;
        let retransmission = psn.is_before(self.req.high_psn);
        let info = TransmitInfo {
            qpn: self.qpn,
            opcode,
            work_request: Some(wqe.wr_id),
            first: packet == 0,
            last: packet + packets == wqe.packets,
            inline: false,
            retransmission,
            payload_bytes: 0,
        };
        let mut out = batch.push(&self.path, len, info);
        let bth = BthRepr {
            opcode,
            solicited: false,
            migrated: true,
            pad_count: 0,
            version: 0,
            partition_key: PartitionKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: self.settings.dest_qpn,
            ack_request: true,
            psn,
        };
        bth.write(take::<BTH_LEN>(&mut out));
        match wqe.operation {
            Op::Read { remote_address, rkey } => {
                let done = packet as usize * mtu;
                let length = (wqe.length as usize - done).min(packets as usize * mtu);
                let virtual_address = remote_address.wrapping_add(done as u64);
                RethRepr { virtual_address, rkey, dma_length: length as u32 }.write(take::<RETH_LEN>(&mut out));
            }
            Op::CompareSwap { remote_address: virtual_address, rkey, compare, swap } => {
                AtomicEthRepr { virtual_address, rkey, swap_or_add: swap, compare }
                    .write(take::<ATOMIC_ETH_LEN>(&mut out));
            }
            Op::FetchAdd { remote_address: virtual_address, rkey, add } => {
                AtomicEthRepr { virtual_address, rkey, swap_or_add: add, compare: 0 }
                    .write(take::<ATOMIC_ETH_LEN>(&mut out));
            }
            _ => unreachable!("only READs and atomics are answered"),
        }
        let frame = len as u64 + self.frame_overhead;
        if retransmission {
            core.counters.tx_retransmitted_packets += 1;
            core.counters.tx_retransmitted_bytes += frame;
            self.counters.tx_retransmitted_packets += 1;
        } else {
            core.counters.tx_data_packets += 1;
            core.counters.tx_data_bytes += frame;
            self.counters.tx_data_packets += 1;
        }
        core.counters.tx_vport_rdma_unicast_bytes += frame;
        core.counters.tx_vport_rdma_unicast_packets += 1;

        let was_outstanding = self.req.has_outstanding();
        core.charge_inbound(cost);
        self.req.inbound_in_flight += cost;
        self.req.cursor_psn = psn.add(packets);
        self.req.reads.push_back(psn.add(packets));
        if packet + packets == wqe.packets {
            self.req.cursor += 1;
            self.req.cursor_packet = 0;
        } else {
            self.req.cursor_packet = packet + packets;
        }
        self.sent(core, was_outstanding, psn, retransmission);
        Ok(())
    }

    /// Takes an ACK or NAK.
    fn handle_acknowledge(&mut self, core: &mut Core, bth: &BthRepr, aeth: AethRepr) {
        let outstanding = self.req.high_psn.distance_from(self.req.una);
        let ahead = bth.psn.distance_from(self.req.una);
        if ahead >= outstanding {
            // Older than what is outstanding: a duplicate, of no use but harmless. Newer: wrong.
            if !bth.psn.is_before(self.req.una) {
                core.counters.rx_unexpected_response += 1;
            }
            return;
        }
        match aeth.syndrome.kind() {
            SyndromeKind::Ack { .. } => {
                if self.advance(core, bth.psn.next()) {
                    self.ask_again(core);
                }
            }
            SyndromeKind::RnrNak { timer } => {
                core.counters.rnr_nak_received += 1;
                self.counters.rnr_nak_received += 1;
                if self.advance(core, bth.psn) {
                    return self.ask_again(core);
                }
                if self.req.rnr_until_ns.is_some() {
                    return; // the same one again: nothing was sent since
                }
                if self.settings.rnr_retry < 7 {
                    if self.req.rnr_left == 0 {
                        core.counters.rnr_nak_retry_err += 1;
                        return self.fail_request(core, self.sq.head, Status::RnrRetryExceeded);
                    }
                    self.req.rnr_left -= 1;
                }
                self.rewind(core);
                self.req.rnr_until_ns = Some(core.now_ns + rnr_timer_ns(timer));
                self.req.progress_ns = core.now_ns; // the peer lives
            }
            SyndromeKind::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                core.counters.packet_seq_err += 1;
                if self.advance(core, bth.psn) {
                    return self.ask_again(core);
                }
                self.lost(core);
                self.rewind(core);
            }
            SyndromeKind::Nak(code) => {
                if self.advance(core, bth.psn) {
                    return self.ask_again(core);
                }
                let (counter, status) = match code {
                    NakCode::REMOTE_ACCESS_ERROR => (&mut core.counters.req_remote_access_errors, Status::RemoteAccess),
                    NakCode::REMOTE_OPERATIONAL_ERROR => {
                        (&mut core.counters.req_remote_operational_errors, Status::RemoteOperation)
                    }
                    _ => (&mut core.counters.req_remote_invalid_request, Status::RemoteInvalidRequest),
                };
                *counter += 1;
                self.fail_request(core, self.sq.head, status);
            }
            SyndromeKind::Unknown(_) => core.counters.rx_malformed += 1,
        }
    }

    /// Takes a READ response packet.
    fn handle_read_response(&mut self, core: &mut Core, bth: &BthRepr, payload: &[u8]) {
        let outstanding = self.req.high_psn.distance_from(self.req.una);
        if bth.psn.distance_from(self.req.una) >= outstanding {
            if !bth.psn.is_before(self.req.una) {
                core.counters.rx_unexpected_response += 1;
            }
            return;
        }
        // A response acknowledges everything before it (IBTA Vol 1, 9.7.5.1.2).
        self.advance(core, bth.psn);
        let head = self.sq.head;
        if head >= self.req.assigned {
            return;
        }
        let wqe = *self.sq.get(head);
        let expected = wqe.first_psn.add(wqe.received);
        if !matches!(wqe.operation, SendOperation::Read { .. }) || bth.psn != expected {
            return self.ask_again(core);
        }
        let mtu = self.mtu();
        let index = wqe.received;
        if payload.len() != payload_of(wqe.length, mtu, index) {
            return self.fail_request(core, head, Status::BadResponse);
        }
        let skip = u64::from(index) * mtu as u64;
        if core.memory.scatter(self.pd, self.sq.sges_of(head), skip, payload).is_err() {
            return self.fail_request(core, head, Status::LocalProtection);
        }
        let wqe = self.sq.get_mut(head);
        wqe.received += 1;
        let wqe = *wqe;
        self.answered(core, &wqe, cost_of(wqe.length, mtu, index, index + 1));
    }

    /// Takes an atomic response.
    fn handle_atomic_response(&mut self, core: &mut Core, bth: &BthRepr, response: AtomicAckEthRepr) {
        let outstanding = self.req.high_psn.distance_from(self.req.una);
        if bth.psn.distance_from(self.req.una) >= outstanding {
            if !bth.psn.is_before(self.req.una) {
                core.counters.rx_unexpected_response += 1;
            }
            return;
        }
        self.advance(core, bth.psn);
        let head = self.sq.head;
        if head >= self.req.assigned {
            return;
        }
        let wqe = *self.sq.get(head);
        let is_atomic = matches!(wqe.operation, SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. });
        if !is_atomic || bth.psn != wqe.first_psn {
            return self.ask_again(core);
        }
        // The old value arrives in host order, as programs expect it.
        if core.memory.scatter(self.pd, self.sq.sges_of(head), 0, &response.original.to_ne_bytes()).is_err() {
            return self.fail_request(core, head, Status::LocalProtection);
        }
        self.sq.get_mut(head).received = 1;
        let cost = cost_of(wqe.length, self.mtu(), 0, 1);
        self.answered(core, &SendWqe { received: 1, ..wqe }, cost);
    }

    /// Books one response packet of the request at the head of the queue.
    fn answered(&mut self, core: &mut Core, wqe: &SendWqe, cost: u64) {
        let cost = cost.min(self.req.inbound_in_flight);
        core.delivered_inbound(cost);
        self.req.inbound_in_flight -= cost;
        self.req.una = wqe.first_psn.add(wqe.received);
        self.progress(core);
        if wqe.received == wqe.packets {
            self.sq.pop();
            self.complete_send(core, wqe, Status::Success);
        }
        self.pull_cursor();
        if !self.req.has_outstanding() {
            // Responses that crossed a repeated request leave a rest.
            core.refund_inbound(std::mem::take(&mut self.req.inbound_in_flight));
        }
        self.report_drained(core);
    }

    /// Everything before `to` is acknowledged. True if a READ or atomic before it was answered,
    /// but the answer has not arrived: it is lost (the implied NAK of IBTA Vol 1, 9.7.5.2.8).
    #[inline]
    fn advance(&mut self, core: &mut Core, to: Psn) -> bool {
        let before = self.req.una;
        let mtu = self.mtu();
        let mut delivered = 0;
        let mut lost = false;
        while self.sq.head < self.req.assigned && self.req.una.is_before(to) {
            let head = self.sq.head;
            let wqe = self.sq.get(head);
            if is_answered(wqe.operation) {
                lost = true;
                break;
            }
            let from = self.req.una.distance_from(wqe.first_psn);
            let upto = to.distance_from(wqe.first_psn).min(wqe.packets);
            // Packets that were rewound over were taken back already.
            let charged = if head < self.req.cursor {
                upto
            } else if head == self.req.cursor {
                upto.min(self.req.cursor_packet)
            } else {
                from
            };
            if charged > from {
                delivered += cost_of(wqe.length, mtu, from, charged);
            }
            self.req.una = wqe.first_psn.add(upto);
            if upto == wqe.packets {
                let wqe = self.sq.pop();
                self.complete_send(core, &wqe, Status::Success);
            }
        }
        if delivered > 0
            && let Some(destination) = self.destination
        {
            core.delivered(destination, delivered);
            self.req.in_flight -= delivered;
        }
        if self.req.una != before {
            self.progress(core);
            self.pull_cursor();
            self.report_drained(core);
        }
        lost
    }

    /// After a rewind, acknowledgements of what was sent before it spare sending again.
    #[inline]
    fn pull_cursor(&mut self) {
        let req = &mut self.req;
        if req.cursor_psn.is_before(req.una) {
            req.cursor_psn = req.una;
            req.cursor = self.sq.head;
            req.cursor_packet =
                if req.cursor < req.assigned { req.una.distance_from(self.sq.get(req.cursor).first_psn) } else { 0 };
        }
    }

    /// The peer answered: retries start afresh, and the round trip is measured.
    #[inline]
    fn progress(&mut self, core: &mut Core) {
        let (retries, rnr_retries) = (self.settings.retry_count, self.settings.rnr_retry);
        let req = &mut self.req;
        req.retry_left = retries;
        req.rnr_left = rnr_retries;
        req.rnr_until_ns = None;
        req.implied_nak = None;
        req.progress_ns = core.now_ns;
        req.sent_ns = core.now_ns;
        while req.reads.front().is_some_and(|&end| !req.una.is_before(end)) {
            req.reads.pop_front();
        }
        if let Some((psn, sent_ns)) = req.timed
            && psn.is_before(req.una)
        {
            let sample = core.now_ns.saturating_sub(sent_ns);
            // RFC 6298 section 2, gain 1/8.
            req.round_trip_ns = if req.round_trip_ns == 0 { sample } else { (7 * req.round_trip_ns + sample) / 8 };
            req.timed = None;
        }
        req.early_timeout_ns = req.base_early_timeout_ns();
    }

    /// A response is missing: asks for it again, once until something moves.
    fn ask_again(&mut self, core: &mut Core) {
        if self.req.implied_nak == Some(self.req.una) {
            return;
        }
        self.req.implied_nak = Some(self.req.una);
        core.counters.implied_nak_seq_err += 1;
        let round_trip_ns = self.req.round_trip_ns;
        core.inbound.lost(core.now_ns, round_trip_ns);
        self.rewind(core);
    }

    fn lost(&mut self, core: &mut Core) {
        if let Some(destination) = self.destination {
            let round_trip_ns = self.req.round_trip_ns;
            core.destinations[destination].window.lost(core.now_ns, round_trip_ns);
        }
    }

    /// Go-back-N: everything from the oldest unacknowledged packet on is sent again.
    pub(crate) fn rewind(&mut self, core: &mut Core) {
        self.release_in_flight(core);
        let head = self.sq.head;
        let req = &mut self.req;
        req.cursor = head;
        req.cursor_psn = req.una;
        req.cursor_packet = if head < req.assigned { req.una.distance_from(self.sq.get(head).first_psn) } else { 0 };
        req.reads.clear();
        req.timed = None;
        req.since_ack_request = 0;
        req.sent_ns = core.now_ns;
    }

    /// Takes back what this queue pair has in flight.
    pub(crate) fn release_in_flight(&mut self, core: &mut Core) {
        if let Some(destination) = self.destination {
            core.refund(destination, std::mem::take(&mut self.req.in_flight));
        }
        core.refund_inbound(std::mem::take(&mut self.req.inbound_in_flight));
    }

    /// A request failed: those before it succeeded, it fails, everything behind is flushed
    /// (IBTA Vol 1, 10.3.1.7; UC and UD go to SQE instead).
    fn fail_request(&mut self, core: &mut Core, index: u64, status: Status) {
        while self.sq.head < index {
            // Sent, but not known to have arrived: flushed.
            let wqe = self.sq.pop();
            self.complete_send(core, &wqe, Status::WorkRequestFlushed);
        }
        if self.sq.head == self.sq.tail {
            return self.enter_error(core);
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

    /// When the requester wants to be called again.
    #[inline]
    pub(crate) fn requester_deadline_ns(&self) -> Option<u64> {
        let req = &self.req;
        if let Some(until) = req.rnr_until_ns {
            return Some(until);
        }
        if self.kind != QpKind::Rc || !self.requests() || !req.has_outstanding() {
            return None;
        }
        let early = req.sent_ns + req.early_timeout_ns;
        let configured = ack_timeout_ns(self.settings.timeout).map_or(u64::MAX, |ns| req.progress_ns + ns);
        Some(early.min(configured))
    }

    /// A deadline passed.
    pub(crate) fn handle_requester_timeout(&mut self, core: &mut Core) {
        if let Some(until) = self.req.rnr_until_ns {
            if until <= core.now_ns {
                self.req.rnr_until_ns = None;
                self.req.progress_ns = core.now_ns;
                self.req.sent_ns = core.now_ns;
            }
            return;
        }
        let configured_ns = ack_timeout_ns(self.settings.timeout);
        if let Some(timeout_ns) = configured_ns
            && core.now_ns >= self.req.progress_ns + timeout_ns
        {
            core.counters.local_ack_timeout_err += 1;
            if self.req.retry_left == 0 {
                return self.fail_request(core, self.sq.head, Status::RetryExceeded);
            }
            self.req.retry_left -= 1;
            self.req.progress_ns = core.now_ns;
        } else {
            core.counters.early_retransmit += 1;
        }
        let longest = configured_ns.unwrap_or(LONGEST_EARLY_TIMEOUT_NS).max(EARLY_TIMEOUT_NS);
        self.req.early_timeout_ns = (2 * self.req.early_timeout_ns).min(longest);
        self.req.implied_nak = None;
        self.lost(core);
        self.rewind(core);
    }
}
