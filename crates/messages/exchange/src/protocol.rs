//! The protocols, and the choice of a protocol at run time.

pub mod buffered_read;
pub mod buffered_write;
pub mod direct_read;
pub mod direct_write;
pub mod send_receive;
pub mod shared_write;

use buffered_read::BufferedRead;
use buffered_write::BufferedWrite;
use direct_read::DirectRead;
use direct_write::DirectWrite;
use doorbell_protocols::Protocol;
use send_receive::SendReceive;
use shared_write::SharedWrite;

/// The connector of a protocol that the program chooses at run time. [`with_connector!`](crate::with_connector!) runs
/// generic code with the connector that the enum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each variant has the name of its protocol
pub enum AnyConnector {
    SendReceive(SendReceive),
    DirectRead(DirectRead),
    DirectWrite(DirectWrite),
    BufferedWrite(BufferedWrite),
    SharedWrite(SharedWrite),
    BufferedRead(BufferedRead),
}

impl From<Protocol> for AnyConnector {
    fn from(protocol: Protocol) -> Self {
        use buffered_write::Acknowledge::{Read, Send};
        use buffered_write::Notification::{Immediate, Reverse, TailOffset};
        use direct_read::{Acknowledge as Reported, Fence};
        use direct_write::Grants;
        use shared_write::Reserves;
        let read = |fence, acknowledge| Self::DirectRead(DirectRead { fence, acknowledge, ..DirectRead::default() });
        let written = |notification, acknowledge| Self::BufferedWrite(BufferedWrite { notification, acknowledge });
        match protocol {
            Protocol::SendReceive => Self::SendReceive(SendReceive),
            Protocol::DirectRead => read(Fence::Nothing, Reported::SignalByte),
            Protocol::DirectReadFenced => read(Fence::ReadCompletion, Reported::SignalByte),
            Protocol::DirectReadFencedAwaited => read(Fence::AcknowledgementCompletion, Reported::SignalByte),
            Protocol::DirectReadSend => read(Fence::Nothing, Reported::Send),
            Protocol::DirectReadFencedSend => read(Fence::ReadCompletion, Reported::Send),
            Protocol::DirectWrite => Self::DirectWrite(DirectWrite { grants: Grants::Groups }),
            Protocol::DirectWriteEach => Self::DirectWrite(DirectWrite { grants: Grants::Each }),
            Protocol::BufferedWriteImmediateSend => written(Immediate, Send),
            Protocol::BufferedWriteImmediateRead => written(Immediate, Read),
            Protocol::BufferedWriteTailSend => written(TailOffset, Send),
            Protocol::BufferedWriteTailRead => written(TailOffset, Read),
            Protocol::BufferedWriteReverseSend => written(Reverse, Send),
            Protocol::BufferedWriteReverseRead => written(Reverse, Read),
            Protocol::SharedWrite => Self::SharedWrite(SharedWrite { reserves: Reserves::Waiting }),
            Protocol::SharedWriteEach => Self::SharedWrite(SharedWrite { reserves: Reserves::Each }),
            Protocol::BufferedRead => Self::BufferedRead(BufferedRead),
        }
    }
}

/// Runs code that is generic over [`Connector`](crate::Connector)s with the connector of a
/// [`Protocol`](crate::protocols::Protocol). The dispatch happens once, so the code of each protocol is compiled
/// separately.
///
/// ```
/// use doorbell_exchange::protocols::Protocol;
/// use doorbell_exchange::{Connector, with_connector};
///
/// fn bytes_behind(protocol: Protocol) -> usize {
///     with_connector!(protocol, connector => connector.bytes_behind())
/// }
/// assert_eq!(bytes_behind(Protocol::DirectRead), 1);
/// ```
#[macro_export]
macro_rules! with_connector {
    ($protocol:expr, $connector:ident => $body:expr) => {
        match $crate::AnyConnector::from($protocol) {
            $crate::AnyConnector::SendReceive($connector) => $body,
            $crate::AnyConnector::DirectRead($connector) => $body,
            $crate::AnyConnector::DirectWrite($connector) => $body,
            $crate::AnyConnector::BufferedWrite($connector) => $body,
            $crate::AnyConnector::SharedWrite($connector) => $body,
            $crate::AnyConnector::BufferedRead($connector) => $body,
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Connector;

    #[test]
    fn every_protocol_has_a_connector_of_its_own() {
        for protocol in Protocol::ALL {
            assert_eq!(with_connector!(protocol, connector => connector.protocol()), protocol);
        }
    }
}
