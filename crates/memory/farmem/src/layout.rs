//! The layout of the memory of a memory node: words, nodes, and the areas beside them.
//!
//! All numbers are little endian. A word that clients compare and swap is a `u64` in the order of the memory node's
//! CPU, so big-endian machines are rejected. (IBTA leaves the order of atomics to the device; RNICs take the host's.)

#[cfg(target_endian = "big")]
compile_error!("the words of farmem are little endian, and atomics use the host's order");

use std::fmt;

use doorbell_exchange::setup::RemoteRegion;
use smallvec::SmallVec;

use crate::error::{OpenError, StoreError};

/// Bits of a version.
const VERSION_BITS: u32 = 34;
/// The greatest version. A node that has had it is never used again, so no version comes twice at one place.
pub const MAX_VERSION: u64 = (1 << VERSION_BITS) - 1;
/// The most nodes of a memory node: their index has 28 bits.
pub const MAX_NODES: u32 = 1 << 28;
/// Bytes of the longest key.
pub const MAX_KEY: usize = 1024;
/// Bytes of the longest value.
pub const MAX_VALUE: usize = 1 << 20;

/// A node in one of its uses: where it lies, and how many times the place was used. The version is at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeVersion(u64);

impl NodeVersion {
    /// Returns a place. The caller ensures the ranges.
    pub(crate) fn new(index: u32, version: u64) -> Self {
        debug_assert!(index < MAX_NODES && (1..=MAX_VERSION).contains(&version));
        Self(u64::from(index) << VERSION_BITS | version)
    }

    /// Returns the place of unchecked bits. `None` if they are none of a place.
    pub fn from_bits(bits: u64) -> Option<Self> {
        (bits >> 62 == 0 && bits & MAX_VERSION != 0).then_some(Self(bits))
    }

    /// Returns index and version in 62 bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the index of the node in the memory node.
    pub fn index(self) -> u32 {
        (self.0 >> VERSION_BITS) as u32
    }

    /// Returns the number of times that the node has been used, this one included.
    pub fn version(self) -> u64 {
        self.0 & MAX_VERSION
    }
}

impl fmt::Debug for NodeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.index(), self.version())
    }
}

/// The first word of a node, the only one that is ever compared and swapped.
///
/// The word of a node without successor carries the node's own place and version. So a CAS on a node that was
/// recycled meanwhile fails, and a CAS that a middlebox sent to another node shows which. The word of a node with a
/// successor carries the successor's version, so a client that follows it can tell whether the successor was
/// recycled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Never used, or no word that this crate writes.
    Unused,
    /// The newest node of its key; its own place.
    Tail(NodeVersion),
    /// A newer node follows.
    Link(NodeVersion),
    /// A newer node is about to follow. In a store with two memory nodes, the first one has this word while the link
    /// is made at the second one. Until then this is still the newest node.
    Locked(NodeVersion),
    /// The key was removed behind this node, whose own place this is: nothing follows, ever.
    Closed(NodeVersion),
}

impl Word {
    /// Returns the word as in memory: two bits hold its kind. A place is never 0, so it can have the bits of an
    /// unused word.
    pub fn bits(self) -> u64 {
        match self {
            Self::Unused => 0,
            Self::Locked(place) => place.bits(),
            Self::Tail(place) => 1 << 62 | place.bits(),
            Self::Link(place) => 2 << 62 | place.bits(),
            Self::Closed(place) => 3 << 62 | place.bits(),
        }
    }

    /// Returns the node that a CAS, sent to `meant`, gave a successor, judged by this found word. `None` if the CAS
    /// failed. A middlebox may have sent the CAS to the newest node: then the word is that of another place than
    /// `meant`. A CAS that fails there brings no such word.
    pub(crate) fn predecessor(self, meant: NodeVersion) -> Option<NodeVersion> {
        match self {
            Self::Tail(place) => (place == meant || place.index() != meant.index()).then_some(place),
            _ => None,
        }
    }

