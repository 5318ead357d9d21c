//! What the box knows of a store: which node is the newest of its key.
//!
//! All of it is soft. Tables are arrays of a fixed size, where an entry takes the place of another one with the same hash.
//! An entry that is missing costs a client a retry. So does one that is wrong, for three reasons: a READ goes elsewhere
//! only if it shows the client whose node it read; a CAS goes elsewhere only between nodes whose keys are known to be
//! equal; and it compares with the word that the node was written with, which a node that was recycled does not have any
//! more.

use std::fmt;
use std::hash::Hasher;

use doorbell_wire::{Qpn, RKey};
use rustc_hash::{FxHashMap, FxHasher};

use crate::message::{Kind, Message};

/// What a box has to know of a store's nodes.
///
/// A node is an object that one WRITE lays out from its first byte on. One aligned word of it is compared and swapped: it
/// says that nothing follows, or which node does.
pub trait Layout: fmt::Debug + Send {
    /// The key of the node that begins with these bytes, the payload of a WRITE's first packet; `None` if this is no
    /// node. Any bytes may come: clients write what they like.
    fn key<'a>(&self, start: &'a [u8]) -> Option<&'a [u8]>;

    /// Where in a node its word lies: a multiple of 8.
    fn word_offset(&self) -> u64;

    /// How many bytes of a node with a key of this length a READ must show for the client to know whose node it is.
    /// Shorter READs go where the client asked.
    fn least_read(&self, key_bytes: usize) -> u32;

    /// Does this word say that nothing follows, so that a node may be appended? Zero does not.
    ///
    /// Such a word must differ from those of all other nodes, and from all that this place had when it held other nodes: it
    /// carries a place and a version. A client whose CAS was sent elsewhere and succeeded learns by it which node that was;
    /// one whose CAS failed there learns zero in place of such a word.
    fn is_tail(&self, word: u64) -> bool;

    /// Where the node begins that this word says follows.
    fn next(&self, word: u64) -> Option<u64>;

    /// What a client may have looked at in a node before it appends another one, such as that the key is deleted. A CAS goes
    /// from the node that the client names only to one of which the same is true.
    fn class(&self, _start: &[u8]) -> u8 {
        0
    }

    /// Are READs steered, and not only CASes?
    fn steers_reads(&self) -> bool {
        true
    }
}

/// Bytes of the longest key that is steered. Nodes with longer ones are served as any memory is.
const MOST_KEY_BYTES: usize = 31;

/// The address table has at least this many places for each key.
const NODES_PER_KEY: usize = 3;

/// A key, whole: of two keys with the same hash, one would get the other's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    length: u8,
    bytes: [u8; MOST_KEY_BYTES],
}

impl Key {
    fn new(key: &[u8]) -> Option<Self> {
        let mut bytes = [0; MOST_KEY_BYTES];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { length: key.len() as u8, bytes })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:02x?})", &self.bytes[..self.length.into()])
    }
}

/// A node that a client wrote.
#[derive(Clone, Copy, Debug)]
struct Node {
    address: u64,
    key: Key,
    /// Its word as it was written: nothing follows.
    tail_word: u64,
    class: u8,
    writer: Qpn,
    rkey: RKey,
    node_rkey: RKey,
    /// When it was seen to be in its key's chain: of two nodes of a key, the greater number stands behind. A READ goes to
    /// a node further behind only, or a client that follows the chain would never come to its end.
    order: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    key: Key,
    address: u64,
}

/// Where a request goes instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    pub(crate) address: u64,
    pub(crate) rkey: RKey,
    pub(crate) node_rkey: RKey,
    /// What a CAS is to compare with.
    pub(crate) tail_word: u64,
}

#[derive(Debug)]
pub(crate) struct Steering {
    layout: Box<dyn Layout>,
    newest: Box<[Option<Newest>]>,
    nodes: Box<[Option<Node>]>,
    /// Keys to which a CAS is at the node whose outcome is not known, and the clients that wait for it with another.
    locks: FxHashMap<Key, Vec<u32>>,
    next_order: u64,
    pub(crate) replaced: u64,
}

