//! From an end that is made to one that is connected.

use std::collections::VecDeque;

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Channel, Cq, MemoryKind, Pd};

use super::connection::Connection;
use super::credits::{CREDIT_RECEIVES, SendCredits};
use super::hub::Claim;
use super::pool::{Layout, Pool};
use super::shared::SharedReceives;
use crate::config::Config;
use crate::error::ConnectError;
use crate::setup::EndpointDescription;
use crate::transport::{Queues, Unconnected};

/// How long the queues of a connection of this configuration are.
pub(super) fn queues(config: &Config) -> Queues {
    Queues { sends: config.window, receives: config.depth + CREDIT_RECEIVES, inline: config.inline, sges: 1 }
}

/// One end of a connection to be: made, but not connected.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    end: Unconnected,
    shared: Option<SharedReceives>,
    claim: Option<Claim>,
}

impl Endpoint {
    /// Makes an end. With a channel, [`Connection::arm`] notifies there.
    pub fn new(pd: &Pd, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        Self::make(pd, config, None, channel)
    }

    /// Makes an end that receives into buffers which it shares with others. Of `config`, the depth
    /// is the part of them that is granted to the peer, where there are credits.
    pub fn sharing(shared: &SharedReceives, config: Config, channel: Option<&Channel>) -> Result<Self, ConnectError> {
        Self::make(shared.pd(), config, Some(shared), channel)
    }

    fn make(
        pd: &Pd,
        config: Config,
        shared: Option<&SharedReceives>,
        channel: Option<&Channel>,
    ) -> Result<Self, ConnectError> {
        config.check()?;
        let cq = Unconnected::completion_queue(pd, queues(&config), channel)?;
        Self::on(pd, config, shared, cq, None)
    }

    /// Makes an end whose completions go to a queue that others use as well.
    pub(super) fn on(
        pd: &Pd,
        config: Config,
        shared: Option<&SharedReceives>,
        cq: Cq,
        claim: Option<Claim>,
    ) -> Result<Self, ConnectError> {
        config.check()?;
        // More than the device takes inline goes from memory.
        let config = Config { inline: config.inline.min(pd.device().attributes().limits.max_inline), ..config };
        if let Some(shared) = shared
            && config.max_message > shared.max_message()
        {
            return Err(ConnectError::TooLongForShared { longest: config.max_message, shared: shared.max_message() });
        }
        let srq = shared.map(SharedReceives::srq);
        let end = Unconnected::new(pd, queues(&config), srq, cq, Protocol::SendReceive)?;
        Ok(Self { config, end, shared: shared.cloned(), claim })
    }

    /// What the peer needs to know.
    pub fn description(&self) -> EndpointDescription {
        self.end.description(&self.config)
    }

    /// Connects with the peer whose description this is. Receives are posted before it can send.
    pub fn connect(self, peer: &EndpointDescription) -> Result<Connection, ConnectError> {
        let Self { config, end, shared, claim } = self;
        end.prepare(&config, peer, Access::empty())?;
        let (pd, qp) = (end.pd.clone(), end.qp.clone());
        let stride = config.stride();
        let of_its_own = match &shared {
            Some(_) => None,
            None => {
                let slots = config.depth + CREDIT_RECEIVES;
                let region = pd.allocate(slots * stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
                let layout = Layout { slot_bytes: config.max_message, stride, repost_list: config.repost_list };
                Some(Pool::new(qp.clone(), region, layout, config.depth, CREDIT_RECEIVES, config.credits)?)
            }
        };
        let line = end.connect(&config, peer)?;
        let send_region = if config.send_buffers > 0 {
            Some(pd.allocate(config.send_buffers * stride, Access::empty(), MemoryKind::Plain)?)
        } else {
            None
        };
        // Last, since only a connection gives its part back.
        let pool = match (of_its_own, &shared) {
            (Some(pool), _) => pool,
            (None, Some(shared)) => shared.admit(qp, &config)?,
            (None, None) => unreachable!("a connection without shared buffers has its own"),
        };
        Ok(Connection {
            send_credits: config.credits.then(|| SendCredits::new(peer.depth.into())),
            peer_depth: peer.depth.into(),
            peer_max_message: peer.max_message,
            inline_store: vec![0; config.batch * config.inline].into(),
            pending: Vec::with_capacity(config.batch),
            line,
            pool,
            send_region,
            stride,
            next_id: 1,
            posted: 0,
            completed: 0,
            inbox: VecDeque::with_capacity(config.depth),
            stalled_on_credits: 0,
            credit_words: 0,
            claim,
            config,
        })
    }
}
