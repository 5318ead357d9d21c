//! The RNICs of the machine as a provider, through libibverbs, which is loaded at run time.
//!
//! A device is used with one port and one GID, by which peers reach the device. As in C programs, work requests and
//! completions go through the function table of the context, without any allocation per message. The RNIC may round up
//! depths. The RNIC checks a scatter-gather element only when it uses the element; a bad element ends its work request
//! with an error completion.

mod convert;
mod device;
mod events;
mod library;
mod posts;
mod qp;
mod queues;

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use doorbell_ibverbs_sys::*;
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{
    Access, AddressVector, AsyncEvent, Counters, CqId, LKey, Limits, ObjectError, PdId, PortState, QpInit, SrqId,
    check_range,
};
use doorbell_wire::{Psn, RKey, ROCE_UDP_PORT, to_gid};

use crate::error::Error;
use crate::handles::Device;
use crate::raw::{self, DeviceAttributes, Keys, Provider};
use device::Handle;
use events::Events;
use library::Library;
use queues::{SystemChannel, SystemCq, SystemSrq};

pub use crate::system_error::SystemError;
pub use device::{Gid, SystemDevice, SystemPort};

/// Choice of a device of the machine, its port and its GID.
#[derive(Clone, Debug, Default)]
pub struct SystemOptions {
    /// Name of the device, such as `mlx5_0`; `None` takes the first usable device.
    pub device: Option<String>,
    /// Number of the port; `None` takes the first usable port.
    pub port: Option<u8>,
    /// Index of the GID that peers use; `None` takes a GID of RoCE v2, over IPv4 if possible.
    pub gid_index: Option<u32>,
    /// File of libibverbs; `None` lets the dynamic linker search for libibverbs.
    pub library: Option<PathBuf>,
}

impl SystemOptions {
    fn library(&self) -> Result<&'static Library, SystemError> {
        Library::get(self.library.as_deref().map(Path::as_os_str))
    }
}

/// Returns the devices of the machine. Of `options`, only the field `library` has an effect.
///
/// # Errors
///
/// libibverbs cannot be loaded or is too old, returns no device list, or cannot open any of the devices.
pub fn list(options: &SystemOptions) -> Result<Vec<SystemDevice>, SystemError> {
    device::list(options.library()?)
}

/// Opens a device of the machine.
///
/// # Errors
///
/// Fails as [`list`] does. A device, port or GID in `options` does not exist or cannot be used. A port must be active
/// Ethernet and have a GID for RoCE v2. The driver refuses an operation. [`SystemError`] explains the failure and its
/// remedy.
pub fn open(options: &SystemOptions) -> Result<Device, Error> {
    Ok(Device::new(Arc::new(System::open(options)?)))
}

/// Maximum number of outstanding READs and atomics per queue pair. The peer may be a software RNIC, which supports 16.
const MOST_RD_ATOMIC: usize = 16;

/// Sizes of inline data to try when a queue pair is created, since no call returns the maximum.
const INLINE_BYTES: [usize; 7] = [1024, 512, 400, 256, 128, 64, 28];

/// An open device with its port. All other objects are created from it.
struct Context {
    // Dropping the handle closes the device. The objects of the device hold this context alive, so they are dropped
    // first.
    handle: Handle,
    port: u8,
    gid_index: u8,
    attributes: DeviceAttributes,
}

impl Context {
    fn library(&self) -> &'static Library {
        self.handle.library
    }

    fn raw(&self) -> *mut ibv_context {
        self.handle.context.as_ptr()
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context is open, and its function table no longer changes.
        unsafe { &(*self.raw()).ops }
    }

    /// Returns an address vector as the C struct of libibverbs.
    fn address(&self, to: &AddressVector) -> ibv_ah_attr {
        let gid = to_gid(to.destination);
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: gid.octets() },
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: to.hop_limit,
                traffic_class: to.traffic_class,
            },
            is_global: 1,
            port_num: self.port,
            ..ibv_ah_attr::default()
        }
    }
}

