//! Replication: one source sends each message to many readers from the same memory.

use doorbell_verbs::Region;

use crate::connection::error::{ConnectError, ConnectionError, Misuse};
use crate::connection::traits::{MessageConnection, MessageId, Submit};

/// A publisher of messages to many readers. All connections send a message from the same memory.
///
/// With Direct-Read, each message costs the source one small SEND per reader, regardless of the length of the message.
/// Each reader READs the bytes when it has room.
#[derive(Debug)]
pub struct Replication<C> {
    readers: Vec<Reader<C>>,
    published: MessageId,
}

#[derive(Debug)]
struct Reader<C> {
    connection: C,
    /// Number of messages that were published before this reader was added.
    before: MessageId,
    /// Whether [`Replication::next_ended`] has returned this reader.
    is_ended: bool,
}

impl<C: MessageConnection> Replication<C> {
    /// Makes a publisher without readers.
    pub fn new() -> Self {
        Self { readers: Vec::new(), published: 0 }
    }

    /// Adds a reader for messages that are published from now on. Returns its number.
    ///
    /// # Errors
    ///
    /// The protocol uses bytes directly after each message ([`MessageConnection::bytes_behind`]), which only one
    /// connection can use. Or the connection has already sent messages.
    pub fn add(&mut self, connection: C) -> Result<usize, ConnectError> {
        if connection.bytes_behind() > 0 {
            return Err(ConnectError::Unfit(
                "the protocol uses the byte after each message, which several readers cannot share",
            ));
        }
        if connection.last_done() + connection.unacknowledged() != 0 {
            return Err(ConnectError::Unfit(
                "the connection has already sent messages: add a reader before its first message",
            ));
        }
        self.readers.push(Reader { connection, before: self.published, is_ended: false });
        Ok(self.readers.len() - 1)
    }

    /// Sends a message to all live readers. If one reader has no room for the message, sends it to no reader. The
    /// program must not change the memory until the message is done.
    ///
    /// # Errors
    ///
    /// The message is too long for a reader, is not inside the region, or the region lacks the access that the protocol
    /// needs. In these cases, the message is sent to no reader.
    pub fn publish(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, Misuse> {
        for reader in self.living() {
            reader.connection.check_source(region, offset, length)?;
        }
        for reader in self.living() {
            if let Ok(Some(full)) = reader.connection.refusal(length) {
                return Ok(Submit::Full(full));
            }
        }
        for reader in self.living() {
            // If this send ends the connection of a reader, `next_ended` returns the reader.
            let _ = reader.connection.send_from(region, offset, length);
        }
        self.published += 1;
        Ok(Submit::Accepted(self.published))
    }

    fn living(&mut self) -> impl Iterator<Item = &mut Reader<C>> {
        self.readers.iter_mut().filter(|reader| reader.connection.over().is_none())
    }

    /// Advances all connections. Returns whether anything happened.
    pub fn poll(&mut self) -> bool {
        let mut moved = false;
        for reader in self.living() {
            moved |= reader.connection.poll().unwrap_or(true);
        }
        moved
    }

    /// Returns the id of the latest message that is done at every live reader.
    pub fn last_done(&self) -> MessageId {
        let living = self.readers.iter().filter(|reader| reader.connection.over().is_none());
        living.map(|reader| reader.before + reader.connection.last_done()).min().unwrap_or(self.published)
    }

    /// Returns a reader whose connection has ended, the reason, and the id of the latest message that is done at the
    /// reader. Returns each reader only once.
    pub fn next_ended(&mut self) -> Option<(usize, ConnectionError, MessageId)> {
        self.readers.iter_mut().enumerate().find_map(|(index, reader)| {
            let error = reader.connection.over()?;
            let last = reader.before + reader.connection.last_done();
            (!std::mem::replace(&mut reader.is_ended, true)).then_some((index, error, last))
        })
    }

    /// Returns the connection of the reader with this number.
    pub fn connection_mut(&mut self, number: usize) -> Option<&mut C> {
        self.readers.get_mut(number).map(|reader| &mut reader.connection)
    }
}

impl<C: MessageConnection> Default for Replication<C> {
    fn default() -> Self {
        Self::new()
    }
}
