//! The devices that programs find, and their RNICs. All contexts of one device share one RNIC within a process. On real
//! hardware, all processes of a machine share one. An RNIC starts when a program opens the first context of its device.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::{mem, ptr};

use doorbell_fabric::BindRequest;
use doorbell_ibverbs_sys as c;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::raw::{DeviceAttributes, Provider};
use doorbell_verbs::soft::{self, PortRate, Soft, SoftDevice, SoftOptions};
use doorbell_verbs::{AsyncEvent, CqId, PortState, Qpn, SrqId};

use crate::objects::answer::{Answer, Refused, pointer};
use crate::objects::event::{Element, Events, Source};
use crate::paths;
use crate::process::fork::{Inside, say};
use crate::process::static_value::StaticValue;
use crate::process::wait::Uncancelled;
use crate::process::{config, explain, fork, stats};

/// Number of zero bytes after the structure. Other vendors' providers read past the end of the structure, to check
/// fields that identify their own devices.
const ZEROS_BEHIND: usize = 1024;

#[repr(C)]
struct Listed {
    device: UnsafeCell<c::ibv_device>,
    zeros: [u8; ZEROS_BEHIND],
}

/// Returns all devices in the list. They are never freed, so pointers to them stay valid.
fn all() -> Answer<&'static [Listed]> {
    static ALL: StaticValue<Vec<Listed>> = StaticValue::new();
    let devices = config::devices()?;
    let make = |device: &SoftDevice| {
        // SAFETY: zeros are a valid value of each field.
        let mut listed: Listed = unsafe { mem::zeroed() };
        let (name, dev_name) = (c_text(device.name()), paths::dev_name(device.number));
        let (dev, c) = (dev_name.to_string_lossy(), listed.device.get_mut());
        c.node_type = c::IBV_NODE_CA;
        c.transport_type = c::IBV_TRANSPORT_IB;
        fill(&mut c.name, &name);
        fill(&mut c.dev_name, &dev_name);
        // The module `paths` serves the files below these paths.
        fill(&mut c.dev_path, &c_text(format!("/sys/class/infiniband_verbs/{dev}")));
        fill(&mut c.ibdev_path, &c_text(format!("/sys/class/infiniband/{}", device.name())));
        listed
    };
    // SAFETY: the value is never freed, and this module does not change it.
    Ok(unsafe { &*ALL.get_or_make(|| Box::new(devices.iter().map(make).collect())) })
}

/// Converts a text without zero bytes.
fn c_text(text: String) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Returns the listed device of this number.
pub(crate) fn listed(number: usize) -> Answer<*mut c::ibv_device> {
    let listed = all()?.get(number).ok_or_else(|| Refused::invalid(format!("there is no device {number}")))?;
    Ok(listed.device.get())
}

/// Returns the number of a listed device.
///
/// # Errors
///
/// The pointer is null or does not refer to a device of the list.
pub(crate) fn number_of(device: *const c::ibv_device) -> Answer<usize> {
    let number = all()?.iter().position(|listed| ptr::eq(listed.device.get(), device));
    number.ok_or_else(|| Refused::invalid("the device is null or not in the list of ibv_get_device_list"))
}

/// Copies a text into a C field that is longer than the text.
pub(crate) fn fill(field: &mut [c_char], text: &CStr) {
    for (place, &byte) in field.iter_mut().zip(text.to_bytes_with_nul()) {
        *place = byte as c_char;
    }
}

/// Number of bits of a GUID that contain the ID of the process. Linux has no larger IDs than 2^22.
const PROCESS_BITS: u32 = 24;

/// Returns the GUID of a device in network byte order. The GUID is locally administered and unique for each device of
/// each process.
pub(crate) fn guid(number: usize) -> u64 {
    let process = u64::from(std::process::id()) & ((1 << PROCESS_BITS) - 1);
    (0x0264_6f6f_0000_0000_u64 | ((number as u64) << PROCESS_BITS) | process).to_be()
}

