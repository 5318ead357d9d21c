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
use crate::asynchronous::Waiter;
use crate::waiting::take_notifications;

/// A waiter for the notifications of one completion channel in tokio's runtime, for all connections of that channel.
///
/// The descriptor of the channel is registered with the runtime once. One task takes the notifications and wakes only
/// the tasks whose connections were notified. A thousand connections on one channel therefore do not slow each other
/// down. The task ends when the last clone of the waiter is dropped.
#[derive(Clone, Debug)]
pub struct TokioWaiter {
    /// Ends the task with the last clone.
    _task: Arc<AbortOnDrop>,
    descriptor: RawFd,
    /// Device whose clock deadlines use.
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
    /// The runtime rejects the descriptor: too many are open, or the runtime was built without IO.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio, as [`tokio::spawn`] does.
    pub fn new(channel: &Channel) -> io::Result<Self> {
        let (descriptor, device) = (channel.as_raw_fd(), channel.device().clone());
        // SAFETY: a channel has one descriptor for all its life, and the registration holds a handle on the channel.
        let registered = unsafe { AsyncFd::register_with_interest(channel.clone(), Interest::READABLE)? };
        let task = tokio::spawn(async move {
            // An error means that the runtime shuts down.
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
        debug_assert!(channel.is_none_or(|channel| channel.as_raw_fd() == self.descriptor), "another channel");
        // The task that takes the notifications wakes this one.
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

/// A [`Lobby`] whose visitors a task handles.
#[derive(Debug)]
pub struct TokioLobby<O>(AsyncFd<Lobby<O>>);

impl<O: Opening> TokioLobby<O> {
    /// Registers the lobby with the current runtime.
    ///
    /// # Errors
    ///
    /// The runtime rejects the descriptor: too many are open, or the runtime was built without IO.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio.
    pub fn new(lobby: Lobby<O>) -> io::Result<Self> {
        // SAFETY: a lobby has one descriptor for all its life, and nothing here replaces the lobby.
        Ok(Self(unsafe { AsyncFd::register_with_interest(lobby, Interest::READABLE)? }))
    }

    /// Sets the total time of visitors that arrive from now on.
    pub fn set_total(&mut self, total: Duration) {
        self.0.get_mut().set_total(total);
    }

    /// Handles visitors until one is admitted or refused. This method is cancel safe.
    ///
    /// # Errors
    ///
    /// As of [`Lobby::next`].
    pub async fn next(&mut self) -> io::Result<Event<O::Admitted, O::Refusal>> {
        loop {
            match self.0.get_mut().step()? {
                Step::Event(event) => return Ok(event),
                // Other tasks get their turn, even if many visitors come.
                Step::Handled => tokio::task::yield_now().await,
                Step::Idle => {
                    let wakes_at = self.0.get_ref().wakes_at();
                    let readable = async { self.0.readable().await.map(|mut ready| ready.clear_ready()) };
                    match wakes_at {
                        // After that instant the lobby has work.
                        Some(at) => timeout_at(at.into(), readable).await.unwrap_or(Ok(()))?,
                        None => readable.await?,
                    }
                }
            }
        }
    }
}
