//! The box's knowledge of a store: the newest node of each key.
//!
//! All of it is soft state. The tables are arrays of a fixed size, in which an entry replaces an older one at the same
//! index. A missing or wrong entry costs a client at most a retry, for three reasons. A READ is steered only if its
//! result contains the key of the node that was read. A CAS is steered only between nodes with equal keys. A steered
//! CAS compares with the word that the node was written with, and a recycled node has another word.

use std::fmt;
use std::hash::Hasher;

use doorbell_wire::{Qpn, RKey};
use rustc_hash::{FxHashMap, FxHasher};

use crate::key::Key;
use crate::message::{Kind, Message};

/// Layout of a store's nodes.
///
/// A node is an object that one WRITE creates from its first byte on. Clients compare and swap one aligned word of the
/// node. The word names the next node, or marks the node as the last node of its chain.
pub trait Layout: fmt::Debug + Send {
    /// Returns the key of a node. `start` is the payload of a WRITE's first packet. Returns `None` if the payload is no
    /// node; clients may write any bytes.
    fn key<'a>(&self, start: &'a [u8]) -> Option<&'a [u8]>;

    /// Returns the offset of the word in a node, a multiple of 8.
    fn word_offset(&self) -> u64;

    /// Returns the minimum length of a READ whose result contains the whole key of a node, for a key of this length.
    /// The box does not steer shorter READs.
    fn least_read(&self, key_bytes: usize) -> u32;

    /// Returns whether this word marks the last node of a chain, to which a client may append a node. Zero must not be
    /// such a word.
    ///
    /// Such a word must contain an address and a version. So it differs from the words of all other nodes, and from the
    /// earlier words of nodes at this address. A client whose steered CAS succeeded recognizes the actual node by
    /// the word. A client whose steered CAS failed gets zero in place of such a word.
    fn is_tail(&self, word: u64) -> bool;

    /// Returns the address of the next node that this word names.
    fn next(&self, word: u64) -> Option<u64>;

    /// Returns the class of a node. A class stands for properties that a client may check before it appends a node,
    /// such as that the key is deleted. The box steers a CAS only between nodes of the same class.
    fn class(&self, _start: &[u8]) -> u8 {
        0
    }

    /// Returns whether the box steers READs in addition to CASes.
    fn steers_reads(&self) -> bool {
        true
    }
}

/// Minimum number of entries in the node table for each entry in the key table.
const NODES_PER_KEY: usize = 3;

/// A node that a client wrote.
#[derive(Clone, Copy, Debug)]
struct Node {
    address: u64,
    key: Key,
    /// The word with which the node was written. It marks the last node of a chain.
    tail_word: u64,
    class: u8,
    writer: Qpn,
    rkey: RKey,
    node_rkey: RKey,
    /// Set once the node is in its key's chain. Of two nodes of a key, the later one in the chain has the greater
    /// number. The box steers a READ only to a later node. Otherwise a client that follows the chain would never reach
    /// its end.
    order: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    key: Key,
    address: u64,
}

/// New target of a steered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    pub(crate) address: u64,
    pub(crate) rkey: RKey,
    pub(crate) node_rkey: RKey,
    /// The value with which a steered CAS compares.
    pub(crate) tail_word: u64,
}

#[derive(Debug)]
pub(crate) struct Steering {
    layout: Box<dyn Layout>,
    newest: Box<[Option<Newest>]>,
    nodes: Box<[Option<Node>]>,
    /// Keys with an outstanding CAS whose outcome is unknown. The value has the clients whose next CAS waits for this
    /// outcome.
    locks: FxHashMap<Key, Vec<u32>>,
    next_order: u64,
    pub(crate) replaced: u64,
}

