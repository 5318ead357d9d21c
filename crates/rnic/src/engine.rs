//! The device: shared objects, one engine, and the order in which a driver calls it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use doorbell_wire::{BTH_LEN, BthRepr, Outer, PartitionKey, PathMtu, Psn, QKey, Qpn, Transport};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::completion::{Completion, CompletionQueue, CompletionSink, MAX_CQ_DEPTH, Notifier, Overrun};
use crate::congestion::{Destination, Window};
use crate::core::{Core, frame_overhead};
use crate::counters::Counters;
use crate::event::{AsyncEvent, EventQueue};
use crate::memory::{Access, Memory, PdId, Region, RegionTable};
use crate::qp::{
    ModifyError, Qp, QpAttributes, QpCapacities, QpCounters, QpKind, QpState, ReceiveQueue, Requester, Responder,
    Settings, Stop, check_receive, check_transition,
};
use crate::transmit::{Budget, Filter, MAX_RUN_PACKETS, Path, TransmitBatch};
use crate::work::{
    AddressVector, PostError, PostErrorKind, ReceiveSource, RecvRequest, RecvWqe, SendQueue, SendRequest,
    SharedReceiveQueue,
};

/// Names one engine of a device: the upper four bits of its QPNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EngineId(pub u8);

/// How long a due acknowledgement may be held back.
pub const ACK_HOLD_NS: u64 = 20_000;

/// The most work requests of a queue.
pub const MAX_QUEUE_DEPTH: usize = 1 << 15;
/// The most scatter-gather elements of a work request.
pub const MAX_SGES: usize = 32;
/// The most inline data of a work request.
pub const MAX_INLINE_BYTES: usize = 1024;
/// The most queue pairs of a device.
pub const MAX_QPS: usize = 1 << 16;
/// The most completion queues of a device.
pub const MAX_CQS: usize = 1 << 16;
/// The most shared receive queues of a device.
pub const MAX_SRQS: usize = 1 << 16;

/// The most that is in flight to one destination, however large the receive buffers: enough for
/// any loopback round trip, and little enough to stay in a cache.
const MAX_WINDOW_BYTES: u64 = 1 << 20;

/// READs are asked for in pieces of this part of the receive window.
const READ_PIECES_PER_WINDOW: u64 = 4;

/// Entries of the timer list per queue pair, on average: more than one is left behind when a
/// deadline moves forward, and beyond this they are cleared away.
const TIMERS_PER_QP: usize = 8;

// Queue pair numbers 0 and 1 are special, and an engine has 20 bits for its own.
const ENGINE_SHIFT: u32 = 20;
const _: () = assert!(MAX_QPS * 4 < 1 << ENGINE_SHIFT, "random numbers must be easy to find");

/// What a device is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its address (the GID, unmapped).
    pub address: IpAddr,
    /// Largest path MTU that its port carries.
    pub active_mtu: PathMtu,
    /// The receive buffer that packets to it land in, as granted. Peers are assumed to have the
    /// same until loss shows otherwise.
    pub receive_buffer_bytes: u64,
    /// Seeds keys, queue pair numbers and sequence numbers: separate streams of one generator.
    /// On a network it must come from the operating system's randomness.
    pub seed: [u8; 32],
}

/// Why an object was not created or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A number is out of range.
    #[error("{what} is {given}, allowed is {least} to {most}")]
    Range {
        /// Which number.
        what: &'static str,
        /// What was given.
        given: usize,
        /// The least allowed.
        least: usize,
        /// The most allowed.
        most: usize,
    },
    /// The device has no more of them.
    #[error("the device has no more {0}")]
    Exhausted(&'static str),
    /// No such object.
    #[error("there is no such {0}")]
    Unknown(&'static str),
    /// Others still use it.
    #[error("the {what} is still used by {users}")]
    Busy {
        /// What was to be destroyed.
        what: &'static str,
        /// By what.
        users: &'static str,
    },
    /// The region's range is impossible, or the device is full.
    #[error("a memory region of {length} B at {address:#x} is not possible on this device")]
    Region {
        /// Its address.
        address: u64,
        /// Its length.
        length: usize,
    },
    /// The pieces belong to different protection domains.
    #[error("the {0} belongs to another protection domain")]
    ForeignPd(&'static str),
}

/// Names a completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Names a shared receive queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport.
    pub kind: QpKind,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of its sends.
    pub send_cq: CqId,
    /// Completion queue of its receives.
    pub recv_cq: CqId,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<SrqId>,
    /// Depths.
    pub capacities: QpCapacities,
    /// Every send makes a completion.
    pub signal_all: bool,
}

/// What is known of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInfo {
    /// Transport.
    pub kind: QpKind,
    /// State.
    pub state: QpState,
    /// Attributes as they are set, each of them named.
    pub attributes: QpAttributes,
    /// Depths.
    pub capacities: QpCapacities,
    /// Every send makes a completion.
    pub signal_all: bool,
    /// What it counted.
    pub counters: QpCounters,
    /// Send work requests that are not done.
    pub outstanding_sends: usize,
}

