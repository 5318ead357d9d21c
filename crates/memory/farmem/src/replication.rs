//! Writing and linking a node, on one memory node or on two, and recovery when one of two fails.
//!
//! With two nodes, the CAS that would otherwise link *locks* the word of the predecessor at the first one. No other
//! client can link there then, and readers still treat it as the newest node. Then the link is made at the second
//! node, and after that at the first one, which is the moment when the write takes effect. So each value that any
//! client has read is at both nodes.
//!
//! If a step failed because a node did, all steps are repeated on the remaining node. The words there are enough to
//! know which steps had been done, as no word that this client made equals that of another client or of another
//! write.

use crate::cache::Entry;
use crate::error::StoreError;
use crate::lane::{Awaited, Lane, Verb};
use crate::layout::{NodeVersion, Word};
use crate::rpc::Request;
use crate::worker::{FOUND, Worker};

/// The node that is read as long as both serve.
const FIRST: usize = 0;

/// The compare and swap words of a CAS.
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

    /// Returns the word after a CAS.
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
    /// Handles the failure of a lane. Waits until it is known which memory node serves alone, and returns if it is
    /// another one. Otherwise returns the error for the operation; in a store with one memory node, always.
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

    /// Reports to the service that a memory node does not answer, or not as it should. Returns whether a node has
    /// been given up once the service has checked. Always false in a store with one memory node.
    async fn doubts(&self, node: usize) -> bool {
        let nodes = &self.core.nodes;
        let was_both = nodes.replica().is_some();
        // The service notifies all clients before it answers.
        let is_asked = was_both && self.ask(|tag| Request::Lost { tag, node: node as u8 }).await.is_ok();
        is_asked && nodes.replica().is_none()
    }

    /// Returns whether the service waits for a memory node that fails. It then names, again and again, a node that is
    /// none of the key.
    pub(crate) async fn waits_for_the_service(&self) -> bool {
        self.doubts(FIRST).await
    }

    fn first_swap(&self, old: &Entry, new: NodeVersion) -> Swap {
        let swap = if self.core.nodes.replica().is_some() { Word::Locked(new) } else { Word::Link(new) };
        Swap { compare: Word::Tail(old.place), swap }
    }

    /// WRITEs a node with the operation's key and value; a delete writes a tombstone. Waits until the node is written
    /// at each memory node that serves. With `link`, the first CAS to link it after that node goes along in the same
    /// post, and [`link`](Self::link) continues from it.
    pub(crate) async fn write(
        &mut self,
        place: NodeVersion,
        link: Option<&Entry>,
    ) -> Result<Option<First>, StoreError> {
        self.lay_out(place);
        loop {
            match self.write_once(place, link).await {
                Err(error) => self.moved(error).await?,
                written => return written,
            }
        }
    }

    async fn write_once(&self, place: NodeVersion, link: Option<&Entry>) -> Result<Option<First>, StoreError> {
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

    /// Makes `new` the successor of `old`, which is believed to be the newest node. Returns the word that was found:
    /// if it was that of a tail, the write has taken effect.
    pub(crate) async fn link(&self, old: &Entry, new: NodeVersion, first: Option<First>) -> Result<Word, StoreError> {
        let mut first = first;
        loop {
            match self.link_once(old, new, first.take()).await {
                Err(error) => self.moved(error).await?,
                found => return found,
            }
        }
    }

    async fn link_once(&self, old: &Entry, new: NodeVersion, first: Option<First>) -> Result<Word, StoreError> {
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

    /// Checks a word at the second node. If the two nodes disagree, others already use one alone and this client does
    /// not know yet, or one is corrupted.
    fn must_be(word: Word, meant: Word, old: &Entry) -> Result<(), StoreError> {
        if word == meant { Ok(()) } else { Err(StoreError::Corrupted { index: old.place.index() }) }
    }

    /// Compares and swaps the word of a node. Returns the resulting word.
    async fn swap(&self, lane: &Lane, of: &Entry, swap: Swap) -> Result<Word, StoreError> {
        self.on(lane, &[swap.verb(lane, of)]).await?;
        Ok(swap.left(lane, self.slot))
    }
}
