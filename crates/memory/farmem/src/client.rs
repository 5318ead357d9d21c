//! A client: it runs operations of the store, several at a time, and never blocks.

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

/// The most operations that a client runs at a time.
pub const MAX_OUTSTANDING: usize = 64;

/// Polls per look at the metadata service's messages while all operations wait for the memory node.
const POLLS_PER_REQUEST: u32 = 8;

/// Maximum of shortcuts that wait to be written in the background. A client that runs many operations at a time
/// completes more of them than one WRITE after the other keeps up with.
const LATE_MAX: usize = 1024;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The method of dealing with conflicts.
    pub strategy: Strategy,
    /// Operations that run at a time: 1 to 64.
    pub outstanding: usize,
    /// Memory nodes that hold the same: 1 or 2.
    pub replicas: usize,
    /// Options of the connection with the metadata service. The store sets its longest message. In a store with two
    /// memory nodes, its timeout and retry count also hold for the queue pairs to these nodes. They set the time
    /// until the client notices that a node does not answer.
    pub rpc: Config,
    /// Seeds the jitter of waiting times.
    pub seed: u64,
    /// Strategies `lock` and `queue-lock`: a lock that has not moved for this time is broken, and its holder shut
    /// out. Strategy `combine`: an operation waits this long for another one of its host.
    pub lease_ns: u64,
    /// Time from linking a node until the key's shortcut is written. One WRITE follows the other, as from a thread in
    /// the background. 0: at once.
    pub shortcut_delay_ns: u64,
    /// Verbs after which the client stops for good, also within an operation, as if its process was killed there. For
    /// tests of the effects on other clients.
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

/// Returns the options of a connection with the metadata service: both ends need room for its longest message.
pub(crate) fn rpc_config(config: &Config) -> Config {
    config.clone().max_message(rpc::MAX_MESSAGE)
}

/// An operation. Keys are byte strings; a number is a key by its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOperation<'a> {
    /// Reads a key's value.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Gives a key that exists another value.
    Put {
        /// The key.
        key: &'a [u8],
        /// Its new value.
        value: &'a [u8],
    },
    /// Makes a key that does not exist.
    Insert {
        /// The key.
        key: &'a [u8],
        /// Its value.
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

/// Result of an operation that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A get found the value; a put, insert or delete took effect.
    Done,
    /// There is no such key, so a get, put or delete had no effect.
    Absent,
    /// There is such a key, so an insert had no effect.
    Exists,
}

/// Names an operation of a client. They rise by one.
pub type Ticket = u64;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    /// Has an operation that its worker has not seen yet.
    Given,
    Running,
    Over(Result<Outcome, StoreError>),
}

/// Room for one operation.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: Cell<State>,
    pub(crate) kind: Cell<Kind>,
    pub(crate) key: RefCell<Vec<u8>>,
    /// The value that is given, or the one that was found.
    pub(crate) value: RefCell<Vec<u8>>,
    pub(crate) reply: RefCell<Option<rpc::Reply>>,
    pub(crate) deadline_ns: Cell<Option<u64>>,
    /// The operation may know nodes, which must not be recycled until it is over.
    pub(crate) holds: Cell<bool>,
    /// The operation has its result, but the client has still to give up the lock that it took for it.
    pub(crate) lingers: Cell<bool>,
    ticket: Cell<Ticket>,
}

/// Shortcuts that are to be written later: when, of which key, and what.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub(crate) delay_ns: u64,
    queue: RefCell<VecDeque<(u64, u32, NodeVersion)>>,
    /// The WRITE that was posted last.
    posted: Cell<u64>,
}

impl Late {
    /// Appends a shortcut. At the maximum, the oldest one is left out: shortcuts are hints, and a newer one of the
    /// key is likely to come.
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
    /// Locks that were taken.
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

    /// Writes the next shortcut in the background, if it is due and the last one is written.
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
            // The operation has taken effect; if this fails, so does the next one.
            if let Ok(posted) = lane.write_shortcut(slot, number, place, Awaited::All) {
                self.late.posted.set(posted);
            }
        }
    }

    /// Gives up a memory node; `node`, the other one, serves alone.
    fn alone(&self, node: usize) {
        self.nodes.alone(node);
        self.late.posted.set(0); // nothing was posted there
    }
}

/// An end of a client that is not connected yet.
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
    /// Makes the queue pairs of a client of a store of such sizes.
    ///
    /// # Errors
    ///
    /// More operations are to run at a time than a client may, a size is out of range, or the device has no room.
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
        // One more slot serves writes in the background.
        let settings = || settings(options.replicas, &options.rpc);
        let lane = || LaneEnd::new(pd, options.outstanding + 1, settings());
        let replica = (options.replicas > 1).then(lane).transpose()?.map(|end| (end, None));
        Ok(Self { device: pd.device().clone(), pd: pd.clone(), lane: lane()?, replica, rpc, calls, options })
    }

    /// Returns the description for the memory node: [`MemoryNode::accept`](crate::MemoryNode::accept).
    pub fn to_memory(&self) -> ClientDescription {
        let calls = self.calls.as_ref().map(|endpoint| SendReceive.describe(endpoint));
        ClientDescription { lane: self.lane.description(), calls }
    }

    /// Returns the same for the second memory node, if the store has two.
    pub fn to_replica(&self) -> Option<ClientDescription> {
        self.replica.as_ref().map(|(lane, _)| ClientDescription { lane: lane.description(), calls: None })
    }

    /// Stores the description that the second memory node answered.
    pub fn set_replica(&mut self, memory: MemoryDescription) {
        if let Some((_, of_memory)) = &mut self.replica {
            *of_memory = Some(memory);
        }
    }

    /// Returns the description for the metadata service: [`Metadata::accept`](crate::Metadata::accept).
    pub fn to_metadata(&self) -> EndpointDescription {
        SendReceive.describe(&self.rpc)
    }

    /// Connects the client. `number` is the one under which memory node and metadata service accepted it.
    ///
    /// # Errors
    ///
    /// A description cannot be connected to, there is no memory for buffers, or a requested second memory node was
    /// not [set](Self::set_replica).
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

