//! Channels, completion queues, shared receive queues and queue pairs of the software RNIC.

use std::any::Any;
use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use doorbell_fabric::DrivenRnic;
use doorbell_rnic::{CompletionQueue, Rnic, SharedReceives};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{
    Completion, CqId, ModifyError, Notifier, Notify, ObjectError, Overrun, PdId, PostError, QpAttributes, QpInfo,
    QpInit, QpKind, QpState, RecvRequest, SendRequest, SrqId,
};
use doorbell_wire::Qpn;

use super::engines::{CqEngines, Engines, Place};
use super::no_event_descriptor;
use crate::error::Error;
use crate::raw::{self, sleep_until_readable};
use crate::signal::{Notices, Sleepers};

/// After a program has waited on a channel, the device expects the program to wait for this number of further
/// notifications too. Until they have arrived, arming a queue does not wake the progress thread.
const WAITER_FOR: usize = 16;

pub(super) struct SoftChannel {
    /// Completion queues with a notification that the program has not taken yet.
    notices: Notices<Arc<Notified>>,
    /// The engines. The reference is weak, since the completion queues of the engines hold this channel.
    engines: Weak<Engines>,
    /// Engines of the completion queues of this channel.
    queues: Mutex<Vec<Arc<CqEngines>>>,
    /// Number of further notifications for which the program is expected to call [`raw::Channel::wait`]. Programs
    /// rarely change their way of waiting.
    lingers: AtomicUsize,
}

/// Identity of a completion queue on its channel. The numbers of queues are reused, these objects are not.
#[derive(Debug, Default)]
struct Notified {
    /// Number of the queue, set once the queue exists.
    id: OnceLock<CqId>,
    /// Whether the queue is being destroyed. This flag changes only under the lock of the channel's notices.
    closed: AtomicBool,
}

fn soft_channel(channel: Option<&Arc<dyn raw::Channel>>) -> Option<&SoftChannel> {
    channel.and_then(|channel| channel.as_any().downcast_ref())
}

impl SoftChannel {
    pub(super) fn new(engines: &Arc<Engines>) -> Result<Self, Error> {
        let notices = Notices::new().map_err(no_event_descriptor)?;
        let engines = Arc::downgrade(engines);
        Ok(Self { notices, engines, queues: Mutex::default(), lingers: AtomicUsize::new(0) })
    }

    fn notify(&self, cq: &Arc<Notified>) {
        let mut notices = self.notices.lock();
        if !cq.closed.load(Ordering::Relaxed) {
            notices.push(Arc::clone(cq));
        }
    }

    /// Drops the waiting notifications of a queue that is being destroyed, and prevents further ones. The number of the
    /// queue must still be in use. Otherwise a waiting notification could name a new queue with the same number.
    fn forget(&self, cq: &Arc<Notified>) {
        let mut notices = self.notices.lock();
        cq.closed.store(true, Ordering::Relaxed);
        notices.remove(|other| Arc::ptr_eq(other, cq));
    }

