//! Memory that the connections of a protocol need.

use doorbell_exchange::{Connector, send_receive, with_connector};
use doorbell_protocols::{Protocol, Store};

/// Bytes of the longest message.
pub(crate) const MAX_MESSAGE: usize = 1 << 30;

/// Returns the distance in bytes from one buffer to the next.
pub fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(64).max(64)
}

/// Returns the number of bytes that a protocol needs after a message in its send buffer.
pub(crate) fn bytes_behind(protocol: Protocol) -> usize {
    with_connector!(protocol, connector => connector.bytes_behind())
}

/// Returns the maximum number of bytes that a connection needs to receive messages of `bytes` each: a fixed part, and a
/// part for each waiting message. `window` is the maximum number of unacknowledged messages.
pub fn receiving_bytes(protocol: Protocol, bytes: usize, window: usize) -> (usize, usize) {
    const REQUEST: usize = 128;
    let description = protocol.description();
    match description.received_into {
        Store::Slots if protocol.properties().receiver_sleeps => {
            (send_receive::CREDIT_RECEIVES * stride(bytes), stride(bytes))
        }
        // A connection has memory for the peer's grants. Each message has a word after its payload.
        Store::Slots => (64 + 32 * window, stride(bytes + 8)),
        Store::Announcements => (REQUEST * (window + 1), stride(bytes) + REQUEST),
        // A connection has a ring of whole pages, and the offsets of the ring. The ring is larger than its messages,
        // since the sender may not know yet that an eighth of the ring is free.
        Store::Ring => {
            let slot = (bytes + 8).next_multiple_of(16);
            let rings = if description.sent_from == Store::Ring { 2 } else { 1 };
            (rings * 8192, rings * (slot * 8).div_ceil(7))
        }
    }
}
