//! Waiting by busy-polling for a while, then sleeping on the completion channel.

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

/// Polls that find nothing before the thread goes to sleep, if it may: some hundred microseconds.
const SPINS: u32 = 500;

/// A connection whose calls wait.
///
/// Without a completion channel it busy-polls, and offers its CPU to others now and then; with one it sleeps there
/// once polling has found nothing for a while.
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

    /// Polls this often before going to sleep; 0 goes to sleep at once.
    pub fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Sends a message, waiting until it is taken.
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
    /// [`ConnectionError::PeerClosed`] if the peer has closed its side and no more messages can come. Otherwise the
    /// connection is over; messages that had arrived were returned before.
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

    /// Says goodbye, after everything is delivered.
    ///
    /// # Errors
    ///
    /// The connection ended before everything was delivered and the goodbye was said.
    pub fn close(&mut self) -> Result<(), ConnectionError> {
        self.connection.close();
        self.until(waiting::closed)
    }

    /// Closes both sides: says goodbye, and waits for the peer's. Messages that come before it are dropped. Then
    /// either side may drop its connection without harm to the other.
    ///
    /// # Errors
    ///
    /// The connection ended before both goodbyes were said.
    pub fn finish(mut self) -> Result<(), ConnectionError> {
        self.close()?;
        self.until(waiting::drained)
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

    /// Splits the connection into a half that sends and one that receives, for two threads. From here on each call
    /// takes a lock, which nobody holds while waiting.
    pub fn split(self) -> (SendHalf<C>, ReceiveHalf<C>) {
        let (send, receive) = split::split(self.connection, Block, self.spins.max(1));
        (SendHalf(send), ReceiveHalf(receive))
    }

    /// Polls until an attempt brings something, and sleeps in between once polling has become pointless.
    fn until<T>(&mut self, mut attempt: impl FnMut(&mut C) -> waiting::Attempt<T>) -> Result<T, ConnectionError> {
        if let Some(value) = attempt(&mut self.connection)? {
            return Ok(value);
        }
        block_on(waiting::until(&mut self.connection, &Block, self.spins.max(1), attempt))
    }
}

/// Blocks the thread that polls.
#[derive(Clone, Copy, Debug)]
struct Block;

impl Waiter for Block {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        match channel {
            // An interrupted or failed wait is no harm: polling tells.
            Some(channel) => {
                drop(channel.wait(deadline_ns.map(|deadline_ns| channel.device().time_until(deadline_ns))))
            }
            // The peer may wait for this very CPU.
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
            // The peer may wait for this very CPU.
            thread::yield_now();
            thread::park();
        }
    })
}

/// The half of a connection that sends. Dropping it closes this side; the peer is told as long as the other half is
/// waited on.
#[derive(Debug)]
pub struct SendHalf<C: MessageConnection = crate::send_receive::Connection>(split::SendHalf<Block, C>);

/// The half of a connection that receives. Once it is dropped nothing more is received, and the peer can send until its
/// window or its credits are used up.
#[derive(Debug)]
pub struct ReceiveHalf<C: MessageConnection = crate::send_receive::Connection>(split::ReceiveHalf<Block, C>);

impl<C: MessageConnection> SendHalf<C> {
    /// Sends a message, waiting until it is taken.
    ///
    /// # Errors
    ///
    /// The connection is over; or the message is too long ([`ConnectionError::Misuse`]), and the connection goes on.
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

    /// Says goodbye, after everything is delivered; the other half can still receive.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer had the goodbye.
    pub fn close(self) -> Result<(), ConnectionError> {
        block_on(self.0.close())
    }
}

impl<C: MessageConnection> ReceiveHalf<C> {
    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// The connection is over; or the peer has closed its side and no more can come
    /// ([`ConnectionError::PeerClosed`]).
    pub fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        block_on(self.0.receive())
    }
}
