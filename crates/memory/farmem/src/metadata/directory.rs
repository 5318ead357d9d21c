//! The use of each node, and the first node of each key's chain. This module is pure state without connections.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::NodeCounts;
use crate::layout::{Geometry, KeyBytes, MAX_VERSION, NodeVersion};
use crate::rpc::{GRANT, Report};

/// The reserve for deletes has one node for each `RESERVED` nodes of the store, but at most `GRANT` nodes.
const RESERVED: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Handed out to the client with this number, which may have linked the node.
    Granted(u32),
    /// The first node in the chain of the key with this number.
    Head(u32),
    Retired,
    /// The node has used all versions.
    Spent,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    version: u64,
    is: Use,
}

#[derive(Clone, Debug)]
struct Key {
    name: KeyBytes,
    head: NodeVersion,
    is_closing: bool,
}

/// Result of creating a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    New(u32),
    Exists(NodeVersion, u32),
    /// The service is removing the key.
    Closing,
    NoRoom,
    /// The node was not handed out to this client.
    Foreign,
}

#[derive(Debug)]
pub(super) struct Directory {
    nodes: Vec<Node>,
    free: VecDeque<u32>,
    /// Number of free nodes that are reserved for deletes, since only deletes free nodes in a full store.
    reserve: usize,
    /// Replaced nodes, each with the epoch in which the service learned of the replacement.
    retired: VecDeque<(u64, u32)>,
    epoch: u64,
    numbers: FxHashMap<KeyBytes, u32>,
    keys: Vec<Option<Key>>,
    free_numbers: VecDeque<u32>,
    /// Reported links whose old node is not the first node of its chain yet. An entry maps the old node to the new
    /// node, and tells whether the new node is a tombstone.
    links: FxHashMap<NodeVersion, (NodeVersion, bool)>,
}