/// An RNIC, and the objects to which its events belong.
pub(crate) struct Device {
    /// Number of the device in the list.
    pub(crate) number: usize,
    pub(crate) provider: Arc<Soft>,
    pub(crate) attributes: DeviceAttributes,
    /// Vendor and part numbers that the device shows.
    pub(crate) vendor: (u32, u32),
    /// Rate of the port that the device shows.
    pub(crate) rate: PortRate,
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
    /// The device has failed. As in the kernel, each call that queries the device or creates objects then ends with
    /// EIO.
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

/// State of the devices of this process, by number.
struct Process {
    generation: u32,
    slots: Vec<Slot>,
}

/// State of one device of this process.
#[derive(Default)]
struct Slot {
    /// The open device. A context keeps the device alive.
    device: Weak<Device>,
    /// Most recent address of the device. If the program reopens the device, the device gets the same address and so
    /// the same GID.
    address: Option<IpAddr>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { generation: 0, slots: Vec::new() });

/// Returns the RNIC of this number, if this process has opened it.
///
/// # Errors
///
/// Returns [`Busy`] if another thread is opening an RNIC.
pub(crate) fn try_current(number: usize) -> Result<Option<Arc<Device>>, Busy> {
    let process = try_lock()?;
    let is_own = process.generation == fork::generation();
    Ok(process.slots.get(number).filter(|_| is_own).and_then(|slot| slot.device.upgrade()))
}

fn try_lock() -> Result<MutexGuard<'static, Process>, Busy> {
    match PROCESS.try_lock() {
        Ok(process) => Ok(process),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Busy),
    }
}

/// Returns the address of the device of this number. If the device is not open, returns the address that the device
/// would get now. Returns `None` if the device could not be opened.
///
/// # Errors
///
/// Returns [`Busy`] if another thread is opening a device or forking.
pub(crate) fn address(number: usize) -> Result<Option<IpAddr>, Busy> {
    let _inside = Inside::try_new().ok_or(Busy)?;
    let mut process = try_lock()?;
    process.renew();
    Ok(process.address(number))
}

/// Returns the number of the device to which a local address belongs. An address that belongs to no device leads to the
/// first device.
pub(crate) fn number_at(address: IpAddr) -> usize {
    let count = config::devices().map_or(1, <[_]>::len);
    if count == 1 {
        return 0;
    }
    let mut process = PROCESS.lock().ignore_poison();
    process.renew();
    (0..count).find(|&number| process.address(number) == Some(address.to_canonical())).unwrap_or(0)
}

/// Error of a function that would have to wait for another thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy;

impl Process {
    /// Discards the state of the parent process after a fork.
    fn renew(&mut self) {
        if self.generation != fork::generation() {
            // The devices belong to the parent. Do not drop them, since their threads do not exist in this process.
            mem::forget(mem::take(&mut self.slots));
            self.generation = fork::generation();
        }
    }

    fn slot(&mut self, number: usize) -> &mut Slot {
        if self.slots.len() <= number {
            self.slots.resize_with(number + 1, Slot::default);
        }
        &mut self.slots[number]
    }

    /// Returns the address that the device has, or would get if the program opened it now.
    fn address(&mut self, number: usize) -> Option<IpAddr> {
        let slot = self.slot(number);
        if let Some(device) = slot.device.upgrade() {
            return Some(device.attributes.address);
        }
        if slot.address.is_none() {
            let address = config::options(number).ok().and_then(|options| self.free_address(number, &options));
            self.slot(number).address = address;
        }
        self.slot(number).address
    }

    /// Returns the address to which the device of this number would be bound now. The address belongs to no other
    /// device of this process, open or not.
    fn free_address(&self, number: usize, options: &SoftOptions) -> Option<IpAddr> {
        let mut links = Vec::new();
        loop {
            let request = BindRequest { address: options.address, port: options.port, ..BindRequest::default() };
            let link = doorbell_fabric::bind(request).ok()?;
            let address = link.local_address();
            let mut others = self.slots.iter().enumerate().filter(|(other, _)| *other != number);
            if options.address.is_some() || others.all(|(_, slot)| slot.address != Some(address)) {
                return Some(address);
            }
            links.push(link); // keep the address taken, so that the next attempt finds another one
        }
    }

    /// Opens the RNIC of this number. Returns the RNIC and its options.
    fn start(&mut self, number: usize) -> Answer<(Arc<Soft>, SoftOptions)> {
        let mut options = config::options(number)?;
        let wanted = options.address;
        options.address = wanted.or(self.slot(number).address);
        // Leave the addresses to which devices of this process were bound before, or which their files have shown.
        if options.address.is_none() && self.slots.len() > 1 {
            options.address = self.free_address(number, &options);
        }
        let soft = match soft::open_provider(&options) {
            // Another process has taken the address, so choose a new one.
            Err(_) if wanted.is_none() && options.address.is_some() => {
                options.address = None;
                soft::open_provider(&options)
            }
            result => result,
        }?;
        let address = soft.attributes().address;
        for slot in self.slots.iter_mut().filter(|slot| slot.address == Some(address)) {
            slot.address = None; // a device that is not open gets another address later
        }
        self.slot(number).address = Some(address);
        Ok((soft, options))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_own() {
            stats::keep(self);
        }
    }
}

