//! The embedded software RNIC as a provider. It speaks RoCE v2 over UDP, and runs in the process of the program.
//! `queues.rs` implements its queues.

mod devices;
mod ends;
mod engines;
mod environment;
mod faults;
mod layers;
mod publish;
mod queues;
mod virtual_time;

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use doorbell_fabric::{
    BindError, BindRequest, DrivenRnic, EngineParts, Link, OwnMemory, OwnProcess, VerbsCall, VerbsFaults, guard_memory,
};
pub use doorbell_fabric::{FaultPlan, FaultPlanError, LinkChoice, MemoryCounters, MemoryOptions};
use doorbell_rnic::{Config, Policy, Region, Rnic};
pub use doorbell_rnic::{LIMITS, Objects};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{
    Access, AsyncEvent, Counters, EventQueue, LKey, LinkCounters, MemoryError, Notifier, ObjectError, PdId, PortOrder,
    PortState, QpInit, Sge, WindowKind,
};
use doorbell_wire::{Psn, RKey, ROCE_UDP_PORT, to_gid};

pub use crate::ack::{ACK_VARIABLE, AckPolicy};
use crate::error::Error;
use crate::exit;
use crate::faults::InjectedFaults;
use crate::handles::Device;
use crate::raw::{self, DeviceAttributes, Keys, Provider};
use crate::signal::EventSignal;
pub use devices::{
    BIND_VARIABLE, DEVICE_VARIABLE, DEVICES_VARIABLE, DevicesError, MAX_DEVICES, PciAddress, PortRate, SoftDevice,
    device, devices, number_of, open_all,
};
pub use doorbell_fabric::{bring_in, can_bring_in};
pub use ends::LinkEnd;
use ends::bind;
use engines::Engines;
pub use environment::{ENGINES_VARIABLE, LINK_VARIABLE};
use layers::{Drive, stack};
use publish::publish;
use queues::{Groups, SoftChannel, SoftCq, SoftQp, SoftSrq};
pub use virtual_time::VirtualNetwork;

/// Options of a software RNIC.
#[derive(Clone, Debug)]
pub struct SoftOptions {
    /// Name of the device: 1 to 63 ASCII letters, digits, dashes, dots and underscores. `doorbell counters` also shows
    /// the name. `None` means [`NAME`].
    pub name: Option<String>,
    /// Address of the device; `None` means the next free loopback address.
    pub address: Option<IpAddr>,
    /// UDP port of this device and of its peers.
    pub port: u16,
    /// Path of a pcap file that records every packet. If this process has already written a capture of that name, for
    /// example because it reopens a device, the next capture is called `NAME-2.pcap`, and so on. A process never
    /// overwrites its own captures.
    pub pcap: Option<PathBuf>,
    /// Faults to inject into packets, calls and completions.
    pub faults: Option<FaultPlan>,
    /// File to which the device appends one line of JSON for each rule of `faults` that fires. Several devices may
    /// share a file.
    pub fault_journal: Option<PathBuf>,
    /// Size of the receive buffer to request, as the kernel counts it; `None` requests a large buffer.
    pub receive_buffer_bytes: Option<usize>,
    /// Whether a bad scatter-gather element ends its work request with an error completion, as on hardware RNICs.
    /// Otherwise posting refuses the request.
    pub check_elements_late: bool,
    /// Whether a work request ends with an error if its registered memory is unmapped. Otherwise an access to the
    /// unmapped memory kills the process. This option installs handlers of SIGSEGV and SIGBUS for the rest of the
    /// process ([`guard_memory`]).
    pub guards_memory: bool,
    /// Whether to retransmit an unanswered request after a few round trips, at the earliest after 0.5 ms. Without this
    /// option, the device retransmits only after the timeout of the queue pair, as hardware RNICs do.
    pub retransmits_early: bool,
    /// Policy for acknowledging messages; `None` means the value of [`ACK_VARIABLE`], or else the default.
    pub ack: Option<AckPolicy>,
    /// Link to devices of the same machine; `None` means the value of [`LINK_VARIABLE`], or else shared memory if both
    /// devices offer it.
    pub link: Option<LinkChoice>,
    /// Number of engines, from 1 to 16; `None` means the value of [`ENGINES_VARIABLE`], or else one per processor, at
    /// most 4. Each engine handles a part of the queue pairs with a lock, a thread and a socket of its own. Queue pairs
    /// of one completion queue share an engine. By default, so do the queue pairs that one thread creates. So threads
    /// with queue pairs of their own do not wait for each other. A device with a capture or a fault plan has one
    /// engine.
    pub engines: Option<usize>,
    /// Whether to publish the counters to other processes of this user, if possible.
    /// [`DOORBELL_PUBLISH`](doorbell_counters::SWITCH_VARIABLE) set to 0 turns this off.
    pub publish: bool,
    /// Seed for keys, queue pair numbers and sequence numbers; `None` uses randomness of the operating system.
    pub seed: Option<[u8; 32]>,
}

