//! Execution of requests on a reliable connection, in order (IBTA Vol 1, 9.7.4).

use doorbell_verbs_core::{Access, Attachment, Completion, CompletionOpcode, MAX_MESSAGE_BYTES, Status};
use doorbell_wire::{NakCode, PacketOperation};

use super::{Answer, Current, Refusal, Request};
use crate::commons::Commons;
use crate::memory::WordOperation;
use crate::qp::{Qp, ReceiveQueue};
use crate::work::RecvWqe;

/// Status of a failed receive, and the NAK code for the peer.
struct Failure(Status, NakCode);

/// Copies the payload of a SEND packet into the receive, which already holds `done` bytes of the message. Returns the
/// number of bytes of the message that the receive then holds.
#[inline]
fn place(core: &mut Commons, wqe: &RecvWqe, done: u64, request: &Request<'_>) -> Result<u64, Failure> {
    let total = done + request.payload.len() as u64;
    if total > wqe.length {
        return Err(Failure(Status::LocalLength, NakCode::INVALID_REQUEST));
    }
    let placed = core.memory.scatter(wqe.pd, &wqe.sges, done, request.payload);
    placed.map_err(|_| Failure(Status::LocalProtection, NakCode::REMOTE_OPERATIONAL_ERROR))?;
    Ok(total)
}

impl Qp {
    /// Executes a request packet with the expected sequence number.
    #[inline]
    pub(super) fn execute(&mut self, core: &mut Commons, request: &Request<'_>) -> Result<(), Refusal> {
        let opcode = request.bth.opcode;
        let invalid = Refusal(NakCode::INVALID_REQUEST);
        // The table of valid packet sequences is in IBTA Vol 1, 9.7.4.1.3.
        let in_sequence = match (&self.resp.current, request.operation) {
            (Current::None, _) => opcode.is_first(),
            (Current::Send { .. }, PacketOperation::Send) | (Current::Write { .. }, PacketOperation::Write) => {
                !opcode.is_first()
            }
            _ => false,
        };
        if !in_sequence {
            return Err(invalid);
        }
        match request.operation {
            PacketOperation::Send | PacketOperation::Write if !request.has_valid_length(self.mtu()) => {
                return Err(invalid);
            }
            PacketOperation::Send => self.execute_send(core, request)?,
            PacketOperation::Write => self.execute_write(core, request)?,
            PacketOperation::ReadRequest => return self.execute_read(core, request),
            PacketOperation::CompareSwap | PacketOperation::FetchAdd => return self.execute_atomic(core, request),
            _ => return Err(invalid),
        }
        Ok(())
    }

    /// Completes a receive with an error and returns the reason for the NAK.
    fn fail_receive(&mut self, core: &mut Commons, wr_id: u64, Failure(status, code): Failure) -> Refusal {
        let opcode = CompletionOpcode::Receive;
        self.complete_receive(core, Completion { wr_id, status, opcode, ..Completion::default() });
        Refusal(code)
    }

    #[inline]
    fn execute_send(&mut self, core: &mut Commons, request: &Request<'_>) -> Result<(), Refusal> {
        let opcode = request.bth.opcode;
        // The message of a SEND Only uses the receive without taking it out of the ring, which saves a copy of the
        // receive.
        if opcode.is_first()
            && opcode.is_last()
            && let ReceiveQueue::Own { ring, .. } = &mut self.rq
            && let Some(wqe) = ring.front()
        {
            let (wr_id, placed) = (wqe.wr_id, place(core, wqe, 0, request));
            ring.drop_front();
            return self.end_send(core, request, wr_id, placed);
        }
        let (wqe, done) = if opcode.is_first() {
            match self.need_receive(core, request.bth.psn) {
                Some(wqe) => (wqe, 0),
                None => return Ok(()),
            }
        } else {
            let Current::Send { wqe, done } = std::mem::take(&mut self.resp.current) else {
                return Err(Refusal(NakCode::INVALID_REQUEST)); // unreachable: `execute` has checked the sequence
            };
            (wqe, done)
        };
        let placed = place(core, &wqe, done, request);
        match placed {
            Ok(total) if !opcode.is_last() => {
                self.resp.current = Current::Send { wqe, done: total };
                self.accepted(core, request);
                Ok(())
            }
            placed => self.end_send(core, request, wqe.wr_id, placed),
        }
    }

