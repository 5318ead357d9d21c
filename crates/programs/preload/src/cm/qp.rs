//! Queue pairs, shared receive queues and completion queues of ids.

use std::ffi::c_int;
use std::ptr;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::{AddressVector, QpKind};

use super::id::{self, Id};
use super::line::Terms;
use super::{device, multicast, verbs};
use crate::objects::answer::{Answer, Refused, number};
use crate::objects::query::PORT;
use crate::objects::{ah, cq, srq};
use crate::process::wait::{Found, STATUS, Step, in_steps};

/// Default exponent of the acknowledgement timeout. It stands for 67 ms. Doorbell's own connections use the same
/// timeout.
const ACK_TIMEOUT: u8 = 14;

/// RNR NAK timer code for 10.24 ms (IBTA Vol 1, 9.7.5.2.8). The kernel's connection manager uses code 0, which is 655
/// ms. With a much shorter timer, a sender would use up its retries while the receiver waits for processor time.
const MIN_RNR_TIMER: u8 = 20;

/// Returns the attributes that move the queue pair of the id to `state`, and the mask of these attributes.
fn attributes(own: &Id, state: c::ibv_qp_state) -> Answer<(c::ibv_qp_attr, u32)> {
    let device = &device::context_of(own)?.device.attributes;
    let (kind, terms, options) = {
        let state = own.line.state();
        (state.kind, state.terms, state.options)
    };
    let mut attr = c::ibv_qp_attr { qp_state: state, ..c::ibv_qp_attr::default() };
    let mut mask = c::IBV_QP_STATE;
    match (state, kind) {
        (c::IBV_QPS_INIT, kind) => {
            (attr.pkey_index, attr.port_num) = (0, PORT);
            mask |= c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT;
            if kind == QpKind::Ud {
                attr.qkey = c::RDMA_UDP_QKEY;
                mask |= c::IBV_QP_QKEY;
            } else {
                attr.qp_access_flags = access(&terms);
                mask |= c::IBV_QP_ACCESS_FLAGS;
            }
        }
        (c::IBV_QPS_RTR, QpKind::Ud) => {}
        (c::IBV_QPS_RTS, QpKind::Ud) => {
            attr.sq_psn = terms.psn.get();
            mask |= c::IBV_QP_SQ_PSN;
        }
        (c::IBV_QPS_RTR, kind) => {
            let peer = terms
                .peer
                .ok_or_else(|| Refused::invalid("the peer is not known yet: wait for its request or reply"))?;
            attr.ah_attr = ah::ah_attributes(&AddressVector {
                destination: peer.gid.to_canonical(),
                traffic_class: options.traffic_class,
                hop_limit: ah::DEFAULT_HOP_LIMIT,
            });
            attr.path_mtu = terms.path_mtu(device.active_mtu).code().into();
            (attr.dest_qp_num, attr.rq_psn) = (peer.qpn.get(), peer.psn.get());
            mask |= c::IBV_QP_AV | c::IBV_QP_PATH_MTU | c::IBV_QP_DEST_QPN | c::IBV_QP_RQ_PSN;
            if kind == QpKind::Rc {
                (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (terms.responder_resources, MIN_RNR_TIMER);
                mask |= c::IBV_QP_MAX_DEST_RD_ATOMIC | c::IBV_QP_MIN_RNR_TIMER;
            }
        }
        (c::IBV_QPS_RTS, kind) => {
            attr.sq_psn = terms.psn.get();
            mask |= c::IBV_QP_SQ_PSN;
            if kind == QpKind::Rc {
                attr.timeout = options.ack_timeout.unwrap_or(ACK_TIMEOUT);
                (attr.retry_cnt, attr.rnr_retry) = (terms.retry_count, terms.rnr_retry);
                attr.max_rd_atomic = terms.initiator_depth;
                mask |= c::IBV_QP_TIMEOUT | c::IBV_QP_RETRY_CNT | c::IBV_QP_RNR_RETRY | c::IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        (state, _) => {
            return Err(Refused::invalid(format!(
                "the connection manager has no attributes for queue pair state {state}: must be INIT, RTR or RTS"
            )));
        }
    }
    Ok((attr, mask))
}

/// Returns the access flags of the queue pair. The flags allow READs and atomics only if the negotiated number of these
/// requests is not 0.
fn access(terms: &Terms) -> u32 {
    let reads = if terms.responder_resources > 0 { c::IBV_ACCESS_REMOTE_READ | c::IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
    c::IBV_ACCESS_REMOTE_WRITE | reads
}

/// Moves the queue pair of an id through the given states, in this order.
fn go_through(own: &Id, states: &[c::ibv_qp_state]) -> Answer<()> {
    for &state in states {
        let (mut attr, mask) = attributes(own, state)?;
        // SAFETY: the queue pair of an id exists while the id refers to it.
        unsafe { verbs::modify_qp(own.qp(), &mut attr, mask) }?;
    }
    Ok(())
}

/// Makes the queue pair ready with the negotiated parameters. Begins with INIT again, since the access flags of the
/// first transition to INIT preceded the negotiation.
pub(super) fn make_ready(own: &Id) -> Answer<()> {
    go_through(own, &[c::IBV_QPS_INIT, c::IBV_QPS_RTR, c::IBV_QPS_RTS])
}

/// Moves the queue pair of an id to the error state, which flushes its outstanding work requests.
pub(super) fn stop(own: &Id) {
    if own.qp().is_null() {
        return;
    }
    let mut attr = c::ibv_qp_attr { qp_state: c::IBV_QPS_ERR, ..c::ibv_qp_attr::default() };
    // SAFETY: the queue pair of an id exists while the id refers to it. If its state does not allow this transition,
    // the queue pair has no outstanding work.
    let _ = unsafe { verbs::modify_qp(own.qp(), &mut attr, c::IBV_QP_STATE) };
}

/// Creates the completion queues that the program did not supply. Each of them gets its own channel.
fn create_cqs(own: &Id, init: &mut c::ibv_qp_init_attr) -> Answer<()> {
    // A completion queue must have at least one entry, even if the program posts no work requests.
    let depth = |most: u32| c_int::try_from(most.max(1)).unwrap_or(c_int::MAX);
    // SAFETY: the id is bound to the device.
    let create = |most: u32| unsafe { verbs::create_cq(own.verbs(), depth(most), own.c.get().cast()) };
    if init.recv_cq.is_null() {
        let (channel, queue) = create(init.cap.max_recv_wr)?;
        // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
        let c = unsafe { &mut *own.c.get() };
        (c.recv_cq_channel, c.recv_cq, init.recv_cq) = (channel, queue, queue);
    }
    if init.send_cq.is_null() {
        let (channel, queue) = create(init.cap.max_send_wr)?;
        // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
        let c = unsafe { &mut *own.c.get() };
        (c.send_cq_channel, c.send_cq, init.send_cq) = (channel, queue, queue);
    }
    Ok(())
}

/// Destroys the completion queues that `create_cqs` created for the id.
fn destroy_cqs(own: &Id) -> Found<()> {
    // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
    let c = unsafe { &mut *own.c.get() };
    let pairs = [(&mut c.recv_cq, &mut c.recv_cq_channel), (&mut c.send_cq, &mut c.send_cq_channel)];
    for (queue, channel) in pairs {
        // SAFETY: each pointer is null, or refers to an object that was created with the id's queue pair. That queue
        // pair is already destroyed.
        unsafe {
            destroy_part(queue, |queue| cq::destroy(queue))?;
            verbs::destroy_channel(std::mem::replace(channel, ptr::null_mut()));
        }
    }
    Ok(())
}

/// Destroys an object of an id once all events of the object are acknowledged, and sets the id's pointer to null. If
/// the object is still in use elsewhere, it continues to exist, but no longer belongs to the id.
fn destroy_part<T>(place: &mut *mut T, destroy: impl FnOnce(*mut T) -> Answer<Step>) -> Found<()> {
    if place.is_null() {
        return Ok(());
    }
    match destroy(*place) {
        Ok(Step::Done(_)) => {}
        Ok(step) => return Err(step),
        Err(refused) => refused.tell("rdma_destroy_qp"),
    }
    *place = ptr::null_mut();
    Ok(())
}

/// Creates the queue pair of an id. `make` receives the completed attributes and creates the queue pair.
fn create_with(
    own: &Id,
    init: &mut c::ibv_qp_init_attr,
    make: impl FnOnce(&mut c::ibv_qp_init_attr) -> Answer<*mut c::ibv_qp>,
) -> Answer<()> {
    device::context_of(own)?.device.expect_own()?;
    if !own.qp().is_null() {
        return Err(Refused::invalid("the id already has a queue pair"));
    }
    let kind = crate::objects::qp::kind(init.qp_type)?;
    let ids = own.line.state().kind;
    if (kind == QpKind::Ud) != (ids == QpKind::Ud) {
        return Err(Refused::invalid(format!(
            "queue pair type {kind:?} does not match the id's port space, which needs {ids:?}"
        )));
    }
    own.line.state().kind = kind;
    // Copy the attributes. So the program sees the completion queues only if the call succeeds.
    let mut whole = *init;
    create_cqs(own, &mut whole)
        .and_then(|()| {
            if whole.srq.is_null() {
                // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
                whole.srq = unsafe { (*own.c.get()).srq };
            }
            let qp = make(&mut whole)?;
            // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently. The
            // queue pair was just created.
            unsafe {
                let c = &mut *own.c.get();
                (c.qp, c.pd, c.qp_type) = (qp, (*qp).pd, whole.qp_type);
            }
            let states = match kind {
                QpKind::Ud => &[c::IBV_QPS_INIT, c::IBV_QPS_RTR, c::IBV_QPS_RTS][..],
                _ => &[c::IBV_QPS_INIT],
            };
            go_through(own, states)
        })
        .inspect_err(|_| {
            // The program has retrieved no events of the new objects, so destroying them does not wait.
            let _ = destroy(own);
        })?;
    *init = whole;
    Ok(())
}

/// Creates the queue pair of an id in `pd`. If `pd` is null, uses the id's protection domain.
///
/// # Safety
///
/// The C contract of `rdma_create_qp`.
pub(super) unsafe fn create(own: &Id, pd: *mut c::ibv_pd, init: &mut c::ibv_qp_init_attr) -> Answer<()> {
    // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
    let pd = if pd.is_null() { unsafe { (*own.c.get()).pd } } else { pd };
    // SAFETY: by the C contract, the protection domain exists. If `pd` is still null, `create_qp` returns an error.
    if !pd.is_null() && unsafe { (*pd).context } != own.verbs() {
        return Err(Refused::invalid("the protection domain belongs to another context than the id"));
    }
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    create_with(own, init, |init| unsafe { verbs::create_qp(pd, init) })
}

/// # Safety
///
/// The C contract of `rdma_create_qp_ex`.
unsafe fn create_ex(own: &Id, init: &mut c::ibv_qp_init_attr_ex) -> Answer<()> {
    if init.comp_mask & c::IBV_QP_INIT_ATTR_PD == 0 {
        // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
        init.pd = unsafe { (*own.c.get()).pd };
        init.comp_mask |= c::IBV_QP_INIT_ATTR_PD;
    }
    let mut plain = c::ibv_qp_init_attr {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
    };
    create_with(own, &mut plain, |plain| {
        let mut whole =
            c::ibv_qp_init_attr_ex { send_cq: plain.send_cq, recv_cq: plain.recv_cq, srq: plain.srq, ..*init };
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { verbs::create_qp_ex(own.verbs(), &mut whole) }
    })?;
    (init.send_cq, init.recv_cq, init.srq) = (plain.send_cq, plain.recv_cq, plain.srq);
    Ok(())
}

/// Destroys the queue pair of an id, and the completion queues that were created with it. If the program has not
/// acknowledged all events of these objects, returns the step that waits for the acknowledgements.
pub(super) fn destroy(own: &Id) -> Found<()> {
    multicast::leave_all(own);
    // SAFETY: only calls on the id set its fields, and the program does not use the queue pair any more.
    unsafe { destroy_part(&mut (*own.c.get()).qp, |qp| crate::objects::qp::destroy(qp)) }?;
    destroy_cqs(own)
}

/// Creates the shared receive queue of an id.
///
/// # Safety
///
/// The C contract of `rdma_create_srq`.
unsafe fn create_srq(own: &Id, pd: *mut c::ibv_pd, init: &mut c::ibv_srq_init_attr) -> Answer<()> {
    device::context_of(own)?;
    // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
    let c = unsafe { &mut *own.c.get() };
    if !c.srq.is_null() {
        return Err(Refused::invalid("the id already has a shared receive queue"));
    }
    let pd = if pd.is_null() { c.pd } else { pd };
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    c.srq = unsafe { verbs::create_srq(pd, init) }?;
    c.pd = pd;
    Ok(())
}

pub(super) fn destroy_srq(own: &Id) -> Found<()> {
    // SAFETY: only calls on the id set its fields, and the program does not use the shared receive queue any more.
    unsafe { destroy_part(&mut (*own.c.get()).srq, |srq| srq::destroy(srq)) }
}

/// Converts the result of a destroy function to a step of a call.
pub(super) fn step(found: Found<()>) -> Step {
    found.err().unwrap_or(Step::Done(0))
}

fn no_attributes() -> Refused {
    Refused::invalid("the attributes are null")
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp(
    id: *mut c::rdma_cm_id,
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_qp", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { create(id::own(id)?, pd, init.as_mut().ok_or_else(no_attributes)?) }?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp_ex(id: *mut c::rdma_cm_id, init: *mut c::ibv_qp_init_attr_ex) -> c_int {
    number("rdma_create_qp_ex", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { create_ex(id::own(id)?, init.as_mut().ok_or_else(no_attributes)?) }?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_destroy_qp(id: *mut c::rdma_cm_id) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    in_steps("rdma_destroy_qp", STATUS, move |_| Ok(step(destroy(unsafe { id::own(id) }?))));
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_srq(
    id: *mut c::rdma_cm_id,
    pd: *mut c::ibv_pd,
    init: *mut c::ibv_srq_init_attr,
) -> c_int {
    number("rdma_create_srq", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { create_srq(id::own(id)?, pd, init.as_mut().ok_or_else(no_attributes)?) }?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut c::rdma_cm_id,
    init: *mut c::ibv_srq_init_attr_ex,
) -> c_int {
    number("rdma_create_srq_ex", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, init) = unsafe { (id::own(id)?, init.as_mut().ok_or_else(no_attributes)?) };
        let offered = c::IBV_SRQ_INIT_ATTR_TYPE | c::IBV_SRQ_INIT_ATTR_PD;
        let kind = if init.comp_mask & c::IBV_SRQ_INIT_ATTR_TYPE != 0 { init.srq_type } else { c::IBV_SRQT_BASIC };
        if init.comp_mask & !offered != 0 || kind != c::IBV_SRQT_BASIC {
            return Err(Refused::unsupported("only basic shared receive queues are supported"));
        }
        let pd = if init.comp_mask & c::IBV_SRQ_INIT_ATTR_PD != 0 { init.pd } else { ptr::null_mut() };
        let mut plain = c::ibv_srq_init_attr { srq_context: init.srq_context, attr: init.attr };
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { create_srq(own, pd, &mut plain) }?;
        init.attr = plain.attr;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_destroy_srq(id: *mut c::rdma_cm_id) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    in_steps("rdma_destroy_srq", STATUS, move |_| Ok(step(destroy_srq(unsafe { id::own(id) }?))));
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut c::rdma_cm_id,
    attr: *mut c::ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    number("rdma_init_qp_attr", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments. The program sets the field
        // `qp_state` to the state for which it requests attributes.
        unsafe {
            if attr.is_null() || mask.is_null() {
                return Err(no_attributes());
            }
            let (known, names) = attributes(id::own(id)?, (*attr).qp_state)?;
            attr.write(known);
            mask.write(names as c_int);
        }
        Ok(0)
    })
}
