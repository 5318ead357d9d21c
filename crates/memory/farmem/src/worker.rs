//! A worker, which runs the operations of one slot of a client one after the other. Verbs, requests and waiting are
//! futures, which `Client::poll` advances. A worker is created once and reused, so an operation allocates no memory.

use std::cell::{Cell, Ref};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use crate::cache::Entry;
use crate::calls::Calls;
use crate::client_core::Core;
use crate::combining::{Notice, Waiter};
use crate::counts::{Attempts, ClientCounts};
use crate::error::StoreError;
use crate::lane::{Awaited, Lane, Verb, WORDS};
use crate::layout::{self, Header, NodeVersion, Word};
use crate::operation::{Kind, Outcome};
use crate::rpc::{Reply, Report, Request};
use crate::slots::{Slot, State};

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) core: Rc<Core>,
    pub(crate) slot: usize,
    /// Buffer for the node that was read, or for the node to be written.
    scratch: Vec<u8>,
    /// The last node of the reserve that this worker received.
    reserved: Cell<Option<NodeVersion>>,
}

/// Result of a READ of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The node is the newest one of its key.
    Tail { is_tombstone: bool, length: u32 },
    /// Another node follows. `shortcut` is the place in the key's shortcut.
    Followed { next: NodeVersion, shortcut: Option<NodeVersion> },
    /// The place has another use now, or the key was removed.
    Gone,
    /// The node is longer than the READ.
    Longer { length: u32 },
    /// The node has the expected place and key, but its CRC is wrong: another client is overwriting the node, or the
    /// node is corrupted.
    Damaged,
}

/// Offsets of one-word results in the slot's memory. `FOUND` is for a CAS on a node, and `SHORTCUT` is for the READ of
/// a shortcut. `LOCK` is for the CAS that takes a lock, and `RELEASED` is for the CAS that releases a lock.
pub(crate) const FOUND: usize = WORDS[0];
const SHORTCUT: usize = WORDS[1];
const LOCK: usize = WORDS[2];
const RELEASED: usize = WORDS[3];

impl Worker {
    pub(crate) fn new(core: Rc<Core>, slot: usize) -> Self {
        let scratch = Vec::with_capacity(core.nodes.geometry.node_bytes());
        Self { core, slot, scratch, reserved: Cell::new(None) }
    }

    fn own(&self) -> &Slot {
        &self.core.slots[self.slot]
    }

    pub(crate) fn kind(&self) -> Kind {
        self.own().kind.get()
    }

