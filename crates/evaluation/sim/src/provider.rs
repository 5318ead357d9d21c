//! Provider of verbs for the RNIC of a simulated host.
//!
//! Each verbs call adds its cost to the clock of the running thread. A post rings a doorbell at the time of that clock.
//!
//! This is the only module of the crate with `unsafe` code, because methods of the trait [`Provider`] are unsafe. The
//! module only passes the guarantees of the caller on to the RNIC.

mod memory;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use doorbell_fabric::VerbsCall;
use doorbell_rnic::{CompletionQueue, LIMITS, Pager, Region, Rnic, SharedReceiveQueue};
use doorbell_verbs::faults::InjectedFaults;
use doorbell_verbs::raw::{self, DeviceAttributes, EventSignal, Keys, Notices, Placement, Provider};
use doorbell_verbs::{
    Access, AsyncEvent, Completion, CompletionOpcode, Counters, CqId, Error, LKey, Limits, ModifyError, Notifier,
    Notify, ObjectError, Overrun, PathMtu, Payload, PdId, PortState, PostError, PostErrorKind, Psn, QpAttributes,
    QpInfo, QpInit, QpState, Qpn, RKey, RecvRequest, SendRequest, SrqId, WindowKind,
};
use doorbell_verbs_core::EventQueue;
use doorbell_wire::to_gid;
use rustc_hash::FxHashMap;

use crate::kernel::locks::Lock;
use crate::kernel::watch::{Watch, lock};
use crate::kernel::{self, Leaves, World};
use crate::time::Ps;
use memory::Memory;

/// Name of the provider in the attributes of a simulated device.
pub const PROVIDER: &str = "sim";

/// State that all objects of one simulation share.
pub(crate) struct SharedWorld {
    pub(crate) world: Mutex<World>,
    /// Descriptor that is never readable, for a device without an event descriptor of its own.
    no_events: Notices<()>,
}

impl SharedWorld {
    pub(crate) fn new(world: World) -> Result<Self, Error> {
        Ok(Self { world: Mutex::new(world), no_events: Notices::new().map_err(no_event_descriptor)? })
    }
}

fn no_event_descriptor(error: impl Into<io::Error>) -> Error {
    Error::Os { what: "a descriptor that signals events could not be created", error: error.into() }
}

/// A simulated host's RNIC.
pub(crate) struct SimDevice {
    shared: Arc<SharedWorld>,
    node: usize,
    events: Arc<EventQueue>,
    event_signal: Arc<OnceLock<EventSignal>>,
    regions: Mutex<FxHashMap<LKey, Arc<Region>>>,
    /// Memory that is not registered yet, by its address.
    placed: Mutex<FxHashMap<u64, Arc<Memory>>>,
}

impl SimDevice {
    pub(crate) fn new(shared: &Arc<SharedWorld>, node: usize) -> Self {
        let world = lock(&shared.world);
        let (events, event_signal) =
            (Arc::clone(world.nodes[node].rnic.events()), Arc::clone(&world.nodes[node].event_signal));
        drop(world);
        let shared = Arc::clone(shared);
        Self { shared, node, events, event_signal, regions: Mutex::default(), placed: Mutex::default() }
    }

    fn with<R>(&self, run: impl FnOnce(&mut Rnic) -> R) -> R {
        run(&mut lock(&self.shared.world).nodes[self.node].rnic)
    }

    /// Returns the injected faults of the calls of this host, if there are any.
    fn injected(&self) -> Option<InjectedFaults> {
        let faults = lock(&self.shared.world).verbs_faults.get(self.node)?.clone();
        let shared = Arc::clone(&self.shared);
        Some(InjectedFaults::new(faults, move || lock(&shared.world).clock().as_ns()))
    }

    /// Checks that the fault plan does not refuse a call.
    fn check(&self, call: VerbsCall) -> Result<(), Error> {
        self.injected().map_or(Ok(()), |injected| injected.check(call, None))
    }
}

