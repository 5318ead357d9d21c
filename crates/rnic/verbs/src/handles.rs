//! Safe handles of devices, protection domains, queues and queue pairs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use doorbell_verbs_core::{
    AsyncEvent, Completion, Counters, CqId, LinkCounters, ModifyError, Notify, Overrun, PdId, PortOrder, PortState,
    PostError, QpAttributes, QpCapacities, QpInfo, QpInit, QpKind, RecvRequest, SendRequest, SrqId,
};
use doorbell_wire::{Psn, Qpn};

use crate::error::Error;
use crate::raw::{self, DeviceAttributes, Provider};

/// An RNIC. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    provider: Arc<dyn Provider>,
    first_psn: Option<Psn>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Device").field(&self.provider.attributes().name).finish()
    }
}

impl Device {
    /// Creates a device from a provider.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self { provider, first_psn: None }
    }

    /// Returns the attributes of the device.
    pub fn attributes(&self) -> DeviceAttributes {
        self.provider.attributes()
    }

    /// Returns the time on the device's clock in nanoseconds. Code built on verbs uses no other clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.provider.now_ns()
    }

    /// Returns the time until a deadline on the device's clock; zero after the deadline.
    pub fn time_until(&self, deadline_ns: u64) -> Duration {
        Duration::from_nanos(deadline_ns.saturating_sub(self.now_ns()))
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// The device refuses, as [`Provider::create_pd`] describes.
    pub fn create_pd(&self) -> Result<Pd, Error> {
        let id = self.provider.create_pd()?;
        Ok(Pd { inner: Arc::new(PdInner { id, device: self.clone() }) })
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The operating system or the device refuses, as [`Provider::create_channel`] describes.
    pub fn create_channel(&self) -> Result<Channel, Error> {
        Ok(Channel { raw: self.provider.create_channel()?, device: self.clone() })
    }

    /// Creates a completion queue of `depth` entries without notifications. The software RNIC uses exactly this depth;
    /// RNICs of the machine may round `depth` up.
    ///
    /// # Errors
    ///
    /// `depth` is 0 or more than the device allows, or the device refuses as [`Provider::create_cq`] describes.
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

    /// Returns a random initial packet sequence number.
    pub fn random_psn(&self) -> Psn {
        self.provider.random_psn()
    }

    /// Returns a handle of the same device with this value of [`first_psn`](Self::first_psn). A fixed value serves
    /// tests only, for example of connections whose PSN wraps: an old packet may fit into a new connection.
    #[must_use]
    pub fn with_first_psn(self, first_psn: Psn) -> Self {
        Self { first_psn: Some(first_psn), ..self }
    }

    /// Returns the packet sequence number of the first packet of a new connection. It is random, unless
    /// [`with_first_psn`](Self::with_first_psn) has set it.
    pub fn first_psn(&self) -> Psn {
        self.first_psn.unwrap_or_else(|| self.random_psn())
    }

    /// Returns the counters of the device. Returns `None` for a device whose packets only the kernel counts, in
    /// counters that all programs share.
    pub fn counters(&self) -> Option<Counters> {
        self.provider.counters()
    }

    /// Returns the counters of packets that this device's link lost, either before the device received them or after
    /// the device sent them.
    pub fn link_counters(&self) -> LinkCounters {
        self.provider.link_counters()
    }

    /// Returns the state of the port.
    ///
    /// # Errors
    ///
    /// The device has failed ([`PortError::DeviceFatal`](crate::PortError::DeviceFatal)), or the driver refuses.
    pub fn port_state(&self) -> Result<PortState, Error> {
        self.provider.port_state()
    }

    /// Changes the state of the port. Only the software RNIC supports orders.
    ///
    /// While the port is down, the device loses all packets in both directions, and counts them in `tx_port_down` and
    /// `rx_port_down` of its [`link_counters`](Self::link_counters). Requests on reliable connections end with
    /// [`Status::RetryExceeded`](crate::Status::RetryExceeded) once their retries are spent. If the port comes up
    /// before that, the connections go on. The device raises [`AsyncEvent::PortError`], and later
    /// [`AsyncEvent::PortActive`] and [`AsyncEvent::GidChange`].
    ///
    /// After [`PortOrder::DeviceFatal`], all queue pairs are in the error state, and calls that create or modify
    /// objects fail. The device raises [`AsyncEvent::DeviceFatal`].
    ///
    /// # Errors
    ///
    /// The port has the ordered state already, or the device has failed ([`Error::Port`]). The provider cannot change
    /// its port ([`Error::Os`]).
    pub fn order_port(&self, order: PortOrder) -> Result<(), Error> {
        self.provider.order_port(order)
    }

    /// Takes the oldest asynchronous event.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.provider.poll_event()
    }

    /// Returns a descriptor that is readable while asynchronous events wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.provider.event_fd()
    }

    /// Moves packets in the calling thread. This has an effect only on software and simulated RNICs. Polling a
    /// completion queue also moves packets. A program that waits for something other than completions must call this
    /// function in its loop.
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
        // The call cannot fail: objects created from the domain hold it alive, so none remains.
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

/// Options of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions<'a> {
    /// Transport.
    pub kind: QpKind,
    /// Completion queue of the send requests.
    pub send_cq: &'a Cq,
    /// Completion queue of the receive requests.
    pub recv_cq: &'a Cq,
    /// Shared receive queue that provides the receives; `None` gives the queue pair its own receive queue.
    pub srq: Option<&'a Srq>,
    /// Depths of the send and receive queues.
    pub capacities: QpCapacities,
    /// Whether every send request generates a completion.
    pub signal_all: bool,
}