impl Directory {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            nodes: vec![Node { version: 0, is: Use::Free }; geometry.nodes as usize],
            free: (0..geometry.nodes).collect(),
            reserve: (geometry.nodes as usize / RESERVED).min(GRANT),
            retired: VecDeque::new(),
            epoch: 1,
            numbers: FxHashMap::default(),
            keys: vec![None; geometry.keys as usize],
            free_numbers: (0..geometry.keys).collect(),
            links: FxHashMap::default(),
        }
    }

    /// Adds keys before any client is accepted. Key `rank` gets number `rank`, and its first node is node `rank` with
    /// version 1.
    pub(super) fn fill(&mut self, keys: impl ExactSizeIterator<Item = (KeyBytes, NodeVersion)>) {
        self.numbers.reserve(keys.len());
        for (number, (name, place)) in keys.enumerate() {
            self.nodes[place.index() as usize] = Node { version: place.version(), is: Use::Head(number as u32) };
            self.numbers.insert(name.clone(), number as u32);
            self.keys[number] = Some(Key { name, head: place, is_closing: false });
        }
        self.free.retain(|&index| self.nodes[index as usize].version == 0);
        self.free_numbers.retain(|&number| self.keys[number as usize].is_none());
    }

    /// Returns the use of a node, if `place` has the node's current version.
    fn is(&self, place: NodeVersion) -> Option<Use> {
        let node = self.nodes.get(place.index() as usize)?;
        (node.version == place.version()).then_some(node.is)
    }

    fn set(&mut self, place: NodeVersion, is: Use) {
        self.nodes[place.index() as usize].is = is;
    }

    /// Hands out up to `most` nodes that are not in the reserve.
    pub(super) fn grant(&mut self, client: u32, most: usize) -> Vec<NodeVersion> {
        let mut places = Vec::with_capacity(most);
        while places.len() < most
            && !self.is_empty()
            && let Some(place) = self.grant_of_reserve(client)
        {
            places.push(place);
        }
        places
    }

    /// Hands out a free node, even if only nodes of the reserve are left.
    pub(super) fn grant_of_reserve(&mut self, client: u32) -> Option<NodeVersion> {
        loop {
            let index = self.free.pop_front()?;
            let node = &mut self.nodes[index as usize];
            if node.version < MAX_VERSION {
                *node = Node { version: node.version + 1, is: Use::Granted(client) };
                return Some(NodeVersion::new(index, node.version));
            }
            node.is = Use::Spent;
        }
    }

    /// Returns whether no free node is left except for the reserve.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() <= self.reserve
    }

    /// Returns whether the free nodes are too few for two grants to each of `clients` clients.
    pub(super) fn is_low(&self, clients: usize) -> bool {
        self.free.len() <= self.reserve + 2 * GRANT * clients
    }

    /// Takes back a node that was never linked. Returns false if the node was not handed out to this client.
    pub(super) fn give_back(&mut self, client: u32, place: NodeVersion) -> bool {
        let is_own = self.is(place) == Some(Use::Granted(client));
        if is_own {
            self.set(place, Use::Free);
            self.free.push_back(place.index());
        }
        is_own
    }

    /// Returns the nodes that were handed out to a client.
    pub(super) fn granted_to(&self, client: u32) -> Vec<NodeVersion> {
        let is_own = |(_, node): &(usize, &Node)| node.is == Use::Granted(client);
        self.nodes
            .iter()
            .enumerate()
            .filter(is_own)
            .map(|(index, node)| NodeVersion::new(index as u32, node.version))
            .collect()
    }

    /// Returns the first node of a key's chain and the key's number.
    pub(super) fn lookup(&self, key: &[u8]) -> Option<(NodeVersion, u32)> {
        let &number = self.numbers.get(key)?;
        Some((self.head(number)?, number))
    }

    /// Returns the first node of a key's chain.
    pub(super) fn head(&self, number: u32) -> Option<NodeVersion> {
        self.keys.get(number as usize)?.as_ref().map(|key| key.head)
    }

    /// Creates a key, unless it exists.
    pub(super) fn create(&mut self, client: u32, key: &[u8], place: NodeVersion) -> Created {
        if self.is(place) != Some(Use::Granted(client)) {
            return Created::Foreign;
        }
        if let Some((head, number)) = self.lookup(key) {
            let is_closing = self.keys[number as usize].as_ref().is_some_and(|key| key.is_closing);
            return if is_closing { Created::Closing } else { Created::Exists(head, number) };
        }
        let Some(number) = self.free_numbers.pop_front() else { return Created::NoRoom };
        self.keys[number as usize] = Some(Key { name: key.into(), head: place, is_closing: false });
        self.numbers.insert(key.into(), number);
        self.set(place, Use::Head(number));
        Created::New(number)
    }

    /// Records a client's report that one node replaced another. Returns the number of a key to be removed, if the
    /// key's only remaining node is a tombstone.
    pub(super) fn report(&mut self, client: u32, report: Report) -> Result<Option<u32>, ()> {
        match self.is(report.new) {
            Some(Use::Granted(owner)) if owner == client => {}
            // The service has already found this link itself.
            Some(Use::Head(_) | Use::Retired) => return Ok(None),
            _ => return Err(()),
        }
        match self.is(report.old) {
            Some(Use::Head(number)) => Ok(self.advance(number, report.new, report.is_tombstone)),
            Some(Use::Granted(_)) => {
                self.links.insert(report.old, (report.new, report.is_tombstone));
                Ok(None)
            }
            _ => Err(()),
        }
    }

    /// Advances the chain of a key to `next`, the successor of its first node, and further along reported links.
    /// Retires each node that the chain passes. Returns the number of a key to be removed.
    pub(super) fn advance(&mut self, number: u32, next: NodeVersion, is_tombstone: bool) -> Option<u32> {
        let (mut next, mut is_tombstone) = (next, is_tombstone);
        loop {
            let head = self.keys.get(number as usize)?.as_ref()?.head;
            self.links.remove(&head);
            self.retire(head);
            self.set(next, Use::Head(number));
            let key = self.keys[number as usize].as_mut()?;
            (key.head, key.is_closing) = (next, false);
            match self.links.get(&next) {
                Some(&(after, flag)) => (next, is_tombstone) = (after, flag),
                None => return is_tombstone.then_some(number),
            }
        }
    }

    fn retire(&mut self, place: NodeVersion) {
        self.set(place, Use::Retired);
        self.retired.push_back((self.epoch, place.index()));
    }

    /// Returns whether the service knows of no link to a node that it handed out.
    pub(super) fn is_granted(&self, place: NodeVersion) -> bool {
        self.owner(place).is_some()
    }

    /// Returns the client to which a node was handed out, if the service knows of no link to the node.
    pub(super) fn owner(&self, place: NodeVersion) -> Option<u32> {
        match self.is(place) {
            Some(Use::Granted(client)) => Some(client),
            _ => None,
        }
    }

    /// Marks a key as about to be removed, and returns its only node. No client may create the key until the removal
    /// has ended.
    pub(super) fn begin_closing(&mut self, number: u32) -> Option<NodeVersion> {
        let key = self.keys.get_mut(number as usize)?.as_mut()?;
        key.is_closing = true;
        Some(key.head)
    }

    /// Ends the removal of a key. `is_closed` tells whether the service has closed the chain at `place`.
    pub(super) fn end_closing(&mut self, number: u32, place: NodeVersion, is_closed: bool) {
        let Some(key) = self.keys.get_mut(number as usize).and_then(Option::as_mut) else { return };
        key.is_closing = false;
        if is_closed && key.head == place {
            let name = std::mem::take(&mut key.name);
            self.keys[number as usize] = None;
            self.numbers.remove(&name);
            self.free_numbers.push_back(number);
            self.retire(place);
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn begin_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Frees the nodes that were retired before the epoch `quiet`, which every client has acknowledged. Returns whether
    /// any node was freed.
    pub(super) fn release(&mut self, quiet: u64) -> bool {
        let before = self.free.len();
        while let Some(&(epoch, index)) = self.retired.front()
            && epoch < quiet
        {
            self.retired.pop_front();
            self.nodes[index as usize].is = Use::Free;
            self.free.push_back(index);
        }
        self.free.len() > before
    }

    pub(super) fn counts(&self) -> NodeCounts {
        let mut counts = NodeCounts::default();
        for node in &self.nodes {
            match node.is {
                Use::Free => counts.free += 1,
                Use::Granted(_) => counts.granted += 1,
                Use::Head(_) => counts.heads += 1,
                Use::Retired => counts.retired += 1,
                Use::Spent => counts.spent += 1,
            }
        }
        counts
    }

    pub(super) fn keys(&self) -> Vec<(Vec<u8>, NodeVersion)> {
        self.keys.iter().flatten().map(|key| (key.name.to_vec(), key.head)).collect()
    }
}