impl Provider for SimDevice {
    fn attributes(&self) -> DeviceAttributes {
        let world = lock(&self.shared.world);
        let address = world.address(self.node);
        let gid = to_gid(address);
        let max_rd_atomic = usize::try_from(world.testbed.nic.max_rd_atomic).unwrap_or(usize::MAX);
        DeviceAttributes {
            name: format!("sim{}", self.node),
            provider: PROVIDER,
            port: 1,
            address,
            gid,
            udp_port: doorbell_wire::ROCE_UDP_PORT,
            active_mtu: world.testbed.link.path_mtu.max(PathMtu::Mtu256),
            receive_buffer_bytes: 0,
            limits: Limits { max_rd_atomic: max_rd_atomic.min(LIMITS.max_rd_atomic), ..LIMITS },
            on_demand: false,
        }
    }

    fn now_ns(&self) -> u64 {
        lock(&self.shared.world).read_clock().as_ns()
    }

    fn create_pd(&self) -> Result<PdId, Error> {
        self.check(VerbsCall::AllocPd)?;
        Ok(self.with(Rnic::create_pd))
    }

    fn destroy_pd(&self, pd: PdId) -> Result<(), Error> {
        self.check(VerbsCall::DeallocPd)?;
        Ok(self.with(|rnic| rnic.destroy_pd(pd))?)
    }

    fn place(&self, base: *mut u8, length: usize, mirrored: bool) -> Placement {
        let mut world = lock(&self.shared.world);
        let address = world.nodes[self.node].place(length);
        let memory = Arc::new(Memory {
            shared: Arc::clone(&self.shared),
            node: self.node,
            address,
            watch: Watch::new(&world.changes, false),
            base: base as usize,
            period: if mirrored { length / 2 } else { length },
            mirrored,
        });
        lock(&self.placed).insert(address, Arc::clone(&memory));
        Placement { address, observer: Some(memory) }
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
        self.check(VerbsCall::RegMr)?;
        let pager = lock(&self.placed).remove(&address).map(|memory| memory as Arc<dyn Pager>);
        let region = {
            let mut world = lock(&self.shared.world);
            let node = &mut world.nodes[self.node];
            node.region_bytes += length as u64;
            // SAFETY: the caller of this function gives the same guarantee.
            unsafe { node.rnic.register_paged(pd, base, length, address, access, owner, pager) }?
        };
        let keys = Keys { lkey: region.lkey(), rkey: region.rkey() };
        lock(&self.regions).insert(keys.lkey, region);
        Ok(keys)
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
        self.check(VerbsCall::ReregMr)?;
        let mut regions = lock(&self.regions);
        let region = regions.get_mut(&lkey).ok_or(ObjectError::Unknown("memory region"))?;
        // SAFETY: the caller of this function gives the same guarantee.
        *region = self.with(|rnic| unsafe { rnic.reregister(region, pd, base, length, address, access) })?;
        Ok(())
    }

    fn deregister(&self, lkey: LKey) -> Result<(), Error> {
        self.check(VerbsCall::DeregMr)?;
        let mut regions = lock(&self.regions);
        let region = regions.get(&lkey).ok_or(ObjectError::Unknown("memory region"))?;
        self.with(|rnic| rnic.deregister(region))?;
        regions.remove(&lkey);
        Ok(())
    }

    fn create_window(&self, pd: PdId, kind: WindowKind) -> Result<RKey, Error> {
        self.check(VerbsCall::AllocMw)?;
        Ok(self.with(|rnic| rnic.create_window(pd, kind))?)
    }

    fn destroy_window(&self, rkey: RKey) -> Result<(), Error> {
        self.check(VerbsCall::DeallocMw)?;
        Ok(self.with(|rnic| rnic.destroy_window(rkey))?)
    }

    fn create_channel(&self) -> Result<Arc<dyn raw::Channel>, Error> {
        self.check(VerbsCall::CreateCompChannel)?;
        let changes = Arc::clone(&lock(&self.shared.world).changes);
        Ok(Arc::new(SimChannel {
            shared: Arc::clone(&self.shared),
            inner: Arc::new(Notified {
                notices: Notices::new().map_err(no_event_descriptor)?,
                watch: Watch::new(&changes, true),
            }),
        }))
    }