impl Pd {
    pub(crate) fn provider(&self) -> &Arc<dyn Provider> {
        &self.inner.device.provider
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// `depth` or `max_sges` is 0 or exceeds the limit of the device, or the device refuses as [`Provider::create_srq`]
    /// describes.
    pub fn create_srq(&self, depth: usize, max_sges: usize) -> Result<Srq, Error> {
        let raw = self.provider().create_srq(self.id(), depth, max_sges)?;
        Ok(Srq { inner: Arc::new(SrqInner { raw, pd: self.clone() }) })
    }

    /// Creates a queue pair in the reset state.
    ///
    /// # Errors
    ///
    /// A queue belongs to another device, or the shared receive queue belongs to another protection domain. A capacity
    /// exceeds the limit of the device, or the device refuses as [`Provider::create_qp`] describes.
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

/// A completion channel, which delivers the notifications of completion queues. Clones are the same channel.
///
/// Its file descriptor is readable while notifications wait, and works with `poll`, `epoll` (level- or
/// edge-triggered) and async runtimes. It need not be readable for a notification that [`wait`](Self::wait) has
/// reported.
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
    /// Returns the device of the channel and of its completion queues.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Takes the oldest notification, and returns the completion queue that raised it. Never blocks.
    pub fn next(&self) -> Option<CqId> {
        self.raw.next()
    }

    /// Waits until a notification can be taken. Returns false if the timeout ended the wait. After true, the caller
    /// takes the notification by [`next`](Self::next). Until then, the descriptor need not be readable for it, since a
    /// notification that arrives while this call drives the device costs no system call on the descriptor.
    ///
    /// # Errors
    ///
    /// The operating system cannot wait for the descriptor. A signal is not an error: `wait` then returns false, as
    /// after the timeout.
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
    /// Returns the number of the queue. Notifications carry this number.
    pub fn id(&self) -> CqId {
        self.inner.raw.id()
    }

    /// Reaps up to `out.len()` completions. Never blocks.
    ///
    /// # Errors
    ///
    /// The queue overran, so completions were lost. This error is returned only after all remaining completions are
    /// reaped.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        self.inner.raw.poll(out)
    }

    /// Arms one notification on the channel. Completions that are already in the queue may raise no notification: the
    /// software RNIC raises a notification for completions that came after the previous notification, and `rdma_rxe`
    /// raises none. So poll once more between arming and waiting. A notification may also refer to completions that the
    /// program has already reaped.
    pub fn arm(&self, notify: Notify) {
        self.inner.raw.arm(notify);
    }

    /// Returns the completion channel of the queue.
    pub fn channel(&self) -> Option<&Channel> {
        self.inner.channel.as_ref()
    }

    /// Returns the device.
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
    /// Returns the number of the queue. Limit events carry this number.
    pub fn id(&self) -> SrqId {
        self.inner.raw.id()
    }

    /// Arms an event that is raised once fewer than `limit` receives remain.
    pub fn arm_limit(&self, limit: usize) {
        self.inner.raw.arm_limit(limit);
    }

    /// Returns the number of posted receives, if the device reports it.
    pub fn posted(&self) -> Option<usize> {
        self.inner.raw.posted()
    }

    /// Posts a list of receives.
    ///
    /// # Errors
    ///
    /// The queue is full, a request has too many scatter-gather elements, or the device refuses a request. The error
    /// has the index of the refused request; the device accepted all requests before that index.
    #[inline]
    #[allow(unsafe_code)]
    pub fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: as in `Qp::post_send`.
        unsafe { self.inner.raw.post_recv(list) }
    }
}

struct QpInner {
    // The first field, so that the queue pair is destroyed before the objects that it uses.
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
    /// Returns the number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.inner.raw.qpn()
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Returns the completion queue of the sends.
    pub fn send_cq(&self) -> &Cq {
        &self.inner.send_cq
    }

    /// Returns the completion queue of the receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.inner.recv_cq
    }

    /// Modifies the queue pair, as the [table of transitions](crate::transition) allows.
    ///
    /// # Errors
    ///
    /// The [table of transitions](crate::transition) does not have this transition, or the transition needs other
    /// attributes. A value is out of range, the device does not support the path MTU or the peer's address, or the
    /// driver refuses. [`ModifyError`] has a variant for each case.
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        self.inner.raw.modify(attributes)
    }

    /// Returns the state, attributes and counters of the queue pair.
    pub fn query(&self) -> QpInfo {
        self.inner.raw.query()
    }

    /// Posts a list of send work requests. Stops at the first request that is not accepted.
    ///
    /// # Errors
    ///
    /// The queue is full, or a request is not allowed in this state, on this transport, or with this payload,
    /// destination or memory ([`PostErrorKind`](crate::PostErrorKind)). The error has the index of the refused request;
    /// the device accepted all requests before that index.
    #[inline]
    #[allow(unsafe_code)]
    pub fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the registration of the safe API keeps its memory alive. References to that memory exist only through
        // `Region::slice` and `slice_mut`, whose callers guarantee that no work request with this memory is posted. For
        // memory registered through `raw`, the caller of `raw` gave that guarantee.
        unsafe { self.inner.raw.post_send(list) }
    }

    /// Posts a list of receive work requests. Stops at the first request that is not accepted.
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
