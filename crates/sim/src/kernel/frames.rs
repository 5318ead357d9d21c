//! Frames under way.

use std::ops::{Index, IndexMut};

use super::node::Frame;

/// Frames by number. Their places, and the memory of their packets, are used again.
#[derive(Debug, Default)]
pub(super) struct Frames {
    all: Vec<Frame>,
    free: Vec<usize>,
}

impl Frames {
    /// A frame for this packet, of which nothing else is true yet: its number.
    #[inline]
    pub(super) fn take(&mut self, packet: &[u8]) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(Frame::default());
            self.all.len() - 1
        });
        let bytes = &mut self.all[number].bytes;
        bytes.clear();
        bytes.extend_from_slice(packet);
        number
    }

    /// A frame is nowhere any more.
    #[inline]
    pub(super) fn give_back(&mut self, number: usize) {
        self.free.push(number);
    }

    /// Is none under way?
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.all.len()
    }
}

impl Index<usize> for Frames {
    type Output = Frame;

    #[inline]
    fn index(&self, number: usize) -> &Frame {
        &self.all[number]
    }
}

impl IndexMut<usize> for Frames {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut Frame {
        &mut self.all[number]
    }
}