/// Checks how many memory nodes hold the same.
pub(crate) fn check_replicas(given: usize) -> Result<(), OpenError> {
    match given {
        1..=MAX_REPLICAS => Ok(()),
        _ => Err(OpenError::Geometry { what: "the number of memory nodes", given, least: 1, most: MAX_REPLICAS }),
    }
}

/// Connects the end of a second memory node, which has the sizes of the first.
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
/// Give it operations with [`submit`](Self::submit), call [`poll`](Self::poll) again and again, and take results with
/// [`finished`](Self::finished). Results come in the order in which operations end. Two operations of one client that
/// run at the same time are as concurrent as those of two clients.
pub struct Client {
    core: Rc<Core>,
    means: Means,
    /// Value of the wake word at the last look.
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
    /// Starts an operation, which is copied. Returns `None` if the maximum of operations runs: poll, take results,
    /// and try again.
    ///
    /// # Errors
    ///
    /// The key or the value is of no allowed length. Nothing was done.
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

    /// Runs the worker of a slot until it waits. If it has a result, `over` contains it then.
    fn work(&mut self, index: usize) {
        let mut context = Context::from_waker(Waker::noop());
        // It never ends: it waits for the next operation.
        let _ = self.workers[index].as_mut().poll(&mut context);
        if matches!(self.core.slots[index].state.get(), State::Over(_)) && !self.over.contains(&index) {
            self.core.requests.borrow_mut().ended(index);
            self.over.push_back(index);
        }
    }

    /// Moves operations along. Returns whether anything happened: a result is there, the client is over or has
    /// closed, or an operation has come closer to its end. After false, none of these changes before a completion
    /// comes or the [deadline](Self::deadline_ns) passes.
    pub fn poll(&mut self) -> bool {
        let before = self.awaited();
        let mut happened = self.core.nodes.poll();
        self.polls = self.polls.wrapping_add(1);
        // Operations in progress rarely need the service, and a look at its messages costs them time.
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

    /// Returns the number of results, and whether the client is over. Programs wait for both. A poll changes them
    /// without a completion if a late write or a failed post ends the client.
    fn awaited(&self) -> (usize, bool) {
        (self.over.len(), self.is_over())
    }

    /// Returns whether at least one operation runs and all of them wait for the memory node. Then a completion is
    /// certain to come, and until then the service's messages may wait.
    ///
    /// With two memory nodes they may not: one of them may say that a node does not answer.
    fn waits_for_memory_alone(&self) -> bool {
        if self.core.nodes.are_two() {
            return false;
        }
        let mut running = self.core.slots.iter().enumerate().filter(|(_, slot)| slot.state.get() == State::Running);
        let is_waiting = |(index, _): (usize, _)| self.core.nodes.lane().is_outstanding(index);
        running.next().is_some_and(is_waiting) && running.all(is_waiting)
    }

    /// Returns whether a connection has failed in a call of this client's own. Then the next poll notifies the
    /// operations that wait for its answers.
    fn has_news(&self) -> bool {
        let calls = match &self.means {
            Means::Calls(calls) => calls.borrow().has_news(),
            _ => false,
        };
        calls || self.core.requests.borrow().has_news()
    }

    /// Returns the time, on the device's clock, at which the client has something to do by itself. This is the end of
    /// a waiting time of an operation, or the moment to ask whether the metadata service lives. `None` if the client
    /// only waits for others.
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

    /// Takes the result of an operation that is over. The value of a get replaces what is in `value`; after any other
    /// operation `value` is as it was.
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

    /// Operations that run.
    pub fn running(&self) -> usize {
        self.core.slots.iter().filter(|slot| slot.state.get() != State::Idle).count() - self.over.len()
    }

    /// Returns whether the connection to the memory node is over, so that every operation fails.
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

    /// Sizes of the store.
    pub fn geometry(&self) -> Geometry {
        self.core.nodes.geometry
    }

    /// Gives back its nodes and says goodbye to the metadata service. To be called when nothing runs any more; then
    /// poll until [`is_closed`](Self::is_closed). A client that is dropped instead looks like one that died: what it
    /// holds is got back once the service notices.
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

    /// Returns the nodes that the client holds for later values.
    pub fn spare_nodes(&self) -> Vec<NodeVersion> {
        self.core.requests.borrow().spare().to_vec()
    }
}
