//! Completion channels and completion queues.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_fabric::EventIdentity;
use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::raw::{Provider, Sleepers};
use doorbell_verbs::{Attachment, Completion, CompletionOpcode, CqId, Notify, PortState, Status, raw};

use crate::objects::answer::{Answer, Refused, pointer, set_errno, status};
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::event::{Element, Source};
use crate::objects::handle::{Kind, Object, Users, object};
use crate::process::explain::{explain, is_wanted};
use crate::process::wait::{
    NUMBER, STATUS, Sleep, Step, Turn, Unacknowledged, as_if_asleep, cancellation_point, expect_waiting, in_steps,
    interruption,
};

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    c: c::ibv_comp_channel,
    raw: Arc<dyn raw::Channel>,
    identity: EventIdentity,
    /// Whether the descriptor was open and lacked O_NONBLOCK when a call checked it last. False before the first check.
    was_blocking: AtomicBool,
    sleepers: Arc<Sleepers>,
    device: Arc<Device>,
    users: Users,
    cqs: Mutex<HashMap<CqId, CqPointer>>,
}

/// C pointer of a completion queue.
struct CqPointer(*mut c::ibv_cq);

// SAFETY: `Channel` is `#[repr(C)]` and begins with an `ibv_comp_channel`.
unsafe impl Object for Channel {
    type C = c::ibv_comp_channel;
    const KIND: Kind = Kind::Channel;
}

