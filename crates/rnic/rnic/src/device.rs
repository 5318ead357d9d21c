//! Objects that all engines of a device share: protection domains, queues, regions and events.
//!
//! One lock protects the tables of these objects. Engines take it only to create, modify and destroy objects, and hold
//! their own lock before it. Packets and work requests need only the objects themselves: completion queues and shared
//! receive queues have their own synchronisation, and each engine caches regions.

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{
    Access, CqId, EventQueue, EventSource, ObjectError, PdId, PostError, QpInit, RecvRequest, SrqId, WindowKind,
    check_range,
};
use doorbell_wire::RKey;
use rand_chacha::ChaCha12Rng;
use rand_core::Rng;
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::completion::CompletionQueue;
use crate::limits::LIMITS;
use crate::memory::{Memory, Pager, Region, RegionDirectory, RegionTable};
use crate::qp::check_receive;
use crate::shared::SharedReceiveQueue;
use crate::transmit::{ENGINES_MAX, EngineId};
use crate::work::RecvWqe;

/// Rejects a region without bytes, as the kernel does for every RNIC, since such a region has no page to pin.
fn expect_bytes(length: usize) -> Result<(), ObjectError> {
    check_range("the length of a memory region", length, 1, usize::MAX)
}

/// A protection domain, by the number of queue pairs that use it.
struct Pd {
    queue_pairs: u32,
}

struct Cq {
    queue: Arc<CompletionQueue>,
    users: u32,
}

struct Srq {
    receives: Arc<SharedReceives>,
    users: u32,
}

/// Engines with queue pairs that are attached to one multicast group, as bits.
#[derive(Debug, Default)]
pub(crate) struct GroupEngines(AtomicU32);

impl GroupEngines {
    /// Returns whether `engine` counts the packets to the group. Each engine gets a copy of each packet, and the first
    /// one counts it.
    #[inline]
    pub(crate) fn counts(&self, engine: EngineId) -> bool {
        self.0.load(Ordering::Relaxed).trailing_zeros() == u32::from(engine.0)
    }
}

struct Tables {
    /// Number of queue pairs of all engines.
    queue_pairs: usize,
    pds: Slab<Pd>,
    cqs: Slab<Cq>,
    srqs: Slab<Srq>,
    /// Engines with attached queue pairs, of each multicast group.
    groups: FxHashMap<IpAddr, Arc<GroupEngines>>,
    key_rng: ChaCha12Rng,
}

/// Objects of a device.
pub(crate) struct DeviceObjects {
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) events: Arc<EventQueue>,
    tables: Mutex<Tables>,
    /// Number of engines.
    engines: AtomicUsize,
    /// Engines that have had queue pairs, as bits.
    used: AtomicU32,
}

/// Queues of a new queue pair.
pub(crate) struct QueuesOfQp {
    pub(crate) send: Arc<CompletionQueue>,
    pub(crate) receive: Arc<CompletionQueue>,
    pub(crate) shared: Option<Arc<SharedReceiveQueue>>,
}

/// Numbers of the objects of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) pds: usize,
    pub(crate) cqs: usize,
    pub(crate) srqs: usize,
    pub(crate) groups: usize,
}

/// A shared receive queue, with the check of posted receives. Programs post receives without access to an engine.
pub struct SharedReceives {
    queue: Arc<SharedReceiveQueue>,
    /// Regions that earlier receives named.
    memory: Mutex<Memory>,
    /// Whether receives stay hidden until their doorbell is rung.
    hides_receives: bool,
}

impl std::fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedReceives").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl SharedReceives {
    /// Returns the queue.
    pub fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.queue
    }

    /// Posts a list of receives.
    ///
    /// # Errors
    ///
    /// The queue is full, or a request has too many scatter-gather elements or an element outside of writable memory.
    /// The error holds the index of the rejected request. The queue accepted the requests before that index.
    pub fn post(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let (queue, mut memory) = (&self.queue, self.memory.lock().ignore_poison());
        for (index, request) in list.iter().enumerate() {
            check_receive(&mut memory, queue.pd(), queue.max_sges(), request)
                .and_then(|()| queue.push(RecvWqe::new(queue.pd(), request), self.hides_receives))
                .map_err(|kind| PostError { index, kind })?;
        }
        Ok(())
    }
}

