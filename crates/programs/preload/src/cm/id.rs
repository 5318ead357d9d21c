//! Ids (`rdma_cm_id`). An id is a connection, a listener or a datagram service of a program.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::raw::Provider;
use doorbell_verbs::{AddressVector, QpKind};

use super::channel::{self, Channel, IdPointer, Queue};
use super::line::Line;
use super::multicast::{self, Group};
use super::object::{Object, give, object, take};
use super::ports::Space;
use super::{address, device};
use crate::objects::ah;
use crate::objects::answer::{Answer, Refused, number};
use crate::objects::qp::kind_number;
use crate::objects::query::{DEFAULT_PKEY, PORT};
use crate::process::wait::{Found, NUMBER, Step, Turn, Unacknowledged, cancellation_point, in_steps};

/// An id. The structure begins with the C structure.
#[repr(C)]
pub(super) struct Id {
    pub(super) c: UnsafeCell<c::rdma_cm_id>,
    /// Path record to which `route.path_rec` points.
    path: UnsafeCell<c::ibv_sa_path_rec>,
    pub(super) line: Arc<Line>,
    /// Events that the program has retrieved but not acknowledged.
    pub(super) unacknowledged: Unacknowledged,
    /// Whether the id is synchronous. Each call on a synchronous id waits for its event, on a channel that belongs to
    /// the id.
    sync: AtomicBool,
    defaults: Mutex<Defaults>,
    groups: Mutex<Vec<Group>>,
}

/// Parameters that `rdma_create_ep` stores for later calls.
pub(super) struct Defaults {
    /// Attributes of the queue pair that each request to this listener gets.
    pub(super) qp: Option<c::ibv_qp_init_attr>,
    pub(super) pd: *mut c::ibv_pd,
    /// Private data for `rdma_connect`.
    pub(super) private: Vec<u8>,
}

// SAFETY: `Id` is `#[repr(C)]` and begins with an `rdma_cm_id`.
unsafe impl Object for Id {
    type C = c::rdma_cm_id;
    const NAME: &'static str = "id";
}

fn space_of(port_space: c::rdma_port_space) -> Answer<Space> {
    Space::of(port_space).ok_or_else(|| {
        let why = format!("port space {port_space:#x} is not supported: use RDMA_PS_TCP, RDMA_PS_UDP or RDMA_PS_IPOIB");
        Refused::new(libc::EPROTONOSUPPORT, why)
    })
}

/// Returns the transport that a port space uses.
pub(super) fn kind_of(port_space: c::rdma_port_space) -> Answer<QpKind> {
    Ok(match space_of(port_space)? {
        Space::Tcp => QpKind::Rc,
        Space::Udp | Space::Ipoib => QpKind::Ud,
    })
}

/// Returns the id to which a C pointer refers. Returns an error for an id that this process inherited by a fork.
///
/// # Safety
///
/// `pointer` is null, or an id that was not destroyed.
pub(super) unsafe fn own<'a>(pointer: *mut c::rdma_cm_id) -> Answer<&'a Id> {
    // SAFETY: the caller guarantees that the pointer is valid.
    let own = unsafe { object::<Id>(pointer) }?;
    own.line.expect_own()?;
    Ok(own)
}

/// Creates an id that reports to `channel`. If `channel` is null, the id reports to a new channel, which belongs to the
/// id.
///
/// # Safety
///
/// `channel` exists or is null.
unsafe fn make(
    channel: *mut c::rdma_event_channel,
    context: *mut c_void,
    port_space: c::rdma_port_space,
    line: impl FnOnce(&Arc<Queue>) -> Answer<Arc<Line>>,
) -> Answer<*mut c::rdma_cm_id> {
    let sync = channel.is_null();
    let channel = if sync { channel::create()? } else { channel };
    // SAFETY: the caller guarantees that the channel exists, or this function has just created it.
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

/// Creates an id. If `channel` is null, the id is synchronous.
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
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let id = unsafe { make(channel, context, port_space, |queue| Line::new(queue, kind, space)) }?;
    // SAFETY: the id was just created.
    unsafe { object::<Id>(id) }?.line.adopt(IdPointer(id));
    Ok(id)
}