    fn noted(&self, taken: Option<Arc<Notified>>) -> Option<CqId> {
        let id = *taken?.id.get()?;
        self.lingers.store(self.lingers.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        Some(id)
    }

    /// Drives the device for a short time, and returns whether a notification arrived.
    fn drive_awhile(&self) -> bool {
        let engines = self.engines.upgrade();
        engines.is_some_and(|engines| engines.linger(&self.queues, || !self.notices.lock().is_empty()))
    }
}

impl raw::Channel for SoftChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.notices.fd()
    }

    fn next(&self) -> Option<CqId> {
        let taken = self.notices.lock().pop();
        self.noted(taken)
    }

    fn sleepers(&self) -> Option<&Arc<Sleepers>> {
        Some(self.notices.sleepers())
    }

    fn linger(&self) -> bool {
        self.lingers.store(WAITER_FOR, Ordering::Relaxed);
        self.notices.sleepers().linger(|| self.drive_awhile())
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.lingers.store(WAITER_FOR, Ordering::Relaxed);
        // The descriptor does not count a notification that was left to a caller of `linger` or `wait`.
        if !self.notices.lock().is_empty() {
            return Ok(true);
        }
        if timeout.is_none_or(|timeout| !timeout.is_zero()) && self.linger() {
            return Ok(true);
        }
        sleep_until_readable(self.fd(), timeout)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(super) struct SoftCq {
    engines: Arc<Engines>,
    id: CqId,
    /// Engines that polls of the queue drive.
    driven: Arc<CqEngines>,
    queue: Arc<CompletionQueue>,
    channel: Option<Arc<dyn raw::Channel>>,
    notified: Arc<Notified>,
}

impl SoftCq {
    pub(super) fn create(
        engines: &Arc<Engines>,
        depth: usize,
        channel: Option<&Arc<dyn raw::Channel>>,
    ) -> Result<Self, ObjectError> {
        // The queue needs its notifier when it is created. So the notifier gets the number of the queue only
        // afterwards.
        let notified = Arc::new(Notified::default());
        let notifier: Notifier = {
            let (armed, notified, channel) =
                (Arc::clone(engines.first().armed()), Arc::clone(&notified), channel.cloned());
            Arc::new(move || {
                armed.fetch_sub(1, Ordering::SeqCst);
                if let Some(channel) = soft_channel(channel.as_ref()) {
                    channel.notify(&notified);
                }
            })
        };
        let (id, queue) = engines.first().with(|rnic| rnic.create_cq(depth, Some(notifier)))?;
        notified.id.get_or_init(|| id);
        let driven = engines.enter_cq(id);
        if let Some(channel) = soft_channel(channel) {
            channel.queues.lock().ignore_poison().push(Arc::clone(&driven));
        }
        Ok(Self { engines: Arc::clone(engines), id, driven, queue, channel: channel.cloned(), notified })
    }

    /// Returns the number of armed notifications, which all engines share.
    fn armed(&self) -> &AtomicUsize {
        self.engines.first().armed()
    }
}

impl raw::Cq for SoftCq {
    fn id(&self) -> CqId {
        self.id
    }

    #[inline]
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        self.engines.poll(&self.driven, &self.queue, out)
    }

    fn arm(&self, notify: Notify) {
        // Count the armed notification before arming it, since it may fire at any moment.
        self.armed().fetch_add(1, Ordering::SeqCst);
        if !self.queue.request_notification(notify) {
            self.armed().fetch_sub(1, Ordering::SeqCst);
        }
        self.engines.send_deferred(&self.driven);
        // If the program is expected to wait on the channel, the progress thread may continue to sleep, since the wait
        // of the program drives the device. If the program waits in another way this time, the progress thread drives
        // the device at the end of its sleep.
        let lingers = |channel: &SoftChannel| channel.lingers.load(Ordering::Relaxed) > 0;
        if !soft_channel(self.channel.as_ref()).is_some_and(lingers) {
            self.engines.rouse(&self.driven);
        }
    }

    fn resize(&self, depth: usize) -> Result<(), Error> {
        self.engines.first().port_state()?;
        Ok(self.engines.first().with(|rnic| rnic.resize_cq(self.id, depth))?)
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        if let Some(channel) = soft_channel(self.channel.as_ref()) {
            channel.forget(&self.notified); // before `destroy_cq` frees the number for reuse
            channel.queues.lock().ignore_poison().retain(|other| !Arc::ptr_eq(other, &self.driven));
        }
        self.engines.leave_cq(self.id);
        // The call cannot fail: queue pairs that use the queue keep this handle alive.
        let _ = self.engines.first().with(|rnic| rnic.destroy_cq(self.id));
        if self.queue.is_armed() {
            self.armed().fetch_sub(1, Ordering::SeqCst);
        }
    }
}

pub(super) struct SoftSrq {
    rnic: Arc<DrivenRnic>,
    id: SrqId,
    receives: Arc<SharedReceives>,
}

impl SoftSrq {
    pub(super) fn create(rnic: &Arc<DrivenRnic>, pd: PdId, depth: usize, max_sges: usize) -> Result<Self, ObjectError> {
        let (id, receives) = rnic.with(|rnic| {
            let (id, _) = rnic.create_srq(pd, depth, max_sges)?;
            let receives = rnic.shared_receives(id).ok_or(ObjectError::Unknown("shared receive queue"))?;
            Ok::<_, ObjectError>((id, receives))
        })?;
        Ok(Self { rnic: Arc::clone(rnic), id, receives })
    }
}

impl raw::Srq for SoftSrq {
    fn id(&self) -> SrqId {
        self.id
    }

    fn arm_limit(&self, limit: usize) {
        self.receives.queue().arm_limit(limit);
    }

    fn limit(&self) -> usize {
        self.receives.queue().limit()
    }

    fn posted(&self) -> Option<usize> {
        Some(self.receives.queue().len())
    }

    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.receives.post(list)
    }
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        let _ = self.rnic.with(|rnic| rnic.destroy_srq(self.id));
    }
}

/// Multicast groups that the link has joined, each with the queue pair for which the link joined the group.
pub(super) type Groups = HashSet<(IpAddr, Qpn)>;

