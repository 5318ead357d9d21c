//! A queue pair: its attributes, its queues, and the two halves that do the work.
//!
//! The requester (`requester`) sends requests and takes responses, the responder (`responder`)
//! the other way round; `post` takes work from programs.

mod post;
mod receives;
mod requester;
mod responder;

use std::sync::Arc;

use doorbell_verbs_core::{
    Access, AddressVector, AsyncEvent, Completion, CompletionOpcode, PdId, QpAttributes, QpCounters, QpInit, QpKind,
    QpState, SendFlags, SendOperation, Status,
};
use doorbell_wire::{BthRepr, Opcode, PartitionKey, PathMtu, Psn, QKey, Qpn};

use crate::commons::Commons;
use crate::memory::Through;
use crate::shared::ReceiveSource;
use crate::transmit::Path;
use crate::work::{RecvWqe, SendQueue, SendWqe};

pub(crate) use post::check_receive;
pub(crate) use receives::ReceiveRing;
pub(crate) use requester::{Requester, Stop};
pub(crate) use responder::{Acknowledgement, Responder};

/// Where receives come from.
pub(crate) enum ReceiveQueue {
    Own { ring: ReceiveRing, depth: usize, max_sges: usize },
    Shared(Arc<dyn ReceiveSource>),
}

/// What modify sets and query shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) access: Access,
    pub(crate) qkey: QKey,
    pub(crate) peer: AddressVector,
    pub(crate) dest_qpn: Qpn,
    pub(crate) path_mtu: PathMtu,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) receive_psn: Psn,
    pub(crate) send_psn: Psn,
    pub(crate) sqd_notify: bool,
}

pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpKind,
    pub(crate) pd: PdId,
    pub(crate) state: QpState,
    pub(crate) settings: Settings,
    pub(crate) signal_all: bool,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) sq: SendQueue,
    pub(crate) rq: ReceiveQueue,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    pub(crate) counters: QpCounters,
    /// Index of the peer's window, from RTR on (RC).
    pub(crate) destination: Option<usize>,
    pub(crate) path: Path,
    /// Ethernet, IP and UDP headers and ICRC: what a frame has beside the packet.
    pub(crate) frame_overhead: u64,
    /// Waits in the engine's ready list.
    pub(crate) queued: bool,
    /// Answers went first the last time that only one packet could be sent.
    pub(crate) answers_turn: bool,
    /// Waits for room in a window.
    pub(crate) blocked: bool,
    /// Stands in the engine's list of acknowledgements that are held back.
    pub(crate) ack_held: bool,
    /// When the engine's timer list looks at this queue pair next.
    pub(crate) timer_queued_ns: u64,
    /// The communication-established event was raised.
    pub(crate) established: bool,
    /// What it was created with.
    pub(crate) init: QpInit,
}

impl Qp {
    /// Books why the requester stopped sending.
    #[inline]
    pub(crate) fn note_stop(&mut self, core: &mut Commons, slot: u32, stop: Stop) {
        match stop {
            Stop::Window { cost } => {
                if let Some(destination) = self.destination {
                    self.blocked = true;
                    core.destinations[destination].window.waiting.push_back((slot, cost));
                }
            }
            Stop::Inbound { cost } => {
                self.blocked = true;
                core.inbound.waiting.push_back((slot, cost));
            }
            Stop::Idle | Stop::Budget => {}
        }
    }

    /// Takes the oldest receive, for a message that uses it if its packets arrive.
    #[inline]
    pub(crate) fn take_receive(&mut self) -> Option<RecvWqe> {
        let wqe = self.try_receive()?;
        self.used_receive();
        Some(wqe)
    }

    /// Takes the oldest receive, for a message of which is not known yet whether it fits.
    #[inline]
    pub(crate) fn try_receive(&mut self) -> Option<RecvWqe> {
        match &mut self.rq {
            ReceiveQueue::Own { ring, .. } => ring.pop(),
            ReceiveQueue::Shared(source) => source.take(),
        }
    }

    /// The message that [`try_receive`](Self::try_receive) was called for uses the receive.
    pub(crate) fn used_receive(&self) {
        if let ReceiveQueue::Shared(source) = &self.rq {
            source.used();
        }
    }

