//! Memory use of a protocol's connections.

use doorbell_exchange::{Connector, send_receive, with_connector};
use doorbell_protocols::{Protocol, Store};

use crate::parameters::stride;

/// Returns the number of bytes after a message that belong to it in its send buffer.
pub(crate) fn bytes_behind(protocol: Protocol) -> usize {
    with_connector!(protocol, connector => connector.bytes_behind())
}

/// Returns the maximum number of bytes for receiving: of a connection, and of each message that may wait.
pub(crate) fn receiving_bytes(protocol: Protocol, bytes: usize, window: usize) -> (usize, usize) {
    const REQUEST: usize = 128;
    let description = protocol.description();
    match description.received_into {
        Store::Slots if protocol.properties().receiver_sleeps => {
            (send_receive::CREDIT_RECEIVES * stride(bytes), stride(bytes))
        }
        // The grants of the peer, and a word after each message.
        Store::Slots => (64 + 32 * window, stride(bytes + 8)),
        Store::Announcements => (REQUEST * (window + 1), stride(bytes) + REQUEST),
        // A ring of whole pages, and the offsets next to it. An eighth of the ring may be free without the sender's
        // knowledge.
        Store::Ring => {
            let slot = (bytes + 8).next_multiple_of(16);
            let rings = if description.sent_from == Store::Ring { 2 } else { 1 };
            (rings * 8192, rings * (slot * 8).div_ceil(7))
        }
    }
}
