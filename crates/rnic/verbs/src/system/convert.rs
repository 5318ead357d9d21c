//! Conversions between the types of this crate and the C structs of libibverbs.

use std::ffi::{c_int, c_uint};

use doorbell_ibverbs_sys::*;
use doorbell_verbs_core::{Access, Attachment, Completion, CompletionOpcode, QpKind, QpState, Sge, Status};
use doorbell_wire::{PathMtu, Qpn, RKey};

// Scatter-gather elements are passed to C without conversion, so both layouts must be equal.
const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && std::mem::offset_of!(Sge, address) == std::mem::offset_of!(ibv_sge, addr)
        && std::mem::offset_of!(Sge, length) == std::mem::offset_of!(ibv_sge, length)
        && std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(ibv_sge, lkey)
);

pub(super) fn access(access: Access) -> c_int {
    let rights = [
        (Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
    ];
    let all = rights.into_iter().filter(|&(right, _)| access.contains(right)).fold(0, |all, (_, flag)| all | flag);
    all as c_int
}

pub(super) fn access_from(flags: c_uint) -> Access {
    Access::from_bits_truncate(
        flags & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
    )
}

const _: () = assert!(
    Access::LOCAL_WRITE.bits() == IBV_ACCESS_LOCAL_WRITE
        && Access::REMOTE_WRITE.bits() == IBV_ACCESS_REMOTE_WRITE
        && Access::REMOTE_READ.bits() == IBV_ACCESS_REMOTE_READ
        && Access::REMOTE_ATOMIC.bits() == IBV_ACCESS_REMOTE_ATOMIC
);

pub(super) fn kind(kind: QpKind) -> ibv_qp_type {
    match kind {
        QpKind::Rc => IBV_QPT_RC,
        QpKind::Uc => IBV_QPT_UC,
        QpKind::Ud => IBV_QPT_UD,
    }
}

pub(super) fn state(state: QpState) -> ibv_qp_state {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::ReadyToReceive => IBV_QPS_RTR,
        QpState::ReadyToSend => IBV_QPS_RTS,
        QpState::SqDrain => IBV_QPS_SQD,
        QpState::SqError => IBV_QPS_SQE,
        QpState::Error => IBV_QPS_ERR,
    }
}

pub(super) fn state_from(state: ibv_qp_state) -> QpState {
    match state {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::ReadyToReceive,
        IBV_QPS_RTS => QpState::ReadyToSend,
        IBV_QPS_SQD => QpState::SqDrain,
        IBV_QPS_SQE => QpState::SqError,
        _ => QpState::Error,
    }
}

pub(super) fn mtu(mtu: PathMtu) -> ibv_mtu {
    match mtu {
        PathMtu::Mtu256 => IBV_MTU_256,
        PathMtu::Mtu512 => IBV_MTU_512,
        PathMtu::Mtu1024 => IBV_MTU_1024,
        PathMtu::Mtu2048 => IBV_MTU_2048,
        PathMtu::Mtu4096 => IBV_MTU_4096,
    }
}

fn status(status: ibv_wc_status) -> Status {
    match status {
        IBV_WC_SUCCESS => Status::Success,
        IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        IBV_WC_LOC_PROT_ERR => Status::LocalProtection,
        IBV_WC_WR_FLUSH_ERR => Status::WorkRequestFlushed,
        IBV_WC_BAD_RESP_ERR => Status::BadResponse,
        IBV_WC_LOC_ACCESS_ERR => Status::LocalAccess,
        IBV_WC_REM_INV_REQ_ERR => Status::RemoteInvalidRequest,
        IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        IBV_WC_REM_OP_ERR => Status::RemoteOperation,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => Status::RetryExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrRetryExceeded,
        // The remaining codes concern unsupported transports, or a failure of the RNIC itself.
        _ => Status::LocalQpOperation,
    }
}

fn opcode(opcode: ibv_wc_opcode) -> CompletionOpcode {
    match opcode {
        IBV_WC_RDMA_WRITE => CompletionOpcode::Write,
        IBV_WC_RDMA_READ => CompletionOpcode::Read,
        IBV_WC_COMP_SWAP => CompletionOpcode::CompareSwap,
        IBV_WC_FETCH_ADD => CompletionOpcode::FetchAdd,
        IBV_WC_RECV => CompletionOpcode::Receive,
        IBV_WC_RECV_RDMA_WITH_IMM => CompletionOpcode::ReceiveWriteImmediate,
        _ => CompletionOpcode::Send,
    }
}

#[inline]
pub(super) fn completion(wc: &ibv_wc) -> Completion {
    let succeeded = wc.status == IBV_WC_SUCCESS;
    // The fields used below are defined only for successful completions.
    let flags = if succeeded { wc.wc_flags } else { 0 };
    let attachment = if flags & IBV_WC_WITH_IMM != 0 {
        // SAFETY: any 32 bits are valid for both fields of the union. The immediate is in network byte order.
        Attachment::Immediate(u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }))
    } else if flags & IBV_WC_WITH_INV != 0 {
        // SAFETY: as above. The key is in host byte order.
        Attachment::Invalidated(RKey::new(unsafe { wc.__bindgen_anon_1.invalidated_rkey }))
    } else {
        Attachment::None
    };
    Completion {
        wr_id: wc.wr_id,
        status: status(wc.status),
        opcode: if succeeded { opcode(wc.opcode) } else { CompletionOpcode::default() },
        solicited: false,
        has_grh: flags & IBV_WC_GRH != 0,
        byte_len: wc.byte_len,
        qpn: Qpn::new(wc.qp_num),
        source_qpn: Qpn::new(if succeeded { wc.src_qp } else { 0 }),
        attachment,
        timestamp_ns: 0, // only extended completion queues report timestamps
    }
}
