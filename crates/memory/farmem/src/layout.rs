//! The layout of a memory node's region: shortcuts, locks and nodes.
//!
//! All numbers are little endian. Clients compare and swap words as `u64` in the byte order of the memory node's CPU,
//! so a build for a big-endian machine fails. (IBTA leaves the byte order of atomics to the device; RNICs use the
//! host's.)

#[cfg(target_endian = "big")]
compile_error!("the words of farmem are little endian, and atomics use the host's order");

use std::fmt;

use doorbell_exchange::setup::RemoteRegion;
use smallvec::SmallVec;

use crate::error::{OpenError, StoreError};

/// Number of bits of a version.
const VERSION_BITS: u32 = 34;
/// The maximum version. A place whose node had this version is never used again, so each version occurs at most once at
/// one place.
pub const MAX_VERSION: u64 = (1 << VERSION_BITS) - 1;
/// Maximum number of nodes of a memory node: a node's index has 28 bits.
pub const MAX_NODES: u32 = 1 << 28;
/// Maximum length of a key in bytes.
pub const MAX_KEY: usize = 1024;
/// Maximum length of a value in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// A node in one of its uses: its index, and the number of times that the node was used, which is its version. The
/// version is at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeVersion(u64);

impl NodeVersion {
    /// Returns a place. The caller ensures that index and version are in range.
    pub(crate) fn new(index: u32, version: u64) -> Self {
        debug_assert!(index < MAX_NODES && (1..=MAX_VERSION).contains(&version));
        Self(u64::from(index) << VERSION_BITS | version)
    }

    /// Returns the place with these bits. `None` if the bits are no valid place.
    pub fn from_bits(bits: u64) -> Option<Self> {
        (bits >> 62 == 0 && bits & MAX_VERSION != 0).then_some(Self(bits))
    }

    /// Returns index and version as a 62-bit number.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the index of the node.
    pub fn index(self) -> u32 {
        (self.0 >> VERSION_BITS) as u32
    }

    /// Returns the number of times that the node has been used, including this use.
    pub fn version(self) -> u64 {
        self.0 & MAX_VERSION
    }
}

impl fmt::Debug for NodeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.index(), self.version())
    }
}

/// The first word of a node. Clients compare and swap only this word of a node.
///
/// The word of a node without successor contains the node's own place and version. So a CAS on a recycled node fails.
/// If a middlebox sent the CAS to another node, the found word identifies that node. The word of a node with a
/// successor contains the successor's place and version, so a client that follows the link can tell whether the
/// successor was recycled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The node was never used, or this crate writes no such word.
    Unused,
    /// The node is the newest node of its key; the word has the node's own place.
    Tail(NodeVersion),
    /// A newer node follows; the word has the newer node's place.
    Link(NodeVersion),
    /// A newer node is about to follow; the word has the newer node's place. In a store with two memory nodes, a client
    /// first locks the word at the first memory node, and then links the newer node at the second. Until the client
    /// also links at the first memory node, the locked node stays the newest node.
    Locked(NodeVersion),
    /// The key was removed, and no node will ever follow this node; the word has the node's own place.
    Closed(NodeVersion),
}

impl Word {
    /// Returns the bits of the word in memory. The upper two bits are the kind of the word. The bits of
    /// [`Word::Unused`] and [`Word::Locked`] are never equal, since no place is 0.
    pub fn bits(self) -> u64 {
        match self {
            Self::Unused => 0,
            Self::Locked(place) => place.bits(),
            Self::Tail(place) => 1 << 62 | place.bits(),
            Self::Link(place) => 2 << 62 | place.bits(),
            Self::Closed(place) => 3 << 62 | place.bits(),
        }
    }

    /// Returns the node to which a CAS appended a successor. `self` is the word that the CAS found, and `meant` is the
    /// node that the client addressed. Returns `None` if the CAS failed. A middlebox may have sent the CAS to the
    /// newest node; then the found word has another place than `meant`. A failed CAS at that node never returns such a
    /// word.
    pub(crate) fn predecessor(self, meant: NodeVersion) -> Option<NodeVersion> {
        match self {
            Self::Tail(place) => (place == meant || place.index() != meant.index()).then_some(place),
            _ => None,
        }
    }

    /// Returns the word with these bits, which may have any value.
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

/// Sizes of a store. Memory node, clients and metadata service use the same sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of nodes: 1 to 2^28. Each key occupies one node, and each put needs an additional node for a while.
    pub nodes: u32,
    /// Maximum number of keys that exist at one time: 1 to 2^28.
    pub keys: u32,
    /// Maximum length of a key in bytes: 1 to 1024.
    pub max_key: usize,
    /// Maximum length of a value in bytes: 0 to 1 MiB.
    pub max_value: usize,
}

impl Default for Geometry {
    fn default() -> Self {
        Self { nodes: 4096, keys: 1024, max_key: 8, max_value: 128 }
    }
}

