//! The trait of providers, and the unsafe layer below the safe API.
//!
//! In this layer, memory is an address, a length and a key. Nothing checks that the memory outlives the work requests
//! that name it, so posting is `unsafe`. The library for C programs builds on this layer.

use std::any::Any;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use doorbell_verbs_core::{
    Access, AsyncEvent, Completion, Counters, CqId, LKey, Limits, LinkCounters, ModifyError, Notify, Overrun, PdId,
    PostError, QpAttributes, QpInfo, QpInit, RecvRequest, SendRequest, SrqId, WindowKind,
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
    /// Number of the used port; a software RNIC has only port 1.
    pub port: u8,
    /// Address of the device.
    pub address: IpAddr,
    /// GID of the device: the address, IPv4-mapped if it is an IPv4 address (RoCE v2 annex A17).
    pub gid: Ipv6Addr,
    /// The UDP port of both ends. Only 4791 is the port of RoCE v2.
    pub udp_port: u16,
    /// Largest path MTU of the port.
    pub active_mtu: PathMtu,
    /// Size of the receive buffer of the socket, as the kernel counts it; 0 without such a buffer.
    pub receive_buffer_bytes: usize,
    /// Maximum number and size of the device's objects.
    pub limits: Limits,
    /// Whether memory registered with [`Access::ON_DEMAND`] may be unmapped and mapped again.
    pub on_demand: bool,
}

/// The keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Key for scatter-gather elements.
    pub lkey: LKey,
    /// Key for peers.
    pub rkey: RKey,
}

/// An access of the program to memory of the safe API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// The program copies bytes out.
    CopyOut,
    /// The program copies bytes in, or fills them with one value.
    CopyIn,
    /// The program reads a byte or word, for example to poll it.
    Load,
    /// The program writes a byte or word.
    Store,
}

/// Observer of the program's accesses to one region, called after each read or store. Accesses through slices are not
/// reported.
pub trait MemoryObserver: Send + Sync {
    /// Reports that the program accessed `length` bytes, `offset` bytes from the start of the region.
    fn accessed(&self, access: MemoryAccess, offset: usize, length: usize);
}

/// Address of memory of the safe API for the device and its peers, and the observer of accesses to it.
pub struct Placement {
    /// The address of the first byte, as work requests and peers name it. It has the same low twelve bits as the
    /// address in the process.
    pub address: u64,
    /// Observer of accesses, if any. A region without an observer pays one branch for each access.
    pub observer: Option<Arc<dyn MemoryObserver>>,
}

/// Returns the error of a provider that does not offer `what`.
fn lacking<T>(what: &'static str) -> Result<T, Error> {
    Err(Error::os(what)(io::Error::new(io::ErrorKind::Unsupported, "this provider does not offer them")))
}

/// An RNIC. Optional operations return an error unless the provider implements them.
pub trait Provider: Send + Sync {
    /// Returns the attributes of the device.
    fn attributes(&self) -> DeviceAttributes;

    /// Returns the nanoseconds on the device's clock, which is the only clock of code built on verbs.
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

    /// Decides under which address memory of the safe API is registered. The memory has `length` bytes at `base` in
    /// the process; if `mirrored`, its second half maps the same bytes as the first. A virtual device chooses its own
    /// addresses, so that they are the same in every run.
    fn place(&self, base: *mut u8, length: usize, mirrored: bool) -> Placement {
        let _ = (length, mirrored);
        Placement { address: base as u64, observer: None }
    }

    /// Registers memory under the address `address`.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, the range is impossible, its length is 0 or impossible, or the device has
    /// no free region. RNICs lock memory, so the limit on locked memory may be too small
    /// ([`SystemError::LockedMemory`](crate::system::SystemError::LockedMemory)).
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until [`deregister`](Self::deregister) returns. There are two exceptions. If
    /// `owner` owns the memory, it must stay mapped only while `owner` lives. If `access` has [`Access::ON_DEMAND`]
    /// and the device offers that, it must stay mapped only while a work request or a peer uses it.
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

