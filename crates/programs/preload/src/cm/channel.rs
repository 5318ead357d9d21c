//! Event channels. The service thread or a call of the program queues events in a channel, and the program retrieves
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_fabric::EventIdentity;
use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::raw::Notices;
use doorbell_verbs::{QKey, Qpn};

use super::id::Id;
use super::line::Line;
use super::message::{self, Endpoint};
use super::object::{Object, give, object, take};
use super::{connect, id};
use crate::objects::answer::{Answer, Refused, number, pointer};
use crate::objects::event::blocking_notices;
use crate::objects::handle::Users;
use crate::process::fork;
use crate::process::wait::{Found, NUMBER, Sleep, Step, Turn, cancellation_point, expect_waiting, in_steps};

/// Pointer to an id of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdPointer(pub(super) *mut c::rdma_cm_id);

impl IdPointer {
    pub(super) const NONE: Self = Self(ptr::null_mut());
}

// SAFETY: other threads pass on the pointer without using it. Only the thread that retrieves an event uses the pointer.
// The id exists until the program acknowledges the event.
unsafe impl Send for IdPointer {}

/// Context pointer that a program passed in. The library returns the pointer to the program with an event.
pub(super) struct Opaque(pub(super) *mut c_void);

// SAFETY: the library passes on the pointer without using it.
unsafe impl Send for Opaque {}

/// Queue pair number that addresses all queue pairs attached to a group (IBTA Vol 1, 10.5.2.1).
const MULTICAST_QPN: u32 = 0xff_ffff;

/// Event of an id. The program has not retrieved this event yet.
pub(super) struct PendingEvent {
    pub(super) id: IdPointer,
    pub(super) kind: c::rdma_cm_event_type,
    pub(super) status: c_int,
    pub(super) detail: Detail,
}

/// Details of an event.
pub(super) enum Detail {
    Nothing,
    /// A request to a listener. A request to a datagram service (SIDR_REQ) has no endpoint.
    Request {
        line: Arc<Line>,
        endpoint: Option<Endpoint>,
        retry_count: u8,
        private: Vec<u8>,
    },
    Connection {
        endpoint: Endpoint,
        retry_count: u8,
        private: Vec<u8>,
    },
    Datagram {
        gid: Ipv6Addr,
        qpn: Qpn,
        qkey: QKey,
        private: Vec<u8>,
    },
    Rejection {
        private: Vec<u8>,
    },
    /// The peer refused the request to its datagram service (SIDR_REQ).
    NoService {
        private: Vec<u8>,
    },
    Group {
        address: IpAddr,
        context: Opaque,
    },
}

/// Events that the program has not retrieved yet, and the descriptor that is readable while such events exist.
pub(super) struct Queue {
    waiting: Notices<PendingEvent>,
    identity: EventIdentity,
    /// Fork generation of the process that owns the queue.
    generation: u32,
    /// Ids that report to this queue.
    pub(super) users: Users,
}

impl Queue {
    pub(super) fn new() -> Answer<Arc<Self>> {
        Ok(Self::with(blocking_notices()?))
    }

    fn with(waiting: Notices<PendingEvent>) -> Arc<Self> {
        let identity = EventIdentity::of(waiting.fd());
        Arc::new(Self { waiting, identity, generation: fork::generation(), users: Users::default() })
    }

    /// Creates an empty queue for a forked child. The new queue's descriptor has the number and flags of the old
    /// descriptor.
    ///
    /// # Safety
    ///
    /// After this call, no code uses or drops `self`.
    unsafe fn renewed(&self) -> nix::Result<Arc<Self>> {
        // SAFETY: the caller no longer uses or drops this queue, so it does not use or drop the list either.
        Ok(Self::with(unsafe { self.waiting.renewed()? }))
    }

    pub(super) fn push(&self, news: PendingEvent) {
        self.waiting.lock().push(news);
    }

