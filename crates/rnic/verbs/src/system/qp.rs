//! Queue pairs of the machine's RNICs.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_ibverbs_sys::*;
use doorbell_verbs_core::{
    AddressVector, EventSource, ModifyError, Payload, PostError, PostErrorKind, QpAttributes, QpCapacities, QpCounters,
    QpInfo, QpInit, QpKind, QpState, RecvRequest, SendFlags, SendOperation, SendRequest, SendRules, check_range,
    check_transition,
};
use doorbell_wire::{Psn, QKey, Qpn};

use super::events::Events;
use super::posts::{LIST, PostReceives, index_in, post_failure, post_receives, refused};
use super::queues::{Completions, SharedQueue, unsupported};
use super::{Domain, SystemError, convert, same_family};
use crate::raw;

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

pub(super) struct SystemQp {
    raw: *mut ibv_qp,
    qpn: Qpn,
    kind: QpKind,
    capacities: QpCapacities,
    signal_all: bool,
    post_send: PostSend,
    post_recv: PostReceives<ibv_qp>,
    /// State that the program requested most recently. The RNIC may have moved the queue pair to an error state since
    /// then, but an error state allows the same posts.
    state: AtomicU32,
    /// Maximum number of outstanding READs and atomics; posting checks only whether the maximum is 0.
    max_rd_atomic: AtomicU32,
    events: Arc<Events>,
    domain: Arc<Domain>,
    _queues: (Arc<Completions>, Arc<Completions>),
    srq: Option<Arc<SharedQueue>>,
}

// SAFETY: libibverbs is thread-safe: any thread may use a queue pair.
unsafe impl Send for SystemQp {}
// SAFETY: as above.
unsafe impl Sync for SystemQp {}

impl Drop for SystemQp {
    fn drop(&mut self) {
        // SAFETY: the queue pair exists, and this is its last handle.
        unsafe { (self.domain.context.library().destroy_qp)(self.raw) };
        self.events.forget(EventSource::Qp(self.qpn));
    }
}

/// Returns the maximum inline data of a queue pair with these capacities, in bytes; `None` if no such queue pair can be
/// created.
pub(super) fn most_inline(domain: &Domain, queue: &Completions, cap: ibv_qp_cap) -> Option<usize> {
    let mut init =
        ibv_qp_init_attr { send_cq: queue.raw, recv_cq: queue.raw, cap, qp_type: IBV_QPT_RC, ..Default::default() };
    let library = domain.context.library();
    // SAFETY: all objects live, and the attributes are read and written during the call.
    let made = unsafe { (library.create_qp)(domain.raw, &mut init) };
    if made.is_null() {
        return None;
    }
    // SAFETY: the queue pair was just made.
    unsafe { (library.destroy_qp)(made) };
    Some(init.cap.max_inline_data as usize)
}

