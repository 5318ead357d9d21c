//! How a worker writes a node and links it, on one memory node or on two, and what it does when one of two fails.
//!
//! With two, the word of the predecessor at the first one is *locked* by the CAS that would otherwise link: nobody else can
//! link there, and readers take it for the newest node still. Then the link is made at the second one, and then at the first
//! one, which is the moment when the write takes effect. So whatever anybody has read is at both. A step that failed, since a
//! node did, is followed by the whole over again on the node that is left: what the words say there is enough to know how far it
//! had come, as no word that this client made is like that of another client or of another write.

use crate::cache::Entry;
use crate::error::StoreError;
use crate::lane::{Awaited, Lane, Verb};
use crate::layout::{Place, Word};
use crate::rpc::Request;
use crate::worker::{FOUND, Worker};

/// The node that is read as long as both serve.
const FIRST: usize = 0;

/// What a CAS was to find, and what it was to leave.
#[derive(Clone, Copy, Debug)]
struct Swap {
    compare: Word,
    swap: Word,
}

impl Swap {
    fn verb(self, lane: &Lane, of: &Entry) -> Verb {
        let (compare, swap) = (self.compare.bits(), self.swap.bits());
        Verb::CompareSwap { remote: lane.geometry.node(of.place.index()), local: FOUND, compare, swap }
    }

    /// What the word is after a CAS.
    fn left(self, lane: &Lane, slot: usize) -> Word {
        let found = Word::from_bits(lane.word(slot, FOUND));
        if found == self.compare { self.swap } else { found }
    }
}

/// A first CAS that left together with the node: what it left, and at which memory node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    node: usize,
    word: Word,
}

impl Worker {
    /// A lane failed. Waits until it is known which memory node serves alone, and returns if it is another one. Otherwise
    /// the error is the operation's: of a store with one memory node, always.
    pub(crate) async fn moved(&self, error: StoreError) -> Result<(), StoreError> {
        let nodes = &self.core.nodes;
        if nodes.failed().is_none() && nodes.replica().is_some() {
            let node = nodes.failing().unwrap_or(FIRST);
            if !self.doubts(node).await {
                nodes.give_up(error);
            }
        }
        nodes.failed().map_or(Ok(()), Err)
    }

    /// A memory node does not answer, or not what it should. Has it been given up, or the other one, once the service has
    /// looked? Never in a store with one memory node.
    async fn doubts(&self, node: usize) -> bool {
        let nodes = &self.core.nodes;
        let was_both = nodes.replica().is_some();
        // What the service answers, it has told all clients before.
        let is_asked = was_both && self.ask(|tag| Request::Lost { tag, node: node as u8 }).await.is_ok();
        is_asked && nodes.replica().is_none()
    }

    /// The service names a node again and again that is none of the key: does it wait for a memory node that fails?
    pub(crate) async fn waits_for_the_service(&self) -> bool {
        self.doubts(FIRST).await
    }

    fn first_swap(&self, old: &Entry, new: Place) -> Swap {
        let swap = if self.core.nodes.replica().is_some() { Word::Locked(new) } else { Word::Link(new) };
        Swap { compare: Word::Tail(old.place), swap }
    }

    /// WRITEs a node with the operation's key and value; a delete writes a tombstone. Waits until it is there, at each memory
    /// node that serves. With `link` the first CAS to link it behind that node goes along in the same post, for
    /// [`link`](Self::link) to go on with.
    pub(crate) async fn write(&mut self, place: Place, link: Option<&Entry>) -> Result<Option<First>, StoreError> {
        self.lay_out(place);
        loop {
            match self.write_once(place, link).await {
                Err(error) => self.moved(error).await?,
                written => return written,
            }
        }
    }

    async fn write_once(&self, place: Place, link: Option<&Entry>) -> Result<Option<First>, StoreError> {
        let (nodes, slot) = (&self.core.nodes, self.slot);
        let (lane, node) = (nodes.lane(), nodes.read());
        let (remote, local, length) = (lane.geometry.node(place.index()), lane.outgoing(), self.laid_out().len());
        let write = Verb::Write { remote, local, length };
        let beside = match nodes.replica() {
            Some(replica) => {
                replica.copy_in(slot, local, self.laid_out());
                Some((replica, replica.post(slot, &[write], Awaited::All)?))
            }
            None => None,
        };
        lane.copy_in(slot, local, self.laid_out());
        let first = match link {
            None => {
                self.on(lane, &[write]).await?;
                None
            }
            Some(old) => {
                let swap = self.first_swap(old, place);
                self.on(lane, &[write, swap.verb(lane, old)]).await?;
                Some(First { node, word: swap.left(lane, slot) })
            }
        };
        if let Some((replica, number)) = beside {
            self.done(replica, number).await?;
        }
        Ok(first)
    }

    /// Makes `new` the successor of what is believed to be the newest node. Returns what the word was: if it was that of a
    /// tail, the write has taken effect.
    pub(crate) async fn link(&self, old: &Entry, new: Place, first: Option<First>) -> Result<Word, StoreError> {
        let mut first = first;
        loop {
            match self.link_once(old, new, first.take()).await {
                Err(error) => self.moved(error).await?,
                found => return found,
            }
        }
    }

    async fn link_once(&self, old: &Entry, new: Place, first: Option<First>) -> Result<Word, StoreError> {
        let nodes = &self.core.nodes;
        let (lane, tail) = (nodes.lane(), Word::Tail(old.place));
        let replica = nodes.replica();
        let word = match first {
            Some(first) if first.node == nodes.read() => first.word,
            _ => {
                let swap = self.first_swap(old, new);
                self.swap(lane, old, swap).await?
            }
        };
        match word {
            Word::Link(next) if next == new => return Ok(tail),
            Word::Locked(next) if next == new => {}
            other => return Ok(other),
        }
        let (locked, linked) = (Word::Locked(new), Word::Link(new));
        if let Some(replica) = replica {
            let word = self.swap(replica, old, Swap { compare: tail, swap: linked }).await?;
            Self::must_be(word, linked, old)?;
        }
        let word = self.swap(lane, old, Swap { compare: locked, swap: linked }).await?;
        Self::must_be(word, linked, old)?;
        Ok(tail)
    }

    /// The two nodes disagree: others go on with one alone already, of which this client has not heard, or one is corrupted.
    fn must_be(word: Word, meant: Word, old: &Entry) -> Result<(), StoreError> {
        if word == meant { Ok(()) } else { Err(StoreError::Corrupted { index: old.place.index() }) }
    }

    /// Compares and swaps the word of a node. Returns what it is then.
    async fn swap(&self, lane: &Lane, of: &Entry, swap: Swap) -> Result<Word, StoreError> {
        self.on(lane, &[swap.verb(lane, of)]).await?;
        Ok(swap.left(lane, self.slot))
    }
}
