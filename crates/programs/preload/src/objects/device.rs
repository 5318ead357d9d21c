//! The device that programs find, and its RNIC. All contexts of a process share one RNIC. On real hardware, all
//! processes of a machine share one.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::{mem, ptr};

use doorbell_fabric::BindRequest;
use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::raw::{DeviceAttributes, Provider};
use doorbell_verbs::soft::{self, Soft, SoftOptions};
use doorbell_verbs::{AsyncEvent, CqId, PortState, Qpn, SrqId};

use crate::objects::answer::{Answer, Refused};
use crate::objects::event::{Element, Events, Source};
use crate::paths;
use crate::process::fork::Inside;
use crate::process::static_value::StaticValue;
use crate::process::wait::Uncancelled;
use crate::process::{config, explain, fork, stats};

/// Name of the device.
pub(crate) const NAME: &CStr = c"doorbell0";

/// Number of zero bytes after the structure. Other vendors' providers read past the end of the structure, to check
/// fields that identify their own devices.
const ZEROS_BEHIND: usize = 1024;

#[repr(C)]
struct Listed {
    device: c::ibv_device,
    zeros: [u8; ZEROS_BEHIND],
}

/// Returns the only device in the list. The device is never freed, so pointers to the device stay valid.
pub(crate) fn listed() -> *mut c::ibv_device {
    static LISTED: StaticValue<Listed> = StaticValue::new();
    let make = || {
        // SAFETY: zeros are a valid value of each field.
        let mut listed: Box<Listed> = Box::new(unsafe { mem::zeroed() });
        let device = &mut listed.device;
        device.node_type = c::IBV_NODE_CA;
        device.transport_type = c::IBV_TRANSPORT_IB;
        fill(&mut device.name, NAME);
        fill(&mut device.dev_name, paths::dev_name());
        // The module `paths` serves the files below this path.
        let path = [b"/sys/class/infiniband_verbs/", paths::dev_name().to_bytes_with_nul()].concat();
        fill(&mut device.dev_path, CStr::from_bytes_until_nul(&path).unwrap_or_default());
        fill(&mut device.ibdev_path, c"/sys/class/infiniband/doorbell0");
        listed
    };
    LISTED.get_or_make(make).cast()
}

/// Copies a text into a C field that is longer than the text.
pub(crate) fn fill(field: &mut [c_char], text: &CStr) {
    for (place, &byte) in field.iter_mut().zip(text.to_bytes_with_nul()) {
        *place = byte as c_char;
    }
}

/// Returns the GUID of the node in network byte order. The GUID is locally administered and unique for each process.
pub(crate) fn guid() -> u64 {
    (0x0264_6f6f_0000_0000_u64 | u64::from(std::process::id())).to_be()
}

/// An RNIC, and the objects to which its events belong.
pub(crate) struct Device {
    pub(crate) provider: Arc<Soft>,
    pub(crate) attributes: DeviceAttributes,
    /// Vendor and part numbers that the device shows.
    pub(crate) vendor: (u32, u32),
    generation: u32,
    /// Whether the RNIC writes its packets to a capture file.
    captures: bool,
    sources: Mutex<Sources>,
}

/// Objects to which events may refer.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) qps: HashMap<Qpn, Source>,
    pub(crate) cqs: HashMap<CqId, Source>,
    pub(crate) srqs: HashMap<SrqId, Source>,
    /// Events of all open contexts. Each context gets the events of the port and of the device.
    contexts: Vec<Weak<Events>>,
}

impl Sources {
    /// Adds an event of the port or of the device to each open context.
    fn raise_for_all(&self, element: Element, kind: c::ibv_event_type) {
        self.contexts.iter().filter_map(Weak::upgrade).for_each(|events| events.raise(element, kind));
    }
}

