//! Ids: what C sees of a connection, a listener or a datagram service.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_ibverbs_sys as c;
use doorbell_verbs::raw::Provider;
use doorbell_verbs::{AddressVector, QpKind};

use super::channel::{self, Channel, Place, Queue};
use super::line::Line;
use super::multicast::{self, Group};
use super::object::{Object, give, object, take};
use super::ports::Space;
use super::{address, device};
use crate::ah;
use crate::answer::{Answer, Refused, number};
use crate::qp::kind_number;
use crate::query::{DEFAULT_PKEY, PORT};
use crate::wait::{Found, NUMBER, Step, Turn, Unacknowledged, cancellation_point, in_steps};

/// An id.
#[repr(C)]
pub(super) struct Id {
    pub(super) c: UnsafeCell<c::rdma_cm_id>,
    /// What `route.path_rec` points to.
    path: UnsafeCell<c::ibv_sa_path_rec>,
    pub(super) line: Arc<Line>,
    /// Events that were retrieved.
    pub(super) unacknowledged: Unacknowledged,
    /// Calls wait for their event themselves, on a channel of the id's own.
    sync: AtomicBool,
    defaults: Mutex<Defaults>,
    groups: Mutex<Vec<Group>>,
}

/// What `rdma_create_ep` leaves for later calls.
pub(super) struct Defaults {
    /// The queue pair that each request to a listener gets.
    pub(super) qp: Option<c::ibv_qp_init_attr>,
    pub(super) pd: *mut c::ibv_pd,
    /// Private data for `rdma_connect`.
    pub(super) private: Vec<u8>,
}

// SAFETY: `#[repr(C)]`, and begins with an `rdma_cm_id`.
unsafe impl Object for Id {
    type C = c::rdma_cm_id;
    const NAME: &'static str = "id";
}

fn space_of(port_space: c::rdma_port_space) -> Answer<Space> {
    Space::of(port_space).ok_or_else(|| {
        let why = format!("port space {port_space:#x} is not offered: RDMA_PS_TCP, RDMA_PS_UDP and RDMA_PS_IPOIB are");
        Refused::new(libc::EPROTONOSUPPORT, why)
    })
}

/// What carries an id's messages in a port space.
pub(super) fn kind_of(port_space: c::rdma_port_space) -> Answer<QpKind> {
    Ok(match space_of(port_space)? {
        Space::Tcp => QpKind::Rc,
        Space::Udp | Space::Ipoib => QpKind::Ud,
    })
}

/// The id behind a C pointer, which is this process's own.
///
/// # Safety
///
/// If it is not null, `pointer` is an id that was not destroyed.
pub(super) unsafe fn own<'a>(pointer: *mut c::rdma_cm_id) -> Answer<&'a Id> {
    // SAFETY: by the caller's promise.
    let own = unsafe { object::<Id>(pointer) }?;
    own.line.expect_own()?;
    Ok(own)
}

/// Makes an id that reports to `channel`, or to one of its own.
///
/// # Safety
///
/// A channel that exists, or null.
unsafe fn make(
    channel: *mut c::rdma_event_channel,
    context: *mut c_void,
    port_space: c::rdma_port_space,
    line: impl FnOnce(&Arc<Queue>) -> Answer<Arc<Line>>,
) -> Answer<*mut c::rdma_cm_id> {
    let sync = channel.is_null();
    let channel = if sync { channel::create()? } else { channel };
    // SAFETY: by the caller's promise, or just created.
    let reported = unsafe { object::<Channel>(channel) }?;
    let made = reported.queue().and_then(|queue| {
        let line = line(&queue)?;
        queue.users.add();
        Ok(line)
    });
    let line = made.inspect_err(|_| {
        if sync {
            let _ = channel::destroy(channel);
        }
    })?;
    let kind = line.state().kind;
    let c = c::rdma_cm_id { channel, context, ps: port_space, qp_type: kind_number(kind), ..c::rdma_cm_id::default() };
    let defaults = Defaults { qp: None, pd: ptr::null_mut(), private: Vec::new() };
    Ok(give(Id {
        c: UnsafeCell::new(c),
        path: UnsafeCell::default(),
        line,
        unacknowledged: Unacknowledged::default(),
        sync: AtomicBool::new(sync),
        defaults: Mutex::new(defaults),
        groups: Mutex::default(),
    }))
}