/// Length of a node's header in bytes: word, place and version, lengths and flags, CRC. The key follows the header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Alignment of nodes in bytes. A header never crosses a cache line.
const ALIGNMENT: usize = 64;
/// Bytes per key in the area before the nodes: the shortcut and the lock.
const KEY_BYTES: u64 = 16;

/// Returns the bytes that a key of this length occupies in a node.
fn padded(key: usize) -> usize {
    key.next_multiple_of(8)
}

impl Geometry {
    /// Returns the distance between two nodes in bytes.
    pub fn node_bytes(&self) -> usize {
        (HEADER_BYTES + padded(self.max_key) + self.max_value).next_multiple_of(ALIGNMENT)
    }

    /// Returns the length of the whole region in bytes.
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

    /// Returns whether the store has a node at this place.
    pub(crate) fn has(&self, place: NodeVersion) -> bool {
        place.index() < self.nodes
    }

    /// Checks the sizes.
    ///
    /// # Errors
    ///
    /// A size is out of range, or this machine cannot address the region.
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

    /// Checks that a store has room for the keys of a workload, and for one additional node.
    pub(crate) fn check_keys(&self, keys: u64) -> Result<(), OpenError> {
        let most = u64::from(self.keys.min(self.nodes - 1));
        if keys > most {
            let (given, most) = (keys as usize, most as usize);
            return Err(OpenError::Geometry { what: "the number of keys to begin with", given, least: 0, most });
        }
        Ok(())
    }

    /// Checks that the region of a memory node has the length that the store needs.
    pub(crate) fn check_region(&self, region: &RemoteRegion) -> Result<(), OpenError> {
        self.check()?;
        let needed = self.region_bytes();
        if region.length < needed {
            return Err(OpenError::Region { given: region.length, needed });
        }
        Ok(())
    }

    /// Checks the lengths of a key and a value.
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

/// A key in a table. The table itself contains a short key, so that millions of short keys need no memory of their own.
pub(crate) type KeyBytes = SmallVec<[u8; 16]>;

const TOMBSTONE: u32 = 1;

/// Returns the length in bytes of a node with a key and a value of these lengths.
pub(crate) fn node_length(key: usize, value: usize) -> usize {
    HEADER_BYTES + padded(key) + value
}

/// Writes the bytes of a node without successor to `out`. `value` is `None` for a tombstone.
pub(crate) fn encode(place: NodeVersion, key: &[u8], value: Option<&[u8]>, out: &mut Vec<u8>) {
    let flags = if value.is_none() { TOMBSTONE } else { 0 };
    let value = value.unwrap_or_default();
    out.clear();
    out.extend(Word::Tail(place).bits().to_le_bytes());
    out.extend(place.bits().to_le_bytes());
    out.extend((key.len() as u16).to_le_bytes());
    out.extend((flags as u16).to_le_bytes());
    out.extend((value.len() as u32).to_le_bytes());
    out.extend([0; 8]); // the CRC, and four unused bytes
    out.extend(key);
    out.resize(HEADER_BYTES + padded(key.len()), 0);
    out.extend(value);
    let crc = checksum(out);
    out[24..28].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the CRC-32 over the whole node except for its first word, which changes, and the CRC itself. The CRC covers
/// place and version, lengths and flags, key and value.
fn checksum(node: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&node[8..24]);
    crc.update(&node[HEADER_BYTES..]);
    crc.finalize()
}

/// The header of a node, as a READ returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) word: Word,
    /// The place in the header. `None` if the bits are no valid place.
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
    /// Parses the first [`HEADER_BYTES`] bytes of a node without any check.
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

    /// Returns the length of the whole node in bytes.
    pub(crate) fn length(&self) -> usize {
        node_length(self.key_length, self.value_length)
    }

    /// Returns whether the bytes are those of the node at `place` with this key. `place` has the version of the node,
    /// which changes with each reuse of its memory. `bytes` must contain at least header and key.
    pub(crate) fn is_of(&self, place: NodeVersion, key: &[u8], bytes: &[u8]) -> bool {
        self.place == Some(place)
            && self.key_length == key.len()
            && bytes.get(HEADER_BYTES..HEADER_BYTES + key.len()) == Some(key)
    }

    /// Returns whether the whole node is as its writer wrote it. `bytes` is the whole node.
    pub(crate) fn is_intact(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.length() && checksum(bytes) == self.crc
    }

    /// Returns the value of the node. `bytes` is the whole node.
    pub(crate) fn value<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[HEADER_BYTES + padded(self.key_length)..]
    }

    /// Returns the key of the node, if `bytes` contains the whole key.
    pub(crate) fn key<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(HEADER_BYTES..HEADER_BYTES + self.key_length)
    }
}

/// Returns the number of bytes to READ from a node whose value is not needed.
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
                continue; // the unused bytes
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
