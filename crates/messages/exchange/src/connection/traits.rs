//! The common interface of connections of all protocols.
//!
//! ```no_run
//! # fn example(pd: &doorbell_verbs::Pd, peer: &doorbell_exchange::setup::EndpointDescription)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! use doorbell_exchange::{Config, MessageConnection, Connector, SendReceive};
//!
//! let protocol = SendReceive; // for another protocol, change only this line
//! let endpoint = protocol.endpoint(pd, &Config::default(), None)?;
//! let mut connection = protocol.connect(endpoint, peer)?;
//! connection.send(b"hello")?;
//! # Ok(())
//! # }
//! ```

use doorbell_protocols::Protocol;
use doorbell_verbs::{Access, Channel, Pd, Qp, Region};

use crate::connection::config::Config;
use crate::connection::error::{ConnectError, ConnectionError, Misuse};
use crate::connection::receives::shared::SharedReceives;
use crate::setup::EndpointDescription;

/// Number of a message in its connection. The ids of consecutive messages rise by one.
pub type MessageId = u64;

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// The connection accepted the message. The message is done when [`MessageConnection::is_done`] returns true for
    /// this id.
    Accepted(MessageId),
    /// The connection did not accept the message. Poll and try again.
    Full(Backpressure),
}

/// Reason for which a connection does not accept a message now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backpressure {
    /// The number of unacknowledged messages has reached the window.
    Window,
    /// The peer has no receive or space left. The program of the peer must free messages first.
    Credits,
}

/// State of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer's RNIC has received the message. In protocols in which the receiver READs messages, the peer has read
    /// the message.
    Done,
    /// The message waits to be posted or is in flight.
    Pending,
    /// The connection ended before the peer confirmed the arrival of the message.
    Failed(ConnectionError),
}

/// A received message. While the message exists, its memory is not reused.
///
/// This trait only copies the bytes of the message. In some protocols, the peer can write to the memory of a held
/// message, and a slice of memory that changes is undefined behaviour. In protocols whose peer cannot write to this
/// memory, the message also derefs to a slice.
#[allow(clippy::len_without_is_empty)] // a message of 0 B is a valid message
pub trait Received: Send {
    /// Returns the number of bytes of the message.
    fn len(&self) -> usize;

    /// Copies the first bytes of the message into `out`, as many as fit. Returns the number of copied bytes.
    fn copy_to(&self, out: &mut [u8]) -> usize;

    /// Returns a copy of all bytes of the message.
    fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        let copied = self.copy_to(&mut out);
        debug_assert_eq!(copied, out.len());
        out
    }
}

/// Implements [`Received`] for messages that deref to a slice.
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
/// The program must call [`poll`](Self::poll) again and again. [`receive`](Self::receive) also polls. Without polls,
/// only requests that are already posted make progress. After the connection has ended, calls return the reason, and
/// [`outcome`](Self::outcome) returns for each message whether its arrival was confirmed.
pub trait MessageConnection {
    /// Type of a received message. Dropping a message gives its buffer back, from any thread and in any order.
    type Message: Received;

    /// Sends a message. The connection copies the bytes, so the program may reuse `message` at once.
    ///
    /// # Errors
    ///
    /// The connection has ended, or the message is longer than [`max_send`](Self::max_send)
    /// ([`ConnectionError::Misuse`]). After a misuse, the connection stays usable.
    fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError>;

    /// Sends a message from memory of the program, without copying. The program must not change the memory until the
    /// message is done. Otherwise the peer may receive old or new bytes. [`Connector::source_access`] returns the
    /// access that the region needs. [`Connector::bytes_behind`] returns the number of bytes directly after the message
    /// that the protocol uses.
    ///
    /// # Errors
    ///
    /// The connection has ended. Or the call is a misuse ([`ConnectionError::Misuse`]): the message is longer than the
    /// peer accepts, is not inside the region, or the region lacks the needed access. After a misuse, the connection
    /// stays usable.
    fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError>;

    /// Checks that [`send_from`](Self::send_from) can send a message from this memory.
    ///
    /// # Errors
    ///
    /// The message is longer than the peer accepts, is not inside the region, or the region lacks the needed access.
    fn check_source(&self, region: &Region, offset: usize, length: usize) -> Result<(), Misuse>;

    /// Returns the reason for which the connection does not accept a message of this length now, or `None` if the
    /// connection accepts it.
    ///
    /// # Errors
    ///
    /// The connection has ended.
    fn refusal(&mut self, length: usize) -> Result<Option<Backpressure>, ConnectionError>;

    /// Returns the value of [`Connector::bytes_behind`] of this connection.
    fn bytes_behind(&self) -> usize {
        0
    }

    /// Posts messages that wait for a full batch.
    ///
    /// # Errors
    ///
    /// The device rejects a work request, and the connection ends. If no messages wait, the call succeeds, even after
    /// the connection has ended.
    fn flush(&mut self) -> Result<(), ConnectionError>;

    /// Returns the bytes of the longest message that [`send`](Self::send) accepts.
    fn max_send(&self) -> usize;

    /// Advances the connection. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// The connection has ended. [`take`](Self::take) still returns messages that arrived before the end.
    fn poll(&mut self) -> Result<bool, ConnectionError>;

    /// Returns the next message that a poll has received, if any.
    fn take(&mut self) -> Option<Self::Message>;

    /// Returns the next message, if one has arrived. Polls if no message has arrived.
    ///
    /// # Errors
    ///
    /// The connection has ended. Or the peer has closed its side and the program has taken all messages
    /// ([`ConnectionError::PeerClosed`]). In the case of `PeerClosed`, this side can still send.
    fn receive(&mut self) -> Result<Option<Self::Message>, ConnectionError> {
        self.receive_noting(&mut false)
    }