/// Creates the id for a request to a listener.
pub(super) fn of_request(listener: IdPointer, line: &Arc<Line>) -> Answer<*mut c::rdma_cm_id> {
    // SAFETY: a listener exists until all its events are acknowledged.
    let listening = unsafe { object::<Id>(listener.0) }?;
    // SAFETY: only calls on the id set its fields, and no such call runs concurrently with this call.
    let (channel, context, port_space) = unsafe {
        let c = &*listening.c.get();
        (c.channel, c.context, c.ps)
    };
    let channel = if listening.is_sync() { ptr::null_mut() } else { channel };
    // SAFETY: the channel of an id exists as long as the id.
    let id = unsafe { make(channel, context, port_space, |_| Ok(Arc::clone(line))) }?;
    // SAFETY: the id was just created.
    let own = unsafe { object::<Id>(id) }?;
    let (local, remote) = {
        let state = line.state();
        (state.local, state.remote)
    };
    let bound = own.bind_device(local).and_then(|()| {
        own.show_addresses(local, remote);
        own.show_route()
    });
    if let Err(refused) = bound {
        // SAFETY: the program does not know the id, and has retrieved no event of this id.
        unsafe { destroy(id) }?;
        return Err(refused);
    }
    // SAFETY: the channel was just created, or belongs to the listener.
    line.migrate(&unsafe { object::<Channel>((*own.c.get()).channel) }?.queue()?);
    line.adopt(IdPointer(id));
    Ok(id)
}

/// Returns the address handle attributes for sending to a datagram service.
pub(super) fn address_of(id: IdPointer, destination: IpAddr) -> c::ibv_ah_attr {
    // SAFETY: an id exists until all its events are acknowledged.
    let traffic_class = unsafe { object::<Id>(id.0) }.map_or(0, |own| own.line.state().options.traffic_class);
    ah::ah_attributes(&AddressVector { destination, traffic_class, hop_limit: ah::DEFAULT_HOP_LIMIT })
}

impl Id {
    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    pub(super) fn defaults(&self) -> MutexGuard<'_, Defaults> {
        self.defaults.lock().ignore_poison()
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, Vec<Group>> {
        self.groups.lock().ignore_poison()
    }

    /// Returns the queue pair of the id, or null.
    pub(super) fn qp(&self) -> *mut c::ibv_qp {
        // SAFETY: the program does not create or destroy the queue pair during a call that uses the queue pair.
        unsafe { (*self.c.get()).qp }
    }

    pub(super) fn verbs(&self) -> *mut c::ibv_context {
        // SAFETY: only calls on the id set this field, and a program does not make such calls concurrently.
        unsafe { (*self.c.get()).verbs }
    }

    /// Binds the id to the device of its local address, unless the id is already bound.
    pub(super) fn bind_device(&self, local: Option<SocketAddr>) -> Answer<()> {
        if !self.verbs().is_null() {
            return Ok(());
        }
        let shared = device::open_at(local.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |local| local.ip()))?;
        // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
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
        // SAFETY: each field has room for any address.
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

    /// Stores the route in the id, where the program reads it. The GID of the peer's RNIC is unknown until the peer
    /// answers. So the route contains the GID of the destination address.
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
            mtu_selector: 2, // the MTU is exact (IBTA Vol 1, 15.2.5.16)
            mtu: device.active_mtu.code(),
            ..c::ibv_sa_path_rec::default()
        };
        // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
        unsafe {
            self.path.get().write(path);
            let route = &mut (*self.c.get()).route;
            route.addr.addr.ibaddr = c::rdma_ib_addr { sgid, dgid, pkey: DEFAULT_PKEY.to_be() };
            route.path_rec = self.path.get();
            route.num_paths = 1;
        }
        Ok(())
    }

    /// Acknowledges the event of the latest synchronous call. The id has kept this event.
    fn forget_event(&self) {
        // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
        let event = unsafe { std::mem::replace(&mut (*self.c.get()).event, ptr::null_mut()) };
        if !event.is_null() {
            // SAFETY: the event was retrieved, and the program does not use the event any more.
            let _ = unsafe { channel::acknowledge_event(event) };
        }
    }

    /// Completes a call. If the id is synchronous, retrieves the event of the call and stores it in the field `event`.
    fn complete(&self, turn: Turn) -> Answer<Step> {
        if !self.is_sync() {
            return Ok(Step::Done(0));
        }
        let event = match self.next_event(turn)? {
            // SAFETY: the event exists until the id retrieves its next event.
            Ok(event) => unsafe { &*event },
            Err(step) => return Ok(step),
        };
        match (event.event, event.status) {
            (_, 0) => Ok(Step::Done(0)),
            (c::RDMA_CM_EVENT_REJECTED, reason) => {
                Err(Refused::new(libc::ECONNREFUSED, format!("the peer rejected the connection with reason {reason}")))
            }
            (_, status) if status > 0 => Err(Refused::new(
                libc::ECONNREFUSED,
                format!("the peer does not offer this datagram service (status {status})"),
            )),
            (kind, status) => Err(Refused::new(-status, format!("event {kind} reports error {}", -status))),
        }
    }

    /// Like [`complete`](Self::complete), but returns an error if the event is not queued yet.
    pub(super) fn complete_at_once(&self) -> Answer<()> {
        match self.complete(Turn::First)? {
            Step::Done(_) => Ok(()),
            step => Err(Refused::new(libc::EIO, format!("the event of the call is missing: {step:?}"))),
        }
    }

    /// Retrieves the next event of a synchronous id, and stores the event in the field `event`.
    pub(super) fn next_event(&self, turn: Turn) -> Answer<Found<*mut c::rdma_cm_event>> {
        self.forget_event();
        // SAFETY: only calls on the id set its fields, and a program does not make such calls concurrently.
        unsafe {
            let found = channel::next((*self.c.get()).channel, turn)?;
            if let Ok(event) = found {
                (*self.c.get()).event = event;
            }
            Ok(found)
        }
    }
}

