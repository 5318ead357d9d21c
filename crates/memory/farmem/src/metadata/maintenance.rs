//! The service's own work on the memory nodes. The service removes deleted keys, and finds the unreported writes of
//! clients that are gone.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use doorbell_verbs::Status;

use super::directory::Directory;
use crate::error::StoreError;
use crate::lane::{Awaited, Lane, Verb, WORDS};
use crate::layout::{HEADER_BYTES, Header, NodeVersion, Word};

/// Chores that wait to be done.
#[derive(Debug, Default)]
pub(super) struct Chores {
    closing: VecDeque<u32>,
    /// Keys that were not removed because a client was about to insert them again. If the first of two memory nodes
    /// fails before the insert, the second memory node knows nothing of it. So the service then tries the removal
    /// again.
    postponed: BTreeSet<u32>,
    /// Clients that must be shut out.
    leaving: Vec<u32>,
    /// Clients that were shut out, and whose nodes the service must recover.
    gone: VecDeque<u32>,
    /// Whether a chore is running.
    is_busy: bool,
}

impl Chores {
    pub(super) fn close(&mut self, number: u32) {
        self.closing.push_back(number);
    }

    /// Queues the postponed removals again after the loss of a memory node.
    pub(super) fn node_lost(&mut self) {
        self.closing.extend(std::mem::take(&mut self.postponed));
    }

    pub(super) fn leave(&mut self, client: u32) {
        self.leaving.push(client);
    }

    pub(super) fn fenced(&mut self, client: u32) {
        if self.is_leaving(client) {
            self.leaving.retain(|&leaving| leaving != client);
            self.gone.push_back(client);
        }
    }

    pub(super) fn is_leaving(&self, client: u32) -> bool {
        self.leaving.contains(&client)
    }

    pub(super) fn concerns(&self, client: u32) -> bool {
        self.is_leaving(client) || self.gone.contains(&client)
    }

    pub(super) fn has_any(&self) -> bool {
        let is_idle = self.closing.is_empty() && self.leaving.is_empty() && self.gone.is_empty();
        self.is_busy || !is_idle
    }
}

/// The lanes to the memory nodes. In a store with one memory node, a new lane may replace the lane to this node.
#[derive(Clone)]
pub(super) struct Lanes(Rc<RefCell<Serving>>);

struct Serving {
    /// The lane to the memory node from which the service reads.
    current: Rc<Lane>,
    /// The lane to the second memory node, if both serve.
    replica: Option<Rc<Lane>>,
}

impl Lanes {
    pub(super) fn new(first: Lane, second: Option<Lane>) -> Self {
        Self(Rc::new(RefCell::new(Serving { current: Rc::new(first), replica: second.map(Rc::new) })))
    }

    pub(super) fn current(&self) -> Rc<Lane> {
        Rc::clone(&self.0.borrow().current)
    }

    pub(super) fn replica(&self) -> Option<Rc<Lane>> {
        self.0.borrow().replica.clone()
    }

    pub(super) fn replace(&self, lane: Lane) {
        self.0.borrow_mut().current = Rc::new(lane);
    }

    /// Records that this memory node serves alone from now on.
    pub(super) fn alone(&self, node: usize) {
        let mut serving = self.0.borrow_mut();
        let Some(replica) = serving.replica.take() else { return };
        let other = if node == 0 { replica } else { std::mem::replace(&mut serving.current, replica) };
        other.abandon();
    }

    pub(super) fn poll(&self) -> bool {
        let happened = self.current().poll();
        self.replica().is_some_and(|replica| replica.poll()) | happened
    }

    /// Returns whether a lane has failed, so that no work on the memory nodes is possible now.
    fn are_broken(&self) -> bool {
        self.current().failed().is_some() || self.replica().is_some_and(|replica| replica.failed().is_some())
    }

    fn serves(&self, lane: &Rc<Lane>) -> bool {
        Rc::ptr_eq(lane, &self.current()) || self.replica().is_some_and(|replica| Rc::ptr_eq(lane, &replica))
    }
}

pub(super) struct Maintenance {
    /// The slot of the lanes for chores.
    pub(super) slot: usize,
    pub(super) lanes: Lanes,
    pub(super) directory: Rc<RefCell<Directory>>,
    pub(super) chores: Rc<RefCell<Chores>>,
}

