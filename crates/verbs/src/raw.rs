//! What a provider is, and the unsafe layer below the safe API.
//!
//! Here memory is an address, a length and a key, and nothing checks that it outlives the work
//! requests that name it: that is why posting is `unsafe`. A front door for programs written in C
//! builds on this.

use std::any::Any;
use std::ffi::c_void;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use doorbell_fabric::LinkCounters;
use doorbell_rnic::{
    Access, AsyncEvent, Completion, Counters, CqId, LKey, MemoryError, ModifyError, Notify, Overrun, PdId, PostError,
    QpAttributes, QpInfo, QpInit, RecvRequest, SendRequest, Sge, SrqId, WindowKind,
};
use doorbell_wire::{PathMtu, Psn, Qpn, RKey};
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::unistd::{SysconfVar, sysconf};

use crate::error::Error;
pub use crate::signal::{LockedNotices, Notices};

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Its name.
    pub name: String,
    /// Its provider: `soft` or `system`.
    pub provider: &'static str,
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
    /// Most work requests of a queue.
    pub max_queue_depth: usize,
    /// Most scatter-gather elements of a work request.
    pub max_sges: usize,
    /// Most inline data of a work request.
    pub max_inline: usize,
    /// Most entries of a completion queue.
    pub max_cq_depth: usize,
    /// Most READs and atomics outstanding per queue pair and direction.
    pub max_rd_atomic: usize,
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
    fn create_pd(&self) -> Result<PdId, Error>;

    /// Destroys a protection domain that nothing uses.
    fn destroy_pd(&self, pd: PdId) -> Result<(), Error>;

    /// Registers memory under the address `address`.
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

    /// Registers a region without memory, for local use: it reads as zeros, and what is written to it
    /// is lost. It takes every address.
    fn register_null(&self, _pd: PdId) -> Result<Keys, Error> {
        lacking("memory regions without memory")
    }

    /// Registers a region anew, with other memory, rights or protection domain; its keys stay good.
    /// If it is refused, the region stays as it was.
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

    /// Brings in memory for a local access to come, where it is registered with
    /// [`Access::ON_DEMAND`], and checks that access in any case.
    fn prefetch(&self, _pd: PdId, _sge: &Sge, _needed: Access) -> Result<(), MemoryError> {
        Ok(()) // nothing to do without paging on demand
    }

    /// Deregisters memory. When this returns, the device does not touch it any more. Refused while
    /// memory windows are bound to it.
    fn deregister(&self, lkey: LKey) -> Result<(), Error>;

    /// Creates a memory window, which work requests bind. Its key names it.
    fn create_window(&self, _pd: PdId, _kind: WindowKind) -> Result<RKey, Error> {
        lacking("memory windows")
    }

    /// Destroys a memory window, by any key that it had.
    fn destroy_window(&self, _rkey: RKey) -> Result<(), Error> {
        lacking("memory windows")
    }

    /// Creates a completion channel.
    fn create_channel(&self) -> Result<Arc<dyn Channel>, Error>;

    /// Creates a completion queue of `depth` entries, which notifies on `channel`. The machine's
    /// RNICs may round that up.
    fn create_cq(&self, depth: usize, channel: Option<&Arc<dyn Channel>>) -> Result<Box<dyn Cq>, Error>;

    /// Creates a shared receive queue.
    fn create_srq(&self, pd: PdId, depth: usize, max_sges: usize) -> Result<Box<dyn Srq>, Error>;

    /// Creates a queue pair.
    fn create_qp(&self, init: QpInit) -> Result<Box<dyn Qp>, Error>;

    /// A random first sequence number.
    fn random_psn(&self) -> Psn;

    /// What the device counted, if it is the provider that counts; of the machine's devices the
    /// kernel does, for all programs together.
    fn counters(&self) -> Option<Counters>;

    /// What was lost below the device, on this side, where the provider drives what lies there.
    fn link_counters(&self) -> LinkCounters;

    /// Both, for a caller that must not wait, such as a signal handler, which may have interrupted a call on the
    /// device; `None` while another call is in the device.
    fn try_counters(&self) -> Option<(Counters, LinkCounters)> {
        Some((self.counters()?, self.link_counters()))
    }

    /// The oldest asynchronous event.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// Readable while asynchronous events wait.
    fn event_fd(&self) -> BorrowedFd<'_>;

    /// Moves packets, where the device is driven by its callers.
    fn drive(&self);
}

