//! What a provider is, and the unsafe layer below the safe API.
//!
//! Here memory is an address, a length and a key, and nothing checks that it outlives the work
//! requests that name it: that is why posting is `unsafe`. A front door for programs written in C
//! builds on this.

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

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Its name.
    pub name: String,
    /// Its provider: `soft`, `system` or `sim`.
    pub provider: &'static str,
    /// The port that is used; the only one of a software RNIC is 1.
    pub port: u8,
    /// Its address.
    pub address: IpAddr,
    /// Its GID: the address, IPv4-mapped if need be (RoCE v2 annex A17).
    pub gid: Ipv6Addr,
    /// The UDP port of both ends. Anything but 4791 is not RoCE's.
    pub udp_port: u16,
    /// Largest path MTU that its port carries.
    pub active_mtu: PathMtu,
    /// Receive buffer behind the device, in the kernel's bytes; 0 if there is none.
    pub receive_buffer_bytes: usize,
    /// How many objects it has, and how large they are.
    pub limits: Limits,
    /// Does [`Access::ON_DEMAND`] mean that memory may come and go?
    pub on_demand: bool,
}

/// The keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// For scatter-gather elements.
    pub lkey: LKey,
    /// For peers.
    pub rkey: RKey,
}

/// An access of the program to memory of the safe API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAccess {
    /// Bytes are copied out.
    CopyOut,
    /// Bytes are copied in, or set.
    CopyIn,
    /// A byte or word is read, as a program does that polls it.
    Load,
    /// A byte or word is written.
    Store,
}

/// Hears of the accesses of the program to one region, after reads and stores. A slice of a region is not heard of.
pub trait MemoryObserver: Send + Sync {
    /// The program accessed `length` bytes, `offset` bytes from the start of the region.
    fn accessed(&self, access: MemoryAccess, offset: usize, length: usize);
}

/// Where memory of the safe API lies for the device and its peers, and who hears of accesses to it.
pub struct Placement {
    /// The address of the first byte, as work requests and peers name it. It has the same low twelve bits as the
    /// address in the process.
    pub address: u64,
    /// Hears of accesses, if somebody wants to. A region without an observer pays one branch for each access.
    pub observer: Option<Arc<dyn MemoryObserver>>,
}

/// What a provider says of something that it does not offer.
fn lacking<T>(what: &'static str) -> Result<T, Error> {
    Err(Error::os(what)(io::Error::new(io::ErrorKind::Unsupported, "this provider does not offer them")))
}

/// An RNIC. What only some have is refused unless a provider offers it.
pub trait Provider: Send + Sync {
    /// What the device can do.
    fn attributes(&self) -> DeviceAttributes;

    /// Nanoseconds on the device's clock: the only clock of what is built on verbs.
    fn now_ns(&self) -> u64;

    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// The device has no more of them, or the driver refuses.
    fn create_pd(&self) -> Result<PdId, Error>;

    /// Destroys a protection domain.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, or something that was made from it still exists.
    fn destroy_pd(&self, pd: PdId) -> Result<(), Error>;

    /// Decides where memory of the safe API lies, before it is registered under that address: `length` bytes at `base`
    /// in the process, whose second half is the same bytes as the first if it is mirrored. A virtual device chooses
    /// addresses of its own, so that they are the same in every run.
    fn place(&self, base: *mut u8, length: usize, mirrored: bool) -> Placement {
        let _ = (length, mirrored);
        Placement { address: base as u64, observer: None }
    }

