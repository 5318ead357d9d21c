//! What of the parameters fits into memory.

use super::{Fitted, Parameters, ParametersError, Setting};
use crate::memory::{bytes_behind, receiving_bytes};

/// Message memory of a process that default windows and depths stay within, for large messages: about what a core has of cache
/// to itself. More of it only makes every copy slower, and this is more in flight than any link of today needs.
const CACHED_BYTES: usize = 2 << 20;
/// The window that large messages get by default at least, if it is not less anyway.
const LEAST_DEFAULT_WINDOW: usize = 2;

impl Parameters {
    /// What a point of this size uses, so that the memory cap holds.
    ///
    /// # Errors
    ///
    /// Not even the smallest connections have room.
    pub fn fit(&self, size: usize) -> Result<Fitted, ParametersError> {
        let stride = self.stride(size);
        let connections = self.connections.max(1);
        let one_sided = self.operation.is_one_sided();
        let (fixed, each) = match one_sided {
            true => (0, 0),
            false => receiving_bytes(self.protocol, size + self.transport.bytes_before(), self.window),
        };
        // Inline data lies in the queues, for which as much is allowed again: a queue has up to
        // twice as many places as the window, each with room for it.
        let needed = connections * (stride + fixed + each).max(2 * self.window * self.inline);
        if needed > self.memory_bytes {
            return Err(ParametersError {
                setting: Setting::Memory,
                given: format!("{} B", self.memory_bytes),
                allowed: format!("{needed} B and more for messages of {size} B (connections: {connections})"),
            });
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
        // Bidirectional or ping-pong, each side has both kinds of buffers; otherwise this is
        // generous by one kind.
        let share = self.memory_bytes / connections;
        let for_sending = match one_sided {
            true => share / stride,
            // A quarter, if that leaves room to receive.
            false => (share / 4 / stride).min((share - fixed - each) / stride).max(1),
        };
        if one_sided {
            depth = 0;
        } else {
            let left = share.saturating_sub(for_sending.min(window) * stride + fixed);
            let for_receiving = (left / each).max(1);
            if depth > for_receiving {
                notes.push(format!("receive depth cut from {depth} to {for_receiving} by the memory cap"));
                depth = for_receiving;
            }
        }
        let mut send_buffers = window;
        if send_buffers > for_sending {
            // What tells that a message was read, no other may use meanwhile.
            if self.verify || bytes_behind(self.protocol) > 0 {
                notes.push(format!("window cut from {window} to {for_sending} by the memory cap"));
                window = for_sending;
            } else {
                notes.push(format!("{window} window slots share {for_sending} send buffers by the memory cap"));
            }
            send_buffers = for_sending;
        }
        Ok(Fitted { window, batch: self.batch.min(window), depth, send_buffers, notes })
    }
}
