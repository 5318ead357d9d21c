//! Waiting by busy-polling for a while, then sleeping on the completion channel.

use crate::connection::{MessageConnection, MessageId, Outcome, Submit};
use crate::error::ConnectionError;
use crate::sleep::{longest_sleep, take_notifications};

/// Polls that find nothing before the thread goes to sleep, if it may: some hundred microseconds.
const SPINS: u32 = 500;

/// A connection whose calls wait.
///
/// Without a completion channel it busy-polls, and offers its CPU to others now and then; with one it sleeps there once polling has found
/// nothing for a while.
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
    pub fn send(&mut self, message: &[u8]) -> Result<MessageId, ConnectionError> {
        loop {
            if let Submit::Accepted(id) = self.connection.send(message)? {
                return Ok(id);
            }
            self.wait_until(|connection| connection.poll())?;
        }
    }

    /// Waits for the next message. [`ConnectionError::PeerClosed`] if the peer has closed its
    /// side and no more can come.
    pub fn receive(&mut self) -> Result<C::Message, ConnectionError> {
        loop {
            if let Some(message) = self.connection.take() {
                return Ok(message);
            }
            if self.connection.is_peer_closed() {
                return Err(ConnectionError::PeerClosed);
            }
            self.wait_until(|connection| connection.poll())?;
        }
    }

    /// Waits until a message is done.
    pub fn wait(&mut self, id: MessageId) -> Result<(), ConnectionError> {
        loop {
            match self.connection.outcome(id) {
                Outcome::Done => return Ok(()),
                Outcome::Failed(error) => return Err(error),
                Outcome::Pending => self.wait_until(|connection| connection.poll())?,
            }
        }
    }

    /// Says goodbye, after everything is delivered.
    pub fn close(&mut self) -> Result<(), ConnectionError> {
        self.connection.close();
        while !self.connection.is_closed() {
            self.wait_until(|connection| Ok(connection.poll()? || connection.is_closed()))?;
        }
        self.connection.over().map_or(Ok(()), Err)
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

    /// Polls until something happened, and sleeps in between once polling has become pointless.
    fn wait_until(
        &mut self,
        mut happened: impl FnMut(&mut C) -> Result<bool, ConnectionError>,
    ) -> Result<(), ConnectionError> {
        loop {
            for _ in 0..self.spins.max(1) {
                if happened(&mut self.connection)? {
                    return Ok(());
                }
            }
            let Some(channel) = self.connection.channel().filter(|_| self.connection.notifies()).cloned() else {
                // The peer may wait for this very CPU.
                std::thread::yield_now();
                continue;
            };
            self.connection.arm();
            // What came before the notification was armed may raise none.
            if happened(&mut self.connection)? {
                return Ok(());
            }
            // An interrupted or failed wait is no harm: polling tells.
            let _ = channel.wait(Some(longest_sleep(&self.connection)));
            take_notifications(&channel);
        }
    }
}