    /// Ends a SEND message and completes its receive. `placed` is the length of the message if its last packet was
    /// copied, or the failure if a packet could not be copied.
    #[inline]
    fn end_send(
        &mut self,
        core: &mut Commons,
        request: &Request<'_>,
        wr_id: u64,
        placed: Result<u64, Failure>,
    ) -> Result<(), Refusal> {
        let total = match placed {
            Ok(total) => total,
            Err(failure) => return Err(self.fail_receive(core, wr_id, failure)),
        };
        // A peer may invalidate only the key of a type 2 window that was bound through this queue pair (IBTA Vol 1,
        // 9.4.1.1.3, 10.6.7.2.6). Any other key is an R_Key violation, a class C error (9.9.3). The responder sends the
        // NAK "remote access error" and completes the used receive with an error. Both queue pairs enter the error
        // state. Linux's `rdma_rxe` also rejects keys of regions and of type 1 windows, but acknowledges the message
        // and fails the receive with "remote invalid request".
        if let Attachment::Invalidated(rkey) = request.attachment
            && core.memory.invalidate_window(self.through(), rkey).is_err()
        {
            let failure = Failure(Status::LocalAccess, NakCode::REMOTE_ACCESS_ERROR);
            return Err(self.fail_receive(core, wr_id, failure));
        }
        core.counters.rx_send_requests += 1;
        self.complete_reliable(
            core,
            Completion {
                wr_id,
                opcode: CompletionOpcode::Receive,
                byte_len: total as u32,
                solicited: request.bth.solicited,
                attachment: request.attachment,
                ..Completion::default()
            },
        );
        self.accepted(core, request);
        Ok(())
    }

    #[inline]
    fn execute_write(&mut self, core: &mut Commons, request: &Request<'_>) -> Result<(), Refusal> {
        let opcode = request.bth.opcode;
        let (address, rkey, length, done) = match (&self.resp.current, request.reth) {
            (&Current::Write { address, rkey, length, done }, _) => (address, rkey, length, done),
            (_, Some(reth)) if u64::from(reth.dma_length) > MAX_MESSAGE_BYTES => {
                return Err(Refusal(NakCode::INVALID_REQUEST));
            }
            (_, Some(reth)) => {
                if !self.may_write(core, &reth) {
                    return Err(Refusal(NakCode::REMOTE_ACCESS_ERROR));
                }
                (reth.virtual_address, reth.rkey, u64::from(reth.dma_length), 0)
            }
            _ => return Err(Refusal(NakCode::INVALID_REQUEST)),
        };
        let total = done + request.payload.len() as u64;
        // The last packet, and no earlier one, must reach the length that the RETH announced.
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
        if core.memory.write_remote(self.through(), rkey, place, request.payload).is_err() {
            if let Some(wqe) = receive {
                self.give_back_receive(wqe);
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
            self.complete_reliable(
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

    fn execute_read(&mut self, core: &mut Commons, request: &Request<'_>) -> Result<(), Refusal> {
        let (Some(reth), true) = (request.reth, request.payload.is_empty()) else {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        };
        let length = u64::from(reth.dma_length);
        if length > MAX_MESSAGE_BYTES || !self.make_answer_slot() {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        }
        let allowed = self.settings.access.contains(Access::REMOTE_READ)
            && core
                .memory
                .check_remote(self.through(), reth.rkey, reth.virtual_address, length, Access::REMOTE_READ)
                .is_ok();
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
        self.resp.ack_due_ns = None; // the response acknowledges all earlier requests
        Ok(())
    }

    fn execute_atomic(&mut self, core: &mut Commons, request: &Request<'_>) -> Result<(), Refusal> {
        let (Some(atomic), true) = (request.atomic, request.payload.is_empty()) else {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        };
        if !atomic.virtual_address.is_multiple_of(8) || !self.make_answer_slot() {
            return Err(Refusal(NakCode::INVALID_REQUEST));
        }
        if !self.settings.access.contains(Access::REMOTE_ATOMIC) {
            return Err(Refusal(NakCode::REMOTE_ACCESS_ERROR));
        }
        let operation = match request.operation {
            PacketOperation::CompareSwap => {
                WordOperation::CompareSwap { compare: atomic.compare, swap: atomic.swap_or_add }
            }
            _ => WordOperation::FetchAdd(atomic.swap_or_add),
        };
        let original = core
            .memory
            .atomic_remote(self.through(), atomic.rkey, atomic.virtual_address, operation)
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
}
