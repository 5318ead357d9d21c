//! Buffers with received messages, lent to the program.

use std::ops::Deref;
use std::sync::Arc;

use crate::slots::Slots;

/// A received message. It holds one buffer of its connection. Dropping it gives the buffer back, from any thread and
/// in any order.
pub struct Message {
    pool: Arc<Slots>,
    slot: u32,
    length: usize,
}

impl Message {
    pub(super) fn new(pool: &Arc<Slots>, slot: u32, length: usize) -> Self {
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
        unsafe { self.pool.region().slice(self.pool.offset(self.slot), self.length) }
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
        self.pool.give_back(self.slot);
    }
}
