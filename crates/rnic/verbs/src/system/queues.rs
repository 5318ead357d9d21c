//! Completion channels, completion queues and shared receive queues of the machine's RNICs.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use doorbell_ibverbs_sys::*;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::events::Events;
use super::posts::{PostReceives, post_receives};
use super::{Context, Domain, SystemError, convert};
use crate::error::Error;
use crate::raw;
use doorbell_verbs_core::{
    Completion, CqId, EventSource, Notify, Overrun, PdId, PostError, PostErrorKind, RecvRequest, SrqId,
};

/// Maximum number of completions that one call of libibverbs takes from the RNIC.
const LIST: usize = 32;

/// Number of polls of an empty completion queue per system call that checks for an overrun. A poll takes some ten
/// nanoseconds, much less than a system call.
const LOOKS_PER_CALL: u32 = 4096;

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// A completion channel. Its completion queues keep it alive.
struct ChannelObject {
    context: Arc<Context>,
    raw: *mut ibv_comp_channel,
}

// SAFETY: libibverbs is thread-safe: any thread may use a channel.
unsafe impl Send for ChannelObject {}
// SAFETY: as above.
unsafe impl Sync for ChannelObject {}

impl Drop for ChannelObject {
    fn drop(&mut self) {
        // SAFETY: completion queues hold their channel alive, so no queue uses the channel any more.
        unsafe { (self.context.library().destroy_comp_channel)(self.raw) };
    }
}

pub(super) struct SystemChannel(Arc<ChannelObject>);

impl SystemChannel {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, SystemError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.library().create_comp_channel)(context.raw()) };
        if raw.is_null() {
            return Err(SystemError::last("creating a completion channel"));
        }
        let channel = Self(Arc::new(ChannelObject { context: Arc::clone(context), raw }));
        let unblocked = fcntl(raw::Channel::fd(&channel), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        unblocked.map_err(|error| SystemError::refused("making a completion channel non-blocking", error.into()))?;
        Ok(channel)
    }
}

impl raw::Channel for SystemChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, and stays open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw).fd) }
    }

    fn next(&self) -> Option<CqId> {
        let library = self.0.context.library();
        let (mut queue, mut number) = (std::ptr::null_mut(), std::ptr::null_mut::<c_void>());
        // SAFETY: the channel lives, and `queue` and `number` have room for the results.
        if unsafe { (library.get_cq_event)(self.0.raw, &mut queue, &mut number) } != 0 {
            return None;
        }
        // SAFETY: `queue` still exists, since its destruction waits until this notification is acknowledged.
        unsafe { (library.ack_cq_events)(queue, 1) };
        Some(CqId(number as usize as u32))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A completion queue. Its queue pairs keep it alive.
pub(super) struct Completions {
    pub(super) id: CqId,
    pub(super) raw: *mut ibv_cq,
    context: Arc<Context>,
    poll: PollCq,
    request_notify: RequestNotify,
    events: Weak<Events>,
    pub(super) overrun: AtomicBool,
    looks_in_vain: AtomicU32,
    _channel: Option<Arc<ChannelObject>>,
}

// SAFETY: libibverbs is thread-safe: any thread may use a completion queue.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their completion queue alive, so no queue pair uses the queue any more.
        unsafe { (self.context.library().destroy_cq)(self.raw) };
        self.events.upgrade().inspect(|events| events.forget(EventSource::Cq(self.id)));
    }
}

impl Completions {
    pub(super) fn new(
        context: &Arc<Context>,
        events: Weak<Events>,
        id: CqId,
        depth: u32,
        channel: Option<&SystemChannel>,
    ) -> Result<Self, SystemError> {
        let ops = context.ops();
        let (Some(poll), Some(request_notify)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(SystemError::refused("polling completions", unsupported()));
        };
        let channel = channel.map(|channel| Arc::clone(&channel.0));
        let on = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw);
        let number = id.0 as usize as *mut c_void;
        // SAFETY: the device is open, and `on` is null or a channel of the device. `number` is no valid pointer, but
        // libibverbs never dereferences it.
        let raw = unsafe { (context.library().create_cq)(context.raw(), depth as c_int, number, on, 0) };
        if raw.is_null() {
            return Err(SystemError::last("creating a completion queue"));
        }
        Ok(Self {
            id,
            raw,
            context: Arc::clone(context),
            poll,
            request_notify,
            events,
            overrun: AtomicBool::new(false),
            looks_in_vain: AtomicU32::new(0),
            _channel: channel,
        })
    }

    fn take_events(&self) {
        self.events.upgrade().inspect(|events| events.take());
    }

    /// Returns whether an event has reported an overrun of the queue. Reading events costs a system call, so only one
    /// of many polls of an empty queue reads them.
    fn has_overrun(&self) -> bool {
        // If two threads increment the count at the same time, one increment is lost. This only delays the next check.
        let looks = self.looks_in_vain.load(Ordering::Relaxed);
        self.looks_in_vain.store(looks.wrapping_add(1), Ordering::Relaxed);
        if looks.is_multiple_of(LOOKS_PER_CALL) {
            self.take_events();
        }
        self.overrun.load(Ordering::Acquire)
    }
}

pub(super) fn unsupported() -> std::io::Error {
    std::io::Error::from_raw_os_error(nix::libc::EOPNOTSUPP)
}

pub(super) struct SystemCq(pub(super) Arc<Completions>);