impl Default for SoftOptions {
    fn default() -> Self {
        Self {
            name: None,
            address: None,
            port: ROCE_UDP_PORT,
            pcap: None,
            faults: None,
            fault_journal: None,
            receive_buffer_bytes: None,
            check_elements_late: false,
            guards_memory: false,
            retransmits_early: true,
            ack: None,
            link: None,
            engines: None,
            publish: true,
            seed: None,
        }
    }
}

/// Default name of the device, and the name of the first device of a list ([`devices()`]).
pub const NAME: &str = "doorbell0";

/// Provider name in the attributes of a software RNIC.
pub const PROVIDER: &str = "soft";

/// Maximum length of a device name, without its terminating zero byte (`IBV_SYSFS_NAME_MAX`).
const MAX_NAME_BYTES: usize = 63;

impl SoftOptions {
    /// Returns the link to devices of the same machine and the acknowledgement policy. Values missing in these options
    /// come from the environment of the process.
    ///
    /// # Errors
    ///
    /// An environment variable has an invalid value.
    pub fn effective(&self) -> Result<(LinkChoice, AckPolicy), Error> {
        let link = self.link.map_or_else(environment::link_of_environment, Ok)?;
        Ok((link, self.ack.map_or_else(AckPolicy::of_environment, Ok)?))
    }
}

/// Opens a software RNIC.
///
/// # Errors
///
/// The address or port cannot be bound ([`Error::Bind`]), or the MTU of the interface is too small for RoCE v2. The
/// capture file cannot be created, [`LINK_VARIABLE`] has an unknown value, or [`open_on`] fails. The options request
/// shared memory, and the operating system cannot provide it.
pub fn open(options: &SoftOptions) -> Result<Device, Error> {
    Ok(Device::new(open_provider(options)?))
}

/// Opens a software RNIC for code that uses the unsafe layer [`raw`].
///
/// # Errors
///
/// As [`open`].
pub fn open_provider(options: &SoftOptions) -> Result<Arc<Soft>, Error> {
    let request = BindRequest {
        address: options.address,
        port: options.port,
        receive_buffer_bytes: options.receive_buffer_bytes,
        ..BindRequest::default()
    };
    let wanted = environment::engines(options.engines)?;
    // A capture records all packets in one order, and a fault plan counts them in one order.
    let has_order = options.pcap.is_some() || options.faults.is_some();
    let engines = if has_order { 1 } else { wanted.unwrap_or_else(environment::default_engines) };
    let choice = options.effective()?.0;
    let open = |engines| {
        let ends = bind(request, choice, engines)?;
        let (address, port) = (ends[0].address, ends[0].port);
        let soft = start(ends, options)?;
        if options.publish {
            publish(&soft, address, port);
        }
        Ok(soft)
    };
    let soft = match open(engines) {
        // A sandbox may refuse several sockets with one address, or there may be too few descriptors. The program has
        // not requested several engines.
        Err(Error::Bind(BindError::System { .. }) | Error::Os { .. }) if wanted.is_none() && engines > 1 => open(1),
        opened => opened,
    }?;
    if wanted.is_none() {
        soft.engines.place_by_creator();
    }
    Ok(Arc::new(soft))
}

/// Opens a software RNIC on a link that the program provides instead of a UDP socket. Options that concern the socket
/// have no effect.
///
/// # Errors
///
/// The name is not allowed ([`Error::Name`]), or [`ACK_VARIABLE`] has an unknown value. The operating system provides
/// no randomness, descriptor or thread, or cannot create the capture file.
pub fn open_on(end: LinkEnd, options: &SoftOptions) -> Result<Device, Error> {
    Ok(Device::new(Arc::new(start(vec![end], options)?)))
}