/// A protection domain, and the address handles for its datagrams.
struct Domain {
    context: Arc<Context>,
    raw: *mut ibv_pd,
    handles: Mutex<HashMap<AddressVector, AddressHandle>>,
}

#[derive(Clone, Copy)]
struct AddressHandle(*mut ibv_ah);

// SAFETY: libibverbs is thread-safe: any thread may use an address handle.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Returns the address handle for a destination, and creates it on first use. Keeps the handle for later datagrams
    /// to this destination, since the device limits the number of handles.
    fn handle_to(&self, to: &AddressVector) -> Result<*mut ibv_ah, std::io::Error> {
        let mut handles = self.handles.lock().ignore_poison();
        if let Some(known) = handles.get(to) {
            return Ok(known.0);
        }
        let mut attributes = self.context.address(to);
        // SAFETY: the domain lives, and the attributes are read only during the call.
        let made = unsafe { (self.context.library().create_ah)(self.raw, &mut attributes) };
        if made.is_null() {
            return Err(std::io::Error::last_os_error());
        }
        handles.insert(*to, AddressHandle(made));
        Ok(made)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let library = self.context.library();
        for (_, handle) in self.handles.get_mut().ignore_poison().drain() {
            // SAFETY: the handle was created from this domain, and no queue pair remains that uses it.
            unsafe { (library.destroy_ah)(handle.0) };
        }
        // SAFETY: objects created from the domain hold it alive, so none remains.
        unsafe { (library.dealloc_pd)(self.raw) };
    }
}

/// A registered region.
struct Registered {
    raw: *mut ibv_mr,
    domain: Arc<Domain>,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: libibverbs is thread-safe: any thread may use a registered region.
unsafe impl Send for Registered {}

struct System {
    context: Arc<Context>,
    events: Arc<Events>,
    domains: Mutex<slab::Slab<Arc<Domain>>>,
    regions: Mutex<HashMap<LKey, Registered>>,
    shared: Mutex<HashMap<SrqId, Weak<queues::SharedQueue>>>,
    next_id: AtomicU32,
    opened: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

/// Returns a depth as the C integer of libibverbs, if it is between 1 and `most`.
fn in_range(what: &'static str, given: usize, most: usize) -> Result<u32, ObjectError> {
    let most = most.min(u32::MAX as usize);
    check_range(what, given, 1, most).map(|()| given as u32)
}

impl System {
    fn open(options: &SystemOptions) -> Result<Self, SystemError> {
        let library = options.library()?;
        let device::Chosen { handle, device, port, gid } = device::choose(library, options)?;
        let attributes = DeviceAttributes {
            name: device.name.clone(),
            provider: "system",
            port: port.number,
            address: gid.gid.to_canonical(),
            gid: gid.gid,
            udp_port: ROCE_UDP_PORT,
            active_mtu: port.active_mtu,
            receive_buffer_bytes: 0,
            limits: Limits { max_rd_atomic: device.limits.max_rd_atomic.min(MOST_RD_ATOMIC), ..device.limits },
            on_demand: false,
        };
        // The C struct of an address vector has one byte for the index of the GID (ibv_global_route).
        let gid_index = u8::try_from(gid.index).map_err(|_| {
            SystemError::refused("using a GID index above the maximum of 255", std::io::ErrorKind::InvalidInput.into())
        })?;
        let context = Arc::new(Context { handle, port: port.number, gid_index, attributes });
        let max_inline = most_inline(&context)?;
        let mut context = context;
        if let Some(context) = Arc::get_mut(&mut context) {
            context.attributes.limits.max_inline = max_inline;
        }
        Ok(Self {
            events: Events::of(Arc::clone(&context))?,
            context,
            domains: Mutex::default(),
            regions: Mutex::default(),
            shared: Mutex::default(),
            next_id: AtomicU32::new(1),
            opened: Instant::now(),
        })
    }

    fn domain(&self, pd: PdId) -> Result<Arc<Domain>, ObjectError> {
        lock(&self.domains).get(pd.0 as usize).cloned().ok_or(ObjectError::Unknown("protection domain"))
    }