    /// Puts a receive back where it came from, for the next message: the one that took it is dropped
    /// (IBTA Vol 1, 9.9.3, class D). A receive of a shared receive queue goes back as well. Class E completes it
    /// with an error, but then whoever knows a Q_Key can use up the receives of all queue pairs.
    pub(crate) fn give_back_receive(&mut self, wqe: RecvWqe) {
        match &mut self.rq {
            ReceiveQueue::Own { ring, .. } => ring.give_back(wqe),
            ReceiveQueue::Shared(source) => source.give_back(wqe),
        }
    }

    /// Gives up the message that is being received, and puts its receive back. What a shared receive queue
    /// lent is not lost with the queue pair, nor when that is reset.
    pub(crate) fn return_receive(&mut self) {
        if let Some(wqe) = self.resp.abandon_receive() {
            self.give_back_receive(wqe);
        }
    }

    /// Does this state accept requests from the peer?
    pub(crate) fn responds(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SqDrain | QpState::SqError)
    }

    /// Does this state send requests and take responses?
    pub(crate) fn requests(&self) -> bool {
        matches!(self.state, QpState::ReadyToSend | QpState::SqDrain)
    }

    /// Through what peers reach memory here.
    pub(crate) fn through(&self) -> Through {
        Through { pd: self.pd, qpn: self.qpn }
    }

    pub(crate) fn mtu(&self) -> usize {
        self.settings.path_mtu.bytes()
    }

    /// Completes a send work request.
    #[inline]
    pub(crate) fn complete_send(&mut self, core: &mut Commons, wqe: &SendWqe, status: Status) {
        if status != Status::Success || self.signal_all || wqe.flags.contains(SendFlags::SIGNALED) {
            let completion = Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: completion_opcode(wqe.operation),
                byte_len: wqe.length,
                qpn: self.qpn,
                ..Completion::default()
            };
            core.complete(self.send_cq, completion);
        }
    }

    #[inline(always)]
    pub(crate) fn complete_receive(&mut self, core: &mut Commons, completion: Completion) {
        core.complete(self.recv_cq, Completion { qpn: self.qpn, ..completion });
    }

    fn flush_receive(&mut self, core: &mut Commons, wqe: &RecvWqe) {
        let completion = Completion {
            wr_id: wqe.wr_id,
            status: Status::WorkRequestFlushed,
            opcode: CompletionOpcode::Receive,
            ..Completion::default()
        };
        self.complete_receive(core, completion);
    }

    /// Goes to the error state: everything posted is flushed, in order.
    pub(crate) fn enter_error(&mut self, core: &mut Commons) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        self.release_in_flight(core);
        self.flush_sends(core);
        if let Some(wqe) = self.resp.abandon_receive() {
            self.flush_receive(core, &wqe);
        }
        self.flush_receives(core);
        self.resp.keep_up_to_nak();
        if matches!(self.rq, ReceiveQueue::Shared(_)) {
            core.events.push(AsyncEvent::QpLastWqeReached(self.qpn));
        }
    }

    pub(crate) fn flush_sends(&mut self, core: &mut Commons) {
        // What nobody acknowledges is done once it is sent, even if its driver has not said yet that it has left.
        self.sends_departed(core, u64::MAX);
        while self.sq.head < self.sq.tail {
            let wqe = self.sq.pop();
            self.complete_send(core, &wqe, Status::WorkRequestFlushed);
        }
        self.sq.rung = self.sq.tail;
        self.req.reset_cursor(self.sq.head);
    }

    pub(crate) fn flush_receives(&mut self, core: &mut Commons) {
        let ReceiveQueue::Own { ring, .. } = &mut self.rq else { return };
        for wqe in ring.drain() {
            self.flush_receive(core, &wqe);
        }
    }

    /// Back to where it was created: what is posted vanishes without completions.
    pub(crate) fn reset(&mut self, core: &mut Commons) {
        self.release_in_flight(core);
        self.say_farewell(core);
        self.state = QpState::Reset;
        while self.sq.head < self.sq.tail {
            self.sq.pop();
        }
        self.return_receive();
        self.sq.rung = self.sq.tail;
        if let ReceiveQueue::Own { ring, .. } = &mut self.rq {
            *ring = ReceiveRing::default();
        }
        self.req = Requester::new(self.sq.head, &core.policy);
        self.resp = Responder::default();
        self.established = false;
    }

    /// Applies a modification that was checked.
    pub(crate) fn apply(&mut self, core: &mut Commons, to: QpState, attributes: &QpAttributes) {
        let from = self.state;
        let s = &mut self.settings;
        let set = attributes;
        s.access = set.access.unwrap_or(s.access);
        s.qkey = set.qkey.unwrap_or(s.qkey);
        s.peer = set.address.unwrap_or(s.peer);
        s.dest_qpn = set.dest_qpn.unwrap_or(s.dest_qpn);
        s.path_mtu = set.path_mtu.unwrap_or(s.path_mtu);
        s.timeout = set.timeout.unwrap_or(s.timeout);
        s.retry_count = set.retry_count.unwrap_or(s.retry_count);
        s.rnr_retry = set.rnr_retry.unwrap_or(s.rnr_retry);
        s.max_rd_atomic = set.max_rd_atomic.unwrap_or(s.max_rd_atomic);
        s.max_dest_rd_atomic = set.max_dest_rd_atomic.unwrap_or(s.max_dest_rd_atomic);
        s.min_rnr_timer = set.min_rnr_timer.unwrap_or(s.min_rnr_timer);
        s.receive_psn = set.receive_psn.unwrap_or(s.receive_psn);
        s.send_psn = set.send_psn.unwrap_or(s.send_psn);
        // It is asked for anew with each move to SQD.
        s.sqd_notify = set.sqd_notify.unwrap_or(s.sqd_notify && to == from);
        if set.address.is_some() {
            self.path.destination = s.peer.destination;
            self.path.traffic_class = s.peer.traffic_class;
            self.path.hop_limit = s.peer.hop_limit;
            self.frame_overhead = crate::commons::frame_overhead(s.peer.destination);
        }
        if let Some(psn) = set.receive_psn {
            self.resp.start(psn);
        }
        if let Some(psn) = set.send_psn {
            self.req.start(psn, self.settings.retry_count, self.settings.rnr_retry);
        }
        match to {
            QpState::Reset => self.reset(core),
            QpState::Error => self.enter_error(core),
            QpState::SqDrain if from == QpState::ReadyToSend => {
                self.state = to;
                self.req.drain_reported = false;
                self.report_drained(core);
            }
            _ => self.state = to,
        }
    }

    /// Raises the drained event once nothing that was started is left (IBTA Vol 1, 10.3.1.5).
    pub(crate) fn report_drained(&mut self, core: &mut Commons) {
        if self.state == QpState::SqDrain
            && self.settings.sqd_notify
            && !self.req.drain_reported
            && self.req.is_idle(self.sq.head)
        {
            self.req.drain_reported = true;
            core.events.push(AsyncEvent::SqDrained(self.qpn));
        }
    }
}

/// The base transport header that all packets have, where nothing else is said: of the default partition, on the primary path,
/// without congestion marks.
#[inline]
fn plain_bth(opcode: Opcode, dest_qpn: Qpn, psn: Psn, pad: usize) -> BthRepr {
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

/// What a completion of an operation is called.
pub(crate) fn completion_opcode(operation: SendOperation) -> CompletionOpcode {
    match operation {
        SendOperation::Send | SendOperation::SendImmediate(_) | SendOperation::SendInvalidate(_) => {
            CompletionOpcode::Send
        }
        SendOperation::Write { .. } | SendOperation::WriteImmediate { .. } => CompletionOpcode::Write,
        SendOperation::Read { .. } => CompletionOpcode::Read,
        SendOperation::CompareSwap { .. } => CompletionOpcode::CompareSwap,
        SendOperation::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        SendOperation::BindWindow(_) => CompletionOpcode::BindWindow,
        SendOperation::LocalInvalidate(_) => CompletionOpcode::LocalInvalidate,
    }
}
