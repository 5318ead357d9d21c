//! How much memory a protocol's connections take.

use doorbell_exchange::{Connector, send_receive, with_connector};
use doorbell_protocols::{Protocol, Store};

use crate::parameters::stride;

/// Bytes behind a message that belong to it where it is sent from.
pub(crate) fn bytes_behind(protocol: Protocol) -> usize {
    with_connector!(protocol, connector => connector.bytes_behind())
}

/// Bytes that receiving takes, at most: of any connection, and for each message that may wait.
pub(crate) fn receiving_bytes(protocol: Protocol, bytes: usize, window: usize) -> (usize, usize) {
    const REQUEST: usize = 128;
    let description = protocol.description();
    match description.received_into {
        Store::Slots if protocol.properties().receiver_sleeps => {
            (send_receive::CREDIT_RECEIVES * stride(bytes), stride(bytes))
        }
        // The grants of the peer; a word behind each message.
        Store::Slots => (64 + 32 * window, stride(bytes + 8)),
        Store::Announcements => (REQUEST * (window + 1), stride(bytes) + REQUEST),
        // A ring of whole pages, of which an eighth may be free without the sender's knowing,
        // and the offsets beside it.
        Store::Ring => {
            let slot = (bytes + 8).next_multiple_of(16);
            let rings = if description.sent_from == Store::Ring { 2 } else { 1 };
            (rings * 8192, rings * (slot * 8).div_ceil(7))
        }
    }
}
