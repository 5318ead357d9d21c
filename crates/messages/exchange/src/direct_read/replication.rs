//! One source and many readers, which all read the same message from the same memory.

use doorbell_verbs::Region;

use super::{Acknowledge, Connection};
use crate::connection::{MessageConnection, MessageId, Submit};
use crate::engine::Machine;
use crate::error::{ConnectError, ConnectionError, Misuse};

/// A publisher of messages to many readers. Each message costs the source one small SEND per reader, regardless of
/// its length. The readers move the bytes when they have room.
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
    /// Messages that were published before this reader was added.
    before: MessageId,
    /// Whether [`Replication::next_ended`] has returned this reader.
    is_ended: bool,
}

impl Replication {
    /// Makes a source without readers.
    pub fn new() -> Self {
        Self { readers: Vec::new(), published: 0 }
    }

    /// Adds a reader for messages that are published from now on. Returns its number.
    ///
    /// # Errors
    ///
    /// The reader does not acknowledge by SEND, or its connection has already sent messages.
    pub fn add(&mut self, connection: Connection) -> Result<usize, ConnectError> {
        if connection.machine.sending.acknowledge != Acknowledge::Send {
            return Err(ConnectError::Unfit("a message has one signal byte only, so its readers have to send word"));
        }
        if connection.machine.last_accepted() != 0 {
            return Err(ConnectError::Unfit("a reader takes part from its first message on, and this one had some"));
        }
        self.readers.push(Reader { connection, before: self.published, is_ended: false });
        Ok(self.readers.len() - 1)
    }

    /// Announces a message to all live readers. Announces it to none if the window of one of them is full. The memory
    /// must not change until the message is done.
    ///
    /// # Errors
    ///
    /// A reader does not accept such a message, or the region does not allow it. In both cases no reader receives it.
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
            // `next_ended` returns a reader that ends now.
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

    /// Returns the last message that every live reader has read.
    pub fn last_done(&self) -> MessageId {
        let living = self.readers.iter().filter(|reader| reader.connection.over().is_none());
        living.map(|reader| reader.before + reader.connection.last_done()).min().unwrap_or(self.published)
    }

    /// Returns a reader that has ended, the reason, and the last message that it has read. Returns each reader once.
    pub fn next_ended(&mut self) -> Option<(usize, ConnectionError, MessageId)> {
        self.readers.iter_mut().enumerate().find_map(|(index, reader)| {
            let error = reader.connection.over()?;
            let last = reader.before + reader.connection.last_done();
            (!std::mem::replace(&mut reader.is_ended, true)).then_some((index, error, last))
        })
    }

    /// Returns the connection with this number.
    pub fn connection_mut(&mut self, number: usize) -> Option<&mut Connection> {
        self.readers.get_mut(number).map(|reader| &mut reader.connection)
    }
}

impl Default for Replication {
    fn default() -> Self {
        Self::new()
    }
}
