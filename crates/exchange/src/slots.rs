//! Buffers of one length, lent to the program and given back in any order.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use doorbell_verbs::Region;

pub(crate) struct Slots {
    region: Region,
    stride: usize,
    free: ArrayQueue<u32>,
}

impl Slots {
    /// `count` buffers, each `stride` behind the one before, of which these are free.
    pub(crate) fn new(region: Region, stride: usize, count: usize, free: Range<u32>) -> Arc<Self> {
        let slots = Self { region, stride, free: ArrayQueue::new(count) };
        free.for_each(|slot| slots.give_back(slot));
        Arc::new(slots)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Where a buffer begins.
    #[inline]
    pub(crate) fn offset(&self, slot: u32) -> usize {
        slot as usize * self.stride
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<u32> {
        self.free.pop()
    }

    #[inline]
    pub(crate) fn give_back(&self, slot: u32) {
        let _ = self.free.push(slot); // there is a place for every buffer
    }
}
