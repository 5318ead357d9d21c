//! Fitting of parameters into memory.

use crate::memory::{bytes_behind, receiving_bytes};
use crate::parameters::{Fitted, Parameters};
use crate::settings::{MEMORY, ParametersError};

/// Maximum message memory of a process in bytes, for large messages with default window and depth. The value is about
/// the size of a core's private cache. More memory would slow down every copy, and current links need fewer bytes in
/// flight.
const CACHED_BYTES: usize = 2 << 20;
/// Minimum to which the default window shrinks for large messages.
const LEAST_DEFAULT_WINDOW: usize = 2;

impl Parameters {
    /// Returns the sizes of queues and buffers for messages of `size` bytes and their replies, such that all buffers
    /// fit into the memory cap.
    ///
    /// # Errors
    ///
    /// Connections exceed the memory cap even with the smallest window and depth.
    pub fn fit(&self, size: usize) -> Result<Fitted, ParametersError> {
        let size = self.longest(size);
        let stride = self.stride(size);
        let connections = self.connections.max(1);
        let one_sided = self.operation.is_one_sided();
        let (fixed, each) = match one_sided {
            true => (0, 0),
            false => receiving_bytes(self.protocol, size + self.transport.bytes_before(), self.window),
        };
        // Inline data occupies memory of the queues, which may be as large as the buffers. A queue has up to twice as
        // many slots as the window, and each slot has space for inline data.
        let needed = connections * (stride + fixed + each).max(2 * self.window * self.inline);
        if needed > self.memory_bytes {
            let allowed = format!("at least {needed} B for messages of {size} B on {connections} connection(s)");
            return Err(MEMORY.refuse(format!("{} B", self.memory_bytes), allowed));
        }
        let (mut window, mut depth) = (self.window, self.depth);
        if self.serving.shared_receives.is_some() {
            depth = (depth / connections).max(1);
        }
        let mut notes = Vec::new();
        if self.depths_are_defaults {
            window = window.min((CACHED_BYTES / 4 / stride).max(LEAST_DEFAULT_WINDOW));
            depth = depth.min(2 * window.max(CACHED_BYTES / 4 / stride));
        }
        // Each side gets memory for send buffers and for receive buffers. Bidirectional messages and ping-pongs need
        // both kinds of buffers. For one-way messages, one kind stays unused.
        let share = self.memory_bytes / connections;
        let for_sending = match one_sided {
            true => share / stride,
            // Use at most a quarter of the memory for sending, and leave space for at least one receive buffer.
            false => (share / 4 / stride).min((share - fixed - each) / stride).max(1),
        };
        if one_sided {
            depth = 0;
        } else {
            let left = share.saturating_sub(for_sending.min(window) * stride + fixed);
            let for_receiving = (left / each).max(1);
            if depth > for_receiving {
                notes.push(format!("receive depth cut from {depth} to {for_receiving} to keep the memory cap"));
                depth = for_receiving;
            }
        }
        let mut send_buffers = self.buffers.map_or(window, |buffers| buffers.min(window));
        if send_buffers > for_sending {
            // A message whose payload is verified, or that has a trailer, needs its own buffer until the peer has read
            // the message.
            if self.verify || bytes_behind(self.protocol) > 0 {
                notes.push(format!("window cut from {window} to {for_sending} to keep the memory cap"));
                window = for_sending;
            } else {
                notes.push(format!("{window} window slots share {for_sending} send buffers to keep the memory cap"));
            }
            send_buffers = for_sending;
        }
        Ok(Fitted { window, batch: self.batch.min(window), depth, send_buffers, notes })
    }
}
