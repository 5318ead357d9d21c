//! A client, which runs several operations of the store at a time and never blocks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{Config, Connector, SendReceive, send_receive};
use doorbell_verbs::{Access, Device, MemoryKind, Pd};

use crate::cache::HostCache;
use crate::calls::{self, Calls};
use crate::combining::WakeWord;
use crate::counts::ClientCounts;
use crate::error::{OpenError, StoreError};
use crate::lane::{Awaited, Lane, LaneEnd, VerbsLeft};
use crate::layout::{Geometry, NodeVersion};
use crate::lock_messages::LockMessenger;
use crate::memory::{ClientDescription, MemoryDescription, settings};
use crate::nodes::{MAX_REPLICAS, Nodes};
use crate::requests::Requests;
use crate::rpc;
use crate::strategy::{self, Means, Strategy};
use crate::worker::Worker;

/// Maximum number of operations that a client runs at a time.
pub const MAX_OUTSTANDING: usize = 64;

/// Number of polls per check for messages of the metadata service while all operations wait for the memory node.
const POLLS_PER_REQUEST: u32 = 8;

/// Maximum number of shortcuts that wait to be written in the background. A client posts one such WRITE at a time, so a
/// client with many concurrent operations may complete them faster than it writes their shortcuts.
const LATE_MAX: usize = 1024;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The method by which clients handle conflicting writes.
    pub strategy: Strategy,
    /// Maximum number of operations that run at a time: 1 to 64.
    pub outstanding: usize,
    /// Number of memory nodes with the same content: 1 or 2.
    pub replicas: usize,
    /// Options of the connection with the metadata service, except for the maximum message length, which the store
    /// sets. In a store with two memory nodes, the timeout and the retry count also apply to the queue pairs to these
    /// nodes. Both options determine the time until the client detects that a memory node does not answer.
    pub rpc: Config,
    /// Seed for the random part of waiting times.
    pub seed: u64,
    /// With strategies `lock` and `queue-lock`: the time without a change of a lock after which the client breaks the
    /// lock and has its holder shut out. With strategy `combine`: the maximum time that an operation waits for another
    /// operation of its host.
    pub lease_ns: u64,
    /// Time between linking a node and writing the key's shortcut in the background. The client posts one such WRITE at
    /// a time. 0 means that the client writes the shortcut at once.
    pub shortcut_delay_ns: u64,
    /// Number of verbs after which the client stops for good, even within an operation, as if its process had been
    /// killed. Tests use this to check the effects on other clients.
    pub verbs_until_death: Option<u64>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            strategy: Strategy::Optimistic,
            outstanding: 1,
            replicas: 1,
            rpc: Config::default(),
            seed: 1,
            lease_ns: 100_000_000,
            shortcut_delay_ns: 0,
            verbs_until_death: None,
        }
    }
}

/// Returns the options of a connection with the metadata service, whose ends need room for the longest message.
pub(crate) fn rpc_config(config: &Config) -> Config {
    config.clone().max_message(rpc::MAX_MESSAGE)
}

/// An operation. Keys are byte strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOperation<'a> {
    /// Reads a key's value.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Replaces the value of an existing key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The key's new value.
        value: &'a [u8],
    },
    /// Creates a key that does not exist.
    Insert {
        /// The key.
        key: &'a [u8],
        /// The key's value.
        value: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
}

