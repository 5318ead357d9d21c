//! The common interface of connections of all protocols.
//!
//! ```no_run
//! # fn example(pd: &doorbell_verbs::Pd, peer: &doorbell_exchange::setup::EndpointDescription)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! use doorbell_exchange::{Config, MessageConnection, Connector, SendReceive};
//!
//! let protocol = SendReceive; // or another: nothing else changes
//! let endpoint = protocol.endpoint(pd, &Config::default(), None)?;
//! let mut connection = protocol.connect(endpoint, peer)?;
//! connection.send(b"hello")?;
//! # Ok(())
//! # }
//! ```

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Channel, Pd, Qp, Region};

use crate::config::Config;
use crate::direct_read::Replication;
use crate::error::{ConnectError, ConnectionError};
use crate::send_receive::SharedReceives;
use crate::setup::EndpointDescription;

/// Number of a message in its connection. Ids rise by one.
pub type MessageId = u64;

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// The message was accepted. It is done when [`MessageConnection::is_done`] returns true for this id.
    Accepted(MessageId),
    /// The message was not accepted. Poll and try again.
    Full(Backpressure),
}

/// Reason for which a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backpressure {
    /// The number of unacknowledged messages has reached the window.
    Window,
    /// The peer has no receive left. It must free messages first.
    Credits,
}

/// State of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer's RNIC has the message. If the peer pulls messages, the peer has read it.
    Done,
    /// The message is in flight.
    Pending,
    /// The connection ended before the arrival was confirmed.
    Failed(ConnectionError),
}

/// A received message, which holds its memory.
///
/// Callers copy its bytes. Some protocols let the peer write that memory while the message is held, and a slice of
/// memory that changes is undefined behaviour. If the peer cannot write there, the message also derefs to a slice.
#[allow(clippy::len_without_is_empty)] // a message of no bytes is a message
pub trait Received: Send {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Copies its first bytes, up to the length of `out`. Returns their number.
    fn copy_to(&self, out: &mut [u8]) -> usize;

    /// Returns all its bytes.
    fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        let copied = self.copy_to(&mut out);
        debug_assert_eq!(copied, out.len());
        out
    }
}

/// A message that is a slice.
impl<M: std::ops::Deref<Target = [u8]> + Send> Received for M {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn copy_to(&self, out: &mut [u8]) -> usize {
        let length = out.len().min(self.len());
        out[..length].copy_from_slice(&self[..length]);
        length
    }
}

/// A connection that carries messages in both directions: a non-blocking state machine.
///
/// Call [`poll`](Self::poll), or [`receive`](Self::receive), which polls, again and again. Without polls, only
/// requests that were posted already advance. After the connection has ended, each call returns the reason, and
/// [`outcome`](Self::outcome) returns for each message whether it arrived.
pub trait MessageConnection {
    /// A received message. Dropping it gives its buffer back, from any thread and in any order.
    type Message: Received;

    /// Sends a message by copying it or inline.
    ///
    /// # Errors
    ///
    /// The connection is over, or the message is longer than [`max_send`](Self::max_send)
    /// ([`ConnectionError::Misuse`]). In the second case the connection stays usable.
    fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError>;

    /// Sends a message from memory of the program, without copying. The memory must not change until the message is
    /// done; otherwise the peer may see either version. [`Connector::source_access`] returns the access that the
    /// region needs. [`Connector::bytes_behind`] returns the number of bytes after the message that the protocol
    /// uses.
    ///
    /// # Errors
    ///
    /// The connection is over. Or the message is longer than the peer accepts, or not inside the region, or the
    /// region lacks the access that the protocol needs ([`ConnectionError::Misuse`]). After a misuse, the connection
    /// stays usable.
    fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError>;

    /// Posts messages that wait for their batch to be full.
    ///
    /// # Errors
    ///
    /// The device rejects a work request, which ends the connection. A call without waiting messages succeeds, also
    /// after the connection has ended.
    fn flush(&mut self) -> Result<(), ConnectionError>;

    /// Returns the bytes of the longest message that [`send`](Self::send) accepts.
    fn max_send(&self) -> usize;

    /// Advances the connection. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// The connection is over. Messages that arrived before can still be taken.
    fn poll(&mut self) -> Result<bool, ConnectionError>;

    /// Returns the next message that a poll has received.
    fn take(&mut self) -> Option<Self::Message>;

    /// Returns the next message, if one has arrived. Polls if none has.
    ///
    /// # Errors
    ///
    /// The connection is over, or the peer has closed its side and every message was taken
    /// ([`ConnectionError::PeerClosed`]). In the second case sending is still possible.
    fn receive(&mut self) -> Result<Option<Self::Message>, ConnectionError> {
        self.receive_noting(&mut false)
    }