    fn new_domain(context: &Arc<Context>) -> Result<Arc<Domain>, SystemError> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.library().alloc_pd)(context.raw()) };
        if raw.is_null() {
            return Err(SystemError::last("creating a protection domain"));
        }
        Ok(Arc::new(Domain { context: Arc::clone(context), raw, handles: Mutex::default() }))
    }

    fn new_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers memory without adding it to the table of regions.
    ///
    /// # Safety
    ///
    /// As for [`Provider::register`].
    unsafe fn register_in(
        domain: &Domain,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<*mut ibv_mr, SystemError> {
        let library = domain.context.library();
        let access = convert::access(access);
        // SAFETY: the domain lives, and the caller guarantees that the memory stays mapped.
        let raw = unsafe { (library.reg_mr_iova)(domain.raw, base.cast::<c_void>(), length, address, access) };
        if raw.is_null() { Err(SystemError::last("registering memory")) } else { Ok(raw) }
    }
}

/// Returns the maximum inline data of a queue pair, in bytes.
fn most_inline(context: &Arc<Context>) -> Result<usize, SystemError> {
    let domain = System::new_domain(context)?;
    let queue = queues::Completions::new(context, Weak::new(), CqId(0), 1, None)?;
    let made = INLINE_BYTES.into_iter().find_map(|bytes| {
        let capacities = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: bytes as u32,
        };
        qp::most_inline(&domain, &queue, capacities)
    });
    Ok(made.unwrap_or(0).min(INLINE_BYTES[0]))
}

impl Provider for System {
    fn attributes(&self) -> DeviceAttributes {
        self.context.attributes.clone()
    }