/// Creates an id. Without a channel it is a synchronous one.
///
/// # Safety
///
/// The C contract of `rdma_create_id`.
pub(super) unsafe fn create(
    channel: *mut c::rdma_event_channel,
    context: *mut c_void,
    port_space: c::rdma_port_space,
    kind: QpKind,
) -> Answer<*mut c::rdma_cm_id> {
    let space = space_of(port_space)?;
    // SAFETY: the C contract.
    let id = unsafe { make(channel, context, port_space, |queue| Line::new(queue, kind, space)) }?;
    // SAFETY: it was just made.
    unsafe { object::<Id>(id) }?.line.adopt(Place(id));
    Ok(id)
}

/// Makes an id of a request to a listener.
pub(super) fn of_request(listener: Place, line: &Arc<Line>) -> Answer<*mut c::rdma_cm_id> {
    // SAFETY: a listener exists until its events are acknowledged.
    let listening = unsafe { object::<Id>(listener.0) }?;
    // SAFETY: its fields are set by calls on it, which do not run at the same time as this.
    let (channel, context, port_space) = unsafe {
        let c = &*listening.c.get();
        (c.channel, c.context, c.ps)
    };
    let channel = if listening.is_sync() { ptr::null_mut() } else { channel };
    // SAFETY: the channel of an id exists.
    let id = unsafe { make(channel, context, port_space, |_| Ok(Arc::clone(line))) }?;
    // SAFETY: it was just made.
    let own = unsafe { object::<Id>(id) }?;
    let bound = own.bind_device().and_then(|()| {
        let (local, remote) = {
            let state = line.state();
            (state.local, state.remote)
        };
        own.show_addresses(local, remote);
        own.show_route()
    });
    if let Err(refused) = bound {
        // SAFETY: the program does not know it, and has retrieved no event of it.
        unsafe { destroy(id) }?;
        return Err(refused);
    }
    // SAFETY: the channel was just made, or is the listener's.
    line.migrate(&unsafe { object::<Channel>((*own.c.get()).channel) }?.queue()?);
    line.adopt(Place(id));
    Ok(id)
}

/// The address of a datagram service, for an address handle.
pub(super) fn address_of(id: Place, destination: IpAddr) -> c::ibv_ah_attr {
    // SAFETY: an id exists until its events are acknowledged.
    let traffic_class = unsafe { object::<Id>(id.0) }.map_or(0, |own| own.line.state().options.traffic_class);
    ah::ah_attributes(&AddressVector { destination, traffic_class, hop_limit: ah::DEFAULT_HOP_LIMIT })
}

impl Id {
    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    pub(super) fn defaults(&self) -> MutexGuard<'_, Defaults> {
        self.defaults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, Vec<Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue pair that was created on it, or null.
    pub(super) fn qp(&self) -> *mut c::ibv_qp {
        // SAFETY: the program does not create or destroy it while it calls for its use.
        unsafe { (*self.c.get()).qp }
    }

    pub(super) fn verbs(&self) -> *mut c::ibv_context {
        // SAFETY: set by calls on the id, which a program does not make at the same time.
        unsafe { (*self.c.get()).verbs }
    }

    /// Binds it to the device.
    pub(super) fn bind_device(&self) -> Answer<()> {
        if !self.verbs().is_null() {
            return Ok(());
        }
        let shared = device::open()?;
        // SAFETY: as above.
        unsafe {
            let c = &mut *self.c.get();
            c.verbs = shared.context;
            c.pd = shared.pd;
            c.port_num = PORT;
        }
        let psn = device::context_of(self)?.device.provider.random_psn();
        self.line.state().terms.psn = psn;
        Ok(())
    }