pub(super) struct SoftQp {
    /// Engine of the queue pair.
    rnic: Arc<DrivenRnic>,
    engines: Arc<Engines>,
    groups: Arc<Mutex<Groups>>,
    qpn: Qpn,
    sends_datagrams: bool,
    /// Completion queues of the queue pair.
    cqs: [CqId; 2],
    place: Place,
}

impl SoftQp {
    pub(super) fn create(
        engines: &Arc<Engines>,
        groups: &Arc<Mutex<Groups>>,
        init: QpInit,
    ) -> Result<Self, ObjectError> {
        let cqs = [init.send_cq, init.recv_cq];
        let sends_datagrams = init.kind == QpKind::Ud;
        let mut place = engines.place(cqs);
        if place.engine != 0 && engines.all()[place.engine].begin().is_err() {
            place = engines.place_first(place, cqs);
        }
        let rnic = Arc::clone(&engines.all()[place.engine]);
        let begun = rnic.begin().map_err(|_| ObjectError::Exhausted("threads"));
        match begun.and_then(|()| rnic.with(|rnic| rnic.create_qp(init))) {
            Ok(qpn) => Ok(Self {
                rnic,
                engines: Arc::clone(engines),
                groups: Arc::clone(groups),
                qpn,
                sends_datagrams,
                cqs,
                place,
            }),
            Err(error) => {
                engines.displace(place, cqs);
                Err(error)
            }
        }
    }

    /// Returns the number of requests that wait to be sent. A post that fails sends all of them: the queue may be full.
    #[inline]
    fn waiting(&self, rnic: &Rnic, has_posted: bool) -> usize {
        if has_posted { rnic.pending_work(self.qpn) } else { usize::MAX }
    }

    /// Locks the groups. A caller that holds the lock changes the groups of the link and of the RNIC together.
    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().ignore_poison()
    }

    fn detach_from(&self, group: IpAddr) -> Result<(), ObjectError> {
        if self.rnic.with(|rnic| rnic.detach(self.qpn, group))? {
            self.rnic.leave(group);
        }
        Ok(())
    }
}

impl raw::Qp for SoftQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        self.rnic.port_state().map_err(|_| ModifyError::DeviceFatal)?;
        let modify = |rnic: &mut Rnic| rnic.modify_qp(self.qpn, attributes);
        if matches!(attributes.state, Some(QpState::Error | QpState::Reset)) {
            return self.rnic.end(modify);
        }
        // A datagram has the Q_Key of the time of its post, and a state without sends must not hold it back.
        self.rnic.send_deferred();
        self.rnic.post(false, |rnic, _| (modify(rnic), 0))
    }

    fn query(&self) -> QpInfo {
        self.rnic.with(|rnic| rnic.query_qp(self.qpn)).expect("a queue pair exists until its handle drops")
    }

    fn attach(&self, group: IpAddr) -> Result<(), Error> {
        self.rnic.port_state()?;
        let mut groups = self.groups();
        if self.rnic.with(|rnic| rnic.attach(self.qpn, group))? {
            self.rnic.join(group).map_err(|error| {
                // Undo the attachment. This queue pair is the only member of the group, since `attach` returned true.
                let _ = self.rnic.with(|rnic| rnic.detach(self.qpn, group));
                Error::os("the multicast group could not be joined")(error)
            })?;
        }
        groups.insert((group, self.qpn));
        Ok(())
    }

    fn detach(&self, group: IpAddr) -> Result<(), Error> {
        let mut groups = self.groups();
        self.detach_from(group)?;
        groups.remove(&(group, self.qpn));
        Ok(())
    }

    #[inline]
    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.rnic.post(self.sends_datagrams, |rnic, now_ns| {
            let result = rnic.post_send(now_ns, self.qpn, list);
            let waiting = self.waiting(rnic, result.is_ok());
            (result, waiting)
        })
    }

    #[inline]
    unsafe fn post_all_sends(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.rnic.post(self.sends_datagrams, |rnic, now_ns| {
            let result = rnic.post_all_sends(now_ns, self.qpn, list);
            let waiting = self.waiting(rnic, result.is_ok());
            (result, waiting)
        })
    }

    #[inline]
    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.rnic.with(|rnic| rnic.post_recv(self.qpn, list))
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        self.groups().retain(|&(group, qpn)| {
            if qpn != self.qpn {
                return true;
            }
            let _ = self.detach_from(group);
            false
        });
        self.rnic.end(|rnic| rnic.destroy_qp(self.qpn)).ok();
        self.engines.displace(self.place, self.cqs);
    }
}