impl<'a> StoreOperation<'a> {
    fn parts(self) -> (Kind, &'a [u8], &'a [u8]) {
        match self {
            Self::Get { key } => (Kind::Get, key, &[]),
            Self::Put { key, value } => (Kind::Put, key, value),
            Self::Insert { key, value } => (Kind::Insert, key, value),
            Self::Delete { key } => (Kind::Delete, key, &[]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Put,
    Insert,
    Delete,
}

/// Result of an operation without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A get found the value; a put, insert or delete took effect.
    Done,
    /// The key does not exist, so a get, put or delete had no effect.
    Absent,
    /// The key exists, so an insert had no effect.
    Exists,
}

/// Number of a client's operation. Consecutive operations have consecutive tickets.
pub type Ticket = u64;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    /// The slot has an operation that its worker has not started yet.
    Given,
    Running,
    Over(Result<Outcome, StoreError>),
}

/// State of one concurrent operation.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: Cell<State>,
    pub(crate) kind: Cell<Kind>,
    pub(crate) key: RefCell<Vec<u8>>,
    /// The value to write, or the value that a get found.
    pub(crate) value: RefCell<Vec<u8>>,
    pub(crate) reply: RefCell<Option<rpc::Reply>>,
    pub(crate) deadline_ns: Cell<Option<u64>>,
    /// Whether the operation may know nodes. These nodes must not be recycled before the operation ends.
    pub(crate) holds: Cell<bool>,
    /// Whether the operation has its result, but the client has not released the operation's lock yet.
    pub(crate) lingers: Cell<bool>,
    ticket: Cell<Ticket>,
}

/// Shortcuts to be written later. Each entry has its due time, the number of the key, and the place of the node.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub(crate) delay_ns: u64,
    queue: RefCell<VecDeque<(u64, u32, NodeVersion)>>,
    /// Number of the post with the latest WRITE of a shortcut.
    posted: Cell<u64>,
}

impl Late {
    /// Appends a shortcut. A full queue first drops the oldest shortcut: shortcuts are hints, and a newer shortcut of
    /// the same key is likely to follow.
    pub(crate) fn push(&self, now_ns: u64, number: u32, place: NodeVersion) {
        let mut queue = self.queue.borrow_mut();
        if queue.len() == LATE_MAX {
            queue.pop_front();
        }
        queue.push_back((now_ns + self.delay_ns, number, place));
    }

    fn due_ns(&self) -> Option<u64> {
        self.queue.borrow().front().map(|&(due_ns, ..)| due_ns)
    }
}

/// State that the workers of a client share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) device: Device,
    pub(crate) nodes: Nodes,
    pub(crate) cache: Arc<HostCache>,
    pub(crate) requests: RefCell<Requests>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) counts: Cell<ClientCounts>,
    pub(crate) random: Cell<u64>,
    pub(crate) lease_ns: u64,
    pub(crate) strategy: Strategy,
    pub(crate) late: Late,
    /// Number of locks that the client has taken.
    pub(crate) locks: Cell<u64>,
    /// The number under which the memory node and the metadata service know this client.
    pub(crate) number: u32,
}