impl Device {
    /// Returns whether this process opened the device. A device that a fork inherited belongs to the parent.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(crate) fn expect_own(&self) -> Answer<()> {
        if self.is_own() {
            return Ok(());
        }
        Err(Refused::new(
            libc::EIO,
            "a parent process opened the device before it forked: open the device again in this process",
        ))
    }

    /// Defers cancellation during posting and polling if the RNIC writes a capture file. Without a capture file,
    /// posting and polling contain no cancellation point, since the software RNIC makes its system calls directly.
    #[inline]
    pub(crate) fn uncancelled(&self) -> Option<Uncancelled> {
        self.captures.then(Uncancelled::new)
    }

    pub(crate) fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().ignore_poison()
    }

    /// Passes the events of the port and of the device to a new context from now on.
    pub(crate) fn tell(&self, context: &Arc<Events>) {
        let mut sources = self.sources();
        sources.contexts.retain(|events| events.strong_count() > 0);
        sources.contexts.push(Arc::downgrade(context));
    }

    /// Returns the state of the port.
    ///
    /// # Errors
    ///
    /// The device has failed. As in the kernel, each call that queries the device or creates objects then ends with EIO.
    pub(crate) fn port_state(&self) -> Answer<PortState> {
        Ok(self.provider.port_state()?)
    }

    /// Passes events to the contexts of their objects. The RNIC calls this function, so this function calls no function
    /// of the RNIC except `poll_event`.
    fn dispatch(&self) {
        use AsyncEvent as E;
        let sources = self.sources();
        while let Some(event) = self.provider.poll_event() {
            let (source, kind) = match event {
                E::CommunicationEstablished(qpn) => (sources.qps.get(&qpn), c::IBV_EVENT_COMM_EST),
                E::SqDrained(qpn) => (sources.qps.get(&qpn), c::IBV_EVENT_SQ_DRAINED),
                E::QpFatal(qpn) => (sources.qps.get(&qpn), c::IBV_EVENT_QP_FATAL),
                E::QpRequestError(qpn) => (sources.qps.get(&qpn), c::IBV_EVENT_QP_REQ_ERR),
                E::QpAccessError(qpn) => (sources.qps.get(&qpn), c::IBV_EVENT_QP_ACCESS_ERR),
                E::QpLastWqeReached(qpn) => (sources.qps.get(&qpn), c::IBV_EVENT_QP_LAST_WQE_REACHED),
                E::CqError(cq) => (sources.cqs.get(&CqId(cq)), c::IBV_EVENT_CQ_ERR),
                E::SrqLimitReached(srq) => (sources.srqs.get(&SrqId(srq)), c::IBV_EVENT_SRQ_LIMIT_REACHED),
                E::PortError(port) => {
                    sources.raise_for_all(Element::Port(port.into()), c::IBV_EVENT_PORT_ERR);
                    continue;
                }
                E::PortActive(port) => {
                    sources.raise_for_all(Element::Port(port.into()), c::IBV_EVENT_PORT_ACTIVE);
                    continue;
                }
                E::GidChange(port) => {
                    sources.raise_for_all(Element::Port(port.into()), c::IBV_EVENT_GID_CHANGE);
                    continue;
                }
                E::DeviceFatal => {
                    sources.raise_for_all(Element::Device, c::IBV_EVENT_DEVICE_FATAL);
                    continue;
                }
                _ => continue,
            };
            if let Some(source) = source {
                source.raise(kind);
            }
        }
    }
}

struct Process {
    generation: u32,
    /// The device of this process. A context keeps the device alive.
    device: Weak<Device>,
    /// Most recent address of the device. If the program reopens the device, the device gets the same address and so
    /// the same GID.
    address: Option<IpAddr>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { generation: 0, device: Weak::new(), address: None });

/// Returns the RNIC of this process, if it is open.
///
/// # Errors
///
/// Returns [`Busy`] if another thread is opening the RNIC.
pub(crate) fn try_current() -> Result<Option<Arc<Device>>, Busy> {
    let process = try_lock()?;
    Ok(if process.generation == fork::generation() { process.device.upgrade() } else { None })
}

