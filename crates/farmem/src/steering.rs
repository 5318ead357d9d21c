//! What a middlebox has to know of the store's nodes to steer requests to the newest of them.

use doorbell_steer::Layout;

use crate::layout::{self, Geometry, HEADER_BYTES, Header, Word};

/// The nodes of a store in a memory node's region, for [`doorbell_steer::Steer`].
#[derive(Clone, Copy, Debug)]
pub struct StoreLayout {
    geometry: Geometry,
    base: u64,
}

impl StoreLayout {
    /// Of a store of these sizes in a region that begins at this address.
    pub fn new(geometry: Geometry, base: u64) -> Self {
        Self { geometry, base }
    }
}

impl Layout for StoreLayout {
    fn key<'a>(&self, start: &'a [u8]) -> Option<&'a [u8]> {
        // Shortcuts are shorter than any node.
        let header = Header::parse(start.get(..HEADER_BYTES)?);
        let (Word::Tail(version), Some(place)) = (header.word, header.place) else { return None };
        let is_node = place.version() == version && header.key_length > 0 && self.geometry.has(place);
        header.key(start).filter(|_| is_node)
    }

    fn word_offset(&self) -> u64 {
        0
    }

    fn least_read(&self, key_bytes: usize) -> u32 {
        layout::look_length(key_bytes) as u32
    }

    fn is_tail(&self, word: u64) -> bool {
        matches!(Word::from_bits(word), Word::Tail(_))
    }

    fn next(&self, word: u64) -> Option<u64> {
        match Word::from_bits(word) {
            Word::Link(next) if self.geometry.has(next) => self.base.checked_add(self.geometry.node(next.index())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Place;

    #[test]
    fn a_box_reads_nodes_as_clients_lay_them_out_and_nothing_else() {
        let geometry = Geometry { nodes: 3, keys: 5, max_key: 9, max_value: 100 };
        let layout = StoreLayout::new(geometry, 1 << 20);
        let mut node = Vec::new();
        layout::encode(Place::new(2, 7), b"key", Some(b"value"), &mut node);
        assert_eq!(layout.key(&node), Some(&b"key"[..]));
        // A path MTU may end within a node, but not before its key.
        assert_eq!(layout.key(&node[..HEADER_BYTES + 2]), None);
        layout::encode(Place::new(2, 7), b"key", None, &mut node);
        assert_eq!(layout.key(&node), Some(&b"key"[..]), "a tombstone is a node");
        layout::encode(Place::new(3, 7), b"key", None, &mut node);
        assert_eq!(layout.key(&node), None, "there is no such node");
        assert_eq!(layout.key(&Word::Link(Place::new(2, 7)).bits().to_le_bytes()), None, "a shortcut is no node");
        let link = Word::Link(Place::new(2, 7)).bits();
        assert_eq!(layout.next(link), Some((1 << 20) + 128 + 2 * 192));
        assert_eq!(layout.next(Word::Link(Place::new(3, 7)).bits()), None);
        assert!(layout.is_tail(Word::Tail(7).bits()) && !layout.is_tail(link) && layout.next(0).is_none());
        assert_eq!(layout.least_read(3), 40);
    }
}