impl Channel {
    fn cqs(&self) -> MutexGuard<'_, HashMap<CqId, CqPointer>> {
        self.cqs.lock().ignore_poison()
    }

    /// Checks whether a call that found no notification may wait for one, as [`expect_waiting`] does.
    fn expect_waiting(&self, turn: Turn) -> Answer<()> {
        let checked = expect_waiting(self.c.fd, self.identity, turn);
        self.was_blocking.store(checked.is_ok(), Ordering::Relaxed);
        checked
    }

    /// Takes the oldest notification of the channel. Returns `None` if there is no notification of an existing queue.
    fn take(&self) -> Option<*mut c::ibv_cq> {
        // `destroy` removes the queue from the table under the same lock. So either this thread no longer finds the
        // queue, or `destroy` waits until the notification is acknowledged.
        let cqs = self.cqs();
        while let Some(id) = self.raw.next() {
            if let Some(&CqPointer(cq)) = cqs.get(&id) {
                // SAFETY: a queue in the table exists, since `destroy` removes it from the table first.
                if let Ok(own) = unsafe { object::<Cq>(cq) } {
                    own.notifications.add();
                }
                return Some(cq);
            }
        }
        None
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut c::ibv_context) -> *mut c::ibv_comp_channel {
    pointer("ibv_create_comp_channel", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { Context::of(context) }?;
        own.device.expect_own()?;
        let raw = own.device.provider.create_channel()?;
        let c = c::ibv_comp_channel { context, fd: raw.fd().as_raw_fd(), refcnt: 0 };
        let sleepers = raw.sleepers().cloned();
        let sleepers = sleepers.ok_or_else(|| {
            Refused::unsupported(
                "the device signals notifications only through its descriptor, on which this library cannot wait",
            )
        })?;
        let (identity, device) = (EventIdentity::of(raw.fd()), Arc::clone(&own.device));
        let (users, cqs, was_blocking) = (Users::default(), Mutex::default(), AtomicBool::new(false));
        Ok(own.handles.give(Channel { c, raw, identity, was_blocking, sleepers, device, users, cqs }))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut c::ibv_comp_channel) -> c_int {
    status("ibv_destroy_comp_channel", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Channel>(channel) }?;
        own.users.expect_none("completion channel")?;
        // SAFETY: a context exists while objects of it exist. No queue notifies the channel, and the program does not
        // use the channel any more.
        drop(unsafe { Context::of(own.c.context)?.handles.take::<Channel>(channel) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut c::ibv_comp_channel,
    cq: *mut *mut c::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    cancellation_point();
    in_steps("ibv_get_cq_event", NUMBER, move |turn| {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Channel>(channel) }?;
        own.device.expect_own()?;
        let added = own.sleepers.added();
        let Some(found) = own.take() else {
            if turn != Turn::First {
                own.expect_waiting(turn)?;
                return match turn {
                    Turn::Lingered { interrupted: true } => Err(interruption()),
                    _ => Ok(Step::Sleep(Sleep::new(&own.sleepers, added))),
                };
            }
            // Each check is a system call, and a notification usually arrives while the caller lingers. If the last
            // check allowed waiting, linger first and check before the sleep. A program that has set O_NONBLOCK since
            // then gets EAGAIN about 0.1 ms late, once: the failed check makes the next calls check first.
            if !own.was_blocking.load(Ordering::Relaxed) {
                own.expect_waiting(turn)?;
            }
            return Ok(Step::Handle(as_if_asleep(|| own.raw.linger())));
        };
        // SAFETY: the caller provides memory for the results. The queue exists until this notification is acknowledged.
        unsafe {
            cq.write(found);
            cq_context.write((*found).cq_context);
        }
        Ok(Step::Done(0))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut c::ibv_cq, events: c_uint) {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    if let Ok(own) = unsafe { object::<Cq>(cq) }
        && own.device.is_own()
    {
        own.notifications.acknowledge(events.into());
    }
}

/// A completion queue. C code sees an `ibv_cq`. If the program created the queue as an `ibv_cq_ex`, C code sees an
/// `ibv_cq_ex`, which begins with an `ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) c: UnsafeCell<c::ibv_cq_ex>,
    pub(crate) raw: Box<dyn raw::Cq>,
    pub(crate) device: Arc<Device>,
    channel: *mut c::ibv_comp_channel,
    source: Option<Source>,
    pub(crate) users: Users,
    /// Completion events that the program has retrieved but not acknowledged.
    notifications: Unacknowledged,
    /// Asynchronous events that the program has retrieved but not acknowledged.
    pub(crate) unacknowledged: Unacknowledged,
    /// Lock that a polling thread holds from `ibv_start_poll` to `ibv_end_poll`.
    pub(crate) polling: AtomicBool,
    /// Completion that the latest `ibv_start_poll` or `ibv_next_poll` returned.
    pub(crate) current: UnsafeCell<Completion>,
}

// SAFETY: `Cq` is `#[repr(C)]` and begins with an `ibv_cq_ex`, whose first fields are those of an `ibv_cq`.
unsafe impl Object for Cq {
    type C = c::ibv_cq;
    const KIND: Kind = Kind::Cq;
}

impl Cq {
    /// Ends all waits for acknowledgements. Called when the program will acknowledge no more events.
    pub(crate) fn give_up(&self) {
        self.notifications.give_up();
        self.unacknowledged.give_up();
    }

    pub(crate) fn context(&self) -> *mut c::ibv_context {
        // SAFETY: the field is set when the queue is created, and never changes.
        unsafe { (*self.c.get()).context }
    }
}

/// Creates a completion queue with exactly `depth` entries.
///
/// # Safety
///
/// The C contract of `ibv_create_cq`.
pub(crate) unsafe fn create(
    context: *mut c::ibv_context,
    depth: usize,
    cq_context: *mut c_void,
    channel: *mut c::ibv_comp_channel,
    vector: c_uint,
) -> Answer<*mut c::ibv_cq> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { Context::of(context) }?;
    own.device.expect_own()?;
    if vector != 0 {
        return Err(Refused::invalid(format!("completion vector {vector} does not exist: must be 0")));
    }
    // SAFETY: by the C contract, `channel` is null or a channel.
    let notified = if channel.is_null() { None } else { Some(unsafe { object::<Channel>(channel) }?) };
    if notified.is_some_and(|notified| notified.c.context != context) {
        return Err(Refused::invalid("the completion channel belongs to another context than the completion queue"));
    }
    let raw = own.device.provider.create_cq(depth, notified.map(|channel| &channel.raw))?;
    let id = raw.id();
    let c = c::ibv_cq_ex { context, channel, cq_context, handle: id.0, cqe: depth as c_int, ..c::ibv_cq_ex::default() };
    let cq = own.handles.give(Cq {
        c: UnsafeCell::new(c),
        raw,
        device: Arc::clone(&own.device),
        channel,
        source: None,
        users: Users::default(),
        notifications: Unacknowledged::default(),
        unacknowledged: Unacknowledged::default(),
        polling: AtomicBool::new(false),
        current: UnsafeCell::new(Completion::default()),
    });
    let source = Source::new(Element::Cq(cq), own);
    // SAFETY: no other thread knows the new queue yet.
    unsafe { (*cq.cast::<Cq>()).source = Some(source.clone()) };
    own.device.sources().cqs.insert(id, source);
    if let Some(channel) = notified {
        channel.users.add();
        channel.cqs().insert(id, CqPointer(cq));
    }
    Ok(cq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut c::ibv_context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut c::ibv_comp_channel,
    vector: c_int,
) -> *mut c::ibv_cq {
    pointer("ibv_create_cq", || {
        let depth = usize::try_from(depth)
            .map_err(|_| Refused::invalid(format!("depth {depth} of the completion queue: must not be negative")))?;
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { create(context, depth, cq_context, channel, vector as c_uint) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut c::ibv_cq, depth: c_int) -> c_int {
    status("ibv_resize_cq", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Cq>(cq) }?;
        own.device.expect_own()?;
        let wanted = usize::try_from(depth)
            .map_err(|_| Refused::invalid(format!("depth {depth} of the completion queue: must not be negative")))?;
        own.raw.resize(wanted)?;
        // SAFETY: verbs allow C programs to read this field at any time, also during the write.
        unsafe { (*own.c.get()).cqe = depth };
        Ok(())
    })
}

/// Destroys a completion queue, once the program has acknowledged all retrieved events of this queue.
///
/// # Safety
///
/// The C contract of `ibv_destroy_cq`.
pub(crate) unsafe fn destroy(cq: *mut c::ibv_cq) -> Answer<Step> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { object::<Cq>(cq) }?;
    own.device.expect_own()?;
    own.users.expect_none("completion queue")?;
    let id = own.raw.id();
    own.device.sources().cqs.remove(&id);
    if let Some(source) = &own.source {
        source.close();
    }
    // SAFETY: a channel exists while queues notify it.
    let channel = unsafe { object::<Channel>(own.channel) }.ok();
    if let Some(channel) = channel {
        channel.cqs().remove(&id);
    }
    if let Err(step) = own.unacknowledged.none().and_then(|()| own.notifications.none()) {
        return Ok(step);
    }
    // SAFETY: a context exists while objects of it exist. No queue pair uses the queue, and the program does not use
    // the queue any more.
    drop(unsafe { Context::of(own.context())?.handles.take::<Cq>(cq) });
    if let Some(channel) = channel {
        channel.users.remove();
    }
    Ok(Step::Done(0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_destroy_cq(cq: *mut c::ibv_cq) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    in_steps("ibv_destroy_cq", STATUS, move |_| unsafe { destroy(cq) })
}

/// Maximum number of completions that one step of a poll takes from the queue.
const CHUNK: usize = 16;

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut c::ibv_cq, room: c_int, places: *mut c::ibv_wc) -> c_int {
    // SAFETY: by the C contract, the queue exists.
    let own = unsafe { &*cq.cast::<Cq>() };
    if !own.device.is_own() || room < 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    let _uncancelled = own.device.uncancelled();
    let mut done = 0;
    let room = room as usize;
    while done < room {
        let mut chunk = [Completion::default(); CHUNK];
        let wanted = (room - done).min(CHUNK);
        let Ok(found) = own.raw.poll(&mut chunk[..wanted]) else {
            // The queue has overrun. First return the completions that this call has already taken. The next call will
            // report the overrun.
            if done > 0 {
                break;
            }
            set_errno(libc::EOVERFLOW);
            return -1;
        };
        for completion in &chunk[..found] {
            explain_failure(&own.device, completion.status);
            // SAFETY: the caller has memory for `room` completions.
            unsafe { places.add(done).write(work_completion(completion, own)) };
            done += 1;
        }
        if found < wanted {
            break;
        }
    }
    done as c_int
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut c::ibv_cq, solicited_only: c_int) -> c_int {
    status("ibv_req_notify_cq", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { object::<Cq>(cq) }?;
        own.device.expect_own()?;
        own.raw.arm(if solicited_only != 0 { Notify::Solicited } else { Notify::Next });
        Ok(())
    })
}

/// Maximum number of causes that [`explain_failure`] prints for a status. `doorbell man --markdown` writes all.
const MOST_CAUSES: usize = 3;

/// Explains the status of a failed completion by its most frequent causes. A flushed request has no cause of its own.
#[inline]
pub(crate) fn explain_failure(device: &Device, status: Status) {
    if !matches!(status, Status::Success | Status::WorkRequestFlushed) && is_wanted() {
        let is_port_down = device.port_state().is_ok_and(|state| state == PortState::Down);
        for why in causes(status, is_port_down) {
            explain(&format_args!("a completion has status {} ({})", status.number(), status.text()), &why);
        }
    }
}

/// Returns sentences about the causes of a status, known facts first.
fn causes(status: Status, is_port_down: bool) -> Vec<String> {
    let of_port = "the port of this device is down, so packets neither leave nor arrive. Check: `doorbell port`";
    let of_port = (is_port_down && status == Status::RetryExceeded).then(|| of_port.to_owned());
    let known = status.causes().iter().map(|cause| format!("perhaps {}. Check: {}", cause.cause, cause.check));
    of_port.into_iter().chain(known).take(MOST_CAUSES).collect()
}

pub(crate) fn wc_status(status: Status) -> c::ibv_wc_status {
    match status {
        Status::Success => c::IBV_WC_SUCCESS,
        Status::LocalLength => c::IBV_WC_LOC_LEN_ERR,
        Status::LocalQpOperation => c::IBV_WC_LOC_QP_OP_ERR,
        Status::LocalProtection => c::IBV_WC_LOC_PROT_ERR,
        Status::WorkRequestFlushed => c::IBV_WC_WR_FLUSH_ERR,
        Status::BadResponse => c::IBV_WC_BAD_RESP_ERR,
        Status::MemoryWindowBind => c::IBV_WC_MW_BIND_ERR,
        Status::LocalAccess => c::IBV_WC_LOC_ACCESS_ERR,
        Status::RemoteInvalidRequest => c::IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteAccess => c::IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperation => c::IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => c::IBV_WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => c::IBV_WC_RNR_RETRY_EXC_ERR,
        _ => c::IBV_WC_GENERAL_ERR,
    }
}

pub(crate) fn wc_opcode(opcode: CompletionOpcode) -> c::ibv_wc_opcode {
    match opcode {
        CompletionOpcode::Send => c::IBV_WC_SEND,
        CompletionOpcode::Write => c::IBV_WC_RDMA_WRITE,
        CompletionOpcode::Read => c::IBV_WC_RDMA_READ,
        CompletionOpcode::CompareSwap => c::IBV_WC_COMP_SWAP,
        CompletionOpcode::FetchAdd => c::IBV_WC_FETCH_ADD,
        CompletionOpcode::BindWindow => c::IBV_WC_BIND_MW,
        CompletionOpcode::LocalInvalidate => c::IBV_WC_LOCAL_INV,
        CompletionOpcode::Receive => c::IBV_WC_RECV,
        CompletionOpcode::ReceiveWriteImmediate => c::IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

pub(crate) fn wc_flags(completion: &Completion) -> c_uint {
    let attached = match completion.attachment {
        Attachment::None => 0,
        Attachment::Immediate(_) => c::IBV_WC_WITH_IMM,
        Attachment::Invalidated(_) => c::IBV_WC_WITH_INV,
    };
    attached | if completion.has_grh { c::IBV_WC_GRH } else { 0 }
}

/// Returns the immediate data in network byte order, or the invalidated key.
pub(crate) fn wc_attachment(completion: &Completion) -> u32 {
    match completion.attachment {
        Attachment::None => 0,
        Attachment::Immediate(immediate) => immediate.to_be(),
        Attachment::Invalidated(rkey) => rkey.get(),
    }
}

/// Returns the value of the service level field: for a datagram, the IP version of its packet, as with mlx5; otherwise
/// 0.
///
/// RoCE v2 has no service level (IBTA A17.4.5.1), and verbs have no field for the IP version. UCX needs the IP version
/// to find the addresses in the 40 bytes before the payload, and reads it from the service level field. rxe leaves the
/// field at 0.
pub(crate) fn wc_sl(completion: &Completion, cq: &Cq) -> u8 {
    const UDP: u8 = 1 << 3;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    match (completion.has_grh, cq.device.attributes.address.is_ipv4()) {
        (false, _) => 0,
        (true, false) => UDP | IPV6,
        (true, true) => UDP | IPV4,
    }
}

fn work_completion(completion: &Completion, cq: &Cq) -> c::ibv_wc {
    c::ibv_wc {
        wr_id: completion.wr_id,
        status: wc_status(completion.status),
        opcode: wc_opcode(completion.opcode),
        vendor_err: 0,
        byte_len: completion.byte_len,
        __bindgen_anon_1: c::ibv_wc__bindgen_ty_1 { invalidated_rkey: wc_attachment(completion) },
        qp_num: completion.qpn.get(),
        src_qp: completion.source_qpn.get(),
        wc_flags: wc_flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: wc_sl(completion, cq),
        dlid_path_bits: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_down_is_the_first_cause_of_lost_answers() {
        let first = |status, is_port_down| causes(status, is_port_down).remove(0);
        assert!(first(Status::RetryExceeded, true).starts_with("the port of this device is down"));
        assert!(first(Status::RetryExceeded, false).starts_with("perhaps the peer ended"));
        assert!(first(Status::RemoteAccess, true).starts_with("perhaps "));
        assert_eq!(causes(Status::RetryExceeded, true).len(), MOST_CAUSES);
    }

    #[test]
    fn numbers_of_statuses_are_those_of_libibverbs() {
        for status in Status::FAILED.into_iter().chain([Status::Success]) {
            assert_eq!(wc_status(status), status.number(), "{status:?}");
        }
    }
}
