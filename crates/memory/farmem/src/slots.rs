//! Slots of a client, each with one operation.

use std::cell::{Cell, RefCell};

use crate::error::StoreError;
use crate::operation::{Kind, Outcome, Ticket};
use crate::rpc::Reply;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    /// The slot has an operation that its worker has not started yet.
    Given,
    Running,
    Over(Result<Outcome, StoreError>),
}

/// State of one concurrent operation.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: Cell<State>,
    pub(crate) kind: Cell<Kind>,
    pub(crate) key: RefCell<Vec<u8>>,
    /// The value to write, or the value that a get found.
    pub(crate) value: RefCell<Vec<u8>>,
    pub(crate) reply: RefCell<Option<Reply>>,
    pub(crate) deadline_ns: Cell<Option<u64>>,
    /// Whether the operation may know nodes. These nodes must not be recycled before the operation ends.
    pub(crate) holds: Cell<bool>,
    /// Whether the operation has its result, but the client has not released the operation's lock yet.
    pub(crate) lingers: Cell<bool>,
    pub(crate) ticket: Cell<Ticket>,
}