    fn create_cq(&self, depth: usize, channel: Option<&Arc<dyn raw::Channel>>) -> Result<Box<dyn raw::Cq>, Error> {
        self.check(VerbsCall::CreateCq)?;
        let mut world = lock(&self.shared.world);
        let watch = Arc::new(Watch::new(&world.changes, false));
        let channel = channel.and_then(|channel| channel.as_any().downcast_ref::<SimChannel>());
        let notified = channel.map(|channel| Arc::clone(&channel.inner));
        let number = Arc::new(OnceLock::new());
        let notifier = notified.clone().map(|notified| {
            let number = Arc::clone(&number);
            let notifier: Notifier = Arc::new(move || {
                if let Some(&id) = number.get() {
                    notified.notices.lock().push(id);
                    notified.watch.changed(0, 1);
                }
            });
            notifier
        });
        let observer: Notifier = {
            let watch = Arc::clone(&watch);
            Arc::new(move || watch.changed(0, 1))
        };
        let (id, queue) = world.nodes[self.node].rnic.create_observed_cq(depth, notifier, observer)?;
        number.get_or_init(|| id);
        drop(world);
        let (shared, poll_lock) = (Arc::clone(&self.shared), Lock::default());
        Ok(Box::new(SimCq { shared, node: self.node, id, queue, watch, notified, poll_lock }))
    }

    fn create_srq(&self, pd: PdId, depth: usize, max_sges: usize) -> Result<Box<dyn raw::Srq>, Error> {
        self.check(VerbsCall::CreateSrq)?;
        let (id, queue) = self.with(|rnic| rnic.create_srq(pd, depth, max_sges))?;
        let (shared, post_lock) = (Arc::clone(&self.shared), Lock::default());
        let srq = Box::new(SimSrq { shared, node: self.node, id, queue, post_lock });
        Ok(match self.injected() {
            Some(injected) => injected.shared_receive_queue(srq),
            None => srq,
        })
    }

    fn create_qp(&self, init: QpInit) -> Result<Box<dyn raw::Qp>, Error> {
        self.check(VerbsCall::CreateQp)?;
        let mut world = lock(&self.shared.world);
        let node = &mut world.nodes[self.node];
        let qpn = node.rnic.create_qp(init)?;
        node.add_queue_pair(qpn, init.kind, init.srq);
        world.forget_last_queue();
        drop(world);
        let (shared, [send_lock, receive_lock]) = (Arc::clone(&self.shared), Default::default());
        let qp = Box::new(SimQp { shared, node: self.node, qpn, send_lock, receive_lock });
        Ok(match self.injected() {
            Some(injected) => injected.queue_pair(qp),
            None => qp,
        })
    }

    fn random_psn(&self) -> Psn {
        self.with(Rnic::random_psn)
    }

    fn counters(&self) -> Option<Counters> {
        let mut world = lock(&self.shared.world);
        world.go_on_for_outside();
        Some(*world.nodes[self.node].rnic.counters())
    }

    fn port_state(&self) -> Result<PortState, Error> {
        let mut world = lock(&self.shared.world);
        world.go_on_for_outside();
        Ok(world.faults.get(self.node).map_or(Ok(PortState::Active), kernel::InjectedFaults::port_state)?)
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        let mut world = lock(&self.shared.world);
        world.go_on_for_outside();
        match self.event_signal.get() {
            Some(signal) => signal.next(&self.events),
            None => self.events.pop(),
        }
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        let mut world = lock(&self.shared.world);
        world.settle_for_outside(|| self.events.waiting() > 0);
        if self.event_signal.get().is_none() {
            let Ok(signal) = EventSignal::new() else { return self.shared.no_events.fd() };
            (0..self.events.waiting()).for_each(|_| signal.signal());
            // The world is locked, so no event arrives meanwhile.
            self.event_signal.get_or_init(|| signal);
        }
        self.event_signal.get().map_or(self.shared.no_events.fd(), AsFd::as_fd)
    }

    fn drive(&self) {
        let mut world = lock(&self.shared.world);
        if world.current.is_none() {
            world.step_from_outside();
        }
    }
}

/// State that a channel shares with the queues that notify on it.
struct Notified {
    notices: Notices<CqId>,
    watch: Watch,
}

pub(crate) struct SimChannel {
    shared: Arc<SharedWorld>,
    inner: Arc<Notified>,
}