impl SystemQp {
    pub(super) fn new(
        domain: Arc<Domain>,
        send_cq: Arc<Completions>,
        recv_cq: Arc<Completions>,
        srq: Option<Arc<SharedQueue>>,
        init: &QpInit,
        events: Arc<Events>,
    ) -> Result<Self, crate::Error> {
        let context = &domain.context;
        let ops = context.ops();
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(SystemError::refused("posting work requests", unsupported()).into());
        };
        let given = init.capacities;
        let limits = &context.attributes.limits;
        for (what, given, most) in [
            ("max_send_wr", given.max_send_wr, limits.max_queue_depth),
            ("max_recv_wr", given.max_recv_wr, limits.max_queue_depth),
            ("max_send_sge", given.max_send_sge, limits.max_sges),
            ("max_recv_sge", given.max_recv_sge, limits.max_sges),
            ("max_inline", given.max_inline, limits.max_inline),
        ] {
            check_range(what, given, 0, most)?;
        }
        let mut attributes = ibv_qp_init_attr {
            send_cq: send_cq.raw,
            recv_cq: recv_cq.raw,
            srq: srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.raw),
            cap: ibv_qp_cap {
                max_send_wr: given.max_send_wr as u32,
                max_recv_wr: given.max_recv_wr as u32,
                max_send_sge: given.max_send_sge as u32,
                max_recv_sge: given.max_recv_sge as u32,
                max_inline_data: given.max_inline as u32,
            },
            qp_type: convert::kind(init.kind),
            sq_sig_all: init.signal_all.into(),
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: all objects live, and the attributes are read and written during the call.
        let raw = unsafe { (context.library().create_qp)(domain.raw, &mut attributes) };
        if raw.is_null() {
            return Err(SystemError::last("creating a queue pair").into());
        }
        // SAFETY: the queue pair was just made.
        let qpn = Qpn::new(unsafe { (*raw).qp_num });
        Ok(Self {
            raw,
            qpn,
            kind: init.kind,
            capacities: given,
            signal_all: init.signal_all,
            post_send,
            post_recv,
            state: AtomicU32::new(IBV_QPS_RESET),
            max_rd_atomic: AtomicU32::new(0),
            events,
            domain,
            _queues: (send_cq, recv_cq),
            srq,
        })
    }

    fn attributes(&self) -> Result<ibv_qp_attr, io::Error> {
        let (mut attributes, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: the queue pair lives, and the buffers have room for the results.
        let result = unsafe {
            (self.domain.context.library().query_qp)(self.raw, &mut attributes, EVERYTHING as c_int, &mut init)
        };
        match result {
            0 => Ok(attributes),
            -1 => Err(io::Error::last_os_error()),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// Checks a work request for errors that the device does not detect, or detects only after queueing the request.
    /// The keys and bounds of memory are not checked, since the device checks them.
    #[inline]
    fn check_send(&self, request: &SendRequest<'_>) -> Result<(), PostErrorKind> {
        let device = &self.domain.context.attributes;
        let rules = SendRules {
            kind: self.kind,
            max_sges: self.capacities.max_send_sge,
            max_inline: self.capacities.max_inline,
            max_rd_atomic: self.max_rd_atomic.load(Ordering::Relaxed) as usize,
            mtu: device.active_mtu,
            is_ipv4: device.address.is_ipv4(),
        };
        rules.check(request, |_, _| Ok(())).map(drop)
    }

    /// Returns a work request as the C struct of libibverbs. The pointers in it must stay valid until the request is
    /// posted.
    #[inline]
    fn send_request(&self, request: &SendRequest<'_>, inline: &mut ibv_sge) -> Result<ibv_send_wr, PostErrorKind> {
        use SendOperation as Op;
        let mut wr = ibv_send_wr { wr_id: request.wr_id, ..ibv_send_wr::default() };
        for (flag, bit) in [
            (SendFlags::SIGNALED, IBV_SEND_SIGNALED),
            (SendFlags::SOLICITED, IBV_SEND_SOLICITED),
            (SendFlags::FENCE, IBV_SEND_FENCE),
        ] {
            if request.flags.contains(flag) {
                wr.send_flags |= bit;
            }
        }
        match request.payload {
            Payload::Sges(sges) => {
                wr.sg_list = sges.as_ptr().cast_mut().cast();
                wr.num_sge = sges.len() as c_int;
            }
            Payload::Inline(bytes) => {
                *inline = ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
                wr.sg_list = inline;
                wr.num_sge = 1;
                wr.send_flags |= IBV_SEND_INLINE;
            }
        }
        let rdma = |wr: &mut ibv_send_wr, remote_addr, rkey: doorbell_wire::RKey| {
            wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey: rkey.get() };
        };
        let atomic = |wr: &mut ibv_send_wr, remote_addr, rkey: doorbell_wire::RKey, compare_add, swap| {
            let rkey = rkey.get();
            wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey };
        };
        wr.opcode = match request.operation {
            Op::Send => IBV_WR_SEND,
            Op::SendImmediate(immediate) => {
                wr.__bindgen_anon_1.imm_data = immediate.to_be();
                IBV_WR_SEND_WITH_IMM
            }
            Op::SendInvalidate(rkey) => {
                wr.__bindgen_anon_1.invalidate_rkey = rkey.get();
                IBV_WR_SEND_WITH_INV
            }
            Op::Write { remote_address, rkey } => {
                rdma(&mut wr, remote_address, rkey);
                IBV_WR_RDMA_WRITE
            }
            Op::WriteImmediate { remote_address, rkey, immediate } => {
                rdma(&mut wr, remote_address, rkey);
                wr.__bindgen_anon_1.imm_data = immediate.to_be();
                IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Op::Read { remote_address, rkey } => {
                rdma(&mut wr, remote_address, rkey);
                IBV_WR_RDMA_READ
            }
            Op::CompareSwap { remote_address, rkey, compare, swap } => {
                atomic(&mut wr, remote_address, rkey, compare, swap);
                IBV_WR_ATOMIC_CMP_AND_SWP
            }
            Op::FetchAdd { remote_address, rkey, add } => {
                atomic(&mut wr, remote_address, rkey, add, 0);
                IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Op::BindWindow(_) | Op::LocalInvalidate(_) => return Err(NOT_OFFERED),
        };
        if let Some(to) = &request.destination {
            let ah = self.domain.handle_to(&to.address).map_err(|error| refused(&error))?;
            let (remote_qpn, remote_qkey) = (to.qpn.get(), to.qkey.get());
            wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey };
        }
        Ok(wr)
    }
}

/// All attributes that a query of a queue pair can return.
const EVERYTHING: ibv_qp_attr_mask = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_DEST_QPN
    | IBV_QP_CAP;

/// Error of posting an operation that this provider does not offer.
const NOT_OFFERED: PostErrorKind = PostErrorKind::Refused { errno: nix::libc::EOPNOTSUPP };

impl raw::Qp for SystemQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn modify(&self, given: &QpAttributes) -> Result<(), ModifyError> {
        let device = |error: &io::Error| ModifyError::Refused { errno: error.raw_os_error().unwrap_or(0) };
        let context = &self.domain.context;
        let from = convert::state_from(self.attributes().map_err(|error| device(&error))?.qp_state);
        let to = check_transition(self.kind, from, given, &context.attributes.limits)?;
        if let Some(mtu) = given.path_mtu
            && mtu > context.attributes.active_mtu
        {
            let (given, active) = (mtu.bytes(), context.attributes.active_mtu.bytes());
            return Err(ModifyError::PathMtu { given, active });
        }
        if let Some(to) = &given.address
            && !same_family(context.attributes.gid, to.destination)
        {
            return Err(ModifyError::AddressFamily { peer: to.destination, own: context.attributes.address });
        }
        let mut c = ibv_qp_attr { qp_state: convert::state(to), ..ibv_qp_attr::default() };
        let mut mask = if given.state.is_some() { IBV_QP_STATE } else { 0 };
        macro_rules! set {
            ($($field:ident => $place:ident, $bit:ident, $convert:expr;)*) => {
                $(if let Some(value) = given.$field {
                    c.$place = $convert(value);
                    mask |= $bit;
                })*
            };
        }
        set! {
            current_state => cur_qp_state, IBV_QP_CUR_STATE, convert::state;
            sqd_notify => en_sqd_async_notify, IBV_QP_EN_SQD_ASYNC_NOTIFY, u8::from;
            access => qp_access_flags, IBV_QP_ACCESS_FLAGS, |access| convert::access(access) as u32;
            pkey_index => pkey_index, IBV_QP_PKEY_INDEX, |index| index;
            // A queue pair always uses the opened port of the device.
            port => port_num, IBV_QP_PORT, |_| context.port;
            qkey => qkey, IBV_QP_QKEY, QKey::get;
            address => ah_attr, IBV_QP_AV, |to: AddressVector| context.address(&to);
            path_mtu => path_mtu, IBV_QP_PATH_MTU, convert::mtu;
            timeout => timeout, IBV_QP_TIMEOUT, |value| value;
            retry_count => retry_cnt, IBV_QP_RETRY_CNT, |value| value;
            rnr_retry => rnr_retry, IBV_QP_RNR_RETRY, |value| value;
            receive_psn => rq_psn, IBV_QP_RQ_PSN, Psn::get;
            send_psn => sq_psn, IBV_QP_SQ_PSN, Psn::get;
            max_rd_atomic => max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC, |value| value;
            max_dest_rd_atomic => max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC, |value| value;
            min_rnr_timer => min_rnr_timer, IBV_QP_MIN_RNR_TIMER, |value| value;
            dest_qpn => dest_qp_num, IBV_QP_DEST_QPN, Qpn::get;
        }
        // SAFETY: the queue pair lives, and the attributes are read during the call.
        let result = unsafe { (context.library().modify_qp)(self.raw, &mut c, mask as c_int) };
        match result {
            0 => {
                if let Some(value) = given.max_rd_atomic {
                    self.max_rd_atomic.store(value.into(), Ordering::Relaxed);
                }
                self.state.store(convert::state(to), Ordering::Release);
                Ok(())
            }
            -1 => Err(device(&io::Error::last_os_error())),
            number => Err(ModifyError::Refused { errno: number.abs() }),
        }
    }

    fn query(&self) -> QpInfo {
        // A query fails only on a removed device. Its queue pairs no longer work, so report the error state.
        let c = self.attributes().unwrap_or(ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() });
        let state = convert::state_from(c.qp_state);
        // SAFETY: the union is plain data, so all bytes of `raw` are initialized.
        let gid = std::net::Ipv6Addr::from(unsafe { c.ah_attr.grh.dgid.raw });
        let address = AddressVector {
            destination: gid.to_canonical(),
            traffic_class: c.ah_attr.grh.traffic_class,
            hop_limit: c.ah_attr.grh.hop_limit,
        };
        let psn = |psn: u32| Some(Psn::new(psn & Psn::MASK));
        QpInfo {
            kind: self.kind,
            state,
            attributes: QpAttributes {
                state: Some(state),
                current_state: Some(state),
                sqd_notify: Some(c.en_sqd_async_notify != 0),
                access: Some(convert::access_from(c.qp_access_flags)),
                pkey_index: Some(c.pkey_index),
                port: Some(1),
                qkey: Some(QKey::new(c.qkey)),
                address: Some(address),
                path_mtu: Some(super::device::mtu(c.path_mtu)),
                timeout: Some(c.timeout),
                retry_count: Some(c.retry_cnt),
                rnr_retry: Some(c.rnr_retry),
                receive_psn: psn(c.rq_psn),
                send_psn: psn(c.sq_psn),
                max_rd_atomic: Some(c.max_rd_atomic),
                max_dest_rd_atomic: Some(c.max_dest_rd_atomic),
                min_rnr_timer: Some(c.min_rnr_timer),
                dest_qpn: Some(Qpn::new(c.dest_qp_num)),
            },
            capacities: self.capacities,
            signal_all: self.signal_all,
            // RNICs count per port, not per queue pair. A query also does not return the number of outstanding sends,
            // but only whether the send queue is draining.
            counters: QpCounters::default(),
            outstanding_sends: usize::from(c.sq_draining),
        }
    }

    unsafe fn post_all_sends(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        match list {
            // SAFETY: both functions have the same contract, which the caller of `post_all_sends` keeps.
            [] | [_] => unsafe { self.post_send(list) },
            // libibverbs accepts all requests before the first bad request, so it cannot refuse a whole list.
            _ => Err(PostError { index: 0, kind: NOT_OFFERED }),
        }
    }

    #[inline]
    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        let state = convert::state_from(self.state.load(Ordering::Acquire));
        if matches!(state, QpState::Reset | QpState::Init | QpState::ReadyToReceive) {
            let what = "send work requests";
            let kind = PostErrorKind::WrongState { state, what, allowed: "RTS, SQD, SQE or error" };
            return if list.is_empty() { Ok(()) } else { Err(PostError { index: 0, kind }) };
        }
        let mut wrs = [const { MaybeUninit::<ibv_send_wr>::uninit() }; LIST];
        let mut inlines = [const { MaybeUninit::<ibv_sge>::uninit() }; LIST];
        let first: *mut ibv_send_wr = wrs.as_mut_ptr().cast();
        for (number, part) in list.chunks(LIST).enumerate() {
            let mut bad = None;
            let mut count = 0;
            for (request, inline) in part.iter().zip(&mut inlines) {
                let inline = inline.write(ibv_sge { addr: 0, length: 0, lkey: 0 });
                let made = self.check_send(request).and_then(|()| self.send_request(request, inline));
                let wr = match made {
                    Ok(wr) => wr,
                    Err(kind) => {
                        bad = Some(kind);
                        break;
                    }
                };
                // SAFETY: `count` is below `LIST`, and so is the index of the previous request.
                unsafe {
                    let place = first.add(count);
                    place.write(wr);
                    if count > 0 {
                        (*first.add(count - 1)).next = place;
                    }
                }
                count += 1;
            }
            if count > 0 {
                let mut failed = std::ptr::null_mut();
                // SAFETY: `first` is a terminated list of `count` requests with valid pointers. The caller guarantees
                // that the memory stays registered.
                let result = unsafe { (self.post_send)(self.raw, first, &mut failed) };
                if result != 0 {
                    let full = PostErrorKind::QueueFull { queue: "send queue", depth: self.capacities.max_send_wr };
                    let index = number * LIST + index_in(first, failed);
                    return Err(PostError { index, kind: post_failure(result, full) });
                }
            }
            if let Some(kind) = bad {
                return Err(PostError { index: number * LIST + count, kind });
            }
        }
        Ok(())
    }

    #[inline]
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let refuse = |kind| if list.is_empty() { Ok(()) } else { Err(PostError { index: 0, kind }) };
        if self.srq.is_some() {
            return refuse(PostErrorKind::UsesSharedReceiveQueue);
        }
        let state = convert::state_from(self.state.load(Ordering::Acquire));
        if state == QpState::Reset {
            let what = "receive work requests";
            return refuse(PostErrorKind::WrongState { state, what, allowed: "any state but reset" });
        }
        let full = PostErrorKind::QueueFull { queue: "receive queue", depth: self.capacities.max_recv_wr };
        // SAFETY: the queue pair lives, and the caller guarantees that the memory stays registered.
        unsafe { post_receives(self.raw, self.post_recv, list, self.capacities.max_recv_sge, full) }
    }
}