/// How long the lists are that a device keeps for itself. None grows with traffic: each is
/// bounded by the number of its objects and by what they were created for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Queue pairs with something to send.
    pub ready: usize,
    /// Queue pairs that wait for room in a window.
    pub waiting: usize,
    /// Queue pairs whose acknowledgement is held back.
    pub held_acks: usize,
    /// Deadlines, those included that were left behind.
    pub timers: usize,
    /// Answers to READs and atomics, and NAKs, that wait to be sent, and results that are kept for
    /// repetitions.
    pub answers: usize,
}

struct Cq {
    queue: Arc<CompletionQueue>,
    port: u32,
    users: u32,
}

struct Srq {
    queue: Arc<SharedReceiveQueue>,
    users: u32,
}

/// An RNIC.
///
/// It holds no socket, reads no clock and starts no thread; time is a number of nanoseconds that
/// never goes back. A driver calls it so:
///
/// 1. **Input**, in any order and number: [`handle_packets`](Self::handle_packets) for what
///    arrived, [`handle_timeout`](Self::handle_timeout) once [`poll_timeout`](Self::poll_timeout)
///    has passed, and the programs' `post_*`.
/// 2. **Output**: [`poll_transmit`](Self::poll_transmit) until it adds nothing more, each time
///    sending the batch. Acknowledgements that are due wait for company up to [`ACK_HOLD_NS`]; a
///    driver that has nothing else to do calls [`release_acks`](Self::release_acks) first.
/// 3. **Waiting**: until something arrives or [`poll_timeout`](Self::poll_timeout) passes, which
///    must be asked again after every input and output.
///
/// Completions are in their queues when a call returns. Queues
/// ([`completion_queue`](Self::completion_queue)) are reaped without the RNIC;
/// [`poll_event`](Self::poll_event) yields asynchronous events.
pub struct Rnic {
    config: Config,
    core: Core,
    qps: Slab<Qp>,
    by_number: FxHashMap<u32, u32>,
    regions: Arc<RegionTable>,
    pds: Slab<()>,
    cqs: Slab<Cq>,
    srqs: Slab<Srq>,
    by_address: FxHashMap<IpAddr, usize>,
    timers: BinaryHeap<Reverse<(u64, u32, Qpn)>>,
    /// Acknowledgements that are held back: when they became due, in order.
    held_acks: VecDeque<(u64, u32, Qpn)>,
    key_rng: ChaCha12Rng,
    qpn_rng: ChaCha12Rng,
    psn_rng: ChaCha12Rng,
}

impl std::fmt::Debug for Rnic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rnic").field("config", &self.config).field("qps", &self.qps.len()).finish_non_exhaustive()
    }
}

fn range(what: &'static str, given: usize, least: usize, most: usize) -> Result<(), ObjectError> {
    if (least..=most).contains(&given) { Ok(()) } else { Err(ObjectError::Range { what, given, least, most }) }
}