    fn take(&self) -> Option<PendingEvent> {
        let mut waiting = self.waiting.lock();
        let news = waiting.pop()?;
        // This thread holds the lock of the queue. A call that destroys the id therefore either removes the event or
        // waits for its acknowledgement.
        // SAFETY: an id exists while the queue contains events of it.
        if let Ok(id) = unsafe { object::<Id>(news.id.0) } {
            id.unacknowledged.add();
        }
        Some(news)
    }

    /// Removes all events of one id from the queue, and returns them.
    pub(super) fn take_all_of(&self, id: IdPointer) -> VecDeque<PendingEvent> {
        self.waiting.lock().remove(|news| news.id == id)
    }

    pub(super) fn has_news_of(&self, id: IdPointer) -> bool {
        self.waiting.lock().iter().any(|news| news.id == id)
    }

    /// Returns the number of requests to a listener that the program has not retrieved.
    pub(super) fn requests_of(&self, listener: IdPointer) -> usize {
        let of = |news: &&PendingEvent| news.id == listener && news.kind == c::RDMA_CM_EVENT_CONNECT_REQUEST;
        self.waiting.lock().iter().filter(of).count()
    }
}

/// An event channel. The structure begins with the C structure.
#[repr(C)]
pub(super) struct Channel {
    c: c::rdma_event_channel,
    queue: Mutex<Arc<Queue>>,
}

impl Channel {
    /// Returns the channel's queue in this process. The events of an inherited queue belong to the parent process. So a
    /// forked child creates its own queue when it first uses the channel.
    pub(super) fn queue(&self) -> Answer<Arc<Queue>> {
        let mut queue = self.queue.lock().ignore_poison();
        if queue.generation != fork::generation() {
            // SAFETY: calls on inherited ids fail. The old queue is forgotten below instead of dropped.
            let renewed = unsafe { queue.renewed() }.map_err(|error| {
                Refused::new(error as c_int, format!("an inherited event channel could not be renewed: {error}"))
            })?;
            // Threads of the parent, which do not exist in this process, may hold locks of the old queue.
            std::mem::forget(std::mem::replace(&mut *queue, renewed));
        }
        Ok(Arc::clone(&queue))
    }
}

// SAFETY: `Channel` is `#[repr(C)]` and begins with an `rdma_event_channel`.
unsafe impl Object for Channel {
    type C = c::rdma_event_channel;
    const NAME: &'static str = "event channel";
}

/// All existing channels, by their addresses.
///
/// A program may destroy a channel while another thread is about to retrieve an event from the channel. For example,
/// rping does so up to release 58 of rdma-core. With librdmacm, the retrieving thread then gets EBADF from the kernel.
/// Therefore each call looks up the channel in this table before it uses the channel's memory.
static CHANNELS: Mutex<BTreeMap<usize, Arc<Channel>>> = Mutex::new(BTreeMap::new());

fn channels() -> MutexGuard<'static, BTreeMap<usize, Arc<Channel>>> {
    CHANNELS.lock().ignore_poison()
}

/// Returns the channel to which a C pointer refers, if the channel exists.
fn find(channel: *mut c::rdma_event_channel) -> Answer<Arc<Channel>> {
    if channel.is_null() {
        return Err(Refused::invalid(format!("the {} is null", Channel::NAME)));
    }
    let found = channels().get(&channel.addr()).map(Arc::clone);
    found.ok_or_else(|| Refused::new(libc::EBADF, format!("no {} exists at {channel:p}", Channel::NAME)))
}

pub(super) fn create() -> Answer<*mut c::rdma_event_channel> {
    let queue = Queue::new()?;
    let c = c::rdma_event_channel { fd: queue.waiting.fd().as_raw_fd() };
    let channel = Arc::new(Channel { c, queue: Mutex::new(queue) });
    let pointer = Arc::as_ptr(&channel).cast_mut().cast::<c::rdma_event_channel>();
    channels().insert(pointer.addr(), channel);
    Ok(pointer)
}

