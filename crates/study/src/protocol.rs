//! The protocols that can be measured, by name.

use doorbell_exchange::buffered_write::{self, BufferedWrite, Notification};
use doorbell_exchange::direct_read::{self, DirectRead, Replication};
use doorbell_exchange::send_receive::{self, Endpoint, SharedReceives};
use doorbell_exchange::shared_write::{self, SharedRing};
use doorbell_exchange::{
    BufferedRead, Config, ConnectError, DirectWrite, MAX_WINDOW, MessageConnection, Properties, Protocol as Exchange,
    SendReceive, SharedWrite, buffered_read, direct_write,
};
use doorbell_verbs::{Channel, Pd};
use serde::{Deserialize, Serialize};

/// A protocol of message exchange, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// SENDs into receives.
    #[default]
    SendReceive,
    /// The receiver READs each message, then WRITEs its signal byte.
    DirectRead,
    /// READ and signal byte are posted together, the latter with a fence.
    DirectReadFenced,
    /// The receiver READs each message, then tells so by SEND.
    DirectReadSend,
    /// READ and SEND are posted together, the latter with a fence.
    DirectReadFencedSend,
    /// WRITEs into buffers that the receiver grants.
    DirectWrite,
    /// WRITEs into a ring, announced by immediate data, space told by SEND.
    BufferedWriteImmediateSend,
    /// WRITEs into a ring, announced by immediate data, space asked for by READ.
    BufferedWriteImmediateRead,
    /// WRITEs into a ring, announced by the tail's offset, space told by SEND.
    BufferedWriteTailSend,
    /// WRITEs into a ring, announced by the tail's offset, space asked for by READ.
    BufferedWriteTailRead,
    /// WRITEs into a ring from its end to its start, space told by SEND.
    BufferedWriteReverseSend,
    /// WRITEs into a ring from its end to its start, space asked for by READ.
    BufferedWriteReverseRead,
    /// Many senders WRITE into one ring, in which FETCH_ADD reserves space.
    SharedWrite,
    /// The receiver READs all that is new from a ring at the sender.
    BufferedRead,
}

/// A protocol as `exchange` has it.
pub(crate) enum Design {
    SendReceive(SendReceive),
    DirectRead(DirectRead),
    DirectWrite(DirectWrite),
    BufferedWrite(BufferedWrite),
    SharedWrite(SharedWrite),
    BufferedRead(BufferedRead),
}

/// Does something that is generic over protocols with the one of this name: once per point, so that
/// the code of each is as if there were no other.
macro_rules! with_design {
    ($protocol:expr, $design:ident => $body:expr) => {
        match $protocol.design() {
            $crate::protocol::Design::SendReceive($design) => $body,
            $crate::protocol::Design::DirectRead($design) => $body,
            $crate::protocol::Design::DirectWrite($design) => $body,
            $crate::protocol::Design::BufferedWrite($design) => $body,
            $crate::protocol::Design::SharedWrite($design) => $body,
            $crate::protocol::Design::BufferedRead($design) => $body,
        }
    };
}
pub(crate) use with_design;

impl Protocol {
    /// Every protocol and variant.
    pub const ALL: [Self; 14] = [
        Self::SendReceive,
        Self::DirectRead,
        Self::DirectReadFenced,
        Self::DirectReadSend,
        Self::DirectReadFencedSend,
        Self::DirectWrite,
        Self::BufferedWriteImmediateSend,
        Self::BufferedWriteImmediateRead,
        Self::BufferedWriteTailSend,
        Self::BufferedWriteTailRead,
        Self::BufferedWriteReverseSend,
        Self::BufferedWriteReverseRead,
        Self::SharedWrite,
        Self::BufferedRead,
    ];

