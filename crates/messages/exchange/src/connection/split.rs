//! A connection that is split into two halves, for two tasks or two threads.
//!
//! The halves share the connection under a lock. A half releases the lock before it waits. If both halves wait, one
//! half *drives*: it sleeps until a notification of the connection, and then advances the connection. The other half
//! *follows*: the driving half wakes it after each step. The following half becomes the driving half when the driving
//! half has its result or is dropped.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use doorbell_sync::IgnorePoison;

use crate::connection::error::ConnectionError;
use crate::connection::waiting::{self, LockObserver, Wait, Waiter};
use crate::connection::{MessageConnection, MessageId};

/// State that both halves share.
#[derive(Debug)]
struct Halves<W, C> {
    state: Mutex<State<C>>,
    waiter: W,
    observer: Option<Box<dyn LockObserver>>,
    /// Number of consecutive polls without an event after which a half waits.
    spins: u32,
}

#[derive(Debug)]
struct State<C> {
    connection: C,
    /// Whether one half drives the connection.
    is_driven: bool,
    /// Counter that rises each time the following half must try again.
    turns: u64,
    follower: Option<Waker>,
}

impl<C> State<C> {
    fn wake_follower(&mut self) {
        self.turns += 1;
        if let Some(waker) = self.follower.take() {
            waker.wake();
        }
    }
}

/// Guard of the locked state.
struct Locked<'a, C> {
    state: MutexGuard<'a, State<C>>,
    observer: Option<&'a dyn LockObserver>,
}

impl<C> Deref for Locked<'_, C> {
    type Target = State<C>;

    fn deref(&self) -> &State<C> {
        &self.state
    }
}

impl<C> DerefMut for Locked<'_, C> {
    fn deref_mut(&mut self) -> &mut State<C> {
        &mut self.state
    }
}

impl<C> Drop for Locked<'_, C> {
    fn drop(&mut self) {
        if let Some(observer) = self.observer {
            observer.released();
        }
    }
}

/// Next step of a half that tries an attempt.
enum Turn<T> {
    Ready(T),
    /// The half must wait for notifications, for both halves.
    Drive,
    /// The half must wait until `State::turns` differs from this number.
    Follow(u64),
}

impl<W: Waiter, C: MessageConnection> Halves<W, C> {
    fn lock(&self) -> Locked<'_, C> {
        // If a call panics while it holds the lock, the connection stays usable, as after an error.
        let state = self.state.lock().ignore_poison();
        let observer = self.observer.as_deref();
        if let Some(observer) = observer {
            observer.taken();
        }
        Locked { state, observer }
    }

    /// Advances the connection until `attempt` succeeds.
    async fn until<T>(&self, mut attempt: impl FnMut(&mut C) -> waiting::Attempt<T>) -> Result<T, ConnectionError> {
        loop {
            match self.turn(&mut attempt)? {
                Turn::Ready(value) => return Ok(value),
                Turn::Drive => self.drive().await?,
                Turn::Follow(turns) => self.follow(turns).await,
            }
        }
    }

    fn turn<T>(&self, attempt: &mut impl FnMut(&mut C) -> waiting::Attempt<T>) -> Result<Turn<T>, ConnectionError> {
        let mut spins = 0;
        loop {
            // Each iteration releases the lock, so that the other half can post between two polls.
            let mut state = self.lock();
            if let Some(value) = attempt(&mut state.connection)? {
                return Ok(Turn::Ready(value));
            }
            let moved = state.connection.poll();
            if !matches!(moved, Ok(false)) {
                state.wake_follower();
            }
            if moved? {
                continue;
            }
            spins += 1;
            if spins < self.spins {
                continue;
            }
            if state.is_driven {
                return Ok(Turn::Follow(state.turns));
            }
            state.is_driven = true;
            return Ok(Turn::Drive);
        }
    }

    async fn follow(&self, turns: u64) {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.turns != turns {
                return Poll::Ready(());
            }
            state.follower = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits for notifications. If the future is dropped, the other half becomes the driving half.
    async fn drive(&self) -> Result<(), ConnectionError> {
        let _hand_over = HandOver(self);
        // This statement releases the lock before the wait. The drop of `_hand_over` takes the lock again.
        let prepared = Wait::prepare(&mut self.lock().connection, &self.waiter);
        prepared?.pass(&self.waiter).await;
        Ok(())
    }
}

/// A guard that lets the other half drive the connection when it is dropped.
struct HandOver<'a, W: Waiter, C: MessageConnection>(&'a Halves<W, C>);

impl<W: Waiter, C: MessageConnection> Drop for HandOver<'_, W, C> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_driven = false;
        state.wake_follower();
    }
}

/// The half that sends. Dropping this half closes this side of the connection. Sending the goodbye may need further
/// polls. The other half does these polls while one of its calls waits.
#[derive(Debug)]
pub struct SendHalf<W: Waiter, C: MessageConnection>(Arc<Halves<W, C>>);

/// The half that receives. After this half is dropped, the program receives no messages. The peer can send until its
/// window or its credits are used up.
#[derive(Debug)]
pub struct ReceiveHalf<W: Waiter, C: MessageConnection>(Arc<Halves<W, C>>);

pub(crate) fn split<W: Waiter, C: MessageConnection>(
    connection: C,
    waiter: W,
    spins: u32,
) -> (SendHalf<W, C>, ReceiveHalf<W, C>) {
    let state = State { connection, is_driven: false, turns: 0, follower: None };
    let observer = waiter.observe_lock();
    let shared = Arc::new(Halves { state: Mutex::new(state), waiter, observer, spins });
    (SendHalf(Arc::clone(&shared)), ReceiveHalf(shared))
}

impl<W: Waiter, C: MessageConnection> SendHalf<W, C> {
    /// Sends a message and waits until the connection has accepted it.
    ///
    /// This method is cancel safe: if the future is dropped before it is complete, the message is not sent.
    ///
    /// # Errors
    ///
    /// The connection has ended, or the message is too long ([`ConnectionError::Misuse`]). After a misuse, the
    /// connection stays usable.
    pub async fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        self.0.until(waiting::accepted(message)).await
    }

    /// Waits until the message with this id is done. This method is cancel safe.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer confirmed the arrival of the message.
    pub async fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        self.0.until(waiting::done(id)).await
    }

    /// Sends a goodbye after all messages are delivered, and waits for its acknowledgement. The other half can still
    /// receive. If the future is dropped, the goodbye is still sent.
    ///
    /// # Errors
    ///
    /// The connection ended before the peer's RNIC acknowledged the goodbye.
    pub async fn close(self) -> Result<(), ConnectionError> {
        self.0.lock().connection.close();
        self.0.until(waiting::closed).await
    }
}

impl<W: Waiter, C: MessageConnection> Drop for SendHalf<W, C> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.connection.close();
        // Only a poll posts the goodbye.
        let _ = state.connection.poll();
        state.wake_follower();
    }
}

impl<W: Waiter, C: MessageConnection> ReceiveHalf<W, C> {
    /// Waits for the next message. This method is cancel safe: no message is lost.
    ///
    /// # Errors
    ///
    /// The connection has ended. Or the peer has closed its side and no more messages can come
    /// ([`ConnectionError::PeerClosed`]).
    pub async fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        self.0.until(waiting::arrived).await
    }
}
