//! The responder: executes requests in order and answers them (IBTA Vol 1, 9.7.4, 9.7.7; for UC 9.8.2, for UD 9.8.3).

mod answer;
mod execute;
mod unreliable;

use std::collections::VecDeque;

use doorbell_verbs_core::{Access, AsyncEvent, Attachment, Completion, DeathReason, QpKind};
use doorbell_wire::{
    ATOMIC_ETH_LEN, AtomicEthRepr, BthRepr, IETH_LEN, IMM_DT_LEN, IethRepr, ImmDtRepr, Msn, NakCode, PacketOperation,
    Psn, RETH_LEN, RKey, RethRepr, Syndrome,
};

use super::Qp;
use crate::commons::{Commons, Farewell};
use crate::memory::{Packet, Payload};
use crate::work::RecvWqe;

/// Message that is being received.
#[derive(Debug, Default)]
enum Current {
    #[default]
    None,
    /// A SEND, of which `done` bytes are in the memory of the receive `wqe`.
    Send { wqe: RecvWqe, done: u64 },
    /// A WRITE, of which `done` bytes are in memory.
    Write { address: u64, rkey: RKey, length: u64, done: u64 },
}

/// An answer that is not sent yet. Answers leave in the order of the requests.
#[derive(Debug)]
enum Answer {
    Read { psn: Psn, msn: Msn, address: u64, rkey: RKey, left: u64, started: bool, again: bool },
    Atomic { psn: Psn, msn: Msn, original: u64, again: bool },
    Nak { psn: Psn, msn: Msn, syndrome: Syndrome, again: bool },
}

