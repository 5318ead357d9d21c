//! The trait of providers, and the unsafe layer below the safe API.
//!
//! In this layer, memory is an address, a length and a key. Nothing checks that memory outlives the work requests that
//! use it, so posting is `unsafe`. The library for C programs builds on this layer.

use std::any::Any;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use doorbell_verbs_core::{
    Access, AsyncEvent, Completion, Counters, CqId, LKey, Limits, LinkCounters, ModifyError, Notify, Overrun, PdId,
    PortOrder, PortState, PostError, QpAttributes, QpInfo, QpInit, RecvRequest, SendRequest, SrqId, WindowKind,
};
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::error::Error;
pub use crate::signal::{EventSignal, LockedNotices, Notices, Sleepers};

/// Attributes of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Name of the device.
    pub name: String,
    /// Provider of the device: `soft`, `system` or `sim`.
    pub provider: &'static str,
    /// Number of the port in use; a software RNIC has only port 1.
    pub port: u8,
    /// Address of the device.
    pub address: IpAddr,
    /// GID of the device: its address, which is IPv4-mapped for an IPv4 address (RoCE v2 annex A17).
    pub gid: Ipv6Addr,
    /// UDP port of this device and of its peers. The RoCE v2 standard allows only port 4791.
    pub udp_port: u16,
    /// Largest path MTU of the port.
    pub active_mtu: PathMtu,
    /// Size of the receive buffer of the device's UDP socket, as the kernel counts it; 0 for a device without a socket.
    pub receive_buffer_bytes: usize,
    /// Maximum number and size of the device's objects.
    pub limits: Limits,
    /// Whether memory registered with [`Access::ON_DEMAND`] may be unmapped and mapped again.
    pub on_demand: bool,
}

/// The keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Local key, for scatter-gather elements.
    pub lkey: LKey,
    /// Remote key, for accesses by peers.
    pub rkey: RKey,
}

/// Kind of an access of the program to memory of the safe API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// The program copies bytes out of a region.
    CopyOut,
    /// The program copies bytes into a region, or fills bytes of a region with one value.
    CopyIn,
    /// The program reads a byte or an aligned word, for example to poll a flag.
    Load,
    /// The program writes a byte or an aligned word.
    Store,
}

/// Observer of the program's accesses to one region. The accessors of the region call the observer after each read or
/// write. Accesses through slices are not reported.
pub trait MemoryObserver: Send + Sync {
    /// Reports that the program accessed `length` bytes, `offset` bytes from the start of the region.
    fn accessed(&self, access: MemoryAccess, offset: usize, length: usize);
}

/// Address under which memory of the safe API is registered, and the observer of accesses to that memory.
pub struct Placement {
    /// Address of the first byte in work requests and in requests of peers. Its low twelve bits are the same as in the
    /// address of the byte in the process.
    pub address: u64,
    /// Observer of the program's accesses to the memory. With `None`, an access costs only one additional branch.
    pub observer: Option<Arc<dyn MemoryObserver>>,
}

/// Returns the error of a provider that does not offer the operation `what`.
fn lacking<T>(what: &'static str) -> Result<T, Error> {
    Err(Error::os(what)(io::Error::new(io::ErrorKind::Unsupported, "this provider does not offer them")))
}

/// An RNIC. Optional operations return an error unless the provider implements them.
pub trait Provider: Send + Sync {
    /// Returns the attributes of the device.
    fn attributes(&self) -> DeviceAttributes;

    /// Returns the time on the device's clock in nanoseconds. Code built on verbs uses no other clock.
    fn now_ns(&self) -> u64;

    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// The device has no free protection domain, or the driver refuses.
    fn create_pd(&self) -> Result<PdId, Error>;

    /// Destroys a protection domain.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, or an object that was created from it still exists.
    fn destroy_pd(&self, pd: PdId) -> Result<(), Error>;

    /// Chooses the address under which memory of the safe API is registered. The memory has `length` bytes at `base` in
    /// the process. If `mirrored` is true, the second half of the memory maps the same bytes as its first half. A
    /// simulated device chooses addresses that are the same in every run.
    fn place(&self, base: *mut u8, length: usize, mirrored: bool) -> Placement {
        let _ = (length, mirrored);
        Placement { address: base as u64, observer: None }
    }

