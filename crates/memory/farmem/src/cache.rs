//! Cache of the newest nodes' places, which the clients of one host share.

use std::sync::{Mutex, MutexGuard};

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

use doorbell_sync::IgnorePoison;

use crate::combining::Combiner;
use crate::contents;
use crate::layout::{self, KeyBytes, NodeVersion};

/// The place of a key's newest node when a client of this host last saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The node.
    pub(crate) place: NodeVersion,
    /// The key's number, which determines the offsets of its shortcut and its lock.
    pub(crate) number: u32,
    /// Whether the node marks the key as deleted.
    pub(crate) is_tombstone: bool,
    /// Length of the node in bytes, for the READ of the node.
    pub(crate) length: u32,
}

const SHARDS: usize = 64;

/// The places of the newest nodes, shared by the clients of a host. A stale entry costs additional READs but never a
/// wrong result, since each node contains its key and version.
///
/// The number of entries is bounded: in a full shard, a new entry evicts an arbitrary one.
#[derive(Debug)]
pub struct HostCache {
    shards: Vec<Mutex<FxHashMap<KeyBytes, Entry>>>,
    shard_entries: usize,
    combiner: Combiner,
}

impl HostCache {
    /// Returns a cache of `keys` keys, rounded up to a multiple of 64. The cache has 64 shards of equal size, and the
    /// hash of a key selects its shard. A cache that must never evict one of a given set of keys needs a few times as
    /// many entries as keys.
    pub fn new(keys: usize) -> Self {
        let shard_entries = keys.div_ceil(SHARDS).max(1);
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), shard_entries, combiner: Combiner::default() }
    }

    /// Returns the combiner for operations of this host's clients.
    pub(crate) fn combiner(&self) -> &Combiner {
        &self.combiner
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, FxHashMap<KeyBytes, Entry>> {
        let mut hasher = FxHasher::default();
        hasher.write(key);
        // The shard index uses the upper bits of the hash, since the map of the shard uses the lower bits.
        let shard = (hasher.finish() >> 58) as usize % SHARDS;
        self.shards[shard].lock().ignore_poison()
    }

    /// Stores the first nodes of a workload's keys, as if a client had looked up each key.
    pub fn fill(&self, keys: u64, value_bytes: usize) {
        // Some shards get more keys than others.
        let share = usize::try_from(keys / SHARDS as u64).unwrap_or(0).min(self.shard_entries);
        for shard in &self.shards {
            shard.lock().ignore_poison().reserve(share + share / 16);
        }
        for rank in 0..keys {
            let (key, place) = (contents::key(rank), contents::first_place(rank));
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

    /// Removes the entry of a key if it still has this place, which turned out to be wrong. An entry with another place
    /// stays, since another client has stored it.
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
