//! Listening, connecting and disconnecting.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::slice;

use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::DeviceAttributes;
use doorbell_verbs::{QKey, QpKind, Qpn};

use super::channel::IdPointer;
use super::id::{self, BEGUN, Id};
use super::line::{DEFAULT_BACKLOG, Phase};
use super::message::{self, Endpoint, Message, lookup, reason};
use super::object::object;
use super::{device, qp, resolve};
use crate::objects::answer::{Answer, Refused, number};
use crate::process::wait::{Found, NUMBER, Step, Turn, cancellation_point, in_steps};

/// Maximum value of a retry count, which has three bits.
const MOST_RETRIES: u8 = 7;

/// Copies the private data of a program. Returns an error for more than `most` bytes.
///
/// # Safety
///
/// `data` points to `length` bytes.
unsafe fn private_data(data: *const c_void, length: u8, most: usize) -> Answer<Vec<u8>> {
    let length = usize::from(length);
    if length > most {
        return Err(Refused::invalid(format!(
            "{length} bytes of private data are too many: at most {most} are allowed"
        )));
    }
    if length == 0 || data.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the caller guarantees that `data` points to `length` bytes.
    Ok(unsafe { slice::from_raw_parts(data.cast::<u8>(), length) }.to_vec())
}

/// Returns the number of concurrent READs and atomics that a program requests. For `RDMA_MAX_RESP_RES`, returns
/// `otherwise`.
fn depth(wanted: u8, most: u8, otherwise: u8) -> Answer<u8> {
    match wanted {
        wanted if u32::from(wanted) == c::RDMA_MAX_RESP_RES => Ok(otherwise),
        wanted if wanted <= most => Ok(wanted),
        wanted => Err(Refused::invalid(format!(
            "{wanted} concurrent READs and atomics are too many: at most {most} are allowed"
        ))),
    }
}

fn most_reads(device: &DeviceAttributes) -> u8 {
    u8::try_from(device.limits.max_rd_atomic).unwrap_or(u8::MAX)
}

/// Builds the endpoint of this side from the program's parameters and the queue pair of the id.
fn endpoint(own: &Id, param: Option<&c::rdma_conn_param>) -> Answer<Endpoint> {
    let device = &device::context_of(own)?.device.attributes;
    let queue_pair = own.qp();
    let qpn = match (queue_pair.is_null(), param) {
        // SAFETY: the queue pair of an id exists while the id refers to it.
        (false, _) => unsafe { (*queue_pair).qp_num },
        (true, Some(param)) => param.qp_num,
        (true, None) => {
            return Err(Refused::invalid(
                "the id has no queue pair: create one on the id, or name one in the parameters",
            ));
        }
    };
    if qpn >> 24 != 0 {
        return Err(Refused::invalid(format!("queue pair number {qpn:#x} has more than 24 bits")));
    }
    let srq = if queue_pair.is_null() {
        param.is_some_and(|param| param.srq != 0)
    } else {
        // SAFETY: the queue pair of an id exists while the id refers to it.
        unsafe { !(*queue_pair).srq.is_null() }
    };
    let terms = own.line.state().terms;
    Ok(Endpoint {
        gid: device.gid,
        qpn: Qpn::new(qpn),
        psn: terms.psn,
        path_mtu: terms.path_mtu(device.active_mtu),
        responder_resources: terms.responder_resources,
        initiator_depth: terms.initiator_depth,
        rnr_retry: param.map_or(MOST_RETRIES, |param| param.rnr_retry_count.min(MOST_RETRIES)),
        flow_control: param.is_some_and(|param| param.flow_control != 0),
        srq,
    })
}