/// Brings pages of this process's memory in, so that they can be read, or also written. Fails
/// where there is no such memory, and always on kernels before 5.14.
pub fn bring_in(base: *mut u8, length: usize, written: bool) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as usize;
    let start = base as usize / page * page;
    let end = (base as usize).checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
    let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
    let advice = if written { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: it changes nothing but which pages are in memory, wherever the range lies.
    match unsafe { libc::madvise(start as *mut c_void, end - start, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does the kernel know how to [`bring_in`]?
pub fn can_bring_in() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    // Of a byte that is there for sure.
    *CAN.get_or_init(|| bring_in((&raw const CAN).cast_mut().cast(), 1, false).is_ok())
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

    /// As [`next`](Self::next), for a caller that has read the descriptor itself, as a program does that
    /// leaves it to the kernel whether a signal ends its wait. Only the software RNIC's descriptor counts
    /// notifications, so that each is one read.
    fn next_read(&self) -> Option<CqId> {
        self.next()
    }

    /// Drives the device for a caller that is going to sleep, for a moment, if that is worth it. True
    /// if a notification came.
    fn linger(&self) -> bool {
        false
    }

    /// Waits until a notification can be taken, or the time is over: false then.
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
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun>;

    /// Arms one notification.
    fn arm(&self, notify: Notify);

    /// Changes how many entries it holds at most.
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
    fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError>;

    /// What is known of it. RNICs of the machine count per port, so what they counted is zero here.
    fn query(&self) -> QpInfo;

    /// Attaches it to a multicast group: from now on it receives what is sent there, its own
    /// datagrams included. Only UD queue pairs can be.
    fn attach(&self, _group: IpAddr) -> Result<(), Error> {
        lacking("multicast groups")
    }

    /// Detaches it from a multicast group.
    fn detach(&self, _group: IpAddr) -> Result<(), Error> {
        lacking("multicast groups")
    }

    /// Posts a list of send work requests.
    ///
    /// # Safety
    ///
    /// Memory that READs and atomics write must stay unreferenced until their completion is
    /// reaped; memory that is sent must stay registered for as long.
    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts a list of send work requests, or none of them.
    ///
    /// # Safety
    ///
    /// As for [`post_send`](Self::post_send).
    unsafe fn post_all_sends(&self, list: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts a list of receive work requests.
    ///
    /// # Safety
    ///
    /// The memory must stay registered and unreferenced until its completion is reaped.
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError>;
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn memory_that_is_there_is_brought_in_and_other_is_not() {
        static CONSTANT: [u8; 8] = [1; 8];
        if !can_bring_in() {
            eprintln!("left out: this kernel is older than 5.14");
            return;
        }
        let mut own = vec![0_u8; 100_000];
        let constant = CONSTANT.as_ptr().cast_mut();
        let nowhere = ptr::without_provenance_mut(0x1000);
        let end = ptr::without_provenance_mut(usize::MAX - 1);
        assert!(bring_in(own.as_mut_ptr(), own.len(), true).is_ok());
        assert!(bring_in(constant, 8, false).is_ok());
        assert!(bring_in(constant, 8, true).is_err(), "it cannot be written");
        assert!(bring_in(nowhere, 1, false).is_err(), "nothing is there");
        assert!(bring_in(end, 2, false).is_err(), "nor beyond the end");
        assert!(bring_in(nowhere, 0, true).is_ok(), "no bytes need no memory");
    }
}
