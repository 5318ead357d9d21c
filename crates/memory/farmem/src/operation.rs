//! Operations of the store, and their results.

/// An operation. Keys are byte strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOperation<'a> {
    /// Reads a key's value.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Replaces the value of an existing key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The key's new value.
        value: &'a [u8],
    },
    /// Creates a key that does not exist.
    Insert {
        /// The key.
        key: &'a [u8],
        /// The key's value.
        value: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
}

impl<'a> StoreOperation<'a> {
    pub(crate) fn parts(self) -> (Kind, &'a [u8], &'a [u8]) {
        match self {
            Self::Get { key } => (Kind::Get, key, &[]),
            Self::Put { key, value } => (Kind::Put, key, value),
            Self::Insert { key, value } => (Kind::Insert, key, value),
            Self::Delete { key } => (Kind::Delete, key, &[]),
        }
    }
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Put,
    Insert,
    Delete,
}

/// Result of an operation without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A get found the value; a put, insert or delete took effect.
    Done,
    /// The key does not exist, so a get, put or delete had no effect.
    Absent,
    /// The key exists, so an insert had no effect.
    Exists,
}

/// Number of a client's operation. Consecutive operations have consecutive tickets.
pub type Ticket = u64;
