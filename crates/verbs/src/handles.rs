//! The safe handles.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use doorbell_verbs_core::{
    Access, AsyncEvent, Completion, Counters, CqId, LinkCounters, ModifyError, Notify, Overrun, PdId, PostError,
    QpAttributes, QpCapacities, QpInfo, QpInit, QpKind, RecvRequest, SendRequest, SrqId,
};
use doorbell_wire::{Psn, Qpn};

use crate::error::Error;
use crate::memory::{MemoryKind, Region};
use crate::raw::{self, DeviceAttributes, Provider};

/// An RNIC. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    provider: Arc<dyn Provider>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.provider.attributes().name).finish()
    }
}

impl Device {
    /// A device of a provider.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self { provider }
    }

    /// What it can do.
    pub fn attributes(&self) -> DeviceAttributes {
        self.provider.attributes()
    }

    /// Nanoseconds on its clock: the only clock of what is built on verbs.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.provider.now_ns()
    }

    /// How long it is until a deadline on the device's clock: nothing once it has passed.
    pub fn time_until(&self, deadline_ns: u64) -> Duration {
        Duration::from_nanos(deadline_ns.saturating_sub(self.now_ns()))
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// The device refuses: [`Provider::create_pd`].
    pub fn create_pd(&self) -> Result<Pd, Error> {
        let id = self.provider.create_pd()?;
        Ok(Pd { inner: Arc::new(PdInner { id, device: self.clone() }) })
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The operating system or the device refuses: [`Provider::create_channel`].
    pub fn create_channel(&self) -> Result<Channel, Error> {
        Ok(Channel { raw: self.provider.create_channel()?, device: self.clone() })
    }

    /// Creates a completion queue of `depth` entries that never notifies. The software RNIC holds
    /// exactly that many; those of the machine may round up, as for all depths.
    ///
    /// # Errors
    ///
    /// `depth` is 0 or more than the device allows, or the device refuses: [`Provider::create_cq`].
    pub fn create_cq(&self, depth: usize) -> Result<Cq, Error> {
        let raw = self.provider.create_cq(depth, None)?;
        Ok(Cq { inner: Arc::new(CqInner { raw, device: self.clone(), channel: None }) })
    }

    /// Creates a completion queue of `depth` entries that notifies on `channel`.
    ///
    /// # Errors
    ///
    /// As [`create_cq`](Self::create_cq), or the channel belongs to another device.
    pub fn create_cq_on(&self, depth: usize, channel: &Channel) -> Result<Cq, Error> {
        self.same(&channel.device, "completion channel")?;
        let raw = self.provider.create_cq(depth, Some(&channel.raw))?;
        Ok(Cq { inner: Arc::new(CqInner { raw, device: self.clone(), channel: Some(channel.clone()) }) })
    }

    /// A random first sequence number.
    pub fn random_psn(&self) -> Psn {
        self.provider.random_psn()
    }

    /// What it counted; `None` where it is the kernel that counts, for all programs together.
    pub fn counters(&self) -> Option<Counters> {
        self.provider.counters()
    }

    /// What was lost below it on this side, before the RNIC could see it or after it was sent.
    pub fn link_counters(&self) -> LinkCounters {
        self.provider.link_counters()
    }

    /// The oldest asynchronous event.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.provider.poll_event()
    }

    /// Readable while asynchronous events wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.provider.event_fd()
    }

    /// Moves packets, where the device is driven by its callers. Polling a completion queue does
    /// so too; this is for programs that wait for something else.
    pub fn drive(&self) {
        self.provider.drive();
    }

    fn same(&self, other: &Self, what: &'static str) -> Result<(), Error> {
        if Arc::ptr_eq(&self.provider, &other.provider) { Ok(()) } else { Err(Error::ForeignDevice(what)) }
    }
}

struct PdInner {
    id: PdId,
    device: Device,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // What was made from it holds it alive, so nothing uses it any more.
        let _ = self.device.provider.destroy_pd(self.id);
    }
}

