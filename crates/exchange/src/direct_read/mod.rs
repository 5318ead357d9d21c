//! Direct-Read: the receiver pulls each message to where it wants it. True zero copy.
//!
//! ```text
//! sender                                    receiver
//!   send -> id    SEND {address, rkey, length}  ->   the receive is reposted at once
//!                 <-  READ request                   read_into(region): not blocking
//!                 READ response              ->      is_read
//!   is_done(id)   <-  WRITE of the signal byte (or a SEND that tells how many are read)
//! ```
//!
//! One message costs one small SEND and one WRITE of a byte (or a SEND, for several messages at
//! once), and one READ that occupies the link with a request one way and the data the other. The
//! message waits at the sender until the receiver takes it, so a slow message blocks no others'
//! memory, and nothing but read requests needs receives: each is reposted before its message is
//! acknowledged, so a sender whose window is no larger than the receiver's depth never finds none.
//! That is the whole flow control.
//!
//! Behind the message lies its *signal byte*: 0 while the message waits, 1 once it is read. Who
//! cannot place a byte there chooses [`Acknowledge::Send`], which is also what wakes a sender that
//! sleeps on a completion channel.
//!
//! *Unfenced*, the acknowledgement is posted once the READ is complete. *Fenced*, both are posted
//! together, the acknowledgement with the fence flag, since RC does not order a WRITE or SEND
//! behind the completion of an earlier READ (IBTA Vol 1, 10.8.3.3, the ordering table of work
//! requests). That saves a turn of the receiver, and costs READs their overlap: a fenced request
//! holds up those behind it. A fenced receiver has a message when the READ is complete, or, as in the
//! published evaluation, only when the acknowledgement is ([`Fence`]).

mod machine;
mod message;
mod receiving;
mod replication;
mod request;
mod sending;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Pd};

pub use machine::Direct;
pub use message::Message;
pub use receiving::ReadId;
pub use replication::Replication;
pub use request::{MAX_APPLICATION_BYTES, Request};

use crate::carrier::{Queues, Unconnected};
use crate::config::{Config, LONGEST_TRANSFER};
use crate::engine::{self, Recipe};
use crate::error::ConnectError;
use crate::setup::EndpointDescription;
use receiving::{READS_IN_FLIGHT, Receiving};
use request::MAX_REQUEST_BYTES;
use sending::Sending;

/// One end of a connection to be.
pub type Endpoint = engine::Endpoint<DirectRead>;
/// A connection.
pub type Connection = engine::Connection<DirectRead>;

/// Receives beside those for read requests: for the goodbye.
const CONTROL_RECEIVES: usize = 1;

/// How the sender learns that a message was read. Both ends must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// The receiver writes the byte behind the message.
    #[default]
    SignalByte,
    /// The receiver sends word of how many it has read.
    Send,
}

/// Whether READ and acknowledgement are posted together, the latter with the fence flag, and which completion the
/// receiver waits for before it has the message. The peer need not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// There is no fence: the acknowledgement is posted when the READ is complete.
    #[default]
    Nothing,
    /// Both are posted together; the receiver waits for the READ.
    ReadCompletion,
    /// Both are posted together; the receiver waits for the acknowledgement, a round trip longer. So Direct-Read was
    /// measured and published.
    AcknowledgementCompletion,
}

/// Where messages are read to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Into buffers of the connection, in order, as soon as they are announced.
    #[default]
    Pool,
    /// Where the program says, when it says so (`read_into` of a [`Connection`]).
    ByHand,
}

/// The protocol Direct-Read, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectRead {
    /// Whether READ and acknowledgement are posted together, at this end.
    pub fence: Fence,
    /// How the sender learns that a message was read.
    pub acknowledge: Acknowledge,
    /// Where messages are read to at this end.
    pub placement: Placement,
}

impl DirectRead {
    /// Bytes of the longest message that an end of this configuration takes. A program that says itself where each
    /// message goes has no buffers that would limit it.
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
            // Which completion is awaited changes nothing that is posted.
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

    /// A peer that was given a key may read, and with signal bytes write, what it was given.
    fn access(&self) -> Access {
        self.access_of_sources()
    }

    fn queues(&self, config: &Config) -> Queues {
        let acknowledgements = match self.acknowledge {
            Acknowledge::SignalByte => 0,
            // Each is word of a message more, so there are never more than messages.
            Acknowledge::Send => config.window,
        };
        Queues {
            // An acknowledgement leaves the queue when a READ behind it completes, or another
            // acknowledgement does: there may be twice as many as READs.
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
            // Who lets others write must be able to itself (IBTA Vol 1, 10.6.3.1; ibv_reg_mr(3)).
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
