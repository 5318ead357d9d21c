//! Send-Receive: messages over RC SEND, into buffers that the receiver has posted.
//!
//! ```text
//! sender                                  receiver
//!   send -> id    SEND (with immediate: credits)  ->   receive -> Message
//!                 <-  ACK                               ... dropped: reposted
//!   is_done(id)   <-  SEND of 0 B with immediate: credits, every quarter of the depth
//! ```
//!
//! One message costs one SEND and one receive; a credit message is spent per quarter of the depth
//! unless data goes the other way too. Ids rise; RC completes in order, so one number, the last
//! completed id, answers every wait. The window of unacknowledged messages decides throughput;
//! several messages in one post (*doorbell batching*) save CPU on the sending side.

mod connection;
mod credits;
mod endpoint;
mod hub;
mod pool;
mod sending;
mod shared;
#[cfg(test)]
mod tests;

pub use connection::Connection;
pub use credits::CREDIT_RECEIVES;
pub use endpoint::Endpoint;
pub use hub::{Hub, Key};
pub use pool::{Message, Reposting};
pub use shared::{SharedOptions, SharedReceives};

use doorbell_protocols::Protocol;
use doorbell_verbs::{Channel, Pd};

pub use crate::config::{Config, MAX_BATCH, MAX_WINDOW};
pub use crate::connection::{Backpressure, MessageId, Outcome, Submit};
use crate::connection::{Connector, Group};
use crate::error::ConnectError;
use crate::setup::EndpointDescription;

/// The protocol Send-Receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReceive;

impl Connector for SendReceive {
    type Endpoint = Endpoint;
    type Connection = Connection;

    fn protocol(&self) -> Protocol {
        Protocol::SendReceive
    }

    fn endpoint(&self, pd: &Pd, config: &Config, channel: Option<&Channel>) -> Result<Endpoint, ConnectError> {
        Endpoint::new(pd, config.clone(), channel)
    }

    fn endpoints(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Endpoint>, ConnectError> {
        let end = |_| match group.shared {
            Some(shared) => Endpoint::sharing(shared, config.clone(), group.channel),
            None => self.endpoint(group.pd, config, group.channel),
        };
        (0..group.count).map(end).collect()
    }

    fn describe(&self, endpoint: &Endpoint) -> EndpointDescription {
        endpoint.description()
    }

    fn connect(&self, endpoint: Endpoint, peer: &EndpointDescription) -> Result<Connection, ConnectError> {
        endpoint.connect(peer)
    }
}