    /// Registers memory under the address `address`.
    ///
    /// # Errors
    ///
    /// The protection domain does not exist, the length is 0, the address range is invalid, or the device has no free
    /// region. RNICs lock memory, so the limit on locked memory may be too small
    /// ([`SystemError::LockedMemory`](crate::system::SystemError::LockedMemory)).
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until [`deregister`](Self::deregister) returns. There are two exceptions. If `owner`
    /// owns the memory, the memory must stay mapped only while `owner` lives. If `access` has [`Access::ON_DEMAND`] and
    /// the device supports it, the memory must stay mapped only while a work request or a peer uses it.
    ///
    /// No Rust reference may exist to bytes that a work request or a peer may write.
    unsafe fn register(
        &self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Keys, Error>;

    /// Changes the memory, rights or protection domain of a region. The region keeps its keys. If the call fails, the
    /// region is unchanged.
    ///
    /// # Errors
    ///
    /// Fails as [`register`](Self::register) does. The region does not exist, or a memory window is bound to the
    /// region. RNICs of the machine also refuse an `address` that is not the address of the memory in the process.
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register) with `owner` being `None`.
    unsafe fn reregister(
        &self,
        lkey: LKey,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<(), Error>;

    /// Deregisters a region. After the return, the device no longer accesses the memory.
    ///
    /// # Errors
    ///
    /// The region does not exist, or a memory window is bound to it.
    fn deregister(&self, lkey: LKey) -> Result<(), Error>;

    /// Creates a memory window, and returns its key. Work requests bind the window to a region.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, the device has no free memory window, or the provider offers none.
    fn create_window(&self, _pd: PdId, _kind: WindowKind) -> Result<RKey, Error> {
        lacking("memory windows")
    }

    /// Destroys the memory window that has or had the key `rkey`.
    ///
    /// # Errors
    ///
    /// The memory window does not exist, or the provider offers no windows.
    fn destroy_window(&self, _rkey: RKey) -> Result<(), Error> {
        lacking("memory windows")
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The operating system has no free descriptor, or the driver refuses.
    fn create_channel(&self) -> Result<Arc<dyn Channel>, Error>;

    /// Creates a completion queue of `depth` entries that notifies on `channel`. RNICs of the machine may round the
    /// depth up.
    ///
    /// # Errors
    ///
    /// `depth` is out of range, the device has no free completion queue, or the driver refuses.
    fn create_cq(&self, depth: usize, channel: Option<&Arc<dyn Channel>>) -> Result<Box<dyn Cq>, Error>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// The protection domain does not exist, `depth` or `max_sges` is out of range, the device has no free shared
    /// receive queue, or the driver refuses.
    fn create_srq(&self, pd: PdId, depth: usize, max_sges: usize) -> Result<Box<dyn Srq>, Error>;

    /// Creates a queue pair.
    ///
    /// # Errors
    ///
    /// The protection domain, a completion queue or the shared receive queue does not exist, or the shared receive
    /// queue belongs to another protection domain. A capacity is out of range, the device has no free queue pair, or
    /// the driver refuses.
    fn create_qp(&self, init: QpInit) -> Result<Box<dyn Qp>, Error>;

    /// Returns a random initial packet sequence number.
    fn random_psn(&self) -> Psn;

    /// Returns the counters of the device. Returns `None` for a device whose packets only the kernel counts, in
    /// counters that all programs share.
    fn counters(&self) -> Option<Counters>;

    /// Returns the counters of packets that this device's link lost; all are 0 if the provider does not drive the link.
    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    /// Returns the state of the port.
    ///
    /// # Errors
    ///
    /// The device has failed, or the driver refuses.
    fn port_state(&self) -> Result<PortState, Error>;

    /// Changes the state of the port, as [`crate::Device::order_port`] describes.
    ///
    /// # Errors
    ///
    /// The port has the ordered state already, the device has failed, or the provider cannot change its port.
    fn order_port(&self, _order: PortOrder) -> Result<(), Error> {
        lacking("orders to the port")
    }

    /// Takes the oldest asynchronous event.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// Returns a descriptor that is readable while asynchronous events wait.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Moves packets in the calling thread, if callers can drive the device.
    fn drive(&self) {}
}

/// Sleeps until a descriptor is readable. Returns false if the timeout ended the sleep.
pub(crate) fn sleep_until_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    Ok(ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout.map(TimeSpec::from), None)? > 0)
}

/// A completion channel of a provider.
pub trait Channel: Any + Send + Sync {
    /// Returns a descriptor that is readable while notifications wait.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes the oldest notification, and returns the completion queue that raised it. Never blocks.
    fn next(&self) -> Option<CqId>;

    /// Returns the threads that sleep until a notification arrives, if they can sleep without the descriptor. Only the
    /// software RNIC supports this: the kernel notifies only through the descriptor.
    fn sleepers(&self) -> Option<&Arc<Sleepers>> {
        None
    }

