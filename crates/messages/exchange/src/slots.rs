//! Buffers of one length, lent to the program and returned in any order.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use doorbell_verbs::Region;

use crate::lent::Buffers;

/// Buffers of one length.
pub struct Slots {
    region: Region,
    stride: usize,
    free: ArrayQueue<u32>,
}

impl Slots {
    /// Makes `count` buffers at a distance of `stride` bytes. The buffers in `free` are free.
    pub(crate) fn new(region: Region, stride: usize, count: usize, free: Range<u32>) -> Arc<Self> {
        let slots = Self { region, stride, free: ArrayQueue::new(count) };
        free.for_each(|slot| slots.give_back(slot));
        Arc::new(slots)
    }

    /// Returns the number of free buffers.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<u32> {
        self.free.pop()
    }
}

impl Buffers for Slots {
    fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    fn offset(&self, slot: u32) -> usize {
        slot as usize * self.stride
    }

    #[inline]
    fn give_back(&self, slot: u32) {
        let _ = self.free.push(slot); // there is a place for every buffer
    }
}
