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
use doorbell_rnic::{CompletionQueue, SharedReceiveQueue};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{
    Completion, CqId, ModifyError, Notifier, Notify, ObjectError, Overrun, PdId, PostError, QpAttributes, QpInfo,
    QpInit, QpState, RecvRequest, SendRequest, SrqId,
};
use doorbell_wire::Qpn;

use super::no_eventfd;
use crate::error::Error;
use crate::raw::{self, sleep_until_readable};
use crate::signal::{Notices, Sleepers};

/// After one wait, assume that the program also waits for this number of further notifications.
const WAITER_FOR: usize = 16;

pub(super) struct SoftChannel {
    /// Completion queues whose notifications wait.
    notices: Notices<Arc<Notified>>,
    /// The RNIC. A weak reference, since the engine notifies through its queues, which hold this channel.
    rnic: Weak<DrivenRnic>,
    /// Number of further notifications for which [`raw::Channel::wait`] is expected. Programs rarely change their way
    /// of waiting.
    lingers: AtomicUsize,
}

/// A completion queue as its channel identifies it. Numbers of queues are reused, this object is not.
#[derive(Debug, Default)]
struct Notified {
    /// Set once the queue exists.
    id: OnceLock<CqId>,
    /// Whether the queue is being destroyed. Changes under the lock of the channel's notices.
    closed: AtomicBool,
}

fn soft_channel(channel: Option<&Arc<dyn raw::Channel>>) -> Option<&SoftChannel> {
    channel.and_then(|channel| channel.as_any().downcast_ref())
}

impl SoftChannel {
    pub(super) fn new(rnic: &Arc<DrivenRnic>) -> Result<Self, Error> {
        let notices = Notices::new().map_err(no_eventfd)?;
        Ok(Self { notices, rnic: Arc::downgrade(rnic), lingers: AtomicUsize::new(0) })
    }

    fn notify(&self, cq: &Arc<Notified>) {
        let mut notices = self.notices.lock();
        if !cq.closed.load(Ordering::Relaxed) {
            notices.push(Arc::clone(cq));
        }
    }

    /// Ends the notifications of a queue that is being destroyed. The caller must not have freed its number yet, so
    /// that the notifications of the next queue with that number stay.
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
        self.rnic.upgrade().is_some_and(|rnic| rnic.linger(|| !self.notices.lock().is_empty()))
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.lingers.store(WAITER_FOR, Ordering::Relaxed);
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
    rnic: Arc<DrivenRnic>,
    id: CqId,
    queue: Arc<CompletionQueue>,
    channel: Option<Arc<dyn raw::Channel>>,
    notified: Arc<Notified>,
}

impl SoftCq {
    pub(super) fn create(
        rnic: &Arc<DrivenRnic>,
        depth: usize,
        channel: Option<&Arc<dyn raw::Channel>>,
    ) -> Result<Self, ObjectError> {
        // The notifier is needed to create the queue, whose number is known only afterwards.
        let notified = Arc::new(Notified::default());
        let notifier: Notifier = {
            let (armed, notified, channel) = (Arc::clone(rnic.armed()), Arc::clone(&notified), channel.cloned());
            Arc::new(move || {
                armed.fetch_sub(1, Ordering::SeqCst);
                if let Some(channel) = soft_channel(channel.as_ref()) {
                    channel.notify(&notified);
                }
            })
        };
        let (id, queue) = rnic.with(|rnic| rnic.create_cq(depth, Some(notifier)))?;
        notified.id.get_or_init(|| id);
        Ok(Self { rnic: Arc::clone(rnic), id, queue, channel: channel.cloned(), notified })
    }
}

impl raw::Cq for SoftCq {
    fn id(&self) -> CqId {
        self.id
    }