impl Answer {
    fn psn(&self) -> Psn {
        match *self {
            Self::Read { psn, .. } | Self::Atomic { psn, .. } | Self::Nak { psn, .. } => psn,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected: Psn,
    msn: Msn,
    /// Whether a NAK was sent. The responder then drops later packets until the expected packet arrives (IBTA Vol 1,
    /// 9.7.5.2.1).
    nak_sent: bool,
    current: Current,
    /// Whether the current UC message was already counted as dropped.
    dropping: bool,
    /// Sequence numbers and results of the most recent atomics. The responder answers duplicates with these results
    /// (IBTA Vol 1, 9.7.4.4).
    atomics: VecDeque<(Psn, u64)>,
    answers: VecDeque<Answer>,
    /// Time at which the unsent acknowledgement became due.
    ack_due_ns: Option<u64>,
    /// Whether the due acknowledgement must leave without delay.
    ack_urgent: bool,
    /// Sequence number of the packet that most recently completed a receive, until a packet to the peer acknowledges
    /// it.
    unacknowledged_receive: Option<Psn>,
    answers_of: Answering,
}

/// Number of consecutive messages to which the program must reply before the acknowledgement of the next message may
/// wait for the reply.
const ANSWERED_RECEIVES: u8 = 8;

/// Record of whether the program replies to the messages that it receives. A send on the same queue pair counts as a
/// reply, if the program posts it before a poll that finds the completion queue of the receives empty.
#[derive(Debug, Default)]
struct Answering {
    /// Number of consecutive messages to which the program has replied, up to [`ANSWERED_RECEIVES`].
    answered: u8,
    /// Number of received messages to which the program has not replied yet.
    open: u32,
    /// Number of empty polls of the receive completion queue at the time when the oldest message without a reply
    /// arrived.
    empty_polls: u64,
}

impl Answering {
    /// Records a received message. Returns whether its acknowledgement may wait for the reply of the program.
    #[inline]
    fn receive(&mut self, empty_polls: impl Fn() -> u64) -> bool {
        let all_are_answered = self.open == 0;
        if all_are_answered {
            self.empty_polls = empty_polls();
        }
        self.open = self.open.saturating_add(1);
        all_are_answered && self.answered == ANSWERED_RECEIVES
    }

    /// Records sends that the program posts. Counts each of them as the reply to one message.
    #[inline]
    fn post(&mut self, sends: usize, empty_polls: impl Fn() -> u64) {
        if self.open == 0 {
            return;
        }
        self.look(empty_polls);
        let answers = self.open.min(u32::try_from(sends).unwrap_or(u32::MAX));
        self.open -= answers;
        self.answered = (u32::from(self.answered) + answers).min(ANSWERED_RECEIVES.into()) as u8;
    }

    /// If the program has found the queue empty since the oldest message without a reply, it will not reply: starts to
    /// count from zero again.
    #[inline]
    fn look(&mut self, empty_polls: impl Fn() -> u64) {
        if self.empty_polls != empty_polls() {
            self.answered = 0;
            self.open = 0;
        }
    }
}

impl Responder {
    pub(crate) fn start(&mut self, expected: Psn) {
        *self = Self { expected, ..Self::default() };
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Abandons the message that is being received and returns the receive that the message used.
    pub(crate) fn abandon_receive(&mut self) -> Option<RecvWqe> {
        match std::mem::take(&mut self.current) {
            Current::Send { wqe, .. } => Some(wqe),
            Current::None | Current::Write { .. } => None,
        }
    }

    /// Drops the unsent answers that a queue pair in the error state must not send. If there is a NAK, keeps the
    /// answers up to the NAK. Otherwise, if a completed receive is not acknowledged yet, keeps the acknowledgement of
    /// that receive and the answers to READs and atomics before it. Without these answers, the peer does not accept the
    /// acknowledgement.
    pub(crate) fn keep_up_to_nak(&mut self) {
        let nak = self.answers.iter().rposition(|answer| matches!(answer, Answer::Nak { again: false, .. }));
        if let Some(at) = nak {
            self.answers.truncate(at + 1);
            self.ack_due_ns = None;
        } else if let Some(receive) = self.unacknowledged_receive {
            self.answers.retain(|answer| answer.psn().is_before(receive));
            // The acknowledgement may not be due, because the response to a later READ would have acknowledged the
            // receive. That response was just dropped, so make the acknowledgement due.
            self.ack_due_ns.get_or_insert(0);
        } else {
            self.answers.clear();
        }
        self.release_ack();
    }

    #[inline]
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty() || self.ack_urgent
    }

    #[inline]
    pub(crate) fn held_ack_since_ns(&self) -> Option<u64> {
        self.ack_due_ns.filter(|_| !self.ack_urgent)
    }

    /// Returns the number of unsent answers and stored results.
    pub(crate) fn backlog(&self) -> usize {
        self.answers.len() + self.atomics.len()
    }

    /// Lets the due acknowledgement leave without further delay.
    pub(crate) fn release_ack(&mut self) {
        self.ack_urgent = self.ack_due_ns.is_some();
    }

    #[inline]
    fn want_ack(&mut self, now_ns: u64) {
        self.ack_due_ns.get_or_insert(now_ns);
    }

    /// Records that the responder has sent a packet that acknowledges all requests up to `psn`.
    #[inline]
    fn acknowledged(&mut self, psn: Psn) {
        if self.unacknowledged_receive.is_some_and(|receive| !psn.is_before(receive)) {
            self.unacknowledged_receive = None;
        }
    }

    /// Records sends that the program posts on this queue pair: they may be replies to received messages.
    #[inline]
    pub(crate) fn note_post(&mut self, sends: usize, empty_polls: impl Fn() -> u64) {
        self.answers_of.post(sends, empty_polls);
    }

    /// Drops unsent answers with sequence numbers from `psn` to before `end`. The peer has requested these answers
    /// again. Without this call, the responder would send them twice.
    fn drop_answer(&mut self, psn: Psn, end: Psn) {
        self.answers.retain(|answer| answer.psn().is_before(psn) || !answer.psn().is_before(end));
    }

    /// Inserts a repeated answer before the answers to later requests.
    fn insert_answer(&mut self, answer: Answer) {
        let place = self.answers.partition_point(|other| other.psn().is_before(answer.psn()));
        self.answers.insert(place, answer);
    }

    /// Adds a NAK to the unsent answers, in place of an unsent NAK.
    fn push_nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.drop_naks();
        self.answers.push_back(Answer::Nak { psn, msn: self.msn, syndrome, again: false });
    }

    fn drop_naks(&mut self) {
        self.answers.retain(|answer| !matches!(answer, Answer::Nak { .. }));
    }
}

/// Contents of a request packet: its headers and its payload.
struct Request<'a> {
    bth: BthRepr,
    operation: PacketOperation,
    reth: Option<RethRepr>,
    atomic: Option<AtomicEthRepr>,
    attachment: Attachment,
    payload: Payload<'a>,
}

