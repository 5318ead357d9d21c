//! Keys of a store.

use std::fmt;

/// Maximum length in bytes of a key whose requests the box steers. Requests for nodes with longer keys pass without
/// steering.
const MOST_KEY_BYTES: usize = 31;

/// A complete key. With only a hash, two keys with equal hashes would look like one key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    length: u8,
    bytes: [u8; MOST_KEY_BYTES],
}

impl Key {
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        let mut bytes = [0; MOST_KEY_BYTES];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { length: key.len() as u8, bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:02x?})", self.bytes())
    }
}