    /// Returns the word for any bits in memory.
    pub fn from_bits(bits: u64) -> Self {
        let rest = bits & (u64::MAX >> 2);
        match (bits >> 62, NodeVersion::from_bits(rest)) {
            (0, Some(place)) => Self::Locked(place),
            (1, Some(place)) => Self::Tail(place),
            (2, Some(place)) => Self::Link(place),
            (3, Some(place)) => Self::Closed(place),
            _ => Self::Unused,
        }
    }
}

/// Sizes of a store. Both sides need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Nodes: 1 to 2^28. Each key needs one; each put needs another one for a while.
    pub nodes: u32,
    /// Keys that can exist at one time: 1 to 2^28.
    pub keys: u32,
    /// Bytes of the longest key: 1 to 1024.
    pub max_key: usize,
    /// Bytes of the longest value: 0 to 1 MiB.
    pub max_value: usize,
}

impl Default for Geometry {
    fn default() -> Self {
        Self { nodes: 4096, keys: 1024, max_key: 8, max_value: 128 }
    }
}

/// Bytes of a node before its key: word, version, lengths and flags, CRC.
pub(crate) const HEADER_BYTES: usize = 32;
/// Nodes begin at multiples of this, so that a header lies within one line of any cache.
const ALIGNMENT: usize = 64;
/// Bytes per key beside the nodes: the shortcut and the lock.
const KEY_BYTES: u64 = 16;

/// Returns the bytes that a key takes in a node.
fn padded(key: usize) -> usize {
    key.next_multiple_of(8)
}

