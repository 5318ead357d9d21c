//! What connections of every protocol have in common for a program.
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

/// Names a message of a connection. Ids rise by one.
pub type MessageId = u64;

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// Taken: it is done when [`MessageConnection::is_done`] says so of this id.
    Accepted(MessageId),
    /// Not taken, and nothing is wrong: poll and try again.
    Full(Backpressure),
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backpressure {
    /// As many messages as the window allows are unacknowledged.
    Window,
    /// The peer has no receive left: it must free messages first.
    Credits,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer has it: its RNIC, or, where the peer pulls messages, the peer.
    Done,
    /// It is on its way.
    Pending,
    /// The connection ended before it was known to have arrived.
    Failed(ConnectionError),
}

/// A received message, which holds the memory that it lies in.
///
/// Its bytes are copied out, since some protocols let the peer reach that memory while the message
/// is held, and a slice of memory that changes is undefined behaviour. Where the peer cannot, the
/// message is a slice too.
#[allow(clippy::len_without_is_empty)] // a message of no bytes is a message
pub trait Received: Send {
    /// Bytes.
    fn len(&self) -> usize;

    /// Copies its first bytes, as many as `out` has room for. Returns how many.
    fn copy_to(&self, out: &mut [u8]) -> usize;

    /// All its bytes.
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

/// A connection that carries messages both ways: a non-blocking state machine.
///
/// Call [`poll`](Self::poll) (or [`receive`](Self::receive), which polls) again and again;
/// nothing moves otherwise but what was posted already. When the connection is over, every call
/// says why, and [`outcome`](Self::outcome) tells of each message whether it arrived.
pub trait MessageConnection {
    /// A received message. Dropping it gives its buffer back, from any thread and in any order.
    type Message: Received;

    /// Sends a message, which is copied (or goes inline).
    ///
    /// # Errors
    ///
    /// The connection is over. Or the message is longer than [`max_send`](Self::max_send)
    /// ([`ConnectionError::Misuse`]): then the connection goes on.
    fn send(&mut self, message: &[u8]) -> Result<Submit, ConnectionError>;

    /// Sends a message from memory of the program, without copying. The memory must not change
    /// until the message is done; if it does, the peer may see either. What access the region
    /// needs, and whether bytes behind the message are used, [`Connector::source_access`] and
    /// [`Connector::bytes_behind`] say.
    ///
    /// # Errors
    ///
    /// The connection is over. Or the message is longer than the peer takes, or not inside the region, or the region
    /// lacks the access that the protocol needs ([`ConnectionError::Misuse`]): then the connection goes on.
    fn send_from(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, ConnectionError>;

    /// Posts messages that wait for their batch to be full.
    ///
    /// # Errors
    ///
    /// The device refuses a work request: then the connection is over. A call that finds nothing to post succeeds, also
    /// on a connection that is over.
    fn flush(&mut self) -> Result<(), ConnectionError>;

    /// Bytes of the longest message that [`send`](Self::send) takes.
    fn max_send(&self) -> usize;

    /// Moves the connection along. Returns whether anything happened.
    ///
    /// # Errors
    ///
    /// The connection is over. Messages that arrived before can still be taken.
    fn poll(&mut self) -> Result<bool, ConnectionError>;

    /// The next message of those that a poll has brought.
    fn take(&mut self) -> Option<Self::Message>;

    /// The next message, if one has arrived. Polls if none has.
    ///
    /// # Errors
    ///
    /// The connection is over; or the peer has closed its side and every message was taken
    /// ([`ConnectionError::PeerClosed`]: sending is still possible then).
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

    /// The last id that is done. All before it are done as well.
    fn last_done(&self) -> MessageId;

    /// Is this message done?
    fn is_done(&self, id: MessageId) -> bool {
        id <= self.last_done()
    }

    /// What became of a message.
    fn outcome(&self, id: MessageId) -> Outcome {
        match self.over() {
            _ if self.is_done(id) => Outcome::Done,
            Some(error) => Outcome::Failed(error),
            None => Outcome::Pending,
        }
    }

    /// Messages that are accepted and not done.
    fn unacknowledged(&self) -> u64;

    /// Closes this side: nothing more can be sent, what was sent is still delivered, and then the
    /// peer is told. Poll until [`is_closed`](Self::is_closed). Messages of the peer can still be
    /// received until it has closed its side too.
    fn close(&mut self);

    /// Has the peer's RNIC taken the goodbye, or is the connection over anyway?
    fn is_closed(&self) -> bool;

    /// Has the peer closed its side? Messages that arrived before can still be taken.
    fn is_peer_closed(&self) -> bool;

    /// Why the connection is over, if it is.
    fn over(&self) -> Option<ConnectionError>;

    /// Arms one notification on the channel that the end was made with. Poll once more before
    /// waiting: what is there already may raise none.
    fn arm(&self);

    /// The channel, if there is one.
    fn channel(&self) -> Option<&Channel>;

    /// Does everything that this connection waits for now raise a notification? If not, it has to
    /// be polled.
    fn notifies(&self) -> bool {
        true
    }

    /// When the connection wants to be polled even if nothing happens.
    fn poll_timeout_ns(&self) -> Option<u64>;

    /// Messages that asked whether the peer lives: WRITEs of no bytes.
    fn keepalives(&self) -> u64;

    /// Messages sent that carried no data, if those of no bytes look the same to counters; else 0.
    fn control_sends(&self) -> u64 {
        0
    }

    /// The queue pair, for queries.
    fn qp(&self) -> &Qp;
}

/// Several ends of one process.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Where they are made.
    pub pd: &'a Pd,
    /// Where they notify.
    pub channel: Option<&'a Channel>,
    /// How many.
    pub count: usize,
    /// Receives that they share. Only Send-Receive uses them.
    pub shared: Option<&'a SharedReceives>,
    /// One thread receives from all of them, so that they may share a ring.
    pub one_thread: bool,
}

/// Makes connections of one protocol, in one of its variants.
pub trait Connector {
    /// One end of a connection to be.
    type Endpoint;
    /// A connection.
    type Connection: MessageConnection;

    /// Which protocol and variant: its name and what it can do.
    fn protocol(&self) -> Protocol;

    /// What a region has to be registered for that messages are sent from
    /// ([`MessageConnection::send_from`]).
    fn source_access(&self) -> Access {
        Access::empty()
    }

    /// Bytes behind a message in such a region that belong to it: no other message may use them
    /// until it is done.
    fn bytes_behind(&self) -> usize {
        0
    }

    /// Makes an end. With a channel, [`MessageConnection::arm`] notifies there.
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

    /// What the peer needs to know.
    fn describe(&self, endpoint: &Self::Endpoint) -> EndpointDescription;

    /// Connects with the peer whose description this is. From then on it can be sent to.
    ///
    /// # Errors
    ///
    /// The two ends do not fit together (protocol, credits, UDP port or description); shared receives have no part left
    /// for the connection ([`ConnectError::Crowded`], [`ConnectError::NoShare`]); or memory, the queue pair's
    /// transitions or the first receives are refused.
    fn connect(&self, endpoint: Self::Endpoint, peer: &EndpointDescription) -> Result<Self::Connection, ConnectError>;

    /// One source for the readers at the other ends of these connections, if the protocol has that.
    ///
    /// # Errors
    ///
    /// A connection cannot be part of it.
    fn replicate(_connections: Vec<Self::Connection>) -> Result<Option<Replication>, ConnectError> {
        Ok(None)
    }
}