fn hash_of(words: &[u8]) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write(words);
    // The lower bits are the table's index; those of this hash depend on few bits of the input.
    let hash = hasher.finish();
    (hash ^ (hash >> 32)) as usize
}

fn place_of(address: u64, places: usize) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (places - 1)
}

impl Steering {
    pub(crate) fn new(layout: Box<dyn Layout>, keys: usize) -> Self {
        let keys = keys.clamp(1, 1 << 24).next_power_of_two();
        let nodes = (keys * NODES_PER_KEY).next_power_of_two();
        Self {
            layout,
            newest: vec![None; keys].into(),
            nodes: vec![None; nodes].into(),
            locks: FxHashMap::default(),
            next_order: 0,
            replaced: 0,
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.newest.fill(None);
        self.nodes.fill(None);
        self.locks.clear();
    }

    fn node(&self, address: u64) -> Option<&Node> {
        self.nodes[place_of(address, self.nodes.len())].as_ref().filter(|node| node.address == address)
    }

    fn newest(&self, key: &Key) -> Option<u64> {
        let found = self.newest[self.key_place(key)].as_ref().filter(|newest| newest.key == *key);
        found.map(|newest| newest.address)
    }

    fn key_place(&self, key: &Key) -> usize {
        hash_of(&key.bytes[..key.length.into()]) & (self.newest.len() - 1)
    }

    fn set_newest(&mut self, key: Key, address: u64) {
        let place = self.key_place(&key);
        let before = self.newest[place].replace(Newest { key, address });
        self.replaced += u64::from(before.is_some_and(|before| before.key != key));
        self.set_order(address);
    }

    /// A node is the last one of its chain at this moment.
    fn set_order(&mut self, address: u64) {
        let at = place_of(address, self.nodes.len());
        if let Some(node) = self.nodes[at].as_mut().filter(|node| node.address == address && node.order.is_none()) {
            node.order = Some(self.next_order);
            self.next_order += 1;
        }
    }

    fn forget_newest(&mut self, key: &Key, address: u64) {
        let place = self.key_place(key);
        if self.newest[place].is_some_and(|newest| newest.key == *key && newest.address == address) {
            self.newest[place] = None;
        }
    }

    /// Does this word say that nothing follows?
    pub(crate) fn is_tail(&self, word: u64) -> bool {
        self.layout.is_tail(word)
    }

    /// The word of the node that a WRITE lays out, if it does: its offset and value.
    pub(crate) fn word_in(&self, start: &[u8]) -> Option<(u64, u64)> {
        self.layout.key(start)?;
        let offset = self.layout.word_offset();
        let from = usize::try_from(offset).ok()?;
        let word = start.get(from..)?.first_chunk::<8>()?;
        Some((offset, u64::from_le_bytes(*word)))
    }

    /// A WRITE is on its way to the node.
    pub(crate) fn written(&mut self, message: &Message, mtu: usize) {
        let start = message.first_payload(mtu);
        let place = place_of(message.address, self.nodes.len());
        // Whatever lay there does not any more.
        if let Some(old) = self.nodes[place].filter(|old| old.address == message.address) {
            self.forget_newest(&old.key, old.address);
            self.nodes[place] = None;
        }
        let Some(key) = self.layout.key(start).and_then(Key::new) else { return };
        let Some((_, tail_word)) = self.word_in(start).filter(|&(_, word)| self.layout.is_tail(word)) else { return };
        self.nodes[place] = Some(Node {
            address: message.address,
            key,
            tail_word,
            class: self.layout.class(start),
            writer: message.qpn,
            rkey: message.rkey,
            node_rkey: message.node_rkey,
            order: None,
        });
    }

    /// The key to whose chain a CAS appends a node: its client wrote the node on this queue pair and has not appended it
    /// yet, and the CAS is of the word of a node with the same key.
    pub(crate) fn appends(&self, message: &Message) -> Option<Key> {
        let Kind::CompareSwap { compare, swap } = message.kind else { return None };
        if !self.layout.is_tail(compare) {
            return None;
        }
        let appended = self.node(self.layout.next(swap)?)?;
        let at = self.node(message.address.checked_sub(self.layout.word_offset())?)?;
        let is_own = appended.writer == message.qpn && appended.order.is_none();
        (is_own && appended.key == at.key && appended.address != at.address).then_some(at.key)
    }

    /// Where a CAS that appends to this key's chain goes instead.
    pub(crate) fn steer_append(&self, key: &Key, message: &Message) -> Option<Elsewhere> {
        let at = self.node(message.address.checked_sub(self.layout.word_offset())?)?;
        let newest = self.newest_node(key).filter(|newest| newest.class == at.class)?.elsewhere();
        let address = newest.address.checked_add(self.layout.word_offset())?;
        (address != message.address).then_some(Elsewhere { address, ..newest })
    }

    /// Where a READ goes instead.
    pub(crate) fn steer_read(&self, message: &Message) -> Option<Elsewhere> {
        let node = self.node(message.address).filter(|_| self.layout.steers_reads())?;
        if message.length < self.layout.least_read(node.key.length.into()) {
            return None;
        }
        let newest = self.newest_node(&node.key)?;
        (node.order? < newest.order?).then(|| newest.elsewhere())
    }

    /// A place that was written anew since is in no chain yet, even if the key is the same: nobody may append to it, or
    /// be sent there.
    fn newest_node(&self, key: &Key) -> Option<&Node> {
        self.node(self.newest(key)?).filter(|newest| newest.key == *key && newest.order.is_some())
    }
}

impl Node {
    fn elsewhere(&self) -> Elsewhere {
        let Node { address, rkey, node_rkey, tail_word, .. } = *self;
        Elsewhere { address, rkey, node_rkey, tail_word }
    }
}

impl Steering {
    /// The outcome of a CAS is known: of the word at `address`, which held `original` before.
    pub(crate) fn swapped(&mut self, address: u64, compare: u64, swap: u64, original: u64) {
        let Some(at) = address.checked_sub(self.layout.word_offset()).and_then(|address| self.node(address)).copied()
        else {
            return;
        };
        let has_succeeded = original == compare;
        // What follows now, whoever appended it.
        let word = if has_succeeded { swap } else { original };
        let next = self.layout.next(word).and_then(|next| self.node(next)).filter(|next| next.key == at.key);
        match next.map(|next| next.address) {
            Some(next) if has_succeeded && self.layout.is_tail(compare) => {
                // Nothing followed it until now.
                self.set_order(at.address);
                self.set_newest(at.key, next);
            }
            // A CAS of an old node that failed tells what followed once: that is no news.
            Some(next) if self.newest(&at.key) == Some(at.address) => self.set_newest(at.key, next),
            Some(_) => {}
            // Something else does, or the chain has ended.
            None if word != at.tail_word => self.forget_newest(&at.key, at.address),
            None => {}
        }
    }

    /// Does a CAS have to wait for the outcome of another one to this key?
    pub(crate) fn is_locked(&self, key: &Key) -> bool {
        self.locks.contains_key(key)
    }

    pub(crate) fn wait(&mut self, key: &Key, slot: u32) {
        if let Some(waiters) = self.locks.get_mut(key) {
            waiters.push(slot);
        }
    }

    pub(crate) fn lock(&mut self, key: Key) {
        self.locks.insert(key, Vec::new());
    }

    /// The clients that waited.
    pub(crate) fn unlock(&mut self, key: &Key) -> Vec<u32> {
        self.locks.remove(key).unwrap_or_default()
    }

    /// All clients that waited for anything.
    pub(crate) fn unlock_all(&mut self) -> Vec<u32> {
        self.locks.drain().flat_map(|(_, waiters)| waiters).collect()
    }

    /// A client is gone.
    pub(crate) fn forget_client(&mut self, slot: u32) {
        self.locks.values_mut().for_each(|waiters| waiters.retain(|other| *other != slot));
    }
}