impl Geometry {
    /// Bytes from one node to the next.
    pub fn node_bytes(&self) -> usize {
        (HEADER_BYTES + padded(self.max_key) + self.max_value).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the whole region.
    pub fn region_bytes(&self) -> u64 {
        self.first_node() + u64::from(self.nodes) * self.node_bytes() as u64
    }

    fn first_node(&self) -> u64 {
        (u64::from(self.keys) * KEY_BYTES).next_multiple_of(ALIGNMENT as u64)
    }

    /// Returns the offset of a node in the region.
    pub(crate) fn node(&self, index: u32) -> u64 {
        self.first_node() + u64::from(index) * self.node_bytes() as u64
    }

    /// Returns the offset of a key's shortcut in the region.
    pub(crate) fn shortcut(&self, key: u32) -> u64 {
        u64::from(key) * KEY_BYTES
    }

    /// Returns the offset of a key's lock in the region.
    pub(crate) fn lock(&self, key: u32) -> u64 {
        self.shortcut(key) + 8
    }

    /// Returns whether this is a node of the store.
    pub(crate) fn has(&self, place: NodeVersion) -> bool {
        place.index() < self.nodes
    }

    /// Checks the sizes.
    ///
    /// # Errors
    ///
    /// One is out of its range, or the region would be larger than this machine can address.
    pub fn check(&self) -> Result<(), OpenError> {
        let within = |what, given: usize, least: usize, most: usize| {
            let fits = (least..=most).contains(&given);
            fits.then_some(()).ok_or(OpenError::Geometry { what, given, least, most })
        };
        within("the number of nodes", self.nodes as usize, 1, MAX_NODES as usize)?;
        within("the number of keys", self.keys as usize, 1, MAX_NODES as usize)?;
        within("the longest key", self.max_key, 1, MAX_KEY)?;
        within("the longest value", self.max_value, 0, MAX_VALUE)?;
        let bytes = usize::try_from(self.region_bytes()).unwrap_or(usize::MAX);
        within("the region in bytes", bytes, 1, isize::MAX as usize)
    }

    /// Checks that a store has room for the keys of a workload, and for one more node.
    pub(crate) fn check_keys(&self, keys: u64) -> Result<(), OpenError> {
        let most = u64::from(self.keys.min(self.nodes - 1));
        if keys > most {
            let (given, most) = (keys as usize, most as usize);
            return Err(OpenError::Geometry { what: "the number of keys to begin with", given, least: 0, most });
        }
        Ok(())
    }

    /// Checks that a region of a peer is as long as the store needs.
    pub(crate) fn check_region(&self, region: &RemoteRegion) -> Result<(), OpenError> {
        self.check()?;
        let needed = self.region_bytes();
        if region.length < needed {
            return Err(OpenError::Region { given: region.length, needed });
        }
        Ok(())
    }

    /// Checks a key and a value.
    ///
    /// # Errors
    ///
    /// The key is empty or too long, or the value is too long.
    pub fn check_sizes(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if key.is_empty() || key.len() > self.max_key {
            return Err(StoreError::KeyLength { given: key.len(), allowed: self.max_key });
        }
        if value.len() > self.max_value {
            return Err(StoreError::ValueLength { given: value.len(), allowed: self.max_value });
        }
        Ok(())
    }
}

/// A key as tables hold it: a short one lies in the table itself, so that millions of them need no memory of their own.
pub(crate) type KeyBytes = SmallVec<[u8; 16]>;

const TOMBSTONE: u32 = 1;

/// Bytes of a node that has this key and value.
pub(crate) fn node_length(key: usize, value: usize) -> usize {
    HEADER_BYTES + padded(key) + value
}

/// Lays out a node that nothing follows. `value` is `None` for a tombstone.
pub(crate) fn encode(place: NodeVersion, key: &[u8], value: Option<&[u8]>, out: &mut Vec<u8>) {
    let flags = if value.is_none() { TOMBSTONE } else { 0 };
    let value = value.unwrap_or_default();
    out.clear();
    out.extend(Word::Tail(place).bits().to_le_bytes());
    out.extend(place.bits().to_le_bytes());
    out.extend((key.len() as u16).to_le_bytes());
    out.extend((flags as u16).to_le_bytes());
    out.extend((value.len() as u32).to_le_bytes());
    out.extend([0; 8]); // the CRC, and nothing
    out.extend(key);
    out.resize(HEADER_BYTES + padded(key.len()), 0);
    out.extend(value);
    let crc = checksum(out);
    out[24..28].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the CRC-32 over the whole object but the first word, which changes, and the CRC's own field. It covers
/// place and version, lengths and flags, key and value.
fn checksum(node: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&node[8..24]);
    crc.update(&node[HEADER_BYTES..]);
    crc.finalize()
}

/// The beginning of a node, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) word: Word,
    /// The place that the node names; `None` if that is no place.
    pub(crate) place: Option<NodeVersion>,
    pub(crate) key_length: usize,
    pub(crate) value_length: usize,
    pub(crate) is_tombstone: bool,
    crc: u32,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

impl Header {
    /// Parses the first [`HEADER_BYTES`]. Nothing is believed yet.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let lengths = u64_at(bytes, 16);
        Self {
            word: Word::from_bits(u64_at(bytes, 0)),
            place: NodeVersion::from_bits(u64_at(bytes, 8)),
            key_length: (lengths & 0xffff) as usize,
            value_length: (lengths >> 32) as usize,
            is_tombstone: (lengths >> 16) as u32 & TOMBSTONE != 0,
            crc: u64_at(bytes, 24) as u32,
        }
    }

    /// Bytes of the whole node.
    pub(crate) fn length(&self) -> usize {
        node_length(self.key_length, self.value_length)
    }

    /// Returns whether it is the requested node, in the same use and of the same key. `bytes` reach to the key's end
    /// at least.
    pub(crate) fn is_of(&self, place: NodeVersion, key: &[u8], bytes: &[u8]) -> bool {
        self.place == Some(place)
            && self.key_length == key.len()
            && bytes.get(HEADER_BYTES..HEADER_BYTES + key.len()) == Some(key)
    }

