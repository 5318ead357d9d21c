//! A client, which runs several operations of the store at a time and never blocks.

mod end;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

pub use end::{ClientEnd, ClientOptions, MAX_OUTSTANDING};
pub(crate) use end::{check_replicas, connect_replica, rpc_config};

use crate::client_core::Core;
use crate::counts::ClientCounts;
use crate::error::StoreError;
use crate::layout::{Geometry, NodeVersion};
use crate::operation::{Kind, Outcome, StoreOperation, Ticket};
use crate::slots::State;
use crate::strategy::Means;

/// While all operations wait for the memory node, the client checks once per this number of polls whether the metadata
/// service has sent messages.
const POLLS_PER_REQUEST: u32 = 8;

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