fn hash_of(words: &[u8]) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write(words);
    // The table index is the low bits of the hash. The low bits of this hash function depend on few bits of the input,
    // so mix in the high bits.
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

    /// Drops all entries.
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
        hash_of(key.bytes()) & (self.newest.len() - 1)
    }

    fn set_newest(&mut self, key: Key, address: u64) {
        let place = self.key_place(&key);
        let before = self.newest[place].replace(Newest { key, address });
        self.replaced += u64::from(before.is_some_and(|before| before.key != key));
        self.set_order(address);
    }

    /// Records that a node is now the last node of its chain.
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

    /// Returns whether this word marks the last node of a chain.
    pub(crate) fn is_tail(&self, word: u64) -> bool {
        self.layout.is_tail(word)
    }

    /// Returns offset and value of the word in the node that begins with `start`. `None` if `start` is no node.
    pub(crate) fn word_in(&self, start: &[u8]) -> Option<(u64, u64)> {
        self.layout.key(start)?;
        let offset = self.layout.word_offset();
        let from = usize::try_from(offset).ok()?;
        let word = start.get(from..)?.first_chunk::<8>()?;
        Some((offset, u64::from_le_bytes(*word)))
    }

    /// Records that the box is sending a WRITE to the node.
    pub(crate) fn written(&mut self, message: &Message, mtu: usize) {
        let start = message.first_payload(mtu);
        let place = place_of(message.address, self.nodes.len());
        // The WRITE overwrites the node that was at this address.
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

    /// Returns the key to whose chain a CAS appends a node. The same client must have written
    /// the new node and must not have appended it yet. The CAS must access the word of a node with the same key.
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

    /// Returns the new target of a CAS that appends a node to this key's chain, if the box steers the CAS.
    pub(crate) fn steer_append(&self, key: &Key, message: &Message) -> Option<Elsewhere> {
        let at = self.node(message.address.checked_sub(self.layout.word_offset())?)?;
        let newest = self.newest_node(key).filter(|newest| newest.class == at.class)?.elsewhere();
        let address = newest.address.checked_add(self.layout.word_offset())?;
        (address != message.address).then_some(Elsewhere { address, ..newest })
    }

    /// Returns the new target of a READ, if the box steers the READ.
    pub(crate) fn steer_read(&self, message: &Message) -> Option<Elsewhere> {
        let node = self.node(message.address).filter(|_| self.layout.steers_reads())?;
        if message.length < self.layout.least_read(node.key.bytes().len()) {
            return None;
        }
        let newest = self.newest_node(&node.key)?;
        (node.order? < newest.order?).then(|| newest.elsewhere())
    }

    /// Returns the newest node of a key, unless a client has reused that node's memory for another version. The other
    /// version is in no chain yet, even if it has the same key. So no request may be steered to it.
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
    /// Records the outcome of a CAS on the word at `address`. `original` is the value before the CAS.
    pub(crate) fn swapped(&mut self, address: u64, compare: u64, swap: u64, original: u64) {
        let Some(at) = address.checked_sub(self.layout.word_offset()).and_then(|address| self.node(address)).copied()
        else {
            return;
        };
        let has_succeeded = original == compare;
        // The word now names the next node, whichever client appended this node.
        let word = if has_succeeded { swap } else { original };
        let next = self.layout.next(word).and_then(|next| self.node(next)).filter(|next| next.key == at.key);
        match next.map(|next| next.address) {
            Some(next) if has_succeeded && self.layout.is_tail(compare) => {
                // `at` was the last node of its chain until now.
                self.set_order(at.address);
                self.set_newest(at.key, next);
            }
            Some(next) if self.newest(&at.key) == Some(at.address) => self.set_newest(at.key, next),
            // A failed CAS on an old node. The box already knows the next node.
            Some(_) => {}
            // The next node has another key, or the chain has ended.
            None if word != at.tail_word => self.forget_newest(&at.key, at.address),
            None => {}
        }
    }

    /// Returns whether a CAS on this key's chain must wait for the outcome of another CAS.
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

    /// Ends the wait for this key's outstanding CAS. Returns the waiting clients.
    pub(crate) fn unlock(&mut self, key: &Key) -> Vec<u32> {
        self.locks.remove(key).unwrap_or_default()
    }

    /// Ends all waits. Returns all waiting clients.
    pub(crate) fn unlock_all(&mut self) -> Vec<u32> {
        self.locks.drain().flat_map(|(_, waiters)| waiters).collect()
    }

    /// Removes a disconnected client from the waiting clients.
    pub(crate) fn forget_client(&mut self, slot: u32) {
        self.locks.values_mut().for_each(|waiters| waiters.retain(|other| *other != slot));
    }
}
