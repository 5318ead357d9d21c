//! What the service does on the memory node itself: it removes keys that were deleted, and finds out what clients that
//! left had done without saying so.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use doorbell_verbs::Status;

use super::directory::Directory;
use crate::error::StoreError;
use crate::lane::{Awaited, Lane, Verb, WORDS};
use crate::layout::{HEADER_BYTES, Header, Place, Word};

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Chores {
    closing: VecDeque<u32>,
    /// Clients that are to be shut out.
    leaving: Vec<u32>,
    /// Clients that were shut out.
    gone: VecDeque<u32>,
    /// One is being done.
    is_busy: bool,
}

impl Chores {
    pub(super) fn close(&mut self, number: u32) {
        self.closing.push_back(number);
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

/// The lane to the memory node, which another one may replace.
#[derive(Clone)]
pub(super) struct Lanes(Rc<RefCell<Rc<Lane>>>);

impl Lanes {
    pub(super) fn new(lane: Lane) -> Self {
        Self(Rc::new(RefCell::new(Rc::new(lane))))
    }

    pub(super) fn current(&self) -> Rc<Lane> {
        Rc::clone(&self.0.borrow())
    }

    pub(super) fn replace(&self, lane: Lane) {
        *self.0.borrow_mut() = Rc::new(lane);
    }
}

pub(super) struct Tidy {
    /// Its slot of the lane.
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

impl Tidy {
    pub(super) async fn work(self) {
        loop {
            let chore = poll_fn(|_| {
                let mut chores = self.chores.borrow_mut();
                if self.lanes.current().failed().is_some() {
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
            // What failed is done again once there is another way to the memory node.
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

    /// Posts verbs and waits until all are done. Returns the lane that has what they brought.
    async fn verbs(&self, list: &[Verb]) -> Result<Rc<Lane>, StoreError> {
        let lane = self.lanes.current();
        let number = lane.post(self.slot, list, Awaited::All)?;
        // Another lane comes only when this one has failed, or is about to: then nothing comes of this any more.
        let result = poll_fn(|_| match Rc::ptr_eq(&lane, &self.lanes.current()) {
            true => lane.is_done(self.slot, number),
            false => Poll::Ready(Err(StoreError::Memory(Status::WorkRequestFlushed))),
        });
        result.await.map(|()| lane)
    }

    /// Closes the chain of a deleted key, so that no client can write behind its tombstone, and removes the key.
    async fn close(&self, number: u32) -> Result<(), StoreError> {
        let Some(place) = self.directory.borrow_mut().begin_closing(number) else { return Ok(()) };
        let (tail, closed) = (Word::Tail(place), Word::Closed(place));
        let remote = self.lanes.current().geometry.node(place.index());
        let (compare, swap) = (tail.bits(), closed.bits());
        // Until it is known to be a tombstone still, and the tail: the key may have been inserted again meanwhile.
        let is_tombstone = self.header(place).await?.is_some_and(|header| header.is_tombstone);
        let is_closed = is_tombstone && {
            let lane = self.verbs(&[Verb::CompareSwap { remote, local: WORDS[0], compare, swap }]).await?;
            // It was closed before where the answer to that was lost.
            [tail, closed].contains(&Word::from_bits(lane.word(self.slot, WORDS[0])))
        };
        self.directory.borrow_mut().end_closing(number, place, is_closed);
        Ok(())
    }

    /// The beginning of a node, if it is in the use that is meant. It ends before the key, so no middlebox takes this READ
    /// for one that may go to a newer node.
    async fn header(&self, place: Place) -> Result<Option<Header>, StoreError> {
        let (remote, local) = self.at(place);
        let lane = self.verbs(&[Verb::Read { remote, local, length: HEADER_BYTES }]).await?;
        let mut bytes = [0; HEADER_BYTES];
        lane.copy_out(self.slot, local, &mut bytes);
        let header = Header::parse(&bytes);
        Ok((header.place == Some(place)).then_some(header))
    }

    /// Where a node lies, and where it goes when it is read.
    fn at(&self, place: Place) -> (u64, usize) {
        let lane = self.lanes.current();
        (lane.geometry.node(place.index()), lane.incoming())
    }

    /// The key of a node, if it is in the use that is meant.
    async fn key(&self, place: Place) -> Result<Option<Vec<u8>>, StoreError> {
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

    /// Gets back what a client had that was shut out: nodes that it linked become part of their chains, the others are
    /// free.
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

    /// Brings what is known of a chain up to date with what it is: one READ for each node, and one for the first.
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
            let Word::Link(next) = header.word else { return Ok(()) };
            let Some(after) = self.header(next).await? else { return Ok(()) };
            let mut directory = self.directory.borrow_mut();
            if directory.head(number) != Some(head) {
                continue; // a report came meanwhile
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
