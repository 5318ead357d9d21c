//! Conversion of queue pair attributes from and to C.

use doorbell_ibverbs_sys as c;
use doorbell_verbs::{AttributeMask, PathMtu, Psn, QKey, QpAttributes, QpInfo, QpState, Qpn};

use crate::objects::ah::{address_vector, ah_attributes};
use crate::objects::answer::{Answer, Refused};
use crate::objects::device::Device;
use crate::objects::mr;
use crate::objects::query::PORT;

fn state(number: c::ibv_qp_state) -> Answer<QpState> {
    Ok(match number {
        c::IBV_QPS_RESET => QpState::Reset,
        c::IBV_QPS_INIT => QpState::Init,
        c::IBV_QPS_RTR => QpState::ReadyToReceive,
        c::IBV_QPS_RTS => QpState::ReadyToSend,
        c::IBV_QPS_SQD => QpState::SqDrain,
        c::IBV_QPS_SQE => QpState::SqError,
        c::IBV_QPS_ERR => QpState::Error,
        _ => {
            return Err(Refused::invalid(format!(
                "queue pair state {number} does not exist: must be one of IBV_QPS_*"
            )));
        }
    })
}

fn state_number(state: QpState) -> c::ibv_qp_state {
    match state {
        QpState::Reset => c::IBV_QPS_RESET,
        QpState::Init => c::IBV_QPS_INIT,
        QpState::ReadyToReceive => c::IBV_QPS_RTR,
        QpState::ReadyToSend => c::IBV_QPS_RTS,
        QpState::SqDrain => c::IBV_QPS_SQD,
        QpState::SqError => c::IBV_QPS_SQE,
        QpState::Error => c::IBV_QPS_ERR,
    }
}