impl<'a> Request<'a> {
    /// Reads the headers after the BTH. Returns `None` if the packet is too short for its headers or its padding.
    #[inline]
    fn parse(bth: BthRepr, operation: PacketOperation, mut rest: Packet<'a>) -> Option<Self> {
        let opcode = bth.opcode;
        let reth = if opcode.has_reth() { Some(RethRepr::read(rest.split::<RETH_LEN>()?)) } else { None };
        let atomic =
            if opcode.has_atomic_eth() { Some(AtomicEthRepr::read(rest.split::<ATOMIC_ETH_LEN>()?)) } else { None };
        let attachment = if opcode.has_imm() {
            Attachment::Immediate(ImmDtRepr::read(rest.split::<IMM_DT_LEN>()?).value)
        } else if opcode.has_ieth() {
            Attachment::Invalidated(IethRepr::read(rest.split::<IETH_LEN>()?).rkey)
        } else {
            Attachment::None
        };
        let payload = rest.payload(bth.pad_count)?;
        Some(Self { bth, operation, reth, atomic, attachment, payload })
    }

    /// Returns whether the payload length is valid: full in first and middle packets, not zero in last packets (IBTA
    /// Vol 1, 9.7.4.1.6).
    #[inline]
    fn has_valid_length(&self, mtu: usize) -> bool {
        let (length, opcode) = (self.payload.len(), self.bth.opcode);
        match (opcode.is_first(), opcode.is_last()) {
            (true, true) => length <= mtu,
            (_, false) => length == mtu,
            (false, true) => 0 < length && length <= mtu,
        }
    }
}

/// Reason for which the responder rejects a request. The rejection sends a NAK and puts the queue pair into the error
/// state.
struct Refusal(NakCode);

impl Qp {
    /// Completes a receive of a reliable connection. The acknowledgement must leave before the program sees the
    /// completion, so that no later action of the program can prevent the acknowledgement. The completion therefore
    /// stays staged until the driver has handed the acknowledgement to the link. There are two exceptions. If the
    /// program has replied to the preceding messages, the completion does not wait, and the acknowledgement waits for
    /// the next reply. If the device outlives the program
    /// ([`Policy::completions_await_acks`](crate::Policy::completions_await_acks)), no completion waits.
    #[inline(always)]
    fn complete_reliable(&mut self, core: &mut Commons, completion: Completion) {
        let may_wait = !core.policy.completions_await_acks
            || self.resp.answers_of.receive(|| core.empty_polls(self.recv_cq)) && core.acks_may_wait;
        self.resp.want_ack(core.now_ns);
        self.resp.unacknowledged_receive = Some(self.resp.expected);
        if !may_wait {
            self.resp.ack_urgent = true;
            core.await_link();
        }
        self.complete_receive(core, completion);
    }

    /// Passes the due acknowledgement to the engine, because this queue pair is being reset or destroyed.
    pub(crate) fn say_farewell(&mut self, core: &mut Commons) {
        let is_due = self.resp.ack_due_ns.take().is_some();
        if self.resp.unacknowledged_receive.take().is_some() || is_due {
            core.say_farewell(Farewell {
                path: self.path,
                qpn: self.qpn,
                acknowledgement: self.acknowledgement(),
                frame_overhead: self.frame_overhead,
            });
        }
    }