/// Objects.
impl Rnic {
    /// A device without any objects. `notifier` is called for each asynchronous event.
    pub fn new(config: Config, notifier: Option<Notifier>) -> Self {
        let stream = |number| {
            let mut rng = ChaCha12Rng::from_seed(config.seed);
            rng.set_stream(number);
            rng
        };
        let regions = Arc::new(RegionTable::default());
        let inbound = Window::new(config.receive_buffer_bytes, MAX_WINDOW_BYTES);
        let read_piece_cost = inbound.limit() / READ_PIECES_PER_WINDOW;
        let events = Arc::new(EventQueue::new(notifier));
        Self {
            config,
            core: Core::new(Memory::new(regions.clone()), events, inbound, read_piece_cost),
            qps: Slab::new(),
            by_number: FxHashMap::default(),
            regions,
            pds: Slab::new(),
            cqs: Slab::new(),
            srqs: Slab::new(),
            by_address: FxHashMap::default(),
            timers: BinaryHeap::new(),
            held_acks: VecDeque::new(),
            key_rng: stream(0),
            qpn_rng: stream(1),
            psn_rng: stream(2),
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Creates a protection domain.
    pub fn create_pd(&mut self) -> PdId {
        PdId(self.pds.insert(()) as u32)
    }

    /// Destroys a protection domain that nothing uses.
    pub fn destroy_pd(&mut self, pd: PdId) -> Result<(), ObjectError> {
        self.check_pd(pd)?;
        let users = if self.qps.iter().any(|(_, qp)| qp.pd == pd) {
            Some("a queue pair")
        } else if self.srqs.iter().any(|(_, srq)| srq.queue.pd() == pd) {
            Some("a shared receive queue")
        } else if self.regions.count_of(pd) > 0 {
            Some("a memory region")
        } else {
            None
        };
        if let Some(users) = users {
            return Err(ObjectError::Busy { what: "protection domain", users });
        }
        self.pds.remove(pd.0 as usize);
        Ok(())
    }

    fn check_pd(&self, pd: PdId) -> Result<(), ObjectError> {
        if self.pds.contains(pd.0 as usize) { Ok(()) } else { Err(ObjectError::Unknown("protection domain")) }
    }

    /// Registers memory.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped, and writable if `access` allows writing, until
    /// [`deregister`](Self::deregister) returns, or for as long as `owner` lives where it owns
    /// the memory; and no Rust reference may exist to bytes of it that a work request or a peer
    /// may write.
    pub unsafe fn register(
        &mut self,
        pd: PdId,
        base: *mut u8,
        length: usize,
        address: u64,
        access: Access,
        owner: Option<Arc<dyn std::any::Any + Send + Sync>>,
    ) -> Result<Arc<Region>, ObjectError> {
        self.check_pd(pd)?;
        let rng = &mut self.key_rng;
        // SAFETY: passed on to our caller.
        unsafe { self.regions.insert(pd, base, length, address, access, owner, || rng.next_u32()) }
            .ok_or(ObjectError::Region { address, length })
    }

    /// Deregisters memory. When this returns, the RNIC does not touch it any more.
    pub fn deregister(&mut self, region: &Region) -> Result<(), ObjectError> {
        let key = region.lkey().0;
        self.regions.remove(key).ok_or(ObjectError::Unknown("memory region"))?;
        self.core.memory.forget(key);
        Ok(())
    }

    /// Creates a completion queue of exactly `depth` entries.
    pub fn create_cq(
        &mut self,
        depth: usize,
        notifier: Option<Notifier>,
    ) -> Result<(CqId, Arc<CompletionQueue>), ObjectError> {
        range("the completion queue's depth", depth, 1, MAX_CQ_DEPTH)?;
        if self.cqs.len() >= MAX_CQS {
            return Err(ObjectError::Exhausted("completion queues"));
        }
        let queue = Arc::new(CompletionQueue::new(depth, notifier));
        let entry = self.cqs.vacant_entry();
        let id = entry.key() as u32;
        let port = self.core.add_cq(id, Arc::clone(&queue) as Arc<dyn CompletionSink>);
        entry.insert(Cq { queue: Arc::clone(&queue), port, users: 0 });
        Ok((CqId(id), queue))
    }

    /// The queue itself, to be reaped without the RNIC.
    pub fn completion_queue(&self, cq: CqId) -> Option<&Arc<CompletionQueue>> {
        self.cqs.get(cq.0 as usize).map(|cq| &cq.queue)
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ObjectError> {
        let entry = self.cqs.get(cq.0 as usize).ok_or(ObjectError::Unknown("completion queue"))?;
        if entry.users > 0 {
            return Err(ObjectError::Busy { what: "completion queue", users: "a queue pair" });
        }
        let entry = self.cqs.remove(cq.0 as usize);
        self.core.remove_cq(entry.port);
        Ok(())
    }

    /// Reaps completions. The same as [`CompletionQueue::poll`].
    pub fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> Result<usize, Overrun> {
        self.cqs.get(cq.0 as usize).map_or(Ok(0), |cq| cq.queue.poll(out))
    }

    /// Creates a shared receive queue.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        depth: usize,
        max_sges: usize,
    ) -> Result<(SrqId, Arc<SharedReceiveQueue>), ObjectError> {
        self.check_pd(pd)?;
        range("the shared receive queue's depth", depth, 1, MAX_QUEUE_DEPTH)?;
        range("the scatter-gather elements of a receive", max_sges, 1, MAX_SGES)?;
        if self.srqs.len() >= MAX_SRQS {
            return Err(ObjectError::Exhausted("shared receive queues"));
        }
        let entry = self.srqs.vacant_entry();
        let id = entry.key() as u32;
        let queue = Arc::new(SharedReceiveQueue::new(id, pd, depth, max_sges, Arc::clone(&self.core.events)));
        entry.insert(Srq { queue: Arc::clone(&queue), users: 0 });
        Ok((SrqId(id), queue))
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ObjectError> {
        let entry = self.srqs.get(srq.0 as usize).ok_or(ObjectError::Unknown("shared receive queue"))?;
        if entry.users > 0 {
            return Err(ObjectError::Busy { what: "shared receive queue", users: "a queue pair" });
        }
        self.srqs.remove(srq.0 as usize);
        Ok(())
    }

    /// Creates a queue pair, in the reset state.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, ObjectError> {
        let c = init.capacities;
        self.check_pd(init.pd)?;
        range("max_send_wr", c.max_send_wr, 0, MAX_QUEUE_DEPTH)?;
        range("max_recv_wr", c.max_recv_wr, 0, MAX_QUEUE_DEPTH)?;
        range("max_send_sge", c.max_send_sge, 0, MAX_SGES)?;
        range("max_recv_sge", c.max_recv_sge, 0, MAX_SGES)?;
        range("max_inline", c.max_inline, 0, MAX_INLINE_BYTES)?;
        if self.qps.len() >= MAX_QPS {
            return Err(ObjectError::Exhausted("queue pairs"));
        }
        let unknown = ObjectError::Unknown("completion queue");
        let send_port = self.cqs.get(init.send_cq.0 as usize).ok_or(unknown)?.port;
        let recv_port = self.cqs.get(init.recv_cq.0 as usize).ok_or(unknown)?.port;
        let rq = match init.srq {
            Some(srq) => {
                let srq = self.srqs.get_mut(srq.0 as usize).ok_or(ObjectError::Unknown("shared receive queue"))?;
                if srq.queue.pd() != init.pd {
                    return Err(ObjectError::ForeignPd("shared receive queue"));
                }
                srq.users += 1;
                ReceiveQueue::Shared(Arc::clone(&srq.queue) as Arc<dyn ReceiveSource>)
            }
            None => ReceiveQueue::Own { wqes: VecDeque::new(), depth: c.max_recv_wr, max_sges: c.max_recv_sge },
        };
        self.cqs[init.send_cq.0 as usize].users += 1;
        self.cqs[init.recv_cq.0 as usize].users += 1;
        let qpn = loop {
            let number = self.qpn_rng.next_u32() & ((1 << ENGINE_SHIFT) - 1);
            if number > 1 && !self.by_number.contains_key(&number) {
                break Qpn::new(number);
            }
        };
        let unset = AddressVector::to(self.config.address);
        let sq = SendQueue::new(c.max_send_wr, c.max_send_sge, c.max_inline, init.kind == QpKind::Ud);
        let slot = self.qps.insert(Qp {
            qpn,
            kind: init.kind,
            pd: init.pd,
            state: QpState::Reset,
            settings: Settings {
                access: Access::empty(),
                qkey: QKey::new(0),
                peer: unset,
                dest_qpn: Qpn::new(0),
                path_mtu: self.config.active_mtu,
                timeout: 0,
                retry_count: 0,
                rnr_retry: 0,
                max_rd_atomic: 0,
                max_dest_rd_atomic: 0,
                min_rnr_timer: 0,
                receive_psn: Psn::new(0),
                send_psn: Psn::new(0),
                sqd_notify: false,
            },
            signal_all: init.signal_all,
            send_cq: send_port,
            recv_cq: recv_port,
            sq,
            rq,
            req: Requester::new(0),
            resp: Responder::default(),
            counters: QpCounters::default(),
            destination: None,
            path: Path {
                engine: EngineId(0),
                destination: unset.destination,
                traffic_class: unset.traffic_class,
                hop_limit: unset.hop_limit,
            },
            frame_overhead: frame_overhead(self.config.address),
            queued: false,
            answers_turn: false,
            blocked: false,
            ack_held: false,
            timer_queued_ns: u64::MAX,
            established: false,
            init,
        });
        self.by_number.insert(qpn.get(), slot as u32);
        Ok(qpn)
    }

    /// Destroys a queue pair. Completions that were not reaped are gone with it.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ObjectError> {
        let slot = self.by_number.remove(&qpn.get()).ok_or(ObjectError::Unknown("queue pair"))?;
        let mut qp = self.qps.remove(slot as usize);
        qp.release_in_flight(&mut self.core);
        if qp.queued {
            self.core.ready.retain(|&ready| ready != slot);
        }
        self.core.inbound.forget(slot);
        if let Some(index) = qp.destination {
            self.leave_destination(index, slot);
        }
        let next = self.core.inbound.next_waiting();
        self.wake(next);
        self.core.events.purge(qpn);
        let init = qp.init;
        for cq in [init.send_cq, init.recv_cq] {
            let cq = &mut self.cqs[cq.0 as usize];
            cq.users -= 1;
            cq.queue.purge(qpn);
        }
        if let Some(srq) = init.srq {
            self.srqs[srq.0 as usize].users -= 1;
        }
        Ok(())
    }

    /// A queue pair, which has nothing in flight any more, no longer sends to a destination.
    fn leave_destination(&mut self, index: usize, slot: u32) {
        let destination = &mut self.core.destinations[index];
        destination.window.forget(slot);
        destination.users -= 1;
        if destination.users == 0 {
            self.by_address.remove(&destination.address);
            self.core.destinations.remove(index);
            return;
        }
        let next = destination.window.next_waiting();
        self.wake(next);
    }

    fn join_destination(&mut self, address: IpAddr) -> usize {
        let (destinations, config) = (&mut self.core.destinations, &self.config);
        let index = *self.by_address.entry(address).or_insert_with(|| {
            let window = Window::new(config.receive_buffer_bytes, MAX_WINDOW_BYTES);
            destinations.insert(Destination { address, users: 0, window })
        });
        self.core.destinations[index].users += 1;
        index
    }

    /// Modifies a queue pair, as the table of transitions allows.
    pub fn modify_qp(&mut self, qpn: Qpn, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let slot = *self.by_number.get(&qpn.get()).ok_or(ModifyError::UnknownQp(qpn))?;
        let qp = &self.qps[slot as usize];
        let to = check_transition(qp.kind, qp.state, attributes)?;
        if let Some(mtu) = attributes.path_mtu
            && mtu > self.config.active_mtu
        {
            let (given, active) = (mtu.bytes(), self.config.active_mtu.bytes());
            return Err(ModifyError::PathMtu { given, active });
        }
        if let Some(address) = attributes.address
            && address.destination.is_ipv4() != self.config.address.is_ipv4()
        {
            return Err(ModifyError::AddressFamily { peer: address.destination, own: self.config.address });
        }
        let joins = match attributes.address {
            Some(address) if qp.kind == QpKind::Rc => Some(self.join_destination(address.destination)),
            _ => None,
        };
        let qp = &mut self.qps[slot as usize];
        if joins.is_some() || to == QpState::Reset {
            // What is in flight is taken back from the window that it was charged to.
            qp.rewind(&mut self.core);
            qp.blocked = false;
            self.core.inbound.forget(slot);
            if let Some(left) = std::mem::replace(&mut qp.destination, joins) {
                self.leave_destination(left, slot);
            }
        }
        self.qps[slot as usize].apply(&mut self.core, to, attributes);
        self.settle(slot);
        self.publish();
        Ok(())
    }

    /// What is known of a queue pair.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        let qp = &self.qps[*self.by_number.get(&qpn.get())? as usize];
        let s = &qp.settings;
        Some(QpInfo {
            kind: qp.kind,
            state: qp.state,
            attributes: QpAttributes {
                state: Some(qp.state),
                current_state: Some(qp.state),
                sqd_notify: Some(s.sqd_notify),
                access: Some(s.access),
                pkey_index: Some(0),
                port: Some(1),
                qkey: Some(s.qkey),
                address: Some(s.peer),
                path_mtu: Some(s.path_mtu),
                timeout: Some(s.timeout),
                retry_count: Some(s.retry_count),
                rnr_retry: Some(s.rnr_retry),
                receive_psn: Some(qp.resp.expected_psn()),
                send_psn: Some(qp.req.next_psn()),
                max_rd_atomic: Some(s.max_rd_atomic),
                max_dest_rd_atomic: Some(s.max_dest_rd_atomic),
                min_rnr_timer: Some(s.min_rnr_timer),
                dest_qpn: Some(s.dest_qpn),
            },
            capacities: qp.init.capacities,
            signal_all: qp.init.signal_all,
            counters: qp.counters,
            outstanding_sends: qp.sq.len(),
        })
    }

