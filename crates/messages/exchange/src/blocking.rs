//! Connections with blocking calls, which poll for a while and then sleep on the completion channel.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use doorbell_verbs::Channel;

use crate::connection::error::ConnectionError;
use crate::connection::split;
use crate::connection::waiting;
use crate::connection::waiting::Waiter;
use crate::connection::{MessageConnection, MessageId};

/// Number of polls without an event after which a thread sleeps. The polls take some hundred microseconds.
const SPINS: u32 = 500;

/// A connection with blocking calls.
///
/// Without a completion channel, a waiting call polls all the time and sometimes yields its CPU. With a channel, a
/// waiting call sleeps on the channel after a number of polls without an event.
#[derive(Debug)]
pub struct Blocking<C = crate::protocol::send_receive::Connection> {
    connection: C,
    spins: u32,
}

impl<C: MessageConnection> Blocking<C> {
    /// Wraps a connection.
    pub fn new(connection: C) -> Self {
        Self { connection, spins: SPINS }
    }

    /// Sets the number of polls without an event after which a thread sleeps. 0 counts as 1.
    pub fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Sends a message and waits until the connection has accepted it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`MessageConnection::send`].
    pub fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        self.until(waiting::accepted(message))
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectionError::PeerClosed`] if the peer has closed its side and no more messages can come. Any other
    /// error means that the connection has ended. Calls before the error have returned all messages that had arrived.
    pub fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        self.until(waiting::arrived)
    }

    /// Waits until the message with this id is done.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer confirmed the arrival of the message.
    pub fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        self.until(waiting::done(id))
    }

    /// Sends a goodbye after all messages are delivered, and waits for its acknowledgement.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer's RNIC acknowledged all messages and the goodbye.
    pub fn close(&mut self) -> Result<(), ConnectionError> {
        self.connection.close();
        self.until(waiting::closed)
    }

    /// Closes both sides: sends a goodbye, and waits for its acknowledgement and for the peer's goodbye. Drops messages
    /// that arrive before the peer's goodbye. After this call, no message can be lost when this side drops the
    /// connection.
    ///
    /// # Errors
    ///
    /// The connection ended before both goodbyes were exchanged.
    pub fn finish(mut self) -> Result<(), ConnectionError> {
        self.close()?;
        self.until(waiting::drained)
    }

    /// Returns a reference to the connection.
    pub fn get(&self) -> &C {
        &self.connection
    }

    /// Returns a mutable reference to the connection.
    pub fn get_mut(&mut self) -> &mut C {
        &mut self.connection
    }

    /// Returns the connection without its blocking wrapper.
    pub fn into_inner(self) -> C {
        self.connection
    }

    /// Splits the connection into a half that sends and a half that receives, for two threads. Each call of a half
    /// takes a lock, but no thread holds the lock while it waits.
    pub fn split(self) -> (SendHalf<C>, ReceiveHalf<C>) {
        let (send, receive) = split::split(self.connection, Block, self.spins.max(1));
        (SendHalf(send), ReceiveHalf(receive))
    }

    /// Advances the connection until `attempt` succeeds. Sleeps after a number of polls without an event.
    fn until<T>(&mut self, mut attempt: impl FnMut(&mut C) -> waiting::Attempt<T>) -> Result<T, ConnectionError> {
        if let Some(value) = attempt(&mut self.connection)? {
            return Ok(value);
        }
        block_on(waiting::until(&mut self.connection, &Block, self.spins.max(1), attempt))
    }
}

/// A waiter that blocks the polling thread.
#[derive(Clone, Copy, Debug)]
struct Block;

impl Waiter for Block {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        match channel {
            // The result of the wait does not matter, since the caller polls next.
            Some(channel) => {
                drop(channel.wait(deadline_ns.map(|deadline_ns| channel.device().time_until(deadline_ns))))
            }
            // A peer on this machine may need this CPU.
            None => thread::yield_now(),
        }
    }

    fn wants_notification(&self) -> bool {
        true
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    UNPARK.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
            // A peer on this machine may need this CPU.
            thread::yield_now();
            thread::park();
        }
    })
}

/// The half of a connection that sends. Dropping this half closes this side. Sending the goodbye may need further
/// polls. The other half does these polls while one of its calls waits.
#[derive(Debug)]
pub struct SendHalf<C: MessageConnection = crate::protocol::send_receive::Connection>(split::SendHalf<Block, C>);

/// The half of a connection that receives. After this half is dropped, the program receives no messages. The peer can
/// send until its window or its credits are used up.
#[derive(Debug)]
pub struct ReceiveHalf<C: MessageConnection = crate::protocol::send_receive::Connection>(split::ReceiveHalf<Block, C>);

impl<C: MessageConnection> SendHalf<C> {
    /// Sends a message and waits until the connection has accepted it.
    ///
    /// # Errors
    ///
    /// The connection has ended, or the message is too long ([`ConnectionError::Misuse`]). After a misuse, the
    /// connection stays usable.
    pub fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        block_on(self.0.send(message))
    }

    /// Waits until the message with this id is done.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer confirmed the arrival of the message.
    pub fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        block_on(self.0.wait(id))
    }

    /// Sends a goodbye after all messages are delivered, and waits for its acknowledgement. The other half can still
    /// receive.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer's RNIC acknowledged the goodbye.
    pub fn close(self) -> Result<(), ConnectionError> {
        block_on(self.0.close())
    }
}

impl<C: MessageConnection> ReceiveHalf<C> {
    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// The connection has ended. Or the peer has closed its side and no more messages can come
    /// ([`ConnectionError::PeerClosed`]).
    pub fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        block_on(self.0.receive())
    }
}