    /// Drives the device for a short time before the caller sleeps, if a notification is likely to arrive soon. Returns
    /// true if a notification arrived. The caller then takes it by [`next`](Self::next), before which the descriptor
    /// need not be readable.
    fn linger(&self) -> bool {
        false
    }

    /// Waits until a notification can be taken. Returns false if the timeout ended the wait. After true, the caller
    /// takes the notification by [`next`](Self::next), before which the descriptor need not be readable.
    ///
    /// # Errors
    ///
    /// The operating system cannot wait, or a signal ended the wait ([`io::ErrorKind::Interrupted`]).
    fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        sleep_until_readable(self.fd(), timeout)
    }

    /// Returns the channel as its concrete type, for the provider that created it.
    fn as_any(&self) -> &dyn Any;
}

/// A completion queue of a provider. Dropping the object destroys the queue.
pub trait Cq: Send + Sync {
    /// Returns the number of the queue.
    fn id(&self) -> CqId;

    /// Moves completions into `out`, and returns their number.
    ///
    /// # Errors
    ///
    /// The queue overran, so completions were lost.
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun>;

    /// Arms one notification on the channel of the queue.
    fn arm(&self, notify: Notify);

    /// Changes the maximum number of completions in the queue.
    ///
    /// # Errors
    ///
    /// `depth` is out of range, more than `depth` completions are in the queue, or the driver refuses. The queue is
    /// then unchanged.
    fn resize(&self, depth: usize) -> Result<(), Error>;
}

/// A shared receive queue of a provider. Dropping the object destroys the queue.
pub trait Srq: Send + Sync {
    /// Returns the number of the queue.
    fn id(&self) -> SrqId;

    /// Arms an event that is raised once fewer than `limit` receives remain.
    fn arm_limit(&self, limit: usize);

    /// Returns the armed limit; 0 if none is armed.
    fn limit(&self) -> usize;

    /// Returns the number of posted receives, if the device reports it.
    fn posted(&self) -> Option<usize>;

    /// Posts receives.
    ///
    /// # Errors
    ///
    /// As [`crate::Srq::post_recv`].
    ///
    /// # Safety
    ///
    /// The memory of each receive must stay registered, and no reference to it may exist, until the completion of the
    /// receive is reaped.
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError>;
}

/// A queue pair of a provider. Dropping the object destroys the queue pair.
pub trait Qp: Send + Sync {
    /// Returns the number of the queue pair.
    fn qpn(&self) -> Qpn;

    /// Modifies the queue pair.
    ///
    /// # Errors
    ///
    /// As [`crate::Qp::modify`].
    fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError>;

    /// Returns the state, attributes and counters of the queue pair. For RNICs of the machine, which count only per
    /// port, the counters in the result are zero.
    fn query(&self) -> QpInfo;

    /// Attaches the queue pair to a multicast group. The queue pair then receives the datagrams of the group, including
    /// those that it sends itself.
    ///
    /// # Errors
    ///
    /// The queue pair is not UD, or `group` is not a multicast address of the device's address family. The device has
    /// no free group, the operating system cannot join the group, or the provider does not support multicast.
    fn attach(&self, _group: IpAddr) -> Result<(), Error> {
        lacking("multicast groups")
    }

    /// Detaches the queue pair from a multicast group.
    ///
    /// # Errors
    ///
    /// The queue pair is not attached to the group, or the provider does not support multicast.
    fn detach(&self, _group: IpAddr) -> Result<(), Error> {
        lacking("multicast groups")
    }

    /// Posts a list of send work requests.
    ///
    /// # Errors
    ///
    /// As [`crate::Qp::post_send`].
    ///
    /// # Safety
    ///
    /// No reference may exist to memory that a READ or an atomic writes, until the completion of the request is reaped.
    /// Memory that a request reads or writes must stay registered until then.
    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts all send work requests of a list, or none of them.
    ///
    /// # Errors
    ///
    /// Fails as [`crate::Qp::post_send`] does, but the device has then accepted no request of the list. A provider that
    /// cannot withdraw accepted requests refuses every list with more than one request.
    ///
    /// # Safety
    ///
    /// As for [`post_send`](Self::post_send).
    unsafe fn post_all_sends(&self, list: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts a list of receive work requests.
    ///
    /// # Errors
    ///
    /// As [`crate::Qp::post_recv`].
    ///
    /// # Safety
    ///
    /// The memory of each receive must stay registered, and no reference to it may exist, until the completion of the
    /// receive is reaped.
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError>;
}