/// A protection domain. Clones are the same domain.
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pd").field(&self.inner.id).finish()
    }
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions<'a> {
    /// Transport.
    pub kind: QpKind,
    /// Completion queue of its sends.
    pub send_cq: &'a Cq,
    /// Completion queue of its receives.
    pub recv_cq: &'a Cq,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<&'a Srq>,
    /// Depths.
    pub capacities: QpCapacities,
    /// Every send makes a completion.
    pub signal_all: bool,
}

impl Pd {
    pub(crate) fn provider(&self) -> &Arc<dyn Provider> {
        &self.inner.device.provider
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Allocates and registers memory. The provider decides where it lies.
    ///
    /// # Errors
    ///
    /// `length` is 0, the operating system gives no memory, a file is too short or cannot be mapped, the length of
    /// [`MemoryKind::Mirrored`] is no multiple of the page size, or the device does not register the memory:
    /// [`Provider::register`].
    pub fn allocate(&self, length: usize, access: Access, kind: MemoryKind<'_>) -> Result<Region, Error> {
        Region::allocate(self, length, access, kind)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// A number is 0 or more than the device allows, or the device refuses: [`Provider::create_srq`].
    pub fn create_srq(&self, depth: usize, max_sges: usize) -> Result<Srq, Error> {
        let raw = self.provider().create_srq(self.id(), depth, max_sges)?;
        Ok(Srq { inner: Arc::new(SrqInner { raw, pd: self.clone() }) })
    }

    /// Creates a queue pair, in the reset state.
    ///
    /// # Errors
    ///
    /// One of the queues belongs to another device, the shared receive queue to another protection domain, a capacity
    /// is more than the device allows, or the device refuses: [`Provider::create_qp`].
    pub fn create_qp(&self, options: QpOptions<'_>) -> Result<Qp, Error> {
        let device = self.device();
        device.same(&options.send_cq.inner.device, "send completion queue")?;
        device.same(&options.recv_cq.inner.device, "receive completion queue")?;
        if let Some(srq) = options.srq {
            device.same(srq.inner.pd.device(), "shared receive queue")?;
        }
        let raw = self.provider().create_qp(QpInit {
            kind: options.kind,
            pd: self.id(),
            send_cq: options.send_cq.id(),
            recv_cq: options.recv_cq.id(),
            srq: options.srq.map(Srq::id),
            capacities: options.capacities,
            signal_all: options.signal_all,
        })?;
        Ok(Qp {
            inner: Arc::new(QpInner {
                raw,
                pd: self.clone(),
                send_cq: options.send_cq.clone(),
                recv_cq: options.recv_cq.clone(),
                _srq: options.srq.cloned(),
            }),
        })
    }
}

/// Where completion queues notify. Clones are the same channel.
///
/// Its file descriptor is readable while notifications wait, so it can be used with `poll`,
/// `epoll` (level- or edge-triggered) and async runtimes.
#[derive(Clone)]
pub struct Channel {
    raw: Arc<dyn raw::Channel>,
    device: Device,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Channel").field(&self.as_raw_fd()).finish()
    }
}

impl Channel {
    /// The device whose completion queues notify here.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Takes the oldest notification: the queue that it is for. Never blocks.
    pub fn next(&self) -> Option<CqId> {
        self.raw.next()
    }

    /// Waits until a notification can be taken, or the time is over: false then.
    ///
    /// # Errors
    ///
    /// The operating system cannot wait for the descriptor. A signal is no error: it ends the wait as the timeout does.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        match self.raw.wait(timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            result => result,
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

struct CqInner {
    raw: Box<dyn raw::Cq>,
    device: Device,
    channel: Option<Channel>,
}

/// A completion queue. Clones are the same queue.
#[derive(Clone)]
pub struct Cq {
    inner: Arc<CqInner>,
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cq").field(&self.id()).finish()
    }
}

impl Cq {
    /// Its number, which notifications carry.
    pub fn id(&self) -> CqId {
        self.inner.raw.id()
    }