    #[inline]
    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        self.rnic.poll(&self.queue, out)
    }

    fn arm(&self, notify: Notify) {
        // Count first: an armed notification may fire at any moment.
        self.rnic.armed().fetch_add(1, Ordering::SeqCst);
        if !self.queue.request_notification(notify) {
            self.rnic.armed().fetch_sub(1, Ordering::SeqCst);
        }
        // If the program waits differently this time, the thread notices it when its nap ends.
        let lingers = |channel: &SoftChannel| channel.lingers.load(Ordering::Relaxed) > 0;
        if !soft_channel(self.channel.as_ref()).is_some_and(lingers) {
            self.rnic.rouse();
        }
    }

    fn resize(&self, depth: usize) -> Result<(), Error> {
        Ok(self.rnic.with(|rnic| rnic.resize_cq(self.id, depth))?)
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        if let Some(channel) = soft_channel(self.channel.as_ref()) {
            channel.forget(&self.notified); // before the number is free for reuse
        }
        // The queue is not busy: queue pairs keep its handle alive.
        let _ = self.rnic.with(|rnic| rnic.destroy_cq(self.id));
        if self.queue.is_armed() {
            self.rnic.armed().fetch_sub(1, Ordering::SeqCst);
        }
    }
}

pub(super) struct SoftSrq {
    rnic: Arc<DrivenRnic>,
    id: SrqId,
    queue: Arc<SharedReceiveQueue>,
}

impl SoftSrq {
    pub(super) fn create(rnic: &Arc<DrivenRnic>, pd: PdId, depth: usize, max_sges: usize) -> Result<Self, ObjectError> {
        let (id, queue) = rnic.with(|rnic| rnic.create_srq(pd, depth, max_sges))?;
        Ok(Self { rnic: Arc::clone(rnic), id, queue })
    }
}

impl raw::Srq for SoftSrq {
    fn id(&self) -> SrqId {
        self.id
    }

    fn arm_limit(&self, limit: usize) {
        self.queue.arm_limit(limit);
    }

    fn limit(&self) -> usize {
        self.queue.limit()
    }

    fn posted(&self) -> Option<usize> {
        Some(self.queue.len())
    }

    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.rnic.with(|rnic| rnic.post_srq_recv(self.id, list))
    }
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        let _ = self.rnic.with(|rnic| rnic.destroy_srq(self.id));
    }
}

/// Multicast groups that the link has joined, each with the queue pair.
pub(super) type Groups = HashSet<(IpAddr, Qpn)>;

pub(super) struct SoftQp {
    rnic: Arc<DrivenRnic>,
    groups: Arc<Mutex<Groups>>,
    qpn: Qpn,
}

impl SoftQp {
    pub(super) fn create(
        rnic: &Arc<DrivenRnic>,
        groups: &Arc<Mutex<Groups>>,
        init: QpInit,
    ) -> Result<Self, ObjectError> {
        let qpn = rnic.with(|rnic| rnic.create_qp(init))?;
        Ok(Self { rnic: Arc::clone(rnic), groups: Arc::clone(groups), qpn })
    }

    /// Locks the groups, so that the groups of the link always match those of the RNIC.
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
        // A pending acknowledgement is sent now, since it cannot be sent later: the peer did nothing wrong.
        let ends = matches!(attributes.state, Some(QpState::Error | QpState::Reset));
        self.rnic.post(|rnic, _| (rnic.modify_qp(self.qpn, attributes), if ends { usize::MAX } else { 0 }))
    }

    fn query(&self) -> QpInfo {
        self.rnic.with(|rnic| rnic.query_qp(self.qpn)).expect("a queue pair exists until its handle drops")
    }

    fn attach(&self, group: IpAddr) -> Result<(), Error> {
        let mut groups = self.groups();
        if self.rnic.with(|rnic| rnic.attach(self.qpn, group))? {
            self.rnic.join(group).map_err(|error| {
                // The queue pair is the group's only member in the RNIC.
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
        self.rnic.post(|rnic, now_ns| {
            let result = rnic.post_send(now_ns, self.qpn, list);
            (result, rnic.pending_work(self.qpn))
        })
    }

    #[inline]
    unsafe fn post_all_sends(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.rnic.post(|rnic, now_ns| {
            let result = rnic.post_all_sends(now_ns, self.qpn, list);
            (result, rnic.pending_work(self.qpn))
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
        // Other queue pairs may wait for the room that this one used, so they continue. A pending acknowledgement is
        // sent.
        self.rnic.post(|rnic, _| (rnic.destroy_qp(self.qpn), usize::MAX)).ok();
    }
}