impl Core {
    pub(crate) fn count(&self, change: impl FnOnce(&mut ClientCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Writes the next shortcut in the background, if the shortcut is due and the previous WRITE of a shortcut is
    /// complete.
    fn write_late(&self, now_ns: u64) {
        let slot = self.slots.len();
        let lane = self.nodes.lane();
        let is_free = lane.is_done(slot, self.late.posted.get()).is_ready();
        let mut queue = self.late.queue.borrow_mut();
        if let Some(&(due_ns, number, place)) = queue.front()
            && is_free
            && due_ns <= now_ns
        {
            queue.pop_front();
            // The put, insert or delete has taken effect. If this WRITE cannot be posted, the next operation reports
            // the error.
            if let Ok(posted) = lane.write_shortcut(slot, number, place, Awaited::All) {
                self.late.posted.set(posted);
            }
        }
    }

    /// Continues with the memory node `node` alone, after the other memory node was given up.
    fn alone(&self, node: usize) {
        self.nodes.alone(node);
        self.late.posted.set(0); // no WRITE of a shortcut was posted to the other node
    }
}

/// A client that is not connected yet.
#[derive(Debug)]
pub struct ClientEnd {
    device: Device,
    lane: LaneEnd,
    /// The second memory node, if the store has two.
    replica: Option<(LaneEnd, Option<MemoryDescription>)>,
    rpc: send_receive::Endpoint,
    calls: Option<send_receive::Endpoint>,
    pd: Pd,
    options: ClientOptions,
}

impl ClientEnd {
    /// Creates the queue pairs of a client, for a store of this geometry.
    ///
    /// # Errors
    ///
    /// The number of concurrent operations or a size is out of range, or the device has no room.
    pub fn new(pd: &Pd, geometry: Geometry, options: ClientOptions) -> Result<Self, OpenError> {
        geometry.check()?;
        if !(1..=MAX_OUTSTANDING).contains(&options.outstanding) {
            let (what, given) = ("the number of operations that run at a time", options.outstanding);
            return Err(OpenError::Geometry { what, given, least: 1, most: MAX_OUTSTANDING });
        }
        check_replicas(options.replicas)?;
        if options.replicas > 1 && !options.strategy.is_replicable() {
            return Err(OpenError::NotReplicated(options.strategy.name()));
        }
        let rpc = SendReceive.endpoint(pd, &rpc_config(&options.rpc), None)?;
        let calls = match options.strategy {
            Strategy::Server => {
                let config = calls::config(&options.rpc, &geometry).window(options.outstanding).batch(1);
                Some(SendReceive.endpoint(pd, &config, None)?)
            }
            _ => None,
        };
        // One more slot serves background WRITEs.
        let settings = || settings(options.replicas, &options.rpc);
        let lane = || LaneEnd::new(pd, options.outstanding + 1, settings());
        let replica = (options.replicas > 1).then(lane).transpose()?.map(|end| (end, None));
        Ok(Self { device: pd.device().clone(), pd: pd.clone(), lane: lane()?, replica, rpc, calls, options })
    }

    /// Returns the client's description for [`MemoryNode::accept`](crate::MemoryNode::accept) of the memory node.
    pub fn to_memory(&self) -> ClientDescription {
        let calls = self.calls.as_ref().map(|endpoint| SendReceive.describe(endpoint));
        ClientDescription { lane: self.lane.description(), calls }
    }

    /// Returns the client's description for the second memory node, if the store has two.
    pub fn to_replica(&self) -> Option<ClientDescription> {
        self.replica.as_ref().map(|(lane, _)| ClientDescription { lane: lane.description(), calls: None })
    }

    /// Stores the description that the second memory node returned.
    pub fn set_replica(&mut self, memory: MemoryDescription) {
        if let Some((_, of_memory)) = &mut self.replica {
            *of_memory = Some(memory);
        }
    }

    /// Returns the client's description for [`Metadata::accept`](crate::Metadata::accept) of the metadata service.
    pub fn to_metadata(&self) -> EndpointDescription {
        SendReceive.describe(&self.rpc)
    }

    /// Connects the client. The memory nodes and the metadata service have accepted this client as number `number`.
    ///
    /// # Errors
    ///
    /// A description is invalid, there is no memory for buffers, or the second memory node of a store with two was not
    /// [set](Self::set_replica).
    pub fn connect(
        self,
        number: u32,
        memory: &MemoryDescription,
        metadata: &EndpointDescription,
        cache: &Arc<HostCache>,
    ) -> Result<Client, OpenError> {
        let Self { device, pd, lane, replica, rpc, calls, options } = self;
        let verbs_left = Rc::new(Cell::new(options.verbs_until_death));
        let first = lane.connect(memory, &verbs_left)?;
        let second = replica.map(|replica| connect_replica(replica, memory, &verbs_left)).transpose()?;
        let nodes = Nodes::new(first, second);
        let mut requests = Requests::new(SendReceive.connect(rpc, metadata)?);
        let geometry = memory.geometry;
        let means = match options.strategy {
            Strategy::QueueLock => {
                let messenger = LockMessenger::new(&pd, geometry, cache)?;
                requests.hello(messenger.address().gid, messenger.address().qpn);
                Means::LockMessages(Rc::new(RefCell::new(messenger)))
            }
            Strategy::Combine => {
                Means::WakeWord(Arc::new(WakeWord::new(pd.allocate(8, Access::LOCAL_WRITE, MemoryKind::Plain)?)))
            }
            Strategy::Server => {
                let (Some(endpoint), Some(peer)) = (calls, &memory.calls) else { return Err(OpenError::NoCalls) };
                let connection = SendReceive.connect(endpoint, peer)?;
                let death = options.verbs_until_death;
                Means::Calls(Rc::new(RefCell::new(Calls::new(connection, &geometry, options.outstanding, death))))
            }
            _ => Means::Nothing,
        };
        let slot = |_| Slot {
            state: Cell::new(State::Idle),
            kind: Cell::new(Kind::Get),
            key: RefCell::new(Vec::with_capacity(geometry.max_key)),
            value: RefCell::new(Vec::with_capacity(geometry.max_value)),
            reply: RefCell::default(),
            deadline_ns: Cell::default(),
            holds: Cell::default(),
            lingers: Cell::default(),
            ticket: Cell::default(),
        };
        let core = Rc::new(Core {
            device,
            nodes,
            cache: Arc::clone(cache),
            requests: RefCell::new(requests),
            slots: (0..options.outstanding).map(slot).collect(),
            counts: Cell::default(),
            random: Cell::new(options.seed),
            lease_ns: options.lease_ns,
            strategy: options.strategy,
            late: Late { delay_ns: options.shortcut_delay_ns, ..Late::default() },
            locks: Cell::new(0),
            number,
        });
        let worker = |slot| strategy::start(options.strategy, &means, Worker::new(Rc::clone(&core), slot));
        let workers = (0..options.outstanding).map(worker).collect();
        let over = VecDeque::with_capacity(options.outstanding);
        Ok(Client { over, core, means, woken: 0, workers, tickets: 0, polls: 0, is_closing: false })
    }
}

/// Checks the number of memory nodes with the same content.
pub(crate) fn check_replicas(given: usize) -> Result<(), OpenError> {
    match given {
        1..=MAX_REPLICAS => Ok(()),
        _ => Err(OpenError::Geometry { what: "the number of memory nodes", given, least: 1, most: MAX_REPLICAS }),
    }
}

/// Connects a client to the second memory node, which must have the same geometry as the first one.
pub(crate) fn connect_replica(
    (end, memory): (LaneEnd, Option<MemoryDescription>),
    first: &MemoryDescription,
    verbs_left: &VerbsLeft,
) -> Result<Lane, OpenError> {
    let memory = memory.ok_or(OpenError::NoReplica)?;
    if memory.geometry != first.geometry {
        return Err(OpenError::OtherStore);
    }
    end.connect(&memory, verbs_left)
}

/// A client of a store: a non-blocking state machine.
///
/// Start operations with [`submit`](Self::submit), call [`poll`](Self::poll) again and again, and take results with
/// [`finished`](Self::finished). Results come in the order in which operations end. Concurrent operations of one client
/// have no order among each other, as if they were of different clients.
pub struct Client {
    core: Rc<Core>,
    means: Means,
    /// Value of the wake word when the client last read it.
    woken: u64,
    workers: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    over: VecDeque<usize>,
    tickets: Ticket,
    polls: u32,
    is_closing: bool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("number", &self.core.number).finish_non_exhaustive()
    }
}

impl Client {
    /// Starts an operation, whose key and value the client copies. Returns `None` if the maximum number of operations
    /// runs: then poll, take results, and try again.
    ///
    /// # Errors
    ///
    /// The length of the key or the value is out of range. The operation had no effect.
    pub fn submit(&mut self, operation: StoreOperation<'_>) -> Result<Option<Ticket>, StoreError> {
        let (kind, key, value) = operation.parts();
        self.core.nodes.geometry.check_sizes(key, value)?;
        let Some(index) = self.core.slots.iter().position(|slot| slot.state.get() == State::Idle) else {
            return Ok(None);
        };
        let slot = &self.core.slots[index];
        for (place, bytes) in [(&slot.key, key), (&slot.value, value)] {
            let mut place = place.borrow_mut();
            place.clear();
            place.extend_from_slice(bytes);
        }
        self.tickets += 1;
        slot.ticket.set(self.tickets);
        slot.kind.set(kind);
        slot.state.set(State::Given);
        self.work(index);
        Ok(Some(self.tickets))
    }

