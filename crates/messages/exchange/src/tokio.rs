//! Adapters for tokio's runtime.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use doorbell_verbs::{Channel, Device};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::admission::{Event, Lobby, Opening, Step};
use crate::connection::waiting::Waiter;
use crate::connection::waiting::take_notifications;

/// A waiter for tokio's runtime. One waiter serves all connections whose notifications come on one completion channel.
///
/// [`TokioWaiter::new`] registers the descriptor of the channel with the runtime, and spawns one task that takes the
/// notifications. The spawned task wakes only the tasks whose connections were notified, so a thousand connections on
/// one channel do not slow each other down. The spawned task ends when the last clone of the waiter is dropped.
#[derive(Clone, Debug)]
pub struct TokioWaiter {
    /// Handle that ends the spawned task when the last clone of the waiter is dropped.
    _task: Arc<AbortOnDrop>,
    descriptor: RawFd,
    /// Device whose clock the deadlines use.
    device: Device,
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl TokioWaiter {
    /// Registers the channel with the current runtime.
    ///
    /// # Errors
    ///
    /// The runtime rejects the descriptor: too many descriptors are open, or the runtime was built without IO.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio, as [`tokio::spawn`] does.
    pub fn new(channel: &Channel) -> io::Result<Self> {
        let (descriptor, device) = (channel.as_raw_fd(), channel.device().clone());
        // SAFETY: the descriptor of a channel never changes, and the registration keeps a clone of the channel alive.
        let registered = unsafe { AsyncFd::register_with_interest(channel.clone(), Interest::READABLE)? };
        let task = tokio::spawn(async move {
            // `readable` fails only if the runtime shuts down. The spawned task then ends.
            while let Ok(mut ready) = registered.readable().await {
                take_notifications(registered.get_ref());
                ready.clear_ready();
            }
        });
        Ok(Self { _task: Arc::new(AbortOnDrop(task)), descriptor, device })
    }
}

impl Waiter for TokioWaiter {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        debug_assert!(
            channel.is_none_or(|channel| channel.as_raw_fd() == self.descriptor),
            "the channel must be the one that the waiter was made for"
        );
        // The spawned task takes the notifications and wakes this task, so this task only waits for its deadline.
        match (channel, deadline_ns) {
            (None, _) => tokio::task::yield_now().await,
            (Some(_), Some(deadline_ns)) => tokio::time::sleep(self.device.time_until(deadline_ns)).await,
            (Some(_), None) => std::future::pending().await,
        }
    }

    fn wants_notification(&self) -> bool {
        true
    }
}

/// A [`Lobby`] whose visitors a task of tokio's runtime handles.
#[derive(Debug)]
pub struct TokioLobby<O>(AsyncFd<Lobby<O>>);

impl<O: Opening> TokioLobby<O> {
    /// Registers the lobby with the current runtime.
    ///
    /// # Errors
    ///
    /// The runtime rejects the descriptor: too many descriptors are open, or the runtime was built without IO.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio.
    pub fn new(lobby: Lobby<O>) -> io::Result<Self> {
        // SAFETY: the descriptor of a lobby never changes, and this type never replaces its lobby.
        Ok(Self(unsafe { AsyncFd::register_with_interest(lobby, Interest::READABLE)? }))
    }

    /// Sets [`Limits::total`](crate::admission::Limits::total) for visitors that arrive from now on.
    pub fn set_total(&mut self, total: Duration) {
        self.0.get_mut().set_total(total);
    }

    /// Handles visitors until a visitor is admitted or rejected. This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Lobby::next`].
    pub async fn next(&mut self) -> io::Result<Event<O::Admitted, O::Refusal>> {
        loop {
            match self.0.get_mut().step()? {
                Step::Event(event) => return Ok(event),
                // Other tasks may run now, even if many visitors come.
                Step::Handled => tokio::task::yield_now().await,
                Step::Idle => {
                    let wakes_at = self.0.get_ref().wakes_at();
                    let readable = async { self.0.readable().await.map(|mut ready| ready.clear_ready()) };
                    match wakes_at {
                        Some(at) => timeout_at(at.into(), readable).await.unwrap_or(Ok(()))?,
                        None => readable.await?,
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::admission::{Hello, Limits};

    #[test]
    fn a_wait_that_is_dropped_counts_against_the_visitors() {
        let wait = Duration::from_secs(1);
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let _visitor = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let limits = Limits { total: Duration::MAX, ..Limits::default() };
            let mut lobby = TokioLobby::new(Lobby::new(listener, Hello::new(1), limits).unwrap()).unwrap();
            assert!(tokio::time::timeout(wait, lobby.next()).await.is_err(), "a silent visitor has an event");
            // The lobby wakes in time, so that more than one absence of the task counts.
            let counted = lobby.0.get_ref().counted();
            assert!(counted > Duration::from_millis(100), "{counted:?} of {wait:?} count");
        });
    }
}
