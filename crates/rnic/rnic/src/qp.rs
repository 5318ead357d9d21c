//! A queue pair: its attributes, its queues, its requester and its responder.
//!
//! The requester (`requester`) sends requests and handles responses. The responder (`responder`) handles requests and
//! sends responses. `post` accepts work requests of programs.

mod post;
mod receives;
mod requester;
mod responder;

use std::sync::Arc;

use doorbell_verbs_core::{
    Access, AddressVector, AsyncEvent, Completion, CompletionOpcode, DeathReason, PdId, QpAttributes, QpCounters,
    QpDeath, QpInit, QpKind, QpState, SendFlags, Status,
};
use doorbell_wire::{PathMtu, Psn, QKey, Qpn};

use crate::commons::Commons;
use crate::memory::Through;
use crate::shared::ReceiveSource;
use crate::transmit::{EngineId, Path};
use crate::work::{RecvWqe, SendQueue, SendWqe};

pub(crate) use post::check_receive;
pub(crate) use receives::ReceiveRing;
pub(crate) use requester::{Requester, Stop};
pub(crate) use responder::Responder;

/// Queue from which messages take receives.
pub(crate) enum ReceiveQueue {
    Own { ring: ReceiveRing, depth: usize, max_sges: usize },
    Shared(Arc<dyn ReceiveSource>),
}

/// Attributes that `modify_qp` sets and `query_qp` returns.
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
    /// Index of the peer's device in the destinations of `Commons`. That entry has the window of packets to the device.
    /// Only RC queue pairs have a destination, from RTR on.
    pub(crate) destination: Option<usize>,
    pub(crate) path: Path,
    /// Bytes of a frame outside the packet: Ethernet, IP and UDP headers, and the ICRC.
    pub(crate) frame_overhead: u64,
    /// Whether the queue pair is in the ready list of the engine.
    pub(crate) queued: bool,
    /// Whether the responder sent the packet when the queue pair most recently could send only one packet.
    pub(crate) answers_turn: bool,
    /// Whether the queue pair waits for room in a window, or all its requests wait for room in the link.
    pub(crate) blocked: bool,
    /// Whether the queue pair is in the list of queue pairs that wait for room in the link.
    pub(crate) awaits_link: bool,
    /// Whether the queue pair is in the list of held acknowledgements of the engine.
    pub(crate) ack_held: bool,
    /// Deadline in the valid timer entry of this queue pair. Older entries in the timer list of the engine are
    /// outdated.
    pub(crate) timer_queued_ns: u64,
    /// Whether the communication-established event was raised.
    pub(crate) established: bool,
    /// Options with which the queue pair was created.
    pub(crate) init: QpInit,
}

impl Qp {
    /// If the requester stopped because a window has no room, adds the queue pair to the list of queue pairs that wait
    /// for this window. A queue pair that waits for room in the link is in its list already.
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
            Stop::Link => self.blocked = true,
            Stop::Idle | Stop::Budget => {}
        }
    }

    /// Removes and returns the oldest receive, and records that a message uses it.
    #[inline]
    pub(crate) fn take_receive(&mut self) -> Option<RecvWqe> {
        let wqe = self.try_receive()?;
        self.used_receive();
        Some(wqe)
    }

    /// Removes and returns the oldest receive, for a message that may be too long for it. The caller must then call
    /// [`used_receive`](Self::used_receive) or [`give_back_receive`](Self::give_back_receive).
    #[inline]
    pub(crate) fn try_receive(&mut self) -> Option<RecvWqe> {
        match &mut self.rq {
            ReceiveQueue::Own { ring, .. } => ring.pop(),
            ReceiveQueue::Shared(source) => source.take(),
        }
    }

    /// Records that the message uses the receive that [`try_receive`](Self::try_receive) returned.
    pub(crate) fn used_receive(&self) {
        if let ReceiveQueue::Shared(source) = &self.rq {
            source.used();
        }
    }

    /// Returns a receive to its queue for the next message, since the message that took the receive is dropped (IBTA
    /// Vol 1, 9.9.3, class D). IBTA would complete a receive of a shared receive queue with an error instead (class E).
    /// This device does not: any sender that knows a Q_Key could use up the receives of all queue pairs.
    pub(crate) fn give_back_receive(&mut self, wqe: RecvWqe) {
        match &mut self.rq {
            ReceiveQueue::Own { ring, .. } => ring.give_back(wqe),
            ReceiveQueue::Shared(source) => source.give_back(wqe),
        }
    }

    /// Abandons the message that is being received and returns its receive to the receive queue. Without this call, a
    /// shared receive queue would lose the receive when the queue pair is destroyed or reset.
    pub(crate) fn return_receive(&mut self) {
        if let Some(wqe) = self.resp.abandon_receive() {
            self.give_back_receive(wqe);
        }
    }

    /// Returns whether the queue pair accepts requests of the peer in its current state.
    pub(crate) fn responds(&self) -> bool {
        matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SqDrain | QpState::SqError)
    }

    /// Returns whether the queue pair sends requests and handles responses in its current state.
    pub(crate) fn requests(&self) -> bool {
        matches!(self.state, QpState::ReadyToSend | QpState::SqDrain)
    }

    /// Returns the queue pair and the protection domain through which peers reach memory of this device.
    pub(crate) fn through(&self) -> Through {
        Through { pd: self.pd, qpn: self.qpn }
    }

    pub(crate) fn mtu(&self) -> usize {
        self.settings.path_mtu.bytes()
    }

    /// Completes a send work request.
    #[inline(always)]
    pub(crate) fn complete_send(&mut self, core: &mut Commons, wqe: &SendWqe, status: Status) {
        if status != Status::Success || self.signal_all || wqe.flags.contains(SendFlags::SIGNALED) {
            let completion = Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.operation.completion_opcode(),
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

    /// Reports that this queue pair will enter the error state because of the request with this PSN.
    #[cold]
    pub(crate) fn report_death(&self, core: &mut Commons, psn: Psn, reason: DeathReason) {
        if self.state != QpState::Error {
            let destination = self.destination.and_then(|index| core.destinations.get(index));
            let peer = destination.map(|destination| destination.address);
            core.keep_death(QpDeath { qpn: self.qpn, psn, peer, reason });
        }
    }

    /// Enters the error state and flushes all posted work requests in order.
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

    /// Fails the queue pair because an injected fault failed one of its requests.
    #[cold]
    pub(crate) fn end_by_fault(&mut self, core: &mut Commons, is_receive: bool) {
        self.report_death(core, self.req.next_psn(), DeathReason::Injected);
        if self.kind == QpKind::Rc || is_receive {
            self.enter_error(core);
        } else if self.requests() {
            self.state = QpState::SqError;
            self.flush_sends(core);
        }
    }

    pub(crate) fn flush_sends(&mut self, core: &mut Commons) {
        // UC and UD have no acknowledgements: a send has succeeded once its packets were handed to the driver, even if
        // the driver has not reported their departure. Sends after a datagram that was set aside are flushed with it.
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

    /// Puts the queue pair into the state that it had after its creation. Posted work requests disappear without
    /// completions.
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
        // If the program had requested the event "send queue drained", a move to another state without `sqd_notify`
        // cancels this request.
        s.sqd_notify = set.sqd_notify.unwrap_or(s.sqd_notify && to == from);
        self.path.engine = EngineId::of(s.dest_qpn);
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

    /// Raises the event `SqDrained` once all started requests are done (IBTA Vol 1, 10.3.1.5).
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