    /// Runs the worker of a slot until it waits. Appends the slot to `over` if the slot has a result.
    fn work(&mut self, index: usize) {
        let mut context = Context::from_waker(Waker::noop());
        // The future of a worker never completes: after each operation, the worker waits for the next one.
        let _ = self.workers[index].as_mut().poll(&mut context);
        if matches!(self.core.slots[index].state.get(), State::Over(_)) && !self.over.contains(&index) {
            self.core.requests.borrow_mut().ended(index);
            self.over.push_back(index);
        }
    }

    /// Advances the operations. Returns whether anything changed: the client has a result, is over or has closed, or an
    /// operation has made progress. After false, nothing changes before a completion comes or the
    /// [deadline](Self::deadline_ns) passes.
    pub fn poll(&mut self) -> bool {
        let before = self.awaited();
        let mut happened = self.core.nodes.poll();
        self.polls = self.polls.wrapping_add(1);
        // Running operations rarely need the metadata service, and each check for its messages delays them.
        let is_busy = happened || self.waits_for_memory_alone();
        if !is_busy || self.polls.is_multiple_of(POLLS_PER_REQUEST) {
            let mut requests = self.core.requests.borrow_mut();
            happened |= requests.poll(&self.core.slots);
            if let Some(node) = requests.take_alone() {
                self.core.alone(node);
            }
        }
        happened |= match &self.means {
            Means::Nothing => false,
            Means::LockMessages(messenger) => messenger.borrow_mut().poll(&self.core.device),
            Means::WakeWord(wake_word) => {
                let value = wake_word.value();
                std::mem::replace(&mut self.woken, value) != value
            }
            Means::Calls(calls) => calls.borrow_mut().poll(),
        };
        let waits = self.core.late.due_ns().is_some();
        let waits = waits || self.core.slots.iter().any(|slot| slot.deadline_ns.get().is_some());
        let now = waits.then(|| self.core.device.now_ns());
        if let Some(now) = now {
            self.core.write_late(now);
        }
        let mut was_due = false;
        for index in 0..self.workers.len() {
            let slot = &self.core.slots[index];
            let is_due = slot.deadline_ns.get().zip(now).is_some_and(|(deadline, now)| now >= deadline);
            let is_at_work = slot.state.get() == State::Running || slot.lingers.get();
            if is_at_work && (happened || is_due || self.core.nodes.failed().is_some()) {
                was_due |= is_due;
                self.work(index);
            }
        }
        if !happened {
            let is_working = self.core.slots.iter().any(|slot| slot.state.get() == State::Running);
            self.core.requests.borrow_mut().idle(is_working);
        }
        happened || was_due || self.awaited() != before || self.has_news()
    }