fn try_lock() -> Result<MutexGuard<'static, Process>, Busy> {
    match PROCESS.try_lock() {
        Ok(process) => Ok(process),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Busy),
    }
}

/// Returns the address of this process's device. If the device is not open, returns the address that the device would
/// get now. Returns `None` if the device could not be opened.
///
/// # Errors
///
/// Returns [`Busy`] if another thread is opening the device or forking.
pub(crate) fn address() -> Result<Option<IpAddr>, Busy> {
    let _inside = Inside::try_new().ok_or(Busy)?;
    let mut process = try_lock()?;
    process.renew();
    if let Some(device) = process.device.upgrade() {
        return Ok(Some(device.attributes.address));
    }
    if process.address.is_none() {
        let free = |options: SoftOptions| {
            let request = BindRequest { address: options.address, port: options.port, ..BindRequest::default() };
            doorbell_fabric::bind(request).ok().map(|link| link.local_address())
        };
        process.address = config::options().ok().and_then(free);
    }
    Ok(process.address)
}

/// Error of a function that would have to wait for another thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy;

impl Process {
    /// Discards the state of the parent process after a fork.
    fn renew(&mut self) {
        if self.generation != fork::generation() {
            // The device belongs to the parent. Do not drop the device, since its thread does not exist in this
            // process.
            mem::forget(mem::replace(&mut self.device, Weak::new()));
            *self = Self { generation: fork::generation(), device: Weak::new(), address: None };
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_own() {
            stats::keep(self);
        }
    }
}

/// Returns the RNIC of this process. Opens the RNIC if it is not open.
pub(crate) fn open() -> Answer<Arc<Device>> {
    stats::print_at_exit();
    explain::explain_device();
    let mut process = PROCESS.lock().ignore_poison();
    process.renew();
    if let Some(device) = process.device.upgrade() {
        return Ok(device);
    }
    let vendor = config::vendor()?;
    let mut options = config::options()?;
    let wanted = options.address;
    options.address = wanted.or(process.address);
    let soft = match soft::open_provider(&options) {
        // Another process has taken the old address, so choose a new one.
        Err(_) if wanted.is_none() && process.address.is_some() => {
            options.address = None;
            soft::open_provider(&options)
        }
        result => result,
    }?;
    let attributes = soft.attributes();
    process.address = Some(attributes.address);
    let device = Arc::new(Device {
        provider: Arc::clone(&soft),
        attributes,
        vendor,
        generation: process.generation,
        captures: options.pcap.is_some(),
        sources: Mutex::default(),
    });
    let listener = Arc::downgrade(&device);
    soft.on_event(Arc::new(move || {
        if let Some(device) = listener.upgrade() {
            device.dispatch();
        }
    }));
    process.device = Arc::downgrade(&device);
    Ok(device)
}

/// Returns the list of devices, which contains only one device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c::ibv_device {
    let _inside = Inside::new();
    let list = Box::new([listed(), ptr::null_mut()]);
    if !count.is_null() {
        // SAFETY: the pointer is not null, so the caller provides memory for the number.
        unsafe { count.write(1) }
    }
    Box::into_raw(list).cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut c::ibv_device) {
    if !list.is_null() {
        // SAFETY: the pointer is not null, so it is a list from `ibv_get_device_list`.
        drop(unsafe { Box::from_raw(list.cast::<[*mut c::ibv_device; 2]>()) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut c::ibv_device) -> *const c_char {
    // SAFETY: the pointer is null, or refers to a device of the list.
    unsafe { device.as_ref() }.map_or(ptr::null(), |device| device.name.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(_device: *mut c::ibv_device) -> c::__be64 {
    guid()
}

/// Returns -1 instead of an index, since the kernel has no such device.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: *mut c::ibv_device) -> c_int {
    -1
}