    fn now_ns(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    fn create_pd(&self) -> Result<PdId, Error> {
        let domain = Self::new_domain(&self.context)?;
        Ok(PdId(lock(&self.domains).insert(domain) as u32))
    }

    fn destroy_pd(&self, pd: PdId) -> Result<(), Error> {
        let mut domains = lock(&self.domains);
        let domain = domains.get(pd.0 as usize).ok_or(ObjectError::Unknown("protection domain"))?;
        if Arc::strong_count(domain) > 1 {
            let users = "a queue pair, a shared receive queue or a memory region";
            return Err(ObjectError::Busy { what: "protection domain", users }.into());
        }
        domains.remove(pd.0 as usize);
        Ok(())
    }

    unsafe fn register(
        &self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Keys, Error> {
        let domain = self.domain(pd)?;
        // SAFETY: both functions have the same contract, which the caller of `register` keeps.
        let raw = unsafe { Self::register_in(&domain, base, length, address, access) }?;
        // SAFETY: `raw` is the region that was just registered.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        let keys = Keys { lkey: LKey(lkey), rkey: RKey::new(rkey) };
        lock(&self.regions).insert(keys.lkey, Registered { raw, domain, owner });
        Ok(keys)
    }

    unsafe fn reregister(
        &self,
        lkey: LKey,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<(), Error> {
        let what = "changing the registration of memory";
        if address != base as u64 {
            // `ibv_rereg_mr` has no parameter for the registered address, so it always registers the address in the
            // process.
            let error = std::io::Error::from_raw_os_error(nix::libc::EOPNOTSUPP);
            return Err(SystemError::refused(what, error).into());
        }
        let domain = self.domain(pd)?;
        let mut regions = lock(&self.regions);
        let region = regions.get_mut(&lkey).ok_or(ObjectError::Unknown("memory region"))?;
        let all = (IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS) as i32;
        let access = convert::access(access);
        let library = self.context.library();
        // SAFETY: the region is registered, and the caller guarantees that the new memory stays mapped.
        let result = unsafe { (library.rereg_mr)(region.raw, all, domain.raw, base.cast(), length, access) };
        if result != 0 {
            // On a failure, `ibv_rereg_mr` returns the failed step instead of an error number (ibv_rereg_mr(3)). The
            // error number is in `errno`.
            return Err(SystemError::last(what).into());
        }
        region.domain = domain;
        region.owner = None;
        Ok(())
    }

    fn deregister(&self, lkey: LKey) -> Result<(), Error> {
        let region = lock(&self.regions).remove(&lkey).ok_or(ObjectError::Unknown("memory region"))?;
        // SAFETY: the region is registered. It has been removed from the table, so no other call deregisters it.
        let result = unsafe { (self.context.library().dereg_mr)(region.raw) };
        let done = SystemError::check("deregistering a memory region", result);
        if done.is_err() {
            // The device may still access the memory, so keep the memory mapped.
            std::mem::forget(region);
        }
        Ok(done?)
    }

    fn create_channel(&self) -> Result<Arc<dyn raw::Channel>, Error> {
        Ok(Arc::new(SystemChannel::new(&self.context)?))
    }

    fn create_cq(&self, depth: usize, channel: Option<&Arc<dyn raw::Channel>>) -> Result<Box<dyn raw::Cq>, Error> {
        let most = self.context.attributes.limits.max_cq_depth;
        let depth = in_range("the completion queue's depth", depth, most)?;
        let channel = channel.and_then(|channel| channel.as_any().downcast_ref::<SystemChannel>());
        let id = CqId(self.new_id());
        let queue =
            Arc::new(queues::Completions::new(&self.context, Arc::downgrade(&self.events), id, depth, channel)?);
        self.events.watch(&queue);
        Ok(Box::new(SystemCq(queue)))
    }

    fn create_srq(&self, pd: PdId, depth: usize, max_sges: usize) -> Result<Box<dyn raw::Srq>, Error> {
        let attributes = &self.context.attributes;
        let depth = in_range("the shared receive queue's depth", depth, attributes.limits.max_queue_depth)?;
        let id = SrqId(self.new_id());
        let events = Arc::downgrade(&self.events);
        let queue = Arc::new(queues::SharedQueue::new(self.domain(pd)?, events, pd, id, depth, max_sges)?);
        let mut shared = lock(&self.shared);
        shared.retain(|_, queue| queue.strong_count() > 0);
        shared.insert(id, Arc::downgrade(&queue));
        Ok(Box::new(SystemSrq(queue)))
    }

    fn create_qp(&self, init: QpInit) -> Result<Box<dyn raw::Qp>, Error> {
        let queue = |id| self.events.completions(id).ok_or(ObjectError::Unknown("completion queue"));
        let (send_cq, recv_cq) = (queue(init.send_cq)?, queue(init.recv_cq)?);
        let srq = match init.srq {
            None => None,
            Some(id) => {
                let known = lock(&self.shared).get(&id).and_then(Weak::upgrade);
                let srq = known.ok_or(ObjectError::Unknown("shared receive queue"))?;
                if srq.pd != init.pd {
                    return Err(ObjectError::ForeignPd("shared receive queue").into());
                }
                Some(srq)
            }
        };
        let domain = self.domain(init.pd)?;
        Ok(Box::new(qp::SystemQp::new(domain, send_cq, recv_cq, srq, &init, Arc::clone(&self.events))?))
    }

    fn random_psn(&self) -> Psn {
        // If the operating system has no randomness, use the time instead of a constant.
        Psn::new(getrandom::u32().unwrap_or(self.now_ns() as u32) & Psn::MASK)
    }

    fn counters(&self) -> Option<Counters> {
        None
    }

    fn port_state(&self) -> Result<PortState, Error> {
        let mut port = ibv_port_attr::default();
        let context = &self.context;
        // SAFETY: the device is open, and `port` has room for the result.
        let result = unsafe { (context.library().query_port)(context.raw(), context.port, &mut port) };
        SystemError::check("querying the port", result)?;
        Ok(if port.state == IBV_PORT_ACTIVE { PortState::Active } else { PortState::Down })
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.events.poll()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }
}

/// Returns whether `peer` belongs to the address family of the GID `own`.
fn same_family(own: Ipv6Addr, peer: IpAddr) -> bool {
    own.to_canonical().is_ipv4() == peer.is_ipv4()
}