#[derive(Clone, Copy)]
enum Chore {
    Close(u32),
    Repair(u32),
}

impl Maintenance {
    pub(super) async fn work(self) {
        loop {
            let chore = poll_fn(|_| {
                let mut chores = self.chores.borrow_mut();
                if self.lanes.are_broken() {
                    return Poll::Pending;
                }
                let close = chores.closing.pop_front().map(Chore::Close);
                match close.or_else(|| chores.gone.front().copied().map(Chore::Repair)) {
                    Some(chore) => {
                        chores.is_busy = true;
                        Poll::Ready(chore)
                    }
                    None => Poll::Pending,
                }
            })
            .await;
            // A failed chore runs again once the service has a working lane.
            let result = match chore {
                Chore::Close(number) => self.close(number).await,
                Chore::Repair(client) => self.repair(client).await,
            };
            let mut chores = self.chores.borrow_mut();
            match (chore, result) {
                (Chore::Close(number), Err(_)) => chores.closing.push_front(number),
                (Chore::Repair(client), Ok(())) => chores.gone.retain(|&gone| gone != client),
                _ => {}
            }
            chores.is_busy = false;
        }
    }

    /// Posts verbs to the memory node from which the service reads, and waits until all are complete. Returns the lane,
    /// whose slot memory has the results.
    async fn verbs(&self, list: &[Verb]) -> Result<Rc<Lane>, StoreError> {
        let lane = self.lanes.current();
        self.on(&lane, list).await.map(|()| lane)
    }

    async fn on(&self, lane: &Rc<Lane>, list: &[Verb]) -> Result<(), StoreError> {
        let number = lane.post(self.slot, list, Awaited::All)?;
        // Another lane replaces this one only after this lane has failed or is about to fail. Then the caller does not
        // use the result of this call.
        poll_fn(|_| match self.lanes.serves(lane) {
            true => lane.is_done(self.slot, number),
            false => Poll::Ready(Err(StoreError::Memory(Status::WorkRequestFlushed))),
        })
        .await
    }

    /// Compares and swaps the word of a node. Returns the resulting word.
    async fn swap(&self, lane: &Rc<Lane>, of: NodeVersion, compare: Word, swap: Word) -> Result<Word, StoreError> {
        let remote = lane.geometry.node(of.index());
        let (from, to) = (compare.bits(), swap.bits());
        self.on(lane, &[Verb::CompareSwap { remote, local: WORDS[0], compare: from, swap: to }]).await?;
        let found = Word::from_bits(lane.word(self.slot, WORDS[0]));
        Ok(if found == compare { swap } else { found })
    }

    /// Closes the chain of a deleted key, so that no client can link a node behind its tombstone, and removes the key.
    async fn close(&self, number: u32) -> Result<(), StoreError> {
        let Some(place) = self.directory.borrow_mut().begin_closing(number) else { return Ok(()) };
        let (tail, closed) = (Word::Tail(place), Word::Closed(place));
        // The node must still be a tombstone without a successor, since a client may have inserted the key again.
        let mut is_closed = self.header(place).await?.is_some_and(|header| header.is_tombstone);
        // Close the node at the first memory node first. If the CAS succeeds there, no client can link a node at the
        // second memory node.
        for lane in [Some(self.lanes.current()), self.lanes.replica()].into_iter().flatten() {
            if !is_closed {
                break;
            }
            // If the answer to an earlier CAS was lost, the word is already closed.
            let word = self.swap(&lane, place, tail, closed).await?;
            is_closed = word == closed;
            if let Word::Locked(_) = word {
                self.chores.borrow_mut().postponed.insert(number);
            }
        }
        self.directory.borrow_mut().end_closing(number, place, is_closed);
        Ok(())
    }

    /// Returns the header of a node, if the node is in the expected use. The READ ends before the key, so no middlebox
    /// steers it to a newer node.
    async fn header(&self, place: NodeVersion) -> Result<Option<Header>, StoreError> {
        let (remote, local) = self.at(place);
        let lane = self.verbs(&[Verb::Read { remote, local, length: HEADER_BYTES }]).await?;
        let mut bytes = [0; HEADER_BYTES];
        lane.copy_out(self.slot, local, &mut bytes);
        let header = Header::parse(&bytes);
        Ok((header.place == Some(place)).then_some(header))
    }

