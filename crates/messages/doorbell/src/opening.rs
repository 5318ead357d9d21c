//! Opening of a client of a listener. The listener waits for no client alone: it sets up connections with all peers
//! that have connected, at the same time.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use doorbell_exchange::admission::{Hello, Limits, Opening, Verdict};
use doorbell_exchange::setup::{self, EndpointDescription, READY};
use doorbell_exchange::{Config, Connector};
use doorbell_verbs::Channel;

use crate::device::Device;
use crate::setup::{EstablishError, Options};

/// Default time after which a client that has not completed its set-up is rejected.
pub(crate) const CLIENT_DEADLINE: Duration = Duration::from_secs(5);

/// Maximum bytes of the buffers of all connections in set-up. With the default configuration, these are 64 connections.
const MEMORY: usize = 48 << 20;

/// Minimum number of connections in set-up, even if each of them has long messages.
const CONNECTIONS_MIN: usize = 4;

/// Returns the bounds on the peers of a listener for connections with this configuration. A peer that has described its
/// end has a connection with buffers, so long messages allow fewer peers.
pub(crate) fn limits(config: &Config) -> Limits {
    let limits = Limits { total: CLIENT_DEADLINE, ..Limits::default() };
    let buffers = config.depth.saturating_add(config.send_buffers).saturating_mul(config.max_message);
    Limits { stepped: (MEMORY / buffers.max(1)).max(CONNECTIONS_MIN), ..limits }
}

/// This side of all connections of a listener.
struct Side<P> {
    device: Device,
    options: Options<P>,
    /// Channel of all connections. `None` if each connection has its own, or none.
    channel: Option<Channel>,
}

/// Opening of a client: its description, then its ready byte. After the description, this side makes its end, connects
/// it, and sends its own description and ready byte.
pub(crate) struct ClientOpening<P: Connector> {
    side: Arc<Side<P>>,
    hello: Hello,
    /// Connection with a client that has described its end.
    connection: Option<P::Connection>,
}

impl<P: Connector> ClientOpening<P> {
    pub(crate) fn new(device: Device, options: Options<P>, channel: Option<Channel>) -> Self {
        Self { side: Arc::new(Side { device, options, channel }), hello: Hello::new(1), connection: None }
    }

    /// Makes this side's end of the connection.
    fn endpoint(&self) -> Result<P::Endpoint, EstablishError> {
        let Side { device, options, channel } = &*self.side;
        let own = if channel.is_none() { options.channel(device)? } else { None };
        Ok(options.protocol.endpoint(device.pd(), &options.config, channel.as_ref().or(own.as_ref()))?)
    }

    fn connect(&mut self, theirs: &EndpointDescription) -> Verdict<P::Connection, EstablishError> {
        let endpoint = match self.endpoint() {
            Ok(endpoint) => endpoint,
            Err(why) => return Verdict::Dismiss { reply: Vec::new(), why: Some(why) },
        };
        let protocol = &self.side.options.protocol;
        // A client whose options do not match can report both descriptions.
        let mut reply = setup::hello(&[protocol.describe(&endpoint)]);
        match protocol.connect(endpoint, theirs) {
            Err(why) => Verdict::Dismiss { reply, why: Some(why.into()) },
            Ok(connection) => {
                self.connection = Some(connection);
                reply.push(READY);
                Verdict::Reply(reply)
            }
        }
    }
}

impl<P: Connector> Opening for ClientOpening<P> {
    type Admitted = P::Connection;
    type Refusal = EstablishError;

    fn hear(&mut self, peer: &str, bytes: &[u8]) -> (usize, Verdict<P::Connection, EstablishError>) {
        if let (Some(connection), Some(&said)) = (self.connection.take(), bytes.first()) {
            let verdict = match EstablishError::check_ready(peer, said) {
                Ok(()) => Verdict::Admit(connection),
                Err(why) => Verdict::Dismiss { reply: Vec::new(), why: Some(why) },
            };
            return (1, verdict);
        }
        let (used, verdict) = self.hello.hear(peer, bytes);
        let verdict = match verdict {
            Verdict::Admit(theirs) => self.connect(&theirs[0]),
            Verdict::Continue | Verdict::Reply(_) => Verdict::Continue,
            Verdict::Dismiss { reply, why } => Verdict::Dismiss { reply, why: why.map(EstablishError::from) },
        };
        (used, verdict)
    }

    fn ended(&self, peer: &str, error: io::Error) -> Result<EstablishError, io::Error> {
        match self.connection {
            Some(_) => Ok(EstablishError::unready(peer, error, CLIENT_DEADLINE)),
            None => Err(error),
        }
    }
}

/// Returns the opening of another client.
impl<P: Connector> Clone for ClientOpening<P> {
    fn clone(&self) -> Self {
        Self { side: Arc::clone(&self.side), hello: Hello::new(1), connection: None }
    }
}

impl<P: Connector> fmt::Debug for ClientOpening<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOpening").field("hello", &self.hello).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_in_set_up_have_bounded_memory() {
        let of = |max_message| limits(&Config::default().max_message(max_message)).stepped;
        assert_eq!([64, 4096, 1 << 20].map(of), [4096, 64, CONNECTIONS_MIN]);
    }
}
