//! Queue pairs: creation, modification, queries and destruction.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;
use std::sync::Arc;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::Provider;
use doorbell_verbs::{QpCapacities, QpInit, QpKind, raw};

use crate::objects::answer::{Answer, Refused, pointer, status};
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::device::Device;
use crate::objects::event::{Element, Source};
use crate::objects::handle::{Kind, Object, object};
use crate::objects::pd::Pd;
use crate::objects::qp_attr;
use crate::objects::srq::Srq;
use crate::objects::wr::{self, Builder};
use crate::process::wait::{STATUS, Step, Unacknowledged, in_steps};

/// A queue pair. C code sees an `ibv_qp`. If the program created the queue pair as an `ibv_qp_ex`, C code sees an
/// `ibv_qp_ex`, which begins with an `ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) c: UnsafeCell<c::ibv_qp_ex>,
    pub(crate) raw: Box<dyn raw::Qp>,
    pub(crate) device: Arc<Device>,
    source: Option<Source>,
    pub(crate) unacknowledged: Unacknowledged,
    pub(crate) kind: QpKind,
    /// Capacities that the program requested when it created the queue pair.
    pub(crate) capacities: QpCapacities,
    /// Maximum number of scatter-gather elements of a receive, which `ibv_post_recv` checks. If the queue pair has a
    /// shared receive queue, `ibv_post_recv` always fails.
    pub(crate) max_recv_sge: usize,
    /// Work requests that the program builds between `ibv_wr_start` and `ibv_wr_complete`. `None` unless the queue pair
    /// was created for these calls.
    pub(crate) builder: Option<Builder>,
}

// SAFETY: `Qp` is `#[repr(C)]` and begins with an `ibv_qp_ex`, which begins with an `ibv_qp`.
unsafe impl Object for Qp {
    type C = c::ibv_qp;
    const KIND: Kind = Kind::Qp;
}

pub(crate) fn kind(number: c::ibv_qp_type) -> Answer<QpKind> {
    match number {
        c::IBV_QPT_RC => Ok(QpKind::Rc),
        c::IBV_QPT_UC => Ok(QpKind::Uc),
        c::IBV_QPT_UD => Ok(QpKind::Ud),
        c::IBV_QPT_RAW_PACKET | c::IBV_QPT_XRC_SEND | c::IBV_QPT_XRC_RECV | c::IBV_QPT_DRIVER => {
            Err(Refused::unsupported(format!("queue pair type {number} is not supported: use RC, UC or UD")))
        }
        _ => Err(Refused::invalid(format!("queue pair type {number} does not exist: use RC, UC or UD"))),
    }
}

pub(crate) fn kind_number(kind: QpKind) -> c::ibv_qp_type {
    match kind {
        QpKind::Rc => c::IBV_QPT_RC,
        QpKind::Uc => c::IBV_QPT_UC,
        QpKind::Ud => c::IBV_QPT_UD,
    }
}