impl raw::Cq for SystemCq {
    fn id(&self) -> CqId {
        self.0.id
    }

    #[inline]
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        let queue = &*self.0;
        let mut wcs = [const { MaybeUninit::<ibv_wc>::uninit() }; LIST];
        let mut reaped = 0;
        while reaped < out.len() {
            let wanted = LIST.min(out.len() - reaped);
            // SAFETY: the queue lives, and `wcs` has room for `wanted` completions.
            let found = unsafe { (queue.poll)(queue.raw, wanted as c_int, wcs.as_mut_ptr().cast()) };
            let found = match usize::try_from(found) {
                Ok(found) => found,
                // Return the completions that earlier iterations have taken from the queue. The next call fails again,
                // and returns the error.
                Err(_) if reaped > 0 => break,
                Err(_) => return Err(Overrun),
            };
            for (place, wc) in out[reaped..].iter_mut().zip(&wcs[..found]) {
                // SAFETY: libibverbs has written the first `found` completions.
                *place = convert::completion(unsafe { wc.assume_init_ref() });
            }
            reaped += found;
            if found < wanted {
                break;
            }
        }
        if reaped == 0 && queue.has_overrun() {
            return Err(Overrun);
        }
        Ok(reaped)
    }

    fn arm(&self, notify: Notify) {
        let queue = &*self.0;
        // A thread that arms the queue is about to sleep, and rarely polls from then on. So check for an overrun now.
        queue.take_events();
        // SAFETY: the queue lives.
        let result = unsafe { (queue.request_notify)(queue.raw, (notify == Notify::Solicited).into()) };
        if result != 0 {
            tracing::error!(result, "the RNIC arms no notification");
        }
    }

    fn resize(&self, depth: usize) -> Result<(), Error> {
        let depth =
            super::in_range("the completion queue's depth", depth, self.0.context.attributes.limits.max_cq_depth)?;
        // SAFETY: the queue lives.
        let result = unsafe { (self.0.context.library().resize_cq)(self.0.raw, depth as c_int) };
        Ok(SystemError::check("resizing a completion queue", result)?)
    }
}

/// A shared receive queue. Its queue pairs keep it alive.
pub(super) struct SharedQueue {
    pub(super) id: SrqId,
    pub(super) pd: PdId,
    pub(super) raw: *mut ibv_srq,
    domain: Arc<Domain>,
    events: Weak<Events>,
    depth: usize,
    max_sges: usize,
    post: PostReceives<ibv_srq>,
}

// SAFETY: libibverbs is thread-safe: any thread may use a shared receive queue.
unsafe impl Send for SharedQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedQueue {}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their shared receive queue alive, so no queue pair uses the queue any more.
        unsafe { (self.domain.context.library().destroy_srq)(self.raw) };
        self.events.upgrade().inspect(|events| events.forget(EventSource::Srq(self.id)));
    }
}

impl SharedQueue {
    pub(super) fn new(
        domain: Arc<Domain>,
        events: Weak<Events>,
        pd: PdId,
        id: SrqId,
        depth: u32,
        max_sges: usize,
    ) -> Result<Self, SystemError> {
        let context = &domain.context;
        let Some(post) = context.ops().post_srq_recv else {
            return Err(SystemError::refused("posting shared receives", unsupported()));
        };
        let mut init = ibv_srq_init_attr {
            srq_context: id.0 as usize as *mut c_void,
            attr: ibv_srq_attr { max_wr: depth, max_sge: u32::try_from(max_sges).unwrap_or(u32::MAX), srq_limit: 0 },
        };
        // SAFETY: the domain lives, and the attributes are read and written only during the call.
        let raw = unsafe { (context.library().create_srq)(domain.raw, &mut init) };
        if raw.is_null() {
            return Err(SystemError::last("creating a shared receive queue"));
        }
        Ok(Self { id, pd, raw, domain, events, depth: depth as usize, max_sges, post })
    }
}

pub(super) struct SystemSrq(pub(super) Arc<SharedQueue>);

impl raw::Srq for SystemSrq {
    fn id(&self) -> SrqId {
        self.0.id
    }

    fn arm_limit(&self, limit: usize) {
        let srq_limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let mut attributes = ibv_srq_attr { srq_limit, ..ibv_srq_attr::default() };
        let queue = &*self.0;
        let library = queue.domain.context.library();
        // SAFETY: the queue lives. The mask selects only the limit.
        let result = unsafe { (library.modify_srq)(queue.raw, &mut attributes, IBV_SRQ_LIMIT as c_int) };
        if result != 0 {
            tracing::error!(result, limit, "the RNIC arms no limit event");
        }
    }

    fn limit(&self) -> usize {
        let mut attributes = ibv_srq_attr::default();
        // SAFETY: the queue lives, and there is room for the attributes.
        let result = unsafe { (self.0.domain.context.library().query_srq)(self.0.raw, &mut attributes) };
        if result == 0 { attributes.srq_limit as usize } else { 0 }
    }

    fn posted(&self) -> Option<usize> {
        None
    }

    #[inline]
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let queue = &*self.0;
        let full = PostErrorKind::QueueFull { queue: "shared receive queue", depth: queue.depth };
        // SAFETY: the queue lives, and the caller guarantees that the memory stays registered.
        unsafe { post_receives(queue.raw, queue.post, list, queue.max_sges, full) }
    }
}
