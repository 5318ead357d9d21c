//! Buffers of equal length, which the program holds as messages and gives back in any order.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use doorbell_verbs::Region;

use crate::connection::lent::Buffers;

/// Buffers of equal length in one region, with a queue of the free buffers.
pub struct Slots {
    region: Region,
    stride: usize,
    free: ArrayQueue<u32>,
}

impl Slots {
    /// Makes `count` buffers at a distance of `stride` bytes. The buffers whose numbers are in `free` begin as free
    /// buffers.
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
        let _ = self.free.push(slot); // the queue has a place for every buffer
    }
}
