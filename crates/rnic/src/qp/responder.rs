//! The responder: carries out requests in order and answers them (IBTA Vol 1, 9.7.4, 9.7.7; for
//! UC 9.8.2, for UD 9.8.3).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use doorbell_wire::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, AethRepr, AtomicAckEthRepr, AtomicEthRepr, BTH_LEN, BthRepr,
    DETH_LEN, DethRepr, ICRC_LEN, IETH_LEN, IMM_DT_LEN, IethRepr, ImmDtRepr, Msn, NakCode, Opcode, Operation, Outer,
    PartitionKey, Psn, RETH_LEN, RKey, RethRepr, Syndrome, UDP_LEN,
};

use super::{Qp, QpKind};
use crate::completion::{Attachment, Completion, CompletionOpcode, Status};
use crate::core::Core;
use crate::event::AsyncEvent;
use crate::memory::Access;
use crate::transmit::{TransmitBatch, TransmitInfo};
use crate::work::RecvWqe;

/// Bytes that a UD receive has in front of the payload (IBTA Vol 1, 11.4.1.2).
pub(crate) const GRH_BYTES: usize = 40;

/// The message that is being received.
#[derive(Debug, Default)]
enum Current {
    #[default]
    None,
    /// A SEND into a receive.
    Send { wqe: RecvWqe, done: u64 },
    /// A WRITE.
    Write { address: u64, rkey: RKey, length: u64, done: u64 },
}

/// An answer that waits for its turn. Answers leave in the order of the requests.
#[derive(Debug)]
enum Answer {
    Read { psn: Psn, msn: Msn, address: u64, rkey: RKey, left: u64, started: bool, again: bool },
    Atomic { psn: Psn, msn: Msn, original: u64, again: bool },
    Nak { psn: Psn, msn: Msn, syndrome: Syndrome },
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
    /// A NAK was sent, and what arrives ahead is dropped until the expected packet comes
    /// (IBTA Vol 1, 9.7.5.2.1).
    nak_sent: bool,
    current: Current,
    /// A receive that an abandoned UC message had taken: the next message takes it.
    kept: Option<RecvWqe>,
    /// The UC message that is arriving was counted as dropped.
    dropping: bool,
    /// Results of the last atomics, for duplicates (IBTA Vol 1, 9.7.4.4).
    atomics: VecDeque<(Psn, u64)>,
    answers: VecDeque<Answer>,
    /// When an acknowledgement became due.
    ack_due_ns: Option<u64>,
    /// It may not be held back.
    ack_urgent: bool,
}

impl Responder {
    pub(crate) fn start(&mut self, expected: Psn) {
        *self = Self { expected, ..Self::default() };
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Gives up the message that is being received, and hands out the receive it had taken.
    pub(crate) fn abandon_receive(&mut self) -> Option<RecvWqe> {
        match std::mem::take(&mut self.current) {
            Current::Send { wqe, .. } => Some(wqe),
            Current::None | Current::Write { .. } => self.kept.take(),
        }
    }

    /// In the error state nothing is answered any more but the NAK that tells the peer, behind
    /// what was carried out before it.
    pub(crate) fn keep_up_to_nak(&mut self) {
        let nak = self.answers.iter().rposition(|answer| matches!(answer, Answer::Nak { .. }));
        self.answers.truncate(nak.map_or(0, |at| at + 1));
        self.ack_due_ns = None;
    }

    #[inline]
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty() || self.ack_urgent
    }

    #[inline]
    pub(crate) fn held_ack_since_ns(&self) -> Option<u64> {
        self.ack_due_ns.filter(|_| !self.ack_urgent)
    }

    /// Answers that wait, and results that are kept.
    pub(crate) fn backlog(&self) -> usize {
        self.answers.len() + self.atomics.len()
    }

    /// The acknowledgement that is due may not be held back any longer.
    pub(crate) fn release_ack(&mut self) {
        self.ack_urgent = self.ack_due_ns.is_some();
    }

    #[inline]
    fn want_ack(&mut self, now_ns: u64) {
        self.ack_due_ns.get_or_insert(now_ns);
    }

