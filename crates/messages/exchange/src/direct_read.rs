//! Direct-Read: the receiver reads each message into its final place, without any copy.
//!
//! ```text
//! sender                                    receiver
//!   send -> id    SEND {address, rkey, length}  ->   the receive is reposted at once
//!                 <-  READ request                   read_into(region): not blocking
//!                 READ response              ->      is_read
//!   is_done(id)   <-  WRITE of the signal byte (or a SEND that tells how many are read)
//! ```
//!
//! One message costs one small SEND, one READ, and one WRITE of a byte (or one SEND for several messages). The READ
//! occupies the link with a request in one direction and with the data in the other. The message waits at the sender
//! until the receiver reads it, so a slow message occupies no memory of others. Only read requests need receives. The
//! receiver reposts each receive before it acknowledges the message. A sender whose window is at most the depth of
//! the receiver therefore always finds a receive. The protocol needs no other flow control.
//!
//! The *signal byte* lies after the message: 0 while the message waits, 1 once it is read. A program that cannot
//! place a byte there chooses [`Acknowledge::Send`]. This choice also wakes a sender that sleeps on a completion
//! channel.
//!
//! *Unfenced*, the receiver posts the acknowledgement after the READ is complete. *Fenced*, it posts both together,
//! the acknowledgement with the fence flag. RC does not order a WRITE or SEND after the completion of an earlier READ
//! (IBTA Vol 1, 10.8.3.3, the ordering table of work requests). The fence saves a turn of the receiver, but READs no
//! longer overlap, since a fenced request delays later ones. A fenced receiver has a message when the READ is
//! complete. In the published evaluation, it has the message only when the acknowledgement is complete ([`Fence`]).

mod machine;
mod receiving;
mod replication;
mod request;
mod sending;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Pd};

pub use machine::Direct;
pub use receiving::ReadId;
pub use replication::Replication;
pub use request::{MAX_APPLICATION_BYTES, Request};

use crate::carrier::{Queues, Unconnected};
use crate::config::{Config, LONGEST_TRANSFER};
use crate::engine::{self, Recipe};
use crate::error::ConnectError;
use crate::lent::Lent;
use crate::setup::EndpointDescription;
use crate::slots::Slots;
use receiving::{READS_IN_FLIGHT, Receiving};
use request::MAX_REQUEST_BYTES;
use sending::Sending;

/// One end of a future connection.
pub type Endpoint = engine::Endpoint<DirectRead>;
/// A connection.
pub type Connection = engine::Connection<DirectRead>;

/// Additional receives, for the goodbye.
const CONTROL_RECEIVES: usize = 1;

/// Source of the sender's knowledge that a message was read. Both ends must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// The receiver writes the byte after the message.
    #[default]
    SignalByte,
    /// The receiver sends the number of messages that it has read.
    Send,
}

/// Whether READ and acknowledgement are posted together, with the fence flag on the acknowledgement, and which
/// completion the receiver waits for. Only the receiver uses this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// No fence: the acknowledgement is posted when the READ is complete.
    #[default]
    Nothing,
    /// Both are posted together. The receiver waits for the READ.
    ReadCompletion,
    /// Both are posted together. The receiver waits for the acknowledgement, which takes a round trip longer. The
    /// published measurements of Direct-Read used this variant.
    AcknowledgementCompletion,
}

/// Destination of the READs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Buffers of the connection, in order, as soon as messages are announced.
    #[default]
    Pool,
    /// Memory that the program passes to `read_into` of a [`Connection`].
    ByHand,
}

/// A received message. It holds one buffer of its connection. Dropping it gives the buffer back, from any thread and in
/// any order.
pub type Message = Lent<Slots>;

/// The protocol Direct-Read, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectRead {
    /// Whether this end posts READ and acknowledgement together.
    pub fence: Fence,
    /// Source of the sender's knowledge that a message was read.
    pub acknowledge: Acknowledge,
    /// Destination of the READs at this end.
    pub placement: Placement,
}

impl DirectRead {
    /// Returns the bytes of the longest message that an end of this configuration accepts. A program that places each
    /// message itself has no buffers that limit it.
    fn longest_received(&self, config: &Config) -> usize {
        match self.placement {
            Placement::Pool => config.max_message,
            Placement::ByHand => LONGEST_TRANSFER,
        }
    }
}

impl Recipe for DirectRead {
    type Memory = ();
    type Machine = Direct;

    fn id(&self) -> Protocol {
        match (self.acknowledge, self.fence) {
            (Acknowledge::SignalByte, Fence::Nothing) => Protocol::DirectRead,
            (Acknowledge::SignalByte, Fence::ReadCompletion) => Protocol::DirectReadFenced,
            (Acknowledge::SignalByte, Fence::AcknowledgementCompletion) => Protocol::DirectReadFencedAwaited,
            (Acknowledge::Send, Fence::Nothing) => Protocol::DirectReadSend,
            // The awaited completion does not change the requests that are posted.
            (Acknowledge::Send, _) => Protocol::DirectReadFencedSend,
        }
    }

    fn memory(&self, pd: &Pd, _config: &Config) -> Result<(), ConnectError> {
        let given = pd.device().attributes().limits.max_inline;
        if given < MAX_REQUEST_BYTES {
            let what = "the device's inline limit, which a read request has to fit,";
            return Err(ConnectError::Setting { what, given: given as u64, allowed: "at least 80 B" });
        }
        Ok(())
    }

    fn max_received(&self, config: &Config) -> usize {
        self.longest_received(config)
    }

    /// A peer may read the regions whose key it was given. With signal bytes it may also write them.
    fn access(&self) -> Access {
        self.access_of_sources()
    }

    fn queues(&self, config: &Config) -> Queues {
        let acknowledgements = match self.acknowledge {
            Acknowledge::SignalByte => 0,
            // Each one acknowledges at least one new message, so the window bounds their number.
            Acknowledge::Send => config.window,
        };
        Queues {
            // An acknowledgement leaves the queue when a later READ or acknowledgement completes. The queue may
            // therefore hold twice as many acknowledgements as READs.
            sends: config.window + 3 * READS_IN_FLIGHT,
            receives: config.depth + CONTROL_RECEIVES + acknowledgements,
            inline: MAX_REQUEST_BYTES,
            sges: 1,
        }
    }

    fn machine(
        &self,
        carrier: &Unconnected,
        config: &Config,
        _memory: (),
        peer: &EndpointDescription,
    ) -> Result<Direct, ConnectError> {
        let sending = Sending::new(*self, &carrier.pd, config, peer)?;
        let receiving = Receiving::new(*self, carrier, config, self.queues(config).receives)?;
        Ok(Direct { sending, receiving })
    }

    fn access_of_sources(&self) -> Access {
        match self.acknowledge {
            // A region with remote writes must also allow local writes (IBTA Vol 1, 10.6.3.1; ibv_reg_mr(3)).
            Acknowledge::SignalByte => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
            Acknowledge::Send => Access::REMOTE_READ,
        }
    }

    fn bytes_behind_messages(&self) -> usize {
        usize::from(self.acknowledge == Acknowledge::SignalByte)
    }

    fn replication(connections: Vec<Connection>) -> Result<Option<Replication>, ConnectError> {
        let mut replication = Replication::new();
        for connection in connections {
            replication.add(connection)?;
        }
        Ok(Some(replication))
    }
}
