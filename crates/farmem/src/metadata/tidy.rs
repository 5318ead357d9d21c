//! What the service does on the memory node itself: it removes keys that were deleted, and finds out what clients that
//! left had done without saying so.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::directory::Directory;
use crate::error::StoreError;
use crate::lane::{Lane, Verb, WORDS};
use crate::layout::{self, Header, Place, Word};

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Chores {
    closing: VecDeque<u32>,
    /// Clients that are to be shut out.
    leaving: Vec<u32>,
    /// Clients that were shut out.
    gone: VecDeque<u32>,
    /// Somebody is at it.
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
        self.is_busy || !(self.closing.is_empty() && self.leaving.is_empty() && self.gone.is_empty())
    }
}

pub(super) struct Tidy {
    pub(super) lane: Rc<Lane>,
    pub(super) directory: Rc<RefCell<Directory>>,
    pub(super) chores: Rc<RefCell<Chores>>,
}

enum Chore {
    Close(u32),
    Repair(u32),
}

impl Tidy {
    pub(super) async fn work(self) {
        loop {
            let chore = poll_fn(|_| {
                let mut chores = self.chores.borrow_mut();
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
            // Without the memory node there is nothing to tidy up any more.
            let _ = match chore {
                Chore::Close(number) => self.close(number).await,
                Chore::Repair(client) => {
                    let result = self.repair(client).await;
                    self.chores.borrow_mut().gone.retain(|&gone| gone != client);
                    result
                }
            };
            self.chores.borrow_mut().is_busy = false;
        }
    }

    async fn verb(&self, verb: Verb) -> Result<(), StoreError> {
        self.lane.post(0, &[verb], true)?;
        poll_fn(|_| self.lane.take_done(0)).await
    }

    /// Closes the chain of a deleted key, so that no client can write behind its tombstone, and removes the key.
    async fn close(&self, number: u32) -> Result<(), StoreError> {
        let Some(place) = self.directory.borrow_mut().begin_closing(number) else { return Ok(()) };
        let (tail, closed) = (Word::Tail(place.version()), Word::Closed(place.version()));
        let remote = self.lane.geometry.node(place.index());
        let (compare, swap) = (tail.bits(), closed.bits());
        // Until it is known to be a tombstone still, and the tail: the key may have been inserted again meanwhile.
        let is_tombstone = self.header(place).await?.is_some_and(|(header, _)| header.is_tombstone);
        let is_closed = is_tombstone && {
            self.verb(Verb::CompareSwap { remote, local: WORDS[0], compare, swap }).await?;
            Word::from_bits(self.lane.word(0, WORDS[0])) == tail
        };
        self.directory.borrow_mut().end_closing(number, place, is_closed);
        Ok(())
    }

    /// The beginning of a node, if it is in the use that is meant, and its key.
    async fn header(&self, place: Place) -> Result<Option<(Header, Vec<u8>)>, StoreError> {
        let geometry = self.lane.geometry;
        let length = layout::look_length(geometry.max_key).min(geometry.node_bytes());
        let (remote, local) = (geometry.node(place.index()), self.lane.incoming());
        self.verb(Verb::Read { remote, local, length }).await?;
        let mut bytes = vec![0; length];
        self.lane.copy_out(0, local, &mut bytes);
        let header = Header::parse(&bytes);
        if header.place != Some(place) {
            return Ok(None);
        }
        Ok(header.key(&bytes).map(|key| (header, key.to_vec())))
    }

    /// Gets back what a client had that was shut out: nodes that it linked become part of their chains, the others are
    /// free.
    async fn repair(&self, client: u32) -> Result<(), StoreError> {
        let granted = self.directory.borrow().granted_to(client);
        let mut numbers = Vec::new();
        for &place in &granted {
            if let Some((_, key)) = self.header(place).await?
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

    /// Brings what is known of a chain up to date with what it is.
    async fn walk(&self, number: u32) -> Result<(), StoreError> {
        loop {
            let Some(head) = self.directory.borrow().head(number) else { return Ok(()) };
            let Some((header, _)) = self.header(head).await? else { return Ok(()) };
            let Word::Link(next) = header.word else { return Ok(()) };
            let Some((after, _)) = self.header(next).await? else { return Ok(()) };
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
        }
    }
}
