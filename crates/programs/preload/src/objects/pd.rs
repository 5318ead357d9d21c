//! Protection domains, parent domains and thread domains.

use std::ffi::c_int;
use std::ptr;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::PdId;
use doorbell_verbs::raw::Provider;

use crate::objects::answer::{Answer, Refused, pointer, status};
use crate::objects::context::Context;
use crate::objects::handle::{Kind, Object, Users, object};

/// A protection domain, or a parent domain that represents a protection domain.
#[repr(C)]
pub(crate) struct Pd {
    c: c::ibv_pd,
    pub(crate) id: PdId,
    pub(crate) users: Users,
    parent: *mut c::ibv_pd,
    thread: *mut c::ibv_td,
}

// SAFETY: `Pd` is `#[repr(C)]` and begins with an `ibv_pd`.
unsafe impl Object for Pd {
    type C = c::ibv_pd;
    const KIND: Kind = Kind::Pd;
}

impl Pd {
    /// Returns the context from which the protection domain was created.
    pub(crate) fn context<'a>(&self) -> Answer<&'a Context> {
        // SAFETY: a context exists while objects of it exist.
        let context = unsafe { Context::of(self.c.context) }?;
        context.device.expect_own()?;
        Ok(context)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut c::ibv_context) -> *mut c::ibv_pd {
    pointer("ibv_alloc_pd", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { Context::of(context) }?;
        own.device.expect_own()?;
        let id = own.device.provider.create_pd()?;
        let c = c::ibv_pd { context, handle: id.0 };
        Ok(own.handles.give(Pd { c, id, users: Users::default(), parent: ptr::null_mut(), thread: ptr::null_mut() }))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut c::ibv_pd) -> c_int {
    status("ibv_dealloc_pd", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Pd>(pd) }?;
        let context = own.context()?;
        own.users.expect_none("protection domain")?;
        if own.parent.is_null() {
            context.device.provider.destroy_pd(own.id)?;
        } else {
            // SAFETY: a protection domain exists while a parent domain represents it.
            unsafe { object::<Pd>(own.parent) }?.users.remove();
        }
        // SAFETY: a thread domain exists while parent domains use it.
        if let Ok(thread) = unsafe { object::<Td>(own.thread) } {
            thread.users.remove();
        }
        // SAFETY: no object of the protection domain exists any more, and the program does not use the domain any more.
        drop(unsafe { context.handles.take::<Pd>(pd) });
        Ok(())
    })
}

/// A thread domain. The program promises to use the domain's objects in one thread only. This library does not rely on
/// that promise.
#[repr(C)]
struct Td {
    c: c::ibv_td,
    users: Users,
}

// SAFETY: `Td` is `#[repr(C)]` and begins with an `ibv_td`.
unsafe impl Object for Td {
    type C = c::ibv_td;
    const KIND: Kind = Kind::Td;
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut c::ibv_context,
    init: *mut c::ibv_td_init_attr,
) -> *mut c::ibv_td {
    pointer("ibv_alloc_td", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, init) = unsafe { (Context::of(context)?, init.as_ref()) };
        if init.is_some_and(|init| init.comp_mask != 0) {
            return Err(Refused::unsupported("comp_mask of a thread domain must be 0"));
        }
        own.device.expect_own()?;
        Ok(own.handles.give(Td { c: c::ibv_td { context }, users: Users::default() }))
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut c::ibv_td) -> c_int {
    status("ibv_dealloc_td", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Td>(td) }?;
        own.users.expect_none("thread domain")?;
        // SAFETY: a context exists while objects of it exist. No parent domain uses the thread domain, and the program
        // does not use the thread domain any more.
        drop(unsafe { Context::of(own.c.context)?.handles.take::<Td>(td) });
        Ok(())
    })
}

/// Creates a parent domain, which represents its protection domain. The library does not call the parent domain's
/// allocators, since they allocate queues that hardware reads.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut c::ibv_context,
    init: *mut c::ibv_parent_domain_init_attr,
) -> *mut c::ibv_pd {
    pointer("ibv_alloc_parent_domain", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let (own, init) = unsafe { (Context::of(context)?, init.as_ref()) };
        let init = init.ok_or_else(|| Refused::invalid("the attributes are null"))?;
        let known = c::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | c::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if init.comp_mask & !known != 0 {
            return Err(Refused::invalid(format!(
                "comp_mask {:#x} of a parent domain has unknown bits: {known:#x} are allowed",
                init.comp_mask
            )));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let parent = unsafe { object::<Pd>(init.pd) }?;
        if parent.c.context != context || !parent.parent.is_null() {
            return Err(Refused::invalid("a parent domain needs a protection domain of the same context"));
        }
        own.device.expect_own()?;
        if !init.td.is_null() {
            // SAFETY: by the C contract of this function, the program passes valid arguments.
            unsafe { object::<Td>(init.td) }?.users.add();
        }
        parent.users.add();
        let c = c::ibv_pd { context, handle: parent.c.handle };
        let domain = Pd { c, id: parent.id, users: Users::default(), parent: init.pd, thread: init.td };
        Ok(own.handles.give_as(Kind::ParentDomain, domain))
    })
}
