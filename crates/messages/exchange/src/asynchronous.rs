//! Connections for `async` code. A waiting task blocks no thread.
//!
//! The futures of this module work with any runtime. A [`Waiter`] decides how a future waits. [`Spin`] returns as soon
//! as other tasks have run, which gives the lowest latency. For any runtime, a few lines implement a waiter that sleeps
//! on the file descriptor of the completion channel.

use std::future::{Future, poll_fn};
use std::task::Poll;

use doorbell_verbs::Channel;

use crate::connection::error::ConnectionError;
use crate::connection::split::split;
pub use crate::connection::split::{ReceiveHalf, SendHalf};
use crate::connection::waiting;
pub use crate::connection::waiting::{LockObserver, Waiter};
use crate::connection::{MessageConnection, MessageId};

/// A waiter that returns as soon as every other task has run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin;

impl Waiter for Spin {
    async fn wait(&self, _: Option<&Channel>, _: Option<u64>) {
        yield_now().await;
    }

    fn wants_notification(&self) -> bool {
        false
    }
}

/// Lets other tasks run once.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A connection whose calls are futures.
///
/// All futures are cancel safe, for example in `select!` or with a timeout. A future that is dropped before it is
/// complete has sent no message and has lost no received message. Only [`close`](Self::close) has an effect: the
/// connection still sends its goodbye.
#[derive(Debug)]
pub struct Async<W, C = crate::protocol::send_receive::Connection> {
    connection: C,
    waiter: W,
}

impl<W: Waiter, C: MessageConnection> Async<W, C> {
    /// Wraps a connection.
    pub fn new(connection: C, waiter: W) -> Self {
        Self { connection, waiter }
    }

    /// Sends a message and waits until the connection has accepted the message. If the future is dropped before it is
    /// complete, the message is not sent.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`MessageConnection::send`].
    pub async fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        self.until(waiting::accepted(message)).await
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectionError::PeerClosed`] if the peer has closed its side and no more messages can come. Any other
    /// error means that the connection has ended. Calls before the error have returned all messages that had arrived.
    pub async fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        self.until(waiting::arrived).await
    }

    /// Waits until the message with this id is done.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer confirmed the arrival of the message.
    pub async fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        self.until(waiting::done(id)).await
    }

    /// Sends a goodbye after all messages are delivered, and waits for its acknowledgement.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer's RNIC acknowledged all messages and the goodbye.
    pub async fn close(&mut self) -> Result<(), ConnectionError> {
        self.connection.close();
        self.until(waiting::closed).await
    }

    /// Advances the connection until an event occurs.
    ///
    /// # Errors
    ///
    /// The connection has ended. [`MessageConnection::take`] still returns messages that arrived before the end.
    pub async fn progress(&mut self) -> Result<(), ConnectionError> {
        waiting::progress(&mut self.connection, &self.waiter, 1).await
    }

    async fn until<T>(&mut self, attempt: impl FnMut(&mut C) -> waiting::Attempt<T>) -> Result<T, ConnectionError> {
        waiting::until(&mut self.connection, &self.waiter, 1, attempt).await
    }

    /// Closes both sides: sends a goodbye, and waits for its acknowledgement and for the peer's goodbye. Drops messages
    /// that arrive before the peer's goodbye. After this call, no message can be lost when this side drops the
    /// connection.
    ///
    /// # Errors
    ///
    /// The connection ended before both goodbyes were exchanged.
    pub async fn finish(mut self) -> Result<(), ConnectionError> {
        self.close().await?;
        self.until(waiting::drained).await
    }

    /// Returns a reference to the connection.
    pub fn get(&self) -> &C {
        &self.connection
    }

    /// Returns a mutable reference to the connection.
    pub fn get_mut(&mut self) -> &mut C {
        &mut self.connection
    }

    /// Returns the connection and drops the waiter.
    pub fn into_inner(self) -> C {
        self.connection
    }

    /// Splits the connection into a half that sends and a half that receives, for two tasks. Each call of a half takes
    /// a lock, but no half holds the lock while it waits.
    pub fn split(self) -> (SendHalf<W, C>, ReceiveHalf<W, C>) {
        split(self.connection, self.waiter, 1)
    }
}