    /// Returns the number of results, and whether the client is over. Programs wait for a change of either. A poll
    /// changes them without a completion if a background WRITE or a failed post ends the client.
    fn awaited(&self) -> (usize, bool) {
        (self.over.len(), self.is_over())
    }

    /// Returns whether at least one operation runs and all operations wait for the memory node. Then a completion is
    /// certain to come, and the client may receive the metadata service's messages after that completion.
    ///
    /// Returns false in a store with two memory nodes, since a message of the service may report that a memory node has
    /// failed.
    fn waits_for_memory_alone(&self) -> bool {
        if self.core.nodes.are_two() {
            return false;
        }
        let mut running = self.core.slots.iter().enumerate().filter(|(_, slot)| slot.state.get() == State::Running);
        let is_waiting = |(index, _): (usize, _)| self.core.nodes.lane().is_outstanding(index);
        running.next().is_some_and(is_waiting) && running.all(is_waiting)
    }

    /// Returns whether a post of this client has found that a connection failed. Then the next poll notifies the
    /// operations that wait for answers on this connection.
    fn has_news(&self) -> bool {
        let calls = match &self.means {
            Means::Calls(calls) => calls.borrow().has_news(),
            _ => false,
        };
        calls || self.core.requests.borrow().has_news()
    }

    /// Returns the time, on the device's clock, at which the client needs a poll without an event. At that time, a
    /// waiting time of an operation ends, or the client checks whether the metadata service is alive. `None` if the
    /// client waits only for events.
    pub fn deadline_ns(&self) -> Option<u64> {
        let connection = self.core.requests.borrow().deadline_ns().filter(|_| !self.waits_for_memory_alone());
        let means = match &self.means {
            Means::LockMessages(messenger) if self.is_closing => messenger.borrow().deadline_ns(self.core.lease_ns),
            Means::Calls(calls) => calls.borrow().deadline_ns(),
            _ => None,
        };
        let late = self.core.late.due_ns();
        self.core
            .slots
            .iter()
            .filter_map(|slot| slot.deadline_ns.get())
            .chain(connection)
            .chain(means)
            .chain(late)
            .min()
    }