    /// Answers from `psn` on are asked for again: those that wait would be sent twice.
    fn drop_answers_from(&mut self, psn: Psn) {
        self.answers.retain(|answer| answer.psn().is_before(psn));
        self.nak_sent &= self.answers.iter().any(|answer| matches!(answer, Answer::Nak { .. }));
    }

    /// Queues a NAK, in place of one that waits still.
    fn push_nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.drop_naks();
        self.answers.push_back(Answer::Nak { psn, msn: self.msn, syndrome });
    }

    fn drop_naks(&mut self) {
        self.answers.retain(|answer| !matches!(answer, Answer::Nak { .. }));
    }
}

/// What the headers of a request say beside the BTH.
struct Request<'a> {
    bth: BthRepr,
    operation: Operation,
    reth: Option<RethRepr>,
    atomic: Option<AtomicEthRepr>,
    attachment: Attachment,
    payload: &'a [u8],
}

/// Splits a header off.
#[inline]
fn split<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(head)
}

impl<'a> Request<'a> {
    /// `None` if the packet is too short for its headers or its padding.
    #[inline]
    fn parse(bth: BthRepr, operation: Operation, mut rest: &'a [u8]) -> Option<Self> {
        let opcode = bth.opcode;
        let reth = if opcode.has_reth() { Some(RethRepr::read(split::<RETH_LEN>(&mut rest)?)) } else { None };
        let atomic =
            if opcode.has_atomic_eth() { Some(AtomicEthRepr::read(split::<ATOMIC_ETH_LEN>(&mut rest)?)) } else { None };
        let attachment = if opcode.has_imm() {
            Attachment::Immediate(ImmDtRepr::read(split::<IMM_DT_LEN>(&mut rest)?).value)
        } else if opcode.has_ieth() {
            Attachment::Invalidated(IethRepr::read(split::<IETH_LEN>(&mut rest)?).rkey)
        } else {
            Attachment::None
        };
        let payload = rest.get(..rest.len().checked_sub(bth.pad_count.into())?)?;
        Some(Self { bth, operation, reth, atomic, attachment, payload })
    }

    /// IBTA Vol 1, 9.7.4.1.6: first and middle packets are full, last ones are not empty.
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

/// Why a request is answered with a NAK; it ends the queue pair.
struct Refusal(NakCode);

impl Qp {
    /// Takes a request on a connected queue pair.
    #[inline]
    pub(crate) fn handle_request(&mut self, core: &mut Core, bth: BthRepr, operation: Operation, rest: &[u8]) {
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
            self.resp.drop_naks(); // what has not left yet asks for what is here now
        }
        match self.execute(core, &request) {
            Ok(()) => {}
            Err(Refusal(code)) => self.refuse(core, bth.psn, code),
        }
    }

    /// Tells the peer, and goes to the error state.
    fn refuse(&mut self, core: &mut Core, psn: Psn, code: NakCode) {
        let event = match code {
            NakCode::INVALID_REQUEST => {
                core.counters.resp_invalid_request += 1;
                AsyncEvent::QpRequestError(self.qpn)
            }
            NakCode::REMOTE_ACCESS_ERROR => {
                core.counters.resp_remote_access_errors += 1;
                AsyncEvent::QpAccessError(self.qpn)
            }
            _ => {
                core.counters.resp_remote_operational_errors += 1;
                AsyncEvent::QpFatal(self.qpn)
            }
        };
        self.resp.push_nak(psn, Syndrome::nak(code));
        core.events.push(event);
        self.enter_error(core);
    }