    /// Receives as [`receive`](Self::receive) does. Sets `moved` if a message arrived or a poll moved anything. A
    /// caller that sleeps while nothing happens also waits for events without a message, such as the acknowledgement
    /// of its goodbye.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    fn receive_noting(&mut self, moved: &mut bool) -> Result<Option<Self::Message>, ConnectionError> {
        if let Some(message) = self.take() {
            *moved = true;
            return Ok(Some(message));
        }
        if !self.is_peer_closed() {
            *moved |= self.poll()?;
        }
        match self.take() {
            None if self.is_peer_closed() => Err(ConnectionError::PeerClosed),
            message => Ok(message),
        }
    }

    /// Returns the last id that is done. All ids before it are done as well.
    fn last_done(&self) -> MessageId;

    /// Returns whether this message is done.
    fn is_done(&self, id: MessageId) -> bool {
        id <= self.last_done()
    }

    /// Returns the state of a message.
    fn outcome(&self, id: MessageId) -> Outcome {
        match self.over() {
            _ if self.is_done(id) => Outcome::Done,
            Some(error) => Outcome::Failed(error),
            None => Outcome::Pending,
        }
    }

    /// Returns the number of messages that are accepted and not done.
    fn unacknowledged(&self) -> u64;

    /// Closes this side. No more messages can be sent. Accepted messages are delivered, and then the peer receives a
    /// goodbye. Poll until [`is_closed`](Self::is_closed). Messages of the peer can be received until it has closed
    /// its side too.
    fn close(&mut self);

    /// Returns whether the peer's RNIC has acknowledged the goodbye, or the connection is over.
    fn is_closed(&self) -> bool;

    /// Returns whether the peer has closed its side. Messages that arrived before can still be taken.
    fn is_peer_closed(&self) -> bool;

    /// Returns the reason for which the connection is over, if it is.
    fn over(&self) -> Option<ConnectionError>;

    /// Arms one notification on the channel of this end. Poll once more before waiting: completions that arrived
    /// earlier may raise no notification.
    fn arm(&self);

    /// Returns the channel, if there is one.
    fn channel(&self) -> Option<&Channel>;

    /// Returns whether every event that this connection waits for raises a notification. If not, the caller has to
    /// poll.
    fn notifies(&self) -> bool {
        true
    }

    /// Returns the time of the next poll that is due without an event.
    fn poll_timeout_ns(&self) -> Option<u64>;

    /// Returns the number of keepalives that were sent: WRITEs of no bytes.
    fn keepalives(&self) -> u64;

    /// Returns the number of messages without data, if counters cannot distinguish them from empty messages;
    /// otherwise 0.
    fn control_sends(&self) -> u64 {
        0
    }

    /// Returns the queue pair, for queries.
    fn qp(&self) -> &Qp;
}

/// Several ends in one process.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Protection domain of the ends.
    pub pd: &'a Pd,
    /// Channel for their notifications.
    pub channel: Option<&'a Channel>,
    /// Number of ends.
    pub count: usize,
    /// Receives that they share. Only Send-Receive uses them.
    pub shared: Option<&'a SharedReceives>,
    /// Whether one thread receives from all of them, so that they may share a ring.
    pub one_thread: bool,
}

/// A factory for connections of one protocol, in one of its variants.
pub trait Connector {
    /// One end of a future connection.
    type Endpoint;
    /// A connection.
    type Connection: MessageConnection;

    /// Returns the protocol and variant: its name and its capabilities.
    fn protocol(&self) -> Protocol;

    /// Returns the access that a region needs if messages are sent from it ([`MessageConnection::send_from`]).
    fn source_access(&self) -> Access {
        Access::empty()
    }

    /// Returns the number of bytes after a message in such a region that belong to it. No other message may use them
    /// until it is done.
    fn bytes_behind(&self) -> usize {
        0
    }

    /// Makes an end. With a channel, [`MessageConnection::arm`] arms notifications there.
    ///
    /// # Errors
    ///
    /// The configuration is not allowed ([`ConnectError::Setting`]), or a queue, the queue pair or memory cannot be
    /// made.
    fn endpoint(&self, pd: &Pd, config: &Config, channel: Option<&Channel>) -> Result<Self::Endpoint, ConnectError>;

    /// Makes several ends.
    ///
    /// # Errors
    ///
    /// One of them cannot be made.
    fn endpoints(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Self::Endpoint>, ConnectError> {
        (0..group.count).map(|_| self.endpoint(group.pd, config, group.channel)).collect()
    }

    /// Returns the description that the peer needs.
    fn describe(&self, endpoint: &Self::Endpoint) -> EndpointDescription;

    /// Connects to the peer with this description. After that, messages can be sent.
    ///
    /// # Errors
    ///
    /// The two ends do not match (protocol, credits, UDP port or description). Or shared receives have no part left
    /// for the connection ([`ConnectError::Crowded`], [`ConnectError::NoShare`]). Or memory, a transition of the
    /// queue pair or the first receives are refused.
    fn connect(&self, endpoint: Self::Endpoint, peer: &EndpointDescription) -> Result<Self::Connection, ConnectError>;

    /// Returns one source for the readers at the other ends of these connections, if the protocol supports it.
    ///
    /// # Errors
    ///
    /// A connection cannot be part of it.
    fn replicate(_connections: Vec<Self::Connection>) -> Result<Option<Replication>, ConnectError> {
        Ok(None)
    }
}
