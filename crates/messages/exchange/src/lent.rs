//! Received messages in buffers of a connection, lent to the program as byte slices.

use std::ops::Deref;
use std::sync::Arc;

use doorbell_verbs::Region;

/// Buffers of a connection.
pub trait Buffers {
    /// Returns the region of all buffers.
    fn region(&self) -> &Region;

    /// Returns the offset of a buffer.
    fn offset(&self, buffer: u32) -> usize;

    /// Takes a buffer back. The RNIC may write it from now on.
    fn give_back(&self, buffer: u32);
}

/// A received message. It holds one buffer of its connection. Dropping it gives the buffer back, from any thread and in
/// any order.
pub struct Lent<B: Buffers> {
    buffers: Arc<B>,
    buffer: u32,
    length: usize,
}

impl<B: Buffers> Lent<B> {
    /// Lends a buffer whose message has completed. The region must be registered for local writes only, and no other
    /// accessor of it may be in use.
    pub(crate) fn new(buffers: &Arc<B>, buffer: u32, length: usize) -> Self {
        Self { buffers: Arc::clone(buffers), buffer, length }
    }
}

impl<B: Buffers> Deref for Lent<B> {
    type Target = [u8];

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        // SAFETY: the message in this buffer has completed, and the RNIC writes the buffer again only after this guard,
        // its single owner, has dropped. Pools whose buffers are lent this way register their region for local writes
        // only, so no peer reaches it, and use no other accessor on it.
        unsafe { self.buffers.region().slice(self.buffers.offset(self.buffer), self.length) }
    }
}

impl<B: Buffers> std::fmt::Debug for Lent<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("length", &self.length).finish_non_exhaustive()
    }
}

impl<B: Buffers> Drop for Lent<B> {
    #[inline]
    fn drop(&mut self) {
        self.buffers.give_back(self.buffer);
    }
}