/// # Safety
///
/// The C contract of `rdma_connect`.
unsafe fn connect(id: *mut c::rdma_cm_id, param: *const c::rdma_conn_param) -> Answer<()> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (own, param) = unsafe { (id::own(id)?, param.as_ref()) };
    if own.line.state().phase != Phase::RouteResolved {
        return Err(Refused::invalid(
            "the id cannot connect: its route must be resolved, and an id connects only once",
        ));
    }
    let kind = own.line.state().kind;
    let room = if kind == QpKind::Ud { message::LOOKUP_PRIVATE } else { message::REQUEST_PRIVATE };
    let private = match param {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        Some(param) if param.private_data_len > 0 => unsafe {
            private_data(param.private_data, param.private_data_len, room)?
        },
        _ => own.defaults().private.clone(),
    };
    let request = if kind == QpKind::Ud {
        Message::Lookup { private }
    } else {
        let most = most_reads(&device::context_of(own)?.device.attributes);
        let retry_count = param.map_or(MOST_RETRIES, |param| param.retry_count.min(MOST_RETRIES));
        let all = c::RDMA_MAX_RESP_RES as u8;
        let responder_resources = depth(param.map_or(all, |param| param.responder_resources), most, most)?;
        let initiator_depth = depth(param.map_or(all, |param| param.initiator_depth), most, most)?;
        {
            let terms = &mut own.line.state().terms;
            terms.retry_count = retry_count;
            (terms.responder_resources, terms.initiator_depth) = (responder_resources, initiator_depth);
        }
        Message::Request { kind, endpoint: endpoint(own, param)?, retry_count, private }
    };
    own.line.connect(request)
}

/// # Safety
///
/// The C contract of `rdma_accept`.
unsafe fn accept(id: *mut c::rdma_cm_id, param: *const c::rdma_conn_param) -> Answer<c_int> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let (own, param) = unsafe { (id::own(id)?, param.as_ref()) };
    let (kind, phase, offered) = {
        let state = own.line.state();
        (state.kind, state.phase, state.terms)
    };
    match phase {
        Phase::Requested => {}
        _ => {
            return Err(Refused::invalid(
                "the id cannot accept: it must belong to an unanswered request whose peer still waits",
            ));
        }
    }
    let room = if kind == QpKind::Ud { message::LOOKUP_REPLY_PRIVATE } else { message::REPLY_PRIVATE };
    let private = match param {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        Some(param) => unsafe { private_data(param.private_data, param.private_data_len, room)? },
        None => Vec::new(),
    };
    if kind == QpKind::Ud {
        let Endpoint { gid, qpn, .. } = endpoint(own, param)?;
        let reply =
            Message::LookupReply { status: lookup::SUCCESS, gid, qpn, qkey: QKey::new(c::RDMA_UDP_QKEY), private };
        own.line.answer(Phase::Requested, &reply, Phase::Over)?;
        return Ok(0); // the program gets no event after accepting a lookup
    }
    let most = most_reads(&device::context_of(own)?.device.attributes);
    let all = c::RDMA_MAX_RESP_RES as u8;
    let responder =
        depth(param.map_or(all, |param| param.responder_resources), most, offered.responder_resources.min(most))?;
    let initiator = depth(param.map_or(all, |param| param.initiator_depth), most, offered.initiator_depth.min(most))?;
    {
        let terms = &mut own.line.state().terms;
        (terms.responder_resources, terms.initiator_depth) = (responder, initiator);
    }
    if !own.qp().is_null() {
        qp::make_ready(own)?;
    }
    let reply = Message::Reply { endpoint: endpoint(own, param)?, private };
    if let Err(refused) = own.line.answer(Phase::Requested, &reply, Phase::Accepted) {
        qp::stop(own);
        return Err(refused);
    }
    Ok(BEGUN)
}

