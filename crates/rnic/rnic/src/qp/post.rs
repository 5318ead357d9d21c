//! Posting of work requests. The functions check all limits before they queue a request.

use doorbell_verbs_core::{
    Access, Payload, PdId, PostErrorKind, QpState, RecvRequest, SendOperation, SendRequest, SendRules, Sge, check_sges,
};
use doorbell_wire::Psn;

use super::{Qp, ReceiveQueue};
use crate::commons::Commons;
use crate::memory::Memory;
use crate::work::SendWqe;

/// Checks the scatter-gather elements of a receive.
pub(crate) fn check_receive(
    memory: &mut Memory,
    pd: PdId,
    max_sges: usize,
    request: &RecvRequest<'_>,
) -> Result<(), PostErrorKind> {
    let check = |sge: &Sge, needed| memory.check_local(pd, sge, needed);
    check_sges(request.sges, max_sges, Access::LOCAL_WRITE, check).map(drop)
}

impl Qp {
    /// Accepts one send work request, or returns the reason for the rejection.
    #[inline]
    pub(crate) fn post_send(&mut self, core: &mut Commons, request: &SendRequest<'_>) -> Result<(), PostErrorKind> {
        use SendOperation as Op;
        let operation = request.operation;
        match self.state {
            QpState::ReadyToSend | QpState::SqDrain | QpState::SqError | QpState::Error => {}
            state => {
                let what = "send work requests";
                return Err(PostErrorKind::WrongState { state, what, allowed: "RTS, SQD, SQE or error" });
            }
        }
        if self.sq.is_full() {
            return Err(PostErrorKind::QueueFull { queue: "send queue", depth: self.sq.depth() });
        }
        let rules = SendRules {
            kind: self.kind,
            max_sges: self.sq.max_sges,
            max_inline: self.sq.max_inline,
            max_rd_atomic: self.settings.max_rd_atomic.into(),
            mtu: self.settings.path_mtu,
            is_ipv4: self.path.destination.is_ipv4(),
        };
        let pd = self.pd;
        let length = rules.check(request, |sge, needed| core.memory.check_local(pd, sge, needed))?;
        let packets = match operation {
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => 1,
            _ if operation.is_local() => 0,
            _ => length.div_ceil(self.mtu() as u64).max(1),
        };
        let (sges, inline) = match request.payload {
            Payload::Sges(sges) => (sges.len(), false),
            Payload::Inline(_) => (0, true),
        };
        let wqe = SendWqe {
            wr_id: request.wr_id,
            operation,
            flags: request.flags,
            inline,
            sges: sges as u8,
            length: length as u32,
            packets: packets as u32,
            first_psn: Psn::new(0),
            received: 0,
        };
        self.sq.push(wqe, request.payload, request.destination);
        Ok(())
    }

    /// Accepts one receive work request, or returns the reason for the rejection.
    #[inline]
    pub(crate) fn post_recv(&mut self, core: &mut Commons, request: &RecvRequest<'_>) -> Result<(), PostErrorKind> {
        if self.state == QpState::Reset {
            let what = "receive work requests";
            return Err(PostErrorKind::WrongState { state: self.state, what, allowed: "any state but reset" });
        }
        let ReceiveQueue::Own { ring, depth, max_sges } = &mut self.rq else {
            return Err(PostErrorKind::UsesSharedReceiveQueue);
        };
        if ring.len() >= *depth {
            return Err(PostErrorKind::QueueFull { queue: "receive queue", depth: *depth });
        }
        check_receive(&mut core.memory, self.pd, *max_sges, request)?;
        ring.push(self.pd, request, core.policy.waits_for_doorbells);
        if self.state == QpState::Error {
            self.flush_receives(core);
        }
        Ok(())
    }
}