    /// Reaps up to `out.len()` completions. Never blocks.
    ///
    /// # Errors
    ///
    /// The queue overran: completions were lost. Those that are still in the queue are reaped first.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        self.inner.raw.poll(out)
    }

    /// Arms one notification on the channel. Not every device raises it for completions that are in the queue already
    /// (the software RNIC does for those that came after the last notification, `rdma_rxe` for none): poll once more
    /// after arming, before waiting, and expect notifications of completions that were reaped meanwhile.
    pub fn arm(&self, notify: Notify) {
        self.inner.raw.arm(notify);
    }

    /// The channel it notifies on.
    pub fn channel(&self) -> Option<&Channel> {
        self.inner.channel.as_ref()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }
}

struct SrqInner {
    raw: Box<dyn raw::Srq>,
    pd: Pd,
}

/// A shared receive queue. Clones are the same queue.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<SrqInner>,
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Srq").field(&self.id()).finish()
    }
}

impl Srq {
    /// Its number, which limit events carry.
    pub fn id(&self) -> SrqId {
        self.inner.raw.id()
    }

    /// Raises an event once fewer than `limit` receives are left.
    pub fn arm_limit(&self, limit: usize) {
        self.inner.raw.arm_limit(limit);
    }

    /// Receives that are posted, where the device tells.
    pub fn posted(&self) -> Option<usize> {
        self.inner.raw.posted()
    }

    /// Posts a list of receives.
    ///
    /// # Errors
    ///
    /// The queue is full, a request has too many scatter-gather elements, or the device refuses one. The error says
    /// which request it was; those before it were accepted.
    #[inline]
    #[allow(unsafe_code)]
    pub fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: as for `Qp::post_recv`.
        unsafe { self.inner.raw.post_recv(list) }
    }
}

struct QpInner {
    // First, so that it is destroyed before what it uses.
    raw: Box<dyn raw::Qp>,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    _srq: Option<Srq>,
}

/// A queue pair. Clones are the same queue pair.
#[derive(Clone)]
pub struct Qp {
    inner: Arc<QpInner>,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Qp").field(&self.qpn()).finish()
    }
}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner.raw.qpn()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Completion queue of its sends.
    pub fn send_cq(&self) -> &Cq {
        &self.inner.send_cq
    }

    /// Completion queue of its receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.inner.recv_cq
    }

    /// Modifies it, as the [table of transitions](crate::transition) allows.
    ///
    /// # Errors
    ///
    /// There is no such transition, it needs other attributes, a value is out of range, the path MTU or the peer's
    /// address does not suit the device, or the driver refuses: [`ModifyError`] says which.
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        self.inner.raw.modify(attributes)
    }

    /// What is known of it.
    pub fn query(&self) -> QpInfo {
        self.inner.raw.query()
    }

    /// Posts a list of send work requests, up to the first that is not acceptable.
    ///
    /// # Errors
    ///
    /// The queue is full, or a request is not allowed: in this state, on this transport, or with this payload,
    /// destination or memory ([`PostErrorKind`](crate::PostErrorKind)). The error says which request it was; those
    /// before it were accepted.
    #[inline]
    #[allow(unsafe_code)]
    pub fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: memory that the safe API registers is kept alive by its registration, and no
        // reference to it exists but through `Region::slice` and `slice_mut`, whose callers
        // promised that no such work request is posted. Memory registered through `raw` is under
        // the promise given there.
        unsafe { self.inner.raw.post_send(list) }
    }

    /// Posts a list of receive work requests, up to the first that is not acceptable.
    ///
    /// # Errors
    ///
    /// As [`Srq::post_recv`]; or the queue pair is in the reset state, or takes its receives from a shared receive
    /// queue.
    #[inline]
    #[allow(unsafe_code)]
    pub fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: as for `post_send`.
        unsafe { self.inner.raw.post_recv(list) }
    }
}