    /// Registers memory under the address `address`.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, the range is impossible, its length is 0 or impossible, or the device has no
    /// more regions.
    /// RNICs lock memory, so the limit on locked memory may be too small
    /// ([`SystemError::LockedMemory`](crate::system::SystemError::LockedMemory)).
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until [`deregister`](Self::deregister) returns, or for as long
    /// as `owner` lives where it owns the memory, or only while a work request or a peer uses it
    /// where `access` has [`Access::ON_DEMAND`] and the device offers that; and no Rust reference may exist to bytes that a
    /// work request or a peer may write.
    unsafe fn register(
        &self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Keys, Error>;

    /// Registers a region anew, with other memory, rights or protection domain; its keys stay good.
    /// If it is refused, the region stays as it was.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); or there is no such region, a memory window is bound to it, or the driver has
    /// no place for an address other than that in the process.
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

    /// Deregisters memory. When this returns, the device does not touch it any more.
    ///
    /// # Errors
    ///
    /// There is no such region, or a memory window is bound to it.
    fn deregister(&self, lkey: LKey) -> Result<(), Error>;

    /// Creates a memory window, which work requests bind. Its key names it.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, the device has no more memory windows, or the provider does not offer them.
    fn create_window(&self, _pd: PdId, _kind: WindowKind) -> Result<RKey, Error> {
        lacking("memory windows")
    }

    /// Destroys a memory window, by any key that it had.
    ///
    /// # Errors
    ///
    /// There is no such memory window, or the provider does not offer them.
    fn destroy_window(&self, _rkey: RKey) -> Result<(), Error> {
        lacking("memory windows")
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The operating system gives no descriptor, or the driver refuses.
    fn create_channel(&self) -> Result<Arc<dyn Channel>, Error>;

    /// Creates a completion queue of `depth` entries, which notifies on `channel`. The machine's
    /// RNICs may round that up.
    ///
    /// # Errors
    ///
    /// `depth` is out of range, the device has no more completion queues, or the driver refuses.
    fn create_cq(&self, depth: usize, channel: Option<&Arc<dyn Channel>>) -> Result<Box<dyn Cq>, Error>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, a number is out of range, the device has no more shared receive queues, or
    /// the driver refuses.
    fn create_srq(&self, pd: PdId, depth: usize, max_sges: usize) -> Result<Box<dyn Srq>, Error>;

    /// Creates a queue pair.
    ///
    /// # Errors
    ///
    /// There is no such protection domain, completion queue or shared receive queue, the shared receive queue belongs
    /// to another protection domain, a capacity is out of range, the device has no more queue pairs, or the driver
    /// refuses.
    fn create_qp(&self, init: QpInit) -> Result<Box<dyn Qp>, Error>;

    /// A random first sequence number.
    fn random_psn(&self) -> Psn;

    /// What the device counted, if it is the provider that counts; of the machine's devices the
    /// kernel does, for all programs together.
    fn counters(&self) -> Option<Counters>;

    /// What was lost below the device, on this side, where the provider drives what lies there.
    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    /// The oldest asynchronous event.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// Readable while asynchronous events wait.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Moves packets, where the device is driven by its callers.
    fn drive(&self) {}
}

/// Sleeps until a descriptor is readable, or the time is over: false then.
pub(crate) fn sleep_until_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    Ok(ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout.map(TimeSpec::from), None)? > 0)
}

/// A completion channel of a provider.
pub trait Channel: Any + Send + Sync {
    /// Readable while notifications wait.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The completion queue that the oldest notification is for. Never blocks.
    fn next(&self) -> Option<CqId>;

    /// Returns the threads that sleep until a notification comes, if they need no descriptor for it. Only the software RNIC
    /// has them: the kernel notifies by the descriptor.
    fn sleepers(&self) -> Option<&Arc<Sleepers>> {
        None
    }

    /// Drives the device for a caller that is going to sleep, for a moment, if that is worth it. True
    /// if a notification came.
    fn linger(&self) -> bool {
        false
    }

    /// Waits until a notification can be taken, or the time is over: false then.
    ///
    /// # Errors
    ///
    /// The operating system cannot wait, or a signal ended the wait ([`io::ErrorKind::Interrupted`]).
    fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        sleep_until_readable(self.fd(), timeout)
    }

    /// Itself, for the provider that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A completion queue of a provider. Dropping it destroys it.
pub trait Cq: Send + Sync {
    /// Its number.
    fn id(&self) -> CqId;

    /// Reaps completions.
    ///
    /// # Errors
    ///
    /// The queue overran: completions were lost.
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun>;

    /// Arms one notification.
    fn arm(&self, notify: Notify);

    /// Changes how many entries it holds at most.
    ///
    /// # Errors
    ///
    /// `depth` is out of range, more completions than that wait to be reaped, or the driver refuses. Then nothing has
    /// changed.
    fn resize(&self, depth: usize) -> Result<(), Error>;
}

/// A shared receive queue of a provider. Dropping it destroys it.
pub trait Srq: Send + Sync {
    /// Its number.
    fn id(&self) -> SrqId;

    /// Arms the limit event.
    fn arm_limit(&self, limit: usize);

    /// The limit that is armed; 0 if none is.
    fn limit(&self) -> usize;

    /// Receives that are posted, where the device tells.
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
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// Modifies it.
    ///
    /// # Errors
    ///
    /// As [`crate::Qp::modify`].
    fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError>;

    /// What is known of it. RNICs of the machine count per port, so what they counted is zero here.
    fn query(&self) -> QpInfo;

    /// Attaches it to a multicast group: from now on it receives what is sent there, its own datagrams included.
    ///
    /// # Errors
    ///
    /// The queue pair is not UD, `group` is no multicast address of the device's address family, the device has no more
    /// groups, the operating system cannot join it, or the provider does not offer groups.
    fn attach(&self, _group: IpAddr) -> Result<(), Error> {
        lacking("multicast groups")
    }

    /// Detaches it from a multicast group.
    ///
    /// # Errors
    ///
    /// The queue pair is not attached to it, or the provider does not offer groups.
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
    /// Memory that READs and atomics write must stay unreferenced until their completion is
    /// reaped; memory that is sent must stay registered for as long.
    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts a list of send work requests, or none of them.
    ///
    /// # Errors
    ///
    /// As [`crate::Qp::post_send`], but no request of the list was accepted. A provider that cannot take requests back
    /// refuses every list of more than one.
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