    /// Handles a request on a connected queue pair.
    #[inline]
    pub(crate) fn handle_request(
        &mut self,
        core: &mut Commons,
        bth: BthRepr,
        operation: PacketOperation,
        rest: Packet<'_>,
    ) {
        let Some(request) = Request::parse(bth, operation, rest) else {
            core.counters.rx_malformed += 1;
            return;
        };
        if !self.established {
            self.established = true;
            if self.state == super::QpState::ReadyToReceive {
                core.events.push(AsyncEvent::CommunicationEstablished(self.qpn));
            }
        }
        if self.kind == QpKind::Uc {
            return self.handle_unreliable(core, &request);
        }
        if bth.psn != self.resp.expected {
            return self.handle_out_of_order(core, &request);
        }
        if std::mem::take(&mut self.resp.nak_sent) {
            self.resp.drop_naks(); // the unsent NAKs request the packet that has just arrived
        }
        match self.execute(core, &request) {
            Ok(()) => {}
            Err(Refusal(code)) => self.refuse(core, bth.psn, code),
        }
    }

    /// Sends a NAK to the peer and enters the error state.
    fn refuse(&mut self, core: &mut Commons, psn: Psn, code: NakCode) {
        let (event, why) = match code {
            NakCode::INVALID_REQUEST => {
                core.counters.resp_invalid_request += 1;
                (AsyncEvent::QpRequestError(self.qpn), "it is invalid")
            }
            NakCode::REMOTE_ACCESS_ERROR => {
                core.counters.resp_remote_access_errors += 1;
                (AsyncEvent::QpAccessError(self.qpn), "it may not access the memory")
            }
            _ => {
                core.counters.resp_remote_operational_errors += 1;
                (AsyncEvent::QpFatal(self.qpn), "it could not be executed")
            }
        };
        self.report_death(core, psn, DeathReason::Refused(why));
        self.resp.push_nak(psn, Syndrome::nak(code));
        core.await_link(); // the NAK must leave before the program sees flushed completions and perhaps ends
        core.events.push(event);
        self.enter_error(core);
    }