    /// A random first sequence number.
    pub fn random_psn(&mut self) -> Psn {
        Psn::new(self.psn_rng.next_u32())
    }
}

/// Work, packets and time.
impl Rnic {
    fn slot(&self, qpn: Qpn) -> Option<u32> {
        self.by_number.get(&qpn.get()).copied()
    }

    /// Posts a list of send work requests, up to the first that is not acceptable.
    pub fn post_send(&mut self, now_ns: u64, qpn: Qpn, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.core.now_ns = now_ns;
        let slot = self.slot(qpn).ok_or(PostError { index: 0, kind: PostErrorKind::UnknownQp(qpn) })?;
        let qp = &mut self.qps[slot as usize];
        let mut result = Ok(());
        for (index, request) in list.iter().enumerate() {
            if let Err(kind) = qp.post_send(&mut self.core, request) {
                result = Err(PostError { index, kind });
                break;
            }
        }
        self.settle(slot);
        self.publish();
        result
    }

    /// Posts a list of receive work requests, up to the first that is not acceptable.
    pub fn post_recv(&mut self, qpn: Qpn, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError { index: 0, kind: PostErrorKind::UnknownQp(qpn) })?;
        let qp = &mut self.qps[slot as usize];
        let mut result = Ok(());
        for (index, request) in list.iter().enumerate() {
            if let Err(kind) = qp.post_recv(&mut self.core, request) {
                result = Err(PostError { index, kind });
                break;
            }
        }
        self.publish();
        result
    }

    /// Posts a list of receives to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let Some(srq) = self.srqs.get(srq.0 as usize) else {
            let kind = PostErrorKind::QueueFull { queue: "shared receive queue that does not exist", depth: 0 };
            return Err(PostError { index: 0, kind });
        };
        let queue = &srq.queue;
        for (index, request) in list.iter().enumerate() {
            check_receive(&mut self.core, queue.pd(), queue.max_sges(), request)
                .and_then(|()| queue.push(RecvWqe::new(queue.pd(), request)))
                .map_err(|kind| PostError { index, kind })?;
        }
        Ok(())
    }

    /// Takes packets that arrived together from one sender: each from the BTH to the padding.
    pub fn handle_packets<'a>(&mut self, now_ns: u64, outer: &Outer, packets: impl IntoIterator<Item = &'a [u8]>) {
        self.core.now_ns = now_ns;
        let overhead = frame_overhead(outer.src);
        let mut last: Option<(Qpn, u32)> = None;
        for packet in packets {
            self.core.counters.rx_vport_rdma_unicast_packets += 1;
            self.core.counters.rx_vport_rdma_unicast_bytes += packet.len() as u64 + overhead;
            let Some((header, rest)) = packet.split_first_chunk::<BTH_LEN>() else {
                self.core.counters.rx_malformed += 1;
                continue;
            };
            let bth = BthRepr::read(header);
            let slot = match last {
                Some((qpn, slot)) if qpn == bth.dest_qpn => slot,
                _ => {
                    if let Some((_, slot)) = last.take() {
                        self.settle(slot);
                    }
                    let Some(slot) = self.slot(bth.dest_qpn) else {
                        self.count_unknown(&bth);
                        continue;
                    };
                    last = Some((bth.dest_qpn, slot));
                    slot
                }
            };
            self.dispatch(slot, outer, bth, rest);
        }
        if let Some((_, slot)) = last {
            self.settle(slot);
        }
        self.publish();
    }

    /// Takes one packet: see [`handle_packets`](Self::handle_packets).
    pub fn handle_packet(&mut self, now_ns: u64, outer: &Outer, packet: &[u8]) {
        self.handle_packets(now_ns, outer, [packet]);
    }

    fn count_unknown(&mut self, bth: &BthRepr) {
        match bth.opcode.transport() {
            Transport::Cnp => self.core.counters.rx_cnp += 1,
            _ if bth.opcode.operation().is_none() || bth.version != 0 => self.core.counters.rx_malformed += 1,
            _ => self.core.counters.rx_unknown_qp += 1,
        }
    }

    #[inline]
    fn dispatch(&mut self, slot: u32, outer: &Outer, bth: BthRepr, rest: &[u8]) {
        let (core, qp) = (&mut self.core, &mut self.qps[slot as usize]);
        qp.counters.rx_packets += 1;
        // IBTA Vol 1, 9.6: the checks of the base transport header, in this order.
        let Some(operation) = bth.opcode.operation().filter(|_| bth.version == 0) else {
            core.counters.rx_malformed += 1;
            return;
        };
        let of_kind = match bth.opcode.transport() {
            Transport::Rc => qp.kind == QpKind::Rc,
            Transport::Uc => qp.kind == QpKind::Uc,
            Transport::Ud => qp.kind == QpKind::Ud,
            Transport::Cnp => {
                core.counters.rx_cnp += 1;
                return;
            }
            _ => false,
        };
        if !of_kind {
            core.counters.rx_unknown_qp += 1;
            return;
        }
        // The lowest 15 bits name the partition (IBTA Vol 1, 10.9.3).
        if (bth.partition_key.get() ^ PartitionKey::DEFAULT.get()) & 0x7fff != 0 {
            core.counters.rx_key_violation += 1;
            return;
        }
        if qp.kind != QpKind::Ud && outer.src != qp.settings.peer.destination {
            core.counters.rx_foreign_source += 1;
            return;
        }
        if !bth.opcode.is_response() {
            if !qp.responds() {
                core.counters.rx_wrong_state += 1;
            } else if qp.kind == QpKind::Ud {
                qp.handle_datagram(core, outer, bth, rest);
            } else {
                qp.handle_request(core, bth, operation, rest);
            }
            return;
        }
        if !qp.requests() {
            core.counters.rx_wrong_state += 1;
            return;
        }
        qp.handle_response(core, &bth, operation, rest);
    }

    /// Counts packets that the encapsulation dropped because their ICRC was wrong.
    pub fn count_icrc_errors(&mut self, packets: u64) {
        self.core.counters.rx_icrc_encapsulated += packets;
    }

    /// Counts packets that the encapsulation dropped because they were no packets.
    pub fn count_malformed(&mut self, packets: u64) {
        self.core.counters.rx_malformed += packets;
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.core.now_ns = now_ns;
        while let Some(&Reverse((at, slot, qpn))) = self.timers.peek()
            && at <= now_ns
        {
            self.timers.pop();
            let Some(qp) = self.qps.get_mut(slot as usize).filter(|qp| qp.qpn == qpn) else { continue };
            if qp.timer_queued_ns != at {
                continue; // an earlier entry took its place
            }
            qp.timer_queued_ns = u64::MAX;
            if qp.requester_deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
                qp.handle_requester_timeout(&mut self.core);
            }
            self.settle(slot);
        }
        self.release_held_acks(now_ns.saturating_sub(ACK_HOLD_NS));
        self.publish();
    }

    /// When [`handle_timeout`](Self::handle_timeout) (and then
    /// [`poll_transmit`](Self::poll_transmit)) is to be called at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        let timer = self.timers.peek().map(|&Reverse((at, ..))| at);
        let ack = self.held_acks.front().map(|&(since, ..)| since + ACK_HOLD_NS);
        [timer, ack].into_iter().flatten().min()
    }

    /// Lets due acknowledgements leave with the next [`poll_transmit`](Self::poll_transmit).
    pub fn release_acks(&mut self) {
        self.release_held_acks(u64::MAX);
    }

    /// Are acknowledgements held back?
    pub fn holds_acks(&self) -> bool {
        !self.held_acks.is_empty()
    }

    fn release_held_acks(&mut self, due_before_ns: u64) {
        while let Some(&(since, slot, qpn)) = self.held_acks.front()
            && since <= due_before_ns
        {
            self.held_acks.pop_front();
            let Some(qp) = self.qps.get_mut(slot as usize).filter(|qp| qp.qpn == qpn) else { continue };
            qp.ack_held = false;
            if qp.resp.held_ack_since_ns().is_some_and(|due| due <= due_before_ns) {
                qp.resp.release_ack();
            }
            self.settle(slot);
        }
    }

    /// Adds packets to `batch`, from the queue pairs that `filter` names, in turn, within
    /// `budget`. Returns how many.
    pub fn poll_transmit(&mut self, now_ns: u64, budget: Budget, filter: Filter, batch: &mut TransmitBatch) -> usize {
        self.core.now_ns = now_ns;
        self.release_held_acks(now_ns.saturating_sub(ACK_HOLD_NS));
        batch.limit_growth(budget.bytes);
        let before = batch.infos().len();
        let mut left = budget.packets;
        let mut passed_over = 0;
        while left > 0 && passed_over < self.core.ready.len() {
            let Some(slot) = self.core.ready.pop_front() else { break };
            let (core, qp) = (&mut self.core, &mut self.qps[slot as usize]);
            let wanted = match filter {
                Filter::All => true,
                Filter::QueuePair(qpn) => qp.qpn == qpn,
                Filter::Engine(engine) => qp.path.engine == engine,
            };
            if !wanted {
                core.ready.push_back(slot);
                passed_over += 1;
                continue;
            }
            qp.queued = false;
            // Requests first, so that an acknowledgement leaves behind the reply and both in one
            // run; but what is to be answered keeps its share.
            let quantum = left.min(MAX_RUN_PACKETS);
            let share = match qp.resp.has_answers() {
                false => quantum,
                // Packet by packet they take turns.
                true if quantum == 1 => {
                    qp.answers_turn = !qp.answers_turn;
                    usize::from(!qp.answers_turn)
                }
                true => quantum.div_ceil(2),
            };
            let mut requests = share;
            let stop = if qp.blocked { Stop::Idle } else { qp.transmit_requests(core, &mut requests, batch) };
            let mut answers = quantum - (share - requests);
            let more_answers = qp.transmit_answers(core, &mut answers, batch);
            left -= quantum - answers;
            match stop {
                Stop::Window { cost } => {
                    if let Some(destination) = qp.destination {
                        qp.blocked = true;
                        core.destinations[destination].window.waiting.push_back((slot, cost));
                    }
                }
                Stop::Inbound { cost } => {
                    qp.blocked = true;
                    core.inbound.waiting.push_back((slot, cost));
                }
                Stop::Idle | Stop::Budget => {}
            }
            if stop == Stop::Budget || more_answers {
                qp.queued = true;
                core.ready.push_back(slot);
            }
            let batch_full = (stop == Stop::Budget && requests > 0) || (more_answers && answers > 0);
            self.arm_timer(slot);
            self.wake_waiters_of(slot);
            if batch_full {
                break;
            }
        }
        self.publish();
        batch.infos().len() - before
    }

    /// Is there anything to send?
    pub fn wants_transmit(&self) -> bool {
        !self.core.ready.is_empty()
    }

    /// How long the device's own lists are.
    pub fn backlog(&self) -> Backlog {
        let destinations = self.core.destinations.iter().map(|(_, destination)| destination.window.waiting.len());
        Backlog {
            ready: self.core.ready.len(),
            waiting: destinations.sum::<usize>() + self.core.inbound.waiting.len(),
            held_acks: self.held_acks.len(),
            timers: self.timers.len(),
            answers: self.qps.iter().map(|(_, qp)| qp.resp.backlog()).sum(),
        }
    }

    /// Does an acknowledgement or a response have to come?
    pub fn has_in_flight(&self) -> bool {
        self.core.in_flight() > 0
    }

    /// Work requests of a queue pair that are posted and not yet sent.
    pub fn pending_work(&self, qpn: Qpn) -> usize {
        self.slot(qpn).map_or(0, |slot| self.qps[slot as usize].unsent_requests())
    }

    /// The oldest asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.core.events.pop()
    }

    /// The queue of asynchronous events, to be read without the RNIC.
    pub fn events(&self) -> &Arc<EventQueue> {
        &self.core.events
    }

    /// What the device counted.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Queue pairs that exist.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Books what changed for a queue pair: is it ready, what are its deadlines, who may go on?
    #[inline]
    fn settle(&mut self, slot: u32) {
        let qp = &mut self.qps[slot as usize];
        let ready = qp.resp.has_answers() || (!qp.blocked && qp.has_request_to_send());
        if ready && !qp.queued {
            qp.queued = true;
            self.core.ready.push_back(slot);
        }
        if let Some(since) = qp.resp.held_ack_since_ns()
            && !qp.ack_held
        {
            qp.ack_held = true;
            // Nearly always the latest: an older one was answered meanwhile and is due again.
            let place = self.held_acks.iter().rposition(|&(other, ..)| other <= since).map_or(0, |at| at + 1);
            self.held_acks.insert(place, (since, slot, qp.qpn));
        }
        self.arm_timer(slot);
        self.wake_waiters_of(slot);
    }

    #[inline]
    fn arm_timer(&mut self, slot: u32) {
        let qp = &mut self.qps[slot as usize];
        if let Some(deadline) = qp.requester_deadline_ns()
            && deadline < qp.timer_queued_ns
        {
            qp.timer_queued_ns = deadline;
            self.timers.push(Reverse((deadline, slot, qp.qpn)));
            if self.timers.len() > TIMERS_PER_QP * self.qps.len() + TIMERS_PER_QP {
                let qps = &self.qps;
                self.timers.retain(|&Reverse((at, slot, qpn))| {
                    qps.get(slot as usize).is_some_and(|qp| qp.qpn == qpn && qp.timer_queued_ns == at)
                });
            }
        }
    }

    /// Lets the next queue pair go on that waits for room in the windows of this one.
    #[inline]
    fn wake_waiters_of(&mut self, slot: u32) {
        if let Some(destination) = self.qps[slot as usize].destination {
            let next = self.core.destinations[destination].window.next_waiting();
            self.wake(next);
        }
        let next = self.core.inbound.next_waiting();
        self.wake(next);
    }

    fn wake(&mut self, slot: Option<u32>) {
        let Some(slot) = slot else { return };
        let qp = &mut self.qps[slot as usize];
        qp.blocked = false;
        if !qp.queued {
            qp.queued = true;
            self.core.ready.push_back(slot);
        }
    }

    /// Hands completions to their queues. A queue pair whose completions are lost is of no use
    /// any more (IBTA Vol 1, 11.6.3.1).
    #[inline]
    fn publish(&mut self) {
        while let Some((port, id)) = self.core.publish() {
            self.core.events.push(AsyncEvent::CqError(id));
            let users: Vec<u32> = self
                .qps
                .iter()
                .filter(|(_, qp)| qp.send_cq == port || qp.recv_cq == port)
                .map(|(slot, _)| slot as u32)
                .collect();
            for slot in users {
                self.qps[slot as usize].enter_error(&mut self.core);
                self.settle(slot);
            }
        }
    }
}
