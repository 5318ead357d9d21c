//! Sleeping until a connection has something to do: for how long, and whose notification it was.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use doorbell_verbs::{Channel, CqId};
use rustc_hash::FxHashMap;

use crate::connection::MessageConnection;

/// The longest sleep, even if the connection has no deadline of its own: messages that other
/// threads drop are reposted and reported by polling.
const LONGEST_SLEEP_NS: u64 = 200_000_000;

/// Until when a connection may be left alone, on its device's clock: until its deadline, if that is soon.
pub(crate) fn sleep_deadline_ns(connection: &impl MessageConnection) -> u64 {
    let longest_ns = connection.qp().pd().device().now_ns() + LONGEST_SLEEP_NS;
    connection.poll_timeout_ns().map_or(longest_ns, |deadline_ns| deadline_ns.min(longest_ns))
}

/// Names a queue that notifies on a channel: no two channels have one descriptor.
type Key = (RawFd, CqId);

#[derive(Default)]
struct State {
    is_notified: bool,
    waker: Option<Waker>,
}

/// Who sleeps. A channel may serve many connections, and whoever wakes first takes the notifications of all.
static SLEEPERS: Mutex<Option<FxHashMap<Key, State>>> = Mutex::new(None);

fn sleepers() -> MutexGuard<'static, Option<FxHashMap<Key, State>>> {
    SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task that is about to sleep until its connection is notified.
#[derive(Debug)]
pub(crate) struct Sleeper(Key);

impl Sleeper {
    /// To be made before the notification is armed: from then on others may take it.
    pub(crate) fn new(channel: &Channel, connection: &impl MessageConnection) -> Self {
        let key = (channel.as_raw_fd(), connection.qp().recv_cq().id());
        sleepers().get_or_insert_default().insert(key, State::default());
        Self(key)
    }

    /// Has another taken its notification? If not, the waker is called when one does.
    pub(crate) fn is_notified(&self, waker: &Waker) -> bool {
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