    /// Handles a request without the expected sequence number: an earlier packet was lost, or the request is a
    /// duplicate.
    fn handle_out_of_order(&mut self, core: &mut Commons, request: &Request<'_>) {
        let psn = request.bth.psn;
        if !psn.is_before(self.resp.expected) {
            core.counters.out_of_sequence += 1;
            self.counters.out_of_sequence += 1;
            if !self.resp.nak_sent {
                self.resp.nak_sent = true;
                self.resp.push_nak(self.resp.expected, Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR));
            }
            return;
        }
        core.counters.duplicate_request += 1;
        self.counters.duplicate_request += 1;
        match request.operation {
            PacketOperation::ReadRequest => {
                let Some(reth) = request.reth else { return };
                let packets = u64::from(reth.dma_length).div_ceil(self.mtu() as u64).max(1);
                let behind = u64::from(self.resp.expected.distance_from(psn));
                let allowed = self.settings.access.contains(Access::REMOTE_READ)
                    && core
                        .memory
                        .check_remote(
                            self.through(),
                            reth.rkey,
                            reth.virtual_address,
                            reth.dma_length.into(),
                            Access::REMOTE_READ,
                        )
                        .is_ok();
                // The responder executes a repeated READ again (IBTA Vol 1, 9.7.4.4). If the sequence numbers of the
                // READ extend beyond those of the executed requests, the READ is no repetition, and the responder drops
                // it.
                if packets > behind {
                    return;
                }
                if !allowed {
                    return self.refuse_repetition(core, psn);
                }
                self.resp.drop_answer(psn, psn.add(packets as u32));
                if !self.make_answer_slot() {
                    return; // the peer has more requests outstanding than it may
                }
                self.resp.insert_answer(Answer::Read {
                    psn,
                    msn: self.resp.msn,
                    address: reth.virtual_address,
                    rkey: reth.rkey,
                    left: reth.dma_length.into(),
                    started: false,
                    again: true,
                });
            }
            PacketOperation::CompareSwap | PacketOperation::FetchAdd => {
                if let Some(&(psn, original)) = self.resp.atomics.iter().find(|(known, _)| *known == psn) {
                    self.resp.drop_answer(psn, psn.next());
                    if !self.make_answer_slot() {
                        return;
                    }
                    let msn = self.resp.msn;
                    self.resp.insert_answer(Answer::Atomic { psn, msn, original, again: true });
                }
            }
            _ => {
                self.resp.want_ack(core.now_ns);
                self.resp.ack_urgent = true;
            }
        }
    }

    /// Sends a NAK for a repeated READ whose memory is no longer accessible. Without the NAK, a peer that lost the
    /// first response would repeat the READ until its retries are spent. But the request may also be a late copy of a
    /// READ whose response the peer has. The peer then ignores the NAK, and the connection must continue. This queue
    /// pair therefore does not enter the error state.
    fn refuse_repetition(&mut self, core: &mut Commons, psn: Psn) {
        // An unsent NAK already makes the peer repeat its requests, so no second NAK is needed.
        if self.resp.answers.iter().any(|answer| matches!(answer, Answer::Nak { .. })) {
            return;
        }
        core.counters.resp_remote_access_errors += 1;
        let syndrome = Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR);
        self.resp.insert_answer(Answer::Nak { psn, msn: self.resp.msn, syndrome, again: true });
    }

    /// Takes a receive for a message. If none is posted, queues an RNR NAK and returns `None`.
    #[inline]
    fn need_receive(&mut self, core: &mut Commons, psn: Psn) -> Option<RecvWqe> {
        let wqe = self.take_receive();
        if wqe.is_none() {
            core.counters.rnr_nak_sent += 1;
            self.counters.rnr_nak_sent += 1;
            // The responder silently drops later packets until the peer repeats this packet (IBTA Vol 1, 9.7.5.2.8).
            self.resp.nak_sent = true;
            self.resp.push_nak(psn, Syndrome::rnr_nak(self.settings.min_rnr_timer));
        }
        wqe
    }

    /// Records that the responder has executed one request packet.
    #[inline]
    fn accepted(&mut self, core: &mut Commons, request: &Request<'_>) {
        self.resp.expected = self.resp.expected.next();
        if request.bth.opcode.is_last() {
            self.resp.msn = self.resp.msn.next();
        }
        if request.bth.ack_request {
            self.resp.want_ack(core.now_ns);
        }
    }

    /// Returns whether the peer may WRITE all bytes that the RETH announces. A WRITE of zero bytes needs no valid key
    /// (IBTA Vol 1, 9.7.4.1.4), but the queue pair must permit WRITEs.
    #[inline]
    fn may_write(&self, core: &mut Commons, reth: &RethRepr) -> bool {
        let length = u64::from(reth.dma_length);
        let needed = Access::REMOTE_WRITE;
        self.settings.access.contains(needed)
            && core.memory.check_remote(self.through(), reth.rkey, reth.virtual_address, length, needed).is_ok()
    }

    /// Makes room for one more unsent READ or atomic response. Returns false if that is impossible. A peer waits for at
    /// most `max_dest_rd_atomic` responses. If more are unsent, the peer no longer needs the oldest repeated response.
    /// The responder drops that response to make room.
    fn make_answer_slot(&mut self) -> bool {
        let answers = &mut self.resp.answers;
        let taken = answers.iter().filter(|answer| !matches!(answer, Answer::Nak { .. })).count();
        if taken < usize::from(self.settings.max_dest_rd_atomic) {
            return true;
        }
        let repeated =
            |answer: &Answer| matches!(answer, Answer::Read { again: true, .. } | Answer::Atomic { again: true, .. });
        answers.iter().position(repeated).and_then(|at| answers.remove(at)).is_some()
    }
}