/// Starts a device with one engine for each end of a link, all with one address.
fn start(mut ends: Vec<LinkEnd>, options: &SoftOptions) -> Result<Soft, Error> {
    let LinkEnd { link, readable, address, port, active_mtu, receive_buffer_bytes } = ends.remove(0);
    let receive_buffer_bytes = receive_buffer_bytes as u64;
    let config = Config { address, active_mtu, receive_buffer_bytes, seed: seed_of(options)? };
    start_driven(link, Drive::Thread(readable), ends, config, port, options)
}

/// Returns the seed that the options name, or a random one.
fn seed_of(options: &SoftOptions) -> Result<[u8; 32], Error> {
    if let Some(seed) = options.seed {
        return Ok(seed);
    }
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| Error::Os {
        what: "the operating system gave no randomness",
        error: io::Error::other(error),
    })?;
    Ok(seed)
}

fn start_driven(
    link: Box<dyn Link>,
    drive: Drive,
    further: Vec<LinkEnd>,
    config: Config,
    udp_port: u16,
    options: &SoftOptions,
) -> Result<Soft, Error> {
    let name = options.name.clone().unwrap_or_else(|| NAME.to_owned());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(is_plain) {
        return Err(Error::Name(name));
    }
    let ack = options.ack.map_or_else(AckPolicy::of_environment, Ok)?;
    let link = stack(link, config.address, udp_port, &drive, options)?;
    let signal = Arc::new(EventSignal::new().map_err(no_event_descriptor)?);
    let listener = Arc::new(OnceLock::<Notifier>::new());
    let notifier: Notifier = {
        let (signal, listener) = (Arc::clone(&signal), Arc::clone(&listener));
        Arc::new(move || match listener.get() {
            Some(listener) => listener(),
            None => signal.signal(),
        })
    };
    let mut policy = Policy::default();
    if !options.retransmits_early {
        policy.least_early_timeout_ns = None;
    }
    let mut rnic = Rnic::with_policy(config, policy, Some(notifier));
    rnic.let_acks_wait(ack == AckPolicy::Answer);
    exit::flush_at_exit();
    if options.check_elements_late {
        rnic.check_elements_late();
    }
    if options.guards_memory {
        guard_memory();
    } else if can_bring_in() {
        rnic.page_with(Arc::new(OwnMemory));
    }
    let verbs_faults = faults::of_plan(options.faults.as_ref(), options.fault_journal.as_deref())?;
    if let Some(source) = verbs_faults.as_ref().and_then(VerbsFaults::completions) {
        rnic.inject(source);
    }
    let queue = Arc::clone(rnic.events());
    let driven = match drive {
        Drive::Thread(readable) => DrivenRnic::start(parts_of(rnic, link, readable, further), udp_port),
        Drive::Virtual(clock) => DrivenRnic::in_virtual_time(rnic, link, udp_port, clock).map(|rnic| vec![rnic]),
    };
    let engines = Engines::new(driven.map_err(Error::os("the progress thread could not start"))?);
    Ok(Soft {
        faults: verbs_faults.map(|faults| {
            let clock = Arc::clone(engines.first());
            InjectedFaults::new(faults, move || clock.now_ns())
        }),
        engines: Arc::new(engines),
        name,
        config,
        udp_port,
        guards_memory: options.guards_memory,
        regions: Mutex::default(),
        groups: Arc::default(),
        signal,
        listener,
        events: queue,
    })
}

/// Returns the engines of a device: the first one, and one for each further end of its link.
fn parts_of(first: Rnic, link: Box<dyn Link>, readable: OwnProcess, further: Vec<LinkEnd>) -> Vec<EngineParts> {
    let added: Vec<_> = further.into_iter().filter_map(|end| Some((first.add_engine()?, end))).collect();
    let mut parts = vec![EngineParts { rnic: first, link, readable }];
    parts.extend(added.into_iter().map(|(rnic, LinkEnd { link, readable, .. })| EngineParts { rnic, link, readable }));
    parts
}

fn no_event_descriptor(error: nix::Error) -> Error {
    Error::os("a descriptor that signals events could not be created")(error.into())
}