    /// Its name, as records and the command line have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SendReceive => "send-receive",
            Self::DirectRead => "direct-read",
            Self::DirectReadFenced => "direct-read-fenced",
            Self::DirectReadSend => "direct-read-send",
            Self::DirectReadFencedSend => "direct-read-fenced-send",
            Self::DirectWrite => "direct-write",
            Self::BufferedWriteImmediateSend => "buffered-write-immediate-send",
            Self::BufferedWriteImmediateRead => "buffered-write-immediate-read",
            Self::BufferedWriteTailSend => "buffered-write-tail-send",
            Self::BufferedWriteTailRead => "buffered-write-tail-read",
            Self::BufferedWriteReverseSend => "buffered-write-reverse-send",
            Self::BufferedWriteReverseRead => "buffered-write-reverse-read",
            Self::SharedWrite => "shared-write",
            Self::BufferedRead => "buffered-read",
        }
    }

    /// The protocol of this [`name`](Self::name).
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    pub(crate) fn design(self) -> Design {
        let read = |fenced, acknowledge| Design::DirectRead(DirectRead { fenced, acknowledge, ..Default::default() });
        let written = |notification, acknowledge| Design::BufferedWrite(BufferedWrite { notification, acknowledge });
        use Notification::{Immediate, Reverse, TailOffset};
        use buffered_write::Acknowledge::{Read, Send};
        use direct_read::Acknowledge as Told;
        match self {
            Self::SendReceive => Design::SendReceive(SendReceive),
            Self::DirectRead => read(false, Told::SignalByte),
            Self::DirectReadFenced => read(true, Told::SignalByte),
            Self::DirectReadSend => read(false, Told::Send),
            Self::DirectReadFencedSend => read(true, Told::Send),
            Self::DirectWrite => Design::DirectWrite(DirectWrite),
            Self::BufferedWriteImmediateSend => written(Immediate, Send),
            Self::BufferedWriteImmediateRead => written(Immediate, Read),
            Self::BufferedWriteTailSend => written(TailOffset, Send),
            Self::BufferedWriteTailRead => written(TailOffset, Read),
            Self::BufferedWriteReverseSend => written(Reverse, Send),
            Self::BufferedWriteReverseRead => written(Reverse, Read),
            Self::SharedWrite => Design::SharedWrite(SharedWrite),
            Self::BufferedRead => Design::BufferedRead(BufferedRead),
        }
    }

    /// What it can do.
    pub fn properties(self) -> Properties {
        with_design!(self, design => Exchange::properties(&design))
    }

    /// Bytes behind a message that belong to it where it is sent from.
    pub(crate) fn bytes_behind(self) -> usize {
        with_design!(self, design => design.bytes_behind())
    }

    /// Bytes that receiving takes, at most: of any connection, and for each message that may wait.
    pub(crate) fn receiving_bytes(self, bytes: usize, window: usize) -> (usize, usize) {
        const REQUEST: usize = 128;
        let stride = crate::parameters::stride(bytes);
        match self {
            Self::SendReceive => (send_receive::CREDIT_RECEIVES * stride, stride),
            Self::DirectRead | Self::DirectReadFenced | Self::DirectReadSend | Self::DirectReadFencedSend => {
                (REQUEST * (window + 1), stride + REQUEST)
            }
            // The grants of the peer; a word behind each message.
            Self::DirectWrite => (64 + 32 * window, crate::parameters::stride(bytes + 8)),
            // A ring of whole pages, of which an eighth may be free without the sender's knowing,
            // and the offsets beside it.
            _ => {
                let slot = (bytes + 8).next_multiple_of(16);
                let rings = if self == Self::BufferedRead { 2 } else { 1 };
                (rings * 8192, rings * (slot * 8).div_ceil(7))
            }
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What the ends of one side have in common.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) pd: &'a Pd,
    pub(crate) channel: Option<&'a Channel>,
    pub(crate) connections: usize,
    /// Receives that the connections share.
    pub(crate) shared: Option<&'a SharedReceives>,
    /// One thread receives from all.
    pub(crate) gathers: bool,
}

/// A connection as workloads see it.
pub trait Conversation: MessageConnection {
    /// SENDs without bytes that were no messages, where messages without bytes look the same.
    fn control_sends(&self) -> u64 {
        0
    }
}

impl Conversation for send_receive::Connection {
    fn control_sends(&self) -> u64 {
        self.control_sends()
    }
}

impl Conversation for direct_read::Connection {}
impl Conversation for direct_write::Connection {}
impl Conversation for buffered_write::Connection {}
impl Conversation for shared_write::Connection {}
impl Conversation for buffered_read::Connection {}

/// A protocol whose connections can be measured.
pub(crate) trait Measured: Exchange<Connection: Conversation + Send> {
    /// Makes the ends of one side.
    fn ends(&self, side: Side<'_>, config: &Config) -> Result<Vec<Self::Endpoint>, ConnectError> {
        (0..side.connections).map(|_| self.endpoint(side.pd, config, side.channel)).collect()
    }

    /// One source for the readers at the other ends of all these connections, if the protocol has that.
    fn replication(_connections: Vec<Self::Connection>) -> Result<Option<Replication>, ConnectError> {
        Ok(None)
    }
}

impl Measured for SendReceive {
    fn ends(&self, side: Side<'_>, config: &Config) -> Result<Vec<Endpoint>, ConnectError> {
        let end = |_| match side.shared {
            Some(shared) => Endpoint::sharing(shared, config.clone(), side.channel),
            None => self.endpoint(side.pd, config, side.channel),
        };
        (0..side.connections).map(end).collect()
    }
}

impl Measured for DirectRead {
    fn replication(connections: Vec<direct_read::Connection>) -> Result<Option<Replication>, ConnectError> {
        let mut replication = Replication::new();
        for connection in connections {
            replication.add(connection)?;
        }
        Ok(Some(replication))
    }
}

impl Measured for DirectWrite {}

impl Measured for BufferedWrite {}

impl Measured for SharedWrite {
    /// Whoever receives from all has one ring for all.
    fn ends(&self, side: Side<'_>, config: &Config) -> Result<Vec<Self::Endpoint>, ConnectError> {
        if !side.gathers {
            return (0..side.connections).map(|_| self.endpoint(side.pd, config, side.channel)).collect();
        }
        let depth = (config.depth * side.connections).min(MAX_WINDOW);
        let ring = SharedRing::new(side.pd, &Config { depth, ..config.clone() })?;
        (0..side.connections).map(|_| ring.endpoint(config, side.channel)).collect()
    }
}

impl Measured for BufferedRead {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_found_again_and_those_of_records() {
        for protocol in Protocol::ALL {
            assert_eq!(Protocol::by_name(protocol.name()), Some(protocol));
            assert_eq!(serde_json::to_string(&protocol).unwrap(), format!("\"{protocol}\""));
        }
        assert_eq!(Protocol::by_name("telepathy"), None);
    }
}
