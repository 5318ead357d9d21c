//! The common wait of blocking calls, of futures, and of split connections. A wait polls, arms a notification and polls
//! once more. Then it sleeps until a notification or a deadline, and takes the notifications from the channel.

use std::future::{Future, poll_fn};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use doorbell_sync::IgnorePoison;
use doorbell_verbs::{Channel, CqId};
use rustc_hash::FxHashMap;

use crate::connection::error::ConnectionError;
use crate::connection::{MessageConnection, MessageId, Outcome, Submit};

/// Strategy of a task that waits while a connection has no work.
pub trait Waiter {
    /// Waits until the connection should be polled again.
    ///
    /// If `channel` is given, the caller has armed a notification on the channel and has then polled the connection
    /// once more. The waiter returns when the descriptor of the channel is readable, or at the deadline. The waiter
    /// leaves the notifications on the channel, since they may belong to other connections. If `channel` is `None`, no
    /// notification will come, and the waiter returns after other tasks have run.
    ///
    /// The deadline is a time in nanoseconds on the device's clock
    /// ([`Device::now_ns`](doorbell_verbs::Device::now_ns)). At this time the connection must be polled, for example to
    /// send a keepalive. If a waiter sleeps longer, the connection may not detect a dead peer. `None` means that no
    /// such poll is due.
    ///
    /// The caller may drop the future before the future is complete.
    fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) -> impl Future<Output = ()>;

    /// Returns whether the caller must arm a notification before it calls [`wait`](Self::wait).
    fn wants_notification(&self) -> bool;

    /// Returns an observer for the lock that the two halves of a split connection share. Only a simulator returns an
    /// observer, since the threads of a simulation wait for locks in virtual time.
    fn observe_lock(&self) -> Option<Box<dyn LockObserver>> {
        None
    }

    /// Lets a simulator advance its virtual time by the cost of a message. A workload awaits this future after each
    /// message. Otherwise a task could run forever at one moment of virtual time. Outside a simulator, the future is
    /// ready at once.
    fn breathe(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// An observer that is called when threads take or release a lock.
pub trait LockObserver: std::fmt::Debug + Send + Sync {
    /// Called after the running thread has taken the lock.
    fn taken(&self);

    /// Called before the running thread releases the lock.
    fn released(&self);
}

/// Result of an attempt: `Ok(Some(value))` once the attempt succeeds, and `Ok(None)` if the connection must advance
/// first.
pub(crate) type Attempt<T> = Result<Option<T>, ConnectionError>;

/// Returns an attempt that succeeds when the connection accepts the message.
pub(crate) fn accepted<C: MessageConnection>(message: &[u8]) -> impl FnMut(&mut C) -> Attempt<MessageId> {
    move |connection| match connection.send(message)? {
        Submit::Accepted(id) => Ok(Some(id)),
        Submit::Full(_) => Ok(None),
    }
}

/// Succeeds when a message has arrived. Fails if the peer has sent its goodbye and no message is left.
pub(crate) fn arrived<C: MessageConnection>(connection: &mut C) -> Attempt<C::Message> {
    match connection.take() {
        None if connection.is_peer_closed() => Err(ConnectionError::PeerClosed),
        message => Ok(message),
    }
}

/// Returns an attempt that succeeds when the message with this id is done.
pub(crate) fn done<C: MessageConnection>(id: MessageId) -> impl FnMut(&mut C) -> Attempt<()> {
    move |connection| match connection.outcome(id) {
        Outcome::Done => Ok(Some(())),
        Outcome::Failed(error) => Err(error),
        Outcome::Pending => Ok(None),
    }
}

/// Succeeds when the peer's RNIC has acknowledged the goodbye of this side.
pub(crate) fn closed<C: MessageConnection>(connection: &mut C) -> Attempt<()> {
    match connection.is_closed() {
        true => connection.over().map_or(Ok(Some(())), Err),
        false => Ok(None),
    }
}

/// Succeeds when the peer has sent its goodbye. Drops messages that arrive before the goodbye.
pub(crate) fn drained<C: MessageConnection>(connection: &mut C) -> Attempt<()> {
    while connection.take().is_some() {}
    Ok(connection.is_peer_closed().then_some(()))
}

/// Advances a connection until `attempt` succeeds. Polls up to `spins` times before each wait.
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

/// The next wait of a connection.
pub(crate) enum Wait {
    /// No wait, since the latest poll reported an event.
    Not,
    /// A wait while other tasks run, since no notification will come. The number is the time at which the connection
    /// must be polled.
    Turn(Option<u64>),
    /// A wait until a notification on the channel or until this deadline in nanoseconds.
    Notification(Channel, Sleeper, u64),
}

impl Wait {
    /// Arms a notification and polls once more. If the connection or the waiter does not use notifications, only
    /// returns [`Wait::Turn`].
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
        // Completions that arrived before the call of `arm` may raise no notification, so poll once more.
        if connection.poll()? {
            return Ok(Self::Not);
        }
        let deadline_ns = sleep_deadline_ns(connection);
        Ok(Self::Notification(channel, sleeper, deadline_ns))
    }

    /// Waits. If the future is dropped, notifications stay on the channel, and other tasks take them.
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

/// Maximum time that a connection sleeps between polls. When other threads drop messages, only a poll reposts the
/// buffers and reports the free space to the peer.
const LONGEST_SLEEP_NS: u64 = 200_000_000;

/// Returns the time until which a connection may sleep, in nanoseconds on the device's clock.
fn sleep_deadline_ns(connection: &impl MessageConnection) -> u64 {
    let longest_ns = connection.qp().pd().device().now_ns() + LONGEST_SLEEP_NS;
    connection.poll_timeout_ns().map_or(longest_ns, |deadline_ns| deadline_ns.min(longest_ns))
}

/// Key of a completion queue that raises notifications on a channel. Two channels never have the same descriptor at the
/// same time.
type Key = (RawFd, CqId);

#[derive(Default)]
struct State {
    is_notified: bool,
    waker: Option<Waker>,
}

/// Tasks that sleep, by their completion queues. Many connections may share a channel, and the first task that wakes
/// takes the notifications of all connections.
static SLEEPERS: Mutex<Option<FxHashMap<Key, State>>> = Mutex::new(None);

fn sleepers() -> MutexGuard<'static, Option<FxHashMap<Key, State>>> {
    SLEEPERS.lock().ignore_poison()
}

/// Registration of a task in [`SLEEPERS`] while the task sleeps until a notification of its connection.
#[derive(Debug)]
pub(crate) struct Sleeper(Key);

impl Sleeper {
    /// Registers the task. The caller must register the task before it arms the notification, since other tasks may
    /// then take the notification.
    fn new(channel: &Channel, connection: &impl MessageConnection) -> Self {
        let key = (channel.as_raw_fd(), connection.qp().recv_cq().id());
        sleepers().get_or_insert_default().insert(key, State::default());
        Self(key)
    }

    /// Returns whether another task has already taken the notification of this task. If not, the task that takes it
    /// later calls `waker`.
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

/// Takes the notifications that wait on a channel, and wakes the tasks whose connections were notified.
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