impl Tables {
    fn check_pd(&self, pd: PdId) -> Result<(), ObjectError> {
        if self.pds.contains(pd.0 as usize) { Ok(()) } else { Err(ObjectError::Unknown("protection domain")) }
    }

    fn cq(&mut self, cq: CqId) -> Result<&mut Cq, ObjectError> {
        self.cqs.get_mut(cq.0 as usize).ok_or(ObjectError::Unknown("completion queue"))
    }

    fn srq(&mut self, srq: SrqId) -> Result<&mut Srq, ObjectError> {
        self.srqs.get_mut(srq.0 as usize).ok_or(ObjectError::Unknown("shared receive queue"))
    }
}

impl DeviceObjects {
    /// Creates the objects of a device with one engine. `key_rng` supplies the keys of regions and windows.
    pub(crate) fn new(events: EventQueue, key_rng: ChaCha12Rng) -> Self {
        Self {
            regions: Arc::default(),
            events: Arc::new(events),
            tables: Mutex::new(Tables {
                queue_pairs: 0,
                pds: Slab::new(),
                cqs: Slab::new(),
                srqs: Slab::new(),
                groups: FxHashMap::default(),
                key_rng,
            }),
            engines: AtomicUsize::new(1),
            used: AtomicU32::new(0),
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().ignore_poison()
    }

    /// Adds an engine. Returns `None` if the device has its maximum number of engines.
    pub(crate) fn add_engine(&self) -> Option<EngineId> {
        let next = |engines| (engines < ENGINES_MAX).then_some(engines + 1);
        let before = self.engines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(EngineId(before as u8))
    }

    /// Records that an engine gets a queue pair.
    pub(crate) fn use_engine(&self, engine: EngineId) {
        self.used.fetch_or(1 << engine.0, Ordering::Relaxed);
    }

    /// Returns whether an engine has had queue pairs.
    pub(crate) fn is_used(&self, engine: EngineId) -> bool {
        self.used.load(Ordering::Relaxed) & 1 << engine.0 != 0
    }

    /// Returns the number of engines that have had queue pairs, or 1 if none has.
    pub(crate) fn used_engines(&self) -> u32 {
        self.used.load(Ordering::Relaxed).count_ones().max(1)
    }

    pub(crate) fn counts(&self) -> Counts {
        let tables = self.tables();
        let (pds, cqs, srqs, groups) = (tables.pds.len(), tables.cqs.len(), tables.srqs.len(), tables.groups.len());
        Counts { pds, cqs, srqs, groups }
    }

    pub(crate) fn replace_key_rng(&self, rng: ChaCha12Rng) {
        self.tables().key_rng = rng;
    }

    pub(crate) fn create_pd(&self) -> PdId {
        PdId(self.tables().pds.insert(Pd { queue_pairs: 0 }) as u32)
    }

    pub(crate) fn destroy_pd(&self, pd: PdId) -> Result<(), ObjectError> {
        let mut tables = self.tables();
        tables.check_pd(pd)?;
        let users = if tables.pds[pd.0 as usize].queue_pairs > 0 {
            Some("a queue pair")
        } else if tables.srqs.iter().any(|(_, srq)| srq.receives.queue.pd() == pd) {
            Some("a shared receive queue")
        } else if self.regions.count_of(pd) > 0 {
            Some("a memory region")
        } else if self.regions.count_windows_of(pd) > 0 {
            Some("a memory window")
        } else {
            None
        };
        if let Some(users) = users {
            return Err(ObjectError::Busy { what: "protection domain", users });
        }
        tables.pds.remove(pd.0 as usize);
        Ok(())
    }

    /// Registers memory.
    ///
    /// # Safety
    ///
    /// As for [`RegionTable::insert`].
    #[allow(clippy::too_many_arguments, reason = "the parameters of a registration, and who hears of accesses")]
    pub(crate) unsafe fn register(
        &self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
        pager: Option<Arc<dyn Pager>>,
    ) -> Result<Arc<Region>, ObjectError> {
        let mut tables = self.tables();
        tables.check_pd(pd)?;
        expect_bytes(length)?;
        let rng = &mut tables.key_rng;
        // SAFETY: `insert` has the same contract as this function, and the caller keeps that contract.
        unsafe { self.regions.insert(pd, base, length, address, access, owner, pager, || rng.next_u32()) }
            .ok_or(ObjectError::Region { address, length })
    }

    pub(crate) fn register_null(&self, pd: PdId) -> Result<Arc<Region>, ObjectError> {
        let mut tables = self.tables();
        tables.check_pd(pd)?;
        let rng = &mut tables.key_rng;
        self.regions.insert_null(pd, || rng.next_u32()).ok_or(ObjectError::Exhausted("memory regions"))
    }

    /// Registers a region again. The caller must make each engine forget the old region.
    ///
    /// # Safety
    ///
    /// As for [`RegionTable::replace`].
    pub(crate) unsafe fn reregister(
        &self,
        region: &Region,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
    ) -> Result<Arc<Region>, ObjectError> {
        let tables = self.tables();
        tables.check_pd(pd)?;
        expect_bytes(length)?;
        // SAFETY: `replace` has the same contract as this function, and the caller keeps that contract.
        let renewed = unsafe { self.regions.replace(region.lkey().0, pd, base, length, address, access) };
        drop(tables);
        self.forget_gone();
        renewed
    }

    /// Deregisters a region. The caller must make each engine forget it.
    pub(crate) fn deregister(&self, region: &Region) -> Result<(), ObjectError> {
        self.regions.remove(region.lkey().0)?;
        self.forget_gone();
        Ok(())
    }

    pub(crate) fn create_window(&self, pd: PdId, kind: WindowKind) -> Result<RKey, ObjectError> {
        let mut tables = self.tables();
        tables.check_pd(pd)?;
        let rng = &mut tables.key_rng;
        self.regions.insert_window(pd, kind, || rng.next_u32()).ok_or(ObjectError::Exhausted("memory windows"))
    }

    /// Destroys a window. The caller must make each engine forget it.
    pub(crate) fn destroy_window(&self, rkey: RKey) -> Result<(), ObjectError> {
        self.regions.remove_window(rkey)?;
        self.forget_gone();
        Ok(())
    }

    /// Makes the shared receive queues forget destroyed regions. They only check receives, but keep regions alive.
    fn forget_gone(&self) {
        for (_, srq) in &self.tables().srqs {
            srq.receives.memory.lock().ignore_poison().forget_gone();
        }
    }

    /// Returns the number of destroyed regions that a shared receive queue still knows.
    pub(crate) fn stale_keys(&self) -> usize {
        let tables = self.tables();
        tables.srqs.iter().map(|(_, srq)| srq.receives.memory.lock().ignore_poison().stale_keys()).sum()
    }

    pub(crate) fn create_cq(
        &self,
        depth: usize,
        make: impl FnOnce(usize) -> CompletionQueue,
    ) -> Result<(CqId, Arc<CompletionQueue>), ObjectError> {
        check_range("the completion queue's depth", depth, 1, LIMITS.max_cq_depth)?;
        let mut tables = self.tables();
        if tables.cqs.len() >= LIMITS.max_cqs {
            return Err(ObjectError::Exhausted("completion queues"));
        }
        let queue = Arc::new(make(depth));
        let id = tables.cqs.insert(Cq { queue: Arc::clone(&queue), users: 0 });
        Ok((CqId(id as u32), queue))
    }

    pub(crate) fn completion_queue(&self, cq: CqId) -> Option<Arc<CompletionQueue>> {
        self.tables().cqs.get(cq.0 as usize).map(|cq| Arc::clone(&cq.queue))
    }

    pub(crate) fn destroy_cq(&self, cq: CqId) -> Result<(), ObjectError> {
        let mut tables = self.tables();
        if tables.cq(cq)?.users > 0 {
            return Err(ObjectError::Busy { what: "completion queue", users: "a queue pair" });
        }
        tables.cqs.remove(cq.0 as usize);
        self.events.purge(EventSource::Cq(cq)); // below the lock: later, the events of a new queue could be purged
        Ok(())
    }

    pub(crate) fn create_srq(
        &self,
        pd: PdId,
        depth: usize,
        max_sges: usize,
        hides_receives: bool,
        checks_late: bool,
    ) -> Result<(SrqId, Arc<SharedReceiveQueue>), ObjectError> {
        let mut tables = self.tables();
        tables.check_pd(pd)?;
        check_range("the shared receive queue's depth", depth, 1, LIMITS.max_queue_depth)?;
        check_range("the scatter-gather elements of a receive", max_sges, 1, LIMITS.max_sges)?;
        if tables.srqs.len() >= LIMITS.max_srqs {
            return Err(ObjectError::Exhausted("shared receive queues"));
        }
        let entry = tables.srqs.vacant_entry();
        let id = entry.key() as u32;
        let queue = Arc::new(SharedReceiveQueue::new(id, pd, depth, max_sges, Arc::clone(&self.events)));
        let mut memory = Memory::new(Arc::clone(&self.regions) as Arc<dyn RegionDirectory>);
        memory.checks_late = checks_late;
        let receives = SharedReceives { queue: Arc::clone(&queue), memory: Mutex::new(memory), hides_receives };
        entry.insert(Srq { receives: Arc::new(receives), users: 0 });
        Ok((SrqId(id), queue))
    }

    pub(crate) fn shared_receives(&self, srq: SrqId) -> Option<Arc<SharedReceives>> {
        self.tables().srqs.get(srq.0 as usize).map(|srq| Arc::clone(&srq.receives))
    }

    pub(crate) fn destroy_srq(&self, srq: SrqId) -> Result<(), ObjectError> {
        let mut tables = self.tables();
        if tables.srq(srq)?.users > 0 {
            return Err(ObjectError::Busy { what: "shared receive queue", users: "a queue pair" });
        }
        tables.srqs.remove(srq.0 as usize).receives.queue.retire();
        self.events.purge(EventSource::Srq(srq));
        Ok(())
    }

    /// Counts a new queue pair as a user of its protection domain and queues, and returns the queues.
    pub(crate) fn enter_qp(&self, init: &QpInit) -> Result<QueuesOfQp, ObjectError> {
        let mut tables = self.tables();
        tables.check_pd(init.pd)?;
        if tables.queue_pairs >= LIMITS.max_qps {
            return Err(ObjectError::Exhausted("queue pairs"));
        }
        let send = Arc::clone(&tables.cq(init.send_cq)?.queue);
        let receive = Arc::clone(&tables.cq(init.recv_cq)?.queue);
        let shared = match init.srq {
            Some(srq) => {
                let srq = tables.srq(srq)?;
                if srq.receives.queue.pd() != init.pd {
                    return Err(ObjectError::ForeignPd("shared receive queue"));
                }
                srq.users += 1;
                Some(Arc::clone(&srq.receives.queue))
            }
            None => None,
        };
        for cq in [init.send_cq, init.recv_cq] {
            tables.cqs[cq.0 as usize].users += 1;
        }
        tables.pds[init.pd.0 as usize].queue_pairs += 1;
        tables.queue_pairs += 1;
        Ok(QueuesOfQp { send, receive, shared })
    }

    /// Counts a destroyed queue pair no longer as a user.
    pub(crate) fn leave_qp(&self, init: &QpInit) {
        let mut tables = self.tables();
        for cq in [init.send_cq, init.recv_cq] {
            tables.cqs[cq.0 as usize].users -= 1;
        }
        if let Some(srq) = init.srq {
            tables.srqs[srq.0 as usize].users -= 1;
        }
        tables.pds[init.pd.0 as usize].queue_pairs -= 1;
        tables.queue_pairs -= 1;
    }

    /// Makes an engine a member of a multicast group. Returns the members.
    pub(crate) fn join_group(&self, group: IpAddr, engine: EngineId) -> Result<Arc<GroupEngines>, ObjectError> {
        let mut tables = self.tables();
        if !tables.groups.contains_key(&group) && tables.groups.len() >= LIMITS.max_groups {
            return Err(ObjectError::Exhausted("multicast groups"));
        }
        let engines = tables.groups.entry(group).or_default();
        engines.0.fetch_or(1 << engine.0, Ordering::Relaxed);
        Ok(Arc::clone(engines))
    }

    /// Ends the membership of an engine in a multicast group.
    pub(crate) fn leave_group(&self, group: IpAddr, engine: EngineId) {
        let mut tables = self.tables();
        let left = tables.groups.get(&group).map(|engines| {
            let bit = 1 << engine.0;
            engines.0.fetch_and(!bit, Ordering::Relaxed) & !bit
        });
        if left == Some(0) {
            tables.groups.remove(&group);
        }
    }
}
