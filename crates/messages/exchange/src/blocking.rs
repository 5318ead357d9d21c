//! Connections for threads: they poll for a while, then sleep on the completion channel.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use doorbell_verbs::Channel;

use crate::asynchronous::Waiter;
use crate::connection::{MessageConnection, MessageId};
use crate::error::ConnectionError;
use crate::split;
use crate::waiting;

/// Maximum number of empty polls before a thread sleeps: some hundred microseconds.
const SPINS: u32 = 500;

/// A connection with blocking calls.
///
/// Without a completion channel it polls all the time and sometimes yields its CPU. With a channel it sleeps there
/// after a number of polls without result.
#[derive(Debug)]
pub struct Blocking<C = crate::send_receive::Connection> {
    connection: C,
    spins: u32,
}

impl<C: MessageConnection> Blocking<C> {
    /// Wraps a connection.
    pub fn new(connection: C) -> Self {
        Self { connection, spins: SPINS }
    }

    /// Sets the number of polls before a thread sleeps. With 0 it sleeps at once.
    pub fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Sends a message and waits until the connection has accepted it.
    ///
    /// # Errors
    ///
    /// As [`MessageConnection::send`].
    pub fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        self.until(waiting::accepted(message))
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::PeerClosed`] if the peer has closed its side and no more messages can come. Any other error
    /// means that the connection is over. Messages that had arrived were returned before.
    pub fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        self.until(waiting::arrived)
    }

    /// Waits until a message is done.
    ///
    /// # Errors
    ///
    /// The connection ended before the message was known to have arrived.
    pub fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        self.until(waiting::done(id))
    }

    /// Sends a goodbye after all messages are delivered, and waits for its acknowledgement.
    ///
    /// # Errors
    ///
    /// The connection ended before all messages and the goodbye were delivered.
    pub fn close(&mut self) -> Result<(), ConnectionError> {
        self.connection.close();
        self.until(waiting::closed)
    }

    /// Closes both sides: sends a goodbye and waits for the peer's goodbye. Messages that arrive before it are
    /// dropped. After that, each side may drop its connection without harm to the other.
    ///
    /// # Errors
    ///
    /// The connection ended before both goodbyes were exchanged.
    pub fn finish(mut self) -> Result<(), ConnectionError> {
        self.close()?;
        self.until(waiting::drained)
    }

    /// Returns the connection.
    pub fn get(&self) -> &C {
        &self.connection
    }

    /// Returns the connection, mutably.
    pub fn get_mut(&mut self) -> &mut C {
        &mut self.connection
    }

    /// Returns the connection without its wrapper.
    pub fn into_inner(self) -> C {
        self.connection
    }

    /// Splits the connection into a half that sends and one that receives, for two threads. After that, each call
    /// takes a lock. No thread holds the lock while it waits.
    pub fn split(self) -> (SendHalf<C>, ReceiveHalf<C>) {
        let (send, receive) = split::split(self.connection, Block, self.spins.max(1));
        (SendHalf(send), ReceiveHalf(receive))
    }

    /// Polls until an attempt succeeds, and sleeps after a number of polls without result.
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
            // An interrupted or failed wait does no harm: the caller polls next.
            Some(channel) => {
                drop(channel.wait(deadline_ns.map(|deadline_ns| channel.device().time_until(deadline_ns))))
            }
            // The peer may need this CPU.
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
            // The peer may need this CPU.
            thread::yield_now();
            thread::park();
        }
    })
}

/// The half of a connection that sends. Dropping it closes this side. The peer receives the goodbye while the other
/// half is being waited on.
#[derive(Debug)]
pub struct SendHalf<C: MessageConnection = crate::send_receive::Connection>(split::SendHalf<Block, C>);

/// The half of a connection that receives. After it is dropped, no message is received, and the peer can send until
/// its window or its credits are used up.
#[derive(Debug)]
pub struct ReceiveHalf<C: MessageConnection = crate::send_receive::Connection>(split::ReceiveHalf<Block, C>);

impl<C: MessageConnection> SendHalf<C> {
    /// Sends a message and waits until the connection has accepted it.
    ///
    /// # Errors
    ///
    /// The connection is over, or the message is too long ([`ConnectionError::Misuse`]). In the second case the
    /// connection stays usable.
    pub fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        block_on(self.0.send(message))
    }

    /// Waits until a message is done.
    ///
    /// # Errors
    ///
    /// The connection ended before the message was known to have arrived.
    pub fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        block_on(self.0.wait(id))
    }

    /// Sends a goodbye after all messages are delivered. The other half can still receive.
    ///
    /// # Errors
    ///
    /// The connection ended before the goodbye was delivered.
    pub fn close(self) -> Result<(), ConnectionError> {
        block_on(self.0.close())
    }
}

impl<C: MessageConnection> ReceiveHalf<C> {
    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// The connection is over, or the peer has closed its side and no more messages can come
    /// ([`ConnectionError::PeerClosed`]).
    pub fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        block_on(self.0.receive())
    }
}