    /// Returns whether the whole object is as its writer made it. `bytes` are the whole node.
    pub(crate) fn is_intact(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.length() && checksum(bytes) == self.crc
    }

    /// Returns the value of a whole node.
    pub(crate) fn value<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[HEADER_BYTES + padded(self.key_length)..]
    }

    /// Returns the key, of bytes that reach to its end.
    pub(crate) fn key<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(HEADER_BYTES..HEADER_BYTES + self.key_length)
    }
}

/// Bytes to read of a node whose value does not matter.
pub(crate) fn look_length(key: usize) -> usize {
    HEADER_BYTES + padded(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_invalid_ones_are_unused() {
        let place = NodeVersion::new(MAX_NODES - 1, MAX_VERSION);
        let tails = [Word::Tail(NodeVersion::new(0, 1)), Word::Tail(place), Word::Closed(place)];
        for word in tails.into_iter().chain([Word::Unused, Word::Link(place), Word::Locked(place)]) {
            assert_eq!(Word::from_bits(word.bits()), word);
        }
        assert_eq!((place.index(), place.version()), (MAX_NODES - 1, MAX_VERSION));
        // Version 0 is invalid.
        for bits in [1 << 62, 2 << 62, 3 << 62, 1 << 62 | 1 << VERSION_BITS, 1 << VERSION_BITS] {
            assert_eq!(Word::from_bits(bits), Word::Unused, "{bits:#x}");
        }
    }

    #[test]
    fn a_word_shows_whether_and_where_a_cas_succeeded() {
        let meant = NodeVersion::new(5, 9);
        assert_eq!(Word::Tail(meant).predecessor(meant), Some(meant));
        assert_eq!(
            Word::Tail(NodeVersion::new(5, 10)).predecessor(meant),
            None,
            "a place in its next use must have no predecessor"
        );
        let newest = NodeVersion::new(7, 3);
        assert_eq!(
            Word::Tail(newest).predecessor(meant),
            Some(newest),
            "a CAS that a box sent to the newest node has that predecessor"
        );
        for failed in [Word::Unused, Word::Link(newest), Word::Closed(meant)] {
            assert_eq!(failed.predecessor(meant), None);
        }
    }

    #[test]
    fn nodes_round_trip_and_flipped_bits_are_detected() {
        let place = NodeVersion::new(5, 9);
        let mut node = Vec::new();
        encode(place, b"key", Some(b"a value"), &mut node);
        let header = Header::parse(&node);
        assert_eq!(header.word, Word::Tail(place));
        assert!(header.is_of(place, b"key", &node) && header.is_intact(&node) && !header.is_tombstone);
        assert_eq!((header.value(&node), header.length()), (&b"a value"[..], node.len()));
        assert!(!header.is_of(NodeVersion::new(5, 8), b"key", &node) && !header.is_of(place, b"kez", &node));
        for bit in 64..node.len() * 8 {
            if (28 * 8..32 * 8).contains(&bit) {
                continue; // four bytes without meaning
            }
            let mut damaged = node.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!Header::parse(&damaged).is_intact(&damaged), "bit {bit}");
        }
        encode(place, b"key", None, &mut node);
        assert!(Header::parse(&node).is_tombstone && Header::parse(&node).is_intact(&node));
    }

    #[test]
    fn nodes_are_laid_out_consecutively() {
        let geometry = Geometry { nodes: 3, keys: 5, max_key: 9, max_value: 100 };
        assert_eq!(geometry.node_bytes(), 192); // 32 + 16 + 100, rounded up to 64
        assert_eq!(geometry.node(0), 128); // 5 times 16, rounded up to 64
        assert_eq!(geometry.region_bytes(), 128 + 3 * 192);
        assert_eq!(geometry.lock(4) + 8, 80);
        let error = Geometry { max_key: 0, ..geometry }.check().unwrap_err().to_string();
        assert_eq!(error, "the longest key is 0, allowed is 1 to 1024");
    }
}