/// Handles a reply. If the id has a queue pair, makes the queue pair ready and confirms the reply to the peer. Returns
/// the kind and status of the event.
pub(super) fn complete(id: IdPointer) -> (c::rdma_cm_event_type, c_int) {
    // SAFETY: an id exists until its events are acknowledged.
    let Ok(own) = (unsafe { object::<Id>(id.0) }) else { return (c::RDMA_CM_EVENT_CONNECT_RESPONSE, 0) };
    if own.qp().is_null() {
        return (c::RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    }
    match qp::make_ready(own) {
        Ok(()) => {
            // If the peer has left since it replied, the next event reports that.
            let _ = own.line.answer(Phase::Answered, &Message::ReadyToUse, Phase::Established);
            (c::RDMA_CM_EVENT_ESTABLISHED, 0)
        }
        Err(refused) => {
            refused.tell("rdma_get_cm_event");
            qp::stop(own);
            let rejection = Message::Reject { reason: reason::CONSUMER_DEFINED, private: Vec::new() };
            let _ = own.line.answer(Phase::Answered, &rejection, Phase::Over);
            (c::RDMA_CM_EVENT_CONNECT_ERROR, -refused.errno)
        }
    }
}

/// Stops the queue pair of an id whose connection the peer rejected.
pub(super) fn give_up(id: IdPointer) {
    // SAFETY: an id exists until its events are acknowledged.
    if let Ok(own) = unsafe { object::<Id>(id.0) } {
        qp::stop(own);
    }
}

/// # Safety
///
/// The C contract of `rdma_reject`.
unsafe fn reject(id: *mut c::rdma_cm_id, why: u16, data: *const c_void, length: u8) -> Answer<()> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { id::own(id) }?;
    let (kind, phase) = {
        let state = own.line.state();
        (state.kind, state.phase)
    };
    let room = if kind == QpKind::Ud { message::LOOKUP_REPLY_PRIVATE } else { message::REJECT_PRIVATE };
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let private = unsafe { private_data(data, length, room) }?;
    // As in Linux, an id can reject only in these phases (`ib_send_cm_rej`, and `ib_send_cm_sidr_rep` for datagrams).
    let may_reject = match phase {
        Phase::Requested => true,
        Phase::Answered | Phase::Accepted | Phase::Connecting { connected: true } => kind != QpKind::Ud,
        _ => false,
    };
    if !may_reject {
        let why = "the id cannot reject: its connection must be in set-up and unanswered, and its peer must still wait";
        return Err(Refused::invalid(why));
    }
    let rejection = if kind == QpKind::Ud {
        let gid = device::context_of(own)?.device.attributes.gid;
        let (qpn, qkey) = (Qpn::new(0), QKey::new(0));
        Message::LookupReply { status: lookup::REJECTED, gid, qpn, qkey, private }
    } else {
        Message::Reject { reason: why, private }
    };
    own.line.answer(phase, &rejection, Phase::Over)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut c::rdma_cm_id, backlog: c_int) -> c_int {
    number("rdma_listen", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { id::own(id) }?;
        if !own.line.is_bound() && own.line.state().phase == Phase::Idle {
            resolve::bind(own, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let backlog = usize::try_from(backlog).unwrap_or(0);
        own.line.listen(if backlog == 0 { DEFAULT_BACKLOG } else { backlog.min(DEFAULT_BACKLOG) })?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_connect(id: *mut c::rdma_cm_id, param: *mut c::rdma_conn_param) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::synchronously("rdma_connect", id, move || connect(id, param).map(|()| BEGUN)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_accept(id: *mut c::rdma_cm_id, param: *mut c::rdma_conn_param) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::synchronously("rdma_accept", id, move || accept(id, param)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_reject(id: *mut c::rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    number("rdma_reject", || unsafe { reject(id, reason::CONSUMER_DEFINED, data, length) }.map(|()| 0))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_reject_ece(id: *mut c::rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    number("rdma_reject_ece", || unsafe { reject(id, reason::VENDOR_OPTION, data, length) }.map(|()| 0))
}

/// Confirms the reply to the peer. Only for a program whose queue pair was not created on the id.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_establish(id: *mut c::rdma_cm_id) -> c_int {
    number("rdma_establish", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { id::own(id) }?;
        if !own.qp().is_null() {
            return Err(Refused::invalid(
                "the id has a queue pair, so rdma_get_cm_event establishes the connection: do not call rdma_establish",
            ));
        }
        own.line.answer(Phase::Answered, &Message::ReadyToUse, Phase::Established)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_notify(id: *mut c::rdma_cm_id, event: c::ibv_event_type) -> c_int {
    number("rdma_notify", || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { id::own(id) }?;
        if event != c::IBV_EVENT_COMM_EST {
            return Err(Refused::invalid(format!(
                "event {event} does not concern connections: must be IBV_EVENT_COMM_EST"
            )));
        }
        own.line.note_established()?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut c::rdma_cm_id) -> c_int {
    let begin = move || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { id::own(id) }?;
        if own.line.has_begun() {
            // Stop the queue pair before the disconnect message, so that the queue pair sends nothing to a peer that
            // has ended the connection.
            qp::stop(own);
        }
        own.line.disconnect()?;
        Ok(if own.line.owes_news() { BEGUN } else { 0 })
    };
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { id::synchronously("rdma_disconnect", id, begin) }
}

/// Returns the id of the next request to a synchronous listener, or the step that waits for a request.
///
/// # Safety
///
/// The C contract of `rdma_get_request`.
unsafe fn get_request(listener: *mut c::rdma_cm_id, turn: Turn) -> Answer<Found<*mut c::rdma_cm_id>> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { id::own(listener) }?;
    if !own.is_sync() {
        return Err(Refused::invalid("the id has an event channel: retrieve its requests with rdma_get_cm_event"));
    }
    let event = match own.next_event(turn)? {
        Ok(event) => event,
        Err(step) => return Ok(Err(step)),
    };
    // SAFETY: the event was just retrieved. The event exists until the listener retrieves its next event.
    let (kind, child) = unsafe { ((*event).event, (*event).id) };
    if kind != c::RDMA_CM_EVENT_CONNECT_REQUEST {
        return Err(Refused::invalid("the id is not a listener: call rdma_listen first"));
    }
    let (init, pd) = {
        let defaults = own.defaults();
        (defaults.qp, defaults.pd)
    };
    if let Some(mut init) = init {
        // SAFETY: the id was just created. The protection domain exists while the listener uses it.
        let created = unsafe { id::own(child).and_then(|child| qp::create(child, pd, &mut init)) };
        if let Err(refused) = created {
            // SAFETY: the program does not know the id, and has retrieved no event of this id.
            unsafe { id::destroy(child) }?;
            return Err(refused);
        }
    }
    // Move the event from the listener to the child. Otherwise, the listener would acknowledge the event when it
    // retrieves its next event.
    // SAFETY: both ids exist, and no other call uses them now.
    unsafe {
        (*own.c.get()).event = std::ptr::null_mut();
        (*child).event = event;
    }
    Ok(Ok(child))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listener: *mut c::rdma_cm_id,
    id: *mut *mut c::rdma_cm_id,
) -> c_int {
    cancellation_point();
    in_steps("rdma_get_request", NUMBER, move |turn| {
        if id.is_null() {
            return Err(Refused::invalid("the pointer to the id is null"));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe {
            match get_request(listener, turn)? {
                Ok(child) => id.write(child),
                Err(step) => return Ok(step),
            }
        }
        Ok(Step::Done(0))
    })
}

/// # Safety
///
/// The C contract of the function that calls this one.
unsafe fn no_enhancements(call: &str, id: *mut c::rdma_cm_id) -> c_int {
    number(call, || {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { id::own(id) }?;
        Err(Refused::unsupported("the device has no vendor-specific enhancements"))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_set_local_ece(id: *mut c::rdma_cm_id, _ece: *mut c::ibv_ece) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { no_enhancements("rdma_set_local_ece", id) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_remote_ece(id: *mut c::rdma_cm_id, _ece: *mut c::ibv_ece) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    unsafe { no_enhancements("rdma_get_remote_ece", id) }
}
