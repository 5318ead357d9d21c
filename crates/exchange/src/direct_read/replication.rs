//! One source, many readers: each pulls the same message from the same memory.

use doorbell_verbs::Region;

use super::{Acknowledge, Connection};
use crate::connection::{MessageConnection, MessageId, Submit};
use crate::engine::Machine;
use crate::error::{ConnectError, ConnectionError, Misuse};

/// Publishes messages to many readers. What it costs the source is one small SEND per reader,
/// whatever the length: the readers move the bytes, each when it has room.
///
/// The connections have to be acknowledged by SEND ([`Acknowledge::Send`]): a message has one
/// signal byte only.
#[derive(Debug)]
pub struct Replication {
    readers: Vec<Reader>,
    published: MessageId,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    /// Messages that were published before it took part.
    before: MessageId,
    /// That it ended was told.
    is_ended: bool,
}

impl Replication {
    /// Without readers yet.
    pub fn new() -> Self {
        Self { readers: Vec::new(), published: 0 }
    }

    /// Takes in a reader, for what is published from now on. Returns its number.
    ///
    /// # Errors
    ///
    /// Its messages are not acknowledged by SEND, or some were sent already.
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

    /// Announces a message to all readers that live, or to none if one of them has as many unread
    /// as its window allows. The memory must not change until the message is done.
    ///
    /// # Errors
    ///
    /// One of the readers does not take such a message, or the region does not allow it: nobody was sent it.
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
            // One that ends just now is told of by `next_ended`.
            let _ = reader.connection.send_from_with(region, offset, length, &[]);
        }
        self.published += 1;
        Ok(Submit::Accepted(self.published))
    }

    fn living(&mut self) -> impl Iterator<Item = &mut Reader> {
        self.readers.iter_mut().filter(|reader| reader.connection.over().is_none())
    }

    /// Moves all connections along. Returns whether anything happened.
    pub fn poll(&mut self) -> bool {
        let mut moved = false;
        for reader in self.living() {
            moved |= reader.connection.poll().unwrap_or(true);
        }
        moved
    }

    /// The last message that every reader has read. Those that ended do not count.
    pub fn last_done(&self) -> MessageId {
        let living = self.readers.iter().filter(|reader| reader.connection.over().is_none());
        living.map(|reader| reader.before + reader.connection.last_done()).min().unwrap_or(self.published)
    }

    /// A reader that has ended, why, and the last message that it has read; each is told of once.
    pub fn next_ended(&mut self) -> Option<(usize, ConnectionError, MessageId)> {
        self.readers.iter_mut().enumerate().find_map(|(index, reader)| {
            let error = reader.connection.over()?;
            let last = reader.before + reader.connection.last_done();
            (!std::mem::replace(&mut reader.is_ended, true)).then_some((index, error, last))
        })
    }

    /// The connections, by number.
    pub fn connection_mut(&mut self, number: usize) -> Option<&mut Connection> {
        self.readers.get_mut(number).map(|reader| &mut reader.connection)
    }
}

impl Default for Replication {
    fn default() -> Self {
        Self::new()
    }
}