    pub(super) fn show_addresses(&self, local: Option<SocketAddr>, remote: Option<SocketAddr>) {
        // SAFETY: each place has room for any address.
        unsafe {
            let c = &mut *self.c.get();
            if let Some(local) = local {
                address::write((&raw mut c.route.addr.__bindgen_anon_1).cast(), local);
            }
            if let Some(remote) = remote {
                address::write((&raw mut c.route.addr.__bindgen_anon_2).cast(), remote);
            }
        }
    }

    /// Shows the path as far as it is known: which GID the other's RNIC has is not, until it answers.
    pub(super) fn show_route(&self) -> Answer<()> {
        let device = &device::context_of(self)?.device.attributes;
        let remote = self.line.state().remote.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |remote| remote.ip());
        let (sgid, dgid) = (c::ibv_gid { raw: device.gid.octets() }, ah::gid(remote));
        let path = c::ibv_sa_path_rec {
            dgid,
            sgid,
            hop_limit: ah::DEFAULT_HOP_LIMIT,
            reversible: 1,
            pkey: DEFAULT_PKEY.to_be(),
            mtu_selector: 2, // exactly (IBTA Vol 1, 15.2.5.16)
            mtu: device.active_mtu.code(),
            ..c::ibv_sa_path_rec::default()
        };
        // SAFETY: as above.
        unsafe {
            self.path.get().write(path);
            let route = &mut (*self.c.get()).route;
            route.addr.addr.ibaddr = c::rdma_ib_addr { sgid, dgid, pkey: DEFAULT_PKEY.to_be() };
            route.path_rec = self.path.get();
            route.num_paths = 1;
        }
        Ok(())
    }

    /// Lets go of the event that the last synchronous call left for the program to see.
    fn forget_event(&self) {
        // SAFETY: as above.
        let event = unsafe { std::mem::replace(&mut (*self.c.get()).event, ptr::null_mut()) };
        if !event.is_null() {
            // SAFETY: it was retrieved, and the program does not look at it any more.
            let _ = unsafe { channel::acknowledge_event(event) };
        }
    }

    /// Takes the event of a call, if the id is a synchronous one, and leaves it in `event`.
    fn complete(&self, turn: Turn) -> Answer<Step> {
        if !self.is_sync() {
            return Ok(Step::Done(0));
        }
        let event = match self.next_event(turn)? {
            // SAFETY: it stays until the next is taken.
            Ok(event) => unsafe { &*event },
            Err(step) => return Ok(step),
        };
        match (event.event, event.status) {
            (_, 0) => Ok(Step::Done(0)),
            (c::RDMA_CM_EVENT_REJECTED, reason) => {
                Err(Refused::new(libc::ECONNREFUSED, format!("the other end rejected the connection, reason {reason}")))
            }
            (_, status) if status > 0 => {
                Err(Refused::new(libc::ECONNREFUSED, format!("the other end offers no such service, status {status}")))
            }
            (kind, status) => Err(Refused::new(-status, format!("event {kind} tells of error {}", -status))),
        }
    }

    /// As [`complete`](Self::complete), of an event that the call itself has made.
    pub(super) fn complete_at_once(&self) -> Answer<()> {
        match self.complete(Turn::First)? {
            Step::Done(_) => Ok(()),
            step => Err(Refused::new(libc::EIO, format!("an event is missing: {step:?}"))),
        }
    }

    /// The next event of a synchronous id, which stays in `event`.
    pub(super) fn next_event(&self, turn: Turn) -> Answer<Found<*mut c::rdma_cm_event>> {
        self.forget_event();
        // SAFETY: set by calls on the id, which a program does not make at the same time.
        unsafe {
            let found = channel::next((*self.c.get()).channel, turn)?;
            if let Ok(event) = found {
                (*self.c.get()).event = event;
            }
            Ok(found)
        }
    }
}

/// What a call returns that has begun, and whose event a synchronous id is to wait for.
pub(super) const BEGUN: c_int = 1;

