//! Fitting of parameters into memory.

use super::{Fitted, Parameters, ParametersError, Setting};
use crate::memory::{bytes_behind, receiving_bytes};

/// Limit on the message memory of a process with default windows and depths, for large messages. It is about the size
/// of a core's private cache. More memory slows every copy down, and current links need fewer bytes in flight.
const CACHED_BYTES: usize = 2 << 20;
/// Minimum default window of large messages.
const LEAST_DEFAULT_WINDOW: usize = 2;

impl Parameters {
    /// Returns the sizes of queues and buffers for messages of this size within the memory cap.
    ///
    /// # Errors
    ///
    /// Even the smallest connections exceed the cap.
    pub fn fit(&self, size: usize) -> Result<Fitted, ParametersError> {
        let stride = self.stride(size);
        let connections = self.connections.max(1);
        let one_sided = self.operation.is_one_sided();
        let (fixed, each) = match one_sided {
            true => (0, 0),
            false => receiving_bytes(self.protocol, size + self.transport.bytes_before(), self.window),
        };
        // Inline data lies in the queues, and the queues may take as much memory again. A queue has up to twice as
        // many slots as the window, each with room for inline data.
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
        // With bidirectional messages or ping-pongs, each side has both kinds of buffers. Otherwise this reserves one
        // kind more than needed.
        let share = self.memory_bytes / connections;
        let for_sending = match one_sided {
            true => share / stride,
            // A quarter of the memory, if that leaves room to receive.
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
            // The memory that shows whether a message was read must not be shared with another message.
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