impl raw::Channel for SimChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        // A thread that asks for the descriptor is about to sleep on this channel.
        let mut world = lock(&self.shared.world);
        match world.looker() {
            Some((thread, turn)) => self.inner.watch.look(thread, turn, 0, 1),
            None => world.settle_for_outside(|| !self.inner.notices.lock().is_empty()),
        }
        self.inner.notices.fd()
    }

    fn next(&self) -> Option<CqId> {
        self.inner.notices.lock().pop()
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut world = lock(&self.shared.world);
        let deadline =
            timeout.map(|timeout| world.clock() + Ps::from_ns(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)));
        loop {
            if !self.inner.notices.lock().is_empty() {
                return Ok(true);
            }
            // Virtual time does not advance within the turn of a thread. The thread must use a waiter to sleep.
            if world.current.is_some() || deadline.is_some_and(|deadline| world.now() >= deadline) {
                return Ok(false);
            }
            world.step_from_outside();
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct SimCq {
    shared: Arc<SharedWorld>,
    node: usize,
    id: CqId,
    queue: Arc<CompletionQueue>,
    watch: Arc<Watch>,
    notified: Option<Arc<Notified>>,
    poll_lock: Lock,
}

impl raw::Cq for SimCq {
    fn id(&self) -> CqId {
        self.id
    }

    fn poll(&self, out: &mut [Completion]) -> Result<usize, Overrun> {
        let mut world = lock(&self.shared.world);
        let Some((thread, turn)) = world.looker() else {
            let count = self.queue.poll(out)?;
            if count == 0 {
                world.step_from_outside();
                return self.queue.poll(out);
            }
            return Ok(count);
        };
        let count = self.queue.poll(out)?;
        self.watch.look(thread, turn, 0, 1);
        if count == out.len() && !self.queue.is_empty() {
            world.threads[thread].left_completions_in(&self.queue);
        }
        let cpu = &world.testbed.cpu;
        if count == 0 {
            let cost = cpu.poll_call;
            world.wait_for(&self.poll_lock, cost);
            world.charge_in_vain(cost);
            return Ok(0);
        }
        let mut cost = cpu.poll_call + cpu.poll_completion.times(count as u64);
        let inline = out[..count].iter().filter(|completion| {
            completion.opcode == CompletionOpcode::Receive
                && u64::from(completion.byte_len) <= world.testbed.nic.inline_receive
        });
        cost += cpu.inline_receive.times(inline.count() as u64);
        for completion in out[..count].iter().filter(|completion| completion.opcode == CompletionOpcode::Receive) {
            let is_inline = u64::from(completion.byte_len) <= world.testbed.nic.inline_receive;
            cost += world.misses(self.node, completion.qpn, is_inline);
        }
        world.wait_for(&self.poll_lock, cost);
        world.charge(cost);
        Ok(count)
    }

    fn arm(&self, notify: Notify) {
        let mut world = lock(&self.shared.world);
        let cost = world.testbed.cpu.memory_access;
        world.charge(cost);
        self.queue.request_notification(notify);
    }

    fn resize(&self, depth: usize) -> Result<(), Error> {
        Ok(lock(&self.shared.world).nodes[self.node].rnic.resize_cq(self.id, depth)?)
    }
}

impl Drop for SimCq {
    fn drop(&mut self) {
        // While the world is locked, this queue pushes no notices, and no other queue gets the number of this queue.
        let mut world = lock(&self.shared.world);
        if let Some(notified) = &self.notified {
            notified.notices.lock().remove(|&id| id == self.id);
        }
        // The handle of a queue pair keeps its completion queues alive, so no queue pair uses this queue any more.
        let _ = world.nodes[self.node].rnic.destroy_cq(self.id);
    }
}

struct SimSrq {
    shared: Arc<SharedWorld>,
    node: usize,
    id: SrqId,
    queue: Arc<SharedReceiveQueue>,
    post_lock: Lock,
}

impl raw::Srq for SimSrq {
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
        let mut world = lock(&self.shared.world);
        // The entries of a shared queue are a linked list, since messages return them in any order. Each entry is read
        // at the head of the list when it is posted, and was written at the tail when its message completed.
        let links = world.testbed.cpu.memory_access.times(2 * list.len() as u64);
        charge_receives(&mut world, &self.post_lock, list.len(), links);
        let clock = world.clock();
        let node = &mut world.nodes[self.node];
        let result = node.rnic.post_srq_recv(self.id, list);
        node.post_shared_receives(clock, self.id, accepted(&result, list.len()));
        result
    }
}

