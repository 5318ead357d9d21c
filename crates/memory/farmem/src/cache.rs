//! The clients' common knowledge on one host: the places of the newest nodes.

use std::sync::{Mutex, MutexGuard};

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

use doorbell_sync::IgnorePoison;

use crate::combining::Combiner;
use crate::layout::{self, KeyBytes, NodeVersion};
use crate::workload;

/// The place of a key's newest node when a client of this host last saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The node.
    pub(crate) place: NodeVersion,
    /// The key's number, which says where its shortcut and its lock are.
    pub(crate) number: u32,
    /// The node says that the key is deleted.
    pub(crate) is_tombstone: bool,
    /// Bytes of the node, to know how much to read.
    pub(crate) length: u32,
}

const SHARDS: usize = 64;

/// The cache of tails that the clients of a host share. A stale entry costs hops, never a wrong result: nodes carry key
/// and version.
///
/// It is bounded: when it is full, an entry that is not needed at the moment makes room.
#[derive(Debug)]
pub struct HostCache {
    shards: Vec<Mutex<FxHashMap<KeyBytes, Entry>>>,
    shard_entries: usize,
    combiner: Combiner,
}

impl HostCache {
    /// Returns a cache of `keys` keys, rounded up to a multiple of 64. Each key belongs to one of 64 parts of equal
    /// size. To keep a given set of keys for certain, a cache needs a few times as many entries.
    pub fn new(keys: usize) -> Self {
        let shard_entries = keys.div_ceil(SHARDS).max(1);
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), shard_entries, combiner: Combiner::default() }
    }

    /// Returns the combiner of operations of this host's clients.
    pub(crate) fn combiner(&self) -> &Combiner {
        &self.combiner
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, FxHashMap<KeyBytes, Entry>> {
        let mut hasher = FxHasher::default();
        hasher.write(key);
        // These are the upper bits, since the map of the shard uses the lower ones.
        let shard = (hasher.finish() >> 58) as usize % SHARDS;
        self.shards[shard].lock().ignore_poison()
    }

    /// Learns where the nodes of a workload's keys are, as after looking each up.
    pub fn fill(&self, keys: u64, value_bytes: usize) {
        // Some parts get more keys than others.
        let share = usize::try_from(keys / SHARDS as u64).unwrap_or(0).min(self.shard_entries);
        for shard in &self.shards {
            shard.lock().ignore_poison().reserve(share + share / 16);
        }
        for rank in 0..keys {
            let (key, place) = (workload::key(rank), workload::first_place(rank));
            let length = layout::node_length(key.len(), value_bytes) as u32;
            self.set(&key, Entry { place, number: rank as u32, is_tombstone: false, length });
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Entry> {
        self.shard(key).get(key).copied()
    }

    pub(crate) fn set(&self, key: &[u8], entry: Entry) {
        let mut shard = self.shard(key);
        if let Some(known) = shard.get_mut(key) {
            *known = entry;
            return;
        }
        if shard.len() >= self.shard_entries
            && let Some(other) = shard.keys().next().cloned()
        {
            shard.remove(&other);
        }
        shard.insert(key.into(), entry);
    }

    /// Forgets an entry that turned out to be wrong, unless another client has stored a newer place meanwhile.
    pub(crate) fn forget(&self, key: &[u8], place: NodeVersion) {
        let mut shard = self.shard(key);
        if shard.get(key).is_some_and(|entry| entry.place == place) {
            shard.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_evicts_and_forgets_only_wrong_entries() {
        let cache = HostCache::new(64);
        let entry = |index| Entry { place: NodeVersion::new(index, 1), number: 0, is_tombstone: false, length: 64 };
        (0..1000_u32).for_each(|key| cache.set(&key.to_le_bytes(), entry(key)));
        let known = (0..1000_u32).filter(|key| cache.get(&key.to_le_bytes()).is_some()).count();
        assert!((1..=64).contains(&known), "{known}");
        assert_eq!(cache.get(&999_u32.to_le_bytes()), Some(entry(999)));
        cache.forget(&999_u32.to_le_bytes(), NodeVersion::new(999, 2));
        assert!(cache.get(&999_u32.to_le_bytes()).is_some(), "an entry of another place was forgotten");
        cache.forget(&999_u32.to_le_bytes(), NodeVersion::new(999, 1));
        assert_eq!(cache.get(&999_u32.to_le_bytes()), None);
    }
}
