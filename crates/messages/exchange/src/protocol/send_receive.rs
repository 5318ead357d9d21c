//! Send-Receive: the sender SENDs messages over RC, into buffers that the receiver has posted.
//!
//! ```text
//! sender                                  receiver
//!   send -> id    SEND (with immediate: credits)  ->   receive -> Message
//!                 <-  ACK                               drop of the Message: reposts the buffer
//!   is_done(id)   <-  SEND of 0 B with immediate: credits, after each quarter of the depth
//! ```
//!
//! One message costs one SEND and one receive. If the other direction has no messages, the receiver also sends one
//! credit message for each quarter of the depth. RC completes in order, so the id of the last completed message shows
//! which messages are done. The throughput depends on the window of unacknowledged messages. Several messages in one
//! post (*doorbell batching*) save CPU time at the sender.

mod hub;
mod machine;
mod sending;

#[cfg(test)]
mod tests;

pub use crate::connection::receives::pool::{Message, Reposting};
pub use crate::connection::receives::shared::{SharedOptions, SharedReceives};
pub use hub::{Hub, Key};
pub use machine::Pooled;

use std::collections::VecDeque;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Channel, Cq, MemoryKind, Pd};

use crate::connection::carrier::{Queues, Unconnected};
pub use crate::connection::config::{CREDIT_RECEIVES, Config, MAX_BATCH, MAX_WINDOW};
use crate::connection::engine::{self, Recipe};
use crate::connection::error::ConnectError;
use crate::connection::receives::pool::{Layout, Pool};
pub use crate::connection::{Backpressure, MessageId, Outcome, Submit};
use crate::connection::{Connector, Group};
use crate::setup::EndpointDescription;
use hub::Claim;
use sending::Sending;

/// The protocol Send-Receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReceive;

/// One end of a connection that is not connected yet.
pub type Endpoint = engine::Endpoint<SendReceive>;
/// A connection of this protocol.
pub type Connection = engine::Connection<SendReceive>;

/// Objects that an endpoint shares with other connections.
#[derive(Debug, Default)]
pub struct Sharing {
    /// Receives that the connection shares with other connections. `None` if the connection has its own receives.
    receives: Option<SharedReceives>,
    /// Share of the connection in the completion queue of a hub. `None` if the connection has its own completion queue.
    claim: Option<Claim>,
}

impl Endpoint {
    /// Makes an end. With a channel, [`arm`](crate::MessageConnection::arm) arms notifications on the channel.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Connector::endpoint`].
    pub fn new(pd: &Pd, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        SendReceive.endpoint(pd, &config, channel)
    }

    /// Makes an end that receives into shared buffers. With credits, the end grants `config.depth` of the shared
    /// receives to its peer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Connector::endpoint`], or [`ConnectError::TooLongForShared`] if the longest message does
    /// not fit into the shared buffers.
    pub fn sharing(shared: &SharedReceives, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        config.check()?;
        shared.check_takes(&config)?;
        let memory = Sharing { receives: Some(shared.clone()), claim: None };
        Self::with_memory(&SendReceive, shared.pd(), &config, channel, Some(shared.srq()), memory)
    }

    /// Makes an end whose completions go to the queue of a hub.
    fn of_hub(
        pd: &Pd,
        config: &Config,
        shared: Option<&SharedReceives>,
        cq: Cq,
        claim: Claim,
    ) -> Result<Self, ConnectError> {
        config.check()?;
        if let Some(shared) = shared {
            shared.check_takes(config)?;
        }
        let memory = Sharing { receives: shared.cloned(), claim: Some(claim) };
        Self::on(&SendReceive, pd, config, cq, shared.map(SharedReceives::srq), memory)
    }
}

impl Connection {
    /// Returns the options of the connection.
    pub fn config(&self) -> &Config {
        &self.machine.config
    }

    /// Returns the number of attempts to send that failed because the connection had no credits.
    pub fn stalled_on_credits(&self) -> u64 {
        self.machine.sending.stalled_on_credits
    }
}

impl Recipe for SendReceive {
    type Memory = Sharing;
    type Machine = Pooled;

    fn id(&self) -> Protocol {
        Protocol::SendReceive
    }

    fn memory(&self, _pd: &Pd, _config: &Config) -> Result<Sharing, ConnectError> {
        Ok(Sharing::default())
    }

    fn ends(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint>, ConnectError> {
        let end = |_| match group.shared {
            Some(shared) => Endpoint::sharing(shared, config.clone(), group.channel),
            None => self.endpoint(group.pd, config, group.channel),
        };
        (0..group.count).map(end).collect()
    }

    fn access(&self) -> Access {
        Access::empty()
    }

    fn queues(&self, config: &Config) -> Queues {
        Queues { sends: config.window, receives: config.depth + CREDIT_RECEIVES, inline: config.inline, sges: 1 }
    }

    fn machine(
        &self,
        carrier: &Unconnected,
        config: &Config,
        memory: Sharing,
        peer: &EndpointDescription,
    ) -> Result<Pooled, ConnectError> {
        let (pd, qp) = (&carrier.pd, carrier.qp.clone());
        // A configured inline size above the limit of the device is reduced to the limit.
        let inline = config.inline.min(pd.device().attributes().limits.max_inline);
        let config = Config { inline, ..config.clone() };
        let (stride, repost_list) = (config.stride(), config.repost_list);
        let copies = match config.send_buffers {
            0 => None,
            buffers => Some(pd.allocate(buffers * stride, Access::empty(), MemoryKind::Plain)?),
        };
        let Sharing { receives, claim } = memory;
        let pool = match &receives {
            Some(shared) => shared.admit(qp, &config)?,
            None => {
                let buffers = config.receive_buffers();
                let region = pd.allocate(buffers * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
                let layout = Layout { slot_bytes: config.max_message, stride, buffers: buffers as u32, repost_list };
                Pool::new(qp, region, layout, config.depth, CREDIT_RECEIVES, config.credits)?
            }
        };
        Ok(Pooled {
            sending: Sending::new(&config, copies, peer),
            left_behind: (receives.is_some() && claim.is_none()).then(|| carrier.cq.clone()),
            pool,
            peer_depth: peer.depth.into(),
            inbox: VecDeque::with_capacity(config.depth),
            credit_words: 0,
            claim,
            config,
        })
    }
}
