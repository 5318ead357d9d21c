//! Received messages that stay in buffers of the connection. The program reads them as byte slices.

use std::ops::Deref;
use std::sync::Arc;

use doorbell_verbs::Region;

/// Buffers in which a connection receives messages.
pub trait Buffers {
    /// Returns the region that holds all buffers.
    fn region(&self) -> &Region;

    /// Returns the offset of a buffer in the region.
    fn offset(&self, buffer: u32) -> usize;

    /// Takes a buffer back. From now on, the RNIC may write to the buffer.
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
    /// Makes a message from a buffer whose receive is complete. The region must be registered for local writes only,
    /// and no other accessor of the region may be in use. If several receives share the buffer, `length` must be 0.
    pub(crate) fn new(buffers: &Arc<B>, buffer: u32, length: usize) -> Self {
        Self { buffers: Arc::clone(buffers), buffer, length }
    }
}

impl<B: Buffers> Deref for Lent<B> {
    type Target = [u8];

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        // SAFETY: the receive into this buffer is complete. This guard is the single owner of the buffer, and the RNIC
        // writes to the buffer again only after the guard was dropped. A slice of a shared buffer is empty. The region
        // is registered for local writes only, so no peer can write to it. The connection uses no other accessor of the
        // region.
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