impl Drop for SimSrq {
    fn drop(&mut self) {
        let _ = lock(&self.shared.world).nodes[self.node].rnic.destroy_srq(self.id);
    }
}

fn accepted(result: &Result<(), PostError>, of: usize) -> usize {
    result.as_ref().map_or_else(|error| error.index, |()| of)
}

/// Charges the post of a list of receives, which takes `more` than a list of the same length on a queue pair.
fn charge_receives(world: &mut World, queue: &Lock, count: usize, more: Ps) {
    let cpu = &world.testbed.cpu;
    let cost = cpu.repost_list + cpu.repost_wr.times(count as u64) + more;
    world.wait_for(queue, cost);
    world.charge(cost);
}

struct SimQp {
    shared: Arc<SharedWorld>,
    node: usize,
    qpn: Qpn,
    send_lock: Lock,
    receive_lock: Lock,
}

impl SimQp {
    fn post(
        &self,
        list: &[SendRequest<'_>],
        post: impl FnOnce(&mut Rnic, u64) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut world = lock(&self.shared.world);
        let inline = list.iter().map(|request| match request.payload {
            Payload::Inline(bytes) => bytes.len() as u64,
            Payload::Sges(_) => 0,
        });
        let inline: u64 = inline.sum();
        let (cpu, nic) = (&world.testbed.cpu, &world.testbed.nic);
        let cost = cpu.post_list + cpu.post_wr.times(list.len() as u64) + cpu.inline_per_byte.time_of(inline);
        // The destination of a datagram takes a separate block of the work request.
        let blocks: u64 = list.iter().map(|request| 1 + u64::from(request.destination.is_some())).sum();
        let request_bytes = nic.request * blocks + inline;
        let is_stored = list.len() == 1 && request_bytes <= nic.stored_request;
        let fetch = if is_stored { 0 } else { request_bytes };
        world.wait_for(&self.send_lock, cost);
        world.charge(cost);
        let now = world.now();
        let result = post(&mut world.nodes[self.node].rnic, now.as_ns());
        if accepted(&result, list.len()) > 0 {
            world.ring(self.node, self.qpn, fetch);
        }
        // A queue pair in the error state completes posted requests at once, so threads may have to wake.
        world.wake();
        result
    }
}

impl raw::Qp for SimQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let mut world = lock(&self.shared.world);
        let node = &mut world.nodes[self.node];
        // Release the held acknowledgements, so that the transition does not discard them.
        if matches!(attributes.state, Some(QpState::Error | QpState::Reset)) {
            node.rnic.release_acks();
        }
        let result = node.rnic.modify_qp(self.qpn, attributes);
        world.pump(self.node, Leaves::Now);
        world.say_farewells(self.node);
        world.wake();
        result
    }

    fn query(&self) -> QpInfo {
        let mut world = lock(&self.shared.world);
        world.go_on_for_outside();
        let info = world.nodes[self.node].rnic.query_qp(self.qpn);
        info.expect("a queue pair exists until its handle drops")
    }

    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.post(list, |rnic, now_ns| rnic.post_send(now_ns, self.qpn, list))
    }

    unsafe fn post_all_sends(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        let result = self.post(list, |rnic, now_ns| rnic.post_all_sends(now_ns, self.qpn, list));
        debug_assert!(
            result.as_ref().is_ok() || !matches!(result, Err(PostError { kind: PostErrorKind::UnknownQp(_), .. }))
        );
        result
    }

    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let mut world = lock(&self.shared.world);
        charge_receives(&mut world, &self.receive_lock, list.len(), Ps::ZERO);
        let clock = world.clock();
        let node = &mut world.nodes[self.node];
        let result = node.rnic.post_recv(self.qpn, list);
        node.post_receives(clock, self.qpn, accepted(&result, list.len()));
        world.wake();
        result
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        let mut world = lock(&self.shared.world);
        let node = &mut world.nodes[self.node];
        let _ = node.rnic.destroy_qp(self.qpn);
        node.remove_queue_pair(self.qpn);
        world.say_farewells(self.node);
    }
}