    /// Changes the memory, rights or protection domain of a region, which keeps its keys. On an error, the region
    /// stays unchanged.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); or there is no such region, a memory window is bound to it, or the driver
    /// only supports the address in the process.
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register) without an owner.
    unsafe fn reregister(
        &self,
        lkey: LKey,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<(), Error>;

    /// Deregisters memory. After the return, the device no longer accesses it.
    ///
    /// # Errors
    ///
    /// There is no such region, or a memory window is bound to it.
    fn deregister(&self, lkey: LKey) -> Result<(), Error>;

    /// Creates a memory window, which work requests bind. Its key identifies it.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, the device has no free memory window, or the provider offers none.
    fn create_window(&self, _pd: PdId, _kind: WindowKind) -> Result<RKey, Error> {
        lacking("memory windows")
    }

    /// Destroys a memory window, identified by any key that it had.
    ///
    /// # Errors
    ///
    /// There is no such memory window, or the provider offers none.
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
    /// There is no such protection domain, a number is out of range, the device has no free shared receive queue, or
    /// the driver refuses.
    fn create_srq(&self, pd: PdId, depth: usize, max_sges: usize) -> Result<Box<dyn Srq>, Error>;

    /// Creates a queue pair.
    ///
    /// # Errors
    ///
    /// The protection domain, a completion queue or the shared receive queue does not exist, or the shared receive
    /// queue belongs to another protection domain. A capacity is out of range, the device has no free queue pair, or
    /// the driver refuses.
    fn create_qp(&self, init: QpInit) -> Result<Box<dyn Qp>, Error>;

    /// Returns a random first sequence number.
    fn random_psn(&self) -> Psn;

    /// Returns the counters of the device, if the provider counts. For RNICs of the machine the kernel counts, for
    /// all programs together.
    fn counters(&self) -> Option<Counters>;

    /// Returns the packets lost below the device on this side, if the provider drives the link.
    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    /// Takes the oldest asynchronous event.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// Returns a descriptor that is readable while asynchronous events wait.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Moves packets, if callers drive the device.
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

    /// Takes the oldest notification, and returns its completion queue. Never blocks.
    fn next(&self) -> Option<CqId>;

    /// Returns the threads that sleep until a notification comes, if they need no descriptor for that. Only the
    /// software RNIC has them: the kernel notifies through the descriptor.
    fn sleepers(&self) -> Option<&Arc<Sleepers>> {
        None
    }

    /// Drives the device for a short time before its caller sleeps, if that is likely to help. Returns true if a
    /// notification came.
    fn linger(&self) -> bool {
        false
    }

    /// Waits until a notification can be taken. Returns false if the timeout ended the wait.
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

/// A completion queue of a provider. Dropping it destroys it.
pub trait Cq: Send + Sync {
    /// Returns the number of the queue.
    fn id(&self) -> CqId;

    /// Reaps completions.
    ///
    /// # Errors
    ///
    /// The queue overran: completions were lost.
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun>;

    /// Arms one notification.
    fn arm(&self, notify: Notify);

    /// Changes the maximum number of entries.
    ///
    /// # Errors
    ///
    /// `depth` is out of range, more than `depth` completions wait to be reaped, or the driver refuses. The queue is
    /// then unchanged.
    fn resize(&self, depth: usize) -> Result<(), Error>;
}

/// A shared receive queue of a provider. Dropping it destroys it.
pub trait Srq: Send + Sync {
    /// Returns the number of the queue.
    fn id(&self) -> SrqId;

    /// Arms the limit event.
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
    /// The memory must stay registered and unreferenced until its completion is reaped.
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError>;
}

/// A queue pair of a provider. Dropping it destroys it.
pub trait Qp: Send + Sync {
    /// Returns the number of the queue pair.
    fn qpn(&self) -> Qpn;

    /// Modifies the queue pair.
    ///
    /// # Errors
    ///
    /// As [`crate::Qp::modify`].
    fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError>;

    /// Returns the state of the queue pair. RNICs of the machine count per port, so the counters are zero there.
    fn query(&self) -> QpInfo;

    /// Attaches the queue pair to a multicast group, whose datagrams it then receives, including its own.
    ///
    /// # Errors
    ///
    /// The queue pair is not UD, or `group` is no multicast address of the device's address family. The device has no
    /// free group, the operating system cannot join the group, or the provider offers no groups.
    fn attach(&self, _group: IpAddr) -> Result<(), Error> {
        lacking("multicast groups")
    }

    /// Detaches the queue pair from a multicast group.
    ///
    /// # Errors
    ///
    /// The queue pair is not attached to the group, or the provider offers no groups.
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
    /// Memory that READs and atomics write must stay unreferenced until their completion is reaped. Memory that is
    /// sent must stay registered until then.
    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts a list of send work requests, or none of them.
    ///
    /// # Errors
    ///
    /// As [`crate::Qp::post_send`], but no request of the list was accepted. A provider that cannot withdraw accepted
    /// requests refuses every list of more than one.
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
    /// The memory must stay registered and unreferenced until its completion is reaped.
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError>;
}
