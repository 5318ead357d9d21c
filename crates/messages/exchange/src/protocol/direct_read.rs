//! Direct-Read: the receiver READs each message into its final memory, without any copy.
//!
//! ```text
//! sender                                    receiver
//!   send -> id    SEND {address, rkey, length}  ->   reposts the receive at once
//!                 <-  READ request                   read_into(region): not blocking
//!                 READ response              ->      is_read
//!   is_done(id)   <-  WRITE of the signal byte (or a SEND with the number of messages read)
//! ```
//!
//! One message costs one small SEND, one READ, and one WRITE of a byte (or one SEND for several messages). For the
//! READ, a request travels in one direction and the data in the other direction. The message waits at the sender until
//! the receiver reads it, so a message that the receiver reads late occupies no receive buffer. Only read requests need
//! receives. The receiver reposts each receive before it acknowledges the message. A sender whose window is at most the
//! depth of the receiver therefore always finds a receive. The protocol needs no other flow control.
//!
//! The *signal byte* is the byte after the message. It is 0 while the message waits, and the receiver writes 1 after
//! the READ. A program whose messages have no free byte after them chooses [`Acknowledge::Send`]. The SEND also wakes a
//! sender that sleeps on a completion channel.
//!
//! An *unfenced* receiver posts the acknowledgement after the READ is complete. A *fenced* receiver posts the READ and
//! the acknowledgement together, the acknowledgement with the fence flag. Without the flag, RC does not order a WRITE
//! or SEND after the completion of an earlier READ (IBTA Vol 1, 10.8.3.3, the ordering table of work requests). With
//! the fence, the receiver need not poll between READ and acknowledgement. But READs no longer overlap, since a fenced
//! request delays later requests. A fenced receiver has a message when the READ is complete. In the published
//! evaluation, the receiver has the message only when the acknowledgement is complete ([`Fence`]).

mod machine;
mod receiving;
mod request;
mod sending;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Pd};

pub use machine::Direct;
pub use receiving::ReadId;
pub use request::{MAX_APPLICATION_BYTES, Request};

use crate::connection::carrier::{Queues, Unconnected};
use crate::connection::config::{Config, LONGEST_TRANSFER};
use crate::connection::engine::{self, Recipe};
use crate::connection::error::ConnectError;
use crate::connection::lent::Lent;
use crate::connection::slots::Slots;
use crate::setup::EndpointDescription;
use receiving::{READS_IN_FLIGHT, Receiving};
use request::MAX_REQUEST_BYTES;
use sending::Sending;

/// One end of a connection that is not connected yet.
pub type Endpoint = engine::Endpoint<DirectRead>;
/// A connection of this protocol.
pub type Connection = engine::Connection<DirectRead>;

/// Number of additional receives, for the goodbye.
const CONTROL_RECEIVES: usize = 1;

/// Operation by which the receiver reports that it has read a message. Both ends must use the same operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// The receiver WRITEs the signal byte after the message.
    #[default]
    SignalByte,
    /// The receiver SENDs the number of messages that it has read.
    Send,
}

/// Time at which the receiver posts the acknowledgement, and completion for which the receiver waits. Only the receiver
/// uses this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// No fence: the receiver posts the acknowledgement when the READ is complete.
    #[default]
    Nothing,
    /// The receiver posts the READ and a fenced acknowledgement together, and waits for the completion of the READ.
    ReadCompletion,
    /// The receiver posts the READ and a fenced acknowledgement together, and waits for the completion of the
    /// acknowledgement. The acknowledgement completes one round trip after the READ. The published measurements of
    /// Direct-Read used this variant.
    AcknowledgementCompletion,
}

/// Destination of the READs of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Buffers of the connection. The connection READs messages in order, as soon as the peer announces them.
    #[default]
    Pool,
    /// Memory that the program passes to `read_into` of a [`Connection`].
    ByHand,
}

/// A received message, which holds one buffer of its connection. Dropping the message gives the buffer back, from any
/// thread and in any order.
pub type Message = Lent<Slots>;

/// The protocol Direct-Read, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectRead {
    /// Whether this end posts READ and acknowledgement together when it receives.
    pub fence: Fence,
    /// Operation by which the receiver reports that it has read a message.
    pub acknowledge: Acknowledge,
    /// Destination of the READs at this end.
    pub placement: Placement,
}

impl DirectRead {
    /// Returns the bytes of the longest message that an end of this configuration accepts. With [`Placement::ByHand`],
    /// no buffers of the connection limit the length.
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
            // `Fence::AcknowledgementCompletion` posts the same requests as `Fence::ReadCompletion`.
            (Acknowledge::Send, _) => Protocol::DirectReadFencedSend,
        }
    }

    fn memory(&self, pd: &Pd, _config: &Config) -> Result<(), ConnectError> {
        let given = pd.device().attributes().limits.max_inline;
        if given < MAX_REQUEST_BYTES {
            let what = "the device's inline limit for read requests";
            return Err(ConnectError::Setting { what, given: given as u64, allowed: "at least 80 B" });
        }
        Ok(())
    }

    fn max_received(&self, config: &Config) -> usize {
        self.longest_received(config)
    }

    /// Returns the access of the peer: the peer READs messages, and with signal bytes it also WRITEs.
    fn access(&self) -> Access {
        self.access_of_sources()
    }

    fn queues(&self, config: &Config) -> Queues {
        let acknowledgements = match self.acknowledge {
            Acknowledge::SignalByte => 0,
            // Each SEND acknowledges at least one new message, so at most `window` SENDs arrive for `window` messages.
            Acknowledge::Send => config.window,
        };
        Queues {
            // The queue holds an announcement for each message. For each READ in flight, it holds the READ and up to
            // two acknowledgements: an unsignaled acknowledgement leaves the queue only when a later request completes.
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
}
