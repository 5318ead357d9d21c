//! Waiting without a thread: the same connection for `async` code.
//!
//! The futures here work with any runtime. How they wait is up to a [`Waiter`]: [`Spin`] comes
//! back at once, after letting other tasks run, which is what lowest latency needs; a waiter that
//! sleeps on the completion channel's file descriptor is a few lines with any runtime.

use std::future::{Future, poll_fn};
use std::task::Poll;

use doorbell_verbs::Channel;

use crate::connection::{MessageConnection, MessageId};
use crate::error::ConnectionError;
pub use crate::split::{ReceiveHalf, SendHalf};
use crate::waiting;

/// How a task waits when a connection has nothing to do.
pub trait Waiter {
    /// Waits until the connection is worth polling again.
    ///
    /// With `channel`, the caller has armed a notification on it and has polled the connection once more since: the
    /// waiter returns once the channel's descriptor is readable, and at the deadline at the latest. It leaves the
    /// notifications on the channel, since they may be those of other connections. Without `channel`, no notification
    /// will come, and the waiter returns as soon as other tasks have had their turn.
    ///
    /// The deadline is a time on the device's clock ([`Device::now_ns`](doorbell_verbs::Device::now_ns)), in
    /// nanoseconds: then the connection has something to do by itself, such as asking whether the peer lives. A
    /// waiter that sleeps longer lets a dead peer go unnoticed. `None` means that nothing is due by itself.
    ///
    /// The caller may drop the future before it is complete.
    fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) -> impl Future<Output = ()>;

    /// Does it want notifications armed?
    fn wants_notification(&self) -> bool;

    /// An observer for the lock that the two halves of a split connection share. Only a simulator returns one: there,
    /// threads wait for one another's locks in virtual time.
    fn observe_lock(&self) -> Option<Box<dyn LockObserver>> {
        None
    }

    /// Workloads await this after each message. The future is ready at once, except under a simulator, which lets the
    /// time pass that the message has cost, so that no task runs for ever within one moment of virtual time.
    fn breathe(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// Hears when threads take a lock, and when they let go of it.
pub trait LockObserver: std::fmt::Debug + Send + Sync {
    /// The running thread has taken the lock.
    fn taken(&self);

    /// The running thread is about to let go of the lock.
    fn released(&self);
}

/// Comes back at once, after every other task had its turn.
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

/// Lets other tasks run.
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
/// All of them are safe to cancel, in `select!` or by a timeout: a future that is dropped before it is complete has
/// sent no message and has lost none. Only a goodbye, once begun by [`close`](Self::close), is not taken back.
#[derive(Debug)]
pub struct Async<W, C = crate::send_receive::Connection> {
    connection: C,
    waiter: W,
}

impl<W: Waiter, C: MessageConnection> Async<W, C> {
    /// Wraps a connection.
    pub fn new(connection: C, waiter: W) -> Self {
        Self { connection, waiter }
    }

    /// Sends a message, waiting until it is taken. A message whose future was dropped before it was complete is not
    /// sent.
    ///
    /// # Errors
    ///
    /// As [`MessageConnection::send`].
    pub async fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        self.until(waiting::accepted(message)).await
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::PeerClosed`] if the peer has closed its side and no more messages can come. Otherwise the
    /// connection is over; messages that had arrived were returned before.
    pub async fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        self.until(waiting::arrived).await
    }

    /// Waits until a message is done.
    ///
    /// # Errors
    ///
    /// The connection ended before the message was known to have arrived.
    pub async fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        self.until(waiting::done(id)).await
    }

    /// Says goodbye, after everything is delivered.
    ///
    /// # Errors
    ///
    /// The connection ended before everything was delivered and the goodbye was said.
    pub async fn close(&mut self) -> Result<(), ConnectionError> {
        self.connection.close();
        self.until(waiting::closed).await
    }

    /// Moves the connection along until something happened.
    ///
    /// # Errors
    ///
    /// The connection is over. Messages that arrived before can still be taken.
    pub async fn progress(&mut self) -> Result<(), ConnectionError> {
        waiting::progress(&mut self.connection, &self.waiter, 1).await
    }

    async fn until<T>(&mut self, attempt: impl FnMut(&mut C) -> waiting::Attempt<T>) -> Result<T, ConnectionError> {
        waiting::until(&mut self.connection, &self.waiter, 1, attempt).await
    }

    /// Closes both sides: says goodbye, and waits for the peer's. Messages that come before it are dropped. Then
    /// either side may drop its connection without harm to the other.
    ///
    /// # Errors
    ///
    /// The connection ended before both goodbyes were said.
    pub async fn finish(mut self) -> Result<(), ConnectionError> {
        self.close().await?;
        self.until(waiting::drained).await
    }

    /// The connection.
    pub fn get(&self) -> &C {
        &self.connection
    }

    /// The connection.
    pub fn get_mut(&mut self) -> &mut C {
        &mut self.connection
    }

    /// Gives the connection back.
    pub fn into_inner(self) -> C {
        self.connection
    }

    pub(crate) fn into_parts(self) -> (C, W) {
        (self.connection, self.waiter)
    }
}