    /// A request that is not the expected one: lost before it, or a duplicate.
    fn handle_out_of_order(&mut self, core: &mut Core, request: &Request<'_>) {
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
            Operation::ReadRequest => {
                let Some(reth) = request.reth else { return };
                let packets = u64::from(reth.dma_length).div_ceil(self.mtu() as u64).max(1);
                let behind = u64::from(self.resp.expected.distance_from(psn));
                let allowed = self.settings.access.contains(Access::REMOTE_READ)
                    && core
                        .memory
                        .check_remote(
                            self.pd,
                            reth.rkey,
                            reth.virtual_address,
                            reth.dma_length.into(),
                            Access::REMOTE_READ,
                        )
                        .is_ok();
                // IBTA Vol 1, 9.7.4.4: a repeated READ is carried out again; one that was never
                // carried out in this form is not a repetition, and is dropped.
                if packets > behind || !allowed {
                    return;
                }
                self.resp.drop_answers_from(psn);
                if !self.make_answer_slot() {
                    return; // more than the peer may have outstanding
                }
                self.resp.answers.push_back(Answer::Read {
                    psn,
                    msn: self.resp.msn,
                    address: reth.virtual_address,
                    rkey: reth.rkey,
                    left: reth.dma_length.into(),
                    started: false,
                    again: true,
                });
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                if let Some(&(psn, original)) = self.resp.atomics.iter().find(|(known, _)| *known == psn) {
                    self.resp.drop_answers_from(psn);
                    if !self.make_answer_slot() {
                        return;
                    }
                    let msn = self.resp.msn;
                    self.resp.answers.push_back(Answer::Atomic { psn, msn, original, again: true });
                }
            }
            _ => {
                self.resp.want_ack(core.now_ns);
                self.resp.ack_urgent = true;
            }
        }
    }

    /// Takes the receive that a message needs, or answers RNR.
    #[inline]
    fn need_receive(&mut self, core: &mut Core, psn: Psn) -> Option<RecvWqe> {
        let wqe = self.take_receive();
        if wqe.is_none() {
            core.counters.rnr_nak_sent += 1;
            self.counters.rnr_nak_sent += 1;
            // What follows is dropped without a word until this one comes again
            // (IBTA Vol 1, 9.7.5.2.8).
            self.resp.nak_sent = true;
            self.resp.push_nak(psn, Syndrome::rnr_nak(self.settings.min_rnr_timer));
        }
        wqe
    }

    /// Carries out the expected request.
    #[inline]
    fn execute(&mut self, core: &mut Core, request: &Request<'_>) -> Result<(), Refusal> {
        let opcode = request.bth.opcode;
        let invalid = Refusal(NakCode::INVALID_REQUEST);
        // IBTA Vol 1, 9.7.4.1.3: what may follow what.
        let in_sequence = match (&self.resp.current, request.operation) {
            (Current::None, _) => opcode.is_first(),
            (Current::Send { .. }, Operation::Send) | (Current::Write { .. }, Operation::Write) => !opcode.is_first(),
            _ => false,
        };
        if !in_sequence {
            return Err(invalid);
        }
        match request.operation {
            Operation::Send | Operation::Write if !request.has_valid_length(self.mtu()) => return Err(invalid),
            Operation::Send => self.execute_send(core, request)?,
            Operation::Write => self.execute_write(core, request)?,
            Operation::ReadRequest => return self.execute_read(core, request),
            Operation::CompareSwap | Operation::FetchAdd => return self.execute_atomic(core, request),
            _ => return Err(invalid),
        }
        Ok(())
    }

    /// One request packet was carried out.
    #[inline]
    fn accepted(&mut self, core: &mut Core, request: &Request<'_>) {
        self.resp.expected = self.resp.expected.next();
        if request.bth.opcode.is_last() {
            self.resp.msn = self.resp.msn.next();
        }
        if request.bth.ack_request {
            self.resp.want_ack(core.now_ns);
        }
    }

    /// A receive failed on our side: it completes with an error, and so does the peer's request.
    fn fail_receive(&mut self, core: &mut Core, wqe: &RecvWqe, status: Status, code: NakCode) -> Refusal {
        let opcode = CompletionOpcode::Receive;
        self.complete_receive(core, Completion { wr_id: wqe.wr_id, status, opcode, ..Completion::default() });
        Refusal(code)
    }

    #[inline]
    fn execute_send(&mut self, core: &mut Core, request: &Request<'_>) -> Result<(), Refusal> {
        let (wqe, done) = match std::mem::take(&mut self.resp.current) {
            Current::Send { wqe, done } => (wqe, done),
            _ => match self.need_receive(core, request.bth.psn) {
                Some(wqe) => (wqe, 0),
                None => return Ok(()),
            },
        };
        let total = done + request.payload.len() as u64;
        if total > wqe.length {
            return Err(self.fail_receive(core, &wqe, Status::LocalLength, NakCode::INVALID_REQUEST));
        }
        if core.memory.scatter(wqe.pd, &wqe.sges, done, request.payload).is_err() {
            let code = NakCode::REMOTE_OPERATIONAL_ERROR;
            return Err(self.fail_receive(core, &wqe, Status::LocalProtection, code));
        }
        if request.bth.opcode.is_last() {
            if let Attachment::Invalidated(rkey) = request.attachment
                && core.memory.invalidate(self.pd, rkey).is_err()
            {
                let code = NakCode::REMOTE_ACCESS_ERROR;
                return Err(self.fail_receive(core, &wqe, Status::LocalAccess, code));
            }
            core.counters.rx_send_requests += 1;
            self.complete_receive(
                core,
                Completion {
                    wr_id: wqe.wr_id,
                    opcode: CompletionOpcode::Receive,
                    byte_len: total as u32,
                    solicited: request.bth.solicited,
                    attachment: request.attachment,
                    ..Completion::default()
                },
            );
        } else {
            self.resp.current = Current::Send { wqe, done: total };
        }
        self.accepted(core, request);
        Ok(())
    }

    /// May the peer WRITE all that it announces? No bytes need no right.
    #[inline]
    fn may_write(&self, core: &mut Core, reth: &RethRepr) -> bool {
        let length = u64::from(reth.dma_length);
        let needed = Access::REMOTE_WRITE;
        length == 0
            || self.settings.access.contains(needed)
                && core.memory.check_remote(self.pd, reth.rkey, reth.virtual_address, length, needed).is_ok()
    }

    #[inline]
    fn execute_write(&mut self, core: &mut Core, request: &Request<'_>) -> Result<(), Refusal> {
        let opcode = request.bth.opcode;
        let (address, rkey, length, done) = match (&self.resp.current, request.reth) {
            (&Current::Write { address, rkey, length, done }, _) => (address, rkey, length, done),
            (_, Some(reth)) => {
                if !self.may_write(core, &reth) {
                    return Err(Refusal(NakCode::REMOTE_ACCESS_ERROR));
                }
                (reth.virtual_address, reth.rkey, u64::from(reth.dma_length), 0)
            }
            _ => return Err(Refusal(NakCode::INVALID_REQUEST)),
        };
        let total = done + request.payload.len() as u64;
        // The last packet, and only it, ends what the RETH announced.
        if total > length || opcode.is_last() != (total == length) {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        }
        let receive = match request.attachment {
            Attachment::Immediate(_) => match self.need_receive(core, request.bth.psn) {
                Some(wqe) => Some(wqe),
                None => return Ok(()),
            },
            _ => None,
        };
        let place = address.wrapping_add(done);
        if core.memory.write_remote(self.pd, rkey, place, request.payload).is_err() {
            if let Some(wqe) = receive {
                self.resp.kept = Some(wqe);
            }
            return Err(Refusal(NakCode::REMOTE_ACCESS_ERROR));
        }
        self.resp.current = if opcode.is_last() {
            core.counters.rx_write_requests += 1;
            Current::None
        } else {
            Current::Write { address, rkey, length, done: total }
        };
        if let Some(wqe) = receive {
            self.complete_receive(
                core,
                Completion {
                    wr_id: wqe.wr_id,
                    opcode: CompletionOpcode::ReceiveWriteImmediate,
                    byte_len: length as u32,
                    solicited: request.bth.solicited,
                    attachment: request.attachment,
                    ..Completion::default()
                },
            );
        }
        self.accepted(core, request);
        Ok(())
    }

    /// Is there room for one more answer? The peer counts what it waits for, and an answer that
    /// was sent once may have reached it: if too many wait, the oldest that is only repeated is
    /// not waited for any more.
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

    fn execute_read(&mut self, core: &mut Core, request: &Request<'_>) -> Result<(), Refusal> {
        let (Some(reth), true) = (request.reth, request.payload.is_empty()) else {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        };
        let length = u64::from(reth.dma_length);
        if length > super::MAX_MESSAGE_BYTES || !self.make_answer_slot() {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        }
        let allowed = self.settings.access.contains(Access::REMOTE_READ)
            && core.memory.check_remote(self.pd, reth.rkey, reth.virtual_address, length, Access::REMOTE_READ).is_ok();
        if !allowed {
            return Err(Refusal(NakCode::REMOTE_ACCESS_ERROR));
        }
        core.counters.rx_read_requests += 1;
        self.resp.msn = self.resp.msn.next();
        self.resp.answers.push_back(Answer::Read {
            psn: request.bth.psn,
            msn: self.resp.msn,
            address: reth.virtual_address,
            rkey: reth.rkey,
            left: length,
            started: false,
            again: false,
        });
        let packets = length.div_ceil(self.mtu() as u64).max(1);
        self.resp.expected = self.resp.expected.add(packets as u32);
        self.resp.ack_due_ns = None; // the response acknowledges what came before
        Ok(())
    }

    fn execute_atomic(&mut self, core: &mut Core, request: &Request<'_>) -> Result<(), Refusal> {
        let (Some(atomic), true) = (request.atomic, request.payload.is_empty()) else {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        };
        if !atomic.virtual_address.is_multiple_of(8) || !self.make_answer_slot() {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        }
        if !self.settings.access.contains(Access::REMOTE_ATOMIC) {
            return Err(Refusal(NakCode::REMOTE_ACCESS_ERROR));
        }
        let swap = request.operation == Operation::CompareSwap;
        let original = core
            .memory
            .atomic_remote(self.pd, atomic.rkey, atomic.virtual_address, |word| {
                if swap {
                    word.compare_exchange(atomic.compare, atomic.swap_or_add, Ordering::AcqRel, Ordering::Acquire)
                        .unwrap_or_else(|actual| actual)
                } else {
                    word.fetch_add(atomic.swap_or_add, Ordering::AcqRel)
                }
            })
            .map_err(|_| Refusal(NakCode::REMOTE_ACCESS_ERROR))?;
        core.counters.rx_atomic_requests += 1;
        let psn = request.bth.psn;
        if self.resp.atomics.len() >= usize::from(self.settings.max_dest_rd_atomic) {
            self.resp.atomics.pop_front();
        }
        self.resp.atomics.push_back((psn, original));
        self.resp.msn = self.resp.msn.next();
        self.resp.answers.push_back(Answer::Atomic { psn, msn: self.resp.msn, original, again: false });
        self.resp.expected = self.resp.expected.next();
        self.resp.ack_due_ns = None;
        Ok(())
    }

    /// UC: nothing is answered, and a message with a gap is dropped whole (IBTA Vol 1, 9.8.2.2).
    fn handle_unreliable(&mut self, core: &mut Core, request: &Request<'_>) {
        let opcode = request.bth.opcode;
        let in_order = request.bth.psn == self.resp.expected;
        let continues = match (&self.resp.current, request.operation) {
            (Current::None, Operation::Send | Operation::Write) => opcode.is_first(),
            (Current::Send { .. }, Operation::Send) | (Current::Write { .. }, Operation::Write) => {
                in_order && !opcode.is_first()
            }
            _ => false,
        };
        if !continues && !matches!(self.resp.current, Current::None) {
            self.drop_unreliable(core);
        }
        self.resp.expected = request.bth.psn.next();
        if opcode.is_first() {
            self.resp.dropping = false;
        }
        let usable = (continues || opcode.is_first())
            && matches!(request.operation, Operation::Send | Operation::Write)
            && request.has_valid_length(self.mtu());
        if !usable || !self.place_unreliable(core, request) {
            self.drop_unreliable(core);
        }
        self.resp.dropping &= !opcode.is_last();
    }

    /// Gives up the UC message that is arriving, and counts it once.
    fn drop_unreliable(&mut self, core: &mut Core) {
        if !std::mem::replace(&mut self.resp.dropping, true) {
            core.counters.rx_dropped_messages += 1;
        }
        if let Some(wqe) = self.resp.abandon_receive() {
            self.resp.kept = Some(wqe);
        }
    }

    /// False if the message cannot be placed and is to be dropped.
    fn place_unreliable(&mut self, core: &mut Core, request: &Request<'_>) -> bool {
        let (opcode, payload) = (request.bth.opcode, request.payload);
        let completion = |wqe: &RecvWqe, opcode, byte_len| Completion {
            wr_id: wqe.wr_id,
            opcode,
            byte_len,
            solicited: request.bth.solicited,
            attachment: request.attachment,
            ..Completion::default()
        };
        if request.operation == Operation::Send {
            let (wqe, done) = match std::mem::take(&mut self.resp.current) {
                Current::Send { wqe, done } => (wqe, done),
                _ => match self.resp.kept.take().or_else(|| self.take_receive()) {
                    Some(wqe) => (wqe, 0),
                    None => return false,
                },
            };
            let total = done + payload.len() as u64;
            let placed = total <= wqe.length && core.memory.scatter(wqe.pd, &wqe.sges, done, payload).is_ok();
            if placed && opcode.is_last() {
                core.counters.rx_send_requests += 1;
                self.complete_receive(core, completion(&wqe, CompletionOpcode::Receive, total as u32));
            } else {
                self.resp.current = Current::Send { wqe, done: total };
            }
            return placed;
        }
        let (address, rkey, length, done) = match (&self.resp.current, request.reth) {
            (&Current::Write { address, rkey, length, done }, _) => (address, rkey, length, done),
            (_, Some(reth)) if self.may_write(core, &reth) => {
                (reth.virtual_address, reth.rkey, u64::from(reth.dma_length), 0)
            }
            _ => return false,
        };
        let total = done + payload.len() as u64;
        if total > length || opcode.is_last() != (total == length) {
            return false;
        }
        if core.memory.write_remote(self.pd, rkey, address.wrapping_add(done), payload).is_err() {
            return false;
        }
        if !opcode.is_last() {
            self.resp.current = Current::Write { address, rkey, length, done: total };
            return true;
        }
        self.resp.current = Current::None;
        core.counters.rx_write_requests += 1;
        if matches!(request.attachment, Attachment::Immediate(_)) {
            let Some(wqe) = self.resp.kept.take().or_else(|| self.take_receive()) else { return false };
            let length = length as u32;
            self.complete_receive(core, completion(&wqe, CompletionOpcode::ReceiveWriteImmediate, length));
        }
        true
    }

    /// Takes a UD datagram.
    pub(crate) fn handle_datagram(&mut self, core: &mut Core, outer: &Outer, bth: BthRepr, mut rest: &[u8]) {
        let packet_bytes = BTH_LEN + rest.len();
        let Some(deth) = split::<DETH_LEN>(&mut rest).map(DethRepr::read) else {
            core.counters.rx_malformed += 1;
            return;
        };
        let Some(request) = Request::parse(bth, Operation::Send, rest) else {
            core.counters.rx_malformed += 1;
            return;
        };
        if deth.qkey != self.settings.qkey {
            core.counters.rx_key_violation += 1;
            return;
        }
        // A datagram that finds no receive, or too short a one, is dropped without a word
        // (IBTA Vol 1, 9.8.3.2.2).
        let total = (GRH_BYTES + request.payload.len()) as u64;
        let fits = request.payload.len() <= self.mtu();
        let Some(wqe) = self.resp.kept.take().or_else(|| if fits { self.take_receive() } else { None }) else {
            core.counters.rx_dropped_messages += 1;
            return;
        };
        let grh = routing_header(outer, packet_bytes);
        let placed = fits
            && total <= wqe.length
            && core.memory.scatter(wqe.pd, &wqe.sges, 0, &grh).is_ok()
            && core.memory.scatter(wqe.pd, &wqe.sges, GRH_BYTES as u64, request.payload).is_ok();
        if !placed {
            core.counters.rx_dropped_messages += 1;
            self.resp.kept = Some(wqe);
            return;
        }
        core.counters.rx_send_requests += 1;
        self.complete_receive(
            core,
            Completion {
                wr_id: wqe.wr_id,
                opcode: CompletionOpcode::Receive,
                byte_len: total as u32,
                solicited: bth.solicited,
                has_grh: true,
                source_qpn: deth.source_qpn,
                attachment: request.attachment,
                ..Completion::default()
            },
        );
    }

    /// Sends answers, then the acknowledgement that is due. True if more is left than the budget
    /// allowed.
    pub(crate) fn transmit_answers(&mut self, core: &mut Core, budget: &mut usize, batch: &mut TransmitBatch) -> bool {
        while let Some(answer) = self.resp.answers.front_mut() {
            if *budget == 0 {
                return true;
            }
            let mtu = self.settings.path_mtu.bytes();
            let (opcode, psn, msn, syndrome, payload) = match *answer {
                Answer::Nak { psn, msn, syndrome } => (Opcode::RC_ACKNOWLEDGE, psn, msn, syndrome, 0),
                Answer::Atomic { psn, msn, .. } => {
                    (Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, msn, Syndrome::ACK_UNLIMITED, 0)
                }
                Answer::Read { psn, msn, left, started, .. } => {
                    let opcode = match (started, left as usize <= mtu) {
                        (false, true) => Opcode::RC_READ_RESPONSE_ONLY,
                        (false, false) => Opcode::RC_READ_RESPONSE_FIRST,
                        (true, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                        (true, true) => Opcode::RC_READ_RESPONSE_LAST,
                    };
                    (opcode, psn, msn, Syndrome::ACK_UNLIMITED, mtu.min(left as usize))
                }
            };
            let pad = payload.wrapping_neg() & 3;
            let len = BTH_LEN + opcode.extension_len() + payload + pad;
            if !batch.has_room(len) {
                return true;
            }
            *budget -= 1;
            let info = TransmitInfo {
                qpn: self.qpn,
                opcode,
                work_request: None,
                first: opcode.is_first(),
                last: opcode.is_last(),
                inline: false,
                retransmission: false,
                payload_bytes: payload as u32,
            };
            let out = batch.push(&self.path, len, info);
            let (bth, mut out) = out.split_first_chunk_mut::<BTH_LEN>().expect("sized for the BTH");
            response_bth(opcode, self.settings.dest_qpn, psn, pad).write(bth);
            if opcode.has_aeth() {
                let (aeth, rest) = out.split_first_chunk_mut::<AETH_LEN>().expect("sized for the AETH");
                AethRepr { syndrome, msn }.write(aeth);
                out = rest;
            }
            let frame = len as u64 + self.frame_overhead;
            let mut refused = false;
            match answer {
                Answer::Nak { .. } => {
                    core.counters.tx_ack_packets += 1;
                    core.counters.tx_ack_bytes += frame;
                    self.counters.tx_ack_packets += 1;
                    self.resp.answers.pop_front();
                }
                Answer::Atomic { original, .. } => {
                    let header = out.first_chunk_mut::<ATOMIC_ACK_ETH_LEN>().expect("sized for the AtomicAckETH");
                    AtomicAckEthRepr { original: *original }.write(header);
                    core.counters.tx_response_packets += 1;
                    core.counters.tx_response_bytes += frame;
                    self.counters.tx_response_packets += 1;
                    self.resp.answers.pop_front();
                }
                Answer::Read { psn, address, rkey, left, started, .. } => {
                    let (body, padding) = out.split_at_mut(payload);
                    padding.fill(0);
                    if core.memory.read_remote(self.pd, *rkey, *address, body).is_err() {
                        refused = true;
                    } else {
                        core.counters.tx_response_packets += 1;
                        core.counters.tx_response_bytes += frame;
                        self.counters.tx_response_packets += 1;
                        *psn = psn.next();
                        *address = address.wrapping_add(payload as u64);
                        *left -= payload as u64;
                        *started = true;
                        if *left == 0 {
                            self.resp.answers.pop_front();
                        }
                    }
                }
            }
            if refused {
                // The region went away while it was being read.
                batch.retract(len);
                self.resp.answers.clear();
                self.refuse(core, psn, NakCode::REMOTE_OPERATIONAL_ERROR);
                continue;
            }
            core.counters.tx_vport_rdma_unicast_packets += 1;
            core.counters.tx_vport_rdma_unicast_bytes += frame;
        }
        self.transmit_ack(core, budget, batch)
    }

    /// The acknowledgement that is due, which covers everything received so far.
    #[inline]
    pub(crate) fn transmit_ack(&mut self, core: &mut Core, budget: &mut usize, batch: &mut TransmitBatch) -> bool {
        if self.resp.ack_due_ns.is_none() {
            self.resp.ack_urgent = false;
            return false;
        }
        let len = BTH_LEN + AETH_LEN;
        if *budget == 0 || !batch.has_room(len) {
            return true;
        }
        *budget -= 1;
        self.resp.ack_due_ns = None;
        self.resp.ack_urgent = false;
        let opcode = Opcode::RC_ACKNOWLEDGE;
        let info = TransmitInfo {
            qpn: self.qpn,
            opcode,
            work_request: None,
            first: true,
            last: true,
            inline: false,
            retransmission: false,
            payload_bytes: 0,
        };
        let out = batch.push(&self.path, len, info);
        let (bth, out) = out.split_first_chunk_mut::<BTH_LEN>().expect("sized for the BTH");
        response_bth(opcode, self.settings.dest_qpn, self.resp.expected.sub(1), 0).write(bth);
        let aeth = out.first_chunk_mut::<AETH_LEN>().expect("sized for the AETH");
        AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: self.resp.msn }.write(aeth);
        let frame = len as u64 + self.frame_overhead;
        core.counters.tx_ack_packets += 1;
        core.counters.tx_ack_bytes += frame;
        self.counters.tx_ack_packets += 1;
        core.counters.tx_vport_rdma_unicast_packets += 1;
        core.counters.tx_vport_rdma_unicast_bytes += frame;
        false
    }
}

