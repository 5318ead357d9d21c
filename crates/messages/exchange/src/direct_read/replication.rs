//! Replication: one source publishes messages, and many readers READ each message from the same memory.

use doorbell_verbs::Region;

use super::{Acknowledge, Connection};
use crate::connection::{MessageConnection, MessageId, Submit};
use crate::engine::Machine;
use crate::error::{ConnectError, ConnectionError, Misuse};

/// A publisher of messages to many readers. Each message costs the source one small SEND per reader, regardless of the
/// length of the message. Each reader READs the bytes when it has room.
///
/// The connections must acknowledge by SEND ([`Acknowledge::Send`]), since a message has only one signal byte.
#[derive(Debug)]
pub struct Replication {
    readers: Vec<Reader>,
    published: MessageId,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    /// Number of messages that were published before this reader was added.
    before: MessageId,
    /// Whether [`Replication::next_ended`] has returned this reader.
    is_ended: bool,
}

impl Replication {
    /// Makes a publisher without readers.
    pub fn new() -> Self {
        Self { readers: Vec::new(), published: 0 }
    }

    /// Adds a reader for messages that are published from now on. Returns its number.
    ///
    /// # Errors
    ///
    /// The connection does not use [`Acknowledge::Send`], or has already sent messages.
    pub fn add(&mut self, connection: Connection) -> Result<usize, ConnectError> {
        if connection.machine.sending.acknowledge != Acknowledge::Send {
            return Err(ConnectError::Unfit("a message has only one signal byte: readers must acknowledge by SEND"));
        }
        if connection.machine.last_accepted() != 0 {
            return Err(ConnectError::Unfit(
                "the connection has already sent messages: add a reader before its first message",
            ));
        }
        self.readers.push(Reader { connection, before: self.published, is_ended: false });
        Ok(self.readers.len() - 1)
    }

    /// Announces a message to all live readers. If the window of one reader is full, announces the message to no
    /// reader. The program must not change the memory until the message is done.
    ///
    /// # Errors
    ///
    /// The message is too long for a reader, is not inside the region, or the region lacks the access that the protocol
    /// needs. In these cases, the message is announced to no reader.
    pub fn publish(&mut self, region: &Region, offset: usize, length: usize) -> Result<Submit, Misuse> {
        for reader in self.living() {
            reader.connection.machine.check_source(region, offset, length)?;
        }
        for reader in self.living() {
            if let Ok(Some(full)) = reader.connection.refusal(length) {
                return Ok(Submit::Full(full));
            }
        }
        for reader in self.living() {
            // If this send ends the connection of a reader, `next_ended` returns the reader.
            let _ = reader.connection.send_from_with(region, offset, length, &[]);
        }
        self.published += 1;
        Ok(Submit::Accepted(self.published))
    }

    fn living(&mut self) -> impl Iterator<Item = &mut Reader> {
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

    /// Returns the id of the last message that every live reader has read.
    pub fn last_done(&self) -> MessageId {
        let living = self.readers.iter().filter(|reader| reader.connection.over().is_none());
        living.map(|reader| reader.before + reader.connection.last_done()).min().unwrap_or(self.published)
    }

    /// Returns a reader whose connection has ended, the reason, and the id of the last message that the reader has
    /// read. Returns each reader only once.
    pub fn next_ended(&mut self) -> Option<(usize, ConnectionError, MessageId)> {
        self.readers.iter_mut().enumerate().find_map(|(index, reader)| {
            let error = reader.connection.over()?;
            let last = reader.before + reader.connection.last_done();
            (!std::mem::replace(&mut reader.is_ended, true)).then_some((index, error, last))
        })
    }

    /// Returns the connection of the reader with this number.
    pub fn connection_mut(&mut self, number: usize) -> Option<&mut Connection> {
        self.readers.get_mut(number).map(|reader| &mut reader.connection)
    }
}

impl Default for Replication {
    fn default() -> Self {
        Self::new()
    }
}
