//! Send-Receive: messages over RC SEND, into buffers that the receiver has posted.
//!
//! ```text
//! sender                                  receiver
//!   send -> id    SEND (with immediate: credits)  ->   receive -> Message
//!                 <-  ACK                               ... dropped: reposted
//!   is_done(id)   <-  SEND of 0 B with immediate: credits, every quarter of the depth
//! ```
//!
//! One message costs one SEND and one receive. Without data in the other direction, each quarter of the depth also
//! costs a credit message. RC completes in order, so the last completed id answers every wait. The window of
//! unacknowledged messages decides throughput. Several messages in one post (*doorbell batching*) save CPU time on
//! the sending side.

mod credits;
mod hub;
mod machine;
mod pool;
mod reports;
mod returns;
mod sending;
mod shared;
/// Atomics, the lock and the queue of [`reports`] and [`returns`], which a model checker replaces by its own.
mod sync {
    pub(super) use crossbeam_queue::ArrayQueue;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard};
}

#[cfg(test)]
mod tests;

pub use credits::CREDIT_RECEIVES;
pub use hub::{Hub, Key};
pub use machine::Pooled;
pub use pool::{Message, Reposting};
pub use shared::{SharedOptions, SharedReceives};

use std::collections::VecDeque;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Channel, Cq, MemoryKind, Pd};

use crate::carrier::{Queues, Unconnected};
pub use crate::config::{Config, MAX_BATCH, MAX_WINDOW};
pub use crate::connection::{Backpressure, MessageId, Outcome, Submit};
use crate::connection::{Connector, Group};
use crate::engine::{self, Recipe};
use crate::error::ConnectError;
use crate::setup::EndpointDescription;
use hub::Claim;
use pool::{Layout, Pool};
use sending::Sending;

/// The protocol Send-Receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReceive;

/// One end of a future connection.
pub type Endpoint = engine::Endpoint<SendReceive>;
/// A connection.
pub type Connection = engine::Connection<SendReceive>;

/// State of an end before its peer is known.
#[derive(Debug, Default)]
pub struct Sharing {
    /// Receives that it shares with others, if it has none of its own.
    receives: Option<SharedReceives>,
    /// Its share in a completion queue that it shares with others.
    claim: Option<Claim>,
}

impl Endpoint {
    /// Makes an end. With a channel, [`arm`](crate::MessageConnection::arm) arms notifications there.
    ///
    /// # Errors
    ///
    /// As [`Connector::endpoint`].
    pub fn new(pd: &Pd, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        SendReceive.endpoint(pd, &config, channel)
    }

    /// Makes an end that receives into shared buffers. With credits, the depth in `config` is its share of them,
    /// which is granted to the peer.
    ///
    /// # Errors
    ///
    /// The longest message does not fit the shared buffers, or as [`Connector::endpoint`].
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

    /// Returns how often a message was not accepted because credits were missing.
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
        // Messages above the inline limit of the device are sent from memory.
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
                let slots = config.depth + CREDIT_RECEIVES;
                let region = pd.allocate(slots * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
                let layout = Layout { slot_bytes: config.max_message, stride, repost_list };
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