    pub(crate) fn key(&self) -> Ref<'_, Vec<u8>> {
        self.own().key.borrow()
    }

    pub(crate) fn value(&self) -> Ref<'_, Vec<u8>> {
        self.own().value.borrow()
    }

    /// Takes a notice of another client, and stores the notice's value as the value of the operation.
    pub(crate) fn take_notice(&self, waiter: &Waiter) -> Option<Notice> {
        waiter.take(&mut self.own().value.borrow_mut())
    }

    /// Takes the answer of the memory node's CPU, and stores the answer's value as the value of the operation.
    pub(crate) fn take_answer(&self, calls: &mut Calls) -> Option<Result<Outcome, StoreError>> {
        calls.take(self.slot, self.kind(), &mut self.own().value.borrow_mut())
    }

    /// Sets whether the operation may know nodes. The service must not recycle nodes that an operation knows.
    pub(crate) fn holds(&self, does: bool) {
        self.own().holds.set(does);
    }

    /// Sets the time at which the operation needs a poll without an event.
    pub(crate) fn until(&self, deadline_ns: Option<u64>) {
        self.own().deadline_ns.set(deadline_ns);
    }

    /// Sets whether the slot still has work after the operation has its result.
    pub(crate) fn lingers(&self, does: bool) {
        self.own().lingers.set(does);
    }

    /// Waits until the slot has an operation.
    pub(crate) fn next(&self) -> impl Future<Output = ()> {
        poll_fn(|_| match self.own().state.get() {
            State::Given => {
                self.own().state.set(State::Running);
                self.own().holds.set(self.kind() == Kind::Get);
                Poll::Ready(())
            }
            _ => Poll::Pending,
        })
    }

    /// Records the result of the operation.
    pub(crate) fn end(&self, result: Result<Outcome, StoreError>) {
        if result.is_ok() {
            self.attempted(|attempts| attempts.operations += 1);
        }
        self.own().deadline_ns.set(None);
        self.own().holds.set(false);
        self.own().state.set(State::Over(result));
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut ClientCounts)) {
        self.core.count(change);
    }

    fn attempted(&self, change: impl FnOnce(&mut Attempts)) {
        let is_get = self.kind() == Kind::Get;
        self.count(|counts| change(if is_get { &mut counts.gets } else { &mut counts.writes }));
    }

    /// Counts attempt number `number`, from 0, to complete the operation.
    pub(crate) fn attempt(&self, number: u32, found_tail: bool) {
        self.attempted(|attempts| {
            attempts.attempts += 1;
            attempts.successes += u64::from(found_tail);
            attempts.at_once += u64::from(found_tail && number == 0);
        });
    }

    /// Posts verbs to the memory node that clients read, and waits until all are complete. Returns the lane, whose slot
    /// memory has the results. If this memory node is given up meanwhile, the verbs run again on the other one, so they
    /// must be repeatable.
    async fn verbs(&self, list: &[Verb]) -> Result<&Lane, StoreError> {
        loop {
            let lane = self.core.nodes.lane();
            match self.on(lane, list).await {
                Err(error) => self.moved(error).await?,
                Ok(()) => return Ok(lane),
            }
        }
    }

    /// Posts verbs to one memory node and waits until all are complete.
    pub(crate) async fn on(&self, lane: &Lane, list: &[Verb]) -> Result<(), StoreError> {
        let number = lane.post(self.slot, list, Awaited::All)?;
        self.done(lane, number).await
    }

    pub(crate) async fn done(&self, lane: &Lane, number: u64) -> Result<(), StoreError> {
        poll_fn(|_| lane.is_done(self.slot, number)).await
    }

    /// Sends a request to the metadata service and waits for the answer. `request` creates the request from the tag
    /// that the answer will contain.
    pub(crate) async fn ask(&self, request: impl FnOnce(u32) -> Request) -> Result<Reply, StoreError> {
        self.count(|counts| counts.questions += 1);
        self.core.requests.borrow_mut().send(request(self.slot as u32))?;
        poll_fn(|_| match (self.own().reply.borrow_mut().take(), self.core.requests.borrow().failed()) {
            (Some(reply), _) => Poll::Ready(Ok(reply)),
            (None, Some(error)) => Poll::Ready(Err(error)),
            (None, None) => Poll::Pending,
        })
        .await
    }

    /// Waits until `ns` nanoseconds have passed.
    pub(crate) async fn sleep(&self, ns: u64) -> Result<(), StoreError> {
        let deadline = self.core.device.now_ns() + ns;
        self.own().deadline_ns.set(Some(deadline));
        let result = poll_fn(|_| match self.core.nodes.failed() {
            Some(error) => Poll::Ready(Err(error)),
            None if self.core.device.now_ns() >= deadline => Poll::Ready(Ok(())),
            None => Poll::Pending,
        })
        .await;
        self.own().deadline_ns.set(None);
        result
    }

    /// Returns a random number below `end`, for waiting times (xorshift64*, Vigna 2014).
    pub(crate) fn random_below(&self, end: u64) -> u64 {
        let mut state = self.core.random.get().max(1);
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.core.random.set(state);
        let number = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(number) * u128::from(end)) >> 64) as u64
    }

    /// Takes an unused node for a new value. The operation must not know another node yet, since an operation that
    /// waits here must not delay the recycling of nodes.
    pub(crate) async fn take_node(&self) -> Result<NodeVersion, StoreError> {
        let result = poll_fn(|_| match (self.core.requests.borrow_mut().take_node(), self.core.nodes.failed()) {
            (Ok(Some(place)), _) if !self.core.nodes.geometry.has(place) => Poll::Ready(Err(StoreError::Protocol(
                "the metadata service sent a node that the memory node does not have",
            ))),
            (Ok(Some(place)), _) => Poll::Ready(Ok(place)),
            (_, Some(error)) | (Err(error), None) => Poll::Ready(Err(error)),
            (Ok(None), None) => Poll::Pending,
        })
        .await;
        let result = match result {
            Err(StoreError::Full) if self.kind() == Kind::Delete => self.take_reserved().await,
            result => result,
        };
        self.own().holds.set(true);
        result
    }

    /// Takes a node of the reserve for a delete, since the store is full.
    async fn take_reserved(&self) -> Result<NodeVersion, StoreError> {
        match self.ask(|tag| Request::Reserve { tag }).await? {
            Reply::Reserved { place: Some(place), .. } if self.core.nodes.geometry.has(place) => {
                self.reserved.set(Some(place));
                Ok(place)
            }
            Reply::Reserved { place: None, .. } => Err(StoreError::Full),
            _ => Err(StoreError::Protocol("the metadata service sent an answer to another request")),
        }
    }

    /// Keeps an unused node for another operation. Returns a node of the reserve to the service, since it is only for
    /// deletes.
    pub(crate) fn put_back(&self, place: NodeVersion) {
        let mut requests = self.core.requests.borrow_mut();
        match self.reserved.get() == Some(place) {
            true => requests.give_back(place),
            false => requests.put_back(place),
        }
    }

    /// Returns the cached entry of the operation's key: the newest node that a client of this host has seen.
    pub(crate) fn known(&self) -> Option<Entry> {
        self.core.cache.get(&self.key())
    }

    /// Asks the metadata service for the first node of the key's chain. Returns `None` if the key does not exist.
    pub(crate) async fn look_up(&self) -> Result<Option<Entry>, StoreError> {
        let key = self.key().clone();
        match self.ask(|tag| Request::Lookup { tag, key }).await? {
            Reply::Found { place, number, .. } => self.first_entry(place, number).map(Some),
            Reply::Absent { .. } => Ok(None),
            _ => Err(StoreError::Protocol("the metadata service sent an answer to another request")),
        }
    }

    /// Returns an entry for a node of which only the place is known.
    pub(crate) fn first_entry(&self, place: NodeVersion, number: u32) -> Result<Entry, StoreError> {
        let geometry = self.core.nodes.geometry;
        if !geometry.has(place) || number >= geometry.keys {
            return Err(StoreError::Protocol(
                "the metadata service sent a node or key number that the memory node does not have",
            ));
        }
        let length = geometry.node_bytes() as u32;
        Ok(Entry { place, number, is_tombstone: false, length })
    }

    /// READs the beginning of a node up to its key, together with the key's shortcut. If a middlebox has steered the
    /// READ to a newer node, `entry` becomes the entry of that node.
    pub(crate) async fn look(&mut self, entry: &mut Entry) -> Result<Seen, StoreError> {
        self.count(|counts| counts.hops += 1);
        let length = layout::look_length(self.key().len());
        let (_, seen) = self.fetch(entry, length).await?;
        Ok(seen)
    }

    /// READs a whole node, together with the key's shortcut. If the node is the newest one and no tombstone, stores its
    /// value as the value of the operation. As with [`look`](Self::look), a middlebox may have steered the READ to
    /// another node.
    pub(crate) async fn read(&mut self, entry: &mut Entry) -> Result<Seen, StoreError> {
        let length = (entry.length as usize).min(self.core.nodes.geometry.node_bytes());
        let (header, seen) = self.fetch(entry, length).await?;
        if matches!(seen, Seen::Gone) {
            return Ok(seen);
        }
        let whole = header.length();
        if whole > length {
            let is_possible = whole <= self.core.nodes.geometry.node_bytes();
            return Ok(if is_possible { Seen::Longer { length: whole as u32 } } else { Seen::Damaged });
        }
        let node = &self.scratch[..whole];
        if !header.is_intact(node) {
            return Ok(Seen::Damaged);
        }
        if matches!(seen, Seen::Tail { is_tombstone: false, .. }) {
            let mut value = self.own().value.borrow_mut();
            value.clear();
            value.extend_from_slice(header.value(node));
        }
        Ok(seen)
    }

    /// Returns the shortcut that was read together with a node. The operation waits for this READ only if another node
    /// follows.
    async fn shortcut(&self, lane: &Lane, number: u64) -> Result<Option<NodeVersion>, StoreError> {
        self.done(lane, number).await?;
        Ok(match Word::from_bits(lane.word(self.slot, SHORTCUT)) {
            Word::Link(place) if lane.geometry.has(place) => Some(place),
            _ => None,
        })
    }

    async fn fetch(&mut self, entry: &mut Entry, length: usize) -> Result<(Header, Seen), StoreError> {
        loop {
            match self.fetch_once(entry, length).await {
                Err(error) => self.moved(error).await?,
                seen => return seen,
            }
        }
    }

    async fn fetch_once(&mut self, entry: &mut Entry, length: usize) -> Result<(Header, Seen), StoreError> {
        let (lane, slot) = (self.core.nodes.lane(), self.slot);
        let geometry = lane.geometry;
        let is_steered = self.core.strategy.steers_reads();
        let remote = geometry.node(entry.place.index());
        let verbs = [
            Verb::Read { remote, local: lane.incoming(), length },
            Verb::Read { remote: geometry.shortcut(entry.number), local: SHORTCUT, length: 8 },
        ];
        // Clients do not maintain shortcuts if a middlebox steers READs.
        let number = lane.post(slot, if is_steered { &verbs[..1] } else { &verbs }, Awaited::First)?;
        self.done(lane, number).await?;
        self.scratch.resize(length, 0);
        lane.copy_out(slot, lane.incoming(), &mut self.scratch);
        let header = Header::parse(&self.scratch);
        // A node with another place can come only from a middlebox, which steers READs only to linked nodes. A node
        // with the requested place must be in the same use, since a node in a later use may not be linked yet.
        if let Some(place) = header.place
            && is_steered
            && place.index() != entry.place.index()
            && geometry.has(place)
        {
            entry.place = place;
        }
        let is_meant = header.is_of(entry.place, &self.own().key.borrow(), &self.scratch);
        let tail = Seen::Tail { is_tombstone: header.is_tombstone, length: header.length() as u32 };
        let seen = match header.word {
            Word::Tail(place) if is_meant && place == entry.place => tail,
            Word::Locked(_) if is_meant => tail, // the write of the following node has not taken effect
            Word::Link(next) if is_meant && geometry.has(next) => {
                let shortcut = if is_steered { None } else { self.shortcut(lane, number + 1).await? };
                Seen::Followed { next, shortcut }
            }
            _ => Seen::Gone,
        };
        Ok((header, seen))
    }

    /// Builds the node with the operation's key and value in the buffer; for a delete, the node is a tombstone.
    pub(crate) fn lay_out(&mut self, place: NodeVersion) {
        let slot = &self.core.slots[self.slot];
        let (key, value) = (slot.key.borrow(), slot.value.borrow());
        let value = (slot.kind.get() != Kind::Delete).then_some(&value[..]);
        layout::encode(place, &key, value, &mut self.scratch);
    }

    /// Returns the node that `lay_out` built last.
    pub(crate) fn laid_out(&self) -> &[u8] {
        &self.scratch
    }

    /// Returns the entry of a node that this operation has linked.
    pub(crate) fn entry(&self, place: NodeVersion, number: u32) -> Entry {
        let is_tombstone = self.kind() == Kind::Delete;
        let value = if is_tombstone { 0 } else { self.own().value.borrow().len() };
        let length = layout::node_length(self.key().len(), value) as u32;
        Entry { place, number, is_tombstone, length }
    }

    /// Publishes that `new` is now the newest node of the key. Updates the host's cache, reports a replaced node to the
    /// metadata service, and writes the shortcut, through which clients of other hosts find the node later.
    pub(crate) fn publish(&self, old: Option<NodeVersion>, new: NodeVersion, number: u32) {
        let entry = self.entry(new, number);
        let is_tombstone = entry.is_tombstone;
        self.core.cache.set(&self.key(), entry);
        if let Some(old) = old {
            self.core.requests.borrow_mut().report(Report { old, new, is_tombstone });
        }
        if self.core.strategy.steers_reads() {
            return;
        }
        let core = &self.core;
        if core.late.delay_ns > 0 {
            return core.late.push(core.device.now_ns(), number, new);
        }
        // The operation has taken effect. If this post fails, the next operation reports the error.
        let _ = core.nodes.lane().write_shortcut(self.slot, number, new, Awaited::Nothing);
    }

    /// Posts the release of a key's lock, unless another client has broken the lock. The operation does not wait for
    /// the completion.
    pub(crate) fn release_lock(&self, number: u32, own: u64) -> Result<(), StoreError> {
        let remote = self.core.nodes.geometry.lock(number);
        let verb = Verb::CompareSwap { remote, local: RELEASED, compare: own, swap: 0 };
        match self.core.nodes.lane().post(self.slot, &[verb], Awaited::Nothing) {
            // The memory node of the lock has failed. On the other memory node, no client holds the lock.
            Err(_) if self.core.nodes.failing().is_some() => Ok(()),
            posted => posted.map(drop),
        }
    }

    /// Compares and swaps the lock word of a key. Returns the word that was found.
    pub(crate) async fn swap_lock(&self, number: u32, compare: u64, swap: u64) -> Result<u64, StoreError> {
        let remote = self.core.nodes.geometry.lock(number);
        let lane = self.verbs(&[Verb::CompareSwap { remote, local: LOCK, compare, swap }]).await?;
        Ok(lane.word(self.slot, LOCK))
    }
}
