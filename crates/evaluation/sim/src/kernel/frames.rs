//! Frames in flight.

use std::ops::{Index, IndexMut};

use super::node::Frame;

/// Frames by number. The slots of freed frames and their packet buffers are reused.
#[derive(Debug, Default)]
pub(super) struct Frames {
    all: Vec<Frame>,
    free: Vec<usize>,
}

impl Frames {
    /// Stores a packet in an unused frame and returns the number of the frame. The caller must set the other fields.
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

    /// Frees a frame.
    #[inline]
    pub(super) fn give_back(&mut self, number: usize) {
        self.free.push(number);
    }

    /// Returns whether no frame is in flight.
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
