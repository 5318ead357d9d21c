//! Writing and linking a node on one or two memory nodes, and recovery when one of two memory nodes fails.
//!
//! In a store with two memory nodes, a write first *locks* the word of the predecessor at the first memory node with a
//! CAS. Then no other client can link a node to the predecessor, and readers still treat the predecessor as the newest
//! node. The client links the new node at the second memory node, and then at the first one. The write takes effect
//! with the link at the first memory node. So both memory nodes have each value that any client has read.
//!
//! If a step fails because a memory node has failed, the client repeats all steps on the remaining memory node. The
//! words there show which steps were done before: no word of this write equals the word of another client or of another
//! write.

use crate::cache::Entry;
use crate::error::StoreError;
use crate::lane::{Awaited, Lane, Verb};
use crate::layout::{NodeVersion, Word};
use crate::rpc::Request;
use crate::worker::{FOUND, Worker};

/// Index of the memory node that clients read while both serve.
const FIRST: usize = 0;

/// The compare value and the swap value of a CAS.
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

    /// Returns the word after this CAS, from the word that the CAS found.
    fn left(self, lane: &Lane, slot: usize) -> Word {
        let found = Word::from_bits(lane.word(slot, FOUND));
        if found == self.compare { self.swap } else { found }
    }
}

/// The first CAS of a link, which the client posted together with the WRITE of the new node: the word after the CAS,
/// and the memory node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    node: usize,
    word: Word,
}

impl Worker {
    /// Handles the failure of a lane. Waits until the service has decided which memory node serves alone. Returns `Ok`
    /// if that is another memory node, and otherwise the error for the operation. In a store with one memory node,
    /// always returns the error.
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

    /// Reports to the service that a memory node does not answer, or answers with wrong content. Returns whether the
    /// service has given up a memory node after a check. Always false in a store with one memory node.
    async fn doubts(&self, node: usize) -> bool {
        let nodes = &self.core.nodes;
        let was_both = nodes.replica().is_some();
        // The service announces a change to all clients before it answers this request.
        let is_asked = was_both && self.ask(|tag| Request::Lost { tag, node: node as u8 }).await.is_ok();
        is_asked && nodes.replica().is_none()
    }

    /// Returns whether the service has just given up a failed memory node. Until then, the service may name a node of
    /// another key again and again.
    pub(crate) async fn waits_for_the_service(&self) -> bool {
        self.doubts(FIRST).await
    }

    fn first_swap(&self, old: &Entry, new: NodeVersion) -> Swap {
        let swap = if self.core.nodes.replica().is_some() { Word::Locked(new) } else { Word::Link(new) };
        Swap { compare: Word::Tail(old.place), swap }
    }

    /// WRITEs a node with the operation's key and value; a delete writes a tombstone. Waits until each serving memory
    /// node has the new node. With `link`, the same post also contains the first CAS of the link to that predecessor.
    /// [`link`](Self::link) continues from this CAS.
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

    /// Links `new` as the successor of `old`, which may be the newest node. Returns the word that was found: the write
    /// has taken effect if this is the word of a tail.
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

    /// Checks the word that a CAS at the second memory node found. If the word differs from the first memory node's,
    /// one of the two memory nodes is corrupted, or serves alone without this client's knowledge.
    fn must_be(word: Word, meant: Word, old: &Entry) -> Result<(), StoreError> {
        if word == meant { Ok(()) } else { Err(StoreError::Corrupted { index: old.place.index() }) }
    }

    /// Compares and swaps the word of a node. Returns the resulting word.
    async fn swap(&self, lane: &Lane, of: &Entry, swap: Swap) -> Result<Word, StoreError> {
        self.on(lane, &[swap.verb(lane, of)]).await?;
        Ok(swap.left(lane, self.slot))
    }
}
