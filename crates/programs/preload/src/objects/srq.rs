//! Shared receive queues.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw;
use doorbell_verbs::raw::Provider;

use crate::objects::answer::{Answer, Refused, pointer, status};
use crate::objects::device::Device;
use crate::objects::event::{Element, Source};
use crate::objects::handle::{Kind, Object, Users, object};
use crate::objects::pd::Pd;
use crate::process::wait::{STATUS, Step, Unacknowledged, in_steps};

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    c: c::ibv_srq,
    pub(crate) raw: Box<dyn raw::Srq>,
    pub(crate) device: Arc<Device>,
    source: Option<Source>,
    pub(crate) users: Users,
    pub(crate) unacknowledged: Unacknowledged,
    max_wr: u32,
    max_sge: u32,
}

// SAFETY: `Srq` is `#[repr(C)]` and begins with an `ibv_srq`.
unsafe impl Object for Srq {
    type C = c::ibv_srq;
    const KIND: Kind = Kind::Srq;
}

impl Srq {
    /// Returns the maximum number of scatter-gather elements of a receive.
    pub(crate) fn max_sge(&self) -> usize {
        self.max_sge as usize
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut c::ibv_pd, init: *mut c::ibv_srq_init_attr) -> *mut c::ibv_srq {
    pointer("ibv_create_srq", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, init) = unsafe { (object::<Pd>(pd)?, init.as_mut()) };
        let init = init.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        let context = own.context()?;
        let (max_wr, max_sge) = (init.attr.max_wr, init.attr.max_sge.max(1));
        let raw = context.device.provider.create_srq(own.id, max_wr as usize, max_sge as usize)?;
        let id = raw.id();
        // SAFETY: zeros are a valid value of each field.
        let zeros: c::ibv_srq = unsafe { std::mem::zeroed() };
        let c = c::ibv_srq { context: context.as_c(), srq_context: init.srq_context, pd, handle: id.0, ..zeros };
        let srq = context.handles.give(Srq {
            c,
            raw,
            device: Arc::clone(&context.device),
            source: None,
            users: Users::default(),
            unacknowledged: Unacknowledged::default(),
            max_wr,
            max_sge,
        });
        let source = Source::new(Element::Srq(srq), context);
        // SAFETY: no other thread knows the new queue yet.
        unsafe { (*srq.cast::<Srq>()).source = Some(source.clone()) };
        context.device.sources().srqs.insert(id, source);
        own.users.add();
        init.attr.max_sge = max_sge;
        Ok(srq)
    })
}

/// Rejects the call. The headers of verbs create basic queues with `ibv_create_srq`, and the device supports no other
/// type.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut c::ibv_context,
    _init: *mut c::ibv_srq_init_attr_ex,
) -> *mut c::ibv_srq {
    pointer("ibv_create_srq_ex", || Err(Refused::unsupported("only basic shared receive queues are supported")))
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut c::ibv_srq, place: *mut u32) -> c_int {
    status("ibv_get_srq_num", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { place.write(object::<Srq>(srq)?.raw.id().0) };
        Ok(())
    })
}

fn expect_limit(limit: u32, most: u32) -> Answer<()> {
    if limit <= most {
        return Ok(());
    }
    Err(Refused::invalid(format!("limit {limit} of the shared receive queue: must be at most its size, {most}")))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut c::ibv_srq, attr: *mut c::ibv_srq_attr, mask: c_int) -> c_int {
    status("ibv_modify_srq", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, attr) = unsafe { (object::<Srq>(srq)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        own.device.expect_own()?;
        let mask = mask as c_uint;
        if mask & !(c::IBV_SRQ_LIMIT | c::IBV_SRQ_MAX_WR) != 0 {
            return Err(Refused::invalid(format!(
                "attribute mask {mask:#x} of a shared receive queue has unknown bits: only IBV_SRQ_LIMIT is allowed"
            )));
        }
        if mask & c::IBV_SRQ_MAX_WR != 0 {
            return Err(Refused::unsupported(
                "the size of a shared receive queue cannot be changed: only IBV_SRQ_LIMIT is allowed",
            ));
        }
        if mask & c::IBV_SRQ_LIMIT != 0 {
            expect_limit(attr.srq_limit, own.max_wr)?;
            own.raw.arm_limit(attr.srq_limit as usize);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut c::ibv_srq, attr: *mut c::ibv_srq_attr) -> c_int {
    status("ibv_query_srq", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Srq>(srq) }?;
        let known = c::ibv_srq_attr { max_wr: own.max_wr, max_sge: own.max_sge, srq_limit: own.raw.limit() as u32 };
        // SAFETY: the caller provides memory for the attributes.
        unsafe { attr.write(known) };
        Ok(())
    })
}

/// Destroys a shared receive queue, once the program has acknowledged all retrieved events of this queue.
///
/// # Safety
///
/// The C contract of `ibv_destroy_srq`.
pub(crate) unsafe fn destroy(srq: *mut c::ibv_srq) -> Answer<Step> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { object::<Srq>(srq) }?;
    own.users.expect_none("shared receive queue")?;
    // SAFETY: a protection domain exists while objects of it exist.
    let pd = unsafe { object::<Pd>(own.c.pd) }?;
    let context = pd.context()?;
    own.device.sources().srqs.remove(&own.raw.id());
    if let Some(source) = &own.source {
        source.close();
    }
    if let Err(step) = own.unacknowledged.none() {
        return Ok(step);
    }
    // SAFETY: no queue pair uses the queue, and the program does not use the queue any more.
    drop(unsafe { context.handles.take::<Srq>(srq) });
    pd.users.remove();
    Ok(Step::Done(0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_destroy_srq(srq: *mut c::ibv_srq) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    in_steps("ibv_destroy_srq", STATUS, move |_| unsafe { destroy(srq) })
}