/// Result of a call that has begun. If the id is synchronous, the call must wait for its event.
pub(super) const BEGUN: c_int = 1;

/// Runs a call on an id. If the call returns [`BEGUN`] and the id is synchronous, waits for the event of the call. As
/// in [`in_steps`], the program may cancel the thread during the wait.
///
/// # Safety
///
/// The C contract of the call.
pub(super) unsafe fn synchronously<B>(call: &'static str, id: *mut c::rdma_cm_id, begin: B) -> c_int
where
    B: Fn() -> Answer<c_int> + Copy, // a `Copy` type has nothing to drop
{
    cancellation_point();
    match number(call, begin) {
        // SAFETY: the caller guarantees that the id exists until the call returns.
        BEGUN => in_steps(call, NUMBER, move |turn| unsafe { own(id) }?.complete(turn)),
        ended => ended,
    }
}

/// Destroys an id. Waits until the program has acknowledged all retrieved events of this id.
///
/// # Safety
///
/// The C contract of `rdma_destroy_id`.
pub(super) unsafe fn destroy(id: *mut c::rdma_cm_id) -> Answer<Step> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let gone = unsafe { own(id) }?;
    gone.line.close();
    multicast::leave_all(gone);
    gone.forget_event();
    if let Err(step) = gone.unacknowledged.none() {
        return Ok(step);
    }
    // SAFETY: the program does not use the id any more.
    let gone = unsafe { take::<Id>(id) };
    // SAFETY: the channel of an id exists as long as the id.
    unsafe { leave((*gone.c.get()).channel, gone.is_sync()) }?;
    Ok(Step::Done(0))
}

/// # Safety
///
/// An id that reported to `channel` no longer reports to it. If `sync` is true, the channel belonged to this id.
unsafe fn leave(channel: *mut c::rdma_event_channel, sync: bool) -> Answer<()> {
    // SAFETY: the channel of an id exists as long as the id.
    unsafe { object::<Channel>(channel) }?.queue()?.users.remove();
    if sync {
        channel::destroy(channel)?;
    }
    Ok(())
}

/// Moves an id to another channel. If `channel` is null, makes the id synchronous.
///
/// # Safety
///
/// The C contract of `rdma_migrate_id`.
unsafe fn migrate(id: *mut c::rdma_cm_id, channel: *mut c::rdma_event_channel) -> Answer<()> {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let own = unsafe { own(id) }?;
    let sync = channel.is_null();
    if sync && own.is_sync() {
        return Err(Refused::invalid("the id is already synchronous"));
    }
    let channel = if sync { channel::create()? } else { channel };
    // SAFETY: by the C contract, the channel exists, or this function has just created it.
    let new = unsafe { object::<Channel>(channel) }?.queue()?;
    new.users.add();
    own.line.migrate(&new);
    own.forget_event();
    // SAFETY: only calls on the id set this field, and a program does not make such calls concurrently.
    let old = unsafe { std::mem::replace(&mut (*own.c.get()).channel, channel) };
    // SAFETY: the id reported to the old channel until now.
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
            return Err(Refused::invalid("the pointer to the id is null"));
        }
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        unsafe { id.write(create(channel, context, port_space, kind_of(port_space)?)?) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_destroy_id(id: *mut c::rdma_cm_id) -> c_int {
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    in_steps("rdma_destroy_id", NUMBER, move |_| unsafe { destroy(id) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_migrate_id(
    id: *mut c::rdma_cm_id,
    channel: *mut c::rdma_event_channel,
) -> c_int {
    cancellation_point();
    // SAFETY: by the C contract of this function, the program passes valid arguments.
    let migrated = number("rdma_migrate_id", || unsafe { migrate(id, channel) }.map(|()| 0));
    if migrated != 0 {
        return migrated;
    }
    // Wait until the program has acknowledged the events that it retrieved from the old channel.
    in_steps("rdma_migrate_id", NUMBER, move |_| {
        // SAFETY: by the C contract of this function, the program passes valid arguments.
        let own = unsafe { own(id) }?;
        Ok(own.unacknowledged.none().err().unwrap_or(Step::Done(0)))
    })
}