    /// Returns the offset of a node in the region, and the offset in the slot's memory for the READ of the node.
    fn at(&self, place: NodeVersion) -> (u64, usize) {
        let lane = self.lanes.current();
        (lane.geometry.node(place.index()), lane.incoming())
    }

    /// Returns the key of a node, if the node is in the expected use.
    async fn key(&self, place: NodeVersion) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(header) = self.header(place).await? else { return Ok(None) };
        if !(1..=self.lanes.current().geometry.max_key).contains(&header.key_length) {
            return Ok(None);
        }
        let (remote, local) = self.at(place);
        let remote = remote + HEADER_BYTES as u64;
        let lane = self.verbs(&[Verb::Read { remote, local, length: header.key_length }]).await?;
        let mut key = vec![0; header.key_length];
        lane.copy_out(self.slot, local, &mut key);
        Ok(Some(key))
    }

    /// Recovers the nodes of a client that was shut out. Nodes that the client linked become part of their chains, and
    /// its other nodes become free.
    async fn repair(&self, client: u32) -> Result<(), StoreError> {
        let granted = self.directory.borrow().granted_to(client);
        let mut numbers = Vec::new();
        for &place in &granted {
            if let Some(key) = self.key(place).await?
                && let Some((_, number)) = self.directory.borrow().lookup(&key)
                && !numbers.contains(&number)
            {
                numbers.push(number);
            }
        }
        for number in numbers {
            self.walk(number).await?;
        }
        let mut directory = self.directory.borrow_mut();
        for place in granted {
            directory.give_back(client, place);
        }
        Ok(())
    }

    /// Returns whether a node was handed out to a client that was shut out.
    fn is_of_nobody(&self, place: NodeVersion) -> bool {
        let owner = self.directory.borrow().owner(place);
        owner.is_some_and(|client| self.chores.borrow().gone.contains(&client))
    }

    /// Completes a link that a client left locked. That client was shut out of both memory nodes.
    async fn finish(&self, old: NodeVersion, new: NodeVersion) -> Result<(), StoreError> {
        let (tail, linked) = (Word::Tail(old), Word::Link(new));
        let lane = self.lanes.current();
        if let Some(replica) = self.lanes.replica() {
            let (remote, local) = self.at(old);
            self.on(&replica, &[Verb::Read { remote, local, length: 8 }]).await?;
            if Word::from_bits(replica.word(self.slot, local)) == tail {
                // The client's WRITE of the new node to the second memory node may have been lost. No client can read
                // the new node there yet, so write it again.
                let (remote, local) = self.at(new);
                let length = lane.geometry.node_bytes();
                self.on(&lane, &[Verb::Read { remote, local, length }]).await?;
                let mut node = vec![0; length];
                lane.copy_out(self.slot, local, &mut node);
                let local = replica.outgoing();
                replica.copy_in(self.slot, local, &node);
                self.on(&replica, &[Verb::Write { remote, local, length }]).await?;
            }
            self.swap(&replica, old, tail, linked).await?;
        }
        self.swap(&lane, old, Word::Locked(new), linked).await.map(drop)
    }

    /// Follows a chain from its first known node and records each link in the directory. Costs one READ for each node
    /// of the chain.
    async fn walk(&self, number: u32) -> Result<(), StoreError> {
        let mut known = None;
        loop {
            let Some(head) = self.directory.borrow().head(number) else { return Ok(()) };
            let header = match known {
                Some((place, header)) if place == head => header,
                _ => match self.header(head).await? {
                    Some(header) => header,
                    None => return Ok(()),
                },
            };
            let next = match header.word {
                Word::Link(next) => next,
                Word::Locked(next) if self.is_of_nobody(next) => {
                    self.finish(head, next).await?;
                    next
                }
                _ => return Ok(()),
            };
            let Some(after) = self.header(next).await? else { return Ok(()) };
            let mut directory = self.directory.borrow_mut();
            if directory.head(number) != Some(head) {
                continue; // a client's report has changed the directory meanwhile
            }
            if !directory.is_granted(next) {
                return Ok(()); // no client wrote this word
            }
            if let Some(number) = directory.advance(number, next, after.is_tombstone) {
                self.chores.borrow_mut().close(number);
            }
            known = Some((next, after));
        }
    }
}