    /// Takes the result of an operation that has ended. Stores the value of a get in `value`; other operations leave
    /// `value` unchanged.
    pub fn finished(&mut self, value: &mut Vec<u8>) -> Option<(Ticket, Result<Outcome, StoreError>)> {
        let index = self.over.pop_front()?;
        let slot = &self.core.slots[index];
        let State::Over(result) = slot.state.replace(State::Idle) else { return None };
        if slot.kind.get() == Kind::Get && result == Ok(Outcome::Done) {
            value.clear();
            value.extend_from_slice(&slot.value.borrow());
        }
        Some((slot.ticket.get(), result))
    }

    /// Returns the number of running operations.
    pub fn running(&self) -> usize {
        self.core.slots.iter().filter(|slot| slot.state.get() != State::Idle).count() - self.over.len()
    }

    /// Returns whether the connection to the memory node has failed, so that every operation fails.
    pub fn is_over(&self) -> bool {
        let calls = match &self.means {
            Means::Calls(calls) => calls.borrow().failed(),
            _ => None,
        };
        self.core.nodes.failed().or(calls).is_some()
    }

    /// Returns the counters of the client.
    pub fn counts(&self) -> ClientCounts {
        let (messages, message_bytes) = match &self.means {
            Means::LockMessages(messenger) => messenger.borrow().sent(),
            Means::Calls(calls) => calls.borrow().exchanged(),
            _ => (0, 0),
        };
        ClientCounts { messages, message_bytes, ..self.core.counts.get() }.and(&self.core.nodes.counts())
    }

    /// Returns the geometry of the store.
    pub fn geometry(&self) -> Geometry {
        self.core.nodes.geometry
    }

    /// Returns unused nodes to the metadata service and closes the connection. Call this when no operation runs, then
    /// poll until [`is_closed`](Self::is_closed). A client that is dropped without this call looks as if it had died:
    /// the service frees its nodes once the service detects that the client is gone.
    pub fn close(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.core.requests.borrow_mut().close();
            if let Means::Calls(calls) = &self.means {
                calls.borrow_mut().close();
            }
        }
    }

    /// Returns whether all messages of [`close`](Self::close) have been sent.
    pub fn is_closed(&self) -> bool {
        let is_done = match &self.means {
            Means::LockMessages(messenger) => !messenger.borrow().owes(self.core.device.now_ns(), self.core.lease_ns),
            Means::Calls(calls) => calls.borrow().is_closed(),
            _ => true,
        };
        is_done && !self.core.slots.iter().any(|slot| slot.lingers.get()) && self.core.requests.borrow().is_closed()
    }

    /// Returns the unused nodes that the client keeps for later values.
    pub fn spare_nodes(&self) -> Vec<NodeVersion> {
        self.core.requests.borrow().spare().to_vec()
    }
}
