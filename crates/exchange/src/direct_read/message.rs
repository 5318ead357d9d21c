//! Buffers that messages are read into, lent to the program.

use std::ops::Deref;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use doorbell_verbs::{Region, Sge};

pub(super) struct Pool {
    region: Region,
    stride: usize,
    free: ArrayQueue<u32>,
}

impl Pool {
    pub(super) fn new(region: Region, stride: usize, slots: usize) -> Arc<Self> {
        let free = ArrayQueue::new(slots);
        for slot in 0..slots as u32 {
            let _ = free.push(slot); // it has a place for each
        }
        Arc::new(Self { region, stride, free })
    }

    pub(super) fn get(&self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn sge(&self, slot: u32, length: usize) -> Sge {
        self.region.sge(slot as usize * self.stride, length)
    }
}

/// A received message. It holds one buffer of its connection; dropping it gives the buffer back,
/// from any thread and in any order.
pub struct Message {
    pool: Arc<Pool>,
    slot: u32,
    length: usize,
}

impl Message {
    pub(super) fn new(pool: &Arc<Pool>, slot: u32, length: usize) -> Self {
        Self { pool: Arc::clone(pool), slot, length }
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        // SAFETY: the READ that wrote this slot is complete, and the slot is read into again only
        // when this guard, its single owner, drops. The region is registered for local writes
        // only, so no peer reaches it, and the pool uses no other accessor on it.
        unsafe { self.pool.region.slice(self.slot as usize * self.pool.stride, self.length) }
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Drop for Message {
    #[inline]
    fn drop(&mut self) {
        let _ = self.pool.free.push(self.slot); // there is a place for every buffer
    }
}