/// Runs a call on an id, and waits for its event if the id is a synchronous one and the call is one to
/// wait for. The thread may be cancelled in it, as in [`in_steps`].
///
/// # Safety
///
/// The C contract of the call.
pub(super) unsafe fn synchronously<B>(call: &'static str, id: *mut c::rdma_cm_id, begin: B) -> c_int
where
    B: Fn() -> Answer<c_int> + Copy, // which has nothing to drop
{
    cancellation_point();
    match number(call, begin) {
        // SAFETY: by the caller's promise.
        BEGUN => in_steps(call, NUMBER, move |turn| unsafe { own(id) }?.complete(turn)),
        ended => ended,
    }
}

/// Destroys an id, if all events that were retrieved of it are acknowledged.
///
/// # Safety
///
/// The C contract of `rdma_destroy_id`.
pub(super) unsafe fn destroy(id: *mut c::rdma_cm_id) -> Answer<Step> {
    // SAFETY: the C contract.
    let gone = unsafe { own(id) }?;
    gone.line.close();
    multicast::leave_all(gone);
    gone.forget_event();
    if let Err(step) = gone.unacknowledged.none() {
        return Ok(step);
    }
    // SAFETY: the program does not name it again.
    let gone = unsafe { take::<Id>(id) };
    // SAFETY: the channel of an id exists.
    unsafe { leave((*gone.c.get()).channel, gone.is_sync()) }?;
    Ok(Step::Done(0))
}

/// # Safety
///
/// An id reported to `channel` so far, which was its own if it was a synchronous one, and does not any more.
unsafe fn leave(channel: *mut c::rdma_event_channel, sync: bool) -> Answer<()> {
    // SAFETY: the channel of an id exists.
    unsafe { object::<Channel>(channel) }?.queue()?.users.remove();
    if sync {
        channel::destroy(channel)?;
    }
    Ok(())
}

/// Moves an id to another channel, or makes it a synchronous one.
///
/// # Safety
///
/// The C contract of `rdma_migrate_id`.
unsafe fn migrate(id: *mut c::rdma_cm_id, channel: *mut c::rdma_event_channel) -> Answer<()> {
    // SAFETY: the C contract.
    let own = unsafe { own(id) }?;
    let sync = channel.is_null();
    if sync && own.is_sync() {
        return Err(Refused::invalid("the id is a synchronous one already"));
    }
    let channel = if sync { channel::create()? } else { channel };
    // SAFETY: the C contract, or just created.
    let new = unsafe { object::<Channel>(channel) }?.queue()?;
    new.users.add();
    own.line.migrate(&new);
    own.forget_event();
    // SAFETY: set by calls on the id, which a program does not make at the same time.
    let old = unsafe { std::mem::replace(&mut (*own.c.get()).channel, channel) };
    // SAFETY: it reported there.
    unsafe { leave(old, own.sync.swap(sync, Ordering::Relaxed)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut c::rdma_event_channel,
    id: *mut *mut c::rdma_cm_id,
    context: *mut c_void,
    port_space: c::rdma_port_space,
) -> c_int {
    number("rdma_create_id", || {
        if id.is_null() {
            return Err(Refused::invalid("there is no place for the id"));
        }
        // SAFETY: the C contract.
        unsafe { id.write(create(channel, context, port_space, kind_of(port_space)?)?) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_destroy_id(id: *mut c::rdma_cm_id) -> c_int {
    // SAFETY: the C contract.
    in_steps("rdma_destroy_id", NUMBER, move |_| unsafe { destroy(id) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_migrate_id(
    id: *mut c::rdma_cm_id,
    channel: *mut c::rdma_event_channel,
) -> c_int {
    cancellation_point();
    // SAFETY: the C contract.
    let migrated = number("rdma_migrate_id", || unsafe { migrate(id, channel) }.map(|()| 0));
    if migrated != 0 {
        return migrated;
    }
    // Events of the old channel are the program's until it says otherwise.
    in_steps("rdma_migrate_id", NUMBER, move |_| {
        // SAFETY: the C contract.
        let own = unsafe { own(id) }?;
        Ok(own.unacknowledged.none().err().unwrap_or(Step::Done(0)))
    })
}