/// A software RNIC, for code that uses the unsafe layer [`raw`].
pub struct Soft {
    engines: Arc<Engines>,
    /// Faults of calls and completions; `None` without rules for them.
    faults: Option<InjectedFaults>,
    name: String,
    config: Config,
    udp_port: u16,
    guards_memory: bool,
    regions: Mutex<HashMap<LKey, Arc<Region>>>,
    /// Multicast groups that the link has joined, each with the queue pair for which the link joined the group.
    groups: Arc<Mutex<Groups>>,
    signal: Arc<EventSignal>,
    listener: Arc<OnceLock<Notifier>>,
    events: Arc<EventQueue>,
}

impl Soft {
    /// Calls `notifier` for each asynchronous event, instead of making [`event_fd`](Provider::event_fd) readable. The
    /// notifier must not call any function of the device except [`poll_event`](Provider::poll_event). Only the first
    /// call of `on_event` has an effect.
    pub fn on_event(&self, notifier: Notifier) {
        let _ = self.listener.set(notifier);
    }

    /// Registers a region without memory for local accesses. The region covers every address, reads as zeros and
    /// discards writes.
    ///
    /// # Errors
    ///
    /// The protection domain does not exist, or the device has no free region.
    pub fn register_null(&self, pd: PdId) -> Result<Keys, Error> {
        self.expect_working()?;
        self.check(VerbsCall::RegMr)?;
        let region = self.rnic().with(|rnic| rnic.register_null(pd))?;
        Ok(self.enter(region))
    }

    /// Checks that the device may access `sge` with the rights `needed`. Loads the memory if it is registered with
    /// [`Access::ON_DEMAND`].
    ///
    /// # Errors
    ///
    /// The region does not exist, belongs to another protection domain, does not allow the access, or is too short. Or
    /// the memory at these addresses is not mapped.
    pub fn prefetch(&self, pd: PdId, sge: &Sge, needed: Access) -> Result<(), MemoryError> {
        let regions = self.regions.lock().ignore_poison();
        let region = regions.get(&sge.lkey).cloned();
        drop(regions); // unlock, since loading the memory may take long
        let region = region.ok_or(MemoryError::UnknownKey { key: sge.lkey.0 })?;
        region.prefetch(pd, sge.address, sge.length.into(), needed)
    }

    /// Returns the counters of the device and its link; `None` while another call uses the device. Never blocks, so a
    /// signal handler that interrupted a call on the device may call this function.
    pub fn try_counters(&self) -> Option<(Counters, LinkCounters)> {
        self.engines.try_counters()
    }

    /// Returns the counters of each engine.
    pub fn engine_counters(&self) -> Vec<Counters> {
        self.engines.counters().collect()
    }

    /// Returns how many objects of each kind the device has. A long run compares these numbers to find leaked objects.
    pub fn objects(&self) -> Objects {
        self.engines.objects()
    }

    /// Returns the engine that creates and destroys objects other than queue pairs.
    #[inline]
    fn rnic(&self) -> &DrivenRnic {
        self.engines.first()
    }

    /// Checks that the device has not failed.
    fn expect_working(&self) -> Result<(), ObjectError> {
        match self.rnic().port_state() {
            Ok(_) => Ok(()),
            Err(_) => Err(ObjectError::DeviceFatal),
        }
    }

    /// Returns the error of a call that the fault plan refuses.
    fn check(&self, call: VerbsCall) -> Result<(), Error> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.check(call, None))
    }

    fn enter(&self, region: Arc<Region>) -> Keys {
        let keys = Keys { lkey: region.lkey(), rkey: region.rkey() };
        self.regions.lock().ignore_poison().insert(keys.lkey, region);
        keys
    }
}

impl Provider for Soft {
    fn attributes(&self) -> DeviceAttributes {
        let gid = to_gid(self.config.address);
        DeviceAttributes {
            name: self.name.clone(),
            provider: PROVIDER,
            port: 1,
            address: self.config.address,
            gid,
            udp_port: self.udp_port,
            active_mtu: self.config.active_mtu,
            receive_buffer_bytes: self.config.receive_buffer_bytes as usize,
            limits: LIMITS,
            on_demand: self.guards_memory || can_bring_in(),
        }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.rnic().now_ns()
    }

