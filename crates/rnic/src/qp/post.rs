//! Taking work from programs: every limit is checked here, before anything is queued.

use doorbell_wire::Psn;

use super::{MAX_MESSAGE_BYTES, Qp, QpKind, QpState, ReceiveQueue};
use crate::core::Core;
use crate::memory::{Access, PdId, Sge};
use crate::work::{Payload, PostErrorKind, RecvRequest, RecvWqe, SendOperation, SendRequest, SendWqe};

/// Checks the elements of a receive.
pub(crate) fn check_receive(
    core: &mut Core,
    pd: PdId,
    max_sges: usize,
    request: &RecvRequest<'_>,
) -> Result<(), PostErrorKind> {
    check_sges(core, pd, max_sges, request.sges, Access::LOCAL_WRITE)
}

fn check_sges(core: &mut Core, pd: PdId, allowed: usize, sges: &[Sge], needed: Access) -> Result<(), PostErrorKind> {
    if sges.len() > allowed {
        return Err(PostErrorKind::TooManySges { given: sges.len(), allowed });
    }
    for (index, sge) in sges.iter().enumerate() {
        core.memory.check_local(pd, sge, needed).map_err(|error| PostErrorKind::Memory { index, error })?;
    }
    Ok(())
}

impl Qp {
    /// Accepts one send work request, or says why not.
    #[inline]
    pub(crate) fn post_send(&mut self, core: &mut Core, request: &SendRequest<'_>) -> Result<(), PostErrorKind> {
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
        let is_local = matches!(operation, Op::BindWindow(_) | Op::LocalInvalidate(_));
        let supported = match self.kind {
            QpKind::Rc => true,
            QpKind::Uc => {
                is_local
                    || matches!(
                        operation,
                        Op::Send | Op::SendImmediate(_) | Op::Write { .. } | Op::WriteImmediate { .. }
                    )
            }
            QpKind::Ud => matches!(operation, Op::Send | Op::SendImmediate(_)),
        };
        if !supported {
            return Err(PostErrorKind::UnsupportedOperation {
                transport: self.kind.name(),
                operation: operation.name(),
            });
        }
        match (self.kind, &request.destination) {
            (QpKind::Ud, None) => return Err(PostErrorKind::Destination("a UD work request needs a destination")),
            (QpKind::Ud, Some(to)) if to.address.destination.is_ipv4() != self.path.destination.is_ipv4() => {
                return Err(PostErrorKind::Destination(
                    "the destination's address is of another family than this device's",
                ));
            }
            (QpKind::Ud, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                return Err(PostErrorKind::Destination("a connected queue pair has its destination already"));
            }
        }
        let is_read = matches!(operation, Op::Read { .. } | Op::CompareSwap { .. } | Op::FetchAdd { .. });
        let (length, sges, inline) = match request.payload {
            Payload::Sges(sges) => {
                let needed = if is_read { Access::LOCAL_WRITE } else { Access::empty() };
                check_sges(core, self.pd, self.sq.max_sges, sges, needed)?;
                (sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>(), sges.len(), false)
            }
            Payload::Inline(bytes) => {
                if is_read {
                    return Err(PostErrorKind::InlineRead(operation.name()));
                }
                if bytes.len() > self.sq.max_inline {
                    return Err(PostErrorKind::InlineTooLong { given: bytes.len(), allowed: self.sq.max_inline });
                }
                (bytes.len() as u64, 0, true)
            }
        };
        if is_local && length > 0 {
            return Err(PostErrorKind::NoPayload(operation.name()));
        }
        let mtu = self.mtu() as u64;
        let allowed = if self.kind == QpKind::Ud { mtu } else { MAX_MESSAGE_BYTES };
        if length > allowed {
            return Err(PostErrorKind::MessageTooLong { given: length, allowed });
        }
        if is_read && self.settings.max_rd_atomic == 0 {
            return Err(PostErrorKind::NoReadResources);
        }
        let packets = match operation {
            Op::CompareSwap { .. } | Op::FetchAdd { .. } if length != 8 => {
                return Err(PostErrorKind::AtomicLength(length));
            }
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => 1,
            Op::BindWindow(_) | Op::LocalInvalidate(_) => 0,
            _ => length.div_ceil(mtu).max(1),
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

    /// Accepts one receive work request, or says why not.
    #[inline]
    pub(crate) fn post_recv(&mut self, core: &mut Core, request: &RecvRequest<'_>) -> Result<(), PostErrorKind> {
        if self.state == QpState::Reset {
            let what = "receive work requests";
            return Err(PostErrorKind::WrongState { state: self.state, what, allowed: "any state but reset" });
        }
        let ReceiveQueue::Own { wqes, depth, max_sges } = &mut self.rq else {
            return Err(PostErrorKind::UsesSharedReceiveQueue);
        };
        if wqes.len() >= *depth {
            return Err(PostErrorKind::QueueFull { queue: "receive queue", depth: *depth });
        }
        check_receive(core, self.pd, *max_sges, request)?;
        wqes.push_back(RecvWqe::new(self.pd, request));
        if self.state == QpState::Error {
            self.flush_receives(core);
        }
        Ok(())
    }
}