/// Destroys a channel. Returns an error while ids still report to the channel.
pub(super) fn destroy(channel: *mut c::rdma_event_channel) -> Answer<()> {
    find(channel)?.queue()?.users.expect_none(Channel::NAME)?;
    let gone = channels().remove(&channel.addr());
    drop(gone); // once the lock is free
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut c::rdma_event_channel {
    pointer("rdma_create_event_channel", create)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut c::rdma_event_channel) {
    // The C function returns nothing, so the program does not learn of an error.
    number("rdma_destroy_event_channel", || destroy(channel).map(|()| 0));
}

/// The C event, together with the private data to which it points.
#[repr(C)]
struct Event {
    c: c::rdma_cm_event,
    /// Id whose destruction waits until the program acknowledges this event. For a request, this is the listener.
    owner: IdPointer,
    private: Vec<u8>,
}

// SAFETY: `Event` is `#[repr(C)]` and begins with an `rdma_cm_event`.
unsafe impl Object for Event {
    type C = c::rdma_cm_event;
    const NAME: &'static str = "event";
}

/// Pads private data with zeros to `room` bytes. IBTA's messages have a private data field of fixed size, and programs
/// always see the whole field.
fn padded(mut private: Vec<u8>, room: usize) -> Vec<u8> {
    private.resize(room, 0);
    private
}

fn connection(endpoint: &Endpoint, retry_count: u8, private: &[u8]) -> c::rdma_cm_event__bindgen_ty_1 {
    let conn = c::rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        // Swap the two limits of the peer: this side answers the READs that the peer has outstanding, and the peer
        // answers those of this side.
        responder_resources: endpoint.initiator_depth,
        initiator_depth: endpoint.responder_resources,
        flow_control: endpoint.flow_control.into(),
        retry_count,
        rnr_retry_count: endpoint.rnr_retry,
        srq: endpoint.srq.into(),
        qp_num: endpoint.qpn.get(),
    };
    c::rdma_cm_event__bindgen_ty_1 { conn }
}

/// Builds event parameters that contain only private data. The private data fields have the same offsets in the
/// parameters for connections and for datagrams.
fn only_private(private: &[u8]) -> c::rdma_cm_event__bindgen_ty_1 {
    let (private_data, private_data_len) = (private.as_ptr().cast(), private.len() as u8);
    let ud = c::rdma_ud_param { private_data, private_data_len, ..c::rdma_ud_param::default() };
    c::rdma_cm_event__bindgen_ty_1 { ud }
}