/// Converts the attributes that the mask of a modification selects.
pub(crate) fn from_c(attr: &c::ibv_qp_attr, mask: u32, device: &Device) -> Answer<QpAttributes> {
    use AttributeMask as A;
    // The bits of `AttributeMask` have the same meaning as in C. `AttributeMask` has no bit for the state, which is bit
    // 0 in C.
    let named = A::from_bits(mask & !c::IBV_QP_STATE).ok_or_else(|| {
        let unknown = mask & !c::IBV_QP_STATE & !A::all().bits();
        Refused::invalid(format!("attributes {unknown:#x} cannot be modified on this device"))
    })?;
    let has = |attribute| named.contains(attribute);
    let path_mtu = |number: c::ibv_mtu| {
        let code = u8::try_from(number).ok().and_then(|code| PathMtu::try_from(code).ok());
        code.ok_or_else(|| Refused::invalid(format!("path MTU code {number} does not exist: must be 1 to 5")))
    };
    Ok(QpAttributes {
        state: (mask & c::IBV_QP_STATE != 0).then(|| state(attr.qp_state)).transpose()?,
        current_state: has(A::CURRENT_STATE).then(|| state(attr.cur_qp_state)).transpose()?,
        sqd_notify: has(A::SQD_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
        access: has(A::ACCESS).then(|| mr::access(attr.qp_access_flags)).transpose()?,
        pkey_index: has(A::PKEY_INDEX).then_some(attr.pkey_index),
        port: has(A::PORT).then_some(attr.port_num),
        qkey: has(A::QKEY).then(|| QKey::new(attr.qkey)),
        address: has(A::ADDRESS).then(|| address_vector(&attr.ah_attr, device)).transpose()?,
        path_mtu: has(A::PATH_MTU).then(|| path_mtu(attr.path_mtu)).transpose()?,
        timeout: has(A::TIMEOUT).then_some(attr.timeout),
        retry_count: has(A::RETRY_COUNT).then_some(attr.retry_cnt),
        rnr_retry: has(A::RNR_RETRY).then_some(attr.rnr_retry),
        receive_psn: has(A::RECEIVE_PSN).then(|| Psn::new(attr.rq_psn)),
        send_psn: has(A::SEND_PSN).then(|| Psn::new(attr.sq_psn)),
        max_rd_atomic: has(A::MAX_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: has(A::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(A::MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        dest_qpn: has(A::DEST_QPN).then(|| Qpn::new(attr.dest_qp_num)),
    })
}

/// Converts all attributes of a queue pair to C.
pub(crate) fn to_c(info: &QpInfo) -> c::ibv_qp_attr {
    let own = &info.attributes;
    let capacities = &info.capacities;
    c::ibv_qp_attr {
        qp_state: state_number(info.state),
        cur_qp_state: state_number(info.state),
        path_mtu: own.path_mtu.map_or(0, |mtu| mtu.code().into()),
        path_mig_state: c::IBV_MIG_MIGRATED,
        qkey: own.qkey.map_or(0, QKey::get),
        rq_psn: own.receive_psn.map_or(0, Psn::get),
        sq_psn: own.send_psn.map_or(0, Psn::get),
        dest_qp_num: own.dest_qpn.map_or(0, Qpn::get),
        // The access rights have the same bits as in C.
        qp_access_flags: own.access.map_or(0, |access| access.bits()),
        cap: c::ibv_qp_cap {
            max_send_wr: capacities.max_send_wr as u32,
            max_recv_wr: capacities.max_recv_wr as u32,
            max_send_sge: capacities.max_send_sge as u32,
            max_recv_sge: capacities.max_recv_sge as u32,
            max_inline_data: capacities.max_inline as u32,
        },
        ah_attr: own.address.as_ref().map(ah_attributes).unwrap_or_default(),
        pkey_index: own.pkey_index.unwrap_or(0),
        en_sqd_async_notify: own.sqd_notify.unwrap_or(false).into(),
        sq_draining: (info.state == QpState::SqDrain && info.outstanding_sends > 0).into(),
        max_rd_atomic: own.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: own.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: own.min_rnr_timer.unwrap_or(0),
        port_num: PORT,
        timeout: own.timeout.unwrap_or(0),
        retry_cnt: own.retry_count.unwrap_or(0),
        rnr_retry: own.rnr_retry.unwrap_or(0),
        ..c::ibv_qp_attr::default()
    }
}

// The conversions copy masks and access rights bit by bit, so the bits must be the same as in C.
const _: () = {
    use AttributeMask as A;
    use doorbell_verbs::Access;
    let same = [
        (A::CURRENT_STATE, c::IBV_QP_CUR_STATE),
        (A::SQD_NOTIFY, c::IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (A::ACCESS, c::IBV_QP_ACCESS_FLAGS),
        (A::PKEY_INDEX, c::IBV_QP_PKEY_INDEX),
        (A::PORT, c::IBV_QP_PORT),
        (A::QKEY, c::IBV_QP_QKEY),
        (A::ADDRESS, c::IBV_QP_AV),
        (A::PATH_MTU, c::IBV_QP_PATH_MTU),
        (A::TIMEOUT, c::IBV_QP_TIMEOUT),
        (A::RETRY_COUNT, c::IBV_QP_RETRY_CNT),
        (A::RNR_RETRY, c::IBV_QP_RNR_RETRY),
        (A::RECEIVE_PSN, c::IBV_QP_RQ_PSN),
        (A::MAX_RD_ATOMIC, c::IBV_QP_MAX_QP_RD_ATOMIC),
        (A::MIN_RNR_TIMER, c::IBV_QP_MIN_RNR_TIMER),
        (A::SEND_PSN, c::IBV_QP_SQ_PSN),
        (A::MAX_DEST_RD_ATOMIC, c::IBV_QP_MAX_DEST_RD_ATOMIC),
        (A::DEST_QPN, c::IBV_QP_DEST_QPN),
    ];
    let mut index = 0;
    while index < same.len() {
        assert!(same[index].0.bits() == same[index].1);
        index += 1;
    }
    assert!(Access::LOCAL_WRITE.bits() == c::IBV_ACCESS_LOCAL_WRITE);
    assert!(Access::REMOTE_WRITE.bits() == c::IBV_ACCESS_REMOTE_WRITE);
    assert!(Access::REMOTE_READ.bits() == c::IBV_ACCESS_REMOTE_READ);
    assert!(Access::REMOTE_ATOMIC.bits() == c::IBV_ACCESS_REMOTE_ATOMIC);
    assert!(Access::WINDOW_BIND.bits() == c::IBV_ACCESS_MW_BIND);
    assert!(Access::ON_DEMAND.bits() == c::IBV_ACCESS_ON_DEMAND);
};