    fn create_pd(&self) -> Result<PdId, Error> {
        self.expect_working()?;
        self.check(VerbsCall::AllocPd)?;
        Ok(self.rnic().with(Rnic::create_pd))
    }

    fn destroy_pd(&self, pd: PdId) -> Result<(), Error> {
        self.check(VerbsCall::DeallocPd)?;
        Ok(self.rnic().with(|rnic| rnic.destroy_pd(pd))?)
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
        self.expect_working()?;
        self.check(VerbsCall::RegMr)?;
        if self.guards_memory {
            guard_memory(); // again, since the program may have replaced the signal handlers
        }
        let region = self.rnic().with(|rnic| {
            // SAFETY: both functions have the same contract, which the caller of `register` keeps.
            unsafe { rnic.register(pd, base, length, address, access, owner) }
        })?;
        Ok(self.enter(region))
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
        self.expect_working()?;
        self.check(VerbsCall::ReregMr)?;
        let mut regions = self.regions.lock().ignore_poison();
        let region = regions.get_mut(&lkey).ok_or(ObjectError::Unknown("memory region"))?;
        *region = self.engines.destroy(|rnic| {
            // SAFETY: both functions have the same contract, which the caller of `reregister` keeps.
            unsafe { rnic.reregister(region, pd, base, length, address, access) }
        })?;
        Ok(())
    }

    fn deregister(&self, lkey: LKey) -> Result<(), Error> {
        self.check(VerbsCall::DeregMr)?;
        let mut regions = self.regions.lock().ignore_poison();
        let region = regions.get(&lkey).ok_or(ObjectError::Unknown("memory region"))?;
        self.engines.destroy(|rnic| rnic.deregister(region))?;
        regions.remove(&lkey);
        Ok(())
    }

    fn create_window(&self, pd: PdId, kind: WindowKind) -> Result<RKey, Error> {
        self.expect_working()?;
        self.check(VerbsCall::AllocMw)?;
        Ok(self.rnic().with(|rnic| rnic.create_window(pd, kind))?)
    }

    fn destroy_window(&self, rkey: RKey) -> Result<(), Error> {
        self.check(VerbsCall::DeallocMw)?;
        Ok(self.engines.destroy(|rnic| rnic.destroy_window(rkey))?)
    }

    fn create_channel(&self) -> Result<Arc<dyn raw::Channel>, Error> {
        self.expect_working()?;
        self.check(VerbsCall::CreateCompChannel)?;
        Ok(Arc::new(SoftChannel::new(&self.engines)?))
    }

    fn create_cq(&self, depth: usize, channel: Option<&Arc<dyn raw::Channel>>) -> Result<Box<dyn raw::Cq>, Error> {
        self.expect_working()?;
        self.check(VerbsCall::CreateCq)?;
        Ok(Box::new(SoftCq::create(&self.engines, depth, channel)?))
    }

    fn create_srq(&self, pd: PdId, depth: usize, max_sges: usize) -> Result<Box<dyn raw::Srq>, Error> {
        self.expect_working()?;
        self.check(VerbsCall::CreateSrq)?;
        let srq = Box::new(SoftSrq::create(self.engines.first(), pd, depth, max_sges)?);
        Ok(match &self.faults {
            Some(faults) => faults.shared_receive_queue(srq),
            None => srq,
        })
    }

    fn create_qp(&self, init: QpInit) -> Result<Box<dyn raw::Qp>, Error> {
        self.expect_working()?;
        self.check(VerbsCall::CreateQp)?;
        let qp = Box::new(SoftQp::create(&self.engines, &self.groups, init)?);
        Ok(match &self.faults {
            Some(faults) => faults.queue_pair(qp),
            None => qp,
        })
    }

    fn random_psn(&self) -> Psn {
        self.rnic().with(Rnic::random_psn)
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.engines.counters().fold(Counters::default(), |sum, counters| sum.plus(&counters)))
    }

    fn link_counters(&self) -> LinkCounters {
        self.engines.link_counters()
    }

    fn port_state(&self) -> Result<PortState, Error> {
        Ok(self.rnic().port_state()?)
    }

    fn order_port(&self, order: PortOrder) -> Result<(), Error> {
        Ok(self.rnic().order_port(order)?)
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.signal.next(&self.events)
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    fn drive(&self) {
        self.engines.drive();
    }
}
