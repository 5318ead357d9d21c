//! The common wait of the blocking calls, the futures and the halves of both. It polls, arms a notification, polls
//! once more, sleeps until a notification or a deadline, and takes the notifications.

use std::future::{Future, poll_fn};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use doorbell_sync::IgnorePoison;
use doorbell_verbs::{Channel, CqId};
use rustc_hash::FxHashMap;

use crate::asynchronous::Waiter;
use crate::connection::{MessageConnection, MessageId, Outcome, Submit};
use crate::error::ConnectionError;

/// Result of an attempt: a value, once the connection has it.
pub(crate) type Attempt<T> = Result<Option<T>, ConnectionError>;

/// Returns an attempt to send a message.
pub(crate) fn accepted<C: MessageConnection>(message: &[u8]) -> impl FnMut(&mut C) -> Attempt<MessageId> {
    move |connection| match connection.send(message)? {
        Submit::Accepted(id) => Ok(Some(id)),
        Submit::Full(_) => Ok(None),
    }
}

/// Attempts to take a message.
pub(crate) fn arrived<C: MessageConnection>(connection: &mut C) -> Attempt<C::Message> {
    match connection.take() {
        None if connection.is_peer_closed() => Err(ConnectionError::PeerClosed),
        message => Ok(message),
    }
}

/// Returns an attempt that succeeds when a message is done.
pub(crate) fn done<C: MessageConnection>(id: MessageId) -> impl FnMut(&mut C) -> Attempt<()> {
    move |connection| match connection.outcome(id) {
        Outcome::Done => Ok(Some(())),
        Outcome::Failed(error) => Err(error),
        Outcome::Pending => Ok(None),
    }
}

/// Succeeds when the goodbye of this side was acknowledged.
pub(crate) fn closed<C: MessageConnection>(connection: &mut C) -> Attempt<()> {
    match connection.is_closed() {
        true => connection.over().map_or(Ok(Some(())), Err),
        false => Ok(None),
    }
}

/// Succeeds when the peer has said goodbye. Drops messages that come before it.
pub(crate) fn drained<C: MessageConnection>(connection: &mut C) -> Attempt<()> {
    while connection.take().is_some() {}
    Ok(connection.is_peer_closed().then_some(()))
}

/// Advances a connection until an attempt succeeds.
pub(crate) async fn until<C: MessageConnection, T>(
    connection: &mut C,
    waiter: &impl Waiter,
    spins: u32,
    mut attempt: impl FnMut(&mut C) -> Attempt<T>,
) -> Result<T, ConnectionError> {
    loop {
        if let Some(value) = attempt(connection)? {
            return Ok(value);
        }
        progress(connection, waiter, spins).await?;
    }
}

/// Advances a connection until an event occurs. Polls up to `spins` times before each wait.
pub(crate) async fn progress<C: MessageConnection>(
    connection: &mut C,
    waiter: &impl Waiter,
    spins: u32,
) -> Result<(), ConnectionError> {
    loop {
        for _ in 0..spins {
            if connection.poll()? {
                return Ok(());
            }
        }
        match Wait::prepare(connection, waiter)? {
            Wait::Not => return Ok(()),
            wait => wait.pass(waiter).await,
        }
    }
}

/// Next wait of a connection.
pub(crate) enum Wait {
    /// No wait, since an event occurred.
    Not,
    /// A turn of other tasks, since no notification will come, with the connection's deadline.
    Turn(Option<u64>),
    /// A notification or the deadline.
    Notification(Channel, Sleeper, u64),
}

impl Wait {
    /// Arms a notification, if one can come, and polls once more.
    pub(crate) fn prepare(
        connection: &mut impl MessageConnection,
        waiter: &impl Waiter,
    ) -> Result<Self, ConnectionError> {
        let wants_notification = waiter.wants_notification() && connection.notifies();
        let Some(channel) = connection.channel().filter(|_| wants_notification).cloned() else {
            return Ok(Self::Turn(connection.poll_timeout_ns()));
        };
        let sleeper = Sleeper::new(&channel, connection);
        connection.arm();
        // Completions before the arming may raise no notification.
        if connection.poll()? {
            return Ok(Self::Not);
        }
        let deadline_ns = sleep_deadline_ns(connection);
        Ok(Self::Notification(channel, sleeper, deadline_ns))
    }

    /// Waits. If the future is dropped, the notifications stay for other tasks.
    pub(crate) async fn pass(self, waiter: &impl Waiter) {
        match self {
            Self::Not => {}
            Self::Turn(deadline_ns) => waiter.wait(None, deadline_ns).await,
            Self::Notification(channel, sleeper, deadline_ns) => {
                {
                    let mut waiting = pin!(waiter.wait(Some(&channel), Some(deadline_ns)));
                    poll_fn(|context| match sleeper.is_notified(context.waker()) {
                        true => Poll::Ready(()),
                        false => waiting.as_mut().poll(context),
                    })
                    .await;
                }
                take_notifications(&channel);
            }
        }
    }
}

/// Maximum sleep, even if the connection has no deadline of its own. Polling reposts and reports the messages that
/// other threads drop.
const LONGEST_SLEEP_NS: u64 = 200_000_000;

/// Returns the time until which a connection may sleep, on its device's clock.
fn sleep_deadline_ns(connection: &impl MessageConnection) -> u64 {
    let longest_ns = connection.qp().pd().device().now_ns() + LONGEST_SLEEP_NS;
    connection.poll_timeout_ns().map_or(longest_ns, |deadline_ns| deadline_ns.min(longest_ns))
}

/// Key of a queue that notifies on a channel. No two channels have the same descriptor.
type Key = (RawFd, CqId);

#[derive(Default)]
struct State {
    is_notified: bool,
    waker: Option<Waker>,
}

/// Sleeping tasks. A channel may serve many connections, and the first task that wakes takes the notifications of
/// all.
static SLEEPERS: Mutex<Option<FxHashMap<Key, State>>> = Mutex::new(None);

fn sleepers() -> MutexGuard<'static, Option<FxHashMap<Key, State>>> {
    SLEEPERS.lock().ignore_poison()
}

/// A task that is about to sleep until its connection is notified.
#[derive(Debug)]
pub(crate) struct Sleeper(Key);

impl Sleeper {
    /// Registers the task. Must come before the notification is armed, since other tasks may take it from then on.
    fn new(channel: &Channel, connection: &impl MessageConnection) -> Self {
        let key = (channel.as_raw_fd(), connection.qp().recv_cq().id());
        sleepers().get_or_insert_default().insert(key, State::default());
        Self(key)
    }

    /// Returns whether another task has taken its notification. If not, that task will call the waker.
    fn is_notified(&self, waker: &Waker) -> bool {
        let mut sleepers = sleepers();
        let Some(state) = sleepers.get_or_insert_default().get_mut(&self.0) else { return true };
        if !state.is_notified {
            state.waker = Some(waker.clone());
        }
        state.is_notified
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        sleepers().get_or_insert_default().remove(&self.0);
    }
}

/// Takes the notifications that wait on a channel, and wakes the tasks that sleep for them.
pub(crate) fn take_notifications(channel: &Channel) {
    while let Some(id) = channel.next() {
        let waker = match sleepers().get_or_insert_default().get_mut(&(channel.as_raw_fd(), id)) {
            Some(state) => {
                state.is_notified = true;
                state.waker.take()
            }
            None => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