    /// Receives as [`receive`](Self::receive) does. Sets `moved` if a message arrived or the poll reported an event. A
    /// caller needs `moved` if it sleeps while nothing happens and also waits for other events, such as the
    /// acknowledgement of its goodbye.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`receive`](Self::receive).
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

    /// Returns the id of the latest message that is done. All messages with smaller ids are also done.
    fn last_done(&self) -> MessageId;

    /// Returns whether the message with this id is done.
    fn is_done(&self, id: MessageId) -> bool {
        id <= self.last_done()
    }

    /// Returns the state of the message with this id.
    fn outcome(&self, id: MessageId) -> Outcome {
        match self.over() {
            _ if self.is_done(id) => Outcome::Done,
            Some(error) => Outcome::Failed(error),
            None => Outcome::Pending,
        }
    }

    /// Returns the number of messages that the connection has accepted and that are not done.
    fn unacknowledged(&self) -> u64;

    /// Closes this side: it cannot send messages any more. The connection delivers the messages that it has accepted,
    /// and then sends a goodbye to the peer. Poll until [`is_closed`](Self::is_closed) returns true. This side can
    /// receive messages until the peer has closed its side.
    fn close(&mut self);

    /// Returns whether the peer's RNIC has acknowledged the goodbye of this side, or the connection has ended. After
    /// the goodbye of the peer, the wait for the acknowledgement is bounded (see
    /// [`Config::keepalive_ns`](crate::Config::keepalive_ns)).
    fn is_closed(&self) -> bool;

    /// Returns whether the peer has closed its side. [`take`](Self::take) still returns messages that arrived before.
    fn is_peer_closed(&self) -> bool;

    /// Returns the reason for which the connection has ended, or `None` if the connection has not ended.
    fn over(&self) -> Option<ConnectionError>;

    /// Arms one notification on the completion channel of this end. Before the program waits, it must poll once more:
    /// completions that arrived before this call may raise no notification.
    fn arm(&self);

    /// Returns the completion channel of this end, if the end has one.
    fn channel(&self) -> Option<&Channel>;

    /// Returns whether every event that this connection waits for raises a notification. If not, the caller must poll
    /// instead of sleeping.
    fn notifies(&self) -> bool {
        true
    }

    /// Returns the time on the device's clock at which the caller must poll, even if no event occurs. `None` if no such
    /// poll is due.
    fn poll_timeout_ns(&self) -> Option<u64>;

    /// Returns the number of keepalives that this side has sent. A keepalive is a WRITE of 0 B.
    fn keepalives(&self) -> u64;

    /// Returns the number of sent messages without data that the RNIC's counters cannot distinguish from empty
    /// messages. Returns 0 if the counters can distinguish them.
    fn control_sends(&self) -> u64 {
        0
    }

    /// Returns the queue pair, for queries.
    fn qp(&self) -> &Qp;
}

/// Parameters of several ends in one process.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Protection domain of the ends.
    pub pd: &'a Pd,
    /// Completion channel for the notifications of the ends.
    pub channel: Option<&'a Channel>,
    /// Number of ends.
    pub count: usize,
    /// Receives that the ends share. Protocols without receive buffers for data ignore this field.
    pub shared: Option<&'a SharedReceives>,
    /// Whether one thread receives from all ends, or no receiving thread waits for another, so that the ends may share
    /// a ring.
    pub one_thread: bool,
}

/// A factory for connections of one protocol in one variant.
pub trait Connector {
    /// One end of a connection that is not connected yet.
    type Endpoint;
    /// A connection.
    type Connection: MessageConnection;

    /// Returns the protocol and variant of the connections. A [`Protocol`] has a name and properties.
    fn protocol(&self) -> Protocol;

    /// Returns the access that a region needs for [`MessageConnection::send_from`].
    fn source_access(&self) -> Access {
        Access::empty()
    }

    /// Returns the number of bytes directly after a message in its region that the protocol uses
    /// ([`MessageConnection::send_from`]). No other message may use these bytes until the message is done.
    fn bytes_behind(&self) -> usize {
        0
    }

    /// Makes an end. With a channel, [`MessageConnection::arm`] arms notifications on the channel.
    ///
    /// # Errors
    ///
    /// The configuration is not allowed ([`ConnectError::Setting`]), or the device cannot make a queue, the queue pair
    /// or memory.
    fn endpoint(&self, pd: &Pd, config: &Config, channel: Option<&Channel>) -> Result<Self::Endpoint, ConnectError>;

    /// Makes all ends of a group.
    ///
    /// # Errors
    ///
    /// One of the ends cannot be made.
    fn endpoints(&self, group: &Group<'_>, config: &Config) -> Result<Vec<Self::Endpoint>, ConnectError> {
        (0..group.count).map(|_| self.endpoint(group.pd, config, group.channel)).collect()
    }

    /// Returns the description that the peer needs.
    fn describe(&self, endpoint: &Self::Endpoint) -> EndpointDescription;

    /// Connects to the peer with this description. The returned connection can send messages at once.
    ///
    /// # Errors
    ///
    /// The protocol, the setting of credits, the UDP port or another value of the peer's description does not match
    /// this end. Or too few shared receives are left for the connection ([`ConnectError::Crowded`],
    /// [`ConnectError::NoShare`]). Or the device rejects memory, a transition of the queue pair or the first receives.
    fn connect(&self, endpoint: Self::Endpoint, peer: &EndpointDescription) -> Result<Self::Connection, ConnectError>;
}