/// Returns the RNIC of this number. Opens the RNIC if it is not open in this process.
pub(crate) fn open(number: usize) -> Answer<Arc<Device>> {
    stats::print_at_exit();
    explain::explain_device();
    let mut process = PROCESS.lock().ignore_poison();
    process.renew();
    if let Some(device) = process.slot(number).device.upgrade() {
        return Ok(device);
    }
    let vendor = config::vendor()?;
    let rate = config::devices()?.get(number).map_or(PortRate::DEFAULT, |device| device.rate);
    let (soft, options) = process.start(number)?;
    let device = Arc::new(Device {
        number,
        provider: Arc::clone(&soft),
        attributes: soft.attributes(),
        vendor,
        rate,
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
    process.slot(number).device = Arc::downgrade(&device);
    Ok(device)
}

/// Returns the list of all devices. Opens none of them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c::ibv_device {
    pointer("ibv_get_device_list", || {
        let all = all().inspect_err(|refused| {
            // The user must correct the settings, and no errno describes the cause.
            say(&format!("doorbell: the software RNICs could not be listed: {refused}"));
        })?;
        let devices = all.iter().map(|listed| listed.device.get());
        if !count.is_null() {
            // SAFETY: the pointer is not null, so the caller provides memory for the number.
            unsafe { count.write(all.len() as c_int) }
        }
        Ok(into_list(devices))
    })
}

/// Returns a list with a null pointer at its end.
pub(crate) fn into_list<T>(pointers: impl Iterator<Item = *mut T>) -> *mut *mut T {
    let list: Box<[*mut T]> = pointers.chain([ptr::null_mut()]).collect();
    Box::into_raw(list).cast()
}

/// Frees a list of [`into_list`] with one pointer for each device.
///
/// # Safety
///
/// `list` is null, or came from [`into_list`] and was not freed.
pub(crate) unsafe fn free_list<T>(list: *mut *mut T) {
    if let (false, Ok(all)) = (list.is_null(), all()) {
        // SAFETY: the caller guarantees that the list came from `into_list`, which has allocated a null pointer after
        // the pointers of all devices.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, all.len() + 1)) });
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut c::ibv_device) {
    // SAFETY: the pointer is null, or a list from `ibv_get_device_list`.
    unsafe { free_list(list) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut c::ibv_device) -> *const c_char {
    // SAFETY: the pointer is null, or refers to a device of the list.
    unsafe { device.as_ref() }.map_or(ptr::null(), |device| device.name.as_ptr())
}

/// Returns 0 for a device that is not in the list.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut c::ibv_device) -> c::__be64 {
    number_of(device).map_or(0, guid)
}

/// Returns the number of the device in the list, or -1 for a device that is not in the list.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut c::ibv_device) -> c_int {
    number_of(device).map_or(-1, |number| number as c_int)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_of_devices_differ_and_are_locally_administered() {
        let guids: Vec<u64> = (0..soft::MAX_DEVICES).map(|number| u64::from_be(guid(number))).collect();
        assert!(guids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(guids.iter().all(|guid| guid >> 32 == 0x0264_6f6f));
        assert_eq!(guids[0] & 0xff_ffff, u64::from(std::process::id()));
    }

    #[test]
    fn a_listed_device_is_found_by_its_pointer() {
        let mut count = 0;
        // SAFETY: the list exists until the test frees it.
        unsafe {
            let list = ibv_get_device_list(&raw mut count);
            assert_eq!(count, 1);
            assert_eq!(*list, listed(0).unwrap());
            assert!((*list.add(1)).is_null());
            assert_eq!((ibv_get_device_index(*list), ibv_get_device_guid(*list)), (0, guid(0)));
            ibv_free_device_list(list);
        }
        assert_eq!((ibv_get_device_index(ptr::null_mut()), ibv_get_device_guid(ptr::null_mut())), (-1, 0));
        assert!(number_of(ptr::without_provenance(8)).is_err() && listed(1).is_err());
    }

    #[test]
    fn devices_of_a_process_get_different_addresses_before_they_are_open() {
        let mut process = Process { generation: fork::generation(), slots: Vec::new() };
        let options = SoftOptions { port: 4999, ..SoftOptions::default() };
        for number in 0..3 {
            let address = process.free_address(number, &options);
            assert!(address.is_some() && process.slots.iter().all(|slot| slot.address != address));
            process.slot(number).address = address;
        }
    }
}