/// Creates a queue pair. If `operations` is given, the queue pair supports `ibv_wr_*`.
///
/// # Safety
///
/// The C contract of `ibv_create_qp`.
unsafe fn create(pd: *mut c::ibv_pd, init: &c::ibv_qp_init_attr, operations: Option<u64>) -> Answer<*mut c::ibv_qp> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { object::<Pd>(pd) }?;
    let context = own.context()?;
    let kind = kind(init.qp_type)?;
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (send_cq, recv_cq) = unsafe { (object::<Cq>(init.send_cq)?, object::<Cq>(init.recv_cq)?) };
    // SAFETY: by the C contract, `srq` is null or a shared receive queue.
    let srq = if init.srq.is_null() { None } else { Some(unsafe { object::<Srq>(init.srq) }?) };
    if send_cq.context() != context.as_c() || recv_cq.context() != context.as_c() {
        return Err(Refused::invalid("the completion queues belong to another context than the protection domain"));
    }
    if srq.is_some_and(|srq| !Arc::ptr_eq(&srq.device, &context.device)) {
        return Err(Refused::invalid("the shared receive queue belongs to another device than the protection domain"));
    }
    let cap = init.cap;
    let table = operations.map(|operations| wr::table(kind, operations)).transpose()?;
    let capacities = QpCapacities {
        max_send_wr: cap.max_send_wr as usize,
        max_recv_wr: if srq.is_some() { 0 } else { cap.max_recv_wr as usize },
        max_send_sge: cap.max_send_sge as usize,
        max_recv_sge: if srq.is_some() { 0 } else { cap.max_recv_sge as usize },
        max_inline: cap.max_inline_data as usize,
    };
    let raw = context.device.provider.create_qp(QpInit {
        kind,
        pd: own.id,
        send_cq: send_cq.raw.id(),
        recv_cq: recv_cq.raw.id(),
        srq: srq.map(|srq| srq.raw.id()),
        capacities,
        signal_all: init.sq_sig_all != 0,
    })?;
    let qpn = raw.qpn();
    let mut c = table.unwrap_or_default();
    c.qp_base.context = context.as_c();
    c.qp_base.qp_context = init.qp_context;
    c.qp_base.pd = pd;
    c.qp_base.send_cq = init.send_cq;
    c.qp_base.recv_cq = init.recv_cq;
    c.qp_base.srq = init.srq;
    c.qp_base.handle = qpn.get();
    c.qp_base.qp_num = qpn.get();
    c.qp_base.state = c::IBV_QPS_RESET;
    c.qp_base.qp_type = init.qp_type;
    let qp = context.handles.give(Qp {
        c: UnsafeCell::new(c),
        raw,
        device: Arc::clone(&context.device),
        source: None,
        unacknowledged: Unacknowledged::default(),
        kind,
        capacities,
        max_recv_sge: if srq.is_some() { context.device.attributes.limits.max_sges } else { capacities.max_recv_sge },
        builder: operations.map(|_| Builder::default()),
    });
    let source = Source::new(Element::Qp(qp), context);
    // SAFETY: no other thread knows the new queue pair yet.
    unsafe { (*qp.cast::<Qp>()).source = Some(source.clone()) };
    context.device.sources().qps.insert(qpn, source);
    own.users.add();
    send_cq.users.add();
    recv_cq.users.add();
    if let Some(srq) = srq {
        srq.users.add();
    }
    Ok(qp)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut c::ibv_pd, init: *mut c::ibv_qp_init_attr) -> *mut c::ibv_qp {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    pointer("ibv_create_qp", || unsafe {
        create(pd, init.as_ref().ok_or_else(|| Refused::invalid("the attributes are null"))?, None)
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut c::ibv_context,
    init: *mut c::ibv_qp_init_attr_ex,
) -> *mut c::ibv_qp {
    pointer("ibv_create_qp_ex", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let init = unsafe { init.as_ref() }.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        let offered = c::IBV_QP_INIT_ATTR_PD | c::IBV_QP_INIT_ATTR_CREATE_FLAGS | c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let mask = init.comp_mask;
        if mask & !offered != 0 {
            return Err(Refused::unsupported(format!(
                "queue pair attributes {:#x} are not supported: {offered:#x} are allowed",
                mask & !offered
            )));
        }
        if mask & c::IBV_QP_INIT_ATTR_PD == 0 {
            return Err(Refused::invalid("a queue pair needs a protection domain"));
        }
        if mask & c::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0 {
            return Err(Refused::unsupported(format!(
                "queue pair creation flags {:#x} are not supported: must be 0",
                init.create_flags
            )));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        if unsafe { object::<Pd>(init.pd)?.context()?.as_c() } != context {
            return Err(Refused::invalid("the protection domain belongs to another context than the one of the call"));
        }
        let plain = c::ibv_qp_init_attr {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
        };
        let operations = (mask & c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(init.send_ops_flags);
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { create(init.pd, &plain, operations) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut c::ibv_qp) -> *mut c::ibv_qp_ex {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    match unsafe { object::<Qp>(qp) } {
        Ok(own) if own.builder.is_some() => own.c.get(),
        _ => ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut c::ibv_qp, attr: *mut c::ibv_qp_attr, mask: c_int) -> c_int {
    status("ibv_modify_qp", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, attr) = unsafe { (object::<Qp>(qp)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        own.device.expect_own()?;
        let attributes = qp_attr::from_c(attr, mask as u32, &own.device)?;
        own.raw.modify(&attributes)?;
        if attributes.state.is_some() {
            // SAFETY: verbs allow C programs to read this field at any time, also during the write.
            unsafe { (*own.c.get()).qp_base.state = attr.qp_state };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut c::ibv_qp,
    attr: *mut c::ibv_qp_attr,
    _mask: c_int,
    init: *mut c::ibv_qp_init_attr,
) -> c_int {
    status("ibv_query_qp", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Qp>(qp) }?;
        own.device.expect_own()?;
        own.device.port_state()?;
        let info = own.raw.query();
        let known = qp_attr::to_c(&info);
        // SAFETY: the queue pair exists, and the caller provides memory for the attributes.
        unsafe {
            let table = &mut (*own.c.get()).qp_base;
            table.state = known.qp_state;
            init.write(c::ibv_qp_init_attr {
                qp_context: table.qp_context,
                send_cq: table.send_cq,
                recv_cq: table.recv_cq,
                srq: table.srq,
                cap: known.cap,
                qp_type: kind_number(own.kind),
                sq_sig_all: info.signal_all.into(),
            });
            attr.write(known);
        }
        Ok(())
    })
}

/// Destroys a queue pair, once the program has acknowledged all retrieved events of this queue pair.
///
/// # Safety
///
/// The C contract of `ibv_destroy_qp`.
pub(crate) unsafe fn destroy(qp: *mut c::ibv_qp) -> Answer<Step> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { object::<Qp>(qp) }?;
    own.device.expect_own()?;
    own.device.sources().qps.remove(&own.raw.qpn());
    if let Some(source) = &own.source {
        source.close();
    }
    if let Err(step) = own.unacknowledged.none() {
        return Ok(step);
    }
    // SAFETY: these fields are set when the queue pair is created, and never change.
    let base = unsafe { &(*own.c.get()).qp_base };
    let (context, pd, srq) = (base.context, base.pd, base.srq);
    let (send_cq, recv_cq) = (base.send_cq, base.recv_cq);
    // Destroy the queue pair before the objects that it uses.
    // SAFETY: a context exists while objects of it exist. The program does not use the queue pair any more.
    drop(unsafe { Context::of(context)?.handles.take::<Qp>(qp) });
    // SAFETY: these objects exist, since the queue pair used them until now.
    unsafe {
        object::<Pd>(pd)?.users.remove();
        object::<Cq>(send_cq)?.users.remove();
        object::<Cq>(recv_cq)?.users.remove();
        if !srq.is_null() {
            object::<Srq>(srq)?.users.remove();
        }
    }
    Ok(Step::Done(0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_destroy_qp(qp: *mut c::ibv_qp) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    in_steps("ibv_destroy_qp", STATUS, move |_| unsafe { destroy(qp) })
}

/// Returns the IP address of the multicast group with this GID (RoCE v2 annex A17).
///
/// # Safety
///
/// `gid` is null, or points to a GID.
unsafe fn group(gid: *const c::ibv_gid) -> Answer<IpAddr> {
    // SAFETY: the caller guarantees that `gid` is valid. Both members of the GID union are plain bytes.
    let raw = unsafe { gid.as_ref().map(|gid| gid.raw) };
    let raw = raw.ok_or_else(|| Refused::invalid("the GID is null"))?;
    Ok(IpAddr::V6(Ipv6Addr::from(raw)).to_canonical())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut c::ibv_qp, gid: *const c::ibv_gid, _lid: u16) -> c_int {
    status("ibv_attach_mcast", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, group) = unsafe { (object::<Qp>(qp)?, group(gid)?) };
        own.device.expect_own()?;
        Ok(own.raw.attach(group)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut c::ibv_qp, gid: *const c::ibv_gid, _lid: u16) -> c_int {
    status("ibv_detach_mcast", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, group) = unsafe { (object::<Qp>(qp)?, group(gid)?) };
        own.device.expect_own()?;
        Ok(own.raw.detach(group)?)
    })
}
