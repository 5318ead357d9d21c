//! Assembly of a store from parties that exchange messages: memory nodes, a middlebox if the strategy needs one, a
//! metadata service and clients.
//!
//! Each party is a state machine without IO. The caller carries each [`Message`] from
//! `next_message` of one party to `receive` of the party that it names, over any transport, and calls `poll` where a
//! party has it. Set-up has these steps:
//!
//! 1. A [`MemoryParty`] allocates its region and waits.
//! 2. With a middlebox, the [`BoxParty`] enters the memory node: it sends its queue pair, and receives the memory
//!    node's queue pair and region.
//! 3. The [`MetadataParty`] enters each memory node. With a middlebox it enters the middlebox instead. It then serves.
//! 4. A [`ClientParty`] enters the memory in the same way and joins the metadata service. It becomes a [`Client`].
//!
//! Parties may start in any order: a party that cannot answer yet keeps the request. Each party keeps at most one
//! request of each client and rejects a repeated one, so a peer cannot make it grow without bound. Once the metadata
//! service serves, the device's maximum number of queue pairs limits the number of clients.
//!
//! While the store works, the metadata service has dead clients shut out, and memory nodes that do not answer stopped.
//! With two memory nodes in processes of their own, each serves only for a lease that the metadata service extends
//! ([`Plan::lease_ns`]).
//!
//! An [`Exchange`] carries messages between threads and processes. Each of its parties has a [`Mailbox`]. A
//! [`BoxEntrance`] stands for a middlebox of the program `doorbell steer`.
//!
//! [`Client`]: crate::Client

mod boxes;
mod carrier;
mod client;
mod local;
mod memory;
mod message;
mod metadata;
mod middlebox;
mod steered;

use std::collections::VecDeque;

use crate::error::OpenError;
use crate::layout::Geometry;
use crate::metadata::NodeCounts;
use crate::methods::Strategy;
use crate::workload::Load;

pub use boxes::serve_boxes;
pub use carrier::{Exchange, Lines, Mailbox};
pub use client::ClientParty;
pub use local::LocalParties;
pub use memory::MemoryParty;
pub use message::{Body, MAX_BYTES, Message, Party, Path};
pub use metadata::MetadataParty;
pub use middlebox::{BoxParty, BoxSettings};
pub use steered::BoxEntrance;

/// Description of the store that the parties assemble. All parties of a store have the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Method by which clients handle conflicting writes.
    pub strategy: Strategy,
    /// Sizes of the store.
    pub geometry: Geometry,
    /// Number of memory nodes with the same content: 1 or 2.
    pub replicas: usize,
    /// Maximum number of clients that wait for the metadata service before it serves.
    pub clients: usize,
    /// Number of keys that exist at the beginning.
    pub keys: u64,
    /// Length of the values at the beginning, in bytes.
    pub value_bytes: usize,
    /// Whether all requests to the memory pass a middlebox.
    pub is_boxed: bool,
    /// Time for which a memory node serves without contact to the metadata service. `None` means that memory nodes
    /// need no lease, since the metadata service always reaches them.
    pub lease_ns: Option<u64>,
}

impl Plan {
    /// Returns the plan of a store for a workload of this number of clients, with one memory node.
    pub fn new(strategy: Strategy, load: &Load, clients: usize) -> Self {
        Self {
            strategy,
            geometry: load.geometry(clients),
            replicas: 1,
            clients,
            keys: load.keys,
            value_bytes: load.value_bytes,
            is_boxed: strategy.is_steered(),
            lease_ns: None,
        }
    }

    /// Returns the party through which the metadata service and clients reach the memory.
    pub(crate) fn entrance(&self) -> Party {
        if self.is_boxed { Party::Middlebox } else { Party::Memory(0) }
    }
}

/// Reason why a party rejects a message, or cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssemblyError {
    /// The bytes are no message.
    #[error("a message of the store's set-up has {0}")]
    Format(&'static str),
    /// The message is for another party.
    #[error("{own} got a message for {to}, which the carrier must deliver to {to}")]
    Misdirected {
        /// Party that the message names.
        to: Party,
        /// Party that received the message.
        own: Party,
    },
    /// The message does not fit the state of the party, or its sender may not send it.
    #[error("{own} cannot accept {what} from {from} now: send each request and answer once, in order")]
    Unexpected {
        /// Sender of the message.
        from: Party,
        /// Party that received the message.
        own: Party,
        /// Kind of the message.
        what: &'static str,
    },
    /// A party refuses the request of another one.
    #[error("{by} refuses {own}: {why}")]
    Refused {
        /// Party that refuses.
        by: Party,
        /// Party whose request is refused.
        own: Party,
        /// Reason.
        why: String,
    },
    /// A party does not answer a request of another one.
    #[error("{by} has not answered {own} within {seconds} s")]
    Silent {
        /// Party that does not answer.
        by: Party,
        /// Party whose request has no answer.
        own: Party,
        /// Duration of the wait, in seconds.
        seconds: u64,
    },
    /// The party has the maximum number of messages to send.
    #[error("{own} has {waiting} messages to send: carry them before the next one")]
    Crowded {
        /// Party with the messages.
        own: Party,
        /// Number of messages.
        waiting: usize,
    },
    /// The store has ended, so its parties exchange no further message.
    #[error("the store has ended")]
    Ended,
    /// Nodes of a store without clients are neither free nor in use.
    #[error(
        "of {all} nodes {} are free, {} have a value, {} are spent, {} are with clients that have gone, {} are not free \
         again: nodes were lost",
        .counts.free,
        .counts.heads,
        .counts.spent,
        .counts.granted,
        .counts.retired
    )]
    LostNodes {
        /// Number of nodes in each use.
        counts: NodeCounts,
        /// Number of nodes of the store.
        all: u32,
    },
    /// A memory node does not have the node of this key.
    #[error("the node of key {0:02x?} is damaged")]
    Damaged(Vec<u8>),
    /// A part of the store cannot be made or connected.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Messages of a party that wait to be carried.
#[derive(Debug)]
struct Outbox {
    own: Party,
    queue: VecDeque<Message>,
    most: usize,
}

impl Outbox {
    fn new(own: Party, plan: &Plan) -> Self {
        Self { own, queue: VecDeque::new(), most: 2 * plan.clients + 16 }
    }

    fn push(&mut self, to: Party, body: Body) {
        self.queue.push_back(Message { from: self.own, to, body });
    }

    fn has_room(&self) -> bool {
        self.queue.len() < self.most
    }

    /// Checks that a message is for this party, and that an answer has room.
    fn check(&self, message: &Message) -> Result<(), AssemblyError> {
        match () {
            () if message.to != self.own => Err(AssemblyError::Misdirected { to: message.to, own: self.own }),
            () if !self.has_room() => Err(AssemblyError::Crowded { own: self.own, waiting: self.queue.len() }),
            () => Ok(()),
        }
    }

    fn unexpected(&self, from: Party, body: &Body) -> AssemblyError {
        AssemblyError::Unexpected { from, own: self.own, what: body.name() }
    }

    /// Answers a request with its result. A repeated request gets no answer, since the first one had an answer.
    fn answer(&mut self, to: Party, result: Result<Body, OpenError>, what: &'static str) -> Result<(), AssemblyError> {
        match result {
            Err(OpenError::Duplicate(_)) => return Err(AssemblyError::Unexpected { from: to, own: self.own, what }),
            Err(error) => self.push(to, Body::Refused(error.to_string())),
            Ok(body) => self.push(to, body),
        }
        Ok(())
    }
}