/// Builds the C event. For a request, creates the new id. For a reply, completes the connection. For a rejection, stops
/// the queue pair of the id. Returns `None` for a request if the id cannot be created.
fn event_of(news: PendingEvent) -> Option<Event> {
    let owner = news.id;
    let mut event =
        c::rdma_cm_event { id: news.id.0, event: news.kind, status: news.status, ..c::rdma_cm_event::default() };
    let private = match news.detail {
        Detail::Nothing => Vec::new(),
        Detail::Request { line, endpoint, retry_count, private } => {
            match id::of_request(news.id, &line) {
                Ok(id) => (event.id, event.listen_id) = (id, news.id.0),
                Err(refused) => {
                    refused.tell("rdma_get_cm_event");
                    line.close();
                    return None;
                }
            }
            let room = if endpoint.is_some() { message::REQUEST_PRIVATE } else { message::LOOKUP_PRIVATE };
            let private = padded(private, room);
            event.param = match endpoint {
                Some(endpoint) => connection(&endpoint, retry_count, &private),
                None => only_private(&private),
            };
            private
        }
        Detail::Connection { endpoint, retry_count, private } => {
            let private = padded(private, message::REPLY_PRIVATE);
            event.param = connection(&endpoint, retry_count, &private);
            // If the id has a queue pair, `complete` sets up the queue pair and completes the connection.
            (event.event, event.status) = connect::complete(news.id);
            private
        }
        Detail::Datagram { gid, qpn, qkey, private } => {
            let private = padded(private, message::LOOKUP_REPLY_PRIVATE);
            let ud = c::rdma_ud_param {
                private_data: private.as_ptr().cast(),
                private_data_len: private.len() as u8,
                ah_attr: id::address_of(news.id, gid.to_canonical()),
                qp_num: qpn.get(),
                qkey: qkey.get(),
            };
            event.param = c::rdma_cm_event__bindgen_ty_1 { ud };
            private
        }
        Detail::Group { address, context } => {
            let ud = c::rdma_ud_param {
                private_data: context.0,
                private_data_len: 0,
                ah_attr: id::address_of(news.id, address),
                qp_num: MULTICAST_QPN,
                qkey: c::RDMA_UDP_QKEY,
            };
            event.param = c::rdma_cm_event__bindgen_ty_1 { ud };
            Vec::new()
        }
        Detail::NoService { private } => {
            let private = padded(private, message::LOOKUP_REPLY_PRIVATE);
            event.param = only_private(&private);
            private
        }
        Detail::Rejection { private } => {
            let private = padded(private, message::REJECT_PRIVATE);
            event.param = only_private(&private);
            // The peer rejected the connection, so the program will not use the queue pair.
            connect::give_up(news.id);
            private
        }
    };
    Some(Event { c: event, owner, private })
}

/// Returns the next event of a channel, or the step that waits for an event.
///
/// # Errors
///
/// EBADF if the channel no longer exists, or if the program has closed the channel's descriptor.
pub(super) fn next(channel: *mut c::rdma_event_channel, turn: Turn) -> Answer<Found<*mut c::rdma_cm_event>> {
    let queue = find(channel)?.queue()?;
    let added = queue.waiting.sleepers().added();
    while let Some(news) = queue.take() {
        let id = news.id;
        match event_of(news) {
            Some(event) => return Ok(Ok(give(event))),
            None => acknowledge(id),
        }
    }
    expect_waiting(queue.waiting.fd().as_raw_fd(), queue.identity, turn)?;
    Ok(Err(Step::Sleep(Sleep::new(queue.waiting.sleepers(), added))))
}

fn acknowledge(id: IdPointer) {
    // SAFETY: the id exists until this acknowledgement.
    if let Ok(id) = unsafe { object::<Id>(id.0) } {
        id.unacknowledged.acknowledge(1);
    }
}

/// # Safety
///
/// The program has retrieved the event, and has not acknowledged it yet.
pub(super) unsafe fn acknowledge_event(event: *mut c::rdma_cm_event) -> Answer<()> {
    // SAFETY: the caller guarantees that the event exists. For a null pointer, `object` returns an error.
    let owner = unsafe { object::<Event>(event) }?.owner;
    // SAFETY: the caller guarantees that the program does not use the event any more.
    drop(unsafe { take::<Event>(event) });
    acknowledge(owner);
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut c::rdma_event_channel,
    event: *mut *mut c::rdma_cm_event,
) -> c_int {
    cancellation_point();
    in_steps("rdma_get_cm_event", NUMBER, move |turn| {
        if event.is_null() {
            return Err(Refused::invalid("the pointer to the event is null"));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe {
            match next(channel, turn)? {
                Ok(found) => event.write(found),
                Err(step) => return Ok(step),
            }
        }
        Ok(Step::Done(0))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut c::rdma_cm_event) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    number("rdma_ack_cm_event", || unsafe { acknowledge_event(event) }.map(|()| 0))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_event_str(event: c::rdma_cm_event_type) -> *const c_char {
    let name = match event {
        c::RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c::RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        c::RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c::RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        c::RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c::RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c::RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        c::RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        c::RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        c::RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        c::RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        c::RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c::RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c::RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c::RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        c::RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