#[inline]
fn response_bth(opcode: Opcode, dest_qpn: doorbell_wire::Qpn, psn: Psn, pad: usize) -> BthRepr {
    BthRepr {
        opcode,
        solicited: false,
        migrated: true,
        pad_count: pad as u8,
        version: 0,
        partition_key: PartitionKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn,
        ack_request: false,
        psn,
    }
}

/// The 40 bytes before a UD payload: the IPv6 header, or 20 zeros and the IPv4 header, rebuilt
/// from what is known of it (RoCE v2 annex A17, A17.4.5.2).
fn routing_header(outer: &Outer, packet_bytes: usize) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    // Behind the IP header: UDP, the packet from its BTH to its padding, ICRC.
    let payload = (UDP_LEN + packet_bytes + ICRC_LEN) as u16;
    match (outer.src, outer.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut grh[20..];
            ip[0] = 0x45;
            ip[1] = outer.traffic_class;
            ip[2..4].copy_from_slice(&(payload + 20).to_be_bytes());
            ip[4..6].copy_from_slice(&outer.identification.unwrap_or(0).to_be_bytes());
            ip[6] = if outer.dont_fragment.unwrap_or(true) { 0x40 } else { 0 };
            ip[8] = outer.hop_limit;
            ip[9] = 17;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum: u32 = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            grh[0] = 0x60 | outer.traffic_class >> 4;
            grh[1] = outer.traffic_class << 4;
            grh[4..6].copy_from_slice(&payload.to_be_bytes());
            grh[6] = 17;
            grh[7] = outer.hop_limit;
            grh[8..24].copy_from_slice(&src.octets());
            grh[24..40].copy_from_slice(&dst.octets());
        }
        _ => {}
    }
    grh
}
